"""The unmodified lerobot normalizes and trains on a dataset without one hand.

Run like ``test_real_loader.py``, on ``$ACEHAND_LEROBOT_DATASETS/one_hand``, of right hands alone.
"""

import os
from pathlib import Path

import pytest

pytest.importorskip("lerobot", reason="lerobot is not installed here")
import torch
from lerobot.configs.types import NormalizationMode
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors
from lerobot.utils.feature_utils import dataset_to_policy_features

if "ACEHAND_LEROBOT_DATASETS" not in os.environ:
    pytest.skip("ACEHAND_LEROBOT_DATASETS names no folder", allow_module_level=True)
ROOT = Path(os.environ["ACEHAND_LEROBOT_DATASETS"]) / "one_hand"
CHUNK = 4


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX", "QUANTILES"])
def test_an_absent_hand_does_no_harm_in_training(mode):
    torch.manual_seed(0)
    meta = LeRobotDataset("local/test", root=ROOT).meta
    features = dataset_to_policy_features(meta.features)
    size = {"dim_model": 32, "n_heads": 4, "dim_feedforward": 64, "n_encoder_layers": 1}
    config = ACTConfig(
        input_features={k: features[k] for k in ("observation.state", "observation.images.ego")},
        output_features={"action": features["action"]},
        chunk_size=CHUNK, n_action_steps=CHUNK, use_vae=False, pretrained_backbone_weights=None,
        device="cpu", **size,
    )  # fmt: skip
    config.normalization_mapping |= dict.fromkeys(("STATE", "ACTION"), NormalizationMode[mode])
    before, after = make_pre_post_processors(config, dataset_stats=meta.stats)
    stamps = [i / meta.fps for i in range(CHUNK)]
    frames = LeRobotDataset("local/test", root=ROOT, delta_timestamps={"action": stamps})
    raw = next(iter(torch.utils.data.DataLoader(frames, batch_size=len(frames))))
    half = raw["action"].shape[-1] // 2
    rest = raw["action"][0, 0, :half].clone()
    assert not raw["hand.valid"][:, 0].any() and raw["hand.valid"][:, 1].all()

    batch = before(raw)
    for key in ("observation.state", "action"):
        left, right = batch[key][..., :half], batch[key][..., half:]
        assert (left == (0 if mode == "MEAN_STD" else -1)).all() and right.std() > 0.1
        assert right.abs().max() < 10
    # A state that the dataset does not have is not bounded: spread 0 is taken as 1e-8.
    moved = raw | {"observation.state": raw["observation.state"] + 1e-3}
    assert before(moved)["observation.state"][..., :half].abs().min() > 1e4

    policy = ACTPolicy(config)
    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss, _ = policy.forward(batch)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in policy.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]

    # Whatever a policy says of it: the absent hand is sent to where it rests.
    said = after(torch.randn(5, 2 * half).clamp(-3, 3))
    assert (said[:, :half] - rest).abs().max() < 1e-6 and said[:, half:].std() > 0
