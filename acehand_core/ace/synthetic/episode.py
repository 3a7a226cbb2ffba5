"""Synthetic clips from (seed, index), before drawing; frames and units are ``layout``'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from acehand_core.ace.labelled.clips.schema import Mounted
from acehand_core.ace.synthetic import appearance as looks
from acehand_core.ace.synthetic.appearance import random_object
from acehand_core.ace.synthetic.behaviour import Planner, deepest
from acehand_core.ace.synthetic.grasp_fit import Grasp
from acehand_core.ace.synthetic.grasps import choose_grasp, choose_side_grasp
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.real_motion import RealMotion
from acehand_core.ace.synthetic.rig import DepthKind, Rig, depth_camera, rig_of
from acehand_core.ace.synthetic.scene import Appearance
from acehand_core.ace.synthetic.script import (
    Body,
    CameraKey,
    HandKey,
    Script,
    Times,
    Vector,
    WalkKey,
    carried,
)
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.settings import setting
from acehand_core.types import SIDES

Lenses = Literal["mixed", "pinhole", "fisheye"]
HeadMotion = Literal["ordinary", "walking", "looking-back", "bending"]
#: Part of a clip's identity; raise it when the same seed gives another clip.
VERSION = 3
#: Plans tried per scenario until no hand is deeper than this in an object.
_PLANS, _DEPTH_M = 8, 0.0025
#: Objects tried until a small hand can hold one, and large boxes until both hands can.
_OBJECTS, _LARGE_BOXES = 4, 8
_SCENARIOS = {"objects": 0.45, "bimanual": 0.25, "gestures": 0.30}
#: Time between keys of a moving head.
_STEP_S = 0.05
#: Peak speed of a head that looks back: 21 degrees in a frame at 30 fps.
PEAK_RAD_S = np.radians(21.0) * 30
#: From the neck joint forward to a camera on the forehead.
_NECK_M = 0.10

Planned = tuple[list[Planner], list[Prop]]


@dataclass(frozen=True, slots=True)
class SynthOptions:
    """Settings of clips. ``fast`` ones have no masks, coarser blur, and fewer have shadows."""

    width: int = 640
    height: int = 480
    frames: int = setting(121, "of each clip, 4k + 1")
    fps: float = 30.0
    cameras: Lenses = setting("mixed", "lenses")
    real_share: float = setting(0.4, "share of clips with `motion`", metavar="P", low=0, high=1)
    clean: bool = setting(False, "no blur, no noise, even exposure")
    fast: bool = setting(False, "small clips without masks and depth, simpler light")
    head_motion: HeadMotion = setting("ordinary", "motion of the head and its camera")
    rig: Rig = setting("none", "further cameras")
    depth: DepthKind = setting(
        "none", "a depth camera: registered to the pictures, or 15 mm to the right"
    )

    def to_json(self) -> dict[str, Any]:
        """Return plain values; defaults that older stores do not know are omitted."""
        values = asdict(self)
        for name in ("head_motion", "rig", "depth"):
            if values[name] in ("ordinary", "none"):
                del values[name]
        return values


@dataclass(frozen=True, slots=True)
class SyntheticEpisode:
    """A clip before drawing."""

    scenario: str
    script: Script
    camera: Camera
    appearance: Appearance
    sensor: looks.Sensor
    noise_seed: tuple[int, int, int]
    fast: bool = False
    rig: Mapping[str, Mounted] = field(default_factory=dict)
    depth_camera: Mounted | None = None


def make_episode(
    seed: int, index: int, options: SynthOptions, real: RealMotion | None = None
) -> SyntheticEpisode:
    """Return clip ``index`` of ``seed``."""
    rng = np.random.default_rng((seed, index))
    duration = options.frames / options.fps
    head = seated_head(rng, duration)
    body = Body.below(head[0].position_world)
    walk: tuple[WalkKey, ...] = ()
    if options.head_motion != "ordinary":
        own = np.random.default_rng((seed, index, 2))  # keeps the rest of the clip unchanged
        head, walk = moving_head(options.head_motion, own, duration, head[0].position_world)
    betas = np.clip(rng.normal(0, 0.9, 10), -2.2, 2.2)
    betas = np.stack([betas, np.clip(betas + rng.normal(0, 0.1, 10), -2.3, 2.3)])

    hands: tuple[tuple[HandKey, ...], tuple[HandKey, ...]]
    planners = [Planner(side, betas[slot], body, rng, duration) for slot, side in enumerate(SIDES)]
    props: list[Prop] = []
    if real is not None and rng.random() < options.real_share:
        scenario, hands = "real", real.keys(rng, duration)
    else:
        scenario = str(rng.choice(list(_SCENARIOS), p=list(_SCENARIOS.values())))
        if walk:  # nothing stays on the table
            scenario = "gestures"
        planners, props = _PLANS_OF[scenario](rng, planners, duration)
        hands = tuple(planners[0].keys), tuple(planners[1].keys)

    if walk:
        hands = (carried(hands[0], walk), carried(hands[1], walk))
    T_world_prop = planners[0].T_world_prop | planners[1].T_world_prop
    taken = [pose[:2, 3] for pose in T_world_prop.values()]
    for prop, pose in looks.random_clutter(rng, taken, scenario):
        props.append(prop)
        T_world_prop[prop.name] = pose
    camera = looks.random_camera(rng, options.width, options.height, options.cameras)
    while not looks.covers_image_circle(camera):
        camera = looks.random_camera(rng, options.width, options.height, options.cameras)

    sensor = looks.CLEAN if options.clean else looks.Sensor.random(rng)
    script = Script(
        name=f"synthetic (seed {seed}, clip {index}, {scenario})",
        duration=duration,
        fps=options.fps,
        hands=hands,
        cameras=head,
        elbows_world=np.zeros((2, 3)),
        betas=betas,
        props=tuple(props),
        T_world_prop=T_world_prop,
        holds=(*planners[0].holds, *planners[1].holds),
        body=body,
        walk=walk,
    )
    appearance = looks.random_appearance(rng)

    if options.fast and rng.random() < 0.6:
        lights = tuple(replace(light, shadow=False) for light in appearance.lights)
        appearance = replace(appearance, lights=lights)
    others = rig_of(options.rig, camera), depth_camera(options.depth, camera)
    noise, fast = (seed, index, 1), options.fast
    return SyntheticEpisode(scenario, script, camera, appearance, sensor, noise, fast, *others)


# --- scenarios: planned hands and their objects -----------------------------------------------


def _objects(rng: np.random.Generator, planners: list[Planner], duration: float) -> Planned:
    """Each hand takes its own object, between rests, gestures and absences."""
    props, grasps = [], []
    for planner in planners:
        for _ in range(_OBJECTS):
            prop = random_object(rng, f"own_{planner.side}")
            x, y = planner.outwards * rng.uniform(0.06, 0.17), rng.uniform(0.12, 0.24)
            place = np.array([x, y, 0.0])
            grasp = choose_grasp(planner.side, planner.betas, planner.body, rng, prop, place)
            if grasp.good:
                break
        props.append(prop)
        grasps.append(grasp)
    for planner in planners:
        for prop, grasp in zip(props, grasps, strict=True):
            planner.obstacles[prop.name] = (prop, grasp.T_world_prop)

    def plan() -> list[Planner]:
        tried = [planner.again() for planner in planners]
        for planner, prop, grasp in zip(tried, props, grasps, strict=True):
            planner.rest()
            if rng.random() < 0.25:
                planner.leave()
            planner.pick(prop, grasp)
            planner.fill_time()
        return tried

    return _least_penetrating(plan, props), props


def _least_penetrating(plan: Callable[[], list[Planner]], props: list[Prop]) -> list[Planner]:
    """Plan until no hand penetrates an object; return the best plan."""
    plans: list[tuple[float, list[Planner]]] = []
    while len(plans) < _PLANS and not (plans and plans[-1][0] < _DEPTH_M):
        tried = plan()
        plans.append((deepest(tried, props), tried))
    return min(plans, key=lambda plan: plan[0])[1]


def _gestures(rng: np.random.Generator, planners: list[Planner], duration: float) -> Planned:
    """Hands gesture, apart or close together, rest and leave; sometimes one hand is absent."""
    alone = int(rng.integers(0, 2)) if rng.random() < 0.15 else None
    meeting = np.array([0.0, rng.uniform(0.0, 0.15), rng.uniform(0.1, 0.22)])
    for planner in planners:
        planner.rest()
        while planner.time < duration:
            kind = rng.choice(4, p=[0.45, 0.25, 0.1, 0.2])
            if kind == 1 and alone is None:
                near = np.array([planner.outwards * rng.uniform(0.03, 0.08), 0, 0])
                planner.gesture(meeting + near)
            else:
                (planner.gesture, planner.gesture, planner.rest, planner.leave)[int(kind)]()
    if alone is not None:
        planners[1 - alone].keys = []
    return planners, []


def _bimanual(rng: np.random.Generator, planners: list[Planner], duration: float) -> Planned:
    """Both hands hold a large object from its sides, lift, turn and put it down."""
    tries: list[tuple[float, Prop, Float[np.ndarray, "4 4 4"], list[Grasp]]] = []
    while len(tries) < _LARGE_BOXES and not (tries and tries[-1][0] < 1.0):
        prop, poses = _large_box(rng)
        grasps = [choose_side_grasp(p.side, p.betas, rng, prop, poses[0]) for p in planners]
        tries.append((max(grasp.badness for grasp in grasps), prop, poses, grasps))
    _, prop, poses, grasps = min(tries, key=lambda tried: tried[0])
    for planner in planners:
        planner.obstacles[prop.name] = (prop, poses[0])
    durations = rng.uniform(0.5, 0.9, 3)

    def plan() -> list[Planner]:
        tried = [planner.again() for planner in planners]
        for planner, grasp in zip(tried, grasps, strict=True):
            planner.rest()
            planner.come(grasp)
        contact = max(planner.time for planner in tried) + 0.25
        times = np.cumsum([contact, *durations])
        for planner, grasp in zip(tried, grasps, strict=True):
            planner.share(prop, grasp, times, poses)
            planner.fill_time()
        return tried

    return _least_penetrating(plan, [prop]), [prop]


def _large_box(rng: np.random.Generator) -> tuple[Prop, Float[np.ndarray, "4 4 4"]]:
    """Return a box for two hands, with its poses at the start, in two turns and at the end."""
    half = (rng.uniform(0.05, 0.12), rng.uniform(0.03, 0.07), rng.uniform(0.03, 0.07))
    prop = Prop("shared", "box", half, looks.random_colour(rng), *looks.random_pattern(rng))
    start = np.array([rng.normal(0, 0.03), rng.uniform(0.08, 0.18), half[2]])
    turns = np.zeros((4, 3))
    turns[1:3] = rng.normal(0, np.radians([16, 16, 25]), (2, 3))
    place = np.stack([start] * 4)
    place[1:3] += rng.uniform([-0.06, -0.06, 0.06], [0.06, 0.04, 0.18], (2, 3))
    place[3, :2] += rng.uniform(-0.04, 0.04, 2)
    return prop, frames.rigid(rotations.exp(turns), place)


_PLANS_OF = {"objects": _objects, "bimanual": _bimanual, "gestures": _gestures}


# --- head -------------------------------------------------------------------------------------


def seated_head(rng: np.random.Generator, duration: float) -> tuple[CameraKey, ...]:
    """Return a head that looks at the table, sways and sometimes glances away."""
    eye = np.array([rng.normal(0, 0.02), rng.uniform(-0.18, -0.02), rng.uniform(0.34, 0.56)])
    target = np.array([rng.normal(0, 0.04), rng.uniform(0.06, 0.18), rng.uniform(0.0, 0.08)])
    tilt = rng.normal(0, 0.04)
    start, stop, away = -1.0, -1.0, target
    if rng.random() <= 0.55:  # glances left, right or ahead
        start = rng.uniform(0.2, max(0.3, duration - 1.2))
        away = (
            np.array([-0.85, 0.30, 0.25]),
            np.array([0.85, 0.30, 0.25]),
            np.array([rng.normal(0, 0.3), 1.1, 0.55]),
            np.array([rng.normal(0, 0.2), 0.55, 0.05]),
        )[int(rng.integers(4))]
        stop = start + rng.uniform(0.4, 1.3)

    keys = []
    for time in np.arange(0, duration + 0.4, 0.4):
        sway = rng.normal(0, 1, 7) * np.array([0.012, 0.01, 0.008, 0.025, 0.02, 0.01, 0.025])
        looks = target + sway[3:6]
        if start <= time <= stop:
            looks = away + 3 * sway[3:6]
        keys.append(CameraKey(float(time), eye + sway[:3], looks, float(tilt + sway[6])))
    return tuple(keys)


def moving_head(
    motion: HeadMotion, rng: np.random.Generator, duration: float, eye: Vector
) -> tuple[tuple[CameraKey, ...], tuple[WalkKey, ...]]:
    """Return a head in strong motion and the body's walk; ``eye``: the head of a seated person."""
    times = np.arange(0, duration + _STEP_S, _STEP_S)
    if motion == "walking":
        return _walking(rng, times, eye)
    if motion == "looking-back":
        return _looking_back(rng, times, eye), ()
    return _bending(rng, times, eye), ()


def _walking(
    rng: np.random.Generator, times: Times, eye: Vector
) -> tuple[tuple[CameraKey, ...], tuple[WalkKey, ...]]:
    """Walk to and fro between table and wall, the head bobbing with every step."""
    steps, speed, wide = rng.uniform(1.6, 2.1), rng.uniform(0.7, 1.2), 0.75
    begin, pace = rng.uniform(0, 2 * np.pi), speed / wide
    path = np.zeros((len(times), 3))
    path[:, 0] = wide * np.sin(pace * times + begin)
    path[:, 1] = rng.uniform(-0.8, -0.65) + 0.05 * np.sin(0.7 * pace * times)
    path[:, 2] = rng.uniform(0.55, 0.8)

    # Vertical with every step, sideways and roll with every second one.
    phase = 2 * np.pi * steps * times
    bob = np.stack([0 * phase, 0.012 * np.sin(phase / 2), 0.02 * np.sin(phase)], axis=1)
    yaw = rng.uniform(0.4, 0.7) * np.cos(pace * times + begin) + 0.03 * np.sin(phase / 2)
    yaw += _sway(rng, times, 0.12)
    pitch = rng.uniform(0.3, 0.6) + 0.02 * np.sin(phase) + _sway(rng, times, 0.08)
    roll = 0.025 * np.sin(phase / 2 + 0.5) + _sway(rng, times, 0.02)
    walk = tuple(WalkKey(float(t), p - eye) for t, p in zip(times, path, strict=True))
    return _keys(times, path + bob, yaw, pitch, roll), walk


def _looking_back(rng: np.random.Generator, times: Times, eye: Vector) -> tuple[CameraKey, ...]:
    """Turn by 130 to 170 degrees and back, at up to ``PEAK_RAD_S``."""
    turn = rng.choice([-1.0, 1.0]) * np.radians(rng.uniform(130, 170))
    takes = 1.875 * abs(turn) / PEAK_RAD_S  # minimum jerk: the peak is 15/8 of the mean
    away = rng.uniform(0.2, 0.35) * times[-1]
    back = away + takes + rng.uniform(0.3, 0.6)
    share = _eased((times - away) / takes) - _eased((times - back) / takes)
    yaw = turn * share + _sway(rng, times, 0.06)
    pitch = rng.uniform(0.6, 0.9) * (1 - 0.7 * share) + _sway(rng, times, 0.04)
    forward = np.stack([np.sin(yaw), np.cos(yaw), 0 * yaw], axis=1)
    place = eye + _NECK_M * (forward - [0.0, 1.0, 0.0])
    place = place + np.stack([_sway(rng, times, 0.008) for _ in range(3)], axis=1)
    return _keys(times, place, yaw, pitch, _sway(rng, times, 0.03))


def _bending(rng: np.random.Generator, times: Times, eye: Vector) -> tuple[CameraKey, ...]:
    takes = rng.uniform(0.6, 0.9)
    down = rng.uniform(0.1, 0.3) * times[-1]
    up = down + takes + rng.uniform(0.2, 0.5)
    share = _eased((times - down) / takes) - _eased((times - up) / takes)
    low = np.array([rng.uniform(-0.1, 0.1), rng.uniform(0.05, 0.12), 0.24])
    place = eye + share[:, None] * (low - eye)
    place = place + np.stack([_sway(rng, times, 0.01) for _ in range(3)], axis=1)
    pitch = rng.uniform(0.3, 0.5) + share * rng.uniform(0.6, 0.8) + _sway(rng, times, 0.04)
    yaw = _sway(rng, times, 0.1) + share * rng.uniform(-0.3, 0.3)
    return _keys(times, place, yaw, pitch, _sway(rng, times, 0.04) + share * rng.uniform(-0.2, 0.2))


def _eased(share: Times) -> Times:
    s = np.clip(share, 0.0, 1.0)
    return s**3 * (10 - 15 * s + 6 * s**2)


def _sway(rng: np.random.Generator, times: Times, size: float) -> Times:
    """Return slow, irregular motion about 0."""
    rates, phases = rng.uniform(0.3, 1.2, 3), rng.uniform(0, 2 * np.pi, 3)
    waves = np.sin(2 * np.pi * rates * times[:, None] + phases)
    return size / np.sqrt(3) * waves.sum(axis=1)


def _keys(
    times: Times, place: Float[np.ndarray, "T 3"], yaw: Times, pitch: Times, roll: Times
) -> tuple[CameraKey, ...]:
    """Return keys of a camera at ``place``; yaw 0 looks along y, pitch is downwards."""
    across = np.cos(pitch)
    forward = np.stack([across * np.sin(yaw), across * np.cos(yaw), -np.sin(pitch)], axis=1)
    return tuple(
        CameraKey(float(t), p, p + f, float(r))
        for t, p, f, r in zip(times, place, forward, roll, strict=True)
    )
