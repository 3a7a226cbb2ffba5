"""A photographed hand in the middle of a wide picture."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.registry import open_recording
from acehand_core.trackers.mediapipe import search
from acehand_core.trackers.mediapipe.networks import hand_networks

HAND = Path(os.environ.get("ACEHAND_SHARED", "none")) / "data/stereo_hand"
#: An equidistant lens of 132 degrees and 609 px, undistorted up to 65 degrees off its axis.
WIDE = Camera("pinhole", 1408, 1408, 328.3, 328.3, 703.5, 703.5)


@pytest.mark.skipif(not HAND.is_dir(), reason="the shared photographs are not there")
def test_a_hand_in_the_middle_of_a_wide_picture_is_found():
    """1.1 m away, as far as it is small in the wide picture; found by the balanced search."""
    lens = Camera("pinhole", 720, 720, 926.0, 926.0, 356.0, 355.0)
    truth = np.load(HAND / "truth.npz")
    frames = open_recording(HAND / "camera0.mp4").frames
    networks, found = hand_networks().through(WIDE), 0
    far = Camera("pinhole", 720, 720, 926.0 / 0.65, 926.0 / 0.65, 356.0, 355.0)
    rows = range(20, len(truth["frames"]), 40)
    for row in rows:
        ray = far.unproject(lens.project(truth["joints"][row].mean(0)))
        R = rotations.between(ray / np.linalg.norm(ray), np.array([0.0, 0.0, 1.0]))
        at = np.nan_to_num(far.project(WIDE.all_rays() @ R), nan=-1e4).astype(np.float32)
        image = cv2.GaussianBlur(frames.at(int(truth["frames"][row])), (0, 0), 1.7)
        image = cv2.remap(image, at[..., 0], at[..., 1], cv2.INTER_LINEAR)
        squares = [search.whole(image), *search.squares(image, "balanced", WIDE)]
        found += bool(search.new_hands(networks, image, squares, (), search.MAX_HANDS))
    assert found >= 0.75 * len(rows)
