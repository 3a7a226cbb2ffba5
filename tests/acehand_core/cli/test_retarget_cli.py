"""Flags of the main job that concern retargeting, and what it says of a run."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.cli.console import Terminal
from acehand_core.cli.retarget import summarise
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.pipeline.report import EpisodeReport, JobReport
from helpers.commands import Acehand, Run, hands_file
from helpers.retarget_samples import moving_hands


def column(dataset: Path, name: str) -> np.ndarray:
    (file,) = dataset.glob("data/*/*.parquet")
    return np.array(pq.read_table(file)[name].to_pylist())


def calibration(dataset: Path) -> dict:
    return json.loads((dataset / "acehand/episode_000000/calibration.json").read_text())


@pytest.mark.slow
def test_a_stored_calibration_is_used_again(tmp_path, capsys):
    """Other motion of the same subject: with the file both episodes have one calibration."""
    first, longer = hands_file(tmp_path / "a.npz", 30), hands_file(tmp_path / "b.npz", 45)

    def made(name, hands, *more):
        root = tmp_path / name
        assert Run(capsys, hands, "--output", root, "--no-overlay", *more).code == 0
        return calibration(root), read_provenance(root)[0]["calibration"]

    one, own = made("first", first), made("own", longer)
    kept = tmp_path / "first/acehand/episode_000000/calibration.json"
    assert one[0]["source"].endswith("a.npz") and own[1] != one[1]
    # Its source and hash included.
    assert made("other", longer, "--calibration", kept) == one
    right = json.loads(kept.read_text())
    del right["hands"]["left"]
    (tmp_path / "right.json").write_text(json.dumps(right))
    stored, _ = made("mixed", longer, "--calibration", tmp_path / "right.json")
    assert stored["source"].endswith("b.npz") and "source" not in stored["hands"]["left"]
    assert stored["hands"]["right"]["source"].endswith("a.npz")
    assert stored["hands"]["right"]["source_sha256"] == right["source_sha256"]


def test_a_bad_calibration_or_limits_file_stops_before_any_work(tmp_path, capsys):
    hands, out, bad = hands_file(tmp_path / "a.npz", 6), tmp_path / "out", tmp_path / "bad"
    bad.write_text("{}")
    for flags, message in (
        (("--calibration", tmp_path / "none.json"), "none.json"), (("--calibration", bad), "bad"),
        (("--limits", tmp_path / "none.yaml"), "none.yaml"),
        (("--calibration", bad, "--method", "dex-vector"), "--method trajectory"),
    ):  # fmt: skip
        run = Run(capsys, hands, "--output", out, *flags)
        assert run.code == 2 and message in run.err + run.messages
        assert not out.exists()


@pytest.mark.slow
def test_commands_sent_ahead(tmp_path, capsys):
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
def test_joints_of_confidence_0_are_not_followed(tmp_path, capsys):
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
def test_exported_commands_of_a_known_subject(tmp_path, capsys):
    """With the dataset's calibration the commands of its own hands are the dataset's."""
    hands, made = hands_file(tmp_path / "a.npz", 30), tmp_path / "made"
    assert Run(capsys, hands, "--output", made, "--no-overlay").code == 0
    kept = made / "acehand/episode_000000/calibration.json"
    bent = json.loads(kept.read_text())
    bent["hands"]["right"]["translation_m"][0] += 0.02
    (tmp_path / "bent.json").write_text(json.dumps(bent))

    def exported(name, *flags):
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


@pytest.mark.slow
@pytest.mark.parametrize(("hole_s", "frames"), [(60.0, [30, 15]), (1.2, [45 + 36])])
def test_a_hole_makes_two_episodes_and_a_pause_none(tmp_path, capsys, hole_s, frames):
    """60 s at 30 Hz would be 1800 frames of one still hand; 1.2 s are 36 more."""
    times = np.round(np.arange(45) * 1e9 / 30).astype(np.int64)
    times[30:] += round(hole_s * 1e9)
    hands = hands_file(tmp_path / "h.npz", 45, timestamps_ns=times, fps=30)
    run = Run(capsys, hands, "--robot", "inspire", "--output", tmp_path / "out")
    assert [episode["frames"] for episode in run.json["episodes"]] == frames
    said = [note for note in run.json.get("notes", []) if "60.0 s" in note]
    assert len(said) == len(frames) - 1 and all("45 frames become 2" in note for note in said)


def test_a_note_of_run_and_episode_is_said_once(capsys):
    known = {"coverage": {"left": 1.0}, "tip_sigma_mm": None, "doubtful_share": 0.0}
    episode = EpisodeReport("a.mcap", 0, "pass", (), {**known, "notes": ["no CameraInfo"]})
    report = JobReport("out", 1.0, 1.0, (episode,), notes=("no CameraInfo", "cut off at byte 9"))
    summarise(report, Terminal(mock.Mock(), json=False, verbose=False, quiet=False))
    said = "".join(capsys.readouterr())
    assert said.count("no CameraInfo") == said.count("cut off at byte 9") == 1
