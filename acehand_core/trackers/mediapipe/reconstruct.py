"""Hands over the whole recording: from detections to shape, poses, smoothing and filled gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation, landmark_fit
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.clip_fit import ClipFit, HalfGain, fit_clip, joint_slopes
from acehand_core.hand.contact import PlacedHand, shifts_apart
from acehand_core.hand.landmark_fit import Evidence, Pose
from acehand_core.hand.skeleton import PALM, WRIST
from acehand_core.motion import FILL_FRAMES, CameraMotion
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import pnp
from acehand_core.trackers.mediapipe.gaps import room_turns, smooth_and_fill, spans, trust_in_motion
from acehand_core.trackers.mediapipe.search import Detection
from acehand_core.types import CameraPoses, Side, TimestampsNs

#: Longer gaps are not filled.
MAX_FILL_S = 1.5
#: Landmarks that fit no hand better (rms over the palm's apparent length) are no sighting.
MAX_MISFIT = 0.25
#: Misfit of landmarks at which a frame's trust falls to a quarter: often the whole hand is wrong.
HALF_TRUST_MISFIT = 0.03
#: Smoothness of a hand in a frame of median certainty.
HALF_GAIN_HZ = HalfGain(bearing=8.0, depth=2.0, orient=4.0, angle=4.0)
#: Sightings fitted together, and neighbours on both sides that are fitted too, then dropped: about
#: 40 kB each.
TOGETHER, SHARED = 900, 60
#: Least weight of a sighting in smoothing.
MIN_WEIGHT = 0.05
#: Quality of a filled frame next to a sighting, and the frames over which it falls by e.
FILLED_QUALITY, FILLED_DECAY = 0.4, 10.0
MIN_DEPTH_M = 0.1

#: Offsets of the network's wrist and thumb base from the hand model's: distal, dorsal, radial, in
#: hand lengths. Rendered hands show 4, 0 and -1 % (wrist) and 2, -4 and 3 % (thumb base); this much
#: lowers the misfit of a real hand's landmarks most, by 9 %.
LANDMARK_OFFSET = np.zeros((21, 3))
LANDMARK_OFFSET[WRIST] = 0.03, 0.0, -0.005
LANDMARK_OFFSET[1] = 0.01, -0.01, 0.01


_Rest = Float[np.ndarray, "21 3"]
_Trust = Float[np.ndarray, "N"]


@dataclass(frozen=True, slots=True)
class HandTrack:
    """One slot over all T frames; NaN where the hand is unknown."""

    global_orient: Float[np.ndarray, "T 3 3"]
    hand_pose: Float[np.ndarray, "T 15 3 3"]
    translation: Float[np.ndarray, "T 3"]
    joints: Float[np.ndarray, "T 21 3"]
    pixels: Float[np.ndarray, "T 21 2"]
    sigma: Float[np.ndarray, "T 21 2"]  # m, as ``HandMotion.joint_sigma``
    betas: Float[np.ndarray, "10"]
    observed: Bool[np.ndarray, "T"]
    filled: Bool[np.ndarray, "T"]
    quality: Float[np.ndarray, "T"]
    fill_frame: Int[np.ndarray, "T"]  # number in ``FILL_FRAMES`` plus one where filled, else 0

    @classmethod
    def absent(cls, frames: int) -> HandTrack:
        """Return a hand without sightings."""
        shapes = ((3, 3), (15, 3, 3), (3,), (21, 3), (21, 2), (21, 2))
        orient, pose, place, joints, pixels, sigma = (np.full((frames, *s), np.nan) for s in shapes)
        observed, filled = np.zeros((2, frames), bool)
        betas, quality, fills = np.zeros(10), np.zeros(frames), np.zeros(frames, np.int8)
        return cls(
            orient, pose, place, joints, pixels, sigma, betas, observed, filled, quality, fills
        )


@dataclass(frozen=True, slots=True)
class _Clip:
    """What both hands share: the camera, its motion, and the times of the frames."""

    camera: Camera
    timestamps_ns: TimestampsNs
    settings: TrackerSettings
    motion: CameraMotion | None
    T_world_camera: CameraPoses | None


@dataclass(frozen=True, slots=True)
class _Sightings:
    """The N frames with a visible hand."""

    frames: Int[np.ndarray, "N"]
    pixels: Float[np.ndarray, "N 21 2"]
    confidence: Float[np.ndarray, "N"]
    presence: Float[np.ndarray, "N"]
    one_crop: Bool[np.ndarray, "N"]
    evidence: Evidence

    def rows(self, keep: np.ndarray) -> _Sightings:
        names = ("frames", "pixels", "confidence", "presence", "one_crop")
        own = {name: getattr(self, name)[keep] for name in names}
        return _Sightings(evidence=self.evidence.rows(keep), **own)


def reconstruct_hands(
    detections: Mapping[Side, Sequence[Detection | None]],
    camera: Camera,
    timestamps_ns: TimestampsNs,
    settings: TrackerSettings,
    motion: CameraMotion | None = None,
    T_world_camera: CameraPoses | None = None,
) -> dict[Side, HandTrack]:
    """Return one hand or both of a person from a detection per frame; one shape, no penetration.

    Args:
        motion: the camera's turns; None: smooth and fill in the camera frame.
        T_world_camera: trusted poses of the camera, only with ``motion``.
    """
    clip = _Clip(camera, timestamps_ns, settings, motion, T_world_camera)
    tracks = {side: HandTrack.absent(len(timestamps_ns)) for side in detections}
    seen = {
        side: sightings
        for side, hand in detections.items()
        if (sightings := _sightings(hand, camera, settings.palm_calibration)) is not None
    }
    if not seen:
        return tracks
    poses, betas = _fit(seen, camera, settings)
    for side, sightings in seen.items():
        rest = CapsuleHand().rest_keypoints(side, betas)
        _track_hand(tracks[side], sightings, poses[side], side, rest, clip)
        if tracks[side].observed.any():
            tracks[side].betas[:] = betas

    # Smoothing would bring the hands together again.
    known = {side: np.flatnonzero(tracks[side].observed | tracks[side].filled) for side in seen}
    placed = {
        side: PlacedHand(rows, tracks[side].joints[rows], tracks[side].sigma[rows, WRIST])
        for side, rows in known.items()
        if len(rows)
    }
    for side, shift in shifts_apart(placed).items():
        tracks[side].joints[known[side]] += shift[:, None]
        tracks[side].translation[known[side]] += shift
    return tracks


def _track_hand(
    track: HandTrack, sightings: _Sightings, pose: Pose, side: Side, rest: _Rest, clip: _Clip
) -> None:
    """Fit all frames of a hand of known shape that it explains, and write them into its track."""
    # Rms angle between fitted and seen landmarks over the palm's apparent length.
    keypoints = pose.keypoints(side, rest) + _offsets(pose, sightings, side, rest)
    fitted = keypoints / np.linalg.norm(keypoints, axis=-1, keepdims=True)
    error = np.sum((fitted - landmark_fit.rays(sightings.evidence.bearing)) ** 2, axis=-1)
    misfit = np.sqrt(error.mean(1)) / sightings.evidence.scale
    if not (keep := misfit < MAX_MISFIT).any():
        return
    sightings, pose, misfit = sightings.rows(keep), pose.rows(keep), misfit[keep]

    sure = np.clip((sightings.confidence - 0.5) / 0.4, 0.2, 1.0)
    trust = sure / (1 + (misfit / HALF_TRUST_MISFIT) ** 2) ** 2
    pose, sigma, turn_sigma = _fit_together(sightings, pose, trust, side, rest, clip)
    known = (turn_sigma < MAX_TURN_SIGMA_RAD) & (sightings.presence > MIN_PRESENCE)
    certain = 1 / (1 + (turn_sigma / MAX_TURN_SIGMA_RAD) ** 2)

    frames = sightings.frames
    track.pixels[frames], track.observed[frames] = sightings.pixels, True
    # A doubtful hand is observed, but not trusted.
    track.quality[frames] = np.where(known, sure * (1 - misfit / MAX_MISFIT) * certain, 0.0)
    track.sigma[frames] = sigma
    _write_spans(track, pose, side, rest, clip)


def _sightings(
    detections: Sequence[Detection | None], camera: Camera, palm_calibration: float
) -> _Sightings | None:
    """Collect the detections with all landmarks in the camera's field of view."""
    seen = [(frame, d) for frame, d in enumerate(detections) if d is not None]
    if not seen:
        return None
    frames, hands = zip(*seen, strict=True)
    pixels = np.stack([d.pixels for d in hands])
    bearing = pnp.bearings(camera, pixels)
    inside = np.isfinite(bearing).all((1, 2))
    if not inside.any():
        return None
    kept = [d for d, i in zip(hands, inside, strict=True) if i]
    world, offset = np.stack([d.world for d in kept]), palm_calibration * LANDMARK_OFFSET
    return _Sightings(
        np.array(frames)[inside],
        pixels[inside],
        np.array([d.confidence for d in kept]),
        np.array([d.presence for d in kept]),
        np.array([d.covariance is None for d in kept]),
        Evidence.from_landmarks(bearing[inside], world, _spread(camera, kept), offset),
    )


def _spread(camera: Camera, hands: Sequence[Detection]) -> Float[np.ndarray, "N 21 2 2"] | None:
    """Return the covariances over the crops as those of bearings; zero for one crop."""
    if all(d.covariance is None for d in hands):
        return None
    pixels = np.stack([d.pixels for d in hands])
    zero = np.zeros((21, 2, 2))
    covariance = np.stack([zero if d.covariance is None else d.covariance for d in hands])
    steps = 0.5 * np.eye(2)
    columns = [pnp.bearings(camera, pixels + s) - pnp.bearings(camera, pixels - s) for s in steps]
    by_pixel = np.nan_to_num(np.stack(columns, axis=-1))
    return by_pixel @ covariance @ np.swapaxes(by_pixel, -1, -2)


def _offsets(
    pose: Pose, sightings: _Sightings, side: Side, rest: _Rest
) -> Float[np.ndarray, "N 21 3"]:
    """Return the offsets of landmarks from joints, camera axes."""
    return sightings.evidence.landmarks(side, rest) @ np.swapaxes(pose.global_orient, 1, 2)


def _fit(
    seen: Mapping[Side, _Sightings], camera: Camera, settings: TrackerSettings
) -> tuple[dict[Side, Pose], Float[np.ndarray, "10"]]:
    """Fit poses with the mean hand, one shape to all, then poses with that."""
    model, poses = CapsuleHand(), {}
    for side, sightings in seen.items():
        evidence = sightings.evidence
        rest = model.rest_keypoints(side, np.zeros(10))
        articulated = landmark_fit.articulate(evidence, side, rest)
        pose = _place(articulated, sightings, side, rest, camera)
        poses[side] = landmark_fit.refine(pose, evidence, side, rest, try_relaxed=True)

    hands = [(poses[side], sightings.evidence, side) for side, sightings in seen.items()]
    betas = landmark_fit.fit_shape(hands, settings.hand_length_m)
    for side, sightings in seen.items():
        rest = model.rest_keypoints(side, betas)
        poses[side] = landmark_fit.refine(poses[side], sightings.evidence, side, rest, iterations=3)
    return poses, betas


def _fit_together(
    sightings: _Sightings, pose: Pose, trust: _Trust, side: Side, rest: _Rest, clip: _Clip
) -> tuple[Pose, Float[np.ndarray, "N 21 2"], Float[np.ndarray, "N"]]:
    """Fit the frames of each appearance together, long ones in overlapping parts.

    Returns poses, and standard deviations of joints (m) and of the palm's orientation.
    """
    timestamps_ns, motion = clip.timestamps_ns, clip.motion
    known_size = clip.settings.hand_length_m is not None
    seen = np.zeros(len(timestamps_ns), bool)
    seen[sightings.frames] = True
    poses: list[Pose] = []
    sigmas, turn_sigmas = [], []
    for span in spans(seen, timestamps_ns, MAX_FILL_S):
        in_span = np.flatnonzero((sightings.frames >= span.start) & (sightings.frames < span.stop))
        for begin in range(0, len(in_span), TOGETHER):
            before = min(begin, SHARED)
            rows = in_span[begin - before : begin + TOGETHER + SHARED]
            frames = sightings.frames[rows]
            turns = np.tile(np.eye(3), (len(frames), 1, 1))
            if motion is not None:
                part = motion.part(int(frames[0]), int(frames[-1]) + 1)
                turns = room_turns(part)[frames - frames[0]]
            seconds = (timestamps_ns[frames] - timestamps_ns[frames[0]]) * 1e-9
            start, evidence = pose.rows(rows), sightings.evidence.rows(rows)
            fit = fit_clip(start, evidence, side, rest, seconds, turns, trust[rows], HALF_GAIN_HZ)
            one_crop = sightings.one_crop[rows]
            fit = widened(fit, one_crop)
            apart = disagreement(evidence, one_crop)

            own = np.arange(before, min(before + TOGETHER, len(rows)))
            poses.append(fit.pose.rows(own))
            sigmas.append(joint_sigma(fit, side, rest, apart, known_size)[own])
            turn_sigmas.append(turn_sigma(fit)[own])

    columns = zip(*((part.global_orient, part.angles, part.wrist) for part in poses), strict=True)
    joined = (np.concatenate(column) for column in columns)
    return Pose(*joined), np.concatenate(sigmas), np.concatenate(turn_sigmas)


def _place(pose: Pose, sightings: _Sightings, side: Side, rest: _Rest, camera: Camera) -> Pose:
    """Place articulated hands, with wrists at the origin, before the camera."""
    canonical = pose.keypoints(side, rest) + _offsets(pose, sightings, side, rest)
    depth = pnp.weak_perspective_depth(canonical, sightings.pixels, camera)
    depth = np.maximum(depth, MIN_DEPTH_M)
    wrist = pnp.mixed_pnp(canonical, depth, sightings.pixels, camera).translation
    bearing, weights = sightings.evidence.bearing, landmark_fit.KEYPOINT_WEIGHTS
    turn, wrist = pnp.rigid_pnp(canonical, bearing, wrist, np.tile(weights, (len(wrist), 1)))
    # The solver turns about the wrist's landmark.
    off = canonical[:, 0]
    wrist = wrist + off - (turn @ off[..., None])[..., 0]
    return Pose(turn @ pose.global_orient, pose.angles, wrist)


def _write_spans(track: HandTrack, pose: Pose, side: Side, rest: _Rest, clip: _Clip) -> None:
    """Smooth each appearance of the hand, fill its short gaps, and write both into the track."""
    timestamps_ns, motion, T_world_camera = clip.timestamps_ns, clip.motion, clip.T_world_camera
    row = np.cumsum(track.observed) - 1
    for span in spans(track.observed, timestamps_ns, MAX_FILL_S):
        frames = np.arange(span.start, span.stop)
        known = track.observed[frames]
        weights = np.where(known, np.maximum(track.quality[frames], MIN_WEIGHT), 0.0)
        seconds = (timestamps_ns[frames] - timestamps_ns[frames[0]]) * 1e-9
        turned = None if motion is None else motion.part(span.start, span.stop)
        world = None if T_world_camera is None else T_world_camera[span.start : span.stop]
        smoothed, filled = smooth_and_fill(pose.rows(row[frames]), weights, seconds, turned, world)
        track.global_orient[frames] = smoothed.global_orient
        track.hand_pose[frames] = articulation.angles_to_pose(smoothed.angles, side)
        track.joints[frames] = smoothed.keypoints(side, rest)
        track.translation[frames] = smoothed.wrist - rest[WRIST]
        track.filled[frames] = ~known
        # The quality of a filled frame falls with the distance to the nearest sighting.
        gaps, sightings = np.flatnonzero(~known), np.flatnonzero(known)
        after = np.searchsorted(sightings, gaps)
        distance = np.minimum(gaps - sightings[after - 1], sightings[after] - gaps)
        track.quality[frames[~known]] = FILLED_QUALITY * np.exp(-(distance - 1) / FILLED_DECAY)
        for gap in filled:
            rows, about = slice(gap.start, gap.stop), [gap.start - 1, gap.stop]
            inside, away = frames[rows], seconds[rows]
            elapsed, left = away - seconds[about[0]], seconds[about[1]] - away
            ends = track.sigma[frames[about]]
            track.sigma[inside] = sigma_in_gap(ends, elapsed, left)
            track.fill_frame[inside] = 1 + FILL_FRAMES.index(gap.frame)
            if turned is not None:
                track.quality[inside] *= trust_in_motion(gap, turned)


Rest = Float[np.ndarray, "21 3"]
Seconds = Float[np.ndarray, "N"]

#: Of the covariances of all frames together and of a single frame; the smaller one counts.
TOGETHER_FACTOR, ALONE_FACTOR = 2.2, 1.3
#: With one crop the quality of a landmark is unknown.
ONE_CROP_FACTOR = 1.4
#: Joints' own share of the solve's standard deviations, across the line of sight and along it.
OWN_ACROSS, OWN_ALONG = 0.85, 1.15
#: The common share: a shift across, in units of the crops' difference, and a share of the distance,
#: in units of the same over the palm's apparent length.
SHIFT_FACTOR, SCALE_FACTOR = 1.4, 1.8
#: Median disagreement of crops over the palm's apparent length, assumed for one crop.
ONE_CROP_DISAGREEMENT = 0.035
#: Standard deviation of hand sizes (``hand.articulation``) without a given length.
SIZE_SIGMA = 0.055
#: A hand is doubtful with a less certain orientation of its palm or a lower mean presence. (On the
#: rendered clips used to choose these: 5 % of the hands within 15 degrees and 20 mm, and three
#: quarters of those turned by over 30 degrees.)
MAX_TURN_SIGMA_RAD, MIN_PRESENCE = np.radians(40.0), 0.6
#: Unknown acceleration of an occluded hand in each direction. (Rendered hands, withheld for up to
#: 0.8 s.)
GAP_ACCELERATION_M_S2 = 0.7


def widened(fit: ClipFit, one_crop: Bool[np.ndarray, "N"]) -> ClipFit:
    """Return the fit with wider covariances in frames with a single crop."""
    factor = np.where(one_crop, ONE_CROP_FACTOR**2, 1.0)[:, None, None]
    return ClipFit(fit.pose, factor * fit.covariance, factor * fit.alone)


def disagreement(evidence: Evidence, one_crop: Bool[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """Return the crops' rms standard deviation per direction over the palm's apparent length."""
    if evidence.spread is None:
        return np.full(len(one_crop), ONE_CROP_DISAGREEMENT)
    variance = np.trace(evidence.spread, axis1=-2, axis2=-1).mean(1) / 2
    apart = np.sqrt(variance) / np.maximum(evidence.scale, 1e-6)
    return np.where(one_crop, ONE_CROP_DISAGREEMENT, apart)


def joint_sigma(
    fit: ClipFit, side: Side, rest: Rest, apart: Float[np.ndarray, "N"], known_size: bool
) -> Float[np.ndarray, "N 21 2"]:
    """Return joints' standard deviations per direction across and along the line of sight, metres.

    ``apart`` is that of ``disagreement``.
    """
    joints = fit.pose.keypoints(side, rest)
    slopes = joint_slopes(fit.pose, side, rest)
    distance = np.linalg.norm(joints, axis=-1)
    ray = joints / distance[..., None]

    def spread(unknowns: Float[np.ndarray, "N 28 28"]) -> Float[np.ndarray, "N 21 2"]:
        covariance = slopes @ unknowns[:, None] @ np.swapaxes(slopes, -1, -2)
        along = np.einsum("nji,njik,njk->nj", ray, covariance, ray)
        across = (np.trace(covariance, axis1=2, axis2=3) - along) / 2
        return np.sqrt(np.maximum(np.stack([across, along], axis=-1), 0))

    own = np.minimum(TOGETHER_FACTOR * spread(fit.covariance), ALONE_FACTOR * spread(fit.alone))
    palm = np.sqrt(np.mean(np.sum((rest[list(PALM[1:])] - rest[PALM[0]]) ** 2, axis=-1)))
    shift = SHIFT_FACTOR * apart * palm
    # A hand's distance is proportional to its size.
    scale = np.hypot(SCALE_FACTOR * apart, 0.0 if known_size else SIZE_SIGMA)
    common = np.stack(np.broadcast_arrays(shift[:, None], scale[:, None] * distance), axis=-1)
    sigma: Float[np.ndarray, "N 21 2"] = np.hypot([OWN_ACROSS, OWN_ALONG] * own, common)
    return sigma


def turn_sigma(fit: ClipFit) -> Float[np.ndarray, "N"]:
    """Return the standard deviation of the palm's orientation as a rotation angle, rad."""
    turns = (covariance[:, :3, :3] for covariance in (fit.covariance, fit.alone))
    together, alone = (np.sqrt(np.trace(turn, axis1=1, axis2=2)) for turn in turns)
    return np.minimum(TOGETHER_FACTOR * together, ALONE_FACTOR * alone)


def sigma_in_gap(
    ends: Float[np.ndarray, "2 21 2"], elapsed_s: Seconds, left_s: Seconds
) -> Float[np.ndarray, "N 21 2"]:
    """Return standard deviations in filled frames from those of both ends and the times to them."""
    share = (elapsed_s / (elapsed_s + left_s))[:, None, None]
    before, after = ends**2
    variance = (1 - share) * before + share * after
    off = GAP_ACCELERATION_M_S2 / 2 * elapsed_s * left_s
    return np.sqrt(variance + off[:, None, None] ** 2)
