"""Window plans, sizes and frame counts: the released code's tables, and their properties."""

import itertools
import json

import numpy as np
import pytest

from acehand_core.ace.model.inference.windows import (
    OVERLAP_LATENTS,
    PAPER_LATENTS,
    _blended,
    encode_camera,
    encode_size,
    frames_padded,
    frames_used,
    latents_of,
    paper_plan,
    plan_windows,
    released_starts,
)
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera


@pytest.fixture(scope="module")
def tables(golden_folder):
    return json.loads((golden_folder / "tables.json").read_text("utf-8"))


def test_released_starts_equal_the_table(tables):
    rows = tables["window_plan"]["rows"]
    assert {row[0] for row in rows} >= set(range(2, 131))
    for latents, frames, starts in rows:
        assert 4 * (latents - 1) + 1 == frames
        assert [list(start) for start in released_starts(latents)] == starts
    for width, rows in tables["window_plan_other_widths"].items():
        for latents, starts in rows:
            assert [list(start) for start in released_starts(latents, int(width))] == starts


def test_frames_used_equal_the_table(tables):
    for count, used in tables["frames_used"]:
        assert frames_used(count) == used


def test_encode_sizes_equal_the_table(tables):
    for width, height, option, encoded_width, encoded_height in tables["encode_size"]["rows"]:
        assert encode_size(width, height, option) == (encoded_width, encoded_height)


def test_encode_size_rounds_halves_to_even():
    assert encode_size(80, 48, 0) == (64, 64)
    assert encode_size(112, 144, 0) == (128, 128)
    with pytest.raises(InputError, match="-1"):
        encode_size(640, 480, -1)


def test_padding_loses_no_frame_and_adds_less_than_a_latent():
    for count in range(1, 200):
        padded = frames_padded(count)
        assert padded % 4 == 1
        assert max(count, 5) <= padded < max(count, 5) + 4
        assert frames_used(padded) == padded
        assert 4 * (latents_of(padded) - 1) + 1 == padded


def write_from(window):
    """The first frame of the recording that a window of the paper's plan writes."""
    assert (np.diff(window.share) >= 0).all() and set(window.share) <= {0, 1}
    return window.first_frame + int(np.argmax(window.share))


def test_windows_of_the_length_of_training_by_hand():
    """As released 21 latents would start at 60 and 81: frames 321 to 323 would be in neither."""
    assert {60, 81} <= {start for start, _ in released_starts(130, 21)}
    # 43 latents are frames 0 to 168: 0 to 80, 80 to 160, and what is left in a last window.
    plan = [(w.start, w.stop, write_from(w)) for w in paper_plan(43, 21)]
    assert plan == [(0, 21, 0), (20, 41, 80), (22, 43, 161)]
    assert [(w.start, w.stop) for w in paper_plan(41, 21)] == [(0, 21), (20, 41)]
    assert len(paper_plan(15, 15)) == 1


@pytest.mark.parametrize(
    ("kind", "width"),
    [("full", 22), *itertools.product(("paper", "blended"), (2, 3, 6, 20, 21, PAPER_LATENTS, 30))],
)
@pytest.mark.parametrize("count", [2, 21, 22, 23, 39, 60, 257])
def test_shares_decide_every_frame(kind, width, count):
    windows = plan_windows(kind, count, width)
    decided = np.zeros(4 * (count - 1) + 1)
    for window in windows:
        rows = slice(window.first_frame, window.stop_frame)
        assert len(window.share) == window.stop_frame - window.first_frame
        decided[rows] = decided[rows] * (1 - window.share) + window.share
    np.testing.assert_allclose(decided, 1, atol=1e-12)
    assert windows[0].start == 0 and windows[-1].stop == count
    if kind == "full":
        assert len(windows) == 1
    else:
        assert all(w.stop - w.start == min(width, count) for w in windows)


@pytest.mark.parametrize("count", [23, 39, 60, 100, 257])
def test_blended_windows_share_enough_and_fade_without_a_jump(count):
    windows = plan_windows("blended", count)
    for first, second in itertools.pairwise(windows):
        assert first.stop - second.start >= OVERLAP_LATENTS
        shared = first.stop_frame - second.first_frame
        assert (second.share[shared:] == 1).all()
        assert np.abs(np.diff(np.r_[0.0, second.share])).max() < 0.06
        assert (np.diff(second.share) >= 0).all()


def test_the_papers_plan_by_hand():
    """43 latents are 169 frames, two segments of 81: windows at 0 and at latent 81 // 4 = 20."""
    plan = [(w.start, w.stop, write_from(w)) for w in paper_plan(43)]
    assert plan == [(0, 22, 0), (20, 42, 80), (21, 43, 165)]
    first, second, third = plan_windows("paper", 43)
    assert first.share.tolist() == [1] * 85 and second.share.tolist() == [1] * 85
    assert third.share.tolist() == [0] * 81 + [1] * 4  # frames 84 to 168
    # A clip of one window, and one that ends exactly with its second.
    assert [(w.start, w.stop, write_from(w)) for w in paper_plan(22)] == [(0, 22, 0)]
    assert [(w.start, w.stop, write_from(w)) for w in paper_plan(42)] == [(0, 22, 0), (20, 42, 80)]


def test_blended_shares_by_hand():
    # Latents 0 to 3 and 1 to 4 are frames 0 to 12 and 4 to 16: 9 are shared. Two latents span 5
    # frames, the fade; it lies in the middle, so 2 shared frames stay before it and 2 after.
    first, second = _blended(5, 4, 2)
    assert (first.start, first.stop, second.start, second.stop) == (0, 4, 1, 5)
    assert first.share.tolist() == [1] * 13
    sixths = [0, 0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1]
    np.testing.assert_allclose(second.share, sixths + [1] * 4, rtol=1e-12)
    # Latents 0 to 2 and 1 to 3 share 5 frames: all of them fade.
    second = _blended(4, 3, 2)[1]
    np.testing.assert_allclose(second.share, np.r_[np.arange(1, 6) / 6, [1] * 4], rtol=1e-12)
    # 30 latents in windows of 22 that share 6 or more: 0 to 21 and 8 to 29, frames 32 to 84 in
    # both. 53 frames with a fade of 21 in the middle: after 16, half way at frame 32 + 26 = 58.
    first, second = plan_windows("blended", 30)
    assert (second.start, second.stop, first.stop_frame) == (8, 30, 85)
    assert not second.share[:16].any() and second.share[16] == pytest.approx(1 / 22)
    assert second.share[26] == 0.5
    assert second.share[36] == pytest.approx(21 / 22) and (second.share[37:] == 1).all()


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (("blend", 30), "Did you mean 'blended'"),
        (("full", 1025), "1024"),
        (("blended", 60, 1), "2 or more"),
        (("paper", 60, 1), "2 or more"),
    ],
)
def test_plans_that_cannot_be_are_refused(plan, named):
    with pytest.raises(InputError, match=named):
        plan_windows(*plan)


def test_intrinsics_scale_by_plain_ratios():
    scaled = encode_camera(Camera("pinhole", 672, 480, 500.0, 510.0, 336.0, 240.0), 832, 608)
    assert (scaled.width, scaled.height) == (832, 608)
    found = [scaled.fx, scaled.cx, scaled.fy, scaled.cy]
    x, y = 832 / 672, 608 / 480
    np.testing.assert_allclose(found, [500 * x, 336 * x, 510 * y, 240 * y], rtol=1e-12)
