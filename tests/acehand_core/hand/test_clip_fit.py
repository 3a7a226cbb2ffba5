"""All frames of a hand together: hands that are known, noise of known size, and linear algebra."""

import numpy as np
import pytest
import scipy.optimize

from acehand_core.geometry import rotations
from acehand_core.hand import articulation, clip_fit, landmark_fit
from acehand_core.hand import evidence as evidence_module
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.clip_fit import HalfGain, fit_clip, joint_slopes
from acehand_core.hand.evidence import Evidence, Pose
from helpers.fake_hands import exact_evidence

HAND = CapsuleHand()
REST = HAND.rest_keypoints("right", np.zeros(10))
CALM = HalfGain(bearing=8.0, depth=2.0, orient=4.0, angle=4.0)
FREE = HalfGain(bearing=300.0, depth=300.0, orient=300.0, angle=300.0)


def moving(count=40, fps=30.0):
    """A hand that turns, moves and bends slowly."""
    t = (np.arange(count) / fps)[:, None]
    rest = articulation.comfortable()
    angles = rest + 0.15 * np.sin(2 * t + 0.7 * np.arange(22))
    orient = rotations.exp(np.sin(1.5 * t) * np.array([0.3, 0.4, 0.2])) @ rotations.exp(
        np.array([-1.2, 0.3, 0.2])
    )
    wrist = np.concatenate([0.1 * np.sin(t), 0.05 * np.cos(t), 0.5 + 0.03 * np.sin(t)], axis=1)
    pose = Pose(orient, angles, wrist)
    return pose, pose.keypoints("right", REST), t[:, 0]


def evidence_of(keypoints, rng=None, pixels=0.0, directions=0.0):
    seen = exact_evidence(keypoints)
    if rng is None:
        return seen
    bearing = seen.bearing + pixels * seen.scale[:, None, None] * rng.normal(
        size=seen.bearing.shape
    )
    return Evidence(bearing, seen.direction + directions * rng.normal(size=seen.direction.shape))


def together(pose, evidence, seconds, half_gain=CALM, trust=None, turns=None, **options):
    count = len(seconds)
    trust = np.ones(count) if trust is None else trust
    turns = np.tile(np.eye(3), (count, 1, 1)) if turns is None else turns
    return fit_clip(pose, evidence, "right", REST, seconds, turns, trust, half_gain, **options)


def test_a_slow_hand_comes_back_and_noise_does_not():
    truth, keypoints, seconds = moving()
    evidence = evidence_of(keypoints, np.random.default_rng(0), pixels=0.03, directions=0.3)
    rough = landmark_fit.refine(truth, evidence, "right", REST, iterations=30)
    # Where nothing is halved nothing is gained: each frame's own landmarks decide.
    poses = (rough, *(together(rough, evidence, seconds, gain).pose for gain in (CALM, FREE)))
    alone, calm, same = (
        1e3 * np.linalg.norm(pose.keypoints("right", REST) - keypoints, axis=-1) for pose in poses
    )
    assert np.median(calm) < 0.6 * np.median(alone)
    np.testing.assert_allclose(same, alone, atol=0.5)


def test_a_frame_that_is_not_trusted_is_as_its_neighbours():
    truth, keypoints, seconds = moving()
    wrong = keypoints.copy()
    wrong[20] = wrong[20, 0] + (wrong[20] - wrong[20, 0]) @ rotations.exp(np.array([1.0, 0.5, 0.0]))
    evidence = evidence_of(wrong)
    pose = landmark_fit.refine(truth, evidence, "right", REST)
    trust = np.ones(len(seconds))
    turned = []
    for trust[20] in (1.0, 1e-4):
        found = together(pose, evidence, seconds, trust=trust, iterations=30).pose
        angle = rotations.angle_between(found.global_orient[20:21], truth.global_orient[20:21])
        turned.append(np.degrees(angle[0]))
    assert turned[1] < 5 < turned[0]


def test_what_is_smooth_in_the_room_stays_so_though_the_camera_shakes():
    """The camera turns to and fro by 8 degrees at 7 Hz; the hand moves slowly in the room."""
    truth, _, seconds = moving()
    shake = np.sin(2 * np.pi * 7 * seconds)[:, None] * np.array([0.1, 0.1, 0.02])
    turns = rotations.exp(shake)
    back = np.swapaxes(turns, 1, 2)
    seen = Pose(back @ truth.global_orient, truth.angles, (back @ truth.wrist[..., None])[..., 0])
    keypoints = seen.keypoints("right", REST)
    evidence = evidence_of(keypoints)
    # The pull towards a relaxed hand apart, which is the same for all.
    pose = landmark_fit.refine(seen, evidence, "right", REST, iterations=20)
    with_turns, without = (
        together(pose, evidence, seconds, turns=t, iterations=20).pose for t in (turns, None)
    )
    away = [np.linalg.norm(p.wrist - pose.wrist, axis=1).mean() for p in (with_turns, without)]
    assert away[0] < 0.2 * away[1]


def test_intervals_hold_as_often_as_they_say(monkeypatch):
    """Hands and noise drawn from what the solve assumes: two thirds within one deviation."""
    monkeypatch.setattr(evidence_module, "SPREAD_FACTOR", 1.0)
    monkeypatch.setattr(evidence_module, "PIXEL_SIGMA", 1e-5)
    monkeypatch.setattr(landmark_fit, "ANGLE_SIGMA", 0.2)
    rng = np.random.default_rng(1)
    count = 160
    drawn = articulation.comfortable() + 0.2 * rng.normal(size=(count, 22))
    angles = np.clip(drawn, *articulation.limits())
    wrist = np.array([0.02, -0.03, 0.5]) + 0.03 * rng.normal(size=(count, 3))
    truth = Pose(rotations.exp(rng.uniform(-1, 1, (count, 3))), angles, wrist)
    keypoints = truth.keypoints("right", REST)
    exact = evidence_of(keypoints)
    # Each landmark of each frame has an ellipse of its own.
    root = 0.004 * rng.uniform(0.3, 1.0, (count, 21, 1, 1)) * rng.normal(size=(count, 21, 2, 2))
    root = root + 0.002 * np.eye(2)
    noise = (root @ rng.normal(size=(count, 21, 2, 1)))[..., 0]
    bone = rng.normal(size=exact.direction.shape)  # of one unit, as DIRECTION_SIGMA says
    spread = root @ np.swapaxes(root, -1, -2)
    evidence = Evidence(exact.bearing + noise, exact.direction + bone, spread)
    found = landmark_fit.refine(truth, evidence, "right", REST, iterations=30)

    shares = []
    for first in range(0, count, 2):  # two frames: nothing links them
        rows = np.arange(first, first + 2)
        fit = together(found.rows(rows), evidence.rows(rows), np.array([0.0, 1.0]))
        np.testing.assert_array_equal(fit.covariance, fit.alone)
        slopes = joint_slopes(fit.pose, "right", REST)
        covariance = slopes @ fit.covariance[:, None] @ np.swapaxes(slopes, -1, -2)
        sigma = np.sqrt(np.einsum("njkk->njk", covariance))
        shares.append(np.abs(fit.pose.keypoints("right", REST) - keypoints[rows]) / sigma)
    shares = np.concatenate(shares)
    assert 0.62 < (shares < 1).mean() < 0.74  # 0.683 of a normal distribution
    assert 0.92 < (shares < 1.96).mean() < 0.98  # 0.95
    for axis in range(3):
        assert 0.60 < (shares[..., axis] < 1).mean() < 0.76


def test_slopes_of_joints_against_finite_differences():
    truth, keypoints, _ = moving(4)
    evidence = evidence_of(keypoints)
    frames = landmark_fit.FrameProblem(evidence, "right", REST, truth.global_orient, True)
    x, slopes = frames.start(truth), joint_slopes(truth, "right", REST)
    for unknown, step in enumerate(1e-6 * np.eye(28)):
        ends = [frames.pose(x + s).keypoints("right", REST) for s in (step, -step)]
        numeric = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(slopes[..., unknown], numeric, atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_blocks_of_the_inverse_and_steps_against_the_whole_matrix(count):
    rng, size = np.random.default_rng(count), 28
    # A banded matrix is that of a sum over three frames at a time.
    whole = np.zeros((count * size, count * size))
    for first in range(count - 2):
        part = slice(first * size, (first + 3) * size)
        root = rng.normal(size=(3 * size, 3 * size))
        whole[part, part] += root @ root.T + np.eye(3 * size)

    def blocks(matrix, reach):
        rows = [slice(k * size, (k + 1) * size) for k in range(count)]
        return np.stack([matrix[a, b] for a, b in zip(rows, rows[reach:], strict=False)])

    band = [blocks(whole, reach) for reach in range(3)]
    expected = blocks(np.linalg.inv(whole), 0)
    np.testing.assert_allclose(clip_fit._marginals(*band), expected, atol=1e-8, rtol=1e-6)

    gradient, resting = rng.normal(size=(count, size)), rng.random((count, size)) < 0.2
    free, step = ~resting.ravel(), np.zeros(count * size)
    step[free] = np.linalg.solve(whole[np.ix_(free, free)], -gradient.ravel()[free])
    found = clip_fit._step(*band, gradient, resting, 0.0)
    np.testing.assert_allclose(found.ravel(), step, atol=1e-9, rtol=1e-6)


def system_of(x, orient, own=None):
    """What the smoothness sees of frames, here without a pull of their own."""
    own = np.zeros((len(x), 28, 28)) if own is None else own
    return clip_fit._System(x, orient, 0.0, np.zeros_like(x), own)


def test_bends_of_quadratics_at_uneven_times():
    """Of t^2 the second derivative is 2, per squared frame of 1.5 s."""
    seconds = np.array([0.0, 1.0, 3.0])
    bend = 2 * 1.5**2
    smoothness = clip_fit._Smoothness(seconds, np.tile(np.eye(3), (3, 1, 1)))
    still = np.tile(np.eye(3), (3, 1, 1))
    assert smoothness.cost(system_of(np.zeros((3, 28)), still)) == 0
    for unknown in (5, 6, 27):
        x = np.zeros((3, 28))
        x[:, unknown] = seconds**2
        assert smoothness.cost(system_of(x, still)) == pytest.approx(bend**2)
    turning = rotations.exp(seconds[:, None] ** 2 * np.array([0.0, 0.06, 0.08]))
    found = smoothness.cost(system_of(np.zeros((3, 28)), turning))
    assert found == pytest.approx((0.1 * bend) ** 2)
    # A hand that goes sideways at a constant rate of angle is farther away at either end.
    x = np.zeros((3, 28))
    x[:, 3] = np.tan([-0.2, 0.0, 0.4])
    x[:, 5] = np.log(np.cos([-0.2, 0.0, 0.4]))
    away = np.array([[np.sin(a), 0.0, np.cos(a)] for a in (-0.2, 0.0, 0.4)])
    second = 2 * ((away[2] - away[1]) / 2 - (away[1] - away[0]) / 1) / 3 * 1.5**2
    assert smoothness.cost(system_of(x, still)) == pytest.approx(np.sum(second**2))


def test_slopes_of_smoothed_features_against_finite_differences():
    rng = np.random.default_rng(3)
    base, turns = (rotations.exp(rng.normal(size=(3, 3))) for _ in range(2))
    x = 0.3 * rng.normal(size=(3, 28))

    def features(x):
        ray = np.concatenate([x[:, 3:5], np.ones((3, 1))], axis=1)
        far = np.linalg.norm(ray, axis=1, keepdims=True)
        seen = np.einsum("nij,nj->ni", turns, ray / far)
        return np.concatenate([seen, x[:, 5:6] + np.log(far), x[:, 6:]], axis=1)

    smoothness = clip_fit._Smoothness(np.arange(3.0), turns)
    slopes = smoothness._slopes(system_of(x, rotations.exp(x[:, :3]) @ base))
    for unknown in range(28):
        step = 1e-6 * np.eye(28)[unknown]
        plain = (features(x + step) - features(x - step)) / 2e-6
        ahead, behind = (rotations.exp((x + s)[:, :3]) for s in (step, -step))
        turn = rotations.log(ahead @ np.swapaxes(behind, 1, 2)) / 2e-6
        turn = np.einsum("nij,nj->ni", turns, turn)
        expected = np.concatenate([plain, turn], axis=1)
        np.testing.assert_allclose(slopes[..., unknown], expected, atol=1e-8)


@pytest.mark.parametrize("count", [3, 5])
def test_normal_equations_against_the_whole_jacobian(count):
    """Orientations are equal, where the linearisation of their differences is exact."""
    rng = np.random.default_rng(4)
    orient = np.tile(rotations.exp(np.array([0.3, -0.2, 0.1])), (count, 1, 1))
    turns = np.tile(rotations.exp(np.array([0.1, 0.4, -0.3])), (count, 1, 1))
    x = 0.2 * rng.normal(size=(count, 28))
    x[:, :3] = 0.0
    smoothness = clip_fit._Smoothness(np.cumsum(rng.uniform(0.5, 1.5, count)), turns)
    smoothness._strength = rng.uniform(0.5, 2.0, 29)

    def bends(flat):
        moved = flat.reshape(count, 28)
        return smoothness._bends(system_of(moved, rotations.exp(moved[:, :3]) @ orient)).ravel()

    size = count * 28
    steps = 1e-6 * np.eye(size)
    jacobian = np.stack([bends(x.ravel() + s) - bends(x.ravel() - s) for s in steps], 1) / 2e-6
    whole = (jacobian.T @ jacobian).reshape(count, 28, count, 28)
    pull, own = rng.normal(size=(count, 28)), np.tile(3.0 * np.eye(28), (count, 1, 1))
    system = clip_fit._System(x, orient, 0.0, pull, own)
    diagonal, near, far, gradient = smoothness.normal(system)
    for k in range(count):
        np.testing.assert_allclose(diagonal[k], whole[k, :, k] + own[k], atol=1e-6)
        if k + 1 < count:
            np.testing.assert_allclose(near[k], whole[k, :, k + 1], atol=1e-6)
        if k + 2 < count:
            np.testing.assert_allclose(far[k], whole[k, :, k + 2], atol=1e-6)
    expected = pull + (jacobian.T @ bends(x.ravel())).reshape(count, 28)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
    assert (len(near), len(far)) == (count - 1, count - 2)


def test_strength_of_the_smoothing_by_hand():
    """A hand straight ahead, of variance 1/4 in every unknown; 10 frames per second.

    Of the three numbers of the direction two vary. Gains: 2 sin(pi f T), times 2 f T from half the
    frame rate on.
    """
    smoothness = clip_fit._Smoothness(0.1 * np.arange(3), np.tile(np.eye(3), (3, 1, 1)))
    own = np.tile(4.0 * np.eye(28), (3, 1, 1))
    system = system_of(np.zeros((3, 28)), np.tile(np.eye(3), (3, 1, 1)), own)
    half = HalfGain(bearing=2.5, depth=5.0, angle=10.0, orient=10 / 6)
    smoothness.set_strength(system, half)
    expected = np.repeat([np.sqrt(6) / 2, 2 / 4, 2 / 16, 2 / 1], [3, 1, 22, 3])
    np.testing.assert_allclose(smoothness._strength, expected, rtol=1e-6)


def test_a_step_without_a_solution_is_none():
    """Blocks that are not positive definite, and unknowns that rest at a bound."""
    diagonal, zeros = np.tile(np.eye(28), (3, 1, 1)), np.zeros((2, 28, 28))
    gradient, free = np.ones((3, 28)), np.zeros((3, 28), bool)
    step = clip_fit._step(diagonal, zeros, zeros[:1], gradient, free, 0.25)
    np.testing.assert_allclose(step, -1 / 1.25)  # damped
    step = clip_fit._step(-diagonal, zeros, zeros[:1], gradient, free, 0.0)
    np.testing.assert_array_equal(step, np.zeros((3, 28)))


def test_a_hand_at_its_limits_against_a_bounded_solver():
    """Fingers bent beyond both ends of their limits: some angles stay there, the others settle."""
    truth, _, seconds = moving(3)
    low, high = articulation.limits()
    angles = np.where(np.arange(22) % 3 == 0, high + 0.2, truth.angles)
    angles = np.where(np.arange(22) % 3 == 1, low - 0.2, angles)
    beyond = Pose(truth.global_orient, angles, truth.wrist).keypoints("right", REST)
    evidence, trust = evidence_of(beyond), np.ones(3)
    found = together(truth, evidence, seconds, iterations=100).pose

    frames = landmark_fit.FrameProblem(
        evidence, "right", REST, truth.global_orient, use_pixels=True
    )
    smoothness = clip_fit._Smoothness(seconds, np.tile(np.eye(3), (3, 1, 1)))
    smoothness.set_strength(clip_fit._system(frames, frames.start(truth), trust), CALM)

    def cost(flat):
        system = clip_fit._system(frames, flat.reshape(3, 28), trust)
        slope = 2 * smoothness.normal(system)[3]
        return system.cost + smoothness.cost(system), slope.ravel()

    bounds = np.tile(np.stack(frames.limits(), axis=1), (3, 1))
    start = frames.start(truth).ravel()
    best = scipy.optimize.minimize(
        cost, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 2000}
    )
    at = frames.start(found)
    at[:, :3] = rotations.log(found.global_orient @ np.swapaxes(truth.global_orient, 1, 2))
    assert cost(at.ravel())[0] < 1.00001 * best.fun
    at_bound = (at[:, 6:] == low) | (at[:, 6:] == high)
    assert 10 < at_bound.sum() < 60


def test_angles_stay_within_their_limits():
    rng = np.random.default_rng(2)
    truth, keypoints, seconds = moving()
    evidence = evidence_of(keypoints + 0.05 * rng.normal(size=keypoints.shape) * [1, 1, 0])
    low, high = articulation.limits()
    found = together(truth, evidence, seconds).pose
    assert (found.angles >= low).all() and (found.angles <= high).all()
    assert np.isfinite(found.keypoints("right", REST)).all()
