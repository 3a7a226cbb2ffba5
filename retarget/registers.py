"""What a hand's own controller is sent: its unit, range and polarity for every command."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from retarget.parameters import Section

CommandVector = Float[np.ndarray, "C"]
Commands = Float[np.ndarray, "*batch C"]
#: Keys of a command, and of the file as a default for all commands.
KEYS = "register_range register_zero register_scale register_offset"


@dataclass(frozen=True, slots=True, eq=False)
class Registers:
    """Register values at the limits of the driven joints; linear in between.

    ``unit`` is a note for people and datasets. ``whole``: the controller takes whole numbers.
    """

    lower: CommandVector
    upper: CommandVector
    at_lower: CommandVector
    at_upper: CommandVector
    unit: str
    whole: bool

    def of(self, commands: Commands) -> Commands:
        """Return register values for driven angles; angles beyond the limits are clipped."""
        share = np.clip((commands - self.lower) / (self.upper - self.lower), 0, 1)
        return self.at_lower + (self.at_upper - self.at_lower) * share

    def inverse(self, registers: Commands) -> Commands:
        """Return driven angles for register values; beyond the range they are clipped."""
        share = np.clip((registers - self.at_lower) / (self.at_upper - self.at_lower), 0, 1)
        return self.lower + share * (self.upper - self.lower)


def read_registers(
    root: Section, commands: Section, lower: CommandVector, upper: CommandVector
) -> Registers:
    """Read what each command's register means.

    Either ``register_range`` with ``register_zero``, the joint limit at which the register has the
    range's first value; or ``register_scale`` with ``register_offset``: the register is
    ``offset + scale * angle``.

    Raises:
        SchemaError: neither is given, or a scale is 0.
    """
    ends = []
    for name, low, high in zip(commands, lower, upper, strict=True):
        entry = commands.section(name)
        linear = "register_scale" in entry or "register_scale" in root
        if linear and "register_zero" not in entry:
            scale = entry.number("register_scale", root.number("register_scale", 0.0))
            offset = entry.number("register_offset", root.number("register_offset", 0.0))
            if scale == 0:
                entry.fail("register_scale", "must not be 0.")
            ends.append((offset + scale * low, offset + scale * high))
            continue
        first, last = (entry if "register_range" in entry else root).interval("register_range")
        upside_down = entry.choice("register_zero", ("lower", "upper")) == "upper"
        ends.append((last, first) if upside_down else (first, last))
    values = np.array(ends, float)
    return Registers(
        lower=lower,
        upper=upper,
        at_lower=values[:, 0],
        at_upper=values[:, 1],
        unit=root.text("register_unit", "vendor register"),
        whole=root.flag("register_whole", False),
    )
