"""Which predicted hand is which hand of the ground truth."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from acehand_core.evaluation.boxes import overlap
from acehand_core.types import PerHandFlag


def match(
    predicted_boxes: Float[np.ndarray, "T 2 4"],
    shown: PerHandFlag,
    truth_boxes: Float[np.ndarray, "T 2 4"],
    on_screen: PerHandFlag,
) -> PerHandFlag:
    """Return where the prediction of a slot is the ground-truth hand of that slot.

    Each shown prediction takes the on-screen ground-truth hand, of either side, that its box
    overlaps most; it is matched if that overlap is above zero and the sides agree. A tie between
    the sides goes to its own. With one slot per side no two predictions can select the same hand
    and both be on its side, so the paper's tie rule never acts here.

    Args:
        predicted_boxes: pixels; rows that are not ``shown`` are ignored.
        shown: active predictions that pass the on-screen gate.
        truth_boxes: dilated boxes; rows that are not ``on_screen`` are ignored.
        on_screen: ground-truth hands that pass the gate.
    """
    own = np.where(on_screen, overlap(predicted_boxes, truth_boxes), 0.0)
    other = np.where(on_screen[:, ::-1], overlap(predicted_boxes, truth_boxes[:, ::-1]), 0.0)
    return shown & on_screen & (own > 0) & (own >= other)
