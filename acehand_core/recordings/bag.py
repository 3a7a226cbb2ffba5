"""A bag as a recording: pictures in the order of their header stamps, and their camera."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int
from scipy.ndimage import median_filter

from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, Recording
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.frames import BagFrames, PacketFrames
from acehand_core.recordings.bags.library import UnpackedFiles
from acehand_core.recordings.bags.records import BagOptions, BytesRead, DroppedMessages
from acehand_core.recordings.bags.scan import Scan, scan_bag
from acehand_core.recordings.bags.topics import choose_camera_info, choose_image_topic
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.recordings.video import flipped
from acehand_core.safe_files import content_sha256
from acehand_core.types import CameraPoses, Progress, TimestampsNs

#: Larger errors of a stamp are wrong stamps, smaller ones late messages.
JUMP_NS = 1_000_000_000
#: Rates this close to a usual one are rounded to it.
_RATE_TOLERANCE = 2e-4


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Increasing times of T frames, made from N >= T stamps.

    ``stamps_ns`` (T,) are the frames' stamps on the clock that set them, unset and wrong ones
    replaced; they jump where that clock was set back. ``order`` (T,) are the frames' messages,
    ``breaks`` the frames before which the clock was set back. ``duplicates`` counts messages left
    out for an equal stamp, ``late`` those out of order, ``repaired`` replaced stamps.
    """

    timestamps_ns: TimestampsNs
    stamps_ns: Int[np.ndarray, "T"]
    order: Int[np.ndarray, "T"]
    breaks: tuple[int, ...]
    duplicates: int
    late: int
    repaired: int
    from_log: bool


def frame_times(stamps_ns: Int[np.ndarray, "N"], log_ns: Int[np.ndarray, "N"]) -> FrameTimes:
    """Order frames by header stamp.

    ``stamps_ns`` and ``log_ns`` (time of receipt) are given as stored. If no stamp was set, the
    times of receipt are used. A single stamp off by more than a second is replaced by its time of
    receipt and the usual delay. If the clock was set back, the frames after it are shifted so that
    the pause is that of the times of receipt.
    """
    from_log = len(stamps_ns) > 1 and (
        not stamps_ns.any() or bool((stamps_ns == stamps_ns[0]).all())
    )
    stamps = np.array(log_ns if from_log else stamps_ns, np.int64)
    repaired, jumps, on_their_clock = 0, [], stamps

    if not from_log and len(stamps) > 2:
        delay = stamps - log_ns
        origin = delay[0]
        usual = median_filter((delay - origin).astype(np.float64), 5, mode="nearest")
        usual = usual.astype(np.int64) + origin
        wrong = np.abs(delay - usual) > JUMP_NS
        repaired = int(wrong.sum())
        stamps[wrong] = (log_ns + usual)[wrong]
        on_their_clock = stamps.copy()
        step = int(np.median(np.diff(stamps)))
        for i in np.flatnonzero(np.diff(stamps) < -JUMP_NS) + 1:
            pause = max(int(log_ns[i] - log_ns[i - 1]), step, 1)
            stamps[i:] += stamps[i - 1] + pause - stamps[i]
            jumps.append(int(i))

    late = int((stamps < np.maximum.accumulate(stamps)).sum())
    order = np.argsort(stamps, kind="stable")
    times = stamps[order]
    first = np.concatenate([[True], np.diff(times) > 0])
    order, times = order[first], times[first]
    breaks = tuple(int(np.searchsorted(times, stamps[i])) for i in jumps)

    return FrameTimes(
        timestamps_ns=times,
        stamps_ns=on_their_clock[order],
        order=order,
        breaks=breaks,
        duplicates=int((~first).sum()),
        late=late,
        repaired=repaired,
        from_log=from_log,
    )


def frame_rate(timestamps_ns: TimestampsNs) -> float:
    """Return the nominal rate of stamps, gaps excluded; 30 for a single frame."""
    if len(timestamps_ns) < 2:
        return 30.0
    steps = np.diff(timestamps_ns)
    typical = float(np.median(steps))
    rate = 1e9 / float(steps[steps < 1.5 * typical].mean())
    if round(rate) >= 1:
        for usual in (float(round(rate)), round(rate) * 1000 / 1001):
            if abs(rate / usual - 1) < _RATE_TOLERANCE:
                return usual
    return rate


def missing_frames(timestamps_ns: TimestampsNs, fps: float) -> int:
    """Return how many frames fit into the gaps of up to a second."""
    steps = np.diff(timestamps_ns) * fps / 1e9
    steps = steps[(steps > 1.5) & (steps <= fps)]
    return int((np.round(steps) - 1).sum())


@dataclass(frozen=True, slots=True)
class BagIndex:
    """A bag with T usable pictures; ``whole`` is all of it as a recording.

    ``header_ns`` and ``log_ns`` (T,) are the header stamps (see ``FrameTimes.stamps_ns``) and times
    of receipt. ``topics`` maps roles to the read topics. ``copies`` are decompressed files.
    """

    whole: Recording
    header_ns: Int[np.ndarray, "T"]
    log_ns: Int[np.ndarray, "T"]
    topics: Mapping[str, str | None]
    dropped: DroppedMessages
    copies: UnpackedFiles

    def bag(self) -> Bag:
        """Return the bag, opened anew."""
        return Bag(Path(self.whole.source), copies=self.copies)

    def recording(self, mirrored: bool = False) -> Recording:
        """Return the whole bag as a recording; ``mirrored`` flips selfie pictures back."""
        if not mirrored or self.whole.frames is None:
            return self.whole
        processing = {**self.whole.processing, "mirrored": True}
        frames = ChangedFrames(self.whole.frames, flipped)
        return replace(self.whole, frames=frames, processing=processing)


def index_bag(path: Path, options: BagOptions, progress: Progress | None = None) -> BagIndex:
    """Return the index of a bag.

    The bag is read twice, for the index and for its hash.

    Raises:
        InputError: not a bag, ambiguous topics, or no usable picture.
        CalibrationError: a named camera info topic or world frame is unusable.
    """
    read = BytesRead("index the bag", path, progress, passes=2)
    copies = UnpackedFiles()
    with Bag(path, read.still, copies) as bag:
        dropped, counts = bag.dropped, bag.counts
        topic, note = choose_image_topic(bag, counts, options.image_topic)
        infos = choose_camera_info(bag, counts, topic.name, options.camera_info_topic)
        scan = scan_bag(bag, topic, infos, options.world_frame != "none", read.add)

    read.end_pass(1)
    if note:
        dropped.remark(note)
    table = scan.table()
    keep, size = _of_one_size(table[:, 6:], scan.topic, dropped)
    times = frame_times(table[keep, 0], table[keep, 1])
    _tell_about(times, scan.topic, dropped)
    order = keep[times.order]
    fps = frame_rate(times.timestamps_ns)
    if missing := missing_frames(times.timestamps_ns, fps):
        dropped.remark(f"{scan.topic}: about {missing} frames were dropped while recording")
    info, camera = _camera(scan, size, options, dropped)
    world, poses = _poses(scan, options, times, dropped)
    places = table[:, 2:6]
    frames = BagFrames(path, scan.topic, scan.msgtype, places[order], size, dropped, copies)
    if scan.codec is not None:
        frames = PacketFrames(frames, scan.codec, places, order, scan.keys)
    recording = Recording(
        source=str(path),
        sha256=content_sha256(path, read.add),
        timestamps_ns=times.timestamps_ns,
        fps=fps,
        width=size[0],
        height=size[1],
        frames=frames,
        camera=camera,
        T_world_camera=poses,
        notes=dropped.sentences(),
        processing={"topic": scan.topic, "mirrored": False},
        camera_frame=scan.frame_id,
    )
    read.end_pass(2)
    topics = {"image": scan.topic, "camera_info": info, "world_frame": world}
    return BagIndex(recording, times.stamps_ns, table[order, 1], topics, dropped, copies)


def _of_one_size(
    table: Int[np.ndarray, "N 2"], topic: str, dropped: DroppedMessages
) -> tuple[Int[np.ndarray, "K"], tuple[int, int]]:
    """Return the messages of the most frequent size; count the others as lost."""
    sizes = [tuple(row) for row in table.tolist()]
    counts = Counter(sizes)
    size = counts.most_common(1)[0][0]
    for other, count in counts.items():
        if other != size:
            what = f"pictures of another size ({other[0]} x {other[1]}, not {size[0]} x {size[1]})"
            dropped.count(topic, what, count)
    return np.flatnonzero([other == size for other in sizes]), size


def _tell_about(times: FrameTimes, topic: str, dropped: DroppedMessages) -> None:
    remarks = [
        (times.from_log, "no header stamps; the time of receipt is used"),
        (times.late, f"{times.late} frames were out of order; sorted by header stamp"),
        (
            times.repaired,
            f"{times.repaired} header stamps are off by more than a second; replaced by the time "
            "of receipt",
        ),
    ]
    shifted = "later ones are shifted by the time of receipt"
    remarks += [(True, f"stamps jump backwards at frame {at}; {shifted}") for at in times.breaks]
    for found, remark in remarks:
        if found:
            dropped.remark(f"{topic}: {remark}")
    if times.duplicates:
        dropped.count(topic, "header stamp as of another frame", times.duplicates)


def _camera(
    scan: Scan, size: tuple[int, int], options: BagOptions, dropped: DroppedMessages
) -> tuple[str | None, Camera | None]:
    """Return the topic and the camera that fits the pictures. Raises if a named topic does not."""
    named = options.camera_info_topic
    for topic, camera in scan.cameras.items():
        if camera is None:
            dropped.remark(f"{topic}: the camera is not calibrated")
            continue
        try:
            return topic, fit_camera_to(camera, *size)
        except CalibrationError as error:
            if named is not None:
                raise
            dropped.remark(f"{topic}: not used: {error}")

    if named is not None:
        raise CalibrationError(f"--camera-info-topic {named!r}: no calibration in it.")
    dropped.remark("no CameraInfo: the camera is unknown")
    return None, None


def _poses(
    scan: Scan, options: BagOptions, times: FrameTimes, dropped: DroppedMessages
) -> tuple[str | None, CameraPoses | None]:
    """Return the world's name and camera poses. Raises if a named world has none."""
    if options.world_frame == "none":
        return None, None
    try:
        poses = scan.tree.poses(scan.frame_id, options.world_frame, times.timestamps_ns)
    except CalibrationError as error:
        if options.world_frame is not None:
            raise
        dropped.remark(f"no camera poses: {error}")
        return None, None
    return poses if poses is not None else (None, None)
