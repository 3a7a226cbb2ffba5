"""Windows of clips for training steps, drawn from the step number alone. numpy only.

A batch has one dataset, frame size, length and camera model, so clips can be stacked. A draw
depends on the seed, the step and the position in the step's whole batch, not on the number of
processes or on earlier draws: a resumed run draws the same windows.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from acehand_core.ace.labelled.clips.schema import ClipInfo, Kind
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.errors import InputError
from acehand_core.user_files import Valid

#: Frames per latent after the first.
STRIDE = 4
_Latents = Annotated[int, Valid("2 or more", lambda value: value >= 2)]
_ImageFrames = Annotated[int, Valid("1, 5, 9 and so on", lambda n: n > 0 and n % STRIDE == 1)]


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Window length: ``latents`` of a video, ``image_frames`` copies of an image.

    ``aligned``: windows start at multiples of four frames, as cached latents do.
    ``weighting``: recordings of a dataset are equally likely (the paper's), or by length.
    ``dataset_per``: one dataset for the whole batch of a "step", or one per "process" (and gradient
    accumulation part).
    """

    latents: _Latents = 21
    image_frames: _ImageFrames = 5
    aligned: bool = True
    weighting: Literal["recording", "frame"] = "recording"
    dataset_per: Literal["step", "process"] = "step"

    def frames(self, kind: Kind) -> int:
        """Return the frames of a window."""
        return self.image_frames if kind == "image" else STRIDE * (self.latents - 1) + 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """Clips that may share a batch, encoded at (width, height) ``size``."""

    dataset: str
    kind: Kind
    size: tuple[int, int]
    camera: str
    clips: tuple[str, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Frames ``start`` to ``start + frames - 1`` of a clip; of an image, that many copies."""

    dataset: str
    clip: str
    start: int
    frames: int
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Buckets and weights of datasets; ``skipped`` counts recordings shorter than a window."""

    buckets: Mapping[str, tuple[Bucket, ...]]
    weights: Mapping[str, float]
    settings: WindowSettings
    skipped: Mapping[str, int]

    def draw(self, seed: int, step: int, count: int, group: int = 0) -> list[Sample]:
        """Return ``count`` samples of one dataset and one size.

        Group 0 is the whole batch of a step, in order over all processes. With a dataset per
        process, groups from 0 on are what each process reads at once.
        """
        rng = np.random.default_rng([seed, step + 1, group, 0])
        names = sorted(self.weights)
        shares = np.array([self.weights[name] for name in names], float)
        buckets = self.buckets[names[int(rng.choice(len(names), p=shares / shares.sum()))]]
        sizes = np.array([self._mass(bucket).sum() for bucket in buckets], float)
        bucket = buckets[int(rng.choice(len(buckets), p=sizes / sizes.sum()))]
        places = range(group * count, (group + 1) * count)
        return [self._sample(bucket, seed, step, place) for place in places]

    def fixed(self, seed: int, count: int) -> list[Sample]:
        """Return fixed validation windows, alternating between datasets.

        No window repeats, and every recording has one before any has two; fewer than ``count`` if
        there are no more.
        """
        datasets = [
            _in_turn([self._windows(b, seed, n) for n, b in enumerate(self.buckets[name])])
            for name in sorted(self.weights)
        ]
        return list(itertools.islice(_in_turn(datasets), count))

    def _windows(self, bucket: Bucket, seed: int, number: int) -> Iterator[Sample]:
        """Yield every window of a bucket once, in random order."""
        order = np.random.default_rng([seed, number, 2]).permutation(len(bucket.clips))
        frames, places = self.settings.frames(bucket.kind), np.ones(len(order), int)
        if bucket.kind == "video":
            places = (np.array(bucket.lengths) - frames) // self._stride + 1
        for turn in range(int(places.max())):
            for clip in order[places[order] > turn]:
                rng = np.random.default_rng([seed, number, int(clip), 3])
                start = self._stride * int(rng.permutation(places[clip])[turn])
                yield Sample(bucket.dataset, bucket.clips[clip], start, frames, bucket.size)

    @property
    def _stride(self) -> int:
        return STRIDE if self.settings.aligned else 1

    def _sample(self, bucket: Bucket, seed: int, step: int, place: int) -> Sample:
        rng = np.random.default_rng([seed, step + 1, place, 1])
        mass = self._mass(bucket)
        clip = int(rng.choice(len(mass), p=mass / mass.sum()))
        frames, start = self.settings.frames(bucket.kind), 0
        if bucket.kind == "video":
            places = (bucket.lengths[clip] - frames) // self._stride + 1
            start = self._stride * int(rng.integers(places))
        return Sample(bucket.dataset, bucket.clips[clip], start, frames, bucket.size)

    def _mass(self, bucket: Bucket) -> np.ndarray:
        if self.settings.weighting == "frame":
            return np.array(bucket.lengths, float)
        return np.ones(len(bucket.clips))


def _in_turn(sources: Sequence[Iterator[Sample]]) -> Iterator[Sample]:
    """Yield from several iterators in turn until all are exhausted."""
    left = deque(sources)
    while left:
        source = left.popleft()
        for sample in source:
            yield sample
            left.append(source)
            break


def mixture(
    stores: Mapping[str, ClipStore],
    weights: Mapping[str, float],
    settings: WindowSettings,
    encoded: Callable[[str, ClipInfo], tuple[int, int]],
    leave_out: Collection[str] = (),
) -> Mixture:
    """Sort the clips of stores into buckets.

    Args:
        weights: positive, one per store, any scale.
        encoded: returns the (width, height) at which a clip of a store is encoded.
        leave_out: clips to skip, each as DATASET/CLIP.

    Raises:
        InputError: weights and stores differ, ``leave_out`` names an unknown clip, or a dataset has
            no clip that is long enough.
    """
    if set(stores) != set(weights) or not stores or min(weights.values()) <= 0:
        raise InputError(
            f"mixture: weights of {sorted(weights)}, stores of {sorted(stores)}; the same names "
            "and weights above 0 are needed."
        )

    for name in leave_out:
        dataset, _, clip = name.partition("/")
        if dataset in stores and clip not in stores[dataset].infos():
            raise InputError(
                f"leave_out: {name!r}: no such clip in {stores[dataset].root}; valid: DATASET/CLIP."
            )

    buckets, skipped = {}, {}
    shortest = settings.frames("video")
    for name, store in stores.items():
        groups: dict[tuple[Kind, tuple[int, int], str], list[ClipInfo]] = {}
        wanted = [i for i in store.infos().values() if f"{name}/{i.id}" not in leave_out]
        usable = [
            info
            for info in wanted
            if info.media != "none" and (info.kind == "image" or info.frames >= shortest)
        ]
        skipped[name] = len(wanted) - len(usable)
        for info in usable:
            lens = "none" if info.camera is None else info.camera.model
            groups.setdefault((info.kind, encoded(name, info), lens), []).append(info)
        if not usable:
            raise InputError(
                f"{store.root}: none of {len(wanted)} clips has {shortest} frames or is an image; "
                "give longer recordings or fewer latents."
            )
        buckets[name] = tuple(
            Bucket(name, *group, tuple(i.id for i in infos), tuple(i.frames for i in infos))
            for group, infos in sorted(groups.items())
        )

    return Mixture(buckets, dict(weights), settings, skipped)
