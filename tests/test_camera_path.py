"""Camera poses: tracks made of known points by arithmetic, and one camera in a drawn room."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from acehand_core.camera_motion import (
    CameraPath,
    estimate_path,
    estimate_rotations,
    gravity_aligned,
    metric_scale,
    scale_of_two_points,
    scaled,
)
from acehand_core.camera_motion.poses import WINDOW, Solved, joined, paths_apart, solve, windows
from acehand_core.camera_motion.recall import Tracks
from acehand_core.errors import InputError
from acehand_core.geometry import frames as rigid
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion
from test_camera_motion import PINHOLE, drawn, swaying

FRAMES = 30
#: Half a pixel of a camera of 344 pixels' focal length.
NOISE = 0.5 / 344


def head(count: int = FRAMES, move: float = 0.15) -> np.ndarray:
    """Return T_world_camera of a head that looks about and moves by ``move`` m each way."""
    t = np.arange(count) / 30
    turns = np.stack([0.1 * np.sin(4 * t), 0.2 * np.sin(2 * t), 0.05 * np.sin(3 * t + 1)], -1)
    T = np.tile(np.eye(4), (count, 1, 1))
    T[:, :3, :3] = rotations.exp(turns)
    way = np.stack([np.sin(3 * t), np.sin(4 * t + 1) - np.sin(1), np.cos(2.5 * t) - 1], -1)
    T[:, :3, 3] = move * way
    return T


def room(count: int = 260, seed: int = 0) -> np.ndarray:
    """Return points ahead, 0.6 to 2.5 m away."""
    rng = np.random.default_rng(seed)
    depth = rng.uniform(0.6, 2.5, count)
    return np.stack([*(rng.uniform(-0.8, 0.8, (2, count)) * depth), depth], axis=1)


def tracks_of(
    T: np.ndarray, points: np.ndarray, moving: np.ndarray | None = None, seed: int = 1
) -> Tracks:
    """Return what the camera sees of the points, every tenth frame a host.

    ``moving``: (T, N, 3) shifts of points that move by themselves.
    """
    rng = np.random.default_rng(seed)
    shifts = np.zeros((len(T), *points.shape)) if moving is None else moving
    at = np.einsum("tji,tnj->tni", T[:, :3, :3], points + shifts - T[:, None, :3, 3])
    ray = at / np.linalg.norm(at, axis=2, keepdims=True)
    shown = ray[..., 2] > np.cos(np.radians(38))
    hosts = np.arange(0, len(T), 10)
    first = np.argmax(shown[hosts], axis=0)
    use = np.flatnonzero(shown[hosts].any(0))
    host = hosts[first[use]]

    seen = shown[:, use]
    seen[host, np.arange(len(use))] = False
    frame, point = np.nonzero(seen)
    bearing = ray[frame, use[point]] + rng.normal(0, NOISE, (len(frame), 3))
    bearing /= np.linalg.norm(bearing, axis=1, keepdims=True)
    known = np.broadcast_to(np.eye(2) / NOISE, (len(frame), 2, 2))
    return Tracks(host, ray[host, use], frame, point, bearing, np.array(known))


def motion_of(T: np.ndarray, off_deg: float = 1.0) -> CameraMotion:
    """Return rotations that drift from the true ones by ``off_deg`` over the recording."""
    drift = np.radians(off_deg) * np.linspace(0, 1, len(T))[:, None] * [0.6, 0.0, 0.8]
    R = T[0, :3, :3].T @ T[:, :3, :3] @ rotations.exp(drift)
    count = len(T)
    return CameraMotion(R, np.full(count, 100), np.zeros(count, bool), np.full(count, 0.002))


# --- poses ---


def test_poses_of_a_head_that_moves_and_turns():
    T = head()
    solved = solve(tracks_of(T, room()), motion_of(T), 30.0)
    assert solved.reason == ""
    assert list(solved.frame) == list(range(FRAMES))
    # Half a pixel over some 200 points a frame; the rotations given are off by a degree.
    degrees, apart = off(solved, T)
    assert degrees < 0.2 and apart < 0.03
    assert (solved.confidence > 0.8).all()

    # The points are where they were put, in the path's world and unit.
    scale, R, t = rigid.similarity_fit(solved.poses[:, :3, 3], T[:, :3, 3])
    made = scale * solved.points @ R.T + t
    nearest = np.linalg.norm(made[:, None] - room()[None], axis=2).min(1)
    assert np.median(nearest) < 0.05


def off(solved: Solved, T: np.ndarray) -> tuple[float, float]:
    """Return the error in degrees and in extents of the true path."""
    true = T[solved.frame]
    made = solved.poses
    return paths_apart(made[:, :3, :3], made[:, :3, 3], true[:, :3, :3], true[:, :3, 3])


def test_a_long_way_needs_frame_after_frame():
    """A camera that only turns, where this begins, is far from one that walks two metres."""
    T = head()
    T[:, 0, 3] += np.linspace(0, 2, FRAMES)
    points = room(600)
    points[:, 0] += np.random.default_rng(2).uniform(-0.5, 2.5, len(points))
    solved = solve(tracks_of(T, points), motion_of(T), 30.0)
    assert solved.reason == ""
    degrees, apart = off(solved, T)
    assert degrees < 0.3 and apart < 0.02


def test_frames_between_those_that_are_solved_at_first():
    """Of 100 frames every second one is a node; the others must be as good."""
    T = head(100)
    solved = solve(tracks_of(T, room(160)), motion_of(T), 30.0)
    assert solved.reason == "" and len(solved.frame) == 100
    for which in (solved.frame % 2 == 0, solved.frame % 2 == 1):
        made, true = solved.poses[which], T[which]
        degrees, apart = paths_apart(
            made[:, :3, :3], made[:, :3, 3], true[:, :3, :3], true[:, :3, 3]
        )
        assert degrees < 0.2 and apart < 0.03


def test_a_head_that_only_turns_has_no_poses():
    T = head(move=0.0)
    solved = solve(tracks_of(T, room()), motion_of(T, 0.3), 30.0)
    assert "hardly moves" in solved.reason and len(solved.frame) == 0


def test_what_moves_by_itself_is_left_out():
    T, points = head(), room()
    shift = np.zeros((FRAMES, len(points), 3))
    shift[:, :50, 0] = 0.3 * np.sin(np.arange(FRAMES) / 5)[:, None]
    solved = solve(tracks_of(T, points, shift), motion_of(T), 30.0)
    assert solved.reason == ""
    degrees, apart = off(solved, T)
    assert degrees < 0.2 and apart < 0.03


def test_a_scene_that_mostly_moves_is_refused():
    T, points = head(), room()
    rng = np.random.default_rng(3)
    shift = np.cumsum(rng.normal(0, 0.02, (FRAMES, len(points), 3)), axis=0)
    shift[:, 130:] = 0
    solved = solve(tracks_of(T, points, shift), motion_of(T), 30.0)
    assert "moves as a scene at rest would" in solved.reason


@pytest.mark.parametrize("count", [0, 20, 45])
def test_too_few_points_are_refused(count):
    T = head()
    solved = solve(tracks_of(T, room(count)), motion_of(T), 30.0)
    assert "too little texture" in solved.reason or "too few points" in solved.reason


def test_points_that_jump_about_are_refused():
    """Sightings anywhere near the true places, as of noise that was followed."""
    T = head()
    tracks = tracks_of(T, room())
    rng = np.random.default_rng(4)
    bearing = tracks.bearing + rng.normal(0, 0.02, tracks.bearing.shape)
    bearing /= np.linalg.norm(bearing, axis=1, keepdims=True)
    assert solve(dataclasses.replace(tracks, bearing=bearing), motion_of(T), 30.0).reason


def test_a_broken_rotation_is_bridged_by_points_seen_again():
    """Of two pieces the later one has a reference of its own; the link says how they lie."""
    T = head()
    motion = motion_of(T, 0.5)
    R, broken = motion.rotations.copy(), np.zeros(FRAMES, bool)
    other = rotations.exp(np.array([0.5, -1.0, 0.3]))
    R[20:], broken[20] = other @ R[20].T @ R[20:], True
    pieces = dataclasses.replace(motion, rotations=R, broken=broken)
    tracks = tracks_of(T, room())
    turn = T[10, :3, :3].T @ T[25, :3, :3] @ rotations.exp(np.array([0.01, 0.0, 0.01]))
    linked = solve(dataclasses.replace(tracks, links=((10, 25, turn),)), pieces, 30.0)
    assert linked.reason == "" and len(linked.frame) == FRAMES
    degrees, apart = off(linked, T)
    assert degrees < 0.2 and apart < 0.03
    alone = solve(tracks, pieces, 30.0)
    assert alone.reason == "too few frames show what the others show"


def test_paths_apart_by_arithmetic():
    """Places 3 and 4 of one axis: extent 0.5; one turned by 2 of 4 degrees each way."""
    R = np.tile(np.eye(3), (2, 1, 1))
    centre = np.array([[3.0, 0, 0], [4.0, 0, 0]])
    turned = rotations.exp(np.radians(2.0) * np.array([[0, 0, 1.0], [0, 0, -1.0]]))
    assert paths_apart(R, centre, R, 7 * centre + 1) == pytest.approx((0, 0), abs=1e-9)
    assert paths_apart(turned, centre, R, centre)[0] == pytest.approx(2.0, abs=1e-6)
    # Across the other path nothing of it fits: all of its extent is left.
    assert paths_apart(R, centre, R, centre[:, [1, 0, 2]])[1] == pytest.approx(1.0)


# --- windows ---


def two_windows(scale: float = 2.5) -> tuple[np.ndarray, list[Solved]]:
    """Return true poses of 80 frames, and exact windows 0..49 and 30..79, each in its world."""
    T, points = head(80), room()
    first = _window(T, points, np.arange(50))
    second = _window(T, points, np.arange(30, 80))
    other = rotations.exp(np.array([0.3, -0.5, 0.2]))
    return T, [first, second.moved(scale, other, np.array([1.0, 2.0, -1.0]))]


def _window(T: np.ndarray, points: np.ndarray, frames: np.ndarray) -> Solved:
    seen = np.tile([frames[0], frames[-1]], (len(points), 1))
    return Solved(frames, T[frames], np.ones(len(frames)), points, seen, "")


def test_windows_are_joined_by_what_both_show():
    T, two = two_windows()
    path = joined(two, 80, PINHOLE)
    assert path.reason == "" and path.known.all()
    assert np.allclose(path.T_world_camera, rigid.inverse(T[0]) @ T, atol=1e-6)
    made = rigid.apply(rigid.inverse(T[0]), room())
    assert np.allclose(path.points, np.tile(made, (2, 1)), atol=1e-6)


def test_windows_that_do_not_fit_are_refused():
    _, two = two_windows()
    poses = two[1].poses.copy()
    poses[:, :3, 3] += np.linspace(0, 2, 50)[:, None]
    two[1] = dataclasses.replace(two[1], poses=poses)
    path = joined(two, 80, PINHOLE)
    assert "from frame 30 on" in path.reason
    assert not path.known.any() and not path.confidence.any()


def test_one_window_that_is_refused_refuses_the_path():
    _, two = two_windows()
    two[1] = dataclasses.replace(two[1], reason="too dark")
    assert joined(two, 80, PINHOLE).reason == "window 2 of 2: too dark"


# --- scale ---

#: A camera that looks down at a plane (z = 2 units of its first frame), 0.4 m to the unit.
METRES = 0.4
LOOKING = Camera.nominal(640, 480, 80.0)


def above_a_plane(count: int = 90, sway: float = 0.3) -> CameraPath:
    t = np.arange(count) / 30
    T = np.tile(np.eye(4), (count, 1, 1))
    T[:, :2, 3] = sway * np.stack([np.sin(3 * t), np.cos(4 * t) - 1], axis=1)
    grid = np.stack(np.meshgrid(np.linspace(-2, 2, 33), np.linspace(-2, 2, 33)), -1).reshape(-1, 2)
    points = np.concatenate([grid, np.full((len(grid), 1), 2.0)], axis=1)
    seen = np.tile([0, count - 1], (len(points), 1))
    return CameraPath(T, np.ones(count), points, seen, LOOKING, "")


def hands(path: CameraPath, where: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return wrists in the camera and landmarks of hands at ``where`` (T, 2, 3), world, units."""
    wrists = rigid.apply(rigid.inverse(path.T_world_camera), where) * METRES
    spread = np.zeros((21, 3))
    spread[9] = 0.1, 0.0, 0.0  # the knuckle, 10 cm from the wrist
    landmarks = LOOKING.project(wrists[:, :, None] + spread)
    return wrists, landmarks


def resting(path: CameraPath, distance: float) -> np.ndarray:
    """Return two hands that rest, and move by 0.3 units between frames 30 and 40 and back."""
    count = len(path.T_world_camera)
    where = np.tile([[-0.4, 0.2, distance], [0.4, 0.2, distance]], (count, 1, 1))
    where[:, :, 1] -= np.interp(np.arange(count), [30, 40, 60, 70], [0, 0.3, 0.3, 0])[:, None]
    return where


def test_the_scale_of_hands_that_work_on_a_table():
    """Wrists 15 % nearer than the table, as rendered hands have them nine times in ten."""
    path = above_a_plane()
    scale = metric_scale(path, *hands(path, resting(path, 1.7)))
    assert scale.reason == ""
    assert scale.value == pytest.approx(METRES, rel=0.05)
    metric = scaled(path, scale)
    assert metric.T_world_camera[20, 0, 3] == pytest.approx(METRES * 0.3 * np.sin(2), rel=0.05)
    assert metric.points[0, 2] == pytest.approx(2 * METRES, rel=0.05)


def test_hands_that_are_carried_along_say_no_scale():
    path = above_a_plane()
    where = path.T_world_camera[:, None, :3, 3] + np.array([[-0.4, 0.2, 0.8], [0.4, 0.2, 0.8]])
    scale = metric_scale(path, *hands(path, where))
    assert "move with the camera" in scale.reason and np.isnan(scale.value)
    with pytest.raises(InputError, match="not known"):
        scaled(path, scale)


def test_hands_that_rest_in_the_air_are_still_right():
    """Half way to the table the distances say 0.5 of it; that they rest decides."""
    path = above_a_plane()
    scale = metric_scale(path, *hands(path, resting(path, 1.0)))
    assert scale.reason == "" and scale.value == pytest.approx(METRES, rel=0.08)


def test_hands_that_never_rest_say_no_scale():
    """Restless hands just above the table: distances would be right, but nothing confirms them."""
    path = above_a_plane(sway=0.05)
    where = resting(path, 1.7)
    t = np.arange(90)[:, None]
    where[:, :, 0] += 0.4 * np.sin(t * np.array([0.5, 0.61]))
    where[:, :, 1] += 0.4 * np.sin(t * np.array([0.43, 0.37]))
    scale = metric_scale(path, *hands(path, where))
    assert "do not rest" in scale.reason


def test_hands_that_are_not_seen_say_no_scale():
    path = above_a_plane()
    wrists, landmarks = hands(path, resting(path, 1.7))
    scale = metric_scale(path, np.full_like(wrists, np.nan), np.full_like(landmarks, np.nan))
    assert "hardly ever near" in scale.reason and scale.hands_used == 0
    with pytest.raises(InputError, match="frames"):
        metric_scale(path, wrists[:5], landmarks[:5])


def test_the_scale_of_two_points_of_the_table():
    """At frame 0 pixels of (-0.5, 0, 2) and (0.7, 0.4, 2): sqrt(1.2^2 + 0.4^2) units apart."""
    path = above_a_plane()
    pixels = LOOKING.project(np.array([[-0.5, 0.0, 2.0], [0.7, 0.4, 2.0]]))
    scale = scale_of_two_points(path, 0, pixels, METRES * np.hypot(1.2, 0.4))
    assert scale.value == pytest.approx(METRES, rel=1e-6)
    for frame, metres, what in ((200, 1.0, "no camera pose"), (0, 0.0, "positive")):
        with pytest.raises(InputError, match=what):
            scale_of_two_points(path, frame, pixels, metres)
    with pytest.raises(InputError, match="texture"):
        few = dataclasses.replace(path, points=path.points[:5], seen=path.seen[:5])
        scale_of_two_points(few, 0, pixels, 1.0)


# --- gravity ---

#: Up in the first camera of a path that looks down by 50 degrees: (0, -cos 50, -sin 50).
UP = np.array([0.0, -np.cos(np.radians(50)), -np.sin(np.radians(50))])


def tilted() -> CameraPath:
    """Return a path whose plane is at right angles to UP, 1.5 units below the camera."""
    path = above_a_plane()
    across = np.stack([np.array([1.0, 0, 0]), np.cross(UP, [1.0, 0, 0])])
    points = path.points[:, :2] @ across - 1.5 * UP
    noise = np.random.default_rng(0).uniform(-1, 1, (150, 3)) * 0.8 + [0, 0, 2.0]
    points = np.concatenate([points, noise])
    return dataclasses.replace(path, points=points, seen=np.tile([0, 89], (len(points), 1)))


def up_of(path: CameraPath) -> np.ndarray:
    """Return up in the first camera."""
    return path.T_world_camera[0, :3, :3].T @ [0.0, 0.0, 1.0]


def test_up_of_a_table():
    path = tilted()
    turned = gravity_aligned(path)
    assert np.degrees(np.arccos(up_of(turned) @ UP)) < 0.5
    heights = turned.points[:1089, 2]
    assert np.allclose(heights, -1.5, atol=0.03)
    # A rigid motion: places keep their distances.
    before, after = path.T_world_camera[:, :3, 3], turned.T_world_camera[:, :3, 3]
    assert np.allclose(np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1))


def test_up_of_the_user_goes_before_all_else():
    given = np.array([0.1, -2.0, -0.3])
    turned = gravity_aligned(tilted(), up=given)
    assert np.allclose(up_of(turned), given / np.linalg.norm(given))
    with pytest.raises(InputError, match="direction"):
        gravity_aligned(tilted(), up=np.zeros(3))


def test_no_table_no_gravity():
    path = tilted()
    cloud = np.random.default_rng(1).uniform(-1, 1, (400, 3)) + np.array([0, 0, 2.0])
    cloud = dataclasses.replace(path, points=cloud, seen=np.tile([0, 89], (400, 1)))
    with pytest.raises(InputError, match="no table"):
        gravity_aligned(cloud)
    with pytest.raises(InputError, match="too dark"):
        gravity_aligned(dataclasses.replace(path, reason="too dark"))


# --- pictures ---


@pytest.mark.slow
def test_a_head_in_a_drawn_room():
    """Walls 1 m away, textured, at up to 1.1 m/s; poses to a degree and 3 % of the way.

    At twice that speed steps are doubtful, and poses are refused.
    """
    R = swaying(60)
    move = 0.15
    t = np.arange(60) / 30
    way = np.stack([np.sin(4 * t), np.sin(6 * t + 1) - np.sin(1), np.cos(3 * t) - 1], -1)
    frames = drawn(PINHOLE, R, move)
    rotation = estimate_rotations(frames, PINHOLE, 30.0)
    told: list[int] = []
    path = estimate_path(
        frames, PINHOLE, 30.0, rotation, progress=lambda stage, done, total: told.append(done)
    )
    assert path.reason == "" and path.known.all() and told == [*range(61)]
    assert np.allclose(path.T_world_camera[0], np.eye(4), atol=1e-9)
    degrees, apart = paths_apart(
        path.T_world_camera[:, :3, :3], path.T_world_camera[:, :3, 3], R, move * way
    )
    assert degrees < 1.0 and apart < 0.03

    hasty = drawn(PINHOLE, R, 2 * move)
    rotation = estimate_rotations(hasty, PINHOLE, 30.0)
    assert rotation.doubtful.any()
    assert "too few frames" in estimate_path(hasty, PINHOLE, 30.0, rotation).reason


@pytest.mark.parametrize("kind", ["none", "one", "two", "black", "still", "turning", "noise"])
def test_pictures_without_poses(kind):
    rng = np.random.default_rng(0)
    frames = {
        "none": lambda: [],
        "one": lambda: drawn(PINHOLE, swaying(1)),
        "two": lambda: drawn(PINHOLE, swaying(2), 0.1),
        "black": lambda: [np.zeros((240, 320), np.uint8)] * 12,
        "still": lambda: drawn(PINHOLE, swaying(1)) * 12,
        "turning": lambda: drawn(PINHOLE, swaying(20)),
        "noise": lambda: list(rng.integers(0, 255, (8, 240, 320), dtype=np.uint8)),
    }[kind]()
    rotation = estimate_rotations(frames, PINHOLE, 30.0)
    path = estimate_path(frames, PINHOLE, 30.0, rotation)
    assert path.reason and len(path.T_world_camera) == len(frames)
    assert not path.known.any() and not path.confidence.any()


def test_frames_and_rotations_must_be_as_many():
    frames = drawn(PINHOLE, swaying(4))
    rotation = estimate_rotations(frames, PINHOLE, 30.0)
    for some, what in ((frames[:3], "3 frames"), (frames * 2, "frame 4")):
        with pytest.raises(InputError, match=what):
            estimate_path(some, PINHOLE, 30.0, rotation)
    with pytest.raises(InputError, match="fps"):
        estimate_path(frames, PINHOLE, 0.0, rotation)


def test_windows_overlap_and_cover_all():
    """Of 400 frames: 160, then from 110 and 220 on, then the rest."""
    frames = iter([(np.zeros((2, 2), np.uint8), None)] * 400)
    starts = [(start, len(kept)) for start, kept in windows(frames)]
    assert WINDOW == 160
    assert starts == [(0, 160), (110, 160), (220, 160), (330, 70)]
