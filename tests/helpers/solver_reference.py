"""Slow, readable twins of the torch solvers: one clip, frame, hand and joint at a time, in float64.

Written from the equations (the paper's section 3.3 and appendix "Architecture"), not from the fast
code. A clip's camera is a function from an anchor (0..1 of the image) to its bearing (x/z, y/z),
or None.
"""

import numpy as np


def calibrated(focal, centre, size):
    """The camera of pixel intrinsics whose image spans 0 to ``size``."""

    def bearing(u, v):
        return (u * size[0] - centre[0]) / focal[0], (v * size[1] - centre[1]) / focal[1]

    return bearing


def read_field(rays, column, row):
    """Bilinear value of a field (3, h, w) at cell coordinates; what lies outside counts as zero."""
    _, h, w = rays.shape
    left, top = int(np.floor(column)), int(np.floor(row))
    value = np.zeros(3)
    for j in (left, left + 1):
        for i in (top, top + 1):
            if 0 <= j < w and 0 <= i < h:
                value += (1 - abs(column - j)) * (1 - abs(row - i)) * rays[:, i, j]
    return value


def sampled(rays, cell_centres=False):
    """The camera of a ray field: outer cells on the image's edge, or every cell at its centre."""
    _, h, w = rays.shape

    def bearing(u, v):
        if cell_centres:
            ray = read_field(rays, u * w - 0.5, v * h - 0.5)
        else:
            ray = read_field(rays, u * (w - 1), v * (h - 1))
        depth = max(abs(ray[2]), 1e-6)
        return ray[0] / depth, ray[1] / depth

    return bearing


def fit_pinhole(rays, regression="bearing_on_pixel"):
    """One regression line per axis: focal (2,), centre (2,) in shares of the image, mean misfit."""
    _, h, w = rays.shape
    places, bearings = [], []
    for i in range(h):
        for j in range(w):
            depth = max(rays[2, i, j], 1e-6)
            places.append(((j + 0.5) / w, (i + 0.5) / h))
            bearings.append((rays[0, i, j] / depth, rays[1, i, j] / depth))
    places, bearings = np.array(places), np.array(bearings)
    focal, centre = np.zeros(2), np.zeros(2)
    for axis in range(2):
        if regression == "bearing_on_pixel":
            slope, level = np.polyfit(places[:, axis], bearings[:, axis], 1)
            focal[axis], centre[axis] = 1 / slope, -level / slope
        else:
            focal[axis], centre[axis] = np.polyfit(bearings[:, axis], places[:, axis], 1)
    angles = []
    for k, place in enumerate(places):
        ray = rays[:, k // w, k % w]
        model = np.append((place - centre) / focal, 1.0)
        cosine = ray @ model / np.linalg.norm(ray) / np.linalg.norm(model)
        angles.append(np.arccos(np.clip(cosine, -1, 1)))
    return focal, centre, np.mean(angles)


def within_the_papers_guards(rays):
    """On both axes the bearings' variance is 1e-4 or more and the focal length within 0.2..5."""
    focal, _, _ = fit_pinhole(rays)
    for axis in range(2):
        bearings = rays[axis] / np.maximum(rays[2], 1e-6)
        if np.var(bearings) < 1e-4 or not 0.2 < focal[axis] < 5:
            return False
    return True


def excess_and_limit(rays, lens):
    """Degrees that the pinhole adds to the misfit of a lens, a function from a place to its ray;
    and degrees that it may."""
    _, h, w = rays.shape
    focal, centre, _ = fit_pinhole(rays)
    squares, left = np.zeros(2), np.zeros((h, w, 3))
    for i, j in np.ndindex(h, w):
        place = np.array([(j + 0.5) / w, (i + 0.5) / h])
        ray = rays[:, i, j] / np.linalg.norm(rays[:, i, j])
        models = [np.append((place - centre) / focal, 1.0), lens(place)]
        for k, model in enumerate(models):
            cosine = ray @ model / np.linalg.norm(model)
            squares[k] += np.degrees(np.arccos(np.clip(cosine, -1, 1))) ** 2 / (h * w)
        left[i, j] = np.degrees(ray - models[1])
    patches = [left[i : i + 3, j : j + 3].mean((0, 1)) for i in range(h - 2) for j in range(w - 2)]
    error = np.mean([np.sum(patch**2) for patch in patches])
    return np.sqrt(max(squares[0] - squares[1], 0)), np.sqrt(0.7**2 + error)


def reported_intrinsics(ray_map, width, height):
    """(fx, fy, cx, cy) of (3, F, h, w): pixel centres on bearings of unit rays, all frames."""
    _, frames, h, w = ray_map.shape
    places, bearings = [], []
    for f in range(frames):
        for i in range(h):
            for j in range(w):
                ray = ray_map[:, f, i, j] / np.linalg.norm(ray_map[:, f, i, j])
                places.append(((j + 0.5) * width / w, (i + 0.5) * height / h))
                bearings.append(ray[:2] / max(ray[2], 1e-6))
    lines = [np.polyfit(np.array(bearings)[:, a], np.array(places)[:, a], 1) for a in range(2)]
    return np.array([lines[0][0], lines[1][0], lines[0][1], lines[1][1]])


def radial_angle(s, q, a):
    """Angle to the axis of an image point ``s`` focal lengths from the centre."""
    if q > 1e-9:
        psi = np.arctan(np.sqrt(q) * s) / np.sqrt(q)
    elif q < -1e-9:
        psi = np.arctanh(np.sqrt(-q) * s) / np.sqrt(-q)
    else:
        psi = s
    return psi + a * psi**5


def radial(focal, centre, bend):
    """The camera of a radial lens; None beyond 85 degrees."""

    def bearing(u, v):
        d = (np.array([u, v]) - centre) / focal
        s = np.hypot(*d)
        angle = radial_angle(s, *bend)
        if angle >= np.radians(85):
            return None
        return tuple(d / s * np.tan(angle)) if s > 0 else (0.0, 0.0)

    return bearing


def radial_cost(unknowns, rays):
    """What the radial fit minimises: robust misfit of tokens plus the priors on the bend."""
    focal, centre, (q, a) = np.exp(unknowns[:2]), unknowns[2:4], unknowns[4:]
    _, h, w = rays.shape
    noise, kernel = np.radians(2), np.radians(4)
    cost = 0.5 * ((q - 1) / 0.5) ** 2 + 0.5 * (a / 0.05) ** 2
    for i in range(h):
        for j in range(w):
            d = (np.array([(j + 0.5) / w, (i + 0.5) / h]) - centre) / focal
            s = np.hypot(*d)
            model = d / s * radial_angle(s, q, a)
            x, y, z = rays[:, i, j]
            side = np.hypot(x, y)
            field = np.array([x, y]) / side * np.arctan2(side, z)
            square = np.sum((field - model) ** 2)
            cost += 0.5 * kernel**2 * np.log1p(square / kernel**2) / noise**2
    return cost


def mixed_pnp(joints, log_depth, anchors, uv, bearing, scale, fallback="released"):
    """One hand in one frame: translation, accepted, votes, rms, threshold."""
    depth = np.exp(log_depth)
    votes, numerator, denominator = [], np.zeros(2), 0.0
    for j, (x, y, z) in enumerate(joints):
        u, v = anchors[j]
        if not (z + depth > 0.05 and 0.02 < u < 0.98 and 0.02 < v < 0.98):
            continue
        seen = bearing(u, v)
        if seen is None:
            continue
        votes.append(j)
        numerator += (np.array(seen) - np.array([x, y]) / (z + depth)) / (z + depth)
        denominator += 1 / (z + depth) ** 2
    shift = numerator / max(denominator, 1e-8)
    rms, threshold = 0.0, 15.0
    if votes:
        seen = np.array([bearing(*anchors[j]) for j in votes])
        fitted = [(joints[j, :2] + shift) / (joints[j, 2] + depth) for j in votes]
        error = (seen - np.array(fitted)) * scale
        rms = np.sqrt(np.mean(np.sum(error**2, axis=1)))
        box = (seen.max(0) - seen.min(0)) * scale
        threshold = max(15.0, 0.25 * np.hypot(*box))
    accepted = len(votes) >= 6 and rms <= threshold
    if not accepted and fallback == "released":
        shift = np.array(bearing(*((uv + 1) / 2))) * depth
    elif not accepted:
        z = max(joints[0, 2] + depth, 0.05)
        shift = np.array(bearing(*anchors[0])) * z - joints[0, :2]
    return np.array([*shift, depth]), accepted, votes, rms, threshold


def rigid_cost(unknowns, joints, log_depth, seen, votes, scale, start_depth, settings):
    """What full rigid PnP minimises for one hand: robust bearings and the priors."""
    depth = np.exp(unknowns[2])
    translation = np.array([unknowns[0] * depth, unknowns[1] * depth, depth])
    cost = 0.5 * ((unknowns[2] - log_depth) / settings.depth_sigma) ** 2
    cost += 0.5 * (unknowns[3] / settings.size_sigma) ** 2
    for j in votes:
        point = np.exp(unknowns[3]) * (joints[j] - joints[0]) + joints[0] + translation
        sigma = np.hypot(settings.anchor_sigma_px / scale, settings.joint_sigma_m / start_depth)
        square = np.sum(((seen[j] - point[:2] / point[2]) / sigma) ** 2)
        cost += 0.5 * square / (1 + square / settings.robust**2)
    return cost
