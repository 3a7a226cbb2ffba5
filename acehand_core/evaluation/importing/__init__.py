"""Other methods' outputs as predictions, one HandMotion table per segment.

What each writes, and how a user saves what it does not write, is in docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.atomic import check_free
from acehand_core.errors import InputError, nearest
from acehand_core.evaluation.ground_truth import GroundTruth
from acehand_core.evaluation.importing.generic import Generic
from acehand_core.evaluation.importing.methods import read_crops, read_dynhamr, read_hawor
from acehand_core.evaluation.importing.records import Hands, to_motion
from acehand_core.evaluation.models import HandLibrary
from acehand_core.evaluation.predictions import SUFFIX, check_prediction
from acehand_core.motion import HandMotion, Provenance
from acehand_core.recordings.hand_table import write_hand_motion

Reader = Callable[[Path, str, HandMotion, HandLibrary], tuple[Hands, list[str]]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Method:
    """How one method's output is read."""

    read: Reader
    about: str


_FREE = Generic({})
#: Methods by the name that ``acehand evaluate import`` takes.
METHODS: dict[str, Method] = {
    "hamer": Method(read_crops, "HaMeR: npz of crops per segment"),
    "wilor": Method(read_crops, "WiLoR: npz of crops per segment"),
    "hamba": Method(read_crops, "Hamba: npz of crops per segment, HaMeR's conventions"),
    "hawor": Method(read_hawor, "HaWoR: cam_space JSON, one video folder per segment"),
    "dynhamr": Method(read_dynhamr, "Dyn-HaMR: results npz per segment"),
    "interwild": Method(
        Generic({"flat_hand_mean": False, "left_shapedirs_fixed": True, "left": "true"}),
        "InterWild: generic file, its MANO conventions known",
    ),
    "wildhands": Method(_FREE, "WildHands: generic file"),
    "omnihands": Method(_FREE, "OmniHands: generic file"),
    "egoforce": Method(_FREE, "EgoForce: generic file"),
    "vidihand": Method(_FREE, "ViDiHand: generic file"),
    "mint": Method(_FREE, "MINT: generic file"),
    "generic": Method(_FREE, "any method: npz or parquet of MANO parameters or 21 joints"),
}


def import_predictions(
    method: str,
    source: Path,
    truth: GroundTruth,
    output: Path,
    library: HandLibrary,
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Write the predictions of every segment; return how many and what had to be assumed.

    Everything is read and checked before the first file is written, and what a stopped run wrote
    is taken away, so that the same command can be given again.

    Raises:
        InputError: an unknown method, or a segment without output. SchemaError: output that does
            not have its format. OutputError: a file exists, or cannot be written.
    """
    if method not in METHODS:
        raise InputError(f"no importer is named {method!r}; {nearest(method, METHODS)}")
    if not source.is_dir():
        raise InputError(f"{source}: no such folder of {method}'s output.")
    files = {segment: output / f"{segment}{SUFFIX}" for segment in truth.segments}
    for path in files.values():
        check_free(path, overwrite)
    notes: list[str] = []
    motions = {}
    for done, segment in enumerate(truth.segments):
        progress("importing", done, len(truth.segments))
        motions[segment], said = _read(method, source, segment, truth, library)
        notes += [note for note in said if note not in notes]
    _write_all({files[segment]: motion for segment, motion in motions.items()}, overwrite)
    progress("importing", len(truth.segments), len(truth.segments))
    return {"method": method, "segments": len(truth.segments), "notes": notes}


def _read(
    method: str, source: Path, segment: str, truth: GroundTruth, library: HandLibrary
) -> tuple[HandMotion, list[str]]:
    target = truth.truth(segment)
    if target.camera is None:
        raise InputError(f"{segment}: the ground truth has no camera, which importing needs.")
    hands, said = METHODS[method].read(source, segment, target, library)
    provenance = Provenance(
        source=segment,
        source_sha256=None,
        tracker=method,
        settings={"imported": True},
        notes=tuple(said),
    )
    where = f"{source}: {segment}"
    motion = _unposed(to_motion(hands, target, library, provenance, where))
    check_prediction(motion, target, where, library)
    return motion, said


def _write_all(motions: Mapping[Path, HandMotion], overwrite: bool) -> None:
    """Write all files, or leave none that was not there before."""
    new = [path for path in motions if not path.exists()]
    try:
        for path, motion in motions.items():
            write_hand_motion(motion, path, overwrite)
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        raise


def _unposed(motion: HandMotion) -> HandMotion:
    """Return joints alone with rotations and translation unknown, as a HandMotion has them."""
    if motion.hand_model != "none":
        return motion
    from dataclasses import replace

    names = ("global_orient", "hand_pose", "translation")
    return replace(motion, **{n: np.full_like(getattr(motion, n), np.nan) for n in names})
