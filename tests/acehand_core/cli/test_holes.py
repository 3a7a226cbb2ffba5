"""Holes in the time stamps: what was not recorded is no demonstration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.commands import Run, hands_file


def stamps(count: int, hole_at: int, hole_s: float) -> np.ndarray:
    times = np.round(np.arange(count) * 1e9 / 30).astype(np.int64)
    times[hole_at:] += round(hole_s * 1e9)
    return times


@pytest.mark.slow
@pytest.mark.parametrize(("hole_s", "frames"), [(60.0, [30, 15]), (1.2, [45 + 36])])
def test_a_hole_makes_two_episodes_and_a_pause_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hole_s: float, frames: list[int]
) -> None:
    """60 s at 30 Hz would be 1800 frames of one still hand; 1.2 s are 36 more."""
    hands = hands_file(tmp_path / "h.npz", 45, timestamps_ns=stamps(45, 30, hole_s), fps=30)
    run = Run(capsys, hands, "--robot", "inspire", "--output", tmp_path / "out")
    assert [episode["frames"] for episode in run.json["episodes"]] == frames
    said = [
        note
        for note in run.json.get("notes", [])
        if "nothing was recorded for up to 60.0 s" in note
    ]
    assert len(said) == len(frames) - 1
    if said:
        assert "45 frames become 2 episodes" in said[0]


def test_one_frame_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(capsys, hands_file(tmp_path / "h.npz", 1), "--robot", "inspire",
              "--output", tmp_path / "out")  # fmt: skip
    [episode] = run.json["episodes"]
    assert episode["verdict"] == "warn" and "one frame" in " ".join(episode["reasons"])
