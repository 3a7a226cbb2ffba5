"""Do two arms go through each other, and how much do they reach?

    python -m benchmarks.arms --models FOLDER [--hands FILE]

Each arm carries both hands of a clip, by default the truth of the example. ``alone``: each base is
searched and each arm moved as if nothing else was there, neither the other arm nor its own links,
the hands or a table. ``together``: what ``--arm`` does. Of both: frames in which the two arms, with
their hands, are inside each other, and inside themselves; the smallest distance between them; the
share of frames that is reached; seconds. Both are measured by the same scene, which tests compare
with models that MuJoCo attaches.

FOLDER has checkouts of mujoco_menagerie as ``menagerie`` and of dexsuite/dex-urdf as ``dex-urdf``;
an arm that cannot be read is named.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import AcehandError
from acehand_core.motion import ArmMotion, RobotTrajectory
from acehand_core.recordings.hands_file import read_motion_file
from acehand_core.types import SIDES
from benchmarks import provenance
from retarget.retargeting import retarget_motion
from retarget.robots.robot import Robot, load_robot
from retarget.solve.arm import Arm, ArmSettings
from retarget.solve.arm_attachment import attach_arms
from retarget.solve.arm_scene import ArmScene

HANDS = provenance.ROOT / "examples" / "two_hands_truth.parquet"
MENAGERIE, DEX_URDF = "menagerie", "dex-urdf/robots/arms"
#: File, the link that carries the hand (None: found), the hand's place on it.
ARMS = (
    (f"{MENAGERIE}/franka_emika_panda/panda_nohand.xml", None, None),
    (f"{MENAGERIE}/franka_emika_panda/panda.xml", "link7", (0.0, 0.0, 0.107, 0.0, 0.0, 0.0)),
    (f"{MENAGERIE}/universal_robots_ur5e/ur5e.xml", None, None),
    (f"{MENAGERIE}/kuka_iiwa_14/iiwa14.xml", None, None),
    (f"{MENAGERIE}/ufactory_xarm7/xarm7_nohand.xml", None, None),
    (f"{MENAGERIE}/kinova_gen3/gen3.xml", None, None),
    (f"{DEX_URDF}/ur5e/ur5e.urdf", None, None),
    (f"{DEX_URDF}/ur10e/ur10e.urdf", None, None),
    (f"{DEX_URDF}/iiwa7/iiwa7.urdf", None, None),
    (f"{DEX_URDF}/iiwa14/iiwa14.urdf", None, None),
    (f"{DEX_URDF}/xarm7/xarm7.urdf", None, None),
)


def main() -> int:
    begun = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--hands", type=Path, default=HANDS, metavar="FILE")
    provenance.add_output(parser)
    options = parser.parse_args()

    robot = load_robot("inspire")
    clip = retarget_motion(read_motion_file(options.hands), robot)
    measured: list[dict[str, Any]] = []
    for file, link, mount in ARMS:
        try:
            settings = ArmSettings(options.models / file, link, mount)
            row = measure(clip, robot, settings)
        except AcehandError as error:
            row = {"left_out": re.sub(r"/[^ ']*/", "", str(error))}
        measured.append({"model": file, **row})
        print(measured[-1], file=sys.stderr, flush=True)
    result = {
        "hands": options.hands.name,
        "frames": len(clip),
        "fps": clip.fps,
        "robot": robot.label,
        "arms": measured,
    }
    provenance.publish(begun, result, options.output)
    return 0


def measure(clip: RobotTrajectory, robot: Robot, settings: ArmSettings) -> dict[str, Any]:
    """Return what became of one arm, alone and together."""
    arm = settings.load()
    assert arm is not None
    begun, alone = time.perf_counter(), {}
    shapeless = replace(arm, carried=frozenset(range(arm.model.nbody)))
    for slot in range(2):
        only = np.zeros_like(clip.active)
        only[:, slot] = clip.active[:, slot]
        one = attach_arms(replace(clip, active=only), shapeless, replace(settings, table="none"))
        motion = one.arms[slot]
        assert motion is not None
        alone[slot] = motion
    middle = time.perf_counter()
    both = attach_arms(clip, arm, settings, robot)
    done = time.perf_counter()
    together = {slot: motion for slot, motion in enumerate(both.arms) if motion is not None}
    verdict = both.verdict
    return {
        "alone": {**distances(clip, robot, arm, alone), "seconds": middle - begun},
        "together": {
            **distances(clip, robot, arm, together),
            "seconds": done - middle,
            "verdict": verdict.status if verdict else None,
            "reasons": list(verdict.reasons) if verdict else [],
        },
    }


def distances(
    clip: RobotTrajectory, robot: Robot, arm: Arm, motions: Mapping[int, ArmMotion]
) -> dict[str, Any]:
    """Return frames and distances of two arms that move in this way."""
    scene = ArmScene(arm, clip, robot, (0, 1), 0.0)
    sides = {
        slot: scene.places(slot, motion.T_frame_arm, motion.joints, slice(None))
        for slot, motion in motions.items()
    }
    found = scene.distances(sides, None)
    return {
        "colliding_frames": int((found[0].other < 0).sum()),
        "self_colliding_frames": int(sum((found[slot].own < 0).sum() for slot in sides)),
        "smallest_distance_mm": 1e3 * float(found[0].other.min()),
        "reached_share": {
            SIDES[slot]: float(motion.reached[clip.active[:, slot]].mean())
            for slot, motion in motions.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
