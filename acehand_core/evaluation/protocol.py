"""The numbers that make up a protocol, and the paper's values of them.

Source: paper, "Metric Definitions and Penalty Protocol". Choices where it is silent are listed in
docs/evaluation.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from acehand_core.errors import InputError, nearest

Anchors = Literal["auto", "own", "reprojected"]


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


PROTOCOLS = {"paper": Protocol()}


def protocol_named(name: str) -> Protocol:
    """Return a protocol by name. Raises InputError naming the valid ones."""
    if name not in PROTOCOLS:
        raise InputError(f"--protocol {name!r}; {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
