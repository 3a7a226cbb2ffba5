"""The review page of a batch or an episode, from a server or as files.

A page is an HTML file with a folder ``NAME_files`` of scripts, which a browser loads from disk and
server alike: plotly's bundle from the installed package, the robots, a block per episode. It links
to the datasets' videos.
"""

from __future__ import annotations

import base64
import html
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import Float

from acehand_core.atomic import atomic_path, check_free
from acehand_core.drawing.robot_parts import robot_parts
from acehand_core.errors import MissingDependencyError
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import TIPS, WRIST
from acehand_core.lerobot.episode import DatasetReader, Episode
from acehand_core.review.decisions import Decision
from acehand_core.review.inspect import InspectedEpisode, Inspection, robot_of
from acehand_core.review.measures import calibrations_of, episode_measures, tip_errors
from acehand_core.types import SIDES, Progress, no_progress
from retarget.replay.checks import CHECKS, Finding, findings
from retarget.replay.clip import extent, in_camera, project
from retarget.robots.robot import Robot

# A block has hands, robot and curves of an episode: four bytes with the length of a JSON head, the
# head, then arrays of 16-bit integers, all deflated. Numbers are rounded (``_STEPS``) and stored as
# differences between frames, since ten minutes of clips must fit into a page.

#: An unknown number.
_UNKNOWN = -32768
_LARGEST = 32000
#: Resolution of numbers (m, rad); that of curves is a share of their range.
_STEPS = {"state": 1.0, "joints": 3e-4, "base": 3e-4, "robot": 1e-3}

_FILES = Path(__file__).parent / "page_files"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A line of a plot over the frames of an episode, and its limit."""

    plot: str
    side: str
    values: Float[np.ndarray, "T"]
    unit: str
    limit: float | None = None


def episode_block(episode: Episode, robot: Robot | None) -> bytes:
    """Return the block of an episode."""
    arrays: dict[str, np.ndarray] = {"state": episode.states, "joints": episode.joints}
    bases = in_camera(episode)
    if robot is not None and episode.robot is not None:
        arrays["robot"] = np.where(episode.valid[..., None], episode.robot.joints, np.nan)
        if bases is not None:
            turn = rotations.to_quaternion(bases[..., :3, :3])
            pose = np.concatenate([bases[..., :3, 3], turn], axis=-1)
            arrays["base"] = np.where(episode.valid[..., None], pose, np.nan)
    drawn = curves(episode, robot)
    for index, curve in enumerate(drawn):
        arrays[f"curve{index}"] = curve.values

    head: dict[str, Any] = {
        "frames": len(episode),
        "fps": episode.fps,
        # To draw joints over the video; all frames have one camera.
        "camera": None if episode.camera is None else episode.camera[0].tolist(),
        "curves": [
            {"plot": c.plot, "side": c.side, "unit": c.unit, "limit": c.limit} for c in drawn
        ],
        "arrays": [],
    }

    body = b""
    for name, values in arrays.items():
        known = values[np.isfinite(values)]
        largest = float(np.abs(known).max()) if len(known) else 1.0
        scale = max(largest / _LARGEST, _STEPS.get(name, largest / 2000), 1e-9)
        whole = np.where(np.isfinite(values), np.round(np.nan_to_num(values) / scale), _UNKNOWN)
        flat = whole.reshape(len(values), -1).astype(np.int64)
        steps = np.diff(flat, axis=0, prepend=0).astype(np.int16)  # wraps around, and back again
        head["arrays"].append({"name": name, "shape": list(values.shape), "scale": scale})
        # Entry by entry, which compresses better.
        body += np.ascontiguousarray(steps.T).astype("<i2").tobytes()
    header = json.dumps(head, allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % 2)  # the numbers begin at an even place
    return zlib.compress(len(header).to_bytes(4, "little") + header + body, 9)


def curves(episode: Episode, robot: Robot | None) -> list[Curve]:
    """Return the curves of an episode, left and right."""
    out, errors, motion = [], None, episode.motion
    if robot is not None and episode.robot is not None:
        errors = tip_errors(episode, robot, calibrations_of(episode, robot)[0])
    for slot, side in enumerate(SIDES):
        if not episode.valid[:, slot].any():
            continue
        valid = np.where(episode.valid[:, slot], 1.0, np.nan)
        out.append(Curve("confidence", side, valid * episode.confidence[:, slot], ""))
        if episode.sigma is not None and np.isfinite(episode.sigma[:, slot]).any():
            tips = valid[:, None] * 1e3 * episode.sigma[:, slot][:, list(TIPS)].mean(1)
            out.append(Curve("uncertainty", f"{side} across", tips[:, 0], "mm"))
            out.append(Curve("uncertainty", f"{side} along", tips[:, 1], "mm"))
        if motion is not None and episode.placed and episode.camera is not None:
            pixels = motion.joints_image[:, slot]
            if np.isfinite(extent(pixels)).any():
                away = project(episode.camera, episode.joints)[:, slot] - pixels
                away = valid * np.linalg.norm(away, axis=-1).mean(1)
                out.append(Curve("reprojection", side, away, "px"))
        if errors is not None and (known := np.isfinite(errors[:, slot]).any(1)).any():
            mean = np.full(len(episode), np.nan)
            mean[known] = 1e3 * np.nanmean(errors[known, slot], axis=1)
            out.append(Curve("tip error", side, mean, "mm", 30.0))
        if robot is not None and episode.robot is not None and side in robot.hands:
            hand, joints = robot.hands[side], episode.robot.commands[:, slot]
            low, high = hand.command_lower, hand.command_upper
            room = np.minimum(joints - low, high - joints).min(1) / (high - low).max()
            out.append(Curve("room to limits", side, valid * room, "", 0.0))
        if episode.placed:
            speed = np.linalg.norm(np.gradient(episode.joints[:, slot, WRIST], axis=0), axis=-1)
            out.append(Curve("wrist speed", side, speed * episode.fps, "m/s"))
    return out


def robot_block(robot: Robot) -> Mapping[str, Any]:
    """Return links and triangles of a robot's hands, as JSON; lengths in 0.01 mm."""
    sides: dict[str, Any] = {}
    for side, hand in robot.hands.items():
        parts = robot_parts(hand)
        sides[side] = {
            "links": [
                {"parent": link.parent, "position": link.position.round(6).tolist(),
                 "quaternion": link.quaternion.round(7).tolist(), "column": link.column,
                 "axis": link.axis.round(7).tolist(), "anchor": link.anchor.round(6).tolist(),
                 "slides": bool(link.slides)}
                for link in parts.links
            ],
            "vertices": np.round(parts.vertices * 1e5).astype(int).reshape(-1).tolist(),
            "owners": parts.vertex_links.tolist(),
            "faces": parts.faces.reshape(-1).tolist(),
        }  # fmt: skip
    return sides


def plotly_bundle() -> bytes:
    """Return plotly's JavaScript. Raises MissingDependencyError."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "The page of acehand inspect needs plotly: pip install 'acehand[view]'. Without a "
            "page: `page=False`."
        )
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()


def page_data(
    inspection: Inspection,
    decisions: Mapping[str, Decision],
    readers: Sequence[DatasetReader],
    videos: Mapping[int, tuple[str, float]],
    files: str,
    single: bool = False,
    token: str | None = None,
) -> dict[str, Any]:
    """Return the data of the page's script.

    Args:
        videos: address and start (s) of videos, by index in ``inspection.episodes``.
        files: address of the folder of the page's files.
        single: the page shows one episode, without a list.
        token: of the server; None: the page is a file.
    """
    report = inspection.to_json()
    names = report["datasets"]
    shown = "datasets", "limits", "reasons", "notes", "by_task", "by_subject"
    decided = [(names[e.dataset], decisions.get(e.fingerprint)) for e in inspection.episodes]
    places = range(len(inspection.episodes))
    return {
        **{key: report[key] for key in shown},
        "robots": [reader.robot_label for reader in readers],
        "token": token,
        "files": files,
        "single": single,
        "decisions": [{**asdict(d), "dataset": name} for name, d in decided if d is not None],
        "episodes": [_entry(inspection, place, videos.get(place)) for place in places],
    }


def _entry(inspection: Inspection, place: int, video: tuple[str, float] | None) -> dict[str, Any]:
    episode = inspection.episodes[place]
    values: dict[str, float] = {}
    for measure in episode.measures:
        values[measure.check] = max(values.get(measure.check, -np.inf), float(measure.value))
    listed = [{**f.to_json(), "excess": excess(f, inspection)} for f in episode.findings]
    rounded = {check: float(f"{value:.4g}") for check, value in values.items()}
    return {**episode.facts_json(), "video": video, "findings": listed, "values": rounded}


def excess(finding: Finding, inspection: Inspection) -> float:
    """Return the ratio of a finding to its limit, to put the worst first."""
    limit = inspection.limits[finding.check].warn
    return round(min(finding.value / limit, 1e3), 3) if limit > 0 else 1e3 * (finding.value > 0)


def page_text(title: str, data: Mapping[str, Any]) -> str:
    """Return the page's HTML."""
    template = Template((_FILES / "page.html").read_text("utf-8"))
    return template.substitute(
        title=html.escape(title),
        style=(_FILES / "page.css").read_text("utf-8"),
        script=(_FILES / "page.js").read_text("utf-8"),
        # Data must not close its element.
        report=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
    )


def page_file(readers: Sequence[DatasetReader], name: str) -> bytes:
    """Return a file of a page's folder: ``plotly``, ``robots``, or the block ``DATASET-NUMBER``.

    Raises AcehandError: an unknown or damaged episode.
    """
    if name == "plotly":
        return plotly_bundle()
    if name == "robots":
        robots: dict[str, Any] = {}
        for reader in readers:
            if reader.robot_label not in robots and (robot := robot_of(reader)) is not None:
                robots[reader.robot_label] = robot_block(robot)
        content = zlib.compress(json.dumps(robots).encode(), 9)
    else:
        dataset, number = map(int, name.split("-"))
        content = episode_block(readers[dataset].read(number), robot_of(readers[dataset]))
    return f'arrived("{name}", "{base64.b64encode(content).decode()}");\n'.encode()


def video_of(reader: DatasetReader, number: int) -> tuple[Path, float] | None:
    """Return the file of an episode's overlay, else of its video, and the start in it (s)."""
    if (overlay := reader.overlay(number)) is not None:
        return overlay, 0.0
    place = reader.video(number)
    return None if place is None else (place.video, place.start_s)


def write_report(
    inspection: Inspection,
    page: Path,
    title: str,
    decisions: Mapping[str, Decision] | None = None,
    single: bool = False,
    progress: Progress = no_progress,
) -> None:
    """Write a page and its folder.

    Args:
        decisions: earlier ones, by fingerprint.
        single: a page of one episode, without a list.

    Raises OutputError: a file cannot be written. MissingDependencyError: plotly is not installed.
    """
    readers = [DatasetReader(dataset) for dataset in inspection.datasets]
    folder, names, videos = page.with_name(f"{page.stem}_files"), ["plotly", "robots"], {}
    for place, episode in enumerate(inspection.episodes):
        if not episode.fingerprint:  # unreadable
            continue
        names.append(f"{episode.dataset}-{episode.number}")
        if (video := video_of(readers[episode.dataset], episode.number)) is not None:
            way = Path(os.path.relpath(video[0].resolve(), page.parent.resolve()))
            videos[place] = quote(way.as_posix()), video[1]
    for done, name in enumerate(names):
        progress("page", done, len(names))
        with atomic_path(folder / f"{name}.js", overwrite=True) as partial:
            partial.write_bytes(page_file(readers, name))
    progress("page", len(names), len(names))

    data = page_data(inspection, decisions or {}, readers, videos, quote(folder.name), single)
    with atomic_path(page, overwrite=True) as partial:
        partial.write_text(page_text(title, data), "utf-8")


def write_episode_page(
    reader: DatasetReader,
    number: int,
    path: Path,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> None:
    """Write the page of one episode, without measures of its pictures.

    Raises InputError: an unknown episode. OutputError: the file exists, or cannot be written.
    MissingDependencyError: plotly is not installed.
    """
    check_free(path, overwrite)
    episode, robot = reader.read(number), robot_of(reader)
    measures = episode_measures(episode, robot)
    inspected = InspectedEpisode.of(0, episode, measures, findings(measures), {})
    inspection = Inspection((reader.dataset,), (inspected,), CHECKS, looks=0)
    title = f"{reader.dataset.resolve().name}, episode {number}"
    write_report(inspection, path, title, single=True, progress=progress)
