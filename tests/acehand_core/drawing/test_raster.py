"""Which triangle is in which pixel: against the definition, pixel by pixel, and against OpenCV."""

import cv2
import numpy as np
import pytest

from acehand_core.drawing.overlay import SeenMesh, seen_mesh
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand

CAMERA = Camera.nominal(120, 90)


def seen(vertices: np.ndarray, faces: np.ndarray, camera: Camera = CAMERA) -> SeenMesh:
    pixels = camera.project(vertices)
    return seen_mesh(vertices, pixels, faces, camera.width, camera.height)


def places_by_definition(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """The mean depth of the nearest triangle over each pixel's centre, infinite where none is.

    A centre is in a triangle when it is on the same side of all three edges.
    """
    pixels = CAMERA.project(vertices)
    across, down = np.meshgrid(np.arange(CAMERA.width), np.arange(CAMERA.height))
    depth = np.full(across.shape, np.inf)
    for face in faces:
        normal = np.cross(
            vertices[face[1]] - vertices[face[0]], vertices[face[2]] - vertices[face[0]]
        )
        if normal @ vertices[face[0]] >= 0:
            continue  # its back
        inside = np.ones(across.shape, bool)
        for a, b in zip(face, np.roll(face, -1), strict=True):
            (x, y), (u, v) = pixels[a], pixels[b] - pixels[a]
            inside &= u * (down - y) - v * (across - x) <= 0
        mean = vertices[face, 2].mean()
        depth = np.where(inside & (mean < depth), mean, depth)
    return depth


def depths(mesh: SeenMesh, camera: Camera = CAMERA) -> np.ndarray:
    whole = np.full((camera.height, camera.width), np.inf)
    whole[mesh.part] = np.append(mesh.depths, np.inf)[mesh.places]
    return whole


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_triangles_cover_the_centres_that_lie_in_them(seed, spread):
    """Small and large ones, some partly outside of the picture."""
    rng = np.random.default_rng(seed)
    middles = rng.normal(0, 0.25, (60, 1, 3)) + np.array([0, 0, 1.2])
    vertices = (middles + rng.normal(0, spread / 2, (60, 3, 3))).reshape(-1, 3)
    vertices[:, 2] = np.maximum(vertices[:, 2], 0.3)
    faces = np.arange(len(vertices)).reshape(-1, 3)
    wanted = places_by_definition(vertices, faces)
    assert 10 < np.isfinite(wanted).sum() < wanted.size
    np.testing.assert_allclose(depths(seen(vertices, faces)), wanted, rtol=1e-6)


@pytest.mark.parametrize("distance", [0.25, 0.6, 1.5])
def test_a_hand_has_no_holes_and_opencvs_outline(distance):
    """OpenCV also paints what a triangle's outline touches, so it may be larger by a pixel."""
    hand, camera = CapsuleHand(), Camera.nominal(640, 480)
    turn = rotations.exp(np.array([0.4, 2.0, -0.7]))
    flat = np.broadcast_to(np.eye(3), (15, 3, 3))
    vertices = hand.vertices("right", turn, flat, np.zeros(10)) + np.array([0.02, 0, distance])
    faces, pixels = hand.faces("right"), camera.project(vertices)
    opencv = np.zeros((480, 640), np.uint8)
    for triangle in (pixels[faces] * 16).round().astype(np.int32):
        cv2.fillConvexPoly(opencv, triangle, 1, cv2.LINE_8, 4)
    own = np.isfinite(depths(seen(vertices, faces, camera), camera)).astype(np.uint8)
    assert own.sum() > 500 and (own <= opencv).all()
    inner = cv2.erode(opencv, np.ones((3, 3), np.uint8))
    assert (own < inner).sum() <= 1, "OpenCV closes the narrowest place between two fingers"


def test_normals_and_order():
    rng = np.random.default_rng(1)
    vertices, faces = rng.normal(0, 0.2, (90, 3)), np.arange(90).reshape(-1, 3)
    vertices[:, 2] += 2
    mesh = seen(vertices, faces)
    assert len(mesh.depths) > 5 and (np.diff(mesh.depths) <= 0).all()
    for corners, normal in zip(mesh.corners.astype(float), mesh.normals, strict=True):
        wanted = np.cross(corners[1] - corners[0], corners[2] - corners[0])
        np.testing.assert_allclose(normal, wanted / np.linalg.norm(wanted), atol=1e-4)
        assert normal @ corners[0] < 0, "it faces the camera"


def test_what_is_not_in_the_picture_is_left_out():
    vertices = np.array([[-1.0, -1, 1], [-1, 1, 1], [1, 0, 1], [0, 0, -1]])
    front, behind = np.array([[0, 1, 2]]), np.array([[0, 1, 3]])
    assert seen(vertices, front).places.shape == (CAMERA.height, CAMERA.width)
    assert seen(vertices, behind).places.size == 0, "a corner behind the camera has no pixel"
    aside = seen(vertices + np.array([50.0, 0, 0]), front)
    assert aside.places.size == 0 and len(aside.depths) == 1
