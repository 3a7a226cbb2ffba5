"""The skin of the default hand as a signed distance field around its bones.

Used only to author the mesh. Millimetres, anatomical axes of a right hand (distal, dorsal,
radial), wrist at the origin, fingers straight.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from acehand_core.hand.articulation import DIRECTIONS, Proportions, rest_keypoints
from acehand_core.hand.skeleton import FINGERS, finger_keypoints

Points = Float[np.ndarray, "N 3"]
Distances = Float[np.ndarray, "N"]
Vector = Float[np.ndarray, "3"]

#: Half breadths in mm at the base, the two middle joints and the tip of each finger. Set here, by
#: eye and so that MediaPipe finds the hand: 16 to 19 mm across the middle joints of the fingers.
HALF_BREADTHS = {
    "thumb": (14.0, 11.6, 10.6, 9.0),
    "index": (10.4, 9.3, 8.2, 7.0),
    "middle": (10.6, 9.4, 8.3, 7.1),
    "ring": (10.2, 8.9, 7.9, 6.8),
    "pinky": (9.2, 7.9, 7.0, 6.0),
}
#: How far the flesh reaches beyond a tip keypoint: trackers put the tip near the end of the nail.
FLESH_MM = 3.5
FOREARM_MM = 52.0
BOUNDS = np.array([[-62.0, -62.0, -66.0], [206.0, 34.0, 112.0]])


@dataclass(frozen=True, slots=True)
class Finger:
    """Joints (4, 3) of one straight finger and its unit axes along, nail, side."""

    name: str
    joints: Points
    along: Float[np.ndarray, "3"]
    nail: Float[np.ndarray, "3"]
    side: Float[np.ndarray, "3"]

    def local(self, points: Points) -> Points:
        """Return coordinates along the finger from its base, towards the nail, and sideways."""
        return (points - self.joints[0]) @ np.stack([self.along, self.nail, self.side]).T

    @property
    def stations(self) -> np.ndarray:
        """Distance of each joint from the base along the finger, (4,)."""
        return (self.joints - self.joints[0]) @ self.along


@functools.cache
def fingers() -> dict[str, Finger]:
    """Return the five fingers at rest by name."""
    points = rest_keypoints(Proportions())
    built = {}
    for name in FINGERS:
        along, nail = (np.array(v, float) for v in DIRECTIONS[name])
        along /= np.linalg.norm(along)
        nail -= (nail @ along) * along
        nail /= np.linalg.norm(nail)
        joints = points[list(finger_keypoints(name))]
        built[name] = Finger(name, joints, along, nail, np.cross(along, nail))
    return built


def _cone(
    points: Points,
    a: ArrayLike,
    b: ArrayLike,
    radius_a: float,
    radius_b: float,
    dorsal: np.ndarray | None = None,
    flat: float = 1.0,
) -> Distances:
    """Distance to a tapered capsule, its section ``flat`` times as deep along ``dorsal``."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    axis = b - a
    offset = points - a
    t = np.clip(offset @ axis / (axis @ axis), 0, 1)
    radial = offset - t[:, None] * axis
    if dorsal is not None:
        depth = radial @ dorsal
        radial = radial + np.multiply.outer(depth * (1 / flat - 1), dorsal)
    return np.linalg.norm(radial, axis=1) - (radius_a + t * (radius_b - radius_a))


def _ellipsoid(
    points: Points,
    centre: ArrayLike,
    radii: ArrayLike,
    axes: Sequence[np.ndarray] | None = None,
) -> Distances:
    local = points - np.asarray(centre, float)
    if axes is not None:
        local = local @ np.stack(axes).T
    scaled = np.linalg.norm(local / radii, axis=1)
    slope = np.linalg.norm(local / np.square(radii), axis=1)
    return scaled * (scaled - 1) / np.maximum(slope, 1e-9)


def _blend(a: Distances, b: Distances, width: float) -> Distances:
    """Smooth union: the minimum, rounded where both are within ``width`` of each other."""
    mix = np.maximum(width - np.abs(a - b), 0) / width
    return np.minimum(a, b) - 0.25 * width * mix * mix


def _blend_all(width: float, *distances: Distances) -> Distances:
    blended = distances[0]
    for other in distances[1:]:
        blended = _blend(blended, other, width)
    return blended


def finger_field(points: Points, finger: Finger) -> Distances:
    """Return the signed distance in mm to one finger without the palm."""
    base, mid, end, tip = finger.joints
    along, nail = finger.along, finger.nail
    r0, r1, r2, r3 = HALF_BREADTHS[finger.name]
    thumb = finger.name == "thumb"
    flat = 0.92
    end_of_pulp = tip + along * (FLESH_MM - r3 * 0.93) - nail * 0.8
    parts = [
        _cone(points, mid, end, r1, r2, nail, flat),
        _cone(points, end - nail * 0.2, end_of_pulp, r2, r3, nail, 0.86),
        # Pads between the creases, and the pulp.
        _ellipsoid(points, 0.5 * (mid + end) - nail * 2.2, (12.5, r1 * 0.78, r1 * 0.88),
                   (along, nail, finger.side)),
        _ellipsoid(points, end + (tip - end) * 0.62 - nail * 2.0, (10.5, r3 * 0.80, r3 * 1.03),
                   (along, nail, finger.side)),
        # The joint stands out on the back.
        _ellipsoid(points, mid + nail * 1.6, (8.0, r1 * 0.82, r1 * 0.93),
                   (along, nail, finger.side)),
    ]  # fmt: skip

    if not thumb:
        parts.append(_cone(points, base - nail * 1.5, mid, r0, r1, nail, flat))
        parts.append(
            _ellipsoid(points, base + 0.62 * (mid - base) - nail * 3.0,
                       (15.0, r1 * 0.84, r1 * 0.92), (along, nail, finger.side))
        )  # fmt: skip
    else:
        parts.append(_cone(points, base + along * 8, mid, r0, r1, nail, flat))

    return _blend_all(4.0, *parts)


def _palm_field(points: Points) -> Distances:
    up = np.array([0.0, 1.0, 0.0])
    metacarpals = (  # finger, carpal end, half breadth at the knuckle
        ("index", (14, 1, 13), 11.0),
        ("middle", (12, 2, 5), 11.0),
        ("ring", (11, 1, -5), 10.8),
        ("pinky", (10, -1, -13), 10.2),
    )
    rays = [
        _cone(points, start, fingers()[name].joints[0] - (3, 2.6, 0), 14.5, radius, up, 1.12)
        for name, start, radius in metacarpals
    ]
    palm = _blend_all(9.0, *rays)
    thumb = fingers()["thumb"]
    base, mid = thumb.joints[0], thumb.joints[1]
    thenar = _cone(points, base - (-2, 2, 5), mid - thumb.along * 8 - thumb.nail, 15.5, 12.6)
    ball = _ellipsoid(points, (40, -14, 19), (29, 13.5, 16), _frame((0.80, -0.1, 0.55)))
    heel = _ellipsoid(points, (34, -8.5, -23), (36, 14.5, 13.5), _frame((0.93, 0.0, -0.30)))
    index = fingers()["index"].joints[0]
    web = _sheet(points, base - (-6, 0, 0), mid - thumb.along * 6, index - (4, 4, -3), 6.0)
    wrist = _forearm(points)

    return _blend_all(12.0, palm, heel, wrist, _blend_all(10.0, thenar, ball, web))


def segment_distance(points: Points, a: Vector, b: Vector) -> Distances:
    """Return the distance in mm of each point to the segment from a to b."""
    return _cone(points, a, b, 0.0, 0.0)


def _frame(direction: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    along = np.asarray(direction, float) / np.linalg.norm(direction)
    up = np.array([0.0, 1.0, 0.0]) - along[1] * along
    up /= np.linalg.norm(up)
    return along, up, np.cross(along, up)


def _sheet(points: Points, a: np.ndarray, b: np.ndarray, c: np.ndarray, radius: float) -> Distances:
    """Distance to the triangle a, b, c thickened by ``radius``."""
    normal = np.cross(b - a, c - a)
    normal /= np.linalg.norm(normal)
    inside = np.ones(len(points), bool)
    edges = np.full(len(points), np.inf)
    for start, stop in ((a, b), (b, c), (c, a)):
        inside &= (points - start) @ np.cross(normal, stop - start) > 0
        edges = np.minimum(edges, segment_distance(points, start, stop))
    return np.where(inside, np.abs((points - a) @ normal), edges) - radius


def _forearm(points: Points) -> Distances:
    """An oval tapered stump, 58 x 41 mm at the wrist, rounded at its end."""
    x = points[:, 0]
    t = np.clip(-x / 60.0, -0.25, 1.0)
    half_breadth = 28.0 + 6.0 * t * t + 1.0 * t
    half_depth = 19.5 + 6.0 * t
    section = np.sqrt(
        ((points[:, 2] - 0.5) / half_breadth) ** 2 + ((points[:, 1] + 1) / half_depth) ** 2
    )
    side = (section - 1) * half_depth
    ends = np.maximum(-FOREARM_MM - x, x - 10.0)
    corner = 12.0
    outside = np.linalg.norm(np.maximum(np.stack([side, ends], 1) + corner, 0), axis=1)
    return outside + np.minimum(np.maximum(side, ends) + corner, 0) - corner


def _webs(points: Points) -> Distances:
    """The skin between neighbouring fingers, a little short of half the first phalanx."""
    distance = np.full(len(points), np.inf)
    middles = []
    for name in FINGERS[1:]:
        finger = fingers()[name]
        base, mid = finger.joints[:2]
        middles.append(base + 0.30 * (mid - base) - 3 * finger.nail)
    for a, b in itertools.pairwise(middles):
        distance = np.minimum(distance, _cone(points, a, b, 6.5, 6.5))
    return distance


def field(points: Points) -> Distances:
    """Return the signed distance to the skin in mm, negative inside; exact only near the skin."""
    palm = _blend(_palm_field(points), _webs(points), 7.0)
    distance = palm
    for name, finger in fingers().items():
        joined = _blend(palm, finger_field(points, finger), 9.0 if name == "thumb" else 6.0)
        distance = np.minimum(distance, joined)
    return distance
