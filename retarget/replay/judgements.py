"""All that clips are judged by: what is measured, its limits, and what exceeds them.

A judgement is a number of a hand or of the clip with two limits: above the first the clip is
doubtful (``warn`` in a verdict), above the second rejected (``fail``); docs/review.md gives their
origin. ``clip.clip_measures`` serves the verdict of a conversion, which adds replay, and
``acehand inspect``, which adds files, pictures and other episodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from acehand_core.types import Side
from retarget.robots.parameters import read_yaml

Level = Literal["note", "doubtful", "rejected"]
Status = Literal["accepted", "doubtful", "rejected"]
#: Measured in both, in a conversion, or in an inspection of files, pictures or batches.
Source = Literal["clip", "replay", "dataset", "pictures", "batch"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A measure and its limits; ``noted``: a value other than 0 is reported within them too."""

    doubtful: int | float
    rejected: int | float
    unit: str
    source: Source
    meaning: str
    noted: bool = False


Judgements = Mapping[str, Judgement]
_NEVER = float("inf")
#: Limits of replay, accelerations and far tips for rejection are those in use elsewhere for
#: accepting retargeted clips; shares and counts of faults begin above healthy clips.
JUDGEMENTS: Judgements = {
    "no_hand": Judgement(0.5, 0.5, "", "clip", "1 where no frame has a hand"),
    "one_frame": Judgement(0.5, _NEVER, "", "clip", "1 where there is only one frame"),
    "frame_s": Judgement(0.2, _NEVER, "s", "clip",
        "time from frame to frame: slower recordings do not show how a hand moves"),
    "absent": Judgement(0.5, _NEVER, "", "clip",
        "share of frames in which a hand that appears is not seen"),
    "filled": Judgement(0.4, 0.5, "", "clip",
        "share of a hand's frames that are filled in or of confidence 0"),
    "untrusted": Judgement(_NEVER, _NEVER, "", "clip",
        "share of a hand's frames that are of confidence 0; always noted", noted=True),
    "uncertain_tips": Judgement(0.4, 0.5, "", "clip",
        "share of followed human fingertips with a standard deviation in the palm of over 30 mm "
        "per direction"),
    "hand_size": Judgement(1.25, 1.6, "x", "clip",
        "hand length (wrist to middle fingertip, along the bones) against that of a mean adult "
        "hand, 187 mm, as a factor of at least 1"),
    "bone_length": Judgement(0.05, 0.15, "", "clip",
        "relative variation of a typical bone's length over time"),
    "jitter": Judgement(1.5, 4.0, "mm", "clip",
        "noise of the joints between frames: standard deviation per direction, by third "
        "differences"),
    "identity_swaps": Judgement(0.5, 1.5, "", "clip", "swaps of the left and the right hand"),
    "wrong_side": Judgement(0.5, 0.5, "", "clip",
        "1 where fingers bend out of the palm over all or part of the clip: the other hand, or a "
        "mirrored one"),
    "flips": Judgement(0.5, 2.5, "", "clip",
        "frames in which the palm turns faster than 2000 degrees a second"),
    "bends": Judgement(0.03, 0.15, "", "clip",
        "share of finger joints bent backwards by over 30 degrees"),
    "speed": Judgement(0.5, 2.5, "", "clip", "frames in which a wrist is faster than 6 m/s"),
    "frozen": Judgement(0.3, 1.0, "s", "clip",
        "longest time for which a hand counts as seen and none of its joints moves"),
    "distance": Judgement(1.5, 3.0, "m", "clip", "median distance of a wrist from the camera"),
    "reprojection": Judgement(0.15, 0.35, "", "clip",
        "median distance of projected joints from the tracker's landmarks, over the hand's size "
        "in the picture"),
    "depth_size": Judgement(1.15, 1.4, "x", "clip",
        "size of the projected hand against that of the tracker's landmarks, as a factor of at "
        "least 1"),
    "stamp_gaps": Judgement(0.15, 0.5, "s", "clip", "longest time between two source frames"),
    "stamp_repeats": Judgement(0.1, 0.3, "", "clip", "share of frames that repeat a source frame"),
    "far_tips": Judgement(0.25, 0.35, "", "clip",
        "share of robot fingertips over 30 mm from the human ones"),
    "joint_limits": Judgement(0, 0, "", "clip",
        "joint angles outside the robot's limits by more than rounding, counted over the frames"),
    "coupling": Judgement(0.01, 0.05, "rad", "clip",
        "largest deviation of a coupled joint from where its driven one puts it"),
    "base": Judgement(0.04, 0.1, "m", "clip",
        "median distance between the middles of the robot's and the human fingertips, in the "
        "camera frame"),
    "wrist_acceleration": Judgement(30, 60, "m/s2", "clip",
        "largest acceleration of the robot's base over three frames"),
    "still": Judgement(0.3, 0.6, "", "clip",
        "share of the time in which human fingers move and the robot's do not"),
    "reach": Judgement(0.02, 0.2, "", "clip",
        "share of a hand's frames that its arm does not reach"),
    "flexion_deg": Judgement(20, 40, "degrees", "replay", "flexion error of the worst finger"),
    "tracking_rad": Judgement(0.1, 0.3, "rad", "replay",
        "rms of simulated against commanded angles"),
    "tracking_m": Judgement(0.003, 0.01, "m", "replay",
        "the same of joints that slide, such as a gripper's"),
    "penetration_mm": Judgement(1.0, 20.0, "mm", "replay",
        "deepest self-penetration of the hand, commanded or simulated"),
    "saturation": Judgement(0.05, 0.3, "", "replay", "share of actuator steps at the torque limit"),
    "speed_limits": Judgement(0, 0, "", "replay",
        "frame steps of driven joints that exceed the robot's speed"),
    "unstable": Judgement(0, 0, "", "replay", "unstable simulation steps"),
    "cannot": Judgement(0, _NEVER, "", "replay",
        "1 for each thing of the human's that the robot cannot do"),
    "verdict": Judgement(1.5, 1.5, "", "dataset",
        "the conversion's own verdict: 1 warn, 2 fail", noted=True),
    "principal_point": Judgement(0.08, 0.2, "", "dataset",
        "distance of the principal point from the middle of the picture, over its width"),
    "field_of_view": Judgement(0.5, 1.5, "", "dataset",
        "1 for an angle across the wider side under 25 or over 130 degrees; 2 under 10 or over "
        "170, or where the camera has another picture size"),
    "camera": Judgement(0.5, 1.5, "", "dataset", "1 for an assumed camera, 2 for none"),
    "robot": Judgement(0.5, 0.5, "", "dataset",
        "1 where the episode was made for another robot than the dataset"),
    "register": Judgement(0.02, 0.1, "", "dataset",
        "share of register values off the commands' by more than 5 % of their range"),
    "calibration": Judgement(0.5, 1.5, "", "dataset",
        "1 where the episode's calibration file is missing or not that of its provenance"),
    "finite": Judgement(0.0, 0.0, "", "dataset",
        "share of values of the worst column that are not finite"),
    "action": Judgement(0.0, 0.001, "", "dataset",
        "share of frames whose action is not the next frame's state"),
    "hand_columns": Judgement(0.0, 0.001, "", "dataset",
        "share of frames in which the worst human hand column differs from the table of hands "
        "next to the episode"),
    "licences": Judgement(1.5, _NEVER, "", "dataset",
        "1 for a part for non-commercial use, 2 for an unknown licence or none", noted=True),
    "unreadable": Judgement(0.5, 0.5, "", "dataset", "1 for an unreadable file of the episode"),
    "repeated_pictures": Judgement(0.04, 0.2, "", "pictures",
        "share of frames whose picture repeats the one before while pictures around it change"),
    "picture_jumps": Judgement(0.5, 3.5, "", "pictures",
        "jumps of the picture between even time stamps"),
    "uneven_pictures": Judgement(2.5, _NEVER, "", "pictures",
        "pictures that change by 1.4 times as much as those before and after: lost frames"),
    "picture_agreement": Judgement(0.25, 0.6, "", "pictures",
        "median distance of the dataset's hands from those found in the video again, over their "
        "size"),
    "picture_lag": Judgement(1.5, 3.5, "frames", "pictures",
        "frames by which hands are ahead of the pictures or behind them"),
    "picture_size": Judgement(1.2, 1.5, "x", "pictures",
        "size of the dataset's hands in the picture against those found in the video again, as a "
        "factor of at least 1"),
    "picture_sides": Judgement(0.3, 0.6, "", "pictures",
        "share of frames in which a hand found again is the other one"),
    "batch_camera": Judgement(0.05, _NEVER, "", "batch",
        "relative difference of the focal length from that of most recordings of this picture "
        "size in the batch"),
    "batch_jitter": Judgement(4.0, _NEVER, "x", "batch", "jitter over the batch's median"),
    "batch_hand_size": Judgement(0.08, _NEVER, "", "batch",
        "relative difference of the hand's length from the same subject's other recordings"),
    "batch_side": Judgement(0.5, _NEVER, "", "batch",
        "1 where another hand works than in most recordings of this task: mirrored?"),
    "batch_twice": Judgement(0.5, _NEVER, "", "batch",
        "1 where another episode of the batch has exactly the same values"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured value of a hand or, ``side`` None, of the clip; ``frame`` shows it best."""

    check: str
    value: int | float
    text: str
    side: Side | None = None
    frame: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of report.json."""
        return {**asdict(self), "value": round(float(self.value), 5)}


@dataclass(frozen=True, slots=True)
class Finding(Measure):
    """A measure beyond a limit."""

    level: Level = "note"


def findings(
    measures: Iterable[Measure], judgements: Judgements = JUDGEMENTS, shared: Collection[str] = ()
) -> list[Finding]:
    """Return measures beyond a limit, the worst first; doubts of ``shared`` checks are notes."""
    found = []
    for measure in measures:
        limit = judgements[measure.check]
        if measure.value > limit.rejected:
            level: Level = "rejected"
        elif measure.value > limit.doubtful and measure.check not in shared:
            level = "doubtful"
        elif (limit.noted or measure.check in shared) and measure.value:
            level = "note"
        else:
            continue
        found.append(Finding(**asdict(measure), level=level))
    order = ("rejected", "doubtful", "note")
    return sorted(found, key=lambda finding: order.index(finding.level))


def status_of(found: Sequence[Finding]) -> Status:
    """Return the worst level of findings."""
    levels = {finding.level for finding in found}
    if "rejected" in levels:
        return "rejected"
    return "doubtful" if "doubtful" in levels else "accepted"


def read_gates(path: Path) -> dict[str, Judgement]:
    """Return all judgements with the limits that a YAML file changes; null is no limit.

    ``{name: {doubtful, rejected}}`` or, with the same meaning, ``{name: {warn, fail}}``. Raises
    InputError for an unreadable file, SchemaError for unknown names or invalid limits.
    """
    root, judgements = read_yaml(path), dict(JUDGEMENTS)
    root.known(JUDGEMENTS, "a judgement")
    for name in root:
        entry = root.section(name)
        entry.only("doubtful rejected warn fail")
        low, high = judgements[name].doubtful, judgements[name].rejected
        for key in entry:
            value = _NEVER if entry.plain()[key] is None else entry.number(key)
            low, high = (value, high) if key in ("doubtful", "warn") else (low, value)
        if not 0 <= low <= high:
            words = "warn <= fail" if {"warn", "fail"} & {*entry} else "doubtful <= rejected"
            root.fail(name, f"must have 0 <= {words}, not {low:g} and {high:g}.")
        judgements[name] = replace(judgements[name], doubtful=low, rejected=high)
    return judgements
