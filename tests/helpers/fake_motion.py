"""Hand motions made up for tests of files: any numbers that a HandMotion may hold."""

import numpy as np

from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance

CAMERA = Camera("brown_conrady", 640, 480, 500.1, 499.9, 320.3, 239.7, (0.1, -0.2, 1e-3, 2e-3))


def random_motion(
    seed=0, frames=5, hand_model="acehand", camera=CAMERA, posed=True, placed=True
) -> HandMotion:
    """A motion of random numbers of every size; NaN and hands that are away included."""
    rng = np.random.default_rng(seed)

    def numbers(*shape):
        return rng.normal(size=(frames, 2, *shape)) * 10.0 ** rng.integers(
            -12, 6, (frames, 2, *shape)
        )

    observed = rng.random((frames, 2)) < 0.6
    filled = ~observed & (rng.random((frames, 2)) < 0.5)
    known = observed | filled
    joints, image = numbers(21, 3), numbers(21, 2)
    joints[~known], image[~observed] = np.nan, np.nan
    if hand_model == "none":
        joints[rng.random(joints.shape) < 0.1] = np.nan
    turns = np.full((frames, 2, 16, 3, 3), np.nan) if hand_model == "none" else numbers(16, 3, 3)
    return HandMotion(
        timestamps_ns=np.cumsum(rng.integers(1, 10**9, frames)) + 10**18,
        fps=float(rng.uniform(1, 240)),
        presence=rng.random((frames, 2)),
        visible=rng.random((frames, 2)),
        quality=np.where(known, rng.random((frames, 2)), 0.0),
        observed=observed,
        filled=filled,
        global_orient=turns[:, :, 0],
        hand_pose=turns[:, :, 1:],
        betas=rng.normal(size=(2, 10)),
        translation=numbers(3),
        joints_camera=joints,
        joints_image=image,
        hand_model=hand_model,
        provenance=Provenance(
            source="a video \u00e9\u4e2d.mp4",
            source_sha256="ab" * 32,
            tracker="test",
            weights=None,
            licenses=("one", "two"),
            versions={"acehand": "0.1.0"},
            settings={"hands": "both", "length": 0.1 + 0.2, "nothing": None, "list": [1, 2]},
            notes=("a note",),
        ),
        left_shapedirs_fixed=bool(rng.random() < 0.5),
        camera=camera,
        T_world_camera=rng.normal(size=(frames, 4, 4)) if posed else None,
        placed=placed,
    )


ARRAYS = (
    "timestamps_ns", "presence", "visible", "quality", "observed", "filled", "global_orient",
    "hand_pose", "betas", "translation", "joints_camera", "joints_image",
)  # fmt: skip


def assert_same_bits(a: HandMotion, b: HandMotion) -> None:
    """Every field equal, arrays to the bit and of one dtype, NaN where NaN."""
    for name in ARRAYS:
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype and x.shape == y.shape, name
        assert x.tobytes() == y.tobytes(), name
    assert (a.T_world_camera is None) == (b.T_world_camera is None)
    if a.T_world_camera is not None:
        assert a.T_world_camera.tobytes() == b.T_world_camera.tobytes()
    for name in ("fps", "hand_model", "provenance", "left_shapedirs_fixed", "camera", "placed"):
        assert getattr(a, name) == getattr(b, name), name
