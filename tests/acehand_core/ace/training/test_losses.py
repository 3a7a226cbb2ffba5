"""Every loss term: zero at the truth, finite and right gradients, masks, routing, weights."""

import dataclasses

import pytest
import torch

from acehand_core.ace.model.batch import ClipBatch
from acehand_core.ace.model.config import SolveOptions
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.training import losses
from acehand_core.ace.training.losses import TERMS, LossWeights, counts_of, term_sums, total
from acehand_core.ace.training.step import TrainingModel
from acehand_core.ace.training.targets import Targets
from acehand_core.errors import InputError
from acehand_core.geometry import rotations_torch
from helpers.training_samples import HANDS, moved, targets, truth, turns

YES = torch.tensor([True])


def values(p, t):
    counts = counts_of(t)
    return {name: s / counts[name].clamp(min=1) for name, s in term_sums(p, t).items()}


def test_every_term_is_zero_at_the_truth():
    t = targets()
    found = values(truth(t), t)
    assert set(found) == set(TERMS)
    for name, value in found.items():
        limit = 1.5e-3 if name in ("rot_orient", "rot_pose") else 2e-6
        assert value <= limit, name


def test_every_term_sees_an_error_and_its_gradient_is_finite():
    t = targets()
    p = moved(truth(t))
    for name, value in values(p, t).items():
        assert value > 1e-3, name
    total(term_sums(p, t), counts_of(t), LossWeights(fit=5.0), 500).backward()
    read = {f.name: getattr(p.readout, f.name) for f in dataclasses.fields(p.readout)}
    unread = {"camera", "shape_token"}  # they act through the solve, or not at all
    for name, value in {**read, "joints": p.joints, "translation": p.translation}.items():
        if name in unread:
            assert value.grad is None
        else:
            assert value.grad.isfinite().all() and value.grad.abs().sum() > 0, name


@pytest.mark.parametrize("angle", [0.0, 1e-5, 1e-3, torch.pi / 2, torch.pi - 1e-5, torch.pi])
def test_the_geodesic_at_its_edges(angle):
    axis = torch.nn.functional.normalize(torch.tensor([[1.0, 2.0, -0.5]]), dim=-1)
    R = rotations_torch.exp(axis * angle).requires_grad_()
    value = losses.geodesic(R, torch.eye(3)[None], YES)
    value.backward()
    assert abs(float(value.detach()) - angle) < 2e-3 and R.grad.isfinite().all()
    assert R.grad.abs().max() < 1e3


def test_gradients_against_finite_differences():
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
        return total(term_sums(moved_p, t), counts_of(t), LossWeights(fit=5.0), 999)

    assert torch.autograd.gradcheck(loss, inputs, eps=1e-7, atol=1e-5, rtol=1e-3, fast_mode=True)


def test_known_values():
    t = targets()
    p = truth(t)
    read = dataclasses.replace(
        p.readout, wrist=p.readout.wrist + 0.01, betas=p.readout.betas - 2.0,
        presence=torch.full_like(t.presence, 0.5),
    )  # fmt: skip
    found = values(dataclasses.replace(p, readout=read, translation=p.translation + 0.02), t)
    for name, value in {
        "joint_wrist_direct": 0.01, "joint_camera_direct": 0.01, "joint_camera_hand": 0.02,
        "joint_relative_hand": 0.0, "cam": 0.02, "shape": 2.0, "pres": 0.693147,
    }.items():  # fmt: skip
        assert float(found[name]) == pytest.approx(value, rel=1e-4, abs=1e-6), name
    R = turns(torch.Generator().manual_seed(0), 1, size=1.0)
    quarter = rotations_torch.exp(torch.tensor([[0.0, 0.0, torch.pi / 2]]))
    assert float(losses.geodesic(R @ quarter, R, YES)) == pytest.approx(torch.pi / 2, rel=1e-5)
    assert float(losses.matrix_squared(quarter, torch.eye(3)[None], YES)) == pytest.approx(4 / 9)
    wave = torch.zeros(1, 3, 2, 21, 3)
    wave[:, 1] = 0.01
    value = losses.acceleration(wave, torch.ones(1, 1, 2, dtype=torch.bool))
    assert float(value) == pytest.approx(2 * 0.02)
    field = torch.tensor([1.0, 0, 1.0]).view(1, 3, 1, 1)
    ahead = torch.tensor([0.0, 0, 1.0]).view(1, 3, 1, 1)
    assert float(losses.rays(field, ahead, YES)) == pytest.approx(1 - 0.5**0.5)


#: Paper, appendix "Loss Weights". L_rot: geodesic and matrix 1 each, shape 0.1. L_joint: 10
#: root-relative, 5 in the camera frame, 2 the wrist, for both readings of joints. L_img: 1, and
#: 0.5 for the wrist. L_cam 1. L_pres: existence 0.5, visibility 0.25. L_tmp 0.5. L_ray 1. L_fit is
#: 0 in the standard configuration.
PAPER_WEIGHTS = {
    "rot_orient": 1.0, "rot_pose": 1.0, "rot_orient_matrix": 1.0, "rot_pose_matrix": 1.0,
    "shape": 0.1,
    "joint_relative_hand": 10.0, "joint_camera_hand": 5.0, "joint_wrist_hand": 2.0,
    "joint_relative_direct": 10.0, "joint_camera_direct": 5.0, "joint_wrist_direct": 2.0,
    "img_anchors": 1.0, "img_reprojected": 1.0, "img_wrist": 0.5,
    "cam": 1.0, "pres": 0.5, "pres_visible": 0.25, "tmp": 0.5, "ray": 1.0, "fit": 0.0,
}  # fmt: skip


def test_every_term_has_the_papers_weight():
    assert {name: LossWeights().of(name, 500) for name in TERMS} == PAPER_WEIGHTS
    # Each term 1 per element, two elements each: the sum of the weights. 4 rotations, 0.1, twice
    # 17 for joints, 2.5 in the image, 1, 0.75, 0.5 and 1: 43.85.
    twos = {name: torch.tensor(2.0) for name in TERMS}
    assert float(total(twos, twos, LossWeights(), 0)) == pytest.approx(43.85)


def test_elements_counted_by_hand():
    """Six hands of 21 joints, 126; the left wrist of frame 0 and one index tip have no label."""
    t = targets(clips=1, frames=3)
    known = torch.ones_like(t.joints_known)
    known[0, 0, 0, 0] = known[0, 1, 1, 8] = False
    everywhere = torch.ones_like(t.inside)
    counts = counts_of(dataclasses.replace(t, joints_known=known, inside=everywhere))
    assert {name: int(count) for name, count in counts.items()} == {
        "rot_orient": 6, "rot_orient_matrix": 6, "rot_pose": 90, "rot_pose_matrix": 90, "shape": 2,
        # From the wrist, or placed by it: a hand without a known wrist has no joint, 126 - 21 - 1.
        "joint_relative_hand": 104, "joint_relative_direct": 104, "joint_camera_direct": 104,
        # The hand model is placed by its translation: only the two joints lack a truth.
        "joint_camera_hand": 124, "joint_wrist_hand": 5, "joint_wrist_direct": 5,
        "img_anchors": 124, "img_reprojected": 124, "img_wrist": 5,
        "cam": 6, "pres": 6, "pres_visible": 6, "tmp": 2, "ray": 1, "fit": 1,
    }  # fmt: skip


def test_image_terms_by_hand():
    t = targets(clips=1, frames=3)
    p = truth(t)
    anchors = t.anchors.clone()
    anchors[..., 0, :] += torch.tensor([0.03, -0.01])  # the wrist: mean of both 0.02
    anchors[..., 8, :] += torch.tensor([0.21, 0.0])  # the index tip: mean 0.105
    t = dataclasses.replace(t, anchors=anchors, inside=torch.ones_like(t.inside))
    found = values(p, t)
    assert float(found["img_wrist"]) == pytest.approx(0.02, abs=1e-6)
    # (0.02 + 0.105) / 21 joints
    for name in ("img_anchors", "img_reprojected"):
        assert float(found[name]) == pytest.approx(0.125 / 21, abs=1e-6), name
    # u = 0.8 * 0.1 / 0.5 + 0.5 = 0.66, v = 1.2 * -0.05 / 0.5 + 0.4 = 0.28. Behind the camera the
    # depth counts as 0.05 m: u = 0.8 * 0.1 / 0.05 + 0.5 = 2.1, v = 1.2 * -0.05 / 0.05 + 0.4 = -0.8.
    points = torch.tensor([[[0.1, -0.05, 0.5], [0.1, -0.05, -3.0]]])
    focal, centre = torch.tensor([[0.8, 1.2]]), torch.tensor([[0.5, 0.4]])
    projected = losses.project(points, focal, centre)
    torch.testing.assert_close(projected, torch.tensor([[[0.66, 0.28], [2.1, -0.8]]]))


def test_acceleration_of_the_placed_hand_by_hand():
    """Hands are k^2 cm further to the right in frame k: a second difference of 2 cm in x."""
    t = targets(clips=2, frames=5)
    p = truth(t)
    push = torch.zeros_like(p.translation)
    push[..., 0] = 0.01 * torch.arange(5.0).view(1, 5, 1) ** 2
    found = values(dataclasses.replace(p, translation=p.translation + push), t)
    assert float(found["tmp"]) == pytest.approx(0.02 / 3, rel=1e-3)
    # The mean of push itself: 0.01 (0 + 1 + 4 + 9 + 16) / 5 frames, a third of it over x, y, z.
    assert float(found["cam"]) == pytest.approx(0.02, rel=1e-4)
    assert float(found["joint_camera_hand"]) == pytest.approx(0.02, rel=1e-4)


def test_visibility_by_hand():
    t = targets(clips=1, frames=3)
    seen = torch.tensor([1.0, 0.0]).expand(1, 3, 2)
    readout = dataclasses.replace(
        truth(t).readout, visible=torch.tensor([0.2, 0.4]).expand(1, 3, 2), presence=seen
    )
    t = dataclasses.replace(t, visible=seen, presence=seen)
    found = values(dataclasses.replace(truth(t), readout=readout), t)
    # -(ln 0.2 + ln(1 - 0.4)) / 2 = (1.609438 + 0.510826) / 2
    assert float(found["pres_visible"]) == pytest.approx(1.060132, rel=1e-5)
    assert float(found["pres"]) == pytest.approx(0, abs=1e-5)


def test_bearings_of_two_pinholes_by_hand():
    """Three rows and two columns of tokens; their centres are at 1/4, 3/4 and 1/6, 1/2, 5/6."""
    at, one = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    # x/z: 1/4 and 3/4 at focal length 1, half of it at 2. Means: |1/2 - 1/4| = 1/4 in x, 0 in y.
    value = losses.bearings(torch.tensor([[2.0, 1.0]]), at, one, at, (3, 2), YES)
    assert float(value) == pytest.approx(1 / 8)
    # y/z: 1/6, 1/2 and 5/6, mean 1/2; a fourth of it at 4: 3/8 in y, 0 in x.
    value = losses.bearings(torch.tensor([[1.0, 4.0]]), at, one, at, (3, 2), YES)
    assert float(value) == pytest.approx(3 / 16)
    # A centre 0.2 off moves every bearing by 0.2 / 0.5 in x.
    half = torch.tensor([[0.5, 0.5]])
    value = losses.bearings(half, at + torch.tensor([[0.2, 0.0]]), half, at, (3, 2), YES)
    assert float(value) == pytest.approx(0.2)


def test_rays_that_start_at_zero_have_a_bounded_gradient():
    t = targets()
    zero = torch.zeros_like(t.rays).requires_grad_()
    losses.rays(zero, t.rays, t.rays_taught).backward()
    assert zero.grad.isfinite().all() and 0 < zero.grad.norm() < 20


def test_a_source_without_hand_parameters_teaches_anchors_joints_and_presence_only():
    """``test_training_data`` counts the terms that such a source has."""
    t, no = targets(), torch.zeros(2, 2, dtype=torch.bool)
    t = dataclasses.replace(t, rotations=no[0], translation_taught=no[0], shape=no)
    p = moved(truth(t))
    total(term_sums(p, t), counts_of(t), LossWeights(), 0).backward()
    r = p.readout
    for value in (r.global_orient, r.hand_pose, r.betas, p.joints, p.translation):
        assert not value.grad.any()
    assert r.anchors.grad.any() and r.joints_relative.grad.any()


def test_out_of_sight_hands_are_supervised_in_3d_but_not_in_the_image():
    """And a slot without labels not at all."""
    t = targets()
    out = t.inside.clone()
    out[:, :, 0] = False
    right = torch.tensor([[False, True]] * 2)
    unlabelled = {"hand": t.hand & right[:, None], "shape": right,
                  "presence_taught": t.presence_taught & right[:, None]}  # fmt: skip
    for changes in ({"inside": out}, unlabelled):
        p, changed = moved(truth(t)), dataclasses.replace(t, **changes)
        total(term_sums(p, changed), counts_of(changed), LossWeights(), 0).backward()
        r = p.readout
        assert not r.anchors.grad[:, :, 0].any() and r.anchors.grad[:, :, 1].any()
        for name in ("joints_relative", "global_orient", "wrist", "presence", "visible"):
            assert getattr(r, name).grad[:, :, 0].any() == ("inside" in changes), name
            assert getattr(r, name).grad[:, :, 1].any(), name


def test_fisheye_clips_have_no_pinhole_fit():
    t = targets()
    flags = torch.tensor([False, True])
    counts = counts_of(dataclasses.replace(t, pinhole=flags, pinhole_fit=flags))
    assert counts["fit"] == 1 and counts["ray"] == 2
    assert counts["img_reprojected"] == counts_of(t)["img_reprojected"] / 2
    p = dataclasses.replace(moved(truth(t)), fit_within=torch.tensor([False, False]))
    assert float(term_sums(p, t)["fit"].detach()) == 0  # nor has a field outside the paper's guards


class Given(AceModel):
    """A model whose every answer is given."""

    def __init__(self, readout) -> None:
        torch.nn.Module.__init__(self)
        self.readout = readout

    def forward(self, clips):
        return self.readout


def predicted(t, rays, options):
    """What training makes of the truth with another ray field."""
    readout = dataclasses.replace(truth(t).readout, ray_map=rays[:, :, None])
    net = TrainingModel(Given(readout), HANDS, options)
    return net.predict(ClipBatch(None, t.camera.size, t.camera), t)


def test_a_field_of_another_lens_is_taught_its_fit_though_no_hand_is_placed_by_it():
    """The paper's guards of the fit are floor and bracket; what is more guards the solve alone."""
    t = targets(grid=(6, 8))
    bearing = t.rays[:, :2] / t.rays[:, 2:]
    s = bearing.norm(dim=1, keepdim=True)
    rays = torch.cat([bearing / s * torch.sin(1.5 * s), torch.cos(1.5 * s)], 1).requires_grad_()
    options = SolveOptions("pinhole")
    p = predicted(t, rays, options)
    field = predicted(t, rays, SolveOptions("rays", ray_cells="centres"))
    assert p.fit_within.all()
    torch.testing.assert_close(p.translation, field.translation, rtol=0, atol=1e-6)
    by_fit = predicted(t, rays, dataclasses.replace(options, fit_guards="paper"))
    assert not torch.allclose(by_fit.translation, p.translation, atol=0.01)
    value = term_sums(p, t)["fit"]
    assert float(value.detach()) > 0.05
    value.backward()
    assert float(rays.grad.abs().max()) > 0


def test_masked_numbers_may_be_anything():
    t = targets()
    p = moved(truth(t))
    with torch.no_grad():
        p.readout.global_orient[0, 0, 0] = torch.inf
    t.hand[0, 0, 0] = False
    assert total(term_sums(p, t), counts_of(t), LossWeights(), 0).isfinite()


def test_cutting_a_batch_changes_nothing():
    parts = [targets(seed=1), targets(seed=2)]
    parts[0] = dataclasses.replace(parts[0], rotations=torch.tensor([True, False]))
    whole = Targets.stack(parts)
    counts = counts_of(whole)
    p = [moved(truth(t), seed=5 + i) for i, t in enumerate(parts)]
    weights = LossWeights(fit=5.0)
    sums = [term_sums(a, b) for a, b in zip(p, parts, strict=True)]
    cut = sum(total(s, counts, weights, 9) for s in sums)
    together = {n: sums[0][n] + sums[1][n] for n in TERMS}
    assert float(cut) == pytest.approx(float(total(together, counts, weights, 9)), rel=1e-5)
    for name in TERMS:
        each = [counts_of(t)[name] for t in parts]
        assert counts[name] == each[0] + each[1]


def test_the_fit_warms_up_and_bad_weights_are_refused():
    weights = LossWeights(fit=5.0)
    assert [weights.of("fit", s) for s in (0, 100, 250, 500, 9999)] == [0, 1, 2.5, 5, 5]
    assert LossWeights(joint_readings="direct").of("joint_camera_hand", 0) == 0
    with pytest.raises(InputError, match="shape"):
        LossWeights(shape=-1.0)
