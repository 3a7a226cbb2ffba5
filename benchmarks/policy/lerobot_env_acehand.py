"""lerobot's ``--env.type=acehand``: DexSuite's lift, judged by DexSuite's own success test.

    pip install benchmarks/policy    # with lerobot 0.6.1 and dexsuite 0.1.0, for Python 3.12
    lerobot-eval --env.type=acehand --policy.path=POLICY --seed=25025 --eval.n_episodes=100 \
        --eval.batch_size=25

lerobot imports what is installed as ``lerobot_env_*`` by itself. ``agent_pos`` is the commanded
pose of the hand relative to the object and its six commands, ``environment_state`` the object's
rise, the commanded height and whether the object has risen (``observed`` of dexsuite_policy.py);
the action is ``wanted`` there. All scenes of a batch start from one seed of the world: lerobot's
seed divided by the size of the batch, here 1001 to 1004. Videos are sketches from the side.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig

try:
    from benchmarks.policy import dexsuite_policy as policy
except ImportError:  # installed
    import dexsuite_policy as policy

_SIZES = {"agent_pos": 15, "environment_state": 3}


@EnvConfig.register_subclass("acehand")
@dataclass
class AcehandEnv(EnvConfig):
    """``outcomes``: a JSON file to write successes and kinds of failures to."""

    task: str | None = "lift"
    fps: int = 20
    outcomes: str | None = None
    features: dict[str, PolicyFeature] = field(
        default_factory=lambda: {
            "action": PolicyFeature(FeatureType.ACTION, (15,)),
            "agent_pos": PolicyFeature(FeatureType.STATE, (_SIZES["agent_pos"],)),
            "environment_state": PolicyFeature(FeatureType.ENV, (_SIZES["environment_state"],)),
        }
    )
    features_map: dict[str, str] = field(
        default_factory=lambda: {
            "action": "action",
            "agent_pos": "observation.state",
            "environment_state": "observation.environment_state",
        }
    )

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        return {}

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, Any]]:
        if self.task != "lift":
            raise ValueError(f"--env.task={self.task}: there is lift.")
        return {self.type: {0: Lift(n_envs, self.outcomes)}}


class Lift(gymnasium.vector.VectorEnv):
    """The scenes of a batch; a finished one keeps running until all are finished."""

    metadata: ClassVar[dict[str, Any]] = {
        "render_fps": 20,
        "autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED,
    }

    def __init__(self, count: int, outcomes: str | None = None) -> None:
        self.num_envs, self._file = count, outcomes
        self._scenes, self._steps = policy.Scenes(count), 0
        self._outcomes: list[dict[str, Any]] = []

        def box(*shape: int) -> gymnasium.Space:
            return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)

        self.single_action_space, self.action_space = box(15), box(count, 15)
        self.single_observation_space, self.observation_space = (
            gymnasium.spaces.Dict({name: box(*lead, size) for name, size in _SIZES.items()})
            for lead in ((), (count,))
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[dict[str, Any], dict]:
        self._keep()
        first = seed[0] if isinstance(seed, list) else seed or 0
        self._scenes.reset(first // self.num_envs)
        self._steps = 0
        return self._observation(), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        before = self._scenes.success.copy()
        self._scenes.step(actions.astype(float))
        self._steps += 1
        won = self._scenes.success.copy()
        reward, ended = (won & ~before).astype(float), won | self._scenes.failed
        late = np.full(self.num_envs, self._steps >= self._scenes.steps)
        return self._observation(), reward, ended, late, {"is_success": won}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        about = {
            "_max_episode_steps": self._scenes.steps,
            "task": "lift",
            "task_description": "lift the cube",
        }
        if name == "render":
            return tuple(map(sketch, self._scenes.place, self._scenes.base[:, :3, 3]))
        if name not in about:
            raise AttributeError(name)
        return (about[name],) * self.num_envs

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self.call(name)

    def close_extras(self, **kwargs: Any) -> None:
        self._keep()

    def _keep(self) -> None:
        """Write what became of the batch that ends."""
        if self._file and self._steps:
            self._outcomes += self._scenes.outcomes()
            Path(self._file).write_text(json.dumps(self._outcomes))
        self._steps = 0

    def _observation(self) -> dict[str, np.ndarray]:
        seen = self._scenes.seen().astype(np.float32)
        return dict(zip(_SIZES, np.split(seen, [15], axis=1), strict=True))


def sketch(cube: np.ndarray, hand: np.ndarray) -> np.ndarray:
    """Return a picture of 128 x 128 from the side, 0.8 m wide; the table is near its lower edge."""
    picture = np.full((128, 128, 3), 255, np.uint8)
    for (x, _, z), size, colour in ((hand, 3, (40, 80, 200)), (cube, 4, (200, 60, 40))):
        across, down = 64 + int(160 * (x - 0.45)), 120 - int(160 * z)
        rows, columns = (slice(max(0, v - size), max(0, v + size)) for v in (down, across))
        picture[rows, columns] = colour
    return picture
