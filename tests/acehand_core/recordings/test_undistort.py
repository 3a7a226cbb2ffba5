"""Undistortion against OpenCV and against straight lines."""

import cv2
import numpy as np
import pytest

from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.recordings import cameras as module
from acehand_core.recordings.cameras import undistort, undistortion_maps
from helpers.video_fixtures import Images

BROWN = Camera(
    "brown_conrady", 320, 240, 240.0, 242.0, 165.0, 117.0, (-0.28, 0.07, 1e-3, -5e-4, 0.01)
)
RATIONAL = Camera(
    "brown_conrady", 320, 240, 152.0, 152.0, 160.2, 121.0,
    (0.45, -2.53, 7e-4, -2e-4, 1.47, 0.33, -2.35, 1.4),
)  # fmt: skip
FISHEYE = Camera(
    "kannala_brandt", 320, 240, 130.0, 131.0, 157.0, 122.0, (-4e-3, 0.03, -0.03, 0.006)
)
ARIA = Camera(
    "fisheye624", 320, 320, 138.0, 138.0, 160.5, 160.0,
    (0.384, -0.381, -0.122, 1.556, -1.989, 0.725, -1e-3, 2e-4, 2.2e-3, -4e-4, -1.5e-3, 2.5e-4),
)  # fmt: skip


def recording_of(images: list[np.ndarray], camera: Camera | None, **changes) -> Recording:
    height, width = images[0].shape[:2]
    times = np.arange(len(images)) * 33_333_333 + 400_000_000
    fields = {"frames": Images(images), "timestamps_ns": times} | changes
    return Recording(
        source="memory", sha256=None, fps=30.0, width=width, height=height, camera=camera, **fields
    )


def smooth_image(width: int, height: int, seed: int = 0) -> np.ndarray:
    shape = (height // 40, width // 40, 3)
    coarse = np.random.default_rng(seed).integers(40, 216, shape, np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def check_rounding_only(difference: np.ndarray) -> None:
    """Both sides round source positions to 1/32 pixel, at times to different ones."""
    assert difference.max() <= 255 / 32 + 1 and (difference > 1).mean() < 0.01


@pytest.mark.parametrize("camera", [BROWN, RATIONAL], ids=["five", "rational"])
def test_pixels_agree_with_opencv(camera: Camera) -> None:
    image = smooth_image(320, 240)
    ours = undistort(recording_of([image], camera))
    expected = cv2.undistort(
        image, camera.K, np.array(camera.distortion), newCameraMatrix=ours.camera.K
    )
    difference = np.abs(ours.frames.at(0).astype(int) - expected)
    check_rounding_only(difference)


def test_fisheye_pixels_agree_with_opencv() -> None:
    image = smooth_image(320, 240)
    ours = undistort(recording_of([image], FISHEYE))
    expected = cv2.fisheye.undistortImage(
        image, FISHEYE.K, np.array(FISHEYE.distortion), Knew=ours.camera.K
    )
    difference = np.abs(ours.frames.at(0).astype(int) - expected)
    check_rounding_only(difference)


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
def test_what_a_wide_lens_sees_stays_in_view(focal: float, expected: float) -> None:
    """Equidistant: 320 px across lie 320 / focal rad off the axis; 65 degrees are the most."""
    lens = Camera("kannala_brandt", 640, 480, focal, focal, 319.5, 239.5, (0.0, 0.0, 0.0, 0.0))
    white = np.full((480, 640, 3), 255, np.uint8)
    seen = undistort(recording_of([white], lens))
    assert seen.camera.fx == pytest.approx(expected, rel=1e-6)
    assert (seen.frames.at(0)[240, [1, 638]] == 255).all()


def test_a_lens_that_bends_outwards_is_not_narrowed() -> None:
    cushion = Camera("brown_conrady", 640, 480, 500.0, 500.0, 319.5, 239.5, (0.2, 0.0, 0.0, 0.0))
    assert cushion.whole_view().fx == 500.0


def test_unseen_pixels_are_black() -> None:
    narrow = Camera("brown_conrady", 320, 240, 150.0, 150.0, 160.0, 120.0, (-0.4, 0.0, 0.0, 0.0))
    white = np.full((240, 320, 3), 255, np.uint8)
    image = undistort(recording_of([white], narrow)).frames.at(0)
    rays = narrow.whole_view().unproject(np.array([[0.0, 0.0], [160.0, 120.0]]))
    assert np.arccos(rays[0, 2]) > narrow.max_angle
    assert (image[0, 0] == 0).all() and (image[120, 160] == 255).all()


def test_recording_fields() -> None:
    images = [smooth_image(320, 240, seed) for seed in range(4)]
    source = recording_of(images, BROWN)
    result = undistort(source)
    # As wide as the lens, whose edges OpenCV undistorts.
    edges = np.array([[[-0.5, BROWN.cy]], [[319.5, BROWN.cy]], [[BROWN.cx, -0.5]],
                      [[BROWN.cx, 239.5]]])  # fmt: skip
    plane = np.abs(cv2.undistortPoints(edges, BROWN.K, np.array(BROWN.distortion[:5])))[:, 0]
    share = min(160 / (240 * plane[:2, 0].max()), 120 / (242 * plane[2:, 1].max()))
    assert result.camera.fx == pytest.approx(share * 240, rel=1e-3)
    assert result.camera.fy == pytest.approx(share * 242, rel=1e-3)
    assert (result.camera.cx, result.camera.cy) == (159.5, 119.5)
    assert result.timestamps_ns is source.timestamps_ns and len(result.frames) == 4
    forwards = list(result.frames.read(1, 4))
    np.testing.assert_array_equal(result.frames.at(2), forwards[1])


def test_pinhole_stays_and_sizes_are_fitted() -> None:
    image = smooth_image(320, 240)
    pinhole = Camera("pinhole", 640, 480, 500.0, 500.0, 300.0, 240.0)
    source = recording_of([image], pinhole)
    result = undistort(source)
    assert result.frames is source.frames and result.camera == pinhole.rescaled(320, 240)
    double = undistort(recording_of([image], BROWN.rescaled(640, 480))).frames.at(0)
    same = undistort(recording_of([image], BROWN)).frames.at(0)
    assert np.abs(double.astype(int) - same).max() <= 1
    with pytest.raises(CalibrationError, match="320 x 240"):
        undistort(recording_of([image], ARIA))
    with pytest.raises(CalibrationError, match="needs a camera calibration"):
        undistort(recording_of([image], None))
    with pytest.raises(CalibrationError, match="needs a video"):
        undistort(recording_of([image], BROWN, frames=None))


def test_maps_are_computed_once(monkeypatch) -> None:
    calls = []
    original = undistortion_maps
    monkeypatch.setattr(module, "undistortion_maps", lambda *c: calls.append(c) or original(*c))
    result = undistort(recording_of([smooth_image(320, 240)] * 5, BROWN))
    list(result.frames.read(0, 5))
    assert len(calls) == 1
