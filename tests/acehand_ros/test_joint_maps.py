"""Joints by their controllers' names, orders and units."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from acehand_core.errors import InputError, SchemaError
from acehand_core.motion import Course
from acehand_ros.control import choose_hands, own_names, read_joint_maps
from retarget.robots.robot import load_robot

ROBOT = load_robot("inspire")
#: Pinky, ring, middle, index, thumb pitch, thumb yaw: the order of commands. Halfway but the last.
HALF = np.array([0.735, 0.735, 0.735, 0.735, 0.3, 0.327])


def test_the_file_of_our_names_says_what_none_says():
    stated, none = read_joint_maps("inspire", ROBOT), own_names(ROBOT)
    assert list(stated) == list(none) == ["left", "right"]
    for side, one in none.items():
        other = stated[side]
        assert (other.controller, other.joints, other.commands, other.unit, other.joint_states) == (
            one.controller, one.joints, one.commands, one.unit, one.joint_states
        )  # fmt: skip
    assert none["left"].joints[0] == "left_pinky_proximal"


def test_the_names_of_the_renesas_driver():
    """The order and names of its controller's YAML, and of the URDF joints of its README."""
    found = read_joint_maps("renesas_inspire_rh56", ROBOT)["right"]
    assert found.joints == (
        "thumb_proximal_yaw_joint", "thumb_proximal_pitch_joint", "index_proximal_joint",
        "middle_proximal_joint", "ring_proximal_joint", "pinky_proximal_joint",
    )  # fmt: skip
    assert found.values(HALF).tolist() == HALF[::-1].tolist()
    positions = {"wrist": 9.0, **dict(zip(found.joints[::-1], HALF, strict=True))}
    np.testing.assert_array_equal(found.measured(positions), HALF)


def test_registers(tmp_path):
    found = read_joint_maps(str(registers(tmp_path)), ROBOT)["left"]
    assert found.joints == ("5", "4", "3", "2", "1", "0") and found.joint_states == "registers"
    assert found.values(HALF).tolist() == [750, 500, 500, 500, 500, 500]
    assert found.values(np.array([0.001] * 6)).tolist() == [999, 998, 999, 999, 999, 999]
    back = found.measured({"0": 500, "1": 500, "2": 500, "3": 500, "4": 500, "5": 750})
    np.testing.assert_allclose(back, HALF)
    course = Course(np.array([1.0]), HALF[None], np.full((1, 6), 1.47))
    sent = found.course(course)
    np.testing.assert_allclose(sent.positions, [[750, 500, 500, 500, 500, 500]])
    # 1.47 rad/s closes a finger in a second, the yaw in 1.308 / 1.47 s, the pitch in 0.6 / 1.47 s.
    assert sent.velocities[0, 2:].tolist() == [-1000] * 4
    np.testing.assert_allclose(sent.velocities[0, :2], [-1000 * 1.47 / 1.308, -1000 * 1.47 / 0.6])


def registers(folder: Path, **changes) -> Path:
    names = {str(i): ROBOT.hand("left").command_joints[i] for i in range(5, -1, -1)}
    left = {"controller": "c", "unit": "register", "joint_states": "registers", "joints": names}
    path = folder / "map.yaml"
    values = {"schema": "acehand-controllers/1", "hands": {"left": {**left, **changes}}}
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"joints": {"a": "pinky_proximl"}}, "Did you mean 'pinky_proximal'"),
        ({"joints": {"a": "pinky_proximal"}}, "ring_proximal, middle_proximal"),
        ({"unit": "degree"}, "valid: rad, register"),
        ({"joint": {}}, "Did you mean 'joints'"),
        ({"controller": ""}, "controller is ''"),
    ],
)
def test_files_that_cannot_be(tmp_path, changes, words):
    with pytest.raises(SchemaError, match=r"map\.yaml: hands\.left") as caught:
        read_joint_maps(str(registers(tmp_path, **changes)), ROBOT)
    assert words in str(caught.value)


def test_a_joint_driven_twice_and_a_file_that_is_not_there(tmp_path):
    twice = {f"j{i}": name for i, name in enumerate(ROBOT.hand("left").command_joints)}
    with pytest.raises(SchemaError, match="names ring_proximal twice"):
        read_joint_maps(str(registers(tmp_path, joints=twice | {"k": "ring_proximal"})), ROBOT)
    with pytest.raises(InputError, match=r"'inspir'; valid: inspire, renesas.* 'inspire'"):
        read_joint_maps("inspir", ROBOT)


def test_the_hands_to_drive():
    maps = read_joint_maps("renesas_inspire_rh56", ROBOT)
    assert list(choose_hands(maps, "right", {"right": ""})) == ["right"]
    with pytest.raises(InputError, match="controller 'inspire_rh56"):
        choose_hands(maps, "both", {})
    both = choose_hands(maps, "both", {"left": "/l/c"})
    assert both["left"].controller == "/l/c"
    with pytest.raises(InputError, match="no left hand; valid: right"):
        choose_hands({"right": maps["right"]}, "left", {})
