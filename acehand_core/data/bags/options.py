"""How to read a bag: which topics, and which frame is the world."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BagReading:
    """What a bag is read by; None: found by type.

    Attributes:
        image_topic: topic with the pictures.
        camera_info_topic: topic with their calibration.
        world_frame: TF frame in which the camera moves; "none" leaves transforms alone. None takes
            map, world or odom where transforms or odometry lead from it to the camera.
    """

    image_topic: str | None = None
    camera_info_topic: str | None = None
    world_frame: str | None = None

    def to_json(self) -> dict[str, str]:
        """Return what was chosen, by flag."""
        names = ("image_topic", "camera_info_topic", "world_frame")
        values = {name.replace("_", "-"): getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}
