"""The model of a run, and its weights for others: from scratch, from a backbone, or resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from acehand_core.ace.model.config import AS_RELEASED, InferenceConfig, ModelConfig, TrunkConfig
from acehand_core.ace.model.decoder import Decoder
from acehand_core.ace.model.encoder.sources import (
    TRUNK_SOURCES,
    TinySource,
    make_source,
    source_kind,
)
from acehand_core.ace.model.encoder.trunk import Trunk, adapter_parameters, add_adapters
from acehand_core.ace.model.encoder.vae import VideoEncoder
from acehand_core.ace.model.network import AceModel, load_trunk
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.ace.model.weights.official_files import (
    assemble,
    open_base,
    open_vae,
    read_caption,
)
from acehand_core.ace.model.weights.state import LoadedWeights, TrainingData, state_shapes
from acehand_core.ace.model.weights.tables import Shapes, Tensors
from acehand_core.ace.training.config import StartConfig, TrainConfig
from acehand_core.errors import InputError
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.hand.mano import load_mano

_LICENCE = "What the weights were trained from and on decides; see the run's provenance."
_NEEDS_MANO = "hand 'mano' needs mano=FOLDER with MANO_LEFT.pkl and MANO_RIGHT.pkl."
_STARTS = "start.weights=MODEL, start.base=FOLDER with start.caption=FILE, or start.random=true"


def check_start(config: TrainConfig) -> None:
    """Raise InputError for what a run needs and its settings do not name; nothing is read."""
    source, start = config.model.source, config.start
    if config.hand == "mano" and config.mano is None:
        raise InputError(_NEEDS_MANO)
    if source_kind(source).needs != "latents":
        return
    if config.data.latent_cache is None:
        raise InputError(f"source {source!r} reads latents; set data.latent_cache=FOLDER.")
    if start.weights is not None or start.random:
        return
    if source in TRUNK_SOURCES and (start.base is None or start.caption is None):
        raise InputError(f"source {source!r} starts from a backbone: give {_STARTS}.")
    if start.vae is None:
        raise InputError(f"source {source!r} reads latents: give start.vae=FILE to encode them.")


def read_start(config: ModelConfig, start: StartConfig) -> LoadedWeights | None:
    """Return the weights that a run starts from; None where everything starts from scratch.

    Raises:
        InputError: the model has a pretrained backbone and nothing says where it is.
    """
    if start.weights is not None:
        loaded = load_weights(Path(start.weights), config.variant)
        if (loaded.config.trunk, loaded.config.decoder) != (config.trunk, config.decoder):
            raise InputError(
                f"{start.weights}: other sizes than the run's; see model in --cfg job."
            )
        return loaded

    if config.source not in TRUNK_SOURCES and config.source != "vae_latent":
        return None
    if start.random:
        return random_weights(config)
    stores = {} if start.vae is None else {"vae": open_vae(Path(start.vae))}
    if config.source not in TRUNK_SOURCES:
        return assemble(config, stores)
    if start.base is None or start.caption is None:
        raise InputError(f"source {config.source!r} starts from a backbone: give {_STARTS}.")
    stores["dit"] = open_base(Path(start.base))
    return assemble(config, stores, read_caption(Path(start.caption)))


def random_weights(config: ModelConfig) -> LoadedWeights:
    """Return a backbone of small random numbers, for measuring and tests; nothing is learned."""
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
    """Return the model, ready to train; what starts from scratch is drawn from ``config.seed``."""
    sizes = config.model
    torch.manual_seed(config.seed)

    def trunk(trunk_config: TrunkConfig) -> Trunk:
        assert weights is not None
        with_adapters = weights.adapters is not None
        loaded = load_trunk(
            weights, config.optim.precision, "cpu", merge=False, config=trunk_config
        )
        if trunk_config.lora_rank and not with_adapters:
            add_adapters(loaded)
        loaded.checkpointing = config.optim.checkpointing
        return loaded

    source = make_source(sizes, trunk)
    model = AceModel(sizes, source, Decoder(sizes.decoder))
    if weights is not None and weights.decoder is not None and weights.ray_head is not None:
        model.decoder.load_state_dict(weights.decoder)
        model.ray_head.load_state_dict(weights.ray_head)
    if weights is not None and weights.tiny is not None:
        source.load_state_dict(weights.tiny)
    return model.train()


def build_hands(config: TrainConfig) -> TorchHands:
    """Return the hand model of the run. Raises InputError without MANO's folder."""
    if config.hand == "acehand":
        return TorchHands.acehand()
    if config.mano is None:
        raise InputError(_NEEDS_MANO)
    return TorchHands.mano(load_mano(Path(config.mano), config.left_shapedirs_fixed))


def build_encoder(config: TrainConfig, weights: LoadedWeights | None) -> VideoEncoder:
    """Return the frozen video encoder. Raises InputError where the start has none."""
    if weights is None or weights.vae is None:
        raise InputError("latents are to be encoded: give start.vae=FILE.")
    return VideoEncoder.from_tensors(config.model.vae, weights.vae, config.optim.precision)


def weights_of(
    model: AceModel,
    start: LoadedWeights | None,
    trained_on: TrainingData = None,
    run_as: InferenceConfig = AS_RELEASED,
) -> LoadedWeights:
    """Return a trained model as weights to save: its own parts, the frozen ones from the start."""

    def plain(tensors: Mapping[str, torch.Tensor]) -> Tensors:
        return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}

    config, source = model.config, model.source
    trained = LoadedWeights(
        config,
        decoder=plain(model.decoder.state_dict()),
        ray_head=plain(model.ray_head.state_dict()),
        licence=_LICENCE if start is None else start.licence or _LICENCE,
        training_data=trained_on,
        inference=run_as,
    )
    if isinstance(source, TinySource):
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
