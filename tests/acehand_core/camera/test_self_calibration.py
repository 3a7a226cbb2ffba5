"""Focal lengths from tracks and lines of made-up scenes, whose focal length is known."""

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
    rng: np.random.Generator, focal: float, flat: bool = False, strays: float = 0.0
) -> np.ndarray:
    """Points in a room before a head that sways, in pixels relative to the middle, with noise."""
    points = rng.uniform([-1.5, -1, 0.6], [1.5, 1, 2.5], (200, 3))
    if flat:
        points[:, 2] = 1 + 0.3 * points[:, 1]
    waves = np.sin(2 * np.pi * np.outer(np.linspace(0, 1, 12), [0.5, 0.8, 1.1])[:, None]
                   + rng.uniform(0, 6, (6, 3)))  # fmt: skip
    motion = np.einsum("kij,ij->ki", waves, rng.normal(0, 1, (6, 3)))
    R, centre = rotations.exp(0.3 * motion[:, :3]), 0.15 * motion[:, 3:]
    camera = (points - centre[:, None]) @ R.swapaxes(1, 2)
    pixels = focal * camera[..., :2] / camera[..., 2:] + rng.normal(0, 0.3, (12, 200, 2))
    hidden = (camera[..., 2] < 0.1) | (np.abs(pixels) > (WIDTH / 2, HEIGHT / 2)).any(-1)
    pixels[hidden] = np.nan
    moving = int(200 * strays)  # a hand
    pixels[:, :moving] += np.cumsum(rng.normal(0, 6, (12, moving, 2)), axis=0)
    return pixels[:, np.isfinite(pixels[..., 0]).sum(0) >= 4]


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", [{}, {"strays": 0.15}, {"flat": True}])
@pytest.mark.parametrize("seed", range(4))
def test_a_moving_cameras_focal_length(seed: int, kind: dict) -> None:
    rng = np.random.default_rng(seed)
    true = float(rng.uniform(0.35, 0.9) * WIDTH)
    tracks = tracks_of_a_scene(rng, true, **kind)
    focals = true * np.geomspace(0.6, 1.6, 11)[[0, 2, 4, 5, 6, 8, 10]]
    misfit = profile(tracks, focals)
    assert np.argmin(np.abs(np.log(focals / true))) == np.argmin(misfit)
    assert np.sort(misfit)[1] > misfit.min() + 10


def as_equidistant(pixels: np.ndarray, focal: float) -> np.ndarray:
    """Where an equidistant lens sees what a pinhole sees at ``pixels``."""
    radius = np.linalg.norm(pixels, axis=-1, keepdims=True)
    return pixels * focal * np.arctan(radius / focal) / radius


@pytest.mark.parametrize("bent", ["pinhole", "equidistant"])
def test_which_lens_it_is(bent: str) -> None:
    tracks = tracks_of_a_scene(np.random.default_rng(1), 300.0)
    if bent == "equidistant":
        tracks = as_equidistant(tracks, 300.0)
    focals = 300.0 * np.array([0.8, 1.0, 1.25])
    misfits = {lens: profile(tracks, focals, lens) for lens in ("pinhole", "equidistant")}
    assert min(misfits, key=lambda lens: misfits[lens].min()) == bent
    assert int(np.argmin(misfits[bent])) == 1


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


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("lens", "seed"), [("pinhole", 0), ("equidistant", 1), ("pinhole", 1), ("pinhole", 2)]
)
def test_the_focal_length_of_straight_lines(lens: Lens, seed: int) -> None:
    """Through a fisheye: chords of bent lines, with ends that an equidistant lens would see."""
    rng = np.random.default_rng(seed)
    true, curves = float(rng.uniform(0.35, 0.9)), []
    for segments in box_edges(rng, true * WIDTH, 8, strays=15):
        if lens == "equidistant":
            segments = as_equidistant(segments.reshape(-1, 2, 2), true * WIDTH).reshape(-1, 4)
        focals = focal_lengths(lens) * WIDTH
        curves.append(-agreement(segments, focals, np.random.default_rng(9), lens)[0])
    found = finding("lines", np.array(curves), lens)
    assert found.reason == "" and found.focal == pytest.approx(true, rel=0.05)


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

    # A part that is wrong altogether counts little.
    stray = finding("motion", np.stack([valley(0.8, 500)] * 5 + [valley(1.3, 5000)]))
    assert stray.focal == pytest.approx(0.8, rel=0.02) and stray.reason == ""
    torn = finding("motion", np.stack([valley(at, 500) for at in (0.6, 0.9, 1.2)]))
    assert torn.error > 0.15 and "nearly as well" in torn.reason


def method(
    focal: float | None, error: float = 0.02, reason: str = "", lens: Lens = "pinhole"
) -> FocalLengthFinding:
    """What a method finds: log(focal) +- error, normally distributed."""
    shortest, *_, longest = np.log(focal_lengths(lens))
    fine = np.linspace(shortest, longest, 801)
    density = np.exp(-0.5 * ((fine - math.log(focal or 1.0)) / error) ** 2) if focal else fine * 0
    return FocalLengthFinding("motion", lens, focal, error, 5, density, reason)


def test_two_methods_must_agree() -> None:
    """Normal distributions: weights 1 / error^2, and 1 / error^2 add up."""
    focal, error, reason = agreed(method(0.80, 0.05), method(0.82, 0.02))
    assert focal == pytest.approx(0.80 ** (4 / 29) * 0.82 ** (25 / 29), rel=1e-3) and reason == ""
    assert error == pytest.approx((20**2 + 50**2) ** -0.5, rel=0.01)
    assert agreed(method(0.80, 0.01), method(0.80, 0.01))[1] == pytest.approx(0.01)  # never surer
    for one, other, message in (
        (method(0.80), method(0.90), "disagree by 12 %"),
        # Within the errors, but too far.
        (method(0.80, 0.07), method(0.91, 0.07), "disagree by 13 %"),
        (method(0.80, 0.05), method(0.80, 0.05), "3.5 %"),
        (method(0.80), method(None, math.inf, "too few lines"), "too few lines"),
        (method(0.8, reason="weak"), method(0.8), "weak"),
    ):
        focal, _, reason = agreed(one, other)
        assert focal is None and message in reason


def test_a_lens_that_is_not_clear_is_refused(tmp_path, monkeypatch) -> None:
    """Both agree, and a fisheye fits as well as a pinhole; then worse, then better.

    0.8 widths are 0.5 / 0.8 rad to either side of an equidistant one: 72 degrees.
    """

    def found_by(name: str, curves: np.ndarray, lens: Lens = "pinhole") -> FocalLengthFinding:
        return method(0.8, 0.02, lens=lens)

    monkeypatch.setattr(estimating, "finding", found_by)
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
        assert len(window.frames) >= 4
        shift = at[list(window.frames)].astype(float)
        place = window.tracks[..., 0] + shift[:, None]
        assert np.nanmax(np.nanmax(place, axis=0) - np.nanmin(place, axis=0)) < 0.6


def test_a_camera_that_stands_still_is_refused(tmp_path, capsys) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (120, 160, 3)).astype(np.uint8)
    video = write_video(tmp_path / "v.mp4", [cv2.resize(picture, (320, 240))] * 8)
    output, drawn = tmp_path / "c.json", tmp_path / "p.png"
    run = Acehand(capsys, "camera", "estimate", video, "--output", output, "--picture", drawn)
    assert run.code == 1 and not output.exists() and drawn.is_file()
    assert run.json["accepted"] is False and run.json["camera"] is None
    assert "the camera hardly moves" in run.json["reason"] and "camera presets" in run.err


def test_a_proposal_is_written_as_our_camera_file(tmp_path, capsys, monkeypatch) -> None:
    """Both methods find 0.8 of the width, within a percent."""
    focals = {"motion": 0.80, "lines": 0.81}
    monkeypatch.setattr(estimating, "finding", lambda name, curves, lens: method(focals[name]))
    monkeypatch.setattr(estimating._Evidence, "bent", lambda self: -100.0)
    video = write_video(tmp_path / "v.mp4", 4, size=(320, 240))
    words = ("camera", "estimate", video, "--output", tmp_path / "c.json")
    run = Acehand(capsys, *words)
    assert run.code == 0 and run.json["accepted"] is True
    camera = Camera.from_json(json.loads((tmp_path / "c.json").read_text()))
    assert camera.fx == pytest.approx(math.sqrt(0.80 * 0.81) * 320) and camera.model == "pinhole"
    run = Acehand(capsys, *words)
    assert run.code == 4 and "exists" in run.err


@pytest.mark.parametrize("kind", ["black", "noise", "one", "cut"])
def test_pictures_that_give_no_camera(tmp_path: Path, kind: str) -> None:
    """No proposal and no crash: black, another noise in every picture, one picture, cuts."""
    noise = np.random.default_rng(0).integers(0, 255, (14, 120, 160, 3)).astype(np.uint8)
    order = {"black": [0] * 14, "noise": range(14), "one": [0], "cut": [0] * 7 + [1] * 7}[kind]
    pictures = (noise * 0 if kind == "black" else noise)[order]
    recording = open_recording(write_video(tmp_path / "v.mp4", list(pictures)))
    found = estimating.estimate(recording)
    assert found.camera is None and found.reason
