"""Bags with depth and several cameras: ramps of known distances, rigs with transforms by hand."""

import struct
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.errors import CalibrationError, InputError
from acehand_core.motion import Depth, HandMotion, Recording
from acehand_core.recordings.bags.topics import bag_info
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import open_recording
from acehand_core.recordings.selection import part
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.choose import CachedTracker
from acehand_core.types import Progress, no_progress
from helpers.bag_samples import START, SampleBag, index_of, pictures, stamps

COLOUR, ALIGNED = "/camera/color", "/camera/aligned_depth_to_color/image_raw"
DEPTH = "/camera/depth/image_rect_raw"
WIDTH, HEIGHT = 20, 12
DEPTH_K = (30.0, 31.0, 9.5, 5.5)


def ramp_mm(frame: int = 0) -> np.ndarray:
    """Distances that rise by 7 mm per pixel from 300 mm; row 2 has no reading."""
    mm = 300 + frame + 7 * np.arange(WIDTH * HEIGHT, dtype=np.uint16).reshape(HEIGHT, WIDTH)
    mm[2] = 0
    return mm.astype(np.uint16)


def ramp_m(frame: int = 0) -> np.ndarray:
    metres = ramp_mm(frame) / 1000
    return np.where(metres > 0, metres, np.nan)


def assert_depth(shown: np.ndarray, truth: np.ndarray, worst: float = 1e-6) -> None:
    assert shown.dtype == np.float32 and shown.shape == truth.shape
    assert np.array_equal(np.isnan(shown), np.isnan(truth))
    assert np.nanmax(np.abs(shown - truth)) <= worst


def encode_rvl(values: np.ndarray) -> bytes:
    """Written from the paper, number by number (Wilson 2017, section 3)."""
    nibbles: list[int] = []

    def put(number: int) -> None:
        while True:
            number, low = divmod(number, 8)
            nibbles.append(low + (8 if number else 0))
            if not number:
                return

    flat, at, last = values.ravel().tolist(), 0, 0
    while at < len(flat):
        zeros = next((i for i, v in enumerate(flat[at:]) if v), len(flat) - at)
        at += zeros
        some = next((i for i, v in enumerate(flat[at:]) if not v), len(flat) - at)
        put(zeros)
        put(some)
        for value in flat[at : at + some]:
            step = value - last
            put(2 * step if step >= 0 else -2 * step - 1)
            last = value
        at += some
    nibbles += [0] * (-len(nibbles) % 8)
    words = [sum(n << 28 - 4 * i for i, n in enumerate(nibbles[k : k + 8]))
             for k in range(0, len(nibbles), 8)]  # fmt: skip
    size = struct.pack("<II", values.shape[1], values.shape[0])
    return size + struct.pack(f"<{len(words)}I", *words)


def packed(values: np.ndarray, form: str, a: float = 0.0, b: float = 0.0) -> np.ndarray:
    body = encode_rvl(values) if form == "rvl" else cv2.imencode(".png", values)[1].tobytes()
    return np.frombuffer(struct.pack("<iff", 0, a, b) + body, np.uint8)


class Rig(SampleBag):
    """A bag of a RealSense: colour and depth 15 mm to its right, frames of their own."""

    def colour(self, count: int = 4, topic: str = COLOUR, **info: object) -> None:
        for image, ns in zip(pictures(count), stamps(count), strict=True):
            self.image(image, ns, topic=f"{topic}/image_raw", frame="color")
            self.camera_info(ns, topic=f"{topic}/camera_info", frame="color", **info)

    def depth(self, values: np.ndarray | None = None, count: int = 4, **more: object) -> None:
        """Raw depth, 10 ms after the colour; ``more`` as of ``pixels``."""
        given = {"topic": DEPTH, "frame": "depth", "encoding": "16UC1"} | more
        for i, ns in enumerate(stamps(count, start=START + 10_000_000)):
            shown = ramp_mm(i) if values is None else values
            self.pixels(shown, shown.shape, ns, **given)

    def depth_info(self, **more: object) -> None:
        given = {"k": DEPTH_K, "size": (WIDTH, HEIGHT), "frame": "depth"} | more
        self.camera_info(START, topic=given.pop("topic", "/camera/depth/camera_info"), **given)

    def frames(self) -> None:
        """link -> color 15 mm along x and a quarter turn about z; link -> depth 2 mm along y."""
        half = np.sqrt(0.5)
        self.tf(START, "link", "color", (0.015, 0, 0), (half, 0, 0, half), topic="/tf_static")
        self.tf(START, "link", "depth", (0, 0.002, 0), (1, 0, 0, 0), topic="/tf_static")


def rig(path: Path, **depth: object) -> None:
    with Rig(path) as bag:
        bag.colour()
        bag.depth(**depth)
        bag.depth_info()
        bag.frames()


def depth_of(path: Path, **reading: str) -> Depth:
    depth = index_of(path, **reading).whole.depth
    assert depth is not None, index_of(path, **reading).whole.notes
    return depth


def test_unregistered_depth_has_its_own_camera_and_the_pose_of_tf(tmp_path: Path) -> None:
    rig(tmp_path / "bag")
    recording = open_recording(tmp_path / "bag")
    depth = recording.depth
    # A quarter turn about z: x of the colour camera is the link's y, its y the link's -x.
    pose = [[0, 1, 0, 0.002], [-1, 0, 0, 0.015], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert np.allclose(depth.T_camera_depth, pose, atol=1e-12)
    assert (depth.camera.width, depth.camera.height, depth.camera.fx) == (WIDTH, HEIGHT, 30)
    assert (depth.camera.fy, depth.camera.cx, depth.camera.cy) == DEPTH_K[1:]
    assert depth.timestamps_ns.tolist() == stamps(4, start=START + 10_000_000)
    for i in (3, 0, 2, 1):
        assert_depth(depth.frames.at(i), ramp_m(i))
    assert recording.camera.fx == 40 and recording.processing["depth_topic"] == DEPTH
    assert any(DEPTH in note and "is used" in note for note in recording.notes)
    assert index_of(tmp_path / "bag").topics["depth"] == DEPTH
    assert index_of(tmp_path / "bag", depth_topic="none").whole.depth is None


@pytest.mark.parametrize("big_endian", [0, 1])
@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("encoding", ["16UC1", "mono16", "32FC1"])
def test_raw_depth(tmp_path: Path, encoding: str, padding: int, big_endian: int) -> None:
    stored, truth = ramp_mm(), ramp_m()
    if encoding == "32FC1":
        stored = truth.copy()
        stored[5, :4] = np.inf, -np.inf, 0, -1.5
        truth[5, :4] = np.nan
    order = ">" if big_endian else "<"
    stored = stored.astype(f"{order}{'f4' if encoding == '32FC1' else 'u2'}")
    rig(tmp_path / "bag", values=stored, encoding=encoding, padding=padding, big_endian=big_endian)
    assert_depth(depth_of(tmp_path / "bag").frames.at(0), truth)


@pytest.mark.parametrize("form", ["png", "rvl", ""])
@pytest.mark.parametrize("encoding", ["16UC1", "32FC1"])
def test_compressed_depth(tmp_path: Path, encoding: str, form: str) -> None:
    """32FC1 is quantised in inverse depth: value = a / z + b, rounded down."""
    truth = ramp_m()
    if encoding == "16UC1":
        data, worst = packed(ramp_mm(), form), 1e-6
    else:
        a = 100.0 * 101.0
        b = 1.0 - a / 10.0
        inverse = np.where(np.isnan(truth), 0, a / truth + b).astype(np.uint16)
        data, worst = packed(inverse, form, a, b), 2.0**2 / a
    with Rig(tmp_path / "bag") as bag:
        bag.colour()
        text, topic = f"{encoding}; compressedDepth {form}".strip(), f"{DEPTH}/compressedDepth"
        for ns in stamps(4):
            bag.compressed_bytes(data, ns, text, topic, frame="depth")
        bag.depth_info()
        bag.frames()
    assert_depth(depth_of(tmp_path / "bag").frames.at(2), truth, worst)


def test_rvl_of_any_picture(tmp_path: Path) -> None:
    """Noise with holes, steps over the whole range, nothing at all."""
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 65536, (HEIGHT, WIDTH)).astype(np.uint16)
    noise[rng.random(noise.shape) < 0.4] = 0
    full = np.tile(np.array([1, 65535], np.uint16), (HEIGHT, WIDTH // 2))
    images = [noise, full, np.zeros((HEIGHT, WIDTH), np.uint16), ramp_mm()]
    with Rig(tmp_path / "bag") as bag:
        bag.colour()
        for image, ns in zip(images, stamps(4), strict=True):
            bag.compressed_bytes(packed(image, "rvl"), ns, "16UC1; compressedDepth rvl", DEPTH,
                                 frame="depth")  # fmt: skip
        bag.depth_info()
        bag.frames()
    frames = depth_of(tmp_path / "bag").frames
    for i, image in enumerate(images):
        shown = np.nan_to_num(frames.at(i)) * 1000
        assert np.array_equal(np.round(shown).astype(int), image)


LENS = (0.1, -0.02, 1e-3, 2e-3, 3e-3)


@pytest.mark.parametrize("info", ["none", "same", "other"])
def test_registered_depth_has_the_camera_of_the_pictures(tmp_path: Path, info: str) -> None:
    """With its distortion, which the driver leaves out; it is preferred to the unregistered."""
    ramp = np.full((24, 32), 700, np.uint16)
    with Rig(tmp_path / "bag") as bag:
        bag.colour(d=LENS)
        bag.depth()
        bag.depth_info()
        bag.frames()
        bag.depth(ramp, topic=ALIGNED, frame="color")
        where = {"topic": "/camera/aligned_depth_to_color/camera_info", "size": (32, 24)}
        if info != "none":
            k = (40, 41, 15.5, 11.5) if info == "same" else (38, 39, 15, 11)
            bag.depth_info(k=k, frame="color", **where)
    recording = index_of(tmp_path / "bag").whole
    assert recording.processing["depth_topic"] == ALIGNED
    assert np.array_equal(recording.depth.T_camera_depth, np.eye(4))
    if info == "other":
        assert (recording.depth.camera.model, recording.depth.camera.fx) == ("pinhole", 38)
    else:
        assert recording.depth.camera == recording.camera
        assert recording.depth.camera.distortion[:5] == LENS
    opened = open_recording(tmp_path / "bag")
    assert opened.camera.model == "pinhole" and opened.depth.camera == recording.depth.camera
    other = index_of(tmp_path / "bag", depth_topic=DEPTH).whole
    assert other.processing["depth_topic"] == DEPTH and other.depth.camera.fx == 30


@pytest.mark.parametrize(
    ("colour", "topic", "info"),
    [
        ("/camera/camera/color", "/camera/camera/depth/image_rect_raw",
         "/camera/camera/depth/camera_info"),
        ("/camera/color", "/camera/depth/image_raw", "/camera/depth/camera_info"),  # orbbec
        ("/zed/zed_node/rgb/color/rect", "/zed/zed_node/depth/depth_registered",
         "/zed/zed_node/depth/depth_info"),
        ("/zed/zed_node/left", "/zed/zed_node/depth/depth_registered",
         "/zed/zed_node/depth/camera_info"),
        ("/oak/rgb", "/oak/stereo/image_raw", "/oak/stereo/camera_info"),
        ("/color/video", "/stereo/depth", "/stereo/camera_info"),  # examples of depthai
    ],
)  # fmt: skip
def test_topics_of_drivers(tmp_path: Path, colour: str, topic: str, info: str) -> None:
    with Rig(tmp_path / "bag") as bag:
        bag.colour(topic=colour)
        bag.depth(topic=topic)
        bag.depth_info(topic=info)
        bag.frames()
    recording = index_of(tmp_path / "bag").whole
    assert recording.processing["topic"] == f"{colour}/image_raw"
    assert recording.processing["depth_topic"] == topic and recording.depth.camera.fx == 30
    told = bag_info(tmp_path / "bag")
    assert told.depth == (topic,) and told.image == f"{colour}/image_raw" and told.views == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no tf", r"no transforms connect 'depth' with 'color'.*/tf_static"),
        ("moving", r"'depth' moves in 'color'"),
        ("no frame", r"frame_id"),
        ("viewer", r"no transforms connect 'camera/depth' with 'camera/color'"),
        ("no info", r"no CameraInfo.*/camera/depth/camera_info.*'depth'"),
        ("size", r"/camera/depth/camera_info.*calibrated at 20 x 20.*20 x 12"),
        ("mm as m", r"1\.21e\+03 m; valid: 0\.05 to 50\. 32FC1 has metres, 16UC1 millimetres"),
        ("m as mm", r"0\.001 m; valid: 0\.05 to 50\. 32FC1 has metres, 16UC1 millimetres"),
        ("8 bits", r"'mono8' is no depth.*16UC1"),
        ("clock", r"do not compare with the pictures'.*header stamps of one clock"),
        ("no stamps", r"do not compare with the pictures'.*header stamps of one clock"),
    ],
)
def test_depth_that_does_not_fit(tmp_path: Path, wrong: str, message: str) -> None:
    """Named: an error; found by type: a note, and no depth."""
    values, more = None, {}
    if wrong == "mm as m":
        values, more = ramp_mm().astype(np.float32), {"encoding": "32FC1"}
    if wrong == "m as mm":
        values = (ramp_mm() // 1000).astype(np.uint16)
    if wrong == "8 bits":
        values, more = ramp_mm().astype(np.uint8), {"encoding": "mono8"}
    if wrong in ("no frame", "viewer"):
        more = {"frame": "" if wrong == "no frame" else "1"}
    with Rig(tmp_path / "bag") as bag:
        for image, ns in zip(pictures(4), stamps(4), strict=True):
            frame = "1" if wrong == "viewer" else "color"
            bag.image(image, ns, topic=f"{COLOUR}/image_raw", frame=frame)
        bag.camera_info(START, topic=f"{COLOUR}/camera_info", frame="color")
        if wrong in ("clock", "no stamps"):
            for i in range(4):
                ns = (START - 10**12 + i * 10**8) if wrong == "clock" else 0
                bag.pixels(ramp_mm(), (HEIGHT, WIDTH), ns, "16UC1", DEPTH, frame="depth",
                           log_ns=START + i * 10**8)  # fmt: skip
        else:
            bag.depth(values, **more)
        if wrong != "no info":
            bag.depth_info(size=(WIDTH, 20 if wrong == "size" else HEIGHT))
        if wrong == "moving":
            bag.tf(START, "link", "color", (0.015, 0, 0), (1, 0, 0, 0), topic="/tf_static")
            for i in range(5):
                bag.tf(START + i * 30_000_000, "link", "depth", (i, 0, 0), (1, 0, 0, 0))
        elif wrong != "no tf":
            bag.frames()
    with pytest.raises(InputError, match=rf"bag: `depth_topic={DEPTH}`: .*{message}"):
        index_of(tmp_path / "bag", depth_topic=DEPTH)
    index = index_of(tmp_path / "bag")
    assert index.whole.depth is None and "depth_topic" not in index.whole.processing
    assert index.topics["depth"] is None and index.dropped.by_topic.total() == 0
    (note,) = [note for note in index.whole.notes if "depth not used" in note]
    assert DEPTH in note


def test_named_topics_of_the_wrong_type(tmp_path: Path) -> None:
    rig(tmp_path / "bag")
    for topic, message in (
        ("/camera/depth/camera_info", "sensor_msgs/msg/CameraInfo; valid: sensor_msgs/msg/Image"),
        ("/camera/depth/image_rec", f"Did you mean '{DEPTH}'"),
    ):
        with pytest.raises(InputError, match=message):
            index_of(tmp_path / "bag", depth_topic=topic)
    with pytest.raises(InputError, match="that of the pictures"):
        index_of(tmp_path / "bag", depth_topic=f"{COLOUR}/image_raw")


def test_of_several_fitting_topics_one_must_be_named(tmp_path: Path) -> None:
    rig(tmp_path / "bag")
    with Rig(tmp_path / "two") as bag:
        bag.colour()
        bag.frames()
        for topic in (DEPTH, "/other/depth/image_raw"):
            bag.depth(topic=topic)
            bag.depth_info(topic=topic.rsplit("/", 1)[0] + "/camera_info")
    whole = index_of(tmp_path / "two").whole
    assert whole.depth is None
    assert any(f"{DEPTH}, /other" in note and "`depth_topic`" in note for note in whole.notes)
    assert depth_of(tmp_path / "two", depth_topic=DEPTH).camera.fx == 30


def test_a_broken_picture_has_no_readings_and_counts_once(tmp_path: Path) -> None:
    good = packed(ramp_mm(), "rvl")
    broken = good.copy()
    broken[20:40] = 255  # numbers without an end
    with Rig(tmp_path / "bag") as bag:
        bag.colour()
        for i, ns in enumerate(stamps(4)):
            bag.compressed_bytes(broken if i == 1 else good, ns, "16UC1; compressedDepth rvl",
                                 DEPTH, frame="depth")  # fmt: skip
        bag.depth_info()
        bag.frames()
    index = index_of(tmp_path / "bag")
    shown: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: shown.extend(map(index.whole.depth.frames.at, range(4))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shown) == 16
    assert sum(bool(np.isnan(depth).all()) for depth in shown) == 4
    assert index.dropped.by_topic == {DEPTH: 1}
    with pytest.raises(IndexError):
        index.whole.depth.frames.at(4)


def stereo(path: Path, baseline: float = 0.063, **right: object) -> None:
    """A left camera, a distorted right one, and a far one with another rate."""
    with SampleBag(path) as bag:
        for side, x in (("left", 0.0), ("right", baseline), ("far", 0.5)):
            for i, ns in enumerate(stamps(4 if side != "far" else 2)):
                image = pictures(4, seed=20 if side == "right" else 0)[i]
                bag.image(image, ns, topic=f"/rig/{side}/image_raw", frame=side)
            more = {"d": LENS, **right} if side == "right" else {}
            bag.camera_info(START, topic=f"/rig/{side}/camera_info", frame=side, **more)
            bag.tf(START, "rig", side, (x, 0, 0), (1, 0, 0, 0), topic="/tf_static")


def test_views_are_other_cameras_with_their_poses(tmp_path: Path) -> None:
    stereo(tmp_path / "bag")
    left = "/rig/left/image_raw"
    assert index_of(tmp_path / "bag", image_topic=left).whole.views == ()
    for asked, names in (
        ("left,right", ["right"]),
        ("/rig/right/image_raw, far", ["rig_right", "far"]),
    ):
        index = index_of(tmp_path / "bag", image_topic=left, views=asked)
        views = index.whole.views
        assert [view.name for view in views] == names
        right = views[0]
        assert np.allclose(right.T_camera_view[:3], [[1, 0, 0, 0.063], [0, 1, 0, 0], [0, 0, 1, 0]])
        assert right.recording.timestamps_ns.tolist() == stamps(4)
        whole = open_recording(tmp_path / "bag", image_topic=left, views=asked)
        opened = whole.views[0].recording
        assert opened.camera.model == "pinhole" and "undistorted" in opened.processing
        assert index.topics["views"][names[0]] == "/rig/right/image_raw"
        assert not any("stereo" in note for note in index.whole.notes)
    far = views[1]
    assert np.array_equal(far.recording.frames.at(1), pictures(4)[1])
    assert len(far.recording) == 2 and far.recording.camera.fx == 40
    assert far.T_camera_view[0, 3] == 0.5
    told = bag_info(tmp_path / "bag")
    assert told.remark and told.image is None


def test_views_that_do_not_fit(tmp_path: Path) -> None:
    stereo(tmp_path / "bag")
    stereo(tmp_path / "zero", baseline=0.0)
    stereo(tmp_path / "size", size=(32, 32))
    reading = {"image_topic": "/rig/left/image_raw"}
    for bag, views, message in (
        ("bag", "wrist", r"'wrist'` names 0 cameras; valid: /rig/right/image_raw, /rig/far"),
        ("bag", "rig", r"'rig'` names 2 cameras; valid: /rig/right/image_raw, /rig/far"),
        ("bag", "left", r"no camera besides /rig/left/image_raw"),
        ("bag", "/rig/right/camera_info", "CameraInfo; valid: sensor_msgs/msg/Image"),
        ("zero", "right", r"`views=right`: .*0 mm from the camera of /rig/left"),
        ("size", "right", r"`views=right`: .*calibrated at 32 x 32"),
    ):
        with pytest.raises(InputError, match=message):
            index_of(tmp_path / bag, views=views, **reading)


def test_bag_info_names_depth_and_views(tmp_path: Path) -> None:
    with Rig(tmp_path / "bag") as bag:
        for side in ("left", "right"):
            bag.image(pictures(1)[0], START, topic=f"/cam/{side}/image_raw")
        bag.depth()
    info = bag_info(tmp_path / "bag").to_json()
    assert info["image"] == "/cam/left/image_raw"
    assert info["depth"] == (DEPTH,) and info["views"] == ("/cam/right/image_raw",)


def test_a_part_has_what_depth_and_views_show_around_it(tmp_path: Path) -> None:
    rig(tmp_path / "bag")
    depth = part(index_of(tmp_path / "bag").whole, 2, 3).depth
    # Depth is 10 ms late: the pictures before and after the third.
    assert depth.timestamps_ns.tolist() == stamps(4, start=START + 10_000_000)[1:3]
    assert_depth(depth.frames.at(0), ramp_m(1))
    assert_depth(depth.frames.at(1), ramp_m(2))
    assert len(depth.frames) == 2
    stereo(tmp_path / "pair")
    views = {"image_topic": "/rig/left/image_raw", "views": "right,far"}
    right, far = part(index_of(tmp_path / "pair", **views).whole, 3, 4).views
    assert right.recording.timestamps_ns.tolist() == stamps(4)[3:]
    assert far.recording.timestamps_ns.tolist() == stamps(2)[1:]  # its last one


def test_mirrored_pictures_have_no_depth(tmp_path: Path) -> None:
    rig(tmp_path / "bag")
    recording = open_recording(tmp_path / "bag", RecordingOptions(mirrored=True))
    assert recording.depth is None
    assert [note for note in recording.notes if "depth" in note] == [
        "mirrored: depth and views are not used"
    ]


class NoHands:
    name, placed, hand_model = "none", True, "none"

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        raise NotImplementedError


def test_cached_hands_differ_by_depth_and_views(tmp_path: Path) -> None:
    rig(tmp_path / "bag")
    stereo(tmp_path / "pair")

    def path(recording: Recording) -> Path | None:
        return CachedTracker(NoHands(), TrackerSettings(), tmp_path).path(recording)

    left = {"image_topic": "/rig/left/image_raw"}
    recordings = [
        index_of(tmp_path / "bag").whole,
        index_of(tmp_path / "bag", depth_topic="none").whole,
        *(index_of(tmp_path / "pair", **left, **views).whole
          for views in ({}, {"views": "right"}, {"views": "right,far"}, {"views": "far"})),
    ]  # fmt: skip
    assert len({path(recording) for recording in recordings}) == 6
    assert path(index_of(tmp_path / "bag").whole) == path(recordings[0])
    assert recordings[0].sha256 == recordings[1].sha256


def test_the_camera_of_views_and_depth_must_be_there(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        for side in ("left", "right"):
            bag.image(pictures(1)[0], START, topic=f"/rig/{side}/image_raw", frame=side)
            bag.tf(START, "rig", side, (side == "right", 0, 0), (1, 0, 0, 0), topic="/tf_static")
    with pytest.raises(CalibrationError, match=r"`views=right`: .*no CameraInfo"):
        index_of(tmp_path / "bag", views="right")
