"""What a step is given: draws by step alone, windows, images, truth that the solve agrees with."""

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("accelerate")

from acehand_core.ace.labelled.clips.schema import Supervision
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.clips.windows import WindowSettings, mixture
from acehand_core.ace.model import pnp
from acehand_core.ace.model.batch import ClipBatch
from acehand_core.ace.model.config import SolveOptions
from acehand_core.ace.model.encoder.trunk import Trunk
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.model.weights.official_files import export_official
from acehand_core.ace.model.weights.own import load_own, save_own
from acehand_core.ace.training import build
from acehand_core.ace.training.batches import (
    ClipReader,
    LatentCache,
    SamplingPlan,
    batches,
    encoder_key,
    shares,
)
from acehand_core.ace.training.config import TrainConfig
from acehand_core.ace.training.losses import LossWeights, counts_of, masks_of, total
from acehand_core.ace.training.step import TrainingModel, group_of, make_optimizer
from acehand_core.ace.training.targets import targets_of
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.user_files import structured
from helpers import tiny_model
from helpers.training_samples import HANDS, motion, store

SHORT = WindowSettings(latents=3, aligned=False)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores")
    store(root / "a", clips=3, frames=14)
    store(root / "b", clips=1, frames=1, name="stills", kind="image", seed=7)
    return {"a": ClipStore(root / "a"), "b": ClipStore(root / "b")}


def mixed(stores, **weights):
    chosen = {n: stores[n] for n in weights}
    return mixture(chosen, weights, SHORT, lambda _, info: (info.width, info.height))


def test_a_draw_depends_on_seed_and_step_alone(stores):
    mix = mixed(stores, a=3.0, b=1.0)
    first = [mix.draw(0, step, 4) for step in range(300)]
    assert [mix.draw(0, step, 4) for step in range(299, -1, -1)][::-1] == first
    assert first != [mix.draw(1, step, 4) for step in range(300)]
    assert all(len({(s.dataset, s.size, s.frames) for s in draw}) == 1 for draw in first)
    share = np.mean([draw[0].dataset == "a" for draw in first])
    assert abs(share - 0.75) < 0.08
    starts = {s.start for draw in first for s in draw if s.dataset == "a"}
    assert starts == set(range(6)) and {s.clip for d in first for s in d} >= {"clip0", "clip2"}


def test_processes_share_the_draw_of_one(stores):
    mix = mixed(stores, a=1.0)
    whole = SamplingPlan(mix, 3, 5, 8, 1, 1, 0).samples(2, 0)
    split = [
        sample
        for part in range(2)
        for rank in range(2)
        for sample in SamplingPlan(mix, 3, 5, 2, 2, 2, rank).samples(2, part)
    ]
    assert split == whole


def test_a_dataset_for_every_process(stores):
    """The clips of one process share a dataset; those of a step need not."""
    mix = mixed(stores, a=1.0, b=1.0)
    mix = dataclasses.replace(mix, settings=dataclasses.replace(SHORT, dataset_per="process"))
    steps = [[SamplingPlan(mix, 3, 300, 2, 2, 2, rank).samples(step, part)
              for part in range(2) for rank in range(2)] for step in range(300)]  # fmt: skip
    names = [[{s.dataset for s in one} for one in step] for step in steps]
    assert all(len(name) == 1 for step in names for name in step)
    differ = np.mean([len(set.union(*step)) == 2 for step in names])
    assert abs(differ - 0.875) < 0.08  # of four fair draws 2 / 16 are alike
    copies = [step[0] == step[1] for step in steps if step[0][0].dataset == "a"]
    assert np.mean(copies) < 0.1  # of 18 windows each, not the same ones for all


def test_watched_windows_are_all_different_and_of_all_recordings(stores):
    mix = mixed(stores, a=1.0, b=1.0)
    few = mix.fixed(3, 4)
    assert {s.clip for s in few if s.dataset == "a"} == {"clip0", "clip1", "clip2"}
    assert mix.fixed(3, 4) == few != mix.fixed(4, 4)
    every = mix.fixed(3, 100)  # three recordings of six windows, and a still
    assert every[:4] == few and len(set(every)) == len(every) == 3 * 6 + 1


@pytest.mark.parametrize(("count", "processes"), [(3, 1), (3, 2), (2, 4), (8, 4)])
def test_every_watched_window_counts_once_on_any_number_of_processes(stores, count, processes):
    samples = mixed(stores, a=1.0).fixed(0, count)
    parts = [shares(samples, processes, rank) for rank in range(processes)]
    assert len({len(part) for part in parts}) == 1  # they compute together
    assert [sample for part in parts for sample, counts in part if counts] == samples


def test_aligned_windows_start_where_latents_do(stores):
    aligned = dataclasses.replace(SHORT, aligned=True)
    mix = mixture({"a": stores["a"]}, {"a": 1.0}, aligned, lambda *_: (64, 64))
    assert {s.start for step in range(40) for s in mix.draw(0, step, 4)} == {0, 4}


def test_recordings_that_are_too_short_are_counted_or_refused(stores):
    with pytest.raises(InputError, match="3 clips has 81"):
        mixture({"a": stores["a"]}, {"a": 1.0}, WindowSettings(), lambda *_: (64, 64))
    with pytest.raises(InputError, match="weights above 0"):
        mixture({"a": stores["a"]}, {"a": 0.0}, SHORT, lambda *_: (64, 64))


@pytest.mark.slow
def test_loader_processes_give_the_same(stores):
    reader = ClipReader(stores, "tiny", HANDS)
    plan = SamplingPlan(mixed(stores, a=1.0, b=1.0), 0, 3, 2, 1, 1, 0)
    here = [parts[0] for parts in batches(reader, plan, 1, 0)]
    there = [parts[0] for parts in batches(reader, plan, 1, 1)]
    assert len(here) == 2
    for a, b in zip(here, there, strict=True):
        assert a.samples == b.samples and torch.equal(a.clips.frames, b.clips.frames)
        assert torch.equal(a.targets.joints, b.targets.joints)


def test_an_image_is_a_static_clip_of_five_frames(stores):
    mix = mixed(stores, b=1.0)
    batch = ClipReader(stores, "tiny", HANDS).read(mix.draw(0, 0, 2))
    assert batch.clips.frames.shape == (2, 3, 5, 64, 64)
    assert torch.equal(batch.clips.frames[:, :, 0], batch.clips.frames[:, :, 4])
    assert torch.equal(batch.targets.joints[:, 0], batch.targets.joints[:, 4])


def test_the_truth_solves_to_itself(stores):
    t = targets_in(stores, motion(frames=30), 128, 4)
    joints = HANDS.joints(t.global_orient, t.hand_pose, t.betas)
    torch.testing.assert_close(joints + t.translation[..., None, :], t.joints, atol=1e-5, rtol=0)
    size = t.camera.size
    bearings = pnp.calibrated_bearings(
        t.anchors, torch.zeros(1, 30, 2, 2), t.camera.focal, t.camera.centre, size
    )
    placed = pnp.mixed_pnp(joints, t.translation[..., 2].log(), bearings)
    seen = placed.accepted
    assert 20 < int(seen[..., 0].sum()) < 30 and int(seen[..., 1].sum()) == 30
    torch.testing.assert_close(placed.translation[seen], t.translation[seen], atol=1e-4, rtol=0)
    # Out of sight: no keypoint inside, the hand still taught.
    out = ~t.inside.any(-1)
    assert out.any() and t.hand[out].all() and not t.visible[out].any()


def test_flags_become_masks(stores):
    flags = Supervision(rotations=False, shape=False, translation=False, pinhole_fit=False,
                        slots=(False, True))  # fmt: skip
    counts = counts_of(targets_in(stores, motion(frames=9), supervision=flags))
    taught = {name for name, count in counts.items() if count}
    assert taught == {"joint_relative_direct", "joint_camera_direct", "joint_wrist_direct",
                      "img_anchors", "pres", "pres_visible", "ray"}  # fmt: skip
    assert counts["pres"] == 9 and counts["joint_wrist_direct"] == 9


def test_a_fisheye_has_its_own_rays_and_no_pinhole(stores):
    lens = Camera("kannala_brandt", 64, 64, 25.0, 25.0, 31.5, 31.5, (0.02, -0.01, 0.0, 0.0))
    hands = motion(frames=9, view=lens)
    t = targets_in(stores, hands, cells=4, camera=lens)
    assert not t.pinhole.any()
    torch.testing.assert_close(t.rays.norm(dim=1), torch.ones(1, 4, 4))
    corner = torch.from_numpy(lens.unproject(np.array([8.0, 8.0]))).float()
    torch.testing.assert_close(t.rays[0, :, 0, 0], corner)
    true = lens.project(hands.joints_camera)[:, 1] / 64
    inside = t.inside[0, :, 1].numpy()
    np.testing.assert_allclose(t.anchors[0, :, 1].numpy()[inside], true[inside], atol=1e-5)


@pytest.mark.parametrize("presence", [1.0, 0.5, 0.0])
def test_a_hand_without_a_label_is_not_an_absent_hand(stores, presence):
    """It may be plainly in the picture: its presence is taught only where it is known to be 0."""
    hands = motion(frames=9)
    there, labelled, joints = (
        value.copy() for value in (hands.presence, hands.observed, hands.joints_camera)
    )
    labelled[:4, 0], there[:4, 0], joints[:4, 0] = False, presence, np.nan
    t = targets_in(
        stores, dataclasses.replace(hands, observed=labelled, presence=there, joints_camera=joints)
    )
    for name in ("joints", "anchors", "translation", "global_orient", "betas"):
        assert getattr(t, name).isfinite().all(), name
    assert not t.hand[0, :4, 0].any() and t.presence[0, 4:].all()
    assert t.presence_taught.all() == (presence == 0)
    masks = masks_of(t)
    for term in ("pres", "pres_visible"):
        assert masks[term][0, :4, 0].any() == (presence == 0), term
        assert masks[term][0, 4:].all() and masks[term][0, :, 1].all(), term


SIZES = tiny_model.MODEL


def targets_in(stores, hands, size=64, cells=2, **changes):
    """Targets of hands as if they were those of a clip."""
    info = dataclasses.replace(stores["a"].info_of("clip0"), frames=len(hands), **changes)
    return targets_of(info, hands, (size, size), (cells, cells), HANDS)


def pretrained(**optim):
    settings = {
        "hand": "acehand", "model": dataclasses.asdict(SIZES), "start": {"random": True},
        "optim": {"precision": "float32", "processes": 1, **optim},
    }  # fmt: skip
    config = structured(TrainConfig, settings, "settings")
    start = build.read_start(SIZES, config.start)
    model = build.build_model(config, start)
    return config, TrainingModel(model, HANDS, SolveOptions("intrinsics", fallback="paper"))


def latent_batch(stores, tmp_path):
    weights = build.random_weights(SIZES)
    cache = LatentCache(tmp_path, encoder_key(weights.vae, "float32"))
    mix = mixture({"a": stores["a"]}, {"a": 1.0}, WindowSettings(latents=3), lambda *_: (64, 64))
    samples = mix.draw(0, 0, 2)
    encoder = tiny_model.encoder()
    clips = [(stores["a"].open(n), (64, 64)) for n in stores["a"].ids()]
    assert cache.ensure(clips, encoder) == 3
    assert cache.ensure(clips, encoder) == 0
    return ClipReader(stores, "wan", HANDS, cache=cache).read(samples), cache


def test_gradients_reach_adapters_patch_embedding_ray_head_and_decoder_only(stores, tmp_path):
    config, model = pretrained(checkpointing=True)
    assert isinstance(model.model.source, Trunk) and model.model.source.checkpointing
    batch, _ = latent_batch(stores, tmp_path)
    assert batch.clips.latents.shape == (2, 48, 3, 4, 4)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen and all(".blocks." in n for n in frozen)
    loss = total(model(batch.clips, batch.targets), counts_of(batch.targets),
                 LossWeights(), 0)  # fmt: skip
    loss.backward()
    reached = {n for n, p in model.named_parameters() if p.grad is not None}
    learn = {n for n, p in model.named_parameters() if p.requires_grad}
    # The shape token's norm belongs to a readout that this configuration does not select.
    assert learn - reached == {"model.decoder.shape_norm.weight", "model.decoder.shape_norm.bias"}
    assert reached <= learn
    optimizer = make_optimizer(model.model, config.optim)
    assert {g["name"]: g["lr"] for g in optimizer.param_groups} == {
        "decoder": pytest.approx(2e-4 / 200), "lora": pytest.approx(1e-4 / 200),
        "patch_embedding": pytest.approx(2e-5 / 200),
    }  # fmt: skip
    sizes = {g["name"]: len(g["params"]) for g in optimizer.param_groups}
    assert sizes["lora"] == 2 * 10 * 3 and sizes["patch_embedding"] == 2
    optimizer.step()
    for name, before in frozen.items():
        assert torch.equal(dict(model.named_parameters())[name], before), name

    _, low = pretrained(precision="bfloat16")
    for learns, kind in ((True, torch.float32), (False, torch.bfloat16)):
        assert {p.dtype for p in low.parameters() if p.requires_grad == learns} == {kind}


def test_latents_are_kept_under_what_made_them(stores, tmp_path):
    _, cache = latent_batch(stores, tmp_path)
    info = stores["a"].info_of("clip0")
    name = cache.path(info, (64, 64)).name
    changed = dataclasses.replace(info, files={**info.files, "video.mp4": "0" * 64})
    others = {
        cache.path(info, (64, 96)).name, cache.path(changed, (64, 64)).name,
        LatentCache(tmp_path, "another").path(info, (64, 64)).name,
    }  # fmt: skip
    assert name not in others and len(others) == 3
    renamed = dataclasses.replace(info, id="other", files={**info.files, "hands.parquet": "1"})
    assert cache.path(renamed, (64, 64)).name == name


def test_with_cached_latents_no_video_is_opened(tmp_path):
    store(tmp_path / "a", clips=3, frames=14)
    stores = {"a": ClipStore(tmp_path / "a")}
    batch, cache = latent_batch(stores, tmp_path)
    for video in tmp_path.glob("a/clips/*/video.mp4"):
        video.unlink()
    again = ClipReader(stores, "wan", HANDS, cache=cache).read(batch.samples)
    assert torch.equal(again.clips.latents, batch.clips.latents)


def test_groups_by_name():
    assert group_of("source.blocks.0.attn1.to_q.lora_A.default.weight", "wan") == "lora"
    assert group_of("source.patch_embedding.weight", "wan") == "patch_embedding"
    assert group_of("ray_head.weight", "wan") == "decoder"
    assert group_of("source.trunk.patch_embedding.weight", "tiny") == "decoder"


def test_what_was_trained_is_written_in_our_format_and_exported_as_released(tmp_path):
    start = build.random_weights(SIZES)
    config, _ = pretrained()
    model = build.build_model(config, start)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
    weights = build.weights_of(model, start)
    save_own(tmp_path / "own", weights)
    back = load_own(tmp_path / "own")
    again = AceModel.from_weights(back, "float32", merge=False)
    latents = torch.randn(1, 48, 2, 4, 4)
    clip = ClipBatch(latents, torch.tensor([[64.0, 64.0]]))
    with torch.no_grad():
        torch.testing.assert_close(again(clip).anchors, model.eval()(clip).anchors)
    path = tmp_path / "ace.pt"
    export_official(path, back)
    data = torch.load(path, weights_only=True)
    assert data["backbone_trainable"] and data["projectors"] and data["raymap_heads"]
