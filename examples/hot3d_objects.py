"""Tracked objects of a HOT3D recording as a file for ``--objects``.

    python examples/hot3d_objects.py RECORDING MODELS objects.json

RECORDING has HOT3D's ``dynamic_objects.csv``; MODELS one mesh per object, ``UID.obj`` or
``UID.stl``, in metres (HOT3D's are glTF files: Blender or trimesh converts them). A mesh counts as
its convex hull. Masses are not part of HOT3D: all objects get the same.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from acehand_core import write_objects
from acehand_core.geometry import frames, rotations
from acehand_core.motion import ObjectPart, ObjectTrack, TrackedObject

MASS_KG, FRICTION = 0.3, 1.0
UP = np.array([0.0, 0.0, 1.0])  # of the world of Aria's trajectories
PLACE = [f"t_wo_{axis}[m]" for axis in "xyz"]
TURN = [f"q_wo_{axis}" for axis in "wxyz"]


def main(recording: Path, models: Path, output: Path) -> None:
    poses: dict[str, list[list[float]]] = defaultdict(list)
    times: dict[str, list[int]] = defaultdict(list)
    with (recording / "dynamic_objects.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            uid = row["object_uid"]
            times[uid].append(int(row["timestamp[ns]"]))
            poses[uid].append([float(row[name]) for name in (*PLACE, *TURN)])

    objects = []
    for uid, rows in poses.items():
        meshes = [*models.glob(f"{uid}.obj"), *models.glob(f"{uid}.stl")]
        if not meshes:
            print(f"no mesh of {uid} in {models}: left out")
            continue
        values = np.array(rows)
        T_world_object = frames.rigid(rotations.from_quaternion(values[:, 3:]), values[:, :3])
        parts = (ObjectPart("mesh", (1.0,), mesh=str(meshes[0].resolve())),)
        stamps = np.array(times[uid])
        objects.append(TrackedObject(uid, parts, MASS_KG, FRICTION, stamps, T_world_object))
    write_objects(ObjectTrack("world", UP, tuple(objects)), output)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
