"""Datasets of hands whose idle ends, gaps and blurred pictures are known by construction.

python tests/helpers/trim_samples.py FOLDER RULES: trim ``FOLDER/base/data``, killed at some steps
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import av
import cv2
import numpy as np

from acehand_core import motion_from_joints
from acehand_core.lerobot.dataset import create
from acehand_core.lerobot.format import FeatureSpec, video_feature
from acehand_core.lerobot.trim import trim_episodes
from acehand_core.lerobot.trim_rules import read_trim_rules
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.review.decisions import write_sidecars
from helpers import lerobot_samples as samples
from helpers.retarget_samples import moving_hands
from helpers.video_fixtures import write_video

SIDES = ("left", "right")
_AXES = {"hand": SIDES, "joint": tuple(f"j{i}" for i in range(21)), "axis": ("x", "y", "z")}
FEATURES = (
    video_feature(samples.EGO, samples.HEIGHT, samples.WIDTH),
    FeatureSpec("observation.state", "float32", (4,), samples.STATE),
    FeatureSpec("action", "float32", (4,), samples.STATE),
    FeatureSpec("observation.hand.joints_camera", "float32", (126,), tuple(map(str, range(126))),
                {"axes": {k: [*v] for k, v in _AXES.items()}}),
    FeatureSpec("observation.hand.confidence", "float32", (2,), SIDES),
    FeatureSpec("observation.hand.filled", "float32", (2,), SIDES),
    FeatureSpec("hand.valid", "bool", (2,), SIDES),
)  # fmt: skip
#: Metres a frame at 0.3 m/s.
STEP = 0.3 / samples.FPS


def columns(
    frames: int,
    moving: tuple[int, int],
    absent: Sequence[tuple[str, int, int]] = (),
    filled: Sequence[tuple[str, int, int]] = (),
    unsure: Sequence[tuple[str, int, int]] = (),
    sides: Sequence[str] = ("right",),
) -> dict[str, np.ndarray]:
    """Return one episode's columns.

    The hands of ``sides`` go along x at 0.3 m/s from frame ``moving[0]`` to ``moving[1]`` and keep
    still else; each of the other three is stretches of frames: (side, first, one after the last).
    """
    place = np.clip(np.arange(frames) - moving[0], 0, moving[1] - moving[0]) * STEP
    joints = np.zeros((frames, 2, 21, 3), np.float32)
    joints[..., 0] = place[:, None, None]
    valid = np.tile([side in sides for side in SIDES], (frames, 1))
    confidence, fills = 0.9 * valid, np.zeros((frames, 2))
    for side, start, stop in absent:
        valid[start:stop, SIDES.index(side)] = False
        confidence[start:stop, SIDES.index(side)] = 0
    for side, start, stop in filled:
        fills[start:stop, SIDES.index(side)] = 1
    for side, start, stop in unsure:
        confidence[start:stop, SIDES.index(side)] = 0.1
    state = np.random.default_rng(frames).normal(size=(frames + 1, 4)).astype(np.float32)
    return {
        "observation.state": state[:-1],
        "action": state[1:],
        "observation.hand.joints_camera": joints.reshape(frames, 126),
        "observation.hand.confidence": confidence.astype(np.float32),
        "observation.hand.filled": fills.astype(np.float32),
        "hand.valid": valid,
    }


#: Moves from frame 20 to 70 of 90, so it is fast from 18 to 72 (test_lerobot_trim.test_idle_ends);
#: both hands, the left one gone from 40 to 60 of 100; quiet throughout; sharp, then blurred.
EPISODES = [
    (columns(90, (20, 70)), "wave", ()),
    (columns(100, (0, 100), [("left", 40, 60)], sides=("left", "right")), "stir", ()),
    (columns(50, (0, 50)), "wave", ()),
    (columns(64, (0, 64)), "let go", [(30, 41)]),
]


def pictures(
    path: Path, frames: int, seed: int, blurred: Sequence[tuple[int, int]], codec: str
) -> Path:
    """Write squares of random greys that move, out of focus in some stretches.

    Every tenth frame is a key frame, with AV1 every second one, as lerobot encodes it.
    """
    tiles = np.random.default_rng(seed).integers(30, 220, (samples.HEIGHT // 4, samples.WIDTH // 4))
    scene = np.repeat(np.kron(tiles, np.ones((4, 4)))[..., None], 3, axis=2).astype(np.uint8)
    images = [np.roll(scene, k, axis=1) for k in range(frames)]
    for start, stop in blurred:
        images[start:stop] = [cv2.GaussianBlur(i, (0, 0), 4) for i in images[start:stop]]
    options = {"libx264": {"g": "10", "bf": "0"}, "libsvtav1": {"g": "2", "preset": "10"}}[codec]
    options["crf"] = "12"
    return write_video(path, images, fps=samples.FPS, codec=codec, options=options)


def write(
    root: Path,
    episodes: Sequence[tuple[Mapping[str, np.ndarray], str, Sequence]],
    codec: str = "libx264",
) -> Path:
    """Write a dataset; each episode is columns, task and blurred stretches."""
    with create(root, samples.FPS, FEATURES, samples.ROBOT) as writer:
        for number, (values, task, blurred) in enumerate(episodes):
            frames = len(values["hand.valid"])
            video = pictures(writer.scratch_video(samples.EGO), frames, number, blurred, codec)
            writer.add_episode(dict(values), task, {samples.EGO: video}, {"source": f"{number}"})
    for number in range(len(episodes)):
        folder = root / "acehand" / f"episode_{number:06d}"
        folder.mkdir(parents=True)
        motion = motion_from_joints(
            moving_hands(len(episodes[number][0]["hand.valid"])), fps=samples.FPS, frame="camera"
        )
        write_hand_motion(motion, folder / "hand_motion.parquet")
        (folder / "report.json").write_text(json.dumps({"frames": 1, "episode_index": number}))
        (folder / "contact_sheet.png").write_bytes(b"sheet %d" % number)
    return root


def decoded(path: Path) -> np.ndarray:
    """Return all frames (T, H, W) of a video, grey, decoded by PyAV."""
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="gray") for f in container.decode(video=0)])


def die_trimming(folder: Path, rules: Path) -> None:
    """Kill a process at steps of trimming ``base/data``; leaves ``folder/<step number>/data``."""
    for number, at in enumerate(DEATHS):
        root = folder / str(number) / "data"
        shutil.copytree(folder / "base" / "data", root)
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), at
            continue

        def step(name: str, at: str = at) -> None:
            if name == at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with samples.steps_to(step):
                trim_episodes(root, read_trim_rules(rules), write_sidecars)
        finally:
            os._exit(1)


#: Steps at which ``die_trimming`` kills; at the last one the new dataset stands.
DEATHS = ("begin", "cut episode 0", "write meta/info.json", "link the rest",
          "publish: set the old dataset aside", "publish: rename",
          "publish: remove the old dataset")  # fmt: skip

if __name__ == "__main__":
    die_trimming(Path(sys.argv[1]), Path(sys.argv[2]))
