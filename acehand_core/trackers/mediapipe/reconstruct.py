"""Hands over the whole recording: from detections to shape, poses, smoothing and filled gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.geometry.cameras import Camera
from acehand_core.geometry.frames import apply, inverse
from acehand_core.hand import articulation, landmark_fit
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.clip_fit import HalfGain, fit_clip
from acehand_core.hand.contact import PlacedHand, shifts_apart
from acehand_core.hand.evidence import (
    KEYPOINT_WEIGHTS,
    LEAST_READINGS,
    Evidence,
    Pose,
    SkinDepth,
    below_mesh,
    rays,
    skin_points,
    thickness,
)
from acehand_core.hand.landmark_fit import reversed_palm
from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import FILL_FRAMES, CameraMotion
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import pnp
from acehand_core.trackers.mediapipe.gaps import room_turns, smooth_and_fill, spans, trust_in_motion
from acehand_core.trackers.mediapipe.search import Detection
from acehand_core.trackers.mediapipe.sightings import Sightings, ViewHands, collect
from acehand_core.trackers.mediapipe.uncertainty import (
    disagreement,
    joint_sigma,
    sigma_in_gap,
    turn_sigma,
    widened,
)
from acehand_core.types import CameraPoses, Side, TimestampsNs

#: Longer gaps are not filled.
MAX_FILL_S = 1.5
#: Landmarks that fit no hand better (rms over the palm's apparent length) are no sighting.
MAX_MISFIT = 0.25
#: Misfit of landmarks at which a frame's trust falls to a quarter: often the whole hand is wrong.
HALF_TRUST_MISFIT = 0.03
#: Misfit above which landmarks do not judge other measurements, unless most of the hand's are.
#: (Photographs of ``stereo_hand`` and a webcam: up to 0.09; rendered grasps: up to half above.)
WITNESS_MISFIT = 0.1
#: Depth readings at such landmarks are of the hand, this far from the skin of the point itself,
#: metres, and this many of them are wrong together. (Rendered clips; on photographs untried.)
COARSE_SKIN_M, COARSE_SAME = 0.03, 10.0
#: Smoothness of a hand in a frame of median certainty.
HALF_GAIN_HZ = HalfGain(bearing=8.0, depth=2.0, orient=4.0, angle=4.0)
#: And of one whose distance is measured.
METRIC_HALF_GAIN_HZ = replace(HALF_GAIN_HZ, depth=6.0)
#: Sightings fitted together, and neighbours on both sides that are fitted too, then dropped: about
#: 80 kB each.
FIT_SIGHTINGS, FIT_OVERLAP = 600, 60
#: Least weight of a sighting in smoothing.
MIN_WEIGHT = 0.05
#: Quality of a filled frame next to a sighting, and the frames over which it falls by e.
FILLED_QUALITY, FILLED_DECAY = 0.4, 10.0
MIN_DEPTH_M = 0.1

#: A hand is doubtful with a less certain orientation of its palm or a lower mean presence. (On the
#: rendered clips used to choose these: 5 % of the hands within 15 degrees and 20 mm, and three
#: quarters of those turned by over 30 degrees.)
MAX_TURN_SIGMA_RAD, MIN_PRESENCE = np.radians(40.0), 0.6

_Rest = Float[np.ndarray, "21 3"]
_Pixels = Float[np.ndarray, "N 21 2"]
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
    length_sigma: Float[np.ndarray, "1"]  # of the hand's length, m; NaN if it is not measured
    observed: Bool[np.ndarray, "T"]
    filled: Bool[np.ndarray, "T"]
    quality: Float[np.ndarray, "T"]
    fill_frame: Int[np.ndarray, "T"]  # number in ``FILL_FRAMES`` plus one where filled, else 0
    evidence: Int[np.ndarray, "T"]  # as ``HandMotion.evidence``

    @classmethod
    def absent(cls, frames: int) -> HandTrack:
        """Return a hand without sightings."""
        return cls(
            global_orient=np.full((frames, 3, 3), np.nan),
            hand_pose=np.full((frames, 15, 3, 3), np.nan),
            translation=np.full((frames, 3), np.nan),
            joints=np.full((frames, 21, 3), np.nan),
            pixels=np.full((frames, 21, 2), np.nan),
            sigma=np.full((frames, 21, 2), np.nan),
            betas=np.zeros(10),
            length_sigma=np.full(1, np.nan),
            observed=np.zeros(frames, bool),
            filled=np.zeros(frames, bool),
            quality=np.zeros(frames),
            fill_frame=np.zeros(frames, np.int8),
            evidence=np.zeros(frames, np.int8),
        )


@dataclass(frozen=True, slots=True)
class HandAlone:
    """A hand in up to ``SHAPE_FRAMES`` frames, as the first camera alone shows it.

    Attributes:
        pixels: its landmarks as seen; ``landmarks``: as fitted, camera frame, metres.
        below: how far the points of ``SkinDepth`` lie behind the skin, metres.
        misfit: of the landmarks, over the palm's apparent length.
    """

    frames: Int[np.ndarray, "N"]
    pixels: Float[np.ndarray, "N 21 2"]
    landmarks: Float[np.ndarray, "N 21 3"]
    below: Float[np.ndarray, "N 41"]
    misfit: Float[np.ndarray, "N"]


@dataclass(frozen=True, slots=True)
class _Clip:
    """What both hands share: the camera, its motion, and the times of the frames."""

    camera: Camera
    timestamps_ns: TimestampsNs
    settings: TrackerSettings
    motion: CameraMotion | None = None
    T_world_camera: CameraPoses | None = None
    views: Sequence[ViewHands] = ()
    skin: Mapping[Side, SkinDepth] = field(default_factory=dict)
    scale_sigma: float = 0.0
    assumed_sigma: float = 0.0

    def sightings(self, detections: Sequence[Detection | None], side: Side) -> Sightings | None:
        """Return the sightings of one hand, see ``sightings.collect``."""
        skin, calibration = self.skin.get(side), self.settings.palm_calibration
        return collect(detections, side, self.camera, self.views, skin, calibration)


def reconstruct_hands(
    detections: Mapping[Side, Sequence[Detection | None]],
    camera: Camera,
    timestamps_ns: TimestampsNs,
    settings: TrackerSettings,
    motion: CameraMotion | None = None,
    T_world_camera: CameraPoses | None = None,
    views: Sequence[ViewHands] = (),
    skin: Mapping[Side, SkinDepth] = MappingProxyType({}),
    scale_sigma: float = 0.0,
    assumed_sigma: float = 0.0,
) -> dict[Side, HandTrack]:
    """Return one hand or both of a person from a detection per frame; one shape, no penetration.

    Args:
        motion: the camera's turns; None: smooth and fill in the camera frame.
        T_world_camera: trusted poses of the camera, only with ``motion``.
        views: the same hands in other cameras.
        skin: depth readings in all T frames.
        scale_sigma: relative standard deviation of all distances, by how well the hand's size,
            depth and other cameras agree (``agreement``).
        assumed_sigma: by what is assumed of the pictures, of frames in which nothing measures it.
    """
    clip = _Clip(
        camera=camera,
        timestamps_ns=timestamps_ns,
        settings=settings,
        motion=motion,
        T_world_camera=T_world_camera,
        views=views,
        skin=skin,
        scale_sigma=scale_sigma,
        assumed_sigma=assumed_sigma,
    )
    tracks = {side: HandTrack.absent(len(timestamps_ns)) for side in detections}
    seen = {
        side: sightings
        for side, hand in detections.items()
        if (sightings := clip.sightings(hand, side)) is not None
    }

    if not seen:
        return tracks
    fitted, betas, length_sigma = _fit(seen, clip)

    for side, (sightings, pose) in fitted.items():
        rest = CapsuleHand().rest_keypoints(side, betas)
        _track_hand(tracks[side], sightings, pose, side, rest, clip)
        if tracks[side].observed.any():
            tracks[side].betas[:], tracks[side].length_sigma[:] = betas, length_sigma

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


def hands_alone(
    detections: Mapping[Side, Sequence[Detection | None]],
    camera: Camera,
    timestamps_ns: TimestampsNs,
    settings: TrackerSettings,
) -> dict[Side, HandAlone]:
    """Return the hands as one camera shows them: of the length given, else of the mean one."""
    clip, model = _Clip(camera, timestamps_ns, settings), CapsuleHand()
    mean = np.zeros(10)
    size = (settings.hand_length_m or model.hand_length(mean)) / model.hand_length(mean)

    hands = {}
    for side, hand in detections.items():
        if (sightings := clip.sightings(hand, side)) is None:
            continue
        sightings = sightings.rows(landmark_fit.spread_rows(len(sightings.frames)))
        rest = model.rest_keypoints(side, mean)
        evidence = sightings.evidence
        start = _start(evidence, sightings.pixels, side, rest, camera)
        pose = landmark_fit.refine(start, evidence, side, rest, try_relaxed=True)
        landmarks = pose.keypoints(side, rest) + _offsets(pose, evidence, side, rest)
        below = below_mesh(pose, side, mean, evidence.landmarks(side, rest))

        misfit = _misfit(landmarks, evidence)
        fits = misfit <= max(WITNESS_MISFIT, float(np.median(misfit)))
        hands[side] = HandAlone(
            frames=sightings.frames[fits],
            pixels=sightings.pixels[fits],
            landmarks=size * landmarks[fits],
            below=size * below[fits],
            misfit=misfit[fits],
        )
    return hands


def _track_hand(
    track: HandTrack, sightings: Sightings, pose: Pose, side: Side, rest: _Rest, clip: _Clip
) -> None:
    """Fit all frames of a hand of known shape that it explains, and write them into its track."""
    keypoints = pose.keypoints(side, rest) + _offsets(pose, sightings.evidence, side, rest)
    misfit = _misfit(keypoints, sightings.evidence)
    if not (keep := (misfit < MAX_MISFIT) & (pose.wrist[:, 2] > MIN_DEPTH_M / 2)).any():
        return
    if not keep.all():
        sightings, pose, misfit = sightings.rows(keep), pose.rows(keep), misfit[keep]

    sure = np.clip((sightings.confidence - 0.5) / 0.4, 0.2, 1.0)
    trust = sure / (1 + (misfit / HALF_TRUST_MISFIT) ** 2) ** 2
    doubtful = np.zeros(len(misfit), bool)
    if sightings.evidence.skin is not None:
        doubtful = (misfit > WITNESS_MISFIT) & sightings.evidence.metric
        pose, evidence = _by_depth_alone(doubtful, pose, sightings.evidence, trust, side, rest)
        sightings = replace(sightings, evidence=evidence)

    pose, sigma, turn_sigma = _fit_together(sightings, pose, trust, side, rest, clip)
    known = (turn_sigma < MAX_TURN_SIGMA_RAD) & (sightings.presence > MIN_PRESENCE) & ~doubtful
    certain = 1 / (1 + (turn_sigma / MAX_TURN_SIGMA_RAD) ** 2)

    frames = sightings.frames
    own = sightings.evidence.seen_in
    track.pixels[frames[own]], track.observed[frames] = sightings.pixels[own], True
    # A doubtful hand is observed, but not trusted.
    track.quality[frames] = np.where(known, sure * (1 - misfit / MAX_MISFIT) * certain, 0.0)
    track.sigma[frames] = sigma
    evidence = sightings.evidence
    track.evidence[frames] = evidence.seen_in
    for one in evidence.others:
        track.evidence[frames] |= 2 * one.evidence.seen_in
    agreeing = landmark_fit.agreeing_readings(pose, evidence, side, rest)
    track.evidence[frames] |= 4 * (agreeing >= LEAST_READINGS)
    _write_spans(track, pose, side, rest, clip)


def _misfit(keypoints: Float[np.ndarray, "N 21 3"], evidence: Evidence) -> Float[np.ndarray, "N"]:
    """Return the rms angle of fitted and seen landmarks over the palm's apparent length.

    Of several cameras that see the hand, their root mean square.
    """
    fitted = keypoints / np.linalg.norm(keypoints, axis=-1, keepdims=True)
    error = np.sum((fitted - rays(evidence.bearing)) ** 2, axis=-1)
    misfit = np.sqrt(error.mean(1)) / evidence.scale
    if not evidence.others:
        return misfit
    seen, squares = evidence.seen_in.astype(float), evidence.seen_in * misfit**2
    for one in evidence.others:
        in_view = _misfit(apply(one.T_view_camera, keypoints), one.evidence)
        seen, squares = seen + one.evidence.seen_in, squares + one.evidence.seen_in * in_view**2
    return np.sqrt(squares / seen)


def _offsets(
    pose: Pose, evidence: Evidence, side: Side, rest: _Rest
) -> Float[np.ndarray, "N 21 3"]:
    """Return the offsets of landmarks from joints, camera axes."""
    return evidence.landmarks(side, rest) @ np.swapaxes(pose.global_orient, 1, 2)


def _fit(
    seen: Mapping[Side, Sightings], clip: _Clip
) -> tuple[dict[Side, tuple[Sightings, Pose]], Float[np.ndarray, "10"], float]:
    """Fit poses with the mean hand, one shape to all, then poses with that.

    Returns sightings with poses, betas, and the standard deviation of the hand's length, NaN if it
    is not measured.
    """
    model, poses, length_m = CapsuleHand(), {}, clip.settings.hand_length_m
    for side, sightings in seen.items():
        rest = model.rest_keypoints(side, np.zeros(10))
        first, *others = _starts(sightings, side, rest, clip)
        poses[side] = landmark_fit.refine(
            first, sightings.evidence, side, rest, try_relaxed=True, others=others
        )

    hands = [(poses[side], sightings.evidence, side) for side, sightings in seen.items()]
    betas = landmark_fit.fit_shape(hands, length_m)
    fitted, hands = {}, []
    for side, sightings in seen.items():
        rest, pose = model.rest_keypoints(side, betas), poses[side]
        evidence = sightings.evidence.with_skin_of(pose, side, betas)
        measured = evidence.metric.any()
        others, iterations = ([reversed_palm(pose)], 8) if measured else ([], 3)
        pose = landmark_fit.refine(pose, evidence, side, rest, iterations, others=others)
        fitted[side] = replace(sightings, evidence=evidence), pose
        if measured and length_m is None:
            hands.append((pose, evidence, side))
    return fitted, betas, landmark_fit.length_sigma(hands, betas) if hands else np.nan


def _starts(sightings: Sightings, side: Side, rest: _Rest, clip: _Clip) -> list[Pose]:
    """Return poses to start from, one per camera; its first part is the best of any camera."""
    evidence = sightings.evidence
    by_camera: list[tuple[np.ndarray, Pose]] = []
    if evidence.seen_in.any():
        start = _start(evidence, sightings.pixels, side, rest, clip.camera)
        by_camera.append((evidence.seen_in, start))
    for one, (camera, pixels) in zip(evidence.others, sightings.others, strict=True):
        start = _start(one.evidence, pixels, side, rest, camera)
        by_camera.append((one.evidence.seen_in, start.moved(inverse(one.T_view_camera))))

    # Where a camera does not see the hand, the first one that does gives the start.
    starts: list[Pose] = []
    for _, start in by_camera:
        unseen = ~by_camera[len(starts)][0]
        for seen, other in reversed(by_camera):
            start = other.where(seen & unseen, start)
        starts.append(start)
    if evidence.skin is not None:
        starts = [_at_depth(start, evidence, side, rest) for start in starts]
    if evidence.metric.any():
        starts += [reversed_palm(start) for start in starts]
    return starts


def _start(evidence: Evidence, pixels: _Pixels, side: Side, rest: _Rest, camera: Camera) -> Pose:
    """Return poses from one camera's landmarks alone, in its frame."""
    pose = landmark_fit.articulate(replace(evidence, seen=None), side, rest)
    return _place(pose, evidence, pixels, side, rest, camera)


def _place(
    pose: Pose, evidence: Evidence, pixels: _Pixels, side: Side, rest: _Rest, camera: Camera
) -> Pose:
    """Place articulated hands, with wrists at the origin, before the camera."""
    canonical = pose.keypoints(side, rest) + _offsets(pose, evidence, side, rest)
    bearing, weights = evidence.bearing, KEYPOINT_WEIGHTS
    depth = pnp.weak_perspective_depth(canonical, pixels, camera)
    depth = np.maximum(depth, MIN_DEPTH_M)
    wrist = pnp.mixed_pnp(canonical, depth, pixels, camera).translation
    turn, wrist = pnp.rigid_pnp(canonical, bearing, wrist, np.tile(weights, (len(wrist), 1)))
    # The solver turns about the wrist's landmark.
    off = canonical[:, 0]
    wrist = wrist + off - (turn @ off[..., None])[..., 0]
    return Pose(turn @ pose.global_orient, pose.angles, wrist)


def _by_depth_alone(
    chosen: Bool[np.ndarray, "N"],
    pose: Pose,
    evidence: Evidence,
    trust: _Trust,
    side: Side,
    rest: _Rest,
) -> tuple[Pose, Evidence]:
    """Let depth place hands whose landmarks are somewhere on them; it keeps its own trust."""
    assert evidence.skin is not None
    pose = _at_depth(pose, evidence, side, rest).where(chosen, pose)
    coarse = np.hypot(evidence.skin.sigma, COARSE_SKIN_M)
    sigma = np.where(chosen[:, None], coarse, evidence.skin.sigma)
    weight = np.where(chosen, 1 / (COARSE_SAME * trust), 1.0)
    return pose, replace(evidence, skin=replace(evidence.skin, sigma=sigma, weight=weight))


def _at_depth(pose: Pose, evidence: Evidence, side: Side, rest: _Rest) -> Pose:
    """Move hands along their rays to the median depth of their readings."""
    assert evidence.skin is not None
    points = pose.keypoints(side, rest) + _offsets(pose, evidence, side, rest)
    below = thickness(pose.global_orient, side, rest)
    deep = np.where(np.isfinite(evidence.skin.sigma), evidence.skin.z + below, np.nan)
    known = np.isfinite(deep).sum(1) >= LEAST_READINGS
    further = np.nan_to_num(deep - skin_points(points)[..., 2], nan=np.inf)
    # The median of the known ones: infinite ones are last in order.
    count = np.maximum(np.isfinite(further).sum(1), 1)
    middle = np.sort(further, axis=1)[np.arange(len(further)), (count - 1) // 2]
    share = np.where(known, 1 + middle / pose.wrist[:, 2], 1.0)
    return Pose(pose.global_orient, pose.angles, pose.wrist * np.maximum(share, 0.3)[:, None])


def _fit_together(
    sightings: Sightings, pose: Pose, trust: _Trust, side: Side, rest: _Rest, clip: _Clip
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
        for begin in range(0, len(in_span), FIT_SIGHTINGS):
            before = min(begin, FIT_OVERLAP)
            rows = in_span[begin - before : begin + FIT_SIGHTINGS + FIT_OVERLAP]
            frames = sightings.frames[rows]
            turns = np.tile(np.eye(3), (len(frames), 1, 1))
            if motion is not None:
                part = motion.part(int(frames[0]), int(frames[-1]) + 1)
                turns = room_turns(part)[frames - frames[0]]
            seconds = (timestamps_ns[frames] - timestamps_ns[frames[0]]) * 1e-9

            start, evidence = pose.rows(rows), sightings.evidence.rows(rows)
            half_gain = METRIC_HALF_GAIN_HZ if evidence.metric.mean() > 0.5 else HALF_GAIN_HZ
            fit = fit_clip(start, evidence, side, rest, seconds, turns, trust[rows], half_gain)
            one_crop = sightings.one_crop[rows]
            fit = widened(fit, one_crop)
            apart = disagreement(evidence, one_crop)

            own = np.arange(before, min(before + FIT_SIGHTINGS, len(rows)))
            poses.append(fit.pose.rows(own))
            agreeing = landmark_fit.agreeing_readings(fit.pose, evidence, side, rest)
            metric = (evidence.cameras > 1) | (agreeing >= LEAST_READINGS)
            sigma = joint_sigma(fit, side, rest, apart, known_size, metric)
            scale = np.hypot(clip.scale_sigma, np.where(metric, 0.0, clip.assumed_sigma))
            distance = np.linalg.norm(fit.pose.wrist, axis=1)
            sigma[..., 1] = np.hypot(sigma[..., 1], (scale * distance)[:, None])
            sigmas.append(sigma[own])
            turn_sigmas.append(turn_sigma(fit)[own])

    columns = zip(*((part.global_orient, part.angles, part.wrist) for part in poses), strict=True)
    joined = (np.concatenate(column) for column in columns)
    return Pose(*joined), np.concatenate(sigmas), np.concatenate(turn_sigmas)


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
        metric = bool((track.evidence[frames[known]] > 2).mean() > 0.5)
        smoothed, filled = smooth_and_fill(
            pose.rows(row[frames]), weights, seconds, turned, world, metric
        )

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
