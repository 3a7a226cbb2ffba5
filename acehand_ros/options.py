"""From a node's parameters to the options of the conversion. No ROS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from acehand_core import ConvertOptions
from acehand_core.errors import InputError
from acehand_core.settings import built, leaves

NO_BAG = "none"


def offline_options(values: Mapping[str, Any]) -> ConvertOptions:
    """Return what the parameters of offline_bag ask for.

    Raises:
        InputError: the bag or the output is not named, or a value is not valid.
    """
    for name in ("bag", "output_dir"):
        if not values[name].strip():
            raise InputError(f"The parameter {name!r} is empty; give {name}:=PATH.")
    output = Path(values["output_dir"]).expanduser()
    bag_output: Path | None = output.with_name(f"{output.name}_bag")
    if values["bag_output"]:
        bag_output = Path(values["bag_output"]).expanduser()
    return _options(
        values,
        bag=Path(values["bag"]).expanduser(),
        output=output,
        bag_output=None if values["bag_output"] == NO_BAG else bag_output,
        existing=values["existing"],
    )


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
    values: Mapping[str, Any], bag: Path, output: Path, bag_output: Path | None, existing: Any
) -> ConvertOptions:
    """Return the conversion's settings of a node's parameters of the same names."""
    check_ace(values)
    values = {
        **values, "bag": bag, "output": output, "bag_output": bag_output, "existing": existing,
    }  # fmt: skip
    given: dict[tuple[str, ...], Any] = {}
    for leaf in leaves(ConvertOptions):
        value = values.get(leaf.parameter)
        # Parameters cannot be None: empty text and 0 stand for it; so does "auto" of device.
        if value is None or value == "" or (leaf.default is None and value in (0.0, "auto")):
            continue
        is_path = Path in (leaf.type, *get_args(leaf.type))
        given[leaf.path] = Path(value).expanduser() if is_path else value
    return built(ConvertOptions, given)


def check_ace(values: Mapping[str, Any]) -> None:
    """Refuse weights or a GPU for a tracker that has no use for them, and ace without weights.

    Raises:
        InputError: names the parameter.
    """
    device, weights, tracker = values["device"], values["weights"], values["tracker"]
    if tracker == "ace" and not weights:
        raise InputError("tracker: 'ace' needs its weights; give weights:=PATH.")
    if tracker != "ace" and weights:
        raise InputError(f"weights: given, but the tracker is {tracker!r}; they belong to 'ace'.")
    if tracker != "ace" and device == "cuda":
        raise InputError(
            f"device: 'cuda', but the tracker {tracker!r} runs on the CPU; valid: auto, cpu."
        )
