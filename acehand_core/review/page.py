"""The acceptance page: one file that shows a batch, or an episode, without a network.

The viewer of plots and 3D is plotly's own bundle, taken from the installed package when a page is
written. Everything is compressed and inflated again by the browser, so that ten minutes of clips
fit into a page of 20 MB.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from acehand_core.atomic import atomic_path, check_free
from acehand_core.drawing.video import write_video
from acehand_core.errors import AcehandError, MissingDependencyError
from acehand_core.lerobot.format import OVERLAY
from acehand_core.recordings.resized import resized
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import VideoEncoding
from acehand_core.review.checks import (
    LIMITS,
    Finding,
    column_measures,
    findings,
    origin_measures,
    status_of,
)
from acehand_core.review.decisions import Decision
from acehand_core.review.episode import DatasetReader, Episode
from acehand_core.review.hand_checks import hand_measures
from acehand_core.review.inspect import InspectedEpisode, Inspection, robot_of
from acehand_core.review.payload import episode_block, robot_block
from acehand_core.review.robot_checks import robot_measures
from acehand_core.types import Progress, no_progress

#: A page holds the videos of as many episodes as fit into it, the worst first.
PAGE_BYTES = 20_000_000
#: Width of the video in a page and how coarsely it is coded: the first that stays within the bytes
#: a second that there is room for, or the last. AV1 plays everywhere without a licence.
_PREVIEWS = ((1280, 40), (960, 44), (720, 48), (640, 54), (480, 62))
#: The least that is made room for (a page of ten minutes has no more), and what is never needed.
_VIDEO_BYTES_S = (16_000, 80_000)
#: Share of a page that videos may take; the rest is for hands and curves.
_VIDEO_SHARE = 0.7
_FILES = Path(__file__).parent / "page_files"


def plotly_bundle() -> bytes:
    """Return plotly's JavaScript. Raises MissingDependencyError."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "The page of acehand inspect needs plotly, for its plots and the 3D view: "
            "pip install 'acehand[view]'. Without a page: --no-page."
        )
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()


def page_data(
    inspection: Inspection,
    decisions: Mapping[str, Decision],
    readers: Sequence[DatasetReader],
    pages: Mapping[int, str] | None = None,
    only: int | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Return what the page's script reads first.

    Args:
        pages: by place in ``inspection.episodes``, the page that an episode has of its own.
        only: place of the one episode that the page is of; None: all.
        token: of the server that serves the page; None: it is a file.
    """
    said = inspection.to_json()
    listed = range(len(inspection.episodes)) if only is None else [only]
    names = said["datasets"]
    return {
        **{key: said[key] for key in
           ("datasets", "limits", "reasons", "notes", "by_task", "by_subject")},
        "robots": [reader.robot_label for reader in readers],
        "server": token is not None,
        "token": token,
        "single": only is not None,
        "decisions": [{**asdict(d), "dataset": names[inspection.episodes[i].dataset]}
                      for i in listed
                      if (d := decisions.get(inspection.episodes[i].fingerprint)) is not None],
        "episodes": [_entry(inspection, place, (pages or {}).get(place)) for place in listed],
    }  # fmt: skip


def _entry(inspection: Inspection, place: int, page: str | None) -> dict[str, Any]:
    episode = inspection.episodes[place]
    values: dict[str, float] = {}
    for measure in episode.measures:
        values[measure.check] = max(values.get(measure.check, -np.inf), float(measure.value))
    return {
        "dataset": episode.dataset, "episode": episode.number, "fingerprint": episode.fingerprint,
        "task": episode.task, "subject": episode.subject, "source": episode.source,
        "frames": episode.frames, "fps": episode.fps, "status": episode.status, "page": page,
        "findings": [{**f.to_json(), "excess": excess(f, inspection)} for f in episode.findings],
        "values": {check: float(f"{value:.4g}") for check, value in values.items()},
    }  # fmt: skip


def excess(finding: Finding, inspection: Inspection) -> float:
    """Return by how many times a finding passes its limit, to put the worst first."""
    limit = inspection.limits[finding.check].doubtful
    return round(min(finding.value / limit, 1e3), 3) if limit > 0 else 1e3 * (finding.value > 0)


def write_page(
    path: Path,
    title: str,
    data: Mapping[str, Any],
    blocks: Mapping[str, bytes],
) -> None:
    """Write a page of its own. Raises OutputError, MissingDependencyError."""
    inside = {"plotly": gzip.compress(plotly_bundle(), 9, mtime=0), **blocks}
    made = "\n".join(
        f'<script type="text/plain" id="{name}">{base64.b64encode(content).decode()}</script>'
        for name, content in inside.items()
    )
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(page_text(title, data, made), "utf-8")


def page_text(title: str, data: Mapping[str, Any], blocks: str = "") -> str:
    """Return the page's HTML."""
    template = Template((_FILES / "page.html").read_text("utf-8"))
    return template.substitute(
        title=html.escape(title),
        style=(_FILES / "page.css").read_text("utf-8"),
        script=(_FILES / "page.js").read_text("utf-8"),
        # Nothing in the data may end the element that holds it.
        report=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        blocks=blocks,
    )


def write_report(
    inspection: Inspection,
    output: Path,
    title: str,
    decisions: Mapping[str, Decision] | None = None,
    pages: Literal["all", "found", "none"] = "found",
    work: Path | None = None,
    progress: Progress = no_progress,
) -> tuple[Path, ...]:
    """Write report.html and, in the folder ``episodes``, pages of single episodes.

    Args:
        decisions: that were made before, by fingerprint.
        pages: which episodes get a page of their own: those that are doubtful or rejected, all.
        work: folder in which videos for pages are kept.

    Returns:
        The files.

    Raises:
        OutputError: one cannot be written. MissingDependencyError: plotly is not installed.
    """
    readers = [DatasetReader(dataset) for dataset in inspection.datasets]

    robots = zlib.compress(json.dumps(robots_of(readers)).encode(), 9)
    own = {
        place: f"episodes/{inspection.names[episode.dataset]}-{episode.number:06d}.html"
        for place, episode in enumerate(inspection.episodes)
        if episode.fingerprint
        and (pages == "all" or (pages == "found" and episode.status != "accepted"))
    }
    blocks = {"robots": robots}

    room = PAGE_BYTES - 1_000_000 - 4 / 3 * (len(plotly_bundle()) / 3 + len(robots))
    room -= len(json.dumps(page_data(inspection, decisions or {}, readers, own)))
    seconds = max(sum(episode.seconds for episode in inspection.episodes), 1.0)
    rate = int(np.clip(_VIDEO_SHARE * 3 / 4 * room / seconds, *_VIDEO_BYTES_S)) // 1000

    files = []
    for done, place in enumerate(_worst_first(inspection)):
        progress("page", done, len(inspection.episodes))
        episode = inspection.episodes[place]
        if not episode.fingerprint or (room <= 0 and place not in own):
            continue
        media = _media(readers[episode.dataset], episode, work, rate)
        name = f"{episode.dataset}-{episode.number}"
        named = {f"{kind}-{name}": content for kind, content in media.items()}
        if (size := sum(len(base64.b64encode(content)) for content in media.values())) <= room:
            blocks |= named
            room -= size
        if place in own:
            data = page_data(inspection, decisions or {}, readers, only=place)
            files.append(output / own[place])
            write_page(files[-1], f"{title}, episode {episode.number}", data,
                       {"robots": robots, **named})  # fmt: skip
    progress("page", len(inspection.episodes), len(inspection.episodes))

    for old in {*(output / "episodes").glob("*-[0-9][0-9][0-9][0-9][0-9][0-9].html")} - {*files}:
        old.unlink()  # of an episode that has no findings any more, or is gone
    report = output / "report.html"
    write_page(report, title, page_data(inspection, decisions or {}, readers, own), blocks)
    return (report, *files)


def write_episode_page(
    reader: DatasetReader,
    number: int,
    path: Path,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> None:
    """Write the page of one episode, whose pictures are not searched for hands again.

    Raises:
        InputError: there is no such episode. OutputError: the file exists, or cannot be written.
        MissingDependencyError: plotly is not installed.
    """
    check_free(path, overwrite)
    episode, robot = reader.read(number), robot_of(reader)
    measures = [*hand_measures(episode), *origin_measures(episode), *column_measures(episode)]
    measures += robot_measures(episode, robot)
    found = tuple(findings(measures, LIMITS))
    inspected = InspectedEpisode(
        dataset=0, number=number, fingerprint=episode.fingerprint, task=episode.task,
        subject=episode.subject, source=episode.source, frames=len(episode), fps=episode.fps,
        status=status_of(found), measures=tuple(measures), findings=found, facts={},
    )  # fmt: skip

    inspection = Inspection((reader.dataset,), (inspected,), LIMITS, looks=0)
    with TemporaryDirectory() as scratch:
        title = f"{reader.dataset.resolve().name}, episode {number}"
        page, *_ = write_report(inspection, Path(scratch), title, pages="none", progress=progress)
        with atomic_path(path, overwrite) as partial:
            partial.write_bytes(page.read_bytes())


def robots_of(readers: Sequence[DatasetReader]) -> dict[str, Any]:
    """Return the robots of datasets by their labels, as the page draws them."""
    found = {}
    for reader in readers:
        robot = None if reader.robot_label in found else robot_of(reader)
        if robot is not None:
            found[reader.robot_label] = robot_block(robot)
    return found


def _worst_first(inspection: Inspection) -> list[int]:
    """Return the places of episodes in the order in which a page takes them in."""
    order = ("rejected", "doubtful", "accepted")
    return sorted(
        range(len(inspection.episodes)),
        key=lambda place: order.index(inspection.episodes[place].status),
    )


def _media(
    reader: DatasetReader, inspected: InspectedEpisode, work: Path | None, rate: int
) -> dict[str, bytes]:
    """Return what a page holds of an episode: its block and, where there is one, its video."""
    episode = reader.read(inspected.number)
    media = {"episode": episode_block(episode, robot_of(reader))}
    video = _preview(reader, episode, work, rate)
    return media if video is None else {**media, "video": video}


def _preview(reader: DatasetReader, episode: Episode, work: Path | None, rate: int) -> bytes | None:
    """Return a video of some ``rate`` kB/s: the overlay, or the episode's own without one."""
    overlay = episode.folder / OVERLAY
    with TemporaryDirectory() as scratch:
        kept = (work or Path(scratch)) / f"{episode.fingerprint}-{rate}.mp4"
        newest = overlay.stat().st_mtime_ns if overlay.is_file() else 0
        if kept.is_file() and kept.stat().st_mtime_ns > newest:
            return kept.read_bytes()
        try:
            recording = (
                open_video(overlay) if overlay.is_file() else reader.recording(episode.number)
            )
        except AcehandError:
            return None
        if recording is None:
            return None
        for width, crf in _PREVIEWS:
            width = min(width, recording.width - recording.width % 2)
            size = width, max(round(width * recording.height / recording.width / 2) * 2, 2)
            encoding = VideoEncoding("av1", preset="10", crf=crf, gop=round(2 * episode.fps))
            write_video(recording, resized(recording, size), size, episode.fps, kept, encoding)
            if kept.stat().st_size <= 1000 * rate * len(episode) / episode.fps:
                break
        return kept.read_bytes()
