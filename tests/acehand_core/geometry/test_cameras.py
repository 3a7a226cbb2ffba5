"""Camera models against OpenCV, against the formula written out, and against real boxes."""

import csv
import json
import math
import warnings

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.errors import CalibrationError
from acehand_core.geometry import distortion, frames, rotations
from acehand_core.geometry.cameras import Camera, opencv_distortion

# Intrinsics of common devices, rounded: a webcam, a depth camera with a rational model, a 190
# degree fisheye, and the RGB camera of a pair of research glasses.
PINHOLE = Camera("pinhole", 1280, 720, 905.3, 907.1, 641.2, 355.9)
K5 = (-0.28, 0.07, 1e-3, -5e-4, 0.01)
BROWN5 = Camera("brown_conrady", 640, 480, 501.0, 503.5, 321.7, 238.2, K5)
K8 = (0.45, -2.53, 7e-4, -2e-4, 1.47, 0.33, -2.35, 1.4)
BROWN8 = Camera("brown_conrady", 1280, 720, 608.0, 607.8, 638.5, 366.4, K8)
K4 = (-4e-3, 0.03, -0.03, 0.006)
FISHEYE = Camera("kannala_brandt", 848, 800, 286.0, 286.2, 421.3, 402.0, K4)
ARIA = Camera(
    "fisheye624", 1408, 1408, 609.4, 609.4, 706.3, 704.2,
    (0.384, -0.381, -0.122, 1.556, -1.989, 0.725, -1e-3, 2e-4, 2.2e-3, -4e-4, -1.5e-3, 2.5e-4),
)  # fmt: skip
WIDE = Camera(
    "fisheye624", 640, 480, 241.5, 241.5, 318.4, 237.4,
    (-0.028, 0.105, -0.076, 0.016, -4e-4, -1e-4, 3e-4, -1.8e-3, 1.4e-3, -1.6e-4, 1.8e-3, -6e-5),
)  # fmt: skip
CAMERAS = {
    "pinhole": PINHOLE, "brown5": BROWN5, "brown8": BROWN8, "fisheye": FISHEYE, "aria": ARIA,
    "wide": WIDE,
}  # fmt: skip
every_camera = pytest.mark.parametrize("camera", CAMERAS.values(), ids=CAMERAS.keys())


def image_grid(camera: Camera, step: int = 9) -> np.ndarray:
    x, y = np.meshgrid(np.arange(0.0, camera.width, step), np.arange(0.0, camera.height, step))
    return np.stack([x, y], axis=-1)


def directions(camera: Camera, count: int = 2000, share: float = 1.0) -> np.ndarray:
    """Unit rays evenly over the model's field of view, ``share`` of its half angle."""
    rng = np.random.default_rng(0)
    angle = np.sqrt(rng.random(count)) * min(camera.max_angle, math.radians(179)) * share
    turn = rng.random(count) * 2 * np.pi
    across = np.sin(angle)
    return np.stack([across * np.cos(turn), across * np.sin(turn), np.cos(angle)], axis=-1)


@pytest.mark.parametrize("name", ["pinhole", "brown5", "brown8", "fisheye"])
def test_project_agrees_with_opencv(name: str) -> None:
    rng, camera, zero = np.random.default_rng(1), CAMERAS[name], np.zeros(3)
    points = rng.uniform([-0.5, -0.5, 1], [0.5, 0.5, 1], (3000, 3)) * rng.uniform(0.2, 2, (3000, 1))
    if name == "fisheye":
        points[:, :2] *= 6  # up to 77 degrees
    project = cv2.fisheye.projectPoints if name == "fisheye" else cv2.projectPoints
    expected, _ = project(points[:, None], zero, zero, camera.K, np.array(camera.distortion))
    pixels = camera.project(points)
    assert np.isfinite(pixels).all()
    np.testing.assert_allclose(pixels, expected[:, 0], atol=1e-9, rtol=0)


def fisheye624_by_the_book(camera: Camera, point: np.ndarray) -> list[float]:
    """The formula of the format's description, one scalar at a time."""
    k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = camera.distortion
    x, y, z = (float(v) for v in point)
    length = math.sqrt(x * x + y * y)
    th = math.atan2(length, z)
    scale = 1 + k1 * th**2 + k2 * th**4 + k3 * th**6 + k4 * th**8 + k5 * th**10 + k6 * th**12
    u, v = x / length * th * scale, y / length * th * scale
    r2 = u**2 + v**2
    dx = p1 * (r2 + 2 * u**2) + 2 * p2 * u * v + s1 * r2 + s2 * r2**2
    dy = p2 * (r2 + 2 * v**2) + 2 * p1 * u * v + s3 * r2 + s4 * r2**2
    return [camera.fx * (u + dx) + camera.cx, camera.fy * (v + dy) + camera.cy]


@pytest.mark.parametrize("camera", [ARIA, WIDE], ids=["aria", "wide"])
def test_fisheye624_agrees_with_the_formula(camera: Camera) -> None:
    rays = directions(camera, 500) * 0.7
    expected = [fisheye624_by_the_book(camera, ray) for ray in rays]
    np.testing.assert_allclose(camera.project(rays), expected, atol=1e-9, rtol=0)


def test_fisheye624_contains_every_wrist_of_real_recordings(shared) -> None:
    """Wrists of the hand poses, carried into each camera, must lie in the annotated boxes."""
    folder = shared / "data" / "hot3d_aria_P0003_c701bd11"
    if not folder.is_dir():
        pytest.skip("HOT3D sample not found")
    with (folder / "headset_trajectory.csv").open() as file:
        device = {int(r["timestamp[ns]"]): _pose_of_row(r) for r in csv.DictReader(file)}
    lines = (folder / "umetrack_hand_pose_trajectory.jsonl").read_text().splitlines()
    hands = {line["timestamp_ns"]: line["hand_poses"] for line in map(json.loads, lines)}
    lines = (folder / "mps/slam/online_calibration.jsonl").read_text().splitlines()
    calibrations = [json.loads(line)["CameraCalibrations"] for line in lines]
    labels = {"214-1": "camera-rgb", "1201-1": "camera-slam-left", "1201-2": "camera-slam-right"}
    with (folder / "box2d_hands.csv").open() as file:
        boxes = list(csv.DictReader(file))
    moments = {s: sorted({int(b["timestamp[ns]"]) for b in boxes if b["stream_id"] == s})
               for s in labels}  # fmt: skip
    hits = 0
    for box in boxes:
        if not box["x_min[pixel]"]:
            continue
        stream, time = box["stream_id"], int(box["timestamp[ns]"])
        row = calibrations[moments[stream].index(time)]
        values = next(c for c in row if c["Label"] == labels[stream])
        camera, T_device_camera = _aria_camera(values)
        wrist = np.array(hands[time][box["hand_index"]]["wrist_xform"]["t_xyz"])
        T_world_camera = device[time] @ T_device_camera
        x, y = camera.project(frames.apply(frames.inverse(T_world_camera), wrist))
        hits += float(box["x_min[pixel]"]) <= x <= float(box["x_max[pixel]"]) and float(
            box["y_min[pixel]"]
        ) <= y <= float(box["y_max[pixel]"])
    assert hits == 184


def _pose_of_row(row: dict[str, str]) -> np.ndarray:
    quaternion = np.array([float(row[f"q_wo_{axis}"]) for axis in "wxyz"])
    position = np.array([float(row[f"t_wo_{axis}[m]"]) for axis in "xyz"])
    return frames.rigid(rotations.from_quaternion(quaternion), position)


def _aria_camera(values: dict) -> tuple[Camera, np.ndarray]:
    f, cx, cy, *rest = values["Projection"]["Params"]
    width, height = (1408, 1408) if values["Label"] == "camera-rgb" else (640, 480)
    w, xyz = values["T_Device_Camera"]["UnitQuaternion"]
    rotation = rotations.from_quaternion(np.array([w, *xyz]))
    pose = frames.rigid(rotation, np.array(values["T_Device_Camera"]["Translation"]))
    return Camera("fisheye624", width, height, f, f, cx, cy, tuple(rest)), pose


@every_camera
def test_pixel_to_ray_and_back(camera: Camera) -> None:
    """Every pixel, and the whole field of view; also of the camera in a file."""
    camera = Camera.from_json(json.loads(json.dumps(camera.to_json())), "camera.json")
    assert camera in CAMERAS.values()
    grid = image_grid(camera)
    rays = camera.unproject(grid)
    seen = np.isfinite(rays[..., 0])
    assert seen.mean() > 0.98
    np.testing.assert_allclose(np.linalg.norm(rays[seen], axis=-1), 1, atol=1e-12)
    np.testing.assert_allclose(camera.project(rays * 0.6)[seen], grid[seen], atol=1e-9, rtol=0)
    rays = directions(camera, share=0.999)
    np.testing.assert_allclose(camera.unproject(camera.project(rays)), rays, atol=1e-9, rtol=0)


@every_camera
def test_nothing_is_seen_beyond_the_field_of_view(camera: Camera) -> None:
    beyond = np.linspace(camera.max_angle + 1e-9, math.pi, 20)
    for angle in beyond[beyond < math.pi]:
        ray = np.array([math.sin(angle) * 0.6, math.sin(angle) * 0.8, math.cos(angle)])
        assert np.isnan(camera.project(ray)).all()
    for point in ([0.0, 0.0, -1.0], [np.nan, 0.0, 1.0]):
        assert np.isnan(camera.project(np.array(point))).all()
    for value in (np.nan, np.inf):
        assert np.isnan(camera.unproject(np.array([value, 4.0]))).all()


def lens(model: str, focal: float, *distortion: float) -> Camera:
    return Camera(model, 640, 480, focal, focal, 320.0, 240.0, distortion)


@given(f=st.floats(50, 5000), cx=st.floats(-2000, 3000), cy=st.floats(-2000, 3000))
def test_field_of_view_is_the_angle_between_the_edges(f: float, cx: float, cy: float) -> None:
    """Also of a part of a picture next to the optical axis, which is outside of it then."""
    left, right, top, bottom = -0.5 - cx, 639.5 - cx, -0.5 - cy, 479.5 - cy
    across = math.atan(right / f) - math.atan(left / f)
    down = math.atan(bottom / f) - math.atan(top / f)
    a, b = np.array([left, top, f]), np.array([right, bottom, f])
    diagonal = math.atan2(float(np.linalg.norm(np.cross(a, b))), float(a @ b))
    found = Camera("pinhole", 640, 480, f, f, cx, cy).field_of_view()
    assert found == pytest.approx((across, down, diagonal), abs=1e-6)
    # An ideal fisheye of 640 px across: 150 px per radian are more than half a turn.
    fisheye = Camera("kannala_brandt", 640, 480, 150.0, 150.0, 300.0, 200.0, (0.0,) * 4)
    assert fisheye.field_of_view()[:2] == pytest.approx((640 / 150, 480 / 150))


def test_a_point_without_a_pixel_leaves_its_neighbours_alone() -> None:
    """(1, 2, 4) is half a focal length right and a whole one down, whoever else is NaN."""
    camera = Camera("pinhole", 640, 480, 400.0, 200.0, 320.0, 240.0)
    points = np.array([[1.0, 2.0, 4.0], [np.nan, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, -1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = camera.project(points)
    np.testing.assert_allclose(pixels[0], [420.0, 340.0])
    assert np.isnan(pixels[1:]).all()

    rays = camera.unproject(np.array([[420.0, 340.0], [np.nan, 240.0], [320.0, np.inf]]))
    np.testing.assert_allclose(rays[0], np.array([1.0, 2.0, 4.0]) / math.sqrt(21))
    assert np.isnan(rays[1:]).all()


def test_single_precision_is_read_exactly() -> None:
    camera = Camera("pinhole", 640, 480, 300.0, 300.0, 320.0, 240.0)
    pixel = camera.project(np.array([1.0, 2.0, 3.0], np.float32))
    np.testing.assert_allclose(pixel, [420.0, 440.0], rtol=1e-14)


def test_angles_of_view_are_those_of_the_edges() -> None:
    """Seen from the principal point: 2 focal lengths left, 6 right, 1 up and 3 down."""
    camera = Camera("pinhole", 200, 80, 25.0, 20.0, 49.5, 19.5)
    across = math.atan(2) + math.atan(6)
    down = math.atan(1) + math.atan(3)
    diagonal = math.atan(math.sqrt(4 + 1)) + math.atan(math.sqrt(36 + 9))
    np.testing.assert_allclose(camera.field_of_view(), [across, down, diagonal], rtol=1e-12)

    # A lens that bends rays up to 1.83 radians to 1.22 focal lengths does not fill 3.2 of them.
    lens = Camera("kannala_brandt", 640, 80, 100.0, 100.0, 319.5, 39.5, (-0.1, 0.0, 0.0, 0.0))
    assert np.isnan(lens.field_of_view()).tolist() == [True, False, True]


def test_a_nominal_camera_has_its_angle_across_the_longer_side() -> None:
    for width, height in ((640, 480), (480, 640)):
        camera = Camera.nominal(width, height, 90.0)
        assert (camera.model, camera.width, camera.height) == ("pinhole", width, height)
        assert camera.fx == pytest.approx(320.0) and camera.fy == pytest.approx(320.0)
        assert (camera.cx, camera.cy) == ((width - 1) / 2, (height - 1) / 2)
        assert Camera.nominal(width, height).fx == pytest.approx(320 * math.sqrt(3))


def test_the_rays_of_all_pixels() -> None:
    rays = Camera("pinhole", 4, 3, 2.0, 4.0, 1.0, 1.0).all_rays()
    assert rays.shape == (3, 4, 3)
    np.testing.assert_allclose(rays[2, 3], np.array([1.0, 0.25, 1.0]) / math.sqrt(2.0625))
    np.testing.assert_allclose(rays[1, 1], [0.0, 0.0, 1.0])


@pytest.mark.parametrize(("cx", "cy"), [(339.5, 639.5), (299.5, 639.5), (319.5, 679.5),
                                        (319.5, 599.5)])  # fmt: skip
def test_the_whole_view_reaches_the_farthest_edge(cx: float, cy: float) -> None:
    """An ideal fisheye of 320 and 640 pixels per radian; one edge is 17/16 radians away."""
    lens = Camera("kannala_brandt", 640, 1280, 320.0, 640.0, cx, cy, (0.0,) * 4)
    view = lens.whole_view()
    share = 1 / math.tan(17 / 16)
    assert (view.model, view.width, view.height) == ("pinhole", 640, 1280)
    assert (view.cx, view.cy) == (319.5, 639.5)
    np.testing.assert_allclose([view.fx, view.fy], [320 * share, 640 * share], rtol=1e-9)


def test_the_whole_view_ends_at_65_degrees_and_at_the_limit_of_the_lens() -> None:
    fisheye = Camera("kannala_brandt", 640, 640, 200.0, 200.0, 319.5, 319.5, (0.0,) * 4)
    expected = 320 / math.tan(math.radians(65))  # the edge is 1.6 radians away
    assert fisheye.whole_view().fx == pytest.approx(expected, rel=1e-12)
    # r (1 - 0.9 r^2) ends at r = 1 / sqrt(2.7), before it fills half a focal length.
    narrow = Camera("brown_conrady", 640, 640, 640.0, 640.0, 319.5, 319.5, (-0.9, 0.0, 0.0, 0.0))
    assert narrow.whole_view().fx == pytest.approx(320 * math.sqrt(2.7), rel=1e-9)
    # Never enlarged, as here by 32 / 30 * sqrt(2.7).
    wide = Camera("brown_conrady", 640, 640, 300.0, 300.0, 319.5, 319.5, (-0.9, 0.0, 0.0, 0.0))
    assert wide.whole_view().fx == 300.0


def test_field_of_view_ends_at_the_first_extremum() -> None:
    # r (1 + k r^2) has its maximum where 1 + 3 k r^2 = 0.
    brown = lens("brown_conrady", 500.0, -0.3, 0.0, 0.0, 0.0)
    assert brown.max_angle == pytest.approx(math.atan(math.sqrt(1 / 0.9)), abs=1e-12)
    fisheye = lens("kannala_brandt", 200.0, -0.1, 0.0, 0.0, 0.0)
    assert fisheye.max_angle == pytest.approx(math.sqrt(1 / 0.3), abs=1e-12)
    # Without distortion a fisheye sees all around, but straight behind has no single pixel.
    ideal = lens("kannala_brandt", 100.0, 0.0, 0.0, 0.0, 0.0)
    assert ideal.max_angle == pytest.approx(math.pi)
    behind = np.array([0.0, -math.sin(3.0), math.cos(3.0)])
    np.testing.assert_allclose(ideal.project(behind), [320.0, 240.0 - 300.0], atol=1e-9)
    # A pole of the rational model ends it too: 1 - r^2 / 4 vanishes at r = 2.
    rational = lens("brown_conrady", 500.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.25, 0.0, 0.0)
    assert rational.max_angle == pytest.approx(math.atan(2.0), abs=1e-9)


def test_the_first_fold_by_hand() -> None:
    """Where the determinant of the map's derivative vanishes, first of all on the x axis."""
    # u + s1 r^2, v: its determinant is 1 + 2 s1 u.
    thin = (*[0.0] * 8, -0.2, 0.0, 0.0, 0.0)
    prism = Camera("fisheye624", 640, 480, 99.0, 99.0, 320.0, 240.0, thin)
    assert prism.max_angle == pytest.approx(2.5, abs=1e-12)
    # x + p2 (3 x^2 + y^2), y + 2 p2 x y: (1 + 6 p2 x) (1 + 2 p2 x) on the axis.
    bent = Camera("brown_conrady", 640, 480, 500.0, 500.0, 320.0, 240.0, (0.0, 0.0, 0.0, -0.1))
    assert bent.max_angle == pytest.approx(math.atan(1 / 0.6), abs=1e-12)
    # Neither folds nor turns: all but a right angle.
    straight = Camera("brown_conrady", 640, 480, 500.0, 500.0, 320.0, 240.0, (0.1, 0.0, 0.0, 0.0))
    assert straight.max_angle == pytest.approx(math.atan(1e4), abs=1e-12)


@pytest.mark.parametrize("camera", [BROWN5, BROWN8, FISHEYE, ARIA, WIDE])
def test_derivatives_of_a_lens_against_finite_differences(camera: Camera) -> None:
    plane = np.random.default_rng(2).uniform(-0.4, 0.4, (50, 2))
    _, jacobian = distortion.distort(camera.model, camera.distortion, plane)
    for axis in range(2):
        step = 1e-6 * np.eye(2)[axis]
        ahead, behind = (
            distortion.distort(camera.model, camera.distortion, plane + s)[0] for s in (step, -step)
        )
        np.testing.assert_allclose(jacobian[..., axis], (ahead - behind) / 2e-6, atol=1e-8)


def test_asymmetric_terms_end_the_field_of_view_before_the_image_folds() -> None:
    """The radial function of this lens grows for ever; its thin prism folds it at 80 degrees."""
    assert math.radians(60) < ARIA.max_angle < math.radians(90)
    bent = lens("brown_conrady", 500.0, -0.3, 0.0, 0.02, 0.0)
    assert bent.max_angle < lens("brown_conrady", 500.0, -0.3, 0.0, 0.0, 0.0).max_angle
    for camera in (ARIA, bent):
        rays = directions(camera, 20000)
        back = camera.unproject(camera.project(rays))
        # Two directions on one pixel would differ by far more.
        np.testing.assert_allclose(back, rays, atol=1e-4, rtol=0)


small = {"allow_nan": False, "allow_infinity": False}


@st.composite
def cameras(draw) -> Camera:
    model = draw(st.sampled_from(["pinhole", "brown_conrady", "kannala_brandt", "fisheye624"]))
    width, height = draw(st.integers(2, 4000)), draw(st.integers(2, 4000))
    focal = draw(st.floats(0.2, 2.0)) * max(width, height)
    aspect = draw(st.floats(0.9, 1.1))
    cx, cy = draw(st.floats(0.3, 0.7)) * width, draw(st.floats(0.3, 0.7)) * height
    radial, tangential = st.floats(-0.3, 0.3, **small), st.floats(-5e-3, 5e-3, **small)
    counts = {"pinhole": (0, 0), "brown_conrady": (2, 2), "kannala_brandt": (4, 0),
              "fisheye624": (6, 6)}  # fmt: skip
    k, p = counts[model]
    values = [draw(radial) for _ in range(k)] + [draw(tangential) for _ in range(p)]
    if model == "brown_conrady":
        values += [draw(radial) for _ in range(draw(st.sampled_from([0, 1, 4])))]
    return Camera(model, width, height, focal, focal * aspect, cx, cy, tuple(values))


# The shape checker samples tuples at random, which hypothesis remarks on.
quiet = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")


@quiet
@settings(max_examples=80, deadline=None)
@given(cameras(), st.floats(0.0, 0.99), st.floats(0.0, 6.28))
def test_round_trip_for_any_lens(camera: Camera, share: float, turn: float) -> None:
    angle = share * min(camera.max_angle, math.radians(178))
    across = math.sin(angle)
    ray = np.array([across * math.cos(turn), across * math.sin(turn), math.cos(angle)])
    pixel = camera.project(ray * 3.7)
    back = camera.unproject(pixel)
    np.testing.assert_allclose(back, ray, atol=1e-6, rtol=0)
    np.testing.assert_allclose(camera.project(back), pixel, rtol=1e-9, atol=1e-6)


@quiet
@settings(max_examples=80, deadline=None)
@given(cameras(), st.integers(1, 5000), st.integers(1, 5000))
def test_rescaled_camera_sees_the_rescaled_image(camera: Camera, width: int, height: int) -> None:
    rays = directions(camera, 50, share=0.9)
    scale = np.array([width / camera.width, height / camera.height])
    expected = (camera.project(rays) + 0.5) * scale - 0.5
    resized = camera.rescaled(width, height)
    assert (resized.width, resized.height) == (width, height)
    np.testing.assert_allclose(resized.project(rays), expected, rtol=1e-9, atol=1e-6)


def test_cropped_camera_shifts_pixels() -> None:
    crop = BROWN5.cropped(100, -20, 200, 150)
    ray = BROWN5.unproject(np.array([150.0, 60.0]))
    np.testing.assert_allclose(crop.project(ray), [50.0, 80.0], atol=1e-9)
    assert (crop.width, crop.height) == (200, 150)


@every_camera
def test_pinhole_like_looks_along_the_centre(camera: Camera) -> None:
    pinhole = camera.pinhole_like()
    assert pinhole.model == "pinhole" and pinhole.distortion == ()
    assert (pinhole.width, pinhole.height) == (camera.width, camera.height)
    assert (pinhole.fx, pinhole.fy) == (camera.fx, camera.fy)
    centre = pinhole.project(np.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(centre, [(camera.width - 1) / 2, (camera.height - 1) / 2])


@every_camera
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_the_camera_of_a_turned_picture(camera: Camera, degrees: int) -> None:
    """Pixels go where numpy turns them, for points turned about the optical axis alike."""
    rays = directions(camera, 40, share=0.6)
    turns = degrees // 90
    rotated = camera.rotated(degrees)
    image = np.arange(camera.width * camera.height).reshape(camera.height, camera.width)
    turned = np.rot90(image, -turns)  # clockwise
    assert (rotated.height, rotated.width) == turned.shape

    corner = np.argwhere(turned == 0)[0][::-1]  # where the first pixel went
    right, down = (np.argwhere(turned == n)[0][::-1] - corner for n in (1, camera.width))
    pixels = camera.project(rays)
    expected = corner + pixels[:, :1] * right + pixels[:, 1:] * down
    about_z = np.array([[right[0], down[0], 0], [right[1], down[1], 0], [0, 0, 1.0]])
    np.testing.assert_allclose(rotated.project(rays @ about_z.T), expected, atol=1e-9)


def test_contains_covers_whole_pixels() -> None:
    inside = [[-0.5, -0.5], [1279.49, 719.49]]
    outside = [[1279.5, 0], [0, 719.5], [-0.51, 5], [np.nan, 5]]
    assert PINHOLE.contains(np.array(inside + outside)).tolist() == [True] * 2 + [False] * 4
    assert PINHOLE.contains(np.array([3.0, 4.0])).shape == ()


@every_camera
def test_batch_axes_are_kept(camera: Camera) -> None:
    rays = directions(camera, 12, share=0.5).reshape(3, 4, 3)
    pixels = camera.project(rays)
    assert pixels.shape == (3, 4, 2) and camera.unproject(pixels).shape == (3, 4, 3)
    np.testing.assert_array_equal(camera.project(rays[1, 2]), pixels[1, 2])
    assert camera.project(np.zeros((0, 3))).shape == (0, 2)
    assert camera.unproject(np.zeros((0, 2))).shape == (0, 3)
    single = camera.project(rays.astype(np.float32))
    assert single.dtype == np.float64


VALID = dict(model="pinhole", width=640, height=480, fx=500, fy=500, cx=320, cy=240)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "fisheye"}, "kannala_brandt (4 coefficients: OpenCV's cv2.fisheye"),
        ({"model": 3}, "unknown camera model 3"),
        ({"model": "pinhol"}, "pinhole"),
        ({"model": "fisheye_624"}, "Did you mean 'fisheye624'"),
        ({"width": 0}, "0 x 480"),
        ({"height": 0}, "640 x 0"),
        ({"width": 640.5}, "whole pixels"),
        ({"width": math.inf}, "whole pixels"),
        ({"height": 480.5}, "'height' is 480.5"),
        ({"fx": -500}, "above 0"),
        ({"fx": 0}, "fx 0.0"),
        ({"fy": 0}, "fy 0.0"),
        ({"fx": "500"}, "give a number"),
        ({"fy": True}, "give a number"),
        ({"cx": math.nan}, "cx is nan"),
        ({"distortion": [0.1]}, "0 distortion coefficients, got 1"),
        ({"model": "brown_conrady", "distortion": [0.1] * 6}, "4 or 5 or 8"),
        ({"model": "brown_conrady"}, "4 or 5 or 8 distortion coefficients, got 0"),
        ({"model": "kannala_brandt", "distortion": [math.inf, 0, 0, 0]}, "not finite"),
        ({"distortion": "none"}, "list of numbers"),
        ({"model": "kannala_brandt", "distortion": [0, "a", 0, 0]}, "'distortion' is 'a'"),
        ({"focal": 3}, "unknown camera field 'focal'"),
        ({"heigth": 3}, "Did you mean 'height'"),
        ({"cy": None}, "'cy' is None"),
    ],
)
def test_unusable_cameras_say_why(change: dict, message: str) -> None:
    values = {name: value for name, value in (VALID | change).items() if value is not ...}
    with pytest.raises(CalibrationError, match=r"^cam\.json: ") as error:
        Camera.from_json(values, "cam.json")
    assert message in str(error.value)


@pytest.mark.parametrize("name", VALID)
def test_missing_field_is_named(name: str) -> None:
    values = {k: v for k, v in VALID.items() if k != name}
    with pytest.raises(CalibrationError, match=rf"cam\.json: .*'{name}'"):
        Camera.from_json(values, "cam.json")
    with pytest.raises(CalibrationError, match=rf"^camera field '{name}'"):
        Camera.from_json(values)


def test_only_a_bare_fisheye_has_two_meanings() -> None:
    for model, ambiguous in (("Fisheye", True), ("pinhol", False), ("fisheye_624", False)):
        with pytest.raises(CalibrationError) as error:
            Camera.from_json(VALID | {"model": model})
        assert ("cv2.fisheye" in str(error.value)) == ambiguous


def test_coefficients_in_opencv_order() -> None:
    """OpenCV takes 4, 5, 8, 12 or 14; ours end at the eighth, so the rest must be 0."""
    eight = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    for count in (4, 5, 8):
        assert opencv_distortion(eight[:count]) == ("brown_conrady", tuple(eight[:count]))
    for zeros in (4, 6):
        assert opencv_distortion([*eight, *[0.0] * zeros]) == ("brown_conrady", tuple(eight))
        assert opencv_distortion([0.0] * zeros) == ("pinhole", ())
    assert opencv_distortion([*[0.0] * 7, 0.8]) == ("brown_conrady", (*[0.0] * 7, 0.8))
    with pytest.raises(CalibrationError, match=r"0\.9"):
        opencv_distortion([*eight, 0.9, 0.0, 0.0, 0.0])
    with pytest.raises(CalibrationError, match=r"\b6\b"):
        opencv_distortion(eight[:6])
