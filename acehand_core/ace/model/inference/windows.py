"""Windows of a recording: frames to latents, latents to windows, pixels to encode.

Latent i covers video frame 4 i and the three before it, so a window of latents s to e has the
frames 4 s to 4 (e - 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from acehand_core.ace.model.config import TEMPORAL_STRIDE, TOKEN_PIXELS
from acehand_core.errors import InputError, nearest
from acehand_core.geometry.cameras import Camera

WindowKind = Literal["paper", "blended", "full"]

#: Latents of a window, as in the released code: 85 frames. Training saw 21 (81 frames).
PAPER_LATENTS = 22
#: Frames from one window of the released plan to the next, before rounding to latents.
SEGMENT_FRAMES = 81
#: Latents that blended windows share: 21 frames, 0.7 s at 30 fps, to fade over.
OVERLAP_LATENTS = 6
#: Entries of the trunk's table of frame positions.
MAX_LATENTS = 1024
#: Fewest frames the model takes: two latents.
MIN_FRAMES = 5
DEFAULT_ENCODE_WIDTH = 832


@dataclass(frozen=True, slots=True)
class Window:
    """Latents ``start`` to ``stop - 1`` of a recording, decoded together.

    ``share`` is the weight of each of the N frames against earlier windows: 1 replaces, 0 keeps,
    between cross-fades.
    """

    start: int
    stop: int
    share: Float[np.ndarray, "N"]

    @property
    def first_frame(self) -> int:
        """The first of its frames in the recording."""
        return TEMPORAL_STRIDE * self.start

    @property
    def stop_frame(self) -> int:
        """One more than the last of its frames."""
        return TEMPORAL_STRIDE * (self.stop - 1) + 1


def frames_used(count: int) -> int:
    """Return how many of ``count`` frames the released code keeps: 4k + 1, but at least 5."""
    return max(MIN_FRAMES, latents_of(count) * TEMPORAL_STRIDE - TEMPORAL_STRIDE + 1)


def frames_padded(count: int) -> int:
    """Return the least 4k + 1 frames, 5 or more, that hold ``count`` frames."""
    return frames_used(count + TEMPORAL_STRIDE - 1)


def latents_of(frames: int) -> int:
    """Return the number of latents of a clip: one for the first frame and every further four."""
    return 1 + (frames - 1) // TEMPORAL_STRIDE


def released_starts(count: int, width: int = PAPER_LATENTS) -> list[tuple[int, int | None]]:
    """Return the windows of the released code for ``count`` latents.

    One per full 81-frame segment, at least one, as (first latent, first video frame written; None
    for all). A last window that ends with the clip writes what is missing. Later windows overwrite.
    """
    latest = max(count - width, 0)
    frames = TEMPORAL_STRIDE * (count - 1) + 1
    segments = max(1, frames // SEGMENT_FRAMES)
    starts: list[tuple[int, int | None]] = [
        (min(i * SEGMENT_FRAMES // TEMPORAL_STRIDE, latest), None) for i in range(segments)
    ]
    end = TEMPORAL_STRIDE * (starts[-1][0] + width - 1) + 1
    if end < frames:
        starts.append((latest, end))
    return starts


def paper_plan(count: int, width: int = PAPER_LATENTS) -> tuple[Window, ...]:
    """Return windows in the order of writing; later ones overwrite earlier ones.

    From 22 latents on they are those of the released code. Its windows start 81 frames apart,
    rounded down to latents; shorter ones would leave gaps, so they follow each other with one
    shared latent.
    """
    if width >= PAPER_LATENTS:
        starts = released_starts(count, width)
    else:
        starts = [(start, None) for start in range(0, max(count - width, 0) + 1, width - 1)]
        end = TEMPORAL_STRIDE * (starts[-1][0] + width - 1) + 1
        if end < TEMPORAL_STRIDE * (count - 1) + 1:
            starts.append((count - width, end))
    return tuple(
        written_from(start, min(start + width, count), first or 0)
        for start, first in dict.fromkeys(starts)
    )


def plan_windows(kind: str, count: int, width: int = PAPER_LATENTS) -> tuple[Window, ...]:
    """Return the windows of a recording of ``count`` latents, in order.

    Raises InputError: an unknown kind, windows of less than 2 latents, or of more than the trunk
    has positions for.

    Args:
        kind: "paper", see ``paper_plan``; "blended" with 6 shared latents (half a window at most)
            and a cross-fade in the middle of the overlap; "full" one window.
        width: latents of a window.
    """
    if kind not in get_args(WindowKind):
        raise InputError(f"`windows={kind!r}`; {nearest(kind, get_args(WindowKind))}")
    if kind == "full":
        width = count
    if width < 2:
        raise InputError(f"windows of {width} latents; valid: 2 or more.")
    check_latents(min(width, count))
    if kind == "blended":
        return _blended(count, width, min(OVERLAP_LATENTS, max(1, width // 2)))
    return paper_plan(count, width)


def latents_over(first: int, stop: int, count: int) -> tuple[int, int]:
    """Return the latents, start and stop, of one pass over frames ``first`` to ``stop - 1``.

    On the recording's own grid 81 frames lie on 21 latents, or 22 if the first frame is not a
    latent's (paper, "Decoded Sequence Length"). At least two, within ``count``.
    """
    start = first // TEMPORAL_STRIDE
    end = min(-(-(stop - 1) // TEMPORAL_STRIDE) + 1, count)
    end = max(end, min(start + 2, count))
    return min(start, end - 2), end


def check_latents(count: int) -> None:
    """Raise InputError for more latents in one pass than the trunk has positions for."""
    if count > MAX_LATENTS:
        frames = TEMPORAL_STRIDE * (count - 1) + 1
        raise InputError(
            f"{count} latents ({frames} frames) in one pass; valid: up to {MAX_LATENTS}, or "
            "`windows=blended`."
        )


def encode_size(width: int, height: int, encode_width: int) -> tuple[int, int]:
    """Return the size (width, height) in pixels that frames are resized to before encoding.

    Both sides are scaled alike, then rounded to whole tokens (Python's ``round``: halves to even),
    so the aspect ratio is approximate. 0 keeps the native size.
    """
    if encode_width < 0:
        raise InputError(f"`encode_width={encode_width}`; valid: a width in pixels, or native.")
    scale = encode_width / width if encode_width else 1.0

    def side(size: int) -> int:
        return max(TOKEN_PIXELS, round(size * scale / TOKEN_PIXELS) * TOKEN_PIXELS)

    return side(width), side(height)


def encode_camera(camera: Camera, width: int, height: int) -> Camera:
    """Return a pinhole of the encoded image, as released without a half-pixel shift."""
    sx, sy = width / camera.width, height / camera.height
    fx, fy, cx, cy = camera.fx * sx, camera.fy * sy, camera.cx * sx, camera.cy * sy
    return replace(camera, width=width, height=height, fx=fx, fy=fy, cx=cx, cy=cy)


def written_from(start: int, stop: int, first: int) -> Window:
    """Return a window that replaces everything from video frame ``first`` on."""
    frame = TEMPORAL_STRIDE * start + np.arange(TEMPORAL_STRIDE * (stop - start - 1) + 1)
    return Window(start, stop, (frame >= first).astype(float))


def _blended(count: int, width: int, overlap: int) -> tuple[Window, ...]:
    """Return evenly spread windows that overlap by ``overlap`` latents or more."""
    reach = max(count - width, 0)
    steps = -(-reach // (width - overlap))
    starts = [i * reach // max(steps, 1) for i in range(steps + 1)]
    longest = TEMPORAL_STRIDE * (overlap - 1) + 1

    windows: list[Window] = []
    for start in starts:
        window = written_from(start, min(start + width, count), 0)
        if windows:
            # Fade in the middle of the overlap: windows are least certain at their ends.
            shared = windows[-1].stop_frame - window.first_frame
            ramp = min(shared, longest)
            begin = (shared - ramp) // 2
            window.share[:begin] = 0.0
            window.share[begin : begin + ramp] = np.arange(1, ramp + 1) / (ramp + 1)
        windows.append(window)

    return tuple(windows)
