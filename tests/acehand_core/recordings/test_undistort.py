"""Undistortion against OpenCV and against straight lines."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.recordings import cameras as module
from acehand_core.recordings.cameras import undistort, undistortion_maps
from helpers.video_fixtures import Images

K5, K4 = (-0.28, 0.07, 1e-3, -5e-4, 0.01), (-4e-3, 0.03, -0.03, 0.006)
BROWN = Camera("brown_conrady", 320, 240, 240.0, 242.0, 165.0, 117.0, K5)
RATIONAL = Camera(
    "brown_conrady", 320, 240, 152.0, 152.0, 160.2, 121.0,
    (0.45, -2.53, 7e-4, -2e-4, 1.47, 0.33, -2.35, 1.4),
)  # fmt: skip
FISHEYE = Camera("kannala_brandt", 320, 240, 130.0, 131.0, 157.0, 122.0, K4)
ARIA = Camera(
    "fisheye624", 320, 320, 138.0, 138.0, 160.5, 160.0,
    (0.384, -0.381, -0.122, 1.556, -1.989, 0.725, -1e-3, 2e-4, 2.2e-3, -4e-4, -1.5e-3, 2.5e-4),
)  # fmt: skip


def recording_of(images: list[np.ndarray], camera: Camera | None, **changes) -> Recording:
    height, width = images[0].shape[:2]
    times = np.arange(len(images)) * 33_333_333 + 400_000_000
    source = Recording("memory", None, times, 30.0, width, height, Images(images), camera)
    return replace(source, **changes)


def smooth_image(width: int, height: int, seed: int = 0) -> np.ndarray:
    shape = (height // 40, width // 40, 3)
    coarse = np.random.default_rng(seed).integers(40, 216, shape, np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


@pytest.mark.parametrize("camera", [BROWN, RATIONAL, FISHEYE], ids=["five", "rational", "fisheye"])
def test_pixels_agree_with_opencv(camera: Camera) -> None:
    image = smooth_image(320, 240)
    ours, d = undistort(recording_of([image], camera)), np.array(camera.distortion)
    theirs = cv2.fisheye.undistortImage if camera is FISHEYE else cv2.undistort
    expected = theirs(image, camera.K, d, None, ours.camera.K)
    difference = np.abs(ours.frames.at(0).astype(int) - expected)
    # Both sides round source positions to 1/32 pixel, at times to different ones.
    assert difference.max() <= 255 / 32 + 1 and (difference > 1).mean() < 0.01


@pytest.mark.parametrize(
    "camera", [BROWN, RATIONAL, FISHEYE, ARIA], ids=["brown", "rational", "fisheye", "aria"]
)
def test_straight_lines_become_straight(camera: Camera) -> None:
    """A picture of a half-lit scene: the edge in space is a straight line, in the lens a curve."""
    x, y = np.meshgrid(np.arange(camera.width * 1.0), np.arange(camera.height * 1.0))
    rays = camera.unproject(np.stack([x, y], axis=-1))
    normal = np.array([0.9, 0.35, 0.25]) / np.linalg.norm([0.9, 0.35, 0.25])
    # Blurred over 3 degrees so that the edge is found between pixels.
    bright = 1 / (1 + np.exp(-np.nan_to_num(rays @ normal) / 0.02))
    lens = np.repeat((bright * 255).astype(np.uint8)[..., None], 3, axis=2)
    recording = undistort(recording_of([lens], camera))
    pinhole = recording.camera
    rows = np.arange(40, camera.height - 40, 5)
    expected = _edge_of_plane(pinhole, normal, rows)
    inside = (expected > 20) & (expected < camera.width - 20)
    assert inside.sum() > 10
    found = _edges(recording.frames.at(0), rows[inside])
    np.testing.assert_allclose(found, expected[inside], atol=0.35)
    assert _bend(rows[inside], found) < 0.25
    if camera is not RATIONAL:  # the depth camera's lens bends by less than a pixel here
        curved = _edges(lens, rows)
        assert _bend(rows[np.isfinite(curved)], curved[np.isfinite(curved)]) > 0.6


def _edge_of_plane(camera: Camera, normal: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Columns where the rays of a pinhole are orthogonal to ``normal``."""
    a, b, c = normal @ np.linalg.inv(camera.K)
    return -(b * rows + c) / a


def _edges(image: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Column per row where brightness first passes the middle, between pixels; NaN if never."""
    out = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        line = image[row, :, 0].astype(float)
        crossing = np.flatnonzero((line[:-1] < 127.5) & (line[1:] >= 127.5) & (line[:-1] > 60))
        if len(crossing):
            j = crossing[0]
            out[i] = j + (127.5 - line[j]) / (line[j + 1] - line[j])
    return out


def _bend(rows: np.ndarray, columns: np.ndarray) -> float:
    line = np.polyval(np.polyfit(rows, columns, 1), rows)
    return float(np.abs(columns - line).max())


@pytest.mark.parametrize(
    ("focal", "expected"), [(320.0, 320 / np.tan(1.0)), (200.0, 240 / np.tan(np.radians(65)))]
)
def test_the_view_of_a_wide_lens_is_kept(focal: float, expected: float) -> None:
    """Equidistant: 320 px across lie 320 / focal rad off the axis; 65 degrees are the most."""
    lens = Camera("kannala_brandt", 640, 480, focal, focal, 319.5, 239.5, (0.0, 0.0, 0.0, 0.0))
    seen = undistort(recording_of([np.full((480, 640, 3), 255, np.uint8)], lens))
    assert seen.camera.fx == pytest.approx(expected, rel=1e-6)
    assert (seen.frames.at(0)[240, [1, 638]] == 255).all()
    cushion = Camera("brown_conrady", 640, 480, 500.0, 500.0, 319.5, 239.5, (0.2, 0.0, 0.0, 0.0))
    assert cushion.whole_view().fx == 500.0  # it bends outwards
    # Pixels beyond the end of the field of view are black.
    narrow = Camera("brown_conrady", 320, 240, 150.0, 150.0, 160.0, 120.0, (-0.4, 0.0, 0.0, 0.0))
    image = undistort(recording_of([np.full((240, 320, 3), 255, np.uint8)], narrow)).frames.at(0)
    ray = narrow.whole_view().unproject(np.array([0.0, 0.0]))
    assert np.arccos(ray[2]) > narrow.max_angle
    assert (image[0, 0] == 0).all() and (image[120, 160] == 255).all()


def test_recording_fields(monkeypatch) -> None:
    maps = []
    original = undistortion_maps
    monkeypatch.setattr(module, "undistortion_maps", lambda *c: maps.append(c) or original(*c))
    source = recording_of([smooth_image(320, 240, seed) for seed in range(4)], BROWN)
    result = undistort(source)
    # As wide as the lens, whose edges OpenCV undistorts.
    edges = np.array([[-0.5, BROWN.cy], [319.5, BROWN.cy], [BROWN.cx, -0.5], [BROWN.cx, 239.5]])
    plane = np.abs(cv2.undistortPoints(edges[:, None], BROWN.K, np.array(BROWN.distortion[:5])))[
        :, 0
    ]
    share = min(160 / (240 * plane[:2, 0].max()), 120 / (242 * plane[2:, 1].max()))
    assert result.camera.fx == pytest.approx(share * 240, rel=1e-3)
    assert result.camera.fy == pytest.approx(share * 242, rel=1e-3)
    assert (result.camera.cx, result.camera.cy) == (159.5, 119.5)
    assert result.timestamps_ns is source.timestamps_ns and len(result.frames) == 4
    forwards = list(result.frames.read(1, 4))
    np.testing.assert_array_equal(result.frames.at(2), forwards[1])
    assert len(maps) == 1


def test_pinhole_stays_and_sizes_are_fitted() -> None:
    images = [smooth_image(320, 240)]
    pinhole = Camera("pinhole", 640, 480, 500.0, 500.0, 300.0, 240.0)
    source = recording_of(images, pinhole)
    result = undistort(source)
    assert result.frames is source.frames and result.camera == pinhole.rescaled(320, 240)
    double, same = (
        undistort(recording_of(images, camera)).frames.at(0).astype(int)
        for camera in (BROWN.rescaled(640, 480), BROWN)
    )
    assert np.abs(double - same).max() <= 1
    for camera, changes, message in (
        (ARIA, {}, "320 x 240"),
        (None, {}, "camera calibration"),
        (BROWN, {"frames": None}, "needs a video"),
    ):
        with pytest.raises(CalibrationError, match=message):
            undistort(recording_of(images, camera, **changes))
