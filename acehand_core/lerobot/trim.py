"""Trimming frames off the episodes of a LeRobot v3 dataset.

An episode that loses frames in the middle becomes several: a policy would learn the jump. The
original episodes are kept as a dataset in ``.unreferenced``; ``TRIM`` links each piece to its own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acehand_core.atomic import output_errors
from acehand_core.errors import InputError, SchemaError, VideoError
from acehand_core.lerobot import columns, edit, transaction
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.assemble import Assembly, Row, write_episodes
from acehand_core.lerobot.stats import feature_stats, image_stats
from acehand_core.lerobot.trim_rules import (
    RULE_COLUMNS,
    TrimCut,
    TrimRules,
    find_cuts,
    left_of,
    sharpness_of,
)
from acehand_core.lerobot.writer import index_columns
from acehand_core.recordings.lerobot_video import Latest, open_episode
from acehand_core.recordings.selection import part
from acehand_core.recordings.video_encode import (
    VideoEncoding,
    copy_parts,
    encode_video,
    probe_video,
)
from acehand_core.types import Progress, no_progress

#: In a piece's folder: the episode it was cut from.
TRIM = "trim.json"
#: A piece that does not begin with a key frame is encoded again at high constant quality.
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


#: Writes the sidecar files of a piece: from the episode's folder to the piece's.
SidecarWriter = Callable[[Path, Path, EpisodePiece], None]


@dataclass(frozen=True, slots=True)
class Trimming:
    """Result of ``trim_episodes``.

    Attributes:
        trimmed: number, frames and tasks of each changed episode, ``kept`` (first frame and the one
            after the last of each piece) and ``cuts`` (the same of removed ranges, with reasons).
        episodes, frames: of the trimmed dataset.
        set_aside: relative path of the original episodes' dataset; None: deleted, or no change.
    """

    trimmed: tuple[dict[str, Any], ...]
    episodes: int
    frames: int
    set_aside: str | None


def trim_episodes(
    root: Path,
    rules: TrimRules | Mapping[int, Sequence[TrimCut]],
    write_sidecars: SidecarWriter,
    *,
    delete: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Trimming:
    """Trim episodes, and renumber later ones.

    Args:
        rules: what to cut; or the cuts by episode.
        write_sidecars: writes the sidecar files of a piece, except ``trim.json``.
        delete: do not keep the original episodes.
        dry_run: return what would be cut, and change nothing.

    Raises as ``remove_episodes``; InputError also for an unfinished episode or a rule that lacks
    its feature. Nothing has changed then.
    """
    root = root.resolve()
    with output_errors(root), edit.opened(root) as content:
        info, rows, _ = content
        videos = Latest(1)  # many episodes may lie in one
        to_cut: dict[int, tuple[list[TrimCut], list[tuple[int, int]]]] = {}
        for place, row in enumerate(rows):
            progress("measure", place, len(rows))
            if isinstance(rules, TrimRules):
                cuts, kept = _cuts_of(root, info, row, rules, videos)
            else:
                cuts = [*rules.get(row["episode_index"], ())]
                kept = left_of(cuts, row["length"])
            if kept != [(0, row["length"])]:
                to_cut[row["episode_index"]] = cuts, kept
        progress("measure", len(rows), len(rows))

        trimmed, pieces = [], []
        for row in rows:
            number, length = row["episode_index"], row["length"]
            cuts, kept = to_cut.get(number, ([], [(0, length)]))
            pieces.append(kept)
            if number in to_cut:
                ranges = [{"frames": [c.start, c.stop], "reason": c.reason} for c in cuts]
                entry = {"episode": number, "frames": length, "tasks": row["tasks"]}
                trimmed.append({**entry, "kept": [[*piece] for piece in kept], "cuts": ranges})
        lengths = [stop - start for kept in pieces for start, stop in kept]
        if not lengths:
            raise InputError(f"{root}: no episode would be left; loosen the rules.")
        for row in rows:
            if row["episode_index"] in to_cut:
                _check_finished(root, row)
        aside = None
        if to_cut and not dry_run:
            aside = _trim(root, content, pieces, trimmed, write_sidecars, delete, progress)
        return Trimming(tuple(trimmed), len(lengths), sum(lengths), aside)


def _check_finished(root: Path, row: Row) -> None:
    """Raise InputError for an episode without all of its pictures."""
    number = row["episode_index"]
    is_ours = (root / layout.EXTRAS).is_dir() and layout.read_record(root, row) is not None
    if is_ours and (names := layout.missing_files(root, number)):
        raise InputError(
            f"{root}: episode {number} is unfinished ({', '.join(names)}); first run the command "
            "that made it again, with `existing=resume`."
        )


def _cuts_of(
    root: Path, info: Mapping[str, Any], row: Row, rules: TrimRules, videos: Latest
) -> tuple[list[TrimCut], list[tuple[int, int]]]:
    """Return the cuts of an episode, and the pieces that stay."""
    features, hands = info["features"], dict[columns.Column, np.ndarray]()
    if rules.idle or rules.gaps or rules.confidence:
        keys = [column.name for column in RULE_COLUMNS if column.name in features]
        table = layout.read_frames(root, row, keys)
        stored = {key: layout.column_values(table[key], features[key]["shape"]) for key in keys}
        hands = columns.read(stored, RULE_COLUMNS)

    sharpness = None
    if rules.blur is not None:
        path = root / f"episode_{row['episode_index']:06d}"
        sharpness = sharpness_of(open_episode(path, rules.blur.video, kept=videos))
    return find_cuts(rules, hands, sharpness, row["length"], info["fps"])


def _trim(
    root: Path,
    content: edit.Content,
    pieces: Sequence[Sequence[tuple[int, int]]],
    removed: Sequence[Mapping[str, Any]],
    write_sidecars: SidecarWriter,
    delete: bool,
    progress: Progress,
) -> str | None:
    """Write the trimmed dataset; ``pieces`` of each row. Return where episodes are set aside."""
    info, rows, tasks = content
    place = edit.free_name(root / edit.SET_ASIDE / "trimmed").relative_to(root)
    changed = [row for row, own in zip(rows, pieces, strict=True) if own != [(0, row["length"])]]
    # Identifies this trimming, by content.
    digest = hashlib.sha256(layout.to_json_bytes({"removed": [*removed]}))
    for name in dict.fromkeys(layout.data_file(row) for row in changed):
        digest.update((root / name).read_bytes())
    identity = digest.hexdigest()[:16]

    def fill(base: Path) -> None:
        scratch = base / ".pieces"
        parts: list[tuple[Path, list[Row]]] = []
        for number, (row, own) in enumerate(zip(rows, pieces, strict=True)):
            progress("trim", number, len(rows))
            if own == [(0, row["length"])]:
                if not parts or parts[-1][0] != root:
                    parts.append((root, []))
                parts[-1][1].append(row)
            elif own:
                transaction.step(f"cut episode {row['episode_index']}")
                origin = {"id": identity, "episode": row["episode_index"]}
                cutting = _Cutting(root, info, row, tasks, scratch / str(number), origin)
                parts.append((cutting.target, cutting.write(own, write_sidecars)))

        remaining = {task for _, listed in parts for row in listed for task in row["tasks"]}
        used = [task for task in tasks if task in remaining]
        assembly = Assembly(base, info, renumber=True, tasks=used)
        for source, listed in parts:
            assembly.add(source, listed, tasks)
        assembly.finish()
        shutil.rmtree(scratch, ignore_errors=True)

        if not delete:
            write_episodes(base / place, info, root, changed, tasks)
            record = {"id": identity, "removed": [*removed]}
            (base / place / edit.REMOVED).write_bytes(layout.to_json_bytes(record))
        progress("trim", len(rows), len(rows))

    edit.replace_dataset(root, fill)
    return None if delete else place.as_posix()


@dataclass(frozen=True, slots=True)
class _Cutting:
    """Writer of one episode's pieces, as a dataset in ``target`` for ``Assembly.add``.

    ``origin`` has the trimming and the episode, for ``TRIM``.
    """

    root: Path
    info: Mapping[str, Any]
    row: Row
    tasks: Sequence[str]
    target: Path
    origin: Mapping[str, Any]

    def write(self, pieces: Sequence[tuple[int, int]], write_sidecars: SidecarWriter) -> list[Row]:
        """Write the pieces and return their rows of meta/episodes."""
        table = layout.read_frames(self.root, self.row)
        source = self.root / layout.episode_folder(self.row["episode_index"])
        path = layout.EPISODES_PATH.format(chunk_index=0, file_index=0)
        rows: list[Row] = []
        for number, (start, stop) in enumerate(pieces):
            piece = EpisodePiece(start, stop, self.row["length"])
            own = {**self.origin, "frames": [start, stop], "of": piece.length}
            chain = [*pieces_of(source), own]
            row = self._data(table, number, piece, chain)
            for key in layout.video_keys(self.info["features"]):
                row |= self._video(key, number, piece)
            rows.append({**row, "path": path})

            folder = self.target / layout.episode_folder(number)
            folder.mkdir(parents=True)
            if source.is_dir():
                write_sidecars(source, folder, piece)
            (folder / TRIM).write_bytes(layout.to_json_bytes({"pieces": chain}))

        schema = layout.read_parquet(self.root / self.row["path"]).schema
        (self.target / path).parent.mkdir(parents=True)
        layout.write_parquet(pa.Table.from_pylist(rows, schema), self.target / path)
        return rows

    def _data(
        self, table: pa.Table, number: int, piece: EpisodePiece, chain: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Write a piece's frames; return its row, without entries of videos."""
        features, fps = self.info["features"], self.info["fps"]
        cut = table.slice(piece.start, len(piece))
        counted = index_columns(len(piece), fps, number, 0, 0)
        for key in ("timestamp", "frame_index", "episode_index"):
            field = cut.schema.field(key)
            column = pa.array(counted[key], field.type)
            cut = cut.set_column(cut.schema.get_field_index(key), field, column)
        metadata = dict(cut.schema.metadata or {})
        if layout.PROVENANCE_KEY in metadata:
            record = json.loads(metadata[layout.PROVENANCE_KEY])
            record["trimmed"] = chain
            metadata[layout.PROVENANCE_KEY] = layout.to_json(record).encode()
            cut = cut.replace_schema_metadata(metadata)

        shown = {self.tasks[index] for index in pc.unique(cut["task_index"]).to_pylist()}
        row: dict[str, Any] = {
            **self.row,
            "episode_index": number,
            "length": len(piece),
            "tasks": [task for task in self.row["tasks"] if task in shown],
            "data/chunk_index": 0,
            "data/file_index": number,
        }
        path = self.target / layout.data_file(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        layout.write_parquet(cut, path)
        for key, feature in features.items():
            if f"stats/{key}/mean" in row and feature["dtype"] != "video":
                stats = feature_stats(layout.column_values(cut[key], feature["shape"]))
                row |= _known_stats(row, key, stats)
        return row

    def _video(self, key: str, number: int, piece: EpisodePiece) -> dict[str, Any]:
        """Write a piece's pictures; return its row's entries of them."""
        place = {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": number}
        path = self.target / layout.video_file(place, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        source, fps = self.root / layout.video_file(self.row, key), self.info["fps"]
        begin = self.row[f"videos/{key}/from_timestamp"] + piece.start / fps
        try:
            copy_parts(source, [(begin, len(piece))], path, fps)
        except VideoError:  # it does not begin with a key frame
            facts = probe_video(source)
            if facts.codec not in _AGAIN or facts.pix_fmt != "yuv420p":
                raise VideoError(
                    f"{source}: no key frame at {begin:.3f} s, and {facts.codec} {facts.pix_fmt} "
                    "cannot be encoded again; valid: h264 and av1 in yuv420p."
                ) from None
            episode = self.root / f"episode_{self.row['episode_index']:06d}"
            clip = part(open_episode(episode, key), piece.start, piece.stop)
            encode_video(clip, path, fps, replace(_AGAIN[facts.codec], timescale=facts.timescale))
        times = {"from_timestamp": 0.0, "to_timestamp": len(piece) / fps}
        shown = {f"videos/{key}/{name}": value for name, value in times.items()}
        return place | shown | _known_stats(self.row, key, image_stats(path))


def _known_stats(row: Row, key: str, stats: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return statistics as columns that the row has: other writers have fewer."""
    columns = {f"stats/{key}/{name}": value.tolist() for name, value in stats.items()}
    return {name: value for name, value in columns.items() if name in row}


def pieces_of(folder: Path) -> list[dict[str, Any]]:
    """Return the episodes that an episode was cut from, the latest last. Raises SchemaError."""
    path = folder / TRIM
    if not path.is_file():
        return []
    pieces = layout.read_json(path).get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(p, dict) for p in pieces):
        raise SchemaError(f"{path}: 'pieces' must be a list of objects.")
    return pieces
