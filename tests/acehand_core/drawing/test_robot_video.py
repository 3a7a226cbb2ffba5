"""The robot in the person's place: masks, backgrounds and order against rendered, drawn truth."""

import dataclasses
import json

import cv2
import numpy as np
import pytest

import acehand_core as ah
from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.rendering import pose_clip
from acehand_core.cli.retarget import main
from acehand_core.drawing.background import DOUBTFUL, LIT, Background, blended
from acehand_core.drawing.robot_video import (
    GUESSED,
    KEPT,
    ROBOT,
    SEEN,
    Eraser,
    RobotPictures,
    over,
    seen_depth,
)
from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.geometry.cameras import Camera
from acehand_core.lerobot.columns import ROBOT_KEYS
from acehand_core.motion import Depth
from acehand_core.recordings.lerobot_video import open_episode
from benchmarks import robot_video as benchmark
from helpers.example_video import EXAMPLE, TRUTH
from helpers.lerobot_samples import check_every_frame
from helpers.retarget_samples import motion_of, moving_hands
from retarget import load_robot, retarget

FPS = 30.0


class Frames(list):
    def read(self, start, stop):
        yield from self[start:stop]

    def at(self, index):
        return self[index]


@pytest.fixture(scope="module")
def wall():
    """A wall with features of all sizes."""
    rng = np.random.default_rng(3)
    wall = np.zeros((400, 600, 3), np.float32)
    for size in (4, 16, 64):
        noise = rng.uniform(0, 1, (400 // size + 1, 600 // size + 1, 3)).astype(np.float32)
        wall += cv2.resize(noise, (600, 400), interpolation=cv2.INTER_CUBIC)
    return (255 * (wall - wall.min()) / np.ptp(wall)).astype(np.uint8)


def moving_frames(wall, count=91, moves=True):
    """Pictures of the wall by a camera that moves whole pixels, behind a red square; its holes."""
    frames, clean, holes = Frames(), [], []
    for k in range(count):
        x, y = (k // 2, k // 4) if moves else (40, 30)
        picture = wall[y : y + 240, x : x + 320].copy()
        hole = np.zeros((240, 320), bool)
        left = 40 + 2 * k if moves else 100
        hole[80:160, left : left + 60] = True
        clean.append(picture.copy())
        picture[hole] = (255, 0, 0)
        frames.append(picture)
        holes.append(hole)
    return frames, clean, holes


def background_of(frames, holes):
    return Background(frames, lambda _, k: np.where(holes[k], 0, LIT).astype(np.uint8), FPS)


def test_other_frames_show_what_is_hidden(wall):
    frames, clean, holes = moving_frames(wall)
    background = background_of(frames, holes)
    for k in (0, 40, 90):
        filled = background.fill(frames[k], holes[k], k)
        assert not filled.unseen.any()
        off = np.abs(filled.image.astype(int) - clean[k])
        assert np.array_equal(filled.image[~holes[k]], clean[k][~holes[k]])
        assert np.percentile(off[holes[k]], 95) < 25 and np.median(off[holes[k]]) < 6


def test_what_no_frame_shows_is_smooth_and_marked(wall):
    frames, _, holes = moving_frames(wall, 31, moves=False)
    filled = background_of(frames, holes).fill(frames[0], holes[0], 0)
    assert np.array_equal(filled.unseen, holes[0])
    assert not (filled.image == (255, 0, 0)).all(axis=-1).any()


def test_a_doubtful_view_is_a_last_resort(wall):
    frames, clean, holes = moving_frames(wall, 61, moves=False)
    inside = holes[0]
    for k in (15, 30):
        frames[k][inside] = (0, 255, 0)  # somebody whom no mask knows
    frames[60] = clean[60]
    holes[15] = holes[30] = holes[60] = np.zeros_like(inside)

    def clear_of(_, k):
        clear = np.where(holes[k], 0, LIT).astype(np.uint8)
        if k in (15, 30):
            clear[:] = DOUBTFUL
        return clear

    # Far from what is masked in its own frame, the last is certain.
    filled = Background(frames, clear_of, FPS).fill(frames[0], inside, 0)
    assert np.abs(filled.image.astype(int) - clean[0])[inside].mean() < 2


def test_blending_continues_a_slope():
    slope = np.tile(np.linspace(20, 220, 64, dtype=np.float32)[:, None, None], (1, 64, 3))
    hole = np.zeros((64, 64), bool)
    hole[24:40, 24:40] = True
    image = slope.astype(np.uint8)
    image[hole] = 0
    assert np.abs(blended(image, hole).astype(int) - slope)[hole].max() < 25


@pytest.fixture(scope="module")
def clip():
    """A rendered clip, its true hands, and the truth of its pictures."""
    pytest.importorskip("mujoco")
    episode = make_episode(5300, 2, SynthOptions(frames=61))
    posed = pose_clip(episode.script, Camera.nominal(*benchmark.SIZE, 80), episode.appearance)
    every = slice(20, 61, 4)
    posed = dataclasses.replace(
        benchmark.without_shadows(posed),
        moments=posed.moments[every],
        truth=posed.truth.at(np.arange(61)[every], posed.truth.timestamps_ns[every], FPS / 4),
        script=dataclasses.replace(posed.script, fps=FPS / 4),
    )
    try:
        recording, truth = benchmark.rendered(posed)
    except MissingDependencyError as error:
        pytest.skip(f"no OpenGL here: {error}")
    return recording, posed.truth, truth


def test_people_are_erased(clip):
    recording, motion, truth = clip
    eraser = Eraser(recording, motion)
    shares, ratios = [], []
    for frame, image in enumerate(truth["with"]):
        person, clean = truth["person"][frame], truth["without"][frame]
        if person.mean() < 0.01:
            continue
        erased = eraser.erase(image, frame)
        shares.append((erased.person & person).sum() / (erased.person | person).sum())
        assert (erased.kinds[person] == KEPT).mean() < 0.02
        kept = erased.kinds == KEPT
        assert np.array_equal(erased.image[kept], image[kept])
        seen = erased.kinds == SEEN
        if seen.sum() > 500:
            ratios.append(benchmark.psnr(erased.image, clean, seen))
    assert len(shares) > 5 and np.median(shares) > 0.9 and np.median(ratios) > 20


def test_what_is_nearer_hides_the_robot(clip):
    recording, motion, _ = clip
    robot = load_robot("inspire")
    trajectory = retarget(motion, robot)
    camera, nothing = recording.camera, np.zeros(benchmark.SIZE[::-1], bool)
    frame = int(np.argmax(trajectory.active.any(axis=1)))

    def cover(metres, front=nothing):
        depth = None
        if metres:
            picture = np.full(benchmark.SIZE[::-1], metres, np.float32)
            pictures = Frames([picture] * len(recording))
            depth = Depth(pictures, recording.timestamps_ns, camera, np.eye(4))
        deep = dataclasses.replace(recording, depth=depth)
        with RobotPictures(deep, motion, trajectory, robot) as shown:
            layer = shown.layer(frame, nothing, front)
        return over(np.zeros((*nothing.shape, 3), np.uint8), layer).any(axis=-1).sum()

    whole = cover(None)
    assert whole > 300 and cover(5.0) == whole and cover(0.05) == 0
    half = nothing.copy()
    half[:, : benchmark.SIZE[0] // 2] = True
    assert cover(None, ~nothing) == 0 and cover(None, half) < whole


def test_depth_of_another_camera_moves_with_its_distance():
    camera = Camera("pinhole", 80, 60, 100.0, 100.0, 40.0, 30.0)
    plane = np.full((60, 80), 2.0, np.float32)
    plane[20:30, 50:60] = 1.0
    pose = np.eye(4)
    pose[0, 3] = 0.1  # 0.1 m to the right: 10 px to the right at 1 m, 5 at 2 m
    depth = Depth(Frames([plane]), np.array([0]), camera, pose)
    seen = seen_depth(depth, 0, camera)
    assert (seen[22:28, 62:68] == 1).all() and (seen[22:28, 30:54] == 2).all()
    assert np.isinf(seen[:, :4]).all()


def run(*arguments):
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    pytest.importorskip("mujoco")
    folder = tmp_path_factory.mktemp("robot")
    truth, hands = ah.read_hand_motion(TRUTH), folder / "hands.parquet"
    first = truth.at(np.arange(15), truth.timestamps_ns[:15], truth.fps)
    ah.write_hand_motion(first, hands)
    code = run(EXAMPLE, "--tracker", hands, "--output", folder / "out", "--duration", "0.5",
               "--robot-video", "--robot-alone", "--robot-mask", "--no-overlay")  # fmt: skip
    assert code == 0
    return folder / "out"


def pictures(dataset, key):
    return list(open_episode(dataset / "episode_000000", key).frames.read(0, 15))


def test_the_dataset_has_the_robot(dataset):
    assert check_every_frame(dataset) == []
    features = json.loads((dataset / "meta/info.json").read_text())["features"]
    assert {key: features[key]["shape"] for key in ROBOT_KEYS} == {
        key: [480, 640, 3] for key in ROBOT_KEYS
    }
    scene, alone, masks = (pictures(dataset, key) for key in ROBOT_KEYS)
    for source, picture, robot, mask in zip(
        pictures(dataset, "observation.images.ego"), scene, alone, masks, strict=True
    ):
        # Lossy: within a few of the four values.
        values = np.array([KEPT, SEEN, GUESSED, ROBOT])
        off = np.abs(mask[..., 0].astype(int)[..., None] - values)
        kinds = values[off.argmin(axis=-1)]
        still = cv2.erode((kinds == KEPT).astype(np.uint8), np.ones((9, 9))) > 0
        shown = cv2.erode((kinds == ROBOT).astype(np.uint8), np.ones((9, 9))) > 0
        assert shown.sum() > 1000 and still.mean() > 0.5
        assert np.abs(picture.astype(int) - source)[still].mean() < 4
        assert np.abs(picture.astype(int) - robot)[shown].mean() < 4


def test_the_robot_can_be_appended_only_where_it_is(dataset, capsys):
    hands = dataset.parent / "hands.parquet"
    code = run(EXAMPLE, "--tracker", hands, "--output", dataset, "--duration", "0.5", "--append")
    assert code != 0 and "observation.images.robot" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--robot-video", "--robot-size", "31x20"], "--robot-size 31x20"),
        (["--robot-size", "32x20"], "--robot-mask"),
        (["--robot-video"], "--robot-video"),
    ],
)
def test_what_cannot_be_drawn_is_refused(flags, named, tmp_path, capsys):
    hands = tmp_path / "hands.parquet"
    ah.write_hand_motion(motion_of(moving_hands(12)), hands)
    code = run(hands, "--output", tmp_path / "out", *flags)
    assert code != 0 and named in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_missing_opengl_is_found_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "off")
    code = run(EXAMPLE, "--output", tmp_path / "out", "--robot-video")
    printed = capsys.readouterr().err
    assert code != 0 and "OpenGL" in printed and "120 frames" not in printed
    assert not any(tmp_path.iterdir())


def test_python_callers_name_the_videos(clip, tmp_path):
    recording, motion, _ = clip
    trajectory = retarget(motion, load_robot("inspire"))
    short = dataclasses.replace(recording, fps=round(recording.fps))
    with pytest.raises(InputError), ah.Dataset.open(tmp_path / "a", fps=8) as dataset:
        dataset.add(short, motion, dataclasses.replace(trajectory, T_frame_base=None),
                    robot_videos=ROBOT_KEYS[:1])  # fmt: skip
