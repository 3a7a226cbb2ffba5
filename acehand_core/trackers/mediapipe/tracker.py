"""The CPU tracker: MediaPipe's landmarks, linked, refined and fitted over the whole clip.

The landmark network's answers for turned, mirrored and scaled crops differ little where it is sure
and a lot where it guesses: their mean is better than any of them, and their covariance measures the
certainty of a landmark. Hands are followed in crops that are mirrored in every other frame; where
the frames around a hand confirm it, they are its second look, and elsewhere it gets other crops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.geometry.frames import inverse
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.evidence import SkinDepth
from acehand_core.motion import CameraMotion, FrameSource, HandModelName, HandMotion, Recording
from acehand_core.processes import one_blas_thread
from acehand_core.provenance import LENS, Agreement, Provenance
from acehand_core.recordings.camera_presets import presets_for
from acehand_core.recordings.selection import frames_at
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import redetection, search
from acehand_core.trackers.mediapipe.agreement import DEPTH, of_depth, of_view
from acehand_core.trackers.mediapipe.crops import Crop, crop_of
from acehand_core.trackers.mediapipe.linking import (
    Slots,
    Turned,
    assign_slots,
    by_turn,
    frames_with_others,
    is_worn,
    landmarks_of,
    side_by_view,
    unturned,
)
from acehand_core.trackers.mediapipe.networks import (
    VERSION,
    HandNetworks,
    Look,
    hand_networks,
    naming,
)
from acehand_core.trackers.mediapipe.reconstruct import (
    MAX_FILL_S,
    HandTrack,
    hands_alone,
    reconstruct_hands,
)
from acehand_core.trackers.mediapipe.redetection import SegmentCache, in_segments
from acehand_core.trackers.mediapipe.rig import ViewTrack, estimated_offset, same_hands
from acehand_core.trackers.mediapipe.search import Detection
from acehand_core.trackers.mediapipe.sightings import ViewHands
from acehand_core.trackers.mediapipe.uncertainty import SIZE_SIGMA
from acehand_core.trackers.skin_depth import outline_share, skin_depth
from acehand_core.types import SIDES, ImageRgb, Progress, Quality, Side, no_progress

_Flags = Bool[np.ndarray, "T"]

#: Frames that show whether a camera is worn.
WORN_FRAMES = 300
_OTHERS = (
    "more than two hands are in view in {} of {} frames: those most like the wearer's are followed "
    "(near, with forearms from below), the others left out"
)

#: Field of view of a wide lens.
WIDE_RAD = np.radians(80.0)
#: Relative standard deviation of an unknown camera's focal length, assumed to be 60 degrees wide:
#: the rms of the logarithm for the pinholes of camera_presets.yaml and those of ``stereo_hand``.
LENS_SIGMA = 0.35
#: Size in standard deviations of adults from which a measured hand is doubted.
UNUSUAL_SIZE = 2.5
#: Least presence in a crop, and distance in hand sizes of a mean that is of another hand.
LEAST_PRESENCE, SAME = 0.3, 0.75

#: Distance (``search.apart``) from the frames around up to which they confirm a hand, and of two
#: looks up to which the others are skipped.
CONFIRMED: dict[Quality, float] = {"fast": np.inf, "balanced": 0.1, "best": 0.0}
AGREED: dict[Quality, float] = {"fast": 0.0, "balanced": 0.05, "best": 0.0}


@dataclass(frozen=True, slots=True)
class CropChange:
    """The difference of a crop from the upright one around a hand: turned, scaled, mirrored."""

    degrees: float | int = 0
    scale: float = 1.0
    mirrored: bool = False

    def of(self, crop: Crop) -> Crop:
        """Return the changed crop."""
        angle = crop.angle + np.radians(self.degrees)
        mirrored = crop.mirrored != self.mirrored
        return replace(crop, side=crop.side * self.scale, angle=angle, mirrored=mirrored)


#: Crops of the size in which MediaPipe follows hands. Tighter ones would exclude near hands, and
#: move wrists out: by 3 % of the hand's length at 0.9 of the side. Half are mirrored, for equal
#: results of a hand and its mirror image.
CROP_CHANGES: dict[Quality, tuple[CropChange, ...]] = {
    "fast": (),
    # The crop in which a hand was found counts without another look.
    "balanced": (CropChange(mirrored=True), CropChange(20), CropChange(-20, mirrored=True)),
    "best": tuple(
        CropChange(degrees, scale, mirrored)
        for mirrored in (False, True)
        for degrees, scale in ((0, 0.93), (0, 1.07), (12, 1.0), (-12, 1.0), (24, 1.0), (-24, 1.0))
    ),
}


@dataclass(frozen=True, slots=True)
class _Measurements:
    """Measurements by depth and other cameras, as ``reconstruct_hands`` takes them."""

    views: Sequence[ViewHands] = ()
    skin: Mapping[Side, SkinDepth] = field(default_factory=dict)
    scale_sigma: float = 0.0
    agreement: tuple[Agreement, ...] = ()
    notes: tuple[str, ...] = ()


class MediaPipeTracker:
    """Tracker of both hands of a video on a CPU, with MediaPipe's networks."""

    name = "mediapipe"
    placed = True
    hand_model: HandModelName = "acehand"

    def __init__(self, settings: TrackerSettings) -> None:
        self._settings = settings

    @one_blas_thread()
    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return both hands of the recording (see ``Tracker.track``)."""
        if recording.frames is None:
            raise InputError(
                f"{recording.source}: the mediapipe tracker needs a video; this input has none."
            )
        camera = recording.camera or Camera.nominal(recording.width, recording.height)
        slots, motion, note = self._detect(recording, camera, progress)
        slots = self._refined(recording, camera, slots, progress)
        if note:
            recording = replace(recording, notes=(*recording.notes, note))
        slots, measured = self._measurements(recording, camera, slots, progress)

        by_side = reconstruct_hands(
            self._by_side(slots),
            camera,
            recording.timestamps_ns,
            self._settings,
            motion=motion,
            T_world_camera=recording.T_world_camera,
            views=measured.views,
            skin=measured.skin,
            scale_sigma=measured.scale_sigma,
            assumed_sigma=float(np.hypot.reduce([0.0, *_assumed(recording).values()])),
        )
        tracks = [by_side[side] for side in SIDES]
        by_depth = int(np.any([track.evidence & 4 for track in tracks], axis=0).sum())
        agreement = tuple(
            replace(one, used=min(by_depth, one.frames)) if one.source == DEPTH else one
            for one in measured.agreement
        )
        recording = replace(recording, notes=(*recording.notes, *measured.notes))
        return self._assemble(recording, camera, tracks, motion, agreement)

    def _measurements(
        self, recording: Recording, camera: Camera, slots: Slots, progress: Progress
    ) -> tuple[Slots, _Measurements]:
        """Return the hands, and the measurements by depth and cameras that agree with them."""
        if recording.depth is None and not recording.views:
            return slots, _Measurements()
        times, known_size = recording.timestamps_ns, self._settings.hand_length_m is not None
        alone = hands_alone(self._by_side(slots), camera, times, self._settings)

        agreement, sigmas, skin = [], [0.0], dict[Side, SkinDepth]()
        if recording.depth is not None:
            read = skin_depth(recording.depth, camera, landmarks_of(slots), times, progress)
            skin = dict(zip(SIDES, read, strict=True))
            outlines = [
                outline_share(recording.depth, camera, hand.pixels, times[hand.frames])
                for hand in alone.values()
            ]
            one, sigma = of_depth(alone, skin, outlines, known_size)
            agreement, sigmas = [one], [sigma]
            skin = {} if one.doubt else skin

        tracked, notes = self._view_tracks(recording, camera, slots, progress)
        kept = []
        for name, view in tracked.items():
            one, sigma = of_view(name, camera, slots, times, view, alone, known_size)
            agreement, sigmas = [*agreement, one], [*sigmas, sigma]
            if not one.doubt:
                kept.append(name)
        if not kept:
            return slots, _Measurements((), skin, max(sigmas), tuple(agreement), tuple(notes))

        slots, others = same_hands(camera, slots, times, [tracked[name] for name in kept])
        views, own = [], self._by_side(slots)
        for name, hands in zip(kept, others, strict=True):
            view, by_side = tracked[name], self._by_side(hands)
            views.append(ViewHands(view.camera, inverse(view.T_camera_view), by_side))
            pairs = (zip(own[side], by_side[side], strict=True) for side in SIDES)
            same = [[a is not None and b is not None for a, b in pair] for pair in pairs]
            used = int(np.any(same, axis=0).sum())
            agreement = [
                replace(one, used=min(used, one.frames)) if one.source == name else one
                for one in agreement
            ]
        return slots, _Measurements(views, skin, max(sigmas), tuple(agreement), tuple(notes))

    def _by_side(self, slots: Slots) -> dict[Side, list[Detection | None]]:
        enabled = [side for side in SIDES if self._settings.hands in ("both", side)]
        return {
            side: [pair[slot] if side in enabled else None for pair in slots]
            for slot, side in enumerate(SIDES)
        }

    def _refined(
        self, recording: Recording, camera: Camera, slots: Slots, progress: Progress
    ) -> Slots:
        assert recording.frames is not None
        lens, quality = wide(camera), self._settings.quality
        work_dir, key = self._work_dir(recording), cache_key(recording, lens)
        return refine(recording.frames, slots, quality, progress, work_dir, key, lens)

    def _work_dir(self, recording: Recording) -> Path | None:
        """Return the folder of partial results; None without a hash that identifies them."""
        return None if recording.sha256 is None else self._settings.work_dir

    def _view_tracks(
        self, recording: Recording, camera: Camera, slots: Slots, progress: Progress
    ) -> tuple[dict[str, ViewTrack], list[str]]:
        """Return the hands that each other camera sees alone, and notes on their clocks."""
        still = MediaPipeTracker(replace(self._settings, camera_motion="off"))
        tracked, notes = dict[str, ViewTrack](), []
        for view in recording.views:
            own, lens = view.recording, view.recording.camera
            assert lens is not None
            # Partial results are kept by file: several views may be of one.
            processing = {**own.processing, "view": view.name}
            own = replace(own, processing=processing, sha256=own.sha256 or recording.sha256)
            seen, _, _ = still._detect(own, lens, progress)
            seen = still._refined(own, lens, seen, progress)
            one = ViewTrack(lens, view.T_camera_view, own.timestamps_ns, seen)
            late = None
            if not view.synchronised:
                late = estimated_offset(camera, slots, recording.timestamps_ns, one)
            if late is not None:
                one = replace(one, timestamps_ns=one.timestamps_ns - round(late * 1e9))
                notes.append(
                    f"{view.name}: its clock is taken to be {late:+.3f} s late, as the hands show; "
                    f"`view_offset={view.name}={late:.3f}` states it, for kept pictures too"
                )
            tracked[view.name] = one
        return tracked, notes

    def _detect(
        self, recording: Recording, camera: Camera, progress: Progress
    ) -> tuple[Slots, CameraMotion | None, str]:
        """Return the hands of every frame after a second look, the camera's turns, and a note."""
        assert recording.frames is not None
        quality, fps = self._settings.quality, recording.fps
        lens = wide(camera)
        key = {**cache_key(recording, lens), "quality": quality}
        cache = SegmentCache(self._work_dir(recording), key)
        detections = redetection.forward_pass(recording.frames, fps, progress, cache, quality, lens)
        slots = assign_slots(detections, fps=fps)
        unclear = side_by_view(detections, fps)
        motion = self._camera_motion(recording, camera, slots, unclear, progress)
        turned: Turned = unturned
        worn = False
        if motion is not None:
            turned, worn = by_turn(camera, motion), is_worn(motion)
            slots = assign_slots(detections, turned, worn, fps)

        again = redetection.look_again(recording.frames, detections, slots, progress, turned, lens)
        for frame, detection in again:
            detections[frame].append(detection)
        slots = assign_slots(detections, turned, worn, fps)
        others = frames_with_others(detections, slots)
        return slots, motion, _OTHERS.format(others, len(recording)) if others else ""

    def _camera_motion(
        self,
        recording: Recording,
        camera: Camera,
        slots: Slots,
        unclear: _Flags,
        progress: Progress,
    ) -> CameraMotion | None:
        """Return the camera's turns; None if unknown, unwanted or not needed.

        ``unclear``: frames in which a hand's side depends on whether the camera is worn.
        """
        if recording.T_world_camera is not None:
            return CameraMotion.from_poses(recording.T_world_camera)
        if self._settings.camera_motion == "off":
            return None

        # Frames without a gap do not depend on it.
        wanted = unclear & (np.cumsum(unclear) <= WORN_FRAMES)
        for gap in redetection.find_gaps(slots):
            last, first = recording.timestamps_ns[[gap.stop - 1, gap.start]]
            # A second look may shorten a gap.
            short = (last - first) * 1e-9 <= 2 * MAX_FILL_S
            if short and gap.before is not None and gap.after is not None:
                wanted[gap.start : gap.stop] = True
        if not wanted.any():
            return None
        from acehand_core.camera.turns import recorded_rotations

        work_dir, landmarks = self._work_dir(recording), landmarks_of(slots)
        return recorded_rotations(recording, camera, landmarks, wanted, work_dir, progress)

    def _assemble(
        self,
        recording: Recording,
        camera: Camera,
        tracks: list[HandTrack],
        motion: CameraMotion | None,
        agreement: tuple[Agreement, ...],
    ) -> HandMotion:
        def both(name: str) -> np.ndarray:
            return np.stack([getattr(track, name) for track in tracks], axis=1)

        joints, observed, filled = both("joints"), both("observed"), both("filled")
        known = observed | filled
        inside = camera.contains(camera.project(joints)).mean(-1)
        lost_turns = 0
        if motion is not None and recording.T_world_camera is None:
            lost_turns = int((filled.any(axis=1) & motion.broken).sum())

        return HandMotion(
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            presence=known.astype(float),
            visible=np.where(known, inside, 0.0),
            quality=both("quality"),
            observed=observed,
            filled=filled,
            global_orient=both("global_orient"),
            hand_pose=both("hand_pose"),
            betas=np.stack([track.betas for track in tracks]),
            translation=both("translation"),
            joints_camera=joints,
            joints_image=both("pixels"),
            hand_model="acehand",
            camera=camera,
            T_world_camera=recording.T_world_camera,
            provenance=self._provenance(recording, camera, lost_turns, tracks, agreement),
            fill_frame=None if motion is None else both("fill_frame"),
            joint_sigma=both("sigma"),
            evidence=both("evidence") if recording.views or recording.depth else None,
        )

    def _provenance(
        self,
        recording: Recording,
        camera: Camera,
        lost_turns: int = 0,
        tracks: Sequence[HandTrack] = (),
        agreement: tuple[Agreement, ...] = (),
    ) -> Provenance:
        settings, notes = self._settings, list(recording.notes)
        assumed = _assumed(recording)
        posed = recording.T_world_camera is not None
        if recording.camera is None:
            notes.append(
                "no intrinsics given: a pinhole of 60 degrees across the longer side is assumed "
                f"(fx = fy = {camera.fx:.1f} px); distances scale with it. Head-mounted cameras "
                "see more: give `camera`, or `camera_preset` (for pictures of this shape "
                f"{', '.join(presets_for(recording.width, recording.height))}), or try "
                "`camera_estimate`"
            )

        measured = [track for track in tracks if np.isfinite(track.length_sigma[0])]
        if measured:
            length = CapsuleHand().hand_length(measured[0].betas)
            usual = abs(measured[0].betas[0]) < UNUSUAL_SIZE
            notes.append(
                f"hand length measured as {1e3 * length:.0f} mm, standard deviation "
                f"{1e3 * measured[0].length_sigma[0]:.0f} mm"
                + ("" if usual else ": unusual for an adult; is the unit of rig or depth right?")
            )
        elif settings.hand_length_m is None:
            assumed["hand length"] = SIZE_SIGMA
            notes.append(
                "no hand length given: hands have the length of a mean adult hand; "
                "distances scale with it"
            )

        if lost_turns:
            notes.append(
                f"the camera's turn is unknown in {lost_turns} filled frames (cuts, blur, nothing "
                "to see) and assumed to be none"
            )

        return Provenance(
            source=recording.name,
            source_sha256=recording.sha256,
            tracker=self.name,
            weights=f"mediapipe {VERSION}: palm_detection_full, hand_landmark_full",
            licenses=("mediapipe and its models: Apache-2.0",),
            settings={
                "hands": settings.hands,
                "hand_length_m": settings.hand_length_m,
                "placement": "rigid",
                "palm_calibration": settings.palm_calibration,
                "quality": settings.quality,
                "camera_motion": "poses" if posed else settings.camera_motion,
                **({"views": [view.name for view in recording.views]} if recording.views else {}),
                **({"depth": True} if recording.depth else {}),
            },
            notes=tuple(notes),
            assumed=assumed,
            agreement=agreement,
        )


def _assumed(recording: Recording) -> dict[str, float]:
    """Return what is assumed of a recording, see ``Provenance.assumed``."""
    lens = {LENS: LENS_SIGMA} if recording.camera is None else {}
    return {**recording.assumed, **lens}


def wide(camera: Camera) -> Camera | None:
    """Return the camera if its crops lie along rays, as for a wide lens; else None."""
    return camera if np.nanmax(camera.field_of_view()) > WIDE_RAD else None


def cache_key(recording: Recording, lens: Camera | None = None) -> dict[str, Any]:
    """Return all that the detections of the forward pass depend on."""
    times = recording.timestamps_ns
    return {
        "source": recording.sha256,
        "processing": dict(recording.processing),
        "frames": [len(times), int(times[0]), int(times[-1])],
        "size": [recording.width, recording.height],
        "mediapipe": VERSION,
        "runtime": "openvino",
        "mirrored": [redetection.is_mirrored(frame) for frame in (0, 1)],
        # All their settings are constants of this module.
        "settings": {
            search.__name__: {name: value for name, value in vars(search).items() if name.isupper()}
        },
        **({"lens": lens.to_json()} if lens else {}),
    }


def refine(
    frames: FrameSource,
    slots: Slots,
    quality: Quality,
    progress: Progress,
    work_dir: Path | None,
    key: dict[str, Any],
    lens: Camera | None = None,
) -> Slots:
    """Return the hands of every frame with landmarks merged over several looks.

    A hand that fewer than two looks confirm stays as it was, without covariance. ``work_dir`` and
    ``key`` (of the pictures) are those of ``SegmentCache``.
    """
    networks = hand_networks().through(lens)
    refined, doubtful = [list(pair) for pair in slots], dict[int, dict[int, Detection]]()
    places = hashlib.sha256()
    for frame, pair in enumerate(slots):
        for slot, hand in enumerate(pair):
            if hand is None:
                continue
            around = _around(slots, frame, slot)
            if around is not None and search.apart(hand, around) < CONFIRMED[quality]:
                refined[frame][slot] = merged([_look(hand), around], hand)
            elif CROP_CHANGES[quality]:
                doubtful.setdefault(frame, {})[slot] = hand
                places.update(bytes(f"{frame} {slot} ", "ascii") + hand.pixels.tobytes())
    if not doubtful:
        return refined

    wanted = list(doubtful)

    def look(number: int, image: ImageRgb) -> list[Detection]:
        frame = wanted[number]
        mirrored, hands = redetection.is_mirrored(frame), doubtful[frame].values()
        with naming(frame):
            return [_refined(networks, image, hand, quality, mirrored) for hand in hands]

    crops = [[v.degrees, v.scale, v.mirrored] for v in CROP_CHANGES[quality]]
    own = {"crops": crops, "agreed": AGREED[quality], "hands": places.hexdigest()}
    cache = SegmentCache(work_dir, {**key, **own})
    pictures = frames_at(frames, np.array(wanted))
    seen = in_segments(pictures, lambda: look, "refine", progress, cache, least=2)
    for (frame, hands), merged_hands in zip(doubtful.items(), seen, strict=True):
        for slot, hand in zip(hands, merged_hands, strict=True):
            refined[frame][slot] = hand
    return refined


def _around(slots: Slots, frame: int, slot: int) -> Look | None:
    """Return the mean of a hand's looks one frame before and after; None without."""
    if not 0 < frame < len(slots) - 1:
        return None
    before, after = slots[frame - 1][slot], slots[frame + 1][slot]
    if before is None or after is None:
        return None
    names = ("pixels", "world", "p_right", "presence")
    return Look(*((getattr(before, name) + getattr(after, name)) / 2 for name in names))


def _look(hand: Detection) -> Look:
    return Look(hand.pixels, hand.world, hand.p_right, hand.presence)


def _refined(
    networks: HandNetworks, image: ImageRgb, hand: Detection, quality: Quality, mirrored: bool
) -> Detection:
    """Return a hand by other crops; ``mirrored``: it was seen in a mirrored one."""
    crop = replace(crop_of(hand.pixels, networks.lens), mirrored=mirrored)
    looks = [_look(hand)] if quality == "balanced" else []
    for variant in CROP_CHANGES[quality]:
        if len(looks) == 2 and search.apart(*looks) < AGREED[quality]:
            break
        look = networks.look(image, variant.of(crop))
        if look.presence > LEAST_PRESENCE:
            looks.append(look)
    if len(looks) < 2:
        return hand
    mean = merged(looks, hand)
    return mean if search.apart(mean, hand) < SAME else hand


def merged(looks: Sequence[Look], first: Detection) -> Detection:
    """Return the means of looks, with less weight for outliers; ``first`` names hand and pass."""
    pixels = np.stack([look.pixels for look in looks])
    world = np.stack([look.world for look in looks])
    presence = np.array([look.presence for look in looks])

    # Weights by distance from the median, in median distances over all landmarks.
    weights = np.repeat(presence[:, None], 21, axis=1)
    off = np.linalg.norm(pixels - np.median(pixels, axis=0), axis=-1)
    scale = max(float(np.median(off)), 1e-3 * first.size)
    weights = weights / (1 + (off / (2 * scale)) ** 2)
    weights = weights / weights.sum(0)

    mean = np.einsum("kj,kjc->jc", weights, pixels)
    apart = pixels - mean
    # Weighted sample covariance, unbiased for weights of one sum.
    unbiased = 1 - (weights**2).sum(0)
    covariance = np.einsum("kj,kjc,kjd->jcd", weights, apart, apart) / unbiased[:, None, None]
    return replace(
        first,
        pixels=mean,
        world=np.einsum("kj,kjc->jc", weights, world),
        p_right=float(np.average([look.p_right for look in looks], weights=presence)),
        presence=float(presence.mean()),
        covariance=covariance,
    )
