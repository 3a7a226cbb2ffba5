"""Lens distortion as maps of the plane, with derivatives, limits and inverses.

A lens maps ``plane`` to ``image`` coordinates, in focal lengths from the principal point.
Brown-Conrady's plane is ``(x / z, y / z)``; a fisheye's is the direction times the angle in
radians. Small asymmetric terms are added to a rational radial factor (Brown-Conrady) or applied
after it.

Sources: OpenCV's calib3d documentation for Brown-Conrady and Kannala-Brandt; Project Aria's
"Fisheye624" (FisheyeRadTanThinPrism), with p1 and p2 swapped against OpenCV's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy.polynomial import Polynomial

Plane = Float[np.ndarray, "N 2"]
Jacobian = Float[np.ndarray, "N 2 2"]
Coefficients = tuple[float, ...]

#: Tangent of the largest angle, 0.006 degrees below a right one.
_LARGEST_TANGENT = 1e4
_MAX_STEPS = 60
#: Largest residual of an inverse, in focal lengths.
_TOLERANCE = 1e-11


def distort(model: str, coefficients: Coefficients, plane: Plane) -> tuple[Plane, Jacobian]:
    """Return image coordinates of plane points and their derivatives."""
    factor, slope = _factor(_radial(model, coefficients), np.sum(plane * plane, axis=-1))
    outer = plane[:, :, None] * plane[:, None, :]
    radial = factor[:, None, None] * np.eye(2) + 2 * slope[:, None, None] * outer
    bent = plane * factor[:, None]
    if model == "brown_conrady":
        p1, p2 = coefficients[2:4]
        shift, derivative = _tangential(p2, p1, plane)
        return bent + shift, radial + derivative
    if model == "fisheye624":
        image, derivative = _apply_prism(coefficients, bent)
        return image, derivative @ radial
    return bent, radial


def undistort(model: str, coefficients: Coefficients, image: Plane) -> Plane:
    """Return the plane points that ``distort`` maps to ``image``; NaN where undefined."""
    largest = limit(model, coefficients)
    radial = _radial(model, coefficients)
    with np.errstate(all="ignore"):
        bent = image
        if model == "fisheye624":
            bent = _newton(functools.partial(_apply_prism, coefficients), image, image)
        plane = _invert_radial(radial, largest, bent)
        if model == "brown_conrady":
            # The Jacobian is singular on the limit.
            radius = np.linalg.norm(plane, axis=-1, keepdims=True)
            plane = np.where(radius > 0.999 * largest, 0.999 * plane, plane)
            plane = _newton(functools.partial(distort, model, coefficients), image, plane)
        image_again, _ = distort(model, coefficients, plane)
        residual = np.linalg.norm(image_again - image, axis=-1)
        inside = np.linalg.norm(plane, axis=-1) <= largest

    good = inside & (residual <= _TOLERANCE * (1 + np.linalg.norm(image, axis=-1)))
    return np.where(good[:, None], plane, np.nan)


@functools.lru_cache(maxsize=64)
def limit(model: str, coefficients: Coefficients) -> float:
    """Return the plane radius up to which the map is injective.

    It ends at the radial function's first extremum or pole, or where asymmetric terms fold the map.
    """
    largest = _LARGEST_TANGENT if model == "brown_conrady" else math.pi
    n, d = (Polynomial(part) for part in _radial(model, coefficients))
    u = Polynomial([0.0, 1.0])
    slope = n * d + 2 * u * (n.deriv() * d - n * d.deriv())  # of r n(r^2) / d(r^2), times d^2
    radial = math.sqrt(min(_first_root(part, largest**2) for part in (slope, d)))
    asymmetric = {"brown_conrady": coefficients[2:4], "fisheye624": coefficients[6:]}
    return _first_fold(model, coefficients, radial) if any(asymmetric.get(model, ())) else radial


def _first_root(polynomial: Polynomial, largest: float) -> float:
    # Negligible powers would only make the roots inaccurate.
    matters = np.abs(polynomial.coef) * largest ** np.arange(len(polynomial.coef)) > 1e-14
    roots = np.polynomial.polynomial.polyroots(polynomial.coef[: np.flatnonzero(matters)[-1] + 1])
    real = roots.real[(np.abs(roots.imag) <= 1e-7 * np.abs(roots.real)) & (roots.real > 0)]
    return min(float(real.min(initial=np.inf)), largest)


def _first_fold(model: str, coefficients: Coefficients, largest: float) -> float:
    """Return the first radius up to ``largest`` with a singular Jacobian on one of 48 spokes."""
    turn = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    spokes = np.stack([np.cos(turn), np.sin(turn)], axis=-1)

    def folded(radius: np.ndarray) -> np.ndarray:
        points = (radius[:, None, None] * spokes).reshape(-1, 2)
        with np.errstate(all="ignore"):
            _, jacobian = distort(model, coefficients, points)
            return np.asarray((_determinant(jacobian).reshape(-1, 48) <= 0).any(axis=1))

    tangent = model == "brown_conrady"
    radii = np.linspace(0, math.atan(largest) if tangent else largest, 97)
    radii = np.tan(radii) if tangent else radii
    first = np.flatnonzero(folded(radii))
    if len(first) == 0:
        return largest
    low, high = radii[first[0] - 1], radii[first[0]]
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if folded(np.array([middle]))[0] else (middle, high)
    return float(low)


def _radial(model: str, coefficients: Coefficients) -> tuple[Coefficients, Coefficients]:
    """Return the radial factor's numerator and denominator, lowest power of r^2 first."""
    k = coefficients
    if model == "brown_conrady":
        return (1.0, k[0], k[1], k[4]), (1.0, k[5], k[6], k[7])
    return (1.0, *k[: 4 if model == "kannala_brandt" else 6]), (1.0,)


def _factor(
    radial: tuple[Coefficients, Coefficients], squared: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the radial factor and its derivative by the squared radius."""
    top, bottom = (Polynomial(part) for part in radial)
    n, d = top(squared), bottom(squared)
    return n / d, (top.deriv()(squared) - n / d * bottom.deriv()(squared)) / d


def _apply_prism(coefficients: Coefficients, points: Plane) -> tuple[Plane, Jacobian]:
    """Apply Fisheye624's tangential and thin-prism terms; return points and derivatives."""
    p1, p2, s1, s2, s3, s4 = coefficients[6:]
    shift, derivative = _tangential(p1, p2, points)
    squared = np.sum(points * points, axis=-1)
    shift += np.stack([squared * (s1 + squared * s2), squared * (s3 + squared * s4)], axis=-1)
    growth = np.stack([s1 + 2 * s2 * squared, s3 + 2 * s4 * squared], axis=-1)
    return points + shift, np.eye(2) + derivative + growth[:, :, None] * 2 * points[:, None, :]


def _tangential(a: float, b: float, points: Plane) -> tuple[Plane, Jacobian]:
    """Return ``a (r^2 + 2 x^2) + 2 b x y, b (r^2 + 2 y^2) + 2 a x y`` and its derivatives."""
    x, y = points[:, 0], points[:, 1]
    shift = np.stack(
        [a * (3 * x * x + y * y) + 2 * b * x * y, b * (x * x + 3 * y * y) + 2 * a * x * y], axis=-1
    )
    derivative = np.empty((len(points), 2, 2))
    derivative[:, 0, 0] = 6 * a * x + 2 * b * y
    derivative[:, 0, 1] = derivative[:, 1, 0] = 2 * (a * y + b * x)
    derivative[:, 1, 1] = 6 * b * y + 2 * a * x
    return shift, derivative


def _invert_radial(radial: tuple[Coefficients, Coefficients], largest: float, bent: Plane) -> Plane:
    """Return points with radius r where ``r factor(r^2)`` is that of ``bent``, or ``largest``."""
    length = np.linalg.norm(bent, axis=-1)
    result = np.where(np.isfinite(length), np.minimum(length, largest), np.nan)
    moving = np.flatnonzero(np.isfinite(length))

    low, high = np.zeros(len(moving)), np.full(len(moving), largest)
    for _ in range(_MAX_STEPS):
        r = result[moving]
        factor, slope = _factor(radial, r * r)
        error = r * factor - length[moving]
        low, high = np.where(error < 0, r, low), np.where(error < 0, high, r)
        step = r - error / (factor + 2 * r * r * slope)
        new = np.where((step >= low) & (step <= high), step, (low + high) / 2)
        result[moving] = new
        keep = np.abs(new - r) > 1e-15 * r
        moving, low, high = moving[keep], low[keep], high[keep]
        if len(moving) == 0:
            break

    scale = np.where(length > 0, result / np.where(length > 0, length, 1.0), 1.0)
    return bent * scale[:, None]


def _newton(
    function: Callable[[Plane], tuple[Plane, Jacobian]], target: Plane, start: Plane
) -> Plane:
    """Return points with ``function(points) = target``; they are wrong without convergence."""
    points = start.copy()
    moving = np.flatnonzero(np.isfinite(points).all(axis=-1))
    for _ in range(_MAX_STEPS):
        value, jacobian = function(points[moving])
        (a, b), (c, d) = np.moveaxis(jacobian, 0, -1)
        x, y = (target[moving] - value).T
        step = np.stack([d * x - b * y, a * y - c * x], axis=-1) / _determinant(jacobian)[:, None]
        points[moving] += step
        size = 1 + np.abs(points[moving]).max(axis=-1)
        moving = moving[np.abs(step).max(axis=-1) > 1e-15 * size]
        if len(moving) == 0:
            break
    return points


def _determinant(matrix: Jacobian) -> Float[np.ndarray, "N"]:
    return matrix[:, 0, 0] * matrix[:, 1, 1] - matrix[:, 0, 1] * matrix[:, 1, 0]
