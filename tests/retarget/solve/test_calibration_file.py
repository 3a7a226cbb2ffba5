"""Calibration files: what is written is read again; what is wrong is named."""

import json

import numpy as np
import pytest

from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from acehand_core.motion import Calibration
from retarget.robots.robot import load_robot
from retarget.solve.calibration_file import StoredCalibration, calibration_text, read_calibrations

ROBOT = load_robot("inspire")
CALIBRATION = Calibration(
    1.0 / 1.07, rotations.exp(np.array([0.1, -0.2, 0.3])), np.array([0.01, 0.02, 0.03]), 0.0123,
    finger_offsets=np.random.default_rng(0).normal(0, 0.003, (5, 3)),
    lengths=np.array([0.97, 1.0, 1.01, 1.02, 1.03]),
)  # fmt: skip


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "calibration.json"
    file.write_text(
        calibration_text(ROBOT, {"right": StoredCalibration(CALIBRATION, "a.mp4", "ab12")})
    )
    return file


def changed(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return path


def test_every_digit_comes_back(path):
    found = read_calibrations(path, ROBOT)
    assert list(found) == ["right"]
    for name in ("scale", "rotation", "translation", "residual_m", "finger_offsets", "lengths"):
        one = found["right"].calibration
        assert np.array_equal(getattr(one, name), getattr(CALIBRATION, name)), name
    record = json.loads(path.read_text())
    assert (record["source"], record["source_sha256"]) == ("a.mp4", "ab12")


def test_an_unknown_residual(tmp_path):
    one = Calibration(1.0, np.eye(3), np.zeros(3), float("nan"))
    path = tmp_path / "c.json"
    path.write_text(calibration_text(ROBOT, {"left": StoredCalibration(one, "a.mp4", None)}))
    assert np.isnan(read_calibrations(path, ROBOT)["left"].calibration.residual_m)


def test_each_side_says_what_it_was_fitted_to(path):
    given = read_calibrations(path, ROBOT)
    assert (given["right"].source, given["right"].sha256) == ("a.mp4", "ab12")
    both = {"left": StoredCalibration(CALIBRATION, "b.mp4", None), "right": given["right"]}
    path.write_text(calibration_text(ROBOT, both))
    again = read_calibrations(path, ROBOT)
    for side, (source, sha256) in {"left": ("b.mp4", None), "right": ("a.mp4", "ab12")}.items():
        assert (again[side].source, again[side].sha256) == (source, sha256)


RIGHT = "hands.right"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(schema="other/1"), "acehand-calibration/1"),
        (lambda r: r.update(extra=1), "extra"),
        (lambda r: r.update(source=5), "source"),
        (lambda r: r.update(hands={}), "hands is {}; .*left"),
        (lambda r: r["hands"].update(rigth={}), "hands.rigth .*'right'"),
        (lambda r: r["hands"]["right"].update(scal=1), f"{RIGHT}.scal is not .*'scale'"),
        (lambda r: r["hands"]["right"].update(scale=0.5), f"{RIGHT}.scale is 0.5; .*0.9"),
        (lambda r: r["hands"]["right"].update(scale="1"), f"{RIGHT}.scale is '1'"),
        (lambda r: r["hands"]["right"].pop("rotation"), f"{RIGHT}.rotation is missing"),
        (lambda r: r["hands"]["right"]["rotation"][0].__setitem__(0, 2.0), "a rotation matrix"),
        (lambda r: r["hands"]["right"].update(translation_m=[0, 1]), "translation_m is"),
        (lambda r: r["hands"]["right"].update(translation_m=[0, 1, None]), r"translation_m\[2\]"),
        (lambda r: r["hands"]["right"]["anchors_m"].pop("ring"), "anchors_m .*thumb, in"),
        (lambda r: r["hands"]["right"]["lengths"].update(ring=2.0), r"lengths\.ring is 2.0; .*0.9"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(path, change, message):
    with pytest.raises(SchemaError, match=message) as error:
        read_calibrations(changed(path, change), ROBOT)
    assert str(path) in str(error.value)


def test_another_robot(path):
    with pytest.raises(InputError, match=r"inspire \(default\).*inspire \(other"):
        read_calibrations(path, load_robot("inspire", "other"))


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: cannot be read"):
        read_calibrations(tmp_path / "none.json", ROBOT)
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    with pytest.raises(SchemaError, match=r"bad\.json"):
        read_calibrations(tmp_path / "bad.json", ROBOT)
