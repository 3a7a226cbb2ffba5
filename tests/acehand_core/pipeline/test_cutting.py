"""Long recordings cut into demonstrations: motions that were drawn, with rests of known length."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.motion import CameraMotion, HandMotion
from acehand_core.pipeline.converter import Converter
from acehand_core.pipeline.cutting import WINDOW_S, Cutting, cut_demonstrations
from acehand_core.pipeline.settings import CutRules
from acehand_core.recordings.video import open_video
from helpers.commands import GripperRun as Run
from helpers.drawn_hands import drawn, eased
from helpers.dying_runs import stop_at
from helpers.lerobot_samples import snapshot
from helpers.video_fixtures import write_video

FPS = 30
#: What a tracker's hands are off by, as measured on rendered clips (docs/cutting.md): standard
#: deviations across the line of sight and along it (m), and over how long they change (s).
ACROSS, ALONG = (0.008, 0.33), (0.050, 0.6)
#: A window sees movement before it begins, and the first of it is slower than what counts.
LATE_S = WINDOW_S / 2 + 0.1
RULES = CutRules()


def noisy(motion: HandMotion, seed: int) -> HandMotion:
    """Return a motion with the tracker's noise, and what the tracker says of that noise."""
    rng = np.random.default_rng(seed)
    shape = motion.joints_camera.shape

    def smooth(sigma, over_s):
        # One for the whole hand, as most of it is, and half as much for each joint.
        out = np.zeros(shape[:3])
        for values, share in ((rng.normal(size=(*shape[:2], 1)), 1.0),
                              (rng.normal(size=shape[:3]), 0.5)):  # fmt: skip
            values = ndimage.gaussian_filter1d(values, over_s * motion.fps, axis=0)
            out += share * values / values.std() / np.sqrt(1.25)
        return sigma * out

    ray = motion.joints_camera / np.linalg.norm(motion.joints_camera, axis=-1, keepdims=True)
    aside = np.cross(ray, [0.0, 1.0, 0.0])
    aside /= np.linalg.norm(aside, axis=-1, keepdims=True)
    axes = (aside, np.cross(ray, aside), ray)
    joints = motion.joints_camera + rng.normal(0, 0.0007, shape)
    for axis, noise in zip(axes, (ACROSS, ACROSS, ALONG), strict=True):
        joints += axis * smooth(*noise)[..., None]
    sigma = np.broadcast_to([ACROSS[0], ALONG[0]], (*shape[:3], 2))
    sigma = np.where(np.isfinite(joints[..., :1]), sigma, np.nan)
    return dataclasses.replace(motion, joints_camera=joints, joint_sigma=sigma)


def cut(motion: HandMotion, rules: CutRules = RULES, turns: CameraMotion | None = None) -> Cutting:
    """Cut, and see that demonstrations and what is left out are all frames, in order."""
    cutting = cut_demonstrations(motion, rules, turns)
    parts = sorted([*cutting.spans, *cutting.left_out], key=lambda part: part.start)
    assert [0, *(part.stop for part in parts)] == [*(part.start for part in parts), len(motion)]
    assert all(part.stop > part.start for part in parts)
    return cutting


def assert_at(cutting: Cutting, expected: Sequence[tuple[float, float]]) -> None:
    """Compare with when hands move: margins about it, within what a window smears."""
    found = [(e["start_s"], e["end_s"]) for e in cutting.to_json()["demonstrations"]]
    assert len(found) == len(expected), found
    margin = cutting.rules.margin_s
    about = [(start - margin, end + margin) for start, end in expected]
    assert np.abs(np.array(found) - about).max() <= LATE_S, (found, about)


@pytest.mark.parametrize("seed", range(2))
def test_rests_and_hands_that_leave_end_demonstrations(seed):
    """Rests of 2.5 and 0.8 s; the hand is away from 12 to 15 s."""
    moves = [(1.5, 2.5), (3.3, 4.3), (6.8, 8.0), (8.6, 9.8), (17.0, 18.5), (18.5, 20.0)]
    cutting = cut(noisy(drawn(24.0, moves, away=[(12.0, 15.0)]), seed))
    assert_at(cutting, [(1.5, 4.3), (6.8, 9.8), (17.0, 20.0)])
    ends = [part.ends.split(" for ")[0] for part in cutting.spans]
    assert ends == ["still"] * 3 and {part.starts for part in cutting.spans} == {
        "hands began to move"
    }
    seconds = [float(part.ends.split()[-2]) for part in cutting.spans]
    # Until it moves again, until it leaves, until the end.
    assert np.abs(np.array(seconds) - [2.5, 2.2, 4.0]).max() <= 2 * LATE_S
    gone = [part.reason for part in cutting.left_out if "no hands" in part.reason]
    assert len(gone) == 1 and "no hands 3.0 s" in gone[0] and "still" in gone[0]


def test_hands_that_come_and_leave_while_they_move():
    motion = drawn(12.0, [(1.0, 3.0), (5.5, 8.5)], away=[(0.0, 1.5), (7.5, 12.0)])
    first, second = cut(noisy(motion, 0)).spans
    assert (first.starts, second.ends) == ("hands came", "hands left")
    # No frame without a hand is kept, however large the margin.
    assert (first.start, second.stop) == (45, 225)


def test_of_noise_alone_there_is_no_demonstration():
    """A hand at rest for 20 minutes; with unknown noise it moves."""
    for seed in range(10):
        still = noisy(drawn(120.0, []), seed)
        cutting = cut(still)
        assert cutting.spans == () and cutting.left_out[0].reason.startswith("still")
    assert cut(dataclasses.replace(still, joint_sigma=None)).spans


@pytest.mark.parametrize("fps", [10, 30, 120])
def test_seconds_count_not_frames(fps):
    """At 30 every third frame is missing, as of a camera that drops them."""
    motion = noisy(drawn(13.0, [(1.5, 2.7), (3.2, 4.4), (8.0, 9.2), (9.4, 10.6)], fps=fps), 1)
    if fps == 30:
        kept = np.flatnonzero(np.arange(len(motion)) % 3 != 1)
        motion = motion.at(kept, motion.timestamps_ns[kept], 20.0)
    assert_at(cut(motion), [(1.5, 4.4), (8.0, 10.6)])


def turned_head(lasts: float) -> tuple[CameraMotion, np.ndarray]:
    """Return a head that looks 50 degrees aside and back within two seconds, again and again."""
    seconds = np.arange(round(lasts * FPS)) / FPS
    angle = np.radians(25) * (1 - np.cos(np.pi * seconds))
    turn = rotations.exp(angle[:, None] * np.array([0.0, 1.0, 0.0]))
    count = len(turn)
    return CameraMotion(turn, np.zeros(count, bool), np.zeros(count)), turn


def seen_from(motion: HandMotion, turn: np.ndarray, moved: np.ndarray | float = 0.0) -> HandMotion:
    """Return hands given in the room as a camera sees them that turns and moves (T, 3)."""
    moved = np.broadcast_to(moved, (len(turn), 3))
    joints = motion.joints_camera - moved[:, None, None]
    return dataclasses.replace(motion, joints_camera=np.einsum("tji,tsnj->tsni", turn, joints))


def test_a_head_that_turns_does_not_move_hands():
    turns, turn = turned_head(14.0)
    still = noisy(seen_from(drawn(14.0, []), turn), 0)
    assert cut(still, turns=turns).spans == ()
    assert cut(still).spans, "without it the hand crosses the picture at 0.6 m/s"
    moving = noisy(seen_from(drawn(14.0, [(4.0, 5.0), (5.3, 6.5)]), turn), 0)
    assert_at(cut(moving, turns=turns), [(4.0, 6.5)])


def test_with_poses_neither_a_walking_head_nor_hands_that_it_carries_count():
    count, turn = 14 * FPS, np.tile(np.eye(3), (14 * FPS, 1, 1))
    walk = 0.6 * np.abs((np.arange(count) / FPS) % 2 - 1)[:, None] * np.array([0.0, 1.0, 0.0])
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, :3, 3] = walk
    turns = CameraMotion.from_poses(poses)
    on_table = seen_from(drawn(14.0, []), turn, walk)
    carried = drawn(14.0, [])
    for motion in (on_table, carried):
        motion = dataclasses.replace(noisy(motion, 0), T_world_camera=poses)
        assert cut(motion, turns=turns).spans == ()
    assert cut(noisy(on_table, 0)).spans, "without poses the hand runs through the picture"
    # One that reaches out while the head walks moves in both.
    reaching = noisy(seen_from(drawn(14.0, [(4.0, 5.0), (5.3, 6.5)]), turn, walk), 0)
    reaching = dataclasses.replace(reaching, T_world_camera=poses)
    assert_at(cut(reaching, turns=turns), [(4.0, 6.5)])


def test_doubtful_hands_do_not_move():
    """A hand that the tracker does not trust jumps about for three seconds."""
    motion = drawn(12.0, [(1.5, 2.7), (3.2, 4.4)])
    joints, quality = motion.joints_camera.copy(), motion.quality.copy()
    rng = np.random.default_rng(0)
    joints[210:300, 1] += rng.normal(0, 0.05, (90, 1, 3))
    assert len(cut(dataclasses.replace(motion, joints_camera=joints)).spans) == 2
    quality[210:300] = 0
    cutting = cut(noisy(dataclasses.replace(motion, joints_camera=joints, quality=quality), 0))
    assert_at(cutting, [(1.5, 4.4)])
    assert "not seen well enough to tell 3.0 s" in cutting.left_out[-1].reason


def test_one_fingertip_alone_is_not_movement():
    motion = drawn(10.0, [])
    joints = motion.joints_camera.copy()
    swing = 0.06 * np.sin(2 * np.pi * np.arange(len(motion)) / FPS)
    joints[:, 1, 8, 1] += swing
    assert cut(dataclasses.replace(motion, joints_camera=joints)).spans == ()
    joints[:, 1, 12, 1] += swing  # two are
    assert cut(dataclasses.replace(motion, joints_camera=joints)).spans


def test_a_hand_that_is_closed_may_rest_for_longer():
    """It rests for 2.2 s, open in the one and with thumb and index together in the other."""
    motion = drawn(10.0, [(1.5, 3.0), (5.2, 7.0)])
    assert len(cut(motion).spans) == 2
    joints = motion.joints_camera.copy()
    joints[:, 1, 8] = joints[:, 1, 4] + [0.0, 0.02, 0.0]
    closed = dataclasses.replace(motion, joints_camera=joints)
    assert_at(cut(closed), [(1.5, 7.0)])
    # Longer than that it ends anyway.
    first, _ = cut(closed, dataclasses.replace(RULES, hold_s=1.8)).spans
    assert first.ends.startswith("still and closed for ")


def test_what_moves_briefly_is_left_out():
    cutting = cut(drawn(10.0, [(2.0, 2.4), (6.0, 7.5)]))
    assert_at(cutting, [(6.0, 7.5)])
    assert "moved too briefly" in cutting.left_out[0].reason
    both = cut(drawn(10.0, [(2.0, 2.4), (6.0, 7.5)]), dataclasses.replace(RULES, min_s=0.3))
    assert_at(both, [(2.0, 2.4), (6.0, 7.5)])


def test_long_demonstrations_are_divided_where_hands_are_slowest():
    """Moves of 1.5 s, one after another; after the eighth, 13.2 s on, a rest of 0.8 s."""
    starts = [1.2 + 1.5 * n + (0.8 if n >= 8 else 0.0) for n in range(13)]
    motion = drawn(24.0, [(start, start + 1.5) for start in starts])
    first, second = cut(motion, dataclasses.replace(RULES, max_s=15.0)).spans
    assert first.stop == second.start and 13.2 <= first.stop / FPS <= 14.0
    assert first.ends == second.starts == "longest allowed length, 15 s"
    for part in cut(motion, dataclasses.replace(RULES, max_s=4.0)).spans:
        assert RULES.min_s <= (part.stop - part.start) / FPS <= 4.0 + 1 / FPS
    (whole,) = cut(motion).spans
    assert (whole.start, whole.stop) == (first.start, second.stop)
    # It is slowest at 4.9 s, where a second part would last for less than a second.
    motion = drawn(8.0, [(1.0, 4.9), (5.0, 5.3)])
    for part in cut(motion, dataclasses.replace(RULES, max_s=4.0)).spans:
        assert (part.stop - part.start) / FPS >= RULES.min_s


def test_joints_relative_to_the_wrist_show_fingers_alone():
    motion = drawn(10.0, [], far=0.0)
    joints = motion.joints_camera - motion.joints_camera[:, :, :1]
    closing = eased(np.arange(len(motion)) / FPS, [(3.0, 4.0), (4.5, 5.5)])
    for finger in (8, 12, 16, 20):
        joints[:, 1, finger] *= 1 - 0.5 * closing[:, None]
    assert_at(cut(dataclasses.replace(motion, joints_camera=joints, placed=False)), [(3.0, 5.5)])


def test_rules_that_contradict_each_other():
    for changes, said in (
        ({"speeds": (0.04, 0.08)}, "`cut_speeds=0.04,0.08`"),
        ({"speeds": (0.08,)}, "`cut_speeds=0.08`: two speeds"),
        ({"margin_s": 1.0}, "`cut_margin=1`: .*`cut_pause=1.5`"),
        ({"hold_s": 1.0}, "`cut_hold=1`: .*`cut_pause=1.5`"),
        ({"min_s": 40.0}, "`cut_max=60`: .*`cut_min=40`"),
    ):
        with pytest.raises(InputError, match=said):
            CutRules(**changes)


def recording(folder: Path, lasts: float = 9.0) -> Path:
    """Write the joints of two demonstrations with a rest of 2.5 s between, as a file of hands."""
    joints = drawn(lasts, [(1.0, 2.0), (2.4, 3.4), (5.9, 7.4)]).joints_camera
    np.savez(folder / "long.npz", joints=joints, fps=FPS, frame="camera")
    return folder / "long.npz"


def test_a_recording_becomes_an_episode_per_demonstration(tmp_path, capsys):
    hands, out = recording(tmp_path), tmp_path / "out"
    run = Run(capsys, hands, "--output", out, "--split", "auto", "-v")
    assert run.code == 0, run.err
    (cuts,) = run.json["cuts"]
    assert cuts["source"] == str(hands) and cuts["rules"]["pause_s"] == 1.5
    about = np.array([(0.7, 3.7), (5.6, 7.7)])
    found = [(part["start_s"], part["end_s"]) for part in cuts["demonstrations"]]
    assert np.abs(np.array(found) - about).max() <= LATE_S
    assert [part["reason"].split()[0] for part in cuts["left_out"]] == ["still"] * 3
    assert check_dataset(out) == []

    for number, episode in enumerate(run.json["episodes"]):
        part = cuts["demonstrations"][number]
        frames = part["last_frame"] - part["first_frame"] + 1
        assert episode["frames"] == frames
        assert episode["cut"] == {"number": number, "of": 2, **part}
        report = out / "acehand" / f"episode_{number:06d}" / "report.json"
        assert json.loads(report.read_text())["cut"] == episode["cut"]
    text = f"0: {found[0][0]:.2f} to {found[0][1]:.2f} s"
    assert text in run.err and "left out: 0.00 to " in run.err


def job(hands: Path, out: Path, *more: object) -> list[object]:
    return [hands, "--output", out, "--split", "auto", *more]


@pytest.mark.slow
def test_an_interrupted_run_makes_what_is_missing(tmp_path, capsys, monkeypatch):
    hands, out, whole = recording(tmp_path), tmp_path / "out", tmp_path / "whole"
    assert Run(capsys, *job(hands, whole)).code == 0
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        assert Run(capsys, *job(hands, out)).code == 130
    run = Run(capsys, *job(hands, out, "--resume"))
    assert run.code == 0 and len(run.json["episodes"]) == 1
    assert run.json["episodes"][0]["cut"]["number"] == 1
    assert snapshot(out) == snapshot(whole)

    # All are there: the hands are not tracked again.
    monkeypatch.setattr(Converter, "track", None)
    again = Run(capsys, *job(hands, out, "--resume"))
    assert again.code == 0 and again.json["skipped"] == [str(hands)]
    assert snapshot(out) == snapshot(whole)


def test_other_rules_are_not_mixed_in(tmp_path, capsys):
    hands, out = recording(tmp_path), tmp_path / "out"
    assert Run(capsys, *job(hands, out)).code == 0
    for words, message in (
        (job(hands, out, "--resume", "--cut-pause", "3", "--cut-hold", "3"), "`cut_pause` is 3.0"),
        (job(hands, out, "--resume", "--method", "dex-vector"), "`method` is 'dex-vector'"),
        ([hands, "--output", out, "--resume"], "`split` is None, not 'auto 1'"),
        ([hands, "--output", out, "--cut-pause", "3"], "`split=auto`"),
        ([hands, "--output", out, "--split", "tasks"], "`task_file`"),
    ):
        run = Run(capsys, *words)
        assert run.code == 2 and message in run.messages
    assert len(read_provenance(out)) == 2


def test_where_nothing_moves_there_is_no_episode(tmp_path, capsys):
    np.savez(tmp_path / "still.npz", joints=drawn(5.0, []).joints_camera, fps=FPS, frame="camera")
    run = Run(capsys, *job(tmp_path / "still.npz", tmp_path / "out"))
    assert run.code == 2 and not (tmp_path / "out").exists()
    assert "`split=auto` found no demonstration: still 5.0 s" in run.messages


@pytest.mark.slow
def test_a_real_video_is_cut_where_its_hand_rests(shared, tmp_path, capsys):
    """Nothing for a second, gestures until 2.6 s, rest until 6.3 s, gestures until 8.1 s, nothing.

    In frames 262 to 272 the hand rests: of pictures 4 frames apart at most 0.1 % of the pixels
    differ by more than 25 grey levels, in the middle of the gestures 2 to 3 %. All are played back
    and forth, so that no hand jumps; the rest has the noise of a camera and of the tracker.
    """
    video = shared / "data" / "human_hand_video.mp4"
    if not video.is_file():
        pytest.skip("human_hand_video.mp4 not found")
    frames = [image[::2, ::2] for image in open_video(video).frames.read(0, 290)]

    def there_and_back(first, last, times):
        return times * [*frames[first:last], *frames[last:first:-1]]

    before = [*there_and_back(246, 262, 1), *frames[246:262]]
    rest = [*there_and_back(262, 272, 5), *frames[262:272]]
    images = [*before, *rest, *there_and_back(272, 286, 2)]
    empty = [np.full_like(images[0], 90)] * 30
    joined = write_video(tmp_path / "joined.mp4", [*empty, *images, *empty])
    run = Run(
        capsys,
        *job(joined, tmp_path / "out", "--dry-run", "--quality", "fast", "--camera-motion", "off"),
    )
    assert run.code == 0, run.err
    (cuts,) = run.json["cuts"]
    found = [(part["start_s"], part["end_s"]) for part in cuts["demonstrations"]]
    margin = RULES.margin_s
    about = np.array([(1.0, 2.6 + margin), (6.3 - margin, 8.1)])
    assert np.shape(found) == (2, 2) and np.abs(found - about).max() <= LATE_S, found
    first, second = cuts["demonstrations"]
    assert (first["starts"], second["ends"]) == ("hands came", "hands left")
    reasons = [part["reason"].rsplit(" ", 2)[0] for part in cuts["left_out"]]
    assert reasons == ["no hands", "still", "no hands"]
