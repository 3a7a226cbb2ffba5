"""The evaluation of scored segments as one JSON object."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from acehand_core.ace.evaluation.protocol import Protocol
from acehand_core.ace.evaluation.segment import SegmentScore
from acehand_core.errors import SchemaError
from acehand_core.types import SIDES

#: The paper's metrics; docs/evaluation.md has their units.
METRICS = ("facc", "recall", "f1", "mpjpe_p", "pa_p", "epe_p", "go_p", "ct_p", "jitter",
           "mpjpe_iv", "mpjpe_oos", "mpjpe_plus_oos")  # fmt: skip
#: Rounding of the mixture of the strata against the pooled mean, mm.
_MIXTURE_TOLERANCE_MM = 1e-6


class Pool:
    """The hand-frames of all segments: attributes are those of ``SegmentScore``, concatenated."""

    def __init__(self, scores: Sequence[SegmentScore]) -> None:
        self.scores = scores
        self._joined: dict[str, np.ndarray] = {}

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in self._joined:
            self._joined[name] = np.concatenate([getattr(s, name) for s in self.scores])
        return self._joined[name]

    def placement(self, name: str) -> np.ndarray:
        """Return one error of the absolute placement, (N, 2)."""
        return np.concatenate([s.placement[name] for s in self.scores])


def summarise(
    scores: Sequence[SegmentScore], protocol: Protocol, segments: Mapping[str, Any], hand_model: str
) -> dict[str, Any]:
    """Return the evaluation as the JSON object of docs/evaluation.md.

    Values without a hand-frame, or not comparable, are None.

    Args:
        segments: name, sha256 and count of the list of segments.
        hand_model: of the ground truth.

    Raises:
        SchemaError: no segment, or a segment twice.
    """
    if not scores or len({score.identifier for score in scores}) != len(scores):
        raise SchemaError("No segment to evaluate, or a segment is scored twice.")
    pool = Pool(scores)
    comparable = all(score.pose_comparable for score in scores)
    metrics = _metrics(pool, comparable)
    counts = _counts(pool)

    # MPJPE+OOS against the mixture of its strata, if both exist.
    pooled, iv, oos = (metrics[n] for n in ("mpjpe_plus_oos", "mpjpe_iv", "mpjpe_oos"))
    residual = None
    if pooled is not None and iv is not None and oos is not None:
        residual = abs(pooled - mixture(iv, oos, counts["iv"], counts["oos"]))
        if residual > _MIXTURE_TOLERANCE_MM * max(1.0, pooled):
            raise ArithmeticError(f"MPJPE+OOS is {residual} mm from the mixture of its strata.")

    sizes = sorted(Counter(score.picture for score in scores).items())
    pictures = [
        {"width": w, "height": h, "diagonal_px": math.hypot(w, h), "segments": count}
        for (w, h), count in sizes
    ]
    own = {score.own_anchors for score in scores}
    anchors = "mixed" if len(own) > 1 else "own" if own.pop() else "reprojected"
    conversion = [s.conversion_mm for s in scores if s.conversion_mm is not None]
    rows, seen = pool.matched, pool.on_screen
    epe, joints = pool.epe_px[seen], pool.epe_joints[seen]
    runs = np.array([run for score in scores for run in score.jitter], float).reshape(-1, 2)
    weights = runs[:, 1].sum()

    return {
        "protocol": protocol.name,
        "segments": dict(segments),
        "hand_model": hand_model,
        "pictures": pictures,
        "metrics": metrics,
        "counts": counts,
        "per_side": {side: _counts(pool, slot) for slot, side in enumerate(SIDES)},
        # Errors of true positives, without charges.
        "matched": {
            "count": int(rows.sum()),
            "mpjpe": _mean(pool.mpjpe_mm[rows]),
            "pa": _mean(pool.pa_mm[rows]),
            "epe": _mean(pool.epe_px[rows]),
            "go": _mean(pool.go_deg[rows]) if comparable else None,
            "ct": _mean(pool.ct_m[rows]) if comparable else None,
        },
        "translation_m": {
            "iv": _mean(pool.gated_ct_m[pool.on_screen]) if comparable else None,
            "oos": _mean(pool.gated_ct_m[_out_of_sight(pool)]) if comparable else None,
        },
        "out_of_sight_placement": _placement(pool, _out_of_sight(pool)),
        "in_view_placement": _placement(pool, pool.on_screen),
        "radius": _radius(pool, protocol, comparable),
        "decoded_length": _decoded_length(scores),
        # The paper's alternative readings (docs/evaluation.md).
        "variants": {
            "epe_p_over_joints": float((epe * joints).sum() / joints.sum()) if len(epe) else None,
            "jitter_over_frames": float(runs.prod(1).sum() / weights) if weights else None,
        },
        "anchors": anchors,
        "conversion_mm": _mean(np.array(conversion)),
        "mixture_residual_mm": residual,
        "settings": asdict(protocol),
    }


def detection(tp: int, fp: int, fn: int) -> tuple[float | None, float | None, float | None]:
    """Return precision, recall and F1; None if undefined."""
    precision = tp / (tp + fp) if tp + fp else None
    recall = tp / (tp + fn) if tp + fn else None
    f1 = 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else None
    return precision, recall, f1


def mixture(iv_mm: float, oos_mm: float, iv: int, oos: int) -> float:
    """Return MPJPE+OOS from the two strata and their counts (paper, eq. of the mixture)."""
    return (iv * iv_mm + oos * oos_mm) / (iv + oos)


def _metrics(pool: Pool, comparable: bool) -> dict[str, float | None]:
    errors = (pool.missed | pool.spurious).any(1)[_judged(pool)]
    counts = _counts(pool)
    _, recall, f1 = detection(counts["tp"], counts["fp"], counts["fn"])
    seen = pool.on_screen
    runs = [mean for score in pool.scores for mean, _ in score.jitter]

    return {
        "facc": float(1 - errors.mean()) if len(errors) else None,
        "recall": recall,
        "f1": f1,
        "mpjpe_p": _mean(pool.mpjpe_mm[seen]),
        "pa_p": _mean(pool.pa_mm[seen]),
        "epe_p": _mean(pool.epe_px[seen]),
        "go_p": _mean(pool.go_deg[seen]) if comparable else None,
        "ct_p": _mean(pool.ct_m[seen]) if comparable else None,
        "jitter": _mean(np.array(runs, float)),
        "mpjpe_iv": _mean(pool.gated_mpjpe_mm[seen]),
        "mpjpe_oos": _mean(pool.gated_mpjpe_mm[_out_of_sight(pool)]),
        "mpjpe_plus_oos": _mean(pool.gated_mpjpe_mm[pool.exists]),
    }


def _counts(pool: Pool, slot: int | None = None) -> dict[str, int]:
    names = {"tp": pool.matched, "fp": pool.spurious, "fn": pool.missed, "iv": pool.on_screen,
             "oos": _out_of_sight(pool), "unlabelled": pool.unlabelled}  # fmt: skip
    counts = {n: int((v if slot is None else v[:, slot]).sum()) for n, v in names.items()}
    return counts | ({"frames": int(_judged(pool).sum())} if slot is None else {})


def _judged(pool: Pool) -> np.ndarray:
    """Return which frames count, (N,): those with a hand of known presence."""
    return ~np.all(pool.unlabelled, axis=1)


def _out_of_sight(pool: Pool) -> np.ndarray:
    return pool.exists & ~pool.on_screen


def _placement(pool: Pool, rows: np.ndarray) -> dict[str, float | int | None]:
    """Return absolute errors and the number of emitted hands."""
    given = rows & pool.emitted
    wrist = pool.placement("wrist_m")[given]
    return {
        "count": int(rows.sum()),
        "emitted": int(given.sum()),
        "wrist_m": _mean(wrist),
        "wrist_median_m": float(np.median(wrist)) if len(wrist) else None,
        "camera_mm": _mean(1e3 * pool.placement("camera_m")[given]),
        "bearing_deg": _mean(pool.placement("bearing_deg")[given]),
        "range_error_m": _mean(np.abs(pool.placement("range_m")[given])),
        "range_bias_m": _mean(pool.placement("range_m")[given]),
    }


def _radius(pool: Pool, protocol: Protocol, comparable: bool) -> list[dict[str, Any]]:
    """Return errors of the in-view stratum by distance from the principal point, uncharged."""
    edges = (0.0, *protocol.radius_edges, np.inf)
    radius, total = pool.radius[pool.on_screen], int(pool.on_screen.sum())
    mpjpe, ct = pool.gated_mpjpe_mm[pool.on_screen], pool.gated_ct_m[pool.on_screen]
    bins = []
    for low, high in itertools.pairwise(edges):
        rows = (radius >= low) & (radius < high)
        bins.append({
            "from": low, "to": None if np.isinf(high) else high,
            "count": int(rows.sum()), "share": float(rows.sum() / total) if total else None,
            "mpjpe": _mean(mpjpe[rows]), "ct": _mean(ct[rows]) if comparable else None,
        })  # fmt: skip
    return bins


def _decoded_length(scores: Sequence[SegmentScore]) -> list[dict[str, Any]]:
    """Return MPJPE-p and Jitter by the number of frames decoded in one pass.

    Whole recordings are one row, as in the paper's figure, with their mean ``frames``. ``latents``
    are the minimum and maximum, or None.
    """
    groups: dict[tuple[bool, int], list[SegmentScore]] = {}
    for score in scores:
        if score.decoded is not None:
            whole = score.decoded.whole
            groups.setdefault((whole, 0 if whole else score.decoded.frames), []).append(score)

    lengths = []
    for (whole, _), some in sorted(groups.items(), key=lambda group: group[0]):
        decoded = [score.decoded for score in some if score.decoded is not None]
        latents = [entry.latents for entry in decoded if entry.latents is not None]
        pool = Pool(some)
        runs = [mean for score in some for mean, _ in score.jitter]
        lengths.append({
            "frames": round(np.mean([entry.frames for entry in decoded])), "whole": whole,
            "latents": [min(latents), max(latents)] if latents else None,
            "segments": len(some),
            "mpjpe_p": _mean(pool.mpjpe_mm[pool.on_screen]),
            "jitter": _mean(np.array(runs, float)),
        })  # fmt: skip

    return lengths


def _mean(values: np.ndarray) -> float | None:
    """Return the mean, None if empty. A NaN is a bug: a counted hand-frame without an error."""
    if np.isnan(values).any():
        raise ArithmeticError("A counted hand-frame has no error.")
    return float(values.mean()) if len(values) else None
