"""A setting is declared once: flag, ROS parameter, identity and docs come of it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from acehand_core.cli import console
from acehand_core.cli.console import flag
from acehand_core.cli.flags import parse
from acehand_core.cli.main import settings_of
from acehand_core.errors import InputError
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.options import RecordingOptions
from acehand_core.settings import (
    check_values,
    group,
    identity_of,
    leaves,
    like,
    respelled,
    setting,
)
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.choose import open_tracked
from acehand_ros.parameters import OFFLINE_BAG, as_parameters, check
from helpers.commands import Run, hands_file
from tools.docs_site import flag_table


@dataclass(frozen=True, slots=True)
class Inner:
    size: int | None = setting(None, "of the thing", low=1, high=9, identity="always")
    file: Path | None = setting(None, "a file", identity="always")

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, slots=True)
class Settings:
    """A command of this test."""

    names: tuple[str, ...] = setting(..., "who", metavar="NAME", positional=True)
    speed: float = setting(1.0, "how fast")
    way: Literal["up", "down"] = setting("up", "where to")
    loud: bool = setting(False, "make noise", short="l", identity="never")
    picture: bool = setting(True, "draw")
    existing: str = setting(
        "refuse", "where it exists", switches={"append": "add", "replace": "remove"}
    )
    inner: Inner = group(Inner, "the thing")
    of_callers: object = None


def given(*words: str) -> Settings:
    (made,) = parse("prog", words, Settings)
    assert isinstance(made, Settings)
    return made


def test_a_new_flag_is_one_field():
    """One field of the main job's settings, and it is there wherever settings are."""

    @dataclass(frozen=True)
    class More(JobSettings):
        sharpness: float = setting(0.5, "how sharp pictures are", low=0.0, high=1.0)

    (job,) = parse("acehand-retarget", ["--sharpness", "0.75", "--hands", "left"], More)
    assert (job.sharpness, job.hands) == (0.75, "left")
    with pytest.raises(InputError, match=r"`sharpness=2`; valid: 0 to 1"):
        parse("acehand-retarget", ["--sharpness", "2"], More)
    # A resumed run must have the same; datasets from before it was there lack it.
    assert job.shaping(30)["sharpness"] == 0.75 and "sharpness" not in More().shaping(30)
    (row,) = [line for line in flag_table(leaves(More)).splitlines() if "--sharpness" in line]
    assert row == "| `--sharpness` | `0.5` | how sharp pictures are |"

    # One more field makes it a parameter of a node, with its range and help.
    @dataclass(frozen=True)
    class Node:
        sharpness: float = like(More, "sharpness", 0.5)

    (leaf,) = leaves(Node)
    assert leaf.setting.help == "how sharp pictures are"
    assert (leaf.setting.low, leaf.setting.high, leaf.default) == (0.0, 1.0, 0.5)
    with pytest.raises(InputError, match="sharpness:=2; valid: 0 to 1"):
        check(leaves(Node), {"sharpness": 2.0})


def test_one_error_in_the_spelling_of_each_surface(tmp_path, capsys):
    """Of the library: Python's name of the setting; commands and nodes print their own."""
    hands = hands_file(tmp_path / "h.npz")
    with pytest.raises(InputError, match=r"apply to it: `hand_length`\.") as error:
        open_tracked(hands, "auto", TrackerSettings(hand_length_m=0.19), RecordingOptions())
    run = Run(capsys, hands, "--hand-length", "0.19", "--output", tmp_path / "out")
    assert run.code == 2 and "apply to it: --hand-length." in run.err
    assert run.messages == str(error.value)
    assert "apply to it: hand_length:=." in as_parameters(str(error.value))


@pytest.mark.parametrize(
    ("message", "of_flags"),
    [
        ("`speed=2` is too fast", "--speed 2 is too fast"),
        ("give `size` or `picture=False`", "give --size or --no-picture"),
        ("leave `picture` out, not `loud`", "leave --no-picture out, not --loud"),
        ("use `existing=append`, or `replace`", "use --append, or --replace"),
        ("one of `existing`", "one of --append or --replace"),
        ("the `names`", "the NAME"),
        ("`mapping: x`, `unknown`, `unknown=1` in `", "`mapping: x`, `unknown`, `unknown=1` in `"),
    ],
)
def test_messages_name_flags(message, of_flags):
    assert respelled(message, leaves(Settings), flag) == of_flags


def test_a_message_names_the_flags_of_another_command(capsys):
    """`acehand robots` has no flag of that name, which alone stays as it is."""

    def refuse():
        raise InputError("no `repair`; run `acehand dataset check` with `repair`.")

    assert console.run("acehand robots", [], refuse, settings_of) == 2
    assert "no `repair`; run `acehand dataset check` with --repair." in capsys.readouterr().err


@over(value=st.floats())
def test_only_a_number_in_its_range_passes(value):
    """NaN is in no range; ROS parameters refuse it too."""

    @dataclass(frozen=True)
    class One:
        share: float = setting(0.5, "a share", low=0.0, high=1.0)

    def passes(checked):
        try:
            checked()
        except InputError as error:
            assert "0 to 1" in str(error)
            return False
        return True

    assert passes(lambda: check_values(One(value))) == (0.0 <= value <= 1.0)
    assert passes(lambda: check(leaves(One), {"share": value})) == (0.0 <= value <= 1.0)


def test_flags_of_every_kind():
    assert given("a", "b") == Settings(("a", "b"))
    settings = given(
        "a", "--speed", "-2", "--way=down", "-l", "--no-picture", "--append", "--size", "3"
    )
    assert settings == Settings(("a",), -2.0, "down", True, False, "append", Inner(size=3))


def test_what_is_wrong_is_said(capsys):
    for words, message in ((["--speed", "2"], "NAME"), (["a", "--size", "12"], "valid: 1 to 9")):
        with pytest.raises(InputError, match=message):
            given(*words)
    for words, message in (
        (["a", "--append", "--replace"], "--append and --replace"),
        (["a", "--sped", "1"], "--speed X"),  # the nearest flag
        (["a", "--way", "left"], "'left'"),
        (["a", "--of-callers", "1"], "Unrecognized"),
    ):
        with pytest.raises(SystemExit) as stop:
            given(*words)
        assert stop.value.code == 2 and message in capsys.readouterr().err


def test_identity_is_of_contents(tmp_path):
    file = tmp_path / "a"
    file.write_text("one")
    first = identity_of(Settings(("x",), inner=Inner(file=file)))
    moved = file.rename(tmp_path / "b")
    assert identity_of(Settings(("x",), inner=Inner(file=moved))) == first
    moved.write_text("two")
    assert identity_of(Settings(("x",), inner=Inner(file=moved))) != first
    # "given" only where it is not the default, "always" always, "never" never.

    # FILE:NAME is the file's content and the name, wherever it lies.
    texts = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cameras").write_text("what is in it")
        cameras = [Path(f"{tmp_path}/{folder}/cameras:{name}") for name in ("cam0", "cam1")]
        texts.append([identity_of(Settings(("x",), inner=Inner(file=c)))["file"] for c in cameras])
    assert texts[0] == texts[1] and texts[0][0] != texts[0][1]
    (tmp_path / "two/cameras").write_text("something else")
    assert identity_of(Settings(("x",), inner=Inner(file=cameras[1])))["file"] != texts[1][1]

    assert identity_of(Settings(("x",), loud=True)) == {"names": ["x"], "size": None, "file": None}
    assert identity_of(Settings(("x",), speed=2.0))["speed"] == 2.0


def test_parameters_share_the_flags_settings():
    """A node's parameter of a flag's name has its choices."""
    flags = {leaf.parameter: leaf for leaf in leaves(JobSettings)}
    shared = [p for p in OFFLINE_BAG if p.parameter in flags and p.choices and p.name != "device"]
    assert {p.parameter for p in shared} >= {"hands"}
    for own in shared:
        flag = flags[own.parameter]
        expected = flag.choices or ("refuse", *dict(flag.setting.switches or {}))
        # Of one that cannot be None "auto" says the same.
        assert tuple(c for c in own.choices if c != "auto") == expected
    assert dataclasses.is_dataclass(JobSettings)
