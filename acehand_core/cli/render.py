"""``acehand render HANDS|DATASET``: videos and film strips of hands and robot."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Make a film and a strip of hands and robot."""

    inputs: tuple[Path, ...] = setting(
        ...,
        "HandMotion .parquet, joints .npz, a folder of predictions, or a dataset with --episode; "
        "several of one recording stand side by side",
        metavar="HANDS|DATASET",
        positional=True,
    )
    label: tuple[str, ...] = setting(
        (), "over an input's column, once per input", repeat=True, default_text="their names"
    )
    episode: int = setting(0, "of a dataset")
    video: Path | None = setting(None, "what the hands were seen in", metavar="VIDEO")
    segment: str | None = setting(None, "which table of a folder of predictions", metavar="NAME")
    clips: Path | None = setting(
        None,
        "store that the segment is from: its pictures, camera and true hands",
        metavar="STORE",
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
        None,
        "16-bit PNG in millimetres, one per frame: what is nearer hides the robot",
        metavar="DIR",
    )
    moving: bool = setting(True, "write the video, not only the strip", pair=True)
    output: Path = setting(Path("acehand_render"), "folder to write", metavar="DIR")
    overwrite: bool = setting(False, OVERWRITE)
    reading: RecordingOptions = group(RecordingOptions)
    arm: ArmSettings = group(ArmSettings)

    def run(self, terminal: console.Terminal) -> int:
        """Draw and name the files."""
        from acehand_core.drawing.panels import panel_names
        from acehand_core.drawing.render import render
        from acehand_core.drawing.render_inputs import RenderSettings

        settings = RenderSettings(
            output=self.output,
            panels=None if self.panels is None else panel_names(self.panels),
            robot=self.robot,
            robot_model=self.robot_model,
            calibration=self.calibration,
            hands=self.hands,
            video=self.video,
            episode=self.episode,
            depth=self.depth,
            moving=self.moving,
            overwrite=self.overwrite,
            reading=self.reading,
            labels=self.label,
            segment=self.segment,
            clips=self.clips,
            arm=self.arm,
        )
        files = render(self.inputs, settings, terminal.bars)
        terminal.bars.close()
        for file in files:
            console.say(str(file))
        terminal.print_json({"files": [str(file) for file in files]})
        return console.EXIT_OK
