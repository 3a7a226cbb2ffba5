"""Parameters come back from joints, and what a conversion loses is stated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation, mapping, shape
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.mano import load_mano
from acehand_core.hand.pose_fit import solve
from acehand_core.types import SIDES

HAND = CapsuleHand()
MIRROR = np.array([-1.0, 1.0, 1.0])


@pytest.fixture(scope="module")
def mano(golden_folder):
    return load_mano(golden_folder / "mano_synthetic.npz", dtype="float64")


def draw(side, count, seed=0, share=1.0):
    """Random parameters of the default hand within ``share`` of its limits, and their joints."""
    rng = np.random.default_rng(seed)
    rest = articulation.comfortable()
    angles = rest + share * (rng.uniform(*articulation.limits(), (count, 22)) - rest)
    values = random_values(rng, count, articulation.angles_to_pose(angles, side), 1)
    return values, pose(HAND, side, **values)


def random_values(rng, count, hand_pose, spread):
    return {
        "global_orient": rotations.exp(rng.normal(0, 1.5, (count, 3))),
        "hand_pose": hand_pose,
        "betas": rng.normal(0, spread, 10),
        "translation": rng.normal(0, 0.3, (count, 3)),
    }


def pose(model, side, global_orient, hand_pose, betas, translation):
    many = np.broadcast_to(betas, (len(translation), 10))
    return model.joints(side, global_orient, hand_pose, many) + translation[:, None]


def errors_of(model, side, fit, joints):
    """Distances (N, 21) of the fitted hand's joints from these."""
    found = pose(model, side, fit.global_orient, fit.hand_pose, fit.betas, fit.translation)
    return np.linalg.norm(found - joints, axis=-1)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("count", "seed"), [(1, 1), (5, 2), (200, 3)])
def test_recovery(side, count, seed):
    _, joints = draw(side, count, seed)
    fit = mapping.fit_to_joints(HAND, side, joints)
    error = errors_of(HAND, side, fit, joints)
    assert np.median(error) < 0.5e-3 and np.percentile(error, 95) < 2e-3
    np.testing.assert_allclose(fit.error_m, error.mean(axis=1), atol=1e-9)


def test_a_known_shape_is_kept_and_gives_the_parameters_back():
    values, joints = draw("left", 40, seed=4, share=0.7)
    fit = mapping.fit_to_joints(HAND, "left", joints, betas=values["betas"])
    np.testing.assert_array_equal(fit.betas, values["betas"])
    assert fit.error_m.max() < 0.1e-3
    np.testing.assert_allclose(fit.translation, values["translation"], atol=0.2e-3)
    turned = rotations.angle_between(fit.global_orient, values["global_orient"])
    assert np.degrees(turned.max()) < 0.5
    turned = rotations.angle_between(fit.hand_pose, values["hand_pose"])
    assert np.degrees(np.median(turned)) < 0.5


@pytest.mark.parametrize("side", SIDES)
def test_missing_thumb_base(side):
    """Some trackers know no thumb base at all, in any frame."""
    _, joints = draw(side, 60, seed=5, share=0.7)
    holed = joints.copy()
    holed[:, 1] = np.nan
    fit = mapping.fit_to_joints(HAND, side, holed)
    error = errors_of(HAND, side, fit, joints)
    assert np.median(np.delete(error, 1, axis=1)) < 0.5e-3
    assert np.median(error[:, 1]) < 10e-3  # inferred, so only plausible
    np.testing.assert_allclose(fit.error_m, np.delete(error, 1, axis=1).mean(1), atol=1e-9)


def test_scattered_holes_and_hopeless_rows():
    _, joints = draw("right", 40, seed=6, share=0.7)
    rng = np.random.default_rng(0)
    holed = joints.copy()
    holed[rng.random((40, 21)) < 0.1] = np.nan
    holed[7] = np.nan
    holed[8, [0, 5, 9, 13]] = np.nan
    fit = mapping.fit_to_joints(HAND, "right", holed)
    known = np.isfinite(fit.error_m)
    assert list(np.flatnonzero(~known)) == [7, 8]
    for value in (fit.global_orient, fit.hand_pose, fit.translation):
        assert np.isnan(value[[7, 8]]).all()
        assert np.isfinite(value[known]).all()
    assert np.median(fit.error_m[known]) < 0.5e-3
    none = mapping.fit_to_joints(HAND, "right", np.full((3, 21, 3), np.nan))
    assert np.isnan(none.error_m).all()
    np.testing.assert_array_equal(none.betas, 0)
    assert len(mapping.fit_to_joints(HAND, "right", joints[:0]).error_m) == 0


def test_weights_silence_a_wrong_joint():
    _, joints = draw("right", 20, seed=8, share=0.7)
    wrong = joints.copy()
    wrong[:, 8] += 0.05
    weights = np.ones((20, 21))
    weights[:, 8] = 0
    heard = mapping.fit_to_joints(HAND, "right", wrong)
    silenced = mapping.fit_to_joints(HAND, "right", wrong, weights=weights)
    assert np.median(silenced.error_m) < 0.3e-3 < 2e-3 < np.median(heard.error_m)


def test_sides_mirror():
    """The mirror image of a right hand, fitted as a left hand, is the mirrored fit."""
    _, joints = draw("right", 20, seed=9, share=0.7)
    right = mapping.fit_to_joints(HAND, "right", joints)
    left = mapping.fit_to_joints(HAND, "left", joints * MIRROR)
    np.testing.assert_allclose(left.betas, right.betas, atol=1e-4)
    np.testing.assert_allclose(left.translation, right.translation * MIRROR, atol=1e-5)
    reflect = np.diag(MIRROR)
    np.testing.assert_allclose(left.hand_pose, reflect @ right.hand_pose @ reflect, atol=1e-3)
    wrong = mapping.fit_to_joints(HAND, "left", joints)
    assert np.median(wrong.error_m) > 3e-3


def test_impossible_joints_stay_within_anatomical_limits():
    rng = np.random.default_rng(10)
    _, joints = draw("right", 30, seed=10)
    fit = mapping.fit_to_joints(HAND, "right", joints + rng.normal(0, 0.02, joints.shape))
    low, high = articulation.limits()
    axes = articulation.finger_axes("right")
    for index, freedom in enumerate(articulation.freedoms()):
        if freedom.name.split("_")[1] in ("pip", "dip", "ip"):  # hinges: one angle each
            vector = rotations.log(fit.hand_pose[:, freedom.joint])
            angle = vector @ axes[freedom.name.split("_")[0]][0]
            np.testing.assert_allclose(np.linalg.norm(vector, axis=-1), np.abs(angle), atol=1e-9)
            assert (angle >= low[index] - 1e-9).all()
            assert (angle <= high[index] + 1e-9).all()
    assert np.median(fit.error_m) > 5e-3  # and says that they are not reached


@pytest.mark.parametrize("side", SIDES)
def test_recovery_of_another_model(mano, side):
    rng = np.random.default_rng(11)
    values = random_values(rng, 12, rotations.exp(rng.normal(0, 0.25, (12, 15, 3))), 0.5)
    joints = pose(mano, side, **values)
    fit = mapping.fit_to_joints(mano, side, joints)
    error = errors_of(mano, side, fit, joints)
    assert np.median(error) < 0.5e-3 and np.percentile(error, 95) < 2e-3
    known = mapping.fit_to_joints(mano, side, joints, values["betas"], near=values["hand_pose"])
    assert known.error_m.max() < 0.05e-3
    # The twist that joints do not show is that of the pose given.
    assert np.degrees(rotations.angle_between(known.hand_pose, values["hand_pose"])).max() < 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("direction", ["to mano", "from mano"])
def test_conversion_states_its_error(mano, side, direction):
    """The two hands differ by millimetres; the result says by how many, and the model agrees."""
    values, joints = draw(side, 12, seed=12, share=0.5)
    source, target = (HAND, mano) if direction == "to mano" else (mano, HAND)
    if direction == "from mano":
        values["betas"] = values["betas"] * 0.5
        joints = pose(mano, side, **values)
    fit = mapping.convert(source, target, side, **values)
    error = errors_of(target, side, fit, joints).mean(axis=1)
    np.testing.assert_allclose(fit.error_m, error, atol=1e-9)
    assert 0.3e-3 < np.median(error) < 8e-3
    assert np.abs(fit.betas).max() < 8
    nearest = rotations.project_to_rotation(fit.hand_pose)
    np.testing.assert_allclose(nearest, fit.hand_pose, atol=1e-9)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["acehand", "mano"])
def test_change_of_frame(mano, side, name):
    model = {"acehand": HAND, "mano": mano}[name]
    values, _ = draw(side, 6, seed=14)
    joints = pose(model, side, **values)
    rng = np.random.default_rng(15)
    T_new_old = frames.rigid(rotations.exp(rng.normal(0, 1, (6, 3))), rng.normal(0, 1, (6, 3)))
    mean, gradients = shape.rest_shape(model, side)
    wrist = np.broadcast_to(shape.shaped(mean, gradients, values["betas"])[0], (6, 3))
    moved = dict(values)
    moved["global_orient"], moved["translation"] = mapping.change_frame(
        T_new_old, values["global_orient"], values["translation"], wrist
    )
    expected = joints @ np.swapaxes(T_new_old[:, :3, :3], 1, 2) + T_new_old[:, None, :3, 3]
    np.testing.assert_allclose(pose(model, side, **moved), expected, atol=1e-9)


# The solver and its derivatives.


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_solver_against_scipy(seed):
    """Curved residuals, some bounds active, rows of very different scale."""
    rng = np.random.default_rng(seed)
    matrix, offset = rng.normal(0, 1, (4, 9, 5)), rng.normal(0, 2, (4, 9))
    matrix *= np.array([1e-2, 1, 1, 30])[:, None, None]
    low, high = np.full(5, -0.4), np.array([0.3, 0.5, 1, np.inf, np.inf])

    def evaluate(x, rows):
        inner = np.einsum("nmp,np->nm", matrix[rows], x)
        residuals = inner + 0.1 * np.sin(inner) - offset[rows]
        return residuals, matrix[rows] * (1 + 0.1 * np.cos(inner))[..., None]

    x, cost = solve(evaluate, np.zeros((4, 5)), low, high, iterations=200, tolerance=1e-12)
    for row in range(4):
        expected = least_squares(
            lambda x, row=row: evaluate(x[None], np.array([row]))[0][0],
            np.zeros(5), bounds=(low, high), xtol=1e-14, ftol=1e-14, gtol=1e-14,
        )  # fmt: skip
        assert cost[row] <= 2 * expected.cost * (1 + 1e-6) + 1e-12
    assert ((x >= low) & (x <= high)).all()


def test_rows_do_not_influence_each_other():
    target, infinite = np.random.default_rng(17).normal(0, 3, (600, 3)), np.full(3, np.inf)

    def solved(first, count):
        def evaluate(x, rows):
            jacobian = (1 + 3 * x**2)[..., None] * np.eye(3)
            return x + x**3 - target[first + rows], jacobian

        return solve(evaluate, np.zeros((count, 3)), -infinite, infinite, iterations=50)[0]

    together = solved(0, 600)
    for row in (0, 255, 256, 599):
        np.testing.assert_allclose(together[row], solved(row, 1)[0], rtol=1e-12)
    np.testing.assert_allclose(together + together**3, target, atol=1e-4)
