"""The example clip as a dataset whose hands are the rendered truth, for tests of the report."""

from __future__ import annotations

from pathlib import Path

from helpers.commands import first_run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def true_dataset(folder: Path, overlay: bool = False) -> Path:
    """Write the dataset: one episode of 120 frames with both hands."""
    first_run(
        EXAMPLES / "two_hands.mp4", "--tracker", EXAMPLES / "two_hands_truth.parquet",
        "--robot", "inspire", "--output", folder, "--task", "lift <two> blocks",
        "--subject", "anna", *([] if overlay else ["--no-overlay"]),
    )  # fmt: skip
    return folder
