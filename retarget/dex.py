"""dex-retargeting as a second backend, as shipped: its objectives, its scale, its filter.

Frame by frame and causal, so it lags and may leave limits; the caller decides what to do with
that. Its objectives are those of https://github.com/dexsuite/dex-retargeting (MIT).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.errors import MissingDependencyError
from acehand_core.hand.skeleton import TIPS, WRIST
from retarget.limits import Commands
from retarget.robot import HandSpec
from retarget.targets import HandTargets

MODES = ("vector", "dexpilot", "position")
#: The library's own values for this hand: how much longer the robot's vectors are, and the filter.
SCALING = 1.15
LOW_PASS_ALPHA = {"vector": 0.2, "dexpilot": 0.2, "position": 1.0}


def solve_dex(hand: HandSpec, targets: HandTargets, mode: str, filtered: bool = True) -> Commands:
    """Return the driven joints of every frame; inactive frames repeat the last pose.

    Args:
        mode: "vector" (wrist to tips), "dexpilot" (tips to tips as well) or "position" (tips in
            the base frame, without scale).
        filtered: use the exponential filter that the library ships switched on.

    Raises:
        MissingDependencyError: dex-retargeting is not installed.
    """
    alpha = LOW_PASS_ALPHA[mode] if filtered else 1.0
    retargeting = _build(hand, mode, alpha)
    order = [retargeting.joint_names.index(hand.full_name(name)) for name in hand.command_joints]
    indices = retargeting.optimizer.target_link_human_indices
    out = np.tile(hand.rest, (len(targets.joints_hand), 1))
    last = hand.rest
    for frame, joints in enumerate(targets.joints_hand):
        if targets.active[frame]:
            last = retargeting.retarget(_reference(joints, indices, mode))[order]
        out[frame] = last
    return out


def _reference(joints: Float[np.ndarray, "21 3"], indices: np.ndarray, mode: str) -> np.ndarray:
    if mode == "position":
        return joints[indices] - joints[WRIST]
    return joints[indices[1]] - joints[indices[0]]


def _build(hand: HandSpec, mode: str, alpha: float) -> Any:
    try:
        from dex_retargeting.retargeting_config import RetargetingConfig
    except ImportError as error:
        raise MissingDependencyError(
            f"--solver dex-{mode} needs dex-retargeting: {error}. In the checkout: "
            "pip install torch==2.13.0 && pip install '.[dex]'; or use the default solver."
        ) from error
    base = hand.full_name("base")
    tips = [hand.full_name(name) for name in hand.tip_names]
    common: dict[str, Any] = {
        "urdf_path": str(hand.urdf_path),
        "target_joint_names": [hand.full_name(name) for name in hand.command_joints],
        "low_pass_alpha": alpha,
    }
    if mode == "vector":
        common |= {
            "target_origin_link_names": [base] * len(tips),
            "target_task_link_names": tips,
            "target_link_human_indices": np.array([[WRIST] * len(tips), list(TIPS)]),
            "scaling_factor": SCALING,
        }
    elif mode == "dexpilot":
        common |= {
            "wrist_link_name": base,
            "finger_tip_link_names": tips,
            "scaling_factor": SCALING,
        }
    else:
        common |= {
            "target_link_names": tips,
            "target_link_human_indices": np.array(TIPS),
        }
    # The library leaves its rewritten URDF behind; here it goes with the folder.
    with tempfile.TemporaryDirectory(prefix="acehand-dex-") as folder:
        default, tempfile.tempdir = tempfile.tempdir, str(Path(folder))
        try:
            return RetargetingConfig(type=mode, **common).build()
        finally:
            tempfile.tempdir = default
