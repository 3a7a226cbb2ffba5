"""The camera that a window's predicted rays describe, in pixels of the recording."""

from __future__ import annotations

import numpy as np
import torch

from acehand_core.batch import Readout
from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.model import SolveOptions
from acehand_core.solver.camera_fit_torch import reported_intrinsics
from acehand_core.solver.radial_torch import RadialFit, fit_radial, guarded_pinhole


def predicted_camera(
    readout: Readout, size: tuple[int, int], options: SolveOptions
) -> Camera | None:
    """Return the camera of one clip's rays, or None where they describe none.

    With bearings from a fitted pinhole or a radial lens it is that fit; else the linear fit that
    the released code reports. Pixels are counted as the given calibrations are (see
    ``PinholeBatch``).

    Args:
        size: width and height of the recording.
    """
    width, height = size
    if options.bearings == "radial":
        radial = fit_radial(readout.rays)
        return _kannala_brandt(radial, width, height) if bool(radial.valid[0]) else None
    if options.bearings == "pinhole":
        fit = guarded_pinhole(readout.rays, options.fit_guards)
        if not bool(fit.valid[0]):
            return None
        scale = torch.tensor([width, height])
        numbers = torch.cat([fit.focal[0] * scale, fit.centre[0] * scale]).tolist()
    else:
        numbers = reported_intrinsics(readout.ray_map, width, height)[0].tolist()
    try:
        return Camera("pinhole", width, height, *numbers)
    except CalibrationError:
        return None  # rays without any spread, as before training


def _kannala_brandt(fit: RadialFit, width: int, height: int) -> Camera | None:
    """Return the fisheye model of a fitted radial lens: its inverse, by least squares."""
    focal, centre = fit.focal[0].double().numpy(), fit.centre[0].double().numpy()
    corner = float(np.linalg.norm(np.maximum(abs(centre), abs(1 - centre)) / focal))
    s = np.linspace(0, corner, 200)[1:]
    along = np.stack([centre[0] + s * focal[0], np.full_like(s, centre[1])], axis=-1)
    plane = fit.plane(torch.tensor(along[None], dtype=fit.focal.dtype))[0].double().numpy()
    angle = plane[:, 0]
    powers = angle[:, None] ** np.array([3, 5, 7, 9])
    bend, *_ = np.linalg.lstsq(powers, s - angle, rcond=None)
    try:
        return Camera(
            "kannala_brandt", width, height, *(focal * (width, height)),
            *(centre * (width, height)), distortion=tuple(bend.tolist()),
        )  # fmt: skip
    except CalibrationError:
        return None
