"""Builds a run's model and its weights to save: from scratch, from a backbone, or resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from acehand_core.ace.model.config import AS_RELEASED, InferenceConfig, ModelConfig, TrunkConfig
from acehand_core.ace.model.decoder import Decoder
from acehand_core.ace.model.encoder import sources
from acehand_core.ace.model.encoder.trunk import Trunk, adapter_parameters, add_adapters
from acehand_core.ace.model.network import AceModel, load_trunk
from acehand_core.ace.model.weights import official_files
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.ace.model.weights.state import LoadedWeights, TrainingData, state_shapes
from acehand_core.ace.model.weights.tables import Shapes, Tensors
from acehand_core.ace.training.checkpoints import plain
from acehand_core.ace.training.config import StartConfig, TrainConfig
from acehand_core.errors import InputError
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.hand.mano import load_mano

_LICENCE = "What the weights were trained from and on decides; see the run's provenance."
_NEEDS_MANO = "hand 'mano' needs mano=FOLDER with MANO_LEFT.pkl and MANO_RIGHT.pkl."
_STARTS = "start.weights=MODEL, start.base=FOLDER with start.caption=FILE, or start.random=true"


def check_start(config: TrainConfig) -> None:
    """Raise InputError for missing settings, before anything is read."""
    source, start = config.model.source, config.start
    if config.hand == "mano" and config.mano is None:
        raise InputError(_NEEDS_MANO)
    if sources.source_kind(source).needs != "latents":
        return
    if config.data.latent_cache is None:
        raise InputError(f"source {source!r} reads latents; set data.latent_cache=FOLDER.")
    if start.weights is not None or start.random:
        return
    if source in sources.TRUNK_SOURCES and (start.base is None or start.caption is None):
        raise InputError(f"source {source!r} starts from a backbone: give {_STARTS}.")
    if start.vae is None:
        raise InputError(f"source {source!r} reads latents: give start.vae=FILE to encode them.")


def read_start(config: ModelConfig, start: StartConfig) -> LoadedWeights | None:
    """Return the initial weights; None from scratch. Raises InputError without a backbone."""
    if start.weights is not None:
        loaded = load_weights(Path(start.weights), config.variant)
        if (loaded.config.trunk, loaded.config.decoder) != (config.trunk, config.decoder):
            raise InputError(f"{start.weights}: sizes differ from the run's model; see --cfg job.")
        return loaded
    if config.source not in sources.TRUNK_SOURCES and config.source != "vae_latent":
        return None

    if start.random:
        return random_weights(config)
    stores = {} if start.vae is None else {"vae": official_files.open_vae(Path(start.vae))}
    if config.source not in sources.TRUNK_SOURCES:
        return official_files.assemble(config, stores)
    if start.base is None or start.caption is None:
        raise InputError(f"source {config.source!r} starts from a backbone: give {_STARTS}.")
    stores["dit"] = official_files.open_base(Path(start.base))
    return official_files.assemble(config, stores, official_files.read_caption(Path(start.caption)))


def random_weights(config: ModelConfig) -> LoadedWeights:
    """Return an untrained backbone with small random weights, for measurements and tests."""
    generator = torch.Generator().manual_seed(0)

    def drawn(shapes: Shapes) -> Tensors:
        tensors = {}
        for name, shape in shapes.items():
            if ("norm" in name and len(shape) <= 1) or name.endswith("gamma"):
                tensors[name] = torch.full(shape, 0.0 if name.endswith("bias") else 1.0)
            else:
                scale = max(1, torch.Size(shape[1:]).numel()) ** -0.5
                tensors[name] = scale * torch.randn(shape, generator=generator)
        return tensors

    caption = torch.randn(5, config.trunk.text_dim, generator=generator)
    parts = state_shapes(config)
    return LoadedWeights(
        config,
        vae=drawn(parts["vae"]) if "vae" in parts else None,
        trunk=drawn(parts["trunk"]) if "trunk" in parts else None,
        caption=caption,
    )


def build_model(config: TrainConfig, weights: LoadedWeights | None) -> AceModel:
    """Return the model in training mode; new parts are initialised from ``config.seed``."""
    sizes = config.model
    torch.manual_seed(config.seed)

    def trunk(trunk_config: TrunkConfig) -> Trunk:
        assert weights is not None
        precision, with_adapters = config.optim.precision, weights.adapters is not None
        loaded = load_trunk(weights, precision, "cpu", merge=False, config=trunk_config)
        if trunk_config.lora_rank and not with_adapters:
            add_adapters(loaded)
        loaded.checkpointing = config.optim.checkpointing
        return loaded

    source = sources.make_source(sizes, trunk)
    model = AceModel(sizes, source, Decoder(sizes.decoder))
    if weights is not None and weights.decoder is not None and weights.ray_head is not None:
        model.decoder.load_state_dict(weights.decoder)
        model.ray_head.load_state_dict(weights.ray_head)
    if weights is not None and weights.tiny is not None:
        source.load_state_dict(weights.tiny)
    return model.train()


def build_hands(config: TrainConfig) -> TorchHands:
    """Return the run's hand model. Raises InputError without MANO's folder."""
    if config.hand == "acehand":
        return TorchHands.acehand()
    if config.mano is None:
        raise InputError(_NEEDS_MANO)
    return TorchHands.mano(load_mano(Path(config.mano), config.left_shapedirs_fixed))


def weights_of(
    model: AceModel,
    start: LoadedWeights | None,
    trained_on: TrainingData = None,
    run_as: InferenceConfig = AS_RELEASED,
) -> LoadedWeights:
    """Return the weights to save: the model's trained parts and the start's frozen ones."""
    config, source = model.config, model.source
    trained = LoadedWeights(
        config,
        decoder=plain(model.decoder.state_dict()),
        ray_head=plain(model.ray_head.state_dict()),
        licence=_LICENCE if start is None else start.licence or _LICENCE,
        training_data=trained_on,
        inference=run_as,
    )
    if isinstance(source, sources.TinySource):
        return replace(trained, tiny=plain(source.state_dict()))

    if start is None:
        return trained
    trunk = start.trunk
    if config.source == "wan" and isinstance(source, Trunk) and trunk is not None:
        patch = source.patch_embedding.state_dict(prefix="patch_embedding.")
        trunk = {**trunk, **plain(patch)}
        trained = replace(trained, adapters=plain(dict(adapter_parameters(source))))
    return replace(
        trained, trunk=trunk, vae=start.vae, caption=start.caption, sha256s=start.sha256s
    )
