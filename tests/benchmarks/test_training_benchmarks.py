"""The training benchmarks: what counts as overfitted, and the size of a step."""

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("hydra")

from acehand_core.ace.model.config import ModelConfig
from benchmarks.overfit import judged
from benchmarks.train_step import step_size


def test_a_term_that_was_never_on_does_not_pass_as_overfitted() -> None:
    last, own = {"ray": 0.05, "fit": 0.2}, {"ray": 0.0, "fit": 0.0}
    rows, idle = judged({"ray": (0, 1.0), "fit": (40, 0.5)}, last, own)
    assert rows["ray"]["passes"] and not rows["fit"]["passes"]
    assert "tmp" in idle and "fit" not in idle


def test_counts_at_the_real_size() -> None:
    """The paper: 183.99 M given to the optimiser, 100.10 M reached by a gradient."""
    size = step_size(ModelConfig(), 4, 81, 672, 480, checkpointing=True)
    assert round(size.registered / 1e6, 2) == 183.99
    assert round(size.reached / 1e6, 2) == 100.10
    assert size.tokens == 21 * 21 * 15 and 2.5e9 < size.frozen < 4e9
    plain = step_size(ModelConfig(), 4, 81, 672, 480, checkpointing=False)
    assert size.activations < plain.activations / 5
    assert size.total < 80e9 < plain.total
