"""How far tracked hands are from the true ones; ``score`` for one clip, ``measures`` for many.

A tracked hand counts where it is observed, not filled. It is *right* where the true hand of its own
side is the nearest one and its middle (mean of the 21 joints) lies, as seen from the camera and at
the true hand's distance, within one hand's length of that hand's; *wrong side* where that holds for
the other hand, else *nothing there*. ``doubtful``: share of right hands whose quality is 0; the
others are *kept*. Errors are those of kept hands; wrong ones show in ``precision``.

``joints_mm``: mean distance of the 21 joints, wrists laid on each other. ``wrist_mm``: distance of
wrists, ``wrist_depth_mm`` the part along the true wrist's ray without sign, ``depth_percent`` with
sign over the distance, ``wrist_lateral_mm`` the part across. ``palm_deg``: angle between palms, by
wrist and knuckles of index and pinky on both sides; ``over_30``: share of kept hands above 30
degrees. ``jitter``: mean length of the second difference of joints from frame to frame over that of
the true joints, camera frame, where a hand is kept in three frames on end; ``jitter_relative`` the
same of joints less the wrist; ``jitter_error`` that of the error, over the true joints' own.

``recall``: share right of the true hands of which at least one joint is seen (in the picture, with
nothing before it, where the truth tells); ``recall_mostly_seen``: of those with at least 2/3 of the
joints seen; ``known``: share observed or filled of all true hands. ``precision``: share right of
all tracked hands that count. ``good``: share of hands with a joint seen that are kept, within 20
mm (joints) and 15 degrees (palm); ``within_30``: that are kept and within 30 degrees.
``filled_*``: filled hands.

``covered_68`` and ``covered_95``: share of coordinates x, y, z of joints whose error is within the
interval of that probability by the motion's ``joint_sigma``; ``_depth`` along the true joint's ray,
``_length`` the whole error, in standard deviations of each direction; None of a motion without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.motion import HandMotion
from acehand_core.types import JointsCamera, PerHand, PerHandFlag

MOSTLY_SEEN = 2 / 3
GOOD_MM, GOOD_DEG, TURNED_DEG = 20.0, 15.0, 30.0
#: By how many standard deviations 68 and 95 % lie: of one coordinate, and of a length in space.
WITHIN = {"68": (0.99446, 1.87244), "95": (1.95996, 2.79548)}
#: Bounds of the subsets, see ``subsets``.
CLOSE, FAR, BLURRED, WHOLE = 0.5, 0.25, 0.08, 0.9
_MIDDLE_FINGER = [0, 9, 10, 11, 12]
_ERRORS = ("joints_mm", "wrist_mm", "palm_deg")

#: Of a clip, (T, 2) each: which hands are right, and their errors by name.
Errors = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Truth:
    """True hands of a clip; ``seen``: joints in the picture with nothing before them."""

    motion: HandMotion
    seen: Bool[np.ndarray, "T 2 21"]

    @classmethod
    def of(cls, motion: HandMotion, seen: Bool[np.ndarray, "T 2 21"] | None = None) -> Truth:
        """Take all joints in the picture as seen where the truth does not tell more."""
        assert motion.camera is not None
        return cls(motion, motion.camera.contains(motion.joints_image) if seen is None else seen)

    @property
    def present(self) -> PerHandFlag:
        return self.motion.presence > 0

    @property
    def length_m(self) -> PerHand:
        """Wrist to tip of the middle finger along the bones."""
        return bone_length(self.motion.joints_camera)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tracked and true hands of T frames; errors are NaN where either is not known.

    ``depth_mm`` is positive where the wrist is too far. ``accelerations``: second differences of
    joints, of joints less the wrist, and of the error, each tracked or of the error next to the
    true one, NaN unless right in three frames. ``spread``: errors of x, y, z, depth and length over
    the standard deviation, NaN of hands that are not known; None where there is none.
    """

    present: PerHandFlag
    right: PerHandFlag
    kept: PerHandFlag
    wrong_side: PerHandFlag
    nothing_there: PerHandFlag
    known: PerHandFlag
    filled: PerHandFlag
    in_sight: PerHandFlag
    mostly_seen: PerHandFlag
    subsets: dict[str, PerHandFlag]
    joints_mm: PerHand
    wrist_mm: PerHand
    depth_mm: PerHand
    distance_mm: PerHand
    lateral_mm: PerHand
    palm_deg: PerHand
    accelerations: Float[np.ndarray, "T 2 5"]
    spread: Float[np.ndarray, "T 2 21 5"] | None

    @classmethod
    def of(cls, motion: HandMotion, truth: Truth) -> Comparison:
        """Compare a motion with the truth of the same frames."""
        joints, true = motion.joints_camera, truth.motion.joints_camera
        right, wrong_side = matched(motion, truth)
        ray = true[:, :, 0] / np.linalg.norm(true[:, :, 0], axis=-1, keepdims=True)
        off = np.where(motion.known[..., None, None], joints - true, np.nan)
        depth = np.sum(off[:, :, 0] * ray, axis=-1)
        turn = np.swapaxes(palm_frame(joints), -1, -2) @ palm_frame(true)
        cosine = np.clip((np.trace(turn, axis1=-2, axis2=-1) - 1) / 2, -1, 1)
        share = truth.seen.mean(-1) * truth.present
        return cls(
            present=truth.present,
            right=right,
            kept=right & (motion.quality > 0),
            wrong_side=wrong_side,
            nothing_there=motion.observed & ~right & ~wrong_side,
            known=motion.known & truth.present,
            filled=motion.filled & truth.present,
            in_sight=share > 0,
            mostly_seen=share >= MOSTLY_SEEN,
            subsets=subsets(truth),
            joints_mm=1e3 * np.linalg.norm(off - off[:, :, :1], axis=-1).mean(-1),
            wrist_mm=1e3 * np.linalg.norm(off[:, :, 0], axis=-1),
            depth_mm=1e3 * depth,
            distance_mm=1e3 * np.linalg.norm(true[:, :, 0], axis=-1),
            lateral_mm=1e3 * np.linalg.norm(off[:, :, 0] - depth[..., None] * ray, axis=-1),
            palm_deg=np.where(np.isfinite(depth), np.degrees(np.arccos(cosine)), np.nan),
            accelerations=_accelerations(joints, true, right & (motion.quality > 0)),
            spread=_spread(motion, off, true),
        )


def score(motion: HandMotion, truth: Truth) -> dict[str, Any]:
    """Return the measures of one clip (docstring of the module), and those of each subset."""
    return measures([Comparison.of(motion, truth)])


def measures(clips: Sequence[Comparison]) -> dict[str, Any]:
    """Return the measures over all hands of some clips, and of each subset of the true hands."""

    def flat(name: str) -> np.ndarray:
        return np.concatenate([getattr(clip, name).ravel() for clip in clips])

    right, wrong, nothing = flat("right"), flat("wrong_side"), flat("nothing_there")
    kept = flat("kept")
    accelerations = np.concatenate([clip.accelerations.reshape(-1, 5) for clip in clips])
    moved = np.nansum(accelerations, axis=0)
    out = _of_hands(flat, flat("present"), kept)
    out |= {
        "jitter": _ratio(moved[0], moved[1]),
        "jitter_relative": _ratio(moved[2], moved[3]),
        "jitter_error": _ratio(moved[4], moved[1]),
        "precision": _share(right, right | wrong | nothing),
        "wrong_side": int(wrong.sum()),
        "nothing_there": int(nothing.sum()),
    }
    filled = flat("filled")
    out |= {
        "filled": int(filled.sum()),
        "filled_joints_mm": _mean(flat("joints_mm")[filled]),
        "filled_wrist_mm": _mean(flat("wrist_mm")[filled]),
    }
    out |= _coverage(clips, "kept") | {
        f"filled_{name}": value
        for name, value in _coverage(clips, "filled").items()
        if name in ("covered_68", "covered_95")
    }
    out["subsets"] = {}
    for name in clips[0].subsets:
        chosen = np.concatenate([clip.subsets[name].ravel() for clip in clips])
        # Out of sight, filled hands count.
        counted = flat("known") if name == "out_of_sight" else kept
        out["subsets"][name] = _of_hands(flat, chosen, counted)
    return out


def errors_of(clip: Comparison) -> Errors:
    """Return what ``same_hands`` takes of a clip."""
    return {name: getattr(clip, name) for name in ("kept", *_ERRORS)}


def same_hands(ours: Sequence[Errors], theirs: Sequence[Errors]) -> dict[str, Any]:
    """Return the errors of two methods, ours first, over the hands that are right in both.

    Who keeps fewer hands keeps easier ones; here both have the same. What a robot's fingertips are
    off by, where both tell it, is over the hands that are followed in both.
    """
    both = [a["kept"] & b["kept"] for a, b in zip(ours, theirs, strict=True)]
    out: dict[str, Any] = {"hands": int(sum(flags.sum() for flags in both))}
    for name in _ERRORS:
        pair = [
            np.concatenate([clip[name][flags] for clip, flags in zip(clips, both, strict=True)])
            for clips in (ours, theirs)
        ]
        out[name] = [_mean(values) for values in pair]
    out["over_30"] = [_mean(values > TURNED_DEG, 4) for values in pair]  # of palms, the last
    if all("excess_tips_mm" in clip for clip in (*ours, *theirs)):
        pair = [
            np.concatenate([clip["excess_tips_mm"] for clip in clips]) for clips in (ours, theirs)
        ]
        followed = np.isfinite(pair[0] + pair[1])
        out["excess_tips_mm"] = [_mean(values[followed]) for values in pair]
    return out


def subsets(truth: Truth) -> dict[str, PerHandFlag]:
    """Return which true hands belong to which subset; a hand may be in several.

    Sizes are those of the hand held flat at its distance, as a share of the shorter side of the
    picture; movement is that of the joints in the picture from frame to frame, over that size.

    ``blurred``: moves by more than 8 % of its size. ``occluded``: 90 % of its joints in the
    picture, less than 2/3 of them seen. ``close``: larger than 0.5, or cut by the edge. ``far``:
    smaller than 0.25. ``fisheye``: of a camera that is not a pinhole. ``easy``: 90 % seen and none
    of the others. All of these have a joint seen. ``out_of_sight``: none.
    """
    motion, camera = truth.motion, truth.motion.camera
    assert camera is not None
    pixels = motion.joints_image
    distance = np.linalg.norm(motion.joints_camera.mean(2), axis=-1)
    size = truth.length_m / distance * (camera.fx + camera.fy) / 2
    share_of_picture = size / min(camera.width, camera.height)
    moved = np.linalg.norm(np.gradient(pixels, axis=0), axis=-1) if len(pixels) > 1 else 0 * pixels
    with np.errstate(invalid="ignore"):
        seen = truth.seen & np.isfinite(moved)
        fast = np.where(seen, moved, 0).sum(-1) / np.maximum(seen.sum(-1), 1) / size
        inside = camera.contains(pixels).mean(-1)
        share = truth.seen.mean(-1)
        found = {
            "blurred": fast > BLURRED,
            "occluded": (inside >= WHOLE) & (share < MOSTLY_SEEN * inside),
            "close": (share_of_picture > CLOSE) | (inside < 1),
            "far": share_of_picture < FAR,
            "fisheye": np.full(inside.shape, camera.model != "pinhole"),
        }
    in_sight = truth.present & (share > 0)
    found = {name: flags & in_sight for name, flags in found.items()}
    easy = in_sight & (share >= WHOLE) & ~np.any(list(found.values()), axis=0)
    mostly = {"mostly_seen": in_sight & (share >= MOSTLY_SEEN)}
    return mostly | {"easy": easy} | found | {"out_of_sight": truth.present & (share == 0)}


def matched(motion: HandMotion, truth: Truth) -> tuple[PerHandFlag, PerHandFlag]:
    """Return which tracked hands are right, and which are the other hand."""
    middle, true = motion.joints_camera.mean(2), truth.motion.joints_camera.mean(2)
    distance = np.linalg.norm(true, axis=-1)
    unit = middle / np.linalg.norm(middle, axis=-1, keepdims=True)
    there = true / distance[..., None]

    # Of tracked slot i and true slot j: how far apart they look, at the true one's distance.
    apart = np.linalg.norm(unit[:, :, None] - there[:, None], axis=-1) * distance[:, None]
    near = apart <= truth.length_m[:, None]
    apart = np.where(near & truth.present[:, None], apart, np.inf)
    own, other = apart[:, [0, 1], [0, 1]], apart[:, [0, 1], [1, 0]]
    right = motion.observed & np.isfinite(own) & (own <= other)
    return right, motion.observed & ~right & np.isfinite(other)


def bone_length(joints: Float[np.ndarray, "*batch 21 3"]) -> Float[np.ndarray, "*batch"]:
    """Return the length from the wrist to the tip of the middle finger along the bones."""
    bones = np.diff(joints[..., _MIDDLE_FINGER, :], axis=-2)
    length: Float[np.ndarray, "*batch"] = np.linalg.norm(bones, axis=-1).sum(-1)
    return length


def palm_frame(joints: Float[np.ndarray, "*batch 21 3"]) -> Float[np.ndarray, "*batch 3 3"]:
    """Return axes of the palm as columns: to the knuckles, across, out of it."""
    index, pinky = (joints[..., k, :] - joints[..., 0, :] for k in (5, 17))
    along = index + pinky
    out = np.cross(index, pinky)
    with np.errstate(invalid="ignore"):
        along, out = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (along, out))
    return np.stack([along, np.cross(out, along), out], axis=-1)


def _accelerations(
    joints: JointsCamera, true: JointsCamera, right: PerHandFlag
) -> Float[np.ndarray, "T 2 5"]:
    out = np.full((*right.shape, 5), np.nan)
    three = right[:-2] & right[1:-1] & right[2:]
    relative, true_relative = joints - joints[:, :, :1], true - true[:, :, :1]
    for column, points in enumerate((joints, true, relative, true_relative, joints - true)):
        length = np.linalg.norm(np.diff(points, n=2, axis=0), axis=-1).mean(-1)
        out[1:-1, :, column][three] = length[three]
    return out


def _spread(
    motion: HandMotion, off: JointsCamera, true: JointsCamera
) -> Float[np.ndarray, "T 2 21 5"] | None:
    if motion.joint_sigma is None:
        return None
    across, along = np.moveaxis(motion.joint_sigma, -1, 0)
    ray = true / np.linalg.norm(true, axis=-1, keepdims=True)
    depth = np.sum(off * ray, axis=-1)
    aside = np.linalg.norm(off - depth[..., None] * ray, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        axes = np.sqrt(across[..., None] ** 2 * (1 - ray**2) + along[..., None] ** 2 * ray**2)
        length = np.hypot(aside / across, depth / along)
        parts = np.stack([np.abs(depth) / along, length], axis=-1)
        return np.concatenate([np.abs(off) / axes, parts], axis=-1)


def _coverage(clips: Sequence[Comparison], which: str) -> dict[str, float | None]:
    known = [clip.spread[getattr(clip, which)] for clip in clips if clip.spread is not None]
    spread = np.concatenate(known).reshape(-1, 5) if known else np.zeros((0, 5))
    spread = spread[np.isfinite(spread).all(-1)]
    out = {}
    for name, (one, three) in WITHIN.items():
        out[f"covered_{name}"] = _mean(spread[:, :3].ravel() <= one, 4)
        out[f"covered_{name}_depth"] = _mean(spread[:, 3] <= one, 4)
        out[f"covered_{name}_length"] = _mean(spread[:, 4] <= three, 4)
    return out


def _of_hands(
    flat: Callable[[str], np.ndarray], chosen: np.ndarray, counted: np.ndarray
) -> dict[str, Any]:
    """Return the measures of the chosen true hands, errors of those that are also counted."""
    hands, right, kept = chosen & counted, chosen & flat("right"), chosen & flat("kept")
    in_sight, mostly = chosen & flat("in_sight"), chosen & flat("mostly_seen")
    joints, wrist, palm = (flat(name)[hands] for name in ("joints_mm", "wrist_mm", "palm_deg"))
    depth = flat("depth_mm")[hands]
    turned = flat("palm_deg") <= TURNED_DEG
    good = (flat("joints_mm") <= GOOD_MM) & (flat("palm_deg") <= GOOD_DEG)
    return {
        "hands": len(joints), "true_hands": int(chosen.sum()),
        "known": _share(flat("known"), chosen),
        "joints_mm": _mean(joints), "joints_mm_median": _median(joints),
        "wrist_mm": _mean(wrist), "wrist_mm_median": _median(wrist),
        "wrist_depth_mm": _mean(np.abs(depth)),
        "wrist_lateral_mm": _mean(flat("lateral_mm")[hands]),
        "depth_percent": _mean(100 * depth / flat("distance_mm")[hands]),
        "palm_deg": _mean(palm), "palm_deg_median": _median(palm),
        "over_30": _share(palm > TURNED_DEG, np.ones(len(palm), bool)),
        "doubtful": _share(right & ~kept, right),
        "recall": _share(right, in_sight),
        "recall_mostly_seen": _share(right & mostly, mostly),
        "good": _share(kept & good & in_sight, in_sight),
        "within_30": _share(kept & turned & in_sight, in_sight),
    }  # fmt: skip


def _share(some: np.ndarray, of: np.ndarray) -> float | None:
    return round(float((some & of).sum() / of.sum()), 4) if of.any() else None


def _mean(values: np.ndarray, digits: int = 2) -> float | None:
    return round(float(values.mean()), digits) if len(values) else None


def _median(values: np.ndarray) -> float | None:
    return round(float(np.median(values)), 2) if len(values) else None


def _ratio(value: float, to: float) -> float | None:
    return round(float(value / to), 3) if to > 0 else None
