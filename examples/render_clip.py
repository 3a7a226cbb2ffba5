"""Renders the example clip and its ground truth: ``python examples/render_clip.py [FOLDER]``.

``two_hands`` and ``one_hand`` are scripts: who moves when, written out by hand. World frame of
``acehand_core.ace.synthetic.layout``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from acehand_core.ace.synthetic.grasp_fit import OFF_M
from acehand_core.ace.synthetic.grasps import pinch_from_above
from acehand_core.ace.synthetic.hand_geometry import bend
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.rendering import pose_clip
from acehand_core.ace.synthetic.script import (
    CameraKey,
    HandKey,
    Hold,
    Script,
    Vector,
    hand_rotation,
)
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.types import SIDES, ImageRgb, RigidTransform, Rotation, Side

#: The camera the clip is seen through, 68 degrees wide; also in the metadata of the truth.
CAMERA = Camera.nominal(640, 480, 68.0)

_ELBOWS = np.array([[-0.27, -0.27, 0.06], [0.27, -0.27, 0.06]])
_Z = np.array([0.0, 0.0, 1.0])


def _vector(*values: float | int) -> Vector:
    return np.array(values, float)


def _yaw(degrees: float | int) -> Rotation:
    return rotations.exp(np.radians(degrees) * _Z)


def head_camera(seed: int = 0, duration: float = 4.0) -> tuple[CameraKey, ...]:
    """Return a head that looks down at the table and sways a little."""
    rng = np.random.default_rng(seed)
    sway = rng.uniform(-1, 1, (5, 7)) * np.array([0.02, 0.012, 0.012, 0.025, 0.02, 0.01, 0.03])
    return tuple(
        CameraKey(
            time,
            _vector(0.0, -0.10, 0.47) + move[:3],
            _vector(0.0, 0.08, 0.03) + move[3:6],
            float(move[6]),
        )
        for time, move in zip(np.linspace(0, duration, 5), sway, strict=True)
    )


def two_hands(seed: int = 0) -> Script:
    """Each hand pinches a block, lifts it, turns it next to the other's and puts it down."""
    rng = np.random.default_rng(seed)
    tall, flat = (0.019, 0.024, 0.032), (0.018, 0.030, 0.022)
    blocks = (
        Prop("block_left", "box", flat, (0.84, 0.66, 0.23)),
        Prop("block_right", "box", tall, (0.14, 0.46, 0.47)),
    )
    mug = Prop("mug", "mug", (0.040, 0.095, 0.004), (0.93, 0.92, 0.88))
    placed = {"mug": frames.rigid(_yaw(-35), _vector(-0.02, 0.30, 0.0))}
    hands, holds = [], []
    for slot, (side, block) in enumerate(zip(SIDES, blocks, strict=True)):
        out = 1.0 if side == "right" else -1.0
        at = _vector(out * 0.088, 0.105, block.size[2]) + _vector(*rng.uniform(-0.006, 0.006, 2), 0)
        delay = float(rng.uniform(-0.05, 0.05)) + (0.0 if side == "right" else 0.3)
        keys, placed[block.name] = _pick_up(side, at, block, delay)
        hands.append(keys)
        holds.append(Hold(block.name, slot, 1.05 + delay, 2.85 + delay))
    return Script(
        name=f"two_hands (seed {seed})",
        duration=4.0,
        fps=30.0,
        hands=(hands[0], hands[1]),
        cameras=head_camera(seed),
        elbows_world=_ELBOWS,
        props=(*blocks, mug),
        T_world_prop=placed,
        holds=tuple(holds),
    )


def _pick_up(
    side: Side, at: Vector, block: Prop, delay: float
) -> tuple[tuple[HandKey, ...], RigidTransform]:
    """Keys of a hand that takes a block, turns it in the air and puts it down nearby; the block.

    ``at``: the block's middle.
    """
    out = 1.0 if side == "right" else -1.0
    mirror = _vector(out, 1, 1)

    def facing(fingers: tuple[float, float, float], back: tuple[float, float, float]) -> Rotation:
        return hand_rotation(side, mirror * fingers, mirror * back)

    rest = facing((-0.25, 1.0, -0.10), (0.15, 0.0, 1.0))
    above = facing((-0.30, 0.93, -0.12), (0.25, 0.0, 1.0))
    grasp = pinch_from_above(side, np.zeros(10), above, block, at - _vector(0, 0, block.size[2]))
    held, wrist, above = grasp.held.angles, grasp.held.wrist, grasp.held.R
    off = wrist - OFF_M * grasp.approach
    reaching = bend(fingers_mcp_flex=12, fingers_pip_flex=16, thumb_cmc_spread=12)
    up = mirror * _vector(0.0, -0.02, 0.075)
    turn = rotations.exp(np.radians(34) * _vector(0.15, out * 0.9, out * 0.4))
    aside = mirror * _vector(0.02, -0.025, 0.0)
    home = mirror * _vector(0.20, -0.10, 0.06)
    keys = [
        (0.0, bend(), home, rest),
        (0.45 + delay, reaching, 0.5 * home + 0.5 * off + _vector(0, 0, 0.02), rest),
        (0.75 + delay, grasp.opened, off, above),
        (0.92 + delay, grasp.opened, grasp.before, above),
        (1.05 + delay, held, wrist, above),
        (1.15 + delay, held, wrist, above),
        (1.70 + delay, held, wrist + up, above),
        (2.20 + delay, held, wrist + up + mirror * _vector(0.006, 0.005, 0.012), turn @ above),
        (2.75 + delay, held, wrist + aside, above),
        (2.85 + delay, held, wrist + aside, above),
        (3.00 + delay, grasp.opened, grasp.before + aside, above),
        (3.20 + delay, grasp.opened, off + aside, above),
        (3.40 + delay, reaching, 0.5 * home + 0.5 * off + mirror * _vector(0.03, 0, 0.02), rest),
        (3.65 + delay, bend(), home + mirror * _vector(0.03, -0.01, 0.02), rest),
    ]  # fmt: skip
    return tuple(HandKey(*key) for key in keys), grasp.T_world_prop


def one_hand(seed: int = 0, side: Side = "right", occluder: bool = False) -> Script:
    """A hand sweeps over the table, closes and opens; with ``occluder`` it passes behind a card."""
    rng = np.random.default_rng(seed)
    out = 1.0 if side == "right" else -1.0
    mirror = _vector(out, 1, 1)
    loose = bend(fingers_mcp_flex=10, fingers_pip_flex=12, thumb_cmc_spread=10)
    closed = bend(fingers_mcp_flex=45, fingers_pip_flex=60, fingers_dip_flex=30, thumb_mcp_flex=25)
    gestures = (bend(), loose, closed, loose, bend())
    keys = []
    for i, (angles, x) in enumerate(zip(gestures, np.linspace(0.17, -0.06, 5), strict=True)):
        swing = rng.uniform(-1, 1, 4) * np.array([0.01, 0.015, 0.015, 0.12])
        turned = hand_rotation(
            side, mirror * (-0.2 + swing[3], 1.0, -0.1), mirror * (0.1, 0.0, 1.0)
        )
        keys.append(
            HandKey(0.5 * i, angles, mirror * (_vector(x, -0.02, 0.08) + swing[:3]), turned)
        )
    hands = (tuple(keys), ()) if side == "left" else ((), tuple(keys))
    # A card hangs half way between the camera and the middle of the sweep.
    eye, middle = _vector(0.0, -0.10, 0.47), mirror * _vector(0.045, 0.05, 0.08)
    card = Prop("card", "box", (0.016, 0.001, 0.045), (0.80, 0.82, 0.78))
    away = (middle - eye) / np.linalg.norm(middle - eye)
    place = frames.rigid(rotations.between(_vector(0, 1, 0), away), 0.5 * (eye + middle))
    return Script(
        name=f"one_hand (seed {seed}, {side}{', occluder' if occluder else ''})",
        duration=2.0,
        fps=30.0,
        hands=hands,
        cameras=head_camera(seed, 2.0),
        elbows_world=_ELBOWS,
        props=(card,) if occluder else (),
        T_world_prop={"card": place} if occluder else {},
    )


def write_video(path: Path, frames: Iterable[ImageRgb], fps: float, crf: int = 20) -> None:
    """Encode frames as h264. ``path`` is replaced only once the whole clip is there."""
    partial = path.with_name(path.name + ".partial")
    try:
        with av.open(str(partial), "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
            stream.pix_fmt = "yuv420p"
            stream.options = {"crf": str(crf), "preset": "slow"}
            for index, image in enumerate(frames):
                if index == 0:
                    stream.height, stream.width = image.shape[:2]
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    video, table = folder / "two_hands.mp4", folder / "two_hands_truth.parquet"
    script = two_hands(seed=0)
    clip = pose_clip(script, CAMERA)
    write_video(video, clip.frames(), script.fps)
    write_hand_motion(clip.truth, table, overwrite=True)
    print(f"{len(clip.truth)} frames: {video}\nground truth: {table}")


if __name__ == "__main__":
    main()
