"""How a recording is reconstructed, and with which weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from acehand_core.encoder.config import Precision
from acehand_core.errors import InputError
from acehand_core.inference.reading import Tail
from acehand_core.inference.windows import DEFAULT_ENCODE_WIDTH, PAPER_LATENTS
from acehand_core.model import RELEASED, SolveOptions
from acehand_core.weights.config import AS_RELEASED, InferenceConfig, Variant


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """Which weights: a name for people, the hash of their content, what binds their users."""

    name: str
    sha256: str
    licenses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How a recording is reconstructed.

    Attributes:
        windows: see ``windows.plan_windows``.
        window_latents: length of a window.
        encode_width: width in pixels that frames are encoded at; 0 for the video's own.
        tail: what to do with frames beyond the last multiple of four (see ``plan_reading``).
        every_frame: read the recording's own frames, not 30 a second.
        solve: how hands are placed; None as the released code does for the variant, and by rigid
            PnP where there is no hand model.
        second_opinion: also look at the mirrored clip, and multiply presence and visibility.
        hands: which hands to look for.
        every_slot: also give the pose of hands that count as absent, and anchors that are out of
            sight, as the paper scores them (section "Metric Definitions and Penalty Protocol").
        batch: windows read by the network at once.
        precision: what the backbone computes in; part of the settings that results depend on.
    """

    windows: str = "paper"
    window_latents: int = PAPER_LATENTS
    encode_width: int = DEFAULT_ENCODE_WIDTH
    tail: Tail = "repeat"
    every_frame: bool = False
    solve: SolveOptions | None = None
    second_opinion: bool = False
    hands: Literal["both", "left", "right"] = "both"
    every_slot: bool = False
    batch: int = 1
    precision: Precision = "bfloat16"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"{self.batch} windows at once; valid: 1 or more.")

    @property
    def wanted(self) -> tuple[bool, bool]:
        """Which slots to look for."""
        return self.hands != "right", self.hands != "left"


def solve_options(
    variant: Variant, has_hand_model: bool, trained: InferenceConfig = AS_RELEASED
) -> SolveOptions:
    """Return how to place hands: as recorded in the weights, and as released where nothing is.

    Without a hand model the network's own joints are placed by all their anchors (rigid PnP) in
    place of the mixed PnP, which needs articulated ones.
    """
    released = RELEASED[variant]
    solve = trained.solve or released.solve
    if solve == "mixed" and not has_hand_model:
        solve = "rigid"
    return SolveOptions(
        trained.bearings or released.bearings,
        solve,
        trained.fallback or released.fallback,
        trained.fit_guards or released.fit_guards,
        trained.ray_cells or released.ray_cells,
    )
