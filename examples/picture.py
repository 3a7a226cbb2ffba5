"""Make docs/images/demo.png: two moments of an overlay.

acehand-retarget examples/two_hands.mp4 --robot-video --output my_dataset
python examples/picture.py my_dataset/acehand/episode_000000/overlay.mp4 docs/images/demo.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np

from acehand_core.drawing.overlay import write_png
from acehand_core.recordings.video import open_video

FRAMES = (12, 66)
WIDTH = 1200


def main() -> int:
    """Write the picture; arguments: the overlay video and the picture."""
    overlay, picture = Path(sys.argv[1]), Path(sys.argv[2])
    frames = open_video(overlay).frames
    assert frames is not None
    image = np.vstack([frames.at(frame) for frame in FRAMES])
    size = (WIDTH, round(image.shape[0] * WIDTH / image.shape[1]))
    write_png(cv2.resize(image, size, interpolation=cv2.INTER_AREA), picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
