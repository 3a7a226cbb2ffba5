"""Where a user's model file is found, and what is named when something is wrong with it."""

import pytest

from acehand_core.errors import InputError, SchemaError
from helpers.makers_files import robot_values, write_mjcf, write_robot
from retarget.robots.robot import MODELS_VARIABLE, load_robot

FINGERS = ("thumb", "index", "middle")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(MODELS_VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path):
    write_mjcf(tmp_path / "models" / "theirs", FINGERS)
    return tmp_path / "models"


def robot_file(folder, change=None):
    values = robot_values(folder / "hand.xml", FINGERS)
    model = values["sides"]["right"]["model"]
    model["file"] = "theirs/hand.xml"
    if change is not None:
        change(model)
    return write_robot(folder, values)


@pytest.mark.parametrize("place", ["folder", "package", "file", "variable", "next to it"])
def test_where_their_file_is_found(tmp_path, folder, monkeypatch, place):
    file = folder / "theirs" / "hand.xml"
    models = {"folder": folder, "package": file.parent, "file": file}.get(place)
    if place == "variable":
        monkeypatch.setenv(MODELS_VARIABLE, str(folder))
    robot = load_robot(robot_file(folder if place == "next to it" else tmp_path), models=models)
    assert robot.hand("right").user_model == file
    assert "the maker's" in robot.license


def test_a_missing_file_says_whose_it_is_and_where_to_put_it(tmp_path):
    with pytest.raises(InputError, match=r"the maker's.*`robot_model`.*ROBOT_MODELS"):
        load_robot(robot_file(tmp_path))
    for name, models, named in (
        ("leap", tmp_path / "nope", r"/nope: .*`robot_model`"),
        ("inspire", tmp_path, "'inspire' takes no user model"),
        ("allegro", tmp_path, r"'allegro'; valid: \S+\.\w+ or \S+\.\w+"),
    ):
        with pytest.raises(InputError, match=named):
            load_robot(name, models=models)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda e: e["joints"].update(index_mcp="index/mpc"), "'index/mpc' .*'index/mcp'"),
        (lambda e: e["frames"].update(index_1="index/proxmal"), "'index/proxmal' .*/proximal'"),
        (lambda e: e.update(root="pam"), "'pam'.*'palm'"),
        (lambda e: e.update(root="mount", joints={}), "index/mcp"),
        (lambda e: e.update(tips={"thumb_tip": {"link": "plam", "xyz": [0, 0, 0]}}), "'palm'"),
        (lambda e: e["frames"].pop("index_tip"), "'index_tip'"),
    ],
)
def test_a_wrong_name_is_named_with_the_nearest(tmp_path, folder, change, named):
    with pytest.raises(SchemaError, match=named):
        load_robot(robot_file(tmp_path, change), models=folder)


def test_a_broken_file_is_named(tmp_path, folder):
    (folder / "theirs" / "hand.xml").write_text("<mujoco>")
    with pytest.raises(InputError, match=r"hand\.xml"):
        load_robot(robot_file(tmp_path), models=folder)
