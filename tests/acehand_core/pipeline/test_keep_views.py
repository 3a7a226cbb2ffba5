"""Other cameras and depth in the dataset, and what the report says of the evidence for hands."""

import json
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
import yaml

import acehand_core as ah
import retarget
from acehand_core.cli.retarget import main
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.lerobot.trim import trim_episodes
from acehand_core.lerobot.trim_rules import Gaps, TrimRules
from acehand_core.pipeline import plan
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.recordings.registry import open_recording
from acehand_core.review.decisions import write_sidecars
from helpers.bag_samples import START, SampleBag
from helpers.commands import GripperRun as Run
from helpers.commands import hands_file
from helpers.dying_runs import stop_at
from helpers.lerobot_samples import check_every_frame
from helpers.retarget_samples import motion_of, moving_hands
from helpers.video_fixtures import numbered_image, read_number, write_video

LENS = {"width": 96, "height": 64, "fx": 80.0, "fy": 82.0, "cx": 47.0, "cy": 32.0}
#: The main camera has 10 pictures, 30 a second; the other 25 a second, and begins 10 ms later.
COUNT, OTHER = 10, [Fraction(1, 100) + Fraction(k, 25) for k in range(9)]


@pytest.fixture
def rig(tmp_path):
    """Arguments of a run with a second camera and depth, and hands from a file."""
    first = write_video(tmp_path / "a.mp4", COUNT)
    other = write_video(tmp_path / "b.mp4", 9, times=OTHER, size=(98, 64))
    poses = {"first": np.eye(4), "second": np.eye(4)}
    poses["second"][0, 3] = 0.1
    cameras = {
        name: {**LENS, "width": width, "T_rig_camera": poses[name].tolist()}
        for name, width in (("first", 96), ("second", 98))
    }
    (tmp_path / "rig.yaml").write_text(yaml.safe_dump({"cameras": cameras}))
    (tmp_path / "depth").mkdir()
    for k in range(COUNT):
        image = np.full((64, 96), 500 + k, np.uint16)
        image[0, :2] = 0, 4096  # no reading, and one beyond what the dataset holds
        image[1, :2] = 1, 4095
        cv2.imwrite(str(tmp_path / "depth" / f"{k}.png"), image)
    hands = hands_file(tmp_path / "hands.npz", COUNT)
    return [first, "--rig", tmp_path / "rig.yaml", "--view", f"second={other}",
            "--depth", tmp_path / "depth", "--tracker", hands, "--no-overlay"]  # fmt: skip


def shown(root, name, episode=0):
    """The pictures of an episode, decoded: RGB, or counts of depth."""
    path = root / f"videos/observation.images.{name}/chunk-000/file-{episode:03d}.mp4"
    with av.open(str(path)) as container:
        kind = "gray12le" if name == "depth" else "rgb24"
        return [frame.to_ndarray(format=kind) for frame in container.decode(video=0)]


def nearest(times, fps=30, count=COUNT):
    """For each frame of the dataset, the picture whose time is nearest."""
    return [min(range(len(times)), key=lambda j: abs(times[j] - Fraction(k, fps)))
            for k in range(count)]  # fmt: skip


def test_every_view_and_depth_are_in_the_dataset(rig, tmp_path, capsys):
    out = tmp_path / "out"
    run = Run(capsys, *rig, "--output", out, "--keep-views", "--keep-depth")
    assert run.code == 0 and check_every_frame(out) == []
    assert [read_number(image) for image in shown(out, "ego")] == list(range(COUNT))
    assert [read_number(image) for image in shown(out, "second")] == nearest(OTHER)
    for k, counts in enumerate(shown(out, "depth")):
        assert counts[0, :2].tolist() == [0, 0] and counts[1, :2].tolist() == [1, 4095]
        assert (counts[2:] == 500 + k).all()

    info = json.loads((out / "meta/info.json").read_text())["features"]
    assert [key for key in info if info[key]["dtype"] == "video"] == [
        "observation.images.ego", "observation.images.second", "observation.images.depth"
    ]  # fmt: skip
    assert info["observation.images.second"]["shape"] == [64, 98, 3]
    depth = info["observation.images.depth"]
    # What lerobot 0.6 decodes by: code c is depth_min + c / 4095 (depth_max - depth_min).
    assert depth["shape"] == [64, 96, 1] and depth["info"]["is_depth_map"] is True
    assert (depth["info"]["video.depth_min"], depth["info"]["video.depth_max"]) == (0.0, 4.095)
    assert depth["info"]["video.use_log"] is False and depth["info"]["depth_unit"] == "mm"
    stats = json.loads((out / "meta/stats.json").read_text())["observation.images.depth"]
    assert stats["max"] == [[[4095.0]]] and stats["q50"][0][0][0] == pytest.approx(504, abs=2)

    (record,) = read_provenance(out)
    assert record["views"]["second"]["camera"]["width"] == 98
    assert record["views"]["second"]["T_camera_view"][0] == [1.0, 0.0, 0.0, 0.1]
    assert record["depth"]["camera"]["fx"] == 80.0
    np.testing.assert_array_equal(record["depth"]["T_camera_depth"], np.eye(4))

    given = {"video_key": "observation.images.ego", "intrinsics": (80.0, 80.0, 47.5, 31.5)}
    read = open_recording(out / "episode_000000", depth="observation.images.depth", **given).depth
    assert np.isnan(read.frames.at(1)[0, :2]).all()
    np.testing.assert_allclose(read.frames.at(1)[2:], 0.501, rtol=1e-6)


def test_views_at_another_rate_and_without_being_asked(rig, tmp_path, capsys):
    out = tmp_path / "out"
    assert Run(capsys, *rig, "--output", out, "--keep-views", "--fps", 15).code == 0
    assert [read_number(image) for image in shown(out, "second")] == nearest(OTHER, 15, 5)
    assert Run(capsys, *rig, "--output", tmp_path / "plain").code == 0
    names = [path.name for path in (tmp_path / "plain" / "videos").iterdir()]
    assert names == ["observation.images.ego"]


def test_a_stopped_run_goes_on_with_all_views(rig, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plan, "max_episode_frames", lambda fps: 5)
    out = tmp_path / "out"
    words = [*rig, "--output", out, "--keep-views", "--keep-depth"]
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        assert Run(capsys, *words).code == 130
    run = Run(capsys, *rig, "--output", out, "--resume")
    assert run.code == 2 and "`keep_views` is None, not True" in run.messages + run.err
    assert Run(capsys, *words, "--resume").code == 0
    assert check_every_frame(out) == [] and len(read_provenance(out)) == 2
    numbers = [read_number(image) for n in (0, 1) for image in shown(out, "second", n)]
    assert numbers == nearest(OTHER)
    assert shown(out, "depth", 1)[0][5, 5] == 505
    run = Run(capsys, *rig, "--output", out, "--append", "--task", "again", "--keep-depth")
    assert run.code != 0 and "observation.images.second" in run.messages
    assert "`keep_views`" in run.messages


def test_trimmed_episodes_keep_views_and_exact_depth(rig, tmp_path, capsys):
    joints = moving_hands(COUNT)
    joints[:3, 0] = np.nan
    hands_file(tmp_path / "hands.npz", COUNT, joints=joints)
    out = tmp_path / "out"
    assert Run(capsys, *rig, "--output", out, "--keep-views", "--keep-depth").code == 0
    trim_episodes(out, TrimRules(gaps=Gaps(0.05)), write_sidecars)
    assert check_every_frame(out) == []
    assert [counts[5, 5] for counts in shown(out, "depth")] == [500 + k for k in range(3, COUNT)]
    assert [read_number(image) for image in shown(out, "second")] == nearest(OTHER)[3:]
    # As an input, its depth is no choice of pictures.
    run = Run(capsys, out, "--output", tmp_path / "again")
    assert "ego, observation.images.second." in run.messages


REFUSED = {
    "ego": (["--view", "ego=b.mp4"], "'ego' cannot be stored"),
    "depth": (["--view", "depth=b.mp4"], "'depth' cannot be stored"),
    "a.b": (["--view", "a.b=b.mp4"], "valid: letters"),
    "second": (["--view", "second=b.mp4", "--view-offset", "second=0.2"], "of 10 frames have no"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_views_that_cannot_be_kept_are_refused_before_any_work(name, rig, tmp_path, capsys):
    words, expected = REFUSED[name]
    words = [word.replace("b.mp4", str(tmp_path / "b.mp4")) for word in words]
    content = (tmp_path / "rig.yaml").read_text().replace("second", name)
    (tmp_path / "rig.yaml").write_text(content)
    arguments = [*rig[:3], *words, *rig[7:]]
    run = Run(capsys, *arguments, "--output", tmp_path / "out", "--keep-views")
    assert run.code == 2 and expected in run.messages and "a.mp4" in run.messages
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", ["--keep-views", "--keep-depth"])
def test_nothing_to_keep_is_refused(flag, rig, tmp_path, capsys):
    words = (rig[0], *rig[7:], "--output", tmp_path / "out", flag)
    run, dry = Run(capsys, *words), Run(capsys, *words, "--dry-run")
    setting = flag.removeprefix("--").replace("-", "_")
    assert run.code == 2 and f"`{setting}` needs" in run.messages and "there is" in run.messages
    assert (dry.code, dry.messages) == (run.code, run.messages)


def test_views_of_a_bag(tmp_path, capsys):
    """The second camera is 0.1 m to the right, 10 ms late, and has a larger picture."""
    with SampleBag(tmp_path / "bag") as bag:
        for name, x, (width, height) in (("left", 0.0, (96, 64)), ("right", 0.1, (128, 96))):
            start = START + round(x * 1e8)
            images = [numbered_image(k + round(1e3 * x), width, height) for k in range(COUNT)]
            bag.images(images, start, topic=f"/{name}/image_raw", frame=name)
            bag.camera_info(START, size=(width, height), k=(80.0, 80.0, 47.5, 31.5),
                            topic=f"/{name}/camera_info", frame=name)  # fmt: skip
            bag.tf(START, "rig", name, (x, 0, 0), (1, 0, 0, 0), topic="/tf_static")
    hands, out = hands_file(tmp_path / "hands.npz", COUNT), tmp_path / "out"
    words = (tmp_path / "bag", "--tracker", hands, "--no-overlay", "--output", out)
    words += ("--image-topic", "/left/image_raw", "--keep-views")
    dry = Run(capsys, *words, "--dry-run")
    assert dry.code == 2 and "`views` of a bag" in dry.messages
    assert Run(capsys, *words, "--views", "right").code == 0 and check_every_frame(out) == []
    assert [read_number(image) for image in shown(out, "ego")] == list(range(COUNT))
    images = shown(out, "right")
    assert [read_number(image) for image in images] == [100 + k for k in range(COUNT)]
    assert images[0].shape == (96, 128, 3)
    (record,) = read_provenance(out)
    assert record["views"]["right"]["T_camera_view"][0] == [1.0, 0.0, 0.0, 0.1]


def test_from_python(rig, tmp_path):
    recording = ah.open_recording(rig[0], rig=rig[2], view=(rig[4],), depth=rig[6])
    motion = motion_of(moving_hands(COUNT), camera=recording.camera)
    with ah.Dataset.open(tmp_path / "out") as dataset:
        trajectory = retarget.retarget(motion, dataset.robot)
        kept = {"keep_views": True, "keep_depth": True, "overlay": False}
        dataset.add(recording, motion, trajectory, **kept)
        with pytest.raises(ah.AcehandError, match="other_videos is \\(\\), not"):
            dataset.add(recording, motion, trajectory, overlay=False)
    assert [read_number(image) for image in shown(tmp_path / "out", "second")] == nearest(OTHER)
    assert len(shown(tmp_path / "out", "depth")) == COUNT


def test_the_report_counts_what_placed_each_hand(tmp_path, capsys):
    """1 is the camera, 2 another camera, 4 depth."""
    evidence = np.zeros((8, 2), int)
    evidence[:, 0] = [1, 2, 3, 3, 5, 6, 7, 0]
    motion = motion_of(moving_hands(8), placed=True, evidence=evidence)
    write_hand_motion(motion, tmp_path / "h.parquet")
    assert main([str(tmp_path / "h.parquet"), "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    line = "frames placed: left 4 by one camera, 3 by several, 3 with depth; right 0 by one"
    assert line in said.out + said.err
    report = json.loads((tmp_path / "out/acehand/episode_000000/report.json").read_text())
    assert report["evidence"]["left"] == {"one_camera": 4, "several_cameras": 3, "depth": 3}
