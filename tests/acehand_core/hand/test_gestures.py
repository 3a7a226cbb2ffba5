"""Synthetic gestures: tips that touch, and fingers that get faster."""

import numpy as np
import pytest

from acehand_core.hand.skeleton import finger_keypoints
from acehand_core.types import SIDES
from tools.gestures import fast_hand, pinching_hand


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("finger", ["index", "middle"])
def test_tips_close_to_nothing_and_open_again(side, finger):
    joints = pinching_hand(side, finger, fps=30.0)
    assert joints.shape == (180, 21, 3)
    tip = finger_keypoints(finger)[-1]
    gap = np.linalg.norm(joints[:, 4] - joints[:, tip], axis=-1)
    touching = gap < 1e-4  # a smooth step: a few frames more than the quarter
    assert gap.max() > 0.05
    # Three touches of a quarter of two seconds each.
    assert np.count_nonzero(np.diff(touching.astype(int)) == 1) == 3
    assert touching.sum() == pytest.approx(45, abs=8)
    bones = np.linalg.norm(joints[:, 6] - joints[:, 5], axis=-1)
    assert np.ptp(bones) < 1e-9


@pytest.mark.parametrize("side", SIDES)
def test_fast_fingers(side):
    joints = fast_hand(side, fps=60.0)
    speed = np.linalg.norm(np.diff(joints[:, 8], axis=0), axis=-1) * 60
    assert speed[-60:].max() > 2.5 * speed[:60].max()
    assert np.isfinite(joints).all() and joints[:, 0].std(0).max() < 1e-12
