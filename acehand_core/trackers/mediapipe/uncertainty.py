"""Uncertainty of fitted hands: standard deviations of joints, of the palm, and in filled gaps."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.hand.clip_fit import ClipFit, joint_slopes
from acehand_core.hand.evidence import Evidence
from acehand_core.hand.skeleton import PALM
from acehand_core.types import Side

#: Factors on the standard deviations by all frames together and by the frame alone; the smaller
#: product counts.
CLIP_FACTOR, FRAME_FACTOR = 2.2, 1.3
#: With one crop the quality of a landmark is unknown.
ONE_CROP_FACTOR = 1.4
#: Joints' own share of the solve's standard deviations, across the line of sight and along it.
OWN_ACROSS, OWN_ALONG = 0.85, 1.15
#: Keypoint definitions differ between datasets by this much.
DEFINITION_M = 0.003
#: The common share: a shift across, in units of the crops' difference, and a share of the distance,
#: in units of the same over the palm's apparent length.
SHIFT_FACTOR, SCALE_FACTOR = 1.4, 1.8
#: Median disagreement of crops over the palm's apparent length, assumed for one crop.
ONE_CROP_DISAGREEMENT = 0.035
#: Standard deviation of hand sizes without a given length: 193.8 +- 9.8 mm of men, 180.5 +- 9.7 of
#: women (Gordon et al. 1989, 1988 Anthropometric Survey of US Army Personnel).
SIZE_SIGMA = 0.063
#: Share of the distance where depth or another camera measures it: their calibration.
METRIC_SCALE_SIGMA = 0.01
#: Factor on all where it is measured, across and along. (By five rendered clips and the photographs
#: of ``benchmarks.rig``.)
METRIC_SIGMA = np.array([0.75, 0.6])
#: Unknown acceleration of an occluded hand in each direction. (Rendered hands, withheld for up to
#: 0.8 s.)
GAP_ACCELERATION_M_S2 = 0.7


def widened(fit: ClipFit, one_crop: Bool[np.ndarray, "N"]) -> ClipFit:
    """Return the fit with wider covariances in frames with a single crop."""
    factor = np.where(one_crop, ONE_CROP_FACTOR**2, 1.0)[:, None, None]
    return ClipFit(fit.pose, factor * fit.covariance, factor * fit.alone)


def disagreement(evidence: Evidence, one_crop: Bool[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """Return the crops' rms standard deviation per direction over the palm's apparent length."""
    if evidence.spread is None:
        return np.full(len(one_crop), ONE_CROP_DISAGREEMENT)
    variance = np.trace(evidence.spread, axis1=-2, axis2=-1).mean(1) / 2
    apart = np.sqrt(variance) / np.maximum(evidence.scale, 1e-6)
    return np.where(one_crop, ONE_CROP_DISAGREEMENT, apart)


def joint_sigma(
    fit: ClipFit,
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    apart: Float[np.ndarray, "N"],
    known_size: bool,
    metric: Bool[np.ndarray, "N"],
) -> Float[np.ndarray, "N 21 2"]:
    """Return joints' standard deviations per direction across and along the line of sight, metres.

    ``apart`` is that of ``disagreement``; ``metric``: frames in which the distance is measured.
    """
    joints = fit.pose.keypoints(side, rest)
    slopes = joint_slopes(fit.pose, side, rest)
    distance = np.linalg.norm(joints, axis=-1)
    ray = joints / distance[..., None]

    def spread(unknowns: Float[np.ndarray, "N 28 28"]) -> Float[np.ndarray, "N 21 2"]:
        covariance = slopes @ unknowns[:, None] @ np.swapaxes(slopes, -1, -2)
        along = np.einsum("nji,njik,njk->nj", ray, covariance, ray)
        across = (np.trace(covariance, axis1=2, axis2=3) - along) / 2
        return np.sqrt(np.maximum(np.stack([across, along], axis=-1), 0))

    own = np.minimum(CLIP_FACTOR * spread(fit.covariance), FRAME_FACTOR * spread(fit.alone))
    palm = np.sqrt(np.mean(np.sum((rest[list(PALM[1:])] - rest[PALM[0]]) ** 2, axis=-1)))
    shift = np.hypot(SHIFT_FACTOR * apart * palm, DEFINITION_M)
    # A hand's distance is proportional to its size.
    scale = np.hypot(SCALE_FACTOR * apart, 0.0 if known_size else SIZE_SIGMA)
    scale = np.where(metric, METRIC_SCALE_SIGMA, scale)
    common = np.stack(np.broadcast_arrays(shift[:, None], scale[:, None] * distance), axis=-1)
    sigma: Float[np.ndarray, "N 21 2"] = np.hypot([OWN_ACROSS, OWN_ALONG] * own, common)
    return np.where(metric[:, None, None], METRIC_SIGMA * sigma, sigma)


def turn_sigma(fit: ClipFit) -> Float[np.ndarray, "N"]:
    """Return the standard deviation of the palm's orientation as a rotation angle, rad."""
    turns = (covariance[:, :3, :3] for covariance in (fit.covariance, fit.alone))
    together, alone = (np.sqrt(np.trace(turn, axis1=1, axis2=2)) for turn in turns)
    return np.minimum(CLIP_FACTOR * together, FRAME_FACTOR * alone)


def sigma_in_gap(
    ends: Float[np.ndarray, "2 21 2"],
    elapsed_s: Float[np.ndarray, "N"],
    left_s: Float[np.ndarray, "N"],
) -> Float[np.ndarray, "N 21 2"]:
    """Return standard deviations in filled frames from those of both ends and the times to them."""
    share = (elapsed_s / (elapsed_s + left_s))[:, None, None]
    before, after = ends**2
    variance = (1 - share) * before + share * after
    off = GAP_ACCELERATION_M_S2 / 2 * elapsed_s * left_s
    return np.sqrt(variance + off[:, None, None] ** 2)
