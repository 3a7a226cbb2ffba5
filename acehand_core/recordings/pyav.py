"""What differs between versions of PyAV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import av
from av.video.reformatter import ColorRange, Colorspace

if TYPE_CHECKING:  # generic in the stubs only
    VideoPacket = av.Packet[av.VideoStream]
else:
    VideoPacket = av.Packet


def rgb_options(frame: av.VideoFrame) -> dict[str, Any]:
    """Return what ``reformat`` needs to make RGB of a frame by the colour tags it carries.

    PyAV before 17 does not look at them unless it is told; later ones take them anyway.
    """
    full = frame.format.name.startswith(("yuvj", "gray", "ya"))  # whatever their tag says
    return {
        "format": "rgb24",
        "src_color_range": ColorRange.JPEG if full else frame.color_range,
        "src_colorspace": frame.colorspace,
        "dst_colorspace": Colorspace.DEFAULT,
    }
