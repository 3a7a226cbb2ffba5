"""An episode, or hands with their video, in rerun's viewer (https://rerun.io) or a file for it.

Rows are frames, on three time lines: ``frame``, ``time`` (s) and ``source_time`` (the source's
stamps). ``scene`` is in metres, in the world frame if all camera poses are known, else in the
camera frame:

    scene/camera                 the camera; image: its frustum, with video and landmarks
    scene/camera/hand/SIDE       the human hand in the camera frame: bones, joints
    scene/wrist/SIDE             the path of the wrist
    scene/robot/SIDE/LINK        a link of the robot hand
    curves/PLOT, commands/SIDE   plots
    about                        verdict, reasons, task, subject
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt32

from acehand_core.atomic import atomic_path, check_free
from acehand_core.drawing.overlay import DASHES, HAND_COLOURS
from acehand_core.drawing.robot_parts import RobotParts, robot_parts
from acehand_core.errors import InputError, MissingDependencyError, OutputError, VideoError
from acehand_core.geometry import frames, rotations
from acehand_core.hand.skeleton import BONES, WRIST
from acehand_core.lerobot.episode import ABSENT, DOUBTFUL, FILLED, OBSERVED, Episode
from acehand_core.motion import runs
from acehand_core.recordings.video_encode import probe_video
from acehand_core.review.page import curves
from acehand_core.types import SIDES, Side
from retarget.replay.clip import in_camera
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot

APPLICATION = "acehand"
SUFFIX = ".rrd"

Colour = tuple[int, int, int]
_GREY: Colour = (150, 150, 150)
_ROBOT: Colour = (196, 200, 206)
_LIMIT: Colour = (200, 80, 80)
_FRUSTUM_M = 0.08
#: Port of the viewer, and the time it may take to start.
_PORT, _START_S = 9876, 30.0
#: Larger stamps are nanoseconds since 1970, others since the start of the recording.
_SINCE_1970 = 10**17
#: Distance between hands without a place, and of robot hands below them (m).
APART_M, BELOW_M = 0.15, 0.25


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeDisplay:
    """An episode with its video, which shows frame k at ``video_times_s[k]``."""

    title: str
    episode: Episode
    robot: Robot | None
    video: Path | None = None
    video_times_s: Float[np.ndarray, "T"] | None = None


def is_installed() -> bool:
    """Whether rerun is installed."""
    return find_spec("rerun") is not None


def check_viewer() -> None:
    """Raise InputError without a display, MissingDependencyError without rerun."""
    _rerun()
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        raise InputError(
            "no display for the viewer; write a file with `save=FILE.rrd`. On a machine with one, "
            "`rerun FILE.rrd` opens it, `rerun --serve-web FILE.rrd` in a browser."
        )


def check_output(path: Path, overwrite: bool) -> None:
    """Raise InputError for another ending, OutputError or MissingDependencyError, as ``save``."""
    _rerun()
    if path.suffix != SUFFIX:
        raise InputError(f"{path}: files for rerun must end in {SUFFIX}.")
    check_free(path, overwrite)


def save(shown: EpisodeDisplay, path: Path, overwrite: bool = False) -> None:
    """Write a file for rerun, atomically.

    Raises InputError: another ending. OutputError: the file exists, or cannot be written.
    MissingDependencyError: rerun is not installed. VideoError: the video is missing.
    """
    check_output(path, overwrite)
    rr = _rerun()
    with atomic_path(path, overwrite) as partial:
        stream = rr.RecordingStream(APPLICATION)
        stream.save(partial, default_blueprint=blueprint(shown))
        try:
            _send(rr, stream, shown)
        finally:
            stream.disconnect()  # completes the file


def open_viewer(shown: EpisodeDisplay) -> None:
    """Show an episode in rerun's viewer, an open one if possible.

    Raises InputError: no display. MissingDependencyError: rerun is not installed. OutputError: the
    viewer does not start. VideoError: the video is missing.
    """
    check_viewer()
    rr = _rerun()
    if not _is_open():
        _start_viewer()
    stream = rr.RecordingStream(APPLICATION)
    address = f"rerun+http://127.0.0.1:{_PORT}/proxy"
    stream.connect_grpc(address, default_blueprint=blueprint(shown))
    _send(rr, stream, shown)
    stream.disconnect()


def _start_viewer() -> None:
    """Start the viewer and wait until it listens; it stays open.

    rerun's ``spawn`` would listen on every network, and finds the viewer only on PATH.
    """
    command = [sys.executable, "-m", "rerun_cli", "--bind", "127.0.0.1", "--port", str(_PORT)]
    nothing = subprocess.DEVNULL
    viewer = subprocess.Popen(
        command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    )
    end = time.monotonic() + _START_S
    while not _is_open():
        if viewer.poll() is not None or time.monotonic() > end:
            viewer.kill()
            raise OutputError(
                f"rerun's viewer does not start; try `{' '.join(command)}`, or `save=FILE.rrd`."
            )
        time.sleep(0.1)


def _is_open() -> bool:
    with socket.socket() as placed:
        return placed.connect_ex(("127.0.0.1", _PORT)) == 0


def can_decode(video: Path) -> bool:
    """Whether the viewer decodes a video: AV1, or any with ffmpeg. Raises VideoError."""
    return shutil.which("ffmpeg") is not None or probe_video(video).codec == "av1"


def shade(colour: Colour, state: int) -> Colour:
    """Return a hand's colour: pale if filled, grey if doubtful."""
    if state == DOUBTFUL:
        return _GREY
    share = 0.55 if state == FILLED else 0.0
    red, green, blue = (round(c + share * (255 - c)) for c in colour)
    return red, green, blue


def packed(colour: Colour, state: Int[np.ndarray, "T"]) -> UInt32[np.ndarray, "T"]:
    """Return a hand's colours by frame, packed as 0xRRGGBBAA."""
    table = [(*shade(colour, value), 255) for value in range(DOUBTFUL + 1)]
    return np.array(table, np.uint8).view(">u4")[state, 0].astype(np.uint32)


def _rerun() -> Any:
    if not is_installed():
        raise MissingDependencyError(
            "The viewer needs rerun: pip install 'acehand[view]'. Without it, acehand view writes "
            "a page of an episode, and with `output` pictures of hands."
        )
    import rerun

    return rerun


@dataclass(frozen=True, slots=True, eq=False)
class _Sender:
    """Sender of an episode's data to a stream."""

    rr: Any
    stream: Any
    episode: Episode

    def columns(
        self, entity: str, columns: Iterable[Any], rows: Sequence[int] | np.ndarray | None = None
    ) -> None:
        """Send a row per frame of ``rows``; None: all frames."""
        episode, column = self.episode, self.rr.TimeColumn
        at = np.arange(len(episode)) if rows is None else np.asarray(rows, int)
        stamps = episode.source_ns[at]
        if episode.source_ns[0] > _SINCE_1970:
            source = column("source_time", timestamp=stamps.astype("datetime64[ns]"))
        else:
            source = column("source_time", duration=stamps.astype("timedelta64[ns]"))
        times = np.round(at / episode.fps * 1e9).astype("timedelta64[ns]")
        indexes = [column("frame", sequence=at), column("time", duration=times), source]
        self.stream.send_columns(entity, indexes, [*columns])

    def static(self, entity: str, *archetypes: Any) -> None:
        self.stream.log(entity, *archetypes, static=True)

    def pose(self, entity: str, poses: Float[np.ndarray, "T 4 4"]) -> None:
        """Send the finite poses."""
        rows = np.flatnonzero(np.isfinite(poses).all((1, 2)))
        turns = np.roll(rotations.to_quaternion(poses[rows, :3, :3]), -1, axis=-1)  # xyzw
        if len(rows):
            moved = self.rr.Transform3D.columns(translation=poses[rows, :3, 3], quaternion=turns)
            self.columns(entity, moved, rows)

    def series(
        self, entity: str, values: Float[np.ndarray, "T"], name: str, colour: Colour, width: float
    ) -> None:
        """Send a line of a plot, with gaps at unknown values."""
        known = np.isfinite(values)
        line = self.rr.Scalars.columns(scalars=values[known]).partition(known.astype(int))
        self.columns(entity, line)
        self.static(entity, self.rr.SeriesLines(colors=[colour], names=[name], widths=[width]))


def _send(rr: Any, stream: Any, shown: EpisodeDisplay) -> None:
    before = rr.error_utils.strict_mode()
    rr.set_strict_mode(True)  # raise instead of warning
    try:
        stream.send_recording_name(shown.title)
        sender = _Sender(rr, stream, shown.episode)
        sender.static("about", rr.TextDocument(about(shown), media_type="text/markdown"))
        _send_camera(sender, shown)
        state = shown.episode.states
        for slot, side in enumerate(SIDES):
            if state[:, slot].any():
                _send_hand(sender, slot, side, state[:, slot])
                _send_robot(sender, shown.robot, slot, side, state[:, slot])
        _send_plots(sender, shown)
    finally:
        rr.set_strict_mode(before)


def _send_camera(sender: _Sender, shown: EpisodeDisplay) -> None:
    rr, episode, poses = sender.rr, shown.episode, world_poses(shown.episode)
    up = rr.ViewCoordinates.RIGHT_HAND_Z_UP if poses is not None else rr.ViewCoordinates.RDF
    sender.static("scene", up)
    if poses is not None:
        sender.pose("scene/camera", poses)
    if episode.camera is not None:
        fx, fy, cx, cy, width, height = episode.camera.T
        matrices = np.zeros((len(episode), 3, 3))
        # Integers are pixel centres here, upper left corners in rerun.
        matrices[:, 0, 0], matrices[:, 1, 1], matrices[:, 2, 2] = fx, fy, 1
        matrices[:, 0, 2], matrices[:, 1, 2] = cx + 0.5, cy + 0.5
        rows = np.flatnonzero(np.r_[True, (np.diff(episode.camera, axis=0) != 0).any(1)])
        size = np.stack([width, height], axis=1)
        seen = rr.Pinhole.columns(
            image_from_camera=matrices[rows],
            resolution=size[rows],
            image_plane_distance=np.full(len(rows), _FRUSTUM_M),
        )
        sender.columns(_picture(episode), seen, rows)
    if shown.video is not None and shown.video_times_s is not None:
        if not shown.video.is_file():
            raise VideoError(f"{shown.video}: the episode's video is missing.")
        entity = f"{_picture(episode)}/video"
        sender.static(entity, rr.AssetVideo(path=shown.video))
        times = np.round(shown.video_times_s * 1e9).astype(np.int64)
        sender.columns(entity, rr.VideoFrameReference.columns_nanos(times))


def _send_hand(sender: _Sender, slot: int, side: Side, state: Int[np.ndarray, "T"]) -> None:
    rr, episode, motion = sender.rr, sender.episode, sender.episode.motion
    colours = packed(HAND_COLOURS[side], state)
    entity = f"scene/camera/hand/{side}"
    if not episode.placed:
        apart = [(2 * slot - 1) * APART_M, 0.0, 0.0]
        sender.static(entity, rr.Transform3D(translation=apart))

    drawn = [(entity, episode.joints[:, slot], rr.LineStrips3D, rr.Points3D, 0.0025)]
    if motion is not None:
        # From pixel centres to corners, as above.
        marks = np.where(state[:, None, None] > ABSENT, motion.joints_image[:, slot] + 0.5, np.nan)
        picture = f"{_picture(episode)}/landmarks/{side}"
        drawn.append((picture, marks, rr.LineStrips2D, rr.Points2D, 1.5))
    for place, points, lines, dots, radius in drawn:
        bones = [strips(p, int(value)) for p, value in zip(points, state, strict=True)]
        known = np.isfinite(points).all(-1)
        pairs = np.concatenate(bones)
        kind = lines.columns(strips=pairs).partition([len(bone) for bone in bones])
        sender.columns(f"{place}/bones", [*kind, *lines.columns(colors=colours)])
        kind = dots.columns(positions=points[known]).partition(known.sum(1))
        sender.columns(f"{place}/joints", [*kind, *dots.columns(colors=colours)])
        sender.static(f"{place}/bones", lines.from_fields(radii=[radius]))
        sender.static(f"{place}/joints", dots.from_fields(radii=[2 * radius]))

    if episode.placed:
        poses = world_poses(episode)
        wrist = episode.joints[:, slot, WRIST]
        wrist = wrist if poses is None else frames.apply(poses, wrist[:, None])[:, 0]
        parts = runs(np.isfinite(wrist).all(1))
        way = [wrist[first:last] for first, last in parts if last - first > 1]
        sender.static(
            f"scene/wrist/{side}", rr.LineStrips3D(way, colors=[HAND_COLOURS[side]], radii=[0.001])
        )


def _send_robot(
    sender: _Sender, robot: Robot | None, slot: int, side: Side, state: Int[np.ndarray, "T"]
) -> None:
    rr, episode, bases = sender.rr, sender.episode, scene_bases(sender.episode)
    if robot is None or episode.robot is None or bases is None or side not in robot.hands:
        return
    hand = robot.hands[side]
    parts = robot_parts(hand)
    poses = bases[:, slot, None] @ link_poses(hand, episode.robot.joints[:, slot])
    placed = (state != ABSENT) & np.isfinite(bases[:, slot]).all((1, 2))
    looks = np.where(placed, state, ABSENT)
    rows = np.flatnonzero(np.r_[True, np.diff(looks) != 0])  # changes of its look
    colours, shown = packed(_ROBOT, looks[rows]), placed[rows]
    for index, link in enumerate(parts.links):
        corners, normals = link_surface(parts, index)
        if not len(corners):
            continue
        entity = f"scene/robot/{side}/{link.name.removeprefix(f'{side}_')}"
        sender.pose(entity, np.where(placed[:, None, None], poses[:, index], np.nan))
        shape = rr.Mesh3D.columns(
            vertex_positions=np.tile(corners, (shown.sum(), 1)),
            vertex_normals=np.tile(normals, (shown.sum(), 1)),
        ).partition(np.where(shown, len(corners), 0))
        sender.columns(entity, [*shape, *rr.Mesh3D.columns(albedo_factor=colours)], rows)


def _send_plots(sender: _Sender, shown: EpisodeDisplay) -> None:
    episode = shown.episode
    limits: dict[str, float] = {}
    for curve in curves(episode, shown.robot):
        side, _, which = curve.side.partition(" ")
        colour: Colour = HAND_COLOURS[side]
        entity = f"curves/{_slug(curve.plot)}"
        name = f"{curve.side} ({curve.unit})" if curve.unit else curve.side
        colour = shade(colour, FILLED) if which == "along" else colour
        sender.series(f"{entity}/{_slug(curve.side)}", curve.values, name, colour, 1.5)
        if curve.limit is not None:
            limits[entity] = curve.limit
    for entity, limit in limits.items():
        sender.series(f"{entity}/limit", np.full(len(episode), limit), "limit", _LIMIT, 1.0)

    for slot, side, hand in _commanded(shown):
        robot = episode.robot
        assert robot is not None
        for column, joint in enumerate(robot.command_joints):
            entity = f"commands/{side}/{joint}"
            values = np.where(episode.valid[:, slot], robot.commands[:, slot, column], np.nan)
            sender.series(entity, values, joint, HAND_COLOURS[side], 1.5)
            for name, ends in (("lower", hand.command_lower), ("upper", hand.command_upper)):
                line = np.full(len(episode), float(ends[column]))
                sender.series(f"{entity}/{name}", line, name, _LIMIT, 1.0)


def about(shown: EpisodeDisplay) -> str:
    """Return a description of the episode in Markdown."""
    episode, report = shown.episode, shown.episode.report
    facts = {"task": episode.task, "subject": episode.subject, "source": episode.source}
    lines = [f"# {shown.title}", ""]
    lines += [f"- {name}: {value or 'not known'}" for name, value in facts.items()]
    lines.append(f"- robot: {episode.robot_label or 'none'}")
    lines.append(f"- {len(episode)} frames at {episode.fps:g} a second")
    names = {OBSERVED: "observed", FILLED: "filled in (pale)", DOUBTFUL: "doubtful (dashed)"}
    for slot, side in enumerate(SIDES):
        shares = {value: (episode.states[:, slot] == value).mean() for value in names}
        text = ", ".join(f"{names[value]} {share:.0%}" for value, share in shares.items() if share)
        lines.append(f"- {side} hand: {text or 'absent'}")
    frame = "camera" if world_poses(episode) is None else "world"
    lines.append(f"- the scene is in the {frame} frame")
    lines += ["", f"## Verdict: {report.get('verdict') or 'none'}", ""]
    lines += [f"- {reason}" for reason in report.get("reasons") or ()]
    return "\n".join(lines) + "\n"


def blueprint(shown: EpisodeDisplay) -> Any:
    """Return the layout of the viewer."""
    _rerun()
    import rerun.blueprint as rrb

    episode = shown.episode
    seen = ["$origin/**"]
    if episode.camera is not None and (
        episode.motion is None or not np.isfinite(episode.motion.joints_image).any()
    ):
        seen.append("/scene/camera/hand/**")  # without landmarks, the hands
    plots = dict.fromkeys(curve.plot for curve in curves(episode, shown.robot))
    grids = {"hands and robot": {plot: f"curves/{_slug(plot)}" for plot in plots}}
    for _, side, _ in _commanded(shown):
        joints = episode.robot.command_joints if episode.robot is not None else ()
        grids[f"{side} commands"] = {joint: f"commands/{side}/{joint}" for joint in joints}
    tabs = [
        rrb.Grid(*(rrb.TimeSeriesView(origin=o, name=n) for n, o in views.items()), name=name)
        for name, views in grids.items()
    ]
    return rrb.Blueprint(
        rrb.Vertical(
            rrb.Horizontal(
                rrb.Spatial2DView(origin=_picture(episode), contents=seen, name="video"),
                rrb.Spatial3DView(origin="scene", name="scene"),
                rrb.TextDocumentView(origin="about", name="about"),
                column_shares=[4, 5, 2],
            ),
            rrb.Tabs(*tabs),
            row_shares=[3, 2],
        ),
        rrb.TimePanel(state="collapsed", timeline="time"),
        collapse_panels=True,
    )


def _picture(episode: Episode) -> str:
    """Return the entity of the picture, with or without a camera."""
    return "picture" if episode.camera is None else "scene/camera/image"


def _commanded(shown: EpisodeDisplay) -> list[tuple[int, Side, HandSpec]]:
    """Return the robot hands with commands to plot."""
    hands = {} if shown.robot is None or shown.episode.robot is None else shown.robot.hands
    valid = shown.episode.valid
    return [(k, s, hands[s]) for k, s in enumerate(SIDES) if s in hands and valid[:, k].any()]


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def world_poses(episode: Episode) -> Float[np.ndarray, "T 4 4"] | None:
    """Return ``T_world_camera``; None: the scene is in the camera frame."""
    poses = None if episode.motion is None else episode.motion.T_world_camera
    if poses is None or not episode.placed or not np.isfinite(poses).all():
        return None
    return poses


def scene_bases(episode: Episode) -> Float[np.ndarray, "T 2 4 4"] | None:
    """Return the robots' base poses in the scene's frame; NaN: unknown."""
    if episode.robot is None:
        return None
    bases, poses = in_camera(episode), world_poses(episode)
    if bases is None:
        if episode.robot.T_frame_base is not None:
            return None
        bases = np.tile(np.eye(4), (len(episode), 2, 1, 1))
        bases[:, :, :3, 3] = [[side * APART_M, BELOW_M, 0] for side in (-1, 1)]
    return bases if poses is None else poses[:, None] @ bases


def link_poses(hand: HandSpec, joints: Float[np.ndarray, "T Q"]) -> Float[np.ndarray, "T L 4 4"]:
    """Return poses in the base frame, in the order of ``robot_parts(hand).links``."""
    posture = KinematicTree.of(hand).posture(joints)
    turns, positions = (np.swapaxes(a, 0, 1) for a in (posture.turns, posture.positions))
    return frames.rigid(turns, positions)


def link_surface(
    parts: RobotParts, link: int
) -> tuple[Float[np.ndarray, "V 3"], Float[np.ndarray, "V 3"]]:
    """Return the corners of a link's triangles (link frame, m) and their normals.

    Corners are not shared, so that edges are visible.
    """
    corners = parts.vertices[parts.faces[parts.vertex_links[parts.faces[:, 0]] == link]]
    across = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    size = np.linalg.norm(across, axis=1)
    real = size > 1e-15  # a capsule without length has empty triangles
    normals = np.repeat(across[real] / size[real, None], 3, axis=0)
    return corners[real].reshape(-1, 3), normals


def strips(joints: Float[np.ndarray, "21 D"], state: int) -> Float[np.ndarray, "S 2 D"]:
    """Return the known bones as pairs of points, dashed for a doubtful hand."""
    ends = joints[np.array(BONES)]
    ends = ends[np.isfinite(ends).all((1, 2))]
    if state == DOUBTFUL:
        start, along = ends[:, :1], ends[:, 1:] - ends[:, :1]
        ends = np.concatenate([start + along * np.array(dash)[:, None] for dash in DASHES])
    return ends
