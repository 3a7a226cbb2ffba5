"""Off-screen rendering of hands, sleeves and objects by a pinhole camera; frame of ``layout``."""

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
from acehand_core.mujoco_gl import Offscreen, import_mujoco
from acehand_core.types import SIDES, ImageRgb, RigidTransform, Side

_NEAR_M, _FAR_M = 0.03, 10.0


@dataclass(frozen=True, slots=True)
class Quality:
    """Averaged samples per pixel along each axis, and texels of the shadow map."""

    oversampling: int = 2
    shadow: int = 4096


@dataclass(frozen=True, slots=True)
class Appearance:
    """Appearance of a scene; without a ``room`` it is a wooden table and one wall."""

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
    """Poses of one frame. A hand without vertices is not drawn, nor its sleeve.

    ``vertices_world``: posed mesh per slot. ``T_world_sleeve``: z to the elbow, x across the hand.
    """

    T_world_camera: RigidTransform
    vertices_world: tuple[Float[np.ndarray, "V 3"] | None, Float[np.ndarray, "V 3"] | None]
    T_world_sleeve: Float[np.ndarray, "2 4 4"]
    T_world_prop: Mapping[str, RigidTransform] = field(default_factory=dict)


class Scene(Offscreen):
    """A compiled scene and its renderer; a context manager."""

    def __init__(
        self,
        camera: Camera,
        props: tuple[Prop, ...] = (),
        appearance: Appearance | None = None,
        quality: Quality | None = None,
        others: tuple[Camera, ...] = (),
    ) -> None:
        for eye in (camera, *others):
            if eye.model != "pinhole":
                raise CalibrationError(f"A scene is drawn by a pinhole camera, not {eye.model!r}.")

        mujoco = import_mujoco()
        self._camera, self._hand = camera, CapsuleHand()
        quality = quality or Quality()
        self._samples = quality.oversampling
        width = self._samples * max(eye.width for eye in (camera, *others))
        height = self._samples * max(eye.height for eye in (camera, *others))
        look = appearance or Appearance()
        model = _build(mujoco, (width, height), props, look, self._hand, quality)
        self._data = mujoco.MjData(model)
        super().__init__(model, width, height)
        self._contexts[0].readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR
        if quality.oversampling == 1:  # a second context, without multisampling
            model.vis.quality.offsamples, model.vis.quality.shadowsize = 0, quality.shadow // 2
            fonts = mujoco.mjtFontScale.mjFONTSCALE_100
            self._contexts.append(mujoco.MjrContext(model, fonts))

    def render(self, moment: Moment) -> ImageRgb:
        """Return the image of one moment."""
        self._place(moment)
        n = self._samples
        samples = self._draw(self._camera).reshape(self._camera.height, n, self._camera.width, n, 3)
        return samples.mean((1, 3)).round().astype(np.uint8)

    def samples(
        self, moment: Moment, camera: Camera | None = None
    ) -> tuple[ImageRgb, Float[np.ndarray, "H W"]]:
        """Return colour and depth of every sample, n H by n W; of one of ``others`` if given."""
        camera = camera or self._camera
        self._place(moment, camera)
        raw = np.empty((camera.height * self._samples, camera.width * self._samples), np.float32)
        image = self._draw(camera, raw)
        near, far = self._model.vis.map.znear, self._model.vis.map.zfar
        # Reversed depth: 1 at the near plane, 0 at the far one.
        depth = near * far / (raw.astype(float) * (far - near) + near)
        return image, depth[::-1]

    def colours(self, moment: Moment, camera: Camera) -> ImageRgb:
        """Return the colour of every sample, with hard edges and coarser shadows."""
        self._place(moment, camera)
        return self._draw(camera, context=-1)

    def labels(self, moment: Moment) -> UInt8[np.ndarray, "H W"]:
        """Return every sample's label, n H by n W: 1 left hand, 2 right hand, 0 anything else."""
        self._place(moment)
        mujoco, scene = self._mujoco, self._scene
        numbers = np.zeros(scene.ngeom + 1, np.uint8)
        for index in range(scene.ngeom):
            geom = scene.geoms[index]
            geom.segid = index
            if geom.objtype == mujoco.mjtObj.mjOBJ_SKIN:
                numbers[index + 1] = geom.objid + 1

        flags = [int(mujoco.mjtRndFlag.mjRND_SEGMENT), int(mujoco.mjtRndFlag.mjRND_IDCOLOR)]
        before = [scene.flags[flag] for flag in flags]
        scene.flags[flags] = 1
        wide = self._draw(self._camera, context=-1).astype(np.uint32)
        scene.flags[flags] = before
        codes = wide[..., 0] + 256 * wide[..., 1] + 65536 * wide[..., 2]
        return numbers[np.minimum(codes, scene.ngeom)]

    def _draw(self, camera: Camera, depth: np.ndarray | None = None, context: int = 0) -> ImageRgb:
        n = self._samples
        return self._read(n * camera.width, n * camera.height, depth, context)[::-1]

    def _place(self, moment: Moment, camera: Camera | None = None) -> None:
        mujoco = self._mujoco
        for slot, side in enumerate(SIDES):
            pose = moment.T_world_sleeve[slot].copy()
            if moment.vertices_world[slot] is None:
                pose[:3, 3] = (0.0, 0.0, -5.0)
            self._move(f"sleeve_{side}", pose)
        for name, pose in moment.T_world_prop.items():
            self._move(name, pose)
        mujoco.mj_forward(self._model, self._data)
        self._update(self._data, mujoco.MjvOption())
        scene = self._scene

        for slot, side in enumerate(SIDES):
            vertices = moment.vertices_world[slot]
            start, count = scene.skinvertadr[slot], scene.skinvertnum[slot]
            flat = slice(3 * start, 3 * (start + count))
            if vertices is None:
                scene.skinvert[flat] = np.tile((0.0, 0.0, -5.0), count)
            else:
                scene.skinvert[flat] = vertices.ravel()
                scene.skinnormal[flat] = _normals(vertices, self._hand.faces(side)).ravel()

        # With integer pixel centres the image extends half a pixel further.
        camera, pose = camera or self._camera, moment.T_world_camera
        left, right = -(camera.cx + 0.5) / camera.fx, (camera.width - 0.5 - camera.cx) / camera.fx
        for eye in scene.camera:
            eye.pos, eye.forward, eye.up = pose[:3, 3], pose[:3, 2], -pose[:3, 1]
            eye.frustum_center = 0.5 * (left * _NEAR_M + right * _NEAR_M)
            eye.frustum_width = 0.5 * (right * _NEAR_M - left * _NEAR_M)
            eye.frustum_top = (camera.cy + 0.5) / camera.fy * _NEAR_M
            eye.frustum_bottom = -(camera.height - 0.5 - camera.cy) / camera.fy * _NEAR_M
            eye.frustum_near, eye.frustum_far = _NEAR_M, _FAR_M

    def _move(self, name: str, pose: RigidTransform) -> None:
        mocap = self._model.body(name).mocapid[0]
        quaternion = np.empty(4)
        self._mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(pose[:3, :3]).ravel())
        self._data.mocap_pos[mocap] = pose[:3, 3]
        self._data.mocap_quat[mocap] = quaternion


def _normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    corner = vertices[faces]
    face_normal = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    normals = np.zeros_like(vertices)
    for axis in range(3):
        for column in range(3):
            normals[:, axis] += np.bincount(faces[:, column], face_normal[:, axis], len(vertices))
    return normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)


# --- building -------------------------------------------------------------------------------


def _build(
    mujoco: Any,
    size: tuple[int, int],
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
    visual.global_.offwidth, visual.global_.offheight = size
    visual.quality.shadowsize = quality.shadow
    visual.quality.offsamples = 0 if quality.oversampling > 1 else 4
    visual.headlight.ambient, visual.headlight.diffuse = [appearance.ambient] * 3, [0.18] * 3
    visual.headlight.specular = [0.0] * 3

    for light in appearance.lights:
        far = spec.worldbody.add_light(type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
        far.pos, far.dir = list(light.position), list(light.direction)
        far.diffuse, far.specular = list(light.diffuse), [light.specular] * 3
        far.castshadow = light.shadow

    if appearance.room is None:
        wood = surfaces.wood(appearance.seed, colour=appearance.table)
        layout.add_material(mujoco, spec, "table", picture=wood, repeat=(2, 2), specular=0.1)
        plaster = surfaces.plaster(appearance.seed + 1, colour=appearance.wall)
        layout.add_material(mujoco, spec, "wall", picture=plaster, repeat=(3, 2), specular=0.0)
        world, plane = spec.worldbody, mujoco.mjtGeom.mjGEOM_PLANE
        world.add_geom(
            type=plane, size=[0.9, 0.5, layout.GRID_M], pos=[0, 0.25, 0], material="table"
        )
        world.add_geom(
            type=plane, size=[2.5, 1.5, layout.GRID_M], pos=[0, 1.1, 0.3], material="wall",
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
    """Add a hand as a skin of the world body; its vertices are replaced in every frame."""
    vertices = hand.rest_vertices(side, np.zeros(10))
    count = len(vertices)
    skin = spec.add_skin(name=f"hand_{side}")
    skin.vert = vertices.astype(np.float32).ravel()
    # Half a texel in from the edges, where the palette wraps around.
    skin.texcoord = (0.01 + 0.98 * hand.tint(side)).astype(np.float32).ravel()
    skin.face = hand.faces(side).ravel()
    skin.material = "skin"
    skin.bodyname = ["world"]
    skin.bindpos, skin.bindquat = np.zeros(3), np.array([1.0, 0, 0, 0])
    skin.vertid = [np.arange(count)]
    skin.vertweight = [np.ones(count, np.float32)]
