"""What the page shows of one episode besides its video: hands and robot in 3D, and curves.

An episode is a block of bytes: four bytes with the length of a JSON head, the head, then arrays of
16-bit integers one after the other, the whole deflated. Numbers are rounded (``_STEPS``) and stored
as differences from frame to frame, since ten minutes of clips are to fit into a page.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.drawing.robot_parts import robot_parts
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import TIPS, WRIST
from acehand_core.review.checks import calibrations_of, tip_errors
from acehand_core.review.episode import Episode
from acehand_core.types import SIDES
from retarget.replay.clip import extent, in_camera, project
from retarget.robots.robot import Robot

#: Stands for a number that is not known.
_UNKNOWN = -32768
_LARGEST = 32000
#: How finely numbers are kept: metres, radians; curves by a share of their range.
_STEPS = {"state": 1.0, "joints": 3e-4, "base": 3e-4, "robot": 1e-3}


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One line of a plot over the frames of an episode; ``limit`` is drawn beside it."""

    plot: str
    side: str
    values: Float[np.ndarray, "T"]
    unit: str
    limit: float | None = None


def episode_block(episode: Episode, robot: Robot | None) -> bytes:
    """Return an episode as the page reads it."""
    arrays: dict[str, np.ndarray] = {"state": episode.states, "joints": episode.joints}
    bases = in_camera(episode)
    if robot is not None and episode.robot is not None:
        arrays["robot"] = np.where(episode.valid[..., None], episode.robot.joints, np.nan)
        if bases is not None:
            turn = rotations.to_quaternion(bases[..., :3, :3])
            pose = np.concatenate([bases[..., :3, 3], turn], axis=-1)
            arrays["base"] = np.where(episode.valid[..., None], pose, np.nan)
    drawn = curves(episode, robot)
    for index, curve in enumerate(drawn):
        arrays[f"curve{index}"] = curve.values

    head: dict[str, Any] = {
        "frames": len(episode),
        "fps": episode.fps,
        # For the joints that are drawn over the video: all frames of an episode have one camera.
        "camera": None if episode.camera is None else episode.camera[0].tolist(),
        "curves": [{"plot": c.plot, "side": c.side, "unit": c.unit, "limit": c.limit}
                   for c in drawn],
        "arrays": [],
    }  # fmt: skip

    body = b""
    for name, values in arrays.items():
        known = values[np.isfinite(values)]
        largest = float(np.abs(known).max()) if len(known) else 1.0
        scale = max(largest / _LARGEST, _STEPS.get(name, largest / 2000), 1e-9)
        whole = np.where(np.isfinite(values), np.round(np.nan_to_num(values) / scale), _UNKNOWN)
        flat = whole.reshape(len(values), -1).astype(np.int64)
        steps = np.diff(flat, axis=0, prepend=0).astype(np.int16)  # wraps around, and back again
        head["arrays"].append({"name": name, "shape": list(values.shape), "scale": scale})
        # Entry by entry: what changes little lies together.
        body += np.ascontiguousarray(steps.T).astype("<i2").tobytes()
    said = json.dumps(head, allow_nan=False).encode()
    said += b" " * (-(len(said) + 4) % 2)  # the numbers begin at an even place
    return zlib.compress(len(said).to_bytes(4, "little") + said + body, 9)


def curves(episode: Episode, robot: Robot | None) -> list[Curve]:
    """Return what is plotted of an episode, left and right."""
    out, errors = [], None
    if robot is not None and episode.robot is not None:
        errors = tip_errors(episode, robot, calibrations_of(episode, robot)[0])
    for slot, side in enumerate(SIDES):
        if not episode.valid[:, slot].any():
            continue
        valid = episode.valid[:, slot]

        def of_valid(values: np.ndarray, valid: np.ndarray = valid) -> np.ndarray:
            return np.where(valid, values, np.nan)

        out.append(Curve("confidence", side, of_valid(episode.confidence[:, slot]), ""))
        if episode.sigma is not None and np.isfinite(episode.sigma[:, slot]).any():
            tips = 1e3 * episode.sigma[:, slot][:, list(TIPS)].mean(1)
            out.append(Curve("uncertainty", f"{side} across", of_valid(tips[:, 0]), "mm"))
            out.append(Curve("uncertainty", f"{side} along", of_valid(tips[:, 1]), "mm"))
        if (away := _reprojection(episode, slot)) is not None:
            out.append(Curve("reprojection", side, of_valid(away), "px"))
        if errors is not None and np.isfinite(errors[:, slot]).any():
            mean = np.full(len(episode), np.nan)
            known = np.isfinite(errors[:, slot]).any(1)
            mean[known] = 1e3 * np.nanmean(errors[known, slot], axis=1)
            out.append(Curve("tip error", side, mean, "mm", 30.0))
        if robot is not None and episode.robot is not None and side in robot.hands:
            hand, joints = robot.hands[side], episode.robot.commands[:, slot]
            low, high = hand.command_lower, hand.command_upper
            room = np.minimum(joints - low, high - joints).min(1) / (high - low).max()
            out.append(Curve("room to limits", side, of_valid(room), "", 0.0))
        if episode.placed:
            speed = np.linalg.norm(np.gradient(episode.joints[:, slot, WRIST], axis=0), axis=-1)
            out.append(Curve("wrist speed", side, speed * episode.fps, "m/s"))
    return out


def _reprojection(episode: Episode, slot: int) -> Float[np.ndarray, "T"] | None:
    motion = episode.motion
    if motion is None or not episode.placed or episode.camera is None:
        return None
    pixels = motion.joints_image[:, slot]
    if not np.isfinite(extent(pixels)).any():
        return None
    projected = project(episode.camera, episode.joints)[:, slot]
    return np.linalg.norm(projected - pixels, axis=-1).mean(1)


def robot_block(robot: Robot) -> Mapping[str, Any]:
    """Return links and triangles of both hands of a robot, as JSON; lengths in 0.01 mm."""
    sides: dict[str, Any] = {}
    for side, hand in robot.hands.items():
        parts = robot_parts(hand)
        sides[side] = {
            "links": [
                {"parent": link.parent, "position": link.position.round(6).tolist(),
                 "quaternion": link.quaternion.round(7).tolist(), "column": link.column,
                 "axis": link.axis.round(7).tolist(), "anchor": link.anchor.round(6).tolist(),
                 "slides": bool(link.slides)}
                for link in parts.links
            ],
            "vertices": np.round(parts.vertices * 1e5).astype(int).reshape(-1).tolist(),
            "owners": parts.vertex_links.tolist(),
            "faces": parts.faces.reshape(-1).tolist(),
        }  # fmt: skip
    return sides
