"""Rotations as matrices, vectors, wxyz quaternions, 6D and roll-pitch-yaw, with batch axes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from acehand_core.types import PointsCamera, Quaternion, Rotation, Rotation6D, RotationVector


def unit(vectors: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n 3"]:
    """Return unit vectors; NaN for zero vectors."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def cross(a: Float[np.ndarray, "*#n 3"], b: Float[np.ndarray, "*#n 3"]) -> np.ndarray:
    """Return the cross product over the last axis, three times as fast as NumPy's."""
    out = np.empty(np.broadcast_shapes(a.shape, b.shape))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        out[..., i] = a[..., j] * b[..., k] - a[..., k] * b[..., j]
    return out


def skew(vector: RotationVector) -> Rotation:
    """Return the matrix of the cross product, ``skew(a) @ b == cross(a, b)``."""
    matrix = np.zeros((*vector.shape[:-1], 3, 3), vector.dtype)
    x, y, z = np.moveaxis(vector, -1, 0)
    matrix[..., 0, 1], matrix[..., 0, 2] = -z, y
    matrix[..., 1, 0], matrix[..., 1, 2] = z, -x
    matrix[..., 2, 0], matrix[..., 2, 1] = -y, x
    return matrix


def exp(vector: RotationVector) -> Rotation:
    """Return the rotation about ``vector`` by its length in radians (Rodrigues)."""
    angle = np.linalg.norm(vector, axis=-1)[..., None, None]
    K = skew(vector)
    eye = np.eye(3, dtype=vector.dtype)
    # sin(a)/a and (1 - cos(a))/a^2, both exact at zero.
    return eye + np.sinc(angle / np.pi) * K + 0.5 * np.sinc(angle / (2 * np.pi)) ** 2 * (K @ K)


def left_jacobian(vector: RotationVector) -> Float[np.ndarray, "*batch 3 3"]:
    """Return J with ``exp(v + d) ~ exp(J d) exp(v)``."""
    angle = np.linalg.norm(vector, axis=-1)[..., None, None]
    small = angle < 1e-4
    safe = np.where(small, 1.0, angle)
    # Near zero a - sin(a) cancels.
    c = np.where(small, 1 / 6, (safe - np.sin(safe)) / safe**3)
    K = skew(vector)
    eye = np.eye(3, dtype=vector.dtype)
    return eye + 0.5 * np.sinc(angle / (2 * np.pi)) ** 2 * K + c * (K @ K)


def log(rotation: Rotation) -> RotationVector:
    """Return the rotation vector of length at most pi; exact at 0 and stable at pi."""
    q = to_quaternion(rotation)
    q = np.where(q[..., :1] < 0, -q, q)
    sine = np.linalg.norm(q[..., 1:], axis=-1, keepdims=True)
    angle = 2 * np.arctan2(sine, q[..., :1])
    scale = np.where(sine < 1e-9, 2.0, angle / np.where(sine < 1e-9, 1.0, sine))
    return scale * q[..., 1:]


def slerp(a: Rotation, b: Rotation, share: np.ndarray) -> Rotation:
    """Return the rotation at ``share`` (*batch) of the shortest turn from ``a`` to ``b``."""
    turn = log(np.swapaxes(a, -1, -2) @ b)
    return a @ exp(share[..., None] * turn)


def to_quaternion(rotation: Rotation) -> Quaternion:
    """Return the wxyz unit quaternion with the largest component positive (Shepperd's method)."""
    m = rotation
    trace = m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2]
    diagonal = np.stack([trace, m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]], axis=-1)
    four = np.empty((*m.shape[:-2], 4, 4), m.dtype)  # 4 q q^T
    for i in range(4):
        four[..., i, i] = 1 + 2 * diagonal[..., i] - trace if i else 1 + trace
    four[..., 0, 1] = four[..., 1, 0] = m[..., 2, 1] - m[..., 1, 2]
    four[..., 0, 2] = four[..., 2, 0] = m[..., 0, 2] - m[..., 2, 0]
    four[..., 0, 3] = four[..., 3, 0] = m[..., 1, 0] - m[..., 0, 1]
    four[..., 1, 2] = four[..., 2, 1] = m[..., 0, 1] + m[..., 1, 0]
    four[..., 1, 3] = four[..., 3, 1] = m[..., 0, 2] + m[..., 2, 0]
    four[..., 2, 3] = four[..., 3, 2] = m[..., 1, 2] + m[..., 2, 1]
    best = np.argmax(diagonal, axis=-1)
    row = np.take_along_axis(four, best[..., None, None], axis=-2)[..., 0, :]
    return row / np.linalg.norm(row, axis=-1, keepdims=True)


def from_quaternion(quaternion: Quaternion) -> Rotation:
    """Return the rotation of a wxyz quaternion of any non-zero length."""
    q = quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True)
    w, x, y, z = np.moveaxis(q, -1, 0)
    matrix = np.empty((*q.shape[:-1], 3, 3), q.dtype)
    matrix[..., 0, 0] = 1 - 2 * (y * y + z * z)
    matrix[..., 0, 1] = 2 * (x * y - w * z)
    matrix[..., 0, 2] = 2 * (x * z + w * y)
    matrix[..., 1, 0] = 2 * (x * y + w * z)
    matrix[..., 1, 1] = 1 - 2 * (x * x + z * z)
    matrix[..., 1, 2] = 2 * (y * z - w * x)
    matrix[..., 2, 0] = 2 * (x * z - w * y)
    matrix[..., 2, 1] = 2 * (y * z + w * x)
    matrix[..., 2, 2] = 1 - 2 * (x * x + y * y)
    return matrix


def from_rpy(rpy: RotationVector) -> Rotation:
    """Return the rotation by URDF's roll, pitch, yaw (rad): about fixed x, then y, then z."""
    x, y, z = (exp(axis * rpy[..., i, None]) for i, axis in enumerate(np.eye(3)))
    return z @ y @ x


def to_rpy(rotation: Rotation) -> RotationVector:
    """Return roll, pitch, yaw (rad); yaw is 0 in gimbal lock."""
    pitch = np.arctan2(-rotation[..., 2, 0], np.hypot(rotation[..., 0, 0], rotation[..., 1, 0]))
    locked = np.cos(pitch) < 1e-9
    flipped = np.sign(-rotation[..., 2, 0])
    alone = np.arctan2(flipped * rotation[..., 0, 1], rotation[..., 1, 1])
    roll = np.where(locked, alone, np.arctan2(rotation[..., 2, 1], rotation[..., 2, 2]))
    yaw = np.where(locked, 0.0, np.arctan2(rotation[..., 1, 0], rotation[..., 0, 0]))
    return np.stack([roll, pitch, yaw], axis=-1)


def to_6d(rotation: Rotation) -> Rotation6D:
    """Return the first two columns: r11 r21 r31 r12 r22 r32."""
    return np.concatenate([rotation[..., :, 0], rotation[..., :, 1]], axis=-1)


def from_6d(vector: Rotation6D) -> Rotation:
    """Return the rotation with the Gram-Schmidt basis of ``vector`` as first columns."""
    a, b = vector[..., :3], vector[..., 3:]
    x = a / np.linalg.norm(a, axis=-1, keepdims=True)
    b = b - np.sum(x * b, axis=-1, keepdims=True) * x
    y = b / np.linalg.norm(b, axis=-1, keepdims=True)
    return np.stack([x, y, np.cross(x, y)], axis=-1)


def project_to_rotation(matrix: Rotation) -> Rotation:
    """Return the nearest rotation in the Frobenius norm (polar decomposition)."""
    u, _, vt = np.linalg.svd(matrix)
    sign = np.where(np.linalg.det(u @ vt) < 0, -1.0, 1.0)
    u[..., :, -1] *= sign[..., None]
    return u @ vt


def angle_between(a: Rotation, b: Rotation) -> np.ndarray:
    """Return the geodesic angle in radians between two rotations, shape of the batch."""
    return np.linalg.norm(log(np.swapaxes(a, -1, -2) @ b), axis=-1)


def between(source: PointsCamera, target: PointsCamera) -> Rotation:
    """Return the smallest rotation from unit vector ``source`` to ``target``."""
    # Half turns about the source and about the vector halfway; stable up to opposite vectors.
    half = source + target
    length = np.linalg.norm(half, axis=-1, keepdims=True)
    eye = np.eye(3, dtype=half.dtype)
    across = np.cross(source, np.where(np.abs(source[..., :1]) < 0.9, eye[0], eye[1]))
    across /= np.linalg.norm(across, axis=-1, keepdims=True)
    opposite = length < np.sqrt(np.finfo(half.dtype).eps)
    half = np.where(opposite, across, half / np.where(opposite, 1.0, length))
    return _half_turn(half) @ _half_turn(source)


def _half_turn(axis: np.ndarray) -> np.ndarray:
    return 2 * axis[..., :, None] * axis[..., None, :] - np.eye(3, dtype=axis.dtype)
