"""Window plans, sizes and frame counts: the released code's tables, and their properties."""

import itertools
import json

import numpy as np
import pytest

from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.inference.windows import (
    OVERLAP_LATENTS,
    PAPER_LATENTS,
    encode_camera,
    encode_size,
    frames_padded,
    frames_used,
    latents_of,
    paper_plan,
    plan_windows,
    released_starts,
)


@pytest.fixture(scope="module")
def tables(shared):
    return json.loads((shared / "golden" / "tables.json").read_text("utf-8"))


def test_released_starts_equal_the_table(tables):
    rows = tables["window_plan"]["rows"]
    assert {row[0] for row in rows} >= set(range(2, 131))
    for latents, frames, starts in rows:
        assert 4 * (latents - 1) + 1 == frames
        assert [list(start) for start in released_starts(latents)] == starts


def test_released_starts_of_other_widths_equal_the_table(tables):
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


@pytest.mark.parametrize("count", [2, 22, 23, 42, 43, 61, 130])
def test_the_paper_plan_writes_every_frame_once_at_last(count):
    written = np.full(4 * (count - 1) + 1, -1)
    for number, window in enumerate(paper_plan(count)):
        assert 0 <= window.start < window.stop <= count
        assert 4 * window.start <= window.write_from
        written[window.write_from : 4 * (window.stop - 1) + 1] = number
    assert (written >= 0).all()


def test_a_width_that_leaves_frames_out_is_refused():
    with pytest.raises(InputError, match="21 or more"):
        paper_plan(60, 20)
    with pytest.raises(InputError, match="21 or more"):
        plan_windows("paper", 60, 20)
    assert len(paper_plan(15, 15)) == 1  # one window over everything leaves nothing out


@pytest.mark.parametrize("kind", ["paper", "blended", "full"])
@pytest.mark.parametrize("count", [2, 21, 22, 23, 38, 39, 60, 100, 257])
def test_shares_decide_every_frame(kind, count):
    windows = plan_windows(kind, count)
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
        assert all(w.stop - w.start == min(PAPER_LATENTS, count) for w in windows)


@pytest.mark.parametrize("count", [23, 39, 60, 100, 257])
def test_blended_windows_share_enough_and_fade_without_a_jump(count):
    windows = plan_windows("blended", count)
    for first, second in itertools.pairwise(windows):
        assert first.stop - second.start >= OVERLAP_LATENTS
        shared = first.stop_frame - second.first_frame
        assert (second.share[shared:] == 1).all()
        assert np.abs(np.diff(np.r_[0.0, second.share])).max() < 0.06
        assert (np.diff(second.share) >= 0).all()


def test_plans_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="Did you mean 'blended'"):
        plan_windows("blend", 30)
    with pytest.raises(InputError, match="1024"):
        plan_windows("full", 1025)
    with pytest.raises(InputError, match="shared latents"):
        plan_windows("blended", 60, 22, 22)


def test_intrinsics_scale_by_plain_ratios():
    camera = Camera("pinhole", 672, 480, 500.0, 510.0, 336.0, 240.0)
    scaled = encode_camera(camera, 832, 608)
    assert (scaled.width, scaled.height) == (832, 608)
    np.testing.assert_allclose(
        [scaled.fx, scaled.cx], np.array([500.0, 336.0]) * 832 / 672, rtol=1e-12
    )
    np.testing.assert_allclose(
        [scaled.fy, scaled.cy], np.array([510.0, 240.0]) * 608 / 480, rtol=1e-12
    )
