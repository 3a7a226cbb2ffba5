"""The numbers that make up a protocol, and the paper's values of them.

Source: paper, "Metric Definitions and Penalty Protocol". Choices where it is silent are listed in
docs/evaluation.md.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from acehand_core.errors import InputError, nearest

Anchors = Literal["auto", "own", "reprojected"]

#: Width of the pictures that the paper evaluates on, by the dataset's name; of HOI4D it says none
#: (appendix "Datasets, Splits, and Preprocessing").
PAPER_WIDTHS = {"arctic": 672, "hot3d": 480, "hot3d_clips": 480, "h2o": 832, "oakink2": 832}
#: Sides are multiples of this, "so that every dataset yields an even latent grid".
_EVEN_GRID = 32


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a score depends on beside predictions and ground truth.

    Attributes:
        name: "paper", or another name for changed values.
        presence_above: a hand is active where its presence is above this.
        z_min_m: a joint or vertex counts as in front of the camera above this depth, metres.
        dilation: share by which width and height of a ground-truth box grow about its centre.
        anchors: which 2D joints EPE scores: "own" the tracker's (projected joints where it has
            none), "reprojected" always projected joints, "auto" own unless the prediction says
            that it was made without intrinsics.
        radius_edges: borders between the bins of the normalised distance from the principal point.
    """

    name: str = "paper"
    presence_above: float = 0.5
    z_min_m: float = 0.01
    dilation: float = 0.10
    anchors: Anchors = "auto"
    radius_edges: tuple[float, ...] = (0.25, 0.5, 0.75)

    def to_json(self) -> dict[str, Any]:
        """Return all values."""
        return asdict(self) | {"radius_edges": list(self.radius_edges)}


def picture_size(asked: str, dataset: str, width: int, height: int) -> tuple[int, int]:
    """Return the width and height in pixels that errors in the image are measured at.

    Args:
        asked: "paper", the paper's for its datasets and what is stored for others; "stored"; or
            WIDTHxHEIGHT.
        dataset, width, height: of the ground truth's pictures.

    Raises InputError for anything else.
    """
    if asked == "stored" or (asked == "paper" and dataset not in PAPER_WIDTHS):
        return width, height
    if asked == "paper":
        wide = PAPER_WIDTHS[dataset]
        return wide, round(height * wide / width / _EVEN_GRID) * _EVEN_GRID
    sides = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", asked)
    if sides is None:
        raise InputError(f"--picture-size {asked!r}; valid: paper, stored, or WIDTHxHEIGHT.")
    return int(sides[1]), int(sides[2])


PROTOCOLS = {"paper": Protocol()}


def protocol_named(name: str) -> Protocol:
    """Return a protocol by name. Raises InputError naming the valid ones."""
    if name not in PROTOCOLS:
        raise InputError(f"--protocol {name!r}; {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
