"""Draws hands, sleeves and objects on a table as a pinhole camera sees them, off screen.

World frame: z up, table top at z = 0, y away from the person, x to the person's right; metres.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, UInt8

from acehand_core.ace.synthetic import layout, surfaces
from acehand_core.ace.synthetic.layout import Light, Prop, Room
from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.mujoco_gl import import_mujoco, open_context
from acehand_core.types import SIDES, ImageRgb, RigidTransform, Side


class OffscreenRenderer:
    """Draws ``scene`` (an ``MjvScene``) of a model; the context is freed by ``close``.

    ``mujoco.Renderer`` picks its OpenGL when mujoco is first imported and fails where no display
    is; here EGL and then OSMesa are tried unless MUJOCO_GL names one.
    """

    def __init__(self, mujoco: Any, model: Any, width: int, height: int):
        self._mujoco, self._size = mujoco, (height, width)
        self._near, self._far = (
            model.stat.extent * edge for edge in (model.vis.map.znear, model.vis.map.zfar)
        )
        self._gl = open_context(width, height)
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

    def both(self) -> tuple[ImageRgb, np.ndarray]:
        """Return picture and depth of one drawing."""
        image, raw = np.empty((*self._size, 3), np.uint8), np.empty(self._size, np.float32)
        self._draw(image, raw)
        near, far = self._near, self._far
        # Reversed depth: 1 at the near plane, 0 at the far one.
        depth = near * far / (raw.astype(float) * (far - near) + near)
        return image[::-1], depth[::-1]

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


_NEAR_M, _FAR_M = 0.03, 10.0
#: Drawn this many times larger each way and averaged down: soft edges also on shadows, which
#: multisampling leaves jagged.
_OVERSAMPLING = 2


__all__ = ["Appearance", "Light", "Moment", "Prop", "Quality", "Room", "Scene"]


@dataclass(frozen=True, slots=True)
class Quality:
    """How finely a scene is drawn: samples per pixel along each axis, texels of the shadow map."""

    oversampling: int = _OVERSAMPLING
    shadow: int = 4096


@dataclass(frozen=True, slots=True)
class Appearance:
    """What the scene looks like; ``seed`` makes the textures.

    ``arm``: a long sleeve, or a bare forearm. Without a ``room`` there are a wooden table and one
    wall.
    """

    seed: int = 0
    skin: surfaces.SkinColours = field(default_factory=surfaces.SkinColours)
    sleeve: surfaces.Colour = (0.27, 0.36, 0.47)
    table: surfaces.Colour = (0.55, 0.45, 0.36)
    wall: surfaces.Colour = (0.72, 0.74, 0.72)
    arm: Literal["sleeve", "bare"] = "sleeve"
    ambient: float = 0.40
    lights: tuple[Light, ...] = layout.DAYLIGHT
    room: Room | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """Where everything is in one frame. A hand without vertices is not drawn, nor its sleeve.

    ``vertices_world``: the posed mesh (V, 3) per slot. ``T_world_sleeve``: the sleeve's cuff, its
    z axis towards the elbow and x across the back of the hand.
    """

    T_world_camera: RigidTransform
    vertices_world: tuple[Float[np.ndarray, "V 3"] | None, Float[np.ndarray, "V 3"] | None]
    T_world_sleeve: Float[np.ndarray, "2 4 4"]
    T_world_prop: Mapping[str, RigidTransform] = field(default_factory=dict)


class Scene:
    """A compiled scene and its renderer; use as a context manager, the GL context is freed."""

    def __init__(
        self,
        camera: Camera,
        props: tuple[Prop, ...] = (),
        appearance: Appearance | None = None,
        quality: Quality | None = None,
    ):
        if camera.model != "pinhole":
            raise CalibrationError(f"A scene is drawn by a pinhole camera, not {camera.model!r}.")
        self._mujoco = mujoco = import_mujoco()
        self._camera = camera
        self._hand = CapsuleHand()
        quality = quality or Quality()
        self._samples = quality.oversampling
        self._model = _build(mujoco, camera, props, appearance or Appearance(), self._hand, quality)
        self._data = mujoco.MjData(self._model)
        width, height = camera.width * self._samples, camera.height * self._samples
        self._renderer = OffscreenRenderer(mujoco, self._model, width, height)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the GL context."""
        self._renderer.close()

    def render(self, moment: Moment) -> ImageRgb:
        """Return the picture of one moment."""
        self._place(moment)
        height, width, n = self._camera.height, self._camera.width, self._samples
        # Each pixel's samples have axes of their own.
        samples = self._renderer.colour().reshape(height, n, width, n, 3)
        return samples.mean((1, 3)).round().astype(np.uint8)

    def samples(self, moment: Moment) -> tuple[ImageRgb, Float[np.ndarray, "H W"]]:
        """Return colour and depth of every sample, before averaging: n H by n W."""
        self._place(moment)
        return self._renderer.both()

    def labels(self, moment: Moment) -> UInt8[np.ndarray, "H W"]:
        """Return what each sample shows, n H by n W: 1 left hand, 2 right hand, 0 anything else."""
        self._place(moment)
        return self._renderer.skins()

    def _place(self, moment: Moment) -> None:
        data, scene = self._data, self._renderer.scene
        for slot, side in enumerate(SIDES):
            pose = moment.T_world_sleeve[slot].copy()
            if moment.vertices_world[slot] is None:
                pose[:3, 3] = (0.0, 0.0, -5.0)
            self._move(f"sleeve_{side}", pose)
        for name, pose in moment.T_world_prop.items():
            self._move(name, pose)
        self._mujoco.mj_forward(self._model, data)
        self._renderer.update(self._model, data)
        for slot, side in enumerate(SIDES):
            self._set_skin(slot, side, moment.vertices_world[slot])
        for eye in scene.camera:
            _aim(eye, self._camera, moment.T_world_camera)

    def _move(self, name: str, pose: RigidTransform) -> None:
        mocap = self._model.body(name).mocapid[0]
        quaternion = np.empty(4)
        self._mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(pose[:3, :3]).ravel())
        self._data.mocap_pos[mocap] = pose[:3, 3]
        self._data.mocap_quat[mocap] = quaternion

    def _set_skin(self, slot: int, side: Side, vertices: np.ndarray | None) -> None:
        scene = self._renderer.scene
        start, count = scene.skinvertadr[slot], scene.skinvertnum[slot]
        flat = slice(3 * start, 3 * (start + count))
        if vertices is None:
            scene.skinvert[flat] = np.tile((0.0, 0.0, -5.0), count)
            return
        scene.skinvert[flat] = vertices.ravel()
        scene.skinnormal[flat] = _normals(vertices, self._hand.faces(side)).ravel()


def _normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    corner = vertices[faces]
    face_normal = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    normals = np.zeros_like(vertices)
    for axis in range(3):
        for column in range(3):
            normals[:, axis] += np.bincount(faces[:, column], face_normal[:, axis], len(vertices))
    return normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)


def _aim(eye: Any, camera: Camera, T_world_camera: RigidTransform) -> None:
    """Point MuJoCo's camera; pixel centres are integers, so the image ends half a pixel out."""
    eye.pos = T_world_camera[:3, 3]
    eye.forward = T_world_camera[:3, 2]
    eye.up = -T_world_camera[:3, 1]
    scale = _NEAR_M
    left = -(camera.cx + 0.5) / camera.fx * scale
    right = (camera.width - 0.5 - camera.cx) / camera.fx * scale
    eye.frustum_center = 0.5 * (left + right)
    eye.frustum_width = 0.5 * (right - left)
    eye.frustum_top = (camera.cy + 0.5) / camera.fy * scale
    eye.frustum_bottom = -(camera.height - 0.5 - camera.cy) / camera.fy * scale
    eye.frustum_near, eye.frustum_far = _NEAR_M, _FAR_M


# --- building -------------------------------------------------------------------------------


def _build(
    mujoco: Any,
    camera: Camera,
    props: tuple[Prop, ...],
    appearance: Appearance,
    hand: CapsuleHand,
    quality: Quality,
) -> Any:
    spec = mujoco.MjSpec()
    spec.stat.extent = 1.0
    spec.stat.center = np.zeros(3)
    visual = spec.visual
    visual.map.shadowclip = 0.6
    visual.map.znear, visual.map.zfar = _NEAR_M, _FAR_M
    visual.global_.offwidth = camera.width * quality.oversampling
    visual.global_.offheight = camera.height * quality.oversampling
    visual.quality.shadowsize = quality.shadow
    visual.quality.offsamples = 0 if quality.oversampling > 1 else 4
    visual.headlight.ambient, visual.headlight.diffuse = [appearance.ambient] * 3, [0.18] * 3
    visual.headlight.specular = [0.0] * 3
    layout.add_lights(mujoco, spec, appearance.lights)

    if appearance.room is None:
        wood = surfaces.wood(appearance.seed, colour=appearance.table)
        layout.add_material(mujoco, spec, "table", picture=wood, repeat=(2, 2), specular=0.1)
        plaster = surfaces.plaster(appearance.seed + 1, colour=appearance.wall)
        layout.add_material(mujoco, spec, "wall", picture=plaster, repeat=(3, 2), specular=0.0)
        world = spec.worldbody
        plane = mujoco.mjtGeom.mjGEOM_PLANE
        world.add_geom(type=plane, size=[0.9, 0.5, 0.01], pos=[0, 0.25, 0], material="table")
        world.add_geom(
            type=plane, size=[2.5, 1.5, 0.01], pos=[0, 1.1, 0.3], material="wall",
            quat=[np.sqrt(0.5), np.sqrt(0.5), 0, 0],
        )  # fmt: skip
    else:
        layout.add_room(mujoco, spec, appearance.room, appearance.seed)

    bare = appearance.arm == "bare"
    layout.add_solid(mujoco, spec, "sleeve", surfaces.forearm() if bare else surfaces.sleeve())
    cloth = appearance.skin.back if bare else appearance.sleeve
    layout.add_material(mujoco, spec, "cloth", rgba=cloth, specular=0.15 if bare else 0.05)

    for slot, side in enumerate(SIDES):
        body = spec.worldbody.add_body(name=f"sleeve_{side}", mocap=True)
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="sleeve", material="cloth")
        _add_skin(spec, slot, side, hand)

    palette = appearance.skin.palette()
    layout.add_material(mujoco, spec, "skin", picture=palette, specular=0.18, shininess=0.25)
    for prop in props:
        layout.add_prop(mujoco, spec, prop)

    return spec.compile()


def _add_skin(spec: Any, slot: int, side: Side, hand: CapsuleHand) -> None:
    """Declare a hand as a skin on the world body; its vertices are overwritten every frame."""
    vertices = hand.rest_vertices(side, np.zeros(10))
    count = len(vertices)
    skin = spec.add_skin(name=f"hand_{side}")
    skin.vert = vertices.astype(np.float32).ravel()
    # Half a texel in from the edges, where the palette would wrap around.
    skin.texcoord = (0.01 + 0.98 * hand.tint(side)).astype(np.float32).ravel()
    skin.face = hand.faces(side).ravel()
    skin.material = "skin"
    skin.bodyname = ["world"]
    skin.bindpos, skin.bindquat = np.zeros(3), np.array([1.0, 0, 0, 0])
    skin.vertid = [np.arange(count)]
    skin.vertweight = [np.ones(count, np.float32)]
