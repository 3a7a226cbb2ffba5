"""A reference clip through ``reconstruct``, the function that users' recordings go through.

A case states latents, so its recording has blank frames and an encoder that hands those latents
out; everything behind is the real thing: the plan of windows, the network, the store, the placing
and the laying of windows into the recording.

Weights drawn by a manifest's recipe, under official names, and their checksums.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8

from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.model.batch import ClipBatch, Readout
from acehand_core.model.config import TEMPORAL_STRIDE
from acehand_core.model.inference.options import InferenceOptions, WeightsRecord
from acehand_core.model.inference.recording import reconstruct
from acehand_core.model.inference.windows import latents_of, plan_windows
from acehand_core.model.network import RELEASED, AceModel
from acehand_core.motion import HandMotion, Recording
from acehand_core.types import ImageRgb

RECIPE_FORMAT = "ace-golden-recipe-1"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Scale rules per component, and the shapes of every case."""

    rules: Mapping[str, list[dict[str, Any]]]
    shapes: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """Read ``recipe.json`` and ``shapes.json``. Raises SchemaError for another format."""
        recipe = read_json(folder / "recipe.json")
        if recipe.get("format") != RECIPE_FORMAT:
            raise SchemaError(
                f"{folder / 'recipe.json'}: format {recipe.get('format')!r}; "
                f"{RECIPE_FORMAT!r} is needed."
            )
        return cls(recipe["components"], read_json(folder / "shapes.json"))

    def component(
        self, case: str, component: str, seed: int, overrides: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        """Return one component's tensors; ``override/<component>/<name>`` replaces a drawn one."""
        out = {}
        prefix = f"override/{component}/"
        listed = self.shapes[case].get(component, {})
        # A component that is nothing but overrides has a remark in place of its list.
        names = dict(listed) if isinstance(listed, Mapping) else {}
        names.update({k[len(prefix) :]: v.shape for k, v in overrides.items() if prefix in k})
        for name, shape in names.items():
            replaced = overrides.get(prefix + name)
            if replaced is None:
                replaced = self.draw(component, name, tuple(shape), seed)
            out[name] = torch.from_numpy(np.array(replaced))
        return out

    def draw(self, component: str, name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return one tensor, float32: base + scale * normal, by the first rule that matches.

        Raises SchemaError where no rule does.
        """
        stream = zlib.crc32(f"{component}/{name}".encode()) ^ seed
        normal = np.random.Generator(np.random.PCG64(stream)).standard_normal(shape, np.float32)
        for rule in self.rules[component]:
            if re.search(rule["match"], name):
                break
        else:
            raise SchemaError(f"recipe: no rule of component {component!r} matches {name!r}.")
        scale = rule["gain"]
        if rule["kind"] == "fan_in":
            scale = scale / np.sqrt(np.prod(shape[1:]))
        base = np.resize(np.asarray(rule.get("base", 0.0), np.float32), shape)
        return base + np.float32(scale) * normal


def checksum(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return number of tensors and parameters, and the running CRC-32 in order of names."""
    crc = parameters = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].numpy().astype(np.float32).tobytes(), crc)
        parameters += tensors[name].numel()
    return {"tensors": len(tensors), "parameters": parameters, "crc32": crc}


def read_json(path: Path) -> Any:
    """Return a JSON file's content. Raises SchemaError naming the file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: not readable as JSON: {error}.") from error


Latents = Float[torch.Tensor, "c F h w"]
_FPS = 30.0


class GivenLatents:
    """In place of the video encoder: latents that are known, as soon as their frames are there."""

    def __init__(self, latents: Latents) -> None:
        self.latents = latents

    def stream(self) -> _GivenStream:
        """Start the clip; only its very beginning is known, so nobody may start later."""
        return _GivenStream(self.latents)


class _GivenStream:
    def __init__(self, latents: Latents) -> None:
        self._latents, self._frames, self._made = latents, 0, 0

    def push(self, frames: UInt8[np.ndarray, "n H W 3"]) -> Latents:
        self._frames += len(frames)
        first, self._made = self._made, latents_of(self._frames)
        return self._latents[:, first : self._made]

    def finish(self) -> Latents:
        return self._latents[:, :0]


class Listener:
    """A model that keeps what it said, one readout per window."""

    def __init__(self, model: AceModel) -> None:
        self.config, self.said = model.config, list[Readout]()
        self._model = model

    def __call__(self, batch: ClipBatch) -> Readout:
        readout = self._model(batch).detached()
        self.said.append(readout)
        return readout


class BlankFrames:
    """Black pictures."""

    def __init__(self, count: int, size: tuple[int, int]) -> None:
        self._count, self._picture = count, np.zeros((size[1], size[0], 3), np.uint8)

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return (self._picture for _ in range(start, stop))

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield as many."""
        return self.read(start, stop)

    def at(self, index: int) -> ImageRgb:
        """Return a frame."""
        return self._picture


def recording_of(name: str, latents: Latents, camera: Camera) -> Recording:
    """Return the recording that some latents stand for, at the size of the camera's image."""
    count = TEMPORAL_STRIDE * (latents.shape[1] - 1) + 1
    return Recording(
        source=name,
        sha256=hashlib.sha256(latents.numpy().tobytes()).hexdigest(),
        timestamps_ns=np.round(np.arange(count) * 1e9 / _FPS).astype(np.int64),
        fps=_FPS,
        width=camera.width,
        height=camera.height,
        frames=BlankFrames(count, (camera.width, camera.height)),
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
    motion is asked for with the shape of each window, and gives the frames of that window. What no
    ``HandMotion`` holds comes from the readouts that it was made of: shapes, finger rotations
    relative to the mean pose, joints of the direct heads.
    """
    listener, out = Listener(model), {}
    record = WeightsRecord(recording.source, hashlib.sha256(recording.source.encode()).hexdigest())
    windows = plan_windows(options.windows, latents.shape[1])
    with tempfile.TemporaryDirectory(prefix="acehand-golden-") as folder:
        for variant, solve in RELEASED.items():
            seen = recording if variant == "k" else replace(recording, camera=None)
            told = replace(options, solve=solve, every_slot=True, tail="drop", encode_width=0)

            def motion(
                betas: np.ndarray | None,
                seen: Recording = seen,
                told: InferenceOptions = told,
            ) -> HandMotion:
                return reconstruct(
                    seen, listener, GivenLatents(latents), hands, record, told, betas, Path(folder)
                )

            whole = motion(None)
            rows: dict[str, np.ndarray] = {}
            for window, readout in zip(windows, listener.said, strict=True):
                values = _of_window(readout)
                part = slice(window.first_frame, window.stop_frame)
                shaped = motion(readout.betas[0].double().numpy())
                values["cam_trans"] = shaped.translation[part]
                values |= _of_motion(whole, part, values["direct_joints2d"])
                written = window.share == 1
                for name, value in values.items():
                    rows.setdefault(name, np.zeros((len(recording), *value.shape[1:]), np.float32))
                    rows[name][part][written] = value[written]
            out |= {f"{variant}/{name}": value for name, value in rows.items()}
    return out, listener.said


def _of_window(readout: Readout) -> dict[str, np.ndarray]:
    frames = readout.presence.shape[1]
    values = {
        "hand_pose": readout.hand_pose,
        "betas": readout.betas[:, None].expand(-1, frames, -1, -1),
        "direct_joints2d": readout.anchors,
        "direct_joints_cam": readout.joints_relative + readout.wrist[..., None, :],
        "direct_wrist_cam": readout.wrist,
    }
    return {name: value[0].numpy() for name, value in values.items()}


def _of_motion(motion: HandMotion, part: slice, anchors: np.ndarray) -> Mapping[str, np.ndarray]:
    camera = motion.camera
    assert camera is not None
    in_image = motion.joints_image[part] / np.array([camera.width, camera.height], np.float32)
    return {
        "global_orient": motion.global_orient[part],
        "exists_2d": motion.visible[part],
        "exists_3d": motion.presence[part],
        "direct_joints2d": np.where(np.isfinite(in_image), in_image, anchors),
    }
