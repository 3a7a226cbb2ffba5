"""Renders the example clip and its ground truth: ``python examples/render_clip.py [FOLDER]``."""

from __future__ import annotations

import sys
from pathlib import Path

from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.hand_table import write_hand_motion
from acehand_core.synthetic.clip import render_clip, write_video
from acehand_core.synthetic.stories import two_hands

#: The camera the clip is seen through, 68 degrees wide; also in the metadata of the truth.
CAMERA = Camera.nominal(640, 480, 68.0)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    video, table = folder / "two_hands.mp4", folder / "two_hands_truth.parquet"
    script = two_hands(seed=0)
    frames, truth = render_clip(script, CAMERA)
    write_video(video, frames, script.fps)
    write_hand_motion(truth, table, overwrite=True)
    print(f"{len(truth)} frames: {video}\nground truth: {table}")


if __name__ == "__main__":
    main()
