"""Mistakes that a file of keypoints may hold: named where they are clear, and no false alarms."""

import json
from pathlib import Path

import numpy as np
import pytest

import acehand_core as ah
from acehand_core import motion_from_joints
from acehand_core.errors import SchemaError
from acehand_core.recordings.keypoints.joints import DOUBT
from helpers import ROOT
from helpers import keypoint_files as made
from helpers.commands import GripperRun as Run
from helpers.retarget_samples import human_joints, moving_hands

FLIP = np.array([1.0, 1, -1])


def samples() -> dict[str, np.ndarray]:
    """Return (T, 2, 21, 3) of hands that were recorded or rendered, metres."""
    right = np.load(ROOT / "tests/data/human_joint_right.npz")["joints"]
    poses = np.array(list(json.loads((ROOT / "retarget/human_poses.json").read_text()).values()))
    return {
        "recorded": np.stack([np.full_like(right, np.nan), right], axis=1),
        "rendered": ah.read_hand_motion(ROOT / "examples/two_hands_truth.parquet").joints_camera,
        "moving": moving_hands(60),
        "canonical": np.stack([poses * FLIP, poses], axis=1),
    }


SAMPLES = samples()
ORDERS = {"openpose": tuple(range(21)), "mano": made.MANO, "minimal_hand": made.MINIMAL_HAND,
          "aria": made.ARIA, "interhand": made.INTERHAND}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("scale", [0.75, 1.0, 1.25])
def test_hands_are_taken_as_they_are(name: str, scale: float) -> None:
    """In whole, in parts, and with a tracker's noise."""
    rng = np.random.default_rng(0)
    joints = scale * SAMPLES[name]
    parts = [joints, *(joints[i : i + 30] for i in range(0, len(joints), 60))]
    for part in parts:
        for noise in (0.0, 0.003):
            motion = motion_from_joints(part + rng.normal(0, noise, part.shape), fps=30)
            assert motion.known.any()


@pytest.mark.parametrize("given", ORDERS)
@pytest.mark.parametrize("name", SAMPLES)
def test_another_order_is_named(name: str, given: str) -> None:
    for true, order in ORDERS.items():
        if true == given or (name, true, given) == ("canonical", "mano", "minimal_hand"):
            continue  # two fists and a flat hand do not show to which finger a tip belongs
        theirs = made.written(SAMPLES[name], order)
        with pytest.raises(SchemaError, match=f"look like {true} order") as error:
            motion_from_joints(theirs, order=given, fps=30)
        assert f"order {given} " in str(error.value)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(
    ("given", "true"),
    [("m", "mm"), ("m", "cm"), ("m", "in"), ("mm", "m"), ("cm", "mm"), ("cm", "in")],
)
def test_another_unit_is_named(name: str, given: str, true: str) -> None:
    joints = SAMPLES[name] * {"m": 1, "mm": 1000, "cm": 100, "in": 1 / 0.0254}[true]
    with pytest.raises(SchemaError, match=rf"unit: {true}"):
        motion_from_joints(joints, unit=given, fps=30)


@pytest.mark.parametrize("name", ["recorded", "rendered", "moving"])
def test_the_other_hand_is_named(name: str) -> None:
    right = SAMPLES[name][:, 1]
    with pytest.raises(SchemaError, match=r"a right hand.*`hands=right`"):
        motion_from_joints(right, side="left", fps=30)
    for mirrored in (right * FLIP, right[..., [0, 2, 1]]):  # an axis turned over, two exchanged
        with pytest.raises(SchemaError, match=r"a left hand.*one axis"):
            motion_from_joints(mirrored, side="right", fps=30)


def test_two_hands_in_the_wrong_slots() -> None:
    for wrong in (moving_hands(60)[:, ::-1], moving_hands(60) * FLIP):
        with pytest.raises(SchemaError, match=r"both hands.*swapped.*axis"):
            motion_from_joints(wrong, fps=30)


def test_an_open_hand_does_not_show_its_side() -> None:
    """Flat, and with the fingers bent back as far as they go."""
    flat = moving_hands(90)[45:46]  # a half period: the fingers are straight
    for joints in (np.repeat(flat, 30, axis=0), human_joints("right", 1)[None].repeat(2, 1)):
        for slot, side in enumerate(("left", "right")):
            motion = motion_from_joints(joints[:, 1], side=side, fps=30)
            assert motion.presence[:, slot].all() and not motion.presence[:, 1 - slot].any()


@pytest.mark.slow
def test_odd_hands_are_noted(tmp_path: Path, capsys) -> None:
    moving, rng = moving_hands(60), np.random.default_rng(0)
    breathing = moving * (1 + 0.15 * np.sin(np.arange(60)))[:, None, None, None]
    for joints, fps, note in (
        (moving, 30, ""),
        (SAMPLES["recorded"], 30, "bone lengths of the right hand vary by 8%"),
        (breathing, 30, "bone lengths of the left hand vary"),
        (moving, 3000, "frame rate right?"),
        (rng.normal(0, 0.05, (60, 2, 21, 3)), 30, "not in a hand's proportions"),
    ):
        notes = motion_from_joints(joints, fps=fps).provenance.notes
        doubts = " ".join(text for text in notes if text.startswith(DOUBT))
        assert note in doubts and bool(note) == bool(doubts)

    np.savez(tmp_path / "h.npz", joints=breathing, fps=30)
    run = Run(capsys, tmp_path / "h.npz", "--output", tmp_path / "out", "--no-overlay")
    assert run.code == 0 and "vary by" in str(run.json["notes"])
