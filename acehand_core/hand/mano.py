"""MANO through smplx, from the user's own files, read without running code in them.

torch and smplx load with the first pose. MANO's licence is non-commercial and its files are never
bundled: https://mano.is.tue.mpg.de

Accepted are a folder with ``MANO_LEFT`` and ``MANO_RIGHT``, each the official ``.pkl`` or an
``.npz`` of the same keys; or one ``.npz`` with the keys of both hands under ``left/``, ``right/``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from acehand_core.errors import InputError, MissingDependencyError, SchemaError, nearest
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import KEYPOINT_TO_TREE, TIPS, TREE_PARENTS
from acehand_core.safe_files import safe_load_npz
from acehand_core.types import (
    SIDES,
    Betas,
    Faces,
    GlobalOrient,
    HandPose,
    Keypoints,
    Side,
    Vertices,
)
from acehand_core.unpickling import MANO_PKL, restricted_load

#: smplx's fingertip vertices, thumb to pinky; those of other toolkits differ by a few millimetres.
TIP_VERTICES = (744, 320, 443, 554, 671)

_SHAPES = {
    "v_template": (778, 3),
    "shapedirs": (778, 3, 10),
    "posedirs": (778, 3, 135),
    "J_regressor": (16, 778),
    "weights": (778, 16),
    "hands_mean": (45,),
    "hands_components": (45, 45),
    "kintree_table": (2, 16),
    "f": (1538, 3),
}
_CHUNK = 512  # rows posed at once: about 30 MB of skinning transforms

ENVIRONMENT_VARIABLE = "ACEHAND_MANO"
_WHERE = (
    "MANO is not bundled because of its non-commercial licence. Register at "
    "https://mano.is.tue.mpg.de, download 'Models & Code', and point "
    f"${ENVIRONMENT_VARIABLE} at the folder with MANO_LEFT.pkl and MANO_RIGHT.pkl."
)


@dataclass(frozen=True, slots=True)
class ManoArrays:
    """One hand's arrays under MANO's names; metres, ``J_regressor`` dense."""

    v_template: Float[np.ndarray, "778 3"]
    shapedirs: Float[np.ndarray, "778 3 10"]
    posedirs: Float[np.ndarray, "778 3 135"]
    J_regressor: Float[np.ndarray, "16 778"]
    weights: Float[np.ndarray, "778 16"]
    hands_mean: Float[np.ndarray, "45"]
    hands_components: Float[np.ndarray, "45 45"]
    kintree_table: Int[np.ndarray, "2 16"]
    f: Int[np.ndarray, "1538 3"]

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str) -> ManoArrays:
        """Return checked arrays from a mapping with MANO's names; extra names are ignored.

        Raises SchemaError naming ``source`` and the wrong key.
        """
        arrays = {}
        for key, shape in _SHAPES.items():
            if key not in data:
                raise SchemaError(
                    f"{source}: the key {key!r} is missing; {nearest(key, map(str, data))}"
                )
            value = data[key]
            value = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
            if value.shape != shape:
                raise SchemaError(f"{source}: {key!r} has shape {value.shape}, MANO's is {shape}.")
            if value.dtype.kind not in "iuf" or not np.isfinite(value).all():
                raise SchemaError(f"{source}: {key!r} must hold finite numbers.")
            whole = key in ("f", "kintree_table")
            arrays[key] = value.astype(np.int64) if whole else value.astype(np.float64)

        # The root's parent is -1 as an unsigned 32-bit number.
        if tuple(arrays["kintree_table"][0, 1:]) != TREE_PARENTS[1:]:
            raise SchemaError(f"{source}: 'kintree_table' is not MANO's tree of 16 joints.")
        if arrays["f"].min() < 0 or arrays["f"].max() >= 778:
            raise SchemaError(f"{source}: 'f' refers to vertices outside 0..777.")
        return cls(**arrays)


def shapedirs_need_repair(left: ManoArrays, right: ManoArrays) -> bool:
    """Return whether the left shape directions have the sign error of the distributed files.

    Their x rows equal the right hand's instead of mirroring them (smplx issue 48).
    """
    x_left, x_right = left.shapedirs[:, 0], right.shapedirs[:, 0]
    return bool(np.abs(x_left - x_right).sum() < np.abs(x_left + x_right).sum())


class ManoHand:
    """The ``HandModel`` named "mano".

    ``left_shapedirs_fixed`` mirrors the right hand's shape directions, as HOT3D and Re:InterHand
    do; False keeps the file's, as ARCTIC and the released ACE checkpoints do. Left betas are only
    valid with the flag they were made with.
    """

    name = "mano"

    def __init__(
        self,
        left: ManoArrays,
        right: ManoArrays,
        left_shapedirs_fixed: bool = False,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> None:
        if left_shapedirs_fixed and shapedirs_need_repair(left, right):
            left = replace(left, shapedirs=left.shapedirs * np.array([-1.0, 1.0, 1.0])[:, None])
        self.left_shapedirs_fixed = left_shapedirs_fixed
        self.dtype = dtype
        self.arrays: dict[Side, ManoArrays] = {"left": left, "right": right}
        self._layers: dict[Side, Any] = {}

    def joints(
        self, side: Side, global_orient: GlobalOrient, hand_pose: HandPose, betas: Betas
    ) -> Keypoints:
        """Return the 21 posed keypoints in metres (see ``HandModel.joints``)."""
        return self._pose(side, global_orient, hand_pose, betas)[0]

    def vertices(
        self, side: Side, global_orient: GlobalOrient, hand_pose: HandPose, betas: Betas
    ) -> Vertices:
        """Return the 778 posed vertices in metres (see ``HandModel.vertices``)."""
        return self._pose(side, global_orient, hand_pose, betas)[1]

    def faces(self, side: Side) -> Faces:
        """Return the 1538 triangles of the file."""
        return self.arrays[side].f

    def absolute_pose(
        self, side: Side, axis_angle: Float[np.ndarray, "*batch 45"], flat_hand_mean: bool
    ) -> HandPose:
        """Return finger rotations from stored rotation vectors, in radians.

        ``flat_hand_mean=False`` adds the mean pose to the 45 numbers before they become rotations,
        as smplx does; with True they are absolute.
        """
        vector = axis_angle if flat_hand_mean else axis_angle + self.arrays[side].hands_mean
        return rotations.exp(vector.reshape(*vector.shape[:-1], 15, 3))

    def expand_pca(
        self, side: Side, coefficients: Float[np.ndarray, "*batch n"]
    ) -> Float[np.ndarray, "*batch 45"]:
        """Return 45 rotation vector entries from n principal components, without the mean."""
        return coefficients @ self.arrays[side].hands_components[: coefficients.shape[-1]]

    def _pose(
        self, side: Side, global_orient: np.ndarray, hand_pose: np.ndarray, betas: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        shapes = global_orient.shape[:-2], hand_pose.shape[:-3], betas.shape[:-1]
        batch = np.broadcast_shapes(*shapes)
        flat = [
            np.broadcast_to(value, (*batch, *tail)).reshape(-1, *tail).astype(self.dtype)
            for value, tail in ((betas, (10,)), (global_orient, (3, 3)), (hand_pose, (15, 3, 3)))
        ]
        joints = np.empty((len(flat[0]), 21, 3), self.dtype)
        vertices = np.empty((len(flat[0]), 778, 3), self.dtype)
        for start in range(0, len(joints), _CHUNK):
            rows = slice(start, start + _CHUNK)
            joints[rows], vertices[rows] = self._pose_rows(side, *(value[rows] for value in flat))
        return joints.reshape(*batch, 21, 3), vertices.reshape(*batch, 778, 3)

    def _pose_rows(
        self, side: Side, betas: np.ndarray, global_orient: np.ndarray, hand_pose: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        layer = self._layer(side)
        import torch

        with torch.no_grad():
            posed = layer(
                betas=torch.from_numpy(betas),
                global_orient=torch.from_numpy(global_orient[:, None]),
                hand_pose=torch.from_numpy(hand_pose),
            )
        vertices, tree = posed.vertices.numpy(), posed.joints.numpy()
        joints = tree[:, KEYPOINT_TO_TREE]
        joints[:, TIPS] = vertices[:, TIP_VERTICES]
        return joints, vertices

    def _layer(self, side: Side) -> Any:
        if side not in self._layers:
            # smplx's layer on rotation matrices, built from memory.
            arrays = self.arrays[side]
            try:
                import smplx
                import torch
                from smplx.utils import Struct
            except ImportError as error:
                raise MissingDependencyError(
                    f"MANO needs the packages smplx and torch ({error}): pip install smplx torch."
                ) from error

            class Layer(smplx.MANOLayer):
                SHAPE_SPACE_DIM = 10  # below 300 smplx prints a warning

            fields = {name: getattr(arrays, name) for name in _SHAPES}
            self._layers[side] = Layer(
                model_path="",
                data_struct=Struct(**fields),
                is_rhand=side == "right",
                dtype=getattr(torch, self.dtype),
            ).eval()
        return self._layers[side]


def find_mano(path: Path | None = None) -> Path:
    """Return the folder or file with the user's MANO: ``path``, else ``$ACEHAND_MANO``.

    Raises MissingDependencyError without either, InputError without MANO files there.
    """
    if path is None:
        value = os.environ.get(ENVIRONMENT_VARIABLE)
        if not value:
            raise MissingDependencyError(f"MANO is needed, but not configured. {_WHERE}")
        path = Path(value).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder. {_WHERE}")
    for folder in (path, path / "models", path / "mano"):
        if all(_candidates(folder, side) for side in SIDES):
            return folder
    raise InputError(f"{path}: no MANO_LEFT or MANO_RIGHT (.pkl or .npz). {_WHERE}")


def load_mano(
    path: Path | None = None,
    left_shapedirs_fixed: bool = False,
    dtype: Literal["float32", "float64"] = "float32",
) -> ManoHand:
    """Return the user's MANO: a folder or one ``.npz`` of both hands, default ``$ACEHAND_MANO``.

    Raises UnsafeFileError for a file that asks for code to be run, SchemaError naming file and key,
    else as ``find_mano``.
    """
    place = find_mano(path)
    if place.is_file():
        arrays = _read_both(place)
    else:
        arrays = {side: _read_side(_candidates(place, side)[0]) for side in SIDES}
    return ManoHand(arrays["left"], arrays["right"], left_shapedirs_fixed, dtype)


def _candidates(folder: Path, side: Side) -> list[Path]:
    paths = [folder / f"MANO_{side.upper()}{suffix}" for suffix in (".pkl", ".npz")]
    return [path for path in paths if path.is_file()]


def _read_side(path: Path) -> ManoArrays:
    if path.suffix.lower() == ".npz":
        data: Any = safe_load_npz(path)
    else:
        data = restricted_load(path, MANO_PKL, "MANO .pkl")
    if not isinstance(data, dict):
        raise SchemaError(f"{path}: holds a {type(data).__name__}; MANO's named arrays are needed.")
    # The files store more shape directions than the ten of MANO.
    shapes = data.get("shapedirs")
    if isinstance(shapes, np.ndarray) and shapes.ndim == 3 and shapes.shape[-1] > 10:
        data = {**data, "shapedirs": shapes[..., :10]}
    return ManoArrays.from_mapping(data, str(path))


def _read_both(path: Path) -> dict[Side, ManoArrays]:
    if path.suffix.lower() != ".npz":
        raise InputError(
            f"{path}: valid: an .npz with left/ and right/ keys, or the folder with MANO_LEFT.pkl "
            "and MANO_RIGHT.pkl."
        )

    data = safe_load_npz(path)
    hands: dict[Side, ManoArrays] = {}
    for side in SIDES:
        own = {k.partition("/")[2]: v for k, v in data.items() if k.startswith(f"{side}/")}
        hands[side] = ManoArrays.from_mapping(own, f"{path} ({side}/)")
    return hands
