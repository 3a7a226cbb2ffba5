"""How a camera turned by its gyroscope, against analytic motions and SciPy's rotations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from acehand_core.camera_motion.gravity import gravity_in_camera
from acehand_core.camera_motion.gyroscope import from_gyroscope
from acehand_core.errors import InputError, SchemaError
from acehand_core.motion import CameraMotion, Imu

START = 1_700_000_000_123_456_789
FPS, RATE = 30.0, 200.0
#: Of a BMI270's data sheet: 0.007 degrees / s / sqrt(Hz).
NOISE = np.radians(0.007)


def head(seed: int, size: float = 0.35) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sizes, frequencies (Hz) and phases of a head that looks about, by axis."""
    rng = np.random.default_rng(seed)
    frequency = rng.uniform(0.1, 2.5, (8, 3))
    return (
        size * rng.normal(size=(8, 3)) / (1 + 2 * np.pi * frequency),
        frequency,
        rng.uniform(0, 2 * np.pi, (8, 3)),
    )


def pose(motion: tuple[np.ndarray, np.ndarray, np.ndarray], t: np.ndarray) -> Rotation:
    """Return R_world_camera at times in seconds."""
    size, frequency, phase = (part[:, None] for part in motion)
    angles = (size * np.sin(2 * np.pi * frequency * t[None, :, None] + phase)).sum(0)
    return Rotation.from_euler("YXZ", angles)


@dataclass(frozen=True)
class Scene:
    """A head's motion: what was true, what its pictures say and what its sensor says."""

    imu: Imu
    frames_ns: np.ndarray
    truth: Rotation
    visual: CameraMotion
    bias: np.ndarray
    mounting: np.ndarray

    @property
    def unmounted(self) -> Imu:
        return replace(self.imu, R_camera_imu=None)


def scene(
    seed: int,
    count: int = 300,
    *,
    size: float = 0.35,
    offset: float = 0.0,
    bias: float = 0.5,
    visual_degrees: float = 0.12,
    drift: float = 0.03,
    moving: float = 0.3,
) -> Scene:
    """Return ``count`` frames; ``offset``: of the sensor's clock, s.

    bias: degrees/s on each axis; visual_degrees, drift: of a step of the pictures, the part that is
    new in each and the part that lasts a second; moving: accelerations of the head, m/s^2.
    """
    rng = np.random.default_rng(10_000 + seed)
    motion = head(seed, size)
    t = np.arange(count) / FPS
    at = np.arange(-1.0, count / FPS + 1.0, 1 / RATE)
    h = 1e-5
    rates = (pose(motion, at - h).inv() * pose(motion, at + h)).as_rotvec() / (2 * h)
    mounting = Rotation.random(random_state=seed).as_matrix()
    constant = np.radians(bias) * rng.normal(size=3)
    shown = rates @ mounting + constant + NOISE * np.sqrt(RATE) * rng.normal(size=rates.shape)
    pushed = np.stack([moving * np.sin(2 * np.pi * f * at + f) for f in (1.7, 1.1, 0.6)], -1)
    force = pose(motion, at).inv().apply(np.array([0.0, -9.81, 0.0]) + pushed) @ mounting
    stamps = START + np.round((at + offset) * 1e9).astype(np.int64)
    imu = Imu(stamps, shown, force, mounting, "imu")

    truth = pose(motion, t)
    lasting = np.zeros((count, 3))
    for i in range(1, count):
        lasting[i] = 0.97 * lasting[i - 1] + np.sqrt(1 - 0.97**2) * rng.normal(size=3)
    error = visual_degrees * rng.normal(size=(count, 3)) + drift * lasting
    steps = truth[:-1].inv() * truth[1:] * Rotation.from_rotvec(np.radians(error[1:] / np.sqrt(3)))
    visual = CameraMotion(
        chained(steps), np.full(count, 100), np.zeros(count, bool),
        np.full(count, np.radians(visual_degrees)),
    )  # fmt: skip
    return Scene(imu, START + np.round(t * 1e9).astype(np.int64), truth, visual, constant, mounting)


def chained(steps: Rotation) -> np.ndarray:
    rows = [Rotation.identity()]
    for step in steps:
        rows.append(rows[-1] * step)
    return np.array([row.as_matrix() for row in rows])


def off(rotations: np.ndarray, truth: Rotation, lag: int = 1) -> np.ndarray:
    """Return the error over every ``lag`` frames, degrees."""
    ours = Rotation.from_matrix(np.swapaxes(rotations[:-lag], 1, 2) @ rotations[lag:])
    return np.degrees(((truth[:-lag].inv() * truth[lag:]).inv() * ours).magnitude())


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def angle(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.degrees(Rotation.from_matrix(a.T @ b).magnitude()))


def test_constant_rates_are_exact() -> None:
    """Three radians a second about a slanted axis, at uneven times, by an upside-down sensor."""
    rate = np.array([1.0, -2.0, 2.0])
    rng = np.random.default_rng(0)
    stamps = START + np.cumsum(rng.integers(3_000_000, 7_000_000, 500))
    mounting = np.diag([1.0, -1.0, -1.0])
    imu = Imu(stamps, np.tile(rate, (500, 1)), None, mounting, "imu")
    frames = START + np.cumsum(rng.integers(20_000_000, 50_000_000, 40))
    result = from_gyroscope(imu, frames)
    elapsed = (frames - frames[0])[:, None] * 1e-9
    truth = Rotation.from_rotvec(elapsed * (mounting @ rate))
    assert (
        np.degrees((truth.inv() * Rotation.from_matrix(result.motion.rotations)).magnitude()).max()
        < 1e-6
    )
    assert not result.motion.broken.any()


def test_rates_on_lines_between_samples() -> None:
    """Against SciPy's turns by the middle rate of very short parts; 8 rad/s, coning."""
    t = np.arange(101) / 100
    rates = 8 * np.stack([np.cos(30 * t), np.sin(30 * t), 0.3 * np.sin(9 * t)], -1)
    imu = Imu(START + (t * 1e9).astype(np.int64), rates, None, np.eye(3), "imu")
    frames = START + np.arange(0, 600_000_000, 33_340_000)
    result = from_gyroscope(imu, frames)

    middle = (np.arange(30_000) + 0.5) * 20e-6
    between = np.stack([np.interp(middle, t, axis) for axis in rates.T], -1)
    rows = chained(Rotation.from_rotvec(between * 20e-6))
    truth = Rotation.from_matrix(rows[(frames - START) // 20_000])
    assert off(result.motion.rotations, truth).max() < 1e-4


@pytest.mark.parametrize("known", [True, False])
def test_a_turned_sensor_gives_the_same_motion(known: bool) -> None:
    made = scene(3)
    Q = Rotation.random(random_state=9).as_matrix()
    turned = replace(
        made.imu,
        angular_velocity=made.imu.angular_velocity @ Q.T,
        specific_force=made.imu.specific_force @ Q.T,
        R_camera_imu=made.mounting @ Q.T if known else None,
    )
    imu = made.imu if known else made.unmounted
    one, other = (from_gyroscope(i, made.frames_ns, made.visual) for i in (imu, turned))
    assert one.imu is not None and other.imu is not None
    both = zip(one.motion.rotations, other.motion.rotations, strict=True)
    assert max(angle(a, b) for a, b in both) < 1e-3
    assert angle(one.imu.R_camera_imu @ Q.T, other.imu.R_camera_imu) < 1e-3


@pytest.mark.parametrize("accelerometer", [True, False])
def test_offset_mounting_and_bias_are_found(accelerometer: bool) -> None:
    shares = []
    for seed in range(20, 26):
        offset = float(np.random.default_rng(seed).uniform(-0.4, 0.4))
        made = scene(seed, count=600, offset=offset)
        imu = made.unmounted if accelerometer else replace(made.unmounted, specific_force=None)
        result = from_gyroscope(imu, made.frames_ns, made.visual)
        assert result.imu is not None, result.note
        found = (made.imu.timestamps_ns[0] - result.imu.timestamps_ns[0]) * 1e-9
        assert abs(found - offset) < 0.003
        assert angle(result.imu.R_camera_imu, made.mounting) < 1.5
        left = made.imu.angular_velocity[0] - made.bias - result.imu.angular_velocity[0]
        assert np.degrees(np.linalg.norm(left)) < (0.5 if accelerometer else 1.0)

        # A gyroscope knows a step much better than pictures do; over a second its bias counts.
        assert rms(off(result.motion.rotations, made.truth)) < 0.04
        assert rms(off(made.visual.rotations, made.truth)) > 0.1
        second = rms(off(result.motion.rotations, made.truth, 30))
        assert second < 0.7 * rms(off(made.visual.rotations, made.truth, 30))
        shares.append(second / np.degrees(np.sqrt(np.sum(result.motion.sigma_rad[1:31] ** 2))))
    assert 0.5 < rms(np.array(shares)) < 2.0  # what is claimed of the error over a second


def test_frames_that_the_pictures_lose_are_the_gyroscopes() -> None:
    made = scene(5)
    broken = np.zeros(300, bool)
    broken[[80, 81, 82, 200]] = True
    wrong = made.visual.rotations.copy()
    wrong[150:] = wrong[150:] @ Rotation.from_euler("y", 12, degrees=True).as_matrix()
    visual = replace(made.visual, rotations=wrong, broken=broken)
    result = from_gyroscope(made.imu, made.frames_ns, visual)
    assert not result.motion.broken.any()
    assert off(result.motion.rotations, made.truth).max() < 0.1
    assert (result.motion.inliers == visual.inliers).all()


def test_dropouts_are_the_pictures() -> None:
    made = scene(6)
    t = (made.imu.timestamps_ns - START) * 1e-9
    kept = ((t < 4.0) | (t > 4.3)) & (t < 9.0)
    imu = replace(
        made.imu,
        timestamps_ns=made.imu.timestamps_ns[kept],
        angular_velocity=made.imu.angular_velocity[kept],
        specific_force=None,
    )
    broken = np.zeros(300, bool)
    broken[[125, 290]] = True
    visual = replace(made.visual, broken=broken)
    result = from_gyroscope(imu, made.frames_ns, visual)
    assert np.flatnonzero(result.motion.broken).tolist() == [125, 290]
    lost = np.zeros(299, bool)
    lost[119:129] = lost[270:] = True
    errors = off(result.motion.rotations, made.truth)
    assert rms(errors[~lost]) < 0.04
    known = lost & ~broken[1:]
    assert 0.08 < rms(errors[known]) < 0.2
    np.testing.assert_allclose(result.motion.sigma_rad[1:][known], visual.sigma_rad[1:][known])

    alone = from_gyroscope(imu, made.frames_ns)
    assert np.flatnonzero(alone.motion.broken).tolist() == [*range(120, 130), *range(271, 300)]


@pytest.mark.parametrize("seed", range(40, 46))
@pytest.mark.parametrize("known", [True, False])
def test_a_gyroscope_of_something_else_is_refused(seed: int, known: bool) -> None:
    made, other = scene(seed), scene(seed + 100)
    imu = other.imu if known else other.unmounted
    result = from_gyroscope(imu, made.frames_ns, made.visual)
    assert result.imu is None and result.motion is made.visual
    assert "is not used: it differs from the pictures by" in result.note


@pytest.mark.parametrize(
    ("factor", "text"),
    [(np.degrees(1.0), "degrees a second, radians a second are needed"),
     (1 / 1.55, r"focal length, which the pictures would say is 1.5\d times as long")],
)  # fmt: skip
def test_a_factor_is_named(factor: float, text: str) -> None:
    made = scene(7)
    wrong = replace(made.unmounted, angular_velocity=factor * made.imu.angular_velocity)
    result = from_gyroscope(wrong, made.frames_ns, made.visual)
    assert result.imu is None
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(result.note)


def test_turns_about_one_axis_do_not_tell_a_mounting() -> None:
    t = np.arange(300) / FPS
    at = np.arange(-1, 11, 1 / RATE)
    rates = np.zeros((len(at), 3))
    rates[:, 1] = 2 * np.cos(3 * at)
    imu = Imu(START + np.round(at * 1e9).astype(np.int64), rates, None, None, "imu")
    truth = Rotation.from_rotvec(np.stack([0 * t, 2 / 3 * np.sin(3 * t), 0 * t], -1))
    noise = np.random.default_rng(1).normal(size=(299, 3)) * np.radians(0.07)
    steps = truth[:-1].inv() * truth[1:] * Rotation.from_rotvec(noise)
    zeros = np.zeros(300)
    visual = CameraMotion(chained(steps), zeros.astype(int), zeros > 0, zeros + np.radians(0.12))
    frames = START + np.round(t * 1e9).astype(np.int64)
    refused = from_gyroscope(imu, frames, visual)
    assert refused.imu is None and "about one axis" in refused.note
    stated = from_gyroscope(replace(imu, R_camera_imu=np.eye(3)), frames, visual)
    assert rms(off(stated.motion.rotations, truth)) < 0.04


def test_a_mounting_that_is_stated_wrongly_is_found() -> None:
    made = scene(8, count=600)
    wrong = Rotation.from_euler("x", 90, degrees=True).as_matrix() @ made.mounting
    result = from_gyroscope(replace(made.imu, R_camera_imu=wrong), made.frames_ns, made.visual)
    assert result.imu is not None and "mounted 90 degrees from how it is stated" in result.note
    assert angle(result.imu.R_camera_imu, made.mounting) < 1.5


def test_without_pictures() -> None:
    made = scene(9, bias=0.0)
    alone = from_gyroscope(replace(made.imu, specific_force=None), made.frames_ns)
    assert rms(off(alone.motion.rotations, made.truth, 30)) < 0.05
    assert (alone.motion.inliers == 0).all() and not alone.motion.broken.any()
    # One degree a second on each axis is thought possible: 1.73 after a second.
    second = np.degrees(np.sqrt(np.sum(alone.motion.sigma_rad[1:31] ** 2)))
    assert second == pytest.approx(np.sqrt(3), rel=0.05)

    with pytest.raises(InputError, match="imu: how it is mounted on the camera is not stated"):
        from_gyroscope(made.unmounted, made.frames_ns)
    with pytest.raises(InputError, match="no samples between the frames"):
        from_gyroscope(made.imu, made.frames_ns + 10**12)
    with pytest.raises(SchemaError, match="turns of 300 frames, but 299"):
        from_gyroscope(made.imu, made.frames_ns[:299], made.visual)


def test_pictures_that_know_nothing() -> None:
    made = scene(10, bias=0.0)
    lost = replace(made.visual, broken=np.arange(300) > 0)
    stated = from_gyroscope(made.imu, made.frames_ns, lost)
    assert not stated.motion.broken.any() and stated.imu is not None
    assert rms(off(stated.motion.rotations, made.truth)) < 0.04
    unknown = from_gyroscope(made.unmounted, made.frames_ns, lost)
    assert unknown.imu is None and unknown.motion is lost


def test_frames_that_are_shown_twice() -> None:
    """As at twice the rate: the times of the source's frames are repeated."""
    made = scene(13)
    twice = np.repeat(np.arange(300), 2)
    visual = CameraMotion(*(
        getattr(made.visual, n)[twice] for n in ("rotations", "inliers", "broken", "sigma_rad")
    ))  # fmt: skip
    once = from_gyroscope(made.unmounted, made.frames_ns, made.visual)
    result = from_gyroscope(made.unmounted, made.frames_ns[twice], visual)
    assert result.imu is not None
    truth = made.truth[twice]
    assert rms(off(result.motion.rotations, truth)) < 0.04
    second = rms(off(once.motion.rotations, made.truth, 30))
    assert rms(off(result.motion.rotations, truth, 60)) < second + 0.1


def test_two_frames() -> None:
    made = scene(11, count=2, bias=0.0)
    result = from_gyroscope(made.imu, made.frames_ns, made.visual)
    assert off(result.motion.rotations, made.truth).max() < 0.02
    one = from_gyroscope(made.imu, made.frames_ns[:1], made.visual.part(0, 1))
    assert len(one.motion) == 1


def test_gravity_without_pictures_takes_the_level_part_of_a_bias_off() -> None:
    """Turned about the vertical nothing shows; tilted, gravity does."""
    made = scene(9, count=900, bias=1.0)
    alone = from_gyroscope(made.imu, made.frames_ns)
    assert alone.imu is not None and "by gravity alone" in alone.note
    world = made.truth.as_matrix()
    drift = Rotation.from_matrix(
        np.swapaxes(world[0].T @ world, 1, 2) @ alone.motion.rotations
    ).inv()
    up = made.truth[0].inv().apply([0.0, -1.0, 0.0])
    tilt = Rotation.from_matrix(alone.motion.rotations) * made.truth.inv() * made.truth[0]
    tilted = np.degrees(np.arccos(np.clip(tilt.apply(up) @ up, -1, 1)))
    assert tilted.max() < 4.0 and np.degrees(drift.magnitude()).max() > 5.0


@pytest.mark.parametrize("seed", range(60, 64))
def test_gravity(seed: int) -> None:
    made = scene(seed, count=900)
    result = from_gyroscope(made.unmounted, made.frames_ns, made.visual)
    assert result.imu is not None
    gravity = gravity_in_camera(result.imu, made.frames_ns, result.motion)
    assert gravity is not None
    up = made.truth[0].inv().apply([0.0, -1.0, 0.0])
    away = np.degrees(np.arccos(gravity.up @ up))
    assert away < 3.0
    assert away < 2.5 * np.degrees(gravity.spread)


def test_no_gravity_where_nothing_tells_it() -> None:
    made = scene(12)
    motion = replace(made.visual, rotations=made.truth.as_matrix())
    assert gravity_in_camera(made.imu, made.frames_ns, motion) is not None
    no_force = replace(made.imu, specific_force=None)
    assert gravity_in_camera(no_force, made.frames_ns, motion) is None
    assert gravity_in_camera(made.unmounted, made.frames_ns, motion) is None
    assert gravity_in_camera(made.imu, made.frames_ns[:60], motion.part(0, 60)) is None
    half = replace(made.imu, specific_force=0.5 * made.imu.specific_force)
    assert gravity_in_camera(half, made.frames_ns, motion) is None

    # A camera that nods by 25 degrees each way within six seconds.
    def nodding(ns: np.ndarray) -> Rotation:
        tilt = np.radians(25) * np.sin((ns - START) * 1e-9 * 2 * np.pi / 6)
        return Rotation.from_rotvec(np.outer(tilt, [1.0, 0.0, 0.0]))

    force = nodding(made.imu.timestamps_ns).inv().apply([0.0, -9.81, 0.0])
    imu = replace(made.imu, specific_force=force, R_camera_imu=np.eye(3))
    nods = replace(motion, rotations=nodding(made.frames_ns).as_matrix())
    gravity = gravity_in_camera(imu, made.frames_ns, nods)
    assert gravity is not None
    np.testing.assert_allclose(gravity.up, [0, -1, 0], atol=1e-3)
    still = replace(motion, rotations=np.tile(np.eye(3), (300, 1, 1)))
    assert gravity_in_camera(imu, made.frames_ns, still) is None
