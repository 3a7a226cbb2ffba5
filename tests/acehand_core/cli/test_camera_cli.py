"""``acehand camera`` and docs/my_camera.md: the page's commands run on files of real structure."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.cli import console, hands, retarget
from acehand_core.cli.flags import parse
from acehand_core.cli.main import main as acehand
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.camera_files import load_camera, read_camera
from acehand_core.recordings.camera_formats import FORMATS
from acehand_core.recordings.hands_file import write_hand_motion
from helpers import ROOT
from helpers import camera_samples as samples
from helpers.bag_samples import SampleBag, pictures
from helpers.camera_samples import Lens
from helpers.commands import Acehand
from helpers.fake_motion import random_motion
from helpers.video_fixtures import write_video

PAGE = (ROOT / "docs/my_camera.md").read_text("utf-8")
WIDE = Lens(d=(-0.01, 0.004, -0.002, 0.0005))
BENT = Lens(d=(-0.2, 0.05, 1e-3, -1e-3, 0.01))
FIELDS = ("model", "width", "height", "fx", "fy", "cx", "cy", "distortion")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the page names."""
    folder = tmp_path_factory.mktemp("camera")
    cameras = {"cam0": (WIDE, "pinhole", "equi"), "cam1": (WIDE, "ds", "none")}
    samples.kalibr(folder / "camchain.yaml", cameras)
    samples.ros_calibration(folder / "ost.yaml", BENT, "plumb_bob")
    with SampleBag(folder / "bag") as bag:
        bag.image(pictures(1)[0], 10**9)
        message = bag.camera_info(10**9, d=BENT.d)
    (folder / "camera_info.yaml").write_text(samples.echoed(message) + "\n---\n")
    samples.opencv(folder / "out_camera_data.xml", BENT)
    stereo = {"M1": BENT.K, "D1": np.array([BENT.d]), "M2": BENT.K, "D2": np.array([BENT.d])}
    samples.file_storage(folder / "intrinsics.yml", stereo | {"image_size": (1280, 720)})
    samples.opencv(folder / "four.yml", WIDE, fisheye_model=None)
    samples.opencv(folder / "no_size.yml", BENT, image_width=None, image_height=None)
    samples.colmap_binary(
        folder / "cameras.bin", [(n, "OPENCV", 1280, 720, [600, 600, 640, 360, 0, 0, 0, 0])
                                 for n in (1, 2)])  # fmt: skip
    rgb = [610.0, 714.3, 707.3, 0.41, -0.46, 0.04, 1.3, -1.77, 0.65, *[1e-4] * 6]
    slam = [242.1, 320.1, 241.9, *[0.0] * 12]
    line = samples.aria_line(
        {"camera-slam-left": (slam, (640, 480)), "camera-rgb": (rgb, (1408, 1408))}, sizes=False
    )
    (folder / "online_calibration.jsonl").write_text(f"{json.dumps(line)}\n" * 3)
    samples.gyroflow(folder / "GoPro_HERO11_Black_Wide_16by9.json", WIDE)
    names = [f"radial_distortion_{number}" for number in (1, 2, 3, 4)]
    samples.theia(folder / "gopro_intrinsics_2_7k.json", WIDE, "FISHEYE", names)
    samples.orb_slam(folder / "TUM-VI.yaml", {"Camera1": WIDE, "Camera2": WIDE}, "KannalaBrandt8")
    write_video(folder / "video.mp4", frames=2, size=(640, 360))
    return folder


def test_the_pages_commands(folder, monkeypatch, capsys):
    """Each in turn; every format is there; what it prints is what the page shows."""
    monkeypatch.chdir(folder)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
             for line in block.replace("\\\n", " ").splitlines()]  # fmt: skip
    formats, said = set(), {}
    for line in lines:
        program, *words = shlex.split(line)
        if program == "acehand-retarget":
            parse(program, words, retarget.Retarget, console.Common)
            continue
        if words[0] == "reconstruct":  # the video shows no hand
            parse(program, words[1:], hands.Reconstruct, console.Common)
            write_hand_motion(random_motion(0, 2), Path("hands.parquet"))
            continue
        capsys.readouterr()
        # Two pictures of a camera that stands still are not enough for a proposal.
        assert acehand([*words, "--json"]) == (1 if "estimate" in words else 0), line
        out, err = capsys.readouterr()
        report = json.loads(out)
        said[line] = err
        formats.add(report.get("format", "preset"))
        if report.get("output") is not None:
            assert Path(report["output"]).is_file()
    assert formats == {kind.title for kind in FORMATS} | {"preset"}

    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.S)
    assert shown in said["acehand camera show camchain.yaml:cam0"]


def test_what_the_page_says_is_refused_or_asked(folder, tmp_path, capsys):
    colmap = PAGE.split("- **COLMAP**")[1].split("Refused by name: ")[1].split(".")[0]
    names = re.findall(r"[A-Z_]{3,}", colmap)
    assert len(names) == 6
    for name in names:
        path = samples.colmap_text(tmp_path / "cameras.txt", [(1, name, 64, 48, [1.0] * 6)])
        run = Acehand(capsys, "camera", "show", path)
        assert run.code == 2 and f"COLMAP's {name} is not supported" in run.err
    for file in ("camchain.yaml", "ost.yaml", "camera_info.yaml", "four.yml", "no_size.yml",
                 "intrinsics.yml", "cameras.bin", "online_calibration.jsonl"):  # fmt: skip
        run = Acehand(capsys, "camera", "show", folder / file)
        assert run.code == 2 and ("say which" in run.err or "acehand camera convert" in run.err)


def test_convert_writes_our_file(folder, tmp_path, capsys):
    words = ["camera", "convert", f"{folder}/ost.yaml:raw"]
    output = ["--output", tmp_path / "cam.json"]
    run = Acehand(capsys, *words, *output)
    assert run.code == 0 and run.json["name"] == "raw"
    values = json.loads((tmp_path / "cam.json").read_text())
    assert tuple(values) == FIELDS and values == run.json["camera"]
    assert load_camera(tmp_path / "cam.json") == load_camera(words[-1])
    run = Acehand(capsys, *words, *output)
    assert run.code == 4 and "cam.json" in run.err
    assert acehand(words) == 0 and json.loads(capsys.readouterr().out) == values
    for size in ("1280", "1280x", "axb"):
        with pytest.raises(SystemExit):
            acehand(["camera", "convert", f"{folder}/no_size.yml", "--size", size])


def test_show_reports_angles(tmp_path, capsys):
    """By hand: 90 degrees across for a focal length of half the width; and an equidistant lens."""
    pinhole = Camera("pinhole", 640, 480, 320.0, 240.0, 319.5, 239.5)

    def shown(**changes):
        (tmp_path / "cam.json").write_text(json.dumps(replace(pinhole, **changes).to_json()))
        run = Acehand(capsys, "camera", "show", tmp_path / "cam.json")
        return run.json["field_of_view_deg"], run.json["described"], run.err

    diagonal = round(2 * np.degrees(np.arctan(np.sqrt(2))), 2)
    assert shown()[0] == {"horizontal": 90.0, "vertical": 90.0, "diagonal": diagonal}
    view, described, _ = shown(model="kannala_brandt", fx=200.0, fy=200.0, distortion=(0.0,) * 4)
    assert view["horizontal"] == round(np.degrees(640 / 200), 2) and described == 1.0
    assert view["diagonal"] == round(np.degrees(800 / 200), 2)
    # r - 0.5 r^3 turns back at r = 0.816, where it is 0.544: 174 px from the middle.
    view, described, err = shown(model="brown_conrady", fy=320.0, distortion=(-0.5, 0.0, 0.0, 0.0))
    assert view["horizontal"] is None and "beyond the model" in err
    assert described == pytest.approx(np.pi * 174.2**2 / (640 * 480), abs=0.01)


def test_the_picture_of_a_video(folder, tmp_path, capsys):
    """The camera is rescaled to the video; one of another shape is refused, a bag's own kept."""
    video, output = folder / "video.mp4", tmp_path / "frame.png"
    camera = f"{folder}/camchain.yaml:cam0"
    assert acehand(["camera", "show", camera, str(video), "--output", str(output)]) == 0
    picture = cv2.imread(str(output))
    capture = cv2.VideoCapture(str(video))
    _, frame = capture.read()
    before = picture[picture.shape[0] - 360 :, :640].astype(float)
    assert np.abs(before - frame).mean() < 3  # two decoders

    lens = read_camera(camera).camera.rescaled(640, 360)
    K, d = lens.K, np.array(lens.distortion)
    truth = cv2.fisheye.undistortImage(frame, K, d, Knew=lens.whole_view().K)
    after = picture[picture.shape[0] - 360 :, 640:].astype(float)
    assert np.abs(after - truth)[20:-20, 20:-20].mean() < 4

    write_video(tmp_path / "square.mp4", frames=1, size=(64, 64))
    run = Acehand(capsys, "camera", "show", camera, tmp_path / "square.mp4")
    assert run.code == 2 and "the shapes differ" in run.err
    run = Acehand(capsys, "camera", "show", camera, folder / "bag")
    assert run.code == 2 and "its own calibration" in run.err
