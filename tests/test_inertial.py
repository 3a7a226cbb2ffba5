"""Inertial sensors of bags, of files and of a GoPro's video, made here and read back."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from acehand_core.bags import scan
from acehand_core.bags.records import BagOptions
from acehand_core.errors import CalibrationError, InputError
from acehand_core.geometry import rotations
from acehand_core.motion import Imu, Recording
from acehand_core.recordings.bag import BagIndex, index_bag
from acehand_core.recordings.inertial import read_imu
from acehand_core.recordings.registry import open_recording
from acehand_core.recordings.selection import at_rate, part
from helpers.bag_samples import DELAY, START, SampleBag, pictures, stamps
from helpers.video_fixtures import write_video

IMU = "sensor_msgs/msg/Imu"
COUNT = 40
MOUNTING = Rotation.from_euler("xyz", [90, 20, -30], degrees=True).as_matrix()


def samples(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Return rates (rad/s) and specific forces (m/s^2) that all differ."""
    i = np.arange(count)
    rates = np.stack([0.1 * np.sin(i), 0.2 * np.cos(i), 0.01 * i], -1)
    return rates, np.stack([0.1 * i / count, -9.8 + 0.05 * np.cos(i), 0.2 * np.sin(i)], -1)


# Bags, written by the library rosbags.


def put_imu(
    bag: SampleBag,
    ns: int,
    rate: np.ndarray,
    force: np.ndarray,
    *,
    topic: str = "/imu",
    frame: str = "imu_link",
    no_rate: bool = False,
    no_force: bool = False,
) -> None:
    def covariance(absent: bool) -> np.ndarray:
        return np.array([-1.0 if absent else 0.0, *[0.0] * 8])

    message = bag.make(
        IMU, header=bag.header(ns, frame), orientation=bag.quaternion((1, 0, 0, 0)),
        orientation_covariance=covariance(True), angular_velocity=bag.vector(rate),
        angular_velocity_covariance=covariance(no_rate), linear_acceleration=bag.vector(force),
        linear_acceleration_covariance=covariance(no_force),
    )  # fmt: skip
    bag.put(topic, IMU, ns + DELAY, message)


def imu_stamps(count: int = COUNT) -> list[int]:
    return stamps(count, 200.0, START - 50_000_000)


def write_bag(path: Path, *topics: str, mounted: bool = True, **how: bool | str) -> Path:
    """Write 6 pictures; the sensor is linked to the camera over a base, both static."""
    rates, forces = samples()
    with SampleBag(path) as bag:
        for image, ns in zip(pictures(6), stamps(6), strict=True):
            bag.image(image, ns)
        for topic in topics or ("/imu",):
            for ns, rate, force in zip(imu_stamps(), rates, forces, strict=True):
                put_imu(bag, ns, rate, force, topic=topic, **how)
        if mounted:
            camera = rotations.to_quaternion(Rotation.from_euler("z", 40, degrees=True).as_matrix())
            turn = Rotation.from_euler("z", 40, degrees=True).as_matrix() @ MOUNTING
            static = {"topic": "/tf_static"}
            bag.tf(START, "base", "cam_optical", (0.1, 0, 0), camera, **static)
            bag.tf(START, "base", "imu_link", (0, 2, 0), rotations.to_quaternion(turn), **static)
    return path


def index_of(path: Path, **reading: str) -> BagIndex:
    return index_bag(path, BagOptions(**reading))


def test_an_imu_of_a_bag(tmp_path: Path) -> None:
    index = index_of(write_bag(tmp_path / "bag"))
    imu = index.recording().imu
    assert imu is not None and imu.source == "/imu"
    rates, forces = samples()
    np.testing.assert_array_equal(imu.timestamps_ns, imu_stamps())
    np.testing.assert_array_equal(imu.angular_velocity, rates)
    np.testing.assert_array_equal(imu.specific_force, forces)
    np.testing.assert_allclose(imu.R_camera_imu, MOUNTING, atol=1e-12)
    assert index.T_world_camera is None
    assert index_of(tmp_path / "bag", imu_topic="none").imu is None
    kept = index_of(tmp_path / "bag", world_frame="none").imu
    assert kept is not None and kept.R_camera_imu is not None


def test_views_of_a_recording_keep_its_imu(tmp_path: Path) -> None:
    whole = open_recording(write_bag(tmp_path / "bag"))
    for view in (part(whole, 2, 4), at_rate(whole, 10)[0], open_recording(tmp_path / "bag",
                 intrinsics=(30, 30, 15.5, 11.5), mirrored=True, start_s=0.1)):  # fmt: skip
        assert view.imu is not None
        np.testing.assert_array_equal(view.imu.timestamps_ns, imu_stamps())
        np.testing.assert_allclose(view.imu.R_camera_imu, MOUNTING, atol=1e-12)


def test_a_transform_that_turns_is_no_mounting(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", mounted=False)
    with SampleBag(tmp_path / "moving") as bag:
        for image, ns in zip(pictures(6), stamps(6), strict=True):
            bag.image(image, ns)
            turn = rotations.to_quaternion(rotations.exp(np.array([0, 0, (ns - START) * 1e-9])))
            bag.tf(ns, "cam_optical", "imu_link", (0, 0, 0), turn)
        for ns, rate, force in zip(imu_stamps(), *samples(), strict=True):
            put_imu(bag, ns, rate, force)
    for bag_path in (path, tmp_path / "moving"):
        imu = index_of(bag_path).imu
        assert imu is not None and imu.R_camera_imu is None


@pytest.mark.parametrize(
    ("turning", "late", "known"),
    [(0.0, False, True), (0.1, False, False), (0.1, True, False)],
)
def test_links_of_a_long_bag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turning: float, late: bool, known: bool
) -> None:
    """What does not lie between world and camera is thrown away now and then, but for this.

    ``late``: the sensor's first message comes after that.
    """
    monkeypatch.setattr(scan, "_PRUNE_EVERY", 4)
    with SampleBag(tmp_path / "bag") as bag:
        bag.tf(START, "base", "cam_optical", (0, 0, 0), (1, 0, 0, 0), topic="/tf_static")
        for i, ns in enumerate(stamps(12)):
            bag.image(pictures(12)[i], ns)
            turn = rotations.to_quaternion(rotations.exp(np.array([0, 0, 0.3 + turning * i])))
            bag.tf(ns, "base", "imu_link", (0, 0, 0), turn)
            if i >= 10 or not late:
                put_imu(bag, ns, *(v[i] for v in samples()))
    imu = index_of(tmp_path / "bag").imu
    assert imu is not None and (imu.R_camera_imu is not None) == known


def test_of_several_the_one_fixed_to_the_camera(tmp_path: Path) -> None:
    rates, forces = samples()
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(pictures(6), stamps(6), strict=True):
            bag.image(image, ns)
        bag.tf(START, "cam_optical", "eye_imu", (0, 0, 0), (1, 0, 0, 0), topic="/tf_static")
        for ns, rate, force in zip(imu_stamps(), rates, forces, strict=True):
            put_imu(bag, ns, -rate, force, topic="/arm", frame="arm_imu")
            put_imu(bag, ns, rate, force, topic="/eye", frame="eye_imu")
            put_imu(bag, ns, 0 * rate, force, topic="/accel", frame="eye_imu")
            put_imu(bag, ns, rate, force, topic="/tilt", frame="eye_imu", no_rate=True)
    chosen = index_of(tmp_path / "bag")
    assert chosen.imu is not None and chosen.imu.source == chosen.topics["imu"] == "/eye"
    named = index_of(tmp_path / "bag", imu_topic="/arm")
    assert named.imu is not None and named.imu.angular_velocity[3, 0] == -rates[3, 0]

    with pytest.raises(InputError, match="'/accel': it has no angular velocity"):
        index_of(tmp_path / "bag", imu_topic="/accel")
    with pytest.raises(InputError, match=r"'/eyes' is not there.*Did you mean '/eye'"):
        index_of(tmp_path / "bag", imu_topic="/eyes")

    index = index_of(write_bag(tmp_path / "two", "/a", "/b"))
    assert index.imu is None
    assert any("several gyroscopes" in note and "/a, /b" in note for note in index.notes)


def test_an_imu_without_accelerometer(tmp_path: Path) -> None:
    imu = index_of(write_bag(tmp_path / "bag", no_force=True)).imu
    assert imu is not None and imu.specific_force is None


@pytest.mark.parametrize(
    ("change", "text"),
    [(lambda r, f, t: (np.degrees(r) * 50, f, t), "degrees a second"),
     (lambda r, f, t: (r, f / 9.81, t), "in units of g it would be 1"),
     (lambda r, f, t: (r, f, [ns + 10**12 for ns in t]), "they must overlap"),
     (lambda r, f, t: (r, f, [START + 3 * i for i in range(COUNT)]), "Are the times nanoseconds")],
)  # fmt: skip
def test_a_bag_with_a_bad_imu_is_read_without_it(
    tmp_path: Path, change: Callable[..., tuple[np.ndarray, np.ndarray, list[int]]], text: str
) -> None:
    rates, forces, times = change(*samples(), imu_stamps())
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(pictures(6), stamps(6), strict=True):
            bag.image(image, ns)
        for ns, rate, force in zip(times, rates, forces, strict=True):
            put_imu(bag, ns, rate, force)
    index = index_of(tmp_path / "bag")
    assert index.imu is None and any("no gyroscope" in n and text in n for n in index.notes)
    with pytest.raises(InputError, match=text):
        index_of(tmp_path / "bag", imu_topic="/imu")


def test_samples_of_a_bag_that_are_not_finite_or_late(tmp_path: Path) -> None:
    rates, forces = samples()
    rates[7, 1] = np.nan
    order = [*range(COUNT)]
    order[20], order[22] = order[22], order[20]
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(pictures(6), stamps(6), strict=True):
            bag.image(image, ns)
        for i in order:
            put_imu(bag, imu_stamps()[i], rates[i], forces[i])
    index = index_of(tmp_path / "bag")
    assert index.imu is not None
    np.testing.assert_array_equal(index.imu.angular_velocity, np.delete(rates, 7, axis=0))
    assert index.dropped.by_topic["/imu"] == 1


# Files.

ASL = (
    "#timestamp [ns],w_RS_S_x [rad s^-1],w_RS_S_y [rad s^-1],w_RS_S_z [rad s^-1],"
    "a_RS_S_x [m s^-2],a_RS_S_y [m s^-2],a_RS_S_z [m s^-2]"
)
FRAMES = START + np.arange(6) * 33_333_333


def table(path: Path, header: str, times: list[object], values: np.ndarray) -> Path:
    rows = [",".join(map(repr, [t, *row.tolist()])) for t, row in zip(times, values, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\r\n".join([header, *rows]) + "\r\n", "utf-8")
    return path


def asl(folder: Path) -> Path:
    return table(folder / "data.csv", ASL, imu_stamps(), np.concatenate(samples(), axis=1))


def t_bs(R: np.ndarray) -> str:
    T = np.eye(4)
    T[:3, :3] = R
    return f"T_BS:\n  cols: 4\n  rows: 4\n  data: {T.reshape(-1).tolist()}\n"


def test_eurocs_table_and_extrinsics(tmp_path: Path) -> None:
    rates, forces = samples()
    plain = read_imu(asl(tmp_path / "imu0"), FRAMES)
    np.testing.assert_array_equal(plain.timestamps_ns, imu_stamps())
    np.testing.assert_array_equal(plain.angular_velocity, rates)
    np.testing.assert_array_equal(plain.specific_force, forces)
    assert plain.R_camera_imu is None

    R_body_imu, R_body_camera = (Rotation.random(random_state=i).as_matrix() for i in (1, 2))
    (tmp_path / "imu0" / "sensor.yaml").write_text(t_bs(R_body_imu) + "rate_hz: 200\n")
    folder = tmp_path / "cam0" / "data"
    write_frames(folder)
    camera = "camera_model: pinhole\nintrinsics: [30, 30, 16, 12]\nresolution: [32, 24]\n"
    camera += "distortion_model: radial-tangential\ndistortion_coefficients: [0, 0, 0, 0]\n"
    (tmp_path / "cam0" / "sensor.yaml").write_text(t_bs(R_body_camera) + camera)
    recording = open_recording(
        folder, camera=tmp_path / "cam0" / "sensor.yaml", imu=tmp_path / "imu0" / "data.csv"
    )
    assert recording.imu is not None and recording.imu.R_camera_imu is not None
    in_camera = recording.imu.angular_velocity @ recording.imu.R_camera_imu.T
    np.testing.assert_allclose(in_camera, rates @ (R_body_camera.T @ R_body_imu).T, atol=1e-12)


def write_frames(folder: Path) -> None:
    import cv2

    folder.mkdir(parents=True)
    for image, ns in zip(pictures(6), FRAMES, strict=True):
        assert cv2.imwrite(str(folder / f"{ns}.png"), image)


def test_kalibrs_camchain_says_the_mounting(tmp_path: Path) -> None:
    write_frames(tmp_path / "frames")
    T = np.eye(4)
    T[:3, :3] = MOUNTING
    chain = tmp_path / "camchain-imucam.yaml"
    text = f"cam0:\n  T_cam_imu: {T.tolist()}\n  camera_model: pinhole\n"
    text += "  intrinsics: [30, 30, 16, 12]\n  resolution: [32, 24]\n"
    text += "  distortion_model: none\n  distortion_coeffs: []\n"
    chain.write_text(text)
    imu = open_recording(tmp_path / "frames", camera=chain, imu=asl(tmp_path)).imu
    assert imu is not None
    np.testing.assert_allclose(imu.R_camera_imu, MOUNTING, atol=1e-12)
    chain.write_text(text.replace(str(T.tolist()), str((2 * T).tolist())))
    with pytest.raises(CalibrationError, match="'T_cam_imu' holds no rotation"):
        open_recording(tmp_path / "frames", camera=chain)


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    rates, forces = samples()
    seconds = (np.arange(COUNT) * 0.005 - 0.05).tolist()
    file = table(tmp_path / "i.csv", "seconds,wx,wy,wz", seconds, rates)
    imu = read_imu(file, FRAMES)
    np.testing.assert_allclose(imu.timestamps_ns, imu_stamps(), atol=1)
    np.testing.assert_array_equal(imu.angular_velocity, rates)
    assert imu.specific_force is None
    values = np.concatenate([forces[:, ::-1], rates], axis=1)
    file = table(tmp_path / "j.csv", "timestamp_ns,az,ay,ax,wx,wy,wz", imu_stamps(), values)
    np.testing.assert_array_equal(read_imu(file, FRAMES).specific_force, forces)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.replace("wx", "wr"), r"unknown column 'wr'.*valid.*wx"),
        (lambda t: t.replace("wz", "wy"), "column 'wy' must be there once"),
        (lambda t: t.replace("timestamp_ns", "ax"), "column 'ay' must be there once"),
        (lambda t: t.replace("timestamp_ns,", "seconds,"), "seconds after the first frame"),
        (lambda t: t.replace(f"{START}", f"{START / 1e9}"), "whole nanoseconds in every row"),
        (lambda t: t.replace("0.2,", "nan,", 1), "has a value that is missing or not finite"),
        (lambda t: t.replace("0.2,", ",", 1), "has a value that is missing or not finite"),
        (lambda t: t.replace("0.2,", "fast,", 1), "column 'wy' must hold numbers"),
        (lambda t: "\n".join([*t.split("\n")[:9], t.split("\n")[3], *t.split("\n")[9:]]),
         r"sample 8 \(at \d+ ns\) is not later than the one before it"),
        (lambda t: "\n".join(t.split("\n")[:2]), "1 samples; at least two"),
        (lambda t: t.split("\n")[0] + "\n", "0 samples; at least two|column .* must"),
        (lambda t: "", "cannot be read as a table"),
    ],
)  # fmt: skip
def test_a_bad_table(tmp_path: Path, change: Callable[[str], str], text: str) -> None:
    good = table(tmp_path / "i.csv", "timestamp_ns,wx,wy,wz", imu_stamps(), samples()[0])
    bad = tmp_path / "bad.csv"
    bad.write_text(change(good.read_text().replace("\r\n", "\n")), "utf-8")
    with pytest.raises(InputError, match=text):
        read_imu(bad, FRAMES)


def test_where_a_file_does_not_apply(tmp_path: Path) -> None:
    file = asl(tmp_path)
    with pytest.raises(InputError, match="does not exist or is a folder"):
        read_imu(tmp_path, FRAMES)
    plain = write_video(tmp_path / "v.mp4", frames=2)
    with pytest.raises(InputError, match="a video without a GoPro's gyroscope"):
        read_imu(plain, FRAMES)
    hands = tmp_path / "hands.npz"
    np.savez(hands, joints=np.zeros((2, 21, 3)))
    with pytest.raises(InputError, match="do not apply to it: --imu"):
        open_recording(hands, imu=file)


# GoPro: a video with a GPMF track, its boxes as ISO/IEC 14496-12 has them.


def key(name: bytes, kind: bytes, size: int, count: int, body: bytes) -> bytes:
    return struct.pack(">4scBH", name, kind, size, count) + body + bytes(-len(body) % 4)


def box(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", len(body) + 8, name) + body


def stream(name: bytes, values: np.ndarray, scale: int, title: bytes, orin: bytes) -> bytes:
    """A stream of three numbers a sample, 16 bits each."""
    keys = key(b"STNM", b"c", 1, len(title), title) + key(
        b"SCAL", b"s", 2, 1, struct.pack(">h", scale)
    )
    keys += key(b"ORIN", b"c", 1, len(orin), orin) if orin else b""
    body = np.round(values * scale).astype(">i2").tobytes()
    keys += key(name, b"s", 6, len(values), body)
    return key(b"STRM", b"\0", 1, len(keys), keys)


def gopro(
    path: Path,
    packets: list[tuple[int, np.ndarray, np.ndarray]],
    *,
    orin: bytes = b"",
    titles: tuple[bytes, bytes] = (b"Gyroscope", b"Accelerometer"),
    rotation: float = 0.0,
) -> Path:
    """Write a video of a second; packets of ms, rates and forces in the order of the samples."""
    write_video(path, frames=30, rotation=rotation)
    payloads = []
    for _, rates, forces in packets:
        inner = stream(b"GYRO", rates, 3755, titles[0], orin)
        inner += stream(b"ACCL", forces, 418, titles[1], orin)
        payloads.append(key(b"DEVC", b"\0", 1, len(inner), inner))
    data = path.read_bytes()
    at = data.rindex(b"moov") - 4
    begin = at + 8
    offsets = begin + np.cumsum([0, *map(len, payloads[:-1])])

    def full(name: bytes, *parts: bytes) -> bytes:
        return box(name, bytes(4), *parts)

    def numbers(*values: int) -> bytes:
        return struct.pack(f">{len(values)}I", *map(int, values))

    total = sum(p[0] for p in packets)
    n = len(packets)
    table_of_samples = box(
        b"stbl", full(b"stsd", numbers(1), box(b"gpmd", bytes(6), b"\0\1", bytes(4))),
        full(b"stts", numbers(n, *(v for p in packets for v in (1, p[0])))),
        full(b"stsc", numbers(1, 1, 1, 1)), full(b"stsz", numbers(0, n, *map(len, payloads))),
        full(b"stco", numbers(n, *offsets)),
    )  # fmt: skip
    reference = box(b"dinf", full(b"dref", numbers(1), box(b"url ", b"\0\0\0\1")))
    media = box(
        b"mdia", full(b"mdhd", numbers(0, 0, 1000, total), b"\x55\xc4\0\0"),
        full(b"hdlr", b"mhlrmeta", bytes(12), b"\x0bGoPro MET"),
        box(b"minf", full(b"nmhd"), reference, table_of_samples),
    )  # fmt: skip
    header = numbers(0, 0, 2, 0, total) + bytes(16) + np.eye(3).astype(">i4").tobytes() + bytes(8)
    content = data[at + 8 :] + box(b"trak", box(b"tkhd", b"\0\0\0\7", header), media)
    path.write_bytes(data[:at] + box(b"mdat", *payloads) + box(b"moov", content))
    return path


def gopro_packets(
    order: list[int], signs: list[int], count: int = 400
) -> tuple[list[tuple[int, np.ndarray, np.ndarray]], np.ndarray]:
    """Return four uneven packets and the rates in a GoPro's axes: x left, y back, z up."""
    i = np.arange(count)
    rates = np.stack([0.5 * np.sin(i / 20), 0.3 * np.cos(i / 30), 0.2 * np.sin(i / 9)], -1)
    forces = np.tile([0.0, 0.0, 9.81], (count, 1))
    cuts, out = [0, 98, 203, 301, count], []
    for a, b in itertools.pairwise(cuts):
        shown = [v[a:b][:, order] * signs for v in (rates, forces)]
        out.append((250, *shown))
    return out, rates


@pytest.mark.parametrize(
    ("orin", "order", "signs", "titles"),
    [(b"XzY", [0, 2, 1], [1, -1, 1], (b"Gyroscope", b"Accelerometer")),
     (b"YxZ", [1, 0, 2], [1, -1, 1], (b"Gyroscope", b"Accelerometer")),
     (b"", [2, 0, 1], [1, 1, 1],
      (b"Gyroscope (z,x,y)", b"Accelerometer (up/down, right/left, forward/back)"))],
)  # fmt: skip
def test_a_gopros_gyroscope(
    tmp_path: Path, orin: bytes, order: list[int], signs: list[int], titles: tuple[bytes, bytes]
) -> None:
    packets, rates = gopro_packets(order, signs)
    recording = open_recording(gopro(tmp_path / "g.mp4", packets, orin=orin, titles=titles))
    imu = recording.imu
    assert imu is not None and imu.R_camera_imu is not None and imu.specific_force is not None
    # Seen from behind: x of the camera is right, y down, z away.
    truth = np.stack([-rates[:, 0], -rates[:, 2], -rates[:, 1]], -1)
    np.testing.assert_allclose(imu.angular_velocity @ imu.R_camera_imu.T, truth, atol=2e-4)
    up = imu.specific_force @ imu.R_camera_imu.T
    np.testing.assert_allclose(up, np.tile([0, -9.81, 0], (400, 1)), atol=2e-3)
    # Samples are evenly spaced, though packets are cut unevenly.
    steps = np.diff(imu.timestamps_ns) * 1e-9
    np.testing.assert_allclose(steps, 0.0025, rtol=0.02)
    assert steps.std() < 1e-8
    other = write_video(tmp_path / "copy.mp4", frames=30)
    copied = open_recording(other, imu=tmp_path / "g.mp4").imu
    assert copied is not None
    np.testing.assert_array_equal(copied.timestamps_ns, imu.timestamps_ns)


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_gopro_that_was_held_upright(tmp_path: Path, degrees: int) -> None:
    """Pictures are turned; gravity stays down in the scene, so it turns with the camera's axes."""
    packets, _ = gopro_packets([0, 2, 1], [1, -1, 1])
    imu = open_recording(gopro(tmp_path / "g.mp4", packets, orin=b"XzY", rotation=degrees)).imu
    assert imu is not None and imu.specific_force is not None and imu.R_camera_imu is not None
    up = imu.specific_force[0] @ imu.R_camera_imu.T
    # What was up in the sensor's picture is then left, down, right.
    shown = {90: [-9.81, 0, 0], 180: [0, 9.81, 0], 270: [9.81, 0, 0]}[degrees]
    np.testing.assert_allclose(up, shown, atol=2e-3)


def test_a_gopro_of_unknown_axes(tmp_path: Path) -> None:
    packets, _ = gopro_packets([0, 1, 2], [1, 1, 1])
    imu = open_recording(gopro(tmp_path / "g.mp4", packets)).imu
    assert imu is not None and imu.R_camera_imu is None
    fast = [(ms, rates * 40, forces * 0.01) for ms, rates, forces in packets]
    recording = open_recording(gopro(tmp_path / "f.mp4", fast, orin=b"XzY"))
    assert recording.imu is None and any("no gyroscope" in note for note in recording.notes)


def test_an_imu_is_checked() -> None:
    times = np.arange(3) * 10**7
    Imu(times, np.zeros((3, 3)), None, None, "imu")
    with pytest.raises(InputError, match="increasing times"):
        Imu(times[::-1].copy(), np.zeros((3, 3)), None, None, "imu")
    with pytest.raises(InputError, match="not finite"):
        Imu(times, np.zeros((3, 3)), np.full((3, 3), np.nan), None, "imu")


def test_a_recording_has_none_by_default(tmp_path: Path) -> None:
    recording = open_recording(write_video(tmp_path / "v.mp4", frames=2))
    assert isinstance(recording, Recording) and recording.imu is None
