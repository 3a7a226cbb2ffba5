"""What a run leaves to read: metrics.jsonl, TensorBoard, wandb if asked, a bar, its provenance.

Predictions drawn on the pictures of a fixed batch: truth thin and light, prediction bold.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8

from acehand_core.errors import MissingDependencyError, OutputError
from acehand_core.hand.skeleton import KEYPOINT_PARENTS
from acehand_core.training.batches import Batch, Reader, resized
from acehand_core.training.config import TrainConfig
from acehand_core.training.losses import project
from acehand_core.training.step import TrainingModel

METRICS = "metrics.jsonl"


class Logs:
    """Writes numbers by step; only the first process has one. Resuming drops later lines."""

    def __init__(self, run: Path, config: TrainConfig, first_step: int) -> None:
        self.run = run
        self._file = run / METRICS
        #: Steps without an update, those before a resume included.
        self.skipped = 0.0
        self._keep_before(first_step)
        self._board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=first_step)
        self._wandb = _start_wandb(run, config) if config.log.wandb else None
        self._started = time.monotonic()

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Add one line of numbers. Raises OutputError."""
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        except OSError as error:
            raise OutputError(f"{self._file}: cannot write: {error.strerror or error}.") from error
        numbers = {name: v for name, v in values.items() if not isinstance(v, str)}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def skip(self, step: int, clips: str) -> None:
        """Add a line for a step that updated nothing, with its clips. Raises OutputError."""
        self.skipped += 1
        self.write(step, {"train/skipped_steps": self.skipped, "skipped": clips})

    def picture(self, step: int, sheet: np.ndarray) -> None:
        """Show a sheet of predictions."""
        if self._board is not None:
            self._board.add_image("predictions", sheet, step, dataformats="HWC")
        if self._wandb is not None:
            import wandb

            self._wandb.log({"predictions": wandb.Image(sheet)}, step=step)

    def close(self) -> None:
        """Finish the files."""
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _keep_before(self, first_step: int) -> None:
        if not self._file.exists():
            return
        lines = []
        for line in self._file.read_text("utf-8").splitlines():
            try:
                row = json.loads(line)
                if row["step"] < first_step or first_step < 0:
                    lines.append(line)
                    self.skipped = row.get("train/skipped_steps", self.skipped)
            except (ValueError, KeyError):  # the line that a killed process was writing
                continue
        temporary = self._file.with_suffix(".partial")
        temporary.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        temporary.replace(self._file)


def _start_wandb(run: Path, config: TrainConfig) -> Any:
    if importlib.util.find_spec("wandb") is None:
        raise MissingDependencyError(
            "log.wandb needs wandb: pip install wandb, or log.wandb=false."
        )
    import wandb

    # A resumed run draws into the same curves.
    name = run / "wandb_id"
    if not name.exists():
        name.write_text(secrets.token_hex(8), "utf-8")
    return wandb.init(project="acehand", name=config.name, id=name.read_text("utf-8").strip(),
                      dir=str(run), config=config.to_json(), resume="allow")  # fmt: skip


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

    A hand that is predicted to be absent is not drawn; P and V are presence and visibility.
    """
    model.eval()
    moved = batch.to(device)
    prediction = model.predict(moved.clips, moved.targets)
    model.train()
    joints, readout = places(prediction.joints_camera, moved, reader), prediction.readout
    true, inside = moved.targets.anchors.cpu().numpy(), moved.targets.inside.cpu().numpy()
    anchors = readout.anchors.cpu().numpy()
    presence, visible = readout.presence.cpu(), readout.visible.cpu()
    rows = []
    for number, sample in enumerate(batch.samples):
        tiles = []
        clip = reader.stores[sample.dataset].open(sample.clip)
        assert clip.frames is not None
        for frame in np.linspace(0, sample.frames - 1, _COLUMNS).astype(int):
            image = clip.frames.at(0 if clip.info.kind == "image" else sample.start + int(frame))
            image = resized(image, sample.size)
            scale = _SCALE if sample.size[0] < 300 else 1
            tile = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)

            for slot in range(2):
                _skeleton(tile, true[number, frame, slot], _TRUE, 1, inside[number, frame, slot])
                if presence[number, frame, slot] > 0.5:
                    _skeleton(tile, joints[number, frame, slot], _COLOURS[slot], 2)
                    for at in _pixels(tile, anchors[number, frame, slot]):
                        centre = tuple(map(int, at))
                        cv2.circle(tile, centre, 2, _COLOURS[slot], -1, cv2.LINE_AA)
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
    shares = project(joints_camera, focal, centre).cpu().double().numpy()
    for number, sample in enumerate(batch.samples):
        lens = reader.stores[sample.dataset].info_of(sample.clip).camera
        if lens is not None and lens.model != "pinhole":
            pixels = lens.project(joints_camera[number].cpu().double().numpy())
            shares[number] = pixels / (lens.width, lens.height)
    return shares


def stacked(rows: Sequence[UInt8[np.ndarray, "_ _ 3"]]) -> UInt8[np.ndarray, "H W 3"]:
    """Return pictures below each other, the narrower ones padded."""
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(r, ((0, 4), (0, width - r.shape[1]), (0, 0))) for r in rows])


def save_png(path: Path, sheet: UInt8[np.ndarray, "H W 3"]) -> None:
    """Write a picture; a failure to do so does not end a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))


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
