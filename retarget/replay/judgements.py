"""All that a clip is judged by, whoever judges: what is measured, its limits, what passes them.

A judgement is a number, of a hand or of the whole clip, with two limits: above the first the clip
is doubtful, above the second it is rejected (docs/review.md says how each was chosen). The verdict
of a conversion calls that ``warn`` and ``fail``. It and ``acehand inspect`` both measure a clip by
``clip.clip_measures``; the one adds what only a replay shows, the other what files, pictures and
other episodes tell.
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
#: Who can measure it: everybody, a conversion, or an inspection, of files, pictures or a batch.
Source = Literal["clip", "replay", "dataset", "pictures", "batch"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is measured, and what it may be: above ``doubtful`` or ``rejected`` the clip is that.

    ``noted``: where it is not 0 it is named among the reasons, even within its limits.
    """

    doubtful: int | float
    rejected: int | float
    unit: str
    source: Source
    meaning: str
    noted: bool = False


Judgements = Mapping[str, Judgement]
_NEVER = float("inf")
#: By name. The limits of replay, accelerations and far tips beyond which a clip is rejected are
#: those in use elsewhere for accepting retargeted clips. Those that measure a share or a count of
#: faults begin at what healthy clips show.
JUDGEMENTS: Judgements = {
    "no_hand": Judgement(0.5, 0.5, "", "clip", "1 where neither hand is there in any frame"),
    "one_frame": Judgement(0.5, _NEVER, "", "clip", "1 where there is one frame only"),
    "frame_s": Judgement(0.2, _NEVER, "s", "clip", "time from frame to frame: slower recordings do "
                         "not show how a hand moves"),
    "absent": Judgement(0.5, _NEVER, "", "clip", "share of the frames in which a hand that appears "
                        "is not seen"),
    "filled": Judgement(0.4, 0.5, "", "clip", "share of a hand's frames that are filled in or of "
                        "confidence 0"),
    "untrusted": Judgement(_NEVER, _NEVER, "", "clip", "share of a hand's frames that are of "
                           "confidence 0; always noted", noted=True),
    "uncertain_tips": Judgement(0.4, 0.5, "", "clip", "share of human fingertips, where the hand "
                                "is followed, whose standard deviation in the palm is over 30 mm "
                                "per direction"),
    "hand_size": Judgement(1.25, 1.6, "x", "clip", "hand length (wrist to middle fingertip, along "
                           "the bones) over or under that of a mean adult hand, 187 mm, as a "
                           "factor"),
    "bone_length": Judgement(0.05, 0.15, "", "clip", "how much a typical bone's length varies over "
                             "time, relative to it"),
    "jitter": Judgement(1.5, 4.0, "mm", "clip", "noise of the joints from frame to frame: standard "
                        "deviation per direction, by third differences"),
    "identity_swaps": Judgement(0.5, 1.5, "", "clip", "times at which both hands change places"),
    "wrong_side": Judgement(0.5, 0.5, "", "clip", "1 where the fingers of a hand bend out of its "
                            "palm over all or a part of the clip: it is the other hand, or "
                            "mirrored"),
    "flips": Judgement(0.5, 2.5, "", "clip", "times at which the palm turns faster than 2000 "
                       "degrees a second"),
    "bends": Judgement(0.03, 0.15, "", "clip", "share of finger joints bent backwards by over 30 "
                       "degrees"),
    "speed": Judgement(0.5, 2.5, "", "clip", "times at which a wrist is faster than 6 m/s"),
    "frozen": Judgement(0.3, 1.0, "s", "clip", "longest time for which a hand is said to be seen "
                        "and none of its joints moves at all"),
    "distance": Judgement(1.5, 3.0, "m", "clip", "median distance of a wrist from the camera"),
    "reprojection": Judgement(0.15, 0.35, "", "clip", "median distance of the joints, seen through "
                              "the camera, from the landmarks the tracker saw, over the hand's "
                              "size in the picture"),
    "depth_size": Judgement(1.15, 1.4, "x", "clip", "size of the hand as its depth and the camera "
                            "make it, over or under that of the landmarks the tracker saw, as a "
                            "factor"),
    "stamp_gaps": Judgement(0.15, 0.5, "s", "clip", "longest time between two source frames"),
    "stamp_repeats": Judgement(0.1, 0.3, "", "clip", "share of frames that show the source frame "
                               "before again"),
    "far_tips": Judgement(0.25, 0.35, "", "clip", "share of robot fingertips over 30 mm from the "
                          "human ones"),
    "joint_limits": Judgement(0, 0, "", "clip", "joint angles outside the robot's limits, by more "
                              "than rounding, counted over the frames"),
    "coupling": Judgement(0.01, 0.05, "rad", "clip", "largest angle by which a coupled joint is "
                          "not where its driven one puts it"),
    "base": Judgement(0.04, 0.1, "m", "clip", "median distance of the middle of the robot's "
                      "fingertips from that of the human ones, in the camera frame"),
    "wrist_acceleration": Judgement(30, 60, "m/s2", "clip", "largest acceleration of the robot's "
                                    "base over three frames"),
    "still": Judgement(0.3, 0.6, "", "clip", "share of the time in which the fingers move and the "
                       "robot's do not"),
    "reach": Judgement(0.02, 0.2, "", "clip", "share of a hand's frames in which its arm does not "
                       "reach it"),
    "flexion_deg": Judgement(20, 40, "degrees", "replay", "error of the finger whose flexion is "
                             "worst"),
    "tracking_rad": Judgement(0.1, 0.3, "rad", "replay", "rms of simulated against commanded "
                              "angles"),
    "tracking_m": Judgement(0.003, 0.01, "m", "replay", "the same of joints that slide, as a "
                            "gripper's"),
    "penetration_mm": Judgement(1.0, 20.0, "mm", "replay", "how deep the hand reaches into itself, "
                                "commanded or simulated"),
    "saturation": Judgement(0.05, 0.3, "", "replay", "share of actuator steps at the torque limit"),
    "speed_limits": Judgement(0, 0, "", "replay", "steps from frame to frame that are faster than "
                              "the robot, counted over its driven joints"),
    "unstable": Judgement(0, 0, "", "replay", "steps in which the simulation was unstable"),
    "cannot": Judgement(0, _NEVER, "", "replay", "1 for each thing that the robot cannot do of "
                        "what the human did"),
    "verdict": Judgement(1.5, 1.5, "", "dataset", "what the conversion said of itself: 1 warn, 2 "
                         "fail", noted=True),
    "principal_point": Judgement(0.08, 0.2, "", "dataset", "distance of the principal point from "
                                 "the middle of the picture, over the picture's width"),
    "field_of_view": Judgement(0.5, 1.5, "", "dataset", "1 for an angle across the wider side that "
                               "is under 25 or over 130 degrees, 2 under 10 or over 170, or where "
                               "the camera is of another picture size"),
    "camera": Judgement(0.5, 1.5, "", "dataset", "1 where the camera was not known but assumed, 2 "
                        "where none is kept"),
    "robot": Judgement(0.5, 0.5, "", "dataset", "1 where the episode was made for another robot "
                       "than the dataset"),
    "register": Judgement(0.02, 0.1, "", "dataset", "share of register values that are not those "
                          "of the commands within 5 % of their range"),
    "calibration": Judgement(0.5, 1.5, "", "dataset", "1 where the calibration beside the episode "
                             "is missing or not that of its provenance"),
    "finite": Judgement(0.0, 0.0, "", "dataset", "share of a column's values that are not numbers, "
                        "of the worst column"),
    "action": Judgement(0.0, 0.001, "", "dataset", "share of frames whose action is not the next "
                        "frame's state"),
    "hand_columns": Judgement(0.0, 0.001, "", "dataset", "share of frames in which a column of the "
                              "human hands is not that of the table of hands next to the episode; "
                              "the worst column"),
    "licences": Judgement(1.5, _NEVER, "", "dataset", "1 where something it was made with is for "
                          "non-commercial use, 2 where a licence is not known or none is recorded",
                          noted=True),
    "unreadable": Judgement(0.5, 0.5, "", "dataset", "1 where a file of the episode cannot be "
                            "read"),
    "repeated_pictures": Judgement(0.04, 0.2, "", "pictures", "share of frames whose picture "
                                   "repeats the one before while pictures around it change"),
    "picture_jumps": Judgement(0.5, 3.5, "", "pictures", "times at which the picture jumps "
                               "although time stamps are even"),
    "uneven_pictures": Judgement(2.5, _NEVER, "", "pictures", "times at which a picture changes by "
                                 "1.4 times as much as those before and after it: single frames "
                                 "that were lost"),
    "picture_agreement": Judgement(0.25, 0.6, "", "pictures", "median distance of the dataset's "
                                   "hands from hands found in the video again, over their size"),
    "picture_lag": Judgement(1.5, 3.5, "frames", "pictures", "by how many frames hands are ahead "
                             "of the pictures or behind them"),
    "picture_size": Judgement(1.2, 1.5, "x", "pictures", "size of the dataset's hands in the "
                              "picture over or under that of hands found in the video again, as a "
                              "factor"),
    "picture_sides": Judgement(0.3, 0.6, "", "pictures", "share of frames in which a hand found "
                               "again is the other one"),
    "batch_camera": Judgement(0.05, _NEVER, "", "batch", "relative difference of the focal length "
                              "from that of most recordings of this picture size in the batch"),
    "batch_jitter": Judgement(4.0, _NEVER, "x", "batch", "jitter over the batch's median"),
    "batch_hand_size": Judgement(0.08, _NEVER, "", "batch", "relative difference of the hand's "
                                 "length from the same subject's other recordings"),
    "batch_side": Judgement(0.5, _NEVER, "", "batch", "1 where the other hand does the work than "
                            "in most recordings of this task: mirrored?"),
    "batch_twice": Judgement(0.5, _NEVER, "", "batch", "1 where another episode of the batch has "
                             "the very same values"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measure:
    """What was measured for a judgement: of a hand or, ``side`` None, of the whole clip.

    ``text`` says what that means where a limit is passed, ``frame`` where to look.
    """

    check: str
    value: int | float
    text: str
    side: Side | None = None
    frame: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as report.json holds it."""
        return {**asdict(self), "value": round(float(self.value), 5)}


@dataclass(frozen=True, slots=True)
class Finding(Measure):
    """A measure beyond a limit."""

    level: Level = "note"


def findings(
    measures: Iterable[Measure], judgements: Judgements = JUDGEMENTS, shared: Collection[str] = ()
) -> list[Finding]:
    """Return the measures beyond a limit, the worst first.

    ``shared``: checks that tell no episode of a batch from another; what they doubt is a note.
    """
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
    """Return what findings make of a clip."""
    levels = {finding.level for finding in found}
    if "rejected" in levels:
        return "rejected"
    return "doubtful" if "doubtful" in levels else "accepted"


def read_gates(path: Path) -> dict[str, Judgement]:
    """Return all judgements with the limits that a YAML file changes; null is never passed.

    ``{name: {doubtful, rejected}}``, or ``{name: {warn, fail}}``, which mean the same.

    Raises:
        InputError: the file cannot be read. SchemaError: it names no judgement, or its limits are
            no numbers or in the wrong order.
    """
    root, judgements = read_yaml(path), dict(JUDGEMENTS)
    root.known(JUDGEMENTS, "something that is judged")
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
