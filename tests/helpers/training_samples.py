"""Made-up batches for tests of losses and training: hands with known poses before a pinhole."""

from __future__ import annotations

import dataclasses
import math

import cv2
import numpy as np
import torch

from acehand_core.ace.labelled.clips.schema import ClipInfo, StoreInfo
from acehand_core.ace.labelled.clips.store import ClipWriter
from acehand_core.ace.model.batch import PinholeBatch, Readout
from acehand_core.ace.training.losses import project
from acehand_core.ace.training.targets import Prediction, Targets
from acehand_core.geometry import rotations_torch
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance

HANDS = TorchHands.acehand()


def quiet(stage, done, total) -> None:
    """Take no notice of progress."""


def smoke(clips, run, *more) -> list[str]:
    """The overrides of a run of a few steps on a store."""
    return ["experiment=smoke", f"data.sources.synthetic.root={clips}", f"run={run}", *more]


def turns(generator, *shape, size=0.6, dtype=torch.float32):
    """Rotations with vectors of about ``size`` radians."""
    return rotations_torch.exp(size * torch.randn(*shape, 3, generator=generator, dtype=dtype))


def targets(seed=0, clips=2, frames=5, grid=(3, 4), dtype=torch.float32) -> Targets:
    """Both hands in view, moving at constant velocity, everything supervised."""
    g = torch.Generator().manual_seed(seed)
    hands = HANDS.to(dtype)
    orient = turns(g, clips, 1, 2, dtype=dtype).expand(-1, frames, -1, -1, -1).contiguous()
    pose = turns(g, clips, 1, 2, 15, size=0.3, dtype=dtype)
    pose = pose.expand(-1, frames, -1, -1, -1, -1).contiguous()
    betas = 0.5 * torch.randn(clips, 2, 10, generator=g, dtype=dtype)
    start = torch.tensor([[-0.1, 0.0, 0.6], [0.15, 0.02, 0.7]], dtype=dtype)
    speed = 0.004 * torch.randn(clips, 1, 2, 3, generator=g, dtype=dtype)
    time = torch.arange(frames, dtype=dtype).view(1, -1, 1, 1)
    canonical = hands.joints(orient, pose, betas)
    translation = start + speed * time - canonical[:, :, :, 0]
    joints = canonical + translation[..., None, :]
    size = torch.tensor([[128.0, 96.0]], dtype=dtype).expand(clips, 2)
    camera = PinholeBatch(size[:, :1].expand(-1, 2) * 0.8, size / 2, size)
    focal, centre = camera.focal / size, camera.centre / size
    anchors = project(joints, focal, centre)
    h, w = grid
    y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
    flat = torch.stack([x / w, y / h], 0).to(dtype)
    rays = (flat - centre.view(-1, 2, 1, 1)) / focal.view(-1, 2, 1, 1)
    rays = torch.nn.functional.normalize(torch.cat([rays, torch.ones_like(rays[:, :1])], 1), dim=1)
    yes = torch.ones(clips, dtype=torch.bool)
    both = torch.ones(clips, 2, dtype=torch.bool)
    there = torch.ones(clips, frames, 2, dtype=torch.bool)
    known = torch.ones(clips, frames, 2, 21, dtype=torch.bool)
    inside = ((anchors > 0) & (anchors < 1)).all(-1)
    return Targets(
        orient, pose, betas, translation, joints, anchors, there, known, inside,
        there.to(dtype), inside.any(-1).to(dtype), rays, camera,
        yes, both, yes, yes, yes, there, yes, yes, yes,
    )  # fmt: skip


def truth(t: Targets) -> Prediction:
    """The targets as a prediction."""
    canonical = t.joints - t.translation[..., None, :]
    depth = torch.log(t.translation[..., 2:].clamp(min=0.01))
    readout = Readout(
        t.global_orient, t.hand_pose, t.betas, t.anchors, t.joints - t.joints[..., :1, :],
        t.joints[..., 0, :], torch.cat([torch.zeros_like(t.translation[..., :2]), depth], -1),
        t.presence, t.visible, t.rays[:, :, None], torch.zeros(len(t.betas), 8),
    )  # fmt: skip
    size = t.camera.size
    valid = torch.ones(len(t.betas), dtype=torch.bool)
    return Prediction(
        readout, canonical, t.translation, t.camera.focal / size, t.camera.centre / size, valid
    )


def moved(p: Prediction, seed=1, size=0.1) -> Prediction:
    """A prediction some way off, whose every number asks for a gradient."""
    g = torch.Generator().manual_seed(seed)

    def off(value):
        noise = size * torch.randn(value.shape, generator=g, dtype=value.dtype)
        return (value + noise).detach().requires_grad_()

    r = p.readout
    values = {f.name: off(getattr(r, f.name)) for f in dataclasses.fields(r)}
    for name in ("presence", "visible"):
        noise = torch.rand(getattr(r, name).shape, generator=g)
        values[name] = (0.1 + 0.8 * noise).to(p.joints.dtype).requires_grad_()
    return Prediction(
        Readout(**values), off(p.joints), off(p.translation), off(p.fit_focal), off(p.fit_centre),
        p.fit_within,
    )  # fmt: skip


def camera(width=64, height=64) -> Camera:
    """A pinhole of about 64 degrees."""
    return Camera("pinhole", width, height, 0.8 * width, 0.8 * width, width / 2, height / 2)


def motion(seed=0, frames=90, view: Camera | None = None) -> HandMotion:
    """Two default hands waving before the camera; the left leaves the picture for a while."""
    view, g = view or camera(), torch.Generator().manual_seed(seed)
    time = torch.arange(frames).view(1, -1, 1) / 30
    swing = torch.randn(1, 1, 2, 3, generator=g) * 0.3
    vector = torch.tensor([0.3, -0.4, 1.2]) + swing * torch.sin(3 * time)[..., None]
    orient = rotations_torch.exp(vector.expand(1, frames, 2, 3))
    bend = 0.4 * torch.randn(1, 1, 2, 15, 3, generator=g)
    bend = bend * (0.6 + 0.4 * torch.sin(2 * time))[..., None, None]
    pose = rotations_torch.exp(bend.expand(1, frames, 2, 15, 3))
    betas = 0.3 * torch.randn(1, 2, 10, generator=g)
    place = torch.tensor([[-0.08, 0.0, 0.45], [0.1, 0.03, 0.5]]).expand(1, frames, 2, 3).clone()
    place[..., 0] += 0.04 * torch.sin(2 * math.pi * time / 2)
    place[:, frames // 3 : frames // 2, 0, 0] -= 0.8
    canonical = HANDS.joints(orient, pose, betas)
    translation = place - canonical[..., 0, :]
    joints = (canonical + translation[..., None, :])[0].double().numpy()
    image = view.project(joints)
    inside = view.contains(image)
    ones = np.ones((frames, 2))
    hands = (value[0].double().numpy() for value in (orient, pose, betas, translation))
    return HandMotion(
        np.arange(frames) * 33_333_333, 30.0, ones, inside.mean(-1), ones, ones > 0, ones < 0,
        *hands, joints, image, "acehand", Provenance("test", None, "test"), camera=view,
    )  # fmt: skip


def store(
    root, clips=2, frames=12, size=(64, 64), seed=0, name="synthetic", kind="video", view=None,
    made_by="test",
):  # fmt: skip
    """A store of clips whose pictures show the joints as coloured blobs; returns its folder."""
    view = view or camera(*size)
    writer = ClipWriter(root, StoreInfo(name, "train", made_by, "none"))
    for number in range(clips):
        hands = motion(seed + number, frames, view)
        images = []
        for points in hands.joints_image:
            image = np.full((size[1], size[0], 3), 60, np.uint8)
            for slot, colour in enumerate(((60, 160, 255), (255, 140, 60))):
                for u, v in points[slot]:
                    if np.isfinite([u, v]).all() and abs(u) < 1e4 and abs(v) < 1e4:
                        cv2.circle(image, (round(u), round(v)), 2, colour, -1)
            images.append(image)
        info = ClipInfo(
            id=f"clip{number}", dataset=name, split="train", kind=kind, frames=frames, fps=30.0,
            width=size[0], height=size[1], camera=view, hand_model="acehand",
        )  # fmt: skip
        writer.write(info, hands, images, quality="lossless")
    writer.write_index()
    return root
