"""The evaluation protocol again, literally: one hand at a time, in plain loops.

The peer of ``evaluate.py``, and what the tests compare the evaluation with. Only the hand model and
the camera's projection are the product's own. Returns the same metrics. Below it, made-up segments
for both.
"""

from __future__ import annotations

import math

import numpy as np

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance

SIDES = ("left", "right")


def distance(a, b):
    return math.sqrt(sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True)))


def pixel(camera, point):
    return camera.project(np.asarray(point, float)[None])[0]


def inside(camera, point):
    """The on-screen test of one joint."""
    if not all(math.isfinite(v) for v in point) or not point[2] > 0.01:
        return False
    u, v = pixel(camera, point)
    return 0 <= u < camera.width and 0 <= v < camera.height


def box(camera, vertices):
    front = [pixel(camera, v) for v in vertices if v[2] > 0.01]
    front = [p for p in front if math.isfinite(p[0])]
    if not front:
        return None
    us, vs = [p[0] for p in front], [p[1] for p in front]
    return min(us), min(vs), max(us), max(vs)


def grown(b):
    if b is None:
        return None
    w, h = b[2] - b[0], b[3] - b[1]
    return b[0] - 0.05 * w, b[1] - 0.05 * h, b[2] + 0.05 * w, b[3] + 0.05 * h


def iou(a, b):
    if a is None or b is None:
        return 0.0
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    both = w * h
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def mpjpe(a, b):
    return sum(distance(x - a[0], y - b[0]) for x, y in zip(a, b, strict=True)) / 21 * 1e3


def procrustes(a, b):
    """By Horn's quaternions, not by the singular values that the product uses."""
    ca, cb = a.mean(0), b.mean(0)
    x, y = a - ca, b - cb
    s = x.T @ y
    n = np.empty((4, 4))
    n[0, 0] = s[0, 0] + s[1, 1] + s[2, 2]
    n[0, 1] = n[1, 0] = s[1, 2] - s[2, 1]
    n[0, 2] = n[2, 0] = s[2, 0] - s[0, 2]
    n[0, 3] = n[3, 0] = s[0, 1] - s[1, 0]
    n[1, 1] = s[0, 0] - s[1, 1] - s[2, 2]
    n[2, 2] = -s[0, 0] + s[1, 1] - s[2, 2]
    n[3, 3] = -s[0, 0] - s[1, 1] + s[2, 2]
    n[1, 2] = n[2, 1] = s[0, 1] + s[1, 0]
    n[1, 3] = n[3, 1] = s[2, 0] + s[0, 2]
    n[2, 3] = n[3, 2] = s[1, 2] + s[2, 1]
    values, vectors = np.linalg.eigh(n)
    w, i, j, k = vectors[:, -1]
    turn = np.array(
        [
            [1 - 2 * (j * j + k * k), 2 * (i * j - w * k), 2 * (i * k + w * j)],
            [2 * (i * j + w * k), 1 - 2 * (i * i + k * k), 2 * (j * k - w * i)],
            [2 * (i * k - w * j), 2 * (j * k + w * i), 1 - 2 * (i * i + j * j)],
        ]
    )
    scale = values[-1] / (x**2).sum()
    return sum(distance(scale * turn @ p, q) for p, q in zip(x, y, strict=True)) / 21 * 1e3


def angle(a, b):
    cosine = (np.trace(np.asarray(a).T @ b) - 1) / 2
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def evaluate(segments, model, own_anchors=True):
    """Score [(prediction, truth)] that share one hand model; return metrics and counts."""
    canonical = {
        side: model.joints(side, np.eye(3), np.tile(np.eye(3), (15, 1, 1)), np.zeros(10))
        for side in SIDES
    }
    tp = fp = fn = good_frames = frames = unlabelled = 0
    errors = {name: [] for name in ("mpjpe", "pa", "epe", "go", "ct")}
    iv, oos, runs = [], [], []
    for prediction, truth in segments:
        camera = truth.camera
        diagonal = math.sqrt(camera.width**2 + camera.height**2)
        hits = {side: [] for side in SIDES}
        for t in range(len(truth)):
            # Neither labelled nor marked absent: unknown, so not scored.
            asked = {
                side
                for slot, side in enumerate(SIDES)
                if truth.known[t, slot] or truth.presence[t, slot] == 0
            }
            unlabelled += 2 - len(asked)
            frames += len(asked) > 0
            wrong = 0
            real = {}
            for slot, side in enumerate(SIDES):
                if truth.known[t, slot] and truth.presence[t, slot] > 0.5:
                    joints = truth.joints_camera[t, slot]
                    seen = any(inside(camera, j) for j in joints)
                    emitted = bool(np.isfinite(prediction.joints_camera[t, slot]).all())
                    guess = prediction.joints_camera[t, slot] if emitted else canonical[side]
                    (iv if seen else oos).append(mpjpe(guess, joints))
                    if seen:
                        vertices = _vertices(model, truth, t, slot)
                        real[side] = grown(box(camera, vertices))
            taken = set()
            for slot, side in enumerate(SIDES):
                joints = prediction.joints_camera[t, slot]
                if side not in asked:
                    continue
                if not (prediction.presence[t, slot] > 0.5 and np.isfinite(joints).all()):
                    continue
                if not any(inside(camera, j) for j in joints):
                    continue
                mine = box(camera, _vertices(model, prediction, t, slot))
                overlaps = {name: iou(mine, other) for name, other in real.items()}
                best = max(overlaps.values(), default=0.0)
                if best > 0 and overlaps.get(side, 0.0) == best:
                    taken.add(side)
                else:
                    wrong += 1
                    fp += 1
            for slot, side in enumerate(SIDES):
                hits[side].append(side in taken)
                if side not in real:
                    continue
                joints = truth.joints_camera[t, slot]
                counted = [j for j in range(21) if inside(camera, joints[j])]
                if side in taken:
                    tp += 1
                    guess = prediction.joints_camera[t, slot]
                    orient = prediction.global_orient[t, slot]
                    place = prediction.translation[t, slot]
                    pixels = []
                    for j in counted:
                        p = prediction.joints_image[t, slot, j]
                        if not own_anchors or not np.isfinite(p).all():
                            p = pixel(camera, guess[j])
                        far = distance(p, pixel(camera, joints[j]))
                        pixels.append(far if math.isfinite(far) else diagonal)
                else:
                    fn += 1
                    wrong += 1
                    guess, orient, place = canonical[side], np.eye(3), np.zeros(3)
                    pixels = [diagonal for _ in counted]
                errors["mpjpe"].append(mpjpe(guess, joints))
                errors["pa"].append(procrustes(guess, joints))
                errors["epe"].append(sum(pixels) / len(pixels))
                errors["go"].append(angle(orient, truth.global_orient[t, slot]))
                errors["ct"].append(distance(place, truth.translation[t, slot]))
            good_frames += wrong == 0 and len(asked) > 0
        for slot, side in enumerate(SIDES):
            runs += _runs(prediction, slot, hits[side])
    return {
        "facc": good_frames / frames if frames else None,
        "recall": tp / (tp + fn) if tp + fn else None,
        "f1": _f1(tp, fp, fn),
        **{f"{name}_p": _mean(values) for name, values in errors.items()},
        "jitter": _mean(runs),
        "mpjpe_iv": _mean(iv),
        "mpjpe_oos": _mean(oos),
        "mpjpe_plus_oos": _mean(iv + oos),
    }, {
        "tp": tp, "fp": fp, "fn": fn, "iv": len(iv), "oos": len(oos), "unlabelled": unlabelled,
        "frames": frames,
    }  # fmt: skip


def _vertices(model, motion, t, slot):
    points = model.vertices(
        SIDES[slot], motion.global_orient[t, slot], motion.hand_pose[t, slot], motion.betas[slot]
    )
    return points + motion.translation[t, slot]


def _runs(prediction, slot, hits):
    out, run = [], []
    for t in range(len(hits) + 1):
        if t < len(hits) and hits[t]:
            joints = prediction.joints_camera[t, slot]
            run.append(joints - joints[0] + prediction.translation[t, slot])
            continue
        if len(run) >= 3:
            seconds = [
                sum(
                    distance(run[i + 1][j] - run[i][j], run[i][j] - run[i - 1][j])
                    for j in range(21)
                ) / 21 * 1e3
                for i in range(1, len(run) - 1)
            ]  # fmt: skip
            out.append(sum(seconds) / len(seconds))
        run = []
    return out


def _f1(tp, fp, fn):
    if tp == 0:
        return 0.0 if fp + fn else None
    p, r = tp / (tp + fp), tp / (tp + fn)
    return 2 * p * r / (p + r)


def _mean(values):
    return sum(values) / len(values) if values else None


# --- made-up segments ---

CAMERA = Camera("pinhole", 320, 240, 300.0, 300.0, 159.5, 119.5)
FLAT = np.tile(np.eye(3), (15, 1, 1))


def motion_of(
    translation, orient=None, pose=None, betas=None, presence=None, camera=CAMERA, model=None,
    anchors=None, settings=None, fps=30.0,
) -> HandMotion:  # fmt: skip
    """A motion of the default hand: translation (T, 2, 3) with NaN where no hand is emitted."""
    translation = np.asarray(translation, float)
    frames = len(translation)
    there = np.isfinite(translation).all(-1)
    gone = ~there
    model = model or CapsuleHand()
    betas = np.zeros((2, 10)) if betas is None else np.asarray(betas, float)
    orient = np.tile(np.eye(3), (frames, 2, 1, 1)) if orient is None else np.array(orient, float)
    pose = np.tile(FLAT, (frames, 2, 1, 1, 1)) if pose is None else np.array(pose, float)
    joints = np.stack(
        [model.joints(SIDES[s], orient[:, s], pose[:, s], betas[s]) for s in (0, 1)], axis=1
    )
    joints = joints + translation[:, :, None]
    orient[gone], pose[gone] = np.nan, np.nan
    presence = there.astype(float) if presence is None else np.asarray(presence, float)
    known = there & (presence > 0.5)
    image = np.full((frames, 2, 21, 2), np.nan) if anchors is None else np.asarray(anchors, float)
    return HandMotion(
        timestamps_ns=(np.arange(frames) * 1e9 / fps).astype(np.int64),
        fps=fps,
        presence=presence,
        visible=known.astype(float),
        quality=known.astype(float),
        observed=known,
        filled=np.zeros((frames, 2), bool),
        global_orient=orient,
        hand_pose=pose,
        betas=betas,
        translation=translation,
        joints_camera=joints,
        joints_image=image,
        hand_model="acehand",
        provenance=Provenance("made up", None, "test", settings=settings or {}),
        camera=camera,
    )


def random_pair(seed, frames=4, camera=CAMERA):
    """A ground truth and a prediction of it with every kind of error, any of them out of sight."""
    rng = np.random.default_rng(seed)

    def place(spread):
        out = rng.normal(0, spread, (frames, 2, 3)) + np.array([0, 0, 0.5])
        out[rng.random((frames, 2)) < 0.15, 2] *= -1  # behind the camera
        return out

    def turn(*shape, scale):
        return rotations.exp(rng.normal(0, scale, (*shape, 3)))

    spread = rng.choice([0.05, 0.1, 0.5])
    truth_at = place(spread)
    truth_at[rng.random((frames, 2)) < 0.2] = np.nan
    orient, pose = turn(frames, 2, scale=1.0), turn(frames, 2, 15, scale=0.3)
    # A hand that is not given is absent, there without a label, or of unknown presence.
    presence = np.where(np.isnan(truth_at[..., 0]), rng.choice([0, 0, 0.5, 1], (frames, 2)), 1)
    truth = motion_of(truth_at, orient, pose, rng.normal(0, 1, (2, 10)), presence, camera)
    near = np.where(np.isnan(truth_at), place(spread), truth_at)
    near = near + rng.normal(0, rng.choice([0.01, 0.03, 0.1]), near.shape)
    if rng.random() < 0.3:
        near = near[:, ::-1].copy()  # hands exchanged
    near[rng.random((frames, 2)) < 0.2] = np.nan
    presence = np.where(np.isnan(near[..., 0]), 0.0, rng.choice([0.2, 0.9, 0.9, 0.9], (frames, 2)))
    anchors = rng.normal(100, 40, (frames, 2, 21, 2))
    anchors[rng.random((frames, 2, 21)) < 0.3] = np.nan
    guess = motion_of(
        near, orient @ turn(frames, 2, scale=0.3), pose @ turn(frames, 2, 15, scale=0.1),
        rng.normal(0, 1, (2, 10)), presence, camera, anchors=anchors,
    )  # fmt: skip
    return guess, truth
