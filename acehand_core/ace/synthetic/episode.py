"""One synthetic clip from (seed, index): who, where, what happens, which camera and sensor.

The same seed and index give the same episode whatever else is rendered; nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from acehand_core.ace.synthetic.appearance import (
    CLEAN,
    Sensor,
    covers_image_circle,
    random_appearance,
    random_camera,
    random_clutter,
    random_colour,
    random_object,
    random_pattern,
)
from acehand_core.ace.synthetic.behaviour import CarriedPath, Planner, deepest
from acehand_core.ace.synthetic.grasp_fit import Grasp
from acehand_core.ace.synthetic.grasps import choose_grasp, choose_side_grasp
from acehand_core.ace.synthetic.head import HeadMotion, moving_head, seated_head
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.real_motion import RealMotion
from acehand_core.ace.synthetic.scene import Appearance
from acehand_core.ace.synthetic.script import Body, HandKey, Hold, Script, WalkKey, carried
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.types import SIDES, RigidTransform

Lenses = Literal["mixed", "pinhole", "fisheye"]
#: Part of what a clip is made from: raised whenever the same seed gives another clip.
VERSION = 2
#: How often a scenario is planned again when a hand goes deeper than this into an object.
_PLANS, _DEPTH_M = 8, 0.0025
#: How many objects are tried until the hand, which may be small, can hold one.
_OBJECTS = 4
#: How many large boxes are tried until both hands can hold one; the best is taken.
_LARGE_BOXES = 8
_SCENARIOS = {"objects": 0.45, "bimanual": 0.25, "gestures": 0.30}


@dataclass(frozen=True, slots=True)
class SynthOptions:
    """What all clips of a store share.

    ``real_share``: the share of clips that move by the real motion, where there is one.
    ``frames``: of each clip, 4k + 1 for the model.
    """

    width: int = 640
    height: int = 480
    frames: int = 121
    fps: float = 30.0
    cameras: Lenses = "mixed"
    real_share: float = 0.4
    #: A clean picture: no blur, no noise, even exposure.
    clean: bool = False
    #: For many small clips: no masks, coarser blur, shadows in fewer clips.
    fast: bool = False
    head_motion: HeadMotion = "ordinary"

    def to_json(self) -> dict[str, Any]:
        """Return the options as plain values; stores from before there was one lack a default."""
        values = asdict(self)
        if self.head_motion == "ordinary":
            del values["head_motion"]
        return values


@dataclass(frozen=True, slots=True)
class SyntheticEpisode:
    """Everything about a clip but its pixels."""

    scenario: str
    script: Script
    camera: Camera
    appearance: Appearance
    sensor: Sensor
    noise_seed: tuple[int, int, int]
    fast: bool = False


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
        own = np.random.default_rng((seed, index, 2))  # the rest of the clip stays as it is
        head, walk = moving_head(options.head_motion, own, duration, head[0].position_world)
    betas = np.clip(rng.normal(0, 0.9, 10), -2.2, 2.2)
    betas = np.stack([betas, np.clip(betas + rng.normal(0, 0.1, 10), -2.3, 2.3)])

    planned: Planned
    if real is not None and rng.random() < options.real_share:
        scenario, planned = "real", (real.keys(rng, duration), (), {}, ())
    else:
        scenario = str(rng.choice(list(_SCENARIOS), p=list(_SCENARIOS.values())))
        if walk:  # nothing is left standing on the table
            scenario = "gestures"
        planners = [
            Planner(side, betas[slot], body, rng, duration) for slot, side in enumerate(SIDES)
        ]
        planned = _PLANS_OF[scenario](rng, planners, duration)

    hands, props, T_world_prop, holds = planned
    if walk:
        hands = (carried(hands[0], walk), carried(hands[1], walk))
    taken = [pose[:2, 3] for pose in T_world_prop.values()]
    for prop, pose in random_clutter(rng, taken, scenario):
        props, T_world_prop = (*props, prop), T_world_prop | {prop.name: pose}
    camera = random_camera(rng, options.width, options.height, options.cameras)
    while not covers_image_circle(camera):
        camera = random_camera(rng, options.width, options.height, options.cameras)
    sensor = CLEAN if options.clean else Sensor.random(rng)
    script = Script(
        name=f"synthetic (seed {seed}, clip {index}, {scenario})",
        duration=duration,
        fps=options.fps,
        hands=hands,
        cameras=head,
        elbows_world=np.zeros((2, 3)),
        betas=betas,
        props=props,
        T_world_prop=T_world_prop,
        holds=holds,
        body=body,
        walk=walk,
    )

    appearance = random_appearance(rng)
    if options.fast and rng.random() < 0.6:
        lights = tuple(replace(light, shadow=False) for light in appearance.lights)
        appearance = replace(appearance, lights=lights)

    return SyntheticEpisode(
        scenario, script, camera, appearance, sensor, (seed, index, 1), options.fast
    )


# --- scenarios: keys of both hands, props, where those stand, holds ------------------------------

Planned = tuple[
    tuple[tuple[HandKey, ...], tuple[HandKey, ...]],
    tuple[Prop, ...],
    dict[str, RigidTransform],
    tuple[Hold, ...],
]


def _objects(rng: np.random.Generator, planners: list[Planner], duration: float) -> Planned:
    """Each hand takes an object of its own, between rests, gestures and absences."""
    props, grasps = [], []
    for planner in planners:
        for _ in range(_OBJECTS):
            prop = random_object(rng, f"own_{planner.side}")
            place = np.array(
                [planner.outwards * rng.uniform(0.06, 0.17), rng.uniform(0.12, 0.24), 0.0]
            )
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

    left, right = _least_penetrating(plan, props)
    return (
        (left.finish(), right.finish()),
        tuple(props),
        left.T_world_prop | right.T_world_prop,
        (*left.holds, *right.holds),
    )


def _least_penetrating(plan: Callable[[], list[Planner]], props: list[Prop]) -> list[Planner]:
    """Plan until no hand goes into an object, or return the best of some plans."""
    best: tuple[float, list[Planner]] | None = None
    for _ in range(_PLANS):
        tried = plan()
        depth = deepest(tried, props)
        if best is None or depth < best[0]:
            best = depth, tried
        if depth < _DEPTH_M:
            break
    assert best is not None
    return best[1]


def _gestures(rng: np.random.Generator, planners: list[Planner], duration: float) -> Planned:
    """Hands speak, apart or close together, rest and leave; sometimes there is only one."""
    alone = int(rng.integers(0, 2)) if rng.random() < 0.15 else None
    meeting = np.array([0.0, rng.uniform(0.0, 0.15), rng.uniform(0.1, 0.22)])
    for planner in planners:
        planner.rest()
        while planner.time < duration:
            kind = rng.choice(4, p=[0.45, 0.25, 0.1, 0.2])
            if kind == 1 and alone is None:
                planner.gesture(
                    meeting + np.array([planner.outwards * rng.uniform(0.03, 0.08), 0, 0])
                )
            else:
                (planner.gesture, planner.gesture, planner.rest, planner.leave)[int(kind)]()

    hands = [planner.finish() for planner in planners]
    if alone is not None:
        hands[1 - alone] = ()
    return (hands[0], hands[1]), (), {}, ()


def _bimanual(rng: np.random.Generator, planners: list[Planner], duration: float) -> Planned:
    """Both hands hold one large object from its sides, lift, turn and put it down."""
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
        carried = CarriedPath(np.cumsum([contact, *durations]), poses)
        for planner, grasp in zip(tried, grasps, strict=True):
            planner.share(prop, grasp, carried)
            planner.fill_time()
        return tried

    done = _least_penetrating(plan, [prop])
    hands = (done[0].finish(), done[1].finish())
    return hands, (prop,), {prop.name: poses[0]}, tuple(done[1].holds)


def _large_box(rng: np.random.Generator) -> tuple[Prop, Float[np.ndarray, "4 4 4"]]:
    """Return a box for two hands, and where it stands, is turned to twice, and is put down."""
    half = (rng.uniform(0.05, 0.12), rng.uniform(0.03, 0.07), rng.uniform(0.03, 0.07))
    prop = Prop("shared", "box", half, random_colour(rng), *random_pattern(rng))
    start = np.array([rng.normal(0, 0.03), rng.uniform(0.08, 0.18), half[2]])
    turns = np.zeros((4, 3))
    turns[1:3] = rng.normal(0, np.radians([16, 16, 25]), (2, 3))
    place = np.stack([start] * 4)
    place[1:3] += rng.uniform([-0.06, -0.06, 0.06], [0.06, 0.04, 0.18], (2, 3))
    place[3, :2] += rng.uniform(-0.04, 0.04, 2)
    return prop, frames.rigid(rotations.exp(turns), place)


_PLANS_OF = {"objects": _objects, "bimanual": _bimanual, "gestures": _gestures}
