"""Placing hands in torch: released numbers, the slow twin, the numpy twin, gradients, symmetry."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from acehand_core.ace.model.camera_fit import (
    FittedPinhole,
    RadialFit,
    fit_pinhole,
    guarded_pinhole,
    reported_intrinsics,
)
from acehand_core.ace.model.config import RELEASED
from acehand_core.ace.model.pnp import (
    Bearings,
    calibrated_bearings,
    direct,
    fitted_bearings,
    inside_margin,
    inverse_projection,
    mixed_pnp,
    radial_bearings,
    residual_gate,
    sampled_bearings,
)
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.trackers.mediapipe import pnp
from helpers import solver_reference as slow
from helpers.fake_hands import right_hands

WIDTH, HEIGHT, FOCAL = 672.0, 480.0, (520.0, 540.0)
CENTRE = (330.0, 250.0)
SOURCES = ("calibrated", "fitted", "fit failed", "sampled", "sampled centres", "radial")
PNP_CASES = ("pnp_public", "pnp_public_wide")
PROJECTOR_CASES = ("proj_public_tiny_a", "proj_public_tiny_batch2", "proj_public_real_width")


def tensor(value, dtype=torch.float64):
    return torch.as_tensor(np.asarray(value), dtype=dtype)


def canonical(rng, count):
    """Joints of random hands turned to the camera, the wrist a little off the origin."""
    return right_hands(rng, count) + rng.normal(0, 0.02, (count, 1, 3))


def field(rng, clips=2, h=6, w=7, noise=0.02):
    """Ray fields (clips, 3, h, w) of the test's pinhole, of any length, with noise."""
    u, v = np.meshgrid((np.arange(w) + 0.5) / w, (np.arange(h) + 0.5) / h)
    x = (u * WIDTH - CENTRE[0]) / FOCAL[0]
    y = (v * HEIGHT - CENTRE[1]) / FOCAL[1]
    ray = np.stack([x, y, np.ones_like(x)]) + rng.normal(0, noise, (clips, 3, h, w))
    return ray * rng.uniform(0.5, 2, (clips, 1, 1, 1))


class Scene:
    """Hands near and far with anchors good, noisy, wrong, outside; clips, frames and slots."""

    def __init__(self, seed, clips=2, frames=5, noise=8.0, dtype=torch.float64):
        rng = np.random.default_rng(seed)
        shape = (clips, frames, 2)
        count = clips * frames * 2
        joints = canonical(rng, count)
        depth = rng.uniform(0.04, 0.9, count)
        place = np.concatenate([rng.uniform(-0.7, 0.7, (count, 2)), np.ones((count, 1))], 1)
        points = joints + (place * depth[:, None])[:, None]
        z = np.maximum(points[..., 2:], 0.05)
        pixels = points[..., :2] / z * FOCAL + CENTRE
        pixels += rng.normal(0, noise, pixels.shape) * rng.choice([0.1, 1, 8], (count, 1, 1))
        guess = depth * rng.choice([1.0, 1.15, 0.8], count)
        self.rng = rng
        self.size = tensor([[WIDTH, HEIGHT]] * clips, dtype)
        self.joints = tensor(joints.reshape(*shape, 21, 3), dtype)
        self.anchors = tensor((pixels / [WIDTH, HEIGHT]).reshape(*shape, 21, 2), dtype)
        self.log_depth = tensor(np.log(guess).reshape(shape), dtype)
        self.uv = tensor(rng.uniform(-1.2, 1.2, (*shape, 2)), dtype)
        self.focal = tensor([FOCAL] * clips, dtype)
        self.centre = tensor([CENTRE] * clips, dtype)
        self.rays = tensor(field(rng, clips), dtype)
        self.lens = RadialFit(
            self.focal / self.size, self.centre / self.size, tensor([[0.4, 0.03]] * clips, dtype),
            torch.ones(clips, dtype=torch.bool), torch.zeros(clips, dtype=dtype),
        )  # fmt: skip

    def bearings(self, source):
        """The scene's bearings by a named source, and the slow camera of each clip with scale."""
        given, size = (self.anchors, self.uv), self.size.numpy()
        rays = self.rays.numpy()
        if source == "calibrated":
            found = calibrated_bearings(*given, self.focal, self.centre, self.size)
            cameras = [slow.calibrated(FOCAL, CENTRE, s) for s in size]
            return found, cameras, [FOCAL] * len(size)
        if source in ("sampled", "sampled centres"):
            centres = source == "sampled centres"
            found = sampled_bearings(self.rays, *given, self.size, centres)
            cameras = [slow.sampled(ray, centres) for ray in rays]
            return found, cameras, [(WIDTH, WIDTH)] * len(size)
        if source == "radial":
            found = radial_bearings(self.lens, self.rays, *given, self.size)
            lens = [getattr(self.lens, name)[0].numpy() for name in ("focal", "centre", "bend")]
            return found, [slow.radial(*lens)] * len(size), [FOCAL] * len(size)
        fit = fit_pinhole(self.rays)
        assert fit.valid.all()
        fits = [slow.fit_pinhole(ray)[:2] for ray in rays]
        cameras = [slow.calibrated(*pair, (1, 1)) for pair in fits]
        scales = [pair[0] * size[0] for pair in fits]
        if source == "fit failed":  # of the second clip
            valid = torch.tensor([True, False])
            fit = FittedPinhole(fit.focal, fit.centre, valid, fit.misfit, fit.within)
            cameras[1], scales[1] = slow.sampled(rays[1], True), (WIDTH, WIDTH)
        return fitted_bearings(fit, self.rays, *given, self.size), cameras, scales


def golden(golden_case, name):
    case, path = golden_case(name)
    with np.load(path) as data:
        values = {key: data[key] for key in data.files if not key.startswith("override")}
    if case["kind"] == "pnp":  # solver alone: one clip
        values = {key: value[None] for key, value in values.items()}
        names = ("in/joints_2d", "in/cam_raw", "in/rays")
    else:
        names = ("out/direct_joints2d", "out/cam_raw", "out/rays_mean")
    return case, values, [torch.from_numpy(values[key]) for key in names]


@pytest.mark.parametrize("variant", ["k", "kfree"])
@pytest.mark.parametrize("name", [*PNP_CASES, *PROJECTOR_CASES])
def test_golden(golden_case, name, variant):
    """Every gate, residual, threshold, vote and translation of the released solver, in float32."""
    case, values, (anchors, camera, rays) = golden(golden_case, name)
    given, uv = case["config"]["camera"], camera[..., :2]

    def per_clip(*keys):
        return torch.tensor([[given[key] for key in keys]] * len(anchors), dtype=torch.float32)

    size = per_clip("image_width", "image_height")
    if variant == "k":
        focal, centre = per_clip("fx", "fy"), per_clip("cx", "cy")
        bearings = calibrated_bearings(anchors, uv, focal, centre, size)
    else:
        bearings = sampled_bearings(rays, anchors, uv, size)
    joints = torch.from_numpy(values["dbg/canonical_joints"])
    if variant == "kfree":  # outer cells on the edges are how the released code reads, not ours
        centres = sampled_bearings(rays, anchors, uv, size, cell_centres=True)
        other = mixed_pnp(joints, camera[..., 2], centres).solved.numpy()
        assert np.abs(other - values["dbg/kfree/pnp_ct"]).max() > 1e-3
        assert RELEASED["kfree"].ray_cells == "edges"
    found = mixed_pnp(joints, camera[..., 2], bearings)
    expected = {
        key: values[f"dbg/{variant}/{key}"]
        for key in ("accept", "rms", "thresh", "n_int", "pnp_ct", "inv_ct")
    }
    np.testing.assert_array_equal(found.accepted, expected["accept"])
    np.testing.assert_array_equal(found.votes.sum(-1), expected["n_int"])
    if f"dbg/{variant}/votes" in values:
        np.testing.assert_array_equal(found.votes, values[f"dbg/{variant}/votes"])
    np.testing.assert_allclose(found.rms, expected["rms"], rtol=1e-5, atol=1e-3)
    seen = expected["n_int"] > 0  # without votes there is no box
    np.testing.assert_allclose(found.threshold[seen], expected["thresh"][seen], rtol=1e-5)
    tolerance = case["tensors"][f"out/{variant}/cam_trans"]["suggested_atol"]
    for mine, theirs in (
        (found.translation, values[f"out/{variant}/cam_trans"]),
        (found.solved, expected["pnp_ct"]),
        (found.fallback, expected["inv_ct"]),
        (inverse_projection(joints, camera, bearings).translation, expected["inv_ct"]),
    ):
        np.testing.assert_allclose(mine, theirs, atol=tolerance)
    assert 0.2 < expected["accept"].mean() < 0.8  # both branches are there


@pytest.mark.parametrize("name", PROJECTOR_CASES)
def test_golden_intrinsics(golden_case, name):
    case, values, _ = golden(golden_case, name)
    camera = case["config"]["camera"]
    size = camera["image_width"], camera["image_height"]
    found = reported_intrinsics(torch.from_numpy(values["out/ray_map"]), *size)
    tolerance = case["tensors"]["out/pred_intrinsics"]["suggested_atol"]
    np.testing.assert_allclose(found[0], values["out/pred_intrinsics"], atol=tolerance)
    expected = slow.reported_intrinsics(values["out/ray_map"][-1].astype(float), *size)
    np.testing.assert_allclose(found[-1], expected, rtol=1e-5)


@pytest.mark.parametrize("fallback", ["released", "paper"])
@pytest.mark.parametrize("source", SOURCES)
def test_the_twin_agrees(source, fallback):
    accepted = []
    for seed in range(3):
        scene = Scene(seed, frames=6)
        scene.log_depth[0, 0] = 13.0  # so far that the sum of weights is held
        bearings, cameras, scales = scene.bearings(source)
        found = mixed_pnp(scene.joints, scene.log_depth, bearings, fallback)
        for b, n, s in np.ndindex(*scene.log_depth.shape):
            at = (b, n, s)
            joints, log_depth, anchors, uv = (
                x[at].numpy() for x in (scene.joints, scene.log_depth, scene.anchors, scene.uv)
            )
            if cameras[b](*((uv + 1) / 2)) is None or cameras[b](*anchors[0]) is None:
                continue  # the stand-in of a bearing that does not exist is tested elsewhere
            translation, yes, votes, rms, limit = slow.mixed_pnp(
                joints, float(log_depth), anchors, uv, cameras[b], np.array(scales[b]), fallback
            )
            assert abs(rms - limit) > 1e-6
            assert found.accepted[at] == yes
            assert torch.nonzero(found.votes[at])[:, 0].tolist() == votes
            np.testing.assert_allclose(found.translation[at], translation, atol=1e-9)
            np.testing.assert_allclose(
                [found.rms[at], found.threshold[at]], [rms, limit], rtol=1e-9, atol=1e-9
            )
            accepted.append(yes)
    assert 0.15 < np.mean(accepted) < 0.85


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_numpy_closed_form_agrees(dtype):
    """``mediapipe.pnp`` counts pixels from their centres, the released code from the corner."""
    scene = Scene(5, clips=1, frames=60, dtype=dtype)
    found = mixed_pnp(scene.joints, scene.log_depth, scene.bearings("calibrated")[0], "paper")
    camera = Camera("pinhole", int(WIDTH), int(HEIGHT), *FOCAL, CENTRE[0] - 0.5, CENTRE[1] - 0.5)
    joints = scene.joints.double().reshape(-1, 21, 3).numpy()
    depth = scene.log_depth.double().exp().reshape(-1).numpy()
    anchors = scene.anchors.double().reshape(-1, 21, 2).numpy() * [WIDTH, HEIGHT] - 0.5
    expected = pnp.mixed_pnp(joints, depth, anchors, camera)
    np.testing.assert_array_equal(found.votes.reshape(-1, 21), expected.votes)
    np.testing.assert_array_equal(found.accepted.reshape(-1), expected.accepted)
    atol = 1e-10 if dtype == torch.float64 else 2e-5
    np.testing.assert_allclose(
        found.translation.reshape(-1, 3), expected.translation, rtol=atol, atol=atol
    )
    # The numpy twin projects with the camera, which sees nothing behind it: rows with votes only.
    seen = expected.votes.any(1) & np.isfinite(expected.rms_px)
    atol = 1e-9 if dtype == torch.float64 else 1e-3
    np.testing.assert_allclose(found.rms.reshape(-1)[seen], expected.rms_px[seen], atol=atol)


def test_unknown_names_are_refused():
    scene = Scene(31)
    with pytest.raises(InputError, match="Did you mean 'paper'"):
        mixed_pnp(scene.joints, scene.log_depth, scene.bearings("sampled")[0], "papers")
    with pytest.raises(InputError, match="pixel_on_bearing"):
        fit_pinhole(scene.rays, "pixels")
    with pytest.raises(InputError, match="Did you mean 'paper'"):
        guarded_pinhole(scene.rays, "papers")


@pytest.mark.parametrize("regression", ["bearing_on_pixel", "pixel_on_bearing"])
def test_the_fit_is_one_regression_per_axis(regression):
    rays = field(np.random.default_rng(3), clips=4, h=9, w=5, noise=0.03)
    fit = fit_pinhole(tensor(rays), regression)
    for clip, ray in enumerate(rays):
        focal, centre, misfit = slow.fit_pinhole(ray, regression)
        np.testing.assert_allclose(fit.focal[clip], focal, rtol=1e-9)
        np.testing.assert_allclose(fit.centre[clip], centre, rtol=1e-9)
        assert fit.misfit[clip].item() == pytest.approx(misfit, abs=1e-6)
    assert fit.valid.all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_evidence_gives_the_exact_place(dtype):
    rng = np.random.default_rng(0)
    joints = canonical(rng, 80)
    place = np.concatenate([rng.uniform(-0.1, 0.1, (80, 2)), rng.uniform(0.35, 0.9, (80, 1))], 1)
    points = joints + place[:, None]
    anchors = (points[..., :2] / points[..., 2:] * FOCAL + CENTRE) / [WIDTH, HEIGHT]
    # Between the outer cells' centres and the edge a field is held, not continued.
    inside = ((anchors > 0.04) & (anchors < 0.96)).all((1, 2))
    assert inside.mean() > 0.8
    given = tensor(anchors.reshape(1, 40, 2, 21, 2), dtype), torch.zeros(1, 40, 2, 2, dtype=dtype)
    rows = [tensor([v], dtype) for v in (FOCAL, CENTRE, (WIDTH, HEIGHT))]
    rays = tensor(field(rng, 1, 15, 21, noise=0.0), dtype)
    for bearings in (
        calibrated_bearings(*given, *rows),
        fitted_bearings(fit_pinhole(rays), rays, *given, rows[2]),
        sampled_bearings(rays, *given, rows[2], cell_centres=True),
    ):
        depth = tensor(np.log(place[:, 2]).reshape(1, 40, 2), dtype)
        found = mixed_pnp(tensor(joints.reshape(1, 40, 2, 21, 3), dtype), depth, bearings)
        assert found.accepted.reshape(-1)[inside].all()
        error = (found.translation.reshape(-1, 3) - tensor(place, dtype)).abs()
        assert error[inside].max() < (1e-9 if dtype == torch.float64 else 2e-5)


@pytest.mark.parametrize(
    "fault", ["zero", "parallel", "mirrored", "short", "long", "fisheye", "behind", "column"]
)
def test_fields_that_are_no_pinhole_are_refused_with_finite_numbers(fault):
    ray = field(np.random.default_rng(4), clips=1, h=15, w=21, noise=0.0)
    factors = {"zero": (0, 0, 0), "parallel": (0.005, 0.005, 1), "mirrored": (-1, 1, 1),
               "short": (6, 6, 1), "long": (0.12, 0.12, 1)}  # fmt: skip
    if fault in factors:
        ray *= np.reshape(factors[fault], (3, 1, 1))
    elif fault == "fisheye":
        f = 336 / np.radians(70)
        camera = Camera("kannala_brandt", 672, 480, f, f, 335.5, 239.5, (0.0,) * 4)
        u, v = np.meshgrid(np.arange(21) * 32 + 15.5, np.arange(15) * 32 + 15.5)
        ray = np.moveaxis(camera.unproject(np.stack([u, v], -1)), -1, 0)[None]
    elif fault == "behind":
        ray[:, 2, :, -1] *= -1
    else:
        ray = ray[..., :1]
    rays = tensor(ray).requires_grad_()
    fit = guarded_pinhole(rays)
    assert not fit.valid.any()
    assert all(torch.isfinite(x).all() for x in (fit.focal, fit.centre, fit.misfit))
    (fit.focal.sum() + fit.centre.sum()).backward()
    assert torch.isfinite(rays.grad).all()


def test_a_collapsed_field_with_a_lucky_focal_length_is_refused():
    """The floor's own case: pixels on bearings that hardly vary but vary the right way."""
    rays = tensor(field(np.random.default_rng(13), clips=1, h=15, w=21, noise=0.0))
    for shrink, fine in ((1.0, True), (0.004, False)):
        flat = rays * tensor([shrink, shrink, 1.0]).view(1, 3, 1, 1)
        fit = fit_pinhole(flat, "pixel_on_bearing")
        assert fit.valid.tolist() == [fine]
    assert ((fit.focal > 0.2) & (fit.focal < 5)).all()


def rows_for_gradients():
    """Four hands: accepted; refused by residual; refused by votes (near); far beyond the clamp."""
    scene = Scene(11, clips=1, frames=2, noise=0.0)
    rng = np.random.default_rng(12)
    joints = canonical(rng, 4)
    depth = np.array([0.45, 0.5, 0.05 - np.sort(joints[2, :, 2])[-4], 4e5])
    points = joints + np.stack([0.05 * depth, -0.04 * depth, depth], -1)[:, None]
    anchors = points[..., :2] / np.maximum(points[..., 2:], 0.05) * FOCAL + CENTRE
    anchors += rng.normal(0, 1, anchors.shape)
    anchors[1] = 2 * anchors[1].mean(0) - anchors[1]  # the hand upside down
    anchors[:, 9:11, 0] = WIDTH - 4.0
    scene.joints = tensor(joints.reshape(1, 2, 2, 21, 3))
    scene.anchors = tensor((anchors / [WIDTH, HEIGHT]).reshape(1, 2, 2, 21, 2))
    scene.log_depth = tensor(np.log(depth).reshape(1, 2, 2))
    return scene


@pytest.mark.parametrize("fallback", ["released", "paper"])
@pytest.mark.parametrize("source", ["calibrated", "fitted", "sampled", "sampled centres", "radial"])
def test_gradients_of_the_solve(source, fallback):
    """Accepted, refused and clamped rows, against finite differences; votes stay as they are."""
    scene = rows_for_gradients()
    inputs = [
        x.clone().requires_grad_()
        for x in (scene.joints, scene.log_depth, scene.anchors, scene.uv, scene.rays)
    ]

    def solve(joints, log_depth, anchors, uv, rays):
        given, size = (anchors, uv), scene.size
        bearings = {
            "calibrated": lambda: calibrated_bearings(*given, scene.focal, scene.centre, size),
            "fitted": lambda: fitted_bearings(fit_pinhole(rays), rays, *given, size),
            "radial": lambda: radial_bearings(scene.lens, rays, *given, size),
            "sampled": lambda: sampled_bearings(rays, *given, size),
            "sampled centres": lambda: sampled_bearings(rays, *given, size, True),
        }[source]()
        return mixed_pnp(joints, log_depth, bearings, fallback)

    found = solve(*inputs)
    z_raw = inputs[0][..., 2] + inputs[1].exp()[..., None]
    assert found.accepted.reshape(-1)[:3].tolist() == [True, False, False]
    assert ((z_raw < 0.05).any(-1) & (z_raw > 0.05).any(-1)).reshape(-1)[2]
    assert ((found.votes / z_raw**2).sum(-1) < 1e-8).reshape(-1)[3]
    # Metres at 400 km are of no use to finite differences: that row counts in units of its depth.
    unit = inputs[1].detach().exp().clamp(min=1.0)[..., None]
    assert gradcheck(
        lambda *x: solve(*x).translation / unit, inputs, eps=1e-6, atol=1e-5, rtol=1e-4,
        fast_mode=True,
    )  # fmt: skip


@pytest.mark.parametrize("regression", ["bearing_on_pixel", "pixel_on_bearing"])
@pytest.mark.parametrize("fault", ["none", "floor", "bracket", "depth"])
def test_gradients_of_the_fit(regression, fault):
    ray = field(np.random.default_rng(6), clips=2, h=3, w=4)
    if fault == "floor":
        ray[1, :2] *= 1e-3
    elif fault == "bracket":
        ray[1, :2] *= 30
    elif fault == "depth":
        ray[1, 2, 0, 0] = -0.5
        ray[1, :2, 0, 0] = [1e-7, -2e-7]
    rays = tensor(ray).requires_grad_()
    assert fit_pinhole(rays).valid.tolist() == [True, fault in ("none", "depth")]

    def four_numbers(field):
        fit = fit_pinhole(field, regression)
        return fit.focal, fit.centre

    # Where a depth is held at 1e-6, so is how far a finite difference may go.
    step = {"eps": 1e-10, "atol": 1e-3, "rtol": 1e-3} if fault == "depth" else {}
    assert gradcheck(four_numbers, rays, **step)


@pytest.mark.parametrize("source", ["fitted", "sampled"])
def test_training_reaches_the_ray_field(source):
    """Gradients are finite in float32, also before the ray head has learned anything."""
    scene = Scene(8, dtype=torch.float32)
    for rays in (scene.rays, torch.zeros_like(scene.rays)):
        rays = rays.clone().requires_grad_()
        given = (scene.anchors, scene.uv, scene.size)
        if source == "fitted":
            bearings = fitted_bearings(fit_pinhole(rays), rays, *given)
        else:
            bearings = sampled_bearings(rays, *given)
        mixed_pnp(scene.joints, scene.log_depth, bearings).translation.sum().backward()
        assert torch.isfinite(rays.grad).all() and rays.grad.abs().max() > 0


# --- symmetry ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fallback", ["released", "paper"])
def test_moving_the_hand_within_its_frame_moves_nothing_in_the_world(fallback):
    """Canonical joints shifted one way, translation the other; sideways and in depth."""
    scene = Scene(20)
    bearings = scene.bearings("calibrated")[0]
    before = mixed_pnp(scene.joints, scene.log_depth, bearings, fallback)
    shift = torch.tensor([0.03, -0.02, 0.015], dtype=torch.float64)
    log_depth = (scene.log_depth.exp() - shift[2]).log()
    after = mixed_pnp(scene.joints + shift, log_depth, bearings, fallback)
    assert torch.equal(before.accepted, after.accepted)
    moved = after.translation + shift
    rows = before.accepted if fallback == "released" else torch.ones_like(before.accepted)
    torch.testing.assert_close(moved[rows], before.translation[rows], rtol=0, atol=1e-12)


def test_a_hand_that_moves_with_its_anchors_moves_by_that():
    scene = Scene(21, noise=0.5)
    scene.log_depth = scene.log_depth.clamp(min=-1.2)
    bearings = scene.bearings("calibrated")[0]
    before = mixed_pnp(scene.joints, scene.log_depth, bearings, "paper")
    move = torch.tensor([0.04, 0.07], dtype=torch.float64)
    z = scene.joints[..., 2:] + scene.log_depth.exp()[..., None, None]
    moved = Bearings(bearings.joints + move / z, bearings.fallback, bearings.usable, bearings.scale)
    after = mixed_pnp(scene.joints, scene.log_depth, moved, "paper")
    seen = before.votes.any(-1)
    assert seen.float().mean() > 0.7
    torch.testing.assert_close(after.solved[seen][:, :2], before.solved[seen][:, :2] + move)
    torch.testing.assert_close(after.fallback[..., :2], before.fallback[..., :2] + move)
    assert (after.rms - before.rms).abs().max() < 1e-9


@pytest.mark.parametrize("factor", [1.7, 3.0])
def test_a_larger_world_looks_the_same(factor):
    scene = Scene(22)
    scene.log_depth = scene.log_depth.clamp(min=-1.2)  # nothing near the 5 cm, which do not scale
    bearings = scene.bearings("sampled")[0]
    before = mixed_pnp(scene.joints, scene.log_depth, bearings)
    after = mixed_pnp(factor * scene.joints, scene.log_depth + np.log(factor), bearings)
    assert torch.equal(before.votes, after.votes) and torch.equal(before.accepted, after.accepted)
    torch.testing.assert_close(after.translation, factor * before.translation)


@pytest.mark.parametrize("source", ["calibrated", "sampled", "fitted"])
def test_joints_have_no_order_and_frames_no_neighbours(source):
    scene = Scene(23)
    before = mixed_pnp(scene.joints, scene.log_depth, scene.bearings(source)[0])
    order = torch.randperm(21, generator=torch.Generator().manual_seed(0))
    shuffled, anchors = scene.joints[..., order, :], scene.anchors
    scene.anchors = anchors[..., order, :]
    after = mixed_pnp(shuffled, scene.log_depth, scene.bearings(source)[0])
    torch.testing.assert_close(after.translation, before.translation, rtol=1e-12, atol=1e-12)
    assert torch.equal(after.votes, before.votes[..., order])
    scene.anchors = anchors.clone()
    scene.anchors[:, 2] = 0.5
    alone = mixed_pnp(scene.joints, scene.log_depth, scene.bearings(source)[0])
    others = [0, 1, 3, 4]
    assert torch.equal(alone.translation[:, others], before.translation[:, others])
    assert not torch.equal(alone.translation[:, 2], before.translation[:, 2])


def test_the_length_of_rays_and_mirrored_fields():
    rays = tensor(field(np.random.default_rng(9)))
    fit = fit_pinhole(rays)
    longer = fit_pinhole(rays * torch.rand(2, 1, 6, 7, dtype=torch.float64).add(0.2))
    torch.testing.assert_close(longer.focal, fit.focal)
    torch.testing.assert_close(longer.centre, fit.centre)
    flipped = rays.flip(3) * tensor([-1.0, 1, 1]).view(1, 3, 1, 1)
    mirror = fit_pinhole(flipped)
    torch.testing.assert_close(mirror.focal, fit.focal)
    torch.testing.assert_close(mirror.centre[:, 0], 1 - fit.centre[:, 0])
    turned = fit_pinhole(rays.transpose(2, 3)[:, [1, 0, 2]])
    torch.testing.assert_close(turned.focal, fit.focal.flip(1))


def test_cells_stand_where_they_are_said_to():
    """A constant-depth field is linear: read at cell centres it is the camera, else it is not."""
    rng = np.random.default_rng(10)
    rays = tensor(field(rng, 1, 15, 21, noise=0.0))
    anchors = tensor(rng.uniform(0.05, 0.95, (1, 4, 2, 21, 2)))
    uv, size = torch.zeros(1, 4, 2, 2, dtype=torch.float64), tensor([[WIDTH, HEIGHT]])
    truth = (anchors * size[0] - tensor(CENTRE)) / tensor(FOCAL)
    centres = sampled_bearings(rays, anchors, uv, size, cell_centres=True)
    edges = sampled_bearings(rays, anchors, uv, size)
    torch.testing.assert_close(centres.joints, truth)
    shift = (0.5 - anchors) / tensor([21, 15]) * size[0] / tensor(FOCAL)
    torch.testing.assert_close(edges.joints, truth + shift)
    # A lens that does not fit leaves the field, read at the centres.
    none = torch.zeros(1, 2, dtype=torch.float64)
    lens = RadialFit(none + 1, none, none, torch.tensor([False]), none[:, 0])
    left = radial_bearings(lens, rays, anchors, uv, size)
    torch.testing.assert_close(left.joints, truth)


def test_votes_lie_strictly_inside_the_margin():
    places = tensor([[0.02, 0.5], [0.98, 0.5], [0.5, 0.02], [0.5, 0.98], [0.0201, 0.9799]])
    anchors = torch.full((1, 1, 2, 21, 2), 0.5, dtype=torch.float64)
    anchors[0, 0, 0, :5] = places
    assert inside_margin(anchors)[0, 0, 0, :6].tolist() == [False] * 4 + [True] * 2


def test_the_gate_of_residuals_by_hand():
    """Errors of (9, 12) pixels are just allowed; a box of 240 by 320 allows 100."""
    error = torch.zeros(1, 1, 2, 21, 2, dtype=torch.float64)
    joints, votes = torch.zeros_like(error), torch.zeros(1, 1, 2, 21, dtype=torch.bool)
    scale = tensor([[100.0, 200.0]])
    error[..., :] = tensor([0.09, 0.06])
    votes[0, 0, 0, :6] = True
    votes[0, 0, 1, 20] = True
    bearings = Bearings(joints, joints[..., 0, :], votes, scale)
    rms, threshold, accepted = residual_gate(error, votes, bearings)
    np.testing.assert_allclose(rms.squeeze(), [15.0, 15.0])
    np.testing.assert_allclose(threshold.squeeze(), [15.0, 15.0])
    assert accepted.squeeze().tolist() == [True, False]  # one vote is not enough

    joints[0, 0, 0, 5] = tensor([2.4, -1.6])
    joints[0, 0, 0, 6] = tensor([9.0, 9.0])  # without a vote
    error[0, 0, 0, 6] = 9.0
    rms, threshold, accepted = residual_gate(error * 2, votes, bearings)
    np.testing.assert_allclose(rms.squeeze(), [30.0, 30.0])
    np.testing.assert_allclose(threshold.squeeze(), [100.0, 15.0])
    assert accepted.squeeze().tolist() == [True, False]
    votes[:] = False
    rms, threshold, accepted = residual_gate(error, votes, bearings)
    assert rms.tolist() == [[[0.0, 0.0]]] and threshold.tolist() == [[[15.0, 15.0]]]


def test_rays_that_look_sideways_or_back():
    """A depth counts by its absolute value and at least 1e-6; outside the field there is none."""
    scene = Scene(32, clips=1, frames=4)
    scene.rays[0, 2, 2:4] *= -1
    scene.rays[0, 2, 0] = 1e-8
    scene.anchors[:, :, 0] = scene.anchors[:, :, 0] * 1.6 - 0.3
    for centres in (False, True):
        found = sampled_bearings(scene.rays, scene.anchors, scene.uv, scene.size, centres)
        bearing = slow.sampled(scene.rays[0].numpy(), centres)
        expected = [bearing(*place) for place in scene.anchors.reshape(-1, 2).tolist()]
        np.testing.assert_allclose(found.joints.reshape(-1, 2), expected, rtol=1e-6, atol=1e-9)
        assert np.abs(expected).max() > 1e3 and (np.array(expected) == 0).all(1).any()


def test_ablations():
    scene = Scene(30)
    camera = torch.cat([scene.uv, scene.log_depth[..., None]], dim=-1)
    bearings, cameras, _ = scene.bearings("calibrated")
    found = inverse_projection(scene.joints, camera, bearings)
    for at in np.ndindex(*scene.log_depth.shape):
        depth = scene.log_depth[at].exp()
        u, v = (scene.uv[at] + 1) / 2
        x, y = cameras[at[0]](float(u), float(v))
        np.testing.assert_allclose(found.translation[at], [x * depth, y * depth, depth])
    assert not found.accepted.any() and not found.votes.any()
    plain = direct(scene.joints, camera).translation
    torch.testing.assert_close(plain[..., :2], scene.uv * scene.log_depth.exp()[..., None])
    torch.testing.assert_close(plain[..., 2], scene.log_depth.exp())
