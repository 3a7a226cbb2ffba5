"""Which detection is whose hand: clips made of known hands with false labels and false hands."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.trackers.mediapipe import linking, search
from acehand_core.trackers.mediapipe.linking import (
    assign_slots,
    frames_with_others,
    side_by_view,
    without_duplicates,
)
from helpers.fake_hands import detection

LEFT, RIGHT = (180.0, 220.0), (460.0, 220.0)
SEEDS = st.integers(0, 2**32 - 1)


def clip(frames, *hands):
    """Frames of detections from functions of the frame (None where unseen)."""
    return [[d for hand in hands if (d := hand(t)) is not None] for t in range(frames)]


def still(centre, p_right, **where):
    return lambda t: detection(centre, p_right, seed=t, **where)


def assert_slots(frames, left, right):
    """Each slot holds exactly the detections of one hand; ``left`` and ``right`` per frame."""
    found = assign_slots(frames)
    assert len(found) == len(frames)
    for frame, pair in enumerate(found):
        for got, want in zip(pair, (left, right), strict=True):
            assert got is want[frame], f"frame {frame}"


def track(hand, frames):
    return [hand(t) for t in range(frames)]


def test_two_hands_in_any_order():
    left, right = track(still(LEFT, 0.04), 30), track(still(RIGHT, 0.95), 30)
    pairs = [[a, b] if t % 3 else [b, a] for t, (a, b) in enumerate(zip(left, right, strict=True))]
    assert_slots(pairs, left, right)


def test_one_sighting_counts_in_a_few_pictures_and_is_noise_in_a_video():
    """Photographs, or a time lapse: the hand is elsewhere in each."""
    apart = [detection((150.0 + 250 * t, 200.0), 0.8, seed=t) for t in range(3)]
    assert_slots([[one] for one in apart], [None] * 3, apart)
    assert_slots([[one] for one in apart[:1]], [None], apart[:1])
    clip_of = [[] for _ in range(27)]
    assert_slots([*([one] for one in apart), *clip_of], [None] * 30, [None] * 30)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, share=st.floats(0, 0.4))
def test_labels_that_flip_within_a_track_do_not_swap(seed, share):
    rng = np.random.default_rng(seed)
    count = 40
    flips = rng.random((2, count)) < share
    flips[:, rng.permutation(count)[: count // 2 + 3]] = False  # most labels are right
    left = [detection(LEFT, 0.95 if flips[0, t] else 0.05, seed=t) for t in range(count)]
    right = [detection(RIGHT, 0.05 if flips[1, t] else 0.95, seed=t) for t in range(count)]
    assert_slots([list(pair) for pair in zip(left, right, strict=True)], left, right)


@pytest.mark.parametrize(("other", "left"), [(20, 20), (16, 16), (8, 0)])
def test_a_track_that_goes_over_to_the_other_hand_is_two(other, left):
    """Right for 30 frames, then surely left at the same place.

    Log odds are those of each label, 2.94, times n / (1 + 0.3 (n - 1)): 8.5 of 16 frames; of the
    last 15 frames with 8 left ones 0.6.
    """
    count = 30 + other
    frames = [[detection(p_right=0.95 if t < 30 else 0.05, seed=t)] for t in range(count)]
    slots = assign_slots(frames)
    assert [pair[1] is not None for pair in slots] == [t < count - left for t in range(count)]
    assert sum(pair[0] is not None for pair in slots) == left


def test_duplicates_are_removed_and_the_surer_stays():
    sure, doubtful = detection(RIGHT, 0.99), detection((RIGHT[0] + 20, RIGHT[1]), 0.7)
    for order in ([sure, doubtful], [doubtful, sure]):
        kept = without_duplicates(order)
        assert len(kept) == 1 and kept[0] is sure
    near = detection((RIGHT[0] + 60 * (linking.DUPLICATE_DISTANCE - 0.01), RIGHT[1]), 0.7)
    aside = detection((RIGHT[0] + 60 * (linking.DUPLICATE_DISTANCE + 0.01), RIGHT[1]), 0.7)
    assert len(without_duplicates([sure, near])) == 1
    assert len(without_duplicates([sure, aside])) == 2


def test_a_duplicate_with_the_other_label_does_not_fill_the_other_slot():
    right = track(still(RIGHT, 0.97), 30)
    ghost = [detection((RIGHT[0] + 8, RIGHT[1] + 5), 0.2, seed=100 + t) for t in range(30)]
    pairs = [list(pair) for pair in zip(ghost, right, strict=True)]
    assert_slots(pairs, [None] * 30, right)


@pytest.mark.parametrize("speed", [0.03, 0.1, 0.4])
@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("apart", [0.0, 0.5, 1.0])
def test_crossing_hands_keep_their_slots(speed, mirror, apart):
    """Hands that pass over each other, ``apart`` sizes above, also with the same outline.

    Near the crossing one of the two is taken for a duplicate; who is who must survive that.
    """
    rng = np.random.default_rng(1)
    count, wrong = 60, 0
    for _ in range(2):
        labels = np.where(rng.random((2, count)) < 0.1, 0.1, 0.95)
        left, right = [], []
        for t in range(count):
            x = speed * 60 * (t - count / 2) + rng.normal(0, 2)
            left.append(detection((320 + x, 200), 1 - labels[0, t], seed=t))
            at = (320 - x, 200 + 60 * apart)
            right.append(detection(at, labels[1, t], mirror=mirror, seed=t + 99))
        found = assign_slots([list(pair) for pair in zip(left, right, strict=True)])
        wrong += sum(a is r or b is x for (a, b), x, r in zip(found, left, right, strict=True))
        for slot, own in enumerate((left, right)):
            kept = sum(pair[slot] is d for pair, d in zip(found, own, strict=True))
            assert kept >= (0.3 if speed < 0.1 else 0.8) * count
    assert wrong <= 2  # of 120 frames: at the crossing itself either may be meant


def test_a_false_third_detection_stays_out():
    left, right = track(still(LEFT, 0.05), 40), track(still(RIGHT, 0.95), 40)
    frames = [list(pair) for pair in zip(left, right, strict=True)]
    frames[7].append(detection((320.0, 400.0), 0.99))  # one frame of anything is noise
    for t in range(20, 24):
        frames[t].append(detection((320.0, 60.0), 0.95, seed=t))  # a second right hand
    assert_slots(frames, left, right)


def test_an_uncertain_hand_whose_side_is_taken_is_the_other_hand():
    """Every label of the left hand is false, but unsure, and the right hand is there."""
    right = track(still(RIGHT, 0.97), 30)
    for labels in (np.full(30, 0.75), np.where(np.arange(30) % 4, 0.95, 0.2)):
        left = [detection(LEFT, p, seed=t) for t, p in enumerate(labels)]
        pairs = [list(pair) for pair in zip(left, right, strict=True)]
        assert_slots(pairs, left, right)


@pytest.mark.parametrize(("length", "p_right", "kept"), [
    (1, 0.99, False), (2, 0.85, False), (2, 0.95, True), (3, 0.6, True),
])  # fmt: skip
def test_short_sightings_need_a_sure_network(length, p_right, kept):
    frames = [[detection(RIGHT, p_right, seed=t)] if t < length else [] for t in range(20)]
    assert (assign_slots(frames)[0][1] is not None) == kept


def test_a_hand_lost_for_a_few_frames_is_still_itself():
    """After eight frames away its labels may be all false."""
    right = [None if 20 <= t < 28 else detection(RIGHT, 0.95 if t < 20 else 0.3, seed=t)
             for t in range(40)]  # fmt: skip
    assert_slots([[d] if d else [] for d in right], [None] * 40, right)


def test_a_fast_hand_is_one_track():
    """Two thirds of its size per frame, turning round at once; labels decide as a whole."""
    where = [300 + 40 * min(t, 20 - t) for t in range(21)]
    right = [detection((x, 200.0), 0.4 if t % 2 else 0.9, seed=t) for t, x in enumerate(where)]
    assert_slots([[d] for d in right], [None] * 21, right)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, count=st.integers(0, 25), crowd=st.integers(0, 5))
def test_nothing_is_invented_and_nothing_is_used_twice(seed, count, crowd):
    """Any mess of detections: slots hold what was seen in that frame, never both the same."""
    rng = np.random.default_rng(seed)

    def some(t):
        return [
            detection(rng.uniform(0, 400, 2), rng.random(), rng.uniform(20, 90), seed=t * 10 + i)
            for i in range(rng.integers(0, crowd + 1))
        ]

    frames = [some(t) for t in range(count)]
    before = [list(detections) for detections in frames]
    found = assign_slots(frames)
    assert frames == before and len(found) == count
    for detections, pair in zip(frames, found, strict=True):
        assert all(hand is None or any(hand is d for d in detections) for hand in pair)
        left, right = pair
        if left is not None and right is not None:
            assert search.apart(left, right) > linking.DUPLICATE_DISTANCE


def test_mirrored_clips_have_mirrored_slots():
    rng = np.random.default_rng(3)
    places = rng.uniform(0, 400, (20, 3, 2))
    p_right = rng.random((20, 3))

    def slots_of(flip):
        frames = [
            [
                detection((640 - x if flip else x, y), 1 - p if flip else p, mirror=flip)
                for (x, y), p in zip(places[t], p_right[t], strict=True)
            ]
            for t in range(20)
        ]
        return [
            [None if d is None else next(i for i, e in enumerate(f) if e is d) for d in pair]
            for f, pair in zip(frames, assign_slots(frames), strict=True)
        ]

    assert slots_of(True) == [pair[::-1] for pair in slots_of(False)]


def pointing(centre, p_right, forearm, size=60.0, seed=None):
    """A hand whose forearm comes from an angle: 0 from the right, 90 from below, -90 from above."""
    hand = detection(centre, p_right, size, seed=seed)
    c, s = np.cos(np.radians(forearm)), np.sin(np.radians(forearm))
    middle = hand.pixels.mean(0)
    return replace(hand, pixels=(hand.pixels - middle) @ np.array([[c, s], [-s, c]]) + middle)


@pytest.mark.parametrize("labels", [(0.05, 0.95), (0.4, 0.6), (0.7, 0.97)])
def test_the_hands_of_somebody_opposite_are_left_out(labels):
    """Whose labels are surer. Where the wearer's hands are gone theirs do not take the slots."""
    left = [pointing(LEFT, labels[0], 110, seed=t) if t < 20 else None for t in range(30)]
    right = [pointing(RIGHT, labels[1], 70, seed=t) if t < 20 else None for t in range(30)]
    frames = [
        [pointing((420, 60), 0.02, -70, 50, seed=t), pointing((220, 60), 0.98, -110, 50, seed=t)]
        + [d for d in (left[t], right[t]) if d is not None]
        for t in range(30)
    ]
    assert_slots(frames, left, right)
    assert frames_with_others(frames, assign_slots(frames)) == 20


def seen_from(below_left, below_right, labels):
    """Frames of two hands whose forearms come from these angles; labels of the first, second."""
    return [
        [pointing(LEFT, labels[0], below_left, seed=t), pointing(RIGHT, labels[1], below_right,
         seed=t + 99)]
        for t in range(30)
    ]  # fmt: skip


def test_labels_that_are_all_wrong_do_not_outvote_a_worn_camera():
    """Forearms from the lower left and right, and the network is sure of the other sides.

    Of a camera that stands it is somebody opposite.
    """
    frames = seen_from(130, 50, (0.95, 0.05))
    for worn, order in ((True, 1), (False, -1)):
        for found, seen in zip(assign_slots(frames, worn=worn), frames, strict=True):
            assert all(got is want for got, want in zip(found, seen[::order], strict=True))


@pytest.mark.parametrize(
    ("labels", "unclear"), [((0.05, 0.95), False), ((0.95, 0.05), True), ((0.95, 0.9), True)]
)
def test_where_sides_depend_on_whether_the_camera_is_worn(labels, unclear):
    frames = [[] for _ in range(5)] + seen_from(130, 50, labels)
    assert side_by_view(frames).tolist() == [False] * 5 + [unclear] * 30
