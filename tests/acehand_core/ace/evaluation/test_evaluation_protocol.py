"""The protocol, by hand on constructed cases."""

import math
from dataclasses import replace

import numpy as np
import pytest

from acehand_core.ace.evaluation.protocol import (
    HandLibrary,
    Protocol,
    boxes_around,
    canonical_joints,
    dilated,
    joints_in_image,
    overlap,
    pa_mm,
    picture_size,
)
from acehand_core.ace.evaluation.segment import score_segment
from acehand_core.ace.evaluation.summary import summarise
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from acehand_core.hand.capsule import CapsuleHand
from helpers.evaluation_samples import CAMERA, SmallHand, motion_of, still

PAPER = Protocol()
SMALL = HandLibrary(models={("acehand", False): SmallHand()})
LIST = {"name": "test", "sha256": "0" * 64, "count": 1}


def counted(**counts):
    """Return the counts of an evaluation; what is not named is 0."""
    return dict.fromkeys(("tp", "fp", "fn", "iv", "oos", "unlabelled", "frames"), 0) | counts


def evaluate(*pairs, library=SMALL, protocol=PAPER):
    scores = [
        score_segment(f"s{i}", guess, truth, library, protocol)
        for i, (guess, truth) in enumerate(pairs)
    ]
    return summarise(scores, protocol, LIST, "acehand")


def test_nothing_predicted_is_charged_the_canonical_hand():
    """Flat hands of mean shape, unturned, 0.6 m away: only the place and the pixels cost."""
    truth = motion_of(still(4))
    out = evaluate((motion_of(still(4, None, None)), truth))
    metrics = out["metrics"]
    assert out["counts"] == counted(fn=8, iv=8, frames=4)
    assert (metrics["facc"], metrics["recall"], metrics["f1"]) == (0, 0, 0)
    for name in ("mpjpe_p", "pa_p", "go_p"):
        assert metrics[name] == pytest.approx(0, abs=1e-9)
    assert metrics["ct_p"] == pytest.approx(math.sqrt(0.01 + 0.36))
    assert metrics["epe_p"] == pytest.approx(400.0)  # the diagonal of 320 x 240
    assert metrics["jitter"] is None
    assert out["matched"]["mpjpe"] is None


def test_a_missed_and_a_found_hand_share_the_average():
    """One hand found 2 cm too far, one missed: CT-p is the mean of both, matched only the first."""
    truth = motion_of(still(3))
    guess = motion_of(still(3, left=(-0.1, 0.0, 0.62), right=None))
    out = evaluate((guess, truth))
    charge = math.sqrt(0.1**2 + 0.6**2)
    assert out["metrics"]["ct_p"] == pytest.approx((0.02 + charge) / 2)
    assert out["matched"]["ct"] == pytest.approx(0.02)
    assert out["metrics"]["recall"] == 0.5
    assert out["metrics"]["f1"] == pytest.approx(2 / 3)
    assert out["metrics"]["facc"] == 0
    assert out["per_side"]["left"]["tp"] == 3 and out["per_side"]["right"]["fn"] == 3


def test_a_prediction_out_of_sight_is_no_false_positive():
    truth = motion_of(still(3, right=None))
    guess = motion_of(still(3, right=(5.0, 0.0, 0.6)))  # far to the side
    out = evaluate((guess, truth))
    assert out["counts"]["fp"] == 0 and out["metrics"]["facc"] == 1
    # The same with a hand that is there: it is missed, but nothing is spurious.
    counts = evaluate((guess, motion_of(still(3))))["counts"]
    assert (counts["tp"], counts["fp"], counts["fn"]) == (3, 0, 3)


def test_a_hand_without_a_label_is_not_scored():
    """Right hand of frames 0 to 3: labelled, absent, there without a label, unknown; 4: neither."""
    presence = np.array([[1, 1], [1, 0], [1, 1], [1, 0.5], [0.5, 0.5]])
    path = still(5)
    path[1:, 1] = np.nan
    path[4, 0] = np.nan
    truth = motion_of(path, presence=presence)
    assert truth.known[:, 1].tolist() == [True, False, False, False, False]
    out = evaluate((motion_of(still(5)), truth))
    # Of right hands one is right and one spurious; the others, and frame 4, are unknown.
    assert out["counts"] == counted(tp=5, fp=1, iv=5, unlabelled=4, frames=4)
    assert out["metrics"]["facc"] == 3 / 4  # frame 1
    assert out["metrics"]["f1"] == pytest.approx(2 * 5 / (2 * 5 + 1))
    # An uncertain frame is neither right nor wrong.
    uncertain = motion_of(still(3, None, None), presence=np.full((3, 2), 0.5))
    out = evaluate((motion_of(still(3)), uncertain))
    assert out["counts"] == counted(unlabelled=6)
    assert out["metrics"]["facc"] is None and out["metrics"]["mpjpe_plus_oos"] is None


def test_the_larger_overlap_decides_the_side():
    """The right prediction overlaps both true hands, the left one more."""
    truth = motion_of(still(1, left=(-0.02, 0.0, 0.6), right=(0.06, 0.0, 0.6)))
    reach = [motion_of(still(1, None, right=(x, 0.0, 0.6))) for x in (0.06, -0.02)]
    overlaps = []
    for guess in reach:
        counts = evaluate((guess, truth))["counts"]
        overlaps.append((counts["tp"], counts["fp"], counts["fn"]))
    assert overlaps == [(1, 0, 1), (0, 1, 2)]


def test_presence_of_one_half_is_not_active():
    counts = evaluate((motion_of(still(1), presence=[[0.5, 0.51]]), motion_of(still(1))))["counts"]
    assert (counts["tp"], counts["fn"]) == (1, 1)
    # Nor is a labelled hand there marked as absent: finding it is spurious.
    truth = replace(motion_of(still(2, right=None)), presence=np.array([[0.5, 0], [0.51, 0]]))
    assert truth.known[:, 0].all()
    out = evaluate((motion_of(still(2, right=None)), truth))
    assert out["counts"] == counted(tp=1, fp=1, iv=1, frames=2)
    assert out["metrics"]["recall"] == 1 and out["metrics"]["facc"] == 0.5


def test_empty_frames_are_right():
    nothing = motion_of(still(4, None, None))
    out = evaluate((nothing, nothing))
    assert out["metrics"]["facc"] == 1
    others = {name: v for name, v in out["metrics"].items() if name != "facc"}
    assert set(others.values()) == {None}
    assert out["counts"]["frames"] == 4
    # Next to a frame with a missed hand they still count.
    some = still(4, None, None)
    some[0, 0] = (-0.1, 0, 0.6)
    assert evaluate((nothing, motion_of(some)))["metrics"]["facc"] == 0.75


def test_hands_behind_the_camera_are_out_of_sight():
    """They are excluded in view, counted in the second pass, and boxes ignore what is behind."""
    truth = motion_of(still(2, left=(-0.1, 0.0, -0.6)))
    guess = motion_of(still(2, left=(-0.1, 0.0, -0.6)))
    out = evaluate((guess, truth))
    assert out["counts"] == counted(tp=2, iv=2, oos=2, frames=2)
    # A hand across the camera plane has a box of its front part alone.
    points = np.array([[[0.0, 0.0, 1.0], [0.1, 0.1, 1.0], [5.0, 5.0, -1.0], [0.0, 0.0, 0.01]]])
    box = boxes_around(points, CAMERA, 0.01)
    assert np.allclose(box, [[159.5, 119.5, 189.5, 149.5]])
    assert np.isnan(boxes_around(-points, CAMERA, 0.01)[0]).sum() == 0
    assert np.isnan(boxes_around(points - (0, 0, 2), CAMERA, 0.01)).all()


def test_the_second_pass_has_no_gate_and_no_matching():
    """Out of sight, a hand is scored whatever its presence; an empty slot gets the canonical."""
    bent = np.tile(np.eye(3), (1, 2, 15, 1, 1))
    bent[..., 0, :, :] = rotations.exp(np.array([0.0, 0.0, 1.0]))
    where = still(1, left=(0, 0, -0.6), right=(0, 0, -0.6))
    truth = motion_of(where, pose=bent)
    guess = where.copy()
    guess[0, 1] = np.nan
    out = evaluate((motion_of(guess, pose=bent, presence=[[0.0, 0.0]]), truth))
    hand = CapsuleHand()
    right = truth.joints_camera[0, 1] - truth.joints_camera[0, 1, 0]
    flat = canonical_joints(hand, "right")
    charge = 1e3 * np.linalg.norm(right - (flat - flat[0]), axis=1).mean()
    assert charge > 1
    assert out["metrics"]["mpjpe_oos"] == pytest.approx(charge / 2)
    assert out["metrics"]["mpjpe_p"] is None
    assert out["out_of_sight_placement"]["emitted"] == 1
    assert out["out_of_sight_placement"]["count"] == 2


def test_jitter_by_hand():
    """A hand that jumps 1 mm forth and back: second difference 2 mm every frame."""
    path = still(6, right=None)
    path[1::2, 0, 0] += 1e-3
    out = evaluate((motion_of(path), motion_of(still(6, right=None))))
    assert out["metrics"]["jitter"] == pytest.approx(2.0)


def test_a_miss_ends_a_run():
    """Frames 0 to 3 and 5 to 6: only the first run has three; the jump across the miss is free."""
    path = still(7, right=None)
    path[4, 0] = np.nan
    path[5:, 0, 2] += 0.05
    path[2:4, 0, 0] += 1e-3
    score = score_segment("s", motion_of(path), motion_of(still(7, right=None)), SMALL, PAPER)
    # Steps 0, 1 mm, 0 give second differences 1 and 1 mm in frames 1 and 2.
    assert score.jitter == ((pytest.approx(1.0), 2),)


def test_no_run_crosses_a_segment():
    truth = motion_of(still(2, right=None))
    out = evaluate((truth, truth), (truth, truth))
    assert out["metrics"]["jitter"] is None


def test_jitter_of_runs_of_unequal_length():
    """The paper's mean is over runs; the mean over frames is given too."""
    path = still(10, right=None)
    path[3, 0] = np.nan
    path[5::2, 0, 0] += 1e-3
    out = evaluate((motion_of(path), motion_of(still(10, right=None))))
    assert out["metrics"]["jitter"] == pytest.approx((0 + 2) / 2)
    assert out["variants"]["jitter_over_frames"] == pytest.approx((1 * 0 + 4 * 2) / 5)


def test_anchors_and_the_rule_without_intrinsics():
    """Own anchors 3 px off score 3 px; without intrinsics the projected joints score."""
    truth = motion_of(still(1))
    anchors = CAMERA.project(truth.joints_camera) + np.array([3.0, 0.0])
    own = motion_of(still(1), anchors=anchors)
    free = motion_of(still(1), anchors=anchors, settings={"solve": {"bearings": "pinhole"}})
    given = motion_of(still(1), anchors=anchors, settings={"intrinsics_used": False})
    assert evaluate((own, truth))["metrics"]["epe_p"] == pytest.approx(3)
    for guess in (free, given):
        out = evaluate((guess, truth))
        assert out["metrics"]["epe_p"] == pytest.approx(0, abs=1e-9)
        assert out["anchors"] == "reprojected"
    forced = replace(PAPER, anchors="own")
    assert evaluate((free, truth), protocol=forced)["metrics"]["epe_p"] == pytest.approx(3)


def test_epe_counts_joints_in_the_image_only():
    """Of the left hand a part is inside, 4 px off, and the rest 400; the right one is 1 px off."""
    where = still(1, left=(-0.32, 0.0, 0.6), right=(0.1, 0.0, 0.6))
    truth = motion_of(where)
    x, y, z = np.moveaxis(truth.joints_camera[0], -1, 0)
    u, v = 159.5 + 300 * x / z, 119.5 + 300 * y / z
    inside = (u >= 0) & (u < 320) & (v >= 0) & (v < 240)
    part, whole = inside.sum(-1)
    assert 0 < part < whole == 21
    off = np.where(inside, [[4.0], [1.0]], 400.0)
    out = evaluate((motion_of(where, anchors=np.stack([u, v + off], -1)[None]), truth))
    assert out["metrics"]["epe_p"] == pytest.approx((4 + 1) / 2)
    assert out["variants"]["epe_p_over_joints"] == pytest.approx((4 * part + 21) / (part + 21))


def test_the_gate_at_its_borders():
    """[0, W) x [0, H) at a depth above 1 cm, to the letter."""

    def joints(pixel, depth):
        out = np.full((21, 3), (0.0, 0.0, -1.0))
        out[3] = depth * np.array([(pixel[0] - 159.5) / 300, (pixel[1] - 119.5) / 300, 1.0])
        return out

    def seen(pixel, depth=1.0):
        return bool(joints_in_image(joints(pixel, depth), CAMERA, 0.01).any())

    assert seen((1e-6, 100)) and not seen((-1e-6, 100))
    assert seen((319.999, 100)) and not seen((320.001, 100))
    assert seen((100, 239.999)) and not seen((100, 240.001))
    assert seen((100, 100), 0.0101) and not seen((100, 100), 0.0099)


def test_dilation_is_a_tenth_of_the_size():
    assert np.allclose(dilated(np.array([0.0, 0, 100, 20]), 0.1), [-5, -1, 105, 21])
    # Boxes that meet only because of it are a match; just beyond they are not.
    a, b = np.array([0.0, 0, 100, 20]), np.array([104.0, 0, 204, 20])
    assert overlap(b, a) == 0 and overlap(b, dilated(a, 0.1)) > 0
    assert overlap(b + np.array([2, 0, 2, 0]), dilated(a, 0.1)) == 0


def test_overlap_by_hand():
    a, b = np.array([0.0, 0, 2, 2]), np.array([1.0, 1, 3, 3])
    assert overlap(a, b) == pytest.approx(1 / 7) and overlap(a, np.full(4, np.nan)) == 0


def test_procrustes_undoes_a_similarity_but_not_a_mirror():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(1, 21, 3))
    turn = rotations.exp(np.array([0.3, -2.0, 1.0]))
    assert pa_mm(0.3 * a @ turn.T + 5, a)[0] == pytest.approx(0, abs=1e-9)
    assert pa_mm(a * (-1, 1, 1), a)[0] > 100
    point = pa_mm(np.zeros((1, 21, 3)), a)[0]
    assert point == pytest.approx(1e3 * np.linalg.norm(a - a.mean(1), axis=-1).mean())


def test_error_against_radius():
    """Two hands at known places of a 320 x 240 image; half the diagonal is 200 px."""
    truth = motion_of(still(2, left=(0.0, 0.0, 0.6), right=(0.0, 0.0, 0.6)))
    centre = truth.joints_camera[0].mean(-2)
    # Left on the optical axis; right 0.2 m to its side: 300 px * 0.2 / depth over 200 px.
    moved = still(2, (0.0, 0.0, 0.6), (0.2, 0.0, 0.6)) - centre * (1, 1, 0)
    truth = motion_of(moved)
    radius = 300 * 0.2 / centre[1, 2] / 200
    assert 0.25 < radius < 0.75
    rows = evaluate((motion_of(moved + np.array([0, 0, 0.03])), truth))["radius"]
    right = 1 if radius < 0.5 else 2
    assert [row["count"] for row in rows] == [2 if i in (0, right) else 0 for i in range(4)]
    assert rows[0]["share"] == rows[right]["share"] == 0.5
    assert rows[0]["ct"] == pytest.approx(0.03) and rows[3]["mpjpe"] is None
    score = score_segment("s", truth, truth, SMALL, PAPER)
    assert score.radius[0] == pytest.approx([0, radius], abs=1e-12)


def test_out_of_sight_placement_by_hand():
    """A wrist 1 m behind, predicted 1.1 m behind in the same direction: no bearing error."""
    wrist = CapsuleHand().rest_keypoints("left", np.zeros(10))[0]
    truth = motion_of(still(2, tuple(np.array([0, 0, -1.0]) - wrist), None))
    guess = motion_of(still(2, tuple(np.array([0, 0, -1.1]) - wrist), None))
    out = evaluate((guess, truth))
    block = out["out_of_sight_placement"]
    assert block["count"] == block["emitted"] == 2
    assert block["wrist_m"] == pytest.approx(0.1)
    assert block["bearing_deg"] == pytest.approx(0, abs=1e-9)
    assert block["range_bias_m"] == pytest.approx(0.1)
    assert out["metrics"]["mpjpe_oos"] == pytest.approx(0, abs=1e-9)  # which does not see it
    assert out["translation_m"]["oos"] == pytest.approx(0.1)
    side = motion_of(still(2, tuple(np.array([1.0, 0, 0]) - wrist), None))
    turned = evaluate((side, truth))["out_of_sight_placement"]
    assert turned["bearing_deg"] == pytest.approx(90)


def test_joints_alone_have_no_orientation_or_translation():
    truth = motion_of(still(4))
    nothing = {name: np.full_like(getattr(truth, name), np.nan) for name in
               ("global_orient", "hand_pose")}  # fmt: skip
    metrics = evaluate((replace(truth, hand_model="none", **nothing), truth))["metrics"]
    assert metrics["go_p"] is None and metrics["ct_p"] is None and metrics["recall"] == 1
    assert metrics["mpjpe_p"] == pytest.approx(0, abs=1e-9)


def test_pixels_are_counted_in_pictures_of_the_papers_size():
    """An anchor 10 px to the right in 320 x 240 is 21 px off at 672 wide; a miss costs 826."""
    truth = motion_of(still(3))
    anchors = CAMERA.project(truth.joints_camera) + np.array([10.0, 0.0])
    guess = replace(motion_of(still(3)), joints_image=anchors)
    for picture, error in ((None, 10.0), ((672, 480), 21.0), ((320, 480), 10.0)):
        score = score_segment("seg", guess, truth, SMALL, PAPER, picture)
        np.testing.assert_allclose(score.epe_px, error, rtol=1e-5)
        assert score.picture == (picture or (320, 240))
    nothing = replace(guess, presence=np.zeros((3, 2)))
    missed = score_segment("seg", nothing, truth, SMALL, PAPER, (672, 480))
    np.testing.assert_allclose(missed.epe_px, 825.8, atol=0.05)  # sqrt(672^2 + 480^2)
    square = score_segment("seg", nothing, truth, SMALL, PAPER, (480, 480))
    np.testing.assert_allclose(square.epe_px, 678.8, atol=0.05)


@pytest.mark.parametrize(
    ("asked", "dataset", "stored", "size"),
    [
        ("paper", "arctic", (2800, 2000), (672, 480)),
        ("paper", "hot3d", (1408, 1408), (480, 480)),
        ("paper", "h2o", (1280, 720), (832, 480)),  # 468 is no even number of latents
        ("paper", "hoi4d", (1920, 1080), (1920, 1080)),
        ("stored", "arctic", (2800, 2000), (2800, 2000)),
        ("640x360", "arctic", (2800, 2000), (640, 360)),
    ],
)
def test_sizes_of_picture(asked, dataset, stored, size):
    assert picture_size(asked, dataset, *stored) == size
    for wrong in ("big", "640", "0x10", "640x", "-1x5", "640X360"):
        with pytest.raises(InputError, match="picture_size"):
            picture_size(wrong, dataset, *stored)


def test_ground_truth_that_cannot_be_scored_against():
    truth = motion_of(still(2))
    for change, word in (({"camera": None}, "camera"), ({"hand_model": "none"}, "joints only"),
                         ({"placed": False}, "wrist")):  # fmt: skip
        with pytest.raises(SchemaError, match=word):
            score_segment("seg", truth, replace(truth, **change), SMALL, PAPER)
