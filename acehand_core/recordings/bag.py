"""A bag as a recording: pictures in the order of their header stamps, and their camera."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.ndimage import median_filter

from acehand_core.errors import CalibrationError, InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, Depth, DroppedMessages, Recording, View
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.depth import BagDepth
from acehand_core.recordings.bags.frames import BagFrames, PacketFrames
from acehand_core.recordings.bags.images import camera_of, same_camera
from acehand_core.recordings.bags.library import UnpackedFiles
from acehand_core.recordings.bags.records import BagOptions, BytesRead
from acehand_core.recordings.bags.scan import Scan, Stream, scan_bag
from acehand_core.recordings.bags.topics import (
    camera_namespace,
    choose_camera_info,
    choose_depth,
    choose_image_topic,
    choose_views,
    is_rectified,
)
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.recordings.depth import check_metres
from acehand_core.recordings.video import flipped
from acehand_core.safe_files import content_sha256
from acehand_core.types import CameraPoses, Progress, RigidTransform, TimestampsNs

#: Larger errors of a stamp are wrong stamps, smaller ones late messages.
JUMP_NS = 1_000_000_000
_LEAST_BASELINE_M = 1e-4
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
    of receipt. ``topics`` maps roles to the read topics, views in a mapping of their own.
    ``copies`` are decompressed files.
    """

    whole: Recording
    header_ns: Int[np.ndarray, "T"]
    log_ns: Int[np.ndarray, "T"]
    topics: Mapping[str, Any]
    dropped: DroppedMessages
    copies: UnpackedFiles

    def bag(self) -> Bag:
        """Return the bag, opened anew."""
        return Bag(Path(self.whole.source), copies=self.copies)

    def recording(self, mirrored: bool = False) -> Recording:
        """Return the whole bag; ``mirrored`` flips selfie pictures back, and drops the rest."""
        whole = self.whole
        if not mirrored or whole.frames is None:
            return whole
        processing = {**whole.processing, "mirrored": True}
        whole = replace(whole, frames=ChangedFrames(whole.frames, flipped), processing=processing)
        lost = ("mirrored: depth and views are not used",) if whole.views or whole.depth else ()
        notes = (note for note in whole.notes if not note.startswith("depth of "))
        return replace(whole, notes=(*notes, *lost), views=(), depth=None)


def index_bag(path: Path, options: BagOptions, progress: Progress | None = None) -> BagIndex:
    """Return the index of a bag.

    The bag is read twice, for the index and for its hash.

    Raises:
        InputError: not a bag, ambiguous topics, or no usable picture.
        CalibrationError: a named camera info topic or world frame is unusable, or named depth or
            views have no camera, or no fixed transform to the pictures' camera.
    """
    read = BytesRead("index the bag", path, progress, passes=2)
    copies = UnpackedFiles()
    with Bag(path, read.still, copies) as bag:
        dropped, counts = bag.dropped, bag.counts
        topic, note = choose_image_topic(bag, counts, options.image_topic)
        infos = choose_camera_info(bag, counts, topic.name, options.camera_info_topic)
        views = choose_views(bag, counts, topic.name, options.views)
        depths = choose_depth(bag, counts, topic.name, options.depth_topic)
        scan = scan_bag(bag, topic, infos, options.world_frame != "none", read.add, depths, views)

    read.end_pass(1)
    if note and not views:
        dropped.remark(note)
    pictures = _Pictures.of(scan.image)
    times = pictures.times
    recording = pictures.recording(path, copies)
    if missing := missing_frames(times.timestamps_ns, recording.fps):
        dropped.remark(f"{topic.name}: about {missing} frames were dropped while recording")
    info, camera = _camera(scan, pictures.size, options, dropped)
    world, poses = _poses(scan, options, times, dropped)
    recording = replace(recording, camera=camera, T_world_camera=poses)
    named, depth = _depth(recording, scan, pictures, options, copies)
    recording = replace(
        recording,
        views=_views(recording, scan, pictures, copies),
        depth=depth,
        processing={**recording.processing, **named},
        sha256=content_sha256(path, read.add),
        notes=dropped.sentences(),
    )
    read.end_pass(2)
    topics: dict[str, Any] = {"image": topic.name, "camera_info": info, "world_frame": world}
    topics |= {"depth": named.get("depth_topic"), "views": {n: t.name for n, t in views.items()}}
    log_ns = pictures.table[pictures.order, 1]
    return BagIndex(recording, times.stamps_ns, log_ns, topics, dropped, copies)


@dataclass(frozen=True, slots=True)
class _Pictures:
    """T pictures of a stream, of one size; ``order`` (T,) are their rows in ``table``."""

    stream: Stream
    table: Int[np.ndarray, "N 8"]
    order: Int[np.ndarray, "T"]
    times: FrameTimes
    size: tuple[int, int]

    @classmethod
    def of(cls, stream: Stream) -> _Pictures:
        """Count what cannot be used in the stream's ``dropped``. Raises InputError: no picture."""
        table = stream.table()
        keep, size = _of_one_size(table[:, 6:], stream.topic, stream.dropped)
        times = frame_times(table[keep, 0], table[keep, 1])
        _tell_about(times, stream.topic, stream.dropped)
        return cls(stream, table, keep[times.order], times, size)

    @property
    def places(self) -> Int[np.ndarray, "T 4"]:
        return self.table[self.order, 2:6]

    def recording(self, path: Path, copies: UnpackedFiles) -> Recording:
        """Return them as a recording without camera, hash and notes."""
        stream, times = self.stream, self.times.timestamps_ns
        messages = path, stream.topic, stream.msgtype, self.places, self.size
        frames = BagFrames(*messages, dropped=stream.dropped, copies=copies)
        if stream.codec is not None:
            frames = PacketFrames(
                *messages,
                dropped=stream.dropped,
                copies=copies,
                codec=stream.codec,
                stream=self.table[:, 2:6],
                packet=self.order,
                keys=stream.keys,
            )
        return Recording(
            source=str(path),
            sha256=None,
            timestamps_ns=times,
            fps=frame_rate(times),
            width=self.size[0],
            height=self.size[1],
            frames=frames,
            processing={"topic": stream.topic, "mirrored": False},
            camera_frame=stream.frame_id,
        )


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
    for fitting, remark in remarks:
        if fitting:
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
        raise CalibrationError(f"`camera_info_topic={named!r}`: no calibration in it.")
    dropped.remark("no CameraInfo: the camera is unknown")
    return None, None


def _poses(
    scan: Scan, options: BagOptions, times: FrameTimes, dropped: DroppedMessages
) -> tuple[str | None, CameraPoses | None]:
    """Return the world's name and camera poses. Raises if a named world has none."""
    if options.world_frame == "none":
        return None, None
    try:
        poses = scan.tree.poses(scan.image.frame_id, options.world_frame, times.timestamps_ns)
    except CalibrationError as error:
        if options.world_frame is not None:
            raise
        dropped.remark(f"no camera poses: {error}")
        return None, None
    return poses if poses is not None else (None, None)


def _other_stream(
    scan: Scan, pictures: _Pictures, stream: Stream
) -> tuple[_Pictures, RigidTransform]:
    """Return another stream's pictures and T_camera_stream. Raises InputError."""
    seen, frame = _Pictures.of(stream), scan.image.frame_id
    ours, theirs = pictures.times, seen.times
    a, b = ours.timestamps_ns, theirs.timestamps_ns
    apart = max(a[0] - b[-1], b[0] - a[-1]) > JUMP_NS
    if apart or ours.from_log != theirs.from_log or ours.breaks or theirs.breaks:
        raise InputError(
            f"its times, {b[0]} to {b[-1]} ns, do not compare with the pictures', {a[0]} to "
            f"{a[-1]} ns; valid: header stamps of one clock that was not set back"
        )
    if not (frame and stream.frame_id):
        raise CalibrationError("without a frame_id in the pictures its place is unknown")
    same = frame == stream.frame_id
    return seen, np.eye(4) if same else scan.tree.between(frame, stream.frame_id, a)


def _own_camera(
    scan: Scan, stream: Stream, size: tuple[int, int], colour: Camera | None = None
) -> Camera:
    """Return the camera of CameraInfo next to a stream, else of its frame, or raise.

    Of depth in the pixels of ``colour`` it is that camera, with its distortion.
    """
    space, frame = camera_namespace(stream.topic), stream.frame_id
    near = [name for name in scan.infos if camera_namespace(name) == space]
    of_frame = [n for n, info in scan.infos.items() if info.header.frame_id.lstrip("/") == frame]
    problem = f"no CameraInfo; valid: {space}/camera_info, or one of the frame {frame!r}"
    for name in near or of_frame:
        try:
            if camera := camera_of(scan.infos[name], is_rectified(stream.topic)):
                camera = fit_camera_to(camera, *size)
                if colour is None:
                    return camera
                # Drivers that register depth may leave the distortion out of its CameraInfo.
                plain = replace(colour, model=camera.model, distortion=camera.distortion)
                return colour if same_camera(camera, plain) else camera
        except CalibrationError as error:
            problem = f"{name}: {error}"
    if colour is not None and (colour.width, colour.height) == size:
        return colour
    raise CalibrationError(problem)


def _views(
    main: Recording, scan: Scan, pictures: _Pictures, copies: UnpackedFiles
) -> tuple[View, ...]:
    """Return the other cameras. Raises InputError."""
    views = []
    for name, stream in scan.views.items():
        try:
            seen, pose = _other_stream(scan, pictures, stream)
            camera = _own_camera(scan, stream, seen.size)
            if np.linalg.norm(pose[:3, 3]) < _LEAST_BASELINE_M:
                raise CalibrationError(
                    f"0 mm from the camera of {scan.image.topic} (frames {stream.frame_id!r}, "
                    f"{scan.image.frame_id!r}); valid: frames apart from each other in /tf_static"
                )
        except InputError as error:
            where = f"{main.source}: `views={name}`: {stream.topic}"
            raise type(error)(f"{where}: {error}") from None
        recording = seen.recording(Path(main.source), copies)
        recording = replace(recording, camera=camera, name=f"{main.name} {name}")
        views.append(View(name, recording, pose))
    return tuple(views)


def _depth(
    main: Recording, scan: Scan, pictures: _Pictures, options: BagOptions, copies: UnpackedFiles
) -> tuple[dict[str, str], Depth | None]:
    """Return its topic and the depth, registered if there is such a topic; remark why not.

    Raises InputError for a named topic.
    """
    dropped = scan.image.dropped
    fitting: list[tuple[bool, BagDepth, Depth]] = []
    for stream in scan.depth:
        try:
            seen, pose = _other_stream(scan, pictures, stream)
            same = bool(np.allclose(pose, np.eye(4), atol=1e-6))
            alike = same and is_rectified(stream.topic) == is_rectified(scan.image.topic)
            camera = _own_camera(scan, stream, seen.size, main.camera if alike else None)
            message = Path(main.source), stream.topic, stream.msgtype, seen.places
            frames = BagDepth(*message, seen.size, stream.dropped, copies)
            check_metres(frames, "32FC1 has metres, 16UC1 millimetres")
            depth = Depth(frames, seen.times.timestamps_ns, camera, pose)
            fitting.append((same, frames, depth))
        except InputError as error:
            if options.depth_topic is not None:
                where = f"{main.source}: `depth_topic={stream.topic}`"
                raise type(error)(f"{where}: {error}") from None
            dropped.remark(f"depth not used: {stream.topic}: {error}")

    best = [entry for entry in fitting if entry[0]] or fitting
    if len(best) > 1:
        names = ", ".join(frames.topic for _, frames, _ in best)
        dropped.remark(f"depth not used: {names} fit; choose one with `depth_topic`")
    if len(best) != 1:
        return {}, None
    _, frames, depth = best[0]
    dropped.remark(f"depth of {frames.topic} is used")
    dropped.add(frames.dropped)
    frames.dropped = dropped
    return {"depth_topic": frames.topic}, depth
