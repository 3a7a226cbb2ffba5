"""Views of a recording at another rate or in part, and opening inputs with their camera."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.errors import CalibrationError, InputError, VideoError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource, Recording
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry, open_recording
from acehand_core.recordings.selection import _SelectedFrames, at_rate, part
from helpers.fake_motion import random_motion
from helpers.video_fixtures import read_number, write_video


class Numbers:
    """One-pixel images that hold their number; counts what is decoded."""

    def __init__(self, count):
        self.count, self.decoded = count, 0

    def __len__(self):
        return self.count

    def at(self, index):
        self.decoded += 1
        return np.full((1, 1, 3), index, np.uint8)

    def read(self, start, stop):
        assert 0 <= start <= stop <= self.count
        yield from map(self.at, range(start, stop))


def recording(times, fps=30.0, posed=True):
    count = len(times)
    poses = np.zeros((count, 4, 4)) + np.arange(count)[:, None, None] if posed else None
    return Recording(
        "clip", "00", np.asarray(times, np.int64), fps, 1, 1, Numbers(count), None, poses
    )


def numbers(images):
    return [int(image[0, 0, 0]) for image in images]


def nearest(times, tick):
    """The earliest frame at the smallest distance."""
    return min(range(len(times)), key=lambda i: (abs(int(times[i]) - tick), i))


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 200_000_000), max_size=25),
    first=st.integers(0, 10**18),
    fps=st.integers(1, 120),
)
def test_each_tick_takes_the_nearest_frame(gaps, first, fps):
    times = np.cumsum([first, *gaps])
    view, index = at_rate(recording(times), fps)
    assert view.fps == fps and len(view) == len(index) == len(view.frames)
    for k, (tick, chosen) in enumerate(zip(view.timestamps_ns.tolist(), index, strict=True)):
        assert abs(tick - int(times[0]) - k * 1e9 / fps) <= 0.5
        assert chosen == nearest(times, tick)
    # The whole recording is covered, and nothing beyond it.
    assert -0.5e9 / fps - 1 <= times[-1] - view.timestamps_ns[-1] < 1e9 / fps
    assert numbers(view.frames.read(0, len(view))) == index.tolist()
    np.testing.assert_array_equal(view.T_world_camera[:, 0, 0], index)


def test_halfway_between_two_frames_the_earlier_is_shown():
    view, index = at_rate(recording([0, 50_000_000, 150_000_000, 200_000_000]), 10)
    assert view.timestamps_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert index.tolist() == [0, 1, 3]


@pytest.mark.parametrize("fps", [1, 24, 25, 30, 60])
def test_a_recording_at_its_own_rate_is_itself(fps):
    """Stamps rounded to whole microseconds, as containers keep them."""
    times = np.round(np.arange(100) * 1e6 / fps).astype(np.int64) * 1000
    source = recording(times, float(fps))
    view, index = at_rate(source, fps)
    assert index.tolist() == list(range(100))
    assert view.frames is source.frames


def test_rates_that_make_no_sense():
    for fps in (0, -1, 1001):
        with pytest.raises(InputError, match="where the source has 200; valid: 1 to 1000"):
            at_rate(recording([0], 200.0), fps)
    assert len(at_rate(recording([5], 200.0), 1000)[0]) == 1
    for fps in (301, 1000):  # 9 of 10 pictures would be repeats
        with pytest.raises(InputError, match=r"source has 29\.97; valid: 1 to 299"):
            at_rate(recording([0], 29.97), fps)
    assert len(at_rate(recording([5], 0.5), 5)[0]) == 1


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.integers(0, 3), min_size=0, max_size=20),
    cut=st.tuples(st.integers(0, 21), st.integers(0, 21)),
)
def test_taken_frames_are_read_in_every_way(steps, cut):
    """Repeated and left out frames, one after another and one by one."""
    index = np.cumsum([2, *steps])
    source = recording(np.arange(80) * 1000)
    frames = _SelectedFrames(source.frames, index)
    assert isinstance(frames, FrameSource)
    start, stop = sorted(min(c, len(index)) for c in cut)
    wanted = index[start:stop].tolist()
    assert numbers(frames.read(start, stop)) == wanted
    assert [int(frames.at(i)[0, 0, 0]) for i in range(len(index))] == index.tolist()


def test_only_the_wanted_stretch_is_decoded():
    source = recording(np.arange(100) * 10_000_000, 100.0)
    view, _ = at_rate(source, 20)
    source.frames.decoded = 0
    assert numbers(view.frames.read(4, 7)) == [20, 25, 30]
    assert source.frames.decoded == 11


def test_parts():
    source = recording(np.arange(10) * 1000)
    cut = part(source, 3, 7)
    assert cut.timestamps_ns.tolist() == [3000, 4000, 5000, 6000]
    assert numbers(cut.frames.read(0, 4)) == [3, 4, 5, 6]
    assert cut.T_world_camera[:, 0, 0].tolist() == [3, 4, 5, 6]
    assert cut.fps == source.fps and cut.source == source.source
    inner = part(cut, 1, 3)
    assert numbers(inner.frames.read(0, 2)) == [4, 5]
    assert part(source, 0, 10).frames is source.frames
    joints_only = part(replace(source, frames=None), 2, 4)
    assert joints_only.frames is None and len(joints_only) == 2
    for start, stop in ((3, 3), (5, 2), (-1, 4), (8, 11)):
        with pytest.raises(InputError, match="valid: 0 to 9"):
            part(source, start, stop)


def test_a_part_of_another_rate():
    source = recording(np.arange(60) * 16_666_667, 60.0, posed=False)
    view, index = at_rate(source, 30)
    cut = part(view, 10, 20)
    assert numbers(cut.frames.read(0, 10)) == index[10:20].tolist()
    assert cut.T_world_camera is None and cut.fps == 30.0


# --- opening inputs ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("videos") / "clip.mp4", 12)


def test_folders_are_replaced_by_their_videos(video, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("b.mp4", "a.MOV", "note.txt", "hands.npz", ".hidden.mp4"):
        (folder / name).write_bytes(b"")
    (folder / "c.mp4").mkdir()
    hands = folder / "hands.npz"
    found = Registry().expand([video, folder, hands])
    assert found == [video, folder / "a.MOV", folder / "b.mp4", hands]


def test_inputs_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="No input"):
        Registry().expand([])
    with pytest.raises(InputError, match=r"none\.mp4: no such file or folder"):
        Registry().expand([tmp_path / "none.mp4"])
    with pytest.raises(VideoError, match="has no video"):
        Registry().expand([tmp_path])


def test_a_video_without_a_camera(video):
    opened = open_recording(video, RecordingOptions())
    assert opened.camera is None and opened.T_world_camera is None and len(opened) == 12
    cut = open_recording(video, RecordingOptions(start_s=0.1, duration_s=0.2))
    assert [read_number(image) for image in cut.frames.read(0, len(cut))] == [3, 4, 5, 6, 7, 8]


def test_intrinsics_and_camera_files(video, tmp_path):
    inline = open_recording(video, RecordingOptions(intrinsics="90,91,47,33")).camera
    assert inline == Camera("pinhole", 96, 64, 90.0, 91.0, 47.0, 33.0)
    file = tmp_path / "camera.json"
    file.write_text(json.dumps(inline.rescaled(192, 128).to_json()))
    assert open_recording(video, RecordingOptions(camera=file)).camera == inline
    with pytest.raises(InputError, match="one of --intrinsics"):
        RecordingOptions(intrinsics="90,91,47,33", camera=file)
    with pytest.raises(CalibrationError):
        open_recording(video, RecordingOptions(intrinsics="90,91"))


def test_a_mirrored_video_is_turned_back_with_its_camera(video, tmp_path):
    """A point straight ahead of an off-centre principal point stays straight ahead."""
    selfie = write_video(tmp_path / "s.mp4", [image[:, ::-1] for image in _images(video)])
    options = RecordingOptions(intrinsics="90,90,40,30", mirrored=True)
    opened = open_recording(selfie, options)
    assert [read_number(image) for image in opened.frames.read(0, 12)] == list(range(12))
    assert (opened.camera.cx, opened.camera.cy) == (95 - 40, 30)
    # A radial distortion looks the same in a mirror; a tangential one does not.
    file = tmp_path / "camera.json"
    wide = Camera("kannala_brandt", 96, 64, 60.0, 60.0, 40.0, 31.5, (0.1, 0.0, 0.0, 0.0))
    file.write_text(json.dumps(wide.to_json()))
    opened = open_recording(selfie, RecordingOptions(camera=file, mirrored=True))
    used = Camera.from_json(opened.processing["undistorted"])
    seen, point = used.project(np.array([0.2, 0.1, 0.5])), np.array([-0.2, 0.1, 0.5])
    np.testing.assert_allclose(seen, (95, 0) - wide.project(point) * (1, -1))
    bent = Camera("brown_conrady", 96, 64, 60.0, 60.0, 47.5, 31.5, (0.1, 0.0, 0.01, 0.01))
    file.write_text(json.dumps(bent.to_json()))
    with pytest.raises(InputError, match="undistort the video first"):
        open_recording(selfie, RecordingOptions(camera=file, mirrored=True))


def _images(path):
    opened = open_recording(path, RecordingOptions())
    return list(opened.frames.read(0, len(opened)))


def test_a_distorted_video_becomes_a_pinhole_and_says_so(video, tmp_path):
    file = tmp_path / "camera.json"
    wide = Camera("kannala_brandt", 96, 64, 60.0, 60.0, 47.5, 31.5, (0.1, 0.0, 0.0, 0.0))
    file.write_text(json.dumps(wide.to_json()))
    opened = open_recording(video, RecordingOptions(camera=file))
    assert opened.camera == wide.whole_view()
    assert opened.notes[-1] == "undistorted from kannala_brandt to pinhole"
    assert next(opened.frames.read(0, 1)).shape == (64, 96, 3)


def test_camera_poses_follow_the_cut(video, tmp_path):
    """One pose per frame; a cut video takes those of its own frames."""
    poses = tmp_path / "poses.csv"
    stamps = open_recording(video, RecordingOptions()).timestamps_ns
    lines = ["timestamp_ns,x,y,z,qw,qx,qy,qz"]
    lines += [f"{stamp},{frame},0,0,1,0,0,0" for frame, stamp in enumerate(stamps)]
    poses.write_text("\n".join(lines) + "\n")
    whole = open_recording(video, RecordingOptions(camera_poses=poses))
    np.testing.assert_allclose(whole.T_world_camera[:, 0, 3], np.arange(12), atol=1e-9)
    cut = open_recording(video, RecordingOptions(camera_poses=poses, start_s=0.1))
    np.testing.assert_allclose(cut.T_world_camera[:, 0, 3], np.arange(3, 12), atol=1e-9)


def test_a_motion_at_frames_in_a_row_is_not_copied():
    whole = random_motion(4, 9)
    for index in ([2, 3, 4], [4, 3, 2], [0, 0, 1], [1, 3, 5], [-2, -1], [7]):
        frames = np.array(index, np.int64)
        times = whole.timestamps_ns[0] + np.arange(len(frames))
        some = whole.at(frames, times, 7.0)
        for name in ("quality", "hand_pose", "joints_camera", "T_world_camera"):
            wanted = getattr(whole, name)[frames]
            assert np.array_equal(getattr(some, name), wanted, equal_nan=True), (index, name)
        shared = np.shares_memory(some.hand_pose, whole.hand_pose)
        assert shared == (index in ([2, 3, 4], [7])), index


def test_a_pause_of_years_is_refused():
    """A clock that is set while recording, from 1970 to now; the time between stays empty."""
    with pytest.raises(InputError, match=r"3 frames lie in 1.96e\+04 days.*--duration"):
        at_rate(recording([0, 33_333_333, 1_695_000_000 * 10**9]), 30)
    view, index = at_rate(recording([0, 33_333_333, 1800 * 10**9]), 30)
    assert len(view) == 1800 * 30 + 1 and index[-1] == 2
