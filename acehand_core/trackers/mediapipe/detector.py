"""MediaPipe Hands (0.10.14, legacy solution: its models are in the wheel) as a function of images.

Its handedness labels assume a mirrored, selfie image. Recordings are not mirrored, so the labels
are swapped here, once.

Partial results of a long detection pass are kept, so that an interrupted run resumes where it
stopped. A segment's key is a hash of the pictures (file and how it was read), the library and the
detector's settings: never of a name.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, MissingDependencyError, OutputError
from acehand_core.files.safe_files import safe_load_npz
from acehand_core.types import ImageRgb

#: Wider images are shrunk first: the networks look at 192 and 224 pixels.
MAX_SIDE = 1280
MODEL_COMPLEXITY = 1
MAX_HANDS = 2
#: Thresholds of the first look at a recording.
DETECTION_CONFIDENCE = TRACKING_CONFIDENCE = 0.5


@dataclass(frozen=True, slots=True)
class Detection:
    """One hand seen in one frame.

    ``pixels`` are in the source image, integer coordinates at pixel centres; ``world`` metres in
    the axes of the crop. ``p_right`` is the network's probability of a right hand; ``look`` names
    the pass that saw it.
    """

    pixels: Float[np.ndarray, "21 2"]
    world: Float[np.ndarray, "21 3"]
    p_right: float
    look: str

    @property
    def confidence(self) -> float:
        """How sure the network is of the side: the only score it gives."""
        return max(self.p_right, 1 - self.p_right)

    @property
    def size(self) -> float:
        """Rms distance of the landmarks from their mean, pixels."""
        centred = self.pixels - self.pixels.mean(0)
        return float(np.sqrt(np.mean(np.sum(centred**2, axis=1))))


class Detector:
    """One MediaPipe graph. Not thread-safe: give each thread its own."""

    def __init__(
        self,
        *,
        still: bool = False,
        detection_confidence: float = DETECTION_CONFIDENCE,
        tracking_confidence: float = TRACKING_CONFIDENCE,
        max_hands: int = MAX_HANDS,
    ) -> None:
        hands = _import_hands()
        self._graph = hands.Hands(
            static_image_mode=still,
            max_num_hands=max_hands,
            model_complexity=MODEL_COMPLEXITY,
            min_detection_confidence=detection_confidence,
            min_tracking_confidence=tracking_confidence,
        )

    def __enter__(self) -> Detector:
        return self

    def __exit__(self, *_: object) -> None:
        self._graph.close()

    def reset(self) -> None:
        """Forget the hands of the last image: the next one starts a new sequence."""
        self._graph.reset()

    def __call__(self, image: ImageRgb, look: str) -> list[Detection]:
        """Return the hands in an image; pixels are those of ``image``."""
        height, width = image.shape[:2]
        shrink = max(height, width) / MAX_SIDE
        if shrink > 1:
            size = (round(width / shrink), round(height / shrink))
            image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)

        result = self._graph.process(np.ascontiguousarray(image))
        detections = []
        for points, world, handedness in zip(
            result.multi_hand_landmarks or (),
            result.multi_hand_world_landmarks or (),
            result.multi_handedness or (),
            strict=True,
        ):
            # Normalised coordinates run over pixel edges; labels are those of a mirrored image.
            pixels = _array(points)[:, :2] * [width, height] - 0.5
            label = handedness.classification[0]
            score = float(np.clip(label.score, 0.5, 1.0))
            p_right = score if label.label == "Left" else 1 - score
            detections.append(Detection(pixels, _array(world), p_right, look))
        return detections


def _array(landmarks: Any) -> Float[np.ndarray, "21 3"]:
    return np.array([(p.x, p.y, p.z) for p in landmarks.landmark])


def _import_hands() -> Any:
    # protobuf 4 announces its own future on every graph; nothing here can act on it.
    warnings.filterwarnings("ignore", message=".*SymbolDatabase.GetPrototype.*")
    try:
        import mediapipe.python.solutions.hands as hands
    except ImportError as error:
        raise MissingDependencyError(
            f"The mediapipe tracker cannot start: {error}. In the checkout: "
            "pip install '.[mediapipe]' && pip install --no-deps mediapipe==0.10.14; "
            "or bring your own hands with --tracker FILE."
        ) from error
    return hands


class SegmentCache:
    """Detections per segment in a folder; with no folder nothing is kept."""

    def __init__(self, folder: Path | None, key: dict[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self._prefix = f"detections-{digest[:24]}"

    def get(self, start: int, stop: int) -> list[list[Detection]] | None:
        """Return a finished segment, or None. A damaged file counts as absent."""
        path = self._path(start, stop)
        if path is None or not path.is_file():
            return None

        try:
            data = safe_load_npz(path)
            flat = [
                Detection(pixels, world, float(p_right), str(look))
                for pixels, world, p_right, look in zip(
                    data["pixels"], data["world"], data["p_right"], data["look"], strict=True
                )
            ]
            ends = np.cumsum(data["count"])
            if len(ends) != stop - start or ends[-1] != len(flat):
                return None
        except (InputError, EOFError, KeyError, ValueError):
            return None

        return [flat[end - count : end] for end, count in zip(ends, data["count"], strict=True)]

    def put(self, start: int, stop: int, frames: list[list[Detection]]) -> None:
        """Write a finished segment; it appears whole or not at all.

        Raises OutputError when the folder cannot be written.
        """
        path = self._path(start, stop)
        if path is None:
            return
        flat = [d for detections in frames for d in detections]

        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez_compressed(
                    file,
                    count=np.array([len(d) for d in frames]),
                    pixels=np.array([d.pixels for d in flat]).reshape(-1, 21, 2),
                    world=np.array([d.world for d in flat]).reshape(-1, 21, 3),
                    p_right=np.array([d.p_right for d in flat]),
                    look=np.array([d.look for d in flat], dtype="U16"),
                )
            partial.replace(path)
        except OSError as error:
            raise OutputError(
                f"{path.parent}: partial results cannot be written: {error.strerror or error}."
            ) from error

    def _path(self, start: int, stop: int) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{self._prefix}-{start:09d}-{stop:09d}.npz"
