"""Whether retargeted hands do tasks of DexSuite, by DexSuite's own success test.

    ACEHAND_DEXSUITE_PYTHON=PYTHON python -m benchmarks.policy.replay [--count 20] [--tracked 10]

PYTHON has dexsuite 0.1.0; ``dexsuite_world.py`` runs in it and says what it sets there. For each
start of a task a rendered person with a random hand takes an object of the world's size and lifts
it by more than the task asks for. The hands, true or found by the tracker (camera and its poses
known, hand length assumed, or known, or with a depth camera), become motions of the right Inspire
hand. These are turned and shifted so that the object coincides with the world's, taken from
30 to 20 Hz and replayed: from the arm's home over the start of the approach. Objects are known to
the method "ours, contacts" alone; the mapping uses the object's true pose for every method.

The four ways to put a cube onto itself give the arm different work. The one whose wrist stays
nearest to its commands, by the plain motion of true hands, is used for every row of that start.

What follows no contacts is also squeezed by constants; the best of each is marked ``best`` and is
chosen on these starts. ``pace``: speed over the human's; DexSuite's finger servos follow a command
with a time constant of a quarter of a second (gains 12.8 / 50), its arm with a tenth. ``scripted``
is a grasp made for this world: what can be reached in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.ace.synthetic import appearance as looks
from acehand_core.ace.synthetic.behaviour import Planner
from acehand_core.ace.synthetic.episode import SyntheticEpisode
from acehand_core.ace.synthetic.grasp_fit import Grasp as FittedGrasp
from acehand_core.ace.synthetic.grasps import choose_grasp
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.rendering import objects_of, render_episode, truth_of
from acehand_core.ace.synthetic.rig import depth_camera
from acehand_core.ace.synthetic.script import Body, CameraKey, HandKey, Hold, Script
from acehand_core.geometry import frames, rotations
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import TIPS, WRIST
from acehand_core.motion import Depth, HandMotion, ObjectTrack, Recording
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from acehand_core.types import RigidTransform
from benchmarks import provenance
from benchmarks.grasps import squeezed, wilson
from benchmarks.policy.dexsuite_world import COMMANDS, HZ
from retarget import load_robot, retarget
from retarget.replay.grasps import Grasp, find_grasps, in_frame
from retarget.robots.robot import Robot

PYTHON = "ACEHAND_DEXSUITE_PYTHON"
SQUEEZES = (0.0, 0.1, 0.2)
PEERS = ("dex-vector", "dex-dexpilot", "dex-position")
#: DexSuite's base link in ours: a quarter turn about the fingers' direction. Measured: with it the
#: five fingertips of both models agree to 0.1 micrometres at six random poses.
T_THEIRS_OURS = frames.rigid(rotations.exp(np.array([0.0, 0.0, np.pi / 2])), np.zeros(3))
_Z = np.array([0.0, 0.0, 1.0])
Outcome = dict[str, Any]
#: The best of 70 random grasps on ten other starts: base (ours) in the object, opened and closed
#: commands in the order of COMMANDS.
_SCRIPTED_TURN = np.array(
    [[-0.72607, 0.63878, -0.25453], [0.50212, 0.23963, -0.83094], [-0.46979, -0.73112, -0.49473]]
)
_SCRIPTED_GRIP = np.array([0.06295, 0.02486, 0.17286])  # 5.4 mm above the object's centre
_OPENED = np.array([1.1, 0.025, 0.025, 0.025, 0.025, 0.0])
_CLOSED = np.array([1.1, 0.824, 0.824, 0.824, 0.824, 0.505])
#: Rise of the object in the clip; DexSuite's lift asks for 196 mm.
_RISE_M = 0.235
#: From the arm's home the hand comes to this height over the motion's start, then down, seconds.
_ABOVE_M, _COME_S, _DOWN_S, _STAY_S = 0.12, 2.5, 1.2, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """A rendered person who lifts or moves an object.

    ``first``: the frame in which the approach starts. ``turn``: quarter turns about z after which
    the object, and the way it is moved, coincide with the world's.
    """

    episode: SyntheticEpisode
    motion: HandMotion
    track: ObjectTrack
    grasp: Grasp
    first: int
    turn: int

    def touching_step(self, pace: float) -> int:
        """Return the replay's step in which the human begins to lift."""
        return round(HZ * (_COME_S + _DOWN_S + (self.grasp.first - self.first) / (30 * pace)))


@dataclass(frozen=True, slots=True, eq=False)
class Motion:
    """Base poses in the clip's world (T, 4, 4) and commands (T, C) of the right hand, 30 Hz."""

    bases: np.ndarray
    commands: np.ndarray


def main() -> int:
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("lift", "pick_place"), default="lift")
    parser.add_argument("--count", type=int, default=20, help="starts, at least 2")
    parser.add_argument("--tracked", type=int, default=10, help="starts that are also tracked")
    parser.add_argument("--seed", type=int, default=5300)
    parser.add_argument("--paces", type=float, nargs="+", default=[1.0, 0.5])
    provenance.add_output(parser)
    options = parser.parse_args()

    world, robot = World(options.task, options.count), load_robot("inspire")
    ways = world.ways if options.task == "pick_place" else [None] * options.count
    shown = [demonstration(options.seed + i, world.about, way) for i, way in enumerate(ways)]
    turns, errors = np.array([demo.turn for demo in shown]), list[float]()
    if options.task == "lift":
        turns, errors = chosen_turns(world, robot, shown)
    rows: dict[str, list[Motion | None]] = {}
    off: dict[str, list[float]] = {}
    for start, demo in enumerate(shown):
        for hands, motion in hands_of(demo, start < options.tracked):
            off.setdefault(hands, []).append(wrist_off_m(demo, motion))
            for name, found in motions(robot, demo, motion):
                rows.setdefault(f"{hands}: {name}", [None] * len(shown))[start] = found
            print(f"start {start}: {hands}", file=sys.stderr, flush=True)

    began = time.perf_counter()
    slow = min(options.paces)
    tried = {
        f"{name}, pace {pace}": (row, pace)
        for pace in options.paces
        for name, row in rows.items()
        if pace == slow or name.startswith("true")
    }
    placed = {name: world.placed(row, shown, turns, pace) for name, (row, pace) in tried.items()}
    scripted = {"scripted": world.scripted()} if options.task == "lift" else {}
    outcomes = world.replay({**scripted, **placed})
    result: dict[str, Any] = {
        "world": {k: v for k, v in world.about.items() if not k.startswith("T_")},
        "task": options.task,
        "wrist_error_of_turns_mm": errors,
        "wrist_off_when_lifting_mm": {k: 1e3 * float(np.nanmedian(v)) for k, v in off.items()},
        "replay_s": time.perf_counter() - began,
        "scripted": summary([(outcome, 0) for outcome in outcomes.get("scripted", [])]),
        "rows": {},
    }
    for name, (row, pace) in tried.items():
        steps = [demo.touching_step(pace) for demo in shown]
        made = [motion is not None for motion in row]
        each = zip(outcomes[name], steps, made, strict=True)
        result["rows"][name] = summary([(o, step) for o, step, was in each if was])
    best = best_rows(result["rows"])
    for name, row in result["rows"].items():
        row["best"] = name in best
    provenance.publish(run, result, options.output)
    return 0


# --- demonstrations -----------------------------------------------------------------------------


def demonstration(seed: int, about: dict[str, Any], way: np.ndarray | None = None) -> Demonstration:
    """Return a person who takes the world's object with the right hand and lifts it.

    Or moves it by ``way`` in the object's frame, turned so that the way leads to the right.
    """
    rng = np.random.default_rng(seed)
    eye = np.array([rng.normal(0, 0.02), rng.uniform(-0.16, -0.06), rng.uniform(0.48, 0.56)])
    betas = np.clip(rng.normal(0, 0.9, 10), -2.2, 2.2)
    x, y, z = about["half_m"]
    prop = Prop("object", "box", (x, y, z), looks.random_colour(rng), *looks.random_pattern(rng))
    planner = Planner("right", betas, Body.below(eye), rng, 0.0)
    grasps: list[FittedGrasp] = []
    while len(grasps) < 12 and not (grasps and grasps[-1].good):
        place = np.array([rng.uniform(0.04, 0.14), rng.uniform(0.14, 0.22), 0.0])
        grasps.append(choose_grasp("right", betas, planner.body, rng, prop, place))
    grasp = min(grasps, key=lambda one: one.badness)
    planner.obstacles["object"] = (prop, grasp.T_world_prop)
    planner.rest()
    planner.come(grasp)
    keys, held = list(planner.keys), grasp.held
    first = keys[-3].time - 0.2
    lifted = [(0.4, 0.03 * _Z), (1.1, _RISE_M * _Z), (0.8, _RISE_M * _Z)]
    turn = 0
    if way is not None:
        ways = [
            grasp.T_world_prop[:3, :3] @ rotations.exp(-0.5 * np.pi * k * _Z) @ way
            for k in range(4)
        ]
        turn = int(np.argmax([one[0] for one in ways]))
        goal = ways[turn]
        lifted = [(0.4, 0.03 * _Z), (0.4, 0.08 * _Z), (1.0, goal + 0.08 * _Z)]
        lifted += [(0.6, goal + 0.003 * _Z), (0.3, goal + 0.003 * _Z)]
    for seconds, shift in [(0.3, 0 * _Z), (0.15, 0 * _Z), *lifted]:
        place = held.wrist + shift
        keys.append(HandKey(keys[-1].time + seconds, held.angles, place, held.R))
    taken = keys[-len(lifted) - 1].time

    times = np.arange(0.0, keys[-1].time + 0.4, 0.4)
    sway = rng.normal(0, 1, (len(times), 7)) * [0.01, 0.01, 0.008, 0.02, 0.02, 0.01, 0.02]
    looked = np.array([0.06, 0.16, 0.08])
    cameras = [
        CameraKey(float(t), eye + s[:3], looked + s[3:6], float(s[6]))
        for t, s in zip(times, sway, strict=True)
    ]
    script = Script(
        name=f"lift (seed {seed})",
        duration=keys[-1].time,
        fps=30.0,
        hands=((), tuple(keys)),
        cameras=tuple(cameras),
        elbows_world=np.zeros((2, 3)),
        betas=np.stack([betas, betas]),
        props=(prop,),
        T_world_prop={"object": grasp.T_world_prop},
        holds=(Hold("object", 1, taken, keys[-1].time + 1),),
        body=planner.body,
    )
    appearance, sensor = looks.random_appearance(rng), looks.Sensor.random(rng)
    for _ in range(20):  # the picture shows the whole hand as it takes and lifts the object
        camera = looks.random_camera(rng, 640, 480, "pinhole")
        episode = SyntheticEpisode(
            "lift", script, camera, appearance, sensor, (seed, 0, 1),
            depth_camera=depth_camera("aligned", camera),
        )  # fmt: skip
        posed, motion = truth_of(episode)
        if motion.visible[round(30 * first) :, 1].mean() > 0.98:
            break
    track = objects_of(posed)
    assert track is not None
    (item,) = track.objects
    track = replace(track, objects=(replace(item, mass_kg=about["mass_kg"]),))
    joints = in_frame(motion, "world", track)
    (taken_up,) = find_grasps(track, motion.timestamps_ns, motion.fps, joints)
    return Demonstration(episode, motion, track, taken_up, max(0, round(first * 30)), turn)


def hands_of(demo: Demonstration, tracked: bool) -> Iterator[tuple[str, HandMotion]]:
    """Yield true hands, and those found in the pictures."""
    yield "true", demo.motion
    if not tracked:
        return
    posed, motion = truth_of(demo.episode)
    clip = render_episode(demo.episode, posed, motion)
    camera, sensed = demo.episode.camera, demo.episode.depth_camera
    assert clip.readings is not None and sensed is not None
    recording = Recording(
        source=demo.episode.script.name,
        sha256=None,
        timestamps_ns=motion.timestamps_ns,
        fps=motion.fps,
        width=camera.width,
        height=camera.height,
        frames=_Pictures(clip.frames),
        camera=camera,
        T_world_camera=motion.T_world_camera,
    )
    metres = np.where(clip.readings > 0, np.float32(1e-3) * clip.readings, np.nan)
    depth = Depth(
        _Pictures(metres), motion.timestamps_ns, sensed.camera, np.eye(4),
        sensed.sigma_per_m,
    )  # fmt: skip
    rest = CapsuleHand().rest_keypoints("right", demo.episode.script.betas[1])
    length = float(np.linalg.norm(rest[TIPS[2]] - rest[WRIST]))
    for name, one, known in (
        ("tracked", recording, None),
        ("tracked, hand length known", recording, length),
        ("tracked with depth", replace(recording, depth=depth), None),
    ):
        settings = TrackerSettings(hands="right", hand_length_m=known)
        yield name, MediaPipeTracker(settings).track(one)


def wrist_off_m(demo: Demonstration, motion: HandMotion) -> float:
    """Return how far the wrist is from the true one as the human begins to lift; NaN: no hand."""
    found, true = (one.joints_camera[demo.grasp.first, 1, WRIST] for one in (motion, demo.motion))
    return float(np.linalg.norm(found - true)) if motion.known[demo.grasp.first, 1] else np.nan


@dataclass(frozen=True, slots=True, eq=False)
class _Pictures:
    """Pictures in memory, as a recording or its depth reads them."""

    pictures: Any

    def __len__(self) -> int:
        return len(self.pictures)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        return iter(self.pictures[start:stop])

    def at(self, index: int) -> Any:
        return self.pictures[index]


# --- motions of the robot -----------------------------------------------------------------------


def motions(
    robot: Robot, demo: Demonstration, motion: HandMotion, only_plain: bool = False
) -> Iterator[tuple[str, Motion]]:
    """Yield each method's motion of the right hand."""
    hand = robot.hand("right")
    if not motion.known[:, 1].any():
        return

    def made(**how: Any) -> Motion:
        trajectory = retarget(motion, robot, **how)
        assert trajectory.T_frame_base is not None and trajectory.frame == "world"
        return Motion(trajectory.T_frame_base[:, 1], trajectory.commands[:, 1])

    plain = made(contacts=False)
    if only_plain:
        yield "ours, plain", plain
        return
    yield "ours, contacts", made(objects=demo.track)
    for name, one in (("ours, plain", plain), *((peer, made(method=peer)) for peer in PEERS)):
        for by in SQUEEZES:
            pressed = squeezed(hand, one.commands, demo.grasp, by, motion.fps)
            yield f"{name}, squeezed {by}", replace(one, commands=pressed)


def chosen_turns(
    world: World, robot: Robot, shown: Sequence[Demonstration]
) -> tuple[np.ndarray, list[float]]:
    """Return per start by how many quarter turns its motion is turned, and wrist errors in mm."""
    plain: list[Motion | None] = [
        next(motions(robot, demo, demo.motion, only_plain=True))[1] for demo in shown
    ]
    tried = {str(k): world.placed(plain, shown, np.full(len(shown), k)) for k in range(4)}
    outcomes = world.replay(tried)
    errors = np.array([[o["wrist_error_m"] for o in outcomes[str(k)]] for k in range(4)])
    return errors.argmin(0), (1e3 * np.median(errors, axis=1)).tolist()


# --- the world ----------------------------------------------------------------------------------


class World:
    """A task of DexSuite, run in its own process."""

    def __init__(self, task: str, count: int) -> None:
        if PYTHON not in os.environ:
            sys.exit(f"{PYTHON}: name the Python that has dexsuite 0.1.0.")
        self._task, self._count = task, count
        self._folder = tempfile.TemporaryDirectory(prefix="acehand-dexsuite-")
        described = Path(self._folder.name) / "world.json"
        self._run("--world", str(described))
        self.about: dict[str, Any] = json.loads(described.read_text())

    @property
    def ways(self) -> np.ndarray:
        """From each object to its goal on the table, in the object's frame (N, 3)."""
        poses = np.array(self.about["T_world_object"])
        away = np.array(self.about["goal_world"]) - poses[:, :3, 3]
        away[:, 2] = 0
        return (np.swapaxes(poses[:, :3, :3], 1, 2) @ away[..., None])[..., 0]

    def _run(self, *arguments: str) -> None:
        script = Path(__file__).with_name("dexsuite_world.py")
        command = [os.environ[PYTHON], str(script), self._task, "--count", str(self._count)]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"DexSuite failed:\n{done.stderr[-2000:]}")

    def replay(self, rows: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, list[Outcome]]:
        """Replay rows of ``placed`` motions; return per row the outcomes of the starts."""
        folder = Path(self._folder.name)
        longest = max(poses.shape[1] for poses, _ in rows.values())
        np.savez(
            folder / "motions.npz",
            T_world_base=[_longer(poses, longest) for poses, _ in rows.values()],
            commands=[_longer(commands, longest) for _, commands in rows.values()],
        )
        result = folder / "result.json"
        self._run("--motions", str(folder / "motions.npz"), "--result", str(result))
        return dict(zip(rows, json.loads(result.read_text()), strict=True))

    def scripted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a grasp made for this world, as ``placed``: close, wait for the servos, lift."""
        at_s = np.arange(105) / 30
        share, up = np.clip(at_s / 0.75, 0, 1)[:, None], np.clip((at_s - 1.3) / 2, 0, 1)
        rise = up * up * (3 - 2 * up) * (_RISE_M + 0.02)
        found = []
        for home, at in zip(self.about["T_world_base"], self.about["T_world_object"], strict=True):
            place = np.array(at)[:3, 3] + 0.0054 * _Z - _SCRIPTED_TURN @ _SCRIPTED_GRIP
            turns = np.tile(_SCRIPTED_TURN, (len(at_s), 1, 1))
            bases = frames.rigid(turns, place + rise[:, None] * _Z)
            bases = bases @ frames.inverse(T_THEIRS_OURS)
            found.append(timed(np.array(home), bases, _OPENED + share * (_CLOSED - _OPENED), 1.0))
        return np.stack([poses for poses, _ in found]), np.stack([drive for _, drive in found])

    def placed(
        self,
        row: Sequence[Motion | None],
        shown: Sequence[Demonstration],
        turns: np.ndarray,
        pace: float = 1.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return DexSuite's base poses in its world (N, T, 4, 4) and commands (N, T, 6), 20 Hz.

        A start without a motion is left at home.
        """
        names = load_robot("inspire").hand("right").command_joints
        order = [names.index(name) for name in COMMANDS]
        homes = np.array(self.about["T_world_base"])
        found = []
        for start, motion in enumerate(row):
            if motion is None:
                found.append((homes[start][None], np.zeros((1, len(COMMANDS)))))
                continue
            turn = frames.rigid(rotations.exp(0.5 * np.pi * turns[start] * _Z), np.zeros(3))
            demo, at = shown[start], np.array(self.about["T_world_object"][start])
            T_world_clip = at @ turn @ frames.inverse(demo.grasp.T_frame_object[0])
            span = slice(demo.first, demo.grasp.last + 1)
            bases = T_world_clip @ motion.bases[span] @ frames.inverse(T_THEIRS_OURS)
            found.append(timed(homes[start], bases, motion.commands[span, order], pace))
        longest = max(len(poses) for poses, _ in found)
        poses = np.stack([_longer(poses[None], longest)[0] for poses, _ in found])
        return poses, np.stack([_longer(commands[None], longest)[0] for _, commands in found])


def timed(
    home: RigidTransform, bases: np.ndarray, commands: np.ndarray, pace: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return a motion of 30 Hz at 20 Hz, from the arm's home on, with a stay at its end.

    ``pace``: speed of the motion over that of the human.
    """
    above = bases[0].copy()
    above[2, 3] += _ABOVE_M
    at = np.array([0.0, _COME_S, _COME_S + _DOWN_S])
    ease = np.arange(0.0, at[2], 1 / HZ)
    lead = _between(at, np.stack([home, above, bases[0]]), ease, smooth=True)
    share = np.clip(ease / at[1], 0, 1)[:, None]
    stamps = np.arange(len(bases)) / (30 * pace)
    times = np.arange(0.0, stamps[-1] + _STAY_S, 1 / HZ)
    poses = _between(stamps, bases, np.minimum(times, stamps[-1]))
    follow = np.stack([np.interp(times, stamps, column) for column in commands.T], axis=1)
    return np.concatenate([lead, poses]), np.concatenate([share * commands[0], follow])


def _between(at: np.ndarray, poses: np.ndarray, times: np.ndarray, smooth: bool = False) -> Any:
    """Return poses at ``times`` between those ``at`` others; ``smooth``: at rest in each."""
    i = np.clip(np.searchsorted(at, times, "right") - 1, 0, len(at) - 2)
    share = (times - at[i]) / (at[i + 1] - at[i])
    share = share * share * (3 - 2 * share) if smooth else share
    a, b = poses[i], poses[i + 1]
    turn = rotations.log(np.swapaxes(a[:, :3, :3], 1, 2) @ b[:, :3, :3])
    place = a[:, :3, 3] + share[:, None] * (b[:, :3, 3] - a[:, :3, 3])
    return frames.rigid(a[:, :3, :3] @ rotations.exp(share[:, None] * turn), place)


def _longer(values: np.ndarray, count: int) -> np.ndarray:
    """Repeat the last of the second axis until it has ``count`` elements."""
    return np.concatenate([values, np.repeat(values[:, -1:], count - values.shape[1], 1)], axis=1)


# --- results ------------------------------------------------------------------------------------


def summary(found: Sequence[tuple[Outcome, int]]) -> dict[str, Any]:
    """Return successes with Wilson's 95 % interval, failures by kind, and errors in the world.

    ``found``: outcomes, each with the step in which the human begins to lift.
    """
    outcomes = [outcome for outcome, _ in found]
    won, count = sum(o["success"] for o in outcomes), len(outcomes)
    if not count:
        return {"successes": "0/0"}
    wrist, fingers = (
        float(np.median([o[name][step] for o, step in found]))
        for name in ("wrist_errors_m", "finger_errors_rad")
    )
    return {
        "successes": f"{won}/{count}",
        "share": won / count,
        "share_95": wilson(won, count),
        "faults": Counter(o["fault"] for o in outcomes if o["fault"]),
        "median_rise_mm": 1e3 * float(np.median([o["rise_m"] for o in outcomes])),
        "median_wrist_error_mm": 1e3 * float(np.median([o["wrist_error_m"] for o in outcomes])),
        "wrist_error_at_lift_mm": 1e3 * wrist,
        "finger_error_at_lift_rad": fingers,
        "replay_s": sum(o["seconds"] for o in outcomes),
    }


def best_rows(rows: dict[str, dict[str, Any]]) -> set[str]:
    """Return the best squeeze of each method, and the rows that have none."""
    best: dict[str, str] = {}
    for name, row in rows.items():
        method = name.split(", squeezed")[0] + name.rpartition(", pace")[2]
        if method not in best or row["share"] > rows[best[method]]["share"]:
            best[method] = name
    return set(best.values())


if __name__ == "__main__":
    sys.exit(main())
