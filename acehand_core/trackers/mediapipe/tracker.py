"""The CPU tracker: MediaPipe's landmarks, linked, refined and fitted over the whole clip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool

from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion, HandModelName, HandMotion, Recording
from acehand_core.processes import one_blas_thread
from acehand_core.provenance import Provenance
from acehand_core.recordings.camera_presets import presets_for
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import redetection, search
from acehand_core.trackers.mediapipe.linking import (
    Slots,
    Turned,
    assign_slots,
    by_turn,
    frames_with_others,
    is_worn,
    side_by_view,
    unturned,
)
from acehand_core.trackers.mediapipe.networks import VERSION
from acehand_core.trackers.mediapipe.reconstruct import MAX_FILL_S, HandTrack, reconstruct_hands
from acehand_core.trackers.mediapipe.redetection import SegmentCache
from acehand_core.trackers.mediapipe.refinement import refine
from acehand_core.trackers.mediapipe.search import Detection
from acehand_core.types import SIDES, Progress, Side, no_progress

_Flags = Bool[np.ndarray, "T"]

#: Frames that show whether a camera is worn.
WORN_FRAMES = 300
_OTHERS = (
    "more than two hands are in view in {} of {} frames: those most like the wearer's are followed "
    "(near, with forearms from below), the others left out"
)


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
        quality, work_dir = self._settings.quality, self._settings.work_dir
        key = cache_key(recording)
        slots = refine(recording.frames, slots, quality, progress, work_dir, key)
        if note:
            recording = replace(recording, notes=(*recording.notes, note))
        enabled = [side for side in SIDES if self._settings.hands in ("both", side)]
        detections: dict[Side, list[Detection | None]] = {
            side: [pair[slot] if side in enabled else None for pair in slots]
            for slot, side in enumerate(SIDES)
        }
        times, poses = recording.timestamps_ns, recording.T_world_camera
        found = reconstruct_hands(detections, camera, times, self._settings, motion, poses)
        return self._assemble(recording, camera, [found[side] for side in SIDES], motion)

    def _detect(
        self, recording: Recording, camera: Camera, progress: Progress
    ) -> tuple[Slots, CameraMotion | None, str]:
        """Return the hands of every frame after a second look, the camera's turns, and a note."""
        assert recording.frames is not None
        quality, fps = self._settings.quality, recording.fps
        key = {**cache_key(recording), "quality": quality}
        cache = SegmentCache(self._settings.work_dir, key)
        detections = redetection.forward_pass(recording.frames, fps, progress, cache, quality)
        slots = assign_slots(detections, fps=fps)
        unclear = side_by_view(detections, fps)
        motion = self._camera_motion(recording, camera, slots, unclear, progress)
        turned: Turned = unturned
        worn = False
        if motion is not None:
            turned, worn = by_turn(camera, motion), is_worn(motion)
            slots = assign_slots(detections, turned, worn, fps)

        again = redetection.look_again(recording.frames, detections, slots, progress, turned)
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
        landmarks = np.full((len(recording), len(SIDES), 21, 2), np.nan)
        for frame, pair in enumerate(slots):
            for slot, hand in enumerate(pair):
                if hand is not None:
                    landmarks[frame, slot] = hand.pixels
        from acehand_core.camera.recorded import recorded_rotations

        work_dir = self._settings.work_dir
        return recorded_rotations(recording, camera, landmarks, wanted, work_dir, progress)

    def _assemble(
        self,
        recording: Recording,
        camera: Camera,
        tracks: list[HandTrack],
        motion: CameraMotion | None,
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
            provenance=self._provenance(recording, camera, lost_turns),
            fill_frame=None if motion is None else both("fill_frame"),
            joint_sigma=both("sigma"),
        )

    def _provenance(self, recording: Recording, camera: Camera, lost_turns: int = 0) -> Provenance:
        settings, notes = self._settings, list(recording.notes)
        posed = recording.T_world_camera is not None
        if recording.camera is None:
            notes.append(
                "no intrinsics given: a pinhole of 60 degrees across the longer side is assumed "
                f"(fx = fy = {camera.fx:.1f} px); distances scale with it. Head-mounted cameras "
                "see more: give --camera, or --camera-preset (for pictures of this shape "
                f"{', '.join(presets_for(recording.width, recording.height))}), or try "
                "--camera-estimate"
            )

        if settings.hand_length_m is None:
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
            },
            notes=tuple(notes),
        )


def cache_key(recording: Recording) -> dict[str, Any]:
    """Return all that the first look's detections depend on."""
    times = recording.timestamps_ns
    return {
        "source": recording.sha256,
        "processing": dict(recording.processing),
        "frames": [len(times), int(times[0]), int(times[-1])],
        "size": [recording.width, recording.height],
        "mediapipe": VERSION,
        "runtime": "openvino",
        # All their settings are constants of this module.
        "settings": {
            search.__name__: {name: value for name, value in vars(search).items() if name.isupper()}
        },
    }
