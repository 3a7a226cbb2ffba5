"""Hands over the whole recording: from detections to shape, poses, smoothing and filled gaps.

``smoothing`` has the smoother, ``gaps`` in which frame it fills a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation, landmark_fit
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.clip_fit import HalfGain, fit_clip
from acehand_core.hand.contact import PlacedHand, shifts_apart
from acehand_core.hand.landmark_fit import Evidence, Pose
from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import FILL_FRAMES, CameraMotion
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import doubt, pnp
from acehand_core.trackers.mediapipe.gaps import room_turns, smooth_and_fill, spans, trust_in_motion
from acehand_core.trackers.mediapipe.search import Detection
from acehand_core.types import CameraPoses, Side, TimestampsNs

#: A hand away for longer than this is away: it is not filled in.
MAX_FILL_S = 1.5
#: Landmarks that no possible hand explains (rms over the palm's apparent length) are no sighting.
MAX_MISFIT = 0.25
#: A frame has half its say where its landmarks misfit by this much. (Those that the solver bends
#: a hand to are often wrong altogether: of one with half of it a frame has a quarter.)
HALF_TRUST_MISFIT = 0.03
#: How smooth a hand is in a frame that is known as well as the median one.
HALF_GAIN_HZ = HalfGain(bearing=8.0, depth=2.0, orient=4.0, angle=4.0)
#: Sightings that are fitted together, and neighbours on either side that are fitted with them but
#: left to their own part: some 40 kB each.
TOGETHER, SHARED = 900, 60
#: Weakest weight of a sighting in smoothing.
MIN_WEIGHT = 0.05
#: Quality of a filled frame beside a sighting, and the frames over which it falls by e.
FILLED_QUALITY, FILLED_DECAY = 0.4, 10.0
MIN_DEPTH_M = 0.1

#: Where the network's wrist and thumb base lie from the hand model's, as shares of the hand's
#: length: distal, dorsal, radial. Rendered hands show 4, 0 and -1 % (wrist) and 2, -4 and 3 %
#: (thumb base); this much of it also lowers the misfit of a real hand's landmarks most, by 9 %.
LANDMARK_OFFSET = np.zeros((21, 3))
LANDMARK_OFFSET[WRIST] = 0.03, 0.0, -0.005
LANDMARK_OFFSET[1] = 0.01, -0.01, 0.01


@dataclass(frozen=True, slots=True)
class HandTrack:
    """One slot over all T frames; NaN where the hand is not known."""

    global_orient: Float[np.ndarray, "T 3 3"]
    hand_pose: Float[np.ndarray, "T 15 3 3"]
    translation: Float[np.ndarray, "T 3"]
    joints: Float[np.ndarray, "T 21 3"]
    pixels: Float[np.ndarray, "T 21 2"]
    betas: Float[np.ndarray, "10"]
    observed: Bool[np.ndarray, "T"]
    filled: Bool[np.ndarray, "T"]
    quality: Float[np.ndarray, "T"]
    sigma: Float[np.ndarray, "T 21 2"]  # m, as ``HandMotion.joint_sigma``
    fill_frame: Int[np.ndarray, "T"]  # number in ``FILL_FRAMES`` plus one where filled, else 0

    @classmethod
    def absent(cls, frames: int) -> HandTrack:
        """Return a hand that is nowhere."""

        def unknown(*shape: int) -> np.ndarray:
            return np.full((frames, *shape), np.nan)

        never = np.zeros(frames, bool)
        return cls(
            unknown(3, 3), unknown(15, 3, 3), unknown(3), unknown(21, 3), unknown(21, 2),
            np.zeros(10), never, never.copy(), np.zeros(frames), unknown(21, 2),
            np.zeros(frames, np.int8),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sightings:
    """The N frames in which the hand was seen."""

    frames: Int[np.ndarray, "N"]
    pixels: Float[np.ndarray, "N 21 2"]
    confidence: Float[np.ndarray, "N"]
    presence: Float[np.ndarray, "N"]
    one_crop: Bool[np.ndarray, "N"]
    evidence: Evidence

    def rows(self, keep: np.ndarray) -> _Sightings:
        return _Sightings(
            self.frames[keep], self.pixels[keep], self.confidence[keep], self.presence[keep],
            self.one_crop[keep], self.evidence.rows(keep),
        )  # fmt: skip


def reconstruct(
    detections: Sequence[Detection | None],
    side: Side,
    camera: Camera,
    timestamps_ns: TimestampsNs,
    settings: TrackerSettings,
    motion: CameraMotion | None = None,
    T_world_camera: CameraPoses | None = None,
) -> HandTrack:
    """Return one hand over the recording from its detections, one entry per frame.

    Args:
        motion: how the camera turned; None: hands are smoothed and filled in the camera frame.
        T_world_camera: where it was, if that is to be trusted; only with ``motion``.
    """
    hands = {side: detections}
    return reconstruct_hands(hands, camera, timestamps_ns, settings, motion, T_world_camera)[side]


def reconstruct_hands(
    detections: Mapping[Side, Sequence[Detection | None]],
    camera: Camera,
    timestamps_ns: TimestampsNs,
    settings: TrackerSettings,
    motion: CameraMotion | None = None,
    T_world_camera: CameraPoses | None = None,
) -> dict[Side, HandTrack]:
    """Return one hand or both of a person, of one shape, not through each other."""
    tracks = {side: HandTrack.absent(len(timestamps_ns)) for side in detections}
    seen = {
        side: sightings
        for side, hand in detections.items()
        if (sightings := _sightings(hand, camera, settings.palm_calibration)) is not None
    }
    if not seen:
        return tracks
    poses, betas = _fit(seen, camera, settings)

    rests = {side: CapsuleHand().rest_keypoints(side, betas) for side in seen}
    fitted = {
        side: hand
        for side, sightings in seen.items()
        if (hand := _fit_frames(sightings, poses[side], side, rests[side], timestamps_ns, motion,
                                settings.hand_length_m is not None)) is not None
    }  # fmt: skip
    for side, hand in fitted.items():
        track, frames = tracks[side], hand.sightings.frames
        track.pixels[frames], track.observed[frames] = hand.sightings.pixels, True
        track.quality[frames], track.sigma[frames] = hand.quality, hand.sigma
        track.betas[:] = betas
        _write_spans(track, hand.pose, side, rests[side], timestamps_ns, motion, T_world_camera)
    # Smoothing would bring them together again.
    known = {side: np.flatnonzero(tracks[side].observed | tracks[side].filled) for side in fitted}
    placed = {
        side: PlacedHand(rows, tracks[side].joints[rows], tracks[side].sigma[rows, WRIST])
        for side, rows in known.items()
    }
    for side, shift in shifts_apart(placed).items():
        tracks[side].joints[known[side]] += shift[:, None]
        tracks[side].translation[known[side]] += shift
    return tracks


@dataclass(frozen=True, slots=True)
class _PoseFits:
    """Poses of the N sightings that a hand explains, their quality, and as ``HandTrack.sigma``."""

    sightings: _Sightings
    pose: Pose
    quality: Float[np.ndarray, "N"]
    sigma: Float[np.ndarray, "N 21 2"]


def _fit_frames(
    sightings: _Sightings,
    pose: Pose,
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    timestamps_ns: TimestampsNs,
    motion: CameraMotion | None,
    known_size: bool,
) -> _PoseFits | None:
    """Fit all frames of a hand of known shape; None where no hand explains any of them."""
    # Rms angle between fitted and seen landmarks over the palm's apparent length.
    keypoints = pose.keypoints(side, rest) + _offsets(pose, sightings, side, rest)
    fitted = keypoints / np.linalg.norm(keypoints, axis=-1, keepdims=True)
    error = np.sum((fitted - landmark_fit.rays(sightings.evidence.bearing)) ** 2, axis=-1)
    misfit = np.sqrt(error.mean(1)) / sightings.evidence.scale
    if not (keep := misfit < MAX_MISFIT).any():
        return None
    sightings, pose, misfit = sightings.rows(keep), pose.rows(keep), misfit[keep]

    sure = np.clip((sightings.confidence - 0.5) / 0.4, 0.2, 1.0)
    trust = sure / (1 + (misfit / HALF_TRUST_MISFIT) ** 2) ** 2
    pose, sigma, turn_sigma = _fit_together(
        sightings, pose, trust, side, rest, timestamps_ns, motion, known_size
    )
    known = (turn_sigma < doubt.MAX_TURN_SIGMA_RAD) & (sightings.presence > doubt.MIN_PRESENCE)
    certain = 1 / (1 + (turn_sigma / doubt.MAX_TURN_SIGMA_RAD) ** 2)

    # A doubtful hand was seen, but nothing is trusted of it.
    quality = np.where(known, sure * (1 - misfit / MAX_MISFIT) * certain, 0.0)
    return _PoseFits(sightings, pose, quality, sigma)


def _sightings(
    detections: Sequence[Detection | None], camera: Camera, palm_calibration: float
) -> _Sightings | None:
    """Collect the detections whose landmarks all lie inside the camera's field of view."""
    seen = [(frame, d) for frame, d in enumerate(detections) if d is not None]
    if not seen:
        return None
    frames, hands = zip(*seen, strict=True)
    pixels = np.stack([d.pixels for d in hands])
    bearing = pnp.bearings(camera, pixels)
    inside = np.isfinite(bearing).all((1, 2))
    if not inside.any():
        return None
    world = np.stack([d.world for d in hands])

    return _Sightings(
        np.array(frames)[inside],
        pixels[inside],
        np.array([d.confidence for d in hands])[inside],
        np.array([d.presence for d in hands])[inside],
        np.array([d.covariance is None for d in hands])[inside],
        Evidence.from_landmarks(
            bearing[inside],
            world[inside],
            _spread(camera, [d for d, i in zip(hands, inside, strict=True) if i]),
            palm_calibration * LANDMARK_OFFSET,
        ),
    )


def _spread(camera: Camera, hands: Sequence[Detection]) -> Float[np.ndarray, "N 21 2 2"] | None:
    """Return the covariances over the crops as those of bearings; zero where there was one crop."""
    if all(d.covariance is None for d in hands):
        return None
    pixels = np.stack([d.pixels for d in hands])
    zero = np.zeros((21, 2, 2))
    covariance = np.stack([zero if d.covariance is None else d.covariance for d in hands])
    columns = [
        (pnp.bearings(camera, pixels + step) - pnp.bearings(camera, pixels - step))
        for step in 0.5 * np.eye(2)
    ]
    by_pixel = np.nan_to_num(np.stack(columns, axis=-1))
    return by_pixel @ covariance @ np.swapaxes(by_pixel, -1, -2)


def _offsets(
    pose: Pose, sightings: _Sightings, side: Side, rest: Float[np.ndarray, "21 3"]
) -> Float[np.ndarray, "N 21 3"]:
    """Return where landmarks lie from the joints, camera axes."""
    return sightings.evidence.landmarks(side, rest) @ np.swapaxes(pose.global_orient, 1, 2)


def _fit(
    seen: Mapping[Side, _Sightings], camera: Camera, settings: TrackerSettings
) -> tuple[dict[Side, Pose], Float[np.ndarray, "10"]]:
    """Fit one shape to the hands, then every pose with it; the first round with the mean hand."""
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
    sightings: _Sightings,
    pose: Pose,
    trust: Float[np.ndarray, "N"],
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    timestamps_ns: TimestampsNs,
    motion: CameraMotion | None,
    known_size: bool,
) -> tuple[Pose, Float[np.ndarray, "N 21 2"], Float[np.ndarray, "N"]]:
    """Fit the frames of each appearance of the hand together; long ones in parts that overlap.

    Returns poses, and standard deviations of joints (m) and of the palm's orientation.
    """
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
            fit = fit_clip(
                pose.rows(rows), sightings.evidence.rows(rows), side, rest,
                (timestamps_ns[frames] - timestamps_ns[frames[0]]) * 1e-9, turns, trust[rows],
                HALF_GAIN_HZ,
            )  # fmt: skip
            one_crop = sightings.one_crop[rows]
            fit = doubt.widened(fit, one_crop)
            apart = doubt.disagreement(sightings.evidence.rows(rows), one_crop)

            own = np.arange(before, min(before + TOGETHER, len(rows)))
            poses.append(fit.pose.rows(own))
            sigmas.append(doubt.joint_sigma(fit, side, rest, apart, known_size)[own])
            turn_sigmas.append(doubt.turn_sigma(fit)[own])

    joined = [np.concatenate([getattr(part, name) for part in poses])
              for name in ("global_orient", "angles", "wrist")]  # fmt: skip
    return Pose(*joined), np.concatenate(sigmas), np.concatenate(turn_sigmas)


def _place(
    pose: Pose, sightings: _Sightings, side: Side, rest: Float[np.ndarray, "21 3"], camera: Camera
) -> Pose:
    """Place articulated hands, wrists at the origin, before the camera."""
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


def _write_spans(
    track: HandTrack,
    pose: Pose,
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    timestamps_ns: TimestampsNs,
    motion: CameraMotion | None,
    T_world_camera: CameraPoses | None,
) -> None:
    """Smooth each appearance of the hand, fill its short gaps, and write both into the track."""
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
            away = seconds[gap.start : gap.stop]
            ends = frames[[gap.start - 1, gap.stop]]
            track.sigma[frames[gap.start : gap.stop]] = doubt.sigma_in_gap(
                track.sigma[ends], away - seconds[gap.start - 1], seconds[gap.stop] - away
            )
            inside = frames[gap.start : gap.stop]
            track.fill_frame[inside] = 1 + FILL_FRAMES.index(gap.frame)
            if turned is not None:
                track.quality[inside] *= trust_in_motion(gap, turned)
