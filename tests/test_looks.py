"""Several looks at a recording, with a network and frames made up here.

Every fake image has one colour that tells its number, so a crop of it does too. The fake network
answers from a script; like the real one it can lock on: tracking, it sees fainter hands.
"""

import json
import os
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acehand_core.errors import OutputError
from acehand_core.motion import FrameSource
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import open_recording
from acehand_core.trackers.mediapipe import detector, redetection
from acehand_core.trackers.mediapipe.detector import Detector, SegmentCache
from acehand_core.trackers.mediapipe.linking import assign_slots
from acehand_core.trackers.mediapipe.tracker import cache_key
from acehand_core.types import no_progress
from helpers.fake_hands import detection
from helpers.video_fixtures import write_video

SIZE = (640, 480)
NO_CACHE = SegmentCache(None, {})
RIGHT, LEFT = 1, 0


class Frames:
    """Images that know their number; remembers what was read."""

    def __init__(self, count):
        self.count, self.read_frames = count, []

    def __len__(self):
        return self.count

    def at(self, index):
        self.read_frames.append(index)
        return np.full((SIZE[1], SIZE[0], 3), (index % 256, index // 256, 7), np.uint8)

    def read(self, start, stop):
        assert 0 <= start <= stop <= self.count
        yield from map(self.at, range(start, stop))

    def read_reversed(self, start, stop):
        assert 0 <= start <= stop <= self.count
        yield from map(self.at, range(stop - 1, start - 1, -1))


@dataclass
class Network:
    """What the fake network knows: per hand where it is and how plain, (T,) from 0 to 1.

    A hand is detected from ``detection_confidence`` on; seen in the image before, 0.1 below
    ``tracking_confidence`` is enough. In a crop that is centred on it, it is twice as plain.
    """

    hands: list  # (centre (T, 2), p_right, plain (T,))
    calls: list = field(default_factory=list)
    open_detectors: int = 0

    def detector(self, **options):
        return FakeDetector(self, **options)


class FakeDetector(Detector):
    def __init__(self, network, still=False, detection_confidence=0.5, tracking_confidence=0.5):
        self.network, self.still = network, still
        self.detect, self.track = detection_confidence, tracking_confidence
        self.locked = set()
        self.thread = threading.get_ident()

    def __enter__(self):
        self.network.open_detectors += 1
        return self

    def __exit__(self, *_):
        self.network.open_detectors -= 1

    def reset(self):
        self.locked.clear()

    def __call__(self, image, look):
        assert threading.get_ident() == self.thread, "a graph belongs to one thread"
        assert image[0, 0, 2] == 7
        frame = int(image[0, 0, 0]) + 256 * int(image[0, 0, 1])
        self.network.calls.append((look, frame))
        cropped = image.shape[:2] != (SIZE[1], SIZE[0])
        out = []
        for number, (centre, p_right, plain) in enumerate(self.network.hands):
            strength = plain[frame] * (2 if cropped else 1)
            limit = self.track - 0.1 if number in self.locked and not self.still else self.detect
            self.locked.discard(number)
            if strength < limit:
                continue
            self.locked.add(number)
            if cropped:  # always around the last sighting, so in the middle
                where = np.array(image.shape[1::-1]) / 2 - 0.5
                out.append(
                    detection(
                        where, p_right, redetection.CROP_PIXELS / redetection.CROP_SIZES, look
                    )
                )
            else:
                out.append(detection(centre[frame], p_right, 40.0, look, seed=frame))
        return out


def hand(plain, p_right=0.95, centre=(300.0, 200.0)):
    plain = np.asarray(plain, float)
    return np.broadcast_to(centre, (len(plain), 2)), p_right, plain


@pytest.fixture
def network(monkeypatch):
    """Installs a fake network; its hands are set by the test."""
    fake = Network([])
    monkeypatch.setattr(redetection, "Detector", fake.detector)
    monkeypatch.setattr(redetection, "SEGMENT_FRAMES", 10)
    return fake


def same(a, b):
    """Two passes saw the same."""
    return len(a) == len(b) and all(
        len(x) == len(y)
        and all(
            np.array_equal(d.pixels, e.pixels)
            and np.array_equal(d.world, e.world)
            and (d.p_right, d.look) == (e.p_right, e.look)
            for d, e in zip(x, y, strict=True)
        )
        for x, y in zip(a, b, strict=True)
    )


def random_hands(seed, count):
    rng = np.random.default_rng(seed)
    return [(rng.uniform(50, 400, (count, 2)), rng.random(), rng.random(count)) for _ in range(2)]


# --- forward pass ------------------------------------------------------------------------------


def test_fakes_follow_the_protocol():
    assert isinstance(Frames(3), FrameSource)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 20, 47, 300])
def test_segments_are_a_single_pass(network, count):
    """Every frame once, in its place; the network starts afresh in each segment."""
    network.hands = [hand(np.full(count, 0.6), 0.9), hand(np.full(count, 0.7), 0.1, (100, 100))]
    frames = Frames(count)
    found = redetection.forward_pass(frames, no_progress, NO_CACHE)
    assert sorted(frames.read_frames) == list(range(count))
    expected = [
        [detection(c[t], p, 40.0, "forward", seed=t) for c, p, _ in network.hands]
        for t in range(count)
    ]
    assert same(found, expected)
    assert network.open_detectors == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_number_of_processors_does_not_matter(network, monkeypatch, seed):
    """Although the network remembers: segments are cut by frames, not by workers."""
    network.hands = random_hands(seed, 95)
    results = []
    for cpus in (1, 2, 7, None):
        monkeypatch.setattr(os, "cpu_count", lambda cpus=cpus: cpus)
        results.append(redetection.forward_pass(Frames(95), no_progress, NO_CACHE))
    assert all(same(results[0], other) for other in results[1:])
    assert sum(map(len, results[0])) > 20


def test_progress_counts_every_frame_once(network):
    network.hands = [hand(np.ones(47))]
    told = []
    redetection.forward_pass(Frames(47), lambda *message: told.append(message), NO_CACHE)
    assert told == [("track", done, 47) for done in range(1, 48)]


def test_a_failing_network_ends_all_workers(network, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    class Broken(FakeDetector):
        def __call__(self, image, look):
            if image[0, 0, 0] == 35 and image[0, 0, 1] == 0:
                raise RuntimeError("graph failed")
            threading.Event().wait(0.001)
            return super().__call__(image, look)

    monkeypatch.setattr(redetection, "Detector", lambda **o: Broken(network, **o))
    network.hands = [hand(np.ones(800))]
    for segment, most in ((10, 400), (200, 400)):  # between segments and within
        monkeypatch.setattr(redetection, "SEGMENT_FRAMES", segment)
        network.calls.clear()
        with pytest.raises(RuntimeError, match="graph failed"):
            redetection.forward_pass(Frames(800), no_progress, NO_CACHE)
        assert network.open_detectors == 0
        assert len(network.calls) < most


# --- cache -------------------------------------------------------------------------------------


class Stopped(Exception):
    """What a progress callback raises to interrupt."""


def run_until(done, frames, cache):
    def progress(stage, at, total):
        if at >= done:
            raise Stopped

    with pytest.raises(Stopped):
        redetection.forward_pass(frames, progress, cache)


@pytest.mark.parametrize("cpus", [1, 3])
def test_an_interrupted_pass_goes_on_where_it_stopped(network, monkeypatch, tmp_path, cpus):
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    network.hands = random_hands(5, 100)
    expected = redetection.forward_pass(Frames(100), no_progress, NO_CACHE)
    cache = SegmentCache(tmp_path / "work", {"source": "a"})
    run_until(57, Frames(100), cache)
    kept = {p.name[-13:-4] for p in (tmp_path / "work").glob("*.npz")}
    # One unfinished segment per worker at most.
    assert 57 // 10 - cpus <= len(kept) <= 5
    second, told = Frames(100), []
    found = redetection.forward_pass(second, lambda *m: told.append(m[1]), cache)
    assert same(found, expected)
    missing = {
        t for s in range(0, 100, 10) if f"{s + 10:09d}" not in kept for t in range(s, s + 10)
    }
    assert sorted(second.read_frames) == sorted(missing)
    assert told == sorted(told) and told[-1] == 100
    third = Frames(100)
    assert same(redetection.forward_pass(third, no_progress, cache), expected)
    assert third.read_frames == []


def test_only_the_same_key_finds_a_segment(network, tmp_path):
    network.hands = [hand(np.ones(10))]
    redetection.forward_pass(
        Frames(10), no_progress, SegmentCache(tmp_path, {"source": "a", "n": 1})
    )
    assert SegmentCache(tmp_path, {"n": 1, "source": "a"}).get(0, 10) is not None
    assert SegmentCache(tmp_path, {"source": "b", "n": 1}).get(0, 10) is None
    assert SegmentCache(tmp_path, {"source": "a", "n": 1}).get(0, 9) is None
    assert SegmentCache(None, {"source": "a", "n": 1}).get(0, 10) is None


def test_the_key_holds_all_that_detections_depend_on(tmp_path, monkeypatch):
    frames = [np.full((48, 64, 3), 40 * i, np.uint8) for i in range(4)]
    path = write_video(tmp_path / "v.mp4", frames)
    camera = tmp_path / "camera.json"
    lens = {"model": "kannala_brandt", "width": 64, "height": 48, "fx": 50, "fy": 50, "cx": 31.5,
            "cy": 23.5, "distortion": [0.1, 0, 0, 0]}  # fmt: skip
    camera.write_text(json.dumps(lens))
    plain = RecordingOptions()
    key = cache_key(open_recording(path, plain))
    assert cache_key(open_recording(path, plain)) == key
    keys = [
        cache_key(open_recording(path, options))
        for options in (
            RecordingOptions(mirrored=True),
            RecordingOptions(duration_s=0.1),
            RecordingOptions(camera=camera),
        )
    ]
    camera.write_text(json.dumps({**lens, "distortion": [0.2, 0, 0, 0]}))
    keys.append(cache_key(open_recording(path, RecordingOptions(camera=camera))))
    turned = write_video(tmp_path / "t.mp4", frames, rotation=90)
    keys.append(cache_key(open_recording(turned, plain)))
    assert keys[-1]["processing"]["rotation"] == 90
    for name in ("DETECTION_CONFIDENCE", "TRACKING_CONFIDENCE", "MAX_HANDS", "MAX_SIDE"):
        with monkeypatch.context() as patch:
            patch.setattr(detector, name, 3)
            keys.append(cache_key(open_recording(path, plain)))
    texts = {json.dumps(k, sort_keys=True) for k in (key, *keys)}
    assert len(texts) == len(keys) + 1
    # A pinhole's values change where hands are, not what is seen.
    inline = RecordingOptions(intrinsics="50,50,31.5,23.5")
    assert cache_key(open_recording(path, inline)) == key


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), counts=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_what_is_put_comes_back_to_the_bit(tmp_path_factory, seed, counts):
    rng = np.random.default_rng(seed)
    frames = [
        [
            detection(rng.normal(size=2), rng.random(), rng.uniform(1, 9), "forward")
            for _ in range(n)
        ]
        for n in counts
    ]
    cache = SegmentCache(tmp_path_factory.mktemp("cache"), {"seed": seed})
    cache.put(3, 3 + len(frames), frames)
    assert same(cache.get(3, 3 + len(frames)), frames)


def test_a_damaged_file_is_computed_again(network, tmp_path):
    network.hands = random_hands(1, 20)
    cache = SegmentCache(tmp_path, {})
    expected = redetection.forward_pass(Frames(20), no_progress, cache)
    path = sorted(tmp_path.glob("*.npz"))[1]
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    rng = np.random.default_rng(0)
    other = tmp_path / "other.npz"
    np.savez(other, count=np.ones(10, int), pixels=np.zeros((9, 21, 2)), world=np.zeros((9, 21, 3)),
             p_right=np.zeros(9), look=np.array(["x"] * 9))  # fmt: skip
    incomplete = tmp_path / "incomplete.npz"
    np.savez(incomplete, count=np.zeros(10, int))
    damaged = [b"", b"not a zip", whole[:50], whole[:-30], whole[: len(whole) // 2], bytes(flipped),
               rng.bytes(500), other.read_bytes(), incomplete.read_bytes()]  # fmt: skip
    for content in damaged:
        path.write_bytes(content)
        frames = Frames(20)
        assert same(redetection.forward_pass(frames, no_progress, cache), expected)
        assert sorted(frames.read_frames) == list(range(10, 20))
        assert path.read_bytes() != content  # and mended


def test_a_file_of_fewer_frames_is_not_taken(tmp_path):
    cache = SegmentCache(tmp_path, {})
    cache.put(0, 10, [[detection()]] * 10)
    path = next(tmp_path.iterdir())
    path.rename(path.with_name(path.name.replace("000000010.npz", "000000012.npz")))
    assert cache.get(0, 12) is None


def test_nothing_but_whole_files_is_left(network, tmp_path):
    network.hands = [hand(np.ones(30))]
    run_until(15, Frames(30), SegmentCache(tmp_path, {}))
    assert {p.suffix for p in tmp_path.iterdir()} <= {".npz"}


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="partial results"):
        SegmentCache(tmp_path / "file" / "work", {}).put(0, 1, [[]])


# --- gaps --------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(seen=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_gaps_are_the_empty_runs_beside_a_sighting(seen):
    one = detection()
    slots = [[one if s else None for s in pair] for pair in seen]
    gaps = redetection.find_gaps(slots)
    covered = [set(), set()]
    for gap in gaps:
        assert gap.start < gap.stop
        run = set(range(gap.start, gap.stop))
        assert not run & covered[gap.slot]
        covered[gap.slot] |= run
        assert all(slots[t][gap.slot] is None for t in run)
        assert (gap.before is one) == (gap.start > 0)
        assert (gap.after is one) == (gap.stop < len(seen))
    for slot in (0, 1):
        empty = {t for t, pair in enumerate(seen) if not pair[slot]}
        # A hand that was never seen has no gap.
        assert covered[slot] == (empty if len(empty) < len(seen) else set())


# --- second looks ------------------------------------------------------------------------------


def look_again(network, frames, slot=RIGHT, fps=30.0):
    """Forward pass, then a second look; returns (slots before, {frame: detection})."""
    slots = assign_slots(redetection.forward_pass(frames, no_progress, NO_CACHE))
    network.calls.clear()
    frames.read_frames.clear()
    found = list(redetection.look_again(frames, redetection.find_gaps(slots), fps, no_progress))
    return slots, dict(found)


def test_a_hand_that_was_never_seen_costs_nothing(network):
    network.hands = [hand(np.ones(40)), hand(np.full(40, 0.1), 0.05, (100, 100))]
    frames = Frames(40)
    _, found = look_again(network, frames)
    assert found == {} and network.calls == [] and frames.read_frames == []


def test_a_faint_hand_is_followed_forwards_and_backwards(network):
    """Fainter than the lower threshold: seen since the network locks on to it before the gap."""
    faint, hidden, plain = [0.25, 0.22], np.full(16, 0.05), np.full(20, 0.9)
    plain = np.r_[plain, faint, hidden, faint, plain]
    network.hands = [hand(plain)]
    _, found = look_again(network, Frames(60))
    assert {t: found[t].look for t in (20, 21, 38, 39)} == {
        20: "forward again", 21: "forward again", 38: "backward", 39: "backward",
    }  # fmt: skip
    assert set(found) == {20, 21, 38, 39}


def test_a_faint_hand_that_moves_is_followed(network):
    """Far beyond where it was last seen plainly, step by step."""
    count = 60
    path = np.stack([100.0 + 8 * np.arange(count), np.full(count, 200.0)], axis=1)
    plain = np.r_[np.full(15, 0.9), np.full(30, 0.25), np.full(15, 0.05)]
    network.hands = [(path, 0.95, plain)]
    _, found = look_again(network, Frames(count))
    assert set(found) == set(range(15, 45))
    np.testing.assert_allclose([found[t].pixels.mean(0) for t in found], path[list(found)], atol=2)


def test_each_walk_starts_afresh(network, monkeypatch):
    """Locked on to something by the walk before, the network would see a ghost in the next."""
    network.hands = [hand(np.r_[np.full(3, 0.9), np.zeros(2), np.full(20, 0.9)])]
    walks = []

    class Watched(FakeDetector):
        def reset(self):
            super().reset()
            walks.append(len(network.calls))

    gap = redetection.Gap(RIGHT, 3, 5, detection(size=40), detection(size=40))
    monkeypatch.setattr(redetection, "Detector", lambda **o: Watched(network, **o))
    list(redetection.look_again(Frames(25), [gap, gap], 30.0, no_progress))
    following = [i for i, (look, _) in enumerate(network.calls) if look != "crop"]
    starts = [i for i in following if i == 0 or network.calls[i - 1][0] != network.calls[i][0]]
    assert walks == starts and len(walks) == 4


def test_a_crop_sees_what_the_whole_image_does_not(network):
    """About half as plain as the lower threshold asks: enlarged it is plain enough."""
    plain = np.r_[np.full(20, 0.9), np.full(6, 0.16), np.full(20, 0.9)]
    network.hands = [hand(plain)]
    _, found = look_again(network, Frames(46))
    assert set(found) == set(range(20, 26))
    assert {d.look for d in found.values()} == {"crop"}
    # The fake network says "in the middle of the crop": where that is, and how large.
    before = detection((300, 200), size=40.0, seed=19)
    side = int(redetection.CROP_SIZES * before.size)
    middle = np.round(before.pixels.mean(0) - side / 2) + (side - 1) / 2
    np.testing.assert_allclose(found[20].pixels.mean(0), middle, atol=1e-6)
    assert found[20].size == pytest.approx(side / redetection.CROP_SIZES)


def test_only_the_gap_and_its_edge_are_looked_at(network):
    plain = np.r_[np.full(100, 0.9), np.zeros(30), np.full(100, 0.9)]
    network.hands = [hand(plain)]
    frames = Frames(230)
    _, found = look_again(network, frames)
    assert found == {}
    assert min(frames.read_frames) >= 100 - redetection.RUN_UP
    assert max(frames.read_frames) < 130 + redetection.RUN_UP
    walk = redetection.RUN_UP + redetection.GIVE_UP
    per_look = {look: sum(call[0] == look for call in network.calls) for look in
                ("forward again", "backward", "crop")}  # fmt: skip
    assert per_look == {"forward again": walk, "backward": walk, "crop": 2 * redetection.GIVE_UP}


def test_walks_end_at_their_reach(network):
    """A hand that could be followed for ever is followed for three seconds from each side."""
    plain = np.r_[np.full(10, 0.9), np.full(300, 0.3), np.full(10, 0.9)]
    network.hands = [hand(plain)]
    _, found = look_again(network, Frames(320), fps=10.0)
    reach = round(redetection.REACH_S * 10)
    assert set(found) == {*range(10, 10 + reach), *range(310 - reach, 310)}


@pytest.mark.parametrize("start", [True, False])
def test_a_gap_at_the_end_of_the_recording_has_one_side(network, start):
    plain = np.r_[np.full(5, 0.3), np.full(30, 0.9)]
    network.hands = [hand(plain if start else plain[::-1])]
    _, found = look_again(network, Frames(35))
    assert set(found) == (set(range(5)) if start else set(range(30, 35)))
    assert {d.look for d in found.values()} == {"backward" if start else "forward again"}


@pytest.mark.parametrize(
    ("p_right", "centre", "size", "taken"),
    [
        (0.95, (300, 200), 40, True),
        (0.35, (300, 200), 40, True),  # a weak label for the other side may pass
        (0.25, (300, 200), 40, False),
        (0.95, (350, 200), 40, True),
        (0.95, (370, 200), 40, False),  # another place
        (0.95, (300, 200), 75, True),
        (0.95, (300, 200), 85, False),  # another size
        (0.95, (300, 200), 19, False),
    ],
)
def test_a_second_look_takes_only_what_is_expected(
    network, monkeypatch, p_right, centre, size, taken
):
    one = detection((300, 200), 0.95, 40)
    gap = redetection.Gap(RIGHT, 3, 4, one, None)

    class Scripted(FakeDetector):
        def __call__(self, image, look):
            return [] if look == "crop" else [detection(centre, p_right, size, look)]

    monkeypatch.setattr(redetection, "Detector", lambda **o: Scripted(network, **o))
    found = list(redetection.look_again(Frames(10), [gap], 30.0, no_progress))
    assert [frame for frame, _ in found] == ([3] if taken else [])


def test_the_left_hand_is_not_taken_for_the_right(network):
    """The right hand is hidden; the left one moves to where it was."""
    count = 40
    away = np.r_[np.ones(15), np.zeros(10), np.ones(15)]
    path = np.full((count, 2), (120.0, 200.0))
    path[15:25] = (300.0, 200.0)
    network.hands = [hand(away), (path, 0.03, np.ones(count))]
    _, found = look_again(network, Frames(count))
    assert all(d.p_right < 0.5 for d in found.values())


@settings(max_examples=60, deadline=None)
@given(
    x=st.floats(-50, 700), y=st.floats(-50, 520), size=st.floats(1, 400),
    width=st.integers(33, 640), height=st.integers(33, 480),
)  # fmt: skip
@example(x=0.0, y=268.0, size=14.0, width=33, height=49)
def test_crops_map_back_to_the_source_exactly(x, y, size, width, height):
    """The corners of a crop are the corners of the piece of image it shows."""
    image = np.zeros((height, width, 3), np.uint8)
    around = detection((x, y), size=size)  # its rms is rounded otherwise at another place
    crop, scale, corner = redetection._crop(image, around)
    edges = np.array([[-0.5, -0.5], [crop.shape[1] - 0.5, crop.shape[0] - 0.5]])
    low, high = (edges + 0.5) / scale - 0.5 + corner
    np.testing.assert_allclose(low, np.round(low - 0.5) + 0.5, atol=1e-9)  # between pixels
    np.testing.assert_allclose(high, np.round(high - 0.5) + 0.5, atol=1e-9)
    assert (low >= -0.5).all() and (high <= np.array([width, height]) - 0.5 + 1e-9).all()
    assert max(crop.shape[:2]) == redetection.CROP_PIXELS
    side = min(max(int(redetection.CROP_SIZES * around.size), 32), max(width, height))
    np.testing.assert_allclose(high - low, np.minimum(side, [width, height]), atol=1e-9)


def test_pixels_of_a_crop_show_what_lies_there():
    """A slope of brightness tells the place: what a crop shows is what was asked for."""
    image = np.zeros((200, 250, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(250), np.arange(200)[:, None]
    crop, scale, corner = redetection._crop(image, detection((140, 90), size=30))
    for at in ([40, 50], [300, 222], [400, 17]):
        place = (np.array(at) + 0.5) / scale - 0.5 + corner
        np.testing.assert_allclose(crop[at[1], at[0], :2], place, atol=1.0)
