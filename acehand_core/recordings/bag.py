"""A bag as a recording: its pictures in the order they were taken, their times, and their camera.

Times are the header stamps, repaired where they cannot be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int
from scipy.ndimage import median_filter

from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.frames import BagFrames, PacketFrames
from acehand_core.recordings.bags.library import UnpackedFiles
from acehand_core.recordings.bags.records import BagOptions, BytesRead, DroppedMessages
from acehand_core.recordings.bags.scan import Scan, scan_bag
from acehand_core.recordings.bags.topics import choose_camera_info, choose_image_topic
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.safe_files import content_sha256
from acehand_core.types import CameraPoses, Progress, TimestampsNs

#: A stamp that is off by more than this is wrong; less is a late message.
JUMP_NS = 1_000_000_000
#: Rates closer to a usual one than this are taken for it.
_RATE_TOLERANCE = 2e-4


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Increasing times of T frames, made from N >= T stamps.

    ``stamps_ns`` (T,) are the stamps of the frames on the clock that set them, unset and wrong ones
    replaced; they jump where that clock was set. ``order`` (T,) says which message each frame is.
    ``breaks`` are frames before which the recording's clock was set back. ``duplicates`` counts
    messages left out because another has the same stamp; ``late`` those that came after a later
    one; ``repaired`` stamps that were replaced.
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

    ``stamps_ns`` and ``log_ns`` (time of receipt) are given as stored. Where no stamp was set, the
    time of receipt counts. A single stamp that is off by more than a second is replaced by its time
    of receipt and the usual delay. Where the clock was set back, what follows is moved on, so that
    the times of receipt decide how long the break was; the stamps themselves are not lost, they
    stay with the messages.
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
    """Return the nominal rate that stamps show; gaps do not count. 30 for a single frame."""
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
    """Return how many frames the gaps of up to a second had room for."""
    steps = np.diff(timestamps_ns) * fps / 1e9
    steps = steps[(steps > 1.5) & (steps <= fps)]
    return int((np.round(steps) - 1).sum())


_STAGE = "index the bag"
_MIXED = "pictures of another size"


@dataclass(frozen=True, slots=True)
class BagIndex:
    """The T usable pictures of a bag.

    ``timestamps_ns`` increase; ``header_ns`` and ``log_ns`` (T,) are the header stamp (an unset or
    wrong one replaced, see ``frame_times``) and the time of receipt of the message that each frame
    comes from. ``topics`` says what was read as what,
    ``dropped`` what could not be used.
    """

    path: Path
    sha256: str
    timestamps_ns: TimestampsNs
    header_ns: Int[np.ndarray, "T"]
    log_ns: Int[np.ndarray, "T"]
    breaks: tuple[int, ...]
    fps: float
    width: int
    height: int
    frame_id: str
    camera: Camera | None
    world: str | None
    T_world_camera: CameraPoses | None
    frames: BagFrames
    topics: Mapping[str, str | None]
    dropped: DroppedMessages
    notes: tuple[str, ...]

    def bag(self) -> Bag:
        """Return the bag, opened anew; decompressed files are shared with the frames."""
        return Bag(self.path, copies=self.frames.copies)

    def recording(self, mirrored: bool = False) -> Recording:
        """Return the whole bag as a recording; ``mirrored`` turns selfie pictures back."""
        return Recording(
            source=str(self.path),
            sha256=self.sha256,
            timestamps_ns=self.timestamps_ns,
            fps=self.fps,
            width=self.width,
            height=self.height,
            frames=self.frames.mirrored() if mirrored else self.frames,
            camera=self.camera,
            T_world_camera=self.T_world_camera,
            notes=self.notes,
            processing={"topic": self.topics["image"], "mirrored": mirrored},
            camera_frame=self.frame_id,
        )


def index_bag(path: Path, options: BagOptions, progress: Progress | None = None) -> BagIndex:
    """Return the index of a bag.

    The bag is read twice, for the index and for its hash; ``progress`` counts the bytes.

    Raises:
        InputError: it is not a bag, its topics are not clear, or nothing in it can be used.
        CalibrationError: a named camera info topic or world frame cannot be used.
    """
    read = BytesRead(_STAGE, path, progress, passes=2)
    copies = UnpackedFiles()
    with Bag(path, read.still, copies) as bag:
        dropped = bag.dropped
        counts = bag.counts if bag.counted else {}
        topic, note = choose_image_topic(bag.topics, counts, options.image_topic, str(path))
        infos = choose_camera_info(
            bag.topics, counts, topic.name, options.camera_info_topic, str(path)
        )
        poses_wanted = options.world_frame != "none"
        scan = scan_bag(bag, topic, infos, poses_wanted, dropped, read.add)

    read.end_pass(1)
    if note:
        dropped.remark(note)
    keep, size = _of_one_size(scan, dropped)
    stamps, logs = (np.array(values, np.int64)[keep] for values in (scan.stamps, scan.logs))
    times = frame_times(stamps, logs)
    _tell_about(times, scan.topic, dropped)
    order = keep[times.order]
    fps = frame_rate(times.timestamps_ns)
    missing = missing_frames(times.timestamps_ns, fps)
    if missing:
        dropped.remark(f"{scan.topic}: about {missing} frames were dropped while recording")
    info, camera = _camera(scan, size, options, dropped)
    world, poses = _poses(scan, options, times, dropped)
    places = scan.table()[order]
    frames = BagFrames(path, scan.topic, scan.msgtype, places, size, False, dropped, copies)
    if scan.codec is not None:
        frames = PacketFrames(frames, scan.codec, scan.table(), order, scan.keys)
    sha256 = content_sha256(path, read.add)
    read.end_pass(2)

    return BagIndex(
        path=path,
        sha256=sha256,
        timestamps_ns=times.timestamps_ns,
        header_ns=times.stamps_ns,
        log_ns=np.array(scan.logs, np.int64)[order],
        breaks=times.breaks,
        fps=fps,
        width=size[0],
        height=size[1],
        frame_id=scan.frame_id,
        camera=camera,
        world=world,
        T_world_camera=poses,
        frames=frames,
        topics={
            "image": scan.topic,
            "camera_info": info,
            "world_frame": world,
        },
        dropped=dropped,
        notes=dropped.sentences(),
    )


def _of_one_size(
    scan: Scan, dropped: DroppedMessages
) -> tuple[Int[np.ndarray, "K"], tuple[int, int]]:
    """Return the messages of the commonest size; the others are counted as lost."""
    sizes = [tuple(row) for row in scan.size_table().tolist()]
    counts = Counter(sizes)
    size = counts.most_common(1)[0][0]
    for other, count in counts.items():
        if other != size:
            what = f"{_MIXED} ({other[0]} x {other[1]}, not {size[0]} x {size[1]})"
            dropped.count(scan.topic, what, count)
    return np.flatnonzero([other == size for other in sizes]), size


def _tell_about(times: FrameTimes, topic: str, dropped: DroppedMessages) -> None:
    if times.from_log:
        dropped.remark(f"{topic}: no header stamps; the time of receipt is used")
    if times.late:
        dropped.remark(f"{topic}: {times.late} frames were out of order; sorted by header stamp")

    if times.repaired:
        dropped.remark(
            f"{topic}: {times.repaired} header stamps are off by more than a second; replaced by "
            "the time of receipt"
        )

    for frame in times.breaks:
        dropped.remark(
            f"{topic}: stamps jump backwards at frame {frame}; what follows is moved on by the "
            "time of receipt"
        )

    if times.duplicates:
        dropped.count(topic, "header stamp as of another frame", times.duplicates)


def _camera(
    scan: Scan, size: tuple[int, int], options: BagOptions, dropped: DroppedMessages
) -> tuple[str | None, Camera | None]:
    """Return the topic and the camera that fits the pictures; a named topic must fit."""
    named = options.camera_info_topic is not None
    for topic, camera in scan.cameras.items():
        if camera is None:
            dropped.remark(f"{topic}: says that the camera is not calibrated")
            continue
        try:
            return topic, fit_camera_to(camera, *size)
        except CalibrationError as error:
            if named:
                raise
            dropped.remark(f"{topic}: not used: {error}")

    if named:
        raise CalibrationError(f"--camera-info-topic {options.camera_info_topic!r}: no calibration "
                               "can be read from it.")  # fmt: skip

    dropped.remark("no CameraInfo: the camera is not known")
    return None, None


def _poses(
    scan: Scan, options: BagOptions, times: FrameTimes, dropped: DroppedMessages
) -> tuple[str | None, CameraPoses | None]:
    """Return the world's name and camera poses; transforms that nobody named may be unusable."""
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
