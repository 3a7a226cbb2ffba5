"""Rendered clips: pictures show the truth; the example clip is what the code makes."""

import dataclasses
import re

import numpy as np
import pytest

from acehand_core.ace.synthetic.appearance import Lens
from acehand_core.ace.synthetic.hand_geometry import bend
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.rendering import pose_clip, unoccluded_joints
from acehand_core.ace.synthetic.scene import Moment, Scene
from acehand_core.ace.synthetic.script import CameraKey, HandKey, Script
from acehand_core.errors import CalibrationError, InputError, MissingDependencyError, SchemaError
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.recordings.hands_file import read_hand_motion
from examples.render_clip import CAMERA as EXAMPLE_CAMERA
from examples.render_clip import one_hand, two_hands
from helpers import ROOT
from helpers.grasp_measures import measure, signed_distance

EXAMPLES = ROOT / "examples"
SMALL = Camera("pinhole", 160, 120, 118.0, 112.0, 74.0, 63.0)  # off-centre and not square
SIDES = ("left", "right")


def open_scene(camera=SMALL, props=()):
    try:
        return Scene(camera, props)
    except MissingDependencyError as error:
        pytest.skip(f"no offscreen OpenGL: {error}")


@pytest.fixture(scope="module")
def example():
    return pose_clip(two_hands(0), EXAMPLE_CAMERA)


def test_the_readme_of_the_examples_renders_a_clip():
    (block,) = re.findall(r"```python\n(.*?)```", (EXAMPLES / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(block, names)
    assert next(names["frames"]).shape == (240, 320, 3) and names["truth"].presence[:, 0].all()


@pytest.fixture(scope="module")
def video():
    av = pytest.importorskip("av")
    with av.open(str(EXAMPLES / "two_hands.mp4")) as container:
        rate = container.streams.video[0].average_rate
        images = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    return rate, images


def test_committed_truth_is_what_the_code_makes(example):
    stored = read_hand_motion(EXAMPLES / "two_hands_truth.parquet")
    for field in ("timestamps_ns", "global_orient", "hand_pose", "betas", "translation",
                  "joints_camera", "joints_image", "T_world_camera", "visible"):  # fmt: skip
        assert np.allclose(getattr(stored, field), getattr(example.truth, field), atol=1e-9), field
    assert stored.camera == example.camera
    assert stored.hand_model == "acehand"


def test_committed_video_shows_the_script(example, video):
    rate, images = video
    assert (EXAMPLES / "two_hands.mp4").stat().st_size < 600_000
    assert rate == 30 and len(images) == len(example.truth) == 120
    with open_scene(example.camera, example.script.props) as scene:
        for frame in (0, 60):
            drawn = scene.render(example.moments[frame])
            error = np.mean((drawn.astype(float) - images[frame]) ** 2)
            assert 10 * np.log10(255**2 / error) > 30


@pytest.mark.parametrize("side", SIDES)
def test_truth_fits_together(side):
    truth = pose_clip(one_hand(2, side), SMALL).truth
    slot = SIDES.index(side)
    hand = CapsuleHand()
    joints = hand.joints(side, truth.global_orient[:, slot], truth.hand_pose[:, slot], np.zeros(10))
    assert np.allclose(joints + truth.translation[:, slot, None], truth.joints_camera[:, slot])
    assert np.allclose(SMALL.project(truth.joints_camera[:, slot]), truth.joints_image[:, slot])
    assert (truth.presence[:, slot] == 1).all() and (truth.presence[:, 1 - slot] == 0).all()
    assert np.isnan(truth.joints_camera[:, 1 - slot]).all()
    rotation = truth.T_world_camera[:, :3, :3]
    assert np.allclose(rotation @ rotation.transpose(0, 2, 1), np.eye(3), atol=1e-12)
    assert np.allclose(np.linalg.det(rotation), 1)


@pytest.mark.parametrize("slot", [0, 1])
def test_blocks_stand_on_the_table_then_ride_in_the_grip(example, slot):
    name = f"block_{SIDES[slot]}"
    block = next(p for p in example.script.props if p.name == name)
    hold = next(h for h in example.script.holds if h.prop == name)
    poses = np.stack([m.T_world_prop[name] for m in example.moments])
    times = example.truth.timestamps_ns * 1e-9
    before, after = times < hold.start, times > hold.stop
    for still in (poses[before], poses[after]):
        assert np.allclose(still, still[0])
        assert np.allclose(still[0, 2], [0, 0, 1, block.size[2]], atol=1e-6)  # level, on z = 0
    assert np.linalg.norm(poses[after][0, :3, 3] - poses[0, :3, 3]) > 0.01
    held = (times >= hold.start) & (times <= hold.stop)
    truth = example.truth
    tips = frames.apply(truth.T_world_camera, truth.joints_camera[:, slot])[held][:, [4, 8]]
    local = frames.apply(frames.inverse(poses[held]), tips)
    assert np.ptp(local, axis=0).max() < 1e-6
    # Thumb and index press on opposite faces: keypoints as deep in the finger as its pad is thick.
    gap = np.abs(local[0, :, 0]) - block.size[0]
    assert (gap > 0.004).all() and (gap < 0.011).all()
    assert local[0, 0, 0] * local[0, 1, 0] < 0
    assert (np.abs(local[0, :, 1:]) < block.size[1:]).all()


@pytest.mark.parametrize("number", [0, 1])
def test_the_example_hands_grasp(example, number):
    hold = example.script.holds[number]
    grasp = measure(example, hold.prop, hold.slot, hold.start, hold.stop)
    assert abs(grasp.tips[0]) <= 3 and grasp.finger <= 3 and grasp.opposed > 150
    assert max(grasp.approach, grasp.hold, grasp.release) <= 3
    other = example.script.holds[1 - number]
    props = {prop.name: prop for prop in example.script.props}
    shell = np.stack(np.meshgrid(*[np.linspace(-1, 1, 9)] * 3), -1).reshape(-1, 3)
    for moment in example.moments:  # the blocks do not meet either
        points = frames.apply(moment.T_world_prop[other.prop], shell * props[other.prop].size)
        points = frames.apply(frames.inverse(moment.T_world_prop[hold.prop]), points)
        assert signed_distance(props[hold.prop], points).min() > 0


def still(T_world_camera, **props):
    sleeves = np.broadcast_to(np.eye(4), (2, 4, 4)).copy()
    return Moment(T_world_camera, (None, None), sleeves, props)


def test_pixels_and_depth_agree_with_the_camera_model():
    camera = Camera("pinhole", 640, 480, 470.0, 450.0, 300.0, 252.0)
    T_world_camera = pose_clip(one_hand(0), SMALL).truth.T_world_camera[0]
    dot = Prop("dot", "box", (0.005, 0.005, 0.005), (1.0, 0.0, 0.0))
    with open_scene(camera, (dot,)) as scene:
        for at in ((0.0, 0.06, 0.02), (0.13, 0.05, 0.08), (-0.14, 0.02, 0.05)):
            pose = frames.rigid(np.eye(3), np.array(at))
            image = scene.render(still(T_world_camera, dot=pose)).astype(int)
            # How much of each pixel is red: the silhouette of a cube is symmetric about its centre.
            amount = np.clip((image[..., 0] - image[..., 1] - 35) / 40, 0, 1)
            rows, columns = np.indices(amount.shape)
            centre = np.array([(amount * columns).sum(), (amount * rows).sum()]) / amount.sum()
            point = frames.apply(frames.inverse(T_world_camera), np.array(at))
            assert np.linalg.norm(centre - camera.project(point)) < 0.25
            depth = nearest(scene, still(T_world_camera, dot=pose))
            column, row = np.round(camera.project(point)).astype(int)
            assert depth[row, column] == pytest.approx(point[2] - 0.006, abs=0.003)


def nearest(scene, moment):
    """Depth in metres of the nearest of each pixel's 2 x 2 samples."""
    depth = scene.samples(moment)[1]
    return depth.reshape(depth.shape[0] // 2, 2, -1, 2).min((1, 3))


def test_the_drawn_hand_covers_its_visible_joints():
    clip = pose_clip(one_hand(1, "left"), SMALL)
    with open_scene() as scene:
        for frame in (0, 30, 59):
            moment = clip.moments[frame]
            bare = scene.render(dataclasses.replace(moment, vertices_world=(None, None)))
            image = scene.render(moment)
            columns, rows = np.round(clip.truth.joints_image[frame, 0]).astype(int).T
            changed = np.abs(image.astype(int) - bare).sum(-1)[rows, columns]
            assert (changed > 8).mean() > 0.9
            skin = image[rows, columns].astype(int)
            assert ((skin[:, 0] > skin[:, 2] + 15) | (changed < 8)).mean() > 0.9


def test_an_occluder_hides_joints_for_a_while():
    open_scene().close()

    def share(card):
        clip = pose_clip(dataclasses.replace(one_hand(0, "right", card), fps=7.5), SMALL)
        with open_scene(SMALL, clip.script.props) as scene:
            depth = np.stack([nearest(scene, moment) for moment in clip.moments])
        return unoccluded_joints(Lens.of(SMALL, 1), clip.truth, depth)[:, 1].mean(1)

    free, hidden = share(False), share(True)
    assert (hidden <= free + 1e-9).all()
    assert hidden.min() < 0.35 < 0.8 < free.max()
    assert max(hidden[0], hidden[-1]) > 0.7  # in view before or after


def test_same_seed_same_clip_other_seed_another():
    a, b, c = (pose_clip(two_hands(seed), SMALL).truth.joints_camera for seed in (5, 5, 6))
    assert np.array_equal(a, b)
    assert np.abs(a - c).max() > 0.005
    open_scene().close()
    first, second = (next(pose_clip(one_hand(4), SMALL).frames()) for _ in range(2))
    assert np.array_equal(first, second)


def test_mistakes_are_named():
    eye = CameraKey(0.0, np.zeros(3), np.ones(3))
    key = HandKey(0.0, bend(), np.zeros(3), np.eye(3))
    base = dict(name="bad", duration=1.0, fps=30.0, cameras=(eye,), elbows_world=np.zeros((2, 3)))
    with pytest.raises(SchemaError, match="key times must increase"):
        Script(**base, hands=((key, key), ()))
    with pytest.raises(SchemaError, match="mug"):
        Script(**base, hands=((), ()), T_world_prop={"mug": np.eye(4)})
    with pytest.raises(InputError, match="index_pip_flex"):
        bend(index_pip_flx=3.0)
    with pytest.raises(CalibrationError, match="pinhole"):
        Scene(Camera("kannala_brandt", 160, 120, 90.0, 90.0, 80.0, 60.0, (0.0,) * 4))
