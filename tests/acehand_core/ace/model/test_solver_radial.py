"""The radial lens fitted to ray fields: pinholes, fisheyes, noise, gradients, what is refused."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.autograd import gradcheck

from acehand_core.ace.model import pnp as bearings
from acehand_core.ace.model.camera_fit import (
    RadialFit,
    _lens,
    fit_pinhole,
    fit_radial,
    guarded_pinhole,
)
from acehand_core.geometry.cameras import Camera
from helpers import solver_reference as slow

WIDTH, HEIGHT = 672, 480
KANNALA = (0.08, -0.02, 0.004, -0.001)
ARIA = (-0.02, 0.1, -0.06, 0.01, 0.002, -3e-4, 5e-4, -4e-4, 2e-4, 1e-4, -1e-4, 1e-4)


def pinhole(degrees):
    focal = WIDTH / 2 / np.tan(np.radians(degrees) / 2)
    return Camera("pinhole", WIDTH, HEIGHT, focal, 1.03 * focal, 350.5, 229.5)


def fisheye(model, degrees, coefficients):
    focal = WIDTH / np.radians(degrees)
    return Camera(model, WIDTH, HEIGHT, focal, focal, 345.5, 229.5, coefficients)


FISHEYES = {
    "equidistant 120": fisheye("kannala_brandt", 120, (0.0,) * 4),
    "equidistant 180": fisheye("kannala_brandt", 180, (0.0,) * 4),
    "kannala 100": fisheye("kannala_brandt", 100, KANNALA),
    "kannala 140": fisheye("kannala_brandt", 140, KANNALA),
    "fisheye624 100": fisheye("fisheye624", 100, ARIA),
    "fisheye624 130": fisheye("fisheye624", 130, ARIA),
}


def field(camera, noise_degrees=0.0, clips=1, seed=0, h=15, w=21):
    """Unit rays of the tokens (clips, 3, h, w), turned by noise."""
    u, v = np.meshgrid((np.arange(w) + 0.5) / w, (np.arange(h) + 0.5) / h)
    pixels = np.stack([u * camera.width, v * camera.height], -1) - 0.5
    rays = camera.unproject(pixels)
    assert np.isfinite(rays).all()
    turn = np.random.default_rng(seed).normal(0, np.radians(noise_degrees), (clips, h, w, 3))
    rays = rays + turn - np.sum(turn * rays, -1, keepdims=True) * rays
    return torch.tensor(np.moveaxis(rays / np.linalg.norm(rays, axis=-1, keepdims=True), -1, 1))


def places(count=300, seed=1):
    return torch.tensor(np.random.default_rng(seed).uniform(0.04, 0.96, (1, count, 2)))


def degrees(a, b):
    """Angles between rays, in degrees."""
    a, b = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (np.asarray(a), np.asarray(b)))
    return np.degrees(np.arctan2(np.linalg.norm(np.cross(a, b), axis=-1), np.sum(a * b, -1)))


def error(found, camera, anchors):
    truth = camera.unproject(anchors[0].numpy() * [camera.width, camera.height] - 0.5)
    return degrees(found, truth)


@pytest.mark.parametrize("view", [40, 70, 90, 110, 125])
def test_a_pinhole_comes_out_as_a_pinhole(view):
    camera = pinhole(view)
    fit = fit_radial(field(camera))
    assert fit.valid.all() and fit.misfit.max() < 1e-6
    np.testing.assert_allclose(fit.bend, [[1.0, 0.0]], atol=1e-5)
    np.testing.assert_allclose(
        fit.focal * torch.tensor([WIDTH, HEIGHT]), [[camera.fx, camera.fy]], rtol=1e-6
    )
    anchors = places()
    bearing, seen = fit.bearing(anchors)
    assert seen.all()
    truth = (anchors * torch.tensor([WIDTH, HEIGHT]) - 0.5).numpy() - [camera.cx, camera.cy]
    np.testing.assert_allclose(bearing[0], truth[0] / [camera.fx, camera.fy], atol=1e-6)


@pytest.mark.parametrize("name", FISHEYES)
def test_fisheyes_are_fitted(name):
    """Exactly, and with 1 degree of noise better than by a pinhole or by reading the field."""
    camera, anchors = FISHEYES[name], places()
    fit = fit_radial(field(camera))
    assert fit.valid.all()
    assert error(fit.rays(anchors)[0], camera, anchors).max() < 0.35
    rays = field(camera, 1.0, clips=8)
    fit, pin = fit_radial(rays), fit_pinhole(rays)
    assert fit.valid.all()
    radial = error(fit.rays(anchors.expand(8, -1, -1)), camera, anchors)
    plain = (anchors - pin.centre[:, None]) / pin.focal[:, None]
    straight = error(torch.cat([plain, torch.ones_like(plain[..., :1])], -1), camera, anchors)
    u = anchors[0].numpy() * [21, 15] - 0.5
    read = np.array([[slow.read_field(ray, *place) for place in u[:60]] for ray in rays.numpy()])
    sampled = error(read, camera, anchors[:, :60])
    assert np.median(radial) < 0.3 * np.median(sampled) < 0.6
    assert np.median(radial) < 0.15 * np.median(straight)


def test_tokens_that_see_something_else_have_little_say():
    camera, anchors = FISHEYES["kannala 140"], places()
    rays = field(camera, 0.5, clips=6)
    hit = torch.rand(6, 1, 15, 21, generator=torch.Generator().manual_seed(0)) < 0.1
    rays = torch.where(hit, rays[:, [1, 2, 0]], rays)
    rays[0, :, 3, 4] = 0  # and one that sees nothing
    fit = fit_radial(rays)
    assert fit.valid.all()
    assert np.median(error(fit.rays(anchors.expand(6, -1, -1)), camera, anchors)) < 0.4


def test_it_ends_at_the_minimum_of_the_twins_cost():
    rays = field(FISHEYES["kannala 100"], 2.0, h=5, w=6)
    fit = fit_radial(rays, steps=30)
    mine = torch.cat([fit.focal.log(), fit.centre, fit.bend], dim=1)[0].numpy()
    there = slow.radial_cost(mine, rays[0].numpy())
    for k in range(6):
        for way in (-1, 1):
            moved = mine.copy()
            moved[k] += way * 2e-3
            assert slow.radial_cost(moved, rays[0].numpy()) > there


@pytest.mark.parametrize("bend", [(1.0, 0.0), (0.3, 0.02), (0.0, 0.01), (5e-4, 0.0), (-0.1, -0.01)])
def test_the_lens_and_its_derivatives(bend):
    """Against the twin's formula and against automatic differentiation, on both sides of q = 0."""
    unknowns = torch.tensor([[-0.7, -0.4, 0.48, 0.53, *bend]], dtype=torch.float64)
    pixel = places(50)
    found, jacobian = _lens(unknowns, pixel)
    full = torch.autograd.functional.jacobian(lambda x: _lens(x, pixel)[0], unknowns)
    torch.testing.assert_close(jacobian[0], full[0, :, :, 0])
    d = (pixel[0].numpy() - [0.48, 0.53]) / np.exp([-0.7, -0.4])
    s = np.linalg.norm(d, axis=1, keepdims=True)
    np.testing.assert_allclose(found[0], d / s * slow.radial_angle(s, *bend), atol=1e-9)


def lens(q=0.0, focal=0.25):
    """A clip's lens: equidistant, half the image's width is 2 radians."""
    return RadialFit(
        torch.full((1, 2), focal).double(), torch.full((1, 2), 0.5).double(),
        torch.tensor([[q, 0.0]]).double(), torch.tensor([True]), torch.zeros(1).double(),
    )  # fmt: skip


def test_bearings_end_before_ninety_degrees_and_rays_do_not():
    places = [[0.5, 0.5], [0.75, 0.5], [0.5, 0.88], [0.9, 0.5], [1.0, 0.5]]
    anchors = torch.tensor([places], dtype=torch.float64)
    bearing, seen = lens().bearing(anchors)
    assert seen.tolist() == [[True, True, False, False, False]]
    edge = np.tan(np.radians(85))
    expected = [[0, 0], [np.tan(1.0), 0], [0, edge], [edge, 0], [edge, 0]]
    np.testing.assert_allclose(bearing[0], expected, atol=1e-9)
    rays = lens().rays(anchors)[0]
    np.testing.assert_allclose(rays[3], [np.sin(1.6), 0, np.cos(1.6)], atol=1e-12)
    np.testing.assert_allclose(rays[4], [np.sin(2.0), 0, np.cos(2.0)], atol=1e-12)
    uv = torch.zeros(1, 1, 2, 2).double()
    crowd = anchors[0, [1] * 15 + [3] * 6].expand(1, 1, 2, 21, 2).clone()
    found = bearings.radial_bearings(
        lens(), torch.ones(1, 3, 4, 5).double(), crowd, uv, torch.tensor([[600.0, 400.0]]).double()
    )
    assert found.usable.sum(-1).tolist() == [[[15, 15]]]
    np.testing.assert_allclose(found.scale, [[150, 100]])


@pytest.mark.parametrize("fault", ["zero", "parallel", "random", "behind"])
def test_fields_without_a_lens_are_refused_with_finite_numbers(fault):
    good = field(FISHEYES["kannala 100"])
    rays = {
        "zero": 0 * good,
        "parallel": good * torch.tensor([0.003, 0.003, 1.0]).view(1, 3, 1, 1),
        "random": torch.randn(good.shape, generator=torch.Generator().manual_seed(0)).double(),
        "behind": -good,
    }[fault]
    rays = torch.cat([rays, good]).requires_grad_()
    fit = fit_radial(rays)
    assert fit.valid.tolist() == [False, True]
    (fit.focal.sum() + fit.centre.sum() + fit.bend.sum()).backward()
    assert all(torch.isfinite(x).all() for x in (fit.focal, fit.centre, fit.bend, rays.grad))
    anchors, uv = places(21).expand(2, 1, 2, 21, 2), torch.zeros(2, 1, 2, 2).double()
    size = torch.tensor([[672.0, 480.0]] * 2).double()
    found = bearings.radial_bearings(fit, rays, anchors, uv, size)
    field_alone = bearings.sampled_bearings(rays, anchors, uv, size, cell_centres=True)
    assert torch.equal(found.joints[0], field_alone.joints[0])
    assert not torch.equal(found.joints[1], field_alone.joints[1])


@pytest.mark.parametrize("name", ["kannala 140", "pinhole"])
def test_gradients(name):
    """Of bearings and rays by the field and the anchors, through every step."""
    camera = pinhole(80) if name == "pinhole" else FISHEYES[name]
    rays = (1.7 * field(camera, 1.5, clips=2, h=4, w=5)).requires_grad_()
    anchors = places(7).expand(2, -1, -1).clone().requires_grad_()

    def values(rays, anchors):
        fit = fit_radial(rays)
        return fit.bearing(anchors)[0], fit.rays(anchors), fit.focal, fit.centre, fit.bend

    assert gradcheck(values, (rays, anchors), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


def test_gradients_on_the_axis():
    """Where the distance to the axis is 0 and its square root has no slope of its own."""
    anchors = torch.full((1, 1, 2), 0.5).double().requires_grad_()
    bearing, _ = lens(0.5).bearing(anchors)
    bearing.sum().backward()
    np.testing.assert_allclose(anchors.grad, [[[4.0, 4.0]]])
    rays = field(FISHEYES["kannala 100"], h=3, w=3)
    rays[0, :, 1, 1] = torch.tensor([0.0, 0.0, 1.0])
    rays.requires_grad_()
    fit_radial(rays).focal.sum().backward()
    assert torch.isfinite(rays.grad).all()


def test_length_neighbours_and_precision_do_not_matter():
    rays = field(FISHEYES["kannala 140"], 1.0, clips=3)
    fit = fit_radial(rays)
    longer = fit_radial(rays * torch.linspace(0.3, 2, 21).double())
    alone = fit_radial(rays[1:2])
    for name in ("focal", "centre", "bend"):
        torch.testing.assert_close(getattr(longer, name), getattr(fit, name))
        torch.testing.assert_close(getattr(alone, name), getattr(fit, name)[1:2])
    single = fit_radial(rays.float())
    assert single.focal.dtype == torch.float32
    anchors = places().expand(3, -1, -1)
    assert degrees(single.rays(anchors.float()), fit.rays(anchors)).max() < 0.01


#: Radius in the image, in focal lengths, to the angle from the axis.
ANGLES = {"pinhole": np.arctan, "equidistant": lambda s: s}
TOKENS = np.stack(np.meshgrid((np.arange(21) + 0.5) / 21, (np.arange(15) + 0.5) / 15), -1)


def analytic(kind, view, noise=0.0, smooth=0.0, clips=1, seed=0):
    """A lens's rays by its formula, ``view`` degrees across 672 pixels, centre (363, 216)."""
    edge = np.radians(view / 2)
    focal = 336 / {"pinhole": np.tan(edge), "equidistant": edge}[kind]
    d = (TOKENS * [672, 480] - [363, 216]) / focal
    s = np.linalg.norm(d, axis=-1, keepdims=True)
    angle = ANGLES[kind](s)
    ray = np.concatenate([d / s * np.sin(angle), np.cos(angle)], -1)
    turn = np.random.default_rng(seed).normal(size=(clips, *ray.shape))
    if smooth:
        turn = gaussian_filter(turn, (0, smooth, smooth, 0))
        turn /= turn.std()
    turn *= np.radians(noise)
    rays = ray + turn - np.sum(turn * ray, -1, keepdims=True) * ray
    return torch.tensor(np.moveaxis(rays / np.linalg.norm(rays, axis=-1, keepdims=True), -1, 1))


@pytest.mark.parametrize("view", [42, 70, 110])
def test_noise_on_a_pinhole_does_not_keep_hands_from_its_fit(view):
    for noise, smooth in ((0, 0), (4, 0), (5, 0), (5, 1), (3, 2)):
        fit = guarded_pinhole(analytic("pinhole", view, noise, smooth, clips=20))
        assert fit.valid.all(), (noise, smooth)
        if noise > 3:  # where the gate once stood
            assert fit.misfit.min() > np.radians(4.5)


@pytest.mark.parametrize("view", [90, 110, 130])
def test_fisheyes_do_not_pass_for_pinholes(view):
    for noise in (0, 1, 3):
        rays = analytic("equidistant", view, noise, clips=20)
        fit, paper = guarded_pinhole(rays), guarded_pinhole(rays, "paper")
        assert not fit.valid.any(), noise
        assert paper.valid.all() and fit.within.all()  # the paper's guards let them through


def test_smooth_errors_that_leave_the_fit_right_do_not_count():
    """In each axis' bearings, less the line through them: the fit is exact, the rays are off."""
    exact = analytic("pinhole", 70)
    bearing = (exact[:, :2] / exact[:, 2:]).numpy()
    noisy = analytic("pinhole", 70, 8, smooth=3, clips=20)
    wrong = (noisy[:, :2] / noisy[:, 2:]).numpy() - bearing
    for axis in range(2):
        along = TOKENS[..., axis] - 0.5
        wrong[:, axis] -= wrong[:, axis].mean((1, 2), keepdims=True)
        slope = (wrong[:, axis] * along).sum((1, 2), keepdims=True) / (along**2).sum()
        wrong[:, axis] -= slope * along
    rays = torch.tensor(np.concatenate([bearing + wrong, np.ones_like(wrong[:, :1])], 1))
    fit, truth = guarded_pinhole(rays), fit_pinhole(exact)
    assert fit.misfit.mean() > np.radians(7)
    torch.testing.assert_close(fit.focal, truth.focal.expand(20, 2))
    assert fit.valid.all()


def test_the_papers_guards_and_no_others():
    """Against the two worked out one token at a time, on either side of each."""
    rays = [analytic("equidistant", 110)[0], analytic("pinhole", 70, 5.0)[0]]
    plain = analytic("pinhole", 70)[0]
    # Bearings of 70 degrees vary by 0.16 and 0.08: x by 0.02 is under the floor, by 0.04 over it,
    # but then the focal length is 18 sides.
    for x, y in ((0.02, 1.0), (0.04, 1.0), (0.13, 1.0), (1.0, 0.08), (1.0, 0.11), (4.0, 1.0)):
        rays.append(plain * torch.tensor([x, y, 1.0]).double().view(3, 1, 1))
    rays += [analytic("pinhole", 135.5)[0], analytic("pinhole", 137)[0]]
    rays += [analytic("equidistant", view)[0] for view in (130, 150)]
    expected = [slow.within_the_papers_guards(ray.numpy()) for ray in rays]
    assert 0 < sum(expected) < len(expected)
    fit = guarded_pinhole(torch.stack(rays), "paper")
    assert fit.valid.tolist() == fit.within.tolist() == expected


def test_what_a_pinhole_adds_is_weighed_against_the_fields_own_error():
    """The decision against its definition, one token at a time, fields on either side of it."""
    kinds = [("equidistant", view, noise, smooth) for view in (55, 62, 64, 66, 75, 90)
             for noise, smooth in ((0, 0), (1, 0), (3, 0), (3, 2))]  # fmt: skip
    rays = torch.cat([analytic(*kind, seed=n) for n, kind in enumerate(kinds)])
    fit, lens = guarded_pinhole(rays), fit_radial(rays)
    close = []
    for n, ray in enumerate(rays.numpy()):
        one = RadialFit(*(getattr(lens, f)[n : n + 1] for f in
                          ("focal", "centre", "bend", "valid", "misfit")))  # fmt: skip
        excess, limit = slow.excess_and_limit(
            ray, lambda place, one=one: one.rays(torch.tensor(place).view(1, 1, 2))[0, 0].numpy()
        )
        assert fit.valid[n].item() == (excess <= limit), kinds[n]
        close.append(excess / limit)
    assert min(abs(np.array(close) - 1)) < 0.1 and 0.3 < fit.valid.double().mean() < 0.7
