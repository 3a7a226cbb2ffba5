"""Weights of the ace tracker, named by a flag or by the environment."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from acehand_core.ace.settings import ENVIRONMENT_VARIABLE, AceSettings
from acehand_core.cli import console
from acehand_core.errors import AcehandError, InputError

#: Why ``--tracker auto`` leaves weights alone (see ``trackers.base.resolved_name``).
_NOT_AUTOMATIC = {
    "synthetic": "trained on synthetic clips alone",
    "unknown": "it is not recorded what they were trained on",
}


def usable_weights(ace: AceSettings, tracker: str) -> AceSettings:
    """Return the ace tracker's settings with weights that ``tracker`` may use, or without any.

    Raises:
        InputError: weights were named that would not be used.
    """
    from_environment = ace.weights is None
    weights = ace.weights or os.environ.get(ENVIRONMENT_VARIABLE)
    if not weights:
        return ace
    if tracker not in ("auto", "ace"):
        if from_environment:
            return ace
        raise InputError(f"--weights is for --tracker ace, not {tracker}.")

    settings = replace(ace, weights=Path(weights))
    try:
        kind = settings.trained_on() if tracker == "auto" else "real"
    except AcehandError:  # said where they are used: a file of hands needs none
        return settings
    if kind == "real":
        return settings
    reason = _NOT_AUTOMATIC[kind]
    if not from_environment:
        raise InputError(f"--weights {weights}: {reason}; say --tracker ace to use them.")
    console.say(f"${ENVIRONMENT_VARIABLE}={weights}: {reason}; used with --tracker ace only")
    return ace
