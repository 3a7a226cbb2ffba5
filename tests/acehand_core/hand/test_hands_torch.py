"""Hands in torch against the numpy models, and rotations in torch."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acehand_core.geometry import rotations, rotations_torch
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.hand.mano import load_mano
from acehand_core.types import SIDES


def poses(seed: int = 0, rows: int = 6):
    rng = np.random.default_rng(seed)
    turns = rotations.exp(rng.normal(size=(rows, 2, 16, 3)) * 0.5)
    return turns[:, :, 0], turns[:, :, 1:], rng.normal(size=(2, 10))


def posed(hands: TorchHands, orient, fingers, betas) -> np.ndarray:
    tensors = (torch.tensor(value)[None] for value in (orient, fingers, betas))
    return hands.to(torch.float64).joints(*tensors)[0].numpy()


def test_the_default_hand_is_the_same_in_torch() -> None:
    orient, fingers, betas = poses()
    ours = posed(TorchHands.acehand(), orient, fingers, betas)
    for slot, side in enumerate(SIDES):
        theirs = CapsuleHand().joints(side, orient[:, slot], fingers[:, slot], betas[slot])
        np.testing.assert_allclose(ours[:, slot], theirs, atol=1e-7)


def test_mano_is_the_same_as_smplx(golden_folder) -> None:
    mano = load_mano(golden_folder / "mano_synthetic.npz", dtype="float64")
    orient, fingers, betas = poses(1)
    hands = TorchHands.mano(mano)
    ours = posed(hands, orient, fingers, betas)
    absolute = hands.to(torch.float64).absolute_pose(torch.tensor(fingers)[None])[0].numpy()
    for slot, side in enumerate(SIDES):
        theirs = mano.joints(side, orient[:, slot], absolute[:, slot], betas[slot])
        np.testing.assert_allclose(ours[:, slot], theirs, atol=1e-6)
        vectors = rotations.log(fingers[:, slot]).reshape(-1, 45)
        expected = mano.absolute_pose(side, vectors, flat_hand_mean=False)
        np.testing.assert_allclose(absolute[:, slot], expected, atol=1e-6)


def test_hands_are_differentiable() -> None:
    hands = TorchHands.acehand().to(torch.float64)
    orient, fingers, betas = (torch.tensor(v)[None] for v in poses(2, rows=1))
    for value in (orient, fingers, betas):
        value.requires_grad_(True)
    assert torch.autograd.gradcheck(hands.joints, (orient, fingers, betas))


# Rotations.


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3))
@example([0.0, 0.0, 0.0])
@example([1e-9, 0.0, 0.0])
@example([1e-5, -1e-5, 2e-5])
@example([0.0, torch.pi, 0.0])
@settings(max_examples=60, deadline=None)
def test_rotations_agree_with_numpy(vector) -> None:
    numpy_turn = rotations.exp(np.array(vector))
    turn = rotations_torch.exp(torch.tensor(vector, dtype=torch.float64))
    np.testing.assert_allclose(turn.numpy(), numpy_turn, atol=1e-12)
    back = rotations_torch.exp(rotations_torch.log(turn))
    np.testing.assert_allclose(back.numpy(), numpy_turn, atol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1e-7, 0.3, 2.5])
def test_gradients_of_rotations(scale) -> None:
    generator = torch.Generator().manual_seed(0)
    vector = scale * torch.nn.functional.normalize(
        torch.randn(4, 3, dtype=torch.float64, generator=generator), dim=-1
    )
    vector.requires_grad_(True)
    rotations_torch.log(rotations_torch.exp(vector)).sum().backward()
    torch.testing.assert_close(vector.grad, torch.ones_like(vector), rtol=0, atol=1e-5)


def test_six_numbers_are_two_columns() -> None:
    turn = rotations_torch.exp(torch.randn(5, 3, dtype=torch.float64))
    six = torch.cat([2 * turn[..., 0], turn[..., 1] + 0.3 * turn[..., 0]], dim=-1)
    torch.testing.assert_close(rotations_torch.from_6d(six), turn)
    numpy_six = rotations.to_6d(turn.numpy())
    torch.testing.assert_close(rotations_torch.from_6d(torch.tensor(numpy_six)), turn)
