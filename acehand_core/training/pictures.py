"""Predictions drawn on the pictures of a fixed batch: truth thin and light, prediction bold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8

from acehand_core.data.clips.windows import Sample
from acehand_core.hand.skeleton import KEYPOINT_PARENTS
from acehand_core.losses.terms import project
from acehand_core.training.batches import Batch, Reader, resized
from acehand_core.training.step import TrainingModel

_SCALE = 3
_COLUMNS = 4
#: Left and right, RGB.
_COLOURS = ((80, 160, 255), (255, 140, 60))
_TRUE = (230, 230, 230)


@torch.no_grad()
def draw(
    model: TrainingModel, reader: Reader, batch: Batch, device: torch.device
) -> UInt8[np.ndarray, "H W 3"]:
    """Return a sheet: a row per clip, four frames of each; dots are anchors.

    A hand that is said to be absent is not drawn; P and V are presence and visibility.
    """
    model.eval()
    moved = batch.to(device)
    said = model.predict(moved.clips, moved.targets)
    model.train()
    joints = places(said.joints_camera, moved, reader)
    true, inside = moved.targets.anchors.cpu().numpy(), moved.targets.inside.cpu().numpy()
    anchors = said.readout.anchors.cpu().numpy()
    presence, visible = said.readout.presence.cpu(), said.readout.visible.cpu()
    rows = []
    for number, sample in enumerate(batch.samples):
        tiles = []
        for frame in np.linspace(0, sample.frames - 1, _COLUMNS).astype(int):
            tile = _picture(reader, sample, int(frame))
            for slot in range(2):
                _skeleton(tile, true[number, frame, slot], _TRUE, 1, inside[number, frame, slot])
                if presence[number, frame, slot] > 0.5:
                    _skeleton(tile, joints[number, frame, slot], _COLOURS[slot], 2)
                    _dots(tile, anchors[number, frame, slot], _COLOURS[slot])
                words = f"P{presence[number, frame, slot]:.2f} V{visible[number, frame, slot]:.2f}"
                place = (4, 12 + 12 * slot)
                cv2.putText(tile, words, place, cv2.FONT_HERSHEY_PLAIN, 0.8, _COLOURS[slot])
            tiles.append(tile)
        rows.append(np.concatenate(tiles, 1))
    return stacked(rows)


def places(
    joints_camera: Float[torch.Tensor, "B N 2 21 3"], batch: Batch, reader: Reader
) -> Float[np.ndarray, "B N 2 21 2"]:
    """Return where joints (m) are in the pictures of a batch, in shares of width and height.

    Pinholes as the losses see them; other lenses by the clip's own camera.
    """
    camera = batch.targets.camera
    focal, centre = camera.focal / camera.size, camera.centre / camera.size
    out = project(joints_camera, focal, centre).cpu().double().numpy()
    for number, sample in enumerate(batch.samples):
        lens = reader.stores[sample.dataset].info_of(sample.clip).camera
        if lens is not None and lens.model != "pinhole":
            pixels = lens.project(joints_camera[number].cpu().double().numpy())
            out[number] = pixels / (lens.width, lens.height)
    return out


def stacked(rows: Sequence[UInt8[np.ndarray, "_ _ 3"]]) -> UInt8[np.ndarray, "H W 3"]:
    """Return pictures below each other, the narrower ones padded."""
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(r, ((0, 4), (0, width - r.shape[1]), (0, 0))) for r in rows])


def save_png(path: Path, sheet: UInt8[np.ndarray, "H W 3"]) -> None:
    """Write a picture; a failure to do so does not end a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))


def _picture(reader: Reader, sample: Sample, frame: int) -> UInt8[np.ndarray, "H W 3"]:
    clip = reader.stores[sample.dataset].open(sample.clip)
    assert clip.frames is not None
    image = clip.frames.at(0 if clip.info.kind == "image" else sample.start + frame)
    image = resized(image, sample.size)
    scale = _SCALE if sample.size[0] < 300 else 1
    return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)


def _pixels(image: np.ndarray, points: Float[np.ndarray, "21 2"]) -> np.ndarray:
    shares = np.clip(np.nan_to_num(points, nan=-1.0), -4, 4)
    return np.rint(shares * image.shape[1::-1]).astype(int)


def _skeleton(
    image: np.ndarray,
    points: np.ndarray,
    colour: tuple[int, int, int],
    width: int,
    shown: np.ndarray | None = None,
) -> None:
    places = _pixels(image, points)
    for joint, parent in enumerate(KEYPOINT_PARENTS):
        if parent >= 0 and (shown is None or (shown[joint] and shown[parent])):
            ends = tuple(map(int, places[parent])), tuple(map(int, places[joint]))
            cv2.line(image, *ends, colour, width, cv2.LINE_AA)


def _dots(image: np.ndarray, points: np.ndarray, colour: tuple[int, int, int]) -> None:
    for place in _pixels(image, points):
        cv2.circle(image, tuple(map(int, place)), 2, colour, -1, cv2.LINE_AA)
