"""How the camera of a recording turned: segments, cache, masks, and what the tracker does."""

import threading
from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acehand_core.camera import recorded
from acehand_core.camera.recorded import (
    SEGMENT_FRAMES,
    bridged,
    joined,
    recorded_rotations,
    segments_of,
)
from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion, Recording, runs
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import redetection
from acehand_core.trackers.mediapipe.linking import assign_slots
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from acehand_core.types import no_progress
from helpers.fake_hands import detection, right_hands

CAMERA = Camera.nominal(64, 48, 70.0)


class Numbered:
    """Pictures that tell their number; counts which were read."""

    def __init__(self, count):
        self.count, self.seen, self.lock = count, [], threading.Lock()

    def __len__(self):
        return self.count

    def read(self, start, stop):
        for number in range(start, stop):
            with self.lock:
                self.seen.append(number)
            picture = np.zeros((48, 64, 3), np.uint8)
            picture[0, 0] = number // 256, number % 256, 0
            yield picture

    def at(self, index):
        raise AssertionError


def recording(frames):
    stamps = np.arange(len(frames)) * 33_000_000
    return Recording("clip", "sha", stamps, 30.0, 64, 48, frames, CAMERA)


def turning(count, seed=0):
    steps = rotations.exp(np.random.default_rng(seed).normal(0, 0.05, (count, 3)))
    out = [np.eye(3)]
    for step in steps[1:]:
        out.append(out[-1] @ step)
    return np.stack(out)


def known(R, broken=()):
    return CameraMotion(R, np.isin(np.arange(len(R)), broken), np.full(len(R), 1e-3))


@pytest.fixture
def truth(monkeypatch):
    """Stands in for the estimate: true turns, about a reference of the segment's own."""
    R = turning(1000)
    masks = {}

    def estimate(pictures, camera, mask_of):
        numbers = []
        for number, picture in enumerate(pictures):
            numbers.append(int(picture[0, 0, 0]) * 256 + int(picture[0, 0, 1]))
            masks[numbers[-1]] = mask_of(number)
        reference = rotations.exp(np.array([0.3, -0.2, 0.01 * numbers[0]]))
        return known(reference @ R[numbers])

    monkeypatch.setattr(recorded, "estimate_rotations", estimate)
    return R, masks


def no_hands(count):
    return np.full((count, 2, 21, 2), np.nan)


# --- segments ------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=900), st.integers(0, 20))
def test_every_wanted_frame_and_those_about_it_belong_to_one_segment(wanted, margin):
    wanted = np.array(wanted)
    segments = segments_of(wanted, margin)
    owned = [t for s in segments for t in range(s.first, s.stop)]
    near = {
        t for w in np.flatnonzero(wanted) for t in range(w - margin, w + margin + 1)
        if 0 <= t < len(wanted)
    }  # fmt: skip
    assert owned == sorted(near)
    assert all(0 <= s.start <= s.first < s.stop <= len(wanted) for s in segments)
    assert all(s.stop - s.first <= SEGMENT_FRAMES for s in segments)


@pytest.mark.parametrize("cpus", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 320, 321, 1000])
def test_segments_make_one_motion(truth, monkeypatch, count, cpus):
    monkeypatch.setenv("ACEHAND_THREADS", str(cpus))
    motion = recorded_rotations(recording(Numbered(count)), CAMERA, no_hands(count))
    assert len(motion) == count and not motion.broken.any()
    R = truth[0]
    for a, b in [(0, count - 1), (count // 3, 2 * count // 3), (count - 1, 0)]:
        np.testing.assert_allclose(motion.between(a, b), R[a].T @ R[b], atol=1e-12)


def test_unwanted_frames_are_not_read_and_unknown(truth):
    frames, wanted = Numbered(900), np.zeros(900, bool)
    wanted[[100, 101, 600]] = True
    motion = recorded_rotations(recording(frames), CAMERA, no_hands(900), wanted)
    looked_at = [*range(85, 117), *range(585, 616)]
    assert sorted(frames.seen) == looked_at
    steps = [t for t in looked_at if t - 1 in looked_at]
    np.testing.assert_array_equal(np.flatnonzero(~motion.broken), [0, *steps])
    np.testing.assert_allclose(motion.between(85, 116), truth[0][85].T @ truth[0][116], atol=1e-12)
    assert motion.between(100, 600) is None


def test_a_broken_step_inside_the_lead_of_a_segment():
    R = turning(60)
    first = known(R[:40], [35])
    second = known(rotations.exp(np.array([0.1, 0, 0])) @ R[10:], [25])
    motion = joined(
        {recorded.FrameSegment(0, 0, 40): first, recorded.FrameSegment(10, 40, 60): second}, 60
    )  # fmt: skip
    np.testing.assert_array_equal(np.flatnonzero(motion.broken), [35])
    np.testing.assert_allclose(motion.between(36, 59), R[36].T @ R[59], atol=1e-12)


# --- cache and interruption ----------------------------------------------------------------------


def test_a_second_run_reads_nothing(truth, tmp_path):
    first = recorded_rotations(recording(Numbered(700)), CAMERA, no_hands(700), work_dir=tmp_path)
    frames = Numbered(700)
    told = []
    again = recorded_rotations(
        recording(frames), CAMERA, no_hands(700), work_dir=tmp_path,
        progress=lambda *message: told.append(message),
    )  # fmt: skip
    assert frames.seen == [] and told[-1][0] == "camera" and told[-1][1] == told[-1][2]
    np.testing.assert_array_equal(again.rotations, first.rotations)


@pytest.mark.parametrize("change", ["camera", "hands"])
def test_another_question_is_asked_anew(truth, tmp_path, change):
    recorded_rotations(recording(Numbered(50)), CAMERA, no_hands(50), work_dir=tmp_path)
    frames, camera, hands = Numbered(50), CAMERA, no_hands(50)
    if change == "camera":
        camera = Camera.nominal(64, 48, 90.0)
    else:
        hands[3, 0] = 20.0
    recorded_rotations(recording(frames), camera, hands, work_dir=tmp_path)
    assert sorted(frames.seen) == list(range(50))


def test_an_interrupted_run_resumes(truth, tmp_path, monkeypatch):
    monkeypatch.setenv("ACEHAND_THREADS", "1")
    done = []

    def stop_in_the_second_segment(stage, at, of):
        if at > 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorded_rotations(
            recording(Numbered(900)), CAMERA, no_hands(900), work_dir=tmp_path,
            progress=stop_in_the_second_segment,
        )  # fmt: skip
    frames = Numbered(900)
    motion = recorded_rotations(recording(frames), CAMERA, no_hands(900), work_dir=tmp_path)
    assert min(frames.seen) == 300 - recorded.LEAD_FRAMES
    np.testing.assert_allclose(motion.between(0, 899), truth[0][0].T @ truth[0][899], atol=1e-12)
    assert not done and not list(tmp_path.glob("*partial*"))


@pytest.mark.parametrize("content", [b"", b"not an npz", None])
def test_a_damaged_file_counts_as_absent(truth, tmp_path, content):
    recorded_rotations(recording(Numbered(40)), CAMERA, no_hands(40), work_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    if content is None:
        np.savez(file, rotations=np.zeros((40, 3, 3)))
    else:
        file.write_bytes(content)
    frames = Numbered(40)
    recorded_rotations(recording(frames), CAMERA, no_hands(40), work_dir=tmp_path)
    assert len(frames.seen) == 40


def test_a_recording_without_pictures_is_refused():
    bare = Recording("hands.csv", None, np.arange(3), 30.0, 64, 48, None)
    with pytest.raises(InputError, match=r"hands.csv: it has no pictures"):
        recorded_rotations(bare, CAMERA, no_hands(3))


# --- masks ---------------------------------------------------------------------------------------


def test_masks_lie_on_the_hands_of_their_frames(truth):
    count, hands = 700, no_hands(700)
    hands[:, 0] = np.linspace((5, 24), (58, 24), count)[:, None] + np.random.default_rng(0).normal(
        0, 1.5, (21, 2)
    )
    recorded_rotations(recording(Numbered(count)), CAMERA, hands)
    for number, mask in truth[1].items():
        column, row = hands[number, 0].mean(0).round().astype(int)
        assert mask[row, column], number
        assert not mask[24, 2 if column > 32 else 61], number


def test_missed_hands_are_masked_between_their_sightings():
    hands = no_hands(120)
    hands[20, 0], hands[25, 0], hands[80, 0] = 10.0, 20.0, 50.0
    out = bridged(hands, 30.0)
    np.testing.assert_allclose(out[20:26, 0, 0, 0], [10, 12, 14, 16, 18, 20])
    there = np.isfinite(out[:, 0]).all((1, 2))
    # 0.2 s before and after; the gap from 25 to 80 is longer than a second.
    np.testing.assert_array_equal(np.flatnonzero(there), [*range(14, 32), *range(74, 87)])
    assert (out[31, 0] == 20).all() and (out[74, 0] == 50).all()
    assert not np.isfinite(out[:, 1]).any() and np.isnan(hands[22]).all()


# --- pixels --------------------------------------------------------------------------------------


def test_pixels_are_transferred_by_the_homography_of_the_turn():
    R = turning(2, seed=3)
    K = np.array([[CAMERA.fx, 0, CAMERA.cx], [0, CAMERA.fy, CAMERA.cy], [0, 0, 1]])
    pixels = np.random.default_rng(0).uniform(0, 48, (30, 2))
    H = K @ R[1].T @ R[0] @ np.linalg.inv(K)
    expected = cv2.perspectiveTransform(pixels[None], H)[0]
    np.testing.assert_allclose(known(R).transferred(CAMERA, pixels, 0, 1), expected, atol=1e-9)
    assert known(R, [1]).transferred(CAMERA, pixels, 0, 1) is None


def test_pixels_behind_the_camera_are_nowhere():
    R = np.stack([np.eye(3), rotations.exp(np.array([0, np.pi, 0]))])
    assert known(R).transferred(CAMERA, np.array([[32.0, 24.0]]), 0, 1) is None


# --- what the tracker asks for -------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """A tracker whose network sees one right hand but for some frames; keeps what it asks."""
    questions = []

    def answer(recording, camera, landmarks, wanted, work_dir, progress):
        questions.append((landmarks, wanted))
        return known(np.tile(np.eye(3), (len(recording), 1, 1)), [52])

    def run(seen, mode="rotation", poses=None):
        (world,) = right_hands(np.random.default_rng(0), 1)
        frames = [
            [replace(detection((300.0, 200.0), 0.95, seed=t), world=world)] if s else []
            for t, s in enumerate(seen)
        ]
        monkeypatch.setattr(redetection, "forward_pass", lambda *_: frames)
        monkeypatch.setattr(redetection, "look_again", lambda *_: ())
        monkeypatch.setattr(recorded, "recorded_rotations", answer)
        stamps = np.arange(len(seen)) * 33_333_333
        clip = Recording(
            "clip", None, stamps, 30.0, 640, 480, Numbered(len(seen)), None, T_world_camera=poses
        )
        return MediaPipeTracker(TrackerSettings(camera_motion=mode)).track(clip, no_progress)

    return run, questions


def away(count, *gaps):
    seen = np.ones(count, bool)
    for start, stop in gaps:
        seen[start:stop] = False
    return seen


@pytest.mark.slow
def test_the_tracker_asks_across_gaps_that_may_be_filled(asked):
    run, questions = asked
    run(away(400, (0, 10), (50, 60), (100, 145), (200, 300), (390, 400)))
    ((landmarks, wanted),) = questions
    np.testing.assert_array_equal(np.flatnonzero(wanted), [*range(50, 60), *range(100, 145)])
    assert np.isfinite(landmarks[20, 1]).all() and np.isnan(landmarks[[55, 20], [1, 0]]).all()


@pytest.mark.slow
@pytest.mark.parametrize("why", ["seen", "off", "poses"])
def test_and_not_where_nothing_depends_on_it(asked, why):
    run, questions = asked
    seen = away(100, (50, 60)) if why != "seen" else away(100)
    poses = np.tile(np.eye(4), (100, 1, 1)) if why == "poses" else None
    motion = run(seen, "off" if why == "off" else "rotation", poses)
    assert questions == []
    assert (motion.fill_frame is not None) == (why == "poses")
    said = {"seen": "rotation", "off": "off", "poses": "poses"}[why]
    assert motion.provenance.settings["camera_motion"] == said


def test_what_was_not_known_is_said(asked):
    run, _ = asked
    motion = run(away(100, (50, 60)))
    (note,) = [note for note in motion.provenance.notes if "camera's turn" in note]
    assert note.startswith("the camera's turn is unknown in 1 ")
    assert (motion.fill_frame[50:60, 1] == 1).all()  # in the camera frame


def wall(rng):
    return np.repeat(
        cv2.resize(rng.integers(0, 255, (30, 40), np.uint8), (640, 480))[..., None], 3, 2
    )


def degenerate(kind, count):
    """Return pictures that say little or nothing of how their camera turns."""
    rng = np.random.default_rng(1)
    still, other = wall(rng), wall(rng)
    plain, black = np.full_like(still, 128), np.zeros_like(still)
    show = {
        "nothing to see": lambda t: plain,
        "noise": lambda t: rng.integers(100, 120, still.shape).astype(np.uint8),
        "black for a while": lambda t: black if 20 <= t < 24 else still,
        "a cut": lambda t: still if t < 22 else other,
        "a camera that stands still": lambda t: still,
    }[kind]
    return [show(t) for t in range(count)]


class Pictures:
    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def read(self, start, stop):
        yield from self.pictures[start:stop]

    def at(self, index):
        return self.pictures[index]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "count", "fps"),
    [
        ("nothing to see", 45, 30.0),
        ("noise", 45, 30.0),
        ("black for a while", 45, 30.0),
        ("a cut", 45, 30.0),
        ("a camera that stands still", 45, 30.0),
        ("a camera that stands still", 45, 5.0),
        ("a camera that stands still", 3, 30.0),
    ],
)
def test_where_pictures_say_nothing_hands_are_filled_as_without_them(monkeypatch, kind, count, fps):
    """A hand that moves in the picture and is missed for a moment."""
    (world,) = right_hands(np.random.default_rng(0), 1)
    gap = range(18, 25) if count > 3 else range(1, 2)
    found = [
        [] if t in gap else [replace(detection((200.0 + 4 * t, 200.0), 0.95, seed=t), world=world)]
        for t in range(count)
    ]
    monkeypatch.setattr(redetection, "forward_pass", lambda *_: found)
    monkeypatch.setattr(redetection, "look_again", lambda *_: ())
    stamps = np.round(np.arange(count) * 1e9 / fps).astype(np.int64)
    clip = Recording(
        "clip", None, stamps, fps, 640, 480, Pictures(degenerate(kind, count)),
        Camera.nominal(640, 480, 90.0),
    )  # fmt: skip
    modes = ("off", "rotation")
    off, on = (MediaPipeTracker(TrackerSettings(camera_motion=m)).track(clip) for m in modes)
    assert (on.known == off.known).all() and (on.known.any() or count == 3)
    apart = np.linalg.norm(on.joints_camera - off.joints_camera, axis=-1)[off.known]
    assert len(apart) == 0 or apart.max() < 2e-3
    assert (on.fill_frame is None) or (on.fill_frame[list(gap), 1] <= 1).all()


# --- whose hand it is ----------------------------------------------------------------------------


def arm(centre, p_right, side, seed):
    """A hand whose forearm comes from the right (1) or the left (-1) of the picture."""
    hand = detection(centre, p_right, seed=seed)
    mirror = (hand.pixels[0, 0] > centre[0]) != (side > 0)
    return detection(centre, p_right, seed=seed, mirror=mirror)


def sides_of(late_label, early=True, worn=False, view=1):
    """Return on which side a late hand ends whose forearm says left, its labels ``late_label``."""
    frames = [[] for _ in range(200)]
    for t in range(40):
        if early:
            frames[t] = [arm((150, 300), 0.05, -view, t), arm((500, 300), 0.95, view, t + 500)]
    for t in range(150, 160):
        frames[t] = [arm((320, 100), late_label, -view, t)]
    slots = assign_slots(frames, worn=worn)
    return "left" if slots[155][0] is not None else "right"


@pytest.mark.parametrize("view", [1, -1], ids=["wearer", "opposite"])
def test_forearms_tell_sides_where_labels_are_unsure(view):
    assert sides_of(0.6, view=view) == "left"
    assert sides_of(0.6, early=False, view=view) == "right"  # nothing to go by but labels
    assert sides_of(0.97, view=view) == "right"


def test_a_camera_that_is_worn_shows_the_wearers_hands():
    assert sides_of(0.6, early=False, worn=True) == "left"


def reappearing(label, at):
    """Return the side of a hand that is seen again for ten frames, after one of 40 at the left."""
    frames = [[arm((200, 300), 0.05, 1, t), arm((500, 300), 0.95, 1, t + 99)] for t in range(40)]
    frames += [[] for _ in range(12)]
    frames += [[arm(at, label, 1, 500 + t)] for t in range(10)]
    slots = assign_slots(frames)
    return "left" if slots[-1][0] is not None else "right"


def test_a_hand_that_is_back_where_it_was_is_the_same_one():
    assert reappearing(0.7, (210, 300)) == "left"
    assert reappearing(0.7, (210, 20)) == "right"  # not where it was


def test_hands_are_found_again_by_the_cameras_turn():
    """A head that looks aside by 3 sizes of a hand at once; hands stay in the room."""
    shift = np.where(np.arange(40) < 20, 0.0, 180.0)
    frames = [
        [detection((150 + s, 200), 0.05, seed=t), detection((330 + s, 200), 0.9, seed=t + 99)]
        for t, s in enumerate(shift)
    ]
    for t in range(20, 40):  # and then both hands are called right
        frames[t][0] = detection((330, 200), 0.9, seed=t)

    def turned(hand, a, b):
        moved = hand.pixels + np.array([shift[b] - shift[a], 0])
        return replace(hand, pixels=moved)

    slots = assign_slots(frames, turned)
    assert all(slots[t][0] is frames[t][0] and slots[t][1] is frames[t][1] for t in range(40))


def test_runs():
    assert runs(np.array([True, False, True, True, False])) == [(0, 1), (2, 4)]
    assert runs(np.zeros(3, bool)) == [] and runs(np.ones(2, bool)) == [(0, 2)]
    assert runs(np.zeros(0, bool)) == []
