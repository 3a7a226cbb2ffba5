"""Rigid objects that hands grasp, and grasps as a simulated robot repeats them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float, Int

from acehand_core.errors import SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.types import Side, TimestampsNs
from acehand_core.user_files import Valid

Shape = Literal["box", "sphere", "cylinder", "capsule", "mesh"]

#: Numbers in ``ObjectPart.size``.
_SIZES: dict[Shape, int] = {"box": 3, "sphere": 1, "cylinder": 2, "capsule": 2, "mesh": 1}
#: Longer gaps between poses are not interpolated.
_GAP_NS = 200_000_000

_Length = Annotated[int | float, Valid("a number above 0", lambda value: value > 0)]


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A convex solid, in metres in the object's frame.

    Attributes:
        size: half edges of a box; radius of a sphere; radius and half length of a cylinder or
            capsule, along z; scale of a mesh, whose convex hull counts.
        rpy: its rotation, extrinsic x, y, z, rad.
        mesh: path of an STL or OBJ file.
    """

    shape: Shape
    size: tuple[_Length, ...]
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rpy: tuple[float, float, float] = (0.0, 0.0, 0.0)
    mesh: str | None = None

    def __post_init__(self) -> None:
        if len(self.size) != _SIZES[self.shape]:
            raise SchemaError(f"size of a {self.shape}: {_SIZES[self.shape]} numbers.")
        if (self.mesh is None) == (self.shape == "mesh"):
            raise SchemaError("`mesh` is the file of a part of shape mesh, and of no other.")


@dataclass(frozen=True, slots=True, eq=False)
class TrackedObject:
    """A rigid object and its poses; ``friction`` is that of robot fingers on it."""

    name: str
    parts: tuple[ObjectPart, ...]
    mass_kg: float
    friction: float
    timestamps_ns: Int[np.ndarray, "N"]
    T_frame_object: Float[np.ndarray, "N 4 4"]

    def at(self, times_ns: TimestampsNs) -> Float[np.ndarray, "T 4 4"]:
        """Return the poses at other times of the same clock, NaN where none is near."""
        known = self.timestamps_ns
        after = np.clip(np.searchsorted(known, times_ns), 0, len(known) - 1)
        before = np.maximum(np.where(known[after] > times_ns, after - 1, after), 0)
        step = np.maximum(known[after] - known[before], 1)
        share = np.clip((times_ns - known[before]) / step, 0.0, 1.0)
        a, b = self.T_frame_object[before], self.T_frame_object[after]
        turn = rotations.slerp(a[:, :3, :3], b[:, :3, :3], share)
        poses = frames.rigid(turn, a[:, :3, 3] + share[:, None] * (b[:, :3, 3] - a[:, :3, 3]))
        far = np.minimum(np.abs(times_ns - known[before]), np.abs(times_ns - known[after]))
        poses[(far > _GAP_NS / 2) | (step > _GAP_NS)] = np.nan
        return poses


@dataclass(frozen=True, slots=True, eq=False)
class ObjectTrack:
    """The tracked objects of a recording; ``up``: unit vector against gravity, in ``frame``.

    The camera frame is that of a camera at rest.
    """

    frame: Literal["camera", "world"]
    up: Float[np.ndarray, "3"]
    objects: tuple[TrackedObject, ...]


GraspFault = Literal["pushed away", "not touched", "not lifted", "dropped", "turned", "unstable"]


@dataclass(frozen=True, slots=True)
class GraspReport:
    """A human grasp and what the simulated robot makes of it.

    Attributes:
        first, last: frames in which the human moves the object.
        lifted, held: off its support with the hand; and not back on it before the human's is.
        position_error_m, angle_error_deg: of the object's pose at ``last``.
        slip_m: way of the object in the hand since it was lifted.
        penetration_m: deepest of hand and object.
        force_n: median sum of the normal forces on the object while it is lifted.
        fault: why the grasp fails; None: it holds within 30 mm and 30 degrees.
    """

    object: str
    side: Side
    first: int
    last: int
    lifted: bool
    held: bool
    position_error_m: float
    angle_error_deg: float
    slip_m: float
    penetration_m: float
    force_n: float
    fault: GraspFault | None
