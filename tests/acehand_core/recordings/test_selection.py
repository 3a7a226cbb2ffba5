"""Views of a recording at another rate or in part, and opening inputs with their camera."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.errors import CalibrationError, InputError, VideoError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Depth, FrameSource, Recording, View
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry, open_recording
from acehand_core.recordings.selection import (
    _Selected,
    aligned,
    at_rate,
    check_together,
    part,
)
from helpers.video_fixtures import Images, read_number, write_video

LENS = Camera("pinhole", 1, 1, 1.0, 1.0, 0.0, 0.0)


def recording(times, fps=30.0):
    """One-pixel images that hold their number."""
    times = np.asarray(times, np.int64)
    count = np.arange(len(times), dtype=np.uint8)[:, None, None, None]
    poses = np.zeros((len(times), 4, 4)) + count[..., 0]
    images = Images(np.broadcast_to(count, (len(times), 1, 1, 3)))
    return Recording("clip", "00", times, fps, 1, 1, images, None, poses)


def numbers(images):
    return [int(image[0, 0, 0]) for image in images]


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 200_000_000), max_size=25),
    first=st.integers(0, 10**18),
    fps=st.integers(1, 120),
)
def test_each_tick_takes_the_nearest_frame(gaps, first, fps):
    """Of two as near the earlier one."""
    times = np.cumsum([first, *gaps])
    view, index = at_rate(recording(times), fps)
    ticks = view.timestamps_ns
    assert view.fps == fps and len(view) == len(index) == len(view.frames)
    assert np.abs(ticks - first - np.arange(len(ticks)) * 1e9 / fps).max() <= 0.5 + 1e-3
    np.testing.assert_array_equal(index, np.abs(times - ticks[:, None]).argmin(axis=1))
    # The whole recording is covered, and nothing beyond it.
    assert -0.5e9 / fps - 1 <= times[-1] - ticks[-1] < 1e9 / fps
    assert numbers(view.frames.read(0, len(view))) == index.tolist()
    np.testing.assert_array_equal(view.T_world_camera[:, 0, 0], index)


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 80_000_000), min_size=1, max_size=25),
    first=st.integers(-(10**8), 10**8),
)
def test_a_view_gives_the_frame_nearest_in_time_to_each_frame(gaps, first):
    main = recording(np.round(np.arange(20) * 1e9 / 30) + 10**9)
    stamps = np.cumsum([first + 10**9, *gaps])
    pictures = [np.full((1, 1), k, np.float32) for k in range(len(stamps))]
    depth = Depth(Images(pictures), stamps, LENS, np.eye(4))
    main = replace(main, views=(View("b", recording(stamps), np.eye(4)),), depth=depth)
    both, times = aligned(main), main.timestamps_ns
    seen = both.views[0].recording
    expected = np.abs(stamps - times[:, None]).argmin(axis=1)
    assert numbers(seen.frames.read(0, 20)) == expected.tolist()
    assert [int(both.depth.frames.at(k)[0, 0]) for k in range(20)] == expected.tolist()
    np.testing.assert_array_equal(seen.timestamps_ns, times)
    np.testing.assert_array_equal(seen.source_timestamps_ns, stamps[expected])
    away = np.abs(stamps[expected] - times)
    limit = max(1e9 / 30, np.median(gaps)) / 2 + 1e6
    if (away > limit).sum() * 2 >= 20:
        with pytest.raises(InputError, match="of 20 frames"):
            check_together(main, stamps, "it")
    else:
        check_together(main, stamps, "it")


@pytest.mark.parametrize("fps", [1, 24, 25, 30, 60])
def test_a_recording_at_its_own_rate_is_itself(fps):
    """Stamps rounded to whole microseconds, as containers keep them."""
    times = np.round(np.arange(100) * 1e6 / fps).astype(np.int64) * 1000
    source = recording(times, float(fps))
    view, index = at_rate(source, fps)
    assert index.tolist() == list(range(100))
    assert view.frames is source.frames


def test_rates_that_make_no_sense():
    # Of 300 pictures of 30 a second 9 of 10 would be repeats.
    for rate, valid, wrong in ((200.0, 1000, (0, -1, 1001)), (29.97, 299, (301, 1000))):
        for fps in wrong:
            with pytest.raises(InputError, match=rf"source has {rate:g}; valid: 1 to {valid}"):
                at_rate(recording([0], rate), fps)
    assert len(at_rate(recording([5], 200.0), 1000)[0]) == 1
    assert len(at_rate(recording([5], 0.5), 5)[0]) == 1


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.integers(0, 3), min_size=0, max_size=20),
    cut=st.tuples(st.integers(0, 21), st.integers(0, 21)),
)
def test_taken_frames_are_read_in_every_way(steps, cut):
    """Repeated and left out frames, one after another and one by one."""
    index = np.cumsum([2, *steps])
    frames = _Selected(recording(np.arange(80) * 1000).frames, index)
    assert isinstance(frames, FrameSource)
    start, stop = sorted(min(c, len(index)) for c in cut)
    assert numbers(frames.read(start, stop)) == index[start:stop].tolist()
    assert numbers(map(frames.at, range(len(index)))) == index.tolist()


def test_only_the_wanted_stretch_is_decoded():
    source = recording(np.arange(100) * 10_000_000, 100.0)
    view, _ = at_rate(source, 20)
    assert numbers(view.frames.read(4, 7)) == [20, 25, 30]
    assert source.frames.seen == list(range(20, 31))


def test_parts():
    source = recording(np.arange(10) * 1000)
    cut = part(source, 3, 7)
    assert cut.timestamps_ns.tolist() == [3000, 4000, 5000, 6000]
    assert numbers(cut.frames.read(0, 4)) == cut.T_world_camera[:, 0, 0].tolist() == [3, 4, 5, 6]
    assert cut.fps == source.fps and cut.source == source.source
    assert numbers(part(cut, 1, 3).frames.read(0, 2)) == [4, 5]
    assert part(source, 0, 10).frames is source.frames
    joints_only = part(replace(source, frames=None, T_world_camera=None), 2, 4)
    assert joints_only.frames is None and len(joints_only) == 2
    assert joints_only.T_world_camera is None
    for start, stop in ((3, 3), (5, 2), (-1, 4), (8, 11)):
        with pytest.raises(InputError, match="valid: 0 to 9"):
            part(source, start, stop)
    view, index = at_rate(recording(np.arange(60) * 16_666_667, 60.0), 30)
    assert numbers(part(view, 10, 20).frames.read(0, 10)) == index[10:20].tolist()


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("videos") / "clip.mp4", 12)


def test_folders_are_replaced_by_their_videos(video, tmp_path):
    folder, empty = tmp_path / "folder", tmp_path / "folder" / "c.mp4"
    empty.mkdir(parents=True)
    for name in ("b.mp4", "a.MOV", "note.txt", "hands.npz", ".hidden.mp4"):
        (folder / name).write_bytes(b"")
    hands = folder / "hands.npz"
    found = Registry().expand([video, folder, hands])
    assert found == [video, folder / "a.MOV", folder / "b.mp4", hands]
    for inputs, error in (
        ([], "No input"),
        ([tmp_path / "none.mp4"], r"none\.mp4: no such file"),
        ([empty], r"c\.mp4.* no video"),
    ):
        with pytest.raises((InputError, VideoError), match=error):
            Registry().expand(inputs)


def test_intrinsics_and_camera_files(video, tmp_path):
    bare = open_recording(video, RecordingOptions())
    assert bare.camera is None and bare.T_world_camera is None and len(bare) == 12
    inline = open_recording(video, RecordingOptions(intrinsics="90,91,47,33")).camera
    assert inline == Camera("pinhole", 96, 64, 90.0, 91.0, 47.0, 33.0)
    file = tmp_path / "camera.json"
    file.write_text(json.dumps(inline.rescaled(192, 128).to_json()))
    assert open_recording(video, RecordingOptions(camera=file)).camera == inline
    with pytest.raises(InputError, match="`intrinsics`"):
        RecordingOptions(intrinsics="90,91,47,33", camera=file)
    with pytest.raises(CalibrationError):
        open_recording(video, RecordingOptions(intrinsics="90,91"))
    wide = Camera("kannala_brandt", 96, 64, 60.0, 60.0, 47.5, 31.5, (0.1, 0.0, 0.0, 0.0))
    file.write_text(json.dumps(wide.to_json()))
    opened = open_recording(video, RecordingOptions(camera=file))
    assert opened.camera == wide.whole_view() and "kannala_brandt" in opened.notes[-1]
    assert next(opened.frames.read(0, 1)).shape == (64, 96, 3)


def test_a_mirrored_video_is_turned_back_with_its_camera(video, tmp_path):
    """A point straight ahead of an off-centre principal point stays straight ahead."""
    images = open_recording(video, RecordingOptions()).frames.read(0, 12)
    selfie = write_video(tmp_path / "s.mp4", [image[:, ::-1] for image in images])
    options = RecordingOptions(intrinsics="90,90,40,30", mirrored=True)
    opened = open_recording(selfie, options)
    assert [read_number(image) for image in opened.frames.read(0, 12)] == list(range(12))
    assert (opened.camera.cx, opened.camera.cy) == (95 - 40, 30)
    # A radial distortion looks the same in a mirror; a tangential one does not.
    file = tmp_path / "camera.json"
    options = RecordingOptions(camera=file, mirrored=True)
    wide = Camera("kannala_brandt", 96, 64, 60.0, 60.0, 40.0, 31.5, (0.1, 0.0, 0.0, 0.0))
    file.write_text(json.dumps(wide.to_json()))
    used = Camera.from_json(open_recording(selfie, options).processing["undistorted"])
    seen, point = used.project(np.array([0.2, 0.1, 0.5])), np.array([-0.2, 0.1, 0.5])
    np.testing.assert_allclose(seen, (95, 0) - wide.project(point) * (1, -1))
    bent = Camera("brown_conrady", 96, 64, 60.0, 60.0, 47.5, 31.5, (0.1, 0.0, 0.01, 0.01))
    file.write_text(json.dumps(bent.to_json()))
    with pytest.raises(InputError, match="undistort"):
        open_recording(selfie, options)


def test_camera_poses_follow_the_cut(video, tmp_path):
    poses = tmp_path / "poses.csv"
    stamps = open_recording(video, RecordingOptions()).timestamps_ns
    rows = [f"{stamp},{frame},0,0,1,0,0,0" for frame, stamp in enumerate(stamps)]
    poses.write_text("\n".join(["timestamp_ns,x,y,z,qw,qx,qy,qz", *rows]) + "\n")
    for start, first in ((0.0, 0), (0.1, 3)):
        opened = open_recording(video, RecordingOptions(camera_poses=poses, start_s=start))
        np.testing.assert_allclose(opened.T_world_camera[:, 0, 3], np.arange(first, 12), atol=1e-9)


def test_a_pause_of_years_is_refused():
    """A clock that is set while recording, from 1970 to now; the time between stays empty."""
    with pytest.raises(InputError, match=r"3 frames.* 1.96e\+04 days.*`duration`"):
        at_rate(recording([0, 33_333_333, 1_695_000_000 * 10**9]), 30)
    view, index = at_rate(recording([0, 33_333_333, 1800 * 10**9]), 30)
    assert len(view) == 1800 * 30 + 1 and index[-1] == 2
