"""``acehand render``: videos and strips of one input, or of several side by side."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from acehand_core.atomic import check_free
from acehand_core.drawing.contact_sheet import arm_room, picture_size, robot_layer
from acehand_core.drawing.overlay import header, put_caption, shrunk, write_png
from acehand_core.drawing.panels import (
    NOT_PLACED,
    OUTSIDE_PANELS,
    Panel,
    Panels,
    panel_names,
    placed_nominally,
)
from acehand_core.drawing.render_inputs import (
    RenderSettings,
    calibrations_of,
    open_columns,
    robot_of,
)
from acehand_core.drawing.robot_renderer import RobotRenderer
from acehand_core.errors import InputError
from acehand_core.motion import Recording
from acehand_core.recordings.selection import only_hands
from acehand_core.recordings.video_encode import write_video
from acehand_core.types import ImageRgb, Picture, Progress, no_progress
from retarget.retargeting import retarget_motion
from retarget.solve.arm_attachment import attach_arms

VIDEO, STRIP = "render.mp4", "strip.png"
DEFAULT_PANELS: tuple[Panel, ...] = ("source", "mesh", "robot", "robot-third")
#: As in the paper's qualitative comparison.
COLUMN_PANELS: tuple[Panel, ...] = ("mesh", "third")
#: Moments of the strip, their range (s), and the width of its pictures (px).
STRIP_MOMENTS, STRIP_S, STRIP_WIDTH = 8, 120.0, 320
#: Moments of the strip of several inputs, and the largest width of their video (px).
COLUMN_MOMENTS, COLUMNS_WIDTH = 4, 1920
_GAP = 4


def render(
    sources: Sequence[Path], settings: RenderSettings, progress: Progress = no_progress
) -> list[Path]:
    """Draw files of hands, folders of predictions or episodes, a column each; return the files.

    Raises InputError: a source is none of these, does not fit the video or the depth maps, or is of
    another recording than the first. MissingDependencyError: panels with the robot, without OpenGL.
    OutputError: the pictures exist and may not be overwritten.
    """
    given = None if settings.panels is None else panel_names(settings.panels)
    files = [settings.output / name for name in ((STRIP, VIDEO) if settings.moving else (STRIP,))]
    for path in files:
        check_free(path, settings.overwrite)

    recording, columns = open_columns(sources, settings, progress)
    in_columns = len(columns) > 1 or bool(settings.labels)
    placed = all(column.motion.placed for column in columns)
    shown = COLUMN_PANELS if in_columns else DEFAULT_PANELS
    if not placed:
        shown = OUTSIDE_PANELS
    elif recording.frames is None:
        shown = tuple(name for name in shown if name != "source")
    shown = given or shown
    motions = [column.motion for column in columns]
    folder, count = settings.scene_depth, len(motions[0])
    depth = tuple(sorted(folder.glob("*.png"))) if folder else ()
    if folder and len(depth) != count:
        raise InputError(f"{folder}: {len(depth)} depth maps (.png) for {count} frames.")
    width, height = picture_size(recording) if recording.frames else (960, 540)

    with contextlib.ExitStack() as exits:
        panels = []
        for column in columns:
            layer = arms = table = None
            if any("robot" in panel or panel == "both" for panel in shown):
                robot = robot_of(column.source, settings, progress)
                known = calibrations_of(column.source, settings, robot)
                followed = placed_nominally(column.motion)
                followed = only_hands(followed, robot.hands_to_follow(settings.hands))
                trajectory = retarget_motion(followed, robot, calibrations=known, unchecked=True)
                arm = settings.arm.load()
                if arm is not None:
                    trajectory = attach_arms(trajectory, arm, settings.arm, robot)
                renderer = exits.enter_context(RobotRenderer(robot, width, height, arm))
                layer = functools.partial(robot_layer, renderer, trajectory)
                arms, table = arm_room(arm, trajectory)
            panels.append(Panels(column.motion, width, height, layer, motions, arms, table))

        labels = tuple(column.label for column in columns) if in_columns else ()
        note = "" if placed else f"   {NOT_PLACED}"
        grid = _Grid(recording, tuple(panels), shown, labels, depth, (width, height), note)
        write_png(grid.strip(), files[0])
        if settings.moving:
            grid.write(files[1], progress)
    return files


@dataclass(frozen=True, slots=True)
class _Grid:
    """All panels of a recording: a row per panel and a column per input; one input in a grid.

    ``labels`` are those of the columns, empty without columns. ``note`` ends every caption.
    """

    recording: Recording
    panels: tuple[Panels, ...]
    names: tuple[Panel, ...]
    labels: tuple[str, ...]
    depth: tuple[Path, ...]
    size: tuple[int, int]
    note: str = ""

    def pictures(self, frame: int, image: ImageRgb | None) -> list[list[ImageRgb]]:
        """Return a row of pictures per panel, a picture per input."""
        scene = None
        if self.depth:
            values = cv2.imdecode(np.fromfile(self.depth[frame], np.uint8), cv2.IMREAD_UNCHANGED)
            if values is None or values.dtype != np.uint16 or values.ndim != 2:
                raise InputError(
                    f"{self.depth[frame]}: depth maps must be 16-bit grey PNG in millimetres."
                )
            # The nearest pixel: a mean would mix the depths of two surfaces.
            values = cv2.resize(values, self.size, interpolation=cv2.INTER_NEAREST)
            scene = values.astype(np.float32) / 1000
        return [
            [column.draw(name, frame, image, scene) for column in self.panels]
            for name in self.names
        ]

    def strip(self) -> Picture:
        """Return moments of the first two minutes.

        One input has a column per moment and a row per panel; with several, moments go downwards.
        """
        fps, count = self.recording.fps, COLUMN_MOMENTS if self.labels else STRIP_MOMENTS
        last = min(len(self.recording) - 1, round(STRIP_S * fps))
        moments = []
        for frame in np.unique(np.linspace(0, last, count).round().astype(int)).tolist():
            image = None if self.recording.frames is None else self.recording.frames.at(frame)
            rows = [
                [shrunk(shot, STRIP_WIDTH) for shot in row] for row in self.pictures(frame, image)
            ]
            put_caption(rows[0][0], f"{frame / fps:.1f} s{self.note}")
            moments.append(_joined([_joined(row, 1) for row in rows], 0))
        if not self.labels:
            return _joined(moments, 1)
        return np.vstack([header(self.labels, STRIP_WIDTH, _GAP), _joined(moments, 0)])

    def write(self, path: Path, progress: Progress) -> None:
        """Write every frame as a video."""
        count, frames = len(self.recording), self.recording.frames
        across = len(self.labels) or min(2, len(self.names))
        # Several panels are shrunk to a size that any player shows.
        scale = 1 if across == 1 else 2 / 3
        if self.labels:
            scale = min(scale, COLUMNS_WIDTH / (across * self.size[0]))
        width, height = (2 * round(side * scale / 2) for side in self.size)

        def pages() -> Iterator[Picture]:
            images = frames.read(0, count) if frames is not None else iter([None] * count)
            for frame, image in enumerate(images):
                rows = [
                    [
                        cv2.resize(shot, (width, height), interpolation=cv2.INTER_AREA)
                        for shot in row
                    ]
                    for row in self.pictures(frame, image)
                ]
                yield self._page(rows)
                progress("render", frame + 1, count)

        blank = [np.zeros((height, width, 3), np.uint8)] * len(self.panels)
        size = self._page([list(blank) for _ in self.names]).shape
        write_video(self.recording, pages(), (size[1], size[0]), self.recording.fps, path)

    def _page(self, rows: list[list[ImageRgb]]) -> Picture:
        """Return one picture of the video: labelled columns, or two panels to a row."""
        for row, name in zip(rows, self.names, strict=True):
            put_caption(row[0], f"{name}{self.note}")
        if self.labels:
            return np.vstack([header(self.labels, rows[0][0].shape[1]), *map(np.hstack, rows)])
        shots = [row[0] for row in rows]
        across = min(2, len(shots))
        shots += [np.zeros_like(shots[0])] * (-len(shots) % across)
        grid = [np.hstack(shots[i : i + across]) for i in range(0, len(shots), across)]
        return np.vstack(grid)


def _joined(pictures: Sequence[np.ndarray], axis: int) -> Picture:
    """Return pictures joined along an axis, with thin gaps."""
    shape = list(pictures[0].shape)
    shape[axis] = _GAP
    gap = np.full(shape, 255, np.uint8)
    parts = [part for picture in pictures for part in (picture, gap)]
    return np.concatenate(parts[:-1], axis=axis)
