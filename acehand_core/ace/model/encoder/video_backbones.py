"""Frozen self-supervised video transformers as feature sources: V-JEPA 2 and VideoMAE.

Rows of the paper's table "Feature-source ablation", which gives neither their sizes nor how they
meet the token grid; both are chosen here. Each reads one tubelet per latent: with two frames a
tubelet, latent i reads frames 4i - 2 and 4i (frame 0 twice for latent 0). That step of 2 lies
between every frame and the step both were trained with (4 frames for VideoMAE, 4 images a second
for V-JEPA 2), and needs no resampling in time. What lies between is not read. Weights come through
transformers: safetensors only, every tensor accounted for.
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


def token_grid(clip: Frames) -> tuple[int, int, int]:
    """Return (latent frames, token rows, token columns) of a clip of frames.

    Raises:
        InputError: not 4k + 1 frames, or a side that is not a multiple of 32 pixels.
    """
    frames, height, width = clip.shape[2:]
    if frames % TEMPORAL_STRIDE != 1:
        raise InputError(f"a clip of {frames} frames: valid: 1, 5, 9, ...")
    if not height or not width or height % TOKEN_PIXELS or width % TOKEN_PIXELS:
        raise InputError(f"frames of {width} x {height}: both must be multiples of {TOKEN_PIXELS}.")
    return 1 + frames // TEMPORAL_STRIDE, height // TOKEN_PIXELS, width // TOKEN_PIXELS


#: Model type as config.json says it -> class, and what published files hold beyond it: the
#: decoder that masked pre-training needed.
_CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "vjepa2": ("VJEPA2Model", ()),
    "videomae": ("VideoMAEModel", ("decoder.", "encoder_to_decoder.", "mask_token")),
}


def load_pretrained(kind: str, location: str) -> nn.Module:
    """Return a model of transformers with its weights, float32.

    Args:
        kind: "vjepa2" or "videomae".
        location: a folder with config.json and safetensors, or a name on the hub; HF_HUB_OFFLINE
            and the hub's cache are honoured.

    Raises:
        MissingDependencyError: transformers is absent or too old.
        InputError: nothing is there, it cannot be reached, or the files cannot be read.
        SchemaError: another kind of model, or a tensor missing, unexpected or of another shape.
    """
    class_name, extras = _CLASSES[kind]
    model_class, config_class, broken = _transformers(kind, class_name)
    try:
        config = config_class.from_pretrained(location)
    except (OSError, ValueError) as error:
        raise InputError(_unreadable(kind, location, error)) from error

    if config.model_type != kind:
        raise SchemaError(f"{location}: holds a {config.model_type} model; valid: {kind}.")
    try:
        model, report = model_class.from_pretrained(
            location,
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, broken) as error:
        raise InputError(_unreadable(kind, location, error)) from error

    unexpected = {k for k in report["unexpected_keys"] if not k.startswith(extras)}
    for problem, names in (
        ("missing", report["missing_keys"]),
        ("unexpected", unexpected),
        ("of another shape", report["mismatched_keys"]),
    ):
        if names:
            # Names of another shape come as (name, shape in the file, shape needed).
            listed = sorted(n if isinstance(n, str) else f"{n[0]} {tuple(n[1])}" for n in names)
            rest = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
            some = f"{', '.join(listed[:3])}{rest} {'is' if len(listed) == 1 else 'are'}"
            raise SchemaError(f"{location}: {some} {problem} for a {kind} model.")

    return model.float()


def _transformers(kind: str, class_name: str) -> tuple[Any, Any, type[Exception]]:
    try:
        import transformers
        from safetensors import SafetensorError

        return getattr(transformers, class_name), transformers.AutoConfig, SafetensorError
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"The feature source {kind!r} needs transformers 5.0 or newer ({error}): "
            "pip install 'acehand[ace]'."
        ) from error


def _unreadable(kind: str, location: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()
    return (
        f"{location}: no weights of the feature source {kind!r} could be read here "
        f"({reason[0] if reason else type(error).__name__}). Valid: a folder with config.json and "
        "model.safetensors, or the name of such a model on the hub or in its cache."
    )


#: Both were trained on 0..1 RGB normalised with the mean and deviation of ImageNet.
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
#: Positions of a frame are numbered as in a grid this wide, so that any smaller grid fits.
_GRID = 1024

Tokens = Float[torch.Tensor, "B C k h w"]


class VideoBackbone(FeatureSource):
    """What the two share: which frames, windows over long clips, pixel values, and staying frozen.

    Frozen means: no parameter asks for a gradient, none is computed, and ``train()`` leaves
    dropout off. The arithmetic runs in the weights' precision whatever the surrounding autocast,
    and features leave as float32.
    """

    needs = "frames"
    default_location: str
    #: Whether a window must have the length the model was trained with.
    fixed_length: bool
    backbone: Any
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: Any) -> None:
        """``model``: of transformers, of the class that ``load_pretrained`` returns."""
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
        """Load weights from a folder or, by name (or the default one), from the hub or its cache.

        Raises what ``load_pretrained`` raises.
        """
        return cls(load_pretrained(cls.name, location or cls.default_location))

    def train(self, mode: bool = True) -> VideoBackbone:
        """Stay as it is: frozen."""
        return super().train(False)

    def forward(self, clip: Frames) -> Float[torch.Tensor, "B C F h w"]:
        """Return features on our token grid, float32.

        Args:
            clip: RGB frames, -1..1, 4k + 1 of them, sides multiples of 32 pixels.
        """
        count, h, w = token_grid(clip)
        window = self.window if self.fixed_length else min(self.window, count)
        starts = window_starts(count, window)
        if len(starts) == 1:
            return self._window(clip, 0, window, (h, w))[:, :, :count]

        # Rises to the middle of a window: where two overlap, the one seen more centrally counts.
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
        """Features of latents ``start`` to ``start + length``; beyond the end the last is held."""
        step = TEMPORAL_STRIDE // self.tubelet
        last = TEMPORAL_STRIDE * torch.arange(start, start + length, device=clip.device)
        offsets = step * torch.arange(1 - self.tubelet, 1, device=clip.device)
        index = (last[:, None] + offsets).flatten().clamp(0, clip.shape[2] - 1)
        with torch.no_grad(), torch.autocast(clip.device.type, enabled=False):
            pixels = ((clip[:, :, index].float() + 1) / 2 - self.mean) / self.std
            return self._tokens(pixels, grid).float()

    def _encoder(self, model: Any) -> tuple[nn.Module, int]:
        """Return what of a model is used, and how many frames it was trained with."""
        raise NotImplementedError

    def _tokens(self, pixels: Frames, grid: tuple[int, int]) -> Tokens:
        raise NotImplementedError


class VJepa2(VideoBackbone):
    """V-JEPA 2: the frozen encoder, its last layer after the final norm.

    Positions are rotary, so the image keeps its shape: it is resized until a patch of 16 pixels
    covers what one of our tokens covers (half size), and tokens coincide one to one. Rows and
    columns beyond the 16 of the training crop continue the count, as in the original code. Clips
    of up to 32 latents (64 frames read, as trained) are read in one piece.
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
        # transformers numbers positions for square crops alone unless it is given them.
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
    """VideoMAE: the frozen encoder, last layer.

    Its positions are a table over one flat count of 8 tubelets of 14 x 14 patches, which cannot be
    read between its entries: the whole image is resized to the training size (224 x 224, so its
    aspect changes), 8 latents are read at a time, and the 14 x 14 features are resampled
    bilinearly to our tokens, centre to centre. Windows overlap by at least 2 latents.
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
    """Return the first latent of each window: as few as overlap by a quarter, evenly spread."""
    if count <= window:
        return [0]
    overlap = window // 4
    number = math.ceil((count - overlap) / (window - overlap))
    return [round(i * (count - window) / (number - 1)) for i in range(number)]


def _resize(
    video: Float[torch.Tensor, "B C k H W"], size: tuple[int, int]
) -> Float[torch.Tensor, "B C k h w"]:
    """Resize every frame bilinearly, pixel centres to pixel centres, without aliasing."""
    if tuple(video.shape[3:]) == size:
        return video
    images = video.transpose(1, 2).flatten(0, 1)
    images = functional.interpolate(
        images, size, mode="bilinear", align_corners=False, antialias=True
    )
    return images.unflatten(0, (len(video), -1)).transpose(1, 2)


def _side(value: Any, what: str) -> int:
    """Return the one side of a square, which transformers writes as a number or as a pair."""
    sides = {value} if isinstance(value, int) else set(value)
    if len(sides) != 1:
        raise SchemaError(f"{what} is {value}; a square is needed.")
    return sides.pop()
