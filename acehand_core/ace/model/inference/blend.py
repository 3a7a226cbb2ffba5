"""Hands frame by frame, and blending of two estimates of the same frames.

The same blend serves overlapping windows and interpolation in time: rotations along the shortest
turn, the wrist in bearing and log depth, the rest linearly. Also one shape per hand from the
readouts of all windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.ace.model.inference.windows import Window
from acehand_core.geometry import rotations

#: Least presence of a present hand and least visibility of a visible one.
GATE = 0.5
#: Wrists nearer than this have no bearing and are mixed in metres.
_MIN_DEPTH_M = 1e-2
#: Largest distance of two estimates of one hand.
_SAME_HAND_M = 0.05

#: Huber threshold in betas (standard deviations of the population).
_HUBER = 1.0
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class HandFrames:
    """N frames of both hands in the camera frame, metres; float32.

    ``rotations`` are the orientation and the network's finger rotations, empty (R = 0) if only
    joints are known. ``trust`` is 0 to 1.
    """

    presence: Float[np.ndarray, "N 2"]
    visible: Float[np.ndarray, "N 2"]
    trust: Float[np.ndarray, "N 2"]
    anchors: Float[np.ndarray, "N 2 21 2"]  # 0..1 of the image
    wrist: Float[np.ndarray, "N 2 3"]
    arms: Float[np.ndarray, "N 2 21 3"]  # joints from the wrist
    rotations: Float[np.ndarray, "N 2 R 3 3"]

    @classmethod
    def empty(cls, count: int, with_rotations: bool) -> HandFrames:
        """Return frames without hands."""
        shapes = ((), (), (), (21, 2), (3,), (21, 3), (16 if with_rotations else 0, 3, 3))
        frames = cls(*(np.zeros((count, 2, *shape), np.float32) for shape in shapes))
        frames.rotations[:] = np.eye(3)
        return frames

    def __len__(self) -> int:
        return len(self.presence)

    def rows(self, index: Int[np.ndarray, "M"] | slice) -> HandFrames:
        """Return some of the frames."""
        return HandFrames(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def write(self, index: slice, values: HandFrames) -> None:
        """Replace frames."""
        for f in fields(self):
            getattr(self, f.name)[index] = getattr(values, f.name)

    @property
    def present(self) -> Bool[np.ndarray, "N 2"]:
        """True for present hands."""
        return self.presence >= GATE


def mix(
    first: HandFrames,
    second: HandFrames,
    share: Float[np.ndarray, "N"],
    cut: Bool[np.ndarray, "N"] | None = None,
) -> HandFrames:
    """Return ``share`` of the second estimate and the rest of the first.

    If either lacks the hand, or at a ``cut``, the nearer estimate's pose is used whole.
    """
    both = first.present & second.present
    if cut is not None:
        both &= ~cut[:, None]
    pose = np.where(both, share[:, None], np.round(share)[:, None])
    evidence = np.broadcast_to(share[:, None], both.shape)
    return HandFrames(
        presence=_linear(first.presence, second.presence, evidence),
        visible=_linear(first.visible, second.visible, evidence),
        trust=_linear(first.trust, second.trust, evidence),
        anchors=_linear(first.anchors, second.anchors, pose),
        wrist=_mix_wrists(first.wrist, second.wrist, pose),
        arms=_linear(first.arms, second.arms, pose),
        rotations=_mix_rotations(first.rotations, second.rotations, pose),
    )


def merge(table: HandFrames, window: Window, values: HandFrames, offset: int = 0) -> int:
    """Cross-fade a window's frames into a table that begins at frame ``offset``.

    Returns:
        The number of frames shared with earlier windows in which the hands look exchanged (see
            ``exchanged``); these are cut, not faded.
    """
    begin = window.first_frame - offset
    old = table.rows(slice(begin, window.stop_frame - offset))
    swapped = exchanged(old, values)

    # Both the new and the fading frames are one run.
    new = np.flatnonzero(window.share == 1)
    if len(new):
        run = slice(int(new[0]), int(new[-1]) + 1)
        table.write(slice(begin + run.start, begin + run.stop), values.rows(run))

    fading = np.flatnonzero((window.share > 0) & (window.share < 1))
    if len(fading):
        run = slice(int(fading[0]), int(fading[-1]) + 1)
        mixed = mix(old.rows(run), values.rows(run), window.share[run], swapped[run])
        table.write(slice(begin + run.start, begin + run.stop), mixed)
    return int(swapped.sum())


def exchanged(first: HandFrames, second: HandFrames) -> Bool[np.ndarray, "N"]:
    """Return where two estimates agree better with left and right exchanged.

    With both hands in both estimates, the crossed distance of all joints must be under half of the
    straight one; with one hand each, in different slots, its joints must lie within 5 cm.
    """
    a, b = first.wrist[:, :, None] + first.arms, second.wrist[:, :, None] + second.arms

    def distance(slot: int, other: int) -> np.ndarray:
        return np.linalg.norm(a[:, slot] - b[:, other], axis=-1).mean(-1)

    straight = distance(0, 0) + distance(1, 1)
    left_right, right_left = distance(0, 1), distance(1, 0)
    pair = (first.present & second.present).all(1)
    crossed = pair & (left_right + right_left < 0.5 * straight) & (straight > _SAME_HAND_M)
    left_first, right_first = (first.present & ~first.present[:, ::-1]).T
    left_second, right_second = (second.present & ~second.present[:, ::-1]).T
    moved = left_first & right_second & (left_right < _SAME_HAND_M)
    moved |= right_first & left_second & (right_left < _SAME_HAND_M)
    return crossed | moved


def _linear(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    share = share.reshape(*share.shape, *[1] * (a.ndim - 2)).astype(np.float32)
    return (1 - share) * a + share * b


def _mix_wrists(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Mix bearings and log depths, so that an outlier in depth does not move the bearing."""
    z_a, z_b = np.maximum(a[..., 2:], _MIN_DEPTH_M), np.maximum(b[..., 2:], _MIN_DEPTH_M)
    bearing = _linear(a[..., :2] / z_a, b[..., :2] / z_b, share)
    z = np.exp(_linear(np.log(z_a), np.log(z_b), share))
    near = np.minimum(a[..., 2], b[..., 2])[..., None] < _MIN_DEPTH_M
    mixed = np.where(near, _linear(a, b, share), np.concatenate([bearing * z, z], axis=-1))
    return _exact_at_ends(mixed, a, b, share[..., None])


def _mix_rotations(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    share = share[..., None, None].astype(np.float32)
    turn = rotations.log(np.swapaxes(a, -1, -2) @ b)
    mixed = a @ rotations.exp((share * turn).astype(np.float32))
    return _exact_at_ends(mixed, a, b, share[..., None])


def _exact_at_ends(
    mixed: np.ndarray, a: np.ndarray, b: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """Return the estimates themselves at shares 0 and 1, bit by bit."""
    return np.where(share == 1, b, np.where(share == 0, a, mixed))


def recording_betas(windows: Iterable[Mapping[str, np.ndarray]]) -> Float[np.ndarray, "2 10"]:
    """Return each hand's betas from the readouts of all windows.

    A window weighs by the sum over its frames of presence times visibility, where both pass the
    gate. If none does, all windows weigh alike. ``windows``: readouts of one clip each: ``betas``
    (1, 2, 10), ``presence`` and ``visible`` (1, N, 2).
    """
    betas, weights = [], []
    for window in windows:
        presence, visible = window["presence"][0], window["visible"][0]
        sure = (presence >= GATE) & (visible >= GATE)
        betas.append(window["betas"][0].astype(float))
        weights.append(np.where(sure, presence * visible, 0.0).sum(0))
    shapes, weight = np.stack(betas), np.stack(weights).astype(float)
    weight[:, weight.sum(0) == 0] = 1.0
    return np.stack([_huber_mean(shapes[:, s], weight[:, s]) for s in range(2)])


def _huber_mean(
    values: Float[np.ndarray, "W 10"], weights: Float[np.ndarray, "W"]
) -> Float[np.ndarray, "10"]:
    """Return the weighted Huber mean (iterative reweighting)."""
    # Start at the weighted median of each column.
    order = np.argsort(values, axis=0)
    reached = np.cumsum(weights[order], axis=0) >= 0.5 * weights.sum()
    row = np.take_along_axis(order, np.argmax(reached, axis=0)[None], 0)
    middle = np.take_along_axis(values, row, 0)[0]

    for _ in range(_ROUNDS):
        distance = np.linalg.norm(values - middle, axis=1)
        trust = weights * _HUBER / np.maximum(distance, _HUBER)
        middle = trust @ values / trust.sum()
    return middle
