"""Full rigid PnP in torch: exact recovery, the minimum it claims, gradients, gates, symmetry."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.autograd import gradcheck

from acehand_core.ace.model.pnp import RigidSettings, calibrated_bearings, mixed_pnp, rigid_pnp
from helpers import solver_reference as slow
from helpers.fake_hands import right_hands

SIZE, FOCAL, CENTRE = (672.0, 480.0), 520.0, (336.0, 240.0)
#: Evidence alone: no prior, no robust weights.
BARE = RigidSettings(depth_sigma=np.inf, robust=np.inf, size_sigma=1e-4)


class Scene:
    """Hands whose predictions are off by given standard deviations."""

    def __init__(self, seed, frames=20, depth=0.1, anchor=0.0, joint=0.0, size=0.0,
                 outliers=0.0, wrist=0.0):  # fmt: skip
        rng = np.random.default_rng(seed)
        count = 2 * frames
        joints = right_hands(rng, count)
        z = rng.uniform(0.3, 0.7, count)
        side = rng.uniform(-0.25, 0.25, (count, 2)) * z[:, None]
        place = np.concatenate([side, z[:, None]], axis=1)
        points = joints + place[:, None]
        pixels = points[..., :2] / points[..., 2:] * FOCAL + CENTRE
        pixels += rng.normal(0, anchor, pixels.shape)
        pixels += (rng.random((count, 21, 1)) < outliers) * rng.normal(0, 60, pixels.shape)
        guess = joints * (1 + rng.normal(0, size, (count, 1, 1)))
        guess += rng.normal(0, joint, guess.shape)
        guess = guess - guess[:, :1]
        off = rng.normal(0, wrist, (count, 1, 3))  # a canonical wrist that is not the origin

        def t(value, *shape):
            return torch.tensor(value.reshape(1, frames, 2, *shape))

        self.joints, self.place = t(guess + off, 21, 3), t(place - off[:, 0], 3)
        self.true_joints = t(points, 21, 3)
        self.log_depth = t(np.log(z - off[:, 0, 2]) + rng.normal(0, depth, count))
        self.anchors = t(pixels / SIZE, 21, 2)

    def bearings(self, anchors=None):
        anchors = self.anchors if anchors is None else anchors
        rows = [torch.tensor([v], dtype=anchors.dtype) for v in ((FOCAL, FOCAL), CENTRE, SIZE)]
        return calibrated_bearings(anchors, torch.zeros_like(anchors[..., 0, :]), *rows)

    def start(self):
        return mixed_pnp(self.joints, self.log_depth, self.bearings(), "paper")

    def solve(self, settings=None):
        settings = settings or RigidSettings()
        return rigid_pnp(self.joints, self.log_depth, self.bearings(), self.start(), settings)

    def error_mm(self, placement):
        return 1000 * (placement.translation - self.place).norm(dim=-1)


def test_exact_evidence_gives_the_exact_place_from_a_wrong_depth():
    scene = Scene(0, frames=40, depth=0.2, wrist=0.02)
    found = scene.solve(BARE)
    good = found.votes.sum(-1) >= 12
    assert good.float().mean() > 0.9 and found.accepted[good].all()
    assert (found.translation - scene.place)[good].abs().max() < 1e-6
    placed = scene.joints + found.translation[..., None, :]
    assert (placed - scene.true_joints)[good].abs().max() < 1e-5


def test_float32_is_enough():
    scene = Scene(2, anchor=4.0, joint=0.004)
    expected = scene.solve()
    for name in ("joints", "log_depth", "anchors"):
        setattr(scene, name, getattr(scene, name).float())
    found = scene.solve()
    assert found.translation.dtype == torch.float32
    assert (found.translation - expected.translation).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("noise", "ratio"),
    [
        ({"depth": 0.1, "anchor": 3.0, "joint": 0.003}, 0.45),
        ({"depth": 0.1, "anchor": 5.0, "joint": 0.004, "size": 0.03}, 0.65),
        ({"depth": 0.2, "anchor": 5.0, "joint": 0.004, "size": 0.03}, 0.45),
        ({"depth": 0.1, "anchor": 5.0, "joint": 0.004, "outliers": 0.1}, 0.6),
    ],
)
def test_a_wrong_depth_is_put_right(noise, ratio):
    """Against mixed PnP, which keeps the predicted depth."""
    scene = Scene(3, frames=150, **noise)
    mixed, rigid = scene.error_mm(scene.start()), scene.error_mm(scene.solve())
    assert rigid.mean() < ratio * mixed.mean()


def test_it_ends_at_the_minimum_of_the_twins_cost():
    settings = RigidSettings(steps=40)
    scene = Scene(6, frames=3, anchor=5.0, joint=0.006, outliers=0.1, wrist=0.02)
    start, found = scene.start(), scene.solve(settings)
    assert found.accepted.all()
    for at in np.ndindex(1, 3, 2):
        given = (
            scene.joints[at].numpy(), float(scene.log_depth[at]),
            scene.bearings().joints[at].numpy(), torch.nonzero(found.votes[at])[:, 0].tolist(),
            FOCAL, float(start.solved[at][2]), settings,
        )  # fmt: skip
        depth = found.translation[at][2]
        mine = np.concatenate(
            [found.translation[at][:2] / depth, [depth.log()], [found.size[at].log()]]
        )
        there = slow.rigid_cost(mine, *given)
        best = minimize(slow.rigid_cost, mine, given, method="BFGS", options={"gtol": 1e-8})
        assert there - best.fun < 1e-6
        np.testing.assert_allclose(best.x, mine, atol=2e-4)


def test_refused_rows_keep_the_start():
    """Too few votes; a hand through the lens; anchors of something else. The rest is not moved."""
    scene = Scene(9, frames=4, depth=0.02)
    clean = scene.solve()
    scene.anchors[0, 0, 0, 5:] = 1.5
    scene.joints[0, 1, 0, 4:8, 2] -= 0.9  # behind the camera: without a vote
    scene.anchors[0, 2, 0] = scene.anchors[0, 2, 0].flip(0).flip(1)
    scene.anchors[0, 3, 1] = 2.0
    start, found = scene.start(), scene.solve()
    refused = torch.tensor([[[True, False], [False, False], [True, False], [False, True]]])
    assert torch.equal(found.accepted, ~refused)
    assert torch.equal(found.translation[refused], start.translation[refused])
    assert (found.size[refused] == 1).all() and (found.votes[0, 1, 0].sum() == 17)
    untouched = torch.tensor([[False, True], [False, True], [False, True], [True, False]])[None]
    assert (found.translation - clean.translation)[untouched].abs().max() < 2e-3


def test_a_joint_that_ends_too_near_refuses_the_row():
    """The anchors halve the depth; a finger on the axis, which any depth fits, ends at the lens."""
    scene = Scene(10, frames=4, depth=0.0)
    place = torch.tensor([0.0, 0.0, 0.13], dtype=torch.float64)
    scene.joints = scene.joints * torch.tensor([0.8, 0.8, 0.2])
    scene.joints[..., 4, :2], scene.joints[..., 4, 2] = 0.0, -0.10
    scene.log_depth[:] = np.log(0.24)
    points = scene.joints + place
    pixels = points[..., :2] / points[..., 2:] * FOCAL + torch.tensor(CENTRE)
    scene.anchors = pixels / torch.tensor(SIZE)
    loose = dataclasses.replace(BARE, joint_sigma_m=0.0)
    start, found = scene.start(), scene.solve(loose)
    assert start.votes[..., 4].all() and (found.rms < 1e-3).all()
    assert not found.accepted.any()
    assert torch.equal(found.translation, start.translation)
    scene.anchors[..., 4, :] = 2.0  # without that finger nothing is wrong
    found = scene.solve(loose)
    assert found.accepted.float().mean() > 0.8
    assert (found.translation - place)[found.accepted].abs().max() < 1e-5


@pytest.mark.parametrize("steps", [1, 8])
def test_gradients(steps):
    """Through every step, in accepted and refused rows, unconverged and converged."""
    scene = Scene(11, frames=2, depth=0.1, anchor=4.0, joint=0.005)
    scene.anchors[0, 1, 1, 3:] += 0.6  # leaves too few votes
    scene.anchors[0, 0, 0, 7] = 0.99  # one without a vote
    inputs = [x.clone().requires_grad_() for x in (scene.joints, scene.log_depth, scene.anchors)]

    def solve(joints, log_depth, anchors):
        scene.joints, scene.log_depth, scene.anchors = joints, log_depth, anchors
        return scene.solve(RigidSettings(steps=steps))

    def values(*x):
        found = solve(*x)
        return found.translation, found.size

    assert solve(*inputs).accepted.reshape(-1).tolist() == [True, True, True, False]
    assert gradcheck(values, inputs, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)
    values(*inputs)[0][0, 1, 1].sum().backward()
    assert inputs[0].grad[0, 0].abs().max() == 0  # another frame
    assert all(torch.isfinite(x.grad).all() for x in inputs)
