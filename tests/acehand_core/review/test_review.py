"""Checks of episodes: damage whose size is known by construction, on hands that are the truth."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from acehand_core.errors import InputError, SchemaError
from acehand_core.hand.skeleton import WRIST
from acehand_core.review.checks import (
    batch_measures,
    calibrations_of,
    column_measures,
    episode_measures,
    origin_measures,
    tip_errors,
)
from acehand_core.review.decisions import apply_decisions, read_decisions
from acehand_core.review.episode import DatasetReader, Episode
from acehand_core.review.inspect import find_datasets, inspect, robot_of
from acehand_core.review.pictures import _pace, picture_changes, picture_measures
from helpers.commands import Acehand
from helpers.review_samples import EXAMPLES, true_dataset
from retarget.replay.clip import clip_measures, hand_length, hand_measures, wrist_paths
from retarget.replay.judgements import (
    JUDGEMENTS,
    Measure,
    findings,
    read_gates,
    status_of,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return true_dataset(tmp_path_factory.mktemp("review") / "blocks")


@pytest.fixture(scope="module")
def reader(dataset: Path) -> DatasetReader:
    return DatasetReader(dataset)


@pytest.fixture(scope="module")
def episode(reader: DatasetReader) -> Episode:
    return reader.read(0)


def episodes_of(dataset: Path) -> list[Episode]:
    reader = DatasetReader(dataset)
    return [reader.read(number) for number in reader.numbers]


def value(measures: list[Measure], check: str, side: str | None = None) -> float:
    """Return the largest value of a check, of one side if that is named."""
    return max(m.value for m in measures if m.check == check and side in (None, m.side))


def moved(episode: Episode, joints: np.ndarray) -> list[Measure]:
    return hand_measures(replace(episode, joints=joints))


def test_the_truth_is_accepted(dataset: Path, episode: Episode) -> None:
    inspection = inspect((dataset,))
    assert [e.status for e in inspection.episodes] == ["accepted"], inspection.episodes[0].findings
    assert (episode.task, episode.subject, len(episode)) == ("lift <two> blocks", "anna", 120)


# Every recorded column.

DAMAGED_ACTIONS = {
    "reversed in time": lambda action: action[::-1],
    "all zero": np.zeros_like,
    "15 frames late": lambda action: np.roll(action, 15, axis=0),
    "joints reversed": lambda action: action[:, ::-1],
    "one frame early": lambda action: np.concatenate([action[1:], action[-1:]]),
}


@pytest.mark.parametrize("damage", DAMAGED_ACTIONS)
def test_an_action_is_the_next_state(episode: Episode, damage: str) -> None:
    assert value(column_measures(episode), "action") == 0.0
    action = DAMAGED_ACTIONS[damage](episode.columns["action"])
    damaged = replace(episode, columns={**episode.columns, "action": action})
    found = findings(column_measures(damaged))
    assert [(f.check, f.level) for f in found] == [("action", "rejected")]


def test_no_column_may_change_unnoticed(episode: Episode, reader: DatasetReader) -> None:
    """Not a number is found in any column; other values in all that follow from other columns."""
    robot = robot_of(reader)
    made = ("observation.joints.robot", "action.register", "observation.state")
    said = ("observation.hand.confidence", "observation.camera")  # of nothing else recorded
    for name, column in episode.columns.items():
        if column.dtype.kind != "f":
            continue
        broken = column.copy()
        broken[7] = np.nan
        damaged = replace(episode, columns={**episode.columns, name: broken})
        found = findings(column_measures(damaged))
        assert ("finite", "rejected") in [(f.check, f.level) for f in found], name
        if name.startswith(("observation.hand.", "hand.")) and name not in said:
            other = {**episode.columns, name: column[::-1] + 0.01}
            found = findings(column_measures(replace(episode, columns=other)))
            assert ("hand_columns", "rejected") in [(f.check, f.level) for f in found], name
        elif name not in (*made, *said, "action"):
            raise AssertionError(f"which check reads {name}?")
    assert robot is not None


@pytest.mark.parametrize(("metres", "level"), [(0.0, None), (0.05, "doubtful"), (0.3, "rejected")])
def test_the_robot_hand_is_where_the_human_one_is(
    episode: Episode, reader: DatasetReader, metres: float, level: str | None
) -> None:
    columns = episode.robot
    assert columns is not None and columns.T_frame_base is not None
    moved_away = columns.T_frame_base.copy()
    moved_away[..., 2, 3] += metres
    damaged = replace(episode, robot=replace(columns, T_frame_base=moved_away))
    measures = [m for m in episode_measures(damaged, robot_of(reader)) if m.check == "base"]
    assert all(abs(m.value - metres) < 0.02 for m in measures)
    assert {f.level for f in findings(measures)} == ({level} if level else set())


def test_the_length_of_the_hand_is_that_of_its_bones(episode: Episode) -> None:
    # By hand: wrist to knuckle to the two joints to the tip of the middle finger.
    chain = episode.joints[0, 1][[0, 9, 10, 11, 12]]
    length = sum(np.linalg.norm(b - a) for a, b in pairwise(chain))
    assert hand_length(episode) == pytest.approx(length, rel=1e-3)


def test_another_unit_is_a_hand_of_another_size(episode: Episode) -> None:
    measures = moved(episode, 10 * episode.joints)
    length = 10 * hand_length(episode)
    assert value(measures, "hand_size") == pytest.approx(length / 0.187, rel=1e-3)
    assert status_of(findings(measures)) == "rejected"


@pytest.mark.parametrize("millimetres", [1.0, 3.0, 6.0])
def test_jitter_is_the_deviation_of_the_noise(episode: Episode, millimetres: float) -> None:
    noise = np.random.default_rng(4).normal(0, 1e-3 * millimetres, episode.joints.shape)
    measured = value(moved(episode, episode.joints + noise), "jitter")
    assert measured == pytest.approx(millimetres, rel=0.1)


def test_smooth_motion_has_no_jitter(episode: Episode) -> None:
    assert value(hand_measures(episode), "jitter") < 0.3


def test_exchanged_hands_change_places_twice(episode: Episode) -> None:
    joints = episode.joints.copy()
    joints[30:60] = joints[30:60, ::-1]
    measures = moved(episode, joints)
    swaps = next(m for m in measures if m.check == "identity_swaps")
    assert (swaps.value, swaps.frame) == (2, 30)
    assert value(hand_measures(episode), "identity_swaps") == 0


def test_a_hand_in_the_other_ones_place_bends_out_of_its_palm(episode: Episode) -> None:
    measures = moved(episode, episode.joints[:, ::-1])
    assert value(measures, "wrong_side", "left") == value(measures, "wrong_side", "right") == 1
    late = episode.joints.copy()
    late[60:] = late[60:, ::-1]
    assert value(moved(episode, late), "wrong_side") == 1
    assert value(hand_measures(episode), "wrong_side") == 0


def test_a_mirrored_hand_bends_its_fingers_backwards(episode: Episode) -> None:
    mirrored = episode.joints * [-1, 1, 1]
    measures = moved(episode, mirrored)
    assert value(measures, "bends") > 0.15
    assert value(hand_measures(episode), "bends") < 0.01


def test_a_hand_that_holds_one_pose_is_frozen_for_that_long(episode: Episode) -> None:
    joints = episode.joints.copy()
    joints[40:86, 0] = joints[40, 0]  # 46 equal frames: 45 steps of 1/30 s
    frozen = next(m for m in moved(episode, joints) if m.check == "frozen" and m.side == "left")
    assert frozen.value == pytest.approx(1.5)
    assert frozen.frame == 40
    assert value(hand_measures(episode), "frozen") < 0.1


def test_a_palm_that_turns_over_for_a_frame_flips_twice(episode: Episode) -> None:
    joints = episode.joints.copy()
    wrist, knuckle = joints[50, 1, WRIST], joints[50, 1, 9]
    axis = (knuckle - wrist) / np.linalg.norm(knuckle - wrist)
    away = joints[50, 1] - wrist
    joints[50, 1] = wrist + 2 * np.outer(away @ axis, axis) - away  # half a turn about the axis
    flips = next(m for m in moved(episode, joints) if m.check == "flips" and m.side == "right")
    assert flips.value == 2
    assert flips.frame in (50, 51)


def test_a_wrist_that_is_elsewhere_for_a_frame_jumps_twice(episode: Episode) -> None:
    joints = episode.joints.copy()
    joints[50, 1] += [0.4, 0, 0]  # 0.4 m in 1/30 s: 12 m/s
    assert value(moved(episode, joints), "speed", "right") == 2
    assert value(moved(episode, joints), "speed", "left") == 0


def test_another_camera_does_not_agree_with_what_was_seen(episode: Episode) -> None:
    motion = episode.motion
    assert motion is not None
    # The truth has no landmarks of a tracker: what the camera sees stands in for them.
    pixels = np.stack([motion.camera.project(hand) for hand in motion.joints_camera])
    seen = replace(episode, motion=replace(motion, joints_image=pixels))
    assert value(hand_measures(seen), "reprojection") < 1e-4
    longer = seen.camera * [1.5, 1.5, 1, 1, 1, 1]
    measures = hand_measures(replace(seen, camera=longer))
    assert value(measures, "depth_size") == pytest.approx(1.5, rel=1e-4)
    assert status_of(findings(measures)) == "rejected"


def test_frames_of_confidence_0_and_filled_ones_are_unsure(episode: Episode) -> None:
    confidence, filled = episode.confidence.copy(), episode.filled.copy()
    confidence[:30, 0], filled[30:90, 0] = 0, True
    unsure = clip_measures(replace(episode, confidence=confidence, filled=filled), None, None)
    assert value(unsure, "filled", "left") == pytest.approx(90 / 120)
    assert value(unsure, "filled", "right") == 0


def test_wrist_paths_are_lengths(episode: Episode) -> None:
    joints = np.zeros_like(episode.joints)
    joints[:, 1, :, 0] = np.linspace(0, 1.19, 120)[:, None]
    assert wrist_paths(replace(episode, joints=joints)) == pytest.approx([0, 1.19])


def test_time_stamps_tell_of_lost_and_repeated_frames(episode: Episode) -> None:
    stamps = np.arange(120) * 40_000_000
    stamps[70:] += 600_000_000
    measures = clip_measures(replace(episode, source_ns=stamps, fps=25.0), None, None)
    gap = next(m for m in measures if m.check == "stamp_gaps")
    assert (gap.value, gap.frame) == (pytest.approx(0.6), 69)
    stamps = np.repeat(np.arange(60) * 80_000_000, 2)
    measures = clip_measures(replace(episode, source_ns=stamps, fps=25.0), None, None)
    assert value(measures, "stamp_repeats") == pytest.approx(60 / 119)
    assert value(measures, "stamp_gaps") == pytest.approx(0.04)


def test_a_camera_of_another_picture_size_is_found(episode: Episode) -> None:
    large = replace(episode, camera=episode.camera * [2, 2, 2, 2, 1, 1])
    found = {f.check: f.level for f in findings(origin_measures(large))}
    assert found["principal_point"] == "rejected"
    other = replace(episode, camera=episode.camera * [2, 2, 2, 2, 2, 2])
    found = {f.check: f.level for f in findings(origin_measures(other))}
    assert found["field_of_view"] == "rejected"
    assert not findings(origin_measures(episode))


@pytest.mark.parametrize(
    ("licences", "level"),
    [
        (["mediapipe: Apache-2.0"], None),
        (["weights: CC BY-NC 4.0"], "note"),
        (["robot model: licence unknown"], "doubtful"),
        ([], "doubtful"),
    ],
)
def test_the_chain_of_licences(episode: Episode, licences: list[str], level: str | None) -> None:
    made = replace(episode, origin={**episode.origin, "licenses": licences})
    found = [f.level for f in findings(origin_measures(made)) if f.check == "licences"]
    assert found == ([] if level is None else [level])


def test_an_assumed_camera_is_doubtful(dataset: Path, tmp_path: Path, capsys) -> None:
    given = episodes_of(dataset)[0]
    notes = (
        "no intrinsics given: a pinhole of 60 degrees across the longer side is assumed (fx = fy = "
        "554.3 px); distances scale with it",
    )
    assumed = replace(given, origin={**given.origin, "notes": notes})
    assert [f.check for f in findings(origin_measures(assumed))] == ["camera"]
    # What the tracker itself notes of a clip without a camera:
    table = tmp_path / "hands.parquet"
    assert Acehand(capsys, "reconstruct", EXAMPLES / "two_hands.mp4", "--output", table,
                   "--duration", 0.5).code == 0  # fmt: skip
    from acehand_core.recordings.hands_file import read_hand_motion

    made = read_hand_motion(table).provenance.notes
    real = replace(given, origin={**given.origin, "notes": made})
    assert "camera" in {f.check for f in findings(origin_measures(real))}


# The robot


def test_tip_errors_are_those_of_the_conversion(reader: DatasetReader, episode: Episode) -> None:
    robot = robot_of(reader)
    fitted, missing = calibrations_of(episode, robot)
    errors = 1e3 * tip_errors(episode, robot, fitted)
    assert missing is None
    # The report's own mean was made of the trajectory, before it was written as float32.
    assert np.nanmean(errors) == pytest.approx(episode.report["tip_error_mm"]["mean"], abs=0.05)
    assert np.nanpercentile(errors, 95) == pytest.approx(
        episode.report["tip_error_mm"]["p95"], abs=0.1
    )


def test_another_robots_values_break_limits_and_couplings(
    reader: DatasetReader, episode: Episode
) -> None:
    robot = robot_of(reader)
    columns = episode.robot
    assert columns is not None and robot is not None
    assert not findings(episode_measures(episode, robot))
    other = replace(columns, joints=columns.joints[..., ::-1])
    found = {f.check for f in findings(episode_measures(replace(episode, robot=other), robot))}
    assert {"coupling", "far_tips"} <= found
    shifted = replace(columns, registers=columns.registers + 100.0)
    measures = episode_measures(replace(episode, robot=shifted), robot)
    assert value(measures, "register") == 1  # 100 of 1000 is more than 5 %
    named = replace(episode, origin={**episode.origin, "robot": "leap"})
    assert value(episode_measures(named, robot), "robot") == 1


def test_a_robot_that_stands_while_the_hand_moves(reader: DatasetReader, episode: Episode) -> None:
    columns = episode.robot
    assert columns is not None
    held = replace(columns, joints=np.broadcast_to(columns.joints[:1], columns.joints.shape))
    measures = episode_measures(replace(episode, robot=held), robot_of(reader))
    assert value(measures, "still") == 1


def test_an_arm_that_does_not_reach(reader: DatasetReader, episode: Episode) -> None:
    columns = episode.robot
    assert columns is not None
    reached = np.ones((120, 2), bool)
    reached[100:112, 1] = False
    with_arms = replace(episode, robot=replace(columns, arm_reached=reached))
    measures = [m for m in episode_measures(with_arms, robot_of(reader)) if m.check == "reach"]
    assert [(m.side, m.value, m.frame) for m in measures] == [("left", 0, 0), ("right", 0.1, 100)]
    assert not any(m.check == "reach" for m in episode_measures(episode, robot_of(reader)))


def test_a_missing_calibration_is_doubtful(dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy")
    (copy / "acehand/episode_000000/calibration.json").unlink()
    reader = DatasetReader(copy)
    found = findings(episode_measures(reader.read(0), robot_of(reader)))
    assert [(f.check, f.level) for f in found] == [("calibration", "doubtful")]


# Pictures


def test_pictures_that_repeat_or_jump() -> None:
    even = np.full(100, 5.0) + np.random.default_rng(0).normal(0, 0.3, 100)
    repeated = even.copy()
    repeated[[20, 40, 41, 60, 80]] = 0.05
    jumped = even.copy()
    jumped[50] = 40.0
    turned = even.copy()
    turned[50:53] = 40.0  # a camera that turns fast is no jump
    checks = {m.check: m for m in _pace(repeated)}
    assert checks["repeated_pictures"].value == pytest.approx(0.05)
    assert {m.check: m.value for m in _pace(jumped)}["picture_jumps"] == 1
    assert {m.check: m.value for m in _pace(turned)}["picture_jumps"] == 0
    assert all(m.value == 0 for m in _pace(even))
    # Where a frame is lost, what two changes would have been is seen at once.
    lost = even.copy()
    lost[[10, 30, 33, 70]] *= 2
    assert {m.check: m.value for m in _pace(lost)}["uneven_pictures"] == 4
    assert {m.check: m.value for m in _pace(0.1 * lost)}["uneven_pictures"] == 0  # hardly moves


def test_changes_of_pictures_are_grey_levels(reader: DatasetReader) -> None:
    recording = reader.recording(0)
    changes = picture_changes(recording)
    assert len(changes) == 119
    import cv2

    pictures = [cv2.cvtColor(cv2.resize(image, (160, 120), interpolation=cv2.INTER_AREA),
                             cv2.COLOR_RGB2GRAY).astype(float)
                for image in recording.frames.read(0, 120)]  # fmt: skip
    own = [np.abs(b - a).mean() for a, b in pairwise(pictures)]
    assert changes == pytest.approx(own, rel=0.1, abs=0.15)


@pytest.fixture(scope="module")
def networks() -> None:
    from acehand_core.trackers.mediapipe import networks

    if networks.installed() is None:
        pytest.skip("MediaPipe's networks are not installed (acehand weights fetch hands)")


@pytest.mark.parametrize("late", [-4, 0, 4])
def test_hands_of_another_moment_are_found(
    networks: None, reader: DatasetReader, episode: Episode, late: int
) -> None:
    shifted = replace(episode, joints=np.roll(episode.joints, late, axis=0))
    measures = picture_measures(shifted, reader.recording(0))
    assert abs(value(measures, "picture_lag") - abs(late)) <= 1
    text = next(m.text for m in measures if m.check == "picture_lag")
    assert not late or ("earlier" if late > 0 else "later") in text
    assert (status_of(findings(measures)) == "accepted") == (late == 0)


def test_hands_through_another_camera_and_of_the_other_side_are_found(
    networks: None, reader: DatasetReader, episode: Episode
) -> None:
    # The network's hands are a few percent smaller than the rendered ones to begin with.
    usual = value(picture_measures(episode, reader.recording(0)), "picture_size")
    longer = replace(episode, camera=episode.camera * [1.3, 1.3, 1, 1, 1, 1])
    measures = picture_measures(longer, reader.recording(0))
    assert value(measures, "picture_size") / usual == pytest.approx(1.3, rel=0.05)
    swapped = replace(episode, joints=episode.joints[:, ::-1])
    measures = picture_measures(swapped, reader.recording(0))
    assert value(measures, "picture_sides") > 0.6


# The batch


def facts(count: int = 8) -> list[dict]:
    return [
        {"camera": [500.0, 500, 320, 240, 640, 480], "source_size": None, "subject": "anna",
         "task": "pour", "work": [0.1, 1.0], "hand_length": 0.18, "fingerprint": f"{n:032x}",
         "measures": (Measure("jitter", 0.3, ""),)} for n in range(count)
    ]  # fmt: skip


def test_an_episode_unlike_the_others_stands_out() -> None:
    batch = facts()
    batch[3] |= {"camera": [800.0, 800, 320, 240, 640, 480]}
    batch[4] |= {"work": [1.0, 0.1]}
    batch[5] |= {"hand_length": 0.207}
    batch[6] |= {"measures": (Measure("jitter", 1.8, ""),)}
    batch[7] |= {"fingerprint": batch[0]["fingerprint"]}
    found = [{m.check: m.value for m in measures if m.value > JUDGEMENTS[m.check].doubtful}
             for measures in batch_measures(batch)]  # fmt: skip
    assert found[3] == {"batch_camera": pytest.approx(0.6)}
    assert found[4] == {"batch_side": 1.0}
    assert found[5] == {"batch_hand_size": pytest.approx(0.15)}
    assert found[6] == {"batch_jitter": pytest.approx(6.0)}
    assert found[0] == found[7] == {"batch_twice": 1.0}
    assert not any(found[i] for i in (1, 2))


def test_sizes_made_alike_are_no_other_camera() -> None:
    """A pinhole of 60 degrees letterboxed to 640 x 480: 1280 x 720 by 1/2, 720 x 1280 by 3/8."""
    batch = facts()
    focal = 640 / np.tan(np.pi / 6)
    for episode in batch:
        episode |= {"camera": [focal / 2, 0, 0, 0, 640, 480], "source_size": [1280, 720]}
    for n in (2, 5):
        batch[n] |= {"camera": [focal * 3 / 8, 0, 0, 0, 640, 480], "source_size": [720, 1280]}

    def odd() -> list[int]:
        return [n for n, measures in enumerate(batch_measures(batch)) for m in measures
                if m.check == "batch_camera"
                and m.value > JUDGEMENTS["batch_camera"].doubtful]  # fmt: skip

    assert odd() == []
    batch[3] |= {"camera": [focal * 0.6, 0, 0, 0, 640, 480]}
    assert odd() == [3]


def test_a_camera_that_none_knows_is_said_once(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
) -> None:
    """Marking every episode would mark none. One that alone has no camera stands out."""
    read, assumed = DatasetReader.read, "a pinhole of 60 degrees is assumed"
    folders = [dataset, shutil.copytree(dataset, tmp_path / "more")]

    def without(*names: str) -> None:
        def changed(self: DatasetReader, number: int) -> Episode:
            made, name = read(self, number), self.dataset.name
            notes = (assumed,) if name in names else ()
            return replace(made, fingerprint=name, origin={**made.origin, "notes": notes})

        monkeypatch.setattr(DatasetReader, "read", changed)

    without(dataset.name, "more")
    words = ["inspect", *folders, "--looks", 0, "--output", tmp_path / "report", "--no-page"]
    run = Acehand(capsys, *words)
    assert run.json["accepted"] == 2
    note = f"of all 2 episodes the camera was not known: {assumed}"
    assert json.loads((tmp_path / "report/report.json").read_text())["notes"] == [note]
    assert run.err.count(assumed) == 1 and note in run.err

    without("more")
    inspection = inspect(folders, looks=0)
    assert [e.status for e in inspection.episodes] == ["accepted", "doubtful"]
    assert inspection.notes == []


def test_several_cameras_say_nothing_of_one() -> None:
    batch = facts()
    for index, episode in enumerate(batch):
        episode["camera"] = [400.0 + 100 * index, 500, 320, 240, 640, 480]
    assert not any(m.check == "batch_camera" for ms in batch_measures(batch) for m in ms)


# Limits, gates, folders


def test_limits_can_be_changed_and_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text("jitter: {doubtful: 0.5}\nframe: {doubtful: 1}\n")
    with pytest.raises(SchemaError, match="frame is not"):
        read_gates(path)
    path.write_text("jitter: {doubtful: 0.5, rejected: null}\n")
    limits = read_gates(path)
    assert (limits["jitter"].doubtful, limits["jitter"].rejected) == (0.5, float("inf"))
    assert findings([Measure("jitter", 99.0, "")], limits)[0].level == "doubtful"
    for wrong in ("{doubtful: 5, rejected: 1}", "{doubtful: much}", "3", "{reject: 3}"):
        path.write_text(f"jitter: {wrong}\n")
        with pytest.raises(SchemaError, match="jitter"):
            read_gates(path)


def test_a_folder_of_datasets_is_inspected_together(dataset: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(dataset)
    shutil.copytree(dataset, tmp_path / "c")
    shutil.copytree(dataset, tmp_path / ".hidden")
    shutil.copytree(dataset, tmp_path / "deeper/c")
    found = find_datasets((tmp_path,))
    assert found == (dataset.resolve(), tmp_path / "c", tmp_path / "deeper/c")
    both = inspect((tmp_path / "c", tmp_path / "deeper"), looks=0)
    assert len(set(both.names)) == 2
    assert [f.check for e in both.episodes for f in e.findings] == ["batch_twice"] * 2
    with pytest.raises(InputError, match="c/data"):
        find_datasets((tmp_path / "c/data",))
    with pytest.raises(InputError, match="no such folder"):
        find_datasets((tmp_path / "none",))


def test_gates_make_the_exit_code(dataset: Path, tmp_path: Path, capsys) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy")
    (copy / "acehand/episode_000000/calibration.json").unlink()
    report = tmp_path / "report"
    arguments = ("inspect", copy, "--no-page", "--looks", 0, "--output", report)
    loose = Acehand(capsys, *arguments, "--max-rejected", 0)
    assert (loose.code, loose.json["doubtful"], loose.json["passed"]) == (0, 1, True)
    strict = Acehand(capsys, *arguments, "--max-doubtful", 0.5)
    assert (strict.code, strict.json["passed"]) == (1, False)
    said = json.loads((report / "report.json").read_text())
    assert said["reasons"] == {"calibration": 1}
    assert said["by_subject"] == {"anna": {"accepted": 0, "doubtful": 1, "rejected": 0}}


def test_another_report_is_not_written_over(dataset: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "report.json").write_text('{"verdict": "pass"}')
    refused = Acehand(capsys, "inspect", dataset, "--no-page", "--looks", 0, "--output", tmp_path)
    assert (refused.code, "report.json" in refused.err) == (4, True)
    assert (tmp_path / "report.json").read_text() == '{"verdict": "pass"}'


def test_a_damaged_episode_is_rejected_and_the_rest_inspected(
    dataset: Path, tmp_path: Path
) -> None:
    from acehand_core.lerobot.edit import merge_datasets

    merged = tmp_path / "merged"
    merge_datasets((dataset, shutil.copytree(dataset, tmp_path / "copy")), merged)
    data = sorted(merged.glob("data/*/*.parquet"))
    content = bytearray(data[1].read_bytes())
    content[len(content) // 2] ^= 0xFF
    data[1].write_bytes(content)
    inspection = inspect((merged,), looks=0)
    assert [e.status for e in inspection.episodes] == ["accepted", "rejected"]
    assert inspection.episodes[1].findings[0].check == "unreadable"


def test_kept_measures_are_taken_while_nothing_changed(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acehand_core.review import inspect as module

    copy = shutil.copytree(dataset, tmp_path / "copy")
    first = inspect((copy,), looks=0, work=tmp_path / "work")
    calls = []
    real = module.episode_measures
    monkeypatch.setattr(module, "episode_measures", lambda *e: calls.append(1) or real(*e))
    again = inspect((copy,), looks=0, work=tmp_path / "work")
    assert not calls
    assert [f.to_json() for f in again.episodes[0].findings] == [
        f.to_json() for f in first.episodes[0].findings
    ]
    (copy / "acehand/episode_000000/calibration.json").unlink()
    assert inspect((copy,), looks=0, work=tmp_path / "work").episodes[0].status == "doubtful"
    assert calls


# Decisions


def decided(path: Path, *entries: dict) -> Path:
    path.write_text(json.dumps({"format": "acehand-decisions", "version": 1,
                                "decisions": [{"dataset": "d", "episode": 0, **e}
                                              for e in entries]}))  # fmt: skip
    return path


@pytest.fixture
def three(dataset: Path, tmp_path: Path) -> Path:
    """Three episodes: the whole one, and two pieces of it, which differ."""
    from acehand_core.lerobot.edit import merge_datasets
    from acehand_core.lerobot.trim import trim_episodes
    from acehand_core.lerobot.trim_rules import TrimCut
    from acehand_core.review.decisions import write_beside

    pieces = shutil.copytree(dataset, tmp_path / "pieces")
    trim_episodes(pieces, {0: [TrimCut(50, 60, "middle")]}, write_beside, delete=True)
    merge_datasets((dataset, pieces), tmp_path / "three")
    return tmp_path / "three"


def lengths(root: Path) -> list[int]:
    return [len(episode) for episode in episodes_of(root)]


def test_decisions_remove_and_trim_the_episodes_they_mean(three: Path, tmp_path: Path) -> None:
    assert lengths(three) == [120, 50, 60]
    prints = [episode.fingerprint for episode in episodes_of(three)]
    assert len(set(prints)) == 3
    path = decided(
        tmp_path / "d.json",
        {"fingerprint": prints[0], "decision": "reject"},
        {"fingerprint": prints[2], "trim": [10, 40], "decision": "accept"},
        {"fingerprint": "of something else", "decision": "reject"},
    )
    dry = apply_decisions(three, read_decisions(path), dry_run=True)
    assert lengths(three) == [120, 50, 60]
    assert [e["episode"] for e in dry.removal.removed] == [0]
    assert [e["episode"] for e in dry.trimming.trimmed] == [2]

    before = [episode.joints for episode in episodes_of(three)]
    applied = apply_decisions(three, read_decisions(path))
    assert (applied.stale, lengths(three)) == (1, [50, 30])
    after = [episode.joints for episode in episodes_of(three)]
    assert np.array_equal(after[0], before[1])
    assert np.array_equal(after[1], before[2][10:40])
    # The second time they mean nothing that is there, but for the episode that was trimmed.
    with pytest.raises(InputError, match="none of the 3 decisions"):
        apply_decisions(three, read_decisions(path))


@pytest.mark.parametrize(("keep", "left"), [("undecided", 3), ("doubt", 2), ("accept", 1)])
def test_the_least_that_stays(three: Path, tmp_path: Path, keep: str, left: int) -> None:
    prints = [episode.fingerprint for episode in episodes_of(three)]
    path = decided(tmp_path / "d.json", {"fingerprint": prints[0], "decision": "accept"},
                   {"fingerprint": prints[1], "decision": "doubt"})  # fmt: skip
    apply_decisions(three, read_decisions(path), keep=keep)
    assert len(lengths(three)) == left


def test_renumbering_does_not_move_decisions(three: Path, tmp_path: Path) -> None:
    from acehand_core.lerobot.edit import remove_episodes

    last = [episode.fingerprint for episode in episodes_of(three)][2]
    remove_episodes(three, (0,))
    assert [episode.fingerprint for episode in episodes_of(three)][1] == last


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"fingerprint": ""}, "fingerprint"),
        ({"fingerprint": "x", "decision": "maybe"}, "maybe"),
        ({"fingerprint": "x", "trim": [5, 5]}, "trim"),
        ({"fingerprint": "x", "trim": [-1, 5]}, "trim"),
        ({"fingerprint": "x", "trim": "all"}, "trim"),
        ({"fingerprint": "x", "trim": ["0", None]}, "trim"),
    ],
)
def test_a_wrong_decision_is_refused(tmp_path: Path, entry: dict, wrong: str) -> None:
    with pytest.raises(SchemaError, match=wrong):
        read_decisions(decided(tmp_path / "d.json", entry))


def test_a_trim_outside_its_episode_changes_nothing(three: Path, tmp_path: Path) -> None:
    prints = [episode.fingerprint for episode in episodes_of(three)]
    path = decided(tmp_path / "d.json", {"fingerprint": prints[0], "decision": "reject"},
                   {"fingerprint": prints[1], "trim": [0, 51]})  # fmt: skip
    with pytest.raises(InputError, match="has 50 frames"):
        apply_decisions(three, read_decisions(path))
    assert lengths(three) == [120, 50, 60]


def test_filter_takes_rules_or_decisions(three: Path, tmp_path: Path, capsys) -> None:
    neither = Acehand(capsys, "dataset", "filter", three)
    assert (neither.code, "--rules or --decisions" in neither.err) == (2, True)
    prints = [episode.fingerprint for episode in episodes_of(three)]
    path = decided(tmp_path / "d.json", {"fingerprint": prints[1], "decision": "reject"})
    done = Acehand(capsys, "dataset", "filter", three, "--decisions", path)
    assert (done.code, done.json["removal"]["episodes"], done.json["trimming"]) == (0, 2, None)
