"""Common ground and tip error: recovered where the answer is known, and against a literal twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.geometry import rotations
from retarget.replay import metrics
from retarget.replay.metrics import CommonGround, tip_error

SEEDS = st.integers(0, 2**32 - 1)


def random_tips(rng, count=40):
    return rng.normal((0.03, 0, 0.15), 0.05, (count, 5, 3))


def random_ground(rng, scale):
    return CommonGround(scale, rotations.exp(rng.uniform(-1, 1, 3)), rng.normal(0, 0.05, 3))


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, scale=st.floats(0.91, 1.29), fingers=st.integers(3, 5))
def test_common_ground_recovers_a_similarity_from_what_is_known(seed, scale, fingers):
    rng = np.random.default_rng(seed)
    human, known = random_tips(rng)[:, :fingers], random_ground(rng, scale)
    robot = known(human)
    human[3:9], human[12, 2, 1], robot[20, 0] = np.nan, np.nan, np.nan
    found = CommonGround.fit(human, robot)
    assert found.scale == pytest.approx(scale)
    assert np.abs(found.rotation - known.rotation).max() < 1e-9
    assert np.abs(found.translation - known.translation).max() < 1e-9
    assert np.nanmax(tip_error(human, robot, found)) < 1e-9


@pytest.mark.parametrize(("scale", "clamped"), [(0.5, 0.9), (2.0, 1.3)])
def test_the_scale_is_clamped_and_the_rest_is_still_the_best(scale, clamped):
    rng = np.random.default_rng(0)
    human = random_tips(rng)
    robot = random_ground(rng, scale)(human) + rng.normal(0, 0.003, human.shape)
    found = CommonGround.fit(human, robot)
    assert found.scale == clamped
    best = np.sum(tip_error(human, robot, found) ** 2)
    for _ in range(50):
        turn = rotations.exp(rng.normal(0, 0.01, 3)) @ found.rotation
        moved = found.translation + rng.normal(0, 0.001, 3)
        assert np.sum(tip_error(human, robot, CommonGround(clamped, turn, moved)) ** 2) > best


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_tip_error_against_a_loop(seed):
    rng = np.random.default_rng(seed)
    human, robot, ground = random_tips(rng, 5), random_tips(rng, 5), random_ground(rng, 1.1)
    expected = np.zeros((5, 5))
    for t, f in np.ndindex(5, 5):
        placed = ground.scale * ground.rotation @ human[t, f] + ground.translation
        expected[t, f] = sum((robot[t, f] - placed) ** 2) ** 0.5
    assert tip_error(human, robot, ground) == pytest.approx(expected)


def test_flexion_of_known_angles():
    tip = np.array([[0, 0.03, 0.1], [0.1, 0.05, 0.1], [0.1, 0, 0], [0.1, 0, -0.1], [-0.1, 0, 0.1],
                    [-0.1, 0, -0.1]])  # fmt: skip
    assert metrics.flexion(np.zeros((6, 3)), tip) == pytest.approx([0, 45, 90, 135, -45, 225])


def test_what_a_finger_cannot_do_is_no_error():
    human, robot = np.array([[120.0, 20.0, -30.0]]), np.array([[80.0, 35.0, -5.0]])
    reach = np.array([[0.0, 0.0, -10.0], [90.0, 90.0, 90.0]])
    assert metrics.flexion_error(human, robot, reach).tolist() == [[10.0, 15.0, 5.0]]
