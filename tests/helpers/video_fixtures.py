"""Small test videos whose frames carry their own number.

A frame is a grid of 4 x 4 grey cells, one bit of the number each, so the number survives lossy
coding and tells a turned or mirrored picture from an upright one.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

_DARK, _BRIGHT = 48, 208
#: Bit 0 is always set and bit 15 never, so that no number looks the same turned or mirrored.
_FIRST_BIT, _NUM_BITS = 1, 14


class Images:
    """Frames in memory; ``seen`` are the indices of those that were read."""

    def __init__(self, images: Sequence[np.ndarray]) -> None:
        self.images, self.seen = images, []

    def __len__(self) -> int:
        return len(self.images)

    def read(self, start: int, stop: int) -> Iterator[np.ndarray]:
        assert 0 <= start <= stop <= len(self.images)
        yield from map(self.at, range(start, stop))

    def at(self, index: int) -> np.ndarray:
        self.seen.append(index)
        return self.images[index]


def numbered_image(number: int, width: int = 96, height: int = 64) -> np.ndarray:
    """Return an RGB image (height, width, 3) that shows ``number`` < 16384."""
    bits = (number << _FIRST_BIT | 1) >> np.arange(16) & 1
    cells = np.where(bits, _BRIGHT, _DARK).astype(np.uint8).reshape(4, 4)
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    return np.repeat(cells[rows][:, columns, None], 3, axis=2)


def read_number(image: np.ndarray) -> int:
    """Return the number a decoded RGB image shows."""
    height, width = image.shape[:2]
    rows, columns = (np.arange(4) * 2 + 1) * height // 8, (np.arange(4) * 2 + 1) * width // 8
    bits = image[rows][:, columns].mean(axis=-1).reshape(16) > (_DARK + _BRIGHT) / 2
    assert bits[0] and not bits[15], "the picture is turned, mirrored or broken"
    return int(bits @ (1 << np.arange(16))) >> _FIRST_BIT


def write_video(
    path: Path,
    frames: int | Sequence[np.ndarray] = 10,
    *,
    times: Sequence[Fraction | float] | None = None,
    fps: Fraction | int = 30,
    size: tuple[int, int] = (96, 64),
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    rotation: float = 0.0,
    hflip: bool = False,
    audio: bool = False,
) -> Path:
    """Write numbered frames, or the given RGB images, and return ``path``.

    ``times`` are in seconds, one per frame; ``rotation`` is the display matrix in degrees
    counter-clockwise, ``hflip`` mirrors it.
    """
    numbered = isinstance(frames, int)
    images = [numbered_image(i, *size) for i in range(frames)] if numbered else frames
    time_base = Fraction(1, 90000)
    times = [Fraction(i) / Fraction(fps) for i in range(len(images))] if times is None else times
    with av.open(str(path), "w", options=dict(container_options or {})) as container:
        container.metadata.update(metadata or {})
        stream = container.add_stream(codec, rate=fps, options=dict(options or {}))
        stream.width, stream.height = images[0].shape[1::-1] if images else size
        stream.pix_fmt = pix_fmt
        stream.codec_context.time_base = time_base if codec != "mpeg4" else 1 / Fraction(fps)
        sound = container.add_stream("aac", rate=16000) if audio else None
        if sound:
            _write_silence(container, sound, float(times[-1]) + 0.5)
        for image, time in zip(images, times, strict=True):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.time_base = stream.codec_context.time_base
            frame.pts = round(time / frame.time_base)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    if rotation or hflip:
        _set_display_matrix(path, rotation, hflip)
    return path


def _set_display_matrix(path: Path, degrees: float, hflip: bool) -> None:
    """Write it into the first track header (ISO/IEC 14496-12, 8.3.2): PyAV does so from 17 on."""
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    flip = -1 if hflip else 1
    matrix = np.array([[flip * cosine, -sine, 0], [flip * sine, cosine, 0], [0, 0, 2**14]])
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44  # version 0: times, ids and duration of 4 bytes each
    data[at : at + 36] = np.round(matrix * 2**16).astype(">i4").tobytes()
    path.write_bytes(data)


def write_audio(path: Path, seconds: float = 0.5) -> Path:
    """Write a file with a silent audio stream only."""
    with av.open(str(path), "w") as container:
        _write_silence(container, container.add_stream("aac", rate=16000), seconds)
    return path


def _write_silence(container, stream, seconds: float) -> None:
    for start in range(0, round(seconds * 16000), 1024):
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate, frame.pts, frame.time_base = 16000, start, Fraction(1, 16000)
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))
