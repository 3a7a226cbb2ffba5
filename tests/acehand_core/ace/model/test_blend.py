"""Two accounts of the same frames, and quality: every expected number is worked out by hand."""

import numpy as np
import pytest

from acehand_core.ace.model.inference.assembly import SourceFrames, assemble
from acehand_core.ace.model.inference.blend import HandFrames, exchanged, merge, mix
from acehand_core.ace.model.inference.reading import plan_input
from acehand_core.ace.model.inference.windows import Window
from acehand_core.geometry import rotations
from helpers import fake_ace as fake


def account(left, right, count=1, depth=0.5):
    """Hands that are points on a line: the wrist's x, or None where a hand is absent."""
    frames = HandFrames.empty(count, True)
    frames.trust[:], frames.visible[:] = 1, 1
    for slot, x in enumerate((left, right)):
        if x is not None:
            frames.presence[:, slot] = 1
            frames.wrist[:, slot] = [x, 0, depth]
    return frames


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0.0, 0.3), (0.3, 0.0), True),  # straight 0.6 m, crossed 0
        ((0.0, 0.3), (0.0, 0.3), False),  # straight 0
        # Both hands moved by x towards each other: straight 2 x, crossed 2 (0.3 - x). Crossed is
        # less than half of straight from x = 0.2 on.
        ((0.0, 0.3), (0.21, 0.09), True),
        ((0.0, 0.3), (0.19, 0.11), False),
        # Hands 2.4 and 2.6 cm apart, exchanged: straight 4.8 and 5.2 cm, and 5 cm is the least.
        ((0.0, 0.024), (0.024, 0.0), False),
        ((0.0, 0.026), (0.026, 0.0), True),
        # One hand in each account, in different slots: within 5 cm it is the same hand.
        ((0.0, None), (None, 0.049), True),
        ((0.0, None), (None, 0.051), False),
        ((None, 0.0), (0.049, None), True),
        ((None, 0.0), (0.051, None), False),
        ((0.0, None), (0.02, None), False),  # the same slot
        ((0.0, 0.3), (None, 0.0), False),  # two hands and one: nothing to exchange
    ],
)
def test_exchanged_hands(first, second, expected):
    found = exchanged(account(*first), account(*second))
    assert found.tolist() == [expected]


def test_a_window_is_laid_into_the_recording():
    """Two frames stay, one fades at 1/4, two are replaced. Depths 0.5 and 2 m, bearings 0 and 1."""
    table, values = account(0.0, 0.0, 6), account(2.0, 2.0, 5, depth=2.0)
    values.presence[:] = 0.6
    values.rotations[:] = rotations.exp(np.array([0, 0, 0.8]))
    assert merge(table, Window(0, 2, np.array([0, 0, 0.25, 1, 1])), values) == 0
    x, z = [0, 0, 0.17678, 2, 2, 0], [0.5, 0.5, 0.70711, 2, 2, 0.5]
    presence = [1, 1, 0.9, 0.6, 0.6, 1]
    turn = [0, 0, 0.2, 0.8, 0.8, 0]
    for slot in range(2):
        np.testing.assert_allclose(table.wrist[:, slot, 0], x, atol=1e-5)
        np.testing.assert_allclose(table.wrist[:, slot, 2], z, atol=1e-5)
        np.testing.assert_allclose(table.presence[:, slot], presence, atol=1e-6)
        np.testing.assert_allclose(
            rotations.log(table.rotations[:, slot, 0])[:, 2], turn, atol=1e-5
        )


def test_exchanged_frames_are_cut_over():
    """Poses jump where the fade passes one half; presence fades on."""
    table, values = account(0.0, 0.3, 5), account(0.3, 0.0, 5)
    values.presence[:] = 0.6
    share = np.array([0.2, 0.4, 0.6, 0.8, 1])
    assert merge(table, Window(0, 2, share), values) == 5
    np.testing.assert_allclose(table.wrist[:, 0, 0], [0, 0, 0.3, 0.3, 0.3], atol=1e-6)
    np.testing.assert_allclose(table.presence[:, 0], 1 - 0.4 * share, atol=1e-6)


def test_a_hand_that_is_nearer_than_a_bearing_means_something():
    """Below 1 cm depth wrists are mixed in metres: half way between 5 mm and 45 mm is 25 mm."""
    mixed = mix(account(0.0, None, depth=0.005), account(0.1, None, depth=0.045), np.array([0.5]))
    np.testing.assert_allclose(mixed.wrist[0, 0], [0.05, 0, 0.025], atol=1e-7)


def test_a_hand_that_one_account_lacks_is_not_mixed():
    mixed = mix(account(0.0, 0.1), account(None, 0.2), np.array([0.4]))
    assert mixed.wrist[0, 0, 0] == 0 and mixed.wrist[0, 1, 0] == pytest.approx(0.14)


@pytest.mark.parametrize(
    ("presence", "visible", "trust", "quality", "flags"),
    [
        (0.8, 0.9, 1.0, 0.72, (True, False)),  # 0.8 * 0.9
        (0.8, 0.9, 0.5, 0.36, (True, False)),  # anchors that do not fit count half
        (0.8, 0.4, 0.5, 0.2, (False, True)),  # out of sight: a quarter of 0.8, trust or not
        (0.4, 0.9, 1.0, 0.0, (False, False)),  # not there
        (0.5, 0.5, 1.0, 0.25, (True, False)),  # on the gates
    ],
)
def test_quality(presence, visible, trust, quality, flags):
    reading = plan_input(fake.recording(5), fake.SIZE, "repeat")
    frames = HandFrames.empty(5, True)
    frames.wrist[:], frames.presence[:] = [0, 0, 0.5], presence
    frames.visible[:], frames.trust[:] = visible, trust
    source = SourceFrames(reading, reading.recording.timestamps_ns)
    result = assemble(
        frames, 0, source, range(5), fake.HANDS, np.zeros((2, 10)), (True, True), True,
        lambda done, total: None,
    )  # fmt: skip
    np.testing.assert_allclose(result.quality, quality, atol=1e-6)
    assert (result.observed == flags[0]).all() and (result.filled == flags[1]).all()
