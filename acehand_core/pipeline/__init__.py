"""The main job: recordings in, one dataset of robot demonstrations out."""

from acehand_core.pipeline.job import run_job
from acehand_core.pipeline.pictures import draw_robot, view_hands
from acehand_core.pipeline.settings import TASK, Clip, JobSettings

__all__ = ["TASK", "Clip", "JobSettings", "draw_robot", "run_job", "view_hands"]
