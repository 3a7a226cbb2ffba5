"""Whose weights these are. None of them is part of this project or comes with it."""

from __future__ import annotations

CHECKPOINT = (
    "ACE-Ego-Hand checkpoint: CC BY-NC 4.0 (no commercial use; derived from MANO and research "
    "datasets)"
)
BASE = "Wan2.2-Fun-5B-Control transformer and Wan 2.2 VAE: Apache-2.0"
RELEASED = f"{CHECKPOINT}; {BASE}"
NOT_BUNDLED = (
    "The weights are the work of others and are not part of acehand; you fetch them yourself and "
    "their licences bind what you do with them."
)


def text(licence: str) -> str:
    """Return what ``LICENSE.txt`` beside converted weights says."""
    return (
        f"Licence of the weights in this folder:\n\n    {licence or 'not stated by the source'}\n\n"
        "They were converted to another file format and not changed otherwise. The licence of\n"
        "the software that converted them (Apache-2.0) does not apply to them.\n"
    )
