"""How far a tracked hand may be off, and which sightings are too doubtful to be one.

A solve's own covariance is that of landmarks that err independently from frame to frame. They do
not: ``SIGMA_FACTOR`` makes up for it, such that intervals hold the truth as often as they say on
rendered clips (benchmarks/tracker.py states how often).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from acehand_core.hand.clip_fit import ClipFit, joint_slopes
from acehand_core.types import Side

SIGMA_FACTOR = 3.2
#: Standard deviation of hands' sizes (``hand.articulation``), where the length is not given.
SIZE_SIGMA = 0.055
#: A palm whose orientation is known no better is no sighting, nor one that the network is less
#: sure of, over its crops, to be a hand. (On rendered clips the two lose 4 % of the hands whose
#: palm is within 30 degrees, and more than half of the others.)
MAX_TURN_SIGMA_RAD, MIN_PRESENCE = np.radians(40.0), 0.6
#: Half the quality: a palm whose orientation has this standard deviation.
HALF_QUALITY_RAD = np.radians(25.0)
#: A hand out of sight for this many seconds is off by this much more, across the line of sight and
#: along it; in proportion to the time.
DRIFT_M_S = np.array([0.10, 0.10])


def joint_sigma(
    fit: ClipFit,
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    known_size: bool,
) -> Float[np.ndarray, "N 21 2"]:
    """Return standard deviations of joints in metres.

    Across the line of sight, in each of the two directions, and along it.
    """
    joints = fit.pose.keypoints(side, rest)
    slopes = joint_slopes(fit.pose, side, rest)
    distance = np.linalg.norm(joints, axis=-1)
    ray = joints / distance[..., None]
    covariance = slopes @ fit.covariance[:, None] @ np.swapaxes(slopes, -1, -2)
    along = np.einsum("nji,njik,njk->nj", ray, covariance, ray)
    across = (np.trace(covariance, axis1=2, axis2=3) - along) / 2
    sigma = SIGMA_FACTOR * np.sqrt(np.maximum(np.stack([across, along], axis=-1), 0))
    if not known_size:
        # All of a hand is nearer or farther in proportion to its size.
        sigma[..., 1] = np.hypot(sigma[..., 1], SIZE_SIGMA * distance)
    return sigma


def turn_sigma(fit: ClipFit) -> Float[np.ndarray, "N"]:
    """Return the standard deviation of the palm's orientation, rad: that of the turn's length."""
    return SIGMA_FACTOR * np.sqrt(np.trace(fit.covariance[:, :3, :3], axis1=1, axis2=2))


def sigma_in_gap(
    before: Float[np.ndarray, "21 2"],
    after: Float[np.ndarray, "21 2"],
    elapsed_s: Float[np.ndarray, "N"],
    left_s: Float[np.ndarray, "N"],
) -> Float[np.ndarray, "N 21 2"]:
    """Return standard deviations in filled frames: those of both ends, and more away from them.

    Args:
        elapsed_s, left_s: from the sighting before, and to the one after.
    """
    share = (elapsed_s / (elapsed_s + left_s))[:, None, None]
    ends = (1 - share) * before**2 + share * after**2
    # Both ends hold the hand: the doubt of a bridge, not of a walk.
    drift = (elapsed_s * left_s / (elapsed_s + left_s))[:, None, None] * 2 * DRIFT_M_S
    return np.sqrt(ends + drift**2)
