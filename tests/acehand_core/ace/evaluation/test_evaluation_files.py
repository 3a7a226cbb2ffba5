"""Folders of predictions and ground truth, trackers, and the commands around them."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acehand_core.ace.evaluation.inputs import find_predictions, open_ground_truth, read_prediction
from acehand_core.ace.evaluation.protocol import HandLibrary
from acehand_core.ace.evaluation.run import Options, evaluate_predictions, evaluate_tracker
from acehand_core.ace.evaluation.tracking import Decoding, DoNothing, throughput, track_segments
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.segments import make_segments, write_segments
from acehand_core.errors import InputError, SchemaError
from acehand_core.provenance import Provenance
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.trackers.base import TrackerSettings, make_tracker
from helpers import evaluation_samples, example_video
from helpers.commands import Acehand
from helpers.evaluation_samples import motion_of, still

TRUTH = motion_of(still(6))


@pytest.fixture
def folders(tmp_path):
    """Ground truth of two segments and predictions 1 cm too far."""
    for name in ("one", "two"):
        write_hand_motion(TRUTH, tmp_path / "truth" / f"{name}.parquet")
        write_hand_motion(
            motion_of(still(6) + np.array([0, 0, 0.01])), tmp_path / "guess" / f"{name}.parquet"
        )
    return tmp_path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return evaluation_samples.store(tmp_path_factory.mktemp("clips") / "store", {"clip": 20})


class Late:
    """A tracker that places hands by the first frame it is given, and remembers what it saw."""

    name = "late"

    def __init__(self):
        self.seen = []

    def track(self, recording, progress=None):
        self.seen.append(len(recording))
        motion = motion_of(still(len(recording)) + np.array([0, 0, 0.02]))
        return replace(motion, timestamps_ns=recording.timestamps_ns)


def test_predictions_of_a_folder(folders):
    out = evaluate_predictions(
        folders / "guess", open_ground_truth(folders / "truth"), Options(label="mine")
    )
    assert out["metrics"]["ct_p"] == pytest.approx(0.01)
    assert out["segments"]["count"] == 2 and len(out["segments"]["sha256"]) == 64
    assert out["method"]["label"] == "mine" and out["hand_model"] == "acehand"


def test_segments_of_two_hand_models_are_not_averaged(folders):
    other = replace(TRUTH, hand_model="mano")
    write_hand_motion(other, folders / "truth" / "two.parquet", overwrite=True)
    truth = open_ground_truth(folders / "truth")
    with pytest.raises(SchemaError, match=r"two: .*'mano'.*'acehand'"):
        evaluate_predictions(folders / "guess", truth, Options())


def test_the_hash_of_a_folder_is_of_its_content(folders):
    before = open_ground_truth(folders / "truth").summary["sha256"]
    assert open_ground_truth(folders / "truth").summary["sha256"] == before
    write_hand_motion(motion_of(still(7)), folders / "truth" / "two.parquet", overwrite=True)
    assert open_ground_truth(folders / "truth").summary["sha256"] != before


def with_nan(field, at, whole=False, **changes):
    """A motion with NaN in one hand, or in one number of it."""
    motion = motion_of(still(6), **changes)
    value = getattr(motion, field).copy()
    if whole:
        value[at] = np.nan
    else:
        value[at].flat[0] = np.nan
    return replace(motion, **{field: value})


def swapped():
    motion = motion_of(still(6))
    names = ("joints_camera", "translation")
    return replace(motion, **{name: getattr(motion, name)[:, ::-1] for name in names})


HAND = "right hand in frame 3"
POSE = ("global_orient", "hand_pose", "translation")
REFUSED = {
    "length": (motion_of(still(5)), ("'frame'", "5 frames", "6")),
    "times": (motion_of(still(6), fps=25.0), ("'timestamp_ns'", "frame 3")),
    "slots": (swapped(), ("'joints_camera'", "another side")),
    "wrist": (replace(motion_of(still(6)), placed=False), ("'placed'",)),
    "joints": (  # not active, yet emitted in part
        with_nan("joints_camera", (2, 0), presence=np.zeros((6, 2))),
        ("'joints_camera'", "left hand in frame 2", "NaN in part"),
    ),
    **{f"part {field}": (with_nan(field, (3, 1)), (repr(field), HAND, "part")) for field in POSE},
    **{f"no {field}": (with_nan(field, (3, 1), True), (repr(field), HAND, "0.5"))
       for field in POSE},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_predictions_that_cannot_be_scored_are_refused(tmp_path, name):
    motion, words = REFUSED[name]
    path = tmp_path / "seg.parquet"
    write_hand_motion(motion, path)
    with pytest.raises(SchemaError) as error:
        read_prediction(path, TRUTH, HandLibrary())
    assert all(word in str(error.value) for word in (str(path), *words))


def test_rows_that_are_missing_or_of_the_wrong_side_are_refused(tmp_path):
    """Of seven frames one is left out: six remain, but not the segment's."""
    path = tmp_path / "seg.parquet"
    write_hand_motion(motion_of(still(7)), path)
    table = pq.read_table(path)
    sides = table.slice(0, 12)
    column = table.column_names.index("hand")
    for changed, named in (
        (table.take([row for row in range(14) if row not in (6, 7)]), "'frame'.*2 to 4"),
        (sides.set_column(column, "hand", pa.array(["right", "left"] * 6)), "left and right"),
    ):
        pq.write_table(changed, path)
        with pytest.raises(SchemaError, match=named):
            read_prediction(path, TRUTH, HandLibrary())


def test_duplicate_missing_and_unknown_segments(folders):
    guess = folders / "guess"
    write_hand_motion(TRUTH, guess / "again" / "two.parquet")
    with pytest.raises(InputError, match="'two' is predicted twice"):
        find_predictions(guess, ["one", "two"])
    (guess / "again" / "two.parquet").unlink()
    with pytest.raises(InputError, match="'three'"):
        find_predictions(guess, ["one", "two", "three"])
    with pytest.raises(InputError, match=r"two\.parquet: no segment"):
        find_predictions(guess, ["one"])


def test_store_segments_and_decoding_windows(store):
    """A window begins at its segment and moves back where the clip ends."""
    truth = open_ground_truth(store, length=8)
    assert truth.summary["count"] == 2
    first, second = truth.segments
    for segment, wanted, seen in ((first, None, 8), (first, 10, 10), (second, 16, 16)):
        tracker = Late()
        ((name, motion),) = track_segments(tracker, truth, [segment], Decoding(wanted))
        assert (name, tracker.seen) == (segment, [seen])
        assert motion.provenance.settings["decoded_frames"] == seen
        assert (motion.timestamps_ns == truth.truth(segment).timestamps_ns).all()
    with pytest.raises(InputError, match="decode_frames=5"):
        list(track_segments(tracker, truth, [first], Decoding(5)))
    # The whole clip is tracked once, whatever the order of its segments.
    tracker = Late()
    whole = dict(track_segments(tracker, truth, [second, first], Decoding(0)))
    assert tracker.seen == [20] and list(whole) == [second, first]
    for segment, motion in whole.items():
        assert (motion.timestamps_ns == truth.truth(segment).timestamps_ns).all()


def test_a_list_of_segments_names_itself(store, tmp_path):
    wanted = make_segments([("clip", 20)], "mine", "made-up", "test", length=5, count=2)
    write_segments(wanted, tmp_path / "list.json")
    truth = open_ground_truth(store, tmp_path / "list.json")
    assert truth.summary == wanted.summary()
    other = make_segments([("clop", 20)], "mine", "made-up", "test", length=5)
    write_segments(other, tmp_path / "other.json")
    with pytest.raises(InputError, match="'clop'"):
        open_ground_truth(store, tmp_path / "other.json")
    long = make_segments([("clip", 40)], "mine", "made-up", "test", length=25)
    write_segments(long, tmp_path / "long.json")
    with pytest.raises(InputError, match="ends at frame 25"):
        open_ground_truth(store, tmp_path / "long.json")


def test_a_tracker_is_scored_and_its_predictions_score_the_same(store, tmp_path):
    truth = open_ground_truth(store, length=10)
    out = evaluate_tracker(Late(), truth, Options(), {}, keep=tmp_path / "kept")
    assert out["metrics"]["ct_p"] == pytest.approx(0.02)
    again = evaluate_predictions(tmp_path / "kept", truth, Options())
    assert again["metrics"] == out["metrics"]
    # An interrupted run resumes: finished segments are skipped.
    (tmp_path / "kept" / f"{truth.segments[1]}.parquet").unlink()
    tracker = Late()
    resumed = evaluate_tracker(tracker, truth, Options(), {}, keep=tmp_path / "kept")
    assert tracker.seen == [10] and resumed["metrics"] == out["metrics"]
    with pytest.raises(InputError, match="another tracker"):
        evaluate_tracker(DoNothing(), truth, Options(), {}, keep=tmp_path / "kept")


def test_throughput_counts_hands(store):
    truth = open_ground_truth(store, length=10)
    tracker = Late()
    timed = throughput(tracker, truth, truth.segments[0], passes=3)
    assert tracker.seen == [10] * 4  # one to warm up
    assert timed["hands_per_frame"] == 2 and timed["fps"] > 0
    nothing = throughput(DoNothing(), truth, truth.segments[0], passes=1)
    assert nothing["hands_per_frame"] == 0


def test_do_nothing_on_the_command_line(capsys, store, tmp_path):
    output = tmp_path / "out.json"
    run = Acehand(
        capsys, "evaluate", "--tracker", "do-nothing", "--ground-truth", store,
        "--segment-length", 10, "--output", output,
    )  # fmt: skip
    assert run.code == 0
    assert run.json["metrics"]["recall"] == 0 and run.json["counts"]["fn"] == 40
    assert json.loads(output.read_text()) == run.json
    assert "synthetic" not in run.err and "FAcc" in run.err
    assert len(ClipStore(store)) == 1


def test_mistakes_are_named(capsys, folders):
    truth, guess = folders / "truth", folders / "guess"
    for words, message in (
        ((), "either --predictions"),
        (("--predictions", guess), "--ground-truth"),
        (("--predictions", guess, "--tracker", "mediapipe", "--ground-truth", truth), "either"),
        (("--predictions", guess, "--keep", guess, "--ground-truth", truth), "--keep"),
        (("--predictions", guess, "--ground-truth", folders / "no"), "no such folder"),
        (("--tracker", "do-nothing", "--ground-truth", truth), "pictures"),
        (("--tracker", "other", "--ground-truth", truth), "neither a tracker"),
    ):
        run = Acehand(capsys, "evaluate", *words)
        assert run.code == 2 and message in run.err, words
    run = Acehand(capsys, "evaluate", "--predictions", guess, "--ground-truth", truth)
    assert run.code == 0 and run.json["metrics"]["facc"] == 1


@pytest.mark.parametrize(
    "words",
    [("--decode-frames", "0"), ("--decode-frames", "90"), ("--hands", "left"), ("--time", "1"),
     ("--hand-length", "0.18"), ("--variant", "k"), ("--drop-tail",), ("--windows", "full"),
     ("--encode-width", "640"), ("--device", "cpu")],
)  # fmt: skip
def test_flags_of_trackers_are_refused_with_predictions(capsys, folders, words):
    """Else they would be ignored without a word, and the numbers be taken for others."""
    run = Acehand(
        capsys, "evaluate", "--predictions", folders / "guess", "--ground-truth",
        folders / "truth", *words,
    )  # fmt: skip
    assert run.code == 2 and f"{words[0]} is for --tracker" in run.err


@pytest.mark.slow
def test_mediapipe_on_a_rendered_clip(tmp_path):
    """End to end: a rendered clip, the tracker that needs no weights, the paper's metrics."""
    frames = 8
    pytest.importorskip("mediapipe")
    whole = read_hand_motion(example_video.TRUTH)
    rows = np.arange(frames)
    motion = whole.at(rows, whole.timestamps_ns[:frames], whole.fps)
    motion = replace(motion, provenance=Provenance("clip", None, "ground truth"))
    pictures = example_video.example_frames(frames)
    evaluation_samples.store(tmp_path / "store", {"clip": frames}, motion=motion, images=pictures)
    truth = open_ground_truth(tmp_path / "store", length=frames)
    tracker = make_tracker("mediapipe", TrackerSettings())
    seen = evaluate_tracker(tracker, truth, Options(), {})["metrics"]
    blind = evaluate_tracker(DoNothing(), truth, Options(), {})["metrics"]
    assert seen["recall"] == 1 and seen["mpjpe_p"] < 30 and seen["epe_p"] < 20
    assert blind["recall"] == 0 and blind["epe_p"] == pytest.approx(800)
    for name in ("mpjpe_p", "go_p", "ct_p", "mpjpe_plus_oos"):
        assert seen[name] < blind[name], name
