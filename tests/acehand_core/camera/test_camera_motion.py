"""Rotations of a camera from its pictures, against views of a textured room drawn here by rays."""

import functools

import cv2
import numpy as np
import pytest

from acehand_core.camera.turns import estimate_rotations, hand_mask
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.registry import open_recording
from helpers import ROOT

EXAMPLES = ROOT / "examples"
PINHOLE = Camera.nominal(320, 240, 80.0)
FISHEYE = Camera("kannala_brandt", 320, 240, 150.0, 150.0, 159.5, 119.5, (0.02, -0.01, 0.0, 0.0))
CAMERAS = {"pinhole": PINHOLE, "fisheye": FISHEYE}


def texture(seed: int = 0, size: int = 512) -> np.ndarray:
    """Return a grey picture with detail of several sizes, the same at opposite edges."""
    rng = np.random.default_rng(seed)
    out = np.zeros((size, size))
    for cell, height in ((8, 1.0), (16, 1.0), (32, 1.0), (64, 0.7)):
        coarse = rng.normal(size=(size // cell, size // cell))
        tiled = np.tile(coarse, (3, 3)).astype(np.float32)
        fine = cv2.resize(tiled, (3 * size, 3 * size), interpolation=cv2.INTER_CUBIC)
        out += height * fine[size : 2 * size, size : 2 * size]
    return np.clip(127 + 38 * out, 0, 255).astype(np.float32)


TEXTURES = [texture(seed) for seed in range(6)]


def view(camera: Camera, R: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return what a camera sees of the inside of a box, -1 to 1 each way. ``R``: R_world_camera.

    ``R`` may be one per row of the picture: a rolling shutter.
    """
    grid = np.stack(np.meshgrid(np.arange(camera.width), np.arange(camera.height)), -1)
    rays = camera.unproject(grid.astype(float))
    rows = np.broadcast_to(R, (camera.height, 3, 3))
    world = np.einsum("hij,hwj->hwi", rows, rays)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = (np.sign(world) - centre) / world
    axis = np.nanargmin(far, axis=-1)
    hit = centre + np.take_along_axis(far, axis[..., None], -1) * world
    out = np.zeros(grid.shape[:2], np.float32)
    for wall in range(6):
        a = wall // 2
        here = (axis == a) & ((world[..., a] > 0) == (wall % 2 == 1))
        at = ((np.delete(hit, a, -1) + 1) * 256).astype(np.float32)
        shown = cv2.remap(TEXTURES[wall], at, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        out[here] = shown[here]
    return np.clip(out, 0, 255).astype(np.uint8)


def swaying(count: int) -> np.ndarray:
    """Return R_world_camera of a head that looks about, up to some 2 degrees a frame."""
    return swaying_at(np.arange(count))


def swaying_at(frame: np.ndarray) -> np.ndarray:
    t = frame / 30
    turns = [0.10 * np.sin(5 * t), 0.45 * np.sin(2.2 * t), 0.06 * np.sin(3 * t + 1)]
    return rotations.exp(np.stack(turns, axis=-1))


def drawn(camera: Camera, R: np.ndarray) -> list[np.ndarray]:
    return [view(camera, r, np.zeros(3)) for r in R]


@functools.cache
def _seen(lens: str, frame: int) -> np.ndarray:
    return view(CAMERAS[lens], swaying_at(np.array([frame]))[0], np.zeros(3))


def seen(count: int, lens: str = "pinhole") -> list[np.ndarray]:
    """Return what a head sees that looks about, drawn once for all tests."""
    return [_seen(lens, frame).copy() for frame in range(count)]


def steps_off(motion: CameraMotion, R: np.ndarray, lag: int = 1) -> np.ndarray:
    """Return the errors of the rotations over ``lag`` frames, degrees."""
    true = np.swapaxes(R[:-lag], 1, 2) @ R[lag:]
    made = np.swapaxes(motion.rotations[:-lag], 1, 2) @ motion.rotations[lag:]
    return np.degrees(rotations.angle_between(made, true))


def off_degrees(motion: CameraMotion, R: np.ndarray, lag: int) -> float:
    return float(np.sqrt((steps_off(motion, R, lag) ** 2).mean()))


@pytest.mark.parametrize("lens", CAMERAS)
def test_a_head_that_only_turns(lens):
    R = swaying(45)
    motion = estimate_rotations(seen(45, lens), CAMERAS[lens])
    assert not motion.broken.any()
    # A slow turn and a slow movement look nearly alike at this size: most of the error is that.
    assert off_degrees(motion, R, 1) < 0.1 and off_degrees(motion, R, 30) < 1.0
    assert np.allclose(motion.rotations[0], np.eye(3))
    # The direction of R_reference_camera: what the camera's axis is in the first frame.
    axis = R[0].T @ R[40] @ [0, 0, 1]
    assert np.allclose(motion.rotations[40] @ [0, 0, 1], axis, atol=0.03)


@pytest.mark.parametrize("lens", CAMERAS)
def test_a_head_that_also_moves(lens):
    """It slides 10 cm before a wall 1 m away: a turn by as much as what is seen of it shifts.

    In the middle that is atan(0.1), and 40 degrees to its side cos(40 deg) ** 2 of that.
    """
    slid = np.linspace(0, 0.1, 20)
    frames = [view(CAMERAS[lens], np.eye(3), np.array([x, 0, 0])) for x in slid]
    motion = estimate_rotations(frames, CAMERAS[lens])
    assert not motion.broken.any()
    most = np.arctan(0.1)
    pitch, yaw, roll = rotations.log(motion.rotations[-1])
    assert np.cos(np.radians(40)) ** 2 * most < yaw < most
    assert abs(pitch) < 0.02 * most and abs(roll) < 0.02 * most


def test_a_still_camera_does_not_turn():
    rng = np.random.default_rng(0)
    picture = view(PINHOLE, np.eye(3), np.zeros(3)).astype(float)
    noisy = [np.clip(picture + rng.normal(0, 4, picture.shape), 0, 255).astype(np.uint8)
             for _ in range(20)]  # fmt: skip
    motion = estimate_rotations(noisy, PINHOLE)
    still = np.broadcast_to(np.eye(3), (20, 3, 3))
    turned = np.degrees(rotations.angle_between(motion.rotations, still))
    assert not motion.broken.any() and turned.max() < 0.05


def test_larger_pictures_are_made_smaller():
    R, large = swaying(12), PINHOLE.rescaled(1280, 960)
    grown = [cv2.resize(f, (1280, 960), interpolation=cv2.INTER_CUBIC) for f in seen(12)]
    rgb = [np.stack([f] * 3, -1) for f in grown]
    motion = estimate_rotations(rgb, large, lambda number: np.zeros((960, 1280), bool))
    assert off_degrees(motion, R, 1) < 0.08


def test_the_example_and_its_sigma():
    """Rendered, with hands that move; the truth is that of the renderer."""
    truth = read_hand_motion(EXAMPLES / "two_hands_truth.parquet")
    frames = open_recording(EXAMPLES / "two_hands.mp4").frames.read(0, 60)
    camera, hands = truth.camera, truth.joints_image
    motion = estimate_rotations(
        frames, camera, lambda t: hand_mask(hands[t], camera.width, camera.height)
    )
    R = truth.T_world_camera[:60, :3, :3]
    assert not motion.broken.any()
    assert off_degrees(motion, R, 1) < 0.16 and off_degrees(motion, R, 30) < 1.4
    share = np.radians(steps_off(motion, R)) / motion.sigma_rad[1:]
    assert 0.5 < np.sqrt((share**2).mean()) < 2.0


def covered(kind: str, frame: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Put words over a picture, or what an undistorted, fisheye or letterboxed one has black.

    With a border the scene is dull: the outline of the border is the strongest edge.
    """
    if kind == "words":
        for row in (30, 225):
            cv2.putText(frame, "REC 12:34:56 CAM 2", (8, row), 0, 0.9, 255, 2)
        return frame
    y, x = np.mgrid[:240, :320]
    border = {
        "bars": (y < 32) | (y >= 208),
        "circle": np.hypot(x - 160, y - 120) > 135,
        "undistorted": (np.abs(y - 120) > 105 - 0.001 * (x - 160) ** 2) | (np.abs(x - 160) > 145),
    }[kind]
    dull = 90 + 0.12 * (frame.astype(float) - 127) + rng.normal(0, 1, frame.shape)
    return np.where(border, 0, dull).round().astype(np.uint8)


@pytest.mark.parametrize("kind", ["bars", "circle", "undistorted", "words"])
def test_borders_and_words_are_no_scene_that_stands_still(kind):
    R, rng = swaying(40), np.random.default_rng(3)
    motion = estimate_rotations([covered(kind, f, rng) for f in seen(40)], PINHOLE)
    assert not motion.broken.any() and off_degrees(motion, R, 1) < 0.2


def test_a_picture_that_hands_nearly_fill():
    """A hand covers all but two strips at the sides, and waves: it turns the result if unmasked."""
    R, hand, frames = swaying(30), np.zeros((240, 320), bool), seen(30)
    hand[:, 40:280] = True
    for t, frame in enumerate(frames):
        waving = np.roll(TEXTURES[4], (5 * t, 3 * t), (0, 1))[:240, :320]
        frame[hand] = waving[hand]
    motion = estimate_rotations(frames, PINHOLE, lambda number: hand)
    assert (steps_off(motion, R)[~motion.doubtful[1:]] < 1.0).all()
    assert np.median(steps_off(estimate_rotations(frames, PINHOLE), R)) > 1.0


def test_black_frames_a_cut_and_what_lies_between():
    R = swaying(40)
    other = rotations.exp(np.array([0.0, 2.6, 0.3])) @ R[:10]
    frames = seen(40) + drawn(PINHOLE, other)
    frames[12:20] = [np.zeros_like(frames[0])] * 8
    motion = estimate_rotations(frames, PINHOLE)
    assert np.flatnonzero(motion.broken).tolist() == [*range(12, 21), 40]
    assert motion.piece.tolist() == [0] * 12 + list(range(1, 9)) + [9] * 20 + [10] * 10
    assert motion.between(3, 30) is None
    wrong = rotations.angle_between(motion.between(2, 11)[None], (R[2].T @ R[11])[None])
    assert np.degrees(wrong[0]) < 1.0
    assert np.allclose(motion.rotations[12:21], np.eye(3))


@pytest.mark.parametrize("kind", [0, 128, 255, "masked"])
def test_nothing_to_follow(kind):
    """Pictures of one colour, or masked as a whole."""
    frames = seen(4)
    if kind != "masked":
        frames = [np.full((240, 320), kind, np.uint8)] * 4
    mask = np.full((240, 320), kind == "masked")
    motion = estimate_rotations(frames, PINHOLE, lambda number: mask)
    assert motion.broken.tolist() == [False, True, True, True]
    assert np.allclose(motion.rotations, np.eye(3))


@pytest.mark.parametrize(
    ("count", "step", "most"), [(0, 1, 0), (1, 1, 0), (2, 1, 0.3), (3, 1, 0.3), (10, 6, 0.5)]
)
def test_few_pictures(count, step, most):
    """Short recordings, and five frames a second."""
    R = swaying(60)[::step][:count]
    motion = estimate_rotations(drawn(PINHOLE, R), PINHOLE)
    assert len(motion) == count == len(motion.broken) and not motion.broken.any()
    assert all(off_degrees(motion, R, lag) < most for lag in range(1, min(count, 3)))


def test_a_rolling_shutter_shears_and_is_no_error():
    """Rows are exposed over 25 ms of the 33 between frames; the middle row is the frame's time."""
    rows = 0.75 * (np.arange(240) / 240 - 0.5)
    fine = np.stack([swaying_at(number + rows) for number in range(20)])
    motion = estimate_rotations(drawn(PINHOLE, fine), PINHOLE)
    assert not motion.broken.any() and off_degrees(motion, swaying(20), 1) < 0.15


def test_a_fast_turn():
    """21 degrees a frame at the fastest, as a head that looks back."""
    share = np.clip((np.arange(24) - 5) / 12, 0, 1)
    eased = share**3 * (10 - 15 * share + 6 * share**2)
    R = rotations.exp(np.outer(eased * np.radians(130), [0, 1, 0]))
    motion = estimate_rotations(drawn(PINHOLE, R), PINHOLE)
    doubtful = motion.doubtful[1:]
    # What may be lost is flagged; nothing slow is.
    assert (steps_off(motion, R)[~doubtful] < 1.0).all()
    assert not doubtful[np.degrees(rotations.angle_between(R[:-1], R[1:])) < 8].any()


def test_pictures_and_masks_of_another_size_are_refused():
    wrong, right = np.zeros((200, 320), np.uint8), np.zeros((240, 320), np.uint8)
    for picture, mask, message in (
        (wrong, None, r"frame 0: uint8 of shape \(200, 320\).*240 rows and 320"),
        (right, wrong > 0, r"mask of frame 0: shape \(200, 320\)"),
        (right.astype(float), None, "float64"),
    ):
        with pytest.raises(InputError, match=message):
            estimate_rotations([picture], PINHOLE, lambda number, mask=mask: mask)
    with pytest.raises(SchemaError, match="frame 0"):
        CameraMotion(np.eye(3)[None], np.ones(1, bool), np.zeros(1))


def test_a_mask_covers_hand_and_forearm():
    # A hand that points up, wrist at (100, 150), fingertips at y = 70; its arm comes from below.
    rows = np.array([150, 140, 130, 125, 120, 115, 95, 85, 75, 112, 92, 80, 70, 114, 94, 84, 76,
                     118, 102, 94, 88], float)  # fmt: skip
    columns = np.array([100, 88, 80, 76, 73, 92, 90, 89, 88, 99, 99, 99, 99, 106, 107, 107, 108,
                        112, 115, 116, 117], float)  # fmt: skip
    hand = np.stack([columns, rows], -1)
    mask = hand_mask(hand[None], 320, 240)
    assert mask.shape == (240, 320)
    at = hand.round().astype(int)
    assert mask[at[:, 1], at[:, 0]].all()
    assert mask[200, 100] and mask[230, 100]  # the forearm
    assert not mask[100, 180] and not mask[20, 100] and not mask[200, 250]
    absent = np.full((1, 21, 2), np.nan)
    assert not hand_mask(absent, 320, 240).any()
    assert not hand_mask(np.zeros((0, 21, 2)), 320, 240).any()
    assert not hand_mask(hand[None] + 400, 320, 240).any()
    partly = hand.copy()
    partly[5:] += 1e7
    assert hand_mask(partly[None], 320, 240).shape == (240, 320)
