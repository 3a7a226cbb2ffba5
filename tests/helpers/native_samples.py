"""Tiny datasets in exactly the native layouts of the eight datasets, and what they must convert to.

``python tests/helpers/native_samples.py FOLDER [MANO.npz]`` writes all of them, to compare with
your own copy.

Every ``write_*`` makes one dataset under a folder and returns what a reader must find. The labels
are posed here by smplx in the frame and by the convention of each dataset, and the posed joints are
then carried to the camera: the readers convert parameters instead, so the two must meet.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.readers.convert import RunOptions
from acehand_core.ace.labelled.readers.pictures import ClipOptions
from acehand_core.ace.labelled.readers.run import ReaderReport, run

SIDES = ("left", "right")
#: smplx's 16 joints and five tips to OpenPose order.
OPENPOSE = (0, 13, 14, 15, 16, 1, 2, 3, 17, 4, 5, 6, 18, 10, 11, 12, 19, 7, 8, 9, 20)
TIPS = (744, 320, 443, 554, 671)


@dataclass
class Truth:
    """What one recording must become: T frames, camera frame, metres; NaN where no hand."""

    split: str
    present: np.ndarray  # (T, 2) labelled
    joints: np.ndarray  # (T, 2, 21, 3)
    timestamps_ns: np.ndarray  # (T,)
    gray: np.ndarray | None  # (T,) grey level of each native picture
    pixels: np.ndarray | None = None  # (T, 2, 21, 2) in the native picture, by OpenCV or by hand
    left_shapedirs_fixed: bool = False
    mano: bool = True
    unlabelled: np.ndarray | None = None  # (T, 2) neither labelled nor absent; None: nowhere
    left_out: int = 0  # labels without a picture
    T_world_camera: np.ndarray | None = None  # (T, 4, 4), NaN where unknown
    other_views: dict[str, Truth] = field(default_factory=dict)

    @property
    def unlabelled_frames(self) -> int:
        """How many frames have no entry of either hand."""
        return 0 if self.unlabelled is None else int(self.unlabelled.all(1).sum())


class Hands:
    """A made-up MANO posed by smplx under any convention; float64."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as data:
            self.arrays = {
                side: {k.split("/")[1]: data[k] for k in data if k.startswith(side)}
                for side in SIDES
            }

    def pose(
        self, side: str, orient: np.ndarray, fingers: np.ndarray, betas: np.ndarray,
        translation: np.ndarray, *, flat: bool, components: int | None = None,
        repaired: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Return (T, 21, 3) joints of stored numbers, in the frame of the numbers."""
        import smplx
        import torch
        from smplx.utils import Struct

        class Layer(smplx.MANO):
            SHAPE_SPACE_DIM = 10

        arrays = {k: np.asarray(v, np.float64) for k, v in self.arrays[side].items()}
        arrays["kintree_table"] = self.arrays[side]["kintree_table"].astype(np.int64)
        arrays["f"] = self.arrays[side]["f"].astype(np.int64)
        if repaired and side == "left":
            arrays["shapedirs"] = arrays["shapedirs"] * np.array([-1.0, 1, 1])[:, None]
        layer = Layer(
            "", data_struct=Struct(**arrays), is_rhand=side == "right", dtype=torch.float64,
            use_pca=components is not None, num_pca_comps=components or 45, flat_hand_mean=flat,
            batch_size=len(orient),
        )  # fmt: skip
        values = {
            "global_orient": orient, "hand_pose": fingers, "transl": translation,
            "betas": np.broadcast_to(betas, (len(orient), 10)),
        }  # fmt: skip
        with torch.no_grad():
            out = layer(**{k: torch.from_numpy(np.array(v, np.float64)) for k, v in values.items()})
        tree = np.concatenate([out.joints.numpy(), out.vertices.numpy()[:, TIPS]], axis=1)
        return tree[:, OPENPOSE]


@dataclass
class Labels:
    """Stored numbers of both hands and their joints in the camera."""

    orient: np.ndarray
    fingers: np.ndarray
    betas: np.ndarray
    translation: np.ndarray
    joints: np.ndarray


def world_labels(
    hands: Hands, random: np.random.Generator, T_camera_world: np.ndarray, *, flat: bool,
    components: int | None = None, repaired: bool = False, depth: float = 0.45,
) -> Labels:  # fmt: skip
    """Draw labels in the world such that the wrists stand before the camera."""
    count = len(T_camera_world)
    width = components or 45
    orient = random.normal(0, 0.6, (count, 2, 3))
    fingers = random.normal(0, 0.15, (count, 2, width))
    betas = random.normal(0, 1.0, (2, 10))
    if components is not None:
        betas[0] = betas[1]  # HOT3D: one shape for both hands
    translation, joints = np.zeros((count, 2, 3)), np.zeros((count, 2, 21, 3))
    R, t = T_camera_world[:, :3, :3], T_camera_world[:, :3, 3]
    for slot, side in enumerate(SIDES):
        wanted = np.array([-0.06 + 0.12 * slot, 0.02, depth]) + random.normal(0, 0.01, (count, 3))
        wrist = np.einsum("tji,tj->ti", R, wanted - t)
        rest = hands.pose(
            side, orient[:, slot], fingers[:, slot], betas[slot], np.zeros((count, 3)),
            flat=flat, components=components, repaired=repaired,
        )  # fmt: skip
        translation[:, slot] = wrist - rest[:, 0]
        posed = rest + translation[:, slot, None]
        joints[:, slot] = np.einsum("tij,tnj->tni", R, posed) + t[:, None]
    return Labels(orient, fingers, betas, translation, joints)


def camera_path(random: np.random.Generator, count: int) -> np.ndarray:
    """Return (T, 4, 4) T_camera_world: large turns, far from the world's origin."""
    out = np.tile(np.eye(4), (count, 1, 1))
    for row in range(count):
        out[row, :3, :3] = cv2.Rodrigues(np.array([0.4, -1.2, 0.7]) + 0.05 * row)[0]
        out[row, :3, 3] = [0.3, -0.4, 1.1 + 0.02 * row]
    return out


def rigid(vector: list[float], translation: list[float]) -> np.ndarray:
    """Return the 4x4 of a rotation vector and a translation."""
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = cv2.Rodrigues(np.array(vector))[0], translation
    return out


def moved(T: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return points (T, 2, 21, 3) carried by transforms (T, 4, 4)."""
    return np.einsum("tij,tskj->tski", T[:, :3, :3], points) + T[:, None, None, :3, 3]


def at_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return rows of an array as floats, NaN where there is no such row."""
    out = [values[r] if 0 <= r < len(values) else np.full(values.shape[1:], np.nan) for r in rows]
    return np.stack(out).astype(float)


def write_image(path: Path, gray: int, size: tuple[int, int]) -> None:
    """Write a picture of one grey level; (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((size[1], size[0], 3), gray, np.uint8))


def level(number: int) -> int:
    """Return the grey level that tells a native frame number."""
    return 20 + (17 * number) % 210


def pinhole(joints: np.ndarray, K: np.ndarray) -> np.ndarray:
    """Return pixels of joints."""
    plane = joints[..., :2] / joints[..., 2:]
    return plane * (K[0, 0], K[1, 1]) + K[:2, 2]


def write_gray_video(path: Path, count: int, size: tuple[int, int], fps: int) -> None:
    """Write an mp4 of grey pictures."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps), options={"crf": "0"})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(count):
            picture = np.full((size[1], size[0], 3), level(number), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def save_object(path: Path, value: object) -> None:
    """Write a pickled .npy, as numpy does of a dict."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.array(value, dtype=object), allow_pickle=True)


def at_30_hz(rows: np.ndarray, hertz: float = 30.0) -> np.ndarray:
    """Return times of frame numbers."""
    return np.round(np.asarray(rows) * 1e9 / hertz).astype(np.int64)


def write_arctic(root: Path, hands: Hands) -> dict[str, Truth]:
    """Two subjects of one sequence: 54 rows of labels, pictures for rows -2 to 5 and 55."""
    out = {}
    rows = np.array([*range(-2, 6), 55])
    unlabelled = np.repeat(((rows < 0) | (rows >= 54))[:, None], 2, 1)
    size, lens = (280, 200), [0.08, -0.03, 1e-3, -2e-3, 0.004, 0.05, -0.02, 0.001]
    K = np.array([[150.0, 0, 141], [0, 151, 99], [0, 0, 1]])
    fixed_K = [
        np.array([[160.0 + 7 * v, 0, 130 + v], [0, 165.0 + 5 * v, 105 - v], [0, 0, 1]])
        for v in range(1, 9)
    ]
    fixed_size = [(240 + 8 * v, 180 + 4 * v) for v in range(1, 9)]
    misc = {}
    for number, subject in enumerate(("s01", "s05")):
        random = np.random.default_rng(number)
        T = camera_path(random, 54)
        # Fixed cameras stand around the hands, in front of and next to the head's.
        fixed = [rigid([0.1 * v, -0.2, 0.05], [0.02 * v, -0.03, 0.3 + 0.02 * v]) @ T[2]
                 for v in range(1, 9)]  # fmt: skip
        labels = world_labels(hands, random, T, flat=False)
        value = {
            side: {
                "rot": labels.orient[:, slot].astype(np.float64),
                "pose": labels.fingers[:, slot],
                "trans": labels.translation[:, slot],
                "shape": labels.betas[slot],
                "fitting_err": [0.1] * 54,
            }
            for slot, side in enumerate(SIDES)
        }
        folder = root / "arctic_data" / "data"
        save_object(folder / "raw_seqs" / subject / "box_grab_01.mano.npy", value)
        ego = {
            "R_k_cam_np": T[:, :3, :3], "T_k_cam_np": T[:, :3, 3:], "intrinsics": K,
            "dist8": np.array(lens), "ego_markers.ref": np.zeros((3, 3)),
            "ego_markers.label": ["a"], "R0": np.eye(3), "T0": np.zeros((3, 1)),
        }  # fmt: skip
        save_object(folder / "raw_seqs" / subject / "box_grab_01.egocam.dist.npy", ego)
        for view in (0, 3, 8):
            for image in rows + 3:
                path = folder / "images" / subject / "box_grab_01" / str(view) / f"{image:05d}.jpg"
                write_image(path, level(image), size if view == 0 else fixed_size[view - 1])
        misc[subject] = {
            "gender": "neutral", "image_size": [list(size), *map(list, fixed_size)],
            "intris_mat": [k.tolist() for k in fixed_K],
            "world2cam": [pose.tolist() for pose in fixed], "ioi_offset": 3,
        }  # fmt: skip

        def truth(joints, pixels, T_world_camera, subject=subject):
            return Truth(
                "test" if subject == "s05" else "train", ~unlabelled, at_rows(joints, rows),
                at_30_hz(rows + 2), np.array([level(n) for n in rows + 3]), at_rows(pixels, rows),
                unlabelled=unlabelled, left_out=54 - 6, T_world_camera=T_world_camera,
            )  # fmt: skip

        pixels = cv2.projectPoints(
            labels.joints.reshape(-1, 3), np.zeros(3), np.zeros(3), K, np.array(lens)
        )[0].reshape(54, 2, 21, 2)
        found = truth(labels.joints, pixels, at_rows(np.linalg.inv(T), rows))
        world = moved(np.linalg.inv(T), labels.joints)
        for view in (3, 8):
            joints = moved(np.repeat(fixed[view - 1][None], 54, 0), world)
            poses = np.repeat(np.linalg.inv(fixed[view - 1])[None], len(rows), 0)
            found.other_views[str(view)] = truth(joints, pinhole(joints, fixed_K[view - 1]), poses)
        out[f"{subject}_box_grab_01_view0"] = found
    (folder / "meta").mkdir()
    (folder / "meta" / "misc.json").write_text(json.dumps(misc))
    return out


def write_h2o(root: Path, hands: Hands) -> dict[str, Truth]:
    """Subjects 1 and 4, five frames; the third without a left hand; a label without a picture."""
    out = {}
    K = np.array([[300.0, 0, 150], [0, 301, 88], [0, 0, 1]])
    for number, subject in enumerate(("subject1", "subject4")):
        random = np.random.default_rng(10 + number)
        identity = np.tile(np.eye(4), (5, 1, 1))
        labels = world_labels(hands, random, identity, flat=True)
        folder = root / subject / "h1" / "0" / "cam4"
        present = np.ones((5, 2), bool)
        present[2, 0] = False
        for name in ("hand_pose", "hand_pose_mano", "cam_pose", "obj_pose", "action_label"):
            (folder / name).mkdir(parents=True)
        poses = np.stack([rigid([0.3, -0.8, 0.1 * row], [0.1 * row, 0.2, 0.3]) for row in range(5)])
        for row in range(5):
            write_image(folder / "rgb" / f"{row:06d}.png", level(row), (320, 180))
            joints, mano = [], []
            for slot in range(2):
                flag = float(present[row, slot])
                keep = flag == 1
                points = labels.joints[row, slot].ravel() * keep
                joints += [flag, *points]
                numbers = [
                    *labels.translation[row, slot], *labels.orient[row, slot],
                    *labels.fingers[row, slot], *labels.betas[slot],
                ]  # fmt: skip
                mano += [flag, *(np.array(numbers) * keep)]
            for name, values in (("hand_pose", joints), ("hand_pose_mano", mano)):
                (folder / name / f"{row:06d}.txt").write_text(" ".join(f"{v:.17g}" for v in values))
            (folder / "cam_pose" / f"{row:06d}.txt").write_text(
                " ".join(f"{v:.12g}" for v in poses[row].ravel())
            )
        (folder / "hand_pose" / "000005.txt").write_text(" ".join("0" for _ in range(128)))
        (folder / "cam_intrinsics.txt").write_text("300.0 301.0 150.0 88.0 320 180")
        joints = np.where(present[..., None, None], labels.joints, np.nan)
        out[f"{subject}_h1_0_cam4"] = Truth(
            "test" if subject == "subject4" else "train", present, joints, at_30_hz(np.arange(5)),
            np.array([level(n) for n in range(5)]), pinhole(joints, K),
            unlabelled=~present, left_out=1, T_world_camera=poses,
        )  # fmt: skip
    return out


def write_oakink2(root: Path, hands: Hands) -> dict[str, Truth]:
    """One sequence by camera name with png, one by serial number with jpg; torch in the pickle."""
    # Picture 17 has no camera, 25 is not listed and has no label; label 21 has no picture.
    import torch

    out = {}
    K = np.array([[200.0, 0, 105], [0, 202, 61], [0, 0, 1]])
    top_K = np.array([[230.0, 0, 96], [0, 226, 66], [0, 0, 1]])
    serial, top_serial = "104422070969", "651210000001"
    for number, by_name in enumerate((True, False)):
        random = np.random.default_rng(20 + number)
        token = f"scene_01__A00{number}++seq__{'0123456789abcdef0123'}__2023-04-21-19-00-0{number}"
        ids, pictures = [0, 4, 8, 13, 17, 21], [0, 4, 8, 13, 17, 25]
        labelled = np.array([True] * 4 + [False] * 2)
        T = camera_path(random, 6)
        top = rigid([0.5, 0.2, -0.1], [0.05, 0.1, 0.3]) @ T[1]
        labels = world_labels(hands, random, T, flat=True)
        present = np.ones((6, 2), bool)
        present[1, 1] = False
        raw = {}
        for row, frame in enumerate(ids):
            entry = {}
            for slot, prefix in enumerate(("lh__", "rh__")):
                if not present[row, slot]:
                    continue
                vectors = [*labels.orient[row, slot], *labels.fingers[row, slot]]
                turns = (cv2.Rodrigues(vector)[0] for vector in np.reshape(vectors, (16, 3)))
                quaternion = np.array([_quaternion(turn) for turn in turns])
                wrist = np.linalg.inv(T[row]) @ [*labels.joints[row, slot, 0], 1]
                entry[f"{prefix}pose_coeffs"] = torch.from_numpy(quaternion[None]).float()
                entry[f"{prefix}tsl"] = torch.from_numpy(wrist[None, :3]).float()
                entry[f"{prefix}betas"] = torch.from_numpy(labels.betas[slot][None]).float()
            raw[frame] = entry
        key, top_key = ("egocentric", "allocentric_top") if by_name else (serial, top_serial)
        value = {
            "cam_def": {serial: "egocentric", top_serial: "allocentric_top"},
            "cam_selection": ["egocentric"], "frame_id_list": ids,
            "cam_intr": {
                key: {n: K.astype(np.float32) for n in (*ids, 25)},
                top_key: {n: top_K.astype(np.float32) for n in ids},
            },
            "cam_extr": {
                key: {n: T[row] for row, n in enumerate(ids) if n != 17} | {25: T[5]},
                top_key: dict.fromkeys(ids, top),
            },
            "mocap_frame_id_list": list(range(22)), "obj_list": ["O02@0010@00001"],
            "obj_transf": {"O02@0010@00001": {n: np.eye(4) for n in range(14)}},
            "raw_smplx": {0: {"world_tsl": torch.zeros(1, 3)}}, "raw_mano": raw,
        }  # fmt: skip
        (root / "anno_preview").mkdir(exist_ok=True)
        (root / "anno_preview" / f"{token}.pkl").write_bytes(pickle.dumps(value))
        suffix = "png" if by_name else "jpg"
        for n in pictures:
            write_image(root / "data" / token / serial / f"{n:06d}.{suffix}", level(n), (212, 120))
        for n in ids[:3]:
            path = root / "data" / token / top_serial / f"{n:06d}.{suffix}"
            write_image(path, level(n + 1), (200, 130))
        joints = np.where(present[..., None, None], labels.joints, np.nan)
        world = moved(np.linalg.inv(T), joints)
        joints[~labelled] = np.nan
        poses = np.linalg.inv(T)
        poses[4] = np.nan
        found = Truth(
            "", present & labelled[:, None], joints, at_30_hz(np.array(pictures), 120.0),
            np.array([level(n) for n in pictures]), pinhole(joints, K),
            unlabelled=np.repeat(~labelled[:, None], 2, 1), left_out=1, T_world_camera=poses,
        )  # fmt: skip
        tops = np.repeat(top[None], 3, 0)
        joints = moved(tops, world[:3])
        found.other_views["allocentric_top"] = Truth(
            "", present[:3], joints, at_30_hz(np.array(ids[:3]), 120.0),
            np.array([level(n + 1) for n in ids[:3]]), pinhole(joints, top_K), left_out=3,
            T_world_camera=np.linalg.inv(tops),
        )  # fmt: skip
        out[token.replace("++", "__") + "_egocentric"] = found
    return out


def write_interhand(root: Path, hands: Hands) -> dict[str, Truth]:
    """One capture of two segments, every other frame; a fisheye lens; one missing left hand."""
    # Of the second segment frame 34 has no camera, 36 no picture and 38 no label.
    capture = "m--20221111--0944--JFQ550--pilot--ProjectGoliath--Hands--two-hands"
    folder, out = root / "data" / capture, {}
    view = folder / "Ego_cameras" / "envmap_per_segment"
    lens, K = [0.05, -0.02, 0.004, 0.001], np.array([[120.0, 0, 80], [0, 121, 60], [0, 0, 1]])
    for name in ("mano_fits/params", "orig_fits/left/Keypoints", "orig_fits/right/Keypoints"):
        (folder / name).mkdir(parents=True)
    (view / "cam_params").mkdir(parents=True)
    listed, ratios = [], {}
    for number, (segment, frames) in enumerate(
        (("0001", (10, 12, 14)), ("0002", (30, 32, 34, 38)))
    ):
        random = np.random.default_rng(30 + number)
        T = camera_path(random, len(frames))
        labels = world_labels(hands, random, T, flat=False, repaired=True)
        present = np.ones((len(frames), 2), bool)
        present[0, 0] = False
        unlabelled = np.repeat(np.isin(frames, (34, 38))[:, None], 2, 1)
        poses = np.linalg.inv(T)
        poses[np.isin(frames, 34)] = np.nan
        for row, frame in enumerate(frames):
            listed.append(f"{segment} {frame:06d}")
            ratios[f"{frame:06d}"] = 0.1 if row else 1.0
            write_image(view / "images" / f"{frame:06d}.png", level(frame), (161, 121))
            camera = {
                "R": T[row, :3, :3].tolist(), "t": (T[row, :3, 3] * 1000).tolist(),
                "focal": [120.0, 121.0], "princpt": [80.0, 60.0], "D": lens,
            }  # fmt: skip
            if frame != 34:
                (view / "cam_params" / f"{frame:06d}.json").write_text(json.dumps(camera))
            for slot, side in enumerate(SIDES):
                if not present[row, slot] or frame == 38:
                    continue
                pose = [*labels.orient[row, slot], *labels.fingers[row, slot]]
                mano = {
                    "pose": pose, "shape": labels.betas[slot].tolist(),
                    "trans": labels.translation[row, slot].tolist(),
                }  # fmt: skip
                (folder / "mano_fits" / "params" / f"{frame}_{side}.json").write_text(
                    json.dumps(mano)
                )
                world = (labels.joints[row, slot] - T[row, :3, 3]) @ T[row, :3, :3] * 1000
                points = np.full((24, 3), 7.0)
                keep = [0, *range(2, 18), *range(19, 23)]
                points[keep] = world
                path = folder / "orig_fits" / side / "Keypoints" / f"keypoint-{frame:06d}.json"
                path.write_text(json.dumps(points.tolist()))
        present &= ~unlabelled
        joints = np.where(present[..., None, None], labels.joints, np.nan)
        pixels = cv2.fisheye.projectPoints(
            joints.reshape(1, -1, 3), np.zeros(3), np.zeros(3), K, np.array(lens)
        )[0].reshape(len(frames), 2, 21, 2)
        times = at_30_hz(np.array(frames) - frames[0])
        out[f"{capture}_{segment}_envmap_per_segment"] = Truth(
            "train", present, joints, times, np.array([level(n) for n in frames]), pixels,
            left_shapedirs_fixed=True, unlabelled=unlabelled, left_out=number,
            T_world_camera=poses,
        )  # fmt: skip
    listed.append("0002 000036")
    write_image(view / "images" / "000050.png", level(50), (161, 121))  # of no segment
    (folder / "frame_list.txt").write_text("\n".join(listed) + "\n")
    (folder / "frame_list_orig.txt").write_text("\n".join(listed) + "\n")
    (view / "truncation_ratio.json").write_text(json.dumps(ratios))
    return out


def write_freihand(root: Path, hands: Hands) -> dict[str, Truth]:
    """Three samples in four picture versions, one evaluation sample without labels of MANO."""
    out = {}
    values: dict[str, list] = {"K": [], "mano": [], "xyz": [], "scale": []}
    K = np.array([[480.0, 0, 112], [0, 482, 110], [0, 0, 1]])
    labels = world_labels(
        hands, np.random.default_rng(40), np.tile(np.eye(4), (3, 1, 1)), flat=False, depth=0.7
    )
    for index in range(3):
        joints = labels.joints[index, 1]
        root_joint = joints[9]
        # The authors divide by the mean focal length for all three: solved for pixel and scale.
        focal = (K[0, 0] + K[1, 1]) / 2
        scale = focal / root_joint[2]
        numbers = [
            *labels.orient[index, 1], *labels.fingers[index, 1], *labels.betas[1],
            *(root_joint[:2] * scale + K[:2, 2]), scale,
        ]  # fmt: skip
        values["K"].append(K.tolist())
        values["mano"].append([numbers])
        values["xyz"].append(joints.tolist())
        values["scale"].append(float(np.linalg.norm(joints[9] - joints[10])))
        for version in range(4):
            number = index + 3 * version
            write_image(root / "training" / "rgb" / f"{number:08d}.jpg", level(number), (224, 224))
        truth = np.full((1, 2, 21, 3), np.nan)
        truth[0, 1] = joints
        out[f"training_{index:08d}_gs"] = Truth(
            "train", np.array([[False, True]]), truth, np.zeros(1, np.int64),
            np.array([level(index)]), pinhole(truth, K),
        )  # fmt: skip
    for name, value in values.items():
        (root / f"training_{name}.json").write_text(json.dumps(value))
    (root / "evaluation_K.json").write_text(json.dumps([K.tolist()]))
    (root / "evaluation_scale.json").write_text(json.dumps([0.03]))
    write_image(root / "evaluation" / "rgb" / "00000000.jpg", 99, (224, 224))
    absent = np.zeros((1, 2), bool)
    out["evaluation_00000000_gs"] = Truth(
        "test", absent, np.full((1, 2, 21, 3), np.nan), np.zeros(1, np.int64), np.array([99]),
        mano=False,
    )  # fmt: skip
    return out


def write_rhd(root: Path, hands: Hands) -> dict[str, Truth]:
    """Two training pictures and one of evaluation; fingers from tip to base; Python 2's pickle."""
    out = {}
    K = np.array([[280.0, 0, 160], [0, 280, 160], [0, 0, 1]], np.float32)
    for part, split, count in (("training", "train", 2), ("evaluation", "test", 1)):
        labels = world_labels(
            hands, np.random.default_rng(50 + count), np.tile(np.eye(4), (count, 1, 1)), flat=True
        )
        content = {}
        for index in range(count):
            order = [0, 4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9, 16, 15, 14, 13, 20, 19, 18, 17]
            xyz = labels.joints[index][:, order].reshape(42, 3)
            uv = pinhole(xyz, K)
            seen = np.ones((42, 1))
            seen[:7] = 0
            content[index] = {
                "uv_vis": np.concatenate([uv, seen], 1).astype(np.float32),
                "xyz": xyz.astype(np.float32), "K": K,
            }  # fmt: skip
            path = root / part / "color" / f"{index:05d}.png"
            write_image(path, level(index), (320, 320))
            pixels = pinhole(labels.joints[index], K)[None]
            pixels[0, 0][[0, 4, 3, 2, 1, 8, 7]] = np.nan
            out[f"{part}_{index:05d}"] = Truth(
                split, np.ones((1, 2), bool), labels.joints[index][None], np.zeros(1, np.int64),
                np.array([level(index)]), pixels, mano=False,
            )  # fmt: skip
        (root / part / f"anno_{part}.pickle").write_bytes(pickle.dumps(content, protocol=2))
    return out


def write_hoi4d(root: Path, hands: Hands) -> dict[str, Truth]:
    """One sequence of eight frames at 15 Hz, a tenth of the size; right hand, three labels."""
    sequence = "ZY20210800001/H1/C1/N19/S100/s02/T1"
    count, size = 8, (192, 108)
    folder = root / "HOI4D_release" / sequence
    (folder / "align_rgb").mkdir(parents=True)
    write_gray_video(folder / "align_rgb" / "image.mp4", count, size, 15)
    K = np.array([[1000.0, 0, 960], [0, 1000, 540], [0, 0, 1]])
    (root / "camera_params" / "ZY20210800001").mkdir(parents=True)
    np.save(root / "camera_params" / "ZY20210800001" / "intrin.npy", K)
    labels = world_labels(
        hands, np.random.default_rng(60), np.tile(np.eye(4), (count, 1, 1)), flat=True
    )
    poses = root / "handpose" / "refinehandpose_right" / sequence
    poses.mkdir(parents=True)
    present = np.zeros((count, 2), bool)
    for row in (0, 3, 7):
        present[row, 1] = True
        value = {
            "poseCoeff": np.concatenate([labels.orient[row, 1], labels.fingers[row, 1]]),
            "beta": labels.betas[1], "trans": labels.translation[row, 1],
            "kps2D": pinhole(labels.joints[row, 1], K),
        }  # fmt: skip
        (poses / f"{row}.pickle").write_bytes(pickle.dumps(value, protocol=2))
    damaged = {"poseCoeff": np.zeros(1), "beta": np.zeros(10), "trans": np.zeros(3)}
    (poses / "5.pickle").write_bytes(pickle.dumps(damaged, protocol=2))
    (poses / "11.pickle").write_bytes((poses / "7.pickle").read_bytes())
    (folder / "3Dseg").mkdir()
    # As Redwood's trajectories are defined: the matrix takes points of the camera to the world.
    T_world_camera = np.stack(
        [rigid([0.2 * n, 0.5, -0.1], [0.1, 0.2, 0.1 * n]) for n in range(count)]
    )
    lines = [
        f"{n} {n} {n + 1}\n" + "".join(" ".join(f"{v:.15g}" for v in row) + "\n" for row in pose)
        for n, pose in enumerate(T_world_camera)
    ]
    (folder / "3Dseg" / "output.log").write_text("".join(lines))
    joints = np.where(present[..., None, None], labels.joints, np.nan)
    small = np.array([[100.0, 0, 95.55], [0, 100, 53.55], [0, 0, 1]])  # centres of smaller pixels
    return {
        sequence.replace("/", "_"): Truth(
            "test", present, joints, at_30_hz(np.arange(count), 15.0),
            np.array([level(n) for n in range(count)]), pinhole(joints, small),
            unlabelled=np.repeat(~present[:, 1:], 2, 1), left_out=1,
            T_world_camera=T_world_camera,
        )
    }  # fmt: skip


def fisheye624(joints: np.ndarray, numbers: list[float]) -> np.ndarray:
    """Return pixels of the Aria model, written out once more."""
    fx, fy, cx, cy, *lens = numbers
    k, (p1, p2), s = lens[:6], lens[6:8], lens[8:]
    x, y, z = np.moveaxis(joints, -1, 0)
    radius = np.hypot(x, y)
    theta = np.arctan2(radius, z)
    scale = theta * (1 + sum(c * theta ** (2 * i + 2) for i, c in enumerate(k))) / radius
    u, v = x * scale, y * scale
    r2 = u * u + v * v
    px = u + p1 * (r2 + 2 * u * u) + 2 * p2 * u * v + s[0] * r2 + s[1] * r2 * r2
    py = v + p2 * (r2 + 2 * v * v) + 2 * p1 * u * v + s[2] * r2 + s[3] * r2 * r2
    return np.stack([fx * px + cx, fy * py + cy], -1)


#: f, centre, k1..k6, p1, p2, s1..s4 of a picture of 1408 x 1408.
ARIA = [610.0, 715.0, 713.0, 0.4, -0.5, 0.16, 0.6, -0.6, 0.16, 2e-3, -1e-3, 1e-3, -5e-4, 2e-3, 1e-3]


def _quaternion(R: np.ndarray) -> list[float]:
    vector = cv2.Rodrigues(R)[0].ravel()
    angle = np.linalg.norm(vector)
    axis = vector / max(angle, 1e-12)
    return [float(np.cos(angle / 2)), *map(float, axis * np.sin(angle / 2))]


#: Points of the upright camera, whose x is the stored -y and whose y is the stored x, as stored.
UPRIGHT = np.array([[0.0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def _turned(joints: np.ndarray) -> np.ndarray:
    """Return points of the stored Aria camera in the camera turned upright: (x, y) -> (-y, x)."""
    return np.stack([-joints[..., 1], joints[..., 0], joints[..., 2]], -1)


def _turned_pixels(pixels: np.ndarray, height: int) -> np.ndarray:
    return np.stack([height - 1 - pixels[..., 1], pixels[..., 0]], -1)


#: Aria's streams: label, width, height, f and centre; where the camera is on the device.
ARIA_STREAMS = {
    "214-1": ("camera-rgb", 1408, 1408, ARIA[:3], rigid([0.2, 0.3, -0.1], [0.01, 0.05, -0.02])),
    "1201-1": ("camera-slam-left", 640, 480, [240.0, 322.0, 238.0],
               rigid([0.1, 0.5, 0.0], [-0.04, 0.05, -0.01])),
    "1201-2": ("camera-slam-right", 640, 480, [242.0, 318.0, 241.0],
               rigid([0.72, 0.1, -0.2], [0.05, 0.04, -0.03])),
}  # fmt: skip
MASKS = (
    "good_exposure", "hand_pose_available", "hand_visible", "headset_pose_available",
    "object_pose_available", "object_visible",
)  # fmt: skip


def write_hot3d(root: Path, hands: Hands) -> dict[str, Truth]:
    """An Aria sequence (times twice, calibration per line) and a Quest 3 one."""
    # recording.vrs is a stub: pictures come from an injected source, grey by frame.
    out = {}
    for number, (name, quest) in enumerate((("P0001_aaaaaaaa", False), ("P0002_bbbbbbbb", True))):
        folder = root / name
        present = np.ones((3, 2), bool)
        present[1, 0] = False
        found = write_hot3d_sequence(folder, hands, present, 70 + number, quest)
        main = "1201-1" if quest else "214-1"
        out[f"{name}_{main}"] = found.pop(main)
        out[f"{name}_{main}"].other_views.update(found)
        (folder / "recording.vrs").write_bytes(b"stub")
    return out


def write_hot3d_sequence(
    folder: Path, hands: Hands, present: np.ndarray, seed: int, quest: bool = False
) -> dict[str, Truth]:
    """Write one sequence without its recording; return what each stream must become."""
    random, count = np.random.default_rng(seed), len(present)
    (folder / "masks").mkdir(parents=True)
    T = camera_path(random, count)
    labels = world_labels(hands, random, T, flat=False, components=15, repaired=True)
    streams = (
        {"1201-1": ("camera-slam-left", 1408, 1408, ARIA[:3], ARIA_STREAMS["214-1"][4])}
        if quest
        else ARIA_STREAMS
    )
    main = next(iter(streams.values()))[4]  # the camera that ``T`` is of
    device = np.linalg.inv(T) @ np.linalg.inv(main)
    times = 56_700_000_000_000 + at_30_hz(np.arange(count))
    stamps = times if quest else np.sort(np.concatenate([times, times + 90_000]))
    head, mano, umetrack = [], [], []
    for row, stamp in enumerate(stamps):
        moment = row if quest else row // 2
        numbers = [*device[moment, :3, 3], *_quaternion(device[moment, :3, :3])]
        head.append(f"1,{stamp}," + ",".join(f"{v:.15f}" for v in numbers))
        poses, wrists = {}, {}
        for slot in np.flatnonzero(present[moment]):
            quaternion = _quaternion(cv2.Rodrigues(labels.orient[moment, slot])[0])
            wrist = np.linalg.inv(T[moment]) @ [*labels.joints[moment, slot, 0], 1]
            poses[str(slot)] = {
                "pose": labels.fingers[moment, slot].tolist(),
                "wrist_xform": {
                    "t_xyz": labels.translation[moment, slot].tolist(), "q_wxyz": quaternion,
                },
                "betas": labels.betas[slot].tolist(),
            }  # fmt: skip
            wrists[str(slot)] = {
                "wrist_xform": {"t_xyz": wrist[:3].tolist(), "q_wxyz": quaternion},
                "joint_angles": [0.0] * 22, "hand_confidence": 1.0,
            }  # fmt: skip
        mano.append(json.dumps({"timestamp_ns": int(stamp), "hand_poses": poses}))
        umetrack.append(json.dumps({"timestamp_ns": int(stamp), "hand_poses": wrists}))
    out, boxes, masks = {}, [], {name: [] for name in MASKS}
    for stream, (_, width, height, (f, cx, cy), device_camera) in streams.items():
        seen = times if stream == "214-1" or quest else times + 90_000
        T_world_camera = device @ device_camera
        joints = moved(np.linalg.inv(T_world_camera) @ np.linalg.inv(T), labels.joints)
        joints = np.where(present[..., None, None], joints, np.nan)
        pixels = fisheye624(joints, [f, f, cx, cy, *ARIA[3:]])
        inside = ((pixels > -0.5) & (pixels < (width - 0.5, height - 0.5))).all(-1)
        for row, stamp in enumerate(seen):
            for slot in range(2):
                cells, ratio = ["", "", "", ""], 0.0
                if inside[row, slot].any():
                    low, high = pixels[row, slot].min(0) - 9, pixels[row, slot].max(0) + 9
                    cells = [f"{v:.3f}" for v in (low[0], high[0], low[1], high[1])]
                    ratio = 0.5 + 0.25 * slot
                boxes.append(",".join([stream, str(slot), str(stamp), *cells, str(ratio)]))
            for name, lines in masks.items():
                good = {
                    "hand_pose_available": present[row].all(),
                    "hand_visible": inside[row].any(),
                }.get(name, True)
                lines.append(f"{stamp},{stream},{bool(good)}")
        if not quest:
            joints, T_world_camera = _turned(joints), T_world_camera @ UPRIGHT
            pixels = _turned_pixels(pixels, height)
        out[stream] = Truth(
            "", present, joints, seen, np.array([level(n) for n in range(count)]), pixels,
            left_shapedirs_fixed=True, unlabelled=~present, T_world_camera=T_world_camera,
        )  # fmt: skip
    pose_header = (
        "object_uid,timestamp[ns],t_wo_x[m],t_wo_y[m],t_wo_z[m],q_wo_w,q_wo_x,q_wo_y,q_wo_z"
    )
    box_header = (
        "stream_id,hand_index,timestamp[ns],x_min[pixel],x_max[pixel],y_min[pixel],"
        "y_max[pixel],visibility_ratio[%]"
    )
    files = {
        "headset_trajectory.csv": [pose_header, *head],
        "dynamic_objects.csv": [pose_header],
        "box2d_hands.csv": [box_header, *boxes],
        "mano_hand_pose_trajectory.jsonl": mano,
        "umetrack_hand_pose_trajectory.jsonl": umetrack,
        **{
            f"masks/mask_{name}.csv": ["timestamp[ns],stream_id,mask", *lines]
            for name, lines in masks.items()
        },
    }
    for file, lines in files.items():
        (folder / file).write_text("\n".join(lines) + "\n")
    metadata = {
        "headset": "Quest3" if quest else "Aria", "participant_id": folder.name[:5],
        "recording_name": folder.name, "gt_available_status": {"mano_hand_pose_gt": True},
    }  # fmt: skip
    (folder / "metadata.json").write_text(json.dumps(metadata))
    if quest:
        _write_quest_camera(folder, main, [ARIA[0], *ARIA])
    else:
        _write_aria_calibration(folder, count)
    return out


def _write_quest_camera(folder: Path, device_camera: np.ndarray, numbers: list[float]) -> None:
    camera = {
        "T_Device_Camera": {
            "quaternion_wxyz": _quaternion(device_camera[:3, :3]),
            "translation_xyz": device_camera[:3, 3].tolist(),
        },
        "imageHeight": 1408, "imageWidth": 1408, "label": "camera-slam-left",
        "maxSolidAngle": 3.14, "projectionModelType": "CameraModelType.FISHEYE624",
        "projectionParams": numbers, "serialNumber": "", "stream_id": "1201-1",
    }  # fmt: skip
    (folder / "camera_models.json").write_text(json.dumps([camera]))


def _write_aria_calibration(folder: Path, count: int) -> None:
    cameras = []
    for label, _, _, numbers, device_camera in ARIA_STREAMS.values():
        w, *xyz = _quaternion(device_camera[:3, :3])
        cameras.append({
            "Calibrated": True,
            "Projection": {"Params": [*numbers, *ARIA[3:]], "Name": "FisheyeRadTanThinPrism"},
            "T_Device_Camera": {
                "Translation": device_camera[:3, 3].tolist(), "UnitQuaternion": [w, xyz],
            },
            "SerialNumber": "0", "Label": label,
        })  # fmt: skip
    (folder / "mps" / "slam").mkdir(parents=True)
    lines = [
        json.dumps(
            {"tracking_timestamp_us": 1 + n, "utc_timestamp_ns": 2, "ImuCalibrations": [],
             "CameraCalibrations": cameras}
        )
        for n in range(count)
    ]  # fmt: skip
    (folder / "mps" / "slam" / "online_calibration.jsonl").write_text("\n".join(lines) + "\n")


def write_hot3d_clips(root: Path, hands: Hands) -> dict[str, Truth]:
    """One clip of Aria with three frames; the second frame lacks the left hand."""
    random = np.random.default_rng(80)
    T = camera_path(random, 3)
    labels = world_labels(hands, random, T, flat=False, components=15, repaired=True)
    present = np.ones((3, 2), bool)
    present[1, 0] = False
    members: dict[str, bytes] = {}
    for row in range(3):
        pose = np.linalg.inv(T[row])
        members[f"{row:06d}.cameras.json"] = json.dumps(
            {
                "214-1": {
                    "calibration": {
                        "label": "camera-rgb", "stream_id": "214-1", "serial_number": "0",
                        "image_width": 1408, "image_height": 1408,
                        "projection_model_type": "CameraModelType.FISHEYE624",
                        "projection_params": ARIA, "max_solid_angle": 1.0,
                    },
                    "T_world_from_camera": {
                        "translation_xyz": pose[:3, 3].tolist(),
                        "quaternion_wxyz": _quaternion(pose[:3, :3]),
                    },
                }
            }
        ).encode()  # fmt: skip
        entry = {}
        for slot, side in enumerate(SIDES):
            if present[row, slot]:
                xform = [*labels.orient[row, slot], *labels.translation[row, slot]]
                entry[side] = {
                    "mano_pose": {
                        "thetas": labels.fingers[row, slot].tolist(), "wrist_xform": xform,
                    },
                    "boxes_amodal": {"214-1": [0, 0, 9, 9]},
                    "visibilities_modeled": {"214-1": 0.5},
                }  # fmt: skip
        members[f"{row:06d}.hands.json"] = json.dumps(entry).encode()
        members[f"{row:06d}.info.json"] = json.dumps(
            {"image_timestamps_ns": {"214-1": 5_000_000_000 + row * 33_333_333}}
        ).encode()
        image = np.full((1408, 1408, 3), level(row), np.uint8)
        members[f"{row:06d}.image_214-1.jpg"] = cv2.imencode(".jpg", image)[1].tobytes()
    shapes = {"mano": labels.betas[0].tolist(), "umetrack": {}}
    members["__hand_shapes.json__"] = json.dumps(shapes).encode()
    (root / "train_aria").mkdir(parents=True)
    write_tar(root / "train_aria" / "clip-000001.tar", members)
    definitions = {"1": {"device": "Aria", "sequence_id": "P0001_aaaaaaaa"}}
    (root / "clip_definitions.json").write_text(json.dumps(definitions))
    joints = _turned(np.where(present[..., None, None], labels.joints, np.nan))
    pixels = fisheye624(labels.joints, [ARIA[0], *ARIA])
    pixels = _turned_pixels(np.where(present[..., None, None], pixels, np.nan), 1408)
    times = 5_000_000_000 + np.arange(3) * 33_333_333
    return {
        "clip-000001_214-1": Truth(
            "", present, joints, times, np.array([level(n) for n in range(3)]), pixels,
            left_shapedirs_fixed=True, T_world_camera=np.linalg.inv(T) @ UPRIGHT,
        )
    }  # fmt: skip


def write_egocentric(root: Path, hands: Hands) -> dict[str, Truth]:
    """Two sessions of plain video, one with a camera file above it."""
    out = {}
    for number, name in enumerate(("R001/Export_py/Video_pitchshift", "R002/Export_py/video")):
        path = root / f"{name}.mp4"
        path.parent.mkdir(parents=True)
        write_gray_video(path, 4, (64, 48), 30)
        absent = np.zeros((4, 2), bool)
        out[name.replace("/", "_")] = Truth(
            "test", absent, np.full((4, 2, 21, 3), np.nan), at_30_hz(np.arange(4)),
            np.array([level(n) for n in range(4)]), mano=False,
        )  # fmt: skip
        if number == 0:
            camera = {
                "model": "pinhole", "width": 64, "height": 48, "fx": 50.0, "fy": 50.0, "cx": 31.5,
                "cy": 23.5, "distortion": [],
            }  # fmt: skip
            (root / "R001" / "camera.json").write_text(json.dumps(camera))
    return out


def convert(name: str, root: Path, output: Path, **changes: object) -> ReaderReport:
    """Convert, without pictures unless ``changes`` has other ``clips``; return the report."""
    options = RunOptions(root, output, clips=ClipOptions(images="none"))
    return run(name, replace(options, **changes), lambda *step: None)


def every_clip(output: Path) -> list:
    """Return the clips of all stores in a folder."""
    stores = [ClipStore(path.parent) for path in sorted(output.glob("*/store.json"))]
    return [store.open(key) for store in stores for key in store.ids()]


def rewrite_tar(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Put what ``change(name, data)`` returns into a tar; None leaves a member out."""
    with tarfile.open(path) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}
    write_tar(path, {name: change(name, data) for name, data in members.items()})


def write_tar(path: Path, members: dict[str, bytes | None]) -> None:
    """Write a tar of the members that are not None."""
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            if data is not None:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


#: Dataset -> what writes it.
WRITERS: dict[str, Callable[[Path, Hands], dict[str, Truth]]] = {
    "arctic": write_arctic,
    "hot3d": write_hot3d,
    "hot3d_clips": write_hot3d_clips,
    "h2o": write_h2o,
    "oakink2": write_oakink2,
    "interhand": write_interhand,
    "freihand": write_freihand,
    "rhd": write_rhd,
    "hoi4d": write_hoi4d,
    "egocentric": write_egocentric,
}


#: Rest joints of a right hand in MANO's order, then the fingertips thumb to pinky; metres.
REST = np.array([
    [0.095, 0.006, 0.006],
    [0.007, 0.001, 0.031], [-0.026, 0.004, 0.035], [-0.048, 0.003, 0.036],
    [0.001, 0.005, 0.005], [-0.030, 0.007, 0.003], [-0.053, 0.006, 0.001],
    [0.026, -0.005, -0.038], [0.010, -0.006, -0.047], [-0.006, -0.008, -0.056],
    [0.013, -0.001, -0.020], [-0.017, 0.000, -0.022], [-0.040, 0.000, -0.025],
    [0.071, -0.011, 0.031], [0.053, -0.013, 0.053], [0.031, -0.017, 0.071],
    [0.012, -0.020, 0.085], [-0.068, 0.002, 0.037], [-0.077, 0.004, 0.000],
    [-0.060, -0.001, -0.027], [-0.022, -0.010, -0.063],
])  # fmt: skip
PARENTS = (-1, 0, 1, 2, 0, 4, 5, 0, 7, 8, 0, 10, 11, 0, 13, 14)


def write_mano(path: Path) -> None:
    """Write a made-up MANO of both hands: its form, other numbers, no shape of a real hand."""
    random = np.random.default_rng(2017)
    group = np.arange(778) % 16
    spread = random.normal(0, 0.006, (778, 3))
    group[list(TIPS)] = (15, 3, 6, 12, 9)  # the last joints of thumb, index, middle, ring, pinky
    free = np.setdiff1d(np.arange(778), TIPS)
    template = REST[group] + spread
    template[list(TIPS)] = REST[16:]
    regressor = np.zeros((16, 778))
    for joint in range(16):
        rows = free[group[free] == joint]
        regressor[joint, rows] = 1 / len(rows)
        template[rows] += REST[joint] - template[rows].mean(0)
    weights = 0.8 * np.eye(16)[group] + 0.2 * np.eye(16)[np.maximum(np.array(PARENTS), 0)[group]]
    shapes = random.normal(0, 0.003, (16, 3, 10))[group] + random.normal(0, 5e-4, (778, 3, 10))
    poses = random.normal(0, 2e-4, (778, 3, 135))
    components = np.linalg.qr(random.normal(size=(45, 45)))[0]
    mean = random.normal(0, 0.13, 45)
    out = {}
    for side, mirror in (("right", 1.0), ("left", -1.0)):
        flip = np.array([mirror, 1, 1])
        turn = np.tile([1, mirror, mirror], 15)  # a mirrored turn has its y and z the other way
        out |= {
            f"{side}/v_template": template * flip,
            f"{side}/shapedirs": shapes,  # of the left hand x should be -x: the fault
            f"{side}/posedirs": poses * flip[:, None],
            f"{side}/J_regressor": regressor, f"{side}/weights": weights,
            f"{side}/hands_mean": mean * turn, f"{side}/hands_components": components * turn,
            f"{side}/kintree_table": np.array([[2**32 - 1, *PARENTS[1:]], range(16)]),
            f"{side}/f": random.integers(0, 778, (1538, 3)),
        }  # fmt: skip
    np.savez(path, **out)


def main() -> None:
    """Write every dataset to a folder, for people to look at."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    mano = Path(sys.argv[2]) if len(sys.argv) > 2 else folder / "mano.npz"
    if not mano.is_file():
        write_mano(mano)
    hands = Hands(mano)
    for name, write in WRITERS.items():
        (folder / name).mkdir(parents=True)
        write(folder / name, hands)


if __name__ == "__main__":
    main()
