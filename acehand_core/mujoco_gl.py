"""MuJoCo and its OpenGL contexts, also on machines without display or GPU.

On its first import ``mujoco`` opens the OpenGL backend named by MUJOCO_GL, and fails if that is
missing; kinematics and simulation need none.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, UInt8

from acehand_core.errors import MissingDependencyError

_SWITCHED_OFF = ("disable", "disabled", "off", "false", "0")
#: Values of MUJOCO_GL, and MuJoCo's module for each.
_MODULES = {"egl": "egl", "osmesa": "osmesa", "glfw": "glfw", "glx": "glfw"}

_Opened = TypeVar("_Opened", bound="Offscreen")


def import_mujoco() -> Any:
    """Import MuJoCo, also where the OpenGL backend of MUJOCO_GL is missing.

    Raises MissingDependencyError: it is not installed, or MUJOCO_GL is not a valid value.
    """
    asked = os.environ.get("MUJOCO_GL")
    try:
        return importlib.import_module("mujoco")
    # OpenGL bindings raise anything; an unknown value is a RuntimeError.
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "mujoco"
        if asked is None or missing or isinstance(error, RuntimeError):
            raise MissingDependencyError(
                f"MuJoCo cannot be imported: {error}. Install the `mujoco` package; MUJOCO_GL must "
                "be unset or one of egl, osmesa, glfw, disable (egl needs the Debian packages "
                "libegl1 and libgl1-mesa-dri)."
            ) from error

    os.environ["MUJOCO_GL"] = "disable"
    try:
        return importlib.import_module("mujoco")
    except Exception as error:
        raise MissingDependencyError(f"MuJoCo cannot be imported: {error}.") from error
    finally:
        os.environ["MUJOCO_GL"] = asked


@contextlib.contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Keep MuJoCo from printing warnings and writing MUJOCO_LOG.TXT."""
    mujoco = import_mujoco()
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        mujoco.set_mju_user_warning(before)


class Offscreen:
    """A buffer that a compiled model is drawn into, without a display; a context manager."""

    def __init__(self, model: Any, width: int, height: int) -> None:
        """Open an OpenGL context. Raises MissingDependencyError naming the packages."""
        self._mujoco = mujoco = import_mujoco()
        self._model = model
        self._gl = open_context(width, height)
        try:
            self._scene = mujoco.MjvScene(model, maxgeom=1000)
            self._contexts = [mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)]
        except Exception as error:
            self._gl.free()
            raise no_opengl(str(error)) from error

    def __enter__(self: _Opened) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the OpenGL context. Safe to call twice."""
        if self._gl is not None:
            self._gl.make_current()
            for context in self._contexts:
                context.free()
            self._gl.free()
            self._gl = None

    def _update(self, data: Any, options: Any) -> None:
        """Take the state of the model over into the scene."""
        camera, all_kinds = self._mujoco.MjvCamera(), self._mujoco.mjtCatBit.mjCAT_ALL
        self._mujoco.mjv_updateScene(
            self._model, data, options, None, camera, all_kinds, self._scene
        )

    def _read(
        self,
        width: int,
        height: int,
        depth: Float[np.ndarray, "h w"] | None = None,
        context: int = 0,
    ) -> UInt8[np.ndarray, "h w 3"]:
        """Draw the scene; return the colours, bottom row first, and fill ``depth``.

        ``context`` is the number of the one that draws.
        """
        drawing = self._contexts[context]
        view = self._mujoco.MjrRect(0, 0, width, height)
        rgb = np.empty((height, width, 3), np.uint8)
        self._gl.make_current()
        self._mujoco.mjr_setBuffer(self._mujoco.mjtFramebuffer.mjFB_OFFSCREEN, drawing)
        self._mujoco.mjr_render(view, self._scene, drawing)
        self._mujoco.mjr_readPixels(rgb, depth, view, drawing)
        return rgb


def open_context(width: int, height: int) -> Any:
    """Return a current OpenGL context: of MUJOCO_GL, else the first that works.

    Raises MissingDependencyError: none works; the message names the packages.
    """
    asked = os.environ.get("MUJOCO_GL", "").strip().lower()
    if asked in _SWITCHED_OFF:
        raise no_opengl(f"MUJOCO_GL={asked} switches it off")
    if sys.platform != "linux":
        candidates = ["default"]
    else:
        candidates = [asked] if asked in _MODULES else ["egl", "osmesa"]

    problems = []
    for name in candidates:
        module = f"mujoco.{_MODULES[name]}" if name in _MODULES else "mujoco"
        try:
            context = importlib.import_module(module).GLContext(width, height)
            context.make_current()
            return context
        except Exception as error:  # drivers and bindings raise anything
            problems.append(f"{name}: {error}")
    raise no_opengl("; ".join(problems))


def no_opengl(problem: str) -> MissingDependencyError:
    """Return the error for missing OpenGL; it names the packages."""
    return MissingDependencyError(
        f"Rendering needs OpenGL, and none could be opened ({problem}). On Debian or Ubuntu "
        "MUJOCO_GL=egl, the default, needs: apt-get install libegl1 libgl1-mesa-dri."
    )
