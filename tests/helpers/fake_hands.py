"""Hands and detections made up for tests of trackers and solvers: no network, no image."""

import numpy as np

from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.landmark_fit import Evidence
from acehand_core.hand.skeleton import BONES
from acehand_core.trackers.mediapipe.search import Detection

_FLAT = CapsuleHand().rest_keypoints("right", np.zeros(10))
_CENTRED = (_FLAT - _FLAT.mean(0))[:, [0, 2]]
_OUTLINE = _CENTRED / np.sqrt(np.mean(np.sum(_CENTRED**2, axis=1)))


def detection(
    centre=(300.0, 200.0), p_right=0.97, size=60.0, look="forward", mirror=False, seed=None
) -> Detection:
    """A flat hand around ``centre``, ``size`` pixels rms; with a seed, slightly shaken."""
    pixels = np.asarray(centre, float) + size * _OUTLINE * [-1 if mirror else 1, 1]
    if seed is not None:
        pixels = pixels + np.random.default_rng(seed).normal(0, 0.02 * size, (21, 2))
    return Detection(pixels, np.zeros((21, 3)), float(p_right), look)


def right_hands(rng, count):
    """Joints (count, 21, 3) of random right hands turned to the camera, the wrist at the origin."""
    low, high = articulation.limits()
    pose = articulation.angles_to_pose(rng.uniform(low, high, (count, 22)), "right")
    orient = rotations.exp(rng.uniform(-1.5, 1.5, (count, 3)))
    joints = CapsuleHand().joints("right", orient, pose, np.zeros(10))
    return joints - joints[:, :1]


def exact_evidence(keypoints):
    """What a camera would see of hands (N, 21, 3) without any error."""
    parents, children = np.array(BONES).T
    bones = keypoints[:, children] - keypoints[:, parents]
    direction = bones / np.linalg.norm(bones, axis=-1, keepdims=True)
    return Evidence(keypoints[..., :2] / keypoints[..., 2:], direction)
