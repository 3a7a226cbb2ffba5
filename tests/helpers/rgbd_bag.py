"""A bag of the rendered clip as a RealSense driver records it, with unregistered depth."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.types import SIDES
from helpers.bag_samples import START, SampleBag, stamps
from helpers.example_video import TRUTH, example_frames

COLOUR, DEPTH = "/camera/camera/color", "/camera/camera/depth"
DEPTH_TOPIC = f"{DEPTH}/image_rect_raw"
#: The depth camera is so far to the right of the colour camera (metres), and its stamps are later.
RIGHT_M, LATE_NS = 0.015, 7_000_000
SIZE, K = (320, 240), (240.0, 240.0, 161.0, 118.0)
#: x right, y down, z forward in axes x forward, y left, z up.
_OPTICAL = (0.5, -0.5, 0.5, -0.5)


def write_rgbd(path: Path, count: int = 12) -> Path:
    """Write colour, depth, the calibration of both and their frames on camera_link."""
    truth = read_hand_motion(TRUTH)
    camera = truth.camera
    assert camera is not None
    k = (camera.fx, camera.fy, camera.cx, camera.cy)
    with SampleBag(path) as bag:
        for name, y in (("color", RIGHT_M), ("depth", 0.0)):
            body, optical = f"camera_{name}_frame", f"camera_{name}_optical_frame"
            bag.tf(START, "camera_link", body, (0, y, 0), (1, 0, 0, 0), topic="/tf_static")
            bag.tf(START, body, optical, (0, 0, 0), _OPTICAL, topic="/tf_static")
        for i, ns in enumerate(stamps(count)):
            at = {"frame": "camera_color_optical_frame"}
            bag.image(example_frames(count)[i], ns, topic=f"{COLOUR}/image_raw", **at)
            size = (camera.width, camera.height)
            bag.camera_info(ns, k=k, size=size, topic=f"{COLOUR}/camera_info", **at)
            ns, at = ns + LATE_NS, {"frame": "camera_depth_optical_frame"}
            mm = skin_mm(truth, i)
            bag.pixels(mm, mm.shape, ns, "16UC1", DEPTH_TOPIC, **at)
            bag.camera_info(ns, k=K, size=SIZE, topic=f"{DEPTH}/camera_info", **at)
    return path


def skin_mm(truth: HandMotion, frame: int) -> np.ndarray:
    """Return what the depth camera sees of the true hands: of each pixel the nearest vertex."""
    mm = np.full(SIZE[0] * SIZE[1], 65535, np.uint16)
    for slot, side in enumerate(SIDES):
        pose = truth.global_orient[frame, slot], truth.hand_pose[frame, slot]
        skin = CapsuleHand().vertices(side, *pose, truth.betas[slot])
        x, y, z = (skin + truth.translation[frame, slot] - [RIGHT_M, 0, 0]).T
        u, v = np.rint(K[0] * x / z + K[2]).astype(int), np.rint(K[1] * y / z + K[3]).astype(int)
        seen = (u >= 0) & (u < SIZE[0]) & (v >= 0) & (v < SIZE[1])
        np.minimum.at(mm, v[seen] * SIZE[0] + u[seen], np.rint(1000 * z[seen]).astype(np.uint16))
    # Between vertices the far side would be seen.
    mm = cv2.erode(mm.reshape(SIZE[::-1]), np.ones((3, 3), np.uint8))
    return np.where(mm < 65535, mm, 0).astype(np.uint16)
