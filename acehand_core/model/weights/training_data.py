"""What a model learned from: datasets, each recorded or rendered. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from acehand_core.errors import SchemaError, nearest

#: "real": pictures of people; "synthetic": rendered pictures; "unknown": nobody recorded it.
Kind = Literal["real", "synthetic", "unknown"]


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """A dataset that a model was trained on.

    ``store_sha256`` is the hash of the store's ``store.json``, ``clips_sha256`` that of the files
    of all its clips; both are empty for datasets that are known by name only.
    """

    name: str
    kind: Kind
    store_sha256: str = ""
    clips_sha256: str = ""
    clips: int = 0
    license: str = ""

    def __str__(self) -> str:
        extent = f", {self.clips} clips" if self.clips else ""
        store = f", store {self.store_sha256[:12]}" if self.store_sha256 else ""
        return f"{self.name} ({self.kind}{extent}{store})"


_FIELDS = {f.name: int if f.name == "clips" else str for f in fields(TrainingSource)}

#: None: not recorded.
TrainingData = tuple[TrainingSource, ...] | None

#: Files in a released layout that do not say they are ours: the release was trained on recordings.
RELEASED: TrainingData = (TrainingSource("ACE-Ego-Hand release", "real"),)


def kind_of(data: TrainingData) -> Kind:
    """Return "real" where any dataset is, "synthetic" where all are, else "unknown"."""
    kinds = {source.kind for source in data or ()}
    if "real" in kinds:
        return "real"
    return "synthetic" if kinds == {"synthetic"} else "unknown"


def joined(*parts: Iterable[TrainingSource]) -> TrainingData:
    """Return the datasets of several trainings, one after the other, each once."""
    return tuple(dict.fromkeys(source for part in parts for source in part))


def describe(data: TrainingData) -> str:
    """Return what is known in one line."""
    if not data:
        return "trained on: not recorded"
    return f"trained on: {'; '.join(map(str, data))}"


def to_json(data: TrainingData) -> list[dict[str, Any]] | None:
    """Return plain values, as ``from_json`` takes them."""
    return None if data is None else [asdict(source) for source in data]


def from_json(value: Any, where: str) -> TrainingData:
    """Return what ``to_json`` wrote; None for what was written before it was recorded.

    Raises SchemaError.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise SchemaError(f"{where}: training_data must be a list of objects.")
    for entry in value:
        odd = [name for name in entry if not isinstance(entry[name], _FIELDS.get(name, ()))]
        odd += [name for name in ("name", "kind") if name not in entry]
        if odd:
            raise SchemaError(f"{where}: training_data: {odd[0]} is missing, unknown or no value.")
        if entry["kind"] not in get_args(Kind):
            valid = nearest(entry["kind"], get_args(Kind))
            raise SchemaError(f"{where}: training_data: kind {entry['kind']!r}; {valid}")
    return tuple(TrainingSource(**entry) for entry in value)
