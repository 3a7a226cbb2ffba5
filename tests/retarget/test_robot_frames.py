"""Checks of a user's robot by geometry: what is turned, swapped, scaled or exchanged is named.

The truth is each robot's own robot.yaml: its model stands in as a user's file, and one thing of it
is made wrong.
"""

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import yaml

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from helpers.retarget_samples import motion_of
from helpers.robot_models import hand_mjcf
from retarget.check import check_hand
from retarget.retargeting import retarget_motion
from retarget.robots.draft_text import write_draft
from retarget.robots.robot import OURS, find_robot_file, load_robot

NAMES = ("inspire", "shadow", "panda_gripper", "made up")
HANDS = ("inspire", "shadow", "made up")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "frames_cache"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("robots")
    (root / "made.xml").write_text(hand_mjcf())
    made = {"made up": write_draft(root / "made.xml", root / "made").parent}
    return made | {name: as_users(name, root / name) for name in NAMES if name not in made}


def as_users(name: str, folder: Path) -> Path:
    folder.mkdir()
    values = yaml.safe_load(find_robot_file(name).read_text())
    for key in ("files", "variants", "simulation", "materials", "no_contact"):
        values.pop(key, None)
    values["sides"], joints = {}, values["joints"]
    for side, hand in load_robot(name, models=OURS).hands.items():
        (folder / f"{side}.xml").write_text(hand.mjcf_path.read_text())
        ends = zip(joints, hand.lower.tolist(), hand.upper.tolist(), strict=True)
        frames = sorted({*hand.tip_names, *hand.target_frames})
        model = {"file": f"{side}.xml", "license": "ours", "root": f"{side}_base"}
        model["joints"] = {n: f"{side}_{n}" for n in joints}
        model["frames"] = {n: f"{side}_{n}" for n in frames}
        limits = {n: {"limits": [low, high]} for n, low, high in ends}
        values["sides"][side] = {"joints": limits, "model": model}
    (folder / "robot.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return folder


def changed(folder: Path, tmp_path: Path, change) -> Path:
    values = yaml.safe_load((folder / "robot.yaml").read_text())
    for side in values["sides"].values():
        side["model"]["file"] = str((folder / side["model"]["file"]).resolve())
    change(values)
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def failures(path: Path, side: str = "right") -> dict[str, str]:
    hand = load_robot(path).hand(side)
    return {f.name: f.detail for f in check_hand(hand, quick=True) if f.passed is False}


def turned(axis: int, degrees: float):
    """Return a change of every side's rpy by a turn of the base about one of its axes."""

    def change(values):
        turn = rotations.exp(np.radians(degrees) * np.eye(3)[axis])
        for side in values["sides"].values():
            place = side["model"]
            stated = rotations.from_rpy(np.array(place.get("rpy", [0.0, 0.0, 0.0])))
            place["rpy"] = rotations.to_rpy(turn @ stated).tolist()

    return change


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_passes(folders, name):
    for side in load_robot(folders[name] / "robot.yaml").hands:
        assert failures(folders[name] / "robot.yaml", side) == {}


@pytest.mark.few(2 * 3 * len(NAMES))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", range(3), ids="xyz")
@pytest.mark.parametrize("degrees", [45, 180, -90, -45, 90])
def test_a_turned_frame_is_caught(folders, tmp_path, name, axis, degrees):
    path = changed(folders[name], tmp_path, turned(axis, degrees))
    assert list(failures(path)) == ["palm frame"]


@pytest.mark.parametrize("axis", range(3), ids="xyz")
@pytest.mark.parametrize("name", NAMES)
def test_a_frame_15_degrees_off_is_said(folders, tmp_path, name, axis):
    hand = load_robot(changed(folders[name], tmp_path, turned(axis, 15))).hand("right")
    assert palm_frame_off(hand) > 9


def palm_frame_off(hand) -> float:
    found = next(f for f in check_hand(hand, quick=True) if f.name == "palm frame")
    assert found.passed
    return max(float(part.split()[1]) for part in found.detail.split(" degrees")[0].split(", "))


@pytest.mark.parametrize("name", NAMES)
def test_the_rpy_that_is_proposed_is_right(folders, tmp_path, name):
    path = changed(folders[name], tmp_path, turned(2, 90))
    named = failures(path)["palm frame"]
    proposed = yaml.safe_load(named[named.index("rpy: [") + 5 : named.index("]") + 1])

    def repaired(values):
        values["sides"]["right"]["model"]["rpy"] = [float(v) for v in proposed]

    assert failures(changed(folders[name], tmp_path, repaired)) == {}


@pytest.mark.parametrize("name", HANDS)
def test_a_left_hand_called_right_is_named(folders, tmp_path, name):
    def swap(values):
        sides = values["sides"]
        other = {"left": "right", "right": "left"}
        values["sides"] = {other[side]: entry for side, entry in sides.items()}

    path = changed(folders[name], tmp_path, swap)
    for side in load_robot(path).hands:
        found, actual = failures(path, side), "left" if side == "right" else "right"
        assert list(found) == ["side"] and f"looks like a {actual} hand" in found["side"]


def test_swapped_sides_of_a_gripper_are_a_wrong_frame(folders, tmp_path):
    """Its jaws open along y, the thumb's towards +y on a right one."""

    def swap(values):
        sides = values["sides"]
        sides["left"], sides["right"] = sides["right"], sides["left"]

    assert list(failures(changed(folders["panda_gripper"], tmp_path, swap))) == ["palm frame"]


@pytest.mark.parametrize("name", NAMES)
def test_a_base_far_from_the_hand_is_named(folders, tmp_path, name):
    """A place of 100 mm written as 100 m; one of 100 mm passes."""

    def placed(xyz):
        def change(values):
            for side in values["sides"].values():
                side["model"]["xyz"] = xyz

        return failures(changed(folders[name], tmp_path, change))

    assert placed([0, 0, 0.1]) == {}
    found = placed([100, 0, 0])
    assert list(found) == ["size"]
    assert "100 m" in found["size"] and "millimetres" in found["size"]


SCALED = ("body", "geom", "site", "joint")


@pytest.mark.parametrize(("factor", "named"), [(1000, "looks like millimetres"), (0.001, "twice")])
@pytest.mark.parametrize("name", NAMES)
def test_a_scaled_model_is_named(folders, tmp_path, name, factor, named):

    def scale(values):
        place = values["sides"]["right"]["model"]
        root = ET.parse(place["file"]).getroot()
        for part in ("equality", "actuator", "contact", "sensor", "keyframe"):
            for element in root.findall(part):
                root.remove(element)
        ET.SubElement(root, "compiler", boundmass="0.01", boundinertia="1e-6")
        sliding = root.find(".//joint[@type='slide']") is not None
        for element in root.iter():
            for inertial in element.findall("inertial"):
                element.remove(inertial)
            keys = {"pos", "fromto", "size", *(["range"] * (element.get("type") == "slide"))}
            for key in keys.intersection(element.keys()) if element.tag in SCALED else ():
                numbers = [float(v) * factor for v in element.get(key).split()]
                element.set(key, " ".join(map(repr, numbers)))
        place["file"] = str(tmp_path / "scaled.xml")
        ET.ElementTree(root).write(place["file"])
        for tip in place.get("tips", {}).values():
            tip["xyz"] = [v * factor for v in tip["xyz"]]
        values["sides"] = {"right": values["sides"]["right"]}
        tables = (values["joints"], values["sides"]["right"].get("joints", {}))
        for joint in (joint for table in tables for joint in table.values() if sliding):
            joint["limits"] = [v * factor for v in joint["limits"]]

    found = failures(changed(folders[name], tmp_path, scale))
    assert list(found) == ["size"] and named in found["size"]


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ("middle", "pinky", "the pinky is nearer to the thumb than the ring"),
        ("index", "thumb", "by its place the index looks like the thumb"),
    ],
)
def test_exchanged_fingers_are_named(tmp_path, one, other, named):
    """Where no name of a joint tells: by where the fingers stand."""
    (tmp_path / "made.xml").write_text(hand_mjcf(names=False))
    made = write_draft(tmp_path / "made.xml", tmp_path / "made").parent
    assert failures(made / "robot.yaml") == {}

    def exchange(values):
        table = values["keypoints"]
        table.update({k: v.replace(one, "~").replace(other, one).replace("~", other)
                      for k, v in table.items()})  # fmt: skip
        if "thumb" in (one, other):
            for key in [k for k in table if k.split("_")[0] in (one, other) and "_tip" not in k]:
                del table[key]
            table["thumb_tip"], table["index_tip"] = "index_tip", "thumb_tip"

    found = failures(changed(made, tmp_path, exchange))
    assert list(found) == ["fingers"] and named in found["fingers"]


def test_exchanged_joints_are_named(folders, tmp_path):
    """Of two fingers, by their names; of one finger, by its coupling or else by their order."""

    def exchanged(one, other, tied=True):
        def change(values):
            model = values["sides"]["right"]["model"]
            table = model["joints"]
            table[one], table[other] = table[other], table[one]
            if not tied:
                root = ET.parse(model["file"]).getroot()
                root.remove(root.find("equality"))
                model["file"] = str(tmp_path / "untied.xml")
                ET.ElementTree(root).write(model["file"])

        return failures(changed(folders["inspire"], tmp_path, change))

    found = exchanged("index_proximal", "ring_proximal")["fingers"]
    assert "moves the ring" in found and "the index" in found
    found = exchanged("index_proximal", "index_intermediate")["coupling"]
    assert "index_proximal is" in found
    found = exchanged("index_proximal", "index_intermediate", tied=False)["fingers"]
    assert "than index_proximal" in found


def test_keypoints_against_the_order_of_a_finger_are_named(folders, tmp_path):
    def change(values):
        table = values["keypoints"]
        table["index_mcp"], table["index_pip"] = table["index_pip"], table["index_mcp"]

    found = failures(changed(folders["inspire"], tmp_path, change))
    assert "index_pip" in found["fingers"] and "order" in found["fingers"]


def test_retargeting_refuses_a_faulty_robot_unless_told(folders, tmp_path, joints_file):
    joints = np.full((12, 2, 21, 3), np.nan)
    joints[:, 1] = np.load(joints_file)["joints"][:12]
    human = motion_of(joints, placed=False)
    robot = load_robot(changed(folders["inspire"], tmp_path, turned(2, 90)))
    with pytest.raises(InputError, match=r"palm frame: .* x 9\d, y 9\d"):
        retarget_motion(human, robot)
    trajectory = retarget_motion(human, robot, unchecked=True)
    assert "palm frame" in trajectory.notes[0]
    assert trajectory.verdict.status != "pass"
    right = load_robot(folders["inspire"] / "robot.yaml")
    assert retarget_motion(human, right).notes == ()


def test_a_packaged_robot_is_not_checked_again(monkeypatch):
    from retarget import check, retargeting

    monkeypatch.setattr(check, "check_hand", lambda *_, **__: pytest.fail("checked"))
    check.quick_faults.cache_clear()
    assert retargeting.faults(load_robot("inspire", models=OURS), ("left", "right")) == ()
    moved = dataclasses.replace(load_robot("inspire", models=OURS), path=Path("else/robot.yaml"))
    with pytest.raises(pytest.fail.Exception):
        retargeting.faults(moved, ("right",))
    check.quick_faults.cache_clear()
