"""How far a tracked hand may be off, and which hands are doubtful.

A solve's own covariance is that of landmarks that err independently. They err alike: from frame to
frame, and all of a hand together, by a shift and by a scale, of which the crops tell by how far
they disagree. How much each counts was chosen on rendered clips (docs/tracking.md).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.hand.clip_fit import ClipFit, joint_slopes
from acehand_core.hand.landmark_fit import Evidence
from acehand_core.hand.skeleton import PALM
from acehand_core.types import Side

#: Of the covariance of all frames together, and of that of a frame by itself; the less counts.
TOGETHER_FACTOR, ALONE_FACTOR = 2.2, 1.3
#: Where there was one crop only, nothing tells how well a landmark was seen.
ONE_CROP_FACTOR = 1.4
#: Of the solve's standard deviations of joints that share which is not common to all of them:
#: across the line of sight and along it.
OWN_ACROSS, OWN_ALONG = 0.85, 1.15
#: What is common to a hand: a shift across, as a multiple of what crops differ by, and a share of
#: the distance, as a multiple of that over the palm's apparent length.
SHIFT_FACTOR, SCALE_FACTOR = 1.4, 1.8
#: What crops would differ by, over the palm's apparent length, where there was one: the median.
ONE_CROP_DISAGREEMENT = 0.035
#: Standard deviation of hands' sizes (``hand.articulation``), where the length is not given.
SIZE_SIGMA = 0.055
#: A hand is doubtful where its palm's orientation is known no better, or the network is less sure,
#: over its crops, that it is one. (On the rendered clips that this was chosen on so are 5 % of the
#: hands within 15 degrees and 20 mm, and three quarters of those turned by over 30 degrees.)
MAX_TURN_SIGMA_RAD, MIN_PRESENCE = np.radians(40.0), 0.6
#: Of a hand out of sight, beyond what the frames around tell, in each direction: what it is off by
#: between two places. (Hands of rendered clips, withheld for up to 0.8 s.)
GAP_ACCELERATION_M_S2 = 0.7


def widened(fit: ClipFit, one_crop: Bool[np.ndarray, "N"]) -> ClipFit:
    """Return the fit with wider covariances in frames whose landmarks are of one crop alone."""
    factor = np.where(one_crop, ONE_CROP_FACTOR**2, 1.0)[:, None, None]
    return ClipFit(fit.pose, factor * fit.covariance, factor * fit.alone)


def disagreement(evidence: Evidence, one_crop: Bool[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """Return by how much the crops of each frame differ, rms over the landmarks.

    Standard deviation in one direction, as a share of the palm's apparent length.
    """
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
) -> Float[np.ndarray, "N 21 2"]:
    """Return standard deviations of joints in metres.

    Across the line of sight, in each of the two directions, and along it.

    Args:
        apart: as ``disagreement``.
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

    own = np.minimum(TOGETHER_FACTOR * spread(fit.covariance), ALONE_FACTOR * spread(fit.alone))
    palm = np.sqrt(np.mean(np.sum((rest[list(PALM[1:])] - rest[PALM[0]]) ** 2, axis=-1)))
    shift = SHIFT_FACTOR * apart * palm
    # All of a hand is nearer or farther in proportion to its size.
    scale = np.hypot(SCALE_FACTOR * apart, 0.0 if known_size else SIZE_SIGMA)
    common = np.stack(np.broadcast_arrays(shift[:, None], scale[:, None] * distance), axis=-1)
    sigma: Float[np.ndarray, "N 21 2"] = np.hypot([OWN_ACROSS, OWN_ALONG] * own, common)
    return sigma


def turn_sigma(fit: ClipFit) -> Float[np.ndarray, "N"]:
    """Return the standard deviation of the palm's orientation, rad: that of the turn's length."""
    together, alone = (
        np.sqrt(np.trace(covariance[:, :3, :3], axis1=1, axis2=2))
        for covariance in (fit.covariance, fit.alone)
    )
    return np.minimum(TOGETHER_FACTOR * together, ALONE_FACTOR * alone)


def sigma_in_gap(
    ends: Float[np.ndarray, "2 21 2"],
    elapsed_s: Float[np.ndarray, "N"],
    left_s: Float[np.ndarray, "N"],
) -> Float[np.ndarray, "N 21 2"]:
    """Return standard deviations in filled frames: those of both ends, and more away from them.

    Args:
        ends: of the sightings before and after.
        elapsed_s, left_s: from the sighting before, and to the one after.
    """
    share = (elapsed_s / (elapsed_s + left_s))[:, None, None]
    before, after = ends**2
    variance = (1 - share) * before + share * after
    off = GAP_ACCELERATION_M_S2 / 2 * elapsed_s * left_s
    return np.sqrt(variance + off[:, None, None] ** 2)
