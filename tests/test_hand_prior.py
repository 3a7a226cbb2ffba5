"""The network of bone directions: its NumPy form, what it is told, and how it enters the fit."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation, landmark_fit
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.landmark_fit import Evidence
from acehand_core.hand.skeleton import BONES
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import prior
from acehand_core.trackers.mediapipe.detector import Detection
from acehand_core.trackers.mediapipe.reconstruct import reconstruct
from acehand_core.types import SIDES, Side

ROOT = Path(__file__).resolve().parents[1]
PARENTS, CHILDREN = (list(column) for column in zip(*BONES, strict=True))
STILL = np.tile(np.eye(3), (30, 1, 1))
SEEN = np.ones(30, bool)


def opening_hand(side: str = "right") -> np.ndarray:
    """A hand that opens while it turns, 0.5 m away and off the axis: (30, 21, 3), camera frame."""
    share = np.linspace(0, 1, 30)[:, None]
    low, high = articulation.limits()
    angles = articulation.comfortable() + (1 - share) * 0.5 * (high - articulation.comfortable())
    rest = CapsuleHand().rest_keypoints("right", np.zeros(10))
    points, _ = articulation.keypoints_with_jacobian(np.clip(angles, low, high), "right", rest)
    R = rotations.exp(np.array([1.2, 0.4, 0.3]) + share * [0.0, 0.5, 0.2])
    joints = points @ np.swapaxes(R, 1, 2) + [0.12, 0.05, 0.5]
    return joints if side == "right" else joints * articulation.MIRROR


def bones_of(joints: np.ndarray) -> np.ndarray:
    bones = joints[:, CHILDREN] - joints[:, PARENTS]
    return bones / np.linalg.norm(bones, axis=-1, keepdims=True)


def degrees(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.degrees(np.arccos(np.clip(np.sum(a * b, axis=-1), -1, 1)))


def test_directions_of_a_hand_from_its_projection() -> None:
    joints = opening_hand()
    bearing = joints[..., :2] / joints[..., 2:]
    found = prior.directions(bearing, None, SEEN, STILL, "right")
    assert degrees(found.direction, bones_of(joints)).mean() < 20
    assert np.allclose(np.linalg.norm(found.direction, axis=-1), 1)


def test_the_left_hand_is_the_right_one_in_a_mirror() -> None:
    left, right = opening_hand("left"), opening_hand()
    turns = rotations.exp(np.linspace(0, 0.4, 30)[:, None] * [0.1, 1.0, -0.3])
    M = np.diag([-1.0, 1.0, 1.0])
    of_right = prior.directions(right[..., :2] / right[..., 2:], None, SEEN, turns, "right")
    of_left = prior.directions(left[..., :2] / left[..., 2:], None, SEEN, M @ turns @ M, "left")
    np.testing.assert_allclose(of_left.direction, of_right.direction * [-1, 1, 1], atol=1e-6)


def test_what_is_told_does_not_depend_on_where_in_the_picture_the_hand_is() -> None:
    # A camera that is turned sees the same hand elsewhere; its own axes lie about the hand's ray.
    joints = opening_hand()
    aside = joints @ rotations.exp(np.array([0.0, 0.35, 0.0])).T
    told = [prior.features(j[..., :2] / j[..., 2:], None, SEEN, STILL)[0] for j in (joints, aside)]
    np.testing.assert_allclose(told[0][:, 65], told[1][:, 65], atol=0.02)
    middle = [t[:, :42].reshape(30, 21, 2) for t in told]
    # The ray's axes may be turned about the ray.
    lengths = [np.linalg.norm(m, axis=-1) for m in middle]
    np.testing.assert_allclose(lengths[0], lengths[1], atol=0.02)


def test_frames_that_are_not_known_are_not_looked_at() -> None:
    bearing = opening_hand()[..., :2] / opening_hand()[..., 2:]
    known = SEEN.copy()
    known[10:16] = False
    other = bearing.copy()
    other[10:16] = np.nan
    for sigma in (None, np.full((30, 21), 0.01)):
        both = [prior.directions(b, sigma, known, STILL, "right") for b in (bearing, other)]
        np.testing.assert_array_equal(both[0].direction, both[1].direction)
        assert np.isfinite(both[1].sigma).all()


def test_merged_evidence_is_the_sum_of_both() -> None:
    rng = np.random.default_rng(3)
    world, own, bone = (rng.normal(size=(5, 20, 3)) for _ in range(3))
    world, own = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (world, own))
    sigma = rng.uniform(0.1, 0.6, (5, 20))
    evidence = Evidence(rng.normal(size=(5, 21, 2)), world)
    both = prior.merged(evidence, prior.Directions(own, sigma))
    assert both.direction_sigma is not None

    def cost(v: np.ndarray, at: np.ndarray, s: np.ndarray) -> np.ndarray:
        return np.sum((v - at) ** 2, axis=-1) / s**2

    first = landmark_fit.DIRECTION_SIGMA["beside pixels"] * np.ones((5, 20))
    wide = prior.SIGMA_FACTOR * sigma
    difference = [
        cost(b, world, first) + cost(b, own, wide) - cost(b, both.direction, both.direction_sigma)
        for b in (bone, bone + 0.3)
    ]
    np.testing.assert_allclose(*difference)


def test_the_fit_follows_directions_as_well_as_they_are_known() -> None:
    joints = opening_hand()
    rest = CapsuleHand().rest_keypoints("right", np.zeros(10))
    bearing, true = joints[..., :2] / joints[..., 2:], bones_of(joints)
    wrong = true @ rotations.exp(np.array([0.5, 0.0, 0.0]))
    off = []
    for sigma in (0.05, 1.0, 20.0):
        evidence = Evidence(bearing, wrong, direction_sigma=np.full((30, 20), sigma))
        pose = landmark_fit.articulate(replace(evidence, direction=true), "right", rest)
        pose = replace(pose, wrist=joints[:, 0])
        fitted = landmark_fit.refine(pose, evidence, "right", rest)
        off.append(degrees(bones_of(fitted.keypoints("right", rest)), true).mean())
    assert off[0] > off[1] > off[2]


@pytest.mark.parametrize("side", SIDES)
def test_a_hand_whose_3d_landmarks_are_flat_comes_out_better(side: Side) -> None:
    joints = opening_hand(side)
    camera = Camera.nominal(640, 480)
    pixels = camera.project(joints) + np.random.default_rng(0).normal(0, 4.0, (30, 21, 2))
    flat = (joints - joints.mean(1, keepdims=True)) * [1, 1, 0.3]
    p_right = 1.0 if side == "right" else 0.0
    spread = np.tile(np.eye(2), (21, 1, 1))
    hands: list[Detection | None] = [
        Detection(p, w, p_right, "forward", covariance=spread)
        for p, w in zip(pixels, flat, strict=True)
    ]
    hands[12:16] = [None] * 4
    times = np.arange(30) * 33_333_333
    off = {}
    for chosen in ("off", "on"):
        settings = TrackerSettings(hand_length_m=0.187, palm_calibration=0.0, prior=chosen)
        track = reconstruct(hands, side, camera, times, settings)
        assert track.observed.sum() == 26 and track.filled.sum() == 4
        relative = track.joints - track.joints[:, :1] - (joints - joints[:, :1])
        off[chosen] = 1e3 * np.linalg.norm(relative, axis=-1).mean()
    assert off["on"] < 0.85 * off["off"]


def test_the_weights_are_those_that_the_card_names() -> None:
    path = Path(prior.__file__).parent / "assets" / "hand_prior.npz"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest in (ROOT / "docs" / "hand_prior.md").read_text("utf-8")
    assert path.stat().st_size < 5e6
    assert sum(value.size for value in prior.weights().values()) < 1.2e6


class TestTraining:
    """The recipe, on a handful of motions."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("omegaconf")

    def test_the_network_in_torch_is_the_one_in_numpy(self) -> None:
        import torch

        from acehand_core.training.hand_prior.network import Network

        network = Network()
        network.load_state_dict({k: torch.from_numpy(v) for k, v in prior.weights().items()})
        told = np.random.default_rng(0).normal(size=(40, prior.FEATURES))
        with torch.no_grad():
            direction, log_sigma = network(torch.from_numpy(told[None].astype(np.float32)))
        ours = prior.answer(told, prior.weights())
        np.testing.assert_allclose(ours[0], direction[0].numpy(), atol=1e-4)
        np.testing.assert_allclose(ours[1], log_sigma[0].exp().numpy(), rtol=1e-3)

    def test_a_roll_turns_what_is_told_as_a_rolled_camera_would(self) -> None:
        import torch

        from acehand_core.training.hand_prior.network import rolled

        joints = opening_hand() - [0.12, 0.05, 0.0]  # about the axis, where a roll keeps the ray
        turns = rotations.exp(np.linspace(0, 0.4, 30)[:, None] * [0.2, 0.6, 0.0])
        roll = rotations.exp(np.array([0.0, 0.0, 0.7]))
        told, true = [], []
        for R in (np.eye(3), roll):
            seen = joints @ R.T
            found, R_camera_ray = prior.features(
                seen[..., :2] / seen[..., 2:], None, SEEN, turns @ R.T
            )
            told.append(found)
            true.append(bones_of(seen) @ R_camera_ray)
        ours = rolled(
            torch.from_numpy(told[0][None]), torch.from_numpy(true[0][None]),
            torch.tensor([0.7], dtype=torch.float64),
        )  # fmt: skip
        np.testing.assert_allclose(ours[0][0].numpy(), told[1], atol=1e-6)
        np.testing.assert_allclose(ours[1][0].numpy(), true[1], atol=1e-6)

    @pytest.mark.slow
    def test_a_training_goes_on_where_it_was_and_refuses_other_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from acehand_core.errors import InputError
        from acehand_core.training.hand_prior import main
        from acehand_core.training.hand_prior.main import settings_of, train

        small = ["clips=1", "random_motions=3", "batches=2", "uses=2", "batch=4", "frames=16"]
        whole = train(settings_of([*small, "rounds=2", f"run={tmp_path / 'whole'}"]))

        def interrupted(*given: Any) -> None:
            if given[3] == 1:
                raise KeyboardInterrupt
            a_round(*given)

        a_round = main._round
        parts = settings_of([*small, "rounds=2", f"run={tmp_path / 'parts'}"])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(main, "_round", interrupted)
            train(parts)
        assert train(parts)["sha256"] == whole["sha256"]
        written = json.loads((tmp_path / "parts" / "result.json").read_text("utf-8"))
        assert [row["round"] for row in written["rounds"]] == [0, 1]
        with pytest.raises(InputError, match="other settings"):
            train(settings_of([*small, "rounds=3", f"run={tmp_path / 'whole'}"]))
        with pytest.raises(InputError, match=re.escape("frames is 500; valid: 1 to 120")):
            settings_of(["frames=500"])
