"""Put features beside those of a LeRobot v3 dataset; what it has already stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acehand_core.atomic import output_errors
from acehand_core.errors import InputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.assemble import Row, link
from acehand_core.lerobot.combine import copy_file, new_folder
from acehand_core.lerobot.edit import Content, opened
from acehand_core.lerobot.episode import check_columns
from acehand_core.lerobot.format import FeatureSpec
from acehand_core.lerobot.stats import (
    EXACT_FRAMES,
    STAT_NAMES,
    FeatureStats,
    feature_stats,
    merge,
    stats_to_json,
)
from acehand_core.lerobot.transaction import Step
from acehand_core.types import Progress, no_progress

#: Columns of an episode of T frames, by key, each (T, N); and what lies beside it goes to a folder.
ColumnsOf = Callable[[Row, Path], Mapping[str, np.ndarray]]


def add_features(
    root: Path,
    output: Path,
    specs: Sequence[FeatureSpec],
    columns_of: ColumnsOf,
    *,
    hard_links: bool = False,
    progress: Progress = no_progress,
    on_step: Step | None = None,
) -> None:
    """Write a dataset ``output`` that is ``root`` with more features; ``root`` stays as it is.

    Its own columns, rows, videos, tasks and statistics are taken over unchanged, and so is whatever
    else lies in it, but hidden files.

    Args:
        specs: of the new features; none is a video.
        columns_of: called once per episode, in order: see ``ColumnsOf``.
        hard_links: files that stay the same become hard links, where the file system has them.
        on_step: for tests, called with a name before everything that touches the disk.

    Raises:
        InputError: there is no such dataset, or it has such a feature already. SchemaError: it
            needs the repair first, or columns do not fit. OutputError: ``output`` exists or cannot
            be written.
    """
    root, output = root.resolve(), output.absolute()
    with output_errors(output), opened(root) as content:
        check_new(root, content[0]["features"], specs)

        def fill(base: Path, step: Step) -> None:
            _Extension(root, content, specs, base, step).write(columns_of, progress)
            step("link the rest")
            place = link if hard_links else copy_file
            for path in sorted(root.rglob("*")):
                name = path.relative_to(root)
                hidden = any(part.startswith(".") for part in name.parts)
                if path.is_file() and not hidden and not (base / name).exists():
                    place(path, base / name)

        new_folder(output, fill, on_step)


def check_new(root: Path, features: Mapping[str, Any], specs: Sequence[FeatureSpec]) -> None:
    """Raise InputError where a dataset has one of these features already."""
    if there := [spec.key for spec in specs if spec.key in features]:
        raise InputError(f"{root} has {there[0]!r} already; it was annotated, or made by acehand.")


class _Extension:
    """A dataset with more features in the making, in the folder ``base``."""

    def __init__(
        self, root: Path, content: Content, specs: Sequence[FeatureSpec], base: Path, step: Step
    ) -> None:
        self._root, self._base, self._step = root, base, step
        self._info, self._rows, _ = content
        self._features = {spec.key: spec.to_json() for spec in specs}
        self._stats: list[FeatureStats] = []  # per episode
        self._every: dict[str, list[np.ndarray]] = {key: [] for key in self._features}

    def write(self, columns_of: ColumnsOf, progress: Progress) -> None:
        """Write data, rows of episodes, statistics and info.json."""
        by_file: dict[str, list[Row]] = {}
        for row in self._rows:
            by_file.setdefault(layout.data_file(row), []).append(row)
        done = 0
        for name, rows in by_file.items():
            columns = []
            for row in rows:
                progress("annotate", done, len(self._rows))
                folder = self._base / layout.episode_folder(row["episode_index"])
                folder.mkdir(parents=True)
                own = check_columns(self._features, columns_of(row, folder))
                if lengths := {len(values) for values in own.values()} - {row["length"]}:
                    raise SchemaError(
                        f"{self._root}: {lengths.pop()} frames for episode "
                        f"{row['episode_index']}, which has {row['length']}."
                    )
                self._stats.append({key: feature_stats(values) for key, values in own.items()})
                columns.append(own)
                done += 1
            self._step(f"write {name}")
            self._write_data(name, rows, columns)
        progress("annotate", done, len(self._rows))

        self._write_rows()
        self._write_info()

    def _write_data(
        self, name: str, rows: Sequence[Row], columns: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        """Write a data file with the new columns behind its own."""
        table = layout.read_parquet(self._root / name)
        numbers = table["episode_index"].to_numpy()
        wanted = np.concatenate([np.full(row["length"], row["episode_index"]) for row in rows])
        if not np.array_equal(numbers, wanted):
            raise SchemaError(f"{self._root / name}: its episodes are not in order; repair it.")
        metadata = _with_features(table.schema.metadata or {}, self._features)
        for key, feature in self._features.items():
            values = np.concatenate([own[key] for own in columns])
            self._every[key].append(values)
            array = layout.column_array(values, feature["dtype"], feature["shape"])
            table = table.append_column(key, array)
        target = self._base / name
        target.parent.mkdir(parents=True, exist_ok=True)
        layout.write_parquet(table.replace_schema_metadata(metadata), target)

    def _write_rows(self) -> None:
        """Write the rows of episodes with the statistics of the new features."""
        stats = dict(zip((row["episode_index"] for row in self._rows), self._stats, strict=True))
        for name in dict.fromkeys(row["path"] for row in self._rows):
            self._step(f"write {name}")
            table = layout.read_parquet(self._root / name)
            own = [stats[number] for number in table["episode_index"].to_pylist()]
            for key in self._features:
                for stat in STAT_NAMES:
                    kind = pa.list_(pa.int64() if stat == "count" else pa.float64())
                    column = pa.array([one[key][stat].tolist() for one in own], kind)
                    table = table.append_column(f"stats/{key}/{stat}", column)
            (self._base / name).parent.mkdir(parents=True, exist_ok=True)
            layout.write_parquet(table, self._base / name)

    def _write_info(self) -> None:
        self._step(f"write {layout.INFO_PATH}")
        frames = sum(row["length"] for row in self._rows)
        new: FeatureStats = {}
        for key, parts in self._every.items():
            exact = frames <= EXACT_FRAMES
            new[key] = (
                feature_stats(np.concatenate(parts)) if exact
                else merge([one[key] for one in self._stats])
            )  # fmt: skip
        stats = layout.read_json(self._root / layout.STATS_PATH) | stats_to_json(new)
        (self._base / "meta").mkdir(exist_ok=True)
        # As it was written, which may be with NaN: of values that are not ours.
        (self._base / layout.STATS_PATH).write_text(json.dumps(stats, indent=4) + "\n", "utf-8")
        info = {**self._info, "features": {**self._info["features"], **self._features}}
        (self._base / layout.INFO_PATH).write_bytes(layout.to_json_bytes(info))


def _with_features(
    metadata: Mapping[bytes, bytes], features: Mapping[str, Any]
) -> dict[bytes, bytes]:
    """Return a data file's metadata that also describes new columns to Hugging Face's datasets.

    It lists all columns, where it is there; it is left out where it is not understood.
    """
    kept = dict(metadata)
    if b"huggingface" not in kept:
        return kept
    try:
        described = json.loads(kept[b"huggingface"])
        known = described["info"]["features"]
        lists = {entry["_type"] for entry in known.values() if "length" in entry}
        kind = lists.pop() if lists else "List"
        for key, feature in features.items():
            value = {"dtype": feature["dtype"], "_type": "Value"}
            length = feature["shape"][0]
            known[key] = value if length == 1 else {
                "feature": value, "length": length, "_type": kind
            }  # fmt: skip
        kept[b"huggingface"] = json.dumps(described).encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        del kept[b"huggingface"]
    return kept
