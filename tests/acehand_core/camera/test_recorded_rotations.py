"""How the camera of a recording turned: segments, cache, masks, and what the tracker does."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acehand_core.camera import turns
from acehand_core.camera.turns import bridged, joined, recorded_rotations, segments_of
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
from helpers.video_fixtures import Images

CAMERA = Camera.nominal(64, 48, 70.0)


def numbered(count):
    """Pictures that hold their number."""
    pictures = np.zeros((count, 48, 64, 3), np.uint8)
    pictures[:, 0, 0, :2] = np.stack(np.divmod(np.arange(count), 256), axis=1)
    return Images(pictures)


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

    monkeypatch.setattr(turns, "estimate_rotations", estimate)
    return R, masks


def no_hands(count):
    return np.full((count, 2, 21, 2), np.nan)


@given(st.lists(st.booleans(), min_size=1, max_size=900), st.integers(0, 20))
def test_every_wanted_frame_and_those_about_it_belong_to_one_segment(wanted, margin):
    segments, count = segments_of(np.array(wanted), margin), len(wanted)
    owned = [t for s in segments for t in range(s.first, s.stop)]
    assert owned == [t for t in range(count) if any(wanted[max(0, t - margin) : t + margin + 1])]
    assert all(0 <= s.start <= s.first < s.stop <= count for s in segments)
    assert all(s.stop - s.first <= turns.SEGMENT_FRAMES for s in segments)


@pytest.mark.parametrize("cpus", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 320, 321, 1000])
def test_segments_make_one_motion(truth, monkeypatch, count, cpus):
    monkeypatch.setenv("ACEHAND_THREADS", str(cpus))
    motion = recorded_rotations(recording(numbered(count)), CAMERA, no_hands(count))
    assert len(motion) == count and not motion.broken.any()
    R = truth[0]
    for a, b in [(0, count - 1), (count // 3, 2 * count // 3), (count - 1, 0)]:
        np.testing.assert_allclose(motion.between(a, b), R[a].T @ R[b], atol=1e-12)


def test_unwanted_frames_are_not_read_and_unknown(truth):
    frames, wanted, R = numbered(900), np.zeros(900, bool), truth[0]
    wanted[[100, 101, 600]] = True
    motion = recorded_rotations(recording(frames), CAMERA, no_hands(900), wanted)
    looked_at = [*range(85, 117), *range(585, 616)]
    assert sorted(frames.seen) == looked_at
    steps = [t for t in looked_at if t - 1 in looked_at]
    np.testing.assert_array_equal(np.flatnonzero(~motion.broken), [0, *steps])
    np.testing.assert_allclose(motion.between(85, 116), R[85].T @ R[116], atol=1e-12)
    assert motion.between(100, 600) is None
    bare = Recording("hands.csv", None, np.arange(3), 30.0, 64, 48, None)
    with pytest.raises(InputError, match=r"hands\.csv"):
        recorded_rotations(bare, CAMERA, no_hands(3))


def test_a_broken_step_inside_the_lead_of_a_segment():
    R, reference = turning(60), rotations.exp(np.array([0.1, 0, 0]))
    first, second = turns.FrameSegment(0, 0, 40), turns.FrameSegment(10, 40, 60)
    motion = joined({first: known(R[:40], [35]), second: known(reference @ R[10:], [25])}, 60)
    np.testing.assert_array_equal(np.flatnonzero(motion.broken), [35])
    np.testing.assert_allclose(motion.between(36, 59), R[36].T @ R[59], atol=1e-12)


CHANGES = ("nothing", "a camera", "a hand", "an empty file", "a file that is no npz", "another npz")


@pytest.mark.parametrize("change", CHANGES)
def test_a_second_run_reads_what_changed(truth, tmp_path, change):
    first = recorded_rotations(recording(numbered(50)), CAMERA, no_hands(50), work_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    frames, camera, hands, steps = numbered(50), CAMERA, no_hands(50), []
    if change == "a camera":
        camera = Camera.nominal(64, 48, 90.0)
    elif change == "a hand":
        hands[3, 0] = 20.0
    elif change == "another npz":
        np.savez(file, rotations=np.zeros((50, 3, 3)))
    elif change != "nothing":
        file.write_bytes(b"" if "empty" in change else b"not an npz")
    again = recorded_rotations(
        recording(frames), camera, hands, work_dir=tmp_path, progress=lambda *s: steps.append(s)
    )
    assert sorted(frames.seen) == ([] if change == "nothing" else list(range(50)))
    assert steps[-1][0] == "camera" and steps[-1][1] == steps[-1][2]
    np.testing.assert_array_equal(again.rotations, first.rotations)


def test_an_interrupted_run_resumes(truth, tmp_path, monkeypatch):
    monkeypatch.setenv("ACEHAND_THREADS", "1")

    def stop_in_the_second_segment(stage, at, of):
        if at > 500:
            raise KeyboardInterrupt

    inputs, R = (CAMERA, no_hands(900), None, tmp_path), truth[0]
    with pytest.raises(KeyboardInterrupt):
        recorded_rotations(recording(numbered(900)), *inputs, stop_in_the_second_segment)
    frames = numbered(900)
    motion = recorded_rotations(recording(frames), *inputs)
    assert min(frames.seen) == 300 - turns.LEAD_FRAMES
    np.testing.assert_allclose(motion.between(0, 899), R[0].T @ R[899], atol=1e-12)
    assert not list(tmp_path.glob("*partial*"))


def test_masks_lie_on_the_hands_of_their_frames(truth):
    count, hands = 700, no_hands(700)
    shape = np.random.default_rng(0).normal(0, 1.5, (21, 2))
    hands[:, 0] = np.linspace((5, 24), (58, 24), count)[:, None] + shape
    recorded_rotations(recording(numbered(count)), CAMERA, hands)
    assert len(truth[1]) == count
    for number, mask in truth[1].items():
        column, row = hands[number, 0].mean(0).round().astype(int)
        assert mask[row, column] and not mask[24, 2 if column > 32 else 61], number


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


def test_pixels_are_transferred_by_the_homography_of_the_turn():
    R, K = turning(2, seed=3), CAMERA.K
    pixels = np.random.default_rng(0).uniform(0, 48, (30, 2))
    H = K @ R[1].T @ R[0] @ np.linalg.inv(K)
    expected = cv2.perspectiveTransform(pixels[None], H)[0]
    np.testing.assert_allclose(known(R).transferred(CAMERA, pixels, 0, 1), expected, atol=1e-9)
    assert known(R, [1]).transferred(CAMERA, pixels, 0, 1) is None
    behind = np.stack([np.eye(3), rotations.exp(np.array([0, np.pi, 0]))])
    assert known(behind).transferred(CAMERA, np.array([[32.0, 24.0]]), 0, 1) is None


def detections_of(seen, centre_of=lambda t: (300.0, 200.0)):
    """One right hand in the frames in which it is seen."""
    (world,) = right_hands(np.random.default_rng(0), 1)
    return [
        [replace(detection(centre_of(t), 0.95, seed=t), world=world)] if there else []
        for t, there in enumerate(seen)
    ]


@pytest.fixture
def tracked(monkeypatch):
    """Runs a tracker whose network finds the given detections."""

    def run(found, mode, frames, camera=None, poses=None, fps=30.0):
        monkeypatch.setattr(redetection, "forward_pass", lambda *_: found)
        monkeypatch.setattr(redetection, "look_again", lambda *_: ())
        stamps = np.round(np.arange(len(found)) * 1e9 / fps).astype(np.int64)
        clip = Recording("clip", None, stamps, fps, 640, 480, frames, camera, poses)
        return MediaPipeTracker(TrackerSettings(camera_motion=mode)).track(clip, no_progress)

    return run


@pytest.fixture
def asked(monkeypatch, tracked):
    """A tracker that sees one right hand but for some frames; keeps what it asks."""
    questions = []

    def answer(recording, camera, landmarks, wanted, work_dir, progress):
        questions.append((landmarks, wanted))
        return known(np.tile(np.eye(3), (len(recording), 1, 1)), [52])

    def run(seen, mode="rotation", poses=None):
        monkeypatch.setattr(turns, "recorded_rotations", answer)
        return tracked(detections_of(seen), mode, numbered(len(seen)), poses=poses)

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
    seen = away(64, (50, 60)) if why != "seen" else away(64)
    poses = np.tile(np.eye(4), (64, 1, 1)) if why == "poses" else None
    motion = run(seen, "off" if why == "off" else "rotation", poses)
    assert questions == [] and (motion.fill_frame is not None) == (why == "poses")
    noted = {"seen": "rotation", "off": "off", "poses": "poses"}[why]
    assert motion.provenance.settings["camera_motion"] == noted


def test_an_unknown_turn_is_noted(asked):
    run, _ = asked
    motion = run(away(64, (50, 60)))
    (note,) = [note for note in motion.provenance.notes if "camera's turn" in note]
    assert "unknown in 1 " in note
    assert (motion.fill_frame[50:60, 1] == 1).all()  # in the camera frame


def degenerate(kind, count):
    """Return pictures that give little or nothing of how their camera turns."""
    rng = np.random.default_rng(1)
    small = rng.integers(0, 255, (2, 30, 40), np.uint8)
    still, other = (np.repeat(cv2.resize(s, (640, 480))[..., None], 3, 2) for s in small)
    plain, black = np.full_like(still, 128), np.zeros_like(still)
    return {
        "nothing to see": [plain] * count,
        "noise": [rng.integers(100, 120, still.shape).astype(np.uint8) for _ in range(count)],
        "black for a while": [*[still] * 20, *[black] * 4, *[still] * (count - 24)],
        "a cut": [*[still] * 22, *[other] * (count - 22)],
        "a camera that stands still": [still] * count,
    }[kind]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "count", "fps"),
    [
        ("noise", 45, 30.0),
        ("nothing to see", 45, 30.0),
        ("black for a while", 45, 30.0),
        ("a cut", 45, 30.0),
        ("a camera that stands still", 45, 30.0),
        ("a camera that stands still", 45, 5.0),
        ("a camera that stands still", 3, 30.0),
    ],
)
def test_without_a_turn_hands_are_filled_as_before(tracked, kind, count, fps):
    """A hand that moves in the picture and is missed for a moment."""
    gap = range(18, 25) if count > 3 else range(1, 2)
    seen = [t not in gap for t in range(count)]
    found = detections_of(seen, lambda t: (200.0 + 4 * t, 200.0))
    frames, camera = Images(degenerate(kind, count)), Camera.nominal(640, 480, 90.0)
    off, on = (tracked(found, mode, frames, camera, fps=fps) for mode in ("off", "rotation"))
    assert (on.known == off.known).all() and (on.known.any() or count == 3)
    apart = np.linalg.norm(on.joints_camera - off.joints_camera, axis=-1)[off.known]
    assert len(apart) == 0 or apart.max() < 2e-3
    assert (on.fill_frame is None) or (on.fill_frame[list(gap), 1] <= 1).all()


def arm(centre, p_right, side, seed):
    """A hand whose forearm comes from the right (1) or the left (-1) of the picture."""
    hand = detection(centre, p_right, seed=seed)
    mirror = (hand.pixels[0, 0] > centre[0]) != (side > 0)
    return detection(centre, p_right, seed=seed, mirror=mirror)


def side_of_last(frames, **options):
    return "left" if assign_slots(frames, **options)[-1][0] is not None else "right"


@pytest.mark.parametrize("view", [1, -1], ids=["wearer", "opposite"])
def test_forearms_decide_sides_where_labels_are_unsure(view):
    early = [
        [arm((150, 300), 0.05, -view, t), arm((500, 300), 0.95, view, t + 500)] for t in range(40)
    ]

    def side(label, frames, **options):
        """Of a hand much later whose forearm says left."""
        late = [[arm((320, 100), label, -view, t)] for t in range(150, 160)]
        return side_of_last(frames + [[]] * 110 + late, **options)

    assert side(0.6, early) == "left" and side(0.97, early) == "right"
    assert side(0.6, [[]] * 40) == "right"  # nothing to go by but labels
    assert side(0.6, [[]] * 40, worn=True) == ("left" if view == 1 else "right")


@pytest.mark.parametrize(("at", "side"), [((210, 300), "left"), ((210, 20), "right")])
def test_a_hand_that_is_back_where_it_was_is_the_same_one(at, side):
    frames = [[arm((200, 300), 0.05, 1, t), arm((500, 300), 0.95, 1, t + 99)] for t in range(40)]
    frames += [[]] * 12 + [[arm(at, 0.7, 1, 500 + t)] for t in range(10)]
    assert side_of_last(frames) == side


def test_hands_are_found_again_by_the_cameras_turn():
    """A head that looks aside by 3 sizes of a hand at once; hands stay in the room."""
    shift = np.where(np.arange(40) < 20, 0.0, 180.0)
    # From frame 20 on both hands are called right.
    frames = [
        [
            detection((150 + s, 200), 0.9 if s else 0.05, seed=t),
            detection((330 + s, 200), 0.9, seed=t + 99),
        ]
        for t, s in enumerate(shift)
    ]

    def turned(hand, a, b):
        return replace(hand, pixels=hand.pixels + np.array([shift[b] - shift[a], 0]))

    slots = assign_slots(frames, turned)
    assert all(slots[t][0] is frames[t][0] and slots[t][1] is frames[t][1] for t in range(40))


def test_runs():
    assert runs(np.array([True, False, True, True, False])) == [(0, 1), (2, 4)]
    assert runs(np.zeros(3, bool)) == [] and runs(np.ones(2, bool)) == [(0, 2)]
    assert runs(np.zeros(0, bool)) == []
