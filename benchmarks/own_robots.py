"""From the model files that people have to a retargeted clip, without an edited line.

    ACEHAND_PUBLIC_MODELS=FOLDER python -m benchmarks.own_robots [--pictures DIR] [--only NAME]

FOLDER has checkouts of google-deepmind/mujoco_menagerie as ``menagerie``, dexsuite/dex-urdf as
``dex-urdf`` and unitreerobotics/xr_teleoperate as ``xr_teleoperate``. For each model: `acehand
robots init`, the checks of the draft as it is, and the verdict on the first frames of the shared
joints file of a right hand (``human_joint_right.npz``), with how deep the hand reaches into itself,
how far its tips are from the human's (mean) and the time to solve, without the calibration. With
``--pictures`` the pictures by which one decides are kept. Models that are not there, or lack a
file, are named with the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.drawing.robot_sheet import draw_robot
from acehand_core.errors import AcehandError
from acehand_core.recordings.hands_file import read_motion_file
from acehand_core.types import SIDES
from benchmarks import provenance
from retarget.check import check_hand
from retarget.retargeting import retarget_motion
from retarget.robots.draft import draft_hands
from retarget.robots.draft_text import checks_of, write_draft
from retarget.robots.robot import Robot, load_robot

VARIABLE = "ACEHAND_PUBLIC_MODELS"
_MENAGERIE, _DEX, _UNITREE = "menagerie", "dex-urdf/robots/hands", "xr_teleoperate/assets"


def _pair(folder: str, right: str) -> tuple[str, str]:
    return f"{folder}/{right}", f"{folder}/{right.replace('right', 'left')}"


#: The right hand's file, or that of both or of a gripper; and the left hand's.
MODELS: dict[str, tuple[str, str | None]] = {
    **{
        f"Menagerie {name}": _pair(f"{_MENAGERIE}/{name}", "right_hand.xml")
        for name in ("leap_hand", "shadow_hand", "tetheria_aero_hand_open", "wonik_allegro")
    },
    "Menagerie shadow_dexee": (f"{_MENAGERIE}/shadow_dexee/shadow_dexee.xml", None),
    "Menagerie aloha": (f"{_MENAGERIE}/aloha/aloha.xml", None),
    "Menagerie franka_emika_panda": (f"{_MENAGERIE}/franka_emika_panda/hand.xml", None),
    "Menagerie robotiq_2f85": (f"{_MENAGERIE}/robotiq_2f85/2f85.xml", None),
    "Menagerie robotiq_2f85_v4": (f"{_MENAGERIE}/robotiq_2f85_v4/2f85.xml", None),
    "Menagerie trs_so_arm100": (f"{_MENAGERIE}/trs_so_arm100/so_arm100.xml", None),
    "Menagerie ufactory_xarm7": (f"{_MENAGERIE}/ufactory_xarm7/hand.xml", None),
    "Menagerie umi_gripper": (f"{_MENAGERIE}/umi_gripper/umi_gripper.xml", None),
    **{
        f"dex-urdf {folder}": _pair(f"{_DEX}/{folder}", f"{stem}_right.urdf")
        for folder, stem in (
            ("ability_hand", "ability_hand"), ("allegro_hand", "allegro_hand"),
            ("inspire_hand", "inspire_hand"), ("leap_hand", "leap_hand"),
            ("schunk_hand", "schunk_svh_hand"), ("shadow_hand", "shadow_hand"),
        )
    },
    "dex-urdf barrett_hand": (f"{_DEX}/barrett_hand/bhand_model.urdf", None),
    "dex-urdf dclaw_gripper": (f"{_DEX}/dclaw_gripper/dclaw_gripper.urdf", None),
    "dex-urdf panda_gripper": (f"{_DEX}/panda_gripper/panda_gripper_glb.urdf", None),
    **{
        f"xr_teleoperate {name}": _pair(_UNITREE, f"{stem}_right.urdf")
        for name, stem in (
            ("brainco", "brainco_hand/brainco"), ("dex3", "unitree_hand/unitree_dex3"),
            ("inspire", "inspire_hand/inspire_hand"),
        )
    },
}  # fmt: skip


def main() -> int:
    begun = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--frames", type=int, default=120, help="of the joints file")
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    parser.add_argument("--only", nargs="+", default=list(MODELS), metavar="NAME", choices=MODELS)
    parser.add_argument(
        "--checkouts", nargs="*", default=[], metavar="NAME@COMMIT", help="said in the result"
    )
    provenance.add_output(parser)
    options = parser.parse_args()
    if VARIABLE not in os.environ:
        parser.error(f"{VARIABLE} must name the folder of the checkouts")
    models = Path(os.environ[VARIABLE])
    found = {}
    for name in options.only:
        found[name] = measure(models, name, options.frames, options.pictures)
        print(name, found[name], file=sys.stderr, flush=True)
    provenance.publish(
        begun,
        {"checkouts": options.checkouts, "frames": options.frames, "models": found},
        options.output,
    )
    return 0


def measure(models: Path, name: str, frames: int, pictures: Path | None) -> dict[str, Any]:
    """Return what becomes of one model, or why nothing does."""
    right, left = (models / path if path else None for path in MODELS[name])
    assert right is not None
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        missing = None
        try:
            if left is not None:
                draft_hands(left, side="left")
        except AcehandError as error:
            missing, left = " ".join(str(error).split()).replace(str(models), ""), None
        try:
            path = write_draft(right, Path(folder), left)
            robot = load_robot(path)
        except AcehandError as error:
            return {"refused": " ".join(str(error).split()).replace(str(models), "")}
        drafted = time.perf_counter() - begun
        if pictures is not None:
            draw_robot(robot, pictures / f"{name.replace(' ', '-')}.png", overwrite=True)
        text = path.read_text("utf-8")
        result = _judged(robot, frames)
    hand = robot.hands["right"]
    return {
        "fingers": list(hand.fingers), "sides": list(robot.hands), "left_missing": missing,
        "driven": len(hand.command_names), "following": len(hand.joint_names) - len(hand.rest),
        "open_questions": checks_of(text), "init_s": drafted, **result,
    }  # fmt: skip


def _judged(robot: Robot, frames: int) -> dict[str, Any]:
    """Return failed checks of the draft as it is, and the verdict on the right hand's joints."""
    failed, palm = [], ""
    for side, hand in robot.hands.items():
        for finding in check_hand(hand):
            if finding.passed is False:
                failed.append(f"{side} {finding.name}: {finding.detail}")
            if side == "right" and finding.name == "palm frame":
                palm = finding.detail
    joints = provenance.shared_folder() / "data" / "human_joint_right.npz"
    motion = read_motion_file(joints, "right")
    motion = motion.at(np.arange(frames), motion.timestamps_ns[:frames], motion.fps)
    try:
        trajectory = retarget_motion(motion, robot)
    except AcehandError as error:
        return {"failed": failed, "palm_frame": palm, "verdict": None, "reasons": [str(error)]}
    verdict, report = trajectory.verdict, trajectory.replay[SIDES.index("right")]
    assert verdict is not None and report is not None
    return {
        "failed": failed, "palm_frame": palm, "verdict": verdict.status,
        "reasons": list(verdict.reasons),
        "tip_mm": float(np.nanmean(trajectory.tip_error_m)) * 1e3,
        "commanded_contact_mm": report.commanded_penetration_mm,
        "replay_contact_mm": report.max_penetration_mm,
        "replay_rms": max(report.rms_tracking_rad, report.rms_tracking_m),
        "solve_ms": trajectory.solve_seconds / frames * 1e3,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
