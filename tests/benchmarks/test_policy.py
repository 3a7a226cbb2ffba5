"""What the policy benchmarks compute without DexSuite."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from benchmarks.policy import act, learn
from benchmarks.policy import dexsuite_policy as policy
from benchmarks.policy.dexsuite_world import fault
from benchmarks.policy.replay import timed


def poses(count, seed=0):
    rng = np.random.default_rng(seed)
    out = np.tile(np.eye(4), (count, 1, 1))
    out[:, :3, :3] = Rotation.random(count, rng=rng).as_matrix()
    out[:, :3, 3] = rng.uniform(-1, 1, (count, 3))
    return out


@pytest.mark.parametrize("degrees", [0, 30, 44, 46, 100, -170])
def test_a_cube_has_the_frame_nearest_to_the_worlds(degrees):
    at = np.eye(4)[None].copy()
    at[0, :3, :3] = Rotation.from_euler("z", degrees, degrees=True).as_matrix()
    (frame,) = policy.object_frame(at)
    quarters = Rotation.from_matrix(frame.T @ at[0, :3, :3]).as_rotvec(degrees=True)[2] / 90
    assert abs(quarters - round(quarters)) < 1e-9
    assert abs(Rotation.from_matrix(frame).as_rotvec(degrees=True)[2]) <= 45


def test_commands_are_what_was_wanted():
    at, base = poses(5), poses(5, 1)
    frame, start = policy.object_frame(at), at[:, :3, 3]
    drive = np.random.default_rng(2).uniform(0, 1, (5, 6))
    again, driven = policy.commanded(frame, start, policy.wanted(frame, start, base, drive))
    assert np.allclose(again, base) and np.array_equal(driven, drive)


def test_what_the_network_sees_turns_with_the_cube():
    at, base, drive = poses(4), poses(4, 3), np.zeros((4, 6))
    at[:, :3, :3] = np.eye(3)
    turn = np.eye(4)
    turn[:3, :3] = Rotation.from_euler("z", 20, degrees=True).as_matrix()
    seen = [
        policy.observed(policy.object_frame(one), one[:, :3, 3], one[:, 2, 3], other, drive)
        for one, other in ((at, base), (turn @ at, turn @ base))
    ]
    assert np.allclose(*seen)


def test_the_network_is_torchs():
    torch.manual_seed(0)
    linears = [torch.nn.Linear(18, 8), torch.nn.Linear(8, 60)]
    layers = {"mean": np.ones(18), "spread": np.full(18, 2.0), "out_mean": np.full(60, 3.0),
              "out_spread": np.full(60, 4.0)}  # fmt: skip
    for k, linear in enumerate(linears):
        layers[f"weight{k}"] = linear.weight.detach().numpy()
        layers[f"bias{k}"] = linear.bias.detach().numpy()
    inputs = np.random.default_rng(0).normal(size=(7, 18))
    net = torch.nn.Sequential(linears[0], torch.nn.ReLU(), linears[1])
    expected = net(torch.as_tensor((inputs - 1) / 2, dtype=torch.float32)).detach().numpy()
    assert np.allclose(policy.network(layers, inputs), 3 + 4 * expected, atol=1e-5)


def test_disturbed_copies_still_lead_to_the_motion():
    base, drive = poses(6), np.random.default_rng(2).uniform(0, 1, (6, 6))
    frame, start = policy.object_frame(poses(1)), np.zeros((1, 3))
    now = [(base[k : k + 1], drive[k : k + 1]) for k in range(6)]
    seen = np.stack([policy.observed(frame, start, start[:, 2], *one) for one in now])
    commanded = np.stack([policy.wanted(frame, start, *one) for one in now])
    shown, asked = act.copies(seen, commanded)
    assert np.array_equal(shown[0], seen[:, 0]) and len(shown) == len(asked) > 1
    assert all(np.array_equal(one, commanded[:, 0]) for one in asked)
    off = shown[1:] - shown[0]
    assert 0.5 < off[..., :3].std() / learn._SHIFT_M < 1.5
    assert np.array_equal(off[..., 9:16], np.zeros_like(off[..., 9:16]))  # commands, rise
    # A hand that is higher over the cube is higher over the table.
    assert np.allclose(off[..., 16], off[..., 2])


def test_a_motion_starts_at_home_and_ends_at_its_end():
    home, path = np.eye(4), np.tile(np.eye(4), (31, 1, 1))
    path[:, 0, 3] = np.linspace(0.5, 0.8, 31)  # a second at 30 Hz
    commands = np.linspace(0, 1, 31)[:, None] * np.ones(6)
    for pace in (1.0, 0.5):
        bases, driven = timed(home, path, commands, pace)
        assert np.allclose(bases[0], home) and np.allclose(bases[-1], path[-1])
        assert np.allclose(driven[-1], commands[-1]) and len(bases) == len(driven)
        # 20 Hz: 0.3 m in a second of the human's.
        assert np.diff(bases[-30:, 0, 3]).max() == pytest.approx(0.3 * pace / 20)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([[0, 0, 0], [0, 0, 0.001]], "not touched"),
        ([[0, 0, 0], [0.05, 0, 0.005]], "pushed away"),
        ([[0, 0, 0], [0.01, 0, 0.005]], "not lifted"),
        ([[0, 0, 0], [0, 0, 0.1], [0, 0, 0.01]], "dropped"),
        ([[0, 0, 0], [0, 0, 0.1]], "off the goal"),
    ],
)
def test_failures_have_a_kind(path, expected):
    assert fault(np.array(path, float)) == expected
