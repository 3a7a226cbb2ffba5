"""Videos that are drawn and encoded side by side; the overlay and the sheet of one pass."""

import threading
from collections.abc import Iterable, Iterator
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
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings import video_encode as drawn_video
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import EncodingCancelledError, ahead, write_video
from helpers.retarget_samples import motion_of, moving_hands
from helpers.video_fixtures import Images, numbered_image, read_number
from retarget.retargeting import retarget_motion
from retarget.robots.robot import load_robot

COUNT = 12


def recording(images: object, size: tuple[int, int] = (96, 64)) -> Recording:
    times = np.arange(COUNT, dtype=np.int64) * 1_000_000_000 // 30
    return Recording("made", None, times, 30.0, *size, images)


def write(path: Path, pictures: Iterable[np.ndarray]) -> None:
    """Encode pictures; no thread outlives it."""
    try:
        write_video(recording(None), pictures, (96, 64), 30.0, path)
    finally:
        names = [t.name for t in threading.enumerate()]
        assert not any(name.startswith(("encode", "ahead")) for name in names)


def retargeted(camera: Camera) -> tuple:
    motion = motion_of(moving_hands(COUNT), camera=camera)
    return motion, retarget_motion(motion, load_robot("inspire"), unchecked=True)


@pytest.mark.parametrize("error", [RuntimeError("no paint left"), KeyboardInterrupt(), None])
def test_drawing_that_fails_leaves_no_video(tmp_path: Path, error: BaseException | None) -> None:
    """Also one of too few pictures."""

    def pictures() -> Iterator[np.ndarray]:
        yield numbered_image(0)
        if error:
            raise error

    with pytest.raises(type(error) if error else EncodingCancelledError):
        write(tmp_path / "v.mp4", pictures())
    assert not list(tmp_path.iterdir())


def test_pictures_come_in_order_and_all_of_them(tmp_path: Path) -> None:
    write(tmp_path / "v.mp4", (numbered_image(i) for i in range(COUNT)))
    frames = open_video(tmp_path / "v.mp4").frames
    assert [read_number(image) for image in frames.read(0, COUNT)] == list(range(COUNT))


def test_drawing_ends_when_encoding_fails(tmp_path: Path, monkeypatch) -> None:
    def full_disk(source: Recording, *_: object) -> None:
        next(source.frames.read(0, 1))
        raise OutputError("the disk is full")

    monkeypatch.setattr(drawn_video, "encode_video", full_disk)
    numbers = iter(range(10_000))
    with pytest.raises(OutputError, match="full"):
        write(tmp_path / "v.mp4", (numbered_image(i) for i in numbers))
    assert next(numbers) < 20


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
    assert not any(t.name.startswith("ahead") for t in threading.enumerate())


@pytest.mark.slow
@pytest.mark.parametrize("size", [(96, 64), (1280, 720)])
def test_overlay_and_sheet_are_of_one_pass(tmp_path: Path, size: tuple[int, int]) -> None:
    frames = Images([numbered_image(i, *size) for i in range(COUNT)])
    motion, trajectory = retargeted(Camera.nominal(*size))
    pictures = EpisodePictures(recording(frames, size), motion, trajectory, None)
    sheet, alone, overlay = (tmp_path / name for name in ("sheet.png", "alone.png", "o.mp4"))
    pictures.write(sheet, overlay, lambda *_: None)
    assert frames.seen == list(range(COUNT))
    video = open_video(overlay)
    assert len(video) == COUNT and video.width == min(size[0], 960)

    # The frames themselves are as they were, and the sheet is the one that is made by itself.
    assert [read_number(image) for image in frames.images] == list(range(COUNT))
    pictures.write_contact_sheet(alone)
    assert np.array_equal(*(cv2.imread(str(path)) for path in (sheet, alone)))


def with_mesh(motion: HandMotion) -> HandMotion:
    """The motion of flat hands, half a metre away."""
    turns = np.broadcast_to(np.eye(3), (1, 2, 16, 3, 3)).copy()
    place = {"hand_model": "acehand", "translation": np.full((1, 2, 3), [0.0, 0.0, 0.5])}
    return replace(motion, **place, global_orient=turns[:, :, 0], hand_pose=turns[:, :, 1:])


@pytest.mark.parametrize("observed", [True, False])
def test_a_hand_is_mixed_with_what_is_below_it(observed: bool) -> None:
    """The mesh has its opacity wherever it is, half of that where the hand was filled in."""
    flags, camera = np.full((1, 2), observed), Camera.nominal(320, 240)
    motion = with_mesh(motion_of(moving_hands(1), camera=camera, observed=flags, filled=~flags))
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


def drawn(motion: HandMotion, hand: CapsuleHand | None = None) -> np.ndarray:
    image = np.zeros((480, 640, 3), np.uint8)
    Painter(motion, hand)(image, 0)
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
    for motion, expected in ((doubtful, [True, False, True, False, True]), (known, [True] * 5)):
        image = drawn(motion)
        at = [
            np.round(start + share * (end - start)).astype(int)
            for share in (0.1, 0.3, 0.5, 0.7, 0.9)
        ]
        assert [image[y - 1 : y + 2, x - 1 : x + 2].any() for x, y in at] == expected
    without = drawn(replace(doubtful, joint_sigma=None))
    assert np.array_equal(drawn(doubtful), without)
    assert np.array_equal(drawn(with_mesh(doubtful), CapsuleHand()), without)


def test_captions_have_the_uncertainty_of_fingertips(tmp_path: Path) -> None:
    source = recording(Images([numbered_image(i) for i in range(COUNT)]))
    motion, trajectory = retargeted(Camera.nominal(96, 64))
    sigma = np.full((COUNT, 2, 21, 2), np.nan)
    sigma[..., TIPS, :] = 0.004, 0.021
    motion.quality[:, 0] = 0.0
    heights = []
    for joint_sigma, caption in (
        (sigma, "3   left doubtful   right 1.00 +-4/21 mm"),
        (None, "3   left doubtful   right 1.00"),
    ):
        shown = replace(motion, joint_sigma=joint_sigma)
        pictures = EpisodePictures(source, shown, trajectory, None)
        assert pictures._caption(3) == caption
        pictures.write_contact_sheet(tmp_path / "sheet.png")
        heights.append(len(cv2.imread(str(tmp_path / "sheet.png"))))
    assert heights[0] - heights[1] == 24  # the legend is a line of its own above the sheet
