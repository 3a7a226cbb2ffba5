"""``acehand view``: what is sent to rerun is what the dataset and MuJoCo say."""

import io
import socket
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acehand_core.drawing.robot_parts import robot_parts
from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import TIPS
from acehand_core.lerobot import format as layout
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.review import rerun_view
from acehand_core.types import SIDES
from helpers import lerobot_samples as samples
from helpers.commands import Acehand, first_run
from helpers.retarget_samples import motion_of
from retarget.robots.robot import load_robot

mujoco = pytest.importorskip("mujoco")

FRAMES, FPS = 40, 30.0
FILLED, DOUBTFUL, AWAY = slice(20, 24), slice(30, 33), slice(10, 15)  # AWAY: the left hand
CAMERA = Camera("pinhole", samples.WIDTH, samples.HEIGHT, 60.0, 60.0, 31.5, 23.5)


def hands(**changes):
    """Return default hands that close and open, with a mesh, seen by a camera."""
    high = articulation.limits()[1]
    phase = np.sin(2 * np.pi * np.arange(FRAMES) / FRAMES)[:, None]
    made = defaultdict(list)
    for slot, side in enumerate(SIDES):
        pose = articulation.angles_to_pose(np.where(high > 1, 0.3 * high * (1 + phase), 0), side)
        turn = rotations.exp(np.concatenate([0.4 * phase, -0.2 * phase, 0.6 * phase], axis=1))
        place = np.concatenate([0.05 * phase + 0.3 * slot - 0.15, 0.02 * phase, 0.6 + 0 * phase], 1)
        joints = CapsuleHand().joints(side, turn, pose, np.zeros(10)) + place[:, None]
        parts = {
            "global_orient": turn, "hand_pose": pose, "translation": place,
            "joints_camera": joints, "joints_image": CAMERA.project(joints),
        }  # fmt: skip
        for name, value in parts.items():
            made[name].append(value)
    arrays = {name: np.stack(values, axis=1) for name, values in made.items()}
    arrays["joints_camera"][AWAY, 0] = np.nan
    filled = np.zeros((FRAMES, 2), bool)
    filled[FILLED] = True
    known = np.isfinite(arrays["joints_camera"]).all((2, 3))
    arrays["joints_image"][filled | ~known] = np.nan
    quality = known.astype(float)
    quality[DOUBTFUL] = 0
    return motion_of(
        arrays.pop("joints_camera"), FPS, hand_model="acehand", camera=CAMERA, quality=quality,
        observed=known & ~filled, filled=filled, **arrays, **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("view")
    write_hand_motion(hands(), root / "hands.parquet")
    samples.video(root / "clip.mp4", FRAMES, seed=0)
    intrinsics = f"{CAMERA.fx},{CAMERA.fy},{CAMERA.cx},{CAMERA.cy}"
    first_run(root / "clip.mp4", "--tracker", root / "hands.parquet", "--intrinsics", intrinsics,
              "--task", "open | close", "--subject", "P7", "--no-overlay", "--output",
              root / "data")  # fmt: skip
    return root / "data"


# Geometry, without rerun.

_OCTAGON = 2 * np.sqrt(2)  # area of a regular octagon in a circle of radius 1
_RING = np.sqrt(0.5)  # radius and height of the ring between pole and equator
#: Half of a ball of radius 1 of two rings of eight: a pyramid on the frustum of one.
_HALF_BALL = _OCTAGON * (0.5 * (1 - _RING) + _RING * (1 + 0.5 + _RING)) / 3


def volume_of(model, geom: int) -> float:
    """Return the volume of what stands for a shape: a round one has eight sides."""
    kinds, (a, b, c) = mujoco.mjtGeom, model.geom_size[geom]
    kind = kinds(int(model.geom_type[geom]))
    if kind == kinds.mjGEOM_BOX:
        return 8 * a * b * c
    if kind == kinds.mjGEOM_CAPSULE:
        return 2 * _HALF_BALL * a**3 + _OCTAGON * a**2 * 2 * b
    if kind == kinds.mjGEOM_CYLINDER:
        return _OCTAGON * a**2 * 2 * b
    assert kind in (kinds.mjGEOM_SPHERE, kinds.mjGEOM_ELLIPSOID)
    return 2 * _HALF_BALL * (a**3 if kind == kinds.mjGEOM_SPHERE else a * b * c)


@pytest.mark.parametrize("name", ["inspire", "shadow", "panda_gripper"])
def test_links_are_where_mujoco_has_them(name):
    for side, hand in load_robot(name).hands.items():
        model = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
        data = mujoco.MjData(model)
        joints = np.random.default_rng(0).uniform(hand.lower, hand.upper, (3, len(hand.lower)))
        parts, poses = robot_parts(hand), rerun_view.link_poses(hand, joints)
        assert len(parts.links) == model.nbody - 1
        for row, values in enumerate(joints):
            for joint, value in zip(hand.joint_names, values, strict=True):
                data.joint(f"{side}_{joint}").qpos = value
            mujoco.mj_forward(model, data)
            np.testing.assert_allclose(poses[row, :, :3, 3], data.xpos[1:], atol=1e-9)
            np.testing.assert_allclose(poses[row, :, :3, :3].reshape(-1, 9), data.xmat[1:],
                                       atol=1e-9)  # fmt: skip

            for link in range(len(parts.links)):
                geoms = np.flatnonzero((model.geom_bodyid == link + 1) & (model.geom_group == 2))
                corners, normals = rerun_view.link_surface(parts, link)
                assert bool(len(corners)) == bool(len(geoms))
                if not len(geoms):
                    continue
                placed = frames.apply(poses[row, link], corners)
                a, b, c = placed.reshape(-1, 3, 3).swapaxes(0, 1)
                # The divergence theorem: positive only where triangles face outwards.
                volume = np.sum(a * np.cross(b, c)) / 6
                assert volume == pytest.approx(sum(volume_of(model, g) for g in geoms), rel=1e-6)
                across = np.cross(b - a, c - a)
                across /= np.linalg.norm(across, axis=1, keepdims=True)
                turned = normals @ poses[row, link, :3, :3].T
                np.testing.assert_allclose(turned, np.repeat(across, 3, axis=0), atol=1e-6)

                # Their centre is that of the shapes, as MuJoCo places them.
                centre = sum(data.geom_xpos[g] * volume_of(model, g) for g in geoms) / volume
                weights = np.sum(a * np.cross(b, c), axis=1, keepdims=True) / 6
                np.testing.assert_allclose(
                    np.sum(weights * (a + b + c) / 4, axis=0) / volume, centre, atol=1e-6
                )


def test_without_rerun_an_episode_is_a_page(dataset, capsys, monkeypatch):
    monkeypatch.setattr(rerun_view, "is_installed", lambda: False)
    pytest.importorskip("plotly")
    page = dataset.with_name("data.view") / "episode_000000.html"
    for _ in range(2):  # it is made anew
        run = Acehand(capsys, "view", dataset)
        assert run.code == 0 and run.json == {"viewer": "page", "episode": 0, "files": [str(page)]}
    text = page.read_text("utf-8")
    assert "open | close" in text and "P7" in text and '"video": ["../data/' in text
    assert (page.parent / "episode_000000_files/0-0.js").is_file()
    named = dataset.with_name("named.html")
    named.write_text("mine")
    run = Acehand(capsys, "view", dataset, "--save", named)
    assert run.code == 4 and "overwrite" in run.messages and named.read_text() == "mine"
    assert Acehand(capsys, "view", dataset, "--save", named, "--overwrite").code == 0
    same = named.read_text("utf-8").replace("named_files", "episode_000000_files")
    assert same.replace('["data/', '["../data/') == text


def test_flags_that_do_not_apply(dataset, tmp_path, capsys, monkeypatch):
    table, out = dataset.with_name("hands.parquet"), tmp_path / "out"
    monkeypatch.setattr(rerun_view, "is_installed", lambda: False)
    for words, said in (
        ([table], "pip install 'acehand[view]'"),
        ([dataset, "--save", tmp_path / "x.rrd"], "pip install 'acehand[view]'"),
        ([dataset, "--output", out], "acehand render"),
        ([dataset, "--video", dataset.with_name("clip.mp4")], "`video`"),
        ([dataset, "--intrinsics", "1,1,1,1"], "`video`"),
        ([dataset, "--episode", 3, "--save", tmp_path / "x.html"], "no episode 3"),
        ([table, "--episode", 0], "`episode` is for datasets"),
        ([table, "--output", out, "--save", tmp_path / "x.rrd"], "`save`"),
        ([tmp_path, "--save", tmp_path / "x.rrd"], "HandMotion table"),
    ):
        run = Acehand(capsys, "view", *words)
        assert run.code == 2 and said in run.messages, words
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def rr(monkeypatch):
    monkeypatch.setattr(rerun_view.shutil, "which", lambda _: "/usr/bin/ffmpeg")
    return pytest.importorskip("rerun", reason="rerun-sdk is not installed (extra view)")


class Recorded:
    """What a file for rerun holds, by entity and component."""

    def __init__(self, path: Path) -> None:
        from rerun.chunk import RrdReader

        reader = RrdReader(path)
        (self.recording,) = reader.recordings()
        (self.blueprint,) = reader.blueprints()
        self._chunks = defaultdict(list)
        for chunk in reader.stream(store=self.recording).to_chunks():
            table = pa.Table.from_batches([chunk.to_record_batch()])
            columns = {
                name: column.cast(pa.int64()) if pa.types.is_duration(column.type) else column
                for name, column in zip(table.column_names, table.columns, strict=True)
            }
            held = {name: column.to_pylist() for name, column in columns.items()}
            self._chunks[chunk.entity_path.removeprefix("/")].append(held)

    @property
    def entities(self) -> set[str]:
        return {*self._chunks}

    def all(self, entity: str, component: str, other: str | None = None) -> list:
        """Return a component's rows, or what another column has in these."""
        (rows,) = (c[other or component] for c in self._chunks[entity] if component in c)
        return rows

    def at(self, entity: str, component: str, frame: int) -> np.ndarray:
        """Return what an entity shows at a frame: the last row until then."""
        frames = self.all(entity, component, "frame")
        return np.array(self.all(entity, component)[np.searchsorted(frames, frame, "right") - 1])


@pytest.fixture
def recorded(dataset, tmp_path, capsys, rr):
    run = Acehand(capsys, "view", dataset, "--save", tmp_path / "episode.rrd")
    assert run.code == 0, run.err
    assert run.json == {"viewer": "rerun", "episode": 0, "frames": FRAMES,
                        "files": [str(tmp_path / "episode.rrd")]}  # fmt: skip
    return Recorded(tmp_path / "episode.rrd")


def test_a_recording_holds_the_datasets_numbers(dataset, recorded):
    (row,) = layout.read_episode_rows(dataset)
    table = pq.read_table(dataset / layout.data_file(row), partitioning=None)
    joints = np.array(table["observation.hand.joints_camera"].to_pylist()).reshape(-1, 2, 21, 3)
    state = np.array(table["observation.state"].to_pylist()).reshape(-1, 2, 15)
    stamps = np.array(table["observation.source_timestamp_ns"].to_pylist()).reshape(-1)

    times = [recorded.all("scene/camera/hand/right/joints", "Points3D:positions", name)
             for name in ("frame", "time", "source_time")]  # fmt: skip
    assert times[0] == [*range(FRAMES)]
    np.testing.assert_allclose(times[1], np.arange(FRAMES) / FPS * 1e9, atol=1)
    np.testing.assert_array_equal(times[2], stamps)
    for frame in (0, 7, 22, 31):
        shown = recorded.at("scene/camera/hand/right/joints", "Points3D:positions", frame)
        tip = TIPS[1]
        np.testing.assert_allclose(shown[tip], joints[frame, 1, tip], atol=1e-6)
    assert recorded.at("scene/camera/hand/left/joints", "Points3D:positions", 12).size == 0

    hand_spec = load_robot("inspire").hands["right"]
    base = frames.rigid(rotations.from_6d(state[7, 1, 3:9]), state[7, 1, :3])
    robot = np.array(table["observation.joints.robot"].to_pylist()).reshape(-1, 2, 12)
    data = mujoco.MjData(model := mujoco.MjModel.from_xml_path(str(hand_spec.mjcf_path)))
    for name, value in zip(hand_spec.joint_names, robot[7, 1], strict=True):
        data.joint(f"right_{name}").qpos = value
    mujoco.mj_forward(model, data)
    link = "scene/robot/right/index_intermediate"
    place = frames.apply(base, data.body("right_index_intermediate").xpos)
    turn = base[:3, :3] @ data.body("right_index_intermediate").xmat.reshape(3, 3)
    shown = recorded.at(link, "Transform3D:translation", 7)
    np.testing.assert_allclose(shown.reshape(-1), place, atol=1e-5)
    x, y, z, w = recorded.at(link, "Transform3D:quaternion", 7).reshape(-1)
    np.testing.assert_allclose(rotations.from_quaternion(np.array([w, x, y, z])), turn, atol=1e-5)

    bend = recorded.at("commands/right/index_proximal", "Scalars:scalars", 7)
    names = [f"right_{name}" for name in hand_spec.command_joints]
    assert bend[0] == pytest.approx(state[7, 1, 9 + names.index("right_index_proximal")], abs=1e-6)
    upper = recorded.at("commands/right/index_proximal/upper", "Scalars:scalars", 7)
    ranges = model.jnt_range[model.joint("right_index_proximal").id]
    assert upper[0] == pytest.approx(ranges[1], abs=1e-6)


def test_a_recording_shows_pictures_through_the_camera(dataset, recorded):
    (matrix,) = recorded.all("scene/camera/image", "Pinhole:image_from_camera")
    matrix = np.array(matrix).reshape(3, 3).T  # column by column
    point = np.array([0.1, -0.05, 0.5])
    pixel = matrix @ point / point[2]
    # Half a pixel: their corners are rerun's integers.
    np.testing.assert_allclose(pixel[:2], CAMERA.project(point) + 0.5, atol=1e-4)
    (size,) = recorded.all("scene/camera/image", "Pinhole:resolution")
    assert size == [[samples.WIDTH, samples.HEIGHT]]

    marks = recorded.at("scene/camera/image/landmarks/right/joints", "Points2D:positions", 5)
    np.testing.assert_allclose(marks, hands().joints_image[5, 1] + 0.5, atol=1e-3)
    for frame in (21, 23):  # filled in: nothing was seen
        entity = "scene/camera/image/landmarks/right/joints"
        assert recorded.at(entity, "Points2D:positions", frame).size == 0

    video = "scene/camera/image/video"
    (blob,) = recorded.all(video, "AssetVideo:blob")
    (file,) = (dataset / "videos").rglob("*.mp4")
    assert bytes(np.array(blob, np.uint8).reshape(-1)) == file.read_bytes()
    times = np.array(recorded.all(video, "VideoFrameReference:timestamp")).reshape(-1)
    np.testing.assert_allclose(times / 1e9, np.arange(FRAMES) / FPS, atol=1e-6)


def test_filled_and_doubtful_hands_look_different(recorded):
    bones = "scene/camera/hand/left/bones"

    def look(frame):
        strips = recorded.at(bones, "LineStrips3D:strips", frame)
        colour = recorded.at(bones, "LineStrips3D:colors", frame)
        return len(strips), int(colour[0]) >> 8

    blue = 86 << 16 | 156 << 8 | 233
    assert look(0) == (20, blue) and look(12)[0] == 0
    assert look(22)[0] == 20 and look(22)[1] != blue
    assert look(31) == (60, 150 << 16 | 150 << 8 | 150)

    robot = "scene/robot/left/index_proximal"
    there = [bool(len(recorded.at(robot, "Mesh3D:vertex_positions", k))) for k in (9, 10, 14, 15)]
    assert there == [True, False, False, True]


def test_a_table_of_hands_in_the_world(dataset, tmp_path, capsys, rr):
    poses = frames.rigid(rotations.exp(np.linspace([0, 0, 0], [0.4, -2, 0.3], FRAMES)),
                         np.linspace([1, 2, 3], [1.5, 2, 2], FRAMES))  # fmt: skip
    table = tmp_path / "hands.parquet"
    motion = hands(T_world_camera=poses)
    write_hand_motion(motion, table)
    clip = dataset.with_name("clip.mp4")
    run = Acehand(capsys, "view", table, "--video", clip, "--robot", "inspire",
                  "--save", tmp_path / "x.rrd")  # fmt: skip
    assert run.code == 0, run.messages
    recorded = Recorded(tmp_path / "x.rrd")
    moved = recorded.at("scene/camera", "Transform3D:translation", 25).reshape(-1)
    np.testing.assert_allclose(moved, poses[25, :3, 3], atol=1e-6)
    way = recorded.all("scene/wrist/right", "LineStrips3D:strips")[0]
    wrist = poses[25, :3, :3] @ motion.joints_camera[25, 1, 0] + poses[25, :3, 3]
    np.testing.assert_allclose(way[0][25], wrist, atol=1e-6)
    (broken,) = recorded.all("scene/wrist/left", "LineStrips3D:strips")
    assert [len(part) for part in broken] == [10, 25]
    base = recorded.at("scene/robot/right/hand_base", "Transform3D:translation", 25).reshape(-1)
    assert np.linalg.norm(base - wrist) < 0.1  # the robot's hand is where the human's is
    times = recorded.all("scene/camera/image/video", "VideoFrameReference:timestamp")
    np.testing.assert_allclose(np.array(times).reshape(-1), np.arange(FRAMES) / FPS * 1e9, atol=1)


def test_a_file_is_whole_or_not_there(dataset, tmp_path, capsys, rr, monkeypatch):
    path = tmp_path / "x.rrd"
    path.write_text("mine")
    run = Acehand(capsys, "view", dataset, "--save", path)
    assert run.code == 4 and "overwrite" in run.messages and path.read_text() == "mine"
    assert Acehand(capsys, "view", dataset, "--save", tmp_path / "x.rr").code == 2
    with monkeypatch.context() as patch:
        patch.setattr(rerun_view, "_send_plots", Mock(side_effect=InputError("halfway")))
        run = Acehand(capsys, "view", dataset, "--save", path, "--overwrite")
    assert run.code == 2 and "halfway" in run.messages
    assert path.read_text() == "mine" and [p.name for p in tmp_path.iterdir()] == ["x.rrd"]
    assert Acehand(capsys, "view", dataset, "--save", path, "--overwrite").code == 0
    assert Recorded(path).entities


def test_the_viewer_needs_a_display(dataset, tmp_path, capsys, rr, monkeypatch):
    listening, commands = [], []

    def started(command, **_):
        commands.append(command)
        listening.append(socket.create_server(("127.0.0.1", rerun_view._PORT)))
        return SimpleNamespace(poll=lambda: None, kill=lambda: None)

    def connected(stream, url, **options):
        assert url == f"rerun+http://127.0.0.1:{rerun_view._PORT}/proxy"
        stream.save(tmp_path / "sent.rrd", **options)

    monkeypatch.setattr(rr.RecordingStream, "connect_grpc", connected)
    monkeypatch.setattr(rerun_view.subprocess, "Popen", started)
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setattr(rerun_view, "_PORT", free.getsockname()[1])
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    run = Acehand(capsys, "view", dataset)
    assert run.code == 2 and "`save=FILE.rrd`" in run.messages
    assert not (tmp_path / "sent.rrd").exists() and not commands

    monkeypatch.setenv("DISPLAY", ":0")
    for _ in range(2):  # the second one finds the viewer open
        run = Acehand(capsys, "view", dataset)
        assert run.code == 0 and run.json["files"] == []
    (command,) = commands
    assert command[command.index("--bind") + 1] == "127.0.0.1"
    assert "scene/robot/left/index_proximal" in Recorded(tmp_path / "sent.rrd").entities
    listening[0].close()


def test_a_video_that_the_viewer_cannot_decode_is_encoded_again(
    dataset, tmp_path, capsys, rr, monkeypatch
):
    monkeypatch.setattr(rerun_view.shutil, "which", lambda _: None)
    assert Acehand(capsys, "view", dataset, "--save", tmp_path / "x.rrd").code == 0
    shown = Recorded(tmp_path / "x.rrd")
    (blob,) = shown.all("scene/camera/image/video", "AssetVideo:blob")
    with av.open(io.BytesIO(np.array(blob, np.uint8).tobytes())) as made:
        assert made.streams.video[0].codec_context.codec.canonical_name == "av1"
        assert sum(1 for _ in made.decode(video=0)) == FRAMES
    times = shown.all("scene/camera/image/video", "VideoFrameReference:timestamp")
    np.testing.assert_allclose(np.ravel(times) / 1e9, np.arange(FRAMES) / FPS, atol=1e-6)
