"""The calibration that is kept with each robot, and the poses that it is fitted to."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from acehand_core.cli.main import main
from acehand_core.types import SIDES
from helpers import ROOT
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import OURS, find_robot_file, load_robot, robot_names
from retarget.solve import calibration as canonical
from retarget.solve.costs import Weights
from tools import gestures

ROBOTS = [name for name in (*robot_names(), "inspire:other") if name != "panda_gripper"]


@pytest.mark.slow
def test_the_poses_are_those_of_the_hand_model():
    """To the last digit kept, 0.01 mm, in which processors differ."""
    kept = json.loads((ROOT / "retarget" / "human_poses.json").read_text("utf-8"))
    now = json.loads(gestures.canonical_text())
    assert list(kept) == list(now)
    for name, joints in now.items():
        assert np.array(kept[name]) == pytest.approx(np.array(joints), abs=1.5e-5), (
            "stale: python -m tools.gestures > retarget/human_poses.json"
        )


def test_the_poses_are_what_they_are_called():
    """Angles at the joints, from the bones: the same bends that the poses were asked for."""
    names = json.loads((ROOT / "retarget" / "human_poses.json").read_text("utf-8"))
    poses = dict(zip(names, canonical.canonical_joints("right"), strict=True))

    def bends(name, finger):
        chain = poses[name][[0, *range(1 + 4 * finger, 5 + 4 * finger)]]
        bones = np.diff(chain, axis=0)
        bones /= np.linalg.norm(bones, axis=1, keepdims=True)
        return np.degrees(np.arccos(np.clip(np.sum(bones[1:] * bones[:-1], axis=1), -1, 1)))

    for finger in range(1, 5):
        assert bends("flat", finger)[1:] == pytest.approx([0, 0], abs=0.1)
        assert bends("fist", finger)[1:] == pytest.approx([100, 60], abs=0.1)
        alone = ("thumb", "index", "middle", "ring", "pinky")[finger]
        assert bends(f"{alone} bent", finger)[1:] == pytest.approx([85, 45], abs=0.1)
        others = [f for f in range(1, 5) if f != finger]
        assert max(bends(f"{alone} bent", f)[1:].max() for f in others) < 0.1
        pinch = poses[f"{alone} pinch"]
        assert np.linalg.norm(pinch[4] - pinch[4 + 4 * finger]) < 1e-3
    # In the fist the thumb's tip lies before the fingers, between index and ring finger.
    thumb, middles = poses["fist"][4], poses["fist"][[6, 7, 10, 11]]
    assert thumb[0] > middles[:, 0].max() + 0.012
    assert poses["fist"][14, 1] < thumb[1] < poses["fist"][6, 1]


def test_left_poses_mirror_the_right():
    left, right = (canonical.canonical_joints(side) for side in SIDES)
    assert np.abs(left * [1, -1, 1] - right).max() == 0
    assert right[:, 1, 1].min() > 0.02  # the right thumb's root is on +y


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ROBOTS)
def test_what_is_kept_fits_the_robot(name):
    for side, hand in load_robot(name, models=OURS).hands.items():
        tree = KinematicTree.of(hand)
        kept = canonical.stored_calibration(hand)
        stale = f"{side} is stale: acehand robots calibrate {name} --overwrite"
        assert kept is not None and kept.sha256 == canonical.fingerprint(hand, tree), stale
        again = canonical.fit_robot(hand, tree)
        fields = ("scale", "rotation", "translation", "finger_offsets", "lengths", "residual_m")
        for field in fields:
            np.testing.assert_allclose(
                getattr(again, field), getattr(kept.calibration, field), atol=1e-4, err_msg=stale
            )


def test_another_hand_is_fitted_again(tmp_path, capsys):
    """A copy whose fingers are changed no longer fits what was kept; the command mends that."""
    folder = tmp_path / "inspire"
    shutil.copytree(find_robot_file("inspire").parent, folder)
    file = folder / "robot.yaml"
    text = file.read_text()
    assert text.count("index_proximal: {limits: [0, 1.47]") == 1
    file.write_text(text.replace("index_proximal: {limits: [0, 1.47]",
                                 "index_proximal: {limits: [0, 1.40]"))  # fmt: skip
    hand = load_robot(file, models=OURS).hand("right")
    tree = KinematicTree.of(hand)
    assert canonical.stored_calibration(hand).sha256 != canonical.fingerprint(hand, tree)
    assert main(["robots", "calibrate", str(file)]) == 4  # never replaced unasked
    assert "--overwrite" in capsys.readouterr().err
    assert main(["robots", "calibrate", str(file), "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["files"] == [
        str(folder / "calibration.json")
    ]
    assert canonical.stored_calibration(hand).sha256 == canonical.fingerprint(hand, tree)
    before = (folder / "calibration.json").read_bytes()
    assert main(["robots", "calibrate", str(file)]) == 0
    assert "calibration.json" in capsys.readouterr().err
    assert (folder / "calibration.json").read_bytes() == before


def test_a_gripper_has_none(capsys):
    assert main(["robots", "calibrate", "panda_gripper"]) == 0
    assert "panda_gripper" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True)
class WeightsWithCentre(Weights):
    centre: float = 0.0


def test_a_weight_of_nothing_leaves_what_is_kept(monkeypatch):
    """A new cost that is off by default; one that is on makes what is kept stale."""
    hand = load_robot("inspire", models=OURS).hand("right")
    tree = KinematicTree.of(hand)
    kept = canonical.stored_calibration(hand).sha256
    monkeypatch.setattr(canonical, "Weights", WeightsWithCentre)
    assert canonical.fingerprint(hand, tree) == kept
    monkeypatch.setattr(canonical, "Weights", lambda: WeightsWithCentre(centre=0.1))
    assert canonical.fingerprint(hand, tree) != kept
