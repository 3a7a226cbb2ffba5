"""How a camera turned, and whether filled hands lie where later frames show them."""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.drawing.overlay import draw_skeleton, header, put_caption, shrunk, subpixels
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion, HandMotion, Recording
from acehand_core.types import Picture

_WIDTH, _HEIGHT, _MARGIN = 960, 260, 34
_GROUND, _GRID, _TEXT = (250, 250, 250), (225, 225, 225), (60, 60, 60)
_BROKEN, _DOUBTFUL = (250, 205, 195), (253, 240, 200)
#: Yaw to the right, pitch up, roll clockwise.
_AXES = (("yaw", (11, 95, 165)), ("pitch", (194, 65, 12)), ("roll", (21, 128, 61)))
#: So many gaps are shown, and a hand over a frame at most so long after it.
_GAPS, _LATER_S = 6, 1.5


def turns_drawn(motion: CameraMotion, fps: float) -> Picture:
    """Return curves of the camera's angles in degrees; broken and doubtful steps are coloured."""
    angles = angles_deg(motion)
    image = np.full((_HEIGHT, _WIDTH, 3), _GROUND, np.uint8)
    reach = max(5.0, float(np.abs(angles).max()) * 1.05)
    across = _MARGIN + np.arange(len(angles)) * (_WIDTH - 2 * _MARGIN) / max(len(angles) - 1, 1)

    def down(degrees: np.ndarray) -> np.ndarray:
        return _HEIGHT / 2 - degrees / reach * (_HEIGHT / 2 - _MARGIN)

    step = (across[1] - across[0]) / 2 if len(across) > 1 else 1.0
    for frame in np.flatnonzero(motion.doubtful):
        left, right = int(across[frame] - step), int(np.ceil(across[frame] + step))
        colour = _BROKEN if motion.broken[frame] else _DOUBTFUL
        image[_MARGIN : _HEIGHT - _MARGIN, left:right] = colour
    values = np.array([-reach, 0.0, reach])
    for value, y in zip(values, down(values).astype(int).tolist(), strict=True):
        cv2.line(image, (_MARGIN, y), (_WIDTH - _MARGIN, y), _GRID, 1)
        _write(image, f"{value:.0f}", 2, y + 4, _TEXT)
    for second in range(int(len(angles) / fps) + 1):
        x = int(_MARGIN + second * fps * (_WIDTH - 2 * _MARGIN) / max(len(angles) - 1, 1))
        _write(image, f"{second} s", x, _HEIGHT - 8, _TEXT)

    cuts = np.flatnonzero(motion.broken)
    for axis, (name, colour) in enumerate(_AXES):
        _write(image, name, _WIDTH - 190 + 62 * axis, 18, colour)
        line = np.stack([across, down(angles[:, axis])], axis=-1)
        for part in np.split(line, cuts):
            cv2.polylines(image, [subpixels(part)], False, colour, 1, cv2.LINE_AA, 4)
    return np.vstack([header(["camera's angles; red: not known, yellow: doubtful"], _WIDTH), image])


def angles_deg(motion: CameraMotion) -> Float[np.ndarray, "T 3"]:
    """Return yaw to the right, pitch up and roll clockwise from each piece's first frame."""
    turned = motion.from_first
    ahead, right = turned[..., 2], turned[..., 0]
    yaw = np.arctan2(ahead[:, 0], ahead[:, 2])
    pitch = np.arcsin(np.clip(-ahead[:, 1], -1, 1))
    upright = rotations.exp(np.stack([pitch, 0 * pitch, 0 * pitch], -1))
    upright = rotations.exp(np.stack([0 * yaw, yaw, 0 * yaw], -1)) @ upright
    level = np.einsum("tji,tj->ti", upright, right)
    return np.degrees(np.stack([yaw, pitch, np.arctan2(level[:, 1], level[:, 0])], axis=-1))


def filled_hands_drawn(recording: Recording, hands: HandMotion, motion: CameraMotion) -> Picture:
    """Return hands as they were filled in while unseen, over later frames that show their place.

    A hand is turned into the later frame by the camera's turn between the two. Where it did not
    move meanwhile, it must lie on itself.
    """
    camera = hands.camera
    assert camera is not None and recording.frames is not None
    shown = []
    for frame, slot, later in _worth_a_look(hands, motion, camera, recording.fps):
        turn = motion.between(later, frame)
        assert turn is not None
        image = recording.frames.at(later).copy()
        draw_skeleton(image, camera.project(hands.joints_camera[frame, slot] @ turn.T))
        small = shrunk(image, _WIDTH // 3)
        put_caption(small, f"frame {later}, hand of frame {frame}")
        shown.append(small)
    if not shown:
        return header(["no hand was filled in that a later frame shows"], _WIDTH)
    while len(shown) % 3:
        shown.append(np.full_like(shown[0], 255))
    rows = [np.hstack(shown[at : at + 3]) for at in range(0, len(shown), 3)]
    title = header(["hands filled in while out of sight, in later frames"], rows[0].shape[1])
    return np.vstack([title, *rows])


def _worth_a_look(
    hands: HandMotion, motion: CameraMotion, camera: Camera, fps: float
) -> list[tuple[int, int, int]]:
    """Return (frame, hand, later frame) of the middle of the longest gaps."""
    found = []
    for slot in range(2):
        filled = hands.filled[:, slot]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], filled, [0]])))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            middle = (start + stop) // 2
            for later in range(stop, min(len(hands), stop + round(_LATER_S * fps))):
                turn = motion.between(later, middle)
                if turn is None:
                    break
                place = camera.project(hands.joints_camera[middle, slot] @ turn.T)
                if hands.observed[later, slot] and camera.contains(place).all():
                    found.append((stop - start, middle, slot, later))
                    break
    return sorted(
        (middle, slot, later) for _, middle, slot, later in sorted(found, reverse=True)[:_GAPS]
    )


def _write(image: Picture, text: str, x: int, y: int, colour: tuple[int, int, int]) -> None:
    cv2.putText(image, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.42, colour, 1, cv2.LINE_AA)
