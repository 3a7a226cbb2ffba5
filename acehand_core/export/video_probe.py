"""What a video file contains, read from its packets without decoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import Float

from acehand_core.errors import VideoError


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """``times_s`` are the frames' presentation times in increasing order, in seconds."""

    path: Path
    width: int
    height: int
    codec: str
    pix_fmt: str
    has_audio: bool
    starts_with_key_frame: bool
    times_s: Float[np.ndarray, "T"]

    def info(self, fps: int) -> dict[str, Any]:
        """Return the entries that describe the video in a dataset's info.json."""
        return {
            "video.height": self.height,
            "video.width": self.width,
            "video.codec": self.codec,
            "video.pix_fmt": self.pix_fmt,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": self.has_audio,
            "is_depth_map": False,
        }


def probe_video(path: Path) -> VideoFacts:
    """Read a video's size, codec and frame times. Raises VideoError when it is no usable video."""
    try:
        with av.open(f"file:{path}", metadata_errors="ignore") as container:
            if not container.streams.video:
                raise VideoError(f"{path} has no video stream.")
            stream = container.streams.video[0]
            packets = [
                (packet.pts, packet.is_keyframe)
                for packet in container.demux(stream)
                if packet.pts is not None and packet.size and not packet.is_discard
            ]
            context = stream.codec_context
            if context is None:
                raise VideoError(f"{path} is coded in a way that is not known here.")
            ticks = np.array(sorted(pts for pts, _ in packets), dtype=np.int64)
            return VideoFacts(
                path=path,
                width=context.width,
                height=context.height,
                codec=context.codec.canonical_name,
                pix_fmt=context.pix_fmt or "",
                has_audio=bool(container.streams.audio),
                starts_with_key_frame=bool(packets and packets[0][1]),
                times_s=ticks * stream.time_base.numerator / stream.time_base.denominator,
            )
    except (OSError, av.FFmpegError) as error:
        raise VideoError(f"{path} cannot be read as a video: {error}.") from error
