"""Sightings of one hand: its detections in every camera of the rig, as evidence for the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.geometry.cameras import Camera
from acehand_core.hand.evidence import Evidence, OtherView, SkinDepth
from acehand_core.hand.skeleton import WRIST
from acehand_core.trackers.mediapipe import pnp
from acehand_core.trackers.mediapipe.search import Detection
from acehand_core.types import RigidTransform, Side

#: Offsets of the network's wrist and thumb base from the hand model's: distal, dorsal, radial, in
#: hand lengths. Rendered hands show 4, 0 and -1 % (wrist) and 2, -4 and 3 % (thumb base); this much
#: lowers the misfit of a real hand's landmarks most, by 9 %.
LANDMARK_OFFSET = np.zeros((21, 3))
LANDMARK_OFFSET[WRIST] = 0.03, 0.0, -0.005
LANDMARK_OFFSET[1] = 0.01, -0.01, 0.01


@dataclass(frozen=True, slots=True)
class ViewHands:
    """The hands that another camera of the rig sees at the T frames' times."""

    camera: Camera
    T_view_camera: RigidTransform
    detections: Mapping[Side, Sequence[Detection | None]]


@dataclass(frozen=True, slots=True)
class Sightings:
    """The N frames with a visible hand.

    ``pixels`` mean nothing where only another camera sees it; ``others`` are the cameras and pixels
    of ``evidence.others``.
    """

    frames: Int[np.ndarray, "N"]
    pixels: Float[np.ndarray, "N 21 2"]
    confidence: Float[np.ndarray, "N"]
    presence: Float[np.ndarray, "N"]
    one_crop: Bool[np.ndarray, "N"]
    evidence: Evidence
    others: tuple[tuple[Camera, Float[np.ndarray, "N 21 2"]], ...]

    def rows(self, keep: np.ndarray) -> Sightings:
        names = ("frames", "pixels", "confidence", "presence", "one_crop")
        own = {name: getattr(self, name)[keep] for name in names}
        others = tuple((camera, pixels[keep]) for camera, pixels in self.others)
        return Sightings(evidence=self.evidence.rows(keep), others=others, **own)


def collect(
    detections: Sequence[Detection | None],
    side: Side,
    camera: Camera,
    views: Sequence[ViewHands] = (),
    skin: SkinDepth | None = None,
    palm_calibration: float = 1.0,
) -> Sightings | None:
    """Return the detections with all landmarks in a camera's field of view; None without any.

    Args:
        camera: the first one, with its ``detections``.
        skin: depth readings in all T frames.
        palm_calibration: see ``TrackerSettings``.
    """
    offset = palm_calibration * LANDMARK_OFFSET
    cameras = [camera, *(view.camera for view in views)]
    hands_by_view = [detections, *(view.detections[side] for view in views)]
    by_view = [_in_view(*pair) for pair in zip(hands_by_view, cameras, strict=True)]
    frames = np.array(sorted(set().union(*by_view)), int)
    if len(frames) == 0:
        return None

    pixels: list[tuple[Camera, Float[np.ndarray, "N 21 2"]]] = []
    own, others = None, []
    for hands, camera, view in zip(by_view, cameras, (None, *views), strict=True):
        if not hands:
            continue
        known = np.array([frame in hands for frame in frames.tolist()])
        any_hand = next(iter(hands.values()))  # fills the arrays where the camera sees none
        filled = [hands.get(frame, any_hand) for frame in frames.tolist()]
        pixels.append((camera, np.stack([d.pixels for d in filled])))
        bearing, world = pnp.bearings(*pixels[-1]), np.stack([d.world for d in filled])
        one = Evidence.from_landmarks(bearing, world, _spread(camera, filled), offset)
        one = one if known.all() else replace(one, seen=known)
        if view is None:
            own = one
        else:
            others.append(OtherView(one, view.T_view_camera))

    if own is None:  # only others see it
        pixels.insert(0, pixels[0])
        own = replace(others[0].evidence, seen=np.zeros(len(frames), bool))
    own = replace(own, others=tuple(others), skin=None if skin is None else skin.rows(frames))

    first = [next(one[frame] for one in by_view if frame in one) for frame in frames.tolist()]
    return Sightings(
        frames=frames,
        pixels=pixels[0][1],
        confidence=np.array([d.confidence for d in first]),
        presence=np.array([d.presence for d in first]),
        one_crop=np.array([d.covariance is None for d in first]),
        evidence=own,
        others=tuple(pixels[1:]),
    )


def _in_view(detections: Sequence[Detection | None], camera: Camera) -> dict[int, Detection]:
    """Return the detections by frame whose landmarks are all in the camera's field of view."""
    seen = {frame: d for frame, d in enumerate(detections) if d is not None}
    if not seen:
        return {}
    bearing = pnp.bearings(camera, np.stack([d.pixels for d in seen.values()]))
    inside = np.isfinite(bearing).all((1, 2))
    return {frame: d for (frame, d), i in zip(seen.items(), inside, strict=True) if i}


def _spread(camera: Camera, hands: Sequence[Detection]) -> Float[np.ndarray, "N 21 2 2"] | None:
    """Return the covariances over the crops as those of bearings; zero for one crop."""
    if all(d.covariance is None for d in hands):
        return None
    pixels = np.stack([d.pixels for d in hands])
    zero = np.zeros((21, 2, 2))
    covariance = np.stack([zero if d.covariance is None else d.covariance for d in hands])
    steps = 0.5 * np.eye(2)
    columns = [pnp.bearings(camera, pixels + s) - pnp.bearings(camera, pixels - s) for s in steps]
    by_pixel = np.nan_to_num(np.stack(columns, axis=-1))
    return by_pixel @ covariance @ np.swapaxes(by_pixel, -1, -2)
