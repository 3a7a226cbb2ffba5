"""Run one case of a manifest through our code and return its outputs under the manifest's names.

Whole clips go through ``reconstruct``, as users' recordings do. Such a case states latents, so its
recording has blank frames and an encoder that hands those latents out; everything behind is the
real thing: the plan of windows, the network, the store, the placing and the laying of windows into
the recording.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8

from acehand_core.ace.model.batch import ClipBatch, PinholeBatch, Readout
from acehand_core.ace.model.camera_fit import reported_intrinsics
from acehand_core.ace.model.config import (
    RELEASED,
    TEMPORAL_STRIDE,
    DecoderConfig,
    ModelConfig,
    Precision,
    TrunkConfig,
    VaeConfig,
)
from acehand_core.ace.model.encoder.vae import VideoEncoder
from acehand_core.ace.model.inference.loading import InferenceOptions, WeightsRecord
from acehand_core.ace.model.inference.reconstruction import reconstruct
from acehand_core.ace.model.inference.windows import latents_of, plan_windows
from acehand_core.ace.model.network import AceModel, load_trunk, place
from acehand_core.ace.model.weights.official_files import assemble
from acehand_core.ace.model.weights.state import LoadedWeights
from acehand_core.ace.model.weights.storage import store_of
from acehand_core.errors import SchemaError, nearest
from acehand_core.geometry import rotations_torch
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.hand.mano import ManoHand
from acehand_core.motion import Recording
from acehand_core.types import SIDES, ImageRgb

Arrays = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its manifest entry, the arrays of its file, and those its inputs come from.

    ``drawn`` are the weights by component, official names; ``trained`` the patch embedding that a
    checkpoint retrained.
    """

    name: str
    kind: str
    config: Mapping[str, Any]
    inputs: Arrays
    drawn: Mapping[str, Mapping[str, torch.Tensor]]
    trained: Mapping[str, torch.Tensor]

    @property
    def precision(self) -> Precision:
        """What the backbone computes in."""
        return "bfloat16" if self.kind.endswith("_bf16") else "float32"

    def tensor(self, name: str) -> torch.Tensor:
        """Return an input as a tensor."""
        return torch.from_numpy(np.asarray(self.inputs[f"in/{name}"]))


@torch.no_grad()
def run(case: Case, mano: ManoHand) -> Outputs:
    """Return a case's outputs, float32, named as in its file but for ``out/``.

    Raises SchemaError for a kind that is not known.
    """
    runners: dict[str, Callable[[Case, ManoHand], Outputs]] = {
        "vae": _vae, "dit": _dit, "projector": _projector, "e2e": _e2e, "mano": _mano, "pnp": _pnp,
    }  # fmt: skip
    kind = case.kind.removesuffix("_bf16")
    if kind not in runners:
        raise SchemaError(f"case {case.name}: kind {case.kind!r}; {nearest(kind, runners)}")
    return runners[kind](case, mano)


def from_official_tensors(
    config: ModelConfig,
    caption: torch.Tensor | None = None,
    **parts: Mapping[str, torch.Tensor] | None,
) -> LoadedWeights:
    """Return a model's weights from released tensors, by the names of ``official.sections``.

    Tensors that do not run may be absent. Raises SchemaError.
    """
    stores = {n: store_of(t, f"tensors, {n}") for n, t in parts.items() if t is not None}
    return assemble(config, stores, caption, complete=False)


def _vae(case: Case, mano: ManoHand) -> Outputs:
    encoder = _encoder(case, case.config["base_dim"])
    # These references run without the release's half-precision hand-over.
    latents = encoder.encode(case.inputs["in/frames_u8"], round_to_half=False)
    return {"latents": latents.numpy()}


def _encoder(case: Case, base_dim: int) -> VideoEncoder:
    config = ModelConfig(vae=VaeConfig(base_dim=base_dim))
    weights = from_official_tensors(config, vae=case.drawn["vae"])
    return VideoEncoder.from_tensors(config.vae, weights.part("vae"), "float32")


def _dit(case: Case, mano: ManoHand) -> Outputs:
    results = {}
    for tap in case.config["taps"]:
        weights = from_official_tensors(
            ModelConfig(trunk=_trunk_config(case, tap)),
            dit=case.drawn["dit"],
            backbone_trainable=_trainable(case),
            caption=case.tensor("caption_embed"),
        )
        folded = load_trunk(weights, case.precision, merge=False)(case.tensor("latents"))
        results[f"tokens_block{tap}"] = folded.flatten(2).transpose(1, 2).numpy()
        results[f"folded_block{tap}"] = folded.numpy()
    return results


def _trunk_config(case: Case, tap: int) -> TrunkConfig:
    rank, alpha = case.config["lora_rank"], float(case.config["lora_alpha"])
    return TrunkConfig(**case.config["dit"], tap=tap, lora_rank=rank, lora_alpha=alpha)


def _trainable(case: Case) -> dict[str, torch.Tensor] | None:
    """Return what a checkpoint holds of the backbone, or None for the base model alone."""
    if not case.config["lora_rank"]:
        return None
    head = {name: value for name, value in case.drawn["dit"].items() if name.startswith("head.")}
    return {**case.drawn["lora"], **case.trained, **head}


def _projector(case: Case, mano: ManoHand) -> Outputs:
    hands, model = TorchHands.mano(mano), _model(case, None)
    features = case.tensor("features")
    ray_map = model.ray_head(features)
    readout = model.decoder(features, ray_map)
    joints = hands.joints(readout.global_orient, readout.hand_pose, readout.betas)
    width, height = (case.config["camera"][side] for side in ("image_width", "image_height"))
    results = _readout_outputs(readout) | {
        "ray_map": readout.ray_map,
        "rays_mean": readout.rays,
        "direct_joints_rootrel": readout.joints_relative,
        "cam_raw": readout.camera,
        "segment_betas": readout.betas,
        "shape_token": readout.shape_token,
        "pred_intrinsics": reported_intrinsics(readout.ray_map, width, height)[0],
    }
    results |= _translations(case, readout, joints)
    return {name: value.numpy() for name, value in results.items()}


def _e2e(case: Case, mano: ManoHand) -> Outputs:
    results: dict[str, np.ndarray] = {}
    if "rgb" in case.config:
        encoder = _encoder(case, case.config["rgb"]["base_dim"])
        latents = encoder.encode(case.inputs["in/frames_u8"], chunk=4, round_to_half=False)
        results["latents_before_f16"] = latents.numpy()

    # Rounded to half: our own could fall on the other side of a rounding border.
    latents = case.tensor("latents").float()
    numbers = case.config["camera"]
    size = numbers["image_width"], numbers["image_height"]
    fx, fy, cx, cy = (float(numbers[name]) for name in ("fx", "fy", "cx", "cy"))
    recording = recording_of(case.name, latents, Camera("pinhole", *size, fx, fy, cx, cy))
    windows = "full" if case.config.get("mode") == "full" else "paper"
    options = InferenceOptions(windows, precision=case.precision)

    # Adapters merged, as in every run of a user. The bfloat16 reference holds how the release
    # rounds, with live ones: what is merged rounds elsewhere (docs/model.md, "Precision").
    model = _model(case, _trunk_config(case, TrunkConfig().tap), merge=case.precision == "float32")
    placed, readouts = outputs(recording, latents, model, TorchHands.mano(mano), options)
    ray_maps = torch.cat([readout.ray_map for readout in readouts], dim=2)
    fitted = reported_intrinsics(ray_maps, recording.width, recording.height)[0].numpy()
    return results | placed | {f"{variant}/pred_intrinsics": fitted for variant in RELEASED}


def _mano(case: Case, mano: ManoHand) -> Outputs:
    hands = TorchHands.mano(mano)
    orient, pose, betas = (case.tensor(n) for n in ("global_orient", "hand_pose", "betas"))

    # One shape per clip in torch, one per row in the case: every row is a clip of one frame.
    both = pose[:, None, None].expand(-1, -1, 2, -1, -1, -1)
    oriented = orient[:, None, None].expand(-1, -1, 2, -1, -1)
    joints = hands.joints(oriented, both, betas[:, None].expand(-1, 2, -1))
    absolute = hands.absolute_pose(both)[:, 0].double().numpy()

    results = {"hand_axis_angle": rotations_torch.log(pose).numpy()}
    for slot, side in enumerate(SIDES):
        results[f"{side}/joints21"] = joints[:, 0, slot].numpy()
        numbers = orient.double().numpy(), absolute[:, slot], betas.double().numpy()
        results[f"{side}/vertices"] = mano.vertices(side, *numbers)
    return results


def _pnp(case: Case, mano: ManoHand) -> Outputs:
    # Every row is a clip of one frame.
    names = ("global_orient", "hand_pose", "cam_raw", "joints_2d")
    orient, pose, camera, anchors = (case.tensor(name)[:, None] for name in names)
    betas, rows = case.tensor("betas"), len(camera)
    joints = TorchHands.mano(mano).joints(orient, pose, betas)
    blank = torch.zeros(rows, 1, 2)
    readout = Readout(
        global_orient=orient,
        hand_pose=pose,
        betas=betas,
        anchors=anchors,
        joints_relative=joints - joints[..., :1, :],
        wrist=torch.zeros(rows, 1, 2, 3),
        camera=camera,
        presence=blank,
        visible=blank,
        ray_map=case.tensor("rays")[None, :, None].expand(rows, -1, -1, -1, -1),
        shape_token=torch.zeros(rows, 1),
    )
    translations = _translations(case, readout, joints)
    return {name: value[:, 0].numpy() for name, value in translations.items()}


def _translations(
    case: Case, readout: Readout, joints: Float[torch.Tensor, "B N 2 21 3"]
) -> dict[str, torch.Tensor]:
    """Return where both variants place the hands; K-free is given a camera of that size alone."""
    translations = {}
    for variant, options in RELEASED.items():
        placeholder = variant != "k" and "placeholder" in case.config
        camera = case.config["placeholder" if placeholder else "camera"]
        rows = [[camera[n] for n in ("fx", "fy", "cx", "cy", "image_width", "image_height")]]
        table = torch.tensor(rows, dtype=torch.float32).expand(len(joints), -1)
        pinhole = PinholeBatch(table[:, :2], table[:, 2:4], table[:, 4:])
        placed = place(readout, joints, pinhole.size, pinhole, options)
        translations[f"{variant}/cam_trans"] = placed.translation
    return translations


def _model(case: Case, trunk: TrunkConfig | None, merge: bool = False) -> AceModel:
    """Return the model of a case; without a trunk its features are inputs."""
    config = case.config
    feature_dim = config["feature_dim"] if trunk is None else trunk.dim
    decoder = DecoderConfig(
        feature_dim=feature_dim, width=config["hidden_dim"], num_heads=config["num_heads"]
    )
    weights = from_official_tensors(
        ModelConfig(trunk=trunk or TrunkConfig(), decoder=decoder),
        dit=case.drawn.get("dit"),
        projectors=case.drawn["projectors"],
        raymap_heads=case.drawn["raymap_heads"],
        backbone_trainable=None if trunk is None else _trainable(case),
        caption=None if trunk is None else case.tensor("caption_embed"),
    )
    return AceModel.from_weights(weights, case.precision, merge=merge)


def _readout_outputs(readout: Readout) -> dict[str, torch.Tensor]:
    """Return what both the decoder alone and the whole model are compared in."""
    frames = readout.presence.shape[1]
    return {
        "global_orient": readout.global_orient,
        "hand_pose": readout.hand_pose,
        "betas": readout.betas[:, None].expand(-1, frames, -1, -1),
        "direct_joints2d": readout.anchors,
        "direct_joints_cam": readout.joints_relative + readout.wrist[..., None, :],
        "direct_wrist_cam": readout.wrist,
        "exists_2d": readout.visible,
        "exists_3d": readout.presence,
    }


Latents = Float[torch.Tensor, "c F h w"]


class GivenLatents:
    """In place of the video encoder: latents that are known, as soon as their frames are there."""

    def __init__(self, latents: Latents) -> None:
        self.latents, self._frames, self._made = latents, 0, 0

    def stream(self) -> GivenLatents:
        """Start the clip, from its beginning alone."""
        return GivenLatents(self.latents)

    def push(self, frames: UInt8[np.ndarray, "n H W 3"]) -> Latents:
        """Return the latents that these frames complete."""
        self._frames += len(frames)
        first, self._made = self._made, latents_of(self._frames)
        return self.latents[:, first : self._made]

    def finish(self) -> Latents:
        """Return nothing: all frames were seen."""
        return self.latents[:, :0]


class RecordingModel:
    """A model that keeps its readouts, one per window."""

    def __init__(self, model: AceModel) -> None:
        self.config, self.readouts = model.config, list[Readout]()
        self._model = model

    def __call__(self, batch: ClipBatch) -> Readout:
        readout = self._model(batch).detached()
        self.readouts.append(readout)
        return readout


@dataclass(frozen=True, slots=True)
class _BlankFrames:
    """One black picture, ``count`` times."""

    count: int
    picture: ImageRgb

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        return (self.picture for _ in range(start, stop))

    def at(self, index: int) -> ImageRgb:
        return self.picture


def recording_of(name: str, latents: Latents, camera: Camera) -> Recording:
    """Return the recording that some latents stand for, at the size of the camera's image."""
    count = TEMPORAL_STRIDE * (latents.shape[1] - 1) + 1
    return Recording(
        source=name,
        sha256=hashlib.sha256(latents.numpy().tobytes()).hexdigest(),
        timestamps_ns=np.round(np.arange(count) * 1e9 / 30).astype(np.int64),
        fps=30.0,
        width=camera.width,
        height=camera.height,
        frames=_BlankFrames(count, np.zeros((camera.height, camera.width, 3), np.uint8)),
        camera=camera,
    )


def outputs(
    recording: Recording,
    latents: Latents,
    model: AceModel,
    hands: TorchHands,
    options: InferenceOptions,
) -> tuple[dict[str, np.ndarray], list[Readout]]:
    """Return what the released code dumps, as ``VARIANT/NAME``, and the readout of every window.

    Orientation, presence, visibility, translation and the anchors of hands in sight are those of
    the ``HandMotion``. It has one shape per recording where the release has one per window, so the
    motion is made with the shape of each window, and gives the frames of that window. What no
    ``HandMotion`` holds comes from its readouts: shapes, finger rotations relative to the mean
    pose, joints of the direct heads.
    """
    network = RecordingModel(model)
    results: dict[str, np.ndarray] = {}
    record = WeightsRecord(recording.source, hashlib.sha256(recording.source.encode()).hexdigest())
    windows = plan_windows(options.windows, latents.shape[1])
    with tempfile.TemporaryDirectory(prefix="acehand-golden-") as folder:
        for variant, solve in RELEASED.items():
            seen = recording if variant == "k" else replace(recording, camera=None)
            chosen = replace(options, solve=solve, every_slot=True, tail="drop", encode_width=0)
            encoder = GivenLatents(latents)
            motion = partial(reconstruct, seen, network, encoder, hands, record, chosen)
            whole = motion(None, Path(folder))

            rows: dict[str, np.ndarray] = {}
            for window, readout in zip(windows, network.readouts, strict=True):
                values = {n: v[0].numpy() for n, v in _readout_outputs(readout).items()}
                part = slice(window.first_frame, window.stop_frame)
                shaped = motion(readout.betas[0].double().numpy(), Path(folder))
                values["cam_trans"] = shaped.translation[part]

                size = np.array([recording.width, recording.height], np.float32)
                anchors = whole.joints_image[part] / size
                unseen = ~np.isfinite(anchors)
                anchors[unseen] = values["direct_joints2d"][unseen]
                values |= {
                    "global_orient": whole.global_orient[part],
                    "exists_2d": whole.visible[part],
                    "exists_3d": whole.presence[part],
                    "direct_joints2d": anchors,
                }

                written = window.share == 1
                for name, value in values.items():
                    rows.setdefault(name, np.zeros((len(recording), *value.shape[1:]), np.float32))
                    rows[name][part][written] = value[written]
            results |= {f"{variant}/{name}": value for name, value in rows.items()}
    return results, network.readouts
