"""MuJoCo and the OpenGL with which it draws, on machines that may have neither a display nor a GPU.

``mujoco`` chooses its OpenGL when it is first imported, by MUJOCO_GL, and fails where that is not
there; kinematics and simulation need none.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from acehand_core.errors import MissingDependencyError

_SWITCHED_OFF = ("disable", "disabled", "off", "false", "0")
#: What MUJOCO_GL may ask for, and the module of MuJoCo that opens it.
_MODULES = {"egl": "egl", "osmesa": "osmesa", "glfw": "glfw", "glx": "glfw"}
#: What the two that need no display are libraries of.
_LIBRARIES = {"egl": ("libEGL.so.1",), "osmesa": ("libOSMesa.so.8", "libOSMesa.so")}


def import_mujoco() -> Any:
    """Import MuJoCo, also where the OpenGL that MUJOCO_GL names is not there.

    Raises:
        MissingDependencyError: it is not installed, or MUJOCO_GL is none of its values.
    """
    asked = os.environ.get("MUJOCO_GL")
    try:
        return importlib.import_module("mujoco")
    # The bindings of OpenGL fail in every way there is; a value that is not known, in this.
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
    """Keep MuJoCo from printing warnings and writing MUJOCO_LOG.TXT into the working folder."""
    mujoco = import_mujoco()
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        mujoco.set_mju_user_warning(before)


def open_context(width: int, height: int) -> Any:
    """Return a current OpenGL context: what MUJOCO_GL asks for, else the first that works.

    Raises:
        MissingDependencyError: none does; the message names the packages.
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
        # Drivers and bindings fail in every way there is: ImportError, AttributeError, OSError...
        except Exception as error:
            problems.append(f"{name}: {error}")
    raise no_opengl("; ".join(problems), candidates)


def opengl_backend() -> str:
    """Return the name of the OpenGL backend that works. Raises MissingDependencyError."""
    context = open_context(16, 16)
    context.free()
    return type(context).__module__.rsplit(".", 1)[-1]


def no_opengl(problem: str, tried: Sequence[str] = ()) -> MissingDependencyError:
    """Return the error that names what else there is: of what was not tried, what can be loaded."""
    others = [name for name in _LIBRARIES if name not in tried]
    there = [f"MUJOCO_GL={name}" for name in others if any(map(_loads, _LIBRARIES[name]))]
    hint = f"The library of {' and of '.join(there)} is here. " if there else ""
    return MissingDependencyError(
        f"Rendering needs OpenGL, and none could be opened ({problem}). {hint}On Debian or "
        "Ubuntu MUJOCO_GL=egl, the default, needs: apt-get install libegl1 libgl1-mesa-dri."
    )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
