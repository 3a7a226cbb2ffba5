"""Inertial sensors in files: EuRoC's data.csv, a table of one's own, a GoPro's video."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.csv
import yaml
from jaxtyping import Float, Int

from acehand_core.errors import InputError, nearest
from acehand_core.motion import Imu, Recording
from acehand_core.recordings.camera_fields import rotation_in
from acehand_core.recordings.camera_metadata import gpmf_keys
from acehand_core.recordings.video import EXTENSIONS
from acehand_core.recordings.video_index import open_container
from acehand_core.types import Rotation, TimestampsNs

#: Columns of a table of one's own; the times are one of the first two, the last three may lack.
COLUMNS = ("timestamp_ns", "seconds", "wx", "wy", "wz", "ax", "ay", "az")
#: EuRoC's and TUM-VI's names of the same.
_ASL = {
    "#timestamp [ns]": "timestamp_ns",
    **{f"w_RS_S_{axis} [rad s^-1]": f"w{axis}" for axis in "xyz"},
    **{f"a_RS_S_{axis} [m s^-2]": f"a{axis}" for axis in "xyz"},
}
#: What heads do, as rms of a recording (rad/s), and what sensors do (samples a second).
_MOST_RATE, _SAMPLE_RATES = 8.0, (20.0, 20_000.0)
#: Median length of a specific force that is in m/s^2.
_FORCES = (5.0, 20.0)
#: A recording is not longer.
_MOST_SECONDS = 1e7
#: Axes of a GoPro (x to the left of who stands behind it, y towards them, z up) in its camera.
_R_CAMERA_GOPRO = np.array([[-1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, -1.0, 0.0]])
#: Payloads whose times are further from a steady rate than this, seconds, hold a gap.
_STEADY_S = 0.05


def checked_imu(
    source: str,
    times_ns: Int[np.ndarray, "N"],
    rates: Float[np.ndarray, "N 3"],
    force: Float[np.ndarray, "N 3"] | None,
    R_camera_imu: Rotation | None,
    frames_ns: TimestampsNs,
) -> Imu:
    """Return samples as the sensor of a recording with frames at some times.

    Raises:
        InputError: a value is not finite, times do not increase, do not overlap those of the frames
            or are not in nanoseconds, or the units are not rad/s and m/s^2.
    """
    values = rates if force is None else np.concatenate([rates, force], axis=1)
    problems = (
        (~np.isfinite(values).all(axis=1), "has a value that is missing or not finite"),
        (np.diff(times_ns, prepend=times_ns[:1] - 1) <= 0, "is not later than the one before it"),
    )
    for bad, what in problems:
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(f"{source}: sample {row} (at {times_ns[row]} ns) {what}.")
    if len(times_ns) < 2:
        raise InputError(f"{source}: {len(times_ns)} samples; at least two are needed.")

    rate = 1e9 / float(np.median(np.diff(times_ns)))
    if not _SAMPLE_RATES[0] <= rate <= _SAMPLE_RATES[1]:
        raise InputError(
            f"{source}: {rate:.3g} samples a second by its times; valid: {_SAMPLE_RATES[0]:g} to "
            f"{_SAMPLE_RATES[1]:g}. Are the times nanoseconds?"
        )
    if times_ns[0] > frames_ns[-1] or times_ns[-1] < frames_ns[0]:
        raise InputError(
            f"{source}: samples from {times_ns[0]} to {times_ns[-1]} ns, frames from "
            f"{frames_ns[0]} to {frames_ns[-1]} ns: they must overlap, on the same clock."
        )
    rms = float(np.sqrt((rates**2).sum(1).mean()))
    if rms > _MOST_RATE:
        raise InputError(
            f"{source}: {rms:.0f} rad/s in the mean, which no head does (up to {_MOST_RATE:g}); "
            "are these degrees a second? Give radians a second."
        )
    if force is not None:
        size = float(np.median(np.linalg.norm(force, axis=1)))
        if not _FORCES[0] <= size <= _FORCES[1]:
            unit = "; in units of g it would be 1" if 0.5 < size < 2 else ""
            raise InputError(
                f"{source}: the specific force is mostly {size:.3g} m/s^2 long, gravity alone is "
                f"9.81{unit}. Give m/s^2, or leave it out."
            )
    return Imu(times_ns, rates, force, R_camera_imu, source)


def read_imu(path: Path, frames_ns: TimestampsNs) -> Imu:
    """Return the inertial sensor of a file for a recording with frames at some times.

    Of EuRoC's data.csv, values are turned into the axes of the body where T_BS of a sensor.yaml
    beside it says so.

    Args:
        path: EuRoC's data.csv, a csv with ``COLUMNS``, or a GoPro's video.
        frames_ns: of the whole recording: ``seconds`` count from the first.

    Raises:
        InputError: it is none of these, or see ``checked_imu``.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist or is a folder; give a file of an IMU.")
    if path.suffix.lower() in EXTENSIONS:
        imu = gopro_imu(path, frames_ns, turned=0)
        if imu is None:
            raise InputError(f"{path}: a video without a GoPro's gyroscope.")
        return imu

    columns, is_asl = _columns(path)
    if "seconds" in columns:
        times = frames_ns[0] + np.round(columns["seconds"] * 1e9).astype(np.int64)
    else:
        times = columns["timestamp_ns"]
    rates = np.stack([columns[f"w{axis}"] for axis in "xyz"], axis=-1)
    force = None
    if "ax" in columns:
        force = np.stack([columns[f"a{axis}"] for axis in "xyz"], axis=-1)

    beside = path.with_name("sensor.yaml")
    if is_asl and beside.is_file():
        R = _asl_rotation(beside)
        rates, force = rates @ R.T, None if force is None else force @ R.T
    return checked_imu(str(path), times, rates, force, None, frames_ns)


def _columns(path: Path) -> tuple[dict[str, np.ndarray], bool]:
    """Return the columns of a csv by our names, and whether it has EuRoC's."""
    try:
        table = pa.csv.read_csv(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as a table: {error}") from None
    given = [name.strip() for name in table.column_names]
    names = [_ASL.get(name, name) for name in given]

    for name in names:
        if name not in COLUMNS:
            raise InputError(f"{path}: unknown column {name!r}; {nearest(name, COLUMNS)}")
    force = [name for name in COLUMNS[5:] if name in names]
    needed = [*COLUMNS[2:5], *(COLUMNS[5:] if force else ())]
    if lacking := [name for name in needed if names.count(name) != 1]:
        raise InputError(f"{path}: column {lacking[0]!r} must be there once.")
    if names.count("timestamp_ns") + names.count("seconds") != 1:
        raise InputError(f"{path}: one column timestamp_ns or seconds is needed.")

    columns = {}
    for name, column in zip(names, table.columns, strict=True):
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise InputError(f"{path}: column {name!r} must hold numbers.")
        values = column.to_numpy()
        if name == "timestamp_ns":
            if column.null_count or not (np.isfinite(values) & (values % 1 == 0)).all():
                raise InputError(f"{path}: {name} must hold whole nanoseconds in every row.")
            columns[name] = values.astype(np.int64)
        else:
            columns[name] = values.astype(float)
    if not (np.abs(columns.get("seconds", np.zeros(0))) < _MOST_SECONDS).all():
        raise InputError(
            f"{path}: seconds must hold a number in every row, seconds after the first frame; for "
            "times on the clock of the frames there is timestamp_ns."
        )
    return columns, names != given


def _asl_rotation(path: Path) -> Rotation:
    """Return R_body_sensor of EuRoC's sensor.yaml."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not YAML ({error}).") from None
    if not isinstance(content, dict) or "T_BS" not in content:
        return np.eye(3)
    return rotation_in(content["T_BS"], f"{path}: T_BS")


# GoPro: https://github.com/gopro/gpmf-parser, docs. Each packet of the track holds streams, and
# each of these what it is, its scale and samples that are evenly spaced.


@dataclass(slots=True)
class _Stream:
    """Samples of a stream, by packet: when it begins and ends (s), and values in its unit."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    axes: str = ""

    def times(self) -> Float[np.ndarray, "N"]:
        """Return when each sample was taken, seconds.

        Packets are cut where the camera's software comes round to it: a steady rate is truer.
        """
        counts = np.array([len(values) for values in self.values])
        first, number = np.cumsum(counts) - counts, np.arange(counts.sum())
        begin, end = self.spans[0][0], self.spans[-1][1]
        starts = np.array([span[0] for span in self.spans])
        if len(first) < 3:
            return begin + number * (end - begin) / counts.sum()
        line = np.polynomial.Polynomial.fit(first, starts, 1)
        if np.abs(line(first) - starts).max() < _STEADY_S:
            return np.asarray(line(number))
        return np.interp(number, [*first, counts.sum()], [*starts, end])


def gopro_imu(path: Path, frames_ns: TimestampsNs, turned: int) -> Imu | None:
    """Return the inertial sensor in a GoPro's video; None: there is none.

    Args:
        frames_ns: of the recording it is for, on the clock of the video in ``path``.
        turned: degrees counter-clockwise that its pictures are turned by on reading.

    Raises:
        VideoError: the file cannot be opened.
        InputError: see ``checked_imu``.
    """
    gyroscope, accelerometer = _Stream(), _Stream()
    for span, data in _packets(path):
        for key, stream in (("GYRO", gyroscope), ("ACCL", accelerometer)):
            found = _samples(data, key)
            if found is not None:
                stream.spans.append(span)
                stream.values.append(found[0])
                stream.axes = found[1]
    if not gyroscope.values:
        return None

    seconds, rates = gyroscope.times(), np.concatenate(gyroscope.values)
    times = np.round(seconds * 1e9).astype(np.int64)
    force = None
    if accelerometer.values and accelerometer.axes in ("", gyroscope.axes):
        at, values = accelerometer.times(), np.concatenate(accelerometer.values)
        force = np.stack([np.interp(seconds, at, axis) for axis in values.T], axis=-1)
    mounting = _gopro_mounting(gyroscope.axes, turned)
    return checked_imu(f"{path.name}, GYRO", times, rates, force, mounting, frames_ns)


def with_gopro_imu(recording: Recording, path: Path) -> Recording:
    """Return the recording of a video with the inertial sensor in its file, if it has one.

    One that cannot be used is left out, and a note says why.
    """
    turned = int(recording.processing["rotation"])
    try:
        return replace(recording, imu=gopro_imu(path, recording.timestamps_ns, turned))
    except InputError as error:
        return replace(recording, notes=(*recording.notes, f"no gyroscope: {error}"))


def _packets(path: Path) -> Iterator[tuple[tuple[float, float], bytes]]:
    """Yield begin and end (s) and content of the packets of a video's GPMF track."""
    with open_container(path) as container:
        tracks = [stream for stream in container.streams if stream.type == "data"]
        if not any("GoPro MET" in stream.metadata.get("handler_name", "") for stream in tracks):
            return
        try:
            for packet in container.demux(tracks):
                data = bytes(packet)
                if data[:4] == b"DEVC" and packet.pts is not None and packet.time_base is not None:
                    begin = float(packet.pts * packet.time_base)
                    yield (begin, begin + float((packet.duration or 0) * packet.time_base)), data
        except av.FFmpegError:
            return  # cut off; what came before it counts


def _samples(data: bytes, key: str) -> tuple[Float[np.ndarray, "N 3"], str] | None:
    """Return the samples of a stream in its unit, and their axes by ORIN or by name; or None."""
    stream: dict[str, object] = {}
    for name, value in gpmf_keys(data):
        if name == "STRM":
            stream = {}
        elif name == key and isinstance(value, tuple) and len(value) % 3 == 0:
            scale = stream.get("SCAL", (1,))
            if not isinstance(scale, tuple) or len(scale) not in (1, 3) or not all(scale):
                return None
            # The HERO5 has no ORIN but says in the stream's name: (z,x,y).
            named = re.search(r"\(([xyz]),([xyz]),([xyz])\)", str(stream.get("STNM", "")))
            said = "".join(named.groups()).upper() if named else ""
            axes = str(stream.get("ORIN", said)).strip("\0 ")
            return np.reshape(value, (-1, 3)) / np.array(scale, float), axes
        else:
            stream[name] = value
    return None


def _gopro_mounting(axes: str, turned: int) -> Rotation | None:
    """Return R_camera_imu for the axes in the order of the samples, capital where positive."""
    if sorted(axes.upper()) != ["X", "Y", "Z"]:
        return None
    R_gopro_imu = np.zeros((3, 3))
    for column, axis in enumerate(axes):
        R_gopro_imu["XYZ".index(axis.upper()), column] = 1.0 if axis.isupper() else -1.0
    if np.linalg.det(R_gopro_imu) < 0:
        return None
    # Turned counter-clockwise, what pointed down in the picture points right.
    quarter = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    return np.linalg.matrix_power(quarter, turned // 90) @ _R_CAMERA_GOPRO @ R_gopro_imu
