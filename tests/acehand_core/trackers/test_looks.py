"""Several looks at a recording, with networks and frames made up here.

Every fake image has one colour that tells its number. The fake networks answer from a script, for
squares of the image as the real ones do.
"""

import json
import threading
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.errors import OutputError
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import open_recording
from acehand_core.trackers.mediapipe import redetection, search
from acehand_core.trackers.mediapipe.crops import Crop, crop_of
from acehand_core.trackers.mediapipe.linking import assign_slots
from acehand_core.trackers.mediapipe.networks import HandNetworks, Look
from acehand_core.trackers.mediapipe.redetection import SegmentCache
from acehand_core.trackers.mediapipe.search import Detector
from acehand_core.trackers.mediapipe.tracker import cache_key
from acehand_core.types import no_progress
from helpers.example_video import TRUTH, example_frames
from helpers.fake_hands import detection
from helpers.video_fixtures import write_video

SIZE = (640, 480)
WHOLE = Crop(319.5, 239.5, 640.0, 0.0)
FPS = 30.0
NO_CACHE = SegmentCache(None, {})
RIGHT, LEFT = 1, 0
#: A palm as long as people's.
WORLD = np.zeros((21, 3))
WORLD[9, 1] = -0.1


class Frames:
    """Images that know their number; remembers what was read."""

    def __init__(self, count):
        self.count, self.read_frames = count, []

    def __len__(self):
        return self.count

    def at(self, index):
        self.read_frames.append(index)
        return image_of(index)

    def read(self, start, stop):
        assert 0 <= start <= stop <= self.count
        yield from map(self.at, range(start, stop))


def image_of(index):
    image = np.full((SIZE[1], SIZE[0], 3), (index % 256, index // 256, 7), np.uint8)
    image[-8:, -8:] = 100
    return image


@dataclass
class Network(HandNetworks):
    """What the fake networks know: per hand where it is and how plain, (T,) from 0 to 1.

    ``plain`` is the score of its palm in the whole picture, and its presence in a crop around it.
    """

    hands: list  # (centre (T, 2), p_right, plain (T,))
    reach: float = 0.25  # how far from a crop's middle a hand is seen, of its side
    calls: list = field(default_factory=list)  # ("palms" or "look", frame, square)

    def palms(self, image, confidence=0.5, around=None):
        frame = self.called("palms", image, around)
        at = around or WHOLE
        return [
            crop_of(seen.pixels)
            for seen, plain in self.seen(frame)
            if self.score(plain, at) >= confidence and inside(seen, at, 0.5)
        ]

    def score(self, plain, around):
        return plain

    def look(self, image, crop):
        frame = self.called("look", image, crop)
        near = [(s, plain) for s, plain in self.seen(frame) if inside(s, crop, self.reach)]
        if not near:
            return Look(np.full((21, 2), 100.0), WORLD, 0.5, 0.0)
        seen, plain = near[0]
        return Look(seen.pixels, WORLD, seen.p_right, float(plain))

    def seen(self, frame):
        """Yield each hand of a frame, and how plain it is."""
        for centre, p_right, plain in self.hands:
            yield detection(centre[frame], p_right, 40.0, seed=frame), plain[frame]

    def called(self, which, image, square):
        assert (image[0, 0, 2], image.shape) == (7, (SIZE[1], SIZE[0], 3))
        frame = int(image[0, 0, 0]) + 256 * int(image[0, 0, 1])
        self.calls.append((which, frame, square))
        return frame


def inside(hand, square, share):
    away = np.abs(hand.pixels.mean(0) - [square.x, square.y])
    return bool((away <= share * square.side).all())


def hand(plain, p_right=0.95, centre=(300.0, 200.0)):
    plain = np.asarray(plain, float)
    return np.broadcast_to(centre, (len(plain), 2)), p_right, plain


@pytest.fixture
def network(monkeypatch):
    """Installs fake networks; their hands are set by the test."""
    fake = Network([])
    for module in (search, redetection):
        monkeypatch.setattr(module, "hand_networks", lambda: fake)
    monkeypatch.setattr(redetection, "SEGMENT_FRAMES", 10)
    return fake


def same(a, b):
    """Two passes saw the same."""

    def values(found):
        return [
            [(d.pixels.tolist(), d.world.tolist(), d.p_right, d.look, d.presence) for d in hands]
            for hands in found
        ]

    return values(a) == values(b)


def random_hands(seed, count):
    rng = np.random.default_rng(seed)
    return [(rng.uniform(50, 400, (count, 2)), rng.random(), rng.random(count)) for _ in range(2)]


@pytest.mark.parametrize("count", [1, 10, 47])
def test_segments_are_a_single_pass(network, count):
    """Every frame once, in its place; progress counts them."""
    network.hands = [hand(np.full(count, 0.6), 0.9), hand(np.full(count, 0.7), 0.1, (100, 100))]
    frames, stages = Frames(count), []
    found = redetection.forward_pass(frames, FPS, lambda *m: stages.append(m), NO_CACHE)
    assert sorted(frames.read_frames) == list(range(count))
    assert stages == [("track", done, count) for done in range(1, count + 1)]
    expected = [
        [
            replace(detection(c[t], p, 40.0, seed=t), world=WORLD, presence=plain[t])
            for c, p, plain in network.hands
        ]
        for t in range(count)
    ]
    assert same(found, expected)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_the_number_of_processors_does_not_matter(network, monkeypatch, seed):
    """Although the network remembers: segments are cut by frames, not by workers."""
    network.hands = random_hands(seed, 45)
    results = []
    for cpus in (1, 2, 7):
        monkeypatch.setenv("ACEHAND_THREADS", str(cpus))
        results.append(redetection.forward_pass(Frames(45), FPS, no_progress, NO_CACHE))
    assert all(same(results[0], other) for other in results[1:])
    assert sum(map(len, results[0])) > 10


@pytest.mark.parametrize(("segment", "most"), [(10, 400), (200, 400)])
def test_a_failing_network_ends_all_workers(network, monkeypatch, segment, most):
    """Between segments and within."""
    monkeypatch.setenv("ACEHAND_THREADS", "4")
    monkeypatch.setattr(redetection, "SEGMENT_FRAMES", segment)
    network.hands, look = [hand(np.ones(800))], network.look

    def broken(image, crop):
        if image[0, 0, 0] == 35 and image[0, 0, 1] == 0:
            raise RuntimeError("network failed")
        threading.Event().wait(0.001)
        return look(image, crop)

    network.look = broken
    with pytest.raises(RuntimeError, match="network failed"):
        redetection.forward_pass(Frames(800), FPS, no_progress, NO_CACHE)
    assert len({frame for _, frame, _ in network.calls}) < most


def follow(network, count, quality="balanced"):
    """Return the hands of frames that follow each other, and the frames that were searched."""
    detect = Detector(FPS, quality)
    found = [detect(image_of(frame), "forward") for frame in range(count)]
    return found, list(dict.fromkeys(f for which, f, _ in network.calls if which == "palms"))


def test_one_hand_is_followed_and_others_are_searched_for_now_and_then(network):
    """A second search after one frame, then after two more, four, up to a second."""
    network.hands = [hand(np.ones(130))]
    found, searched = follow(network, 130)
    assert [len(hands) for hands in found] == [1] * 130
    assert searched == [0, 1, 3, 7, 15, 31, 61, 91, 121]
    at_first = sum(call[:2] == ("palms", 0) for call in network.calls)
    assert at_first == 1 + 1 + 4  # whole, upside down, four tiles
    later = [call for call in network.calls if call[0] == "palms" and call[1] > 0]
    assert len(later) == 2 * 8  # whole, and one of the others in turn

    # While none is seen pauses are a quarter of a second at most: 7.5 frames, rounded.
    network.hands, network.calls = [], []
    assert follow(network, 60)[1] == [0, 1, 3, 7, 15, 23, 31, 39, 47, 55]


@pytest.mark.parametrize(("contrast", "searched"), [(0, False), (9, False), (20, True)])
def test_a_blank_picture_is_not_searched(network, contrast, searched):
    picture = image_of(0)
    picture[-8:, -8:] = picture[0, 0] + contrast
    assert Detector(FPS)(picture, "forward") == []
    assert bool(network.calls) == searched


def test_a_hand_that_is_lost_is_searched_for_at_once(network):
    plain = np.where((np.arange(60) >= 20) & (np.arange(60) < 22), 0.0, 1.0)
    network.hands = [hand(np.ones(60)), hand(plain, 0.1, (100, 100))]
    found, searched = follow(network, 60)
    assert [len(hands) for hands in found] == [2] * 20 + [1] * 3 + [2] * 37
    assert [t for t in searched if 20 <= t < 30] == [20, 21, 23]


def test_at_most_so_many_hands_are_followed(network):
    places = [(100, 100), (300, 100), (500, 100), (100, 300), (300, 300), (500, 300)]
    network.hands = [hand(np.ones(5), 0.9, place) for place in places]
    found, _ = follow(network, 5)
    assert [len(hands) for hands in found] == [search.MAX_HANDS] * 5


@pytest.mark.parametrize(("fits", "found_by"), [
    (lambda square: square.side < 400, {"balanced", "best"}),  # small: in a tile
    (lambda square: square.side < 300, {"best"}),
    (lambda square: abs(square.angle) > 3, {"balanced", "best"}),  # upside down
    (lambda square: square.angle == pytest.approx(np.pi / 2), {"best"}),
    (lambda square: square.side == 640 and square.angle == 0, {"fast", "balanced", "best"}),
])  # fmt: skip
def test_squares_show_what_the_whole_picture_does_not(network, fits, found_by):
    network.hands = [hand(np.ones(1), centre=(100, 150))]
    network.score = lambda plain, around: plain if fits(around) else 0.0
    for quality in ("fast", "balanced", "best"):
        found = Detector(FPS, quality)(image_of(0), "forward")
        assert len(found) == (quality in found_by), quality


@settings(max_examples=50, deadline=None)
@given(width=st.integers(64, 2000), height=st.integers(64, 2000))
def test_tiles_cover_the_picture_and_overlap(width, height):
    """So that a hand of up to a sixth of the longer side lies whole in one of them."""
    image = np.zeros((height, width, 3), np.uint8)
    tiles = [square for square in search.squares(image, "balanced") if square.angle == 0]
    reach = max(width, height) / 12
    for at in np.random.default_rng(0).uniform([0, 0], [width - 1, height - 1], (50, 2)):
        low = np.maximum(at - reach, -0.5)
        high = np.minimum(at + reach, [width - 0.5, height - 0.5])
        assert any(
            (low >= np.array([t.x, t.y]) - t.side / 2 - 1e-6).all()
            and (high <= np.array([t.x, t.y]) + t.side / 2 + 1e-6).all()
            for t in tiles
        )


@pytest.mark.parametrize(("presence", "mirrored_shift", "x", "new", "known"), [
    (0.9, 0.0, 300, True, True),
    (0.9, 1.0, 300, False, True),  # sure enough where it was seen a moment ago
    (0.4, 0.0, 300, False, True),
    (0.4, 0.5, 300, False, False),
    (0.1, 0.0, 300, False, False),
    (0.9, 0.0, -200, False, False),  # it left the picture
    (0.9, 0.0, 1000, False, False),
])  # fmt: skip
def test_a_new_hand_must_be_surer_than_a_known_one(presence, mirrored_shift, x, new, known):
    class Scripted(HandNetworks):
        def __init__(self):
            pass

        def look(self, image, crop):
            at = (x + 40 * mirrored_shift * crop.mirrored, 200)
            return Look(detection(at, size=40.0).pixels, WORLD, 0.9, presence)

    crop = crop_of(detection((x, 200), size=40.0).pixels)
    found = search.confirmed(Scripted(), image_of(0), crop)
    assert x != 300 or (found is not None) == new
    assert (search.followed(Scripted(), image_of(0), crop) is not None) == known


class Stopped(Exception):
    """What a progress callback raises to interrupt."""


@pytest.mark.parametrize("cpus", [1, 3])
def test_an_interrupted_pass_resumes(network, monkeypatch, tmp_path, cpus):
    monkeypatch.setenv("ACEHAND_THREADS", str(cpus))
    network.hands = random_hands(5, 60)
    expected = redetection.forward_pass(Frames(60), FPS, no_progress, NO_CACHE)
    cache = SegmentCache(tmp_path, {"source": "a"})

    def stopped(stage, at, total):
        if at >= 37:
            raise Stopped

    with pytest.raises(Stopped):
        redetection.forward_pass(Frames(60), FPS, stopped, cache)
    kept = {int(path.name[-13:-4]) for path in tmp_path.glob("*.npz")}
    # One unfinished segment per worker at most, and nothing but whole files.
    assert 3 - cpus <= len(kept) <= 3 and len(kept) == len([*tmp_path.iterdir()])
    second, steps = Frames(60), []
    found = redetection.forward_pass(second, FPS, lambda *m: steps.append(m[1]), cache)
    assert same(found, expected) and steps == sorted(steps) and steps[-1] == 60
    missing = [t for t in range(60) if t // 10 * 10 + 10 not in kept]
    assert sorted(second.read_frames) == missing
    third = Frames(60)
    assert same(redetection.forward_pass(third, FPS, no_progress, cache), expected)
    assert third.read_frames == []


def test_the_key_holds_all_that_detections_depend_on(tmp_path, monkeypatch):
    frames = [np.full((48, 64, 3), 40 * i, np.uint8) for i in range(4)]
    path, camera = write_video(tmp_path / "v.mp4", frames), tmp_path / "camera.json"
    lens = {"model": "kannala_brandt", "width": 64, "height": 48, "fx": 50, "fy": 50, "cx": 31.5,
            "cy": 23.5, "distortion": [0.1, 0, 0, 0]}  # fmt: skip
    camera.write_text(json.dumps(lens))

    def key(video=path, **options):
        return cache_key(open_recording(video, RecordingOptions(**options)))

    # A pinhole's values change where hands are, not what is seen.
    assert key() == key() == key(intrinsics="50,50,31.5,23.5")
    keys = [key(), key(mirrored=True), key(duration_s=0.1), key(camera=camera)]
    camera.write_text(json.dumps({**lens, "distortion": [0.2, 0, 0, 0]}))
    keys += [key(camera=camera), key(write_video(tmp_path / "t.mp4", frames, rotation=90))]
    assert keys[-1]["processing"]["rotation"] == 90
    for name in ("MAX_HANDS", "SEARCH_MISSING_S", "PRESENCE"):
        with monkeypatch.context() as patch:
            patch.setattr(search, name, 3)
            keys.append(key())
    assert len({json.dumps(k, sort_keys=True) for k in keys}) == len(keys)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), counts=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_what_is_put_comes_back_to_the_bit(tmp_path_factory, seed, counts):
    rng = np.random.default_rng(seed)
    frames = [
        [detection(rng.normal(size=2), rng.random(), rng.uniform(1, 9)) for _ in range(n)]
        for n in counts
    ]
    folder = tmp_path_factory.mktemp("cache")
    cache, stop = SegmentCache(folder, {"seed": seed, "n": 1}), 3 + len(frames)
    cache.put(3, stop, frames)
    assert same(SegmentCache(folder, {"n": 1, "seed": seed}).get(3, stop), frames)
    # Only the same key and frames find a segment.
    assert SegmentCache(folder, {"seed": -1, "n": 1}).get(3, stop) is None
    assert cache.get(3, stop + 1) is None and SegmentCache(None, {}).get(3, stop) is None


def test_a_damaged_file_is_computed_again(network, tmp_path):
    network.hands = random_hands(1, 20)
    cache = SegmentCache(tmp_path, {})
    expected = redetection.forward_pass(Frames(20), FPS, no_progress, cache)
    _, path = sorted(tmp_path.glob("*.npz"))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    incomplete = tmp_path / "incomplete.npz"
    np.savez(incomplete, count=np.zeros(10, int))
    empty = tmp_path / "empty"
    SegmentCache(empty, {}).put(0, 9, [[detection()]] * 9)
    fewer = next(empty.iterdir()).read_bytes()
    for content in (b"", b"not a zip", whole[:-30], bytes(flipped), incomplete.read_bytes(), fewer):
        path.write_bytes(content)
        frames = Frames(20)
        assert same(redetection.forward_pass(frames, FPS, no_progress, cache), expected)
        assert sorted(frames.read_frames) == list(range(10, 20))
        assert path.read_bytes() != content  # and mended


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="detections-"):
        SegmentCache(tmp_path / "file" / "work", {}).put(0, 1, [[]])


@settings(max_examples=80, deadline=None)
@given(seen=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_gaps_are_the_empty_runs_next_to_a_sighting(seen):
    one = detection()
    slots = [[one if s else None for s in pair] for pair in seen]
    covered = [[], []]
    for gap in redetection.find_gaps(slots):
        covered[gap.slot] += range(gap.start, gap.stop)
        assert gap.start < gap.stop
        assert (gap.before is one) == (gap.start > 0)
        assert (gap.after is one) == (gap.stop < len(seen))
    for slot in (0, 1):
        empty = [t for t, pair in enumerate(seen) if not pair[slot]]
        # A hand that was never seen has no gap.
        assert sorted(covered[slot]) == (empty if len(empty) < len(seen) else [])


def small_hands(frame):
    """The rendered example at a quarter of its size in a grey picture; and where hands are."""
    image = example_frames(1, frame)[0]
    small = cv2.resize(image, None, fx=0.25, fy=0.25, interpolation=cv2.INTER_AREA)
    picture = np.full_like(image, 110)
    picture[340:460, 30:190] = small
    truth = read_hand_motion(TRUTH)
    pixels = truth.camera.project(truth.joints_camera[frame])
    return picture, (pixels + 0.5) * 0.25 - 0.5 + [30, 340]


def test_small_hands_are_found_in_tiles():
    picture, truth = small_hands(0)
    assert Detector(FPS, "fast")(picture, "forward") == []
    found = Detector(FPS, "balanced")(picture, "forward")
    assert len(found) == 2
    for true in truth:
        off = [np.linalg.norm(hand.pixels - true, axis=1).mean() / hand.size for hand in found]
        assert min(off) < 0.3


def look_again(frames):
    """Forward pass, then a second look; returns (slots before, {frame: detection})."""
    detections = redetection.forward_pass(frames, FPS, no_progress, NO_CACHE)
    slots = assign_slots(detections)
    frames.read_frames.clear()
    return slots, dict(redetection.look_again(frames, detections, slots, no_progress))


def looked_from(frames, slots):
    """Look again where only the hands of ``slots`` are known."""
    known = [[hand for hand in pair if hand is not None] for pair in slots]
    return dict(redetection.look_again(frames, known, slots, no_progress))


def test_a_hand_that_was_never_seen_costs_nothing(network):
    network.hands = [hand(np.ones(40)), hand(np.full(40, 0.1), 0.05, (100, 100))]
    frames = Frames(40)
    assert look_again(frames)[1] == {} and frames.read_frames == []


def test_a_hand_that_is_found_late_is_followed_back(network, monkeypatch):
    """It comes into view at frame 40; the search for it is at 61, 30 frames after the last."""
    monkeypatch.setattr(redetection, "SEGMENT_FRAMES", 200)
    plain = np.where(np.arange(100) < 40, 0.0, 0.9)
    network.hands = [hand(plain, 0.1, (100, 100)), hand(np.ones(100))]
    slots, found = look_again(Frames(100))
    assert [t for t, pair in enumerate(slots) if pair[LEFT] is not None] == list(range(61, 100))
    assert set(found) == set(range(40, 61))
    assert {d.look for d in found.values()} == {"backward"}


def test_known_hands_are_seen_mirrored_in_every_other_frame(network):
    network.hands = [hand(np.ones(40))]
    redetection.forward_pass(Frames(40), FPS, no_progress, NO_CACHE)
    looks = [(frame, square.mirrored) for kind, frame, square in network.calls if kind == "look"]
    first = dict(reversed(looks))
    assert [first[frame] for frame in range(40)] == [False, True] * 20


def test_gaps_without_common_frames_are_independent():
    gaps = [redetection.SightGap(0, a, b, None, None) for a, b in ((20, 30), (0, 10), (9, 15))]
    groups = redetection._independent(gaps)
    assert [[(g.start, g.stop) for g in group] for group in groups] == [
        [(0, 10), (9, 15)], [(20, 30)],
    ]  # fmt: skip


@pytest.mark.parametrize(("shift", "places"), [(0.0, 1), (30.0, 2)])
def test_a_place_that_the_camera_s_turn_leaves_is_looked_at_once(network, shift, places):
    """A hand of 40 px: 30 px are more than a tenth of it."""
    slots = [[None, detection(size=40) if t < 2 else None] for t in range(4)]

    def turned(hand, a, b):
        return replace(hand, pixels=hand.pixels + np.array([shift, 0.0]))

    redetection.look_again(Frames(4), [[] for _ in slots], slots, no_progress, turned)
    looks = [frame for kind, frame, _ in network.calls if kind == "look"]
    assert looks == [2] * places + [3] * places


def test_walking_back_reads_few_pictures_forwards_and_holds_few(monkeypatch):
    frames = Frames(200)
    monkeypatch.setattr(redetection, "HELD_BYTES", 20 * image_of(0).nbytes)
    pictures = redetection._HeldPictures(frames, {})
    walk = pictures.backwards(30, 190)
    assert next(walk)[0] == 189 and frames.read_frames == list(range(182, 190))
    assert [frame for frame, _ in walk] == list(range(188, 29, -1))
    assert frames.read_frames[8:24] == list(range(166, 182)) and len(pictures.held) == 20

    # A short gap is read once, whatever has been read of it.
    frames.read_frames.clear()
    pictures.held.clear()
    assert int(pictures.at(5)[0, 0, 0]) == 5
    assert [frame for frame, _ in pictures.backwards(3, 12)] == list(range(11, 2, -1))
    assert sorted(frames.read_frames) == list(range(3, 12))


def test_a_hand_that_jumps_is_found_around_where_it_was(network):
    """Beyond the crop in which it is expected: its palm is searched, along the hand's own turn."""
    path = np.full((12, 2), (300.0, 200.0))
    path[6:] = (350.0, 215.0)
    network.hands = [(path, 0.95, np.ones(12))]
    network.reach = 0.15
    slots = [[None, detection(path[t], size=40) if t < 6 else None] for t in range(12)]
    found = looked_from(Frames(12), slots)
    looks = {t: d.look for t, d in found.items()}
    assert looks == {6: "surroundings", **dict.fromkeys(range(7, 12), "forward again")}
    square = next(square for which, _, square in network.calls if which == "palms")
    last = crop_of(slots[5][RIGHT].pixels)
    assert square == replace(last, side=2 * last.side)


@pytest.mark.parametrize(("plain", "known", "expected"), [
    # Too faint to be found, plain enough where it was a moment ago; in between not to be seen.
    ([*[1] * 5, *[0.3] * 3, *[0] * 16, *[0.3] * 3, *[1] * 5], {*range(5), *range(27, 32)},
     {"forward again": range(5, 8), "backward": range(24, 27)}),
    ([0.4] * 64, {0, 63}, {"forward again": range(1, 63)}),
    ([*[0.4] * 5, *[1] * 30], {*range(5, 35)}, {"backward": range(5)}),
    ([*[1] * 30, *[0.4] * 5], {*range(30)}, {"forward again": range(30, 35)}),
], ids=["faint", "long", "at the start", "at the end"])  # fmt: skip
def test_a_hand_is_followed_as_long_as_it_is_seen(network, plain, known, expected):
    network.hands = [hand(plain)]
    one = detection((300, 200), size=40)
    found = looked_from(
        Frames(len(plain)), [[None, one if t in known else None] for t in range(len(plain))]
    )
    assert {t: d.look for t, d in found.items()} == {
        t: look for look, frames in expected.items() for t in frames
    }


def test_only_the_gap_is_looked_at_and_not_for_long(network):
    network.hands = [hand(np.r_[np.ones(100), np.zeros(30), np.ones(100)])]
    one = detection((300, 200), size=40)
    frames = Frames(230)
    assert looked_from(frames, [[None, None if 100 <= t < 130 else one] for t in range(230)]) == {}
    assert sorted(frames.read_frames) == [*range(100, 108), *range(122, 130)]


@pytest.mark.parametrize(("p_right", "x", "size", "taken"), [
    (0.95, 300, 40, True),
    (0.35, 300, 40, True),  # a weak label for the other side may pass
    (0.25, 300, 40, False),
    (0.95, 350, 40, True),
    (0.95, 370, 40, False),  # another place
    (0.95, 300, 75, True),
    (0.95, 300, 85, False),  # another size
    (0.95, 300, 19, False),
])  # fmt: skip
def test_a_second_look_takes_only_what_is_expected(network, p_right, x, size, taken):
    shown = Look(detection((x, 200), size=size).pixels, WORLD, p_right, 0.9)
    network.look = lambda image, crop: shown
    slots = [[None, detection((300, 200), 0.95, 40)]] * 3 + [[None, None]]
    assert list(looked_from(Frames(4), slots)) == ([3] if taken else [])


def test_another_hand_is_not_taken_for_the_one_that_is_lost(network):
    """The right hand is hidden; another one, whose labels also say right, moves to where it was."""
    count = 40
    path = np.full((count, 2), (120.0, 200.0))
    path[15:25] = (300.0, 200.0)
    away = np.r_[np.ones(15), np.zeros(10), np.ones(15)]
    network.hands = [(path, 0.9, np.ones(count)), hand(away)]
    one, other = detection((300, 200), size=40), [detection(at, size=40) for at in path]
    slots = [[other[t], None if 15 <= t < 25 else one] for t in range(count)]
    assert looked_from(Frames(count), slots) == {}
