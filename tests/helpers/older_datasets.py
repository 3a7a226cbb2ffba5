"""Datasets as they were written before features became flat vectors and paths were left out.

Nor did they say which hands are valid, nor which frame and topic the pictures of a bag are of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acehand_core.hand.skeleton import FINGER_JOINT_NAMES, KEYPOINT_NAMES

SIDES = ["left", "right"]
#: What is younger: a column, and entries of the provenance's settings.
VALID = "hand.valid"
SAID_OF_BAGS = ("camera_frame", "image_topic")
AXES = ["x", "y", "z"]
ROTATION = ["r11", "r21", "r31", "r12", "r22", "r32"]
FINGERS = [*FINGER_JOINT_NAMES]
JOINTS = {"hand": SIDES, "joint": [*KEYPOINT_NAMES], "axis": AXES}
NAMES: dict[str, dict[str, list[str]]] = {
    "observation.hand.joints_camera": JOINTS,
    "observation.hand.joints_wrist": JOINTS,
    "observation.hand.global_orient": {"hand": SIDES, "rotation": ROTATION},
    "observation.hand.hand_pose": {"hand": SIDES, "joint": FINGERS, "rotation": ROTATION},
    "observation.hand.betas": {"hand": SIDES, "beta": [f"beta{i}" for i in range(10)]},
    "observation.hand.translation": {"hand": SIDES, "axis": AXES},
}
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def age(root: Path, folder: Path) -> Path:
    """Turn a new dataset into an old one whose sources lay in ``folder``; return it."""
    info = json.loads((root / "meta/info.json").read_text())
    shapes = {
        key: [len(n) for n in NAMES[key].values()] for key in NAMES if key in info["features"]
    }
    for key, shape in shapes.items():
        feature = info["features"][key]
        feature |= {"shape": shape, "names": NAMES[key]}
        del feature["info"]["axes"]
    del info["features"][VALID]
    (root / "meta/info.json").write_text(json.dumps(info, indent=4) + "\n")

    values: dict[str, list[np.ndarray]] = {key: [] for key in shapes}
    for path in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(path, partitioning=None).drop_columns([VALID])
        for key, shape in shapes.items():
            array = np.array(table[key].to_pylist(), np.float32).reshape(-1, *shape)
            values[key].append(array)
            kind = pa.float32()
            for _ in shape:
                kind = pa.list_(kind)
            column = table.column_names.index(key)
            table = table.set_column(column, key, pa.array(array.tolist(), kind))
        record = json.loads(table.schema.metadata[b"acehand.provenance"])
        _place(record, folder)
        metadata = table.schema.metadata | {b"acehand.provenance": json.dumps(record).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path, write_page_checksum=True)

    for number, path in enumerate(sorted(root.glob("meta/episodes/*/*.parquet"))):
        table = pq.read_table(path, partitioning=None)
        for key in shapes:
            for name, value in _stats(values[key][number]).items():
                column = table.column_names.index(f"stats/{key}/{name}")
                table = table.set_column(column, f"stats/{key}/{name}", pa.array([value]))
        younger = [name for name in table.column_names if name.startswith(f"stats/{VALID}/")]
        table = table.drop_columns(younger)
        pq.write_table(table, path)
    stats = json.loads((root / "meta/stats.json").read_text())
    del stats[VALID]
    stats |= {key: _stats(np.concatenate(values[key])) for key in shapes}
    (root / "meta/stats.json").write_text(json.dumps(stats, indent=4) + "\n")

    for path in root.glob("acehand/*/*.json"):
        content = json.loads(path.read_text())
        _place(content, folder)
        path.write_text(json.dumps(content, indent=2) + "\n")
    for path in root.glob("acehand/*/hand_motion.parquet"):
        table = pq.read_table(path)
        header = json.loads(table.schema.metadata[b"acehand"])
        _place(header, folder)
        pq.write_table(
            table.replace_schema_metadata({b"acehand": json.dumps(header).encode()}), path
        )
    return root


def _stats(values: np.ndarray) -> dict[str, list[Any]]:
    """Return statistics pooled over all axes but the last."""
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    out = {name: getattr(flat, name)(axis=0) for name in ("min", "max", "mean", "std")}
    out |= {name: np.quantile(flat, share, axis=0) for name, share in _QUANTILES.items()}
    return {name: value.tolist() for name, value in out.items()} | {"count": [len(values)]}


def _place(content: dict[str, Any], folder: Path) -> None:
    """Put every source into the folder again, and forget what was not kept then."""
    for key in SAID_OF_BAGS:
        content.pop(key, None)
    for key, value in content.items():
        if isinstance(value, dict):
            _place(value, folder)
        elif key in ("source", "input") and isinstance(value, str):
            content[key] = str(folder / value)
