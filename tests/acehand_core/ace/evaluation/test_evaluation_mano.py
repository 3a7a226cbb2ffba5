"""MANO ground truth from native files to scores: every number follows from a known perturbation.

Predictions are a dataset's own numbers, turned and moved by known amounts. What the scores must be
is worked out here from joints that smplx posed; nothing of acehand takes part in it.
"""

from dataclasses import dataclass

import cv2
import numpy as np
import pytest

from helpers import native_samples
from helpers.commands import Acehand

pytest.importorskip("smplx")
pytest.importorskip("torch")

#: Around each wrist, degrees, and away from it, camera frame, metres: 13 mm long. Small, because
#: the two hands of the samples cover each other: a box must fit its own hand best.
TURN_DEG = 3.0
MOVE = np.array([-0.003, -0.004, -0.012])


@dataclass
class Case:
    """A test recording of a dataset: its stored numbers, camera and true joints."""

    labels: native_samples.Labels
    truth: native_samples.Truth
    T_camera_world: np.ndarray
    K: np.ndarray
    size: tuple[int, int]
    flat: bool
    missed: tuple[int, int]  # the hand that the prediction misses: the last labelled right one
    unlabelled: np.ndarray  # (T, 2); hands are predicted there too, and nothing is made of it


def h2o(hands, truths):
    """Camera frame, mean pose in the vectors."""
    T = np.tile(np.eye(4), (5, 1, 1))
    labels = native_samples.world_labels(hands, np.random.default_rng(11), T, flat=True)
    K = np.array([[300.0, 0, 150], [0, 301, 88], [0, 0, 1]])
    truth = truths["subject4_h1_0_cam4"]
    return Case(labels, truth, T, K, (320, 180), True, (4, 1), ~truth.present)


def arctic(hands, truths):
    """World frame, mean pose left out, distorted pictures made straight."""
    random = np.random.default_rng(1)
    T = native_samples.camera_path(random, 54)
    labels = native_samples.world_labels(hands, random, T, flat=False)
    K = np.array([[150.0, 0, 141], [0, 151, 99], [0, 0, 1]])
    rows = [0, 0, *range(6), 0]  # where there is no label any will do
    for name in ("orient", "fingers", "translation", "joints"):
        setattr(labels, name, getattr(labels, name)[rows])
    truth = truths["s05_box_grab_01_view0"]
    unlabelled = np.ones((9, 2), bool)
    unlabelled[2:8] = False
    return Case(labels, truth, T[rows], K, (280, 200), False, (7, 1), unlabelled)


def turn_of():
    return cv2.Rodrigues(np.radians(TURN_DEG) * np.array([2.0, -1, 2]) / 3)[0]


def prediction(case):
    """The stored numbers, perturbed, as a method would give them: generic npz, millimetres."""
    count = len(case.truth.present)
    R_cw = case.T_camera_world[:, :3, :3]
    orient = np.zeros((count, 2, 3, 3))
    for row in range(count):
        for slot in range(2):
            stored = cv2.Rodrigues(case.labels.orient[row, slot])[0]
            orient[row, slot] = R_cw[row].T @ turn_of() @ R_cw[row] @ stored
    moved = case.labels.translation[:count] + np.einsum("tji,j->ti", R_cw, MOVE)[:, None]
    moved[case.missed] = np.nan
    return {
        "global_orient": orient, "hand_pose": case.labels.fingers[:count],
        "betas": case.labels.betas, "transl": 1000 * moved, "unit": "mm", "translation": "mano",
        "flat_hand_mean": case.flat, "left": "true", "left_shapedirs_fixed": False,
        "T_camera_world": case.T_camera_world,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "make"), [("h2o", h2o), ("arctic", arctic)])
def test_a_known_perturbation_of_mano_labels(capsys, tmp_path, mano_file, name, make):
    """Convert, list segments, import, evaluate: all on the command line."""
    hands = native_samples.Hands(mano_file)
    (tmp_path / "native").mkdir()
    case = make(hands, native_samples.WRITERS[name](tmp_path / "native", hands))
    count = len(case.truth.present)

    def acehand(*words):
        run = Acehand(capsys, *words)
        assert run.code == 0, run.err
        return run.json

    store, chosen = tmp_path / "clips" / "test", tmp_path / "list.json"
    acehand("data", "convert", name, "--root", tmp_path / "native", "--output", store.parent,
            "--mano", mano_file, "--images", "none" if name == "h2o" else "auto",
            "--split", "test")  # fmt: skip
    listed = acehand("evaluate", "--ground-truth", store, "--write-segments", chosen,
                     "--segment-length", count)  # fmt: skip
    assert listed["count"] == 1
    raw = tmp_path / "raw"
    raw.mkdir()
    (clip,) = (path.name for path in (store / "clips").iterdir())
    np.savez(raw / f"{name}--{clip}--000000.npz", **prediction(case))
    truth = ("--ground-truth", store, "--segments", chosen, "--mano", mano_file)
    found = acehand("evaluate", "--predictions", raw, "--method", "generic", *truth,
                    "--picture-size", "stored")  # fmt: skip
    assert found["hand_model"] == "mano" and found["segments"]["sha256"] == listed["sha256"]
    assert found["counts"]["iv"] == case.truth.present.sum() and found["counts"]["fp"] == 0
    assert found["counts"]["unlabelled"] == case.unlabelled.sum() > 0
    hits = case.truth.present.sum() - 1
    frames = (~case.unlabelled).any(1).sum()
    for key, value in (("facc", 1 - 1 / frames), ("recall", hits / (hits + 1))):
        assert found["metrics"][key] == pytest.approx(value)
    off = (case.truth.joints - case.truth.joints[:, :, :1]) @ (turn_of().T - np.eye(3))
    off[case.missed] = np.nan
    mpjpe = 1000 * np.nanmean(np.linalg.norm(off, axis=-1))
    assert found["matched"]["mpjpe"] == pytest.approx(mpjpe, rel=1e-6)
    assert found["matched"]["go"] == pytest.approx(TURN_DEG, rel=1e-6)
    assert found["matched"]["ct"] == pytest.approx(0.013, rel=1e-6)
    assert found["matched"]["pa"] < 1e-6
