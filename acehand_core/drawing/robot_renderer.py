"""Pictures of robot hands: under a recording's camera, or as a portrait.

The world of the MuJoCo model of both hands is the camera frame. Only the part of the image that a
hand can cover is rendered, at twice the resolution unless the caller wants less, and averaged down:
edges are smooth and the alpha is exact.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from jaxtyping import Float, Float32, UInt8

from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion, RobotTrajectory
from acehand_core.mujoco_gl import Offscreen, import_mujoco
from acehand_core.types import SIDES, ImageRgb, RigidTransform, Side
from retarget.robots.collision_shapes import link_places
from retarget.robots.robot import Robot
from retarget.solve.arm import Arm
from retarget.solve.arm_scene import Places, add_shape, visible_shapes

if TYPE_CHECKING:
    import mujoco

ImageRgba = UInt8[np.ndarray, "H W 4"]
DepthImage = Float32[np.ndarray, "H W"]
JointVector = Float[np.ndarray, "Q"]
_Box = tuple[int, int, int, int]  # left, top, right, bottom; the last two exclusive

#: Camera clipping distances in metres.
_NEAR, _FAR = 0.02, 20.0
#: Largest buffer (px); larger pictures are not supersampled.
_MAX_BUFFER = 4096
_VISUAL_GROUP = 2
#: Geom groups of hands in the compiled scene, to draw one alone.
_HAND_GROUPS: Mapping[Side, int] = {"left": 3, "right": 4}
#: Degrees; narrow, so that the near side does not bulge.
_PORTRAIT_FOV = 20.0
#: Slices and stacks of round shapes: MuJoCo's own, and a quarter of the triangles for fingers
#: (8 mm) of so small a radius (px) that the outline is the same to 0.7 px.
_SMOOTH, _COARSE = (28, 16), (20, 6)
_SMALL_FINGER, _FINGER_M = 20.0, 0.008
#: MuJoCo warns about hands attached without a prefix.
_PREFIX = "hand:"
_ARM_PREFIX = "arm:"
#: Colour of a colliding arm.
_COLLIDES = (0.85, 0.15, 0.12, 1.0)


class RobotRenderer(Offscreen):
    """Renderer of one robot's hands into pictures of one size; a context manager."""

    def __init__(
        self,
        robot: Robot,
        width: int,
        height: int,
        arm: Arm | None = None,
        pixels_per_metre: float = np.inf,
        supersampled: bool = True,
    ) -> None:
        """Compile the scene, with two of ``arm``, and open an OpenGL context.

        ``pixels_per_metre``: largest scale of a hand; small ones are drawn faster. Without being
        ``supersampled`` pictures have hard edges, in less than half the time.

        Raises MissingDependencyError: no OpenGL; the message names the packages.
        """
        mujoco = import_mujoco()
        self._hands = robot.hands
        self.width, self.height = width, height
        self._scale = 2 if supersampled and 2 * max(width, height) <= _MAX_BUFFER else 1
        size = width * self._scale, height * self._scale
        model = _build_scene(mujoco, robot, arm, *size)
        quality, small = model.vis.quality, pixels_per_metre * _FINGER_M < _SMALL_FINGER
        quality.numslices, quality.numstacks = _COARSE if small else _SMOOTH
        super().__init__(model, *size)
        self._data = mujoco.MjData(model)
        self._qpos, self._visuals = {}, {}
        for side, hand in robot.hands.items():
            names = [_PREFIX + hand.full_name(name) for name in hand.joint_names]
            self._qpos[side] = np.array([self._model.joint(n).qposadr[0] for n in names], int)
            mount = self._model.body(f"{side}_mount").id
            own = self._model.body_rootid[self._model.geom_bodyid] == mount
            shown = self._model.geom_group == _VISUAL_GROUP
            self._visuals[side] = np.flatnonzero(own & shown)
        self._arms = None if arm is None else _DrawnArms(arm, self._model)
        self._options = mujoco.MjvOption()
        for groups in ("geomgroup", "sitegroup", "jointgroup", "tendongroup", "actuatorgroup"):
            getattr(self._options, groups)[:] = 0
        self._options.geomgroup[_VISUAL_GROUP] = 1
        self._model.geom_group[self._model.geom_group != _VISUAL_GROUP] = 0
        for side, geoms in self._visuals.items():
            self._model.geom_group[geoms] = _HAND_GROUPS[side]

    def render(
        self,
        camera: Camera,
        joints: Mapping[Side, JointVector],
        T_camera_base: Mapping[Side, RigidTransform],
        arms: Mapping[Side, Places] | None = None,
    ) -> tuple[ImageRgba, DepthImage]:
        """Return the hands as the camera sees them, and depths along its axis.

        Args:
            camera: pinhole of this renderer's size.
            joints: joint angles of each hand to draw, radians, in ``joint_names`` order.
            T_camera_base: base pose of each of these hands.
            arms: places of the arms' shapes in the camera frame.

        Returns:
            Colours with straight alpha, and metres; background is transparent and infinite. At
            edges, the depth of the nearest part of the pixel.
        """
        picture = np.zeros((self.height, self.width, 4), np.uint8)
        depth = np.full((self.height, self.width), np.inf, np.float32)
        box = self._arrange(camera, joints, T_camera_base, arms or {})
        if box is not None:
            colours, cover, near = self._draw(camera, box)
            edge = (cover > 0) & (cover < 255)
            straight = colours[edge].astype(np.uint16) * 255 // cover[edge, None]
            colours[edge] = np.minimum(straight, 255)
            picture[_part(box)] = np.dstack([colours, cover])
            depth[_part(box)] = _nearest_metres(near, self._scale)
        return picture, depth

    def render_frame(
        self,
        camera: Camera,
        trajectory: RobotTrajectory,
        frame: int,
        T_camera_base: Float[np.ndarray, "2 4 4"],
        with_arms: bool = False,
    ) -> tuple[ImageRgba, DepthImage]:
        """Return the active hands of one frame (``render``); arms are red where they collide."""
        joints, poses = _active(trajectory, frame, T_camera_base)
        arms: Mapping[Side, Places] = {}
        if with_arms and self._arms is not None:
            arms = self._arms.of(self._model, trajectory, frame, T_camera_base)
        return self.render(camera, joints, poses, arms)

    def paint_frame(
        self,
        picture: ImageRgb,
        camera: Camera,
        trajectory: RobotTrajectory,
        frame: int,
        T_camera_base: Float[np.ndarray, "2 4 4"],
    ) -> None:
        """Draw the active hands of one frame over a picture of this renderer's size."""
        self._paint(picture, camera, *_active(trajectory, frame, T_camera_base))

    def _paint(
        self,
        picture: ImageRgb,
        camera: Camera,
        joints: Mapping[Side, JointVector],
        poses: Mapping[Side, RigidTransform],
    ) -> None:
        box = self._arrange(camera, joints, poses, {})
        if box is not None:
            colours, cover, _ = self._draw(camera, box)
            inside = picture[_part(box)]
            clear = cv2.cvtColor(255 - cover, cv2.COLOR_GRAY2RGB)
            inside[:] = cv2.add(colours, cv2.multiply(inside, clear, scale=1 / 255))

    def framed(
        self,
        side: Side,
        postures: Sequence[JointVector],
        viewer: Float[np.ndarray, "3"],
        points: Float[np.ndarray, "N 3"] | None = None,
        filled: float = 0.94,
    ) -> RigidTransform:
        """Return the ``T_camera_base`` with which a hand fills a share of a portrait.

        All postures and ``points`` (base frame) are in the picture; ``viewer`` is the direction to
        the camera in the base frame.
        """
        forward = -viewer / np.linalg.norm(viewer)
        right = np.cross(forward, [0.0, 0.0, 1.0])
        right /= np.linalg.norm(right)
        turn = np.stack([right, np.cross(forward, right), forward])
        lows = [] if points is None else list(points @ turn.T)
        highs = list(lows)
        for joints in postures:
            self._place(side, joints, np.eye(4))
            self._mujoco.mj_kinematics(self._model, self._data)
            geoms = self._visuals[side]
            seen, radii = self._data.geom_xpos[geoms] @ turn.T, self._model.geom_rbound[geoms, None]
            lows.extend(seen - radii)
            highs.extend(seen + radii)
        low, high = np.min(lows, axis=0), np.max(highs, axis=0)
        span = ((high - low)[:2] / (self.width, self.height)).max()
        distance = self.portrait_camera.fx * span / filled
        return frames.rigid(turn, np.array([0, 0, distance]) - (low + high) / 2)

    @property
    def portrait_camera(self) -> Camera:
        return Camera.nominal(self.width, self.height, _PORTRAIT_FOV)

    def seen(self, side: Side, joints: JointVector, T_camera_base: RigidTransform) -> ImageRgb:
        """Return a portrait of one hand."""
        shade = np.linspace(250, 226, self.height).astype(np.uint8)[:, None, None]
        picture = np.tile(shade, (1, self.width, 3))
        self._paint(picture, self.portrait_camera, {side: joints}, {side: T_camera_base})
        return picture

    def _arrange(
        self,
        camera: Camera,
        joints: Mapping[Side, np.ndarray],
        poses: Mapping[Side, np.ndarray],
        arms: Mapping[Side, Places],
    ) -> _Box | None:
        """Place hands and arms; return the pixels that they may cover, or None."""
        for side, angles in joints.items():
            self._place(side, angles, poses[side])
        for side, group in _HAND_GROUPS.items():
            self._options.geomgroup[group] = side in joints
        self._mujoco.mj_kinematics(self._model, self._data)
        self._mujoco.mj_camlight(self._model, self._data)
        own = [] if self._arms is None else self._arms.place(self._data, arms)
        return self._covered(camera, [*(self._visuals[side] for side in joints), *own])

    def _place(self, side: Side, joints: np.ndarray, pose: np.ndarray) -> None:
        mount = self._model.body(f"{side}_mount")
        mount.pos[:] = pose[:3, 3]
        mount.quat[:] = rotations.to_quaternion(pose[:3, :3])
        self._data.qpos[self._qpos[side]] = joints

    def _covered(self, camera: Camera, shown: Sequence[np.ndarray]) -> _Box | None:
        """Return the pixels that geoms may cover, or None."""
        if not shown:
            return None
        geoms = np.concatenate(shown)
        centers, radii = self._data.geom_xpos[geoms], self._model.geom_rbound[geoms]
        seen = centers[:, 2] + radii > _NEAR
        if not seen.any():
            return None
        centers, radii = centers[seen], radii[seen]
        near, far = centers[:, 2] - radii, centers[:, 2] + radii
        if near.min() <= _NEAR:
            return 0, 0, self.width, self.height

        # A ball lies inside its bounding box, whose outline is at its nearest or farthest face.
        sides = [centers[:, :2] + sign * radii[:, None] for sign in (-1, 1)]
        outline = np.concatenate([side / face[:, None] for side in sides for face in (near, far)])
        pixels = outline * (camera.fx, camera.fy) + (camera.cx, camera.cy)
        size = (self.width, self.height)
        left, top = np.clip(np.floor(pixels.min(axis=0)), 0, size).astype(int).tolist()
        right, bottom = np.clip(np.ceil(pixels.max(axis=0)) + 1, 0, size).astype(int).tolist()
        return (left, top, right, bottom) if left < right and top < bottom else None

    def _draw(self, camera: Camera, box: _Box) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return colours, cover and depths of one box of the image.

        Colours (h, w, 3) are multiplied with the covered share of each pixel (h, w; 0 to 255).
        Depths are OpenGL's: rows upwards, ``scale`` times as large, 0 near to 1 far.
        """
        scale = self._scale
        self._update(self._data, self._options)

        left, top, right, bottom = box
        for eye in self._scene.camera:
            eye.pos[:], eye.forward[:], eye.up[:] = 0, (0, 0, 1), (0, -1, 0)
            # Pixel centres are integers: a box begins half a pixel before the first.
            x0, x1 = ((edge - 0.5 - camera.cx) / camera.fx * _NEAR for edge in (left, right))
            y0, y1 = ((camera.cy - edge + 0.5) / camera.fy * _NEAR for edge in (bottom, top))
            eye.frustum_center, eye.frustum_width = (x0 + x1) / 2, (x1 - x0) / 2
            eye.frustum_bottom, eye.frustum_top = y0, y1
            eye.frustum_near, eye.frustum_far = _NEAR, _FAR

        width, height = (right - left) * scale, (bottom - top) * scale
        depth = np.empty((height, width), np.float32)
        rgb = self._read(width, height, depth)
        # On black, the mean is the hand's colour times its share of the block.
        size, solid = (right - left, bottom - top), (depth < 1).view(np.uint8) * np.uint8(255)
        colours, cover = (
            cv2.flip(cv2.resize(image, size, interpolation=cv2.INTER_AREA), 0)
            for image in (rgb, solid)
        )
        return colours, cover, depth


def _active(
    trajectory: RobotTrajectory, frame: int, T_camera_base: Float[np.ndarray, "2 4 4"]
) -> tuple[dict[Side, JointVector], dict[Side, RigidTransform]]:
    """Return joints and base poses of the active hands of a frame."""
    shown = [(slot, side) for slot, side in enumerate(SIDES) if trajectory.active[frame, slot]]
    joints = {side: trajectory.joints[frame, slot] for slot, side in shown}
    return joints, {side: T_camera_base[slot] for slot, side in shown}


def camera_poses(motion: HandMotion, trajectory: RobotTrajectory) -> Float[np.ndarray, "T 2 4 4"]:
    """Return ``T_camera_base`` of a trajectory with places."""
    poses = trajectory.T_frame_base
    assert poses is not None
    if trajectory.frame == "world" and motion.T_world_camera is not None:
        return frames.inverse(motion.T_world_camera)[:, None] @ poses
    return poses


def _part(box: _Box) -> tuple[slice, slice]:
    left, top, right, bottom = box
    return slice(top, bottom), slice(left, right)


def _nearest_metres(depth: np.ndarray, scale: int) -> np.ndarray:
    """Return the least distance in blocks of ``scale`` x ``scale`` of ``_draw``'s depths."""
    blocks = [depth[row::scale, column::scale] for row, column in np.ndindex(scale, scale)]
    near = functools.reduce(np.minimum, blocks)[::-1]
    with np.errstate(divide="ignore"):
        metres = np.where(near < 1, _NEAR / (1 - near * (1 - _NEAR / _FAR)), np.inf)
    return metres.astype(np.float32)


def _build_scene(
    mujoco_module: Any, robot: Robot, arm: Arm | None, width: int, height: int
) -> mujoco.MjModel:
    """Return both hands on movable mounts, lit from the camera, and the shapes of arms."""
    spec = mujoco_module.MjSpec()
    for side, hand in robot.hands.items():
        mount = spec.worldbody.add_body(name=f"{side}_mount")
        child = mujoco_module.MjSpec.from_file(str(hand.mjcf_path))
        # Equal settings keep MuJoCo from warning about a conflict.
        spec.option.gravity, spec.option.integrator = child.option.gravity, child.option.integrator
        spec.attach(child, frame=mount.add_frame(), prefix=_PREFIX)

    if arm is not None:
        for side, shape in itertools.product(SIDES, visible_shapes(arm).tolist()):
            name, material = f"{_ARM_PREFIX}{side} {shape}", int(arm.model.geom_matid[shape])
            geom = add_shape(spec, spec.worldbody, arm.model, shape, name)
            geom.group = _VISUAL_GROUP
            geom.rgba = arm.model.geom_rgba[shape] if material < 0 else arm.model.mat_rgba[material]

    directional = mujoco_module.mjtLightType.mjLIGHT_DIRECTIONAL
    for direction, diffuse, specular in (
        ((0.40, 0.60, 0.75), 0.70, 0.4),  # key light: from above left behind the camera
        ((-0.8, 0.1, 0.5), 0.25, 0.1),  # fill from the right
    ):
        light = spec.worldbody.add_light(dir=direction, type=directional, castshadow=False)
        light.diffuse, light.specular, light.ambient = [diffuse] * 3, [specular] * 3, [0] * 3

    model = spec.compile()
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height
    model.vis.quality.offsamples = 0
    model.vis.quality.shadowsize = 0  # no light casts one; its map would take 67 MB
    model.vis.headlight.ambient[:] = 0.42
    model.vis.headlight.diffuse[:] = 0.3
    model.vis.headlight.specular[:] = 0.1
    return model


class _DrawnArms:
    """The arms of a compiled scene."""

    def __init__(self, arm: Arm, model: mujoco.MjModel) -> None:
        self._arm, self._links = arm, arm.model.geom_bodyid[visible_shapes(arm)] - 1
        names = np.array([model.geom(i).name for i in range(model.ngeom)])
        self._geoms = {
            side: np.flatnonzero(np.char.startswith(names, f"{_ARM_PREFIX}{side} "))
            for side in SIDES
        }
        self._colours = model.geom_rgba.copy()
        one = self._geoms[SIDES[0]]
        self._local = model.geom_pos[one], rotations.from_quaternion(model.geom_quat[one])

    def of(
        self,
        model: mujoco.MjModel,
        trajectory: RobotTrajectory,
        frame: int,
        T_camera_base: Float[np.ndarray, "2 4 4"],
    ) -> dict[Side, Places]:
        """Return the places of the arms of one frame; colliding arms turn red."""
        places: dict[Side, Places] = {}
        if trajectory.T_frame_base is None:
            return places
        for slot, (side, motion) in enumerate(zip(SIDES, trajectory.arms, strict=True)):
            if motion is None:
                continue
            geoms, T_frame_base = self._geoms[side], trajectory.T_frame_base[frame, slot]
            collides = motion.clearance_m[frame] < 0
            model.geom_rgba[geoms] = _COLLIDES if collides else self._colours[geoms]
            T_camera_arm = T_camera_base[slot] @ frames.inverse(T_frame_base) @ motion.T_frame_arm
            joints = motion.joints[frame : frame + 1]
            own = Places(*link_places(self._arm.posture_at(joints), self._links, *self._local))
            places[side] = own.moved(T_camera_arm[None])
        return places

    def place(self, data: mujoco.MjData, places: Mapping[Side, Places]) -> list[np.ndarray]:
        """Place arms, the others behind the camera; return the geoms of the former."""
        for side, geoms in self._geoms.items():
            data.geom_xpos[geoms] = (0, 0, -10)
            if side in places:
                data.geom_xpos[geoms] = places[side].centres[0]
                data.geom_xmat[geoms] = places[side].turns[0].reshape(-1, 9)
        return [self._geoms[side] for side in places]
