"""One shape per hand for a whole recording, from what every window says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Float

from acehand_core.inference.blend import GATE

#: Windows further than this from the middle, in betas (standard deviations of the population),
#: weigh less and less: the estimate is Huber's.
_HUBER = 1.0
_ROUNDS = 20


def recording_betas(windows: Iterable[Mapping[str, np.ndarray]]) -> Float[np.ndarray, "2 10"]:
    """Return each hand's betas from the readouts of all windows.

    A window weighs by how surely it shows the hand: the sum over its frames of presence times
    visibility, where both pass the gate. Of a hand that none shows surely, all windows weigh alike.

    Args:
        windows: readouts of one clip each: ``betas`` (1, 2, 10), ``presence`` and ``visible``
            (1, N, 2).
    """
    betas, weights = [], []
    for window in windows:
        presence, visible = window["presence"][0], window["visible"][0]
        sure = (presence >= GATE) & (visible >= GATE)
        betas.append(window["betas"][0].astype(float))
        weights.append(np.where(sure, presence * visible, 0.0).sum(0))
    told, weight = np.stack(betas), np.stack(weights).astype(float)
    weight[:, weight.sum(0) == 0] = 1.0
    return np.stack([_huber_mean(told[:, s], weight[:, s]) for s in range(2)])


def _huber_mean(
    values: Float[np.ndarray, "W 10"], weights: Float[np.ndarray, "W"]
) -> Float[np.ndarray, "10"]:
    """Return the weighted mean in which far values count less (iterative reweighting)."""
    middle = _weighted_median(values, weights)
    for _ in range(_ROUNDS):
        distance = np.linalg.norm(values - middle, axis=1)
        trust = weights * _HUBER / np.maximum(distance, _HUBER)
        middle = trust @ values / trust.sum()
    return middle


def _weighted_median(
    values: Float[np.ndarray, "W 10"], weights: Float[np.ndarray, "W"]
) -> Float[np.ndarray, "10"]:
    """Return, per column, the value at which half of the weight is reached."""
    order = np.argsort(values, axis=0)
    reached = np.cumsum(weights[order], axis=0) >= 0.5 * weights.sum()
    row = np.argmax(reached, axis=0)
    return np.take_along_axis(values, np.take_along_axis(order, row[None], 0), 0)[0]
