"""LeRobot datasets as inputs: every episode's video, of all dataset versions."""

import json
import shutil
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acehand_core.errors import InputError, SchemaError, VideoError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.dataset import create
from acehand_core.lerobot.format import video_feature
from acehand_core.recordings import lerobot_video
from acehand_core.recordings.options import RecordingOptions, RigOptions
from acehand_core.recordings.registry import Registry, open_recording
from helpers.commands import GripperRun as Run
from helpers.example_video import EXAMPLE, example_frames
from helpers.lerobot_samples import check_every_frame
from helpers.video_fixtures import write_video

EGO = "observation.images.head"
LENGTHS, STARTS = (8, 6, 7), (0, 30, 60)
TASKS = ("lift a cup", "wave", "lift a cup")


@pytest.fixture(scope="module")
def whole() -> list[np.ndarray]:
    return example_frames(80)


@pytest.fixture(scope="module")
def version_3(tmp_path_factory: pytest.TempPathFactory, whole: list[np.ndarray]) -> Path:
    """Three episodes of one camera; their videos lie in one file."""
    folder, options = tmp_path_factory.mktemp("v3"), {"preset": "ultrafast", "crf": "10"}
    height, width = whole[0].shape[:2]
    with create(folder / "set", 30, (video_feature(EGO, height, width),), "human") as writer:
        for start, length, task in zip(STARTS, LENGTHS, TASKS, strict=True):
            images = whole[start : start + length]
            video = write_video(folder / f"{start}.mp4", images, options=options)
            writer.add_episode({}, task, {EGO: video})
    return folder / "set"


def version_2(folder: Path, frames: list[np.ndarray]) -> Path:
    """Two cameras, one file per episode, tables of JSON lines."""
    features = {key: {"dtype": "video", "shape": [240, 320, 3]} for key in (EGO, "second")}
    path = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    info = {"codebase_version": "v2.1", "fps": 30, "features": features, "chunks_size": 1}
    (folder / "meta").mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info | {"video_path": path}))
    rows = []
    for number, length in enumerate((3, 5)):
        for key, shift in ((EGO, 0), ("second", 20)):
            file = folder / path.format(episode_chunk=number, video_key=key, episode_index=number)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_video(file, frames[shift + 10 * number :][:length])
        rows.append(json.dumps({"episode_index": number, "tasks": ["pour"], "length": length}))
    (folder / "meta/episodes.jsonl").write_text("\n".join(rows))
    return folder


def test_every_episode_is_an_input(version_3: Path, whole: list[np.ndarray]) -> None:
    paths, hashes = Registry().expand([version_3]), set()
    assert paths == [version_3 / f"episode_{number:06d}" for number in range(3)]
    for path, start, length, task in zip(paths, STARTS, LENGTHS, TASKS, strict=True):
        recording = open_recording(path)
        assert recording.timestamps_ns.tolist() == [round(k * 1e9 / 30) for k in range(length)]
        assert (recording.task, recording.source) == (task, str(path))
        true = np.stack(whole[start : start + length]).astype(int)
        shown = np.stack(list(recording.frames.read(0, length)))
        assert np.abs(shown - true).mean((1, 2, 3)).max() < 3
        assert lerobot_video.episode_sha256(path) == recording.sha256
        hashes.add(recording.sha256)
    assert len(hashes) == 3
    cut = open_recording(paths[2], start_s=0.1, duration_s=0.1)
    assert len(cut) == 3 and cut.timestamps_ns[0] == 100_000_000


def test_older_datasets_and_the_choice_of_a_camera(tmp_path: Path, whole: list[np.ndarray]) -> None:
    path = Registry().expand([version_2(tmp_path / "old", whole)])[1]
    with pytest.raises(InputError, match=r"`video_key`: .*head, second"):
        open_recording(path)
    with pytest.raises(InputError, match=r"'secnd'.*'second'"):
        open_recording(path, video_key="secnd")
    for key, start in ((EGO, 10), ("second", 30)):
        recording = open_recording(path, video_key=key)
        assert len(recording) == 5 and recording.task == "pour"
        image = recording.frames.at(0).astype(int)
        assert min((10, 30), key=lambda k: np.abs(image - whole[k]).mean()) == start


def test_another_camera_is_a_view(tmp_path: Path, whole: list[np.ndarray]) -> None:
    """Its pictures have the times of the episode, and its file is part of the hash."""
    path = Registry().expand([version_2(tmp_path / "old", whole)])[1]
    lens = {"width": 320, "height": 240, "fx": 300, "fy": 300, "cx": 160, "cy": 120}
    poses = [[[1, 0, 0, x], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] for x in (0, 0.2)]
    cameras = {n: lens | {"T_rig_camera": T} for n, T in zip("ab", poses, strict=True)}
    (rig := tmp_path / "rig.json").write_text(json.dumps({"cameras": cameras}))
    options = RecordingOptions(
        video_key=EGO, start_s=0.05, rigs=RigOptions(rig=rig, view=("b=second",))
    )
    opened = Registry().open(path, options)
    (view,) = opened.views
    assert view.synchronised and view.T_camera_view[0, 3] == 0.2
    at = int(np.searchsorted(view.recording.timestamps_ns, opened.timestamps_ns[0]))
    assert view.recording.timestamps_ns[at] == opened.timestamps_ns[0] == round(2e9 / 30)
    for recording, index, true in (opened, 0, 12), (view.recording, at, 32):
        image = recording.frames.at(index).astype(int)
        assert min((12, 32), key=lambda k: np.abs(image - whole[k]).mean()) == true
    assert opened.sha256 == Registry().sha256(path, options)
    assert opened.sha256 != open_recording(path, video_key=EGO).sha256


def test_an_episode_without_its_last_pictures(tmp_path: Path, whole: list[np.ndarray]) -> None:
    """A frame without a picture is left out and counted, but not half of them."""
    root = version_2(tmp_path / "set", whole)
    path = root / "episode_000001"
    video = lerobot_video.find_episode(path, EGO).video
    write_video(video, whole[10:14])
    opened = open_recording(path, video_key=EGO)
    assert opened.timestamps_ns.tolist() == [round(k * 1e9 / 30) for k in range(4)]
    assert any("1 of 5 frames" in note for note in opened.notes)
    write_video(video, whole[10:12])
    with pytest.raises(VideoError, match="no picture"):
        open_recording(path, video_key=EGO)


def test_depth_of_an_episode(tmp_path: Path, whole: list[np.ndarray]) -> None:
    """12-bit codes as lerobot 0.6 states them: log(z + 3.5) from 0.01 m; ends are no reading."""
    path = Registry().expand([version_2(tmp_path / "old", whole)])[1]
    file = tmp_path / "old/videos/chunk-001/second/episode_000001.mp4"
    codes = np.full((480, 640), 2000)
    codes[0], codes[1] = 0, 4095
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx265", rate=30, options={"x265-params": "lossless=1"})
        stream.width, stream.height, stream.pix_fmt = 640, 480, "gray12le"
        for number in range(5):
            frame = av.VideoFrame(640, 480, "gray12le")
            rows = np.zeros((480, frame.planes[0].line_size // 2), "<u2")
            rows[:, :640] = np.where(codes == 2000, codes + number, codes)
            frame.planes[0].update(rows.tobytes())
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    info = json.loads((tmp_path / "old/meta/info.json").read_text())
    said = {"is_depth_map": True, "video.depth_max": 5.0}
    info["features"]["second"]["info"] = said
    (tmp_path / "old/meta/info.json").write_text(json.dumps(info))
    options = {"video_key": EGO, "intrinsics": (600.0, 600.0, 320.0, 240.0)}
    opened = open_recording(path, **options, depth="second")
    image = opened.depth.frames.at(3)
    ends = np.log([3.51, 8.5])
    z = np.exp(ends[0] + 2003 / 4095 * (ends[1] - ends[0])) - 3.5
    assert np.isnan(image[:2]).all() and np.abs(image[2:] - z).max() < 1e-5
    assert opened.depth.timestamps_ns.tolist() == opened.timestamps_ns.tolist()
    with pytest.raises(SchemaError, match="no depth"):
        open_recording(path, **options, depth=EGO)
    with pytest.raises(InputError, match=r"'second'`.*`depth`"):
        open_recording(path, video_key="second")


@pytest.mark.slow
def test_the_main_job_and_its_resume(version_3: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    arguments = (version_3, "--output", out, "--no-overlay")
    run = Run(capsys, version_3 / "episode_000001", *arguments[1:])
    assert run.code == 0 and run.json["episodes"][0]["frames"] == 6
    run = Run(capsys, *arguments, "--resume")
    assert run.code == 0 and run.json["skipped"] == [str(version_3 / "episode_000001")]
    assert [episode["frames"] for episode in run.json["episodes"]] == [8, 7]
    assert check_every_frame(out) == []
    assert layout.read_tasks(out) == ["wave", "lift a cup"]
    run = Run(capsys, version_3, "--output", tmp_path / "named", "--no-overlay", "--task", "rest")
    assert run.code == 0 and layout.read_tasks(tmp_path / "named") == ["rest"]


def test_a_bad_episode_does_not_stop_the_others(version_3: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "set"
    shutil.copytree(version_3, folder)
    file = sorted((folder / "meta/episodes").rglob("*.parquet"))[1]
    table = pq.read_table(file)
    name = f"videos/{EGO}/from_timestamp"
    assert table["episode_index"].to_pylist() == [1]
    wrong = pa.array([99.0])
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, wrong), file)
    run = Run(capsys, folder, "--output", tmp_path / "out", "--no-overlay")
    assert run.code == 1 and len(run.json["episodes"]) == 2
    assert "99.000 s" in run.messages


def test_unusable_datasets(version_3: Path, tmp_path: Path) -> None:
    for path, key, message in (
        (version_3 / "episode_000007", None, "episode 7; valid: 0 to 2"),
        (version_3, None, "/episode_000000"),
        (EXAMPLE, EGO, "video_key"),
    ):
        with pytest.raises(InputError, match=message):
            open_recording(path, video_key=key)
    folder = tmp_path / "set"
    shutil.copytree(version_3, folder)
    path, info_file = folder / "episode_000000", folder / "meta/info.json"
    info = json.loads(info_file.read_text())
    for change, message in (
        ({"codebase_version": "v1.6"}, "'v1.6'; valid: v2.0 to v3.0"),
        ({"video_path": "../../{video_key}"}, "leads out of the dataset"),
        ({"video_path": "{nothing}"}, "nothing"),
        ({"fps": "many"}, "many"),
        ({"features": {}}, "no video"),
        ({"features": {EGO: {"dtype": "image"}}}, "single images"),
    ):
        info_file.write_text(json.dumps(info | change))
        with pytest.raises(InputError, match=message):
            open_recording(path)
    info_file.write_text("[]")
    with pytest.raises(SchemaError, match=r"info\.json"):
        Registry().expand([folder])
    info_file.write_text(json.dumps(info))
    next((folder / "videos").rglob("*.mp4")).unlink()
    with pytest.raises(VideoError, match="does not exist"):
        open_recording(path)
