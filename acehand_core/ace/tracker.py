"""The model as a tracker. The weights load with the first recording."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from acehand_core.ace.model.inference.loading import (
    InferenceOptions,
    ReadyModel,
    choose_device,
    default_hands,
    has_mano,
    load_model,
    mano_hands,
    solve_options,
)
from acehand_core.ace.model.inference.reconstruction import plan, reconstruct, reconstruct_passes
from acehand_core.ace.model.inference.windows import DEFAULT_ENCODE_WIDTH, PAPER_LATENTS
from acehand_core.ace.model.weights.load import load_weights, recorded
from acehand_core.ace.settings import AceSettings, read_betas
from acehand_core.errors import AcehandError, InputError
from acehand_core.motion import HandModelName, HandMotion, Recording
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.skin_depth import moved_by_depth
from acehand_core.types import Progress, no_progress


class AceTracker:
    """Reconstructs both hands with the model's weights.

    Weights recorded with the default hand are articulated with it, others with MANO if available
    (``$ACEHAND_MANO``). Without MANO the default hand is fitted to the network's own joints.
    """

    name = "ace"
    placed = True
    hand_model: HandModelName

    def __init__(self, settings: TrackerSettings) -> None:
        """Check the settings. Raises InputError: no weights, a hand length, or unusable betas."""
        ace: AceSettings = settings.own.get("ace", AceSettings())
        _ = ace.place
        if settings.hand_length_m is not None:
            raise InputError(
                "`hand_length` does not apply to `tracker=ace`; give a measured shape with `betas`."
            )
        self._settings, self._ace = settings, ace
        learned = ace.run_as.hand_model
        if learned is None:
            with contextlib.suppress(AcehandError):  # reported where the weights are used
                learned = ace.trained().hand_model
        self.hand_model = "mano" if learned != "acehand" and has_mano() else "acehand"
        self._betas = None if ace.betas is None else read_betas(ace.betas, self.hand_model)

    @property
    def trained_frames(self) -> int | None:
        """Frames per training window of the weights; None if not recorded."""
        latents = self._ace.run_as.window_latents or self._ace.trained().window_latents
        return None if latents is None else 4 * (latents - 1) + 1

    def check(self, recording: Recording) -> None:
        """Raise what ``track`` raises, as far as settings and headers show; reads no tensors."""
        if self._ace.use_depth and recording.depth is None:
            raise InputError(f"{recording.source}: has no depth for `use_depth`.")
        plan(recording, self._how()[1])
        load_weights(*_files(self._ace), check_hashes=False)

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return both hands of the recording.

        Raises as ``reconstruction.reconstruct``, and InputError without the depth that is asked
        for.
        """
        self.check(recording)
        run, notes = self._run()
        settings = self._betas, self._settings.work_dir, progress
        motion = _noted(reconstruct(recording, *run, *settings), notes)
        if self._ace.use_depth and recording.depth is not None and motion.camera is not None:
            motion = moved_by_depth(motion, recording.depth, progress)
        return motion

    def track_passes(
        self,
        recording: Recording,
        spans: Sequence[tuple[int, int]],
        progress: Progress = no_progress,
    ) -> Iterator[HandMotion]:
        """Yield both hands of parts of the recording, each read in one pass, as ``track``."""
        run, notes = self._run()
        settings = self._betas, self._settings.work_dir, progress
        for motion in reconstruct_passes(recording, *run[:-1], spans, run[-1], *settings):
            yield _noted(motion, notes)

    def _run(self) -> tuple[tuple[Any, Any, Any, Any, InferenceOptions], tuple[str, ...]]:
        """Return model, encoder, hands, the identity of the weights and options; and notes."""
        hands, options, notes = self._how()
        ready = _load(self._ace, self._ace.content())
        return (ready.model, ready.encoder, hands, ready.weights, options), notes

    def _how(self) -> tuple[Any, InferenceOptions, tuple[str, ...]]:
        """Return hands and options, as trained unless flags differ, and notes."""
        ace = self._ace
        _, trained, variant = recorded(*_files(ace)[:2])
        run_as, notes = ace.run_as.applied_to(trained)
        hands = None
        if self.hand_model == "mano":
            hands = mano_hands()
        elif run_as.hand_model == "acehand":
            hands = default_hands()

        width = DEFAULT_ENCODE_WIDTH if run_as.encode_width is None else run_as.encode_width
        options = InferenceOptions(
            windows=ace.windows or "paper",
            window_latents=run_as.window_latents or PAPER_LATENTS,
            encode_width=width,
            tail="drop" if ace.drop_tail else "repeat",
            every_frame=ace.read_rate == "source",
            solve=solve_options(variant, hands is not None, run_as),
            second_opinion=ace.second_opinion,
            hands=self._settings.hands,
            every_slot=ace.every_slot,
            batch=ace.batch or (1 if choose_device(ace.device) == "cpu" else 4),
            precision=ace.precision,
        )
        return hands, options, notes


def _noted(motion: HandMotion, notes: tuple[str, ...]) -> HandMotion:
    remarks = (*notes, *motion.provenance.notes)
    return replace(motion, provenance=replace(motion.provenance, notes=remarks))


def _files(ace: AceSettings) -> tuple[Any, Any, Any, Any, Any]:
    return ace.place, ace.variant, ace.base, ace.vae, ace.caption


@functools.lru_cache(maxsize=1)  # for all recordings of a run
def _load(ace: AceSettings, content: str) -> ReadyModel:
    return load_model(*_files(ace), ace.precision, ace.device)
