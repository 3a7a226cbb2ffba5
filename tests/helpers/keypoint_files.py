"""Keypoints as other programs write them, made of known motion; orders by hand from their specs."""

import json
from pathlib import Path

import numpy as np

#: smplx: MANO's joints, then the tips of thumb, index, middle, ring and pinky.
MANO = (0, 5, 6, 7, 9, 10, 11, 17, 18, 19, 13, 14, 15, 1, 2, 3, 4, 8, 12, 16, 20)
#: Minimal-IK: the tips in MANO's order of fingers: index, middle, pinky, ring, thumb.
MINIMAL_HAND = (*MANO[:16], 8, 12, 20, 16, 4)
#: InterHand2.6M: each finger from its tip, thumb first, the wrist last.
INTERHAND = (4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9, 16, 15, 14, 13, 20, 19, 18, 17, 0)
#: Aria MPS: five tips, wrist, thumb intermediate and distal, then proximal, intermediate and distal
#: of index to pinky; -1 is the centre of the palm.
ARIA = (4, 8, 12, 16, 20, 0, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, -1)
#: ARKit for visionOS and WebXR: -2 is the base of a metacarpal.
ARKIT = (0, 1, 2, 3, 4, -2, 5, 6, 7, 8, -2, 9, 10, 11, 12, -2, 13, 14, 15, 16, -2, 17, 18, 19, 20)
#: XrHandJointEXT: the palm first.
OPENXR = (-1, *ARKIT)

ARKIT_NAMES = (
    "wrist", "thumbKnuckle", "thumbIntermediateBase", "thumbIntermediateTip", "thumbTip",
    *(f"{finger}{joint}" for finger in ("index", "middle", "ring", "little")
      for joint in ("Metacarpal", "Knuckle", "IntermediateBase", "IntermediateTip", "Tip")),
)  # fmt: skip
#: The header of an export of MANUS Core 2.
MANUS_JOINTS = (
    "Hand", "Thumb_CMC", "Thumb_MCP", "Thumb_DIP", "Thumb_TIP",
    *(f"{finger}_{joint}" for finger in ("Index", "Middle", "Ring", "Pinky")
      for joint in ("CMC", "MCP", "PIP", "DIP", "TIP")),
)  # fmt: skip
#: The names that MediaPipe gives its landmarks.
MEDIAPIPE_NAMES = (
    "WRIST", "THUMB_CMC", "THUMB_MCP", "THUMB_IP", "THUMB_TIP",
    *(f"{finger}_{joint}"
      for finger in ("INDEX_FINGER", "MIDDLE_FINGER", "RING_FINGER", "PINKY")
      for joint in ("MCP", "PIP", "DIP", "TIP")),
)  # fmt: skip


def written(joints: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Return (..., 21, 3) joints in another order; those that are not among the 21 are made up."""
    out = np.empty((*joints.shape[:-2], len(order), 3))
    for column, keypoint in enumerate(order):
        if keypoint >= 0:
            out[..., column, :] = joints[..., keypoint, :]
        elif keypoint == -1:  # the palm, between wrist and middle knuckle
            out[..., column, :] = joints[..., [0, 9], :].mean(-2)
        else:  # the base of the metacarpal that ends in the next joint
            knuckle = order[column + 1]
            out[..., column, :] = 0.8 * joints[..., 0, :] + 0.2 * joints[..., knuckle, :]
    return out


def poses_of(points: np.ndarray) -> np.ndarray:
    """Return 4 x 4 poses at these places, turned anyhow."""
    poses = np.zeros((*points.shape[:-1], 4, 4))
    poses[..., :3, :3] = [[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]
    poses[..., :3, 3], poses[..., 3, 3] = points, 1
    return poses


def avp_npz(path: Path, joints: np.ndarray, side: str, fps: float) -> Path:
    """Write what avp_stream gives of one hand: 25 poses relative to the wrist, and the wrist's."""
    wrist = poses_of(joints[:, 0])
    inverse = np.linalg.inv(wrist)
    local = (
        np.einsum("tij,tkj->tki", inverse[:, :3, :3], written(joints, ARKIT))
        + inverse[:, None, :3, 3]
    )
    poses = poses_of(local)
    np.savez(path, **{f"{side}_fingers": poses, f"{side}_wrist": wrist[:, None], "fps": fps})
    return path


def avp_jsonl(path: Path, joints: np.ndarray, fps: float) -> Path:
    """Write tracking.jsonl of VisionProTeleop: y up, column by column, the wrist in the world."""
    y_up = joints[..., [0, 2, 1]] * [1, 1, -1]  # from z up
    lines = []
    for number, frame in enumerate(y_up):
        record: dict[str, object] = {"timestamp": 1751465222.0 + number / fps}
        for hand, side in zip(frame, ("left", "right"), strict=True):
            points = written(hand, ARKIT) - hand[0]
            points[0] = hand[0]
            poses = np.swapaxes(poses_of(points), -1, -2).reshape(25, 16)
            poses[:, :12] = np.eye(4)[:3].reshape(-1)  # unturned
            record[f"{side}Hand"] = dict(zip(ARKIT_NAMES, poses.tolist(), strict=True))
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines))
    return path


def manus_csv(path: Path, joints: np.ndarray, fps: float) -> Path:
    """Write an export of MANUS Core 2: one hand, places in metres, then other columns."""
    points = written(joints, ARKIT)
    names = [f"{joint}_{axis}" for joint in MANUS_JOINTS for axis in "XYZ"]
    header = ["Frame", "Elapsed_Time_In_Milliseconds", "Time", *names, "Index_MCP_Flex"]
    rows = [
        [str(i), f"{1000 * i / fps:.5f}", f"03:08:42:{i:04d}", *(f"{v:.6f}" for v in frame), "12.5"]
        for i, frame in enumerate(points.reshape(len(points), -1))
    ]
    path.write_text("\n".join(",".join(row) for row in [header, *rows]))
    return path


def long_csv(path: Path, joints: np.ndarray, fps: float) -> Path:
    """Write a row per frame, hand and landmark of MediaPipe, millimetres; empty where unknown."""
    rows = ["time_s,hand,landmark,x,y,z"]
    for number, frame in enumerate(joints):
        for hand, side in zip(frame, ("Left", "Right"), strict=True):
            for name, place in zip(MEDIAPIPE_NAMES, hand, strict=True):
                cells = ["" if np.isnan(v) else f"{1000 * v:.4f}" for v in place]
                rows.append(",".join([f"{number / fps:.6f}", side, name, *cells]))
    path.write_text("\n".join(rows))
    return path
