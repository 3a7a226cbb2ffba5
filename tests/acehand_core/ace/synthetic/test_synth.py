"""Synthetic clips: the truth lands on what is drawn, seeds decide, jobs resume, limits hold."""

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.synthetic import job as jobs
from acehand_core.ace.synthetic import rendering
from acehand_core.ace.synthetic.appearance import MAX_ANGLE, Lens, Sensor
from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.layout import Prop, Room
from acehand_core.ace.synthetic.real_motion import read_real_motion
from acehand_core.ace.synthetic.rendering import pose_clip, render_episode, truth_of
from acehand_core.ace.synthetic.scene import Appearance, Moment, Quality, Scene
from acehand_core.ace.synthetic.script import (
    MAX_WRIST_BEND,
    CameraKey,
    camera_path,
    elbow_path,
    hand_path,
)
from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError, MissingDependencyError, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import BONES
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.types import SIDES
from helpers import ROOT

OPTIONS = SynthOptions(128, 96, frames=5)
LONG = SynthOptions(128, 96, frames=121)
PLAIN = Sensor(0.0, 1.0, 0.0, (1.0, 1.0), 0.0, 0.0, 0.0)


@pytest.fixture(scope="module", autouse=True)
def needs_opengl():
    try:
        Scene(Camera("pinhole", 32, 32, 30.0, 30.0, 15.5, 15.5)).close()
    except MissingDependencyError as error:
        pytest.skip(f"no offscreen OpenGL: {error}")


def drawn(index, seed=3, options=OPTIONS, **changes):
    episode = dataclasses.replace(make_episode(seed, index, options), **changes)
    clip, motion = truth_of(episode)
    return episode, motion, render_episode(episode, clip, motion)


@pytest.mark.slow
@pytest.mark.parametrize("lenses", ["pinhole", "fisheye"])
def test_projected_truth_lands_on_the_hands_mask(lenses):
    options = dataclasses.replace(OPTIONS, cameras=lenses, width=192, height=160)
    on, off, swapped = [], [], []
    for index in range(3):
        _, motion, made = drawn(index, options=options)
        frame, slot, joint = np.nonzero(made.seen)
        column, row = np.round(motion.joints_image[frame, slot, joint]).astype(int).T
        # One pixel's grace: the mask is that of the pixel's own centre.
        near = np.stack([
            made.masks[frame, np.clip(row + y, 0, 159), np.clip(column + x, 0, 191)]
            for y, x in itertools.product((-1, 0, 1), repeat=2)
        ])  # fmt: skip
        palm = joint != 0  # the wrist may lie under the sleeve's cuff
        on.append((near == slot + 1).any(0)[palm])
        swapped.append((near == 2 - slot).any(0)[palm])
        moved = (row + 40) % 160
        off.append((made.masks[frame, moved, column] == slot + 1)[palm])
    on, off, swapped = (np.concatenate(x) for x in (on, off, swapped))
    assert len(on) > 100
    assert on.mean() > 0.95
    assert off.mean() < 0.4 and swapped.mean() < 0.4  # the check can fail


def test_depth_is_metric_and_matches_visible_joints():
    _, motion, made = drawn(4)
    assert made.depth.dtype == np.float16
    frame, slot, joint = np.nonzero(made.seen)
    assert len(frame) > 30
    column, row = np.round(motion.joints_image[frame, slot, joint]).astype(int).T
    behind = motion.joints_camera[frame, slot, joint, 2] - made.depth[frame, row, column]
    # Between the skin before it and a finger's thickness: mostly a few millimetres inside.
    assert 0.002 < np.median(behind) < 0.024


@pytest.mark.slow
def test_out_of_sight_hands_keep_their_truth():
    found = 0
    for index in range(12):
        _, motion = truth_of(make_episode(3, index, LONG))
        gone = (motion.presence > 0) & (motion.visible == 0)
        assert np.isfinite(motion.joints_camera[gone]).all()
        assert motion.observed[gone].all()
        # Present hands return: gone and in view within one clip.
        found += int((gone.any(0) & (motion.visible > 0.5).any(0)).any())
        absent = motion.presence == 0
        assert (motion.global_orient[absent] == np.eye(3)).all()
        assert not motion.observed[absent].any() and not motion.visible[absent].any()
    assert found >= 3


def test_a_fisheye_is_black_outside_its_circle_and_right_inside():
    camera = Camera("kannala_brandt", 160, 128, 62.0, 63.0, 80.0, 62.0, (0.02, -0.004, 0.0, 0.0))
    lens = Lens.of(camera, 2)
    dot = Prop("dot", "box", (0.006, 0.006, 0.006), (1.0, 0.0, 0.0))
    eye = CameraKey(0.0, np.array([0.0, -0.1, 0.5]), np.array([0.0, 0.1, 0.0]))
    T_world_camera = camera_path((eye,), np.zeros(1))[0]
    sleeves = np.broadcast_to(np.eye(4), (2, 4, 4)).copy()
    with Scene(lens.drawn, (dot,), Appearance(room=Room()), Quality(2, 512)) as scene:
        for at in ((0.0, 0.1, 0.02), (0.3, 0.0, 0.05), (-0.25, 0.3, 0.05)):
            pose = frames.rigid(np.eye(3), np.array(at))
            moment = Moment(T_world_camera, (None, None), sleeves, {"dot": pose})
            image = lens.pixels(lens.bend(scene.samples(moment)[0])).mean((1, 3))
            red = np.clip((image[..., 0] - image[..., 1] - 35) / 40, 0, 1)
            rows, columns = np.indices(red.shape)
            centre = np.array([(red * columns).sum(), (red * rows).sum()]) / red.sum()
            expected = camera.project(frames.apply(frames.inverse(T_world_camera), np.array(at)))
            assert np.linalg.norm(centre - expected) < 0.6
    rays = camera.unproject(np.stack(np.meshgrid(np.arange(160.0), np.arange(128.0)), -1))
    outside = np.arccos(np.clip(rays[..., 2], -1, 1)) > MAX_ANGLE + 0.05
    assert outside.sum() > 200
    assert (image[outside] == 0).all() and (image[~outside].sum(-1) > 0).mean() > 0.9


def test_blur_follows_the_shutter():
    options, times = dataclasses.replace(OPTIONS, clean=True), np.arange(5) / 30
    turning = next(
        index for index in range(60)
        if np.ptp(camera_path(make_episode(3, index, options).script.cameras, times)[:, :3, 2], 0)
        .max() > 0.1
    )  # fmt: skip
    sharp, blurred = (
        drawn(turning, options=options, sensor=dataclasses.replace(PLAIN, shutter=shutter))[2]
        for shutter in (PLAIN.shutter, 0.9)
    )
    sharp_detail, detail = (
        np.abs(np.diff(np.array(made.frames, float), axis=2)).mean() for made in (sharp, blurred)
    )
    assert detail < 0.97 * sharp_detail
    assert np.array_equal(sharp.masks, blurred.masks)  # the truth is that of the middle


def test_only_motion_in_the_picture_is_blurred():
    episode = make_episode(3, 5, dataclasses.replace(LONG, cameras="pinhole"))
    eye = episode.script.cameras[0].position_world

    def parts(target):
        still = CameraKey(0.0, eye, eye + target)
        script = dataclasses.replace(episode.script, cameras=(still,))
        looking = dataclasses.replace(
            episode, script=script, sensor=dataclasses.replace(PLAIN, shutter=0.9)
        )
        clip, _ = truth_of(looking)
        return rendering._parts(looking, clip, Lens.of(episode.camera, 2))

    assert set(parts(np.array([0.0, -1.0, 1.0]))) == {1}  # away from hands and table
    assert max(parts(np.array([0.0, 0.2, -eye[2]]))) == 5


def test_many_moments_at_rest_show_what_one_does():
    episode = make_episode(3, 3, dataclasses.replace(OPTIONS, cameras="pinhole"))
    moment, lens = truth_of(episode)[0].moments[0], Lens.of(episode.camera, 1)
    with Scene(lens.drawn, episode.script.props, episode.appearance, Quality(1, 1024)) as scene:
        (one, depth), (five, again), (after, _) = (
            rendering._exposure(scene, lens, [moment] * count) for count in (1, 5, 1)
        )
        coarse = scene.colours(moment, lens.drawn)
    assert np.array_equal(depth, again) and np.array_equal(one, after)
    # Edges are as smooth as those that are multisampled.
    assert np.std(five - one) < 0.5 * np.std(coarse - one)


def test_noise_and_exposure():
    flat = np.full((40, 40, 3), 128.0)

    def exposed(**changes):
        sensor = dataclasses.replace(PLAIN, **changes)
        return sensor.expose(flat, 0.0, np.random.default_rng(0))

    assert (exposed() == 128).all()
    noisy, dark = exposed(read=0.02), exposed(vignette=0.5)
    assert 1 < noisy.std() < 20 and abs(noisy.mean() - 128) < 3
    assert abs(exposed(gain=1.5).mean() - 255 * (1.5 * (128 / 255) ** 2.2) ** (1 / 2.2)) < 1
    assert dark[0, 0, 0] < dark[20, 20, 0] - 20


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_hands_stay_possible(index):
    script = make_episode(9, index, LONG).script
    low, high = articulation.limits()
    for slot, side in enumerate(("left", "right")):
        keys = script.hands[slot]
        if not keys:
            continue
        times = np.arange(0, script.duration, 1 / 30)
        path = hand_path(keys, times)
        assert (path.angles >= low - 1e-6).all() and (path.angles <= high + 1e-6).all()
        elbow = elbow_path(script, slot, path, times)
        arm = path.T_world_hand[:, :3, 3] - elbow
        fingers = path.T_world_hand[:, :3, 0] * (1 if side == "left" else -1)
        cosine = (arm * fingers).sum(-1) / np.linalg.norm(arm, axis=-1)
        assert np.arccos(np.clip(cosine, -1, 1)).max() < MAX_WRIST_BEND + 1e-6
        assert np.linalg.norm(arm, axis=-1).min() > 0.1
        step = np.linalg.norm(np.diff(path.T_world_hand[:, :3, 3], axis=0), axis=-1) * 30
        assert step.max() < 2.5


def test_objects_ride_with_the_hand_that_holds_them(monkeypatch):
    monkeypatch.setattr("acehand_core.ace.synthetic.episode._SCENARIOS", {"bimanual": 1.0})
    episode = make_episode(9, 6, LONG)
    hold = episode.script.holds[0]
    times = np.linspace(hold.start, min(hold.stop, episode.script.duration), 12)
    clip = pose_clip(episode.script, episode.camera, episode.appearance, times)
    prop = np.stack([m.T_world_prop[hold.prop] for m in clip.moments])
    for slot in (0, 1):  # both hands stay where they are on it
        wrist = hand_path(episode.script.hands[slot], times).T_world_hand[:, :3, 3]
        local = frames.apply(frames.inverse(prop), wrist[:, None])[:, 0]
        assert np.ptp(local, axis=0).max() < 0.012
    assert np.ptp(prop[:, :3, 3], axis=0).max() > 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fastest", "path"),
    [("walking", (1.0, 6.0), (1.0, 6.0)), ("looking-back", (20.0, 23.0), (0.0, 1.5)),
     ("bending", (2.0, 8.0), (0.2, 2.0))],
)  # fmt: skip
def test_heads_that_move_strongly(kind, fastest, path):
    """Degrees in a frame at the fastest, and metres in four seconds; the truth is what is drawn."""
    for index in range(2):
        options = dataclasses.replace(LONG, head_motion=kind)
        episode = make_episode(9, index, options)
        _, motion = truth_of(episode)
        R, centre = motion.T_world_camera[:, :3, :3], motion.T_world_camera[:, :3, 3]
        turns = np.degrees(rotations.angle_between(R[:-1], R[1:]))
        assert fastest[0] < turns.max() < fastest[1]
        assert path[0] < np.linalg.norm(np.diff(centre, axis=0), axis=1).sum() < path[1]
        assert (np.abs(centre[:, 0]) < 1.2).all() and (centre[:, 1:] > (-1.2, 0.15)).all()
        if kind != "walking":  # the rest of the clip is the same
            ordinary = make_episode(9, index, LONG)
            assert episode.camera == ordinary.camera and episode.appearance == ordinary.appearance
        else:  # hands are carried: within an arm's length of the head
            wrists = frames.apply(motion.T_world_camera, motion.joints_camera[:, :, 0])
            near = np.linalg.norm(wrists - centre[:, None], axis=-1)
            assert np.nanmedian(near) < 0.8 and np.nanmax(near) < 1.6


def test_real_motion_is_followed(shared):
    path = shared / "data" / "hot3d_bimanual_joints.npz"
    if not path.exists():
        pytest.skip("hot3d_bimanual_joints.npz is not there")
    real = read_real_motion(path)
    joints = np.load(path)["joints_world"]
    for slot, side in enumerate(("left", "right")):
        keys = real.hands[slot]
        rest = CapsuleHand().rest_keypoints(side, np.zeros(10))
        points, _ = articulation.keypoints_with_jacobian(
            np.stack([k.angles for k in keys]), side, rest
        )
        R = np.stack([k.R_world_hand for k in keys])
        fitted = points @ np.swapaxes(R, 1, 2)
        # Another person's hand, another idea of where a wrist is: directions of phalanges are
        # compared, but for a turn of the whole about z.
        a, b = np.array([bone for bone in BONES if bone[0] > 1]).T
        ours, theirs = (p[:, b] - p[:, a] for p in (fitted, joints[:, slot]))
        ours, theirs = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (ours, theirs))
        turn = rotations.project_to_rotation(np.einsum("tki,tkj->ij", theirs, ours))
        assert turn[2, 2] > 0.95  # the world stays upright, but for the palms' difference
        angle = np.degrees(np.arccos(np.clip((ours @ turn.T * theirs).sum(-1), -1, 1)))
        assert np.median(angle) < 15
    hands = real.keys(np.random.default_rng(0), 4.0)  # longer than the file
    wrists = np.stack([k.wrist_world for k in hands[1]])
    assert np.linalg.norm(np.diff(wrists, axis=0), axis=-1).max() * 30 < 2.0
    episode = make_episode(3, 0, dataclasses.replace(LONG, real_share=1.0), real)
    assert episode.scenario == "real"


def test_a_table_of_hands_moves_clips_too(tmp_path):
    _, motion = truth_of(make_episode(3, 1, LONG))
    path = tmp_path / "hands.parquet"
    write_hand_motion(motion, path)
    real = read_real_motion(path)
    assert real.duration == pytest.approx(4.0, abs=0.05)
    keys = next(hand for hand in real.hands if hand)
    assert all(np.isfinite(key.angles).all() for key in keys)
    lowest = min(key.wrist_world[2] for key in keys)
    assert -0.05 < lowest < 0.6


def test_motion_of_no_hand_is_refused(tmp_path):
    path, rest = tmp_path / "hands.npz", CapsuleHand().rest_keypoints
    rest = np.repeat(np.stack([rest(side, np.zeros(10)) for side in SIDES])[None], 4, 0)
    elsewhere = rest + np.array([0, 0, 1e6, 1e6])[:, None, None, None]

    def write(joints):
        np.savez(path, joints_world=joints, timestamps_ns=np.arange(len(joints)) * 33_333_333)

    with pytest.raises(InputError, match="no such file"):
        read_real_motion(path)
    write(rest)
    assert all(read_real_motion(path).hands)
    for joints, named in (
        (np.zeros((3, 2, 20, 3)), "20, 3"),
        (elsewhere, "10 m or less"),
        (1000 * rest, "8 of 8 hands"),  # millimetres
        (0.001 * rest, "8 of 8 hands"),  # kilometres
    ):
        write(joints)
        with pytest.raises(SchemaError, match=named):
            read_real_motion(path)
    path.write_text("not an archive")
    with pytest.raises(SchemaError, match=r"hands\.npz"):
        read_real_motion(path)


def test_seeds_decide():
    options = dataclasses.replace(OPTIONS, frames=2)
    a, b, c = (drawn(2, seed, options) for seed in (3, 3, 4))
    assert np.array_equal(a[1].joints_camera, b[1].joints_camera)
    assert all(np.array_equal(x, y) for x, y in zip(a[2].frames, b[2].frames, strict=True))
    assert a[0].camera != c[0].camera
    assert not np.array_equal(a[2].frames[0], c[2].frames[0])


def run(*flags):
    return acehand(["synth", *map(str, flags), "--quiet", "--json"])


@pytest.mark.slow
def test_the_command_resumes_and_two_processes_make_the_same(tmp_path, capsys):
    a, b = tmp_path / "a", tmp_path / "b"
    flags = ["--seed", 3, "--frames", 5, "--size", "64x64", "--cameras", "pinhole"]
    alone = [*flags, "--processes", 1]
    assert run("--clips", 1, *alone, "--output", a) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert first["made"] == ["synth__3__000000"] and first["kept"] == []
    clip = a / "clips" / "synth__3__000000" / "clip.json"
    stamp = clip.stat().st_mtime_ns
    assert run("--clips", 3, *flags, "--processes", 2, "--output", a, "--sheet") == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["kept"] == first["made"] and len(again["made"]) == 2
    assert clip.stat().st_mtime_ns == stamp
    assert (a / "sheet.png").stat().st_size > 1000
    # Alone, in this process, under another order: the same bytes of truth and pictures.
    assert run("--clips", 1, "--first", 2, *alone, "--output", b) == 0
    store, other = ClipStore(a), ClipStore(b)
    name = "synth__3__000002"
    assert store.info_of(name).files == other.info_of(name).files
    store.verify(name)
    clip = store.open(name)
    assert clip.info.width == 64 and len(clip.frames) == 5
    assert store.extra(name, "masks")["hands"].shape == (5, 64, 64)
    assert store.extra(name, "depth")["depth"].dtype == np.float16
    sight = store.extra(name, "sight")
    assert sight["joints_seen"].shape == (5, 2, 21) and sight["out_of_sight"].shape == (5, 2)
    # Other settings: nothing is touched unless that is asked for; then no clip of before stays.
    other = ["--clips", 1, *alone, "--clean", "--output", a]
    before = (a / "store.json").read_text(), store.info_of(name)
    assert run(*other) == 2
    assert "clean: False there, True now" in capsys.readouterr().err
    assert before == ((a / "store.json").read_text(), store.info_of(name))
    assert run(*other, "--overwrite") == 0
    store = ClipStore(a)
    assert store.ids() == ["synth__3__000000"] and store.info.settings["clean"] is True
    # In stores of before there were head motions the default is not recorded.
    assert "head_motion" not in store.info.settings


@pytest.mark.slow
def test_clips_that_fail_are_reported_and_an_interrupted_job_resumes(tmp_path, monkeypatch):
    make, options = jobs.make_clip, SynthOptions(64, 64, frames=5, fast=True)
    job = jobs.SynthJob(tmp_path / "s", 3, options=options)
    names = [job.name(index) for index in range(3)]

    def raising(at, error):
        def make_or_raise(job, index, real):
            if index == at:
                raise error
            return make(job, index, real)

        monkeypatch.setattr(jobs, "make_clip", make_or_raise)

    raising(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        jobs.run(job)
    assert ClipStore(tmp_path / "s").ids() == names[:1]
    raising(1, InputError("a reason"))
    report = jobs.run(job)
    assert report.errors == {names[1]: "a reason"}
    assert (report.kept, report.written) == ((names[0],), (names[2],))
    assert "masks.npz" not in ClipStore(tmp_path / "s").info_of(names[2]).files


def _killed(job, index, real):
    """Draw clip 0; the process of clip 1 is killed, as by a system short of memory."""
    name = job.output / "clips" / job.name(0) / "clip.json"
    while index and not name.exists():
        time.sleep(0.02)
    if index:
        os.kill(os.getpid(), signal.SIGKILL)
    return jobs.make_clip(job, index, real) and None


_NAPPING = """
import os, sys, time
from pathlib import Path

def nap(job, index, real):
    (job.output / f"pid-{os.getpid()}").touch()
    time.sleep(600)

if __name__ == "__main__":
    from acehand_core.ace.synthetic import job
    import napping
    job._attempt = napping.nap
    job.run(job.SynthJob(Path(sys.argv[1]), clips=4, processes=2))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_workers_end_with_a_killed_parent(tmp_path):
    (tmp_path / "napping.py").write_text(_NAPPING)
    output = tmp_path / "out"
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "napping.py"), str(output)],
        env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE,
    )  # fmt: skip

    def workers():
        return [int(path.name.removeprefix("pid-")) for path in output.glob("pid-*")]

    try:
        while len(workers()) < 2 and parent.poll() is None:
            time.sleep(0.1)
        parent.kill()
        # Workers inherit the pipe: it ends when the last of them does.
        assert parent.communicate(timeout=60)[0] == b""
    finally:
        parent.kill()
        for pid in workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_killed_process_is_reported_and_finished_clips_stay(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "_attempt", _killed)
    flags = ["--clips", 3, "--frames", 1, "--size", "64x64", "--processes", 2, "--fast"]
    assert run(*flags, "--output", tmp_path / "s") == 4
    printed = capsys.readouterr().err
    assert "synth__0__000001" in printed and "memory may be short" in printed
    assert "Traceback" not in printed
    assert ClipStore(tmp_path / "s").ids() == ["synth__0__000000"]


def test_opengl_that_is_not_there_is_reported_once(tmp_path):
    command = [sys.executable, "-m", "acehand_core.cli.main", "synth", "--clips", "2", "--fast",
               "--frames", "1", "--size", "64x64", "--processes", "1", "-q",
               "--output", str(tmp_path / "s")]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"MUJOCO_GL": "osmesax"}
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in ("egl", "osmesa", "osmesax"))
    assert done.stderr.count("error:") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--size", "100x96"], "multiples of 32"),
     (["--frames", "6"], "4k"), (["--clips", "0"], "1 or more"), (["--real-share", "2"], "0 to 1"),
     (["--real-share", "0.5"], "--motion")],
)  # fmt: skip
def test_mistakes_are_named(flags, message, tmp_path, capsys):
    assert run("--clips", 1, "--output", tmp_path / "x", *flags) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run("--clips", 1, "--output", tmp_path / "x", "--size", "large")
    assert not (tmp_path / "x").exists()


def test_mujoco_is_not_imported_before_something_is_drawn():
    code = (
        "import sys, acehand_core.ace.synthetic.job, acehand_core.ace.synthetic.rendering;"
        "import acehand_core.ace.synthetic.grasps;"
        "assert 'mujoco' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
