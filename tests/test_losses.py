"""Every loss term: zero at the truth, finite and right gradients, masks, routing, weights."""

import dataclasses

import pytest
import torch

from acehand_core.batch import ClipBatch
from acehand_core.errors import InputError
from acehand_core.geometry import rotations_torch
from acehand_core.losses import terms
from acehand_core.losses.objective import TERMS, LossWeights, Masks, term_sums, total
from acehand_core.losses.targets import Targets
from acehand_core.model import AceModel, SolveOptions
from acehand_core.solver.camera_fit_torch import fit_pinhole
from acehand_core.training.step import TrainingModel
from tests.training_samples import HANDS, moved, targets, truth, turns

YES = torch.tensor([True])


def values(p, t):
    counts = Masks.of(t).counts()
    return {name: s / counts[name].clamp(min=1) for name, s in term_sums(p, t).items()}


def test_every_term_is_zero_at_the_truth() -> None:
    t = targets()
    found = values(truth(t), t)
    assert set(found) == set(TERMS)
    for name, value in found.items():
        limit = 1.5e-3 if name in ("rot_orient", "rot_pose") else 2e-6
        assert value <= limit, name


def test_every_term_sees_an_error_and_its_gradient_is_finite() -> None:
    t = targets()
    p = moved(truth(t))
    for name, value in values(p, t).items():
        assert value > 1e-3, name
    total(term_sums(p, t), Masks.of(t).counts(), LossWeights(fit=5.0), 500).backward()
    read = {f.name: getattr(p.readout, f.name) for f in dataclasses.fields(p.readout)}
    unread = {"camera", "shape_token"}  # they act through the solve, or not at all
    for name, value in {**read, "joints": p.joints, "translation": p.translation}.items():
        if name in unread:
            assert value.grad is None
        else:
            assert value.grad.isfinite().all() and value.grad.abs().sum() > 0, name


@pytest.mark.parametrize("angle", [0.0, 1e-5, 1e-3, torch.pi / 2, torch.pi - 1e-5, torch.pi])
def test_the_geodesic_at_its_edges(angle) -> None:
    axis = torch.nn.functional.normalize(torch.tensor([[1.0, 2.0, -0.5]]), dim=-1)
    R = rotations_torch.exp(axis * angle).requires_grad_()
    value = terms.geodesic(R, torch.eye(3)[None], YES)
    value.backward()
    assert abs(float(value.detach()) - angle) < 2e-3 and R.grad.isfinite().all()
    assert R.grad.abs().max() < 1e3


def test_gradients_against_finite_differences() -> None:
    t = targets(dtype=torch.float64, clips=1, frames=4, grid=(2, 2))
    p = moved(truth(t), size=0.2)
    r = p.readout
    names = ("global_orient", "hand_pose", "betas", "anchors", "joints_relative", "wrist",
             "presence", "visible", "ray_map")  # fmt: skip
    inputs = [getattr(r, n) for n in names] + [p.joints, p.translation, p.fit_focal, p.fit_centre]

    def loss(*given):
        readout = dataclasses.replace(r, **dict(zip(names, given, strict=False)))
        joints, place, focal, centre = given[len(names) :]
        moved_p = dataclasses.replace(
            p, readout=readout, joints=joints, translation=place, fit_focal=focal,
            fit_centre=centre,
        )  # fmt: skip
        return total(term_sums(moved_p, t), Masks.of(t).counts(), LossWeights(fit=5.0), 999)

    assert torch.autograd.gradcheck(loss, inputs, eps=1e-7, atol=1e-5, rtol=1e-3, fast_mode=True)


def test_known_values() -> None:
    t = targets()
    p = truth(t)
    read = dataclasses.replace(
        p.readout, wrist=p.readout.wrist + 0.01, betas=p.readout.betas - 2.0,
        presence=torch.full_like(t.presence, 0.5),
    )  # fmt: skip
    found = values(dataclasses.replace(p, readout=read, translation=p.translation + 0.02), t)
    assert float(found["joint_wrist_direct"]) == pytest.approx(0.01, rel=1e-4)
    assert float(found["joint_camera_direct"]) == pytest.approx(0.01, rel=1e-4)
    assert float(found["joint_camera_hand"]) == pytest.approx(0.02, rel=1e-4)
    assert float(found["joint_relative_hand"]) == pytest.approx(0.0, abs=1e-6)
    assert float(found["cam"]) == pytest.approx(0.02, rel=1e-4)
    assert float(found["shape"]) == pytest.approx(2.0, rel=1e-4)
    assert float(found["pres"]) == pytest.approx(0.693147, rel=1e-4)
    R = turns(torch.Generator().manual_seed(0), 1, size=1.0)
    quarter = rotations_torch.exp(torch.tensor([[0.0, 0.0, torch.pi / 2]]))
    assert float(terms.geodesic(R @ quarter, R, YES)) == pytest.approx(torch.pi / 2, rel=1e-5)
    assert float(terms.matrix_squared(quarter, torch.eye(3)[None], YES)) == pytest.approx(4 / 9)
    wave = torch.zeros(1, 3, 2, 21, 3)
    wave[:, 1] = 0.01
    assert float(terms.acceleration(wave, torch.ones(1, 1, 2, dtype=torch.bool))) == pytest.approx(
        2 * 0.02
    )
    field = torch.tensor([1.0, 0, 1.0]).view(1, 3, 1, 1)
    ahead = torch.tensor([0.0, 0, 1.0]).view(1, 3, 1, 1)
    assert float(terms.rays(field, ahead, YES)) == pytest.approx(1 - 0.5**0.5)


def test_rays_that_start_at_zero_have_a_bounded_gradient() -> None:
    t = targets()
    zero = torch.zeros_like(t.rays).requires_grad_()
    terms.rays(zero, t.rays, t.rays_taught).backward()
    assert zero.grad.isfinite().all() and 0 < zero.grad.norm() < 20


def _routed(**changes: object) -> dict[str, float]:
    t = dataclasses.replace(targets(), **changes)
    return {name: float(count) for name, count in Masks.of(t).counts().items()}


def test_a_source_without_hand_parameters_teaches_anchors_joints_and_presence_only() -> None:
    no = torch.tensor([False, False])
    counts = _routed(rotations=no, shape=torch.zeros(2, 2, dtype=torch.bool), translation_taught=no)
    taught = {name for name, count in counts.items() if count}
    assert taught == {
        "joint_relative_direct", "joint_camera_direct", "joint_wrist_direct", "img_anchors",
        "pres", "pres_visible", "ray", "fit",
    }  # fmt: skip
    t = dataclasses.replace(
        targets(), rotations=no, translation_taught=no, shape=torch.zeros(2, 2, dtype=torch.bool)
    )
    p = moved(truth(t))
    total(term_sums(p, t), Masks.of(t).counts(), LossWeights(), 0).backward()
    for name in ("global_orient", "hand_pose", "betas"):
        assert not getattr(p.readout, name).grad.any()
    assert not p.joints.grad.any() and not p.translation.grad.any()
    assert p.readout.anchors.grad.any() and p.readout.joints_relative.grad.any()


def test_a_slot_without_labels_teaches_nothing() -> None:
    t = targets()
    right = torch.tensor([[False, True]] * 2)
    t = dataclasses.replace(
        t, hand=t.hand & right[:, None], shape=right,
        presence_taught=t.presence_taught & right[:, None],
    )  # fmt: skip
    p = moved(truth(t))
    total(term_sums(p, t), Masks.of(t).counts(), LossWeights(), 0).backward()
    r = p.readout
    for name in ("global_orient", "hand_pose", "anchors", "joints_relative", "wrist", "presence",
                 "visible"):  # fmt: skip
        assert not getattr(r, name).grad[:, :, 0].any(), name
        assert getattr(r, name).grad[:, :, 1].any(), name
    assert not r.betas.grad[:, 0].any() and r.betas.grad[:, 1].any()


def test_out_of_sight_hands_are_supervised_in_3d_but_not_in_the_image() -> None:
    t = targets()
    out = t.inside.clone()
    out[:, :, 0] = False
    p = moved(truth(t))
    t = dataclasses.replace(t, inside=out)
    total(term_sums(p, t), Masks.of(t).counts(), LossWeights(), 0).backward()
    r = p.readout
    assert not r.anchors.grad[:, :, 0].any() and r.anchors.grad[:, :, 1].any()
    assert r.joints_relative.grad[:, :, 0].any() and r.global_orient.grad[:, :, 0].any()


def test_fisheye_clips_have_no_pinhole_fit() -> None:
    no = torch.tensor([False, True])
    counts = _routed(pinhole=no, pinhole_fit=no)
    assert counts["fit"] == 1 and counts["ray"] == 2
    assert counts["img_reprojected"] == _routed()["img_reprojected"] / 2
    t = targets()
    p = dataclasses.replace(moved(truth(t)), fit_within=torch.tensor([False, False]))
    assert float(term_sums(p, t)["fit"].detach()) == 0  # nor has a field outside the paper's guards


def test_a_poor_field_is_taught_its_fit_though_no_hand_is_placed_by_it() -> None:
    """The paper's guards of the fit are floor and bracket; the misfit guards the solve alone."""
    t = targets(grid=(6, 8))
    said = truth(t).readout
    noise = 0.3 * torch.randn(said.ray_map.shape, generator=torch.Generator().manual_seed(0))
    rays = (said.ray_map + noise).requires_grad_()

    class Says(AceModel):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, clips):
            return dataclasses.replace(said, ray_map=rays)

    net = TrainingModel(Says(), HANDS, SolveOptions("pinhole", "mixed", "released"))
    fit = fit_pinhole(rays[:, :, 0])
    assert fit.within.all() and not fit.valid.any()
    value = term_sums(net.predict(ClipBatch(None, t.camera.size, t.camera), t), t)["fit"]
    assert float(value) > 0.05
    value.backward()
    assert float(rays.grad.abs().max()) > 0


def test_a_term_that_was_never_on_does_not_pass_as_overfitted() -> None:
    from benchmarks.overfit import judged

    rows, idle = judged({"ray": (0, 1.0), "fit": (40, 0.5)}, {"ray": 0.05, "fit": 0.2},
                        {"ray": 0.0, "fit": 0.0})  # fmt: skip
    assert rows["ray"]["passes"] and not rows["fit"]["passes"]
    assert "tmp" in idle and "fit" not in idle


def test_masked_numbers_may_be_anything() -> None:
    t = targets()
    p = moved(truth(t))
    bad = p.readout.global_orient.detach().clone()
    bad[0, 0, 0] = torch.inf
    bad.requires_grad_()
    hand = t.hand.clone()
    hand[0, 0, 0] = False
    t = dataclasses.replace(t, hand=hand)
    p = dataclasses.replace(p, readout=dataclasses.replace(p.readout, global_orient=bad))
    value = total(term_sums(p, t), Masks.of(t).counts(), LossWeights(), 0)
    assert value.isfinite()


def test_cutting_a_batch_changes_nothing() -> None:
    parts = [targets(seed=1), targets(seed=2)]
    parts[0] = dataclasses.replace(parts[0], rotations=torch.tensor([True, False]))
    whole = Targets.stack(parts)
    counts = Masks.of(whole).counts()
    p = [moved(truth(t), seed=5 + i) for i, t in enumerate(parts)]
    weights = LossWeights(fit=5.0)
    sums = [term_sums(a, b) for a, b in zip(p, parts, strict=True)]
    cut = sum(total(s, counts, weights, 9) for s in sums)
    together = {n: sums[0][n] + sums[1][n] for n in TERMS}
    assert float(cut) == pytest.approx(float(total(together, counts, weights, 9)), rel=1e-5)
    for name in TERMS:
        each = [Masks.of(t).counts()[name] for t in parts]
        assert counts[name] == each[0] + each[1]


def test_the_fit_warms_up_and_bad_weights_are_refused() -> None:
    weights = LossWeights(fit=5.0)
    assert [weights.of("fit", s) for s in (0, 100, 250, 500, 9999)] == [0, 1, 2.5, 5, 5]
    assert LossWeights(joint_readings="direct").of("joint_camera_hand", 0) == 0
    with pytest.raises(InputError, match="shape"):
        LossWeights(shape=-1.0)
    with pytest.raises(InputError, match="joint_readings"):
        LossWeights(joint_readings="all")
