"""A network that reads the time off the picture, so that every answer is known exactly.

A frame's colours are its number and on which side of the picture its left edge is. The fake
encoder puts that into latents (causally, one per four frames), the fake model turns it into
readouts of a known motion of the default hand in front of a known pinhole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from acehand_core.ace.model.batch import Readout
from acehand_core.ace.model.config import ModelConfig
from acehand_core.ace.model.inference.loading import WeightsRecord
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.motion import Recording

SIZE = (64, 32)
CAMERA = Camera("pinhole", *SIZE, 40.0, 42.0, 31.0, 17.0)
WEIGHTS = WeightsRecord("fake", "ab" * 32, ("fake licence",))
BETAS = np.random.default_rng(5).normal(size=(2, 10)) * 0.5
_RATE = 30.0


class Pictures:
    """Frames whose colours are their time in 1/30 s, with a mark on the left."""

    def __init__(self, seconds, size=SIZE):
        self.ticks = np.round(np.asarray(seconds) * _RATE * 8).astype(int)
        self.size, self.reads = size, 0

    def __len__(self):
        return len(self.ticks)

    def at(self, index):
        width, height = self.size
        image = np.zeros((height, width, 3), np.uint8)
        image[..., 0], image[..., 1] = divmod(int(self.ticks[index]), 256)
        image[:, : width // 2, 2] = 255
        return image

    def read(self, start, stop):
        assert 0 <= start <= stop <= len(self)
        for index in range(start, stop):
            self.reads += 1
            yield self.at(index)


def recording(count=50, fps=30.0, camera=CAMERA, seconds=None, **changes) -> Recording:
    seconds = np.arange(count) / fps if seconds is None else seconds
    return replace(
        Recording(
            source="fake.mp4",
            sha256="cd" * 32,
            timestamps_ns=np.round(np.asarray(seconds) * 1e9).astype(np.int64),
            fps=fps,
            width=SIZE[0],
            height=SIZE[1],
            frames=Pictures(seconds),
            camera=camera,
        ),
        **changes,
    )


class FakeStream:
    def __init__(self):
        self._frames, self._made = [], 0

    def push(self, frames):
        height, width = frames.shape[1:3]
        middle = frames[:, height // 2, width // 2].astype(float)
        self._frames += list((middle[:, 0] * 256 + middle[:, 1]) / 8)
        self._mirrored = frames[0, height // 2, width // 4, 2] < 128
        ready = 1 + (len(self._frames) - 1) // 4
        out = torch.zeros(48, ready - self._made, height // 16, width // 16)
        # A latent stands for its group's last frame.
        for row, latent in enumerate(range(self._made, ready)):
            out[0, row] = self._frames[4 * latent]
            out[1, row] = float(self._mirrored)
            # As the VAE's, latents of a stream that starts late are wrong at first.
            out[2, row] = float(self._frames[0] > 0 and latent < 28)
        self._shape, self._made = out.shape, ready
        return out

    def finish(self):
        return torch.zeros(self._shape[0], 0, *self._shape[2:])


class FakeEncoder:
    def stream(self):
        return FakeStream()


@dataclass
class FakeModel:
    """``presence(t)`` and ``visible(t)`` give (N, 2); ``distort(readout, start)`` spoils a clip."""

    config: ModelConfig = field(default_factory=ModelConfig)
    presence: object = None
    visible: object = None
    distort: object = None
    calls: int = 0
    camera: Camera = CAMERA

    def __call__(self, batch):
        rows = []
        for clip in batch.latents:
            self.calls += 1
            assert not clip[2].any(), "a window has latents that are not warmed up"
            known = clip[0, :, 0, 0].double().numpy()
            times = np.interp(np.arange(4 * (len(known) - 1) + 1), 4 * np.arange(len(known)), known)
            readout = self.read(times, bool(clip[1, 0, 0, 0]), batch.latents.shape[-2:])
            rows.append(readout if self.distort is None else self.distort(readout, known[0]))
        names = Readout.__dataclass_fields__
        return Readout(**{n: torch.cat([getattr(r, n) for r in rows]) for n in names})

    def read(self, times, mirrored, cells):
        ones = np.ones((len(times), 2))
        presence = ones if self.presence is None else self.presence(times, mirrored)
        visible = ones if self.visible is None else self.visible(times)
        truth = motion(times)
        joints = truth["joints"]
        pixels = self.camera.project(joints) / SIZE
        depth = np.log(truth["translation"][..., 2:])
        if mirrored:
            pixels = pixels[:, ::-1] * [-1, 1] + [1, 0]
            visible = visible[:, ::-1]
        h, w = (n // 2 for n in cells)
        clip = {
            "global_orient": truth["orient"],
            "hand_pose": truth["pose"],
            "anchors": pixels,
            "joints_relative": joints - joints[:, :, :1],
            "wrist": joints[:, :, 0],
            "camera": np.concatenate([pixels[:, :, 0] * 2 - 1, depth], axis=-1),
            "presence": presence,
            "visible": visible,
        }
        tensors = {n: torch.tensor(v[None].copy(), dtype=torch.float32) for n, v in clip.items()}
        return Readout(
            **tensors,
            betas=torch.tensor(BETAS[None], dtype=torch.float32),
            ray_map=ray_map(self.camera, h, w, (len(times) - 1) // 4 + 1),
            shape_token=torch.zeros(1, 4),
        )


def ray_map(camera, h, w, latents):
    """Rays of the tokens' centres."""
    x, y = (np.arange(w) + 0.5) / w * SIZE[0], (np.arange(h) + 0.5) / h * SIZE[1]
    bearing = np.stack(np.meshgrid((x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy))
    rays = np.concatenate([bearing, np.ones((1, h, w))])
    return torch.tensor(rays[None, :, None], dtype=torch.float32).repeat(1, 1, latents, 1, 1)


def motion(times, betas=BETAS):
    """Return rotations, translation and joints of both hands at times in 1/30 s."""
    t = np.asarray(times, float)[:, None] / 30.0
    phase = t + np.array([0.0, 1.3])
    turn = np.stack([np.sin(phase), 0.5 * np.cos(1.7 * phase), 0.3 * np.sin(2 * phase)], axis=-1)
    curl = np.zeros((len(t), 2, 15, 3))
    curl[..., 2] = 0.4 * np.sin(phase)[..., None] * np.array([1, -1])[:, None]
    x = 0.1 * np.sin(0.7 * phase) + np.array([-0.12, 0.12])
    place = np.stack([x - 0.1, 0.03 * np.cos(phase), 0.6 + 0.05 * np.sin(phase)], axis=-1)
    orient, pose = rotations.exp(turn), rotations.exp(curl)
    joints = (
        HANDS.joints(
            torch.tensor(orient[None], dtype=torch.float32),
            torch.tensor(pose[None], dtype=torch.float32),
            torch.tensor(betas[None], dtype=torch.float32),
        )[0]
        .double()
        .numpy()
    )
    joints = joints + place[:, :, None]
    return {"orient": orient, "pose": pose, "translation": place, "joints": joints}


HANDS = TorchHands.acehand()
