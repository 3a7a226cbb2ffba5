"""Agreement of depth and the other cameras of a rig with the hands that the first camera sees.

The size of a hand in the picture gives its distance within several percent, and the epipolar planes
of its landmarks constrain where another camera sees them. A source that contradicts either is not
used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.evidence import LEAST_READINGS, SkinDepth, skin_points
from acehand_core.provenance import Agreement
from acehand_core.trackers.mediapipe.linking import Slots, landmarks_of
from acehand_core.trackers.mediapipe.reconstruct import HandAlone
from acehand_core.trackers.mediapipe.rig import (
    LANDMARK_RAD,
    PALM_M,
    WEAK,
    ViewTrack,
    estimated_offset,
    in_view_of,
    landmark_rays,
)
from acehand_core.trackers.mediapipe.uncertainty import SIZE_SIGMA
from acehand_core.types import RigidTransform, Side, TimestampsNs

DEPTH = "depth"
#: Deviation of the logarithm of a hand's distance by its known size. (``stereo_hand``: 2 to 4 % too
#: near; rendered clips: 5 % too far to 4 % too near.)
ALONE_SIGMA = 0.05
#: Share of sources that are set up with a wrong scale, as assumed, and the deviation of its
#: logarithm: two sigma reach half and twice. It is not used if likelier wrong than ``DISAGREES``.
WRONG_SHARE, WRONG_SIGMA, DISAGREES = 0.4, 0.3, 0.68
#: Depth follows the hand up to this spread of the logarithm of the distance over frames, and share
#: of readings further than this from its surface, metres. (Right, painted on photographs: 0.04 and
#: 0.12; 60 px off: 0.06 and 0.43, 0.17 and 0.48; 0.2 s late: 0.28 and 0.37. Right, rendered: up to
#: 0.13 and 0.24; about 100 px off: from 0.05 and 0.3.)
MOST_SPREAD, MOST_OFF, SURFACE_M = 0.2, 0.3, 0.025
#: Share of the frames that judge the scale of depth: those whose landmarks fit a hand best. (Others
#: put rendered hands at up to 1.5 times their distance.)
BEST_SHARE = 1 / 3
#: Share of a hand's outline that stands out in depth, below which that may be of what is behind it.
#: (Rendered clips: 0.83 to 1, with 3 mm of noise 12 mm above a table 0.4 to 0.6; 100 px off or 0.25
#: to 1.2 s late 0.1 to 0.8. No photographs with a background were tried.)
LEAST_OUTLINE = 0.75
#: Logarithm of a scale that no background behind a hand explains.
OTHER_UNIT = np.log(1.8)
#: Median gap of another camera's landmarks from epipolar planes, in palms: what noise explains, and
#: what no right rig has. (``stereo_hand``: 0.025, with a camera turned by a degree 0.05 to 0.11;
#: Aria Gen 2: 0.04 and 0.06; rendered: 0.01 to 0.04.)
NOISE_GAP, MOST_GAP = 0.04, 0.15

_Hands = Mapping[Side, HandAlone]
_Rays = Float[np.ndarray, "N 21 3"]


def scale_doubt(log_scale: float, known_size: bool) -> tuple[float, float]:
    """Return how probable it is that a source's scale is wrong, and what that adds to sigma.

    Bayes: a right source differs from the hand's size by ``ALONE_SIGMA`` and the spread of hands, a
    wrong one by more. The second number is a relative standard deviation of the source's distances,
    beyond that of a source which agrees perfectly.
    """
    own = _own_sigma(known_size)
    sigma = np.array([own, np.hypot(own, WRONG_SIGMA)])
    prior = np.array([1 - WRONG_SHARE, WRONG_SHARE]) / sigma

    def wrong(log: float) -> float:
        density = prior * np.exp(-0.5 * (log / sigma) ** 2)
        return float(density[1] / density.sum())

    doubt, usual = wrong(log_scale), wrong(0.0)
    excess = (doubt - usual) / (1 - usual)
    # If the source is wrong, the truth is where the hand's size puts it, within its own error.
    return doubt, float(np.sqrt(excess) * (abs(log_scale) + own))


def _own_sigma(known_size: bool) -> float:
    return ALONE_SIGMA if known_size else float(np.hypot(ALONE_SIGMA, SIZE_SIGMA))


def of_depth(
    hands: _Hands, skin: Mapping[Side, SkinDepth], outlines: Sequence[float], known_size: bool
) -> tuple[Agreement, float]:
    """Return how depth agrees, and what that adds to the relative sigma of distances.

    Args:
        hands: fitted to the first camera alone.
        skin: readings in all frames.
        outlines: of each hand, the share of it that stands out in depth; NaN: unknown.
        known_size: the hand's length is given.
    """
    logs, off, misfit = [], [], []
    for side, hand in hands.items():
        read = skin[side].rows(hand.frames)
        z, known = skin_points(hand.landmarks)[..., 2], np.isfinite(read.sigma)
        log = np.where(known, np.log(np.maximum(read.z + hand.below, 1e-3) / z), np.nan)
        enough = known.sum(1) >= LEAST_READINGS
        log, z, known = log[enough], z[enough], known[enough]
        by_frame = np.nanmedian(log, axis=1)
        away = np.abs(log - by_frame[:, None]) * z * np.exp(by_frame)[:, None] > SURFACE_M
        logs.append(by_frame)
        off.append((away & known).sum(1) / known.sum(1))
        misfit.append(hand.misfit[enough])

    readings = [np.isfinite(one.sigma).sum(1) >= LEAST_READINGS for one in skin.values()]
    count = int(np.any(readings, axis=0).sum())
    if not hands:
        return Agreement(DEPTH, count, 0), 0.0
    log, off_surface, misfits = (np.concatenate(each) for each in (logs, off, misfit))
    one, sigma = depth_agreement(log, off_surface, misfits, count, known_size)
    if one.scale is not None and not one.doubt and any(share < LEAST_OUTLINE for share in outlines):
        # What is right behind a hand has its distance nearly; the hand may be where its size says.
        sigma = float(np.hypot(sigma, abs(np.log(one.scale)) + _own_sigma(known_size)))
    return one, sigma


def depth_agreement(
    log: Float[np.ndarray, "N"],
    off: Float[np.ndarray, "N"],
    misfit: Float[np.ndarray, "N"],
    count: int,
    known_size: bool,
) -> tuple[Agreement, float]:
    """Return as ``of_depth``, of ``count`` frames with readings.

    Args:
        log: of N frames, logarithm of the distance by depth over that by the hand.
        off: share of readings off the hand's surface.
        misfit: of the hand's landmarks; the third that fits best has the hand's size.
    """
    if len(log) == 0:
        doubt = "depth has no readings at the hands: clock, registration or range"
        return Agreement(DEPTH, count, 0, doubt=doubt), 0.0

    best = misfit <= np.quantile(misfit, BEST_SHARE)
    scale, spread, gap = float(np.median(log[best])), _spread(log), float(np.median(off))
    wrong, sigma = scale_doubt(scale, known_size)
    doubt = ""
    follows = spread < MOST_SPREAD and gap < MOST_OFF
    if wrong > DISAGREES and (follows or abs(scale) > OTHER_UNIT):
        sigma = _sigma_unused(wrong, scale)
        doubt = f"depth puts hands at {np.exp(scale):.2f} times the distance that their size says: "
        doubt += "unit of depth (`depth_unit`), registration, focal or hand length is wrong"
    elif not follows:
        sigma = 0.0
        doubt = f"depth does not follow the hands: {gap:.0%} of its readings are off their surface "
        doubt += f"and distances vary by {spread:.0%}; registration or clock of depth is wrong"
    return Agreement(DEPTH, count, 0, float(np.exp(scale)), spread, gap, doubt), sigma


def of_view(
    name: str,
    camera: Camera,
    slots: Slots,
    times: TimestampsNs,
    view: ViewTrack,
    hands: _Hands,
    known_size: bool,
) -> tuple[Agreement, float]:
    """Return how another camera agrees, and what that adds to the relative sigma of distances.

    Args:
        camera: the first one, with its hands ``slots`` at ``times``.
        hands: fitted to the first camera alone.
    """
    seen = landmarks_of(view.at(times))
    shared = [np.isfinite(each).all((2, 3)).any(1) for each in (landmarks_of(slots), seen)]
    count = int(np.logical_and(*shared).sum())
    if not hands or count == 0:
        doubt = f"{name} sees no hand at the times at which the first camera does" if hands else ""
        return Agreement(name, 0, 0, doubt=doubt), 0.0

    rows, pixels, points = (
        np.concatenate([getattr(hand, each) for hand in hands.values()])
        for each in ("frames", "pixels", "landmarks")
    )
    both = shared[1][rows]
    pixels, points, view_pixels = pixels[both], points[both], seen[rows[both]]
    if not both.any():
        return Agreement(name, count, 0), 0.0

    own, other = landmark_rays(camera, pixels), landmark_rays(view.camera, view_pixels)
    T = view.T_camera_view
    gaps, which = _gaps(own, other, T), rows[both]
    gap, same = _gap_of(gaps, which)
    nearest = other[same, gaps[same].argmin(1)]
    log, parallax = _log_scale(own[same], nearest, points[same], T)
    scale, wrong, sigma, doubt = None, 0.0, 0.0, ""
    if len(log):
        middle = float(np.median(log))
        scale, (wrong, sigma) = float(np.exp(middle)), scale_doubt(middle, known_size)

    if gap > MOST_GAP:
        cause = _cause(name, camera, slots, times, view, pixels, which)
        # Hands of which each is out of the other camera's picture are not the same ones.
        expected = in_view_of(own[:, None], frames.inverse(T), view.camera).mean() >= 0.5
        if cause or expected:
            doubt = f"hands in {name} are {gap:.2f} palms from where the rig puts them: "
            doubt += cause or "pose, calibration, clock or side of one of them is wrong"
        sigma = 0.0
    elif wrong > DISAGREES:
        sigma = _sigma_unused(wrong, middle)
        doubt = f"{name} puts hands at {scale:.2f} times the distance that their size says: unit "
        doubt += "or baseline of the rig, focal or hand length is wrong"
    else:
        sigma = float(np.hypot(sigma, gap * parallax))

    spread = _spread(log) if len(log) else None
    return Agreement(name, count, 0, scale, spread, gap, doubt), sigma


def _sigma_unused(wrong: float, log_scale: float) -> float:
    """Return the sigma of distances by the hand's size where a source contradicts them."""
    return float(np.sqrt(1 - wrong) * abs(log_scale))


def _spread(values: np.ndarray) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _gaps(
    own: _Rays, other: Float[np.ndarray, "N 2 21 3"], T_camera_view: RigidTransform
) -> Float[np.ndarray, "N 2"]:
    """Return the median angle of rays to epipolar planes over that of the palm; inf: no hand."""
    normal = np.cross(own, T_camera_view[:3, 3])[:, None]
    turned = other @ T_camera_view[:3, :3].T
    with np.errstate(divide="ignore", invalid="ignore"):
        normal = normal / np.linalg.norm(normal, axis=-1, keepdims=True)
        angle = np.median(np.abs(np.sum(normal * turned, axis=-1)), axis=-1)
        gap = angle / np.linalg.norm(turned[:, :, 9] - turned[:, :, 0], axis=-1)
    return np.where(np.isfinite(gap), gap, np.inf)


def _gap_of(
    gaps: Float[np.ndarray, "N 2"], frames_of: Int[np.ndarray, "N"]
) -> tuple[float, Int[np.ndarray, "M"]]:
    """Return the median over frames of the gap of the pair of hands that fit best; their rows."""
    order = np.lexsort((gaps.min(1), frames_of))
    _, first = np.unique(frames_of[order], return_index=True)
    best = order[first]
    return float(np.median(gaps[best].min(1))), best


def _log_scale(
    own: _Rays, other: _Rays, points: _Rays, T_camera_view: RigidTransform
) -> tuple[Float[np.ndarray, "M"], float]:
    """Return logarithms of distances by both rays over those of the hand alone.

    Of the frames in which the angle between rays determines a distance; of rays that meet behind
    the camera a hundredth. Also return the change by a shift of one palm in the other camera.
    """
    base, v = T_camera_view[:3, 3], other @ T_camera_view[:3, :3].T
    far = np.linalg.norm(points, axis=-1)
    uv, ub, vb = np.sum(own * v, -1), own @ base, v @ base
    with np.errstate(divide="ignore", invalid="ignore"):
        along = np.median((ub - uv * vb) / (1 - uv**2) / far, axis=-1)
    # Perpendicular to the ray; farther hands have less of it.
    across = np.sqrt(np.maximum(base @ base - ub**2, 0)).mean(1)
    known = LANDMARK_RAD * far.mean(1) < WEAK * across
    if not known.any():
        return np.zeros(0), 0.0
    log = np.log(np.fmax(along[known], 0.01))
    return log, PALM_M / float(np.median(across[known]))


def _cause(
    name: str,
    camera: Camera,
    slots: Slots,
    times: TimestampsNs,
    view: ViewTrack,
    pixels: Float[np.ndarray, "N 21 2"],
    rows: Int[np.ndarray, "N"],
) -> str:
    """Return the setup mistake that explains the gap of the hands in some rows; "" for none."""
    T, lens, own = view.T_camera_view, view.camera, landmark_rays(camera, pixels)
    seen = landmarks_of(view.at(times))[rows]
    mirrored = np.array([lens.width - 1, 0]) + np.array([-1, 1]) * seen
    guesses = {
        # With two lenses of one kind both mistakes look the same.
        "its pose seems to be inverse, or the two videos exchanged": _gaps(
            own, landmark_rays(lens, seen), frames.inverse(T)
        ),
        "its pictures seem to be mirrored": _gaps(own, landmark_rays(lens, mirrored), T),
        "the two videos seem to be exchanged": _gaps(
            landmark_rays(lens, pixels), landmark_rays(camera, seen), T
        ),
    }

    late = estimated_offset(camera, slots, times, view, wide=True)
    if late is not None:
        on_time = replace(view, timestamps_ns=view.timestamps_ns - round(late * 1e9))
        other = landmark_rays(lens, landmarks_of(on_time.at(times))[rows])
        clock = f"its clock seems to be {late:+.2f} s late (`view_offset={name}={late:.3f}`)"
        guesses[clock] = _gaps(own, other, T)

    remaining = {guess: _gap_of(gaps, rows)[0] for guess, gaps in guesses.items()}
    likely = min(remaining, key=lambda guess: remaining[guess])
    return likely if remaining[likely] < 2 * NOISE_GAP else ""
