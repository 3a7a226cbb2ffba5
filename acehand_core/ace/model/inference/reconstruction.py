"""A whole recording through the model: video in, the motion of both hands out.

Two passes, in memory that grows with the results only. First the frames are encoded in a stream and
the network reads window after window into a store (``reading``). Then, with the hands' shape known,
every window is placed and merged into the recording (``assembly``). A second run resumes from the
store in the work folder.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from acehand_core import __version__
from acehand_core.ace.model.batch import ClipBatch, Readout
from acehand_core.ace.model.config import ModelConfig
from acehand_core.ace.model.inference import assembly, reading
from acehand_core.ace.model.inference.blend import recording_betas
from acehand_core.ace.model.inference.loading import InferenceOptions, WeightsRecord, solve_options
from acehand_core.ace.model.inference.windows import (
    Window,
    check_latents,
    encode_size,
    latents_of,
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
from acehand_core.safe_files import ArrayCache
from acehand_core.types import Progress

#: Raised with every change of the stored readouts.
_STORE_VERSION = 2


@runtime_checkable
class Model(Protocol):
    """``network.AceModel``: latents to readouts, and its configuration."""

    config: ModelConfig

    def __call__(self, batch: ClipBatch) -> Readout: ...


def reconstruct(
    recording: Recording,
    model: Model,
    encoder: reading.Encoder,
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
    default hand fitted to them. Raises InputError: no images, or no camera for weights that need
    one.

    Args:
        betas: each hand's measured shape for its hand model; default estimated from the recording
            (see ``blend.recording_betas``).
        work_dir: folder for the network's readouts, from which a second run with the same pictures,
            weights and settings resumes.
    """
    options = options or InferenceOptions()
    job = _Reconstruction(recording, model, encoder, hands, weights, options, betas)
    windows = plan_windows(options.windows, job.latents, options.window_latents)
    with job.read(windows, work_dir, progress) as views:
        whole = range(len(recording))
        return job.motion(windows, views, whole, _stage(progress, "poses"))


def reconstruct_passes(
    recording: Recording,
    model: Model,
    encoder: reading.Encoder,
    hands: TorchHands | None,
    weights: WeightsRecord,
    spans: Sequence[tuple[int, int]],
    options: InferenceOptions | None = None,
    betas: Float[np.ndarray, "2 10"] | None = None,
    work_dir: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[HandMotion]:
    """Yield both hands of parts of a recording, each part read by the network in one pass.

    The recording is encoded once and each pass reads the latents over its part, as the paper
    evaluates its segments (section "Decoded Sequence Length"). Without ``betas`` each pass has its
    own shape. ``options.windows`` is ignored. ``spans``: first frame of each part and the frame
    after its last. Other arguments and errors are those of ``reconstruct``.
    """
    options = replace(options or InferenceOptions(), windows="paper")
    job = _Reconstruction(recording, model, encoder, hands, weights, options, betas)
    windows = [job.over(*span) for span in spans]
    distinct = {(window.start, window.stop): window for window in windows}
    in_order = [distinct[key] for key in sorted(distinct)]
    with job.read(in_order, work_dir, progress) as views:
        for span, window in zip(spans, windows, strict=True):
            yield job.motion([window], views, range(*span), _stage(None, "poses"))


def plan(recording: Recording, options: InferenceOptions) -> reading.ModelInput:
    """Return how a recording goes into the model, with ``options.solve``. Raises InputError."""
    if options.solve is not None and options.solve.bearings == "intrinsics":
        if recording.camera is None:
            raise InputError(
                f"{recording.source}: these weights (variant k) need the camera; give "
                "`intrinsics` or `camera`, or use kfree weights."
            )
        fit_camera_to(recording.camera, recording.width, recording.height)
    size = encode_size(recording.width, recording.height, options.encode_width)
    clip = reading.plan_input(recording, size, options.tail, options.every_frame)
    plan_windows(options.windows, latents_of(clip.count), options.window_latents)
    return clip


class _Reconstruction:
    """One recording in the model: how it is read, and with what."""

    def __init__(
        self,
        recording: Recording,
        model: Model,
        encoder: reading.Encoder,
        hands: TorchHands | None,
        weights: WeightsRecord,
        options: InferenceOptions,
        betas: Float[np.ndarray, "2 10"] | None,
    ) -> None:
        self._recording, self._model, self._encoder = recording, model, encoder
        self._hands, self._weights, self._betas = hands, weights, betas
        self._solve = options.solve or solve_options(model.config.variant, hands is not None)

        options = self._options = replace(options, solve=self._solve)
        # Bearings from intrinsics need a pinhole image.
        pinhole = self._solve.bearings == "intrinsics" and recording.camera is not None
        self._seen = undistort(recording) if pinhole and recording.frames is not None else recording
        self._input = plan(self._seen, options)
        self._source = assembly.SourceFrames(self._input, recording.timestamps_ns)
        self.latents = latents_of(self._input.count)

    def over(self, first: int, stop: int) -> Window:
        """Return one window over frames of the recording. Raises InputError for too many."""
        latents = latents_over(*self._source.needed(first, stop), self.latents)
        check_latents(latents[1] - latents[0])
        return written_from(*latents, 0)

    @contextmanager
    def read(
        self, windows: Sequence[Window], work_dir: Path | None, progress: Progress | None
    ) -> Iterator[list[reading.WindowView]]:
        """Yield the views with all readouts, in the work folder or a temporary one."""
        options, clip, times = self._options, self._input, self._seen.timestamps_ns
        # Everything that readouts depend on; the camera is not an input of the network.
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
            # A store for an input without a hash cannot be reused.
            folder = Path(scratch) if work_dir is None or key["source"] is None else work_dir
            views = [
                reading.WindowView(ArrayCache(folder, "windows", {**key, "mirrored": m}), m)
                for m in mirrored
            ]
            report = _stage(progress, "hands")
            reading.read_windows(
                clip, windows, self._model, self._encoder, views, options.batch, report
            )
            yield views

    def motion(
        self,
        windows: Sequence[Window],
        views: Sequence[reading.WindowView],
        rows: range,
        progress: Callable[[int, int], None],
    ) -> HandMotion:
        """Return the hands of some windows in some frames of the recording."""
        hands, betas, seen, options = self._hands, self._betas, self._seen, self._options
        solve = self._solve
        if hands is not None and betas is None:
            betas = recording_betas(views[0].arrays(window) for window in windows)

        size = (seen.width, seen.height)
        setup = assembly.PlacingSetup(hands, betas, seen.camera, size, self._input.size, solve)
        placed = assembly.place_windows(windows, views, setup)
        result = assembly.assemble(
            placed.frames,
            placed.offset,
            self._source,
            rows,
            hands,
            betas,
            slots=options.slots,
            keep_tail=options.tail == "repeat",
            progress=progress,
            every_slot=options.every_slot,
        )

        recording, camera = part(self._recording, rows.start, rows.stop), placed.camera
        if solve.bearings == "intrinsics" and recording.camera is not None:
            camera = fit_camera_to(recording.camera, recording.width, recording.height)
        notes = self._notes(recording, placed, result, camera)

        # Pixels as in ``PinholeBatch``.
        pixels = result.anchors
        pixels *= np.array(size, np.float32)
        if seen.camera is not None and camera is not None and camera.model != seen.camera.model:
            # From the undistorted image back to the recording's own pixels.
            pixels = camera.project(seen.camera.unproject(pixels)).astype(np.float32)

        other = ("joints", "anchors", "fit_error_m")
        return HandMotion(
            **{f.name: getattr(result, f.name) for f in fields(result) if f.name not in other},
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            joints_camera=result.joints,
            joints_image=pixels,
            hand_model="acehand" if hands is None else hands.name,
            camera=camera,
            T_world_camera=recording.T_world_camera,
            provenance=self._provenance(recording, windows, notes),
        )

    def _notes(
        self,
        recording: Recording,
        placed: assembly.HandPlacements,
        result: assembly.Result,
        camera: Camera | None,
    ) -> tuple[str, ...]:
        """Return assumptions and events as sentences."""
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
            rate = f"{recording.fps:.3g} fps"
            notes.append(f"recorded at {rate}, read at {reading.MODEL_FPS} fps, interpolated back")
        if placed.exchanged:
            swapped = f"in {placed.exchanged} frames two windows agree better"
            notes.append(f"{swapped} with left and right exchanged")
        if placed.accepted_share < 1:
            share = f"{placed.accepted_share:.0%} of the hands"
            notes.append(f"anchors placed {share}, predicted rays the others")
        return tuple(notes)

    def _provenance(
        self, recording: Recording, windows: Sequence[Window], remarks: tuple[str, ...]
    ) -> Provenance:
        """Return source, weights and settings; ``decoded_latents`` is the longest window."""
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
