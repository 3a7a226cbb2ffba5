"""The user's own MANO files, read without running them.

Accepted: a folder with ``MANO_LEFT`` and ``MANO_RIGHT``, each the official ``.pkl`` or an ``.npz``
of the same keys; or one ``.npz`` with the keys of both hands under ``left/`` and ``right/``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from acehand_core.errors import InputError, MissingDependencyError, SchemaError
from acehand_core.files.safe_files import safe_load_npz
from acehand_core.files.unpickling import MANO_PKL, restricted_load
from acehand_core.hand.mano import ManoArrays, ManoHand
from acehand_core.types import SIDES, Side

ENVIRONMENT_VARIABLE = "ACEHAND_MANO"
_WHERE = (
    "MANO is not bundled: its licence is non-commercial and each user agrees to it alone. Register "
    "at https://mano.is.tue.mpg.de, download 'Models & Code', and point "
    f"${ENVIRONMENT_VARIABLE} at the folder that holds MANO_LEFT.pkl and MANO_RIGHT.pkl."
)


def find_mano(path: Path | None = None) -> Path:
    """Return the folder or file with the user's MANO: ``path``, else ``$ACEHAND_MANO``.

    Raises:
        MissingDependencyError: neither is given. InputError: nothing usable is there. Both say
            where MANO comes from.
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
    raise InputError(f"{path}: MANO_LEFT or MANO_RIGHT (.pkl or .npz) is not there. {_WHERE}")


def load_mano(
    files: Path | Mapping[Side, Path] | None = None,
    left_shapedirs_fixed: bool = False,
    dtype: Literal["float32", "float64"] = "float32",
) -> ManoHand:
    """Return the user's MANO.

    Args:
        files: a folder, one ``.npz`` of both hands, or a path per side; default ``$ACEHAND_MANO``.
        left_shapedirs_fixed: see ``ManoHand``.
        dtype: in which smplx computes.

    Raises:
        UnsafeFileError: a file asks for code to be run. SchemaError: naming file and key.
        MissingDependencyError, InputError: as ``find_mano``.
    """
    if isinstance(files, Mapping):
        missing = [side for side in SIDES if side not in files]
        if missing:
            raise InputError(f"MANO: no file for the {missing[0]} hand; both are needed.")
        arrays = {side: _read_side(files[side]) for side in SIDES}
    else:
        found = find_mano(files)
        if found.is_file():
            arrays = _read_both(found)
        else:
            arrays = {side: _read_side(_candidates(found, side)[0]) for side in SIDES}
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
        raise SchemaError(f"{path}: holds a {type(data).__name__}, not MANO's named arrays.")
    # The files store a longer basis of shapes, of which MANO uses ten.
    shapes = data.get("shapedirs")
    if getattr(shapes, "ndim", 0) == 3 and shapes.shape[-1] > 10:
        data = {**data, "shapedirs": shapes[..., :10]}
    return ManoArrays.from_mapping(data, str(path))


def _read_both(path: Path) -> dict[Side, ManoArrays]:
    if path.suffix.lower() != ".npz":
        raise InputError(
            f"{path}: one file must be an .npz with left/ and right/ keys; for MANO_LEFT.pkl and "
            "MANO_RIGHT.pkl give their folder."
        )
    data = safe_load_npz(path)
    sides = {
        side: {
            key.partition("/")[2]: value
            for key, value in data.items()
            if key.startswith(f"{side}/")
        }
        for side in SIDES
    }
    return {side: ManoArrays.from_mapping(sides[side], f"{path} ({side}/)") for side in SIDES}
