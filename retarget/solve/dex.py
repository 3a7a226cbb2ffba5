"""dex-retargeting as a second backend, as shipped: its objectives, its scale, its filter.

Frame by frame and causal, so it lags and may leave limits; the caller decides what to do with
that. Its objectives are those of https://github.com/dexsuite/dex-retargeting (MIT).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import MissingDependencyError
from acehand_core.hand.skeleton import WRIST, finger_keypoints
from retarget.robots.hand_spec import Commands, HandSpec
from retarget.solve.targets import HandTargets

MODES = ("vector", "dexpilot", "position")
#: The library's own values for this hand: how much longer the robot's vectors are, and the filter.
SCALING = 1.15
LOW_PASS_ALPHA = {"vector": 0.2, "dexpilot": 0.2, "position": 1.0}


def solve_dex(hand: HandSpec, targets: HandTargets, mode: str, filtered: bool = True) -> Commands:
    """Return the driven joints of every frame; inactive frames repeat the last pose.

    Args:
        mode: "vector" (wrist to tips), "dexpilot" (tips to tips as well) or "position" (tips,
            without scale, on a base that floats; only the fingers of its answer are used).
        filtered: use the exponential filter that the library ships switched on.

    Raises:
        MissingDependencyError: dex-retargeting is not installed.
    """
    return drive(build(hand, mode, filtered), hand, targets)


def drive(retargeting: Any, hand: HandSpec, targets: HandTargets) -> Commands:
    """Drive what ``build`` returned through all frames; the result is not clipped to any limit."""
    order = [retargeting.joint_names.index(hand.full_name(name)) for name in hand.command_joints]
    indices = retargeting.optimizer.target_link_human_indices
    out = np.tile(hand.rest, (len(targets.joints_hand), 1))
    last = hand.rest
    usable = targets.usable
    for frame, joints in enumerate(targets.joints_hand):
        if usable[frame]:
            # Vectors from the first to the second row of keypoints, or tips from the wrist.
            origin, task = indices if indices.ndim == 2 else (WRIST, indices)
            last = retargeting.retarget(joints[task] - joints[origin])[order]
        out[frame] = last
    return out


def build(
    hand: HandSpec,
    mode: str,
    filtered: bool = True,
    scaling: float = SCALING,
    keypoints: Sequence[int] | None = None,
) -> Any:
    """Return the library's ``SeqRetargeting`` for a hand; see ``solve_dex``.

    ``scaling`` is how much longer the robot's vectors are than the human's; position mode has none.
    ``keypoints`` are the human keypoints (OpenPose index) that vectors and positions go to, each of
    them in ``hand.target_keypoints``; by default the fingertips, which is all that DexPilot takes.
    """
    try:
        from dex_retargeting.retargeting_config import RetargetingConfig
    except ImportError as error:
        raise MissingDependencyError(
            f"--solver dex-{mode} needs dex-retargeting: {error}. In the checkout: "
            "pip install torch==2.13.0 && pip install '.[dex]'; or use the default solver."
        ) from error

    base = hand.full_name("base")
    frame_of = dict(zip(hand.target_keypoints, hand.target_frames, strict=True))
    tips = [finger_keypoints(finger)[-1] for finger in hand.fingers]
    keypoints = tips if keypoints is None else list(keypoints)
    links = [hand.full_name(frame_of[keypoint]) for keypoint in keypoints]
    settings: dict[str, Any] = {
        "vector": {
            "target_origin_link_names": [base] * len(links),
            "target_task_link_names": links,
            "target_link_human_indices": np.array([[WRIST] * len(links), keypoints]),
            "scaling_factor": scaling,
        },
        "dexpilot": {
            "wrist_link_name": base,
            "finger_tip_link_names": [hand.full_name(name) for name in hand.tip_names],
            "scaling_factor": scaling,
        },
        "position": {
            "target_link_names": links,
            "target_link_human_indices": np.array(keypoints),
            "add_dummy_free_joint": True,
        },
    }[mode]

    # The library leaves its rewritten URDF behind; here it goes with the folder.
    with tempfile.TemporaryDirectory(prefix="acehand-dex-") as folder:
        default, tempfile.tempdir = tempfile.tempdir, str(Path(folder))
        try:
            return RetargetingConfig(
                type=mode,
                urdf_path=str(hand.urdf_path),
                target_joint_names=[hand.full_name(name) for name in hand.command_joints],
                low_pass_alpha=LOW_PASS_ALPHA[mode] if filtered else 1.0,
                **settings,
            ).build()
        finally:
            tempfile.tempdir = default
