"""A whole recording through the model: video in, the motion of both hands out.

Two passes, neither of which grows with the recording but for its results. First the frames are
encoded in a stream and the network reads window after window into a store (``network``). Then,
the hands' shape being known, every window is placed before the camera and laid into the recording
(``placing``, ``assembly``). With a work folder the store stays, and a second run goes on from it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from acehand_core import __version__
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.model.batch import ClipBatch, Readout
from acehand_core.model.config import ModelConfig
from acehand_core.model.inference import record
from acehand_core.model.inference.assembly import Result, SourceFrames, assemble
from acehand_core.model.inference.blend import recording_betas
from acehand_core.model.inference.options import (
    InferenceOptions,
    Reading,
    WeightsRecord,
    plan_reading,
    solve_options,
)
from acehand_core.model.inference.passes import Encoder, Pass, WindowStore, read_windows
from acehand_core.model.inference.placing import Hands, Placed, PlacingSetup, place_windows
from acehand_core.model.inference.windows import (
    Window,
    check_latents,
    encode_size,
    latents_over,
    plan_windows,
    written_from,
)
from acehand_core.model.network import SolveOptions
from acehand_core.motion import HandModelName, HandMotion, Provenance, Recording
from acehand_core.recordings.cameras import fit_camera_to, undistort
from acehand_core.recordings.selection import part

#: Counts up when what a store holds would no longer be the same.
_STORE_VERSION = 2


@runtime_checkable
class Progress(Protocol):
    """Called as work goes on; may raise to stop it."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


@runtime_checkable
class Model(Protocol):
    """``model.AceModel``: latents to readouts, and its configuration."""

    config: ModelConfig

    def __call__(self, batch: ClipBatch) -> Readout: ...


@runtime_checkable
class NamedHands(Hands, Protocol):
    """Hands in torch that say which model they are."""

    name: HandModelName


def reconstruct(
    recording: Recording,
    model: Model,
    encoder: Encoder,
    hands: NamedHands | None,
    weights: WeightsRecord,
    options: InferenceOptions | None = None,
    betas: Float[np.ndarray, "2 10"] | None = None,
    work_dir: Path | None = None,
    progress: Progress | None = None,
) -> HandMotion:
    """Return both hands of a whole recording, one row per frame, camera frame, metres.

    With ``hands`` (the user's MANO): the paper's path, articulated by the network's rotations with
    one shape per hand. Without: the network's own joints, placed by all their anchors, and the
    default hand fitted to them.

    Args:
        betas: each hand's measured shape, for the hand model that is used; else it is the
            recording's (see ``shape.recording_betas``).
        work_dir: folder for what the network said; a second run with the same pictures, weights
            and settings goes on from it.

    Raises:
        InputError: there are no images; or the weights need a camera and none is known.
    """
    job = _Job(recording, model, encoder, hands, weights, options or InferenceOptions(), betas)
    windows = job.planned()
    with job.read(windows, work_dir, progress) as passes:
        whole = range(len(recording))
        return job.motion(windows, passes, whole, _stage(progress, "poses"))


def reconstruct_passes(
    recording: Recording,
    model: Model,
    encoder: Encoder,
    hands: NamedHands | None,
    weights: WeightsRecord,
    spans: Sequence[tuple[int, int]],
    options: InferenceOptions | None = None,
    betas: Float[np.ndarray, "2 10"] | None = None,
    work_dir: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[HandMotion]:
    """Yield both hands of parts of a recording, each part read by the network in one pass.

    The recording is encoded once, and each pass has the latents of the recording that lie over its
    part: so the paper's segments are evaluated (section "Decoded Sequence Length"). A pass has a
    shape of its own, unless ``betas`` gives one. ``options.windows`` does not count.

    Args:
        spans: first frame of each part and the frame after its last. Other arguments, and what is
            raised, are those of ``reconstruct``.
    """
    job = _Job(recording, model, encoder, hands, weights, options or InferenceOptions(), betas)
    windows = [job.over(*span) for span in spans]
    distinct = {(window.start, window.stop): window for window in windows}
    in_order = [distinct[key] for key in sorted(distinct)]
    with job.read(in_order, work_dir, progress) as passes:
        for span, window in zip(spans, windows, strict=True):
            yield job.motion([window], passes, range(*span), _stage(None, "poses"))


class _Job:
    """One recording on its way through the model: how it is read, and with what."""

    def __init__(
        self,
        recording: Recording,
        model: Model,
        encoder: Encoder,
        hands: NamedHands | None,
        weights: WeightsRecord,
        options: InferenceOptions,
        betas: Float[np.ndarray, "2 10"] | None,
    ) -> None:
        self._recording, self._model, self._encoder = recording, model, encoder
        self._hands, self._weights, self._options, self._betas = hands, weights, options, betas
        self._solve = options.solve or solve_options(model.config.variant, hands is not None)
        self._seen = _as_seen(recording, self._solve)
        size = encode_size(self._seen.width, self._seen.height, options.encode_width)
        self._reading = plan_reading(self._seen, size, options.tail, options.every_frame)
        self._source = SourceFrames(self._reading, recording.timestamps_ns)

    def planned(self) -> tuple[Window, ...]:
        """Return the windows of the whole recording."""
        options = self._options
        return plan_windows(options.windows, self._reading.latents, options.window_latents)

    def over(self, first: int, stop: int) -> Window:
        """Return one window over frames of the recording. Raises InputError for too many."""
        latents = latents_over(*self._source.needed(first, stop), self._reading.latents)
        check_latents(latents[1] - latents[0])
        return written_from(*latents, 0)

    @contextmanager
    def read(
        self, windows: Sequence[Window], work_dir: Path | None, progress: Progress | None
    ) -> Iterator[list[Pass]]:
        """Yield the looks at the recording with the readouts of all windows in their stores."""
        key = _key(self._seen, self._reading, self._weights, self._options)
        with _stores(work_dir, key, self._options) as passes:
            read_windows(
                self._reading,
                windows,
                self._model,
                self._encoder,
                passes,
                self._options.batch,
                _stage(progress, "hands"),
            )
            yield passes

    def motion(
        self,
        windows: Sequence[Window],
        passes: Sequence[Pass],
        rows: range,
        progress: Callable[[int, int], None],
    ) -> HandMotion:
        """Return the hands that some windows show in some frames of the recording."""
        hands, betas, seen, options = self._hands, self._betas, self._seen, self._options
        if hands is not None and betas is None:
            betas = _told_betas(windows, passes[0])
        setup = PlacingSetup(
            hands, betas, seen.camera, (seen.width, seen.height), self._reading.size, self._solve
        )
        placed = place_windows(windows, passes, setup)
        result = assemble(
            placed.frames,
            placed.offset,
            self._source,
            rows,
            hands,
            betas,
            options.wanted,
            options.tail == "repeat",
            progress,
            options.every_slot,
        )

        recording = part(self._recording, rows.start, rows.stop)
        camera = _camera(recording, placed, self._solve)
        notes = record.notes(
            recording, self._reading, placed, result, camera, self._solve, hands is None
        )
        provenance = record.provenance(
            recording, self._reading, self._weights, options, self._solve, self._model.config,
            windows, notes,
        )  # fmt: skip
        return _motion(recording, seen, result, hands, camera, provenance)


def _as_seen(recording: Recording, solve: SolveOptions) -> Recording:
    """Return the recording as the model is to see it: through a pinhole, if bearings need one."""
    if solve.bearings != "intrinsics":
        return recording
    if recording.camera is None:
        raise InputError(
            f"{recording.source}: these weights (variant k) need the camera; give --intrinsics or "
            "--camera, or take kfree weights."
        )
    return undistort(recording) if recording.frames is not None else recording


def _key(
    recording: Recording, reading: Reading, weights: WeightsRecord, options: InferenceOptions
) -> dict[str, Any]:
    """Return everything that readouts depend on. The camera is not part of it: K never enters."""
    times = recording.timestamps_ns
    return {
        "version": _STORE_VERSION,
        "source": recording.sha256,
        "processing": dict(recording.processing),
        "frames": [len(times), int(times[0]), int(times[-1])],
        "resampled": reading.resampled,
        "count": reading.count,
        "size": list(reading.size),
        "weights": weights.sha256,
        "windows": [options.windows, options.window_latents],
        "precision": options.precision,
        "acehand": __version__,
    }


@contextmanager
def _stores(
    work_dir: Path | None, key: Mapping[str, Any], options: InferenceOptions
) -> Iterator[list[Pass]]:
    """Yield one pass per look, with stores in the work folder or in one that goes afterwards."""
    looks = [False, True] if options.second_opinion else [False]
    # Without a hash of the input nothing can be known to belong to it.
    keep = work_dir if key["source"] is not None else None
    with tempfile.TemporaryDirectory(prefix="acehand-") as scratch:
        folder = Path(scratch) if keep is None else keep
        yield [Pass(WindowStore(folder, {**key, "mirrored": m}), m) for m in looks]


def _told_betas(windows: Sequence[Window], one: Pass) -> Float[np.ndarray, "2 10"]:
    stored = (one.store.get(window.start, window.stop) for window in windows)
    return recording_betas(arrays for arrays in stored if arrays is not None)


def _camera(recording: Recording, placed: Placed, solve: SolveOptions) -> Camera | None:
    """Return the camera that the hands were placed by, in pixels of the recording."""
    if solve.bearings != "intrinsics" or recording.camera is None:
        return placed.camera
    return fit_camera_to(recording.camera, recording.width, recording.height)


def _motion(
    recording: Recording,
    seen: Recording,
    result: Result,
    hands: NamedHands | None,
    camera: Camera | None,
    provenance: Provenance,
) -> HandMotion:
    # Anchors count pixels as calibrations are counted (see ``PinholeBatch``).
    pixels = result.anchors
    pixels *= np.array([seen.width, seen.height], np.float32)
    if seen.camera is not None and camera is not None and camera.model != seen.camera.model:
        # The model saw an undistorted image; the recording's own pixels are wanted.
        pixels = camera.project(seen.camera.unproject(pixels)).astype(np.float32)
    return HandMotion(
        timestamps_ns=recording.timestamps_ns,
        fps=recording.fps,
        presence=result.presence,
        visible=result.visible,
        quality=result.quality,
        observed=result.observed,
        filled=result.filled,
        global_orient=result.global_orient,
        hand_pose=result.hand_pose,
        betas=result.betas,
        translation=result.translation,
        joints_camera=result.joints,
        joints_image=pixels,
        hand_model="acehand" if hands is None else hands.name,
        camera=camera,
        T_world_camera=recording.T_world_camera,
        provenance=provenance,
    )


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(name, done, total)

    return report
