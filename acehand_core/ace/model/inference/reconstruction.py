"""A whole recording through the model: video in, the motion of both hands out.

Two passes, neither of which grows with the recording but for its results. First the frames are
encoded in a stream and the network reads window after window into a store (``reading``). Then,
the hands' shape being known, every window is placed before the camera and laid into the recording
(``placing``, ``assembly``). With a work folder the store stays, and a second run resumes from it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from acehand_core import __version__
from acehand_core.ace.model.batch import ClipBatch, Readout
from acehand_core.ace.model.config import ModelConfig
from acehand_core.ace.model.inference.assembly import (
    HandPlacements,
    PlacingSetup,
    Result,
    SourceFrames,
    assemble,
    place_windows,
)
from acehand_core.ace.model.inference.blend import recording_betas
from acehand_core.ace.model.inference.loading import InferenceOptions, WeightsRecord, solve_options
from acehand_core.ace.model.inference.reading import (
    MODEL_FPS,
    Encoder,
    WindowStore,
    WindowView,
    plan_input,
    read_windows,
)
from acehand_core.ace.model.inference.windows import (
    Window,
    check_latents,
    encode_size,
    latents_over,
    plan_windows,
    written_from,
)
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.motion import HandMotion, Recording
from acehand_core.provenance import Provenance, library_versions
from acehand_core.recordings.cameras import fit_camera_to, undistort
from acehand_core.recordings.selection import part
from acehand_core.types import Progress

#: Counts up when what a store holds would no longer be the same.
_STORE_VERSION = 2


@runtime_checkable
class Model(Protocol):
    """``model.AceModel``: latents to readouts, and its configuration."""

    config: ModelConfig

    def __call__(self, batch: ClipBatch) -> Readout: ...


def reconstruct(
    recording: Recording,
    model: Model,
    encoder: Encoder,
    hands: TorchHands | None,
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
            recording's (see ``blend.recording_betas``).
        work_dir: folder for the readouts of the network; a second run with the same pictures,
            weights and settings resumes from it.

    Raises:
        InputError: there are no images; or the weights need a camera and none is known.
    """
    options = options or InferenceOptions()
    job = _Job(recording, model, encoder, hands, weights, options, betas)
    windows = plan_windows(options.windows, job.latents, options.window_latents)
    with job.read(windows, work_dir, progress) as views:
        whole = range(len(recording))
        return job.motion(windows, views, whole, _stage(progress, "poses"))


def reconstruct_passes(
    recording: Recording,
    model: Model,
    encoder: Encoder,
    hands: TorchHands | None,
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
    with job.read(in_order, work_dir, progress) as views:
        for span, window in zip(spans, windows, strict=True):
            yield job.motion([window], views, range(*span), _stage(None, "poses"))


class _Job:
    """One recording on its way through the model: how it is read, and with what."""

    def __init__(
        self,
        recording: Recording,
        model: Model,
        encoder: Encoder,
        hands: TorchHands | None,
        weights: WeightsRecord,
        options: InferenceOptions,
        betas: Float[np.ndarray, "2 10"] | None,
    ) -> None:
        self._recording, self._model, self._encoder = recording, model, encoder
        self._hands, self._weights, self._options, self._betas = hands, weights, options, betas
        self._solve = options.solve or solve_options(model.config.variant, hands is not None)

        # What the model is to see: through a pinhole, if bearings need one.
        self._seen = recording
        if self._solve.bearings == "intrinsics":
            if recording.camera is None:
                raise InputError(
                    f"{recording.source}: these weights (variant k) need the camera; give "
                    "--intrinsics or --camera, or take kfree weights."
                )
            self._seen = undistort(recording) if recording.frames is not None else recording
        size = encode_size(self._seen.width, self._seen.height, options.encode_width)
        self._input = plan_input(self._seen, size, options.tail, options.every_frame)
        self._source = SourceFrames(self._input, recording.timestamps_ns)

    @property
    def latents(self) -> int:
        """Latents of the whole recording."""
        return self._input.latents

    def over(self, first: int, stop: int) -> Window:
        """Return one window over frames of the recording. Raises InputError for too many."""
        latents = latents_over(*self._source.needed(first, stop), self.latents)
        check_latents(latents[1] - latents[0])
        return written_from(*latents, 0)

    @contextmanager
    def read(
        self, windows: Sequence[Window], work_dir: Path | None, progress: Progress | None
    ) -> Iterator[list[WindowView]]:
        """Yield the views of the recording with the readouts of all windows in their stores.

        Stores are in the work folder, or in one that goes afterwards.
        """
        options, clip, times = self._options, self._input, self._seen.timestamps_ns
        # Everything that readouts depend on. The camera is not part of it: K never enters.
        key = {
            "version": _STORE_VERSION,
            "source": self._seen.sha256,
            "processing": dict(self._seen.processing),
            "frames": [len(times), int(times[0]), int(times[-1])],
            "resampled": clip.resampled,
            "count": clip.count,
            "size": list(clip.size),
            "weights": self._weights.sha256,
            "windows": [options.windows, options.window_latents],
            "precision": options.precision,
            "acehand": __version__,
        }

        mirrored = [False, True] if options.second_opinion else [False]
        with tempfile.TemporaryDirectory(prefix="acehand-") as scratch:
            # Without a hash of the input nothing can be known to belong to it.
            kept = None if key["source"] is None else work_dir
            folder = Path(scratch) if kept is None else kept
            views = [WindowView(WindowStore(folder, {**key, "mirrored": m}), m) for m in mirrored]
            report = _stage(progress, "hands")
            read_windows(clip, windows, self._model, self._encoder, views, options.batch, report)
            yield views

    def motion(
        self,
        windows: Sequence[Window],
        views: Sequence[WindowView],
        rows: range,
        progress: Callable[[int, int], None],
    ) -> HandMotion:
        """Return the hands that some windows show in some frames of the recording."""
        hands, betas, seen, options = self._hands, self._betas, self._seen, self._options
        solve = self._solve
        if hands is not None and betas is None:
            stored = (views[0].store.get(window.start, window.stop) for window in windows)
            betas = recording_betas(arrays for arrays in stored if arrays is not None)

        # Before the camera, window by window; then in the frames of the recording.
        setup = PlacingSetup(
            hands, betas, seen.camera, (seen.width, seen.height), self._input.size, solve
        )
        placed = place_windows(windows, views, setup)
        result = assemble(
            placed.frames, placed.offset, self._source, rows, hands, betas, options.slots,
            options.tail == "repeat", progress, options.every_slot,
        )  # fmt: skip

        recording, camera = part(self._recording, rows.start, rows.stop), placed.camera
        if solve.bearings == "intrinsics" and recording.camera is not None:
            camera = fit_camera_to(recording.camera, recording.width, recording.height)
        notes = self._notes(recording, placed, result, camera)

        # Anchors count pixels as calibrations are counted (see ``PinholeBatch``).
        pixels = result.anchors
        pixels *= np.array([seen.width, seen.height], np.float32)
        if seen.camera is not None and camera is not None and camera.model != seen.camera.model:
            # The model saw an undistorted image; a motion has the recording's own pixels.
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
            provenance=self._provenance(recording, windows, notes),
        )

    def _notes(
        self, recording: Recording, placed: HandPlacements, result: Result, camera: Camera | None
    ) -> tuple[str, ...]:
        """Return what was assumed and what happened, in plain words."""
        notes = list(recording.notes)
        if self._hands is None:
            error = "" if result.fit_error_m is None else f", {1e3 * result.fit_error_m:.1f} mm off"
            notes.append(
                "no MANO files: the network's own joints, placed by their anchors; rotations and "
                f"shape are the default hand's, fitted to them{error}"
            )

        if self._solve.bearings != "intrinsics":
            what = "none could be fitted" if camera is None else f"fx = {camera.fx:.1f} px"
            given = "; the given calibration was not used" if recording.camera is not None else ""
            notes.append(f"the camera is the network's own ({what}){given}")
        elif recording.camera is not None and recording.camera.model != "pinhole":
            notes.append(f"undistorted from {recording.camera.model} for the model")

        if self._input.resampled:
            notes.append(
                f"recorded at {recording.fps:.3g} fps, read at {MODEL_FPS} fps, interpolated back"
            )

        if placed.exchanged:
            notes.append(
                f"in {placed.exchanged} frames two windows agree better with left and right "
                "exchanged"
            )

        if placed.accepted_share < 1:
            notes.append(
                f"anchors placed {placed.accepted_share:.0%} of the hands, predicted rays the "
                "others"
            )
        return tuple(notes)

    def _provenance(
        self, recording: Recording, windows: Sequence[Window], remarks: tuple[str, ...]
    ) -> Provenance:
        """Return where the motion came from: source, weights, settings.

        Of the settings, ``decoded_latents`` is what the network saw at once.
        """
        versions = dict(library_versions())
        for library in ("diffusers", "peft", "torch"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[library] = importlib.metadata.version(library)

        settings = asdict(self._options) | {
            "variant": self._model.config.variant,
            "source": self._model.config.source,
            "encode_size": list(self._input.size),
            "solve": asdict(self._solve),
            "decoded_latents": max(window.stop - window.start for window in windows),
        }
        return Provenance(
            source=recording.name,
            source_sha256=recording.sha256,
            tracker="ace",
            weights=f"{self._weights.name} (sha256 {self._weights.sha256})",
            licenses=self._weights.licenses,
            versions=versions,
            settings=settings,
            notes=remarks,
        )


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(name, done, total)

    return report
