"""Checks of hands against the video.

The networks of the mediapipe tracker detect hands in a few frames again, independently of the
dataset. That finds errors that the columns cannot show: a time shift, mirrored pictures, another
camera, a video without the hands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np
from jaxtyping import Float, Int

from acehand_core.lerobot.episode import Episode
from acehand_core.motion import Recording
from acehand_core.recordings.selection import resized
from acehand_core.types import SIDES
from retarget.replay.checks import CHECKS, Measure
from retarget.replay.clip import extent, project

if TYPE_CHECKING:
    from acehand_core.trackers.mediapipe.networks import Look

#: Frames searched for hands, and the largest time shift (frames).
LOOKS, MAX_LAG = 12, 8
#: Width at which pictures are compared.
_SMALL = 160
#: A picture repeats the previous one below this share of the changes around it, and jumps above
#: this multiple of them; where pictures change at least so much (grey levels of 255).
_REPEATS, _JUMPS, _CHANGES = 0.1, 4.0, 0.6
#: After a lost frame a picture changes by up to twice as much as its neighbours. It stands out
#: above this ratio, where pictures change by more than this (grey levels).
_UNEVEN, _MUCH = 1.4, 1.0
#: Largest distance from a detection to its stored hand, in sizes of the detection.
_SAME_HAND = 3.0
#: Share of a hand's joints in the picture, and frames with as many, from which it must be found.
_IN_VIEW, _FEW = 0.8, 4
#: Largest ratio of the distances with and without a time shift to report it.
_BETTER = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class Sighting:
    """A hand detected again in a frame, and the slot of its stored hand."""

    frame: int
    slot: int
    look: Look


def picture_measures(episode: Episode, recording: Recording, looks: int = LOOKS) -> list[Measure]:
    """Measure an episode against its video, with hands detected in ``looks`` frames.

    Raises VideoError: the video cannot be read. MissingDependencyError: the networks are missing.
    """
    measures = _pace(picture_changes(recording))
    if looks and episode.placed and episode.camera is not None:
        measures += _compared(episode, sightings(episode, recording, looks))
        measures += _missing(episode, recording, looks)
    return measures


def picture_changes(recording: Recording) -> Float[np.ndarray, "S"]:
    """Return the mean difference of each picture to the previous one, in grey levels."""
    height = max(round(_SMALL * recording.height / recording.width / 2) * 2, 2)
    changes, before = [], None
    for image in resized(recording, (_SMALL, height)):
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        if before is not None:
            changes.append(float(cv2.absdiff(grey, before).mean()))
        before = grey
    return np.array(changes)


def _pace(changes: Float[np.ndarray, "S"]) -> list[Measure]:
    if len(changes) < 8:
        return []
    padded = np.pad(changes, 4, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 9)
    around = np.median(np.delete(windows, 4, axis=1), axis=1)
    moving = around > _CHANGES
    repeats = moving & (changes < _REPEATS * around)
    # A jump stands alone; a camera that starts to turn also changes the next pictures.
    peak = changes >= windows.max(1)
    second = np.sort(np.delete(windows[:, 2:7], 2, axis=1), axis=1)[:, -1]
    jumps = moving & peak & (changes > _JUMPS * np.maximum(around, second / 2))
    uneven = (around > _MUCH) & (changes > _UNEVEN * np.maximum(windows[:, 3], windows[:, 5]))
    share, count, lost = float(repeats.mean()), int(jumps.sum()), int(uneven.sum())
    repeated = f"{share:.0%} of the pictures repeat the one before: frames were lost and replaced"
    jumped = f"jumps of the picture although time stamps are even: {count}; frames are missing"
    changed = f"pictures that change by half as much again as their neighbours: {lost}"
    return [
        Measure("repeated_pictures", share, repeated, frame=int(np.argmax(repeats)) + 1),
        Measure("picture_jumps", count, jumped, frame=int(np.argmax(jumps)) + 1),
        Measure(
            "uneven_pictures",
            lost,
            f"{changed}; single frames are missing",
            frame=int(np.argmax(uneven)) + 1,
        ),
    ]


def sightings(episode: Episode, recording: Recording, looks: int) -> list[Sighting]:
    """Detect hands in frames over the episode; return those near a stored one.

    Each part of the episode gives the frame with the fastest hands: only moving hands reveal a time
    shift.
    """
    from acehand_core.trackers.mediapipe import search
    from acehand_core.trackers.mediapipe.networks import hand_networks

    stored = _stored(episode)
    frames = _frames_to_search(episode, stored, looks)
    if recording.frames is None or not len(frames):
        return []
    networks, sightings = hand_networks(), []
    for frame in frames.tolist():
        image = np.ascontiguousarray(recording.frames.at(frame))
        for look in search.new_hands(networks, image, [search.whole(image)], (), room=4):
            middle, size = look.pixels.mean(0), search.size(look.pixels)
            away = np.linalg.norm(stored[frame].mean(1) - middle, axis=-1)
            away = np.where(np.isfinite(away), away, np.inf)
            slot = int(np.argmin(away))
            if away[slot] < _SAME_HAND * size:
                sightings.append(Sighting(frame, slot, look))
    return sightings


def _stored(episode: Episode) -> Float[np.ndarray, "T 2 21 2"]:
    """Return the pixels of the dataset's hands, NaN outside of the picture."""
    assert episode.camera is not None
    joints = episode.joints
    pixels = project(episode.camera, joints)
    ahead = (joints[..., 2] > 0).all(-1) & episode.valid
    return np.where(ahead[..., None, None], pixels, np.nan)


def _frames_to_search(
    episode: Episode, stored: Float[np.ndarray, "T 2 21 2"], looks: int
) -> Int[np.ndarray, "N"]:
    middle = stored.mean(2)
    speed = np.zeros(len(episode))
    step = np.linalg.norm(middle[2:] - middle[:-2], axis=-1)
    seen = episode.observed[1:-1]
    speed[1:-1] = np.where(seen & np.isfinite(step), step, 0).max(1)
    parts = np.array_split(np.arange(len(episode)), min(looks, len(episode)))
    best = [int(part[np.argmax(speed[part])]) for part in parts if speed[part].any()]
    return np.array(best, int)


def _compared(episode: Episode, sightings: Sequence[Sighting]) -> list[Measure]:
    """Compare detected hands with the stored ones, now, shifted and mirrored."""
    if len(sightings) < 4:
        return []
    stored = _stored(episode)
    away = np.full((len(sightings), 2 * MAX_LAG + 1), np.nan)
    ratios, others = [], []
    for row, sighting in enumerate(sightings):
        pixels, size = sighting.look.pixels, float(extent(sighting.look.pixels))
        for column in range(away.shape[1]):
            if 0 <= (frame := sighting.frame + column - MAX_LAG) < len(episode):
                gap = np.linalg.norm(stored[frame, sighting.slot] - pixels, axis=-1).mean()
                away[row, column] = gap / size
        ratios.append(float(extent(stored[sighting.frame, sighting.slot])) / size)
        others.append((sighting.look.p_right > 0.5) != (sighting.slot == 1))

    typical = np.nanmedian(away, axis=0)
    now, best = float(typical[MAX_LAG]), int(np.argmin(typical))
    # Without fast hands all shifts fit alike.
    lag = best - MAX_LAG if typical[best] < _BETTER * now else 0
    ratio = float(np.median(ratios))
    factor = max(ratio, 1 / max(ratio, 1e-6))
    sides = float(np.mean(others))
    worst = sightings[int(np.nanargmax(away[:, MAX_LAG]))].frame
    when = "earlier" if lag > 0 else "later"
    apart = (
        f"hands detected again in the video are {now:.0%} of their size from where the dataset has"
    )
    late = f"hands are in the video {abs(lag)} frames {when} than in the dataset"
    larger = f"hands are {ratio:.2f} times as large in the picture as those detected again"
    swapped = f"{sides:.0%} of the hands detected again are the other hand"
    return [
        Measure("picture_agreement", now, f"{apart} them", frame=worst),
        Measure("picture_lag", abs(lag), late, frame=worst),
        Measure("picture_size", factor, f"{larger}: another camera, unit or depth", frame=worst),
        Measure("picture_sides", sides, swapped, frame=worst),
    ]


def _missing(episode: Episode, recording: Recording, looks: int) -> list[Measure]:
    """Look for each hand where the dataset has it, in ``looks`` of its frames in full view."""
    from acehand_core.trackers.mediapipe import search
    from acehand_core.trackers.mediapipe.crops import crop_of
    from acehand_core.trackers.mediapipe.networks import hand_networks

    if recording.frames is None:
        return []
    networks, stored, measures = hand_networks(), _stored(episode), []
    inside = (stored > -0.5) & (stored < [recording.width - 0.5, recording.height - 0.5])
    clear = episode.observed & (inside.all(-1).mean(-1) >= _IN_VIEW)
    for slot, side in enumerate(SIDES):
        frames = np.flatnonzero(clear[:, slot])
        if len(frames) < _FEW:
            continue
        lost: list[int] = []
        for part in np.array_split(frames, min(looks, len(frames))):
            frame = int(part[np.argmax(episode.confidence[part, slot])])
            image = np.ascontiguousarray(recording.frames.at(frame))
            if search.confirmed(networks, image, crop_of(stored[frame, slot])) is None:
                lost.append(frame)
        share = len(lost) / min(looks, len(frames))
        text = f"in {share:.0%} of its frames in full view the {side} hand is not in the video"
        if episode.origin.get("tracker") != "mediapipe":  # gloves may hide it from these networks
            share = min(share, CHECKS["picture_missing"].fail)
        measures.append(Measure("picture_missing", share, text, side, lost[0] if lost else None))
    return measures
