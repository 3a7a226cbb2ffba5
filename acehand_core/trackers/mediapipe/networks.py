"""MediaPipe's two hand networks without MediaPipe: palms in a picture, landmarks in a crop.

OpenVINO runs ``palm_detection_full`` and ``hand_landmark_full`` of MediaPipe 0.10.14. Anchors and
thresholds follow "MediaPipe Hands: On-device Real-time Hand Tracking" (Zhang et al., 2020) and the
package's graph descriptions.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, InputError, MissingDependencyError
from acehand_core.geometry.cameras import Camera
from acehand_core.processes import Item, Result, thread_count
from acehand_core.trackers.mediapipe.crops import CROP_PIXELS, Crop, palm_crop, rotation_2d
from acehand_core.types import ImageRgb

VERSION = "0.10.14"
#: Paths in the wheel, and SHA-256.
PALM = "palm_detection/palm_detection_full.tflite"
LANDMARKS = "hand_landmark/hand_landmark_full.tflite"
SHA256 = {
    PALM: "1b14e9422c6ad006cde6581a46c8b90dd573c07ab7f3934b5589e7cea3f89a54",
    LANDMARKS: "11c272b891e1a99ab034208e23937a8008388cf11ed2a9d776ed3d01d0ba00e3",
}
_IN_WHEEL = "mediapipe/modules/"

PALM_PIXELS = 192
#: Intersection over union of two detections of one palm.
SAME_PALM = 0.3
#: One picture takes about 10 ms; beyond this the runtime hangs.
INFERENCE_LIMIT_S = 60.0
#: The wait for an answer is in such steps, so that Ctrl-C and ``end_with`` end it.
_STEP_MS = 100
_thread = threading.local()
_networks_lock = threading.Lock()


class InferenceError(AcehandError):
    """The hand networks do not answer."""


@contextmanager
def naming(frame: int) -> Iterator[None]:
    """Name the frame in an InferenceError; raise one if the event of ``end_with`` is set."""
    try:
        if _has_ended():
            raise InferenceError("stopped")
        yield
    except InferenceError as error:
        raise InferenceError(f"frame {frame}: {error}") from error


def end_with(event: threading.Event | None) -> None:
    """Stop this thread's inference, also one in progress, once the event is set."""
    _thread.ended = event


def at_once(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return ``work`` of all items, each in a thread, which ends with this one (``end_with``)."""
    if len(items) < 2:
        return [work(item) for item in items]
    event = getattr(_thread, "ended", None)

    def one(item: Item) -> Result:
        end_with(event)
        return work(item)

    return list(_pool().map(one, items))


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_count(), "looks")


def _has_ended() -> bool:
    event = getattr(_thread, "ended", None)
    return event is not None and event.is_set()


@dataclass(frozen=True, slots=True)
class Look:
    """Output of the landmark network for one crop.

    Attributes:
        pixels: in the picture.
        world: metres from the middle of the hand, in the picture's axes (x right, y down).
        p_right: probability of a right hand.
        presence: confidence that there is a hand, 0 to 1.
    """

    pixels: Float[np.ndarray, "21 2"]
    world: Float[np.ndarray, "21 3"]
    p_right: float
    presence: float


class _Network(threading.local):
    """A compiled network; each thread makes one inference request, and another after a stall."""

    def __init__(self, model: Any) -> None:
        self._model, self._request = model, None

    def infer(self, picture: UInt8[np.ndarray, "side side 3"]) -> list[np.ndarray]:
        """Return the outputs for a picture. Raises InferenceError."""
        request, self._request = self._request or self._model.create_infer_request(), None
        limit = time.monotonic() + INFERENCE_LIMIT_S
        try:
            request.start_async([np.ascontiguousarray(picture[None], np.float32) / 255])
            while not request.wait_for(_STEP_MS):
                if time.monotonic() > limit or _has_ended():
                    raise InferenceError(
                        f"OpenVINO did not answer within {INFERENCE_LIMIT_S:g} s. Run the command "
                        "again, with `existing=resume` if it writes a dataset."
                    )
        except BaseException:
            # Never freed: that would wait for its answer, even when the interpreter ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
            raise

        self._request = request
        return [np.array(output.data) for output in request.output_tensors]


class HandNetworks:
    """Both networks, compiled once for all threads of the process.

    Raises:
        MissingDependencyError: the runtime or the networks' files are missing.
        InputError: a file is not that of MediaPipe 0.10.14.
    """

    #: Of the pictures; None: crops are squares of the picture.
    lens: Camera | None = None

    def __init__(self) -> None:
        try:
            runtime = openvino()
        except ImportError as error:
            raise MissingDependencyError(
                f"The mediapipe tracker cannot start: {error}. In the checkout: "
                "pip install '.[mediapipe]' && acehand weights fetch hands; "
                "or bring your own hands with `tracker=FILE`."
            ) from error
        files = installed()
        if files is None:
            raise MissingDependencyError(
                "The mediapipe tracker needs MediaPipe's hand networks: run acehand weights fetch "
                "hands once, or bring your own hands with `tracker=FILE`."
            )
        check(files)

        core = runtime.Core()
        # One thread per picture, a picture per processor; no bfloat16, so all machines agree.
        threads = thread_count()
        options: dict[str, Any] = {"NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads}
        options["INFERENCE_PRECISION_HINT"] = "f32"
        models = (core.read_model(files / name) for name in (PALM, LANDMARKS))
        compiled = (core.compile_model(model, "CPU", options) for model in models)
        self._palm, self._landmarks = map(_Network, compiled)
        # The first array of a tensor imports NumPy for OpenVINO. Two threads deadlock in that, with
        # the GIL held, so that even Ctrl-C is not noticed.
        self._palm.infer(np.zeros((PALM_PIXELS, PALM_PIXELS, 3), np.uint8))

    def through(self, lens: Camera | None) -> HandNetworks:
        """Return the same networks for pictures of a lens, with crops along its rays."""
        if lens is None:
            return self
        out = copy.copy(self)
        out.lens = lens
        return out

    def palms(
        self, image: ImageRgb, confidence: float = 0.5, around: Crop | None = None
    ) -> list[Crop]:
        """Return crops of palms' hands in a picture or its part ``around``, the best first."""
        height, width = image.shape[:2]
        if around is None:
            around = Crop((width - 1) / 2, (height - 1) / 2, float(max(width, height)), 0.0)
        boxes, scores = self._palm.infer(around.picture(image, PALM_PIXELS))
        score = 1 / (1 + np.exp(-np.clip(scores.reshape(-1), -100, 100)))
        sure = score >= confidence
        # Each row: centre and size of the box, then seven points; all from the anchor.
        points = boxes[0, sure].reshape(-1, 9, 2) / PALM_PIXELS
        points[:, [0, *range(2, 9)]] += _anchors()[sure][:, None]
        palms = _without_overlap(points, score[sure])
        crops = [palm_crop(palm, around, self.lens) for palm in palms]
        return [crop for crop in crops if np.isfinite(crop.x + crop.angle + crop.side)]

    def look(self, image: ImageRgb, crop: Crop) -> Look:
        """Return the landmarks in a crop, with a hand or without."""
        landmarks, presence, handedness, world = self._landmarks.infer(crop.picture(image))
        pixels = crop.to_picture(landmarks.reshape(21, 3)[:, :2].astype(float) / CROP_PIXELS)
        seen = float(presence.item()) if np.isfinite(pixels).all() else 0.0
        world = world.reshape(21, 3).astype(float)
        # MediaPipe calls this the probability of "Left": it assumes mirrored pictures.
        p_right = float(handedness.item())
        if crop.mirrored:
            world, p_right = world * [-1.0, 1.0, 1.0], 1 - p_right
        world[:, :2] = world[:, :2] @ rotation_2d(crop.angle).T
        return Look(pixels, world, p_right, seen)


def openvino() -> ModuleType:
    """Import OpenVINO. Raises ImportError."""
    # Without its telemetry, which would report over the net and write to the user's home.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return importlib.import_module("openvino")


def hand_networks() -> HandNetworks:
    """Return the networks of this process; raises as ``HandNetworks``."""
    with _networks_lock:
        return _hand_networks()


_hand_networks = lru_cache(maxsize=1)(HandNetworks)


def _without_overlap(
    points: Float[np.ndarray, "N 9 2"], score: Float[np.ndarray, "N"]
) -> list[Float[np.ndarray, "9 2"]]:
    """Merge detections of one palm by their scores; the most confident palm first."""
    low, high = points[:, 0] - points[:, 1] / 2, points[:, 0] + points[:, 1] / 2
    area = np.prod(high - low, axis=1)
    merged = []
    left = np.argsort(-score)
    while len(left):
        first = left[0]
        sides = np.minimum(high[left], high[first]) - np.maximum(low[left], low[first])
        shared = np.prod(np.maximum(sides, 0), axis=1)
        same = shared > SAME_PALM * (area[left] + area[first] - shared)
        same[0] = True
        group = left[same]
        merged.append(np.average(points[group], axis=0, weights=score[group]))
        left = left[~same]
    return merged


@lru_cache(maxsize=1)
def _anchors() -> Float[np.ndarray, "2016 2"]:
    """Return the anchors' centres in shares of the picture: two per cell of 8 pixels, six of 16."""
    grids = []
    for cells, count in ((24, 2), (12, 6)):
        middle = (np.arange(cells) + 0.5) / cells
        y, x = np.meshgrid(middle, middle, indexing="ij")
        grids.append(np.repeat(np.stack([x.ravel(), y.ravel()], axis=1), count, axis=0))
    return np.concatenate(grids)


# --- files ---


def folder() -> Path:
    """Return the networks' folder: ``$ACEHAND_HAND_NETWORKS``, or in the user's cache."""
    if named := os.environ.get("ACEHAND_HAND_NETWORKS"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "acehand" / f"mediapipe-{VERSION}"


def installed() -> Path | None:
    """Return the folder with both networks: ``folder()``, or an installed mediapipe package."""
    places = [folder()]
    package = importlib.util.find_spec("mediapipe")
    if package is not None and package.submodule_search_locations:
        places.append(Path(package.submodule_search_locations[0]) / "modules")
    return next((p for p in places if all((p / name).is_file() for name in SHA256)), None)


def download() -> None:
    """Let pip download an existing wheel of MediaPipe, for any Python, and ``unpack`` it.

    Raises MissingDependencyError if pip fails.
    """
    with tempfile.TemporaryDirectory() as place:
        options = "--quiet --disable-pip-version-check --no-deps --only-binary=:all:"
        options += " --python-version 3.12 --platform manylinux_2_17_x86_64 --dest"
        command = [sys.executable, "-m", "pip", "download", *options.split(), place]
        command += [f"mediapipe=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise MissingDependencyError(
                f"pip could not download mediapipe {VERSION}: {done.stderr.strip() or 'no wheel'} "
                "Fetch its wheel elsewhere and give it to `acehand weights fetch` as `wheel=FILE`."
            )
        unpack(wheels[0])


def unpack(wheel: Path) -> None:
    """Write the two networks of MediaPipe's wheel to ``folder()``.

    Raises InputError for another wheel or other networks.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            contents = {name: archive.read(_IN_WHEEL + name) for name in SHA256}
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{wheel}: not a wheel of mediapipe {VERSION} with its hand networks ({error})."
        ) from error

    for name, content in contents.items():
        _check_content(wheel, name, content)
    for name, content in contents.items():
        with atomic_path(folder() / name, overwrite=True) as partial:
            partial.write_bytes(content)


def check(place: Path) -> None:
    """Raise InputError unless a place has the networks of MediaPipe 0.10.14."""
    for name in SHA256:
        _check_content(place, name, (place / name).read_bytes())


def _check_content(source: Path, name: str, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256[name]:
        raise InputError(
            f"{source}: {name} is not that of mediapipe {VERSION} (its SHA-256 is {digest}). "
            "acehand weights fetch hands fetches the right one."
        )
