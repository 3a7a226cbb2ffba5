"""Videos that are drawn and encoded side by side; the overlay and the sheet of one pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.drawing.contact_sheet import EpisodePictures
from acehand_core.drawing.overlay import Painter
from acehand_core.errors import OutputError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import TIPS, WRIST
from acehand_core.motion import Recording
from acehand_core.recordings import video_encode as drawn_video
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import ahead, write_video
from helpers.retarget_samples import motion_of, moving_hands
from helpers.video_fixtures import Images, numbered_image, read_number
from retarget.retargeting import retarget_motion
from retarget.robots.robot import load_robot

COUNT = 12


def recording(images: object, size: tuple[int, int] = (96, 64)) -> Recording:
    times = np.arange(COUNT, dtype=np.int64) * 1_000_000_000 // 30
    return Recording("made", None, times, 30.0, *size, images)


def encoder_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("encode", "ahead"))]


def test_pictures_come_in_order_and_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    pictures = (numbered_image(i) for i in range(COUNT))
    write_video(recording(None), pictures, (96, 64), 30.0, path)
    read = [read_number(image) for image in open_video(path).frames.read(0, COUNT)]
    assert read == list(range(COUNT)) and not encoder_threads()


@pytest.mark.parametrize("error", [RuntimeError("no paint left"), KeyboardInterrupt()])
def test_drawing_that_fails_leaves_no_video(tmp_path: Path, error: BaseException) -> None:
    def pictures() -> Iterator[np.ndarray]:
        yield numbered_image(0)
        raise error

    with pytest.raises(type(error)):
        write_video(recording(None), pictures(), (96, 64), 30.0, tmp_path / "v.mp4")
    assert not list(tmp_path.iterdir()) and not encoder_threads()


def test_too_few_pictures_are_no_video(tmp_path: Path) -> None:
    pictures = (numbered_image(i) for i in range(COUNT - 1))
    with pytest.raises(Exception, match="too early"):
        write_video(recording(None), pictures, (96, 64), 30.0, tmp_path / "v.mp4")
    assert not list(tmp_path.iterdir())


def test_drawing_ends_when_encoding_fails(tmp_path: Path, monkeypatch) -> None:
    def full_disk(drawn: Recording, *_: object) -> None:
        next(drawn.frames.read(0, 1))
        raise OutputError("the disk is full")

    monkeypatch.setattr(drawn_video, "encode_video", full_disk)
    drawn = []

    def pictures() -> Iterator[np.ndarray]:
        for i in range(10_000):
            drawn.append(i)
            yield numbered_image(i)

    with pytest.raises(OutputError, match="full"):
        write_video(recording(None), pictures(), (96, 64), 30.0, tmp_path / "v.mp4")
    assert len(drawn) < 20


def test_items_are_made_ahead_in_another_thread_and_not_too_many() -> None:
    made: list[str] = []

    def items() -> Iterator[int]:
        for i in range(9):
            made.append(threading.current_thread().name)
            yield i
        raise ValueError("after the last")

    found = ahead(items())
    assert next(found) == 0 and len(made) <= 9
    with pytest.raises(ValueError, match="after the last"):
        list(found)
    assert len(made) == 9 and threading.current_thread().name not in made
    assert list(ahead(iter([3, 1, 2]))) == [3, 1, 2] and list(ahead(iter([]))) == []

    endless = ahead(iter(int, 1))
    assert [next(endless) for _ in range(50)] == [0] * 50
    endless.close()
    assert not encoder_threads()


class Counted(Images):
    """Frames that can be read once, in order, and say which were."""

    def __init__(self, images: list[np.ndarray]) -> None:
        super().__init__(images)
        self.seen: list[int] = []

    def read(self, start: int, stop: int) -> Iterator[np.ndarray]:
        for index in range(start, stop):
            self.seen.append(index)
            yield self.images[index]

    def at(self, index: int) -> np.ndarray:
        raise AssertionError("decoded once more")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(96, 64), (1280, 720)])
def test_overlay_and_sheet_are_of_one_pass(tmp_path: Path, size: tuple[int, int]) -> None:
    frames = Counted([numbered_image(i, *size) for i in range(COUNT)])
    camera = Camera.nominal(*size)
    motion = replace(motion_of(moving_hands(COUNT), camera=camera), fps=30.0)
    trajectory = retarget_motion(motion, load_robot("inspire"), unchecked=True)
    source = recording(frames, size)
    pictures = EpisodePictures(source, motion, trajectory, None)
    sheet, alone, overlay = (tmp_path / name for name in ("sheet.png", "alone.png", "o.mp4"))
    pictures.write(sheet, overlay, lambda *_: None)
    assert frames.seen == list(range(COUNT))
    video = open_video(overlay)
    assert len(video) == COUNT and video.width == min(size[0], 960)

    # The frames themselves are as they were, and the sheet is the one that is made by itself.
    assert [read_number(image) for image in frames.images] == list(range(COUNT))
    frames.at = lambda index: frames.images[index]  # type: ignore[method-assign]
    pictures.write_contact_sheet(alone)
    both = [cv2.imread(str(path)).astype(int) for path in (sheet, alone)]
    assert np.abs(both[0] - both[1]).max() == 0


@pytest.mark.parametrize("observed", [True, False])
def test_a_hand_is_mixed_with_what_is_below_it(observed: bool) -> None:
    """The mesh has its opacity wherever it is, half of that where the hand was filled in."""
    flags = np.full((1, 2), observed)
    turns = {"global_orient": (1, 2, 3, 3), "hand_pose": (1, 2, 15, 3, 3)}
    motion = motion_of(
        moving_hands(1), camera=Camera.nominal(320, 240), observed=flags, filled=~flags,
        translation=np.full((1, 2, 3), [0.0, 0.0, 0.5]), hand_model="acehand",
        **{name: np.broadcast_to(np.eye(3), shape).copy() for name, shape in turns.items()},
    )  # fmt: skip
    shares = []
    for level in (0, 200):
        image = np.full((240, 320, 3), level, np.uint8)
        Painter(motion, CapsuleHand())._mesh(image, 0, 1)
        shares.append(image.astype(float))
    covered = (shares[0] > 0).any(-1)
    assert 500 < covered.sum() < 40_000
    below = (shares[1] - shares[0])[covered] / 200
    np.testing.assert_allclose(below, 1 - 0.55 * (1.0 if observed else 0.5), atol=0.01)
    assert (shares[1][~covered] == 200).all()


def one_hand(quality: float, sigma_m: float):
    """The right hand, half a metre before a camera of 500 pixels per radian, and its motion."""
    camera = Camera("pinhole", 640, 480, 500.0, 500.0, 319.5, 239.5)
    joints = moving_hands(1, sides=("right",))
    known = np.array([[False, True]])
    return motion_of(
        joints, camera=camera, quality=quality * known.astype(float),
        joint_sigma=np.full((1, 2, 21, 2), [sigma_m, 9.0]),
    ), camera.project(joints[0, 1])  # fmt: skip


def drawn(motion) -> np.ndarray:
    image = np.zeros((480, 640, 3), np.uint8)
    Painter(motion, None)(image, 0)
    return image.astype(int)


def test_circles_are_as_wide_as_joints_may_be_off_across_the_line_of_sight() -> None:
    motion, pixels = one_hand(0.8, 0.012)
    changed = np.argwhere((drawn(motion) != drawn(replace(motion, joint_sigma=None))).any(-1))
    circled = [WRIST, *TIPS]
    away = np.linalg.norm(motion.joints_camera[0, 1, circled], axis=-1)
    radii = 500.0 * 0.012 / away
    assert 9 < radii.min() < radii.max() < 14

    distance = np.linalg.norm(changed[:, None, ::-1] - pixels[circled], axis=-1)
    off = np.abs(distance - radii)
    assert off.min(1).max() < 1.8  # nothing else is drawn
    assert ((off < 1.5).sum(0) > 2 * np.pi * radii / 2).all()  # and of each most of it


def test_a_doubtful_hand_is_dashed_and_has_neither_mesh_nor_circles() -> None:
    known, pixels = one_hand(0.8, 0.012)
    doubtful, _ = one_hand(0.0, 0.012)
    start, end = pixels[[9, 10]]  # no other bone crosses it
    assert np.linalg.norm(end - start) > 40

    def along(motion, share: float) -> bool:
        column, row = np.round(start + share * (end - start)).astype(int)
        return bool(drawn(motion)[row - 1 : row + 2, column - 1 : column + 2].any())

    shares = (0.1, 0.3, 0.5, 0.7, 0.9)
    assert [along(doubtful, share) for share in shares] == [True, False, True, False, True]
    assert all(along(known, share) for share in shares)
    without = drawn(replace(doubtful, joint_sigma=None))
    assert np.array_equal(drawn(doubtful), without)

    turned = {"global_orient": (1, 2, 3, 3), "hand_pose": (1, 2, 15, 3, 3)}
    meshes = replace(
        doubtful, hand_model="acehand", translation=np.full((1, 2, 3), [0.0, 0.0, 0.5]),
        **{name: np.broadcast_to(np.eye(3), shape).copy() for name, shape in turned.items()},
    )  # fmt: skip
    image = np.zeros((480, 640, 3), np.uint8)
    Painter(meshes, CapsuleHand())(image, 0)
    assert np.array_equal(image, without)


def test_captions_say_how_far_fingertips_may_be_off(tmp_path: Path) -> None:
    source = recording(Images([numbered_image(i) for i in range(COUNT)]))
    motion = replace(motion_of(moving_hands(COUNT), camera=Camera.nominal(96, 64)), fps=30.0)
    trajectory = retarget_motion(motion, load_robot("inspire"), unchecked=True)
    sigma = np.full((COUNT, 2, 21, 2), np.nan)
    sigma[..., TIPS, :] = 0.004, 0.021
    motion.quality[:, 0] = 0.0
    sure = EpisodePictures(source, replace(motion, joint_sigma=sigma), trajectory, None)
    assert sure._caption(3) == "3   left doubtful   right 1.00 +-4/21 mm"
    assert EpisodePictures(source, motion, trajectory, None)._caption(3).endswith("right 1.00")

    # The legend is a line of its own above the sheet.
    heights = []
    for name, pictures in (
        ("with.png", sure),
        ("without.png", EpisodePictures(source, motion, trajectory, None)),
    ):
        pictures.write_contact_sheet(tmp_path / name)
        heights.append(len(cv2.imread(str(tmp_path / name))))
    assert heights[0] - heights[1] == 24
