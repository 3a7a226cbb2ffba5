"""The assembled model, and every way of placing its hands."""

from dataclasses import fields, replace

import pytest
import torch

from acehand_core.ace.model.batch import ClipBatch, PinholeBatch, pinhole_batch
from acehand_core.ace.model.config import RELEASED, SolveOptions
from acehand_core.ace.model.decoder import Decoder
from acehand_core.ace.model.inference.assembly import predicted_camera
from acehand_core.ace.model.network import AceModel, place
from acehand_core.ace.model.weights.state import LoadedWeights
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from helpers import tiny_model

SIZE = torch.tensor([[192.0, 128.0]])


CONFIG, weights = tiny_model.MODEL, tiny_model.weights


@pytest.fixture(scope="module")
def batch():
    latents = torch.randn(1, 48, 3, 8, 12, generator=torch.Generator().manual_seed(4))
    camera = PinholeBatch(torch.tensor([[170.0, 165]]), torch.tensor([[99.0, 60]]), SIZE)
    return ClipBatch(latents, SIZE, camera)


@pytest.fixture(scope="module")
def readout(batch):
    with torch.no_grad():
        return AceModel.from_weights(weights(), "float32")(batch)


def test_live_and_merged_adapters_agree(batch, readout):
    with torch.no_grad():
        live = AceModel.from_weights(weights(), "float32", merge=False)(batch)
    for field in fields(readout):
        ours, theirs = getattr(live, field.name), getattr(readout, field.name)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_adapters_matter(batch, readout):
    with torch.no_grad():
        base = AceModel.from_weights(replace(weights(), adapters=None), "float32")(batch)
    assert (base.camera - readout.camera).abs().max() > 1e-3


def test_a_frozen_source_leaves_adapters_out(batch):
    frozen = replace(weights(), config=replace(CONFIG, source="wan_frozen"))
    plain = replace(weights(), adapters=None)
    with torch.no_grad():
        a, b = (AceModel.from_weights(w, "float32")(batch) for w in (frozen, plain))
    torch.testing.assert_close(a.camera, b.camera, rtol=0, atol=0)
    model = AceModel.from_weights(frozen, "float32")
    assert not any(p.requires_grad for p in model.source.parameters())


def test_another_source_in_its_place():
    config = replace(CONFIG, source="rgb", decoder=replace(CONFIG.decoder, feature_dim=3072))
    decoder = Decoder(config.decoder)
    head = {"weight": torch.zeros(3, 3072, 1, 1, 1), "bias": torch.tensor([0.0, 0, 1])}
    model = AceModel.from_weights(
        LoadedWeights(config, decoder=decoder.state_dict(), ray_head=head), "float32"
    )
    frames = torch.rand(1, 3, 9, 64, 96)
    with torch.no_grad():
        readout = model(ClipBatch(None, SIZE, frames=frames))
    assert readout.presence.shape == (1, 9, 2) and readout.rays.shape == (1, 3, 2, 3)
    with pytest.raises(InputError, match="reads frames; none given"):
        model(ClipBatch(torch.zeros(1, 48, 3, 4, 6), SIZE))


def test_features_of_the_wrong_width():
    wrong = replace(CONFIG, decoder=replace(CONFIG.decoder, feature_dim=40))
    with pytest.raises(InputError, match=r"48 channels.* feature_dim is 40"):
        AceModel(wrong, tiny_model.trunk(), Decoder(wrong.decoder))


def test_a_model_without_a_source_is_refused(batch):
    model = AceModel.from_weights(replace(weights(), trunk=None, adapters=None), "float32")
    with pytest.raises(InputError, match="no feature source"):
        model(batch)


@pytest.mark.parametrize("bearings", ["intrinsics", "rays", "pinhole", "radial"])
@pytest.mark.parametrize("solve", ["mixed", "rigid", "inverse", "direct"])
def test_every_way_of_placing(readout, batch, bearings, solve):
    hands = TorchHands.acehand()
    joints = hands.joints(readout.global_orient, readout.hand_pose, readout.betas)
    options = SolveOptions(bearings, solve)
    placed = place(readout, joints, batch.size, batch.camera, options)
    assert placed.translation.shape == (1, 9, 2, 3) and placed.translation.isfinite().all()
    assert (placed.translation[..., 2] > 0).all()


def test_kfree_needs_no_camera_and_k_does(readout, batch):
    joints = TorchHands.acehand().joints(readout.global_orient, readout.hand_pose, readout.betas)
    placed = place(readout, joints, batch.size, None, RELEASED["kfree"])
    assert placed.translation.isfinite().all()
    with pytest.raises(InputError, match="need a camera"):
        place(readout, joints, batch.size, None, RELEASED["k"])
    fisheye = Camera("kannala_brandt", 192, 128, 170.0, 165.0, 99.0, 60.0, (0.0,) * 4)
    with pytest.raises(SchemaError, match="undistort"):
        pinhole_batch([fisheye])


def test_how_a_ray_field_is_used_is_an_option(readout, batch):
    """Options of ``place`` against the camera or the field that they stand for."""
    hands = TorchHands.acehand()
    joints = hands.joints(readout.global_orient, readout.hand_pose, readout.betas)
    rows, columns = (torch.arange(15) + 0.5) / 15, (torch.arange(21) + 0.5) / 21
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    generator = torch.Generator().manual_seed(0)
    anchors = 0.1 + 0.8 * torch.rand(readout.anchors.shape, generator=generator)
    f = 96 / torch.tan(torch.deg2rad(torch.tensor(50.0)))
    camera = PinholeBatch(torch.stack([f, f])[None], torch.tensor([[90.0, 66.0]]), SIZE)
    # 192 x 128 pixels: 100 degrees across of a pinhole, 110 of an equidistant lens.
    plane = torch.stack([192 * x - 90, 128 * y - 66])
    pinhole = torch.cat([plane / f, torch.ones_like(x)[None]])
    angles = plane / (96 / torch.deg2rad(torch.tensor(55.0)))
    s = angles.norm(dim=0)
    fisheye = torch.cat([angles / s * s.sin(), s.cos()[None]])

    def placed(field, *options):
        other = replace(readout, ray_map=field[None, :, None].expand(1, -1, 3, -1, -1))
        return place(replace(other, anchors=anchors), joints, SIZE, camera, SolveOptions(*options))

    truth = placed(pinhole, "intrinsics").solved

    def far(field, bearings, *more):
        found = placed(field, bearings, "mixed", "released", *more).solved
        return float((found - truth).norm(dim=-1).mean())

    assert far(pinhole, "pinhole", "excess") < 1e-4 and far(pinhole, "pinhole", "paper") < 1e-4
    assert far(pinhole, "rays", "excess", "centres") < 1e-4 < 1e-3 < far(pinhole, "rays", "excess")
    read = placed(fisheye, "rays", "mixed", "released", "excess", "centres").solved
    torch.testing.assert_close(placed(fisheye, "pinhole").solved, read)
    by_fit = placed(fisheye, "pinhole", "mixed", "released", "paper").solved
    assert (by_fit - read).norm(dim=-1).mean() > 1e-3
    # The camera that is reported is the one that hands are placed by.
    other = replace(readout, ray_map=fisheye[None, :, None])
    assert predicted_camera(other, (192, 128), SolveOptions("pinhole")) is None
    assert predicted_camera(other, (192, 128), SolveOptions("pinhole", fit_guards="paper"))
