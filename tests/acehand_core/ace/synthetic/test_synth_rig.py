"""Rigs and depth cameras: pictures, poses and readings agree with arithmetic, stores keep them."""

import dataclasses
import json

import numpy as np
import pytest

from acehand_core.ace.labelled.clips.media import SENSOR_DEPTH
from acehand_core.ace.labelled.clips.schema import ClipInfo, Mounted
from acehand_core.ace.labelled.clips.store import ClipStore, ClipWriter
from acehand_core.ace.synthetic.appearance import Lens
from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.rendering import render_episode, truth_of
from acehand_core.ace.synthetic.rig import depth_camera, read_depth, rig_of
from acehand_core.ace.synthetic.scene import Moment, Quality, Scene
from acehand_core.cli.main import main as acehand
from acehand_core.errors import MissingDependencyError, SchemaError, VideoError
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.registry import open_recording

PINHOLE = Camera("pinhole", 160, 128, 110.0, 108.0, 77.0, 66.0)
FISHEYE = Camera("kannala_brandt", 160, 128, 62.0, 63.0, 80.0, 62.0, (0.02, -0.004, 0.0, 0.0))
#: Level, half a metre above the table, towards the wall 1.1 m away.
LEVEL = frames.rigid(np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]), np.array([0.0, 0.0, 0.5]))
OPTIONS = SynthOptions(64, 64, frames=5, cameras="pinhole")


@pytest.fixture(scope="module", autouse=True)
def needs_opengl():
    try:
        Scene(Camera("pinhole", 32, 32, 30.0, 30.0, 15.5, 15.5)).close()
    except MissingDependencyError as error:
        pytest.skip(f"no offscreen OpenGL: {error}")


def moment(T_world_camera, **props):
    return Moment(T_world_camera, (None, None), np.stack([np.eye(4)] * 2), props)


def rendered_depth(camera, props=(), **poses):
    half = camera.rescaled(camera.width // 2, camera.height // 2)
    with Scene(half, props, quality=Quality(2, 512)) as scene:  # 2 x 2 samples: each a pixel here
        return scene.samples(moment(LEVEL, **poses))[1]


def many_readings(z, camera, count=60):
    rng = np.random.default_rng(4)
    stack = np.stack([read_depth(z, camera, rng) for _ in range(count)])
    return np.where(stack > 0, stack / 1000, np.nan)


@pytest.mark.parametrize("main", [PINHOLE, FISHEYE], ids=["pinhole", "fisheye"])
@pytest.mark.parametrize("rig", ["stereo", "aria"])
def test_a_dot_is_seen_where_the_poses_say(rig, main):
    """A red dot in front of the clip's camera, drawn by each camera of the rig."""
    dot = Prop("dot", "box", (0.006, 0.006, 0.006), (1.0, 0.0, 0.0))
    views, point = rig_of(rig, main), np.array([0.02, 0.04, 0.45])
    lenses = [Lens.of(view.camera) for view in views.values()]
    pose = frames.rigid(np.eye(3), frames.apply(LEVEL, point))
    others = tuple(lens.drawn for lens in lenses)
    with Scene(Lens.of(main).drawn, (dot,), others=others) as scene:
        for view, lens in zip(views.values(), lenses, strict=True):
            seen = dataclasses.replace(
                moment(LEVEL, dot=pose), T_world_camera=LEVEL @ view.T_camera_view
            )
            image = lens.pixels(lens.bend(scene.samples(seen, lens.drawn)[0])).mean((1, 3))
            amount = np.clip((image[..., 0] - image[..., 1] - 60) / 40, 0, 1)
            rows, columns = np.indices(amount.shape)
            centre = np.array([(amount * columns).sum(), (amount * rows).sum()]) / amount.sum()
            local = frames.apply(frames.inverse(view.T_camera_view), point)
            assert np.linalg.norm(centre - view.camera.project(local)) < 0.4
            if rig == "stereo" and main is PINHOLE:
                disparity = main.project(point)[0] - centre[0]
                assert disparity == pytest.approx(110 * 0.063 / 0.45, abs=0.3)


def test_the_noise_on_a_rendered_wall_grows_with_its_distance_squared():
    z = rendered_depth(PINHOLE)
    wall = np.zeros(z.shape, bool)
    wall[10:60, 10:-10] = True
    assert np.allclose(z[wall], 1.1, atol=1e-3)  # of the scene's wall
    for far in (1.0, 2.0):
        error = many_readings(far * z, PINHOLE) - far * 1.1
        assert np.isfinite(error[:, wall]).all()
        expected = 0.004 * (far * 1.1) ** 2
        assert np.std(error[:, wall]) == pytest.approx(expected, rel=0.06)
        assert abs(np.mean(error[:, wall])) < 0.1 * expected

    # Blurred by sigma s, white noise has a correlation of exp(-d^2 / 4 s^2) at distance d.
    for apart, correlation in ((1, np.exp(-1 / 9)), (6, np.exp(-36 / 9))):
        a, b = error[:, 10:60, 10:-20], error[:, 10:60, 10 + apart : -20 + apart]
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] == pytest.approx(correlation, abs=0.05)
    assert abs(np.corrcoef(error[:-1, wall].ravel(), error[1:, wall].ravel())[0, 1]) < 0.02


def test_a_ball_is_round_with_holes_at_its_rim_and_a_shadow_to_its_left():
    radius, centre = 0.1, np.array([0.0, -0.05, 0.5])
    ball = Prop("ball", "ball", (radius, 0.0, 0.0), (1.0, 0.0, 0.0))
    pose = frames.rigid(np.eye(3), frames.apply(LEVEL, centre))
    z = rendered_depth(PINHOLE, (ball,), ball=pose)

    # Rays meet the sphere at t: |t ray - centre| = radius.
    rays = PINHOLE.all_rays()
    along = rays @ centre
    inner = along**2 - centre @ centre + radius**2
    hit = inner > 0
    t = along - np.sqrt(np.where(hit, inner, np.nan))
    normal = (t[..., None] * rays - centre) / radius
    angle = np.degrees(np.arccos(-(normal * rays).sum(-1)))
    front = hit & (angle < 70)
    assert np.allclose(z[front], (t * rays[..., 2])[front], atol=0.003)

    read = many_readings(z, PINHOLE)
    holes = np.isnan(read).all(0)
    # A window of 5 x 5 pixels flattens a ball: by less than 2 mm where it is not steep.
    assert not holes[front].any()
    flat = hit & (angle < 40)
    assert np.abs(read.mean(0) - z)[flat].max() < 0.002
    assert holes[hit & (angle > 80)].all()
    # On the wall in the ball's row: hidden from an imager 50 mm to the right.
    row = round(PINHOLE.project(centre)[1])
    left = np.flatnonzero(hit[row])[0]
    shadow = 110 * 0.05 * (1 / z[row, left + 2] - 1 / 1.1)
    width = left - np.flatnonzero(~holes[row, :left])[-1] - 1
    assert width == pytest.approx(shadow, abs=2) and width > 3
    right = np.flatnonzero(hit[row])[-1]
    assert not holes[row, right + 3 : right + 10].any()


def test_nothing_is_read_where_there_is_nothing():
    z = np.full((128, 160), 0.5)
    z[:, :20], z[:, 20:40], z[:, 120:] = 0.0, 0.1, 9.0
    read = read_depth(z, PINHOLE, np.random.default_rng(0))
    assert read.dtype == np.uint16
    assert not read[:, :40].any() and not read[:, 123:].any() and read[:, 45:115].all()


def test_the_first_camera_sees_the_same_with_and_without_a_rig():
    def drawn(options):
        episode = make_episode(3, 2, options)
        return episode, render_episode(episode, *truth_of(episode))

    short = dataclasses.replace(OPTIONS, frames=2)
    _, alone = drawn(short)
    for rig, depth in (("stereo", "aligned"), ("aria", "unaligned")):
        episode, made = drawn(dataclasses.replace(short, rig=rig, depth=depth))
        assert np.array_equal(alone.frames, made.frames)
        assert np.array_equal(alone.depth, made.depth) and np.array_equal(alone.masks, made.masks)
        assert list(made.views) == list(episode.rig)
        for images in made.views.values():
            assert len(images) == 2 and not np.array_equal(images[0], alone.frames[0])
        for name, view in episode.rig.items():
            assert view.grey == (np.ptp(made.views[name][0], axis=-1).max() == 0)
        assert made.readings.shape == (2, 64, 64)
    assert alone.views == {} and alone.readings is None


@pytest.mark.parametrize("clean", [True, False])
def test_another_camera_at_the_same_place_differs_by_its_noise_alone(clean):
    episode = make_episode(3, 2, dataclasses.replace(OPTIONS, frames=1, clean=clean))
    same = Mounted(episode.camera, tuple(map(tuple, np.eye(4).tolist())))
    episode = dataclasses.replace(episode, rig={"same": same})
    made = render_episode(episode, *truth_of(episode))
    (first,), (second,) = made.frames, made.views["same"]
    assert np.array_equal(first, second) == clean
    if not clean:  # noise of its own
        unequal = (first != second).mean()
        assert unequal > 0.3 and np.median(np.abs(first.astype(int) - second)) < 12


def run(*flags):
    return acehand(["synth", "--clips", "1", "--seed", "3", "--frames", "5", "--size", "64x64",
                    "--processes", "1", "--quiet", *map(str, flags)])  # fmt: skip


def test_a_stored_clip_is_a_recording_with_views_and_depth(tmp_path):
    assert run("--rig", "aria", "--depth", "unaligned", "--output", tmp_path / "rig") == 0
    assert run("--output", tmp_path / "none") == 0
    name = "synth__3__000000"
    folder = tmp_path / "rig" / "clips" / name
    store = ClipStore(tmp_path / "rig")
    store.verify(name)
    recording, episode = open_recording(folder), make_episode(
        3, 0, SynthOptions(64, 64, frames=5, rig="aria", depth="unaligned")
    )  # fmt: skip
    assert [view.name for view in recording.views] == ["slam-left", "slam-right", "down"]
    for view, drawn in zip(recording.views, episode.rig.values(), strict=True):
        assert view.recording.camera == drawn.camera
        assert np.allclose(view.T_camera_view, drawn.T_camera_view, atol=1e-12)
        assert np.array_equal(view.recording.timestamps_ns, recording.timestamps_ns)
        assert view.recording.frames.at(4).shape == (64, 64, 3)

    depth, truth = recording.depth, store.extra(name, "depth")["depth"]
    read = depth.frames.at(2)
    assert read.dtype == np.float32 and len(depth.frames) == 5 and depth.sigma_per_m == 0.004
    assert depth.camera == depth_camera("unaligned", episode.camera).camera
    assert np.allclose(depth.T_camera_depth[:3, 3], [0.015, 0, 0])
    assert 0.5 < np.isfinite(read).mean() < 1
    assert np.nanmedian(read) == pytest.approx(np.median(truth[2]), rel=0.3)

    # A store without them is as before.
    plain = json.loads((tmp_path / "none" / "clips" / name / "clip.json").read_text())
    assert "views" not in plain and "depth" not in plain
    described = json.loads((folder / "clip.json").read_text())
    assert plain["files"].items() <= described["files"].items()
    settings = ClipStore(tmp_path / "none").info.settings
    assert "rig" not in settings and "depth" not in settings

    # Damage is named.
    for pose in ([[1, 0], [0, 1]], [[float("nan")] * 4] * 4):
        described["views"]["down"]["pose"] = pose
        with pytest.raises(SchemaError, match=r"views\.down\.pose"):
            ClipInfo.from_json(described, "here")
    clip = store.open(name)
    np.savez_compressed(folder / f"{SENSOR_DEPTH}.npz", millimetres=np.zeros((5, 9, 9), np.uint16))
    with pytest.raises(SchemaError, match=r"sensor_depth.*\(5, 9, 9\).*\(5, 64, 64\)"):
        store.open(name).depth.frames.at(0)
    (folder / "view_down.mp4").unlink()
    with pytest.raises(VideoError, match="view_down"):
        store.open(name)

    # What is written fits its description, and is all there or not at all.
    writer = ClipWriter(tmp_path / "copy", store.info)
    frames_of = {"frames": clip.frames.read(0, 5)}
    with pytest.raises(SchemaError, match="must agree"):
        writer.write(clip.info, clip.motion, **frames_of)
    views = {v.name: [np.zeros((64, 64, 3), np.uint8)] * 5 for v in clip.views}
    views["down"] = views["down"][:4]
    readings = {SENSOR_DEPTH: {"millimetres": np.zeros((5, 64, 64), np.uint16)}}
    with pytest.raises(SchemaError, match=r"view_down.*\b4\b.*\b5\b"):
        writer.write(clip.info, clip.motion, **frames_of, extra=readings, views=views)
    assert not any((tmp_path / "copy" / "clips").iterdir())
