"""Flags of the main job that concern retargeting: calibrations, gates, latency, second pass."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.lerobot.dataset import read_provenance
from helpers.commands import Acehand, Run, hands_file
from helpers.retarget_samples import moving_hands


def column(dataset: Path, name: str) -> np.ndarray:
    (file,) = dataset.glob("data/*/*.parquet")
    return np.array(pq.read_table(file)[name].to_pylist())


def calibration(dataset: Path) -> dict:
    return json.loads((dataset / "acehand/episode_000000/calibration.json").read_text())


@pytest.mark.slow
def test_a_stored_calibration_is_used_again(tmp_path: Path, capsys) -> None:
    """Other motion of the same subject: with the file both episodes have one calibration."""
    first, other = tmp_path / "first", tmp_path / "other"
    assert Run(capsys, hands_file(tmp_path / "a.npz", 30), "--output", first).code == 0
    kept = first / "acehand" / "episode_000000" / "calibration.json"
    assert json.loads(kept.read_text())["source"].endswith("a.npz")
    longer = hands_file(tmp_path / "b.npz", 45)
    assert Run(capsys, longer, "--output", other, "--calibration", kept).code == 0
    (made,), (used,) = (read_provenance(d) for d in (first, other))
    assert used["calibration"] == made["calibration"]
    assert calibration(other) == calibration(first)  # its source and hash included
    right = json.loads(kept.read_text())
    del right["hands"]["left"]
    half = tmp_path / "right.json"
    half.write_text(json.dumps(right))
    mixed = tmp_path / "mixed"
    assert Run(capsys, longer, "--output", mixed, "--calibration", half, "--no-overlay").code == 0
    stored = calibration(mixed)
    assert stored["source"].endswith("b.npz")
    assert "source" not in stored["hands"]["left"]
    assert stored["hands"]["right"]["source"].endswith("a.npz")
    assert stored["hands"]["right"]["source_sha256"] == right["source_sha256"]
    own = tmp_path / "own"
    assert Run(capsys, longer, "--output", own).code == 0
    assert read_provenance(own)[0]["calibration"] != made["calibration"]


def test_a_bad_calibration_or_gates_file_stops_before_any_work(tmp_path: Path, capsys) -> None:
    hands, out = hands_file(tmp_path / "a.npz", 6), tmp_path / "out"
    bad = tmp_path / "bad"
    bad.write_text("{}")
    cases = [
        (("--calibration", tmp_path / "none.json"), "none.json: cannot be read"),
        (("--calibration", bad), "is not a calibration file"),
        (("--gates", tmp_path / "none.yaml"), "none.yaml: cannot be read"),
        (("--calibration", bad, "--method", "dex-vector"), "--method trajectory"),
    ]
    for flags, message in cases:
        run = Run(capsys, hands, "--output", out, *flags)
        assert run.code == 2 and message in run.err + run.messages
        assert not out.exists()


def test_gates_decide_the_verdict(tmp_path: Path, capsys) -> None:
    hands, gates = hands_file(tmp_path / "a.npz", 12), tmp_path / "gates.yaml"
    gates.write_text("tracking_rad: {warn: 0, fail: 0}\n")
    run = Run(capsys, hands, "--dry-run", "--gates", gates)
    (episode,) = run.json["episodes"]
    assert episode["verdict"] == "fail"
    assert any("follows with" in reason for reason in episode["reasons"])


@pytest.mark.slow
def test_commands_sent_ahead(tmp_path: Path, capsys) -> None:
    """Registers two frames early; the motion itself is the same."""
    hands = hands_file(tmp_path / "a.npz", 30)
    for name in ("off", "ahead"):
        flags = ("--output", tmp_path / name, "--latency", name)
        assert Run(capsys, hands, *flags, "--no-second-pass").code == 0
    state, register = "observation.state", "action.register"
    assert np.array_equal(*(column(tmp_path / n, state) for n in ("off", "ahead")))
    off, ahead = (column(tmp_path / n, register) for n in ("off", "ahead"))
    early = 0.066 * 30
    assert np.abs(off - ahead).max() > 1
    for name, other in (("off", "ahead"), ("ahead", "off")):
        flags = ("--output", tmp_path / name, "--latency", other, "--append", "--no-overlay")
        mixed = Run(capsys, hands, *flags, "--no-second-pass")
        assert mixed.code == 2 and "info of 'action.register' is" in mixed.messages
        assert "sent_ahead_s" in mixed.messages
    info = json.loads((tmp_path / "ahead/meta/info.json").read_text())
    assert info["features"]["action.register"]["info"]["sent_ahead_s"] == 0.066
    expected = off[1:-1] + (early - 1) * (off[2:] - off[1:-1])
    assert np.abs(ahead[: len(expected)] - expected).max() < 0.01 * 1000 / 30


@pytest.mark.slow
def test_joints_of_confidence_0_are_not_followed(tmp_path: Path, capsys) -> None:
    """The calibration and the rest of the clip are those of a clip whose span is missing."""
    joints, confidence = moving_hands(60), np.ones(60)
    joints[20:30] = joints[20:30][::-1] + np.array([0.1, 0.0, 0.0])
    confidence[20:30] = 0
    doubtful = hands_file(tmp_path / "doubtful.npz", joints=joints, confidence=confidence)
    run = Run(capsys, doubtful, "--output", tmp_path / "doubtful", "--no-overlay")
    assert run.code == 0
    assert "16.7% of the left hand's frames have confidence 0" in str(run.json["episodes"])
    joints[20:30] = np.nan
    missing = hands_file(tmp_path / "missing.npz", joints=joints)
    assert Run(capsys, missing, "--output", tmp_path / "missing", "--no-overlay").code == 0
    a, b = (calibration(tmp_path / name)["hands"] for name in ("doubtful", "missing"))
    for side in ("left", "right"):
        assert np.array(a[side]["rotation"]) == pytest.approx(np.array(b[side]["rotation"]))
        assert np.array(a[side]["translation_m"]) == pytest.approx(b[side]["translation_m"])
    nothing = hands_file(tmp_path / "nothing.npz", confidence=np.zeros(12))
    run = Run(capsys, nothing, "--output", tmp_path / "nothing")
    assert run.code == 3 and "The joints of 12 frames have confidence 0" in run.messages


@pytest.mark.slow
def test_exported_commands_of_a_known_subject(tmp_path: Path, capsys) -> None:
    """With the dataset's calibration the commands of its own hands are the dataset's."""
    hands, made = hands_file(tmp_path / "a.npz", 30), tmp_path / "made"
    assert Run(capsys, hands, "--output", made, "--no-overlay").code == 0
    kept = made / "acehand/episode_000000/calibration.json"
    bent = json.loads(kept.read_text())
    bent["hands"]["right"]["translation_m"][0] += 0.02
    (tmp_path / "bent.json").write_text(json.dumps(bent))

    def exported(name: str, *flags: object) -> np.ndarray:
        run = Acehand(capsys, "export", hands, tmp_path / name, "--robot", "inspire", *flags)
        assert run.code == 0, run.err
        return np.loadtxt(tmp_path / name, delimiter=",", skiprows=1)

    plain = exported("plain.csv", "--calibration", kept)
    registers = column(made, "action.register")
    assert np.abs(plain[:, [*range(1, 7), *range(8, 14)]] - registers).max() <= 0.51
    other = exported("other.csv", "--calibration", tmp_path / "bent.json")
    assert np.abs(other - plain)[:, 8:14].max() > 20 and np.array_equal(other[:, :8], plain[:, :8])
    ahead = exported("ahead.csv", "--calibration", kept, "--latency", "ahead")
    assert np.abs(ahead[:-3, 1:5] - plain[2:-1, 1:5]).max() < 3  # 66 ms are about two frames
    assert np.abs(ahead - plain)[:, 1:5].max() > 20
    run = Acehand(capsys, "export", hands, tmp_path / "b.csv", "--latency", "ahead")
    assert run.code == 2 and "need --robot" in run.err
    leap = ("export", hands, tmp_path / "b.csv", "--robot", "leap", "--calibration", kept)
    assert Acehand(capsys, *leap).code == 2 and not (tmp_path / "b.csv").exists()
