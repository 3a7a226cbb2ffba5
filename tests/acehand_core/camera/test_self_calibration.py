"""Focal lengths from tracks and lines of made-up scenes, whose focal length is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.camera import focal_length as estimating
from acehand_core.camera.focal_length import FocalLengthFinding, agreed, finding, focal_lengths
from acehand_core.camera.structure import Lens, agreement, profile
from acehand_core.camera.tracks import windows
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.registry import open_recording
from helpers.commands import Acehand
from helpers.video_fixtures import write_video

WIDTH, HEIGHT = 640, 480


def tracks_of_a_scene(
    rng: np.random.Generator,
    focal: float,
    *,
    flat: bool = False,
    strays: float = 0.0,
    turn: float = 0.3,
    shift: float = 0.15,
) -> np.ndarray:
    """Points in a room before a head that sways, in pixels relative to the middle, with noise."""
    points = rng.uniform([-1.5, -1, 0.6], [1.5, 1, 2.5], (200, 3))
    if flat:
        points[:, 2] = 1 + 0.3 * points[:, 1]
    waves = np.sin(2 * np.pi * np.outer(np.linspace(0, 1, 12), [0.5, 0.8, 1.1])[:, None]
                   + rng.uniform(0, 6, (6, 3)))  # fmt: skip
    motion = np.einsum("kij,ij->ki", waves, rng.normal(0, 1, (6, 3)))
    R, centre = rotations.exp(turn * motion[:, :3]), shift * motion[:, 3:]
    camera = (points - centre[:, None]) @ R.swapaxes(1, 2)
    pixels = focal * camera[..., :2] / camera[..., 2:] + rng.normal(0, 0.3, (12, 200, 2))
    hidden = (camera[..., 2] < 0.1) | (np.abs(pixels) > (WIDTH / 2, HEIGHT / 2)).any(-1)
    pixels[hidden] = np.nan
    moving = int(200 * strays)  # a hand
    pixels[:, :moving] += np.cumsum(rng.normal(0, 6, (12, moving, 2)), axis=0)
    return pixels[:, np.isfinite(pixels[..., 0]).sum(0) >= 4]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [{}, {"strays": 0.15}, {"flat": True}])
def test_a_moving_cameras_focal_length(seed: int, kind: dict) -> None:
    rng = np.random.default_rng(seed)
    true = float(rng.uniform(0.35, 0.9) * WIDTH)
    tracks = tracks_of_a_scene(rng, true, **kind)
    focals = true * np.geomspace(0.6, 1.6, 11)[[0, 2, 4, 5, 6, 8, 10]]
    misfit = profile(tracks, focals)
    assert np.argmin(np.abs(np.log(focals / true))) == np.argmin(misfit)
    assert np.sort(misfit)[1] > misfit.min() + 10


@pytest.mark.parametrize("bent", ["pinhole", "equidistant"])
def test_which_lens_it_is(bent: str) -> None:
    """The scene's pixels, moved to where a lens of the other kind would see them."""
    tracks = tracks_of_a_scene(np.random.default_rng(1), 300.0)
    radius = np.linalg.norm(tracks, axis=-1, keepdims=True)
    if bent == "equidistant":
        tracks = tracks * 300.0 * np.arctan(radius / 300.0) / radius
    focals = 300.0 * np.array([0.8, 1.0, 1.25])
    misfits = {lens: profile(tracks, focals, lens) for lens in ("pinhole", "equidistant")}
    assert min(misfits, key=lambda lens: misfits[lens].min()) == bent
    assert int(np.argmin(misfits[bent])) == 1


def test_lines_through_a_fisheye() -> None:
    """Chords of bent lines: ends that an equidistant lens would see."""
    rng = np.random.default_rng(1)
    focals = focal_lengths("equidistant")
    true = 0.45
    curves = []
    for straight in box_edges(rng, true * WIDTH, 6, strays=10):
        ends = straight.reshape(-1, 2, 2)
        radius = np.linalg.norm(ends, axis=-1, keepdims=True)
        bent = ends * true * WIDTH * np.arctan(radius / (true * WIDTH)) / radius
        likely = agreement(bent.reshape(-1, 4), focals * WIDTH, rng, "equidistant")[0]
        curves.append(-likely)
    found = finding("lines", np.array(curves), "equidistant")
    assert found.reason == "" and found.focal == pytest.approx(true, rel=0.03)


def test_a_camera_that_only_turns_or_stands_says_little() -> None:
    """Far points alone fix it as well; without any motion every focal length fits."""
    rng = np.random.default_rng(0)
    still = tracks_of_a_scene(rng, 400.0, turn=0.0, shift=0.0)
    misfit = profile(still, 400.0 * np.array([0.7, 1.0, 1.4]))
    assert misfit.max() - misfit.min() < 5


def box_edges(rng: np.random.Generator, focal: float, frames: int, strays: int) -> list[np.ndarray]:
    """Edges of boxes that stand square to each other, as segments with noisy ends, and others."""
    square = rotations.exp(rng.normal(0, 0.4, 3))
    pictures = []
    for _ in range(frames):
        R = rotations.exp(rng.normal(0, 0.15, 3)) @ square
        segments = []
        while len(segments) < 40:
            start = rng.uniform([-1, -0.8, 1], [1, 0.8, 2.5])
            stop = start + R[:, rng.integers(3)] * rng.uniform(0.1, 0.5)
            ends = np.stack([start, stop])
            pixels = focal * ends[:, :2] / ends[:, 2:]
            if (ends[:, 2] > 0.3).all() and (np.abs(pixels) < (WIDTH / 2, HEIGHT / 2)).all():
                segments.append((pixels + rng.normal(0, 0.5, (2, 2))).ravel())
        segments += list(rng.uniform(-200, 200, (strays, 4)))
        long = [s for s in segments if np.hypot(s[2] - s[0], s[3] - s[1]) > 20]
        pictures.append(np.array(long))
    return pictures


@pytest.mark.parametrize("seed", range(3))
def test_the_focal_length_of_straight_lines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true = float(rng.uniform(0.35, 0.9))
    focals = focal_lengths()
    curves = [
        -agreement(segments, focals * WIDTH, np.random.default_rng(9))[0]
        for segments in box_edges(rng, true * WIDTH, 8, strays=15)
    ]
    found = finding("lines", np.array(curves))
    assert found.reason == ""
    assert found.focal == pytest.approx(true, rel=0.05)


def test_directions_are_those_of_the_boxes() -> None:
    rng = np.random.default_rng(5)
    (segments,) = box_edges(rng, 400.0, 1, strays=5)
    likely, corners = agreement(segments, np.array([250.0, 400.0, 640.0]), np.random.default_rng(0))
    assert int(np.argmax(likely)) == 1
    np.testing.assert_allclose(corners[1] @ corners[1].T, np.eye(3), atol=1e-9)


FOCALS = focal_lengths()


def valley(at: float, depth: float) -> np.ndarray:
    """Misfit that grows with the square of the logarithm: ``depth`` where it is 15 % off."""
    return depth * (np.log(FOCALS / at) / math.log(1.15)) ** 2


def test_a_finding_and_its_error() -> None:
    """Sharp parts are 7 % off each; seven that overlap by half are worth four: 7 / 2 = 3.5 %.

    A wide valley stays as it is: exp(-depth / 7) is normal with sd log(1.15) sqrt(7 / 2 / depth).
    One part alone is wrong with 15 %, and the focal length then anywhere: the sum of two variances.
    """
    sharp = finding("motion", np.stack([valley(0.8 * s, 2000) for s in np.linspace(0.99, 1.01, 7)]))
    assert sharp.focal == pytest.approx(0.8, rel=0.005) and sharp.reason == ""
    assert sharp.error == pytest.approx(0.035, rel=0.1)
    wide = finding("motion", np.stack([valley(0.8, 7.0)]))
    normal = math.hypot(math.log(1.15) * math.sqrt(0.5), 0.07)
    ends = np.log(FOCALS[[0, -1]])
    apart, anywhere = math.log(0.8) - ends.mean(), np.ptp(ends) / math.sqrt(12)
    variance = 0.85 * normal**2 + 0.15 * anywhere**2 + 0.85 * 0.15 * apart**2
    assert wide.error == pytest.approx(math.sqrt(variance), rel=0.05)
    assert "nearly as well" in wide.reason
    assert "hardly moves" in finding("motion", np.zeros((0, len(FOCALS)))).reason
    assert "too few" in finding("lines", np.zeros((0, len(FOCALS)))).reason
    falling = np.tile(-10.0 * np.arange(len(FOCALS)), (3, 1))
    assert "40 to 125" in finding("lines", falling).reason


def test_a_part_that_is_wrong_altogether_counts_little() -> None:
    good = [valley(0.8, 500)] * 5
    stray = finding("motion", np.stack([*good, valley(1.3, 5000)]))
    assert stray.focal == pytest.approx(0.8, rel=0.02) and stray.reason == ""
    torn = finding("motion", np.stack([valley(0.6, 500), valley(0.9, 500), valley(1.2, 500)]))
    assert torn.error > 0.15 and "nearly as well" in torn.reason


def said(
    focal: float | None, error: float = 0.02, reason: str = "", lens: Lens = "pinhole"
) -> FocalLengthFinding:
    """A method that says log(focal) +- error, normally distributed."""
    shortest, *_, longest = np.log(focal_lengths(lens))
    fine = np.linspace(shortest, longest, 801)
    density = np.exp(-0.5 * ((fine - math.log(focal or 1.0)) / error) ** 2) if focal else fine * 0
    return FocalLengthFinding("motion", lens, focal, error, 5, density, reason)


def test_two_methods_must_agree() -> None:
    """Normal distributions: weights 1 / error^2, and 1 / error^2 add up."""
    focal, error, reason = agreed(said(0.80, 0.05), said(0.82, 0.02))
    assert focal == pytest.approx(0.80 ** (4 / 29) * 0.82 ** (25 / 29), rel=1e-3) and reason == ""
    assert error == pytest.approx((20**2 + 50**2) ** -0.5, rel=0.01)
    assert agreed(said(0.80, 0.01), said(0.80, 0.01))[1] == pytest.approx(0.01)  # never surer
    focal, _, reason = agreed(said(0.80), said(0.90))
    assert focal is None and "disagree by 12 %" in reason
    focal, _, reason = agreed(said(0.80, 0.07), said(0.91, 0.07))
    assert focal is None and "disagree by 13 %" in reason  # within the errors, but too far
    focal, _, reason = agreed(said(0.80, 0.05), said(0.80, 0.05))
    assert focal is None and "no surer than +- 3.5 %" in reason
    focal, _, reason = agreed(said(0.80), said(None, math.inf, "too few lines"))
    assert focal is None and "too few lines" in reason
    assert agreed(said(0.8, reason="weak"), said(0.8))[0] is None


def test_a_lens_that_is_not_clear_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both agree, and a fisheye fits as well as a pinhole; then worse, then better.

    0.8 widths are 0.5 / 0.8 rad to either side of an equidistant one: 72 degrees.
    """
    monkeypatch.setattr(
        estimating, "finding",
        lambda name, curves, lens="pinhole": said(0.8, 0.02, lens=lens),
    )  # fmt: skip
    recording = open_recording(write_video(tmp_path / "v.mp4", 4, size=(320, 240)))
    for bent, why in ((0.0, "about as well"), (-100.0, ""), (100.0, "fisheye, some 72 degrees")):
        monkeypatch.setattr(estimating._Evidence, "bent", lambda self, bent=bent: bent)
        found = estimating.estimate(recording)
        assert why in found.reason and (found.camera is None) == bool(why)


def test_corners_do_not_drift() -> None:
    """A wall that sways: after 40 frames corners are where they were found, within 0.3 pixels."""
    rng = np.random.default_rng(0)
    wall = cv2.GaussianBlur(rng.integers(0, 255, (240, 640)).astype(np.uint8), (0, 0), 2)
    at = np.round(100 + 60 * np.sin(np.arange(41) * 0.3)).astype(int)
    found = list(windows(np.ascontiguousarray(wall[:, x : x + 320]) for x in at))
    assert len(found) >= 2 and found[1].frames[0] < found[0].frames[-1]  # they overlap
    for window in found:
        shift = at[list(window.frames)].astype(float)
        place = window.tracks[..., 0] + shift[:, None]
        assert np.nanmax(np.nanmax(place, axis=0) - np.nanmin(place, axis=0)) < 0.6


def test_a_camera_that_stands_still_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (120, 160, 3)).astype(np.uint8)
    video = write_video(tmp_path / "v.mp4", [cv2.resize(picture, (320, 240))] * 8)
    output, drawn = tmp_path / "c.json", tmp_path / "p.png"
    run = Acehand(capsys, "camera", "estimate", video, "--output", output, "--picture", drawn)
    assert run.code == 1 and not output.exists() and drawn.is_file()
    assert run.json["accepted"] is False and run.json["camera"] is None
    assert "the camera hardly moves" in run.json["reason"] and "--camera-preset" in run.err


def test_a_proposal_is_written_as_our_camera_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both methods say 0.8 of the width, within a percent."""
    monkeypatch.setattr(
        estimating, "finding", lambda name, curves, lens: said(0.80 if name == "motion" else 0.81)
    )
    monkeypatch.setattr(estimating._Evidence, "bent", lambda self: -100.0)
    video = write_video(tmp_path / "v.mp4", 4, size=(320, 240))
    output = tmp_path / "c.json"
    run = Acehand(capsys, "camera", "estimate", video, "--output", output)
    assert run.code == 0 and run.json["accepted"] is True
    camera = Camera.from_json(json.loads(output.read_text()))
    assert camera.fx == pytest.approx(math.sqrt(0.80 * 0.81) * 320) and camera.model == "pinhole"
    run = Acehand(capsys, "camera", "estimate", video, "--output", output)
    assert run.code == 4 and "exists" in run.err


@pytest.mark.parametrize("kind", ["black", "noise", "one", "cut"])
def test_pictures_that_say_nothing(tmp_path: Path, kind: str) -> None:
    """No proposal and no crash: black, another noise in every picture, one picture, cuts."""
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 255, (120, 160, 3)).astype(np.uint8) for _ in range(14)]
    pictures = {
        "black": [np.zeros((120, 160, 3), np.uint8)] * 14,
        "noise": noise,
        "one": noise[:1],
        "cut": noise[:1] * 7 + noise[1:2] * 7,
    }[kind]
    recording = open_recording(write_video(tmp_path / "v.mp4", pictures))
    found = estimating.estimate(recording)
    assert found.camera is None and found.reason


def test_corners_are_followed() -> None:
    """A picture that is shifted by 6 pixels a frame: every track moves by as much."""
    rng = np.random.default_rng(0)
    wall = cv2.GaussianBlur(rng.integers(0, 255, (240, 640)).astype(np.uint8), (0, 0), 2)
    (window,) = windows(np.ascontiguousarray(wall[:, 6 * n : 6 * n + 320]) for n in range(20))
    assert len(window.frames) >= 4
    steps = np.diff(window.tracks, axis=0) / np.diff(window.frames)[:, None, None]
    assert np.nanmax(np.abs(steps - (-6, 0))) < 0.3
