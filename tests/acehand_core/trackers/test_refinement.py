"""Landmarks merged over several crops: by arithmetic, and against rendered truth."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.video import open_video
from acehand_core.trackers.mediapipe import tracker
from acehand_core.trackers.mediapipe.linking import Slots, assign_slots
from acehand_core.trackers.mediapipe.networks import HandNetworks, Look
from acehand_core.trackers.mediapipe.search import Detector
from acehand_core.trackers.mediapipe.tracker import merged, refine
from acehand_core.types import no_progress
from helpers import ROOT
from helpers.fake_hands import detection

EXAMPLE = ROOT / "examples"
FIRST = detection(size=60.0)


def look(shift=(0.0, 0.0), presence=1.0, p_right=0.9) -> Look:
    return Look(FIRST.pixels + np.asarray(shift, float), np.ones((21, 3)), p_right, presence)


def test_two_looks_by_hand():
    """Half way between; the sample covariance of two points 6 px apart is 18 px^2 along them."""
    found = merged([look((3, 0), p_right=0.8), look((-3, 0))], FIRST)
    assert np.allclose(found.pixels, FIRST.pixels) and found.covariance is not None
    assert np.allclose(found.covariance, [[18.0, 0.0], [0.0, 0.0]])
    assert found.p_right == pytest.approx(0.85) and found.look == FIRST.look


def test_one_look_that_is_far_off_says_little():
    """Of five looks one is a hand's size off: the plain mean would be off by a fifth of that."""
    looks = [look((1, 0)), look((-1, 0)), look((0, 1)), look((0, -1)), look((60, 0))]
    found = merged(looks, FIRST)
    assert np.abs(found.pixels - FIRST.pixels).max() < 1.0


def test_a_look_that_hardly_sees_a_hand_says_less():
    found = merged([look((4, 0), presence=0.25), look((0, 0), presence=0.75)], FIRST)
    assert np.allclose(found.pixels - FIRST.pixels, [1.0, 0.0])


@pytest.fixture(scope="module")
def example():
    """Every sixth frame of the rendered example, its hands, and where joints truly are."""
    frames = open_video(EXAMPLE / "two_hands.mp4").frames
    truth = read_hand_motion(EXAMPLE / "two_hands_truth.parquet")
    assert frames is not None and truth.camera is not None
    slots: Slots = []
    for image in frames.read(0, 60):
        slots.append(assign_slots([Detector(fps=30.0)(image, "still")])[0])
    return frames, slots, truth.camera.project(truth.joints_camera[:60])


class Part:
    """The first frames of a source."""

    def __init__(self, frames, count: int) -> None:
        self.frames, self.count, self.read_frames = frames, count, 0

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, stop: int):
        for image in self.frames.read(start, stop):
            self.read_frames += 1
            yield image

    def at(self, index: int):
        raise NotImplementedError


def off(slots: Slots, truth: np.ndarray) -> np.ndarray:
    """Landmarks from where joints truly are, over the hand's size; NaN where no hand was found."""
    out = np.full((len(slots), 2, 21, 2), np.nan)
    for frame, pair in enumerate(slots):
        for slot, hand in enumerate(pair):
            if hand is not None:
                out[frame, slot] = (hand.pixels - truth[frame, slot]) / hand.size
    return out


@pytest.mark.slow
@pytest.mark.parametrize("quality", ["balanced", "best"])
def test_several_crops_are_nearer_to_the_truth_and_know_their_doubt(example, quality):
    frames, slots, truth = example
    before = off(slots, truth)
    found = refine(Part(frames, 60), slots, quality, no_progress, None, {})
    after = off(found, truth)
    assert np.isfinite(after).all((2, 3)).sum() == np.isfinite(before).all((2, 3)).sum() > 100
    assert np.nanmean(np.abs(after)) < np.nanmean(np.abs(before))
    # What changes from frame to frame is noise; what does not, no mean can remove.
    shaken, calm = (np.nanmean(np.abs(np.diff(error, axis=0))) for error in (before, after))
    assert calm < 0.85 * shaken

    # Where crops disagree the error is large: over landmarks of all hands.
    seen = [(hand, truth[frame, slot]) for frame, pair in enumerate(found)
            for slot, hand in enumerate(pair) if hand is not None]  # fmt: skip
    assert all(hand.covariance is not None for hand, _ in seen)
    error = [np.linalg.norm(hand.pixels - at, axis=1) / hand.size for hand, at in seen]
    spread = [np.sqrt(np.trace(hand.covariance, axis1=1, axis2=2)) / hand.size for hand, _ in seen]
    assert spearmanr(np.concatenate(error), np.concatenate(spread))[0] > 0.3


@pytest.mark.slow
def test_finished_parts_are_kept(example, tmp_path):
    frames, slots, _ = example
    first = Part(frames, 4)
    once = refine(first, slots[:4], "balanced", no_progress, tmp_path, {"source": "a"})
    again = Part(frames, 4)
    twice = refine(again, slots[:4], "balanced", no_progress, tmp_path, {"source": "a"})
    assert (first.read_frames, again.read_frames) == (4, 0)
    for pair, other in zip(once, twice, strict=True):
        for hand, same in zip(pair, other, strict=True):
            assert (hand is None) == (same is None)
            for name in ("pixels", "covariance"):
                assert np.array_equal(getattr(hand, name, None), getattr(same, name, None))

    # Other hands, another quality or another recording are looked at anew; fast ones, and frames
    # without hands, never.
    for hands, quality, source, read in (
        ([*slots[:3], [None, None]], "balanced", "a", 3), (slots[:4], "best", "a", 4),
        (slots[:4], "balanced", "b", 4), (slots[:4], "fast", "a", 0),
    ):  # fmt: skip
        anew = Part(frames, 4)
        refine(anew, hands, quality, no_progress, tmp_path, {"source": source})
        assert anew.read_frames == read


class Black:
    def read(self, start: int, stop: int):
        return [np.zeros((480, 640, 3), np.uint8)] * (stop - start)


def test_a_hand_that_no_crop_confirms_stays_as_it_was(monkeypatch):
    class Nothing(HandNetworks):
        def __init__(self): ...

        def look(self, image, crop):
            return look(presence=0.1)

    class Elsewhere(Nothing):
        def look(self, image, crop):
            return look((200.0, 0.0))

    black = Part(Black(), 1)
    for networks in (Nothing(), Elsewhere()):
        monkeypatch.setattr(tracker, "hand_networks", lambda n=networks: n)
        ((left, right),) = refine(black, [[None, FIRST]], "balanced", no_progress, None, {})
        assert left is None and right is FIRST and right.covariance is None


@pytest.mark.parametrize(("gap", "mirrored"), [(2.0, [True]), (6.0, [True, False, True])])
def test_hands_that_two_looks_agree_on_are_looked_at_once_more_only(gap, mirrored, monkeypatch):
    """What was seen where the hand was found is the first of its looks.

    Of a hand of 60 px: two points 2 px apart have a variance of 2.
    """
    crops = []

    class Beside(HandNetworks):
        def __init__(self): ...

        def look(self, image, crop):
            crops.append(crop)
            return look((gap, 0.0))

    monkeypatch.setattr(tracker, "hand_networks", Beside)
    ((_, found),) = refine(Part(Black(), 1), [[None, FIRST]], "balanced", no_progress, None, {})
    assert found is not None and [crop.mirrored for crop in crops] == mirrored
    if len(crops) == 1:
        assert np.allclose(found.pixels - FIRST.pixels, [1.0, 0.0])
        assert np.allclose(found.covariance, [[2.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize(("shift", "looked_at"), [(2.0, [0, 2]), (12.0, [0, 1, 2])])
def test_the_frames_around_are_the_second_look_of_a_hand_that_they_confirm(
    shift, looked_at, monkeypatch
):
    """A hand of 60 px, 2 px or a fifth of its size from the middle between its neighbours."""
    frames = []

    class Same(HandNetworks):
        def __init__(self): ...

        def look(self, image, crop):
            frames.append((int(image[0, 0, 0]), crop.mirrored))
            return look()

    class Numbered(Black):
        def at(self, frame: int):
            return np.full((480, 640, 3), frame, np.uint8)

        def read(self, start: int, stop: int):
            return map(self.at, range(start, stop))

    monkeypatch.setattr(tracker, "hand_networks", Same)
    hands = [replace(FIRST, pixels=FIRST.pixels + np.array([x, 0.0])) for x in (-5.0, shift, 5.0)]
    slots: Slots = [[None, hand] for hand in hands]
    found = refine(Part(Numbered(), 3), slots, "balanced", no_progress, None, {})
    assert sorted({frame for frame, _ in frames}) == looked_at
    # Frames in which known hands are seen in a mirrored crop get an unmirrored one.
    first = {frame: mirrored for frame, mirrored in reversed(frames)}
    assert all(first[frame] == (frame != 1) for frame in looked_at)
    if shift == 2.0:
        assert np.allclose(found[1][1].pixels - FIRST.pixels, [1.0, 0.0])
        assert np.allclose(found[1][1].covariance, [[2.0, 0.0], [0.0, 0.0]])

    frames.clear()  # the fastest asks no network
    fast = refine(Part(Numbered(), 3), slots, "fast", no_progress, None, {})
    assert not frames and fast[0][1] is hands[0]
    assert np.allclose(fast[1][1].pixels - FIRST.pixels, [shift / 2, 0.0])
