"""Hands and detections made up for tests of trackers and solvers: no network, no image."""

import numpy as np

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.evidence import Evidence, Pose
from acehand_core.hand.skeleton import BONES
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.reconstruct import reconstruct_hands
from acehand_core.trackers.mediapipe.search import Detection

HAND = CapsuleHand()
ZERO = np.zeros(10)
LENGTH = HAND.hand_length(ZERO)
KNOWN_LENGTH = TrackerSettings(hand_length_m=LENGTH, palm_calibration=0.0)
PINHOLE = Camera("pinhole", 1280, 720, 900.0, 900.0, 639.5, 359.5)

_FLAT = HAND.rest_keypoints("right", ZERO)
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
    joints = HAND.joints("right", orient, pose, ZERO)
    return joints - joints[:, :1]


def reconstruct(detections, side, *clip):
    """Reconstruct one hand alone."""
    return reconstruct_hands({side: detections}, *clip)[side]


def stamps(count, fps=30.0):
    return np.round(np.arange(count) * 1e9 / fps).astype(np.int64) + 17


def hand_motion(side, count=60, fps=30.0):
    """A hand that turns, moves and grasps smoothly: its true pose and keypoints (T, 21, 3)."""
    t = (np.arange(count) / fps)[:, None]
    rest = articulation.comfortable()
    low, high = articulation.limits()
    phase = np.arange(22) * 0.7
    angles = rest + 0.3 * (np.where(np.arange(22) % 2, high, low) - rest) * np.sin(3 * t + phase)
    start = rotations.exp(np.array([-1.2, 0.3, 0.2]))
    orient = rotations.exp(np.sin(2 * t) * np.array([0.3, 0.5, 0.2])) @ start
    wrist = np.concatenate([0.1 * np.sin(2 * t), 0.05 * np.cos(t), 0.5 + 0.05 * np.sin(t)], axis=1)
    mirror = np.array([-1.0, 1.0, 1.0]) if side == "left" else np.ones(3)
    pose = Pose(orient * mirror[:, None] * mirror, angles, wrist * mirror)
    return pose, pose.keypoints(side, HAND.rest_keypoints(side, ZERO))


def seen(joints, side, camera=PINHOLE, rng=None, noise_px=0.0, confidence=0.97):
    """What a network says of hands (T, 21, 3): pixels, and metres in the axes of its crop."""
    pixels = camera.project(joints)
    if noise_px:
        pixels = pixels + rng.normal(0, noise_px, pixels.shape)
    centre = (joints[..., :2] / joints[..., 2:]).mean(1)
    ray = np.concatenate([centre, np.ones((len(joints), 1))], axis=1)
    ray /= np.linalg.norm(ray, axis=1, keepdims=True)
    turn = rotations.between(np.broadcast_to([0.0, 0.0, 1.0], ray.shape), ray)
    world = (joints - joints.mean(1, keepdims=True)) @ turn
    p_right = confidence if side == "right" else 1 - confidence
    return [Detection(p, w, p_right, "forward") for p, w in zip(pixels, world, strict=True)]


def exact_evidence(keypoints):
    """What a camera would see of hands (N, 21, 3) without any error."""
    parents, children = np.array(BONES).T
    bones = keypoints[:, children] - keypoints[:, parents]
    direction = bones / np.linalg.norm(bones, axis=-1, keepdims=True)
    return Evidence(keypoints[..., :2] / keypoints[..., 2:], direction)
