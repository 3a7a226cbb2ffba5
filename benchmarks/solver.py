"""The camera solver's choices, measured on simulated ray fields and hands.

    python -m benchmarks.solver [fit] [radial] [rigid] [time]

Every choice against its alternative on the same random fields: bearing on pixel against pixel on
bearing, the radial lens against the pinhole and the bare field, rigid against mixed PnP. 672 x 480
pixels, 21 x 15 tokens. Tables go to standard error, one JSON object to standard output.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from acehand_core.ace.model.camera_fit import fit_pinhole, fit_radial, guarded_pinhole
from acehand_core.ace.model.pnp import (
    RigidSettings,
    calibrated_bearings,
    mixed_pnp,
    rigid_pnp,
    sampled_bearings,
)
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from benchmarks import provenance

WIDTH, HEIGHT, COLUMNS, ROWS = 672, 480, 21, 15
KANNALA = (0.08, -0.02, 0.004, -0.001)
ARIA = (-0.02, 0.1, -0.06, 0.01, 0.002, -3e-4, 5e-4, -4e-4, 2e-4, 1e-4, -1e-4, 1e-4)
#: What the tables say, for the JSON line.
RESULTS: dict[str, float] = {}
TABLES = ("fit", "radial", "rigid", "time")
PLACES = np.random.default_rng(5).uniform(0.02, 0.98, (400, 2))


def say(text):
    print(text, file=sys.stderr)


def pinhole(view):
    focal = WIDTH / 2 / np.tan(np.radians(view) / 2)
    return Camera("pinhole", WIDTH, HEIGHT, focal, focal, 345.5, 229.5)


def fisheye(model, view, coefficients):
    focal = WIDTH / np.radians(view)
    return Camera(model, WIDTH, HEIGHT, focal, focal, 345.5, 229.5, coefficients)


def field(camera, degrees, clips, correlated=0.0, border=0.0, outliers=0.0, seed=0):
    """Unit rays (clips, 3, h, w). Each is turned by a 2D normal angle of ``degrees`` per axis;
    correlated over so many tokens; outer tokens pulled to the axis by ``border`` degrees; a share
    of tokens looks elsewhere."""
    rng = np.random.default_rng(seed)
    u, v = np.meshgrid(np.arange(COLUMNS) + 0.5, np.arange(ROWS) + 0.5)
    pixels = np.stack([u * WIDTH / COLUMNS, v * HEIGHT / ROWS], -1) - 0.5
    rays = camera.unproject(pixels)
    edge = np.zeros((ROWS, COLUMNS, 1))
    edge[[0, -1]] = edge[:, [0, -1]] = 1
    side = rays * [1, 1, 0]
    side /= np.linalg.norm(side, axis=-1, keepdims=True) + 1e-12
    rays = rays - np.radians(border) * edge * side
    noise = rng.normal(size=(clips, ROWS, COLUMNS, 3))
    if correlated:
        noise = gaussian_filter(noise, (0, correlated, correlated, 0))
        noise /= noise.std()
    noise *= np.radians(degrees)
    rays = rays + noise - np.sum(noise * rays, -1, keepdims=True) * rays
    wrong = rng.random((clips, ROWS, COLUMNS, 1)) < outliers
    rays = np.where(wrong, rng.normal(size=rays.shape), rays)
    return torch.tensor(np.moveaxis(rays / np.linalg.norm(rays, axis=-1, keepdims=True), -1, 1))


def degrees(found, camera):
    truth = camera.unproject(PLACES * [WIDTH, HEIGHT] - 0.5)
    found = np.asarray(found)
    cross = np.linalg.norm(np.cross(found, truth), axis=-1)
    return np.degrees(np.arctan2(cross, np.sum(found * truth, -1)))


def by_pinhole(rays, regression="bearing_on_pixel"):
    fit = fit_pinhole(rays, regression)
    bearing = (torch.tensor(PLACES) - fit.centre[:, None]) / fit.focal[:, None]
    return torch.cat([bearing, torch.ones_like(bearing[..., :1])], -1), fit


def by_sampling(rays, cell_centres):
    """Rays interpolated at the places, as bearings are read."""
    pad = -len(PLACES) % 42
    anchors = torch.tensor(np.concatenate([PLACES, PLACES[:pad]])).view(1, -1, 2, 21, 2)
    anchors = anchors.expand(len(rays), -1, -1, -1, -1).contiguous()
    size = torch.tensor([[WIDTH, HEIGHT]]).double().expand(len(rays), -1)
    read = sampled_bearings(rays, anchors, torch.zeros_like(anchors[..., 0, :]), size, cell_centres)
    bearing = read.joints.reshape(len(rays), -1, 2)[:, : len(PLACES)]
    return torch.cat([bearing, torch.ones_like(bearing[..., :1])], -1)


def fit_table():
    say("\n| view | noise | kind | bearing on pixel: focal bias %, error deg (median / p95) | "
          "pixel on bearing |\n|---|---|---|---|---|")  # fmt: skip
    kinds = {
        "independent": {}, "correlated over 3 tokens": {"correlated": 3.0},
        "border 2 deg inwards": {"border": 2.0},
    }  # fmt: skip
    for kind, options in kinds.items():
        for view in (42, 60, 80, 110):
            for noise in (0.5, 1.0, 3.0):
                camera = pinhole(view)
                rays = field(camera, noise, 300, **options)
                cells = []
                for way in ("bearing_on_pixel", "pixel_on_bearing"):
                    found, fit = by_pinhole(rays, way)
                    error = degrees(found, camera)
                    bias = 100 * (fit.focal[:, 0].mean().item() * WIDTH / camera.fx - 1)
                    RESULTS[f"fit {kind}, {view}, {noise}, {way}"] = float(np.median(error))
                    RESULTS[f"focal bias % {kind}, {view}, {noise}, {way}"] = bias
                    cells.append(
                        f"{bias:+.2f}, {np.median(error):.2f} / {np.quantile(error, 0.95):.2f}"
                    )
                say(f"| {view} | {noise} | {kind} | {cells[0]} | {cells[1]} |")


def lenses():
    for view in (60, 90, 110):
        yield f"pinhole {view}", pinhole(view)
    for view in (90, 120, 150, 180):
        yield f"equidistant {view}", fisheye("kannala_brandt", view, (0.0,) * 4)
    for view in (90, 120, 150):
        yield f"Kannala-Brandt {view}", fisheye("kannala_brandt", view, KANNALA)
    for view in (100, 130):
        yield f"Fisheye624 {view}", fisheye("fisheye624", view, ARIA)


def radial_table(noise=1.0, **options):
    say(f"\nnoise {noise} degrees per token and axis {options or ''}\n")
    say(
        "| lens | pinhole fit: error, accepted | radial fit | field, cells at centres | "
        "field, as released | misfit deg (pinhole, radial) |\n|---|---|---|---|---|---|"
    )
    for name, camera in lenses():
        rays = field(camera, noise, 40, **options)
        pin, fit = by_pinhole(rays)
        lens = fit_radial(rays)
        places = torch.tensor(PLACES).expand(40, -1, -1)
        found = [pin, lens.rays(places), by_sampling(rays, True), by_sampling(rays, False)]
        for kind, one in zip(("pinhole", "radial", "cells", "released"), found, strict=True):
            key = f"lens {name}, {noise}, {options or 'independent'}, {kind}"
            RESULTS[key] = float(np.median(degrees(one, camera)))
        key = f"guards {name}, {noise}, {options or 'independent'}"
        RESULTS[f"{key}, share within floor and bracket"] = fit.within.double().mean().item()
        placed = guarded_pinhole(rays).valid.double().mean().item()
        RESULTS[f"{key}, share without excess"] = placed
        RESULTS[f"{key}, misfit deg"] = np.degrees(fit.misfit.mean().item())
        # A sampled bearing has no sign of depth: beyond 90 degrees it is not there to be compared.
        cells = [f"{np.median(e):.2f} / {np.quantile(e, 0.95):.2f}" for e in
                 (degrees(f, camera) for f in found)]  # fmt: skip
        say(f"| {name} | {cells[0]}, {placed:.0%} | {cells[1]}, "
              f"{lens.valid.double().mean():.0%} | {cells[2]} | {cells[3]} | "
              f"{np.degrees(fit.misfit.mean().item()):.1f}, "
              f"{np.degrees(lens.misfit.mean().item()):.1f} |")  # fmt: skip


def right_hands(rng, count):
    """Return joints (count, 21, 3) of random right hands turned to the camera."""
    low, high = articulation.limits()
    pose = articulation.angles_to_pose(rng.uniform(low, high, (count, 22)), "right")
    orient = rotations.exp(rng.uniform(-1.5, 1.5, (count, 3)))
    return CapsuleHand().joints("right", orient, pose, np.zeros(10))


def hands(seed, count, depth, anchor=0.0, joint=0.0, size=0.0, turn=0.0, outliers=0.0):
    rng = np.random.default_rng(seed)
    joints = right_hands(rng, count)
    joints = joints - joints[:, :1]
    z = rng.uniform(0.3, 0.7, count)
    place = np.concatenate([rng.uniform(-0.25, 0.25, (count, 2)) * z[:, None], z[:, None]], 1)
    points = joints + place[:, None]
    pixels = points[..., :2] / points[..., 2:] * 520 + (336.0, 240.0)
    pixels += rng.normal(0, anchor, pixels.shape)
    pixels += (rng.random((count, 21, 1)) < outliers) * rng.normal(0, 60, pixels.shape)
    guess = joints * (1 + rng.normal(0, size, (count, 1, 1))) + rng.normal(0, joint, joints.shape)
    guess = (guess - guess[:, :1]) @ np.swapaxes(
        rotations.exp(rng.normal(0, turn, (count, 3))), 1, 2
    )

    def t(value, *shape):
        return torch.tensor(value.reshape(1, count // 2, 2, *shape))

    rows = [torch.tensor([v], dtype=torch.float64) for v in ((520, 520), (336, 240), (672, 480))]
    anchors = t(pixels / (672, 480), 21, 2)
    bearings = calibrated_bearings(anchors, torch.zeros_like(anchors[..., 0, :]), *rows)
    return t(guess, 21, 3), t(np.log(z) + rng.normal(0, depth, count)), bearings, t(place, 3)


def rigid_table():
    variants = {
        "rigid": RigidSettings(), "depth prior off": RigidSettings(depth_sigma=np.inf),
        "depth prior 3 %": RigidSettings(depth_sigma=0.03),
    }  # fmt: skip
    say("\n| depth % | anchors px | joints mm | size % | turn deg | outliers % | mixed PnP | "
          + " | ".join(variants) + " |\n|" + "---|" * (7 + len(variants)))  # fmt: skip
    cases = [(d, a, j, s, 0, 0) for d in (2, 5, 10, 20) for a, j, s in
             ((0, 0, 0), (3, 3, 0), (5, 4, 3), (5, 6, 6))]  # fmt: skip
    cases += [(10, 5, 4, 3, 6, 0), (10, 5, 4, 3, 0, 10)]
    for case in cases:
        d, a, j, s, turn, out = case
        scene = hands(0, 1000, d / 100, a, j / 1000, s / 100, np.radians(turn), out / 100)
        joints, log_depth, bearings, place = scene
        start = mixed_pnp(joints, log_depth, bearings, "paper")
        found = [start]
        for settings in variants.values():
            found.append(rigid_pnp(joints, log_depth, bearings, start, settings))
        errors = [1000 * (f.translation - place).norm(dim=-1) for f in found]
        names = ("mixed", *variants)
        for kind, error in zip(names, errors, strict=True):
            RESULTS[f"wrist mm {case}, {kind}"] = error.mean().item()
        say("| " + " | ".join(map(str, case)) + " | "
              + " | ".join(f"{e.mean():.1f}" for e in errors) + " |")  # fmt: skip


def time_table():
    joints, log_depth, bearings, _ = hands(0, 162, 0.1, 3.0)
    rays = field(pinhole(80), 1.0, 1)
    start = mixed_pnp(joints, log_depth, bearings)
    say("\n| one clip of 81 frames, CPU, float64 | ms |\n|---|---|")
    jobs = {
        "fit_pinhole": lambda: fit_pinhole(rays), "fit_radial": lambda: fit_radial(rays),
        "guarded_pinhole": lambda: guarded_pinhole(rays),
        "mixed_pnp": lambda: mixed_pnp(joints, log_depth, bearings),
        "rigid_pnp": lambda: rigid_pnp(joints, log_depth, bearings, start),
    }  # fmt: skip
    for name, job in jobs.items():
        job()
        begin = time.perf_counter()
        for _ in range(20):
            job()
        RESULTS[f"ms {name}"] = (time.perf_counter() - begin) * 50
        say(f"| {name} | {RESULTS[f'ms {name}']:.2f} |")


def main():
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    wanted = arguments.tables or TABLES
    if not set(wanted) <= set(TABLES):
        parser.error(f"{', '.join(wanted)}: tables are {', '.join(TABLES)}")
    torch.set_num_threads(1)
    if "fit" in wanted:
        fit_table()
    if "radial" in wanted:
        for noise, options in ((0.0, {}), (1.0, {}), (3.0, {}), (1.0, {"correlated": 2.0}),
                               (1.0, {"border": 2.0}), (1.0, {"outliers": 0.1})):  # fmt: skip
            radial_table(noise, **options)
    if "rigid" in wanted:
        rigid_table()
    if "time" in wanted:
        time_table()
    provenance.publish(run, {"threads": 1, "results": RESULTS}, arguments.output)


if __name__ == "__main__":
    main()
