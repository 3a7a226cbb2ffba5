"""The CPU tracker: MediaPipe's landmarks, and everything that knowing the whole clip allows."""

from __future__ import annotations

from typing import Any

import numpy as np

from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion, HandModelName, HandMotion, Recording
from acehand_core.provenance import Provenance
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import detector, redetection
from acehand_core.trackers.mediapipe.detector import SegmentCache
from acehand_core.trackers.mediapipe.reconstruct import HandTrack, reconstruct
from acehand_core.trackers.mediapipe.redetection import Slots, assign_slots
from acehand_core.types import SIDES, Progress, no_progress

VERSION = "0.10.14"


class MediaPipeTracker:
    """Tracks both hands of a video on a CPU, without weights of ours."""

    name = "mediapipe"
    placed = True
    hand_model: HandModelName = "acehand"

    def __init__(self, settings: TrackerSettings) -> None:
        self._settings = settings

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return both hands of the recording (see ``Tracker.track``)."""
        if recording.frames is None:
            raise InputError(
                f"{recording.source}: the mediapipe tracker needs a video; this input has none."
            )
        camera = recording.camera or Camera.nominal(recording.width, recording.height)
        slots = self._detect(recording, progress)
        poses = recording.T_world_camera
        motion = None if poses is None else CameraMotion.from_poses(poses)
        tracks = []
        for slot, side in enumerate(SIDES):
            enabled = self._settings.hands in ("both", side)
            detections = [pair[slot] if enabled else None for pair in slots]
            tracks.append(
                reconstruct(
                    detections, side, camera, recording.timestamps_ns, self._settings, motion, poses
                )
            )
        return self._assemble(recording, camera, tracks, turned=motion is not None)

    def _detect(self, recording: Recording, progress: Progress) -> Slots:
        """Look at the recording, then again where a hand was lost."""
        assert recording.frames is not None
        cache = SegmentCache(self._settings.work_dir, cache_key(recording))
        detections = redetection.forward_pass(recording.frames, progress, cache)
        slots = assign_slots(detections)
        gaps = redetection.find_gaps(slots)
        if not gaps:
            return slots
        for frame, detection in redetection.look_again(
            recording.frames, gaps, recording.fps, progress
        ):
            detections[frame].append(detection)
        return assign_slots(detections)

    def _assemble(
        self, recording: Recording, camera: Camera, tracks: list[HandTrack], turned: bool
    ) -> HandMotion:
        def both(name: str) -> np.ndarray:
            return np.stack([getattr(track, name) for track in tracks], axis=1)

        joints, observed, filled = both("joints"), both("observed"), both("filled")
        known = observed | filled
        inside = camera.contains(camera.project(joints)).mean(-1)
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
            provenance=self._provenance(recording, camera),
            fill_frame=both("fill_frame") if turned else None,
        )

    def _provenance(self, recording: Recording, camera: Camera) -> Provenance:
        settings, notes = self._settings, list(recording.notes)
        if recording.camera is None:
            notes.append(
                "no intrinsics given: a pinhole of 60 degrees across the longer side is assumed "
                f"(fx = fy = {camera.fx:.1f} px); distances scale with it. Head-mounted cameras "
                "see more: give --camera-preset, --camera, or what acehand camera estimate finds"
            )

        if settings.hand_length_m is None:
            notes.append(
                "no hand length given: hands have the length of a mean adult hand; "
                "distances scale with it"
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
                "placement": settings.placement,
            },
            notes=tuple(notes),
        )


def cache_key(recording: Recording) -> dict[str, Any]:
    """Return everything that the detections of the first look depend on."""
    times = recording.timestamps_ns
    return {
        "source": recording.sha256,
        "processing": dict(recording.processing),
        "frames": [len(times), int(times[0]), int(times[-1])],
        "size": [recording.width, recording.height],
        "mediapipe": VERSION,
        "detector": {
            "detection_confidence": detector.DETECTION_CONFIDENCE,
            "tracking_confidence": detector.TRACKING_CONFIDENCE,
            "max_hands": detector.MAX_HANDS,
            "model_complexity": detector.MODEL_COMPLEXITY,
            "max_side": detector.MAX_SIDE,
        },
    }
