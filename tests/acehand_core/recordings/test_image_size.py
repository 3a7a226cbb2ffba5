"""Recordings of several sizes in one dataset: what is in a pixel stays where its camera says."""

from dataclasses import replace

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.recordings.selection import Fit
from acehand_core.recordings.video import open_video
from helpers.commands import GripperRun as Run
from helpers.example_video import EXAMPLE
from helpers.fake_motion import random_motion
from helpers.lerobot_samples import check_every_frame
from helpers.video_fixtures import Images, write_video

LENS = Camera("kannala_brandt", 160, 120, 70.0, 71.0, 77.0, 63.0, (0.02, -0.01, 0.0, 0.0))


@pytest.mark.parametrize("mode", ["letterbox", "crop"])
@pytest.mark.parametrize("size", [(80, 60), (320, 240), (200, 90), (90, 200), (160, 160)])
def test_a_spot_stays_where_its_ray_is(size: tuple[int, int], mode: str) -> None:
    fit = Fit((160, 120), size, mode)
    camera = fit.camera(LENS)
    assert (camera.width, camera.height) == size
    rows, columns = np.indices((size[1], size[0]))
    for x, y in ((80, 60), (70, 45), (95, 75)):  # seen in every one of them
        image = np.zeros((120, 160, 3), np.uint8)
        image[y - 3 : y + 4, x - 3 : x + 4] = 255
        shown = fit.image(image)[..., 0].astype(float)
        assert shown.shape == (size[1], size[0])
        centre = [(shown * columns).sum() / shown.sum(), (shown * rows).sum() / shown.sum()]
        ray = LENS.unproject(np.array([[float(x), float(y)]]))
        assert np.abs(camera.project(ray)[0] - centre).max() < 0.1


def test_frames_and_hands_follow() -> None:
    images = Images([np.full((120, 160, 3), 20 * k, np.uint8) for k in range(5)])
    stamps = np.arange(5) * 10**8
    recording = Recording("x", None, stamps, 10.0, 160, 120, images, LENS)
    fit = Fit((160, 120), (64, 64), "crop")
    fitted = fit.recording(recording)
    assert (fitted.width, fitted.height) == (64, 64) and fitted.camera == fit.camera(LENS)
    assert [image[0, 0, 0] for image in fitted.frames.read(1, 4)] == [20, 40, 60]
    assert fitted.frames.at(4)[63, 63, 0] == 80

    joints = np.random.default_rng(0).uniform([-1.2, -0.5, 0.5], [1.2, 0.5, 1.0], (4, 2, 21, 3))
    motion = replace(
        random_motion(frames=4), camera=LENS, joints_camera=joints, visible=np.ones((4, 2)),
        joints_image=LENS.project(joints),
    )  # fmt: skip
    hands = fit.hands(motion)
    pixels = hands.camera.project(joints)
    assert np.abs(hands.joints_image - pixels).max() < 0.3
    inside = ((pixels > -0.5) & (pixels < 63.5)).all(-1).mean(-1)
    assert hands.provenance.settings["source_size"] == [160, 120]
    assert inside.min() < 0.9 and np.allclose(hands.visible, inside)
    assert np.array_equal(hands.joints_camera, motion.joints_camera, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("fit", ["letterbox", "crop"])
def test_one_dataset_of_several_sizes(tmp_path, capsys, fit: str) -> None:
    half = np.stack([image[::2, ::2] for image in open_video(EXAMPLE).frames.read(0, 12)])
    assert half.shape[1:3] == (240, 320)
    write_video(tmp_path / "b.mp4", [*half])
    write_video(tmp_path / "upright.mp4", [*half[:, :, 40:200]])
    job = ["--duration", "0.4", "--no-overlay", "--quality", "fast", "--output", tmp_path / "out"]
    inputs = [EXAMPLE, tmp_path / "b.mp4", tmp_path / "upright.mp4"]
    run = Run(capsys, *inputs, *job, "--image-size", "480x270", "--image-fit", fit)
    assert run.code == 0 and len(run.json["episodes"]) == 3
    assert check_every_frame(tmp_path / "out") == []

    table = pq.read_table(tmp_path / "out" / "data", partitioning=None)
    episodes, rows = table["episode_index"].to_pylist(), table["observation.camera"].to_pylist()
    cameras = dict(zip(episodes, rows, strict=True))
    # 60 degrees are assumed across the 640 pixels, which become 360 or 480.
    focal = 320 / np.tan(np.radians(30)) * (360 if fit == "letterbox" else 480) / 640
    assert cameras[0][:2] == pytest.approx([focal, focal], rel=1e-6)
    assert cameras[1] == pytest.approx(cameras[0], rel=1e-6)  # the same view in half as many pixels
    assert all(camera[4:] == [480.0, 270.0] for camera in cameras.values())
    for file in sorted(tmp_path.glob("out/videos/*/*/*.mp4")):
        with av.open(str(file)) as container:
            frame = next(container.decode(video=0)).to_ndarray(format="rgb24")
        assert frame.shape == (270, 480, 3)
        assert (frame[:, :50].max() < 24) == (fit == "letterbox")

    more = Run(capsys, EXAMPLE, *job, "--append")
    assert more.code == 2 and "'observation.images.ego' is [480, 640, 3]" in more.messages


def test_sizes_that_no_video_can_have(capsys, tmp_path) -> None:
    for size in ("481x360", "8x8"):
        run = Run(capsys, EXAMPLE, "--image-size", size, "--output", tmp_path / "out")
        assert run.code == 2 and f"--image-size {size}" in run.err
