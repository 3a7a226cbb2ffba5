"""Flags of ``--tracker ace``, for the commands that take a tracker."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from acehand_core.cli import console
from acehand_core.errors import AcehandError, InputError

#: Weights of a user who does not want to name them every time.
ENVIRONMENT_VARIABLE = "ACEHAND_WEIGHTS"

#: Why ``--tracker auto`` leaves weights alone (see ``trackers.base.resolved_name``).
_NOT_AUTOMATIC = {
    "synthetic": "trained on synthetic clips alone",
    "unknown": "it is not recorded what they were trained on",
}

if TYPE_CHECKING:
    from acehand_core.trackers.ace_settings import AceSettings


def add_ace_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the ace tracker takes beside what every tracker takes."""
    group = parser.add_argument_group("tracker ace")
    group.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help=f"folder or checkpoint (default: ${ENVIRONMENT_VARIABLE})",
    )
    group.add_argument("--variant", choices=("k", "kfree"), help="where the weights hold both")

    for name, text in (
        ("base", "folder of the base transformer, if not beside the checkpoint"),
        ("vae", "file of the video VAE, if not beside the checkpoint"),
        ("caption", "file of the caption embedding, if not beside the checkpoint"),
    ):
        group.add_argument(f"--{name}", type=Path, metavar="PATH", help=text)

    group.add_argument(
        "--encode-width", metavar="PIXELS",
        help="or native; default as the weights were trained, 832 where they do not say",
    )  # fmt: skip
    group.add_argument(
        "--windows", choices=("paper", "blended", "full"),
        help="as released; overlapping and cross-faded; or one pass (paper)",
    )  # fmt: skip
    group.add_argument(
        "--window-latents", type=int, metavar="N",
        help="length of a window; default as trained, 22 where the weights do not say",
    )  # fmt: skip
    group.add_argument(
        "--bearings", choices=("intrinsics", "rays", "pinhole", "radial"),
        help="where directions come from; default as trained, else as released for the variant",
    )  # fmt: skip
    group.add_argument(
        "--solve", choices=("mixed", "rigid", "inverse", "direct"),
        help="how hands are placed; default as trained, rigid instead of mixed without MANO",
    )  # fmt: skip
    group.add_argument(
        "--fallback", choices=("released", "paper"),
        help="where a hand goes whose anchors are rejected; default as trained",
    )  # fmt: skip
    group.add_argument(
        "--fit-guards", choices=("paper", "excess"),
        help="which fits --bearings pinhole uses; default as trained, excess where not recorded",
    )  # fmt: skip
    group.add_argument(
        "--ray-cells", choices=("edges", "centres"),
        help="where --bearings rays takes cells to stand; default as trained, edges as released",
    )  # fmt: skip
    group.add_argument(
        "--hand-model", choices=("mano", "acehand"),
        help="whose rotations the weights learned; default as they say, mano where they do not",
    )  # fmt: skip
    group.add_argument("--betas", type=Path, metavar="FILE", help="measured shape of both hands")
    group.add_argument(
        "--second-opinion", action="store_true", help="also look at the mirrored video"
    )
    group.add_argument(
        "--drop-tail", action="store_true", help="leave out up to three last frames, as released"
    )
    group.add_argument(
        "--read-rate", choices=("model", "source"),
        help="30 frames a second, or the recording's own; default model, in evaluate source",
    )  # fmt: skip
    group.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    group.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N")
    group.add_argument("--batch", type=int, metavar="N", help="windows read at once")


def ace_settings_of(arguments: argparse.Namespace) -> AceSettings | None:
    """Return the ace tracker's settings for parsed flags, or None without weights to use.

    Raises InputError for values that cannot be, and for weights that would not be used.
    """
    weights = arguments.weights or os.environ.get(ENVIRONMENT_VARIABLE)
    if not weights:
        return None
    if arguments.tracker not in ("auto", "ace"):
        if arguments.weights is None:
            return None
        raise InputError(f"--weights is for --tracker ace, not {arguments.tracker}.")
    from acehand_core.trackers.ace_settings import AceSettings

    names = (
        "variant", "base", "vae", "caption", "window_latents", "encode_width",
        "bearings", "solve", "fallback", "fit_guards", "ray_cells", "hand_model", "betas",
        "second_opinion", "drop_tail", "read_rate", "precision", "device", "batch",
    )  # fmt: skip
    values = {name: getattr(arguments, name) for name in names}
    settings = AceSettings(Path(weights), windows=arguments.windows or "paper", **values)
    try:
        kind = settings.trained_on() if arguments.tracker == "auto" else "real"
    except AcehandError:  # said where they are used: a file of hands needs none
        return settings
    if kind == "real":
        return settings
    reason = _NOT_AUTOMATIC[kind]
    if arguments.weights is not None:
        raise InputError(f"--weights {weights}: {reason}; say --tracker ace to use them.")
    console.say(f"${ENVIRONMENT_VARIABLE}={weights}: {reason}; used with --tracker ace only")
    return None
