"""Base poses: limits are kept, little is moved, and the hands stay together."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from acehand_core.geometry import rotations
from helpers.arm_samples import wandering
from helpers.retarget_samples import FPS
from retarget.solve import base
from retarget.solve.base import BaseLimits, smooth_bases


def accelerations(poses: np.ndarray, fps: float) -> tuple[np.ndarray, np.ndarray]:
    linear = np.linalg.norm(np.diff(poses[..., :3, 3], n=2, axis=0), axis=-1) * fps**2
    angular = []
    for hand in (0, 1):
        turns = Rotation.from_matrix(poses[:, hand, :3, :3])
        speed = (turns[1:] * turns[:-1].inv()).as_rotvec() * fps
        angular.append(np.linalg.norm(np.diff(speed, axis=0), axis=-1) * fps)
    return linear, np.stack(angular, axis=1)


def smoothed(poses: np.ndarray, active: np.ndarray | None = None, **limits: float) -> np.ndarray:
    there = np.ones(poses.shape[:2], bool) if active is None else active
    return smooth_bases(poses, there, there.astype(float), FPS, BaseLimits(**limits))


def test_a_slow_motion_is_left_alone() -> None:
    poses = wandering()
    out = smoothed(poses)
    assert np.linalg.norm((out - poses)[..., :3, 3], axis=-1).max() < 1e-3
    assert np.degrees(rotations.angle_between(out[..., :3, :3], poses[..., :3, :3])).max() < 0.5


@pytest.mark.parametrize("jump", [0.02, 0.3])
def test_accelerations_keep_their_limits(jump: float) -> None:
    poses = wandering(noise=0.004)
    poses[45:50, 1, :3, 3] += [jump, 0, 0]
    poses[45:50, 1, :3, :3] = rotations.exp(np.array([0, 10 * jump, 0])) @ poses[45:50, 1, :3, :3]
    before = accelerations(poses, FPS)
    assert before[0].max() > 10 and before[1].max() > 60
    out = smoothed(poses, acceleration=10.0, angular_acceleration=60.0)
    linear, angular = accelerations(out, FPS)
    assert linear.max() <= 10 * (1 + 1e-6)
    assert angular.max() <= 60 * 1.01  # linearised
    assert np.allclose(np.linalg.det(out[..., :3, :3]), 1)


def test_hands_keep_their_relative_pose() -> None:
    """A jitter of both hands alike is taken out of both alike; alone, each would go its own way."""
    poses = wandering(noise=0.004)
    quality = np.ones((len(poses), 2))
    quality[:, 1] = 0.1  # so that each hand alone would be smoothed differently
    active = np.ones((len(poses), 2), bool)

    def relative_error(together: float) -> float:
        limits = BaseLimits(acceleration=5.0, together=together)
        out = smooth_bases(poses, active, quality, FPS, limits)
        apart = out[:, 1, :3, 3] - out[:, 0, :3, 3] - (poses[:, 1, :3, 3] - poses[:, 0, :3, 3])
        return float(np.sqrt((apart**2).sum(-1).mean()))

    assert relative_error(30.0) < 2e-4 and relative_error(0.0) > 5 * relative_error(30.0)


def test_absent_hands_and_spans() -> None:
    poses = wandering(60, noise=0.004)
    active = np.ones((60, 2), bool)
    active[20:40, 0] = False
    active[:, 1] = False
    poses[40:, 0, :3, 3] += [1.0, 0, 0]
    out = smoothed(poses, active, acceleration=5.0)
    assert (out[20:40] == poses[20:40]).all() and (out[:, 1] == poses[:, 1]).all()
    assert np.linalg.norm((out - poses)[:, 0, :3, 3], axis=-1).max() < 0.05
    for stretch in (out[:20], out[40:]):
        assert accelerations(stretch, FPS)[0][:, 0].max() <= 5 * (1 + 1e-6)
    alone = smoothed(poses[:20], active[:20], acceleration=5.0)
    assert alone == pytest.approx(out[:20], abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_clips(count: int) -> None:
    poses = wandering(count)
    assert smoothed(poses) == pytest.approx(poses, abs=1e-3)
    assert (smoothed(poses, np.zeros((count, 2), bool)) == poses).all()


def test_chunks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    poses = wandering(200, noise=0.002)
    whole = smoothed(poses, acceleration=8.0)
    monkeypatch.setattr(base, "CHUNK_FRAMES", 100)
    chunked = smoothed(poses, acceleration=8.0)
    assert np.abs(whole - chunked)[..., :3, 3].max() < 1e-4
    assert np.abs(whole - chunked).max() < 1e-3
    linear, _ = accelerations(chunked, FPS)
    assert np.nanmax(linear) <= 8 * (1 + 1e-6)
