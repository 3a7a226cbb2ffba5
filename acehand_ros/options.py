"""From a node's parameters to the options of the conversion. No ROS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acehand_core.bags.records import BagOptions
from acehand_core.errors import InputError
from acehand_core.pipeline import JobSettings
from acehand_core.pipeline.bag_convert import ConvertOptions
from acehand_core.recordings.registry import RecordingOptions
from acehand_core.trackers.ace_settings import AceSettings

NO_BAG = "none"


def offline_options(values: Mapping[str, Any]) -> ConvertOptions:
    """Return what the parameters of offline_bag ask for.

    Raises:
        InputError: the bag or the output is not named, or a value is not valid.
    """
    for name in ("bag", "output_dir"):
        if not values[name].strip():
            raise InputError(f"The parameter {name!r} is empty; give {name}:=PATH.")
    return _options(
        values,
        bag=Path(values["bag"]).expanduser(),
        output=Path(values["output_dir"]).expanduser(),
        bag_output=bag_path(values),
        existing=values["existing"],
        episodes=values["episodes"],
        episode_topic=values["episode_topic"] or None,
        storage=values["storage"],
        mesh=values["mesh"],
    )


def bag_path(values: Mapping[str, Any]) -> Path | None:
    """Return where offline_bag writes its bag, or None."""
    if values["bag_output"] == NO_BAG:
        return None
    if values["bag_output"]:
        return Path(values["bag_output"]).expanduser()
    output = Path(values["output_dir"]).expanduser()
    return output.with_name(f"{output.name}_bag")


def clip_options(
    values: Mapping[str, Any], clip: Path, bag_output: Path, camera_info: str
) -> ConvertOptions:
    """Return how clip_recorder converts a recorded clip: one more episode of its dataset."""
    output = Path(values["output_dir"]).expanduser() / "dataset"
    return _options(
        {**values, "camera_info_topic": camera_info},
        bag=clip,
        output=output,
        bag_output=bag_output,
        existing="append" if output.exists() else "refuse",
    )


def _options(
    values: Mapping[str, Any], bag: Path, output: Path, bag_output: Path | None, existing: Any,
    **more: Any,
) -> ConvertOptions:  # fmt: skip
    reading = BagOptions(
        image_topic=values["image_topic"] or None,
        camera_info_topic=values["camera_info_topic"] or None,
        world_frame=values.get("world_frame") or None,
    )
    job = JobSettings(
        output=output,
        robot=values["robot"],
        tracker=values["tracker"],
        hands=values["hands"],
        hand_length_m=values["hand_length"] or None,
        task=values["task"],
        reading=RecordingOptions(bag=reading),
        existing=existing,
        overlay=values["overlay"],
        ace=ace_settings(values),
    )
    return ConvertOptions(bag=bag, job=job, bag_output=bag_output, **more)


def ace_settings(values: Mapping[str, Any]) -> AceSettings | None:
    """Return what the ace tracker is told, or None for another tracker.

    Raises:
        InputError: weights or a GPU are given to a tracker that has no use for them, or ace has no
            weights.
    """
    device, weights, tracker = values["device"], values["weights"], values["tracker"]
    if tracker == "ace":
        if not weights:
            raise InputError("tracker: 'ace' needs its weights; give weights:=PATH.")
        chosen = None if device == "auto" else device
        return AceSettings(weights=Path(weights).expanduser(), device=chosen)
    if weights:
        raise InputError(f"weights: given, but the tracker is {tracker!r}; they belong to 'ace'.")
    if device == "cuda":
        raise InputError(
            f"device: 'cuda', but the tracker {tracker!r} runs on the CPU; valid: auto, cpu."
        )
    return None
