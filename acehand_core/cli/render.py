"""``acehand render HANDS|DATASET``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.options import RecordingOptions
from acehand_core.settings import group, like, setting
from acehand_core.types import Hands
from retarget.solve.arm import ArmSettings


@dataclass(frozen=True, slots=True)
class Render:
    """Draw a video and a strip of hands and robot."""

    inputs: tuple[Path, ...] = setting(
        ...,
        "HandMotion .parquet, joints .npz, a folder of predictions, or a dataset with --episode; "
        "several of one recording are drawn side by side",
        metavar="HANDS|DATASET",
        positional=True,
    )
    labels: tuple[str, ...] = setting(
        (), "label of an input, once per input", flag="label", repeat=True, default_text="its name"
    )
    episode: int = setting(0, "of a dataset")
    video: Path | None = setting(None, "the video of the hands", metavar="VIDEO")
    segment: str | None = setting(None, "the table in a folder of predictions", metavar="NAME")
    clips: Path | None = setting(
        None, "the segment's store, with pictures, camera and true hands", metavar="STORE"
    )
    panels: str | None = setting(
        None,
        "of source, mesh, robot, both, third, head, robot-third, robot-head",
        metavar="LIST",
        default_text="source,mesh,robot,robot-third; of several inputs mesh,third",
    )
    robot: str | None = like(
        JobSettings, "robot", None, default_text="a dataset's own, else inspire"
    )
    robot_model: Path | None = like(JobSettings, "robot_model", None)
    calibration: Path | None = like(JobSettings, "calibration", None)
    hands: Hands | None = like(JobSettings, "hands", None)
    depth: Path | None = setting(
        None, "depth maps that hide the robot: 16-bit PNG in mm, one per frame", metavar="DIR"
    )
    moving: bool = setting(True, "write the video, not only the strip", pair=True)
    output: Path = setting(Path("acehand_render"), "folder to write", metavar="DIR")
    overwrite: bool = setting(False, OVERWRITE)
    reading: RecordingOptions = group(RecordingOptions)
    arm: ArmSettings = group(ArmSettings)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.drawing.render import render
        from acehand_core.drawing.render_inputs import RenderSettings

        own = {field.name: getattr(self, field.name) for field in fields(RenderSettings)}
        files = render(self.inputs, RenderSettings(**own), terminal.bars)
        return console.say_files(files, terminal)
