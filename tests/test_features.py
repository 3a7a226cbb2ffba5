"""The columns of an episode in which hands leave, come late, or never appear."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from retarget_samples import motion_of, moving_hands

from acehand_core.export.features import columns
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion, held_index, rotation_6d
from retarget.pipeline import retarget_motion
from retarget.robot import load_robot

COUNT = 30
IDENTITY = [1.0, 0, 0, 0, 1, 0]


def motion(leaves: int, comes: int, model: str = "acehand") -> HandMotion:
    """A left hand that is gone from frame ``leaves`` on, a right hand there from ``comes`` on."""
    rng = np.random.default_rng(0)
    known = np.stack([np.arange(COUNT) < leaves, np.arange(COUNT) >= comes], axis=1)
    turns = rotations.exp(rng.uniform(-1, 1, (COUNT, 2, 16, 3)))
    turns[~known] = np.nan
    joints = np.where(known[..., None, None], moving_hands(COUNT), np.nan)
    return replace(
        motion_of(joints),
        hand_model=model,
        global_orient=turns[:, :, 0],
        hand_pose=turns[:, :, 1:],
        translation=np.where(known[..., None], joints[:, :, 0], np.nan),
        betas=np.full((2, 10), 0.5),
        camera=Camera.nominal(640, 480),
    )


def stored(source: HandMotion) -> dict[str, np.ndarray]:
    trajectory = retarget_motion(source, load_robot("inspire"))
    return dict(columns(source, trajectory, source.timestamps_ns))


def test_an_absent_hand_holds_everything() -> None:
    source = motion(20, 5)
    out = stored(source)
    prefix = "observation.hand."
    expected = {
        "joints_camera": source.joints_camera,
        "global_orient": rotation_6d(source.global_orient),
        "hand_pose": rotation_6d(source.hand_pose),
        "translation": source.translation,
    }
    for name, values in expected.items():
        column = out[prefix + name]
        np.testing.assert_allclose(column[:20, 0], values[:20, 0], rtol=1e-6)
        np.testing.assert_array_equal(column[20:, 0], np.repeat(column[19:20, 0], 10, 0))
        np.testing.assert_allclose(column[5:, 1], values[5:, 1], rtol=1e-6)
        np.testing.assert_array_equal(column[:5, 1], np.repeat(column[5:6, 1], 5, 0))
    confidence = out[prefix + "confidence"]
    assert (confidence[20:, 0] == 0).all() and (confidence[:5, 1] == 0).all()
    # The base of the robot stays with the hand.
    base = out["observation.state"][:, :9]
    np.testing.assert_array_equal(base[20:], np.repeat(base[19:20], 10, 0))


@pytest.mark.parametrize("placed", [True, False])
def test_a_hand_that_never_appears_is_the_flat_hand(placed: bool) -> None:
    source = replace(motion(0, 0), placed=placed)
    out = stored(source)
    rest = CapsuleHand().rest_keypoints("left", source.betas[0])
    prefix = "observation.hand."
    if placed:
        np.testing.assert_allclose(out[prefix + "joints_camera"][7, 0], rest, atol=1e-7)
        assert (out[prefix + "translation"][:, 0] == 0).all()
        np.testing.assert_array_equal(out[prefix + "global_orient"][3, 0], IDENTITY)
        np.testing.assert_array_equal(out[prefix + "hand_pose"][3, 0], [IDENTITY] * 15)
    else:
        np.testing.assert_allclose(out[prefix + "joints_wrist"][7, 0], rest - rest[0], atol=1e-7)
    assert (out[prefix + "confidence"][:, 0] == 0).all()
    hand = load_robot("inspire").hand("left")
    joints = out["observation.joints.robot"][:, :12]
    np.testing.assert_allclose(joints, np.tile(hand.expand(hand.rest), (COUNT, 1)), atol=1e-6)


def test_rotations_that_are_never_known_are_the_identity() -> None:
    out = stored(motion_of(moving_hands(COUNT), camera=Camera.nominal(640, 480)))
    np.testing.assert_array_equal(
        out["observation.hand.hand_pose"], np.broadcast_to(IDENTITY, (COUNT, 2, 15, 6))
    )
    assert all(np.isfinite(value).all() for value in out.values())


def test_held_index() -> None:
    flags = np.array([False, False, True, False, True, False])
    assert held_index(flags).tolist() == [2, 2, 2, 2, 4, 4]
    assert held_index(np.zeros(3, bool)).tolist() == [0, 0, 0]
