"""The comparison with dex-retargeting: its variants and tables are what they are called."""

import dataclasses
import math

import numpy as np
import pytest

from acehand_core.errors import InputError
from benchmarks.retargeting import dex_modes, recordings, scores, tables
from retarget.replay import metrics
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve import methods

HAND = load_robot("inspire").hand("right")


@pytest.fixture(scope="module")
def take():
    pytest.importorskip("dex_retargeting")
    made = recordings.gestures(HAND, KinematicTree.of(HAND), 30.0)[0]
    return made.every(3).first(20)


@pytest.mark.parametrize("mode", ["vector", "dexpilot"])
def test_filtered_is_what_the_library_answers_with_its_filter(take, mode):
    free, _ = dex_modes.solved(HAND, take, mode, methods.DEX_SCALING)
    own = methods.solve_dex(HAND, take.targets, mode)  # Inspire: 1.15 and tips, as shipped
    assert np.abs(free - own).max() > 0.01
    assert dex_modes.filtered(HAND, take, free, 0.2, "filtered") == pytest.approx(own, abs=1e-9)


def test_offline_does_not_lag_and_keeps_limits(take):
    step = np.tile(HAND.rest, (41, 1))
    step[:, 3] = HAND.command_lower[3] + 0.1
    step[20:, 3] = HAND.command_lower[3] + 0.9
    long = dataclasses.replace(take.targets, joints_hand=np.zeros((41, 21, 3)),
                               weight=np.ones(41), active=np.ones(41, bool))  # fmt: skip
    long = dataclasses.replace(take, targets=long)
    middle = HAND.command_lower[3] + 0.5
    both = dex_modes.filtered(HAND, long, step, 0.2, "offline")[:, 3]
    once = dex_modes.filtered(HAND, long, step, 0.2, "filtered")[:, 3]
    # A step between frames 19 and 20 passes its middle there, and three frames later with lag:
    # 1 - 0.8 ** n reaches a half at n = 4.
    assert both[19] < middle < both[20]
    assert both[19] - middle == pytest.approx(middle - both[20], abs=1e-3)
    assert once[22] < middle < once[23]
    far = np.tile(HAND.command_upper + 1.0, (41, 1))
    assert (dex_modes.filtered(HAND, long, far, 0.2, "offline") == HAND.command_upper).all()
    assert (dex_modes.filtered(HAND, long, far, 0.2, "unfiltered") == far).all()


def test_the_scale_is_the_best_there_is(take):
    tuned = dex_modes.variants(HAND, take, "vector")
    assert tuned["shipped"]["scale"] == 1.15
    own = methods.solve_dex(HAND, take.targets, "vector")  # with its filter, at 1.15
    assert tuned["shipped"]["commands"] == pytest.approx(own, abs=1e-9)
    part = take.every(dex_modes.TUNING_STRIDE)
    human, tree = part.targets.tips_of(HAND.fingers), KinematicTree.of(HAND)

    def error(scale):
        commands, _ = dex_modes.solved(HAND, part, "vector", scale)
        tips = tree.points(HAND.expand(commands), HAND.tip_names)
        return metrics.tip_error(human, tips, metrics.CommonGround.fit(human, tips)).mean()

    tried = {scale: error(scale) for scale in np.round(np.arange(0.7, 1.75, 0.2), 1)}
    best = tuned["unfiltered"]["scale"]
    assert error(best) <= min(tried.values())
    assert abs(best - min(tried, key=tried.get)) < 0.11


def test_settings_are_the_ones_that_are_shipped():
    pytest.importorskip("dex_retargeting")
    # From the files of dex-retargeting 0.5.0.
    allegro = dex_modes.shipped("allegro", "right", "vector")
    assert (allegro.file, allegro.scale, allegro.alpha, allegro.keypoints) == (
        "teleop/allegro_hand_right.yml", 1.6, 0.2, (4, 8, 12, 16),
    )  # fmt: skip
    shadow = dex_modes.shipped("shadow", "left", "vector")
    assert (shadow.scale, shadow.keypoints) == (1.2, (4, 8, 12, 16, 20, 2, 6, 10, 14, 18))
    position = dex_modes.shipped("leap", "right", "position")
    assert (position.file, position.scale, position.alpha) == ("offline/leap_hand_right.yml", 1, 1)
    assert position.keypoints == (4, 8, 12, 16, 2, 6, 10, 14)
    assert dex_modes.shipped("ability", "right", "dexpilot").scale == 1.0
    assert dex_modes.shipped("inspire:other", "right", "vector").scale == 1.15
    with pytest.raises(InputError, match="panda_gripper"):
        dex_modes.shipped("panda_gripper", "right", "vector")


def test_scores_of_several_hands_as_one():
    rows = [
        {"frames": 30, "tip_error_mm": {"mean": 4.0}, "pinch_mm": 10.0, "n_pinch": 5,
         "penetration_frames": 2, "speed_ratio": 1.0},
        {"frames": 10, "tip_error_mm": {"mean": 8.0}, "pinch_mm": 20.0, "n_pinch": 15,
         "penetration_frames": 1, "speed_ratio": 3.0},
        {"frames": 60, "tip_error_mm": {"mean": 5.0}, "pinch_mm": math.nan, "n_pinch": 0,
         "penetration_frames": 0, "speed_ratio": 2.0},
    ]  # fmt: skip
    whole = scores.pooled(rows)
    assert whole["frames"] == 100 and whole["n_pinch"] == 20 and whole["penetration_frames"] == 3
    assert whole["tip_error_mm"]["mean"] == pytest.approx((30 * 4 + 10 * 8 + 60 * 5) / 100)
    assert whole["pinch_mm"] == pytest.approx((5 * 10 + 15 * 20) / 20)
    assert whole["speed_ratio"] == 3.0
    assert math.isnan(scores.pooled(rows[2:])["pinch_mm"])


def row(**changes):
    plain = {
        "tip_error_mm": {"mean": 1.0, "p95": 2.0}, "direction_palm_deg": 1.0,
        "direction_wrist_deg": 1.0, "direction_knuckle_deg": 1.0, "flexion_error_deg": 1.0,
        "pinch_mm": None,
        "pinch_recall": None, "false_pinch_share": 0.0, "limit_violation_share": 0.0,
        "limit_violation_share_2mrad": 0.0, "speed_violation_share": 0.0, "speed_ratio": 1.0,
        "acceleration_violation_share": 0.0, "acceleration_ratio": 1.0, "jerk_rad_s3": 1.0,
        "lag_frames": 0.0, "penetration_frames": 0, "penetration_max_mm": 0.0,
        "tracking_rms_rad": 0.1, "ms_per_frame": 1.0,
    }  # fmt: skip
    return plain | changes


def test_better_and_worse_are_counted():
    robots = {
        "a": {"x": {"ours": row(jerk_rad_s3=1.0, pinch_recall=0.9),
                    "m": row(jerk_rad_s3=2.0, pinch_recall=0.5)},
              "y": {"ours": row(jerk_rad_s3=3.0), "m": row(jerk_rad_s3=2.0, pinch_recall=0.5)}},
        "b": {"x": {"ours": row(direction_wrist_deg=9.0, lag_frames=-2), "m": row(lag_frames=1)}},
    }  # fmt: skip
    table, _, behind = tables.better_and_worse(robots).partition("\n\n")
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
    found = {cells[1]: cells[2] for cells in rows}
    assert found["ours better / worse"] == "m"
    assert found["jerk"] == "1 / 1"
    assert found["pinch recall"] == "1 / 0"  # more is better; not known on "y"
    assert found["direction, wrist"] == "0 / 1" and found["lag"] == "0 / 1"
    assert found["tip error, mean"] == "0 / 0"  # equal is neither
    assert set(found) == {"ours better / worse", "---", *tables.MEASURES}
    assert "direction, wrist (all); lag (all)" in " ".join(behind.split())
