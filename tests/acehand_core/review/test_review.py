"""Checks of episodes: damage whose size is known by construction, on hands that are the truth."""

import functools
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.errors import InputError, SchemaError
from acehand_core.hand.skeleton import WRIST
from acehand_core.lerobot.episode import DatasetReader, Episode
from acehand_core.review.decisions import apply_decisions, read_decisions
from acehand_core.review.inspect import find_datasets, inspect, robot_of
from acehand_core.review.measures import (
    batch_measures,
    calibrations_of,
    column_measures,
    episode_measures,
    origin_measures,
    tip_errors,
)
from acehand_core.review.pictures import _pace, picture_measures
from helpers.commands import Acehand
from helpers.review_samples import true_dataset
from helpers.video_fixtures import Images
from retarget.replay.checks import CHECKS, Measure, findings, read_limits, status_of
from retarget.replay.clip import clip_measures, hand_length, hand_measures

#: Frames in which hands are looked for: half of the usual.
LOOKS = 6


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return true_dataset(tmp_path_factory.mktemp("review") / "blocks")


@pytest.fixture(scope="module")
def reader(dataset):
    return DatasetReader(dataset)


@pytest.fixture(scope="module")
def episode(reader):
    return reader.read(0)


@pytest.fixture(scope="module")
def recording(reader):
    """Its video, decoded once."""
    video = reader.recording(0)
    return replace(video, frames=Images([*video.frames.read(0, len(video.frames))]))


def episodes_of(dataset: Path) -> list[Episode]:
    reader = DatasetReader(dataset)
    return [reader.read(number) for number in reader.numbers]


def value(measures: list[Measure], check: str, side: str | None = None) -> float:
    """Return the largest value of a check, of one side if that is named."""
    return max(m.value for m in measures if m.check == check and side in (None, m.side))


def test_the_truth_is_accepted(dataset, episode):
    inspection = inspect((dataset,))
    assert [e.status for e in inspection.episodes] == ["pass"], inspection.episodes[0].findings
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
def test_an_action_is_the_next_state(episode, damage):
    assert value(column_measures(episode), "action") == 0.0
    action = DAMAGED_ACTIONS[damage](episode.columns["action"])
    damaged = replace(episode, columns={**episode.columns, "action": action})
    found = findings(column_measures(damaged))
    assert [(f.check, f.level) for f in found] == [("action", "fail")]


def test_no_column_may_change_unnoticed(episode):
    """Not a number is found in any column; other values in all that follow from other columns."""
    made = ("observation.joints.robot", "action.register", "observation.state", "action")
    alone = ("observation.hand.confidence", "observation.camera")  # of nothing else recorded

    def found(name, column):
        damaged = replace(episode, columns={**episode.columns, name: column})
        return [(f.check, f.level) for f in findings(column_measures(damaged))]

    for name, column in episode.columns.items():
        if column.dtype.kind != "f":
            continue
        broken = column.copy()
        broken[7] = np.nan
        assert ("finite", "fail") in found(name, broken), name
        if name not in (*made, *alone):
            assert ("hand_columns", "fail") in found(name, column[::-1] + 0.01), name


@pytest.mark.parametrize(("metres", "level"), [(0.0, None), (0.05, "warn"), (0.3, "fail")])
def test_the_robot_hand_is_where_the_human_one_is(episode, reader, metres, level):
    columns = episode.robot
    moved_away = columns.T_frame_base.copy()
    moved_away[..., 2, 3] += metres
    damaged = replace(episode, robot=replace(columns, T_frame_base=moved_away))
    measures = [m for m in episode_measures(damaged, robot_of(reader)) if m.check == "base"]
    assert all(abs(m.value - metres) < 0.02 for m in measures)
    assert {f.level for f in findings(measures)} == ({level} if level else set())


def test_the_length_of_the_hand_is_that_of_its_bones(episode):
    # By hand: wrist to knuckle to the two joints to the tip of the middle finger.
    chain = episode.joints[0, 1][[0, 9, 10, 11, 12]]
    length = sum(np.linalg.norm(b - a) for a, b in pairwise(chain))
    assert hand_length(episode) == pytest.approx(length, rel=1e-3)


def with_frames(joints, frames, change):
    out = joints.copy()
    out[frames] = change(joints[frames])
    return out


def turned_over(hands):
    """Half a turn of the right hand about its middle finger."""
    out = hands.copy()
    away = out[1] - out[1, WRIST]
    axis = away[9] / np.linalg.norm(away[9])
    out[1] = out[1, WRIST] + 2 * np.outer(away @ axis, axis) - away
    return out


#: What is done to the joints (T, 2, 21, 3), check and side, the value, and the frame it names.
DAMAGES = {
    "another unit": (lambda j: 10 * j, "hand_size", None, pytest.approx(9.9, abs=0.5), None),
    "exchanged": (lambda j: with_frames(j, np.s_[30:60], lambda h: h[:, ::-1]),
                  "identity_swaps", None, 2, 30),
    "left as right": (lambda j: j[:, ::-1], "wrong_side", "left", 1, None),
    "right as left": (lambda j: j[:, ::-1], "wrong_side", "right", 1, None),
    "half as the other": (lambda j: with_frames(j, np.s_[60:], lambda h: h[:, ::-1]),
                          "wrong_side", None, 1, None),
    "mirrored": (lambda j: j * [-1, 1, 1], "bends", None, pytest.approx(0.3, abs=0.15), None),
    # 46 equal frames: 45 steps of 1/30 s.
    "frozen": (lambda j: with_frames(j, np.s_[40:86, 0], lambda h: h[:1]),
               "frozen", "left", pytest.approx(1.5), 40),
    "turned over": (lambda j: with_frames(j, 50, turned_over), "flips", "right", 2, None),
    # 0.4 m in 1/30 s: 12 m/s, there and back.
    "elsewhere": (lambda j: with_frames(j, np.s_[50, 1], lambda h: h + 0.4 * np.eye(3)[0]),
                  "speed", "right", 2, None),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_joints_are_found(episode, name):
    damage, check, side, wanted, frame = DAMAGES[name]
    found = hand_measures(replace(episode, joints=damage(episode.joints)))
    largest = max((m for m in found if m.check == check and side in (None, m.side)),
                  key=lambda m: m.value)  # fmt: skip
    assert largest.value == wanted and frame in (None, largest.frame)
    assert value(hand_measures(episode), check, side) < (1.2 if check == "hand_size" else 0.1)


@pytest.mark.parametrize("millimetres", [1.0, 6.0])
def test_jitter_is_the_deviation_of_the_noise(episode, millimetres):
    noise = np.random.default_rng(4).normal(0, 1e-3 * millimetres, episode.joints.shape)
    noisy = hand_measures(replace(episode, joints=episode.joints + noise))
    assert value(noisy, "jitter") == pytest.approx(millimetres, rel=0.1)
    assert value(hand_measures(episode), "jitter") < 0.3


def test_another_camera_does_not_agree_with_what_was_seen(episode):
    motion = episode.motion
    # The truth has no landmarks of a tracker: what the camera sees stands in for them.
    pixels = np.stack([motion.camera.project(hand) for hand in motion.joints_camera])
    seen = replace(episode, motion=replace(motion, joints_image=pixels))
    assert value(hand_measures(seen), "reprojection") < 1e-4
    longer = seen.camera * [1.5, 1.5, 1, 1, 1, 1]
    measures = hand_measures(replace(seen, camera=longer))
    assert value(measures, "depth_size") == pytest.approx(1.5, rel=1e-4)
    assert status_of(findings(measures)) == "fail"


def test_what_a_clip_says_of_its_frames(episode):
    """Time stamps tell of lost and repeated ones; of confidence 0 and filled they are unsure."""

    def measures(**changes):
        return clip_measures(replace(episode, **changes), None, None)

    stamps = np.arange(120) * 40_000_000
    stamps[70:] += 600_000_000
    gap = next(m for m in measures(source_ns=stamps, fps=25.0) if m.check == "stamp_gaps")
    assert (gap.value, gap.frame) == (pytest.approx(0.6), 69)
    repeated = measures(source_ns=np.repeat(np.arange(60) * 80_000_000, 2), fps=25.0)
    assert value(repeated, "stamp_repeats") == pytest.approx(60 / 119)
    assert value(repeated, "stamp_gaps") == pytest.approx(0.04)

    confidence, filled = episode.confidence.copy(), episode.filled.copy()
    confidence[:30, 0], filled[30:90, 0] = 0, True
    unsure = measures(confidence=confidence, filled=filled)
    assert value(unsure, "filled", "left") == pytest.approx(90 / 120)
    assert value(unsure, "filled", "right") == 0


@pytest.mark.parametrize(("licences", "levels"), [
    (["mediapipe: Apache-2.0"], []), (["weights: CC BY-NC 4.0"], ["note"]),
    (["robot model: licence unknown"], ["warn"]), ([], ["warn"]),
])  # fmt: skip
def test_the_chain_of_licences(episode, licences, levels):
    made = replace(episode, origin={**episode.origin, "licenses": licences})
    assert [f.level for f in findings(origin_measures(made)) if f.check == "licences"] == levels


def test_a_camera_that_is_assumed_or_of_another_size_is_found(episode):
    def levels(**changes):
        found = findings(origin_measures(replace(episode, **changes)))
        return {f.check: f.level for f in found}

    assert not levels()
    assert levels(camera=episode.camera * [2, 2, 2, 2, 1, 1])["principal_point"] == "fail"
    assert levels(camera=episode.camera * [2, 2, 2, 2, 2, 2])["field_of_view"] == "fail"
    assumed = ("no intrinsics given: a pinhole of 60 degrees across the longer side is assumed",)
    old = {k: v for k, v in episode.origin.items() if k != "assumed"}  # before it was recorded
    assert levels(origin={**old, "notes": assumed}) == {"camera": "note"}


def test_tip_errors_are_those_of_the_conversion(reader, episode):
    robot = robot_of(reader)
    fitted, missing = calibrations_of(episode, robot)
    errors = 1e3 * tip_errors(episode, robot, fitted)
    assert missing is None
    # The report's own values were made of the trajectory, before it was written as float32.
    stated = episode.report["tip_error_mm"]
    assert np.nanmean(errors) == pytest.approx(stated["mean"], abs=0.05)
    assert np.nanpercentile(errors, 95) == pytest.approx(stated["p95"], abs=0.1)


def test_another_robots_values_break_limits_and_couplings(reader, episode):
    robot, columns = robot_of(reader), episode.robot

    def measures(**changes):
        return episode_measures(replace(episode, robot=replace(columns, **changes)), robot)

    assert not findings(measures())
    found = {f.check for f in findings(measures(joints=columns.joints[..., ::-1]))}
    assert {"coupling", "far_tips"} <= found
    # 100 of 1000 is more than 5 %.
    assert value(measures(registers=columns.registers + 100.0), "register") == 1
    held = np.broadcast_to(columns.joints[:1], columns.joints.shape)
    assert value(measures(joints=held), "still") == 1
    reached = np.ones((120, 2), bool)
    reached[100:112, 1] = False
    reach = [m for m in measures(arm_reached=reached) if m.check == "reach"]
    assert [(m.side, m.value, m.frame) for m in reach] == [("left", 0, 0), ("right", 0.1, 100)]
    assert not any(m.check == "reach" for m in measures())
    named = replace(episode, origin={**episode.origin, "robot": "leap"})
    assert value(episode_measures(named, robot), "robot") == 1


def test_pictures_that_repeat_or_jump():
    even = np.full(100, 5.0) + np.random.default_rng(0).normal(0, 0.3, 100)

    def pace(places, change):
        changes = even.copy()
        changes[places] = change(changes[places])
        return {m.check: m.value for m in _pace(changes)}

    assert not any(pace([], np.abs).values())
    repeated = pace([20, 40, 41, 60, 80], lambda _: 0.05)
    assert repeated["repeated_pictures"] == pytest.approx(0.05)
    assert pace([50], lambda _: 40.0)["picture_jumps"] == 1
    # A camera that turns fast is no jump.
    assert pace([50, 51, 52], lambda _: 40.0)["picture_jumps"] == 0
    # Where a frame is lost, what two changes would have been is seen at once.
    assert pace([10, 30, 33, 70], lambda c: 2 * c)["uneven_pictures"] == 4


@pytest.fixture(scope="module")
def networks():
    from acehand_core.trackers.mediapipe import networks

    if networks.installed() is None:
        pytest.skip("MediaPipe's networks are not installed (acehand weights fetch hands)")


@pytest.mark.parametrize("late", [-4, 0, 4])
def test_hands_of_another_moment_are_found(networks, recording, episode, late):
    shifted = replace(episode, joints=np.roll(episode.joints, late, axis=0))
    measures = picture_measures(shifted, recording, looks=LOOKS)
    assert abs(value(measures, "picture_lag") - abs(late)) <= 1
    text = next(m.text for m in measures if m.check == "picture_lag")
    assert not late or ("earlier" if late > 0 else "later") in text
    assert (status_of(findings(measures)) == "pass") == (late == 0)


def test_hands_through_another_camera_and_of_the_other_side_are_found(networks, recording, episode):
    def measured(check, **changes):
        return value(picture_measures(replace(episode, **changes), recording, LOOKS), check)

    # The network's hands are a few percent smaller than the rendered ones to begin with.
    longer = measured("picture_size", camera=episode.camera * [1.3, 1.3, 1, 1, 1, 1])
    assert longer / measured("picture_size") == pytest.approx(1.3, rel=0.05)
    assert measured("picture_sides", joints=episode.joints[:, ::-1]) > 0.6


def desk(image):
    """A picture without a hand, with noise."""
    noise = np.random.default_rng(0).normal(150, 4, image.shape)
    return np.clip(noise, 0, 255).astype(np.uint8)


PICTURES = {
    "recorded": lambda image: image,
    "small": lambda image: cv2.resize(cv2.resize(image, None, fx=0.2, fy=0.2), image.shape[1::-1]),
    "black": np.zeros_like,
    "desk": desk,
    "test pattern": lambda image: np.indices(image.shape).sum(0).astype(np.uint8),
    "heavy blur": lambda image: cv2.GaussianBlur(image, (0, 0), 20),
}


class Shown(Images):
    """Frames that show something else where hands are looked for."""

    def __init__(self, images, change):
        super().__init__(images)
        self.at = functools.cache(lambda number: change(images[number]))

    def read(self, start, stop):
        return iter(self.images[start:stop])


@pytest.mark.parametrize("pictures", PICTURES)
def test_hands_that_the_video_does_not_show_are_rejected(networks, recording, episode, pictures):
    """Each hand alone; those of other trackers, which may wear gloves, are doubtful."""
    shown = replace(recording, frames=Shown(recording.frames.images, PICTURES[pictures]))

    def levels(tracker, **changes):
        changed = replace(episode, origin={**episode.origin, "tracker": tracker}, **changes)
        measures = picture_measures(changed, shown, looks=LOOKS)
        return {f.side: f.level for f in findings(measures) if f.check == "picture_missing"}

    sides = () if pictures in ("recorded", "small") else ("left", "right")
    assert levels("mediapipe") == dict.fromkeys(sides, "fail")
    assert levels("gloves") == dict.fromkeys(sides, "warn")
    # Out of view or doubtful, a hand is not looked for.
    away = episode.joints.copy()
    away[:, 0, :, 0] += 5
    trusted = episode.confidence.copy()
    trusted[:, 1] = 0
    assert levels("mediapipe", joints=away, confidence=trusted) == {}


def test_a_hand_where_there_is_none_is_rejected(networks, recording, episode):
    joints = episode.joints.copy()
    joints[:, 0, :, :2] = joints[:, 0, :, :2] * 0.5 + [-0.1, -0.15]
    invented = replace(episode, joints=joints, origin={**episode.origin, "tracker": "mediapipe"})
    found = findings(picture_measures(invented, recording, LOOKS))
    assert [(f.side, f.level) for f in found if f.check == "picture_missing"] == [("left", "fail")]


def facts(count: int = 8) -> list[dict]:
    return [
        {"camera": [500.0, 500, 320, 240, 640, 480], "source_size": None, "subject": "anna",
         "task": "pour", "work": [0.1, 1.0], "hand_length": 0.18, "fingerprint": f"{n:032x}",
         "measures": (Measure("jitter", 0.3, ""),)} for n in range(count)
    ]  # fmt: skip


def test_an_episode_unlike_the_others_stands_out():
    batch = facts()
    batch[3] |= {"camera": [800.0, 800, 320, 240, 640, 480]}
    batch[4] |= {"work": [1.0, 0.1]}
    batch[5] |= {"hand_length": 0.207}
    batch[6] |= {"measures": (Measure("jitter", 1.8, ""),)}
    batch[7] |= {"fingerprint": batch[0]["fingerprint"]}
    found = [{m.check: m.value for m in measures if m.value > CHECKS[m.check].warn}
             for measures in batch_measures(batch)]  # fmt: skip
    assert found[3] == {"batch_camera": pytest.approx(0.6)} and found[4] == {"batch_side": 1.0}
    assert found[5] == {"batch_hand_size": pytest.approx(0.15)}
    assert found[6] == {"batch_jitter": pytest.approx(6.0)}
    assert found[0] == found[7] == {"batch_twice": 1.0} and not any(found[i] for i in (1, 2))


def test_sizes_made_alike_are_no_other_camera():
    """A pinhole of 60 degrees letterboxed to 640 x 480: 1280 x 720 by 1/2, 720 x 1280 by 3/8."""
    batch = facts()
    focal = 640 / np.tan(np.pi / 6)
    for episode in batch:
        episode |= {"camera": [focal / 2, 0, 0, 0, 640, 480], "source_size": [1280, 720]}
    for n in (2, 5):
        batch[n] |= {"camera": [focal * 3 / 8, 0, 0, 0, 640, 480], "source_size": [720, 1280]}

    def odd():
        return [n for n, measures in enumerate(batch_measures(batch)) for m in measures
                if m.check == "batch_camera"
                and m.value > CHECKS["batch_camera"].warn]  # fmt: skip

    assert odd() == []
    batch[3] |= {"camera": [focal * 0.6, 0, 0, 0, 640, 480]}
    assert odd() == [3]


def test_an_assumed_lens_is_said_of_one_episode_as_of_many(dataset, monkeypatch, capsys, tmp_path):
    """The rating of an episode does not depend on its company."""
    read = DatasetReader.read
    folders = [dataset, shutil.copytree(dataset, tmp_path / "more")]

    def changed(self, number):
        made = read(self, number)
        origin = {**made.origin, "assumed": {"lens": 0.35}}
        return replace(made, fingerprint=self.dataset.name, origin=origin)

    monkeypatch.setattr(DatasetReader, "read", changed)
    for count in (1, 2):
        output = tmp_path / f"report{count}"
        words = ["inspect", *folders[:count], "--looks", 0, "--output", output, "--no-page"]
        run = Acehand(capsys, *words)
        report = json.loads((output / "report.json").read_text())
        assert run.json["pass"] == count and run.json["warn"] == 0
        (note,) = report["notes"]
        assert str(count) in note and "lens" in note and "35%" in note and note in run.err
        for episode in report["episodes"]:
            assert [f["level"] for f in episode["findings"] if f["check"] == "assumed"] == ["note"]


def test_limits_can_be_changed_and_are_checked(tmp_path):
    path = tmp_path / "limits.yaml"
    path.write_text("jitter: {warn: 0.5, fail: null}\n")
    limits = read_limits(path)
    assert (limits["jitter"].warn, limits["jitter"].fail) == (0.5, float("inf"))
    assert findings([Measure("jitter", 99.0, "")], limits)[0].level == "warn"
    for wrong in ("jitter: {warn: 5, fail: 1}", "jitter: {warn: much}", "jitter: 3",
                  "jitter: {reject: 3}", "frame: {warn: 1}"):  # fmt: skip
        path.write_text(wrong)
        with pytest.raises(SchemaError, match=wrong.partition(":")[0]):
            read_limits(path)


def test_a_folder_of_datasets_is_inspected_together(dataset, tmp_path):
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


def test_limits_make_the_exit_code(dataset, tmp_path, capsys):
    """Of an episode without its calibration, which warns."""
    copy = shutil.copytree(dataset, tmp_path / "copy")
    (copy / "acehand/episode_000000/calibration.json").unlink()
    report = tmp_path / "report"
    arguments = ("inspect", copy, "--no-page", "--looks", 0, "--output", report)
    loose = Acehand(capsys, *arguments, "--max-failed", 0)
    assert (loose.code, loose.json["warn"], loose.json["passed"]) == (0, 1, True)
    strict = Acehand(capsys, *arguments, "--max-warned", 0.5)
    assert (strict.code, strict.json["passed"]) == (1, False)
    said = json.loads((report / "report.json").read_text())
    assert said["reasons"] == {"calibration": 1}
    assert said["by_subject"] == {"anna": {"pass": 0, "warn": 1, "fail": 0}}
    # Another report is not written over.
    (report / "report.json").write_text('{"verdict": "pass"}')
    refused = Acehand(capsys, *arguments)
    assert (refused.code, "report.json" in refused.err) == (4, True)
    assert (report / "report.json").read_text() == '{"verdict": "pass"}'


def test_a_damaged_episode_is_rejected_and_the_rest_inspected(dataset, tmp_path):
    from acehand_core.lerobot.edit import merge_datasets

    merged = tmp_path / "merged"
    merge_datasets((dataset, shutil.copytree(dataset, tmp_path / "copy")), merged)
    data = sorted(merged.glob("data/*/*.parquet"))
    content = bytearray(data[1].read_bytes())
    content[len(content) // 2] ^= 0xFF
    data[1].write_bytes(content)
    inspection = inspect((merged,), looks=0)
    assert [e.status for e in inspection.episodes] == ["pass", "fail"]
    assert inspection.episodes[1].findings[0].check == "unreadable"


def test_kept_measures_are_taken_while_nothing_changed(dataset, tmp_path, monkeypatch):
    from acehand_core.review import inspect as module

    copy = shutil.copytree(dataset, tmp_path / "copy")
    calls, real = [], module.episode_measures
    monkeypatch.setattr(module, "episode_measures", lambda *e: calls.append(1) or real(*e))

    def inspected():
        calls.clear()
        (episode,) = inspect((copy,), looks=0, work=tmp_path / "work").episodes
        return episode.status, [f.to_json() for f in episode.findings], len(calls)

    first, again = inspected(), inspected()
    assert first[:2] == again[:2] and (first[2], again[2]) == (1, 0)
    (copy / "acehand/episode_000000/calibration.json").unlink()
    status, _, count = inspected()
    assert (status, count) == ("warn", 1)


def decided(path: Path, *entries: dict) -> Path:
    path.write_text(json.dumps({"format": "acehand-decisions", "version": 1,
                                "decisions": [{"dataset": "d", "episode": 0, **e}
                                              for e in entries]}))  # fmt: skip
    return path


@pytest.fixture(scope="module")
def merged(dataset, tmp_path_factory):
    """Three episodes: the whole one, and two pieces of it, which differ."""
    from acehand_core.lerobot.edit import merge_datasets
    from acehand_core.lerobot.trim import trim_episodes
    from acehand_core.lerobot.trim_rules import TrimCut
    from acehand_core.review.decisions import write_sidecars

    folder = tmp_path_factory.mktemp("three")
    pieces = shutil.copytree(dataset, folder / "pieces")
    trim_episodes(pieces, {0: [TrimCut(50, 60, "middle")]}, write_sidecars, delete=True)
    merge_datasets((dataset, pieces), folder / "three")
    return folder / "three"


@pytest.fixture
def three(merged, tmp_path):
    return shutil.copytree(merged, tmp_path / "three")


def lengths(root: Path) -> list[int]:
    return [len(episode) for episode in episodes_of(root)]


def test_decisions_remove_and_trim_the_episodes_they_mean(three, tmp_path):
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
    assert np.array_equal(after[0], before[1]) and np.array_equal(after[1], before[2][10:40])
    # Numbers changed, fingerprints did not. The second time nothing there is meant.
    with pytest.raises(InputError, match="none of the 3 decisions"):
        apply_decisions(three, read_decisions(path))
    kept = [episode.fingerprint for episode in episodes_of(three)]
    assert kept[0] == prints[1]
    path = decided(tmp_path / "d.json", {"fingerprint": kept[0], "trim": [0, 51]})
    with pytest.raises(InputError, match="has 50 frames"):
        apply_decisions(three, read_decisions(path))
    assert lengths(three) == [50, 30]


@pytest.mark.parametrize(("keep", "left"), [("undecided", 3), ("doubt", 2), ("accept", 1)])
def test_the_least_that_stays(three, tmp_path, keep, left):
    prints = [episode.fingerprint for episode in episodes_of(three)]
    decisions = [
        {"fingerprint": p, "decision": d} for p, d in zip(prints, ("accept", "doubt"), strict=False)
    ]
    apply_decisions(three, read_decisions(decided(tmp_path / "d.json", *decisions)), keep=keep)
    assert len(lengths(three)) == left


def test_a_wrong_decision_is_refused(tmp_path):
    for wrong, entry in (
        ("fingerprint", {"fingerprint": ""}), ("maybe", {"decision": "maybe"}),
        *(("trim", {"trim": trim}) for trim in ([5, 5], [-1, 5], "all", ["0", None])),
    ):  # fmt: skip
        with pytest.raises(SchemaError, match=wrong):
            read_decisions(decided(tmp_path / "d.json", {"fingerprint": "x", **entry}))


def test_filter_takes_rules_or_decisions(three, tmp_path, capsys):
    neither = Acehand(capsys, "dataset", "filter", three)
    assert (neither.code, "--rules or --decisions" in neither.err) == (2, True)
    prints = [episode.fingerprint for episode in episodes_of(three)]
    path = decided(tmp_path / "d.json", {"fingerprint": prints[1], "decision": "reject"})
    done = Acehand(capsys, "dataset", "filter", three, "--decisions", path)
    assert (done.code, done.json["removal"]["episodes"], done.json["trimming"]) == (0, 2, None)
