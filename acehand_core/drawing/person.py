"""Pixels of hands and forearms in a recording's pictures.

Skin, sleeves and surroundings have colours that are learnt from frames all over the recording, as
two mixtures of Gaussians. They are the same for every frame, so that masks do not flicker. In each
frame OpenCV's GrabCut divides the pixels that tracked hands and their forearms can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Bool, Float, Float32, UInt8

from acehand_core.geometry.cameras import Camera
from acehand_core.hand.skeleton import BONES
from acehand_core.motion import FrameSource, HandMotion
from acehand_core.types import ImageRgb, Picture

Mask = Bool[np.ndarray, "h w"]
_Paint = UInt8[np.ndarray, "h w"]

#: Longest side of the pictures that are divided (px).
LONGEST_SIDE = 320
#: Frames that colours are learnt from, and their largest number of pixels of either kind.
_LEARNT_FRAMES, _LEARNT_PIXELS = 20, 20_000
#: Radius of fingers, and how much thicker the palm is than its joints (m).
_FINGER_M, _PALM_M = 0.009, 0.014
_PALM = [0, 1, 5, 9, 13, 17]
#: In lengths of the palm: how far a silhouette may be off, half the width of a wrist, the length of
#: an arm that comes towards the camera.
_OFF, _HALF_WRIST, _FOREARM = 0.14, 0.55, 9.0
#: Half the width, in lengths of the palm, of the narrowest thing that covers a hand; dark creases
#: are narrower.
_THICK = 0.1
#: Tangents of the angles by which forearms widen: while their colours are unknown, and later.
_UNKNOWN_WIDENS, _WIDENS = 1.7, 0.36
#: Bends of the wrist that are compared, what a radian costs (nats) for a hand seen from the side,
#: and the most that a pixel counts.
_BENDS = np.radians(np.arange(-120, 121, 10))
_BEND_COST, _MOST_NATS = 4.0, 12.0
#: A hand that moves more between frames, in lengths of the palm, is blurred.
_BLURRED = 0.12
#: Ratios of likelihoods (nats) above and below which colours are a person's, and are not.
_ALIKE, _UNLIKE = 2.0, -3.0
#: A palm that looks shorter, as a share of its length, points along the line of sight.
_LEAST_PALM = 0.3
#: A strip in the middle of the forearm, in lengths of the palm.
_ALONG, _ACROSS = np.arange(0.3, 2.5, 0.15), np.array([-0.2, 0.0, 0.2])
#: Steps of colour in the tables of likelihoods, and their least logarithm.
_STEP, _LEAST_LIKELIHOOD = 8, -25.0
#: GrabCut ignores it: masks say where to look.
_NO_RECTANGLE = (0, 0, 1, 1)


@dataclass(frozen=True, slots=True, eq=False)
class SeenPerson:
    """The person in a frame, in pictures of at most ``LONGEST_SIDE``.

    Attributes:
        person: pixels of hands and forearms.
        swept: pixels that tracked hands pass between the frames before and after.
        alike: pixels anywhere of a person's colours.
        other: pixels that surely show something else, by their colour; near fast hands there are
            none, since motion blur mixes colours.
        covered: those of ``other`` inside of a tracked hand: in front of it, or the hand is off.
    """

    person: Mask
    swept: Mask
    alike: Mask
    other: Mask
    covered: Mask


@dataclass(frozen=True, slots=True, eq=False)
class _Hand:
    """A tracked hand in a small picture.

    ``away`` points from the knuckles to the wrist; ``side_on`` is the share of the palm's length
    that is seen (0 to 1).
    """

    slot: int
    pixels: Float[np.ndarray, "21 2"]
    palm: float  # px, as if parallel to the picture
    away: Float[np.ndarray, "2"]
    side_on: float
    silhouette: _Paint

    @classmethod
    def of(cls, slot: int, joints: Float[np.ndarray, "21 3"], camera: Camera) -> _Hand:
        """Project joints (camera frame, metres)."""
        pixels, scale = camera.project(joints), camera.fx / max(float(joints[:, 2].mean()), 0.05)
        silhouette = np.zeros((camera.height, camera.width), np.uint8)
        if np.isfinite(pixels).all():
            points = np.clip(pixels, -1e4, 1e4).round().astype(np.int32)
            thickness = max(1, round(2 * _FINGER_M * scale))
            for start, end in BONES:
                cv2.line(silhouette, points[start].tolist(), points[end].tolist(), 1, thickness)
            palm = [cv2.convexHull(points[_PALM])]
            cv2.fillPoly(silhouette, palm, 1)
            cv2.polylines(silhouette, palm, True, 1, max(1, round(2 * _PALM_M * scale)))

        length = float(np.linalg.norm(joints[9] - joints[0])) * scale
        away = pixels[0] - pixels[[5, 9, 13, 17]].mean(axis=0)
        seen = float(np.linalg.norm(away))
        side_on = min(1.0, seen / max(length, 1e-6))
        return cls(slot, pixels, length, away / max(seen, 1e-6), side_on, silhouette)

    def reach(self) -> _Paint:
        """Return where the hand can be, if it is a little off."""
        return np.asarray(cv2.dilate(self.silhouette, _disc(_OFF * self.palm)), np.uint8)

    def paint_forearm(
        self,
        paint: _Paint,
        away: Float[np.ndarray, "2"] | None,
        widens: float,
        length: float = _FOREARM,
        half_wrist: float = _HALF_WRIST,
    ) -> None:
        """Mark a forearm in a direction; a disc if that is not known."""
        wrist, palm = self.pixels[0], self.palm
        if away is None:
            centre = np.clip(wrist, -1e4, 1e4).round().astype(int).tolist()
            cv2.circle(paint, centre, round(length * palm), 1, -1)
            return
        across = np.array([-away[1], away[0]])
        ends = (-0.2, half_wrist), (length, half_wrist + length * widens)
        corners = [
            wrist + palm * (along * away + side * half * across)
            for (along, half), side in zip(np.repeat(ends, 2, axis=0), (1, -1, -1, 1), strict=True)
        ]
        points = np.clip(corners, -1e4, 1e4).round().astype(np.int32)
        cv2.fillConvexPoly(paint, points, 1)


class _Colours:
    """Mixtures of Gaussians of a person's colours and of those around, as GrabCut has them."""

    def __init__(self, person: UInt8[np.ndarray, "N 3"], around: UInt8[np.ndarray, "M 3"]) -> None:
        rng = np.random.default_rng(0)
        chosen = [x[rng.permutation(len(x))[:_LEARNT_PIXELS]] for x in (person, around)]
        kinds = np.array([cv2.GC_FGD, cv2.GC_BGD], np.uint8)
        mask = np.repeat(kinds, [len(x) for x in chosen])[:, None]
        self._around, self._person = np.zeros((1, 65)), np.zeros((1, 65))
        cv2.setRNGSeed(0)
        cv2.grabCut(
            np.concatenate(chosen)[:, None], mask, _NO_RECTANGLE, self._around, self._person, 0,
            cv2.GC_INIT_WITH_MASK,
        )  # fmt: skip
        self._tables = [_likelihoods(model[0]) for model in (self._around, self._person)]

    def unlike_around(self, colours: UInt8[np.ndarray, "*N 3"]) -> Float32[np.ndarray, "*N"]:
        """Return how unlikely colours are around the person, nats."""
        return -_looked_up(self._tables[0], colours)

    def like_person(self, colours: UInt8[np.ndarray, "*N 3"]) -> Float32[np.ndarray, "*N"]:
        """Return the logarithm of the ratio of likelihoods; above 0: a person's."""
        return _looked_up(self._tables[1], colours) - _looked_up(self._tables[0], colours)

    def divide(self, image: Picture, mask: _Paint) -> _Paint:
        """Return 1 for the person's pixels, by GrabCut's labels ``mask``."""
        part, around, person = np.ascontiguousarray(mask), self._around.copy(), self._person.copy()
        cv2.grabCut(
            np.ascontiguousarray(image), part, _NO_RECTANGLE, around, person, 1,
            cv2.GC_EVAL_FREEZE_MODEL,
        )  # fmt: skip
        return part & 1


def _likelihoods(model: Float[np.ndarray, "65"]) -> Float32[np.ndarray, "K"]:
    """Return log likelihoods of colours in steps of ``_STEP``: 5 weights, means, covariances."""
    levels = np.arange(_STEP // 2, 256, _STEP, dtype=float)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(-1, 3)
    means, covariances = model[5:20].reshape(5, 3), model[20:].reshape(5, 3, 3)
    total = np.zeros(len(colours))
    for weight, mean, covariance in zip(model[:5], means, covariances, strict=True):
        if weight > 0:
            rounded = covariance + np.eye(3) * _STEP**2 / 12
            off = colours - mean
            distance = np.einsum("ni,ni->n", off @ np.linalg.inv(rounded), off)
            total += weight / np.sqrt(np.linalg.det(rounded)) * np.exp(-distance / 2)
    return np.log(np.maximum(total, np.exp(_LEAST_LIKELIHOOD))).astype(np.float32)


def _looked_up(table: np.ndarray, colours: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis((colours // _STEP).astype(np.int32), -1, 0)
    levels = 256 // _STEP
    return table[(red * levels + green) * levels + blue]


class PersonFinder:
    """Finder of a recording's hands and forearms; learns their colours when it is made."""

    def __init__(self, frames: FrameSource, motion: HandMotion) -> None:
        """Look at frames all over the recording.

        ``motion``: placed hands of these frames, with their pinhole camera.
        """
        camera = motion.camera
        assert camera is not None
        shrink = min(1.0, LONGEST_SIDE / max(camera.width, camera.height))
        self.size = max(2, round(camera.width * shrink)), max(2, round(camera.height * shrink))
        self._motion, self._camera = motion, camera.rescaled(*self.size)
        known = np.flatnonzero(motion.known.any(axis=1))
        chosen = np.linspace(0, len(known) - 1, min(_LEARNT_FRAMES, len(known))).round().astype(int)
        looks = [
            (self.small(frames.at(frame)), self._hands(frame)) for frame in known[chosen].tolist()
        ]
        self._colours = _learnt(looks)

    def small(self, image: ImageRgb) -> Picture:
        """Return a picture in the size of the masks."""
        return cv2.resize(image, self.size, interpolation=cv2.INTER_AREA)

    def _hands(self, frame: int) -> list[_Hand]:
        motion, known = self._motion, self._motion.known
        hands = [
            _Hand.of(slot, motion.joints_camera[frame, slot], self._camera)
            for slot in (0, 1)
            if known[frame, slot] and np.isfinite(motion.joints_camera[frame, slot]).all()
        ]
        return [hand for hand in hands if hand.silhouette.any()]

    def find(self, image: Picture, frame: int) -> SeenPerson:
        """Return the person in a frame, a picture of this ``size``."""
        hands, nothing = self._hands(frame), np.zeros(image.shape[:2], np.uint8)
        if self._colours is None:
            return SeenPerson(*[nothing > 0] * 5)
        like = cv2.blur(self._colours.like_person(image), (3, 3))
        alike = like > _ALIKE
        if not hands:
            return SeenPerson(nothing > 0, nothing > 0, alike, ~alike, nothing > 0)
        reach, silhouettes = nothing.copy(), nothing.copy()
        for hand in hands:
            reach |= hand.reach()
            silhouettes |= hand.silhouette
            away = _forearm_direction(like, hand)
            if away is not None:
                hand.paint_forearm(reach, away, _WIDENS)

        person = self._divided(image, like, reach, silhouettes)
        swept, covered = silhouettes, nothing
        other = ((like < _UNLIKE) & (person == 0)).astype(np.uint8)
        for hand in hands:
            around = self._around(frame, hand)
            moved = max((np.abs(hand.pixels - near.pixels).max() for near in around), default=0.0)
            for near in around:
                swept |= near.silhouette
            if moved > _BLURRED * hand.palm:
                other[cv2.dilate(swept, _disc(_OFF * hand.palm)) > 0] = 0
            bare = hand.silhouette & other
            covered |= np.asarray(cv2.morphologyEx(bare, cv2.MORPH_OPEN, _disc(_THICK * hand.palm)))
        return SeenPerson(person > 0, swept > 0, alike, other > 0, covered > 0)

    def _divided(
        self, image: Picture, like: Float32[np.ndarray, "h w"], reach: _Paint, hands: _Paint
    ) -> _Paint:
        """Return the person within ``reach``, in one piece with the silhouettes of ``hands``."""
        assert self._colours is not None
        sure = (like > 0) & (cv2.erode(hands, np.ones((3, 3))) > 0)
        labels = np.where(reach > 0, cv2.GC_PR_FGD, cv2.GC_BGD)
        labels = np.where(sure, cv2.GC_FGD, labels).astype(np.uint8)
        left, top, width, height = cv2.boundingRect(reach)
        box = np.s_[max(top - 2, 0) : top + height + 2, max(left - 2, 0) : left + width + 2]
        person = np.zeros_like(reach)
        person[box] = self._colours.divide(image[box], labels[box])

        # Without what hangs on by a thread.
        opened = cv2.morphologyEx(person, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
        count, parts = cv2.connectedComponents(opened)
        own = np.zeros(count, bool)
        own[np.unique(parts[hands > 0])] = True
        own[0] = False
        return person & np.asarray(cv2.dilate(own[parts].astype(np.uint8), _disc(1)), np.uint8)

    def _around(self, frame: int, hand: _Hand) -> list[_Hand]:
        """Return the same hand in the frames before and after."""
        others = [f for f in (frame - 1, frame + 1) if 0 <= f < len(self._motion)]
        return [near for f in others for near in self._hands(f) if near.slot == hand.slot]


def _disc(radius: float) -> _Paint:
    size = 2 * max(1, round(radius)) + 1
    return np.asarray(cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size, size)), np.uint8)


def _learnt(looks: Sequence[tuple[Picture, Sequence[_Hand]]]) -> _Colours | None:
    """Return the colours of hands and sleeves, and of what is around them; None: no hand."""
    skin, around = [], []
    for image, hands in looks:
        near, reach = (np.zeros(image.shape[:2], np.uint8) for _ in range(2))
        for hand in hands:
            reach |= hand.reach()
            away = hand.away if hand.side_on > _LEAST_PALM else None
            hand.paint_forearm(reach, away, _UNKNOWN_WIDENS)
            centre = hand.pixels[[0, 9]].mean(axis=0).clip(-1e4, 1e4).round().astype(int)
            cv2.circle(near, centre.tolist(), round(3 * hand.palm), 1, -1)
            skin.append(image[cv2.erode(hand.silhouette, np.ones((3, 3))) > 0])
        around.append(image[(near > 0) & (reach == 0)])
    if not sum(map(len, skin)) or not sum(map(len, around)):
        return None

    background = np.concatenate(around)
    colours, sleeves = _Colours(np.concatenate(skin), background), []
    for image, hands in looks:
        for hand in hands:
            strip = np.zeros(image.shape[:2], np.uint8)
            away = _forearm_direction(colours.unlike_around(image), hand)
            if away is not None and hand.side_on > _LEAST_PALM:
                hand.paint_forearm(strip, away, 0.03, length=1.6, half_wrist=0.2)
                sleeves.append(image[strip > 0])
    return _Colours(np.concatenate([*skin, *sleeves]), background)


def _forearm_direction(
    evidence: Float32[np.ndarray, "h w"], hand: _Hand
) -> Float[np.ndarray, "2"] | None:
    """Return the direction from the wrist with most evidence (nats) of a forearm; None: hidden."""
    best, most = None, -np.inf
    size = evidence.shape[1], evidence.shape[0]
    for bend in _BENDS:
        cosine, sine = np.cos(bend), np.sin(bend)
        away = np.array([[cosine, -sine], [sine, cosine]]) @ hand.away
        across = np.array([-away[1], away[0]])
        strip = _ALONG[:, None, None] * away + _ACROSS[:, None] * across
        points = (hand.pixels[0] + hand.palm * strip).round().astype(int).reshape(-1, 2)
        points = points[((points >= 0) & (points < size)).all(axis=1)]
        points = points[hand.silhouette[points[:, 1], points[:, 0]] == 0]
        if len(points) < 2 * len(_ACROSS):
            continue
        found = evidence[points[:, 1], points[:, 0]].clip(-_MOST_NATS, _MOST_NATS)
        score = float(found.mean()) - _BEND_COST * hand.side_on * abs(bend)
        if score > most:
            best, most = away, score
    return best
