"""Plain MediaPipe, picture by picture: what anybody has who calls the package.

World landmarks, scaled to the hand's true length, are placed by OpenCV's solvePnP with the true
camera: SQPNP, then refined. Nothing is smoothed or filled, and no hand is looked for again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion, Recording
from acehand_core.provenance import Provenance
from benchmarks.tracking.score import bone_length


@dataclass(frozen=True, slots=True)
class Found:
    """A hand in a picture: pixels with whole numbers at their centres, world landmarks in metres.

    The package takes pictures to be mirrored; ``right`` is already for one that is not.
    """

    pixels: Float[np.ndarray, "21 2"]
    world: Float[np.ndarray, "21 3"]
    right: bool
    score: float


@dataclass(frozen=True, slots=True)
class Mode:
    """How the package is called: each picture by itself or as a video, from which score on."""

    still: bool
    threshold: float

    @property
    def name(self) -> str:
        return f"mediapipe {'stills' if self.still else 'video'} {self.threshold}"


MODES = tuple(Mode(still, threshold) for still in (True, False) for threshold in (0.3, 0.5))


def track(recording: Recording, hand_length_m: float, mode: Mode) -> HandMotion:
    """Return the hands of a recording with a camera; rotations are not known."""
    camera = recording.camera
    assert camera is not None
    count = len(recording)
    joints, pixels = np.full((count, 2, 21, 3), np.nan), np.full((count, 2, 21, 2), np.nan)
    for frame, hands in enumerate(found(recording, mode)):
        # Of two hands called left, or two called right, the surer one.
        for hand in sorted(hands, key=lambda hand: hand.score):
            placed = place(hand, camera, hand_length_m)
            if placed is not None:
                joints[frame, int(hand.right)] = placed
                pixels[frame, int(hand.right)] = hand.pixels
    observed = np.isfinite(joints).all((2, 3))
    unknown = np.full((count, 2, 15, 3, 3), np.nan)
    return HandMotion(
        timestamps_ns=recording.timestamps_ns, fps=recording.fps,
        presence=observed.astype(float), visible=observed.astype(float),
        quality=observed.astype(float), observed=observed, filled=np.zeros((count, 2), bool),
        global_orient=unknown[:, :, 0], hand_pose=unknown, betas=np.zeros((2, 10)),
        translation=np.full((count, 2, 3), np.nan), joints_camera=joints, joints_image=pixels,
        hand_model="none", camera=camera,
        provenance=Provenance(source=recording.name, source_sha256=None, tracker=mode.name),
    )  # fmt: skip


def place(hand: Found, camera: Camera, hand_length_m: float) -> Float[np.ndarray, "21 3"] | None:
    """Return the joints in the camera frame, metres; None where they cannot be placed."""
    rays = camera.unproject(hand.pixels)
    ahead = rays[:, 2] > 1e-3  # also False for NaN
    if ahead.sum() < 6:
        return None
    model = hand.world * (hand_length_m / float(bone_length(hand.world)))
    bearing = rays[ahead, :2] / rays[ahead, 2:]

    # With bearings for pixels the camera matrix is 1, whatever the lens.
    points, eye = model[ahead], np.eye(3)
    solved, turn, place = cv2.solvePnP(points, bearing, eye, None, flags=cv2.SOLVEPNP_SQPNP)
    if not solved:
        return None
    turn, place = cv2.solvePnPRefineLM(points, bearing, eye, None, turn, place)
    joints: Float[np.ndarray, "21 3"] = model @ cv2.Rodrigues(turn)[0].T + place.ravel()
    return joints if joints[:, 2].min() > 0 or camera.model != "pinhole" else None


def found(recording: Recording, mode: Mode) -> Iterator[list[Found]]:
    """Yield the hands of every picture."""
    # Not our own detector, which may come to run the networks without the package.
    warnings.filterwarnings("ignore", message=".*SymbolDatabase.GetPrototype.*")
    import mediapipe.python.solutions.hands as solution

    assert recording.frames is not None
    size = np.array([recording.width, recording.height])
    graph: Any = solution.Hands(
        static_image_mode=mode.still, max_num_hands=2, model_complexity=1,
        min_detection_confidence=mode.threshold, min_tracking_confidence=mode.threshold,
    )  # fmt: skip
    with graph:
        for image in recording.frames.read(0, len(recording)):
            result = graph.process(np.ascontiguousarray(image))
            hands = []
            for points, world, side in zip(
                result.multi_hand_landmarks or (), result.multi_hand_world_landmarks or (),
                result.multi_handedness or (), strict=True,
            ):  # fmt: skip
                label = side.classification[0]
                pixels = _array(points)[:, :2] * size - 0.5
                right = label.label == "Left"
                hands.append(Found(pixels, _array(world), right, float(label.score)))
            yield hands


def _array(landmarks: Any) -> Float[np.ndarray, "21 3"]:
    return np.array([(p.x, p.y, p.z) for p in landmarks.landmark])
