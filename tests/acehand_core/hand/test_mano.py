"""MANO: files read safely, posed by smplx, mean pose and left-hand repair explicit."""

import os
import pickle
import sys
import types

import numpy as np
import pytest
from scipy import sparse

from acehand_core.errors import InputError, MissingDependencyError, SchemaError, UnsafeFileError
from acehand_core.geometry import rotations
from acehand_core.hand.mano import ManoArrays, ManoHand, find_mano, load_mano, shapedirs_need_repair
from acehand_core.types import SIDES

EYE = np.eye(3)
POSE_EYE = np.broadcast_to(EYE, (15, 3, 3))
KEYS = (
    "v_template", "shapedirs", "posedirs", "J_regressor", "weights", "hands_mean",
    "hands_components", "kintree_table", "f", "J",
)  # fmt: skip


@pytest.fixture(scope="module")
def synthetic(golden_folder):
    """The synthetic hand as two mappings with MANO's names."""
    with np.load(golden_folder / "mano_synthetic.npz") as data:
        return {side: {key: data[f"{side}/{key}"] for key in KEYS} for side in SIDES}


@pytest.fixture(scope="module")
def mano64(golden_folder):
    return load_mano(golden_folder / "mano_synthetic.npz", dtype="float64")


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(7)
    return {
        "global_orient": rng.normal(0, 1, (6, 3)),
        "hand_pose": rng.normal(0, 0.4, (6, 45)),
        "betas": rng.normal(0, 1, (6, 10)),
    }


def official(synthetic, side):
    """The mapping with a sparse regressor, as the official files store it."""
    data = dict(synthetic[side])
    data["J_regressor"] = sparse.csc_matrix(data["J_regressor"].astype(np.float64))
    data["bs_type"], data["bs_style"] = "lrotmin", "lbs"
    data["hands_coeffs"] = np.zeros((3, 45))
    return data


def write_official(synthetic, folder, monkeypatch, protocol=2):
    """Write both .pkl as Python 2 did: shape directions as a chumpy selection of a longer basis."""
    package, ch, reordering = (
        types.ModuleType(name) for name in ("chumpy", "chumpy.ch", "chumpy.reordering")
    )
    ch.Ch = type("Ch", (), {"__module__": "chumpy.ch"})
    reordering.Select = type("Select", (ch.Ch,), {"__module__": "chumpy.reordering"})
    with monkeypatch.context() as patch:
        for module in (package, ch, reordering):
            patch.setitem(sys.modules, module.__name__, module)
        for side in SIDES:
            data = official(synthetic, side)
            basis, select = ch.Ch(), reordering.Select()
            basis.x = np.concatenate([data["shapedirs"], np.ones((778, 3, 10))], -1)
            basis._dirty_vars, basis._itr, basis._depends_on_deps = set(), None, {}
            index = np.arange(basis.x.size).reshape(basis.x.shape)[..., :10]
            select.a, select.idxs, select.preferred_shape = basis, index.ravel(), (778, 3, 10)
            data["shapedirs"] = select
            raw = pickle.dumps(data, protocol).replace(b"numpy._core", b"numpy.core")
            path = folder / f"MANO_{side.upper()}.pkl"
            path.write_bytes(raw.replace(b"scipy.sparse._csc", b"scipy.sparse.csc"))


def smplx_mano(data, side, **options):
    smplx, torch = pytest.importorskip("smplx"), pytest.importorskip("torch")
    from smplx.utils import Struct

    return smplx.MANO(
        "", data_struct=Struct(**data), is_rhand=side == "right", dtype=torch.float64,
        batch_size=6, **options,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("side", SIDES)
def test_golden(golden_folder, side, dtype):
    """Rotation vectors plus the mean pose, joints and vertices of an independent program."""
    hand = load_mano(golden_folder / "mano_synthetic.npz", dtype=dtype)
    with np.load(golden_folder / "mano_public.npz") as case:
        stored = rotations.log(case["in/hand_pose"].astype(np.float64)).reshape(-1, 45)
        pose = hand.absolute_pose(side, stored, flat_hand_mean=False)
        arguments = (side, case["in/global_orient"], pose, case["in/betas"])
        joints, vertices = case[f"out/{side}/joints21"], case[f"out/{side}/vertices"]
    assert hand.joints(*arguments).dtype == dtype
    np.testing.assert_allclose(hand.joints(*arguments), joints, atol=1.5e-5)
    np.testing.assert_allclose(hand.vertices(*arguments), vertices, atol=1.5e-5)


@pytest.mark.parametrize("flat_hand_mean", [False, True])
@pytest.mark.parametrize("side", SIDES)
def test_axis_angle_against_smplx(mano64, synthetic, draws, side, flat_hand_mean):
    import torch

    layer = smplx_mano(synthetic[side], side, use_pca=False, flat_hand_mean=flat_hand_mean)
    expected = layer(**{key: torch.from_numpy(value) for key, value in draws.items()})
    vertices = expected.vertices.detach().numpy()
    pose = mano64.absolute_pose(side, draws["hand_pose"], flat_hand_mean)
    arguments = (side, rotations.exp(draws["global_orient"]), pose, draws["betas"])
    np.testing.assert_allclose(mano64.vertices(*arguments), vertices, atol=1e-7)
    tree = mano64.joints(*arguments)[:, [0, 5, 6, 7, 9, 10, 11, 17, 18, 19, 13, 14, 15, 1, 2, 3]]
    np.testing.assert_allclose(tree, expected.joints.detach().numpy(), atol=1e-7)
    other = mano64.absolute_pose(side, draws["hand_pose"], not flat_hand_mean)
    wrong = mano64.vertices(side, arguments[1], other, draws["betas"])
    assert np.abs(wrong - vertices).max() > 5e-3


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("count", [6, 15, 44])
def test_principal_components_against_smplx(mano64, synthetic, draws, side, count):
    import torch

    layer = smplx_mano(synthetic[side], side, use_pca=True, num_pca_comps=count)
    inputs = {**draws, "hand_pose": draws["hand_pose"][:, :count]}
    expected = layer(**{key: torch.from_numpy(value) for key, value in inputs.items()})
    stored = mano64.expand_pca(side, inputs["hand_pose"])
    pose = mano64.absolute_pose(side, stored, flat_hand_mean=False)
    actual = mano64.vertices(side, rotations.exp(draws["global_orient"]), pose, draws["betas"])
    np.testing.assert_allclose(actual, expected.vertices.detach().numpy(), atol=1e-6)


def test_any_leading_axes(mano64, draws):
    pose = mano64.absolute_pose("right", draws["hand_pose"], True).reshape(2, 3, 15, 3, 3)
    orient = rotations.exp(draws["global_orient"]).reshape(2, 3, 3, 3)
    betas = draws["betas"].reshape(2, 3, 10)
    joints = mano64.joints("right", orient, pose, betas)
    one = mano64.joints("right", orient[1, 2], pose[1, 2], betas[1, 2])
    np.testing.assert_allclose(joints[1, 2], one, atol=1e-12)
    assert joints.shape == (2, 3, 21, 3)
    assert mano64.vertices("right", EYE, POSE_EYE, np.zeros(10)).shape == (778, 3)
    assert mano64.joints("right", orient[:0], pose[:0], betas[:0]).shape == (0, 3, 21, 3)


def test_wrist_stays_and_tips_are_smplx_vertices(mano64, draws):
    from smplx.vertex_ids import vertex_ids

    pose = mano64.absolute_pose("left", draws["hand_pose"], True)
    turned = mano64.joints("left", rotations.exp(draws["global_orient"]), pose, np.zeros((6, 10)))
    rest = mano64.joints("left", EYE, POSE_EYE, np.zeros(10))
    np.testing.assert_allclose(turned[:, 0], np.tile(rest[0], (6, 1)), atol=1e-12)
    vertices = mano64.vertices("left", EYE, POSE_EYE, np.zeros(10))
    tips = vertices[list(vertex_ids["mano"].values())]
    np.testing.assert_array_equal(rest[[4, 8, 12, 16, 20]], tips)


def with_fault(synthetic):
    """Left shape directions whose x rows equal the right hand's, as in the distributed file."""
    left = dict(synthetic["left"])
    left["shapedirs"] = synthetic["right"]["shapedirs"].copy()
    left["shapedirs"][:, 1:] = synthetic["left"]["shapedirs"][:, 1:]
    return left


def test_left_repair_flips_x_once_and_only_when_asked(synthetic):
    left = ManoArrays.from_mapping(with_fault(synthetic), "left")
    right = ManoArrays.from_mapping(synthetic["right"], "right")
    assert shapedirs_need_repair(left, right)
    as_is, fixed = ManoHand(left, right), ManoHand(left, right, left_shapedirs_fixed=True)
    assert (as_is.left_shapedirs_fixed, fixed.left_shapedirs_fixed) == (False, True)
    np.testing.assert_array_equal(as_is.arrays["left"].shapedirs, left.shapedirs)
    np.testing.assert_array_equal(fixed.arrays["left"].shapedirs[:, 0], -left.shapedirs[:, 0])
    np.testing.assert_array_equal(fixed.arrays["left"].shapedirs[:, 1:], left.shapedirs[:, 1:])
    np.testing.assert_array_equal(fixed.arrays["right"].shapedirs, right.shapedirs)
    again = ManoHand(fixed.arrays["left"], right, left_shapedirs_fixed=True)
    np.testing.assert_array_equal(again.arrays["left"].shapedirs, fixed.arrays["left"].shapedirs)


def test_repaired_left_mirrors_the_right(synthetic):
    """The definition of right: one set of betas, two mirrored hands."""
    mirror = np.array([-1.0, 1.0, 1.0])
    right = synthetic["right"]
    left = with_fault(synthetic) | {"v_template": right["v_template"] * mirror}
    left |= {"shapedirs": right["shapedirs"], "J_regressor": right["J_regressor"]}
    arrays = ManoArrays.from_mapping(left, "left"), ManoArrays.from_mapping(right, "right")
    betas, gaps = np.random.default_rng(0).normal(size=10), []
    for fixed in (True, False):
        hand = ManoHand(*arrays, left_shapedirs_fixed=fixed, dtype="float64")
        rest = [hand.joints(side, EYE, POSE_EYE, betas) for side in SIDES]
        gaps.append(np.abs(rest[0] * mirror - rest[1]).max())
    assert gaps[0] < 1e-7 and gaps[1] > 1e-3


@pytest.mark.parametrize("protocol", [0, 1, 2, 3])
def test_official_files_with_chumpy(tmp_path, synthetic, monkeypatch, mano64, protocol):
    write_official(synthetic, tmp_path, monkeypatch, protocol)
    assert "chumpy" not in sys.modules
    loaded = load_mano(tmp_path)
    for side in SIDES:
        for key in ManoArrays.__slots__:
            np.testing.assert_array_equal(
                getattr(loaded.arrays[side], key), getattr(mano64.arrays[side], key), err_msg=key
            )


@pytest.mark.parametrize("how", ["npz folder", "numpy-2 pkl", "long basis", "environment"])
def test_other_ways_to_hand_over_the_files(tmp_path, synthetic, mano64, how, monkeypatch):
    for side in SIDES:
        file, data = tmp_path / f"MANO_{side.upper()}.npz", dict(synthetic[side])
        if how == "long basis":
            data["shapedirs"] = np.concatenate([data["shapedirs"]] * 2, -1)
        if how == "numpy-2 pkl":
            file.with_suffix(".pkl").write_bytes(pickle.dumps(official(synthetic, side), 5))
        else:
            np.savez(file, **data)
    monkeypatch.setenv("ACEHAND_MANO", str(tmp_path))
    loaded = (load_mano() if how == "environment" else load_mano(tmp_path)).arrays
    for side, key in (("left", "shapedirs"), ("right", "J_regressor")):
        wanted = getattr(mano64.arrays[side], key)
        np.testing.assert_array_equal(getattr(loaded[side], key), wanted)


def test_malicious_files_are_refused(tmp_path, synthetic):
    canary = tmp_path / "canary"

    class Attack:
        def __reduce__(self):
            return os.system, (f"touch '{canary}'",)

    for side in SIDES:
        data = {**official(synthetic, side), "bs_type": Attack()}
        (tmp_path / f"MANO_{side.upper()}.pkl").write_bytes(pickle.dumps(data, 2))
    with pytest.raises(UnsafeFileError, match=r"MANO_LEFT\.pkl"):
        load_mano(tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize("key", ["v_template", "shapedirs", "J_regressor", "hands_mean", "f"])
@pytest.mark.parametrize("fault", ["missing", "shape", "nan", "text"])
def test_wrong_files_name_file_and_key(tmp_path, synthetic, key, fault):
    data = dict(synthetic["right"])
    value = data.pop(key)
    values = {"nan": np.full(value.shape, np.nan), "text": np.full(value.shape, "x")}
    values |= {"missing": value, "shape": value[:-1]}
    data[f"{key}s" if fault == "missing" else key] = values[fault]
    np.savez(tmp_path / "MANO_LEFT.npz", **synthetic["left"])
    np.savez(tmp_path / "MANO_RIGHT.npz", **data)
    with pytest.raises(SchemaError, match=rf"MANO_RIGHT\.npz.*'{key}'"):
        load_mano(tmp_path)


def test_another_tree_or_mesh_is_refused(synthetic):
    right = synthetic["right"]
    tree = right["kintree_table"].copy()
    tree[0, 4] = 3
    for key, value in (("kintree_table", tree), ("f", right["f"] + 700)):
        with pytest.raises(SchemaError, match=f"{key}"):
            ManoArrays.from_mapping(right | {key: value}, "x.npz")


def test_where_to_get_mano(tmp_path, monkeypatch):
    monkeypatch.delenv("ACEHAND_MANO", raising=False)
    with pytest.raises(MissingDependencyError, match=r"mano\.is\.tue\.mpg\.de"):
        find_mano()
    monkeypatch.setenv("ACEHAND_MANO", str(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"absent.*non-commercial"):
        load_mano()
    (tmp_path / "MANO_RIGHT.pkl").write_bytes(b"")
    with pytest.raises(InputError, match="MANO_LEFT"):
        find_mano(tmp_path)
    (tmp_path / "models").mkdir()
    for side in SIDES:
        (tmp_path / "models" / f"MANO_{side.upper()}.pkl").write_bytes(b"")
    assert find_mano(tmp_path) == tmp_path / "models"
    with pytest.raises(SchemaError, match="truncated"):
        load_mano(tmp_path)
    with pytest.raises(InputError, match="folder"):
        load_mano(tmp_path / "MANO_RIGHT.pkl")
    with pytest.raises(SchemaError, match="left/"):
        np.savez(tmp_path / "x.npz", a=np.zeros(2))
        load_mano(tmp_path / "x.npz")
