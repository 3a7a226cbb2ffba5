"""An offscreen OpenGL picture of a MuJoCo model, without a window or a desktop."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import numpy as np

from acehand_core.errors import MissingDependencyError
from acehand_core.types import ImageRgb

_HINT = (
    "On Debian or Ubuntu: apt-get install libegl1 libgl1-mesa-dri (EGL), or libosmesa6 (OSMesa). "
    "MUJOCO_GL=egl or osmesa chooses one; unset, both are tried."
)


def import_mujoco() -> Any:
    """Return the package mujoco, which looks for the OpenGL that MUJOCO_GL names on import.

    Raises:
        MissingDependencyError: it is not installed, or has no such OpenGL.
    """
    if importlib.util.find_spec("mujoco") is None:
        raise MissingDependencyError("Rendering a scene needs the package mujoco.")
    try:
        return importlib.import_module("mujoco")
    # A name it does not know is a RuntimeError; drivers and bindings fail in every way there is.
    except Exception as error:
        raise MissingDependencyError(
            f"Rendering needs OpenGL, and MUJOCO_GL={os.environ.get('MUJOCO_GL', '')!r} gave none "
            f"({error}). {_HINT}"
        ) from error


class Screen:
    """Draws ``scene`` (an ``MjvScene``) of a model; the context is freed by ``close``.

    ``mujoco.Renderer`` picks its OpenGL when mujoco is first imported and fails where no display
    is; here EGL and then OSMesa are tried unless MUJOCO_GL names one.
    """

    def __init__(self, mujoco: Any, model: Any, width: int, height: int):
        self._mujoco, self._size = mujoco, (height, width)
        self._near, self._far = (
            model.stat.extent * edge for edge in (model.vis.map.znear, model.vis.map.zfar)
        )
        self._gl = _open_context(width, height)
        self.scene = mujoco.MjvScene(model, maxgeom=1000)
        self._option = mujoco.MjvOption()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._context.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR
        self._rect = mujoco.MjrRect(0, 0, width, height)

    def update(self, model: Any, data: Any) -> None:
        """Fill ``scene`` from the state of the model, seen by a free camera."""
        self._mujoco.mjv_updateScene(
            model, data, self._option, None, self._mujoco.MjvCamera(),
            self._mujoco.mjtCatBit.mjCAT_ALL, self.scene,
        )  # fmt: skip

    def colour(self) -> ImageRgb:
        """Return the picture of ``scene``."""
        image = np.empty((*self._size, 3), np.uint8)
        self._draw(image, None)
        return image[::-1]

    def depth(self) -> np.ndarray:
        """Return the distance along the optical axis of each pixel, (H, W), metres."""
        raw = np.empty(self._size, np.float32)
        self._draw(None, raw)
        return self._metres(raw)

    def both(self) -> tuple[ImageRgb, np.ndarray]:
        """Return picture and depth of one drawing."""
        image, raw = np.empty((*self._size, 3), np.uint8), np.empty(self._size, np.float32)
        self._draw(image, raw)
        return image[::-1], self._metres(raw)

    def skins(self) -> np.ndarray:
        """Return 1 + the number of the skin that each pixel shows, 0 where none, (H, W) uint8."""
        mujoco, scene = self._mujoco, self.scene
        flags = (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR)
        numbers = np.zeros(scene.ngeom + 1, np.uint8)
        for index in range(scene.ngeom):
            geom = scene.geoms[index]
            geom.segid = index
            if geom.objtype == mujoco.mjtObj.mjOBJ_SKIN:
                numbers[index + 1] = geom.objid + 1
        image = np.empty((*self._size, 3), np.uint8)
        before = [scene.flags[flag] for flag in flags]
        for flag in flags:
            scene.flags[flag] = 1
        self._draw(image, None)
        for flag, value in zip(flags, before, strict=True):
            scene.flags[flag] = value
        wide = image.astype(np.uint32)
        codes = wide[..., 0] + 256 * wide[..., 1] + 65536 * wide[..., 2]
        return numbers[np.minimum(codes, scene.ngeom)][::-1]

    def _metres(self, raw: np.ndarray) -> np.ndarray:
        near, far = self._near, self._far
        # Reversed depth: 1 at the near plane, 0 at the far one.
        return (near * far / (raw.astype(float) * (far - near) + near))[::-1]

    def _draw(self, image: np.ndarray | None, depth: np.ndarray | None) -> None:
        self._gl.make_current()
        self._mujoco.mjr_render(self._rect, self.scene, self._context)
        self._mujoco.mjr_readPixels(image, depth, self._rect, self._context)

    def close(self) -> None:
        """Free the OpenGL context."""
        if self._gl is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._gl = None


def _open_context(width: int, height: int) -> Any:
    wanted = os.environ.get("MUJOCO_GL", "").strip().lower()
    names = [wanted] if wanted in ("egl", "osmesa", "glfw") else ["egl", "osmesa"]
    if sys.platform != "linux":
        names = ["glfw"]
    problems = []
    for name in names:
        try:
            context = importlib.import_module(f"mujoco.{name}").GLContext(width, height)
            context.make_current()
            return context
        # Drivers and bindings fail in every way there is: ImportError, AttributeError, OSError...
        except Exception as error:
            problems.append(f"{name}: {error}")
    raise MissingDependencyError(
        f"Rendering needs OpenGL, and none could be opened ({'; '.join(problems)}). {_HINT}"
    )
