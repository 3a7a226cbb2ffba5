"""The model as a tracker. torch and the weights load with the first recording, not before."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from acehand_core.ace.model.config import Precision, Variant
from acehand_core.ace.model.inference.loading import default_hands, has_mano, mano_hands
from acehand_core.ace.settings import AceSettings, read_betas
from acehand_core.errors import AcehandError, InputError, MissingDependencyError
from acehand_core.motion import HandModelName, HandMotion, Recording
from acehand_core.trackers.base import TrackerSettings
from acehand_core.types import Progress, no_progress


class AceTracker:
    """Reconstructs both hands with the model's weights.

    Weights that say which hand model they learned are articulated with it; others with MANO, where
    the user has it (``$ACEHAND_MANO``). Without MANO's files the hands of MANO's weights are the
    network's own joints with the default hand fitted to them.
    """

    name = "ace"
    placed = True
    hand_model: HandModelName

    def __init__(self, settings: TrackerSettings) -> None:
        """Check the settings; nothing heavy is loaded. Weights are those of ``own["ace"]``.

        Raises:
            InputError: there are no weights, a hand length, or betas of another hand model.
        """
        ace: AceSettings = settings.own.get("ace", AceSettings())
        _ = ace.place
        if settings.hand_length_m is not None:
            raise InputError(
                "--hand-length does not apply to the ace tracker, which knows the scale; give a "
                "measured shape with --betas instead."
            )
        self._settings, self._ace = settings, ace
        learned = ace.hand_model
        if learned is None:
            with contextlib.suppress(AcehandError):  # said where the weights are used
                learned = ace.trained().hand_model
        self.hand_model = "mano" if learned != "acehand" and has_mano() else "acehand"
        self._betas = None if ace.betas is None else read_betas(ace.betas, self.hand_model)

    @property
    def trained_frames(self) -> int | None:
        """Frames of the windows that the weights learned from; None where they do not say."""
        latents = self._ace.window_latents or self._ace.trained().window_latents
        return None if latents is None else 4 * (latents - 1) + 1

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return both hands of the recording (see ``inference.reconstruction.reconstruct``).

        Raises:
            InputError: there are no images, the weights cannot be used, or they need a camera and
                none is known. MissingDependencyError: torch or diffusers is not installed.
        """
        inference, run = _inference(), self._run()
        motion = inference.reconstruct(
            recording, *run.parts, run.options, self._betas, self._settings.work_dir, progress
        )
        return run.noted(motion)

    def track_passes(
        self,
        recording: Recording,
        spans: Sequence[tuple[int, int]],
        progress: Progress = no_progress,
    ) -> Iterator[HandMotion]:
        """Yield both hands of parts of the recording, each read by the network in one pass.

        See ``inference.reconstruction.reconstruct_passes``. Raises as ``track``.
        """
        inference, run = _inference(), self._run()
        for motion in inference.reconstruct_passes(
            recording,
            *run.parts,
            spans,
            run.options,
            self._betas,
            self._settings.work_dir,
            progress,
        ):
            yield run.noted(motion)

    def _run(self) -> _Run:
        """Return the model and how it is run: as trained, but for flags."""
        from acehand_core.ace.model.inference.loading import InferenceOptions, solve_options
        from acehand_core.ace.model.inference.windows import DEFAULT_ENCODE_WIDTH, PAPER_LATENTS

        ace, ready = self._ace, _load(self._ace, self._ace.content())
        run_as, notes = ace.told(ready.trained)
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
            solve=solve_options(ready.model.config.variant, hands is not None, run_as),
            second_opinion=ace.second_opinion,
            hands=self._settings.hands,
            every_slot=ace.every_slot,
            batch=ace.batch or ready.batch,
            precision=cast(Precision, ace.precision),
        )
        return _Run((ready.model, ready.encoder, hands, ready.weights), options, notes)


@dataclass(frozen=True, slots=True)
class _Run:
    """``parts`` are the model, its encoder, the hands in torch, and the weights' record."""

    parts: tuple[Any, ...]
    options: Any
    notes: tuple[str, ...]

    def noted(self, motion: HandMotion) -> HandMotion:
        """Return the motion with what is to be said of the run."""
        remarks = (*self.notes, *motion.provenance.notes)
        return replace(motion, provenance=replace(motion.provenance, notes=remarks))


def _inference() -> Any:
    """Return the module that reconstructs; torch is loaded here, not before."""
    try:
        from acehand_core.ace.model.inference import reconstruction
    except ImportError as error:
        raise MissingDependencyError(
            f"The ace tracker needs torch and diffusers ({error}); pip install '.[ace]'."
        ) from error
    return reconstruction


@functools.lru_cache(maxsize=1)  # one run may hold many recordings
def _load(ace: AceSettings, content: str) -> Any:
    from acehand_core.ace.model.inference.loading import load_model

    # The settings checked both against what is valid.
    variant, precision = cast(Variant | None, ace.variant), cast(Precision, ace.precision)
    return load_model(ace.place, variant, ace.base, ace.vae, ace.caption, precision, ace.device)
