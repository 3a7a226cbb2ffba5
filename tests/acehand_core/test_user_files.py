"""Files of users: dataclasses by their annotations, and messages that name place and value."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from acehand_core.errors import InputError, SchemaError
from acehand_core.user_files import (
    NOT_IN_FILES,
    Count,
    NonNegative,
    OneOf,
    Text,
    Valid,
    called,
    read_json,
    read_object,
    read_yaml,
    structured,
    without_header,
)


@dataclass(frozen=True, slots=True)
class Wheel:
    name: Text
    radius: float
    spokes: Count = 0
    turns: Literal["left", "right"] | None = None
    where: str = field(default="", metadata=NOT_IN_FILES)

    def __post_init__(self):
        if self.spokes == 13:
            raise SchemaError("13 spokes.")
        if self.radius == 77:
            raise SchemaError("radius is too large.")


@dataclass(frozen=True, slots=True)
class Tyre:
    kind: str | None = called("class")


@dataclass(frozen=True, slots=True)
class Cart:
    wheels: tuple[Wheel, ...] = ()
    load: NonNegative = 0
    place: tuple[float, float] | None = None
    owner: str | Mapping[Literal["left", "right"], str] = ""
    colour: Annotated[str, OneOf(("red", "green"))] = "red"
    ready: bool = False
    even: Annotated[int, Valid("an even number", lambda value: value % 2 == 0)] = 0
    notes: Mapping[str, Any] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    side: Literal["left", "right"] = "left"
    rate: Annotated[int | float, "not a rule"] = 1
    gear: int | Literal["low", "high"] = 1
    rim: tuple[Literal["a", "b"], ...] | None = called("rim")


def test_valid_values_become_what_is_declared():
    wheels = [{"name": "a", "radius": 2}, {"name": "b", "radius": 0.5, "turns": "left"}]
    made = structured(
        Cart,
        {
            "wheels": wheels, "load": 3, "place": [1, -2.5], "owner": {"left": "x"},
            "colour": "green", "ready": True, "even": 4, "notes": {"any": [1, None]},
        },
        "cart.yaml",
    )  # fmt: skip
    assert made == Cart(
        (Wheel("a", 2.0), Wheel("b", 0.5, turns="left")), 3, (1.0, -2.5), {"left": "x"},
        "green", True, 4, {"any": [1, None]},
    )  # fmt: skip
    assert type(made.wheels[0].radius) is float and type(made.load) is int
    assert structured(Cart, {"place": None, "owner": "me"}, "") == Cart(owner="me")
    assert structured(dict[str, Count], {"a": 1}, "") == {"a": 1}
    assert structured(Cart, {"steps": [1, 2], "side": "right"}, "") == Cart(
        steps=[1, 2], side="right"
    )


def test_an_entry_of_another_name():
    assert structured(Tyre, {"class": "wide"}, "") == Tyre("wide")
    assert structured(Tyre, {}, "") == Tyre(None)
    with pytest.raises(SchemaError, match=r"f: kind .*class"):
        structured(Tyre, {"kind": "wide"}, "f")


def test_files_are_read(tmp_path):
    path = tmp_path / "file"
    path.write_text("a: [1, two]\nb: ä\n", "utf-8")
    assert read_yaml(path) == {"a": [1, "two"], "b": "ä"}
    path.write_text('{"a": 1}')
    assert read_object(path) == {"a": 1}
    path.write_text("[1]")
    with pytest.raises(SchemaError, match=r"file: .*\[1\].*mapping"):
        read_object(path)


@pytest.mark.parametrize(
    ("text", "word"),
    [(" \n<a/>", "XML"), ("- a", "a list"), ("", "nothing"), ("3", "value"), ("1: a", "keys")],
)
def test_a_yaml_file_of_something_else(tmp_path, text, word):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(SchemaError, match=word) as error:
        read_yaml(path, " See the manual.")
    assert str(error.value).endswith(" See the manual.")
    with pytest.raises(SchemaError) as error:
        read_yaml(path)
    assert str(error.value).endswith((".", "`)."))


@pytest.mark.parametrize(
    ("entry", "place", "words"),
    [
        ({"wheel": []}, "wheel", ["'wheels'"]),
        ({"wheels": 3}, "wheels", ["3", "list"]),
        ({"wheels": [{"radius": 1}]}, "wheels[0].name", ["missing", "text"]),
        ({"wheels": [{"name": "a", "radius": 1}, {"name": " ", "radius": 1}]},
         "wheels[1].name", ["' '"]),
        ({"wheels": [{"name": "a", "radius": "1"}]}, "wheels[0].radius", ["'1'", "number"]),
        ({"wheels": [{"name": "a", "radius": True}]}, "wheels[0].radius", ["True"]),
        ({"wheels": [{"name": "a", "radius": float("nan")}]}, "wheels[0].radius", ["nan"]),
        ({"wheels": [{"name": "a", "radius": 1, "spokes": 1.0}]}, "wheels[0].spokes", ["whole"]),
        ({"wheels": [{"name": "a", "radius": 1, "spokes": -1}]}, "wheels[0].spokes", ["-1"]),
        ({"wheels": [{"name": "a", "radius": 1, "spokes": 13}]}, "wheels[0]", ["13 spokes"]),
        ({"wheels": [{"name": "a", "radius": 1, "where": "x"}]}, "wheels[0].where", ["spokes"]),
        ({"wheels": [{"name": "a", "radius": 1, "turns": "lft"}]},
         "wheels[0].turns", ["'lft'", "left, right", "mean 'left'"]),
        ({"load": -0.5}, "load", ["-0.5", "0 or more"]),
        ({"place": [1]}, "place", ["[1]", "[a number, a number]"]),
        ({"place": [1, "x"]}, "place[1]", ["'x'"]),
        ({"owner": 3}, "owner", ["3", "text or a mapping"]),
        ({"owner": {"lft": "x"}}, "owner.lft", ["mean 'left'"]),
        ({"owner": {"left": 3}}, "owner.left", ["3", "text"]),
        ({"colour": "gren"}, "colour", ["mean 'green'"]),
        ({"ready": 1}, "ready", ["true or false"]),
        ({"even": 3}, "even", ["3", "an even number"]),
        ({"even": "x"}, "even", ["'x'", "an even number"]),
        ({"notes": {1: "x"}}, "notes.1", ["text"]),
        ({"wheels": [3]}, "wheels[0]", ["3", "mapping"]),
        ({"steps": [1, "x"]}, "steps[1]", ["'x'"]),
        ({"steps": "1"}, "steps", ["'1'", "list"]),
        ({"side": "up"}, "side", ["'up'", "left, right"]),
        ({"rate": "fast"}, "rate", ["a number"]),
        ({"gear": "third"}, "gear", ["'third'", "a whole number or low, high"]),
        ({"rim": {"a": 1}}, "rim", ["list"]),
        ({"wheels": [{"name": "a", "radius": 77}]}, "wheels[0].radius", ["too large"]),
        ({"colour": "x" * 200}, "colour", ["x" * 76 + "..."]),
        ({"colour": "x" * 78}, "colour", ["x" * 78 + "'"]),
    ],
)  # fmt: skip
def test_a_message_names_file_place_value_and_what_is_valid(entry, place, words):
    with pytest.raises(SchemaError, match=rf"^cart\.yaml: {re.escape(place)} ") as error:
        structured(Cart, entry, "cart.yaml")
    assert all(word in str(error.value) for word in words), str(error.value)


def test_what_only_is_checked_stays_as_it_is():
    form = {"name": str, "rows": [{"count": Count, "mean": float | None}]}
    value = {"name": "a", "rows": [{"count": 1, "mean": 2, "more": []}], "more": 1}
    assert structured(form, value, "f") is value
    for wrong, place in (
        ({"rows": []}, "name"), ({"name": "a"}, "rows"), ({**value, "rows": 1}, "rows"),
        ({**value, "rows": [{"count": 1}]}, "rows[0].mean"), ([], ""),
        ({**value, "rows": [value["rows"][0], {"count": -1, "mean": 0}]}, "rows[1].count"),
    ):  # fmt: skip
        with pytest.raises(SchemaError, match=rf"^f: {re.escape(place)} ?(is|valid)"):
            structured(form, wrong, "f")
    for own, wrong, word in ((form, 3, "a mapping"), (form["rows"], {"a": 1}, "a list")):
        with pytest.raises(SchemaError, match=f"{wrong}; valid: {word}"):
            structured(own, wrong, "f")


def test_files_that_are_none_are_named(tmp_path):
    path = tmp_path / "file"
    for read, error in ((read_yaml, InputError), (read_json, InputError)):
        with pytest.raises(error, match="file: "):
            read(path)
    for text in (b"a: [", b"- a", b"", b"1: a", b"<a/>", b"a: 2026-02-30", b"\xff"):
        path.write_bytes(text)
        with pytest.raises(SchemaError, match="file: "):
            read_yaml(path)
    for text in (b"{", b"[" * 100_000, b"\xff"):
        path.write_bytes(text)
        with pytest.raises(SchemaError, match="file: "):
            read_json(path)


def test_another_format_or_version_is_refused():
    content = {"format": "carts", "version": 2, "load": 1}
    assert without_header(content, "carts", 2, "") == {"load": 1}
    for form, version, word in (("cart", 2, "'cart'"), ("carts", 3, "3")):
        with pytest.raises(SchemaError, match=rf"f\.json: .*{word}"):
            without_header(content, form, version, "f.json")
    with pytest.raises(SchemaError, match="carts"):
        without_header([], "carts", 2, "f.json")
