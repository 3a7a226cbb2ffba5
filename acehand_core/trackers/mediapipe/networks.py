"""MediaPipe's two hand networks without MediaPipe: palms in a picture, landmarks in a crop.

OpenVINO runs ``palm_detection_full`` and ``hand_landmark_full`` of MediaPipe 0.10.14. Anchors,
thresholds and the placement of crops follow "MediaPipe Hands: On-device Real-time Hand Tracking"
(Zhang et al., 2020) and the package's graph descriptions. Crops are squares that may be turned and
mirrored. Picture coordinates are pixels, integer at pixel centres.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, InputError, MissingDependencyError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.processes import thread_count
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

PALM_PIXELS, CROP_PIXELS = 192, 224
#: Intersection over union of two detections of one palm.
SAME_PALM = 0.3
#: Scale and shift along the hand from the box of a palm, and of landmarks, to the hand's crop.
_PALM_SCALE, _PALM_SHIFT = 2.6, -0.5
_HAND_SCALE, _HAND_SHIFT = 2.0, -0.1
#: Landmarks that place the next crop: all but the finger ends.
_STEADY = [0, 1, 2, 3, 5, 6, 9, 10, 13, 14, 17, 18]
_INDEX, _MIDDLE, _RING = 5, 9, 13
#: One picture takes about 10 ms; beyond this the runtime hangs.
INFERENCE_LIMIT_S = 60.0
#: Between them Ctrl-C and ``end_with`` are noticed.
_STEP_MS = 100
_thread = threading.local()
_making = threading.Lock()


@dataclass(frozen=True, slots=True)
class Crop:
    """A square of a picture: centre and side in pixels, turned clockwise by ``angle`` rad.

    The network sees a ``mirrored`` crop left to right. With a ``lens`` the square lies in the image
    plane of a virtual pinhole camera that looks at its centre, with as many pixels there.
    """

    x: float
    y: float
    side: float
    angle: float
    mirrored: bool = False
    lens: Camera | None = None

    def to_picture(self, points: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
        """Return picture points from shares of the side, counted from the upper left corner.

        NaN beyond the lens.
        """
        centred = (points - 0.5) * self.side
        if self.mirrored:
            centred = centred * [-1.0, 1.0]
        centred = centred @ _turn(self.angle).T
        view = _ray_view(self.lens, self.x, self.y)
        return centred + np.array([self.x, self.y]) if view is None else view.to_picture(centred)

    def picture(
        self, image: ImageRgb, pixels: int = CROP_PIXELS
    ) -> UInt8[np.ndarray, "side side 3"]:
        """Cut the square out of a picture, black beyond it."""
        if self.lens is not None:
            return self._along_ray(image, pixels)
        if self.side > 2 * pixels:
            # Halved first: sampling alone would alias.
            reach = self.side * np.sqrt(0.5) + 2
            left, top = (max(int(c - reach), 0) for c in (self.x, self.y))
            right, bottom = (max(int(c + reach), 0) for c in (self.x, self.y))
            part = image[top:bottom, left:right]
            if min(part.shape[:2]) > 1:
                part = part[: part.shape[0] // 2 * 2, : part.shape[1] // 2 * 2]
                half = cv2.resize(part, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
                x, y = (self.x - left) / 2 - 0.25, (self.y - top) / 2 - 0.25
                return replace(self, x=x, y=y, side=self.side / 2).picture(half, pixels)
        corners = np.array([[0.5, 0.5], [pixels - 0.5, 0.5], [0.5, pixels - 0.5]]) / pixels
        square = np.array([[0, 0], [pixels - 1, 0], [0, pixels - 1]], np.float32)
        matrix = cv2.getAffineTransform(square, self.to_picture(corners).astype(np.float32))
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        return cv2.warpAffine(image, matrix, (pixels, pixels), flags=flags)

    def _along_ray(self, image: ImageRgb, pixels: int) -> UInt8[np.ndarray, "side side 3"]:
        # Smooth, so it is computed at a few points.
        few, spread = _mesh(pixels)
        points = self.to_picture(np.stack(np.meshgrid(few, few), -1).reshape(-1, 2))
        points = np.where(np.isfinite(points), points, -1e4).reshape(len(few), len(few), 2)
        at = np.einsum("ik,klc,jl->ijc", spread, points, spread, optimize=True)

        # Halved first as often as needed: sampling alone would alias.
        shrink = 2 ** max(int(np.log2(self.side / pixels)), 0)
        size = np.array(image.shape[1::-1])
        first = np.clip(points.min((0, 1)).astype(int) - shrink, 0, size)
        last = np.clip(points.max((0, 1)).astype(int) + 2 * shrink, 0, size)
        last -= (last - first) % shrink
        part = image[first[1] : last[1], first[0] : last[0]]
        if 0 in part.shape:
            return np.zeros((pixels, pixels, 3), np.uint8)
        if shrink > 1:
            part = cv2.resize(
                part, None, fx=1 / shrink, fy=1 / shrink, interpolation=cv2.INTER_AREA
            )
        at = ((at - first + 0.5) / shrink - 0.5).astype(np.float32)
        return cv2.remap(part, at[..., 0], at[..., 1], cv2.INTER_LINEAR)

    def overlap(self, other: Crop) -> float:
        """Return intersection over union, ignoring turns."""
        half = (self.side + other.side) / 2
        wide = min(half - abs(self.x - other.x), self.side, other.side)
        high = min(half - abs(self.y - other.y), self.side, other.side)
        shared = max(wide, 0.0) * max(high, 0.0)
        return shared / (self.side**2 + other.side**2 - shared)


@dataclass(frozen=True, slots=True)
class _RayView:
    """The image plane of a virtual pinhole camera that looks along a pixel's ray.

    Its axes are the lens's, turned the shortest way; its scale is the lens's there.
    """

    lens: Camera
    ray: Float[np.ndarray, "3"]
    axes: Float[np.ndarray, "3 2"]  # per pixel

    def to_picture(self, plane: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
        return self.lens.project(self.ray + plane @ self.axes.T)

    def from_picture(self, pixels: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
        rays = self.lens.unproject(pixels)
        per_pixel = self.axes / np.sum(self.axes[:, 0] ** 2)
        return rays @ per_pixel / (rays @ self.ray)[..., None]


@lru_cache(maxsize=64)
def _ray_view(lens: Camera | None, x: float, y: float) -> _RayView | None:
    """Return the view along the ray of a pixel; None without a lens or where it has no ray."""
    if lens is None:
        return None
    ray = lens.unproject(np.array([x, y]))
    axes = rotations.between(np.array([0.0, 0.0, 1.0]), ray)[:, :2]
    beside = lens.project(ray + 1e-4 * np.stack([-axes.T, axes.T]))
    (a, b), (c, d) = beside[1] - beside[0]
    scale = np.sqrt(abs(a * d - b * c)) / 2e-4
    return _RayView(lens, ray, axes / scale) if scale > 0 else None


class InferenceError(AcehandError):
    """The hand networks do not answer."""


@contextmanager
def naming(frame: int) -> Iterator[None]:
    """Name the frame in an InferenceError."""
    try:
        yield
    except InferenceError as error:
        raise InferenceError(f"frame {frame}: {error}") from error


def end_with(event: threading.Event) -> None:
    """Let this thread wait for no inference once the event is set."""
    _thread.ended = event


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
        limit, ended = time.monotonic() + INFERENCE_LIMIT_S, getattr(_thread, "ended", None)
        try:
            request.start_async([np.ascontiguousarray(picture[None], np.float32) / 255])
            while not request.wait_for(_STEP_MS):
                if time.monotonic() > limit or (ended and ended.is_set()):
                    raise InferenceError(
                        f"OpenVINO did not answer within {INFERENCE_LIMIT_S:g} s. Run the command "
                        "again, with --resume if it writes a dataset."
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
                "or bring your own hands with --tracker FILE."
            ) from error
        found = installed()
        if found is None:
            raise MissingDependencyError(
                "The mediapipe tracker needs MediaPipe's hand networks: run acehand weights fetch "
                "hands once, or bring your own hands with --tracker FILE."
            )
        check(found)

        core = runtime.Core()
        # One thread per picture, a picture per processor; no bfloat16, so all machines agree.
        threads = thread_count()
        options: dict[str, Any] = {"NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads}
        options["INFERENCE_PRECISION_HINT"] = "f32"
        models = (core.read_model(found / name) for name in (PALM, LANDMARKS))
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
        crops = [_palm_crop(palm, around, self.lens) for palm in palms]
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
        world[:, :2] = world[:, :2] @ _turn(crop.angle).T
        return Look(pixels, world, p_right, seen)


def openvino() -> ModuleType:
    """Import OpenVINO. Raises ImportError."""
    # Without its telemetry, which would report over the net and write to the user's home.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return importlib.import_module("openvino")


def hand_networks() -> HandNetworks:
    """Return the networks of this process; raises as ``HandNetworks``."""
    with _making:
        return _hand_networks()


_hand_networks = lru_cache(maxsize=1)(HandNetworks)


def crop_of(pixels: Float[np.ndarray, "21 2"], lens: Camera | None = None) -> Crop:
    """Return the crop in which to look for a hand with these landmarks a moment ago."""
    view = _ray_view(lens, *pixels[_MIDDLE].tolist())
    flat = pixels if view is None else view.from_picture(pixels)
    if not np.isfinite(flat).all():  # it reaches beyond the lens
        view, flat = None, pixels
    towards = (flat[_INDEX] + flat[_RING]) / 4 + flat[_MIDDLE] / 2 - flat[0]
    angle = float(np.arctan2(towards[0], -towards[1]))
    turn = _turn(angle)
    steady = flat[_STEADY]
    upright = steady @ turn
    low, high = upright.min(0), upright.max(0)
    size = high - low
    centre = turn @ ((low + high) / 2 + [0.0, _HAND_SHIFT * size[1]])
    return _crop(view, centre, _HAND_SCALE * float(size.max()), angle)


def _palm_crop(points: Float[np.ndarray, "9 2"], around: Crop, lens: Camera | None) -> Crop:
    """Return the crop of a palm's hand, by its box, wrist and middle knuckle."""
    marks, size = around.to_picture(points[[0, 2, 4]]), points[1] * around.side
    view = _ray_view(lens, *marks[0].tolist())
    if view is not None:
        edges = points[0] + np.array([[-0.5, 0.0], [0.5, 0.0], [0.0, -0.5], [0.0, 0.5]]) * points[1]
        flat = view.from_picture(np.concatenate([marks, around.to_picture(edges)]))
        if np.isfinite(flat).all():
            marks, size = flat[:3], np.linalg.norm(flat[[4, 6]] - flat[[3, 5]], axis=1)
        else:
            view = None
    centre, wrist, knuckle = marks
    towards = knuckle - wrist
    angle = float(np.arctan2(towards[0], -towards[1]))
    centre = centre + _turn(angle) @ [0.0, _PALM_SHIFT * size[1]]
    return _crop(view, centre, _PALM_SCALE * float(size.max()), angle)


def _crop(view: _RayView | None, centre: np.ndarray, side: float, angle: float) -> Crop:
    """Return a crop by its centre and side in a ray's view, or in the picture."""
    if view is None:
        return Crop(float(centre[0]), float(centre[1]), max(side, 1.0), angle)
    x, y = view.to_picture(centre).tolist()
    if not np.isfinite(x + y):
        x, y = view.to_picture(np.zeros(2)).tolist()
    there = _ray_view(view.lens, x, y)
    if there is not None:
        side *= float(np.linalg.norm(view.axes[:, 0]) / np.linalg.norm(there.axes[:, 0]))
    return Crop(x, y, max(side, 1.0), angle, lens=view.lens)


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


@lru_cache(maxsize=2)
def _mesh(pixels: int) -> tuple[Float[np.ndarray, "M"], Float[np.ndarray, "side M"]]:
    """Return points along a crop's side, in its shares, and the interpolation to its pixels."""
    few, at = np.linspace(0.5, pixels - 0.5, 15), np.arange(pixels) + 0.5
    spread = np.clip(1 - np.abs(at[:, None] - few) / (few[1] - few[0]), 0, None)
    return few / pixels, spread


def _turn(angle: float) -> Float[np.ndarray, "2 2"]:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])


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
                "Fetch its wheel elsewhere and give it: acehand weights fetch hands --wheel FILE."
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
    """Raise InputError unless a folder has the networks of MediaPipe 0.10.14."""
    for name in SHA256:
        _check_content(place, name, (place / name).read_bytes())


def _check_content(place: Path, name: str, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256[name]:
        raise InputError(
            f"{place}: {name} is not that of mediapipe {VERSION} (its SHA-256 is {digest}). "
            "acehand weights fetch hands fetches the right one."
        )
