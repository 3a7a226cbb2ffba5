"""What DexJoCo's benchmark computes without DexJoCo."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from benchmarks.policy import dexjoco_world as world


def test_a_wrist_that_lags_follows_what_is_led():
    times = np.arange(0, 3, 1 / world.HZ)
    wrist = np.tile(np.eye(4), (len(times), 1, 1))
    wrist[:, 0, 3] = 0.2 * np.sin(2 * times)
    wrist[:, :3, :3] = Rotation.from_rotvec(
        np.outer(0.4 * np.sin(2 * times), [0, 0, 1])
    ).as_matrix()
    places, quats = world.led(wrist)
    turns = Rotation.from_quat(quats, scalar_first=True).as_rotvec()[:, 2]
    for asked, lag, true in (
        (places[:, 0], world._LAG_S, wrist[:, 0, 3]),
        (turns, world._TURN_LAG_S, 0.4 * np.sin(2 * times)),
    ):
        now, worst = 0.0, 0.0
        for want, is_at in zip(asked[:-1], true[1:], strict=True):
            now = want + (now - want) * np.exp(-1 / world.HZ / lag)
            worst = max(worst, abs(now - is_at))
        assert worst < 0.02 * np.abs(true).max()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ([[0, 0, 0], [0.001, 0, 0]], "not touched"),
        ([[0.01, 0, 0], [0.02, 0, 0.03]], "not lifted"),
        ([[0.01, 0, 0], [0.05, 0, 0.03]], "pushed away"),
        ([[0, 0, 0.2], [0, 0, 0.0]], "dropped"),
        ([[0, 0, 0.2], [0.3, 0, 0.2]], "nail not driven in"),
    ],
)
def test_failures_have_kinds(path, kind):
    assert world.fault(np.array(path, dtype=float)) == kind
