"""Frozen self-supervised video transformers as feature sources: V-JEPA 2 and VideoMAE.

Rows of the paper's table "Feature-source ablation"; sizes and token mapping, which it leaves open,
are chosen here. Each reads one tubelet per latent: with two frames a tubelet, latent i reads frames
4i - 2 and 4i (frame 0 twice for latent 0) and skips the rest. Both were trained with a step near 2
(4 frames for VideoMAE, 4 images a second for V-JEPA 2). Weights load strictly through transformers,
from safetensors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional

from acehand_core.ace.model.batch import FeatureSource
from acehand_core.ace.model.config import TEMPORAL_STRIDE, TOKEN_PIXELS
from acehand_core.errors import InputError, MissingDependencyError, SchemaError

Frames = Float[torch.Tensor, "B 3 N H W"]

#: Model type in config.json -> class, and extra tensors of published files (the decoder of masked
#: pre-training).
_CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "vjepa2": ("VJEPA2Model", ()),
    "videomae": ("VideoMAEModel", ("decoder.", "encoder_to_decoder.", "mask_token")),
}

#: Both were trained on 0..1 RGB normalised with the mean and deviation of ImageNet.
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
#: Width of the position grid: any smaller grid of tokens fits.
_GRID = 1024

Tokens = Float[torch.Tensor, "B C k h w"]


def token_grid(clip: Frames, pixels: int = TOKEN_PIXELS) -> tuple[int, int, int]:
    """Return (latent frames, token rows, token columns) of a clip. Raises InputError."""
    frames, height, width = clip.shape[2:]
    if frames % TEMPORAL_STRIDE != 1:
        raise InputError(f"a clip of {frames} frames: valid: 1, 5, 9, ...")
    if not height or not width or height % pixels or width % pixels:
        raise InputError(f"frames of {width} x {height}: both must be multiples of {pixels}.")
    return 1 + frames // TEMPORAL_STRIDE, height // pixels, width // pixels


def load_pretrained(kind: str, location: str) -> nn.Module:
    """Return a "vjepa2" or "videomae" model of transformers with its weights, float32.

    ``location`` is a folder with config.json and safetensors, or a name on the hub. Raises
    InputError for unreadable files, SchemaError for another model or wrong tensors, and
    MissingDependencyError.
    """
    class_name, extras = _CLASSES[kind]
    try:
        import transformers
        from safetensors import SafetensorError

        model_class: Any = getattr(transformers, class_name)
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"The feature source {kind!r} needs transformers 5.0 or newer ({error}): "
            "pip install 'acehand[ace]'."
        ) from error

    try:
        config = transformers.AutoConfig.from_pretrained(location)
        if config.model_type != kind:
            raise SchemaError(f"{location}: holds a {config.model_type} model; valid: {kind}.")
        model, report = model_class.from_pretrained(
            location,
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"{location}: no weights of the feature source {kind!r} "
            f"({reason[0] if reason else type(error).__name__}); valid: a folder with config.json "
            "and model.safetensors, or the name of one on the hub."
        ) from error

    problems = {
        "missing": sorted(report["missing_keys"]),
        "unexpected": sorted(k for k in report["unexpected_keys"] if not k.startswith(extras)),
        "of another shape": sorted(f"{n} {tuple(s)}" for n, s, _ in report["mismatched_keys"]),
    }
    for problem, names in problems.items():
        if names:
            rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
            some = ", ".join(names[:3]) + rest
            raise SchemaError(f"{location}: tensors {problem} for a {kind} model: {some}.")

    return model.float()


class VideoBackbone(FeatureSource):
    """The shared part: frame selection, windows over long clips, pixel normalisation, freezing.

    Frozen: no gradients, and ``train()`` leaves dropout off. Runs in the weights' precision
    whatever the autocast; features are float32.
    """

    needs = "frames"
    default_location: str
    #: Whether windows must have the training length.
    fixed_length: bool
    backbone: Any
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: Any) -> None:
        """``model``: as returned by ``load_pretrained``."""
        super().__init__()
        config = model.config
        self.backbone, frames = self._encoder(model)
        self.feature_dim = config.hidden_size
        self.patch = _side(config.patch_size, "patch_size")
        self.tubelet: int = config.tubelet_size
        if TEMPORAL_STRIDE % self.tubelet:
            raise SchemaError(f"{self.name}: tubelet_size is {self.tubelet}; valid: 1, 2, 4.")
        self.window = frames // self.tubelet
        shape = (1, 3, 1, 1, 1)
        self.register_buffer("mean", torch.tensor(PIXEL_MEAN).view(shape), persistent=False)
        self.register_buffer("std", torch.tensor(PIXEL_STD).view(shape), persistent=False)
        self.requires_grad_(False)
        self.train()

    @classmethod
    def from_pretrained(cls, location: str | None = None) -> VideoBackbone:
        """Load weights from a folder or by name from the hub. Raises as ``load_pretrained``."""
        return cls(load_pretrained(cls.name, location or cls.default_location))

    def train(self, mode: bool = True) -> VideoBackbone:
        """Stay frozen."""
        return super().train(False)

    def forward(self, clip: Frames) -> Float[torch.Tensor, "B C F h w"]:
        """Return features on our token grid, float32; ``clip`` is as in ``token_grid``."""
        count, h, w = token_grid(clip)
        window = self.window if self.fixed_length else min(self.window, count)
        starts = window_starts(count, window)
        if len(starts) == 1:
            return self._window(clip, 0, window, (h, w))[:, :, :count]

        # Triangular weights: overlaps favour the window that is nearer to its middle.
        ramp = torch.arange(1.0, window + 1, device=clip.device)
        ramp = torch.minimum(ramp, ramp.flip(0))
        weight = ramp.new_zeros(count)

        total = ramp.new_zeros(len(clip), self.feature_dim, count, h, w)
        for start in starts:
            span = slice(start, start + window)
            tokens = self._window(clip, start, window, (h, w))
            total[:, :, span] = total[:, :, span] + tokens * ramp.view(-1, 1, 1)
            weight[span] += ramp

        return total / weight.view(-1, 1, 1)

    def _window(self, clip: Frames, start: int, length: int, grid: tuple[int, int]) -> Tokens:
        """Return features from latent ``start`` on; the last frame is repeated beyond the end."""
        step = TEMPORAL_STRIDE // self.tubelet
        last = TEMPORAL_STRIDE * torch.arange(start, start + length, device=clip.device)
        offsets = step * torch.arange(1 - self.tubelet, 1, device=clip.device)
        index = (last[:, None] + offsets).flatten().clamp(0, clip.shape[2] - 1)
        with torch.no_grad(), torch.autocast(clip.device.type, enabled=False):
            pixels = ((clip[:, :, index].float() + 1) / 2 - self.mean) / self.std
            return self._tokens(pixels, grid).float()

    def _encoder(self, model: Any) -> tuple[nn.Module, int]:
        """Return the used part of a model, and its number of training frames."""
        raise NotImplementedError

    def _tokens(self, pixels: Frames, grid: tuple[int, int]) -> Tokens:
        raise NotImplementedError


class VJepa2(VideoBackbone):
    """V-JEPA 2: the frozen encoder's last layer after the final norm.

    Positions are rotary, so the image keeps its aspect: resized to half size, its patches of 16
    pixels are our tokens. Positions continue beyond the 16 of the training crop, as in the original
    code. Up to 32 latents (64 frames read, as trained) are one window.
    """

    name = "vjepa2"
    default_location = "facebook/vjepa2-vitl-fpc64-256"
    fixed_length = False

    def _encoder(self, model: Any) -> tuple[nn.Module, int]:
        for layer in model.encoder.layer:
            layer.attention.grid_size = _GRID
        return model.encoder, model.config.frames_per_clip  # without the predictor

    def _tokens(self, pixels: Frames, grid: tuple[int, int]) -> Tokens:
        h, w = grid
        video = _resize(pixels, (h * self.patch, w * self.patch)).transpose(1, 2)
        hidden = self.backbone.embeddings(video)
        # Explicit positions, since the default ones assume square crops.
        latent, row, column = torch.meshgrid(
            *(torch.arange(n, device=pixels.device) for n in (hidden.shape[1] // (h * w), h, w)),
            indexing="ij",
        )
        positions = ((latent * _GRID + row) * _GRID + column).flatten().expand(len(hidden), -1)
        for layer in self.backbone.layer:
            hidden = layer(hidden, position_mask=positions)[0]
        hidden = self.backbone.layernorm(hidden)
        return hidden.transpose(1, 2).unflatten(2, (-1, h, w))


class VideoMae(VideoBackbone):
    """VideoMAE: the frozen encoder's last layer.

    Positions are a table of 8 tubelets of 14 x 14 patches. So the whole image is resized to the
    training size (224 x 224, changing its aspect), 8 latents are read at a time, and the 14 x 14
    features are resampled bilinearly to our tokens. Windows overlap by at least 2 latents.
    """

    name = "videomae"
    default_location = "MCG-NJU/videomae-large"
    fixed_length = True

    def _encoder(self, model: Any) -> tuple[nn.Module, int]:
        self.size = _side(model.config.image_size, "image_size")
        return model, model.config.num_frames

    def _tokens(self, pixels: Frames, grid: tuple[int, int]) -> Tokens:
        video = _resize(pixels, (self.size, self.size)).transpose(1, 2)
        dtype = next(self.backbone.parameters()).dtype
        hidden = self.backbone(video.to(dtype)).last_hidden_state.float()
        side = self.size // self.patch
        return _resize(hidden.transpose(1, 2).unflatten(2, (-1, side, side)), grid)


def window_starts(count: int, window: int) -> list[int]:
    """Return the first latent of each window: evenly spread, overlapping by a quarter or more."""
    if count <= window:
        return [0]
    overlap = window // 4
    number = math.ceil((count - overlap) / (window - overlap))
    return [round(i * (count - window) / (number - 1)) for i in range(number)]


def _resize(
    video: Float[torch.Tensor, "B C k H W"], size: tuple[int, int]
) -> Float[torch.Tensor, "B C k h w"]:
    """Resize every frame bilinearly with antialiasing, pixel centres to pixel centres."""
    if tuple(video.shape[3:]) == size:
        return video
    images = video.transpose(1, 2).flatten(0, 1)
    images = functional.interpolate(
        images, size, mode="bilinear", align_corners=False, antialias=True
    )
    return images.unflatten(0, (len(video), -1)).transpose(1, 2)


def _side(value: Any, what: str) -> int:
    """Return the side of a square, in transformers a number or a pair."""
    sides = {value} if isinstance(value, int) else set(value)
    if len(sides) != 1:
        raise SchemaError(f"{what} is {value}; a square is needed.")
    return sides.pop()
