"""HOI4D: video of one person handling objects, MANO fitted per frame in the camera frame.

Layout: ``ZY*/H*/C*/N*/S*/s*/T*/align_rgb/image.mp4``, labels ``<frame>.pickle`` in
``refinehandpose_{right,left}/`` under the same path, and ``camera_params/ZY*/intrin.npy``. Labels
are numbered at 15 frames per second. Camera trajectories are in the Redwood text format: three
integers and a 4x4 matrix per frame.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.clips.media import ImageFiles
from acehand_core.ace.labelled.readers import base
from acehand_core.ace.labelled.readers.pictures import image_size, numbered_images
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource
from acehand_core.recordings.video import open_video
from acehand_core.types import SIDES, CameraPoses
from acehand_core.unpickling import NPY_OBJECT, restricted_load

CONVENTION = base.Convention("vectors", True, "mano", None, "camera")
_LABEL_FPS = 15.0
_SIZE = (1920, 1080)
_DEPTH = "ZY*/H*/C*/N*/S*/s*/T*"
_KEYS = (("poseCoeff", 48), ("beta", 10), ("trans", 3))
#: Of one hand in one frame: 61 numbers and 21 pixels.
_Labels = tuple[np.ndarray, np.ndarray]


def read_log(path: Path) -> CameraPoses:
    """Return camera-to-world matrices (the format's definition). Raises SchemaError."""
    lines = [line for line in base.read_text(path).splitlines() if line.strip()]
    if not lines or len(lines) % 5:
        raise SchemaError(f"{path}: {len(lines)} lines; five per frame are needed.")
    rows = np.zeros((len(lines), 4))
    for number, line in enumerate(lines):
        if number % 5:
            try:
                rows[number] = [float(word) for word in line.split()]
            except ValueError as error:
                raise SchemaError(f"{path}:{number + 1}: four numbers are needed.") from error
    return rows.reshape(-1, 5, 4)[:, 1:]


class Hoi4dReader:
    """``Reader`` of HOI4D; all of it is the test split, as in the paper."""

    name = "hoi4d"
    title = "HOI4D"
    views = ("align_rgb",)

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List sequences that have a folder of hand poses."""
        folders: dict[str, dict[str, str]] = {}
        for side in SIDES:
            for top in _tops(root):
                labels = top / f"refinehandpose_{side}"
                for folder in labels.glob(_DEPTH):
                    folders.setdefault(str(folder.relative_to(labels)), {})[side] = str(folder)

        items = [
            base.Item(
                self.name, base.safe_name(path.replace("/", "_")), "test", root,
                {"sequence": path, **sides}, path.split("/")[1],
            )
            for path, sides in sorted(folders.items())
        ]  # fmt: skip
        return base.need_items(items, root, self.title, f"refinehandpose_right/{_DEPTH}")

    def sources(self, item: base.Item) -> Sequence[Path]:
        labels = [Path(item.key[side]) for side in SIDES if side in item.key]
        folder = _sequence_folder(item.path, item.key["sequence"])
        pictures = [] if folder is None else [folder / "align_rgb", folder / "3Dseg"]
        return [*labels, _intrinsics_file(item), *pictures]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        folder = _sequence_folder(item.path, item.key["sequence"])
        stored, damaged = _read_labels(item)
        source, times, fps, size, findings = _pictures(folder, max(stored, default=-1) + 1)
        rows = _rows_of(stored, times, fps, findings)
        count = len(times)
        values, image = np.full((count, 2, 61), np.nan), np.full((count, 2, 21, 2), np.nan)

        for number, row in rows.items():
            if row is not None:
                for slot, labels in stored[number].items():
                    values[row, slot], image[row, slot] = labels

        camera = _camera(item, size, findings)
        image = (image + 0.5) * np.array(size) / _SIZE - 0.5  # stored for the full size
        present = np.isfinite(values).all(-1)
        labelled = present.any(1)
        findings.append(
            f"{int(labelled.sum())} of {count} frames are labelled; {damaged} damaged files."
        )
        T_world_camera = _camera_poses(folder, count, values[..., 58:61], findings)

        return base.NativeRecording(
            item=item,
            timestamps_ns=times,
            fps=fps,
            size=size,
            frames=source,
            camera=camera,
            present=present,
            mano=base.ManoTrack.of_vectors(
                CONVENTION, present, values[..., :48], values[..., 48:58], values[..., 58:61]
            ),
            joints_image=image,
            slots=("left" in item.key, "right" in item.key),
            T_world_camera=T_world_camera,
            licences=("HOI4D: CC BY-NC 4.0, https://hoi4d.github.io",),
            findings=tuple(findings),
            # Not every frame is annotated.
            unlabelled_presence=base.unknown_unless(labelled),
            left_out=sum(row is None for row in rows.values()),
        )


def _tops(root: Path) -> list[Path]:
    """Return the folders that may hold the dataset's parts."""
    return [root, *sorted(p for p in root.glob("*") if p.is_dir())]


def _sequence_folder(root: Path, sequence: str) -> Path | None:
    for top in _tops(root):
        if (top / sequence).is_dir() and not top.name.startswith("refinehandpose"):
            return top / sequence
    return None


def _read_labels(item: base.Item) -> tuple[dict[int, dict[int, _Labels]], int]:
    """Return frame number to slot to labels, and the number of damaged files.

    Damaged: some published files hold a single number in place of a pose.
    """
    labels: dict[int, dict[int, _Labels]] = {}
    damaged = 0

    for slot, side in enumerate(SIDES):
        if side not in item.key:
            continue
        for path in sorted(Path(item.key[side]).glob("*.pickle")):
            if not path.stem.isdecimal():
                raise SchemaError(f"{path}: the name must be a frame number.")
            value = restricted_load(path, NPY_OBJECT, "HOI4D hand pose")
            if not isinstance(value, dict):
                raise SchemaError(f"{path}: must be a dict.")
            if base.numbers(value.get("poseCoeff", ()), f"{path} poseCoeff").size != 48:
                damaged += 1
                continue
            parts = [base.array(value.get(key, ()), n, f"{path} {key}") for key, n in _KEYS]
            points = base.array(value.get("kps2D", np.zeros((0, 2))), (None, 2), f"{path} kps2D")
            points = points if len(points) == 21 else np.full((21, 2), np.nan)
            labels.setdefault(int(path.stem), {})[slot] = (np.concatenate(parts), points)

    return labels, damaged


def _pictures(
    folder: Path | None, labelled: int
) -> tuple[FrameSource | None, np.ndarray, float, tuple[int, int], list[str]]:
    """Return pictures, times, rate, size and findings: video, else decoded images, else none."""
    pictures = None if folder is None else folder / "align_rgb"
    if pictures is not None and (pictures / "image.mp4").is_file():
        recording = open_video(pictures / "image.mp4")
        text = f"the video has {len(recording)} frames at {recording.fps:.3f} frames per second."
        size = recording.width, recording.height
        return recording.frames, recording.timestamps_ns, recording.fps, size, [text]

    images = {} if pictures is None else numbered_images(pictures)
    count = max(images) + 1 if images else labelled
    if count == 0:
        raise InputError("HOI4D: neither a video nor a readable label.")
    if images and len(images) != count:
        raise InputError(f"{pictures}: {len(images)} images, numbered to {count - 1}.")

    times = base.frame_times(np.arange(count), _LABEL_FPS)
    if images:
        text = f"{count} decoded images, taken as 15 frames per second."
        return ImageFiles(list(images.values())), times, _LABEL_FPS, image_size(images[0]), [text]

    return None, times, _LABEL_FPS, _SIZE, ["no pictures; labels are numbered at 15 per second."]


def _rows_of(
    labels: Collection[int], times: np.ndarray, fps: float, findings: list[str]
) -> dict[int, int | None]:
    """Return label number to frame: the label's time at 15 per second, matched within half a frame.

    The paper states 30 frames per second; the authors decode 15. A video of another rate keeps all
    its frames; those between labels are unlabelled.
    """
    rows: dict[int, int | None] = {}
    for number in labels:
        time = times[0] + number * 1e9 / _LABEL_FPS
        row = int(np.argmin(np.abs(times - time)))
        rows[number] = row if abs(times[row] - time) <= 0.5e9 / fps else None
    if lost := sum(row is None for row in rows.values()):
        findings.append(f"{lost} labels lie beyond the end of the video and are left out.")
    return rows


def _camera(item: base.Item, size: tuple[int, int], findings: list[str]) -> Camera | None:
    path = _intrinsics_file(item)
    unit = path.parent.name
    if not path.is_file():
        findings.append(f"no camera_params/{unit}/intrin.npy: the camera is not known.")
        return None
    try:
        K = base.array(np.load(path, allow_pickle=False), (3, 3), str(path))
    except (OSError, ValueError, EOFError) as error:
        raise SchemaError(f"{path}: not a plain .npy array ({error}).") from error
    camera = base.pinhole(K, _SIZE)
    findings.append(
        f"intrin.npy of {unit}: focal {K[0, 0]:.1f}, {K[1, 1]:.1f}, centre {K[0, 2]:.1f}, "
        f"{K[1, 2]:.1f} px."
    )
    return camera if size == _SIZE else camera.rescaled(*size)


def _intrinsics_file(item: base.Item) -> Path:
    """Return the camera file of a sequence, else its expected path."""
    unit = item.key["sequence"].split("/")[0]
    paths = [top / "camera_params" / unit / "intrin.npy" for top in _tops(item.path)]
    return next((path for path in paths if path.is_file()), paths[0])


def _camera_poses(
    folder: Path | None, count: int, translation: np.ndarray, findings: list[str]
) -> np.ndarray | None:
    """Return camera poses from output.log, read as camera to world.

    The dataset does not confirm the format's direction, so the hands' path lengths under either
    reading are reported; the right one is usually the shorter.
    """
    path = None if folder is None else folder / "3Dseg" / "output.log"
    if path is None or not path.is_file():
        findings.append("no 3Dseg/output.log: no camera poses.")
        return None

    poses = read_log(path)
    if len(poses) != count:
        findings.append(f"output.log has {len(poses)} poses for {count} frames: not used.")
        return None

    lengths = []
    for transform in (poses, frames.inverse(poses)):
        world = frames.apply(transform, np.nan_to_num(translation))
        known = np.isfinite(translation).all(-1)
        paths = [np.diff(world[known[:, slot], slot], axis=0) for slot in range(2)]
        lengths.append(sum(float(np.linalg.norm(path, axis=-1).sum()) for path in paths))

    findings.append(
        f"hands travel {lengths[0]:.2f} m with output.log read as camera to world, {lengths[1]:.2f}"
        " m the other way."
    )
    return poses
