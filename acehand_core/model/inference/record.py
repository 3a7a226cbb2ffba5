"""What a motion says about its own making."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import asdict

from acehand_core.geometry.cameras import Camera
from acehand_core.model.config import ModelConfig
from acehand_core.model.inference.assembly import Result
from acehand_core.model.inference.options import MODEL_FPS, InferenceOptions, Reading, WeightsRecord
from acehand_core.model.inference.placing import Placed
from acehand_core.model.inference.windows import Window
from acehand_core.model.network import SolveOptions
from acehand_core.motion import Provenance, Recording
from acehand_core.provenance import library_versions


def versions() -> dict[str, str]:
    """Return the versions of what shapes a result, the model's libraries included."""
    out = dict(library_versions())
    for name in ("diffusers", "peft", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            out[name] = importlib.metadata.version(name)
    return out


def notes(
    recording: Recording,
    reading: Reading,
    placed: Placed,
    result: Result,
    camera: Camera | None,
    solve: SolveOptions,
    fitted: bool,
) -> tuple[str, ...]:
    """Return what was assumed and what happened, in plain words."""
    out = list(recording.notes)
    if fitted:
        error = "" if result.fit_error_m is None else f", {1e3 * result.fit_error_m:.1f} mm off"
        out.append(
            "no MANO files: the network's own joints, placed by their anchors; rotations and "
            f"shape are the default hand's, fitted to them{error}"
        )
    if solve.bearings != "intrinsics":
        what = "none could be fitted" if camera is None else f"fx = {camera.fx:.1f} px"
        given = "; the given calibration was not used" if recording.camera is not None else ""
        out.append(f"the camera is the network's own ({what}){given}")
    elif recording.camera is not None and recording.camera.model != "pinhole":
        out.append(f"undistorted from {recording.camera.model} for the model")
    if reading.resampled:
        out.append(
            f"recorded at {recording.fps:.3g} fps, read at {MODEL_FPS} fps, interpolated back"
        )
    if placed.exchanged:
        out.append(
            f"in {placed.exchanged} frames two windows agree better with left and right exchanged"
        )
    if placed.accepted_share < 1:
        out.append(
            f"anchors placed {placed.accepted_share:.0%} of the hands, predicted rays the others"
        )
    return tuple(out)


def provenance(
    recording: Recording,
    reading: Reading,
    weights: WeightsRecord,
    options: InferenceOptions,
    solve: SolveOptions,
    config: ModelConfig,
    windows: Sequence[Window],
    remarks: tuple[str, ...],
) -> Provenance:
    """Return where the motion came from: source, weights, settings.

    Of the settings, ``decoded_latents`` is what the network saw at once.
    """
    settings = asdict(options) | {
        "variant": config.variant,
        "source": config.source,
        "encode_size": list(reading.size),
        "solve": asdict(solve),
        "decoded_latents": max(window.stop - window.start for window in windows),
    }
    return Provenance(
        source=recording.name,
        source_sha256=recording.sha256,
        tracker="ace",
        weights=f"{weights.name} (sha256 {weights.sha256})",
        licenses=weights.licenses,
        versions=versions(),
        settings=settings,
        notes=remarks,
    )
