"""How rendered hands touch what they take, measured on their mesh.

``python tests/helpers/grasp_measures.py`` prints a table. Signed distances are worked out here,
from the solids that are drawn, and share nothing with the code that fits the grips. Metres; a
distance is negative inside an object.
"""

import argparse
import itertools
import sys
from dataclasses import dataclass
from unittest import mock

import numpy as np

from acehand_core.ace.synthetic import appearance, surfaces
from acehand_core.ace.synthetic import episode as episodes
from acehand_core.ace.synthetic.script import hand_path, prop_paths
from acehand_core.geometry import frames
from acehand_core.hand.articulation import angles_to_pose
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.types import SIDES

KINDS = ("box", "mug", "can", "bottle", "bowl", "ball", "shared")
OPTIONS = episodes.SynthOptions(128, 96, frames=121)
TIPS = (4, 8, 12, 16, 20)
PARENTS = (-1, 0, 1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11, 0, 13, 14, 15, 0, 17, 18, 19)
#: Skin this near to a tip's keypoint (4 mm under the skin) is the tip.
TIP_M = 0.012


def signed_distance(prop, points):
    """Return the signed distance (N,) of points (N, 3) in the object's frame."""
    if prop.kind == "box":
        beyond = np.abs(points) - np.array(prop.size)
        outside = np.linalg.norm(np.maximum(beyond, 0), axis=-1)
        return outside + np.minimum(beyond.max(-1), 0)
    if prop.kind == "ball":
        return np.linalg.norm(points, axis=-1) - prop.size[0]
    vertices, _ = surfaces.solid(prop.kind, prop.size)
    # The profile is what a lathe's mesh has in the half plane y = 0, x >= 0, axis to axis.
    flat = vertices[(np.abs(vertices[:, 1]) < 1e-12) & (vertices[:, 0] >= -1e-12)][:, [0, 2]]
    last = 1 + int(np.flatnonzero(flat[1:, 0] < 1e-12)[0])
    away = lathe_distance(flat[: last + 1], np.hypot(points[:, 0], points[:, 1]), points[:, 2])
    if prop.kind == "mug":
        away = np.minimum(away, handle_distance(vertices, points))
    return away


def lathe_distance(profile, radius, height):
    """Return the signed distance to a solid of revolution from its profile (radius, height)."""
    at = np.stack([radius, height], -1)
    nearest = np.full(len(at), np.inf)
    crossings = np.zeros(len(at), int)
    for a, b in itertools.pairwise(profile):
        along = np.clip(((at - a) @ (b - a)) / ((b - a) @ (b - a)), 0, 1)
        nearest = np.minimum(nearest, np.linalg.norm(at - a - along[:, None] * (b - a), axis=-1))
        # A ray outwards, to larger radii.
        spans = (a[1] > height) != (b[1] > height)
        if a[1] != b[1]:
            crossings += spans & (radius < a[0] + (height - a[1]) * (b[0] - a[0]) / (b[1] - a[1]))
    return np.where(crossings % 2 == 1, -nearest, nearest)


def handle_distance(vertices, points):
    """Return the distance to a mug's handle: rings of 16 vertices, the last of the mesh."""
    rings = vertices[-17 * 16 :].reshape(17, 16, 3)
    middle, reach = rings.mean(1), rings - rings.mean(1, keepdims=True)
    wide = np.array([np.abs(reach[..., 1]).max(), np.linalg.norm(reach[:, 0], axis=-1).max()])
    dense = np.concatenate([np.linspace(a, b, 6) for a, b in itertools.pairwise(middle)])
    arms = points[:, None] - dense
    near = np.take_along_axis(arms, np.linalg.norm(arms, axis=-1).argmin(1)[:, None, None], 1)[:, 0]
    across = np.hypot(near[:, 0], near[:, 2])
    size = np.hypot(near[:, 1] / wide[0], across / wide[1])
    return np.linalg.norm(near, axis=-1) * (1 - 1 / np.maximum(size, 1e-9))


def normal(prop, point):
    """Return the outward unit normal at a point (3,), by differences."""
    step = 1e-5 * np.eye(3)
    both = signed_distance(prop, np.concatenate([point + step, point - step]))
    slope = both[:3] - both[3:]
    return slope / np.linalg.norm(slope)


@dataclass
class Grasp:
    """One object taken by one hand, millimetres and degrees."""

    kind: str
    tips: np.ndarray  # from the skin of each fingertip to the surface while held, thumb first
    opposed: float  # largest angle of the thumb's contact normal to that of a touching finger
    approach: float  # deepest point of the hand's mesh before, during and after the hold
    hold: float
    release: float
    bones: float  # the nearest that a bone comes to the surface, over all times
    slip: float
    side: str
    normals: np.ndarray  # (K, 3) outward, where fingers touch, in the object's frame

    @property
    def finger(self):
        """The nearest fingertip but the thumb's."""
        return float(np.abs(self.tips[1:]).min())


def measure(episode, prop_name, slot, start, stop, rate=30.0):
    """Return the ``Grasp`` of an object by a hand, held from ``start`` to ``stop`` seconds."""
    script = episode.script
    prop = next(p for p in script.props if p.name == prop_name)
    stop = min(stop, script.duration)
    times = np.arange(0, script.duration, 1 / rate)
    times = np.unique(np.concatenate([times, [start, stop]]))
    held = (times >= start) & (times <= stop)
    paths = tuple(hand_path(keys, times) if keys else None for keys in script.hands)
    moving = prop_paths(script.T_world_prop, script.holds, script.hands, paths, times)
    poses = moving[prop_name]
    side, path, betas = SIDES[slot], paths[slot], script.betas[slot]
    hand = CapsuleHand()
    pose, turn = angles_to_pose(path.angles, side), path.T_world_hand[:, :3, :3]
    shift = path.T_world_hand[:, None, :3, 3] - hand.rest_keypoints(side, betas)[0]
    back = frames.inverse(poses)
    skin = frames.apply(back, hand.vertices(side, turn, pose, betas) + shift)
    joints = frames.apply(back, hand.joints(side, turn, pose, betas) + shift)
    a, b = joints[:, [0, *PARENTS[2:]], None], joints[:, 1:, None]
    share = np.linspace(0, 1, 6)[1:, None]
    lines = ((1 - share) * a + share * b).reshape(len(times), -1, 3)
    deepest = np.maximum(0.0, -nearest(prop, skin))
    bones = nearest(prop, lines, 0.03)
    # When it is taken, in the middle and at the end: the worst of the three.
    contacts = [
        touching(prop, skin[at], joints[at])
        for at in np.flatnonzero(held)[[0, held.sum() // 2, -1]]
    ]
    worst = max(contacts, key=lambda one: np.abs(one[0][0]) + np.abs(one[0][1:]).min())
    relative = frames.inverse(path.T_world_hand[held]) @ poses[held]
    before, during, after = (
        1e3 * deepest[when].max(initial=0.0) for when in (times < start, held, times > stop)
    )
    slip = 1e3 * float(np.ptp(relative[:, :3, 3], axis=0).max())
    opposed = min(one[1] for one in contacts)
    return Grasp(prop.kind, worst[0], opposed, before, during, after, 1e3 * bones.min(), slip,
                 side, worst[2])  # fmt: skip


def touching(prop, skin, joints):
    """Return the tips' distances (5,) in mm, how opposite thumb and fingers are, their normals."""
    tips, normals = [], []
    for tip in TIPS:
        near = skin[np.linalg.norm(skin - joints[tip], axis=-1) < TIP_M]
        away = signed_distance(prop, near)
        tips.append(1e3 * away.min())
        # The way from the surface to the middle of the tip: at a rim its skin wraps the edge.
        normals.append(normal(prop, joints[tip]))
    fingers = [n for n, away in zip(normals[1:], tips[1:], strict=True) if abs(away) <= 3]
    angles = [np.degrees(np.arccos(np.clip(normals[0] @ n, -1, 1))) for n in fingers]
    return np.array(tips), max(angles, default=0.0), np.reshape(fingers, (-1, 3))


def nearest(prop, points, margin=0.0):
    """Return per time the smallest distance of points (T, N, 3), ``margin`` if none is near."""
    if prop.kind == "box":
        low, high = -np.array(prop.size), np.array(prop.size)
    elif prop.kind == "ball":
        low, high = np.full(3, -prop.size[0]), np.full(3, prop.size[0])
    else:
        vertices, _ = surfaces.solid(prop.kind, prop.size)
        low, high = vertices.min(0), vertices.max(0)
    near = ((points > low - margin) & (points < high + margin)).all(-1)
    out = np.full(points.shape[:2], margin)
    out[near] = np.minimum(margin, signed_distance(prop, points[near]))
    return out.min(1)


def grasps(kind, count, seed=11):
    """Yield ``count`` grasps of one kind of object, as clips have them."""
    made = 0

    def only(rng, name):
        while (prop := appearance.random_object(rng, name)).kind != kind:
            pass
        return prop

    index = 0
    scenario = "bimanual" if kind == "shared" else "objects"
    while made < count:
        with (
            mock.patch.object(episodes, "random_object", only),
            mock.patch.object(episodes, "_SCENARIOS", {scenario: 1.0}),
        ):
            episode = episodes.make_episode(seed, index, OPTIONS)
        index += 1
        for hold in episode.script.holds:
            for slot in (0, 1) if kind == "shared" else (hold.slot,):
                if made < count and hold.start < episode.script.duration - 0.1:
                    made += 1
                    yield measure(episode, hold.prop, slot, hold.start, hold.stop)


def main():
    """Print a line per kind of object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grasps", type=int, default=50, help="of every kind")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    arguments = parser.parse_args()
    print("median (worst) of", arguments.grasps, "grasps; mm and degrees")
    heads = ("thumb tip", "finger tip", "opposed", "approach", "hold", "release", "bones")
    print(f"{'':8}" + "".join(f"{head:>15}" for head in heads))
    for kind in arguments.kinds:
        found = list(grasps(kind, arguments.grasps))
        columns = [
            ([abs(g.tips[0]) for g in found], max), ([g.finger for g in found], max),
            ([g.opposed for g in found], min), ([g.approach for g in found], max),
            ([g.hold for g in found], max), ([g.release for g in found], max),
            ([g.bones for g in found], min),
        ]  # fmt: skip
        cells = [f"{np.median(values):.1f} ({worst(values):.1f})" for values, worst in columns]
        print(f"{kind:8}" + "".join(f"{cell:>15}" for cell in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
