"""Hands and stores made up for tests of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.clips.schema import ClipInfo, StoreInfo
from acehand_core.ace.labelled.clips.store import ClipWriter
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance
from acehand_core.types import SIDES

CAMERA = Camera("pinhole", 320, 240, 300.0, 300.0, 159.5, 119.5)


@dataclass(frozen=True)
class SmallHand:
    """The default hand with a mesh of its own 21 joints: boxes a test can work out, and quickly."""

    name: str = "acehand"

    def joints(self, side, global_orient, hand_pose, betas):
        return CapsuleHand().joints(side, global_orient, hand_pose, betas)

    vertices = joints

    def faces(self, side):
        return CapsuleHand().faces(side)


def still(frames, left=(-0.1, 0.0, 0.6), right=(0.1, 0.0, 0.6)) -> np.ndarray:
    """Translations of hands that stay; None for a hand that is not there."""
    gone = (np.nan,) * 3
    return np.tile([left or gone, right or gone], (frames, 1, 1)).astype(float)


def motion_of(
    translation, orient=None, pose=None, betas=None, presence=None, camera=CAMERA, model=None,
    anchors=None, settings=None, fps=30.0,
) -> HandMotion:  # fmt: skip
    """A motion of the default hand: translation (T, 2, 3) with NaN where no hand is emitted."""
    translation, model = np.asarray(translation, float), model or CapsuleHand()
    frames, there = len(translation), np.isfinite(translation).all(-1)
    orient, pose = (
        np.array(np.broadcast_to(np.eye(3) if value is None else value, (frames, 2, *shape, 3, 3)))
        for value, shape in ((orient, ()), (pose, (15,)))
    )
    betas = np.zeros((2, 10)) if betas is None else np.asarray(betas, float)
    joints = [model.joints(SIDES[s], orient[:, s], pose[:, s], betas[s]) for s in (0, 1)]
    orient[~there], pose[~there] = np.nan, np.nan
    presence = there.astype(float) if presence is None else np.asarray(presence, float)
    known = there & (presence > 0.5)
    times = (np.arange(frames) * 1e9 / fps).astype(np.int64)
    image = np.full((frames, 2, 21, 2), np.nan) if anchors is None else np.asarray(anchors, float)
    return HandMotion(
        times, fps, presence, known.astype(float), known.astype(float), known, known & False,
        orient, pose, betas, translation, np.stack(joints, 1) + translation[:, :, None], image,
        "acehand", Provenance("made up", None, "test", settings=settings or {}), camera=camera,
    )  # fmt: skip


def store(
    root: Path, lengths: dict[str, int], name="made-up", split="test", motion=None, images=None
) -> Path:
    """Write clips of so many grey frames, brighter from frame to frame; hands stay."""
    writer = ClipWriter(root, StoreInfo(name, split, "test", "none"))
    for clip, count in lengths.items():
        hands = motion or motion_of(still(count))
        camera = hands.camera
        info = ClipInfo(
            clip, name, split, "video", count, hands.fps, camera.width, camera.height, camera,
            hands.hand_model, left_shapedirs_fixed=hands.left_shapedirs_fixed,
        )  # fmt: skip
        grey = (np.full((camera.height, camera.width, 3), k, np.uint8) for k in range(count))
        writer.write(info, hands, iter(images) if images else grey)
    writer.write_index()
    return root
