"""Cut frames off the episodes of a LeRobot v3 dataset.

An episode from whose middle frames go becomes several: one with a jump in it would teach a policy
that jump. The episodes as they were are kept as a dataset in ``.unreferenced``, and each piece says
of which it is (``TRIM``).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acehand_core.atomic import output_errors
from acehand_core.errors import InputError, SchemaError, VideoError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import transaction
from acehand_core.lerobot.assemble import Assembly, Row, write_episodes
from acehand_core.lerobot.edit import (
    REMOVED,
    SET_ASIDE,
    Content,
    free_name,
    opened,
    replace_dataset,
)
from acehand_core.lerobot.episode import index_columns
from acehand_core.lerobot.stats import feature_stats, image_stats
from acehand_core.lerobot.trim_rules import (
    HAND_KEYS,
    TrimCut,
    TrimRules,
    find_cuts,
    left_of,
    sharpness_of,
)
from acehand_core.recordings.lerobot_video import Latest, open_episode
from acehand_core.recordings.selection import part
from acehand_core.recordings.video_encode import (
    VideoEncoding,
    copy_parts,
    encode_video,
    probe_video,
)
from acehand_core.types import Progress, no_progress

#: Beside a piece of an episode: of which it is.
TRIM = "trim.json"
#: Where a piece does not begin with a key frame its pictures are encoded again, nearly without
#: loss: constant quality per codec.
_AGAIN: Mapping[str, VideoEncoding] = {
    "h264": VideoEncoding("h264", crf=16),
    "av1": VideoEncoding("av1", crf=20),
}


@dataclass(frozen=True, slots=True)
class EpisodePiece:
    """Frames ``start`` to ``stop - 1`` of an episode of ``length`` frames."""

    start: int
    stop: int
    length: int

    def __len__(self) -> int:
        return self.stop - self.start


#: Writes what lies beside a piece: from the episode's folder (which may not be there) to its own.
Beside = Callable[[Path, Path, EpisodePiece], None]


@dataclass(frozen=True, slots=True)
class Trimming:
    """What ``trim_episodes`` did.

    ``trimmed`` has for each changed episode the number, frames and tasks that it had, ``kept``
    (first frame and the one after the last of each piece) and ``cuts`` (the same of each range that
    went, with its reason). ``set_aside`` is the dataset of the episodes as they were, relative to
    the trimmed one; None: deleted, or nothing was changed.
    """

    trimmed: tuple[dict[str, Any], ...]
    episodes: int
    frames: int
    set_aside: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset trim --json`` prints."""
        return asdict(self)


def trim_episodes(
    root: Path,
    rules: TrimRules | Mapping[int, Sequence[TrimCut]],
    beside: Beside,
    *,
    delete: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Trimming:
    """Cut frames off; later episodes are numbered anew.

    Args:
        rules: what goes; or, by episode, the frames themselves.
        beside: writes the files beside a piece, ``trim.json`` excepted.
        delete: do not keep the episodes as they were.
        dry_run: say what would be cut, and change nothing.

    Raises:
        InputError: there is no such dataset, it lacks what a rule reads, an episode is unfinished,
            or none would be left. SchemaError: it needs the repair first. VideoError: a video
            cannot be read, or not be cut there. OutputError: it cannot be written or is in use.
            Nothing has changed.
    """
    root = root.resolve()
    with output_errors(root), opened(root) as content:
        info, rows, _ = content
        videos = Latest(1)  # many episodes may lie in one
        found: dict[int, tuple[list[TrimCut], list[tuple[int, int]]]] = {}
        for place, row in enumerate(rows):
            progress("measure", place, len(rows))
            if isinstance(rules, TrimRules):
                cuts, kept = _cuts_of(root, info, row, rules, videos)
            else:
                cuts = [*rules.get(row["episode_index"], ())]
                kept = left_of(cuts, row["length"])
            if kept != [(0, row["length"])]:
                found[row["episode_index"]] = cuts, kept
        progress("measure", len(rows), len(rows))

        said = tuple(
            {"episode": row["episode_index"], "frames": row["length"], "tasks": row["tasks"],
             "kept": [[*piece] for piece in found[row["episode_index"]][1]],
             "cuts": [{"frames": [cut.start, cut.stop], "reason": cut.reason}
                      for cut in found[row["episode_index"]][0]]}
            for row in rows if row["episode_index"] in found
        )  # fmt: skip
        whole = [[(0, row["length"])] if row["episode_index"] not in found
                 else found[row["episode_index"]][1] for row in rows]  # fmt: skip
        lengths = [stop - start for pieces in whole for start, stop in pieces]
        if not lengths:
            raise InputError(f"{root}: no episode would be left; loosen the rules.")
        for row in rows:
            if row["episode_index"] in found:
                _check_finished(root, row)
        aside = None
        if found and not dry_run:
            aside = _trim(root, content, whole, said, beside, delete, progress)
        return Trimming(said, len(lengths), sum(lengths), aside)


def _check_finished(root: Path, row: Row) -> None:
    """Raise InputError where a run that made an episode has not drawn its pictures yet."""
    number = row["episode_index"]
    is_ours = (root / layout.EXTRAS).is_dir() and layout.read_record(root, row) is not None
    if is_ours and (names := layout.missing_files(root, number)):
        raise InputError(
            f"{root}: episode {number} is unfinished ({', '.join(names)}); run the command that "
            "made it again, with --resume, then trim."
        )


def _cuts_of(
    root: Path, info: Mapping[str, Any], row: Row, rules: TrimRules, videos: Latest
) -> tuple[list[TrimCut], list[tuple[int, int]]]:
    """Return what goes of an episode, and the pieces that stay."""
    features = info["features"]
    keys = [key for key in HAND_KEYS if key in features]
    columns: dict[str, np.ndarray] = {}
    if rules.idle or rules.gaps or rules.confidence:
        table = layout.read_frames(root, row, keys)
        columns = {key: layout.column_values(table[key], features[key]["shape"]) for key in keys}

    sharpness = None
    if rules.blur is not None:
        path = root / f"episode_{row['episode_index']:06d}"
        sharpness = sharpness_of(open_episode(path, rules.blur.video, kept=videos))
    return find_cuts(rules, columns, sharpness, row["length"], info["fps"])


def _trim(
    root: Path,
    content: Content,
    pieces: Sequence[Sequence[tuple[int, int]]],
    said: Sequence[Mapping[str, Any]],
    beside: Beside,
    delete: bool,
    progress: Progress,
) -> str | None:
    """Write the trimmed dataset; ``pieces`` of each row. Return where episodes are set aside."""
    info, rows, tasks = content
    place = free_name(root / SET_ASIDE / "trimmed").relative_to(root)
    changed = [row for row, own in zip(rows, pieces, strict=True) if own != [(0, row["length"])]]
    identity = _identity(root, changed, said)

    def fill(base: Path) -> None:
        scratch = base / ".pieces"
        parts: list[tuple[Path, list[Row], list[str]]] = []
        for number, (row, own) in enumerate(zip(rows, pieces, strict=True)):
            progress("trim", number, len(rows))
            if own == [(0, row["length"])]:
                if not parts or parts[-1][0] != root:
                    parts.append((root, [], tasks))
                parts[-1][1].append(row)
            elif own:
                transaction.step(f"cut episode {row['episode_index']}")
                said_of_it = {"id": identity, "episode": row["episode_index"]}
                made = _Cutting(root, info, row, tasks, scratch / str(number), said_of_it)
                parts.append((made.target, made.write(own, beside), tasks))

        there = {task for _, listed, _ in parts for row in listed for task in row["tasks"]}
        used = [task for task in tasks if task in there]
        assembly = Assembly(base, info, renumber=True, tasks=used)
        for source, listed, own_tasks in parts:
            assembly.add(source, listed, own_tasks)
        assembly.finish()
        shutil.rmtree(scratch, ignore_errors=True)

        if not delete:
            write_episodes(base / place, info, root, changed, tasks)
            record = {"id": identity, "removed": [*said]}
            (base / place / REMOVED).write_bytes(layout.to_json_bytes(record))
        progress("trim", len(rows), len(rows))

    replace_dataset(root, fill)
    return None if delete else place.as_posix()


def _identity(root: Path, rows: Sequence[Row], said: Sequence[Mapping[str, Any]]) -> str:
    """Return what tells episodes that were trimmed in one go from others, by their content."""
    digest = hashlib.sha256(layout.to_json_bytes({"removed": [*said]}))
    for name in dict.fromkeys(layout.data_file(row) for row in rows):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:16]


class _Cutting:
    """Writes the pieces of one episode as a folder that ``Assembly.add`` takes episodes from.

    ``said`` is what each piece's ``TRIM`` says of the episode.
    """

    def __init__(
        self,
        root: Path,
        info: Mapping[str, Any],
        row: Row,
        tasks: Sequence[str],
        target: Path,
        said: Mapping[str, Any],
    ) -> None:
        self.target = target
        self._root, self._info, self._row, self._tasks = root, info, row, tasks
        self._said = said
        self._folder = root / layout.episode_folder(row["episode_index"])

    def write(self, pieces: Sequence[tuple[int, int]], beside: Beside) -> list[Row]:
        """Write the pieces and return their rows of meta/episodes."""
        table = layout.read_frames(self._root, self._row)
        rows = []
        for number, (start, stop) in enumerate(pieces):
            piece = EpisodePiece(start, stop, self._row["length"])
            row = self._data(table, number, piece)
            for key in layout.video_keys(self._info["features"]):
                row |= self._video(key, number, piece)
            rows.append(row)

            folder = self.target / layout.episode_folder(number)
            folder.mkdir(parents=True)
            if self._folder.is_dir():
                beside(self._folder, folder, piece)
            (folder / TRIM).write_bytes(layout.to_json_bytes({"pieces": self._chain(piece)}))

        schema = layout.read_parquet(self._root / self._row["path"]).schema
        path = self.target / layout.EPISODES_PATH.format(chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True)
        layout.write_parquet(pa.Table.from_pylist(rows, schema), path)
        name = path.relative_to(self.target).as_posix()
        return [{**row, "path": name} for row in rows]

    def _chain(self, piece: EpisodePiece) -> list[dict[str, Any]]:
        """Return of which episode this is a piece, after those that the episode was one of."""
        own = {**self._said, "frames": [piece.start, piece.stop], "of": piece.length}
        return [*pieces_of(self._folder), own]

    def _data(self, table: pa.Table, number: int, piece: EpisodePiece) -> dict[str, Any]:
        """Write a piece's frames; return its row, without what is of videos."""
        features, fps = self._info["features"], self._info["fps"]
        cut = table.slice(piece.start, len(piece))
        counted = index_columns(len(piece), fps, number, 0, 0)
        for key in ("timestamp", "frame_index", "episode_index"):
            field = cut.schema.field(key)
            column = pa.array(counted[key], field.type)
            cut = cut.set_column(cut.schema.get_field_index(key), field, column)
        metadata = dict(cut.schema.metadata or {})
        if layout.PROVENANCE_KEY in metadata:
            record = json.loads(metadata[layout.PROVENANCE_KEY])
            record["trimmed"] = self._chain(piece)
            metadata[layout.PROVENANCE_KEY] = layout.to_json(record).encode()
            cut = cut.replace_schema_metadata(metadata)

        shown = {self._tasks[index] for index in pc.unique(cut["task_index"]).to_pylist()}
        row: dict[str, Any] = {
            **self._row, "episode_index": number, "length": len(piece),
            "tasks": [task for task in self._row["tasks"] if task in shown],
            "data/chunk_index": 0, "data/file_index": number,
        }  # fmt: skip
        path = self.target / layout.data_file(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        layout.write_parquet(cut, path)
        for key, feature in features.items():
            if f"stats/{key}/mean" in row and feature["dtype"] != "video":
                stats = feature_stats(layout.column_values(cut[key], feature["shape"]))
                row |= _known_stats(row, key, stats)
        return row

    def _video(self, key: str, number: int, piece: EpisodePiece) -> dict[str, Any]:
        """Write a piece's pictures; return what its row says of them."""
        place = {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": number}
        path = self.target / layout.video_file(place, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        source, fps = self._root / layout.video_file(self._row, key), self._info["fps"]
        begin = self._row[f"videos/{key}/from_timestamp"] + piece.start / fps
        try:
            copy_parts(source, [(begin, len(piece))], path, fps)
        except VideoError:  # it does not begin with a key frame
            facts = probe_video(source)
            if facts.codec not in _AGAIN or facts.pix_fmt != "yuv420p":
                raise VideoError(
                    f"{source}: {facts.codec} {facts.pix_fmt} is not encoded again here, and no "
                    f"key frame is at {begin:.3f} s; h264 and av1 in yuv420p can be cut anywhere."
                ) from None
            episode = self._root / f"episode_{self._row['episode_index']:06d}"
            clip = part(open_episode(episode, key), piece.start, piece.stop)
            encode_video(clip, path, fps, _AGAIN[facts.codec])
        shown = {f"videos/{key}/from_timestamp": 0.0,
                 f"videos/{key}/to_timestamp": len(piece) / fps}  # fmt: skip
        return place | shown | _known_stats(self._row, key, image_stats(path))


def _known_stats(row: Row, key: str, stats: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return statistics as columns of a row that are there; other writers have fewer."""
    columns = {f"stats/{key}/{name}": value.tolist() for name, value in stats.items()}
    return {name: value for name, value in columns.items() if name in row}


def pieces_of(folder: Path) -> list[dict[str, Any]]:
    """Return of which episodes the episode in a folder is a piece, the latest last.

    Raises SchemaError for a damaged ``TRIM``.
    """
    path = folder / TRIM
    if not path.is_file():
        return []
    pieces = layout.read_json(path).get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(p, dict) for p in pieces):
        raise SchemaError(f"{path}: 'pieces' must be a list of objects.")
    return pieces
