"""Rotations and rigid frames: group laws, round trips, and scipy as the independent twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation as Scipy

from acehand_core.geometry import frames, rotations

SEEDS = st.integers(0, 2**32 - 1)
#: Lengths of rotation vectors where formulas change branch or lose digits.
ANGLES = [0.0, 1e-12, 1e-7, 0.9e-6, 1.1e-6, 0.9e-4, 1.1e-4, 1e-2, 1.0, 3.0]
NEAR_PI = [np.pi - 1e-3, np.pi - 1e-6, np.pi - 1e-9, np.pi - 1e-12, np.pi]


def seeded(test):
    return settings(max_examples=30)(given(seed=SEEDS)(test))


def random_rotations(rng, *batch):
    flat = Scipy.random(int(np.prod(batch, dtype=int)), rng=rng).as_matrix()
    return flat.reshape(*batch, 3, 3)


def unit(rng, *batch):
    vector = rng.normal(size=(*batch, 3))
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)


def assert_rotation(matrix, atol=1e-12):
    gram = np.swapaxes(matrix, -1, -2) @ matrix
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(3), gram.shape), atol=atol)
    np.testing.assert_allclose(np.linalg.det(matrix), 1, atol=atol)


# --- rotations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [*ANGLES, *NEAR_PI, 4.0, 7.0])
def test_exp_and_log_are_exact_at_every_angle(angle):
    axis = np.concatenate([unit(np.random.default_rng(3), 200), np.eye(3), -np.eye(3)])
    rotation = rotations.exp(angle * axis)
    assert_rotation(rotation)
    theirs = Scipy.from_rotvec(angle * axis).as_matrix()
    np.testing.assert_allclose(rotation, theirs, rtol=0, atol=2e-15)
    back = rotations.log(rotation)
    if angle < np.pi - 1e-9:
        np.testing.assert_allclose(back, angle * axis, rtol=0, atol=1e-14 + 4e-16 / (4 - angle))
    shortest = min(angle, abs(2 * np.pi - angle))
    np.testing.assert_allclose(np.linalg.norm(back, axis=-1), shortest, atol=1e-13)
    np.testing.assert_allclose(rotations.exp(back), rotation, atol=1e-14)


@seeded
def test_group_laws_in_vectors(seed):
    """Inverse is the negative vector; equal axes add; conjugation turns the axis."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(-3, 3, 3)
    R = random_rotations(rng)
    exp = rotations.exp
    np.testing.assert_allclose(exp(-a), exp(a).T, atol=1e-14)
    np.testing.assert_allclose(exp(0.3 * a) @ exp(0.7 * a), exp(a), atol=1e-14)
    np.testing.assert_allclose(R @ exp(a) @ R.T, exp(R @ a), atol=1e-13)


@pytest.mark.parametrize("angle", [0.0, 1e-6, 0.9e-4, 1.1e-4, 1e-3, 0.5, 2.0, np.pi, 5.0])
def test_left_jacobian_against_finite_differences(angle):
    rng = np.random.default_rng(5)
    vector = angle * unit(rng, 20)
    step = 1e-6
    numeric = np.empty((20, 3, 3))
    for axis, d in enumerate(np.eye(3) * step):
        change = rotations.exp(vector + d) @ np.swapaxes(rotations.exp(vector - d), -1, -2)
        numeric[..., axis] = rotations.log(change) / (2 * step)
    np.testing.assert_allclose(rotations.left_jacobian(vector), numeric, atol=2e-9)


@seeded
def test_quaternions_are_scipys_and_round_trip(seed):
    rng = np.random.default_rng(seed)
    rotation = random_rotations(rng, 50)
    q = rotations.to_quaternion(rotation)
    theirs = Scipy.from_matrix(rotation).as_quat(scalar_first=True)
    theirs *= np.sign(np.sum(q * theirs, axis=-1, keepdims=True))
    np.testing.assert_allclose(q, theirs, atol=1e-14)
    np.testing.assert_allclose(rotations.from_quaternion(q), rotation, atol=1e-14)
    largest = np.take_along_axis(q, np.abs(q).argmax(-1)[:, None], axis=-1)
    assert (largest > 0).all()
    scaled = q * rng.uniform(-5, 5, (50, 1))
    np.testing.assert_allclose(rotations.from_quaternion(scaled), rotation, atol=1e-12)
    empty = random_rotations(rng, 2, 0, 4)
    assert rotations.from_quaternion(rotations.to_quaternion(empty)).shape == empty.shape
    assert rotations.exp(rotations.log(empty)).shape == empty.shape


@pytest.mark.parametrize("component", range(4))
def test_every_branch_of_the_quaternion(component):
    """Near each unit quaternion another of Shepperd's four cases is the stable one."""
    rng = np.random.default_rng(component)
    q = np.eye(4)[component] + rng.normal(0, 1e-7, (100, 4))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    back = rotations.to_quaternion(rotations.from_quaternion(q))
    np.testing.assert_allclose(back, q, atol=3e-16)


@seeded
def test_six_numbers_round_trip_and_repair(seed):
    rng = np.random.default_rng(seed)
    rotation = random_rotations(rng, 4, 5)
    six = rotations.to_6d(rotation)
    np.testing.assert_array_equal(six[2, 3], [*rotation[2, 3, :, 0], *rotation[2, 3, :, 1]])
    np.testing.assert_allclose(rotations.from_6d(six), rotation, atol=1e-14)
    free = rng.normal(size=(30, 6))
    repaired = rotations.from_6d(free)
    assert_rotation(repaired, 1e-9)
    # The first column keeps its direction; the second stays in the plane of the two.
    np.testing.assert_allclose(np.cross(repaired[..., 0], free[:, :3]), 0, atol=1e-12)
    np.testing.assert_allclose(np.sum(repaired[..., 2] * free[:, 3:], axis=-1), 0, atol=1e-12)
    assert (np.sum(repaired[..., 1] * free[:, 3:], axis=-1) > 0).all()


@seeded
def test_projection_is_the_nearest_rotation(seed):
    """No small turn away from it comes nearer, also where the determinant is negative."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(10, 3, 3))
    nearest = rotations.project_to_rotation(matrix)
    assert_rotation(nearest)
    best = np.sum((nearest - matrix) ** 2, axis=(-1, -2))
    for spread in (1e-3, 1e-1, 2.0):
        other = rotations.exp(rng.normal(0, spread, (10, 3))) @ nearest
        assert (np.sum((other - matrix) ** 2, axis=(-1, -2)) >= best - 1e-12).all()
    rotation = random_rotations(rng, 10)
    np.testing.assert_allclose(rotations.project_to_rotation(3 * rotation), rotation, atol=1e-13)


@seeded
def test_angle_between(seed):
    rng = np.random.default_rng(seed)
    a, b, c = random_rotations(rng, 3, 20)
    expected = (Scipy.from_matrix(a).inv() * Scipy.from_matrix(b)).magnitude()
    np.testing.assert_allclose(rotations.angle_between(a, b), expected, atol=1e-13)
    np.testing.assert_allclose(rotations.angle_between(c @ a, c @ b), expected, atol=1e-13)
    np.testing.assert_allclose(rotations.angle_between(a, a), 0, atol=1e-14)


@settings(max_examples=30)
@given(seed=SEEDS, gap=st.sampled_from([0.0, 1e-10, 1e-8, 1e-6, 1e-5, 3e-5, 1e-4, 1e-2, 1.0]))
def test_between_turns_one_vector_into_the_other(seed, gap):
    """From equal to exactly opposite vectors, ``gap`` away from both."""
    rng = np.random.default_rng(seed)
    source = np.concatenate([unit(rng, 30), np.eye(3), -np.eye(3)])
    away = np.cross(source, unit(rng, 36))
    away /= np.linalg.norm(away, axis=-1, keepdims=True)
    for sign in (1, -1):
        target = sign * np.cos(gap) * source + np.sin(gap) * away
        turn = rotations.between(source, target)
        assert_rotation(turn)
        # Vectors closer to opposite than half the digits can tell count as opposite. Above that,
        # the last digit of a length turns the vector halfway by 1e-16 / gap.
        atol = 1e-14
        if sign < 0:
            atol = 2e-8 if gap < 1e-7 else 1e-14 + 2e-15 / gap
        np.testing.assert_allclose((turn @ source[..., None])[..., 0], target, atol=atol)
        angle = np.linalg.norm(rotations.log(turn), axis=-1)
        np.testing.assert_allclose(angle, gap if sign > 0 else np.pi - gap, atol=2e-8)


def test_float32_stays_float32_and_is_as_exact_as_it_can_be():
    vector = np.random.default_rng(7).uniform(-2, 2, (50, 3))
    rotation = rotations.exp(vector)
    single = rotation.astype(np.float32)
    x, y, x_single, y_single = rotation[:, 0], rotation[:, 1], single[:, 0], single[:, 1]
    for value, reference in (
        (rotations.exp(vector.astype(np.float32)), rotation),
        (rotations.log(single), vector),
        (rotations.to_quaternion(single), rotations.to_quaternion(rotation)),
        (rotations.from_quaternion(rotations.to_quaternion(single)), rotation),
        (rotations.from_6d(rotations.to_6d(single)), rotation),
        (rotations.project_to_rotation(single), rotation),
        (rotations.skew(vector.astype(np.float32)), rotations.skew(vector)),
        (rotations.left_jacobian(vector.astype(np.float32)), rotations.left_jacobian(vector)),
        (rotations.between(x_single, y_single), rotations.between(x, y)),
    ):  # fmt: skip
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, reference, atol=3e-6)


# --- frames ------------------------------------------------------------------------------------


def random_rigid(rng, *batch):
    return frames.rigid(random_rotations(rng, *batch), rng.normal(size=(*batch, 3)))


@seeded
def test_inverse_and_composition(seed):
    rng = np.random.default_rng(seed)
    T_a_b, T_b_c = random_rigid(rng, 6), random_rigid(rng, 6)
    points = rng.normal(size=(6, 9, 3))
    np.testing.assert_allclose(frames.inverse(T_a_b), np.linalg.inv(T_a_b), atol=1e-13)
    moved = frames.apply(T_a_b, frames.apply(T_b_c, points))
    np.testing.assert_allclose(frames.apply(T_a_b @ T_b_c, points), moved, atol=1e-13)


# The last would also broadcast the wrong way round.
SHAPES = "3|73|573|5 53|5 573|52 523|52 5273|51 5273|5 5273|5 3|2 2273"


@pytest.mark.parametrize("shapes", SHAPES.split("|"))
def test_apply_against_a_loop(shapes):
    """The axes of transforms, if any, and those of points."""
    *lead, points = (tuple(map(int, shape)) for shape in shapes.split())
    transforms = lead[0] if lead else ()
    rng = np.random.default_rng(9)
    transform, point = random_rigid(rng, *transforms), rng.normal(size=points)
    moved = frames.apply(transform, point)
    assert moved.shape == (points if len(points) > 1 else (*transforms, 3))
    for index in np.ndindex(moved.shape[:-1]):
        at = tuple(min(i, n - 1) for i, n in zip(index, transforms, strict=False))
        expected = transform[at] @ np.append(point if point.ndim == 1 else point[index], 1)
        np.testing.assert_allclose(moved[index], expected[:3], atol=1e-14)


def similarity_error(scale, rotation, shift, source, target, weights):
    gap = target - (scale * source @ rotation.T + shift)
    return float(weights @ np.sum(gap * gap, axis=1))


@settings(max_examples=30)
@given(seed=SEEDS, count=st.integers(3, 12))
def test_similarity_recovers_exact_data(seed, count):
    rng = np.random.default_rng(seed)
    source, weights = rng.normal(size=(count, 3)), rng.uniform(0.1, 2, count)
    rotation, shift, scale = random_rotations(rng), rng.normal(size=3), rng.uniform(0.2, 5)
    target = scale * source @ rotation.T + shift
    found = frames.similarity_fit(source, target, weights)
    assert similarity_error(*found, source, target, weights) < 1e-16 * max(1, scale**2)
    if count > 3:  # three points leave a mirror image open, which the determinant closes
        assert found[0] == pytest.approx(scale, rel=1e-9)
        np.testing.assert_allclose(found[1], rotation, atol=1e-6)


@pytest.mark.few(4)
@pytest.mark.parametrize("scale_range", [None, (1.0, 1.0), (0.9, 1.3), (2.0, 3.0)])
@pytest.mark.parametrize("seed", range(4))
def test_similarity_is_the_best_a_brute_search_finds(seed, scale_range):
    """Noisy, mirrored and weighted data: no search over all seven numbers does better."""
    rng = np.random.default_rng(seed)
    source = rng.normal(size=(8, 3))
    target = rng.uniform(0.5, 2) * source @ random_rotations(rng).T + rng.normal(0, 0.5, (8, 3))
    target[:, 0] *= -1 if seed % 2 else 1
    weights = rng.uniform(0, 2, 8)
    weights[0], target[0] = 0, 50  # an outlier
    scale, rotation, shift = frames.similarity_fit(source, target, weights, scale_range)
    low, high = scale_range or (1e-3, 1e3)  # no limit that the data would reach
    assert low <= scale <= high
    assert_rotation(rotation)
    best = similarity_error(scale, rotation, shift, source, target, weights)

    def cost(x):
        turned = Scipy.from_rotvec(x[:3]).as_matrix()
        return similarity_error(x[6], turned, x[3:6], source, target, weights)

    bounds, starts = [(None, None)] * 6 + [(low, high)], rng.uniform(-2, 2, (10, 3))
    found = min(minimize(cost, np.r_[s, 0, 0, 0, 1], bounds=bounds).fun for s in starts)
    assert best <= found + 1e-9 and best == pytest.approx(found, rel=1e-4)


def test_similarity_of_planar_and_collinear_points_is_a_rotation():
    rng = np.random.default_rng(2)
    for flat in (np.diag([1.0, 1, 0]), np.diag([1.0, 0, 0])):
        source = rng.normal(size=(6, 3)) @ flat
        R = random_rotations(rng)
        scale, rotation, shift = frames.similarity_fit(source, source @ R.T)
        assert_rotation(rotation)
        assert scale == pytest.approx(1.0)
        np.testing.assert_allclose(scale * source @ rotation.T + shift, source @ R.T, atol=1e-12)


@pytest.mark.parametrize("test", ["first", "second"])
def test_annotated_arrays_are_checked_in_every_test(test: str) -> None:
    """In a test's first calls at least, see conftest: the first test uses these up."""
    with pytest.raises(TypeError, match="skew"):
        rotations.skew(np.zeros(4, int))
    for _ in range(100):
        rotations.skew(np.zeros(3))
