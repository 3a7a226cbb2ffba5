"""What strict loading found: missing, unexpected, wrong, and unused by design."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from acehand_core.errors import SchemaError

#: Precisions that a tensor of the model may be stored in.
FLOATING = ("bfloat16", "float16", "float32", "float64")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class ComponentReport:
    """One list of tensors against one file.

    ``unused`` stand in the list of the layout and are not part of the model; ``ignored`` are
    outside the list and known to be of no use (the VAE's decoder, other keys of a checkpoint).
    ``wrong`` says per tensor what its shape or type is and what it should be.
    """

    component: str
    where: str
    read: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """One sentence per tensor that is not as it should be."""
        out = []
        for name in self.missing:
            close = difflib.get_close_matches(name, self.unexpected, n=1)
            hint = f" (is it {close[0]!r}?)" if close else ""
            out.append(f"tensor {name!r} is missing{hint}")
        out += [f"tensor {name!r} is unexpected" for name in self.unexpected]
        return out + [f"tensor {name!r} {text}" for name, text in self.wrong]

    def require(self) -> ComponentReport:
        """Return itself, or raise SchemaError naming the file and the tensors."""
        problems = self.problems
        if problems:
            more = len(problems) - _SHOWN
            tail = f"; and {more} more" if more > 0 else ""
            text = "; ".join(problems[:_SHOWN])
            raise SchemaError(f"{self.where}: {self.component}: {text}{tail}.")
        return self


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Everything that was looked at to load one model.

    ``filled`` are tensors of the running model that the layout has no place for; they hold their
    initial values. ``notes`` are sentences on what was assumed.
    """

    components: tuple[ComponentReport, ...] = ()
    filled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """All problems, each with its file."""
        return [f"{c.where}: {c.component}: {text}" for c in self.components for text in c.problems]

    def to_json(self) -> dict[str, Any]:
        """Return plain types; tensors that were read are counted, the others named."""
        parts = [{**asdict(c), "read": len(c.read)} for c in self.components]
        return {"components": parts, "filled": list(self.filled), "notes": list(self.notes)}


def check(
    component: str,
    where: str,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    expected: Mapping[str, tuple[int, ...]],
    *,
    runs: Callable[[str], bool] = lambda name: True,
    required: Callable[[str], bool] = lambda name: True,
    ignored: Callable[[str], bool] = lambda name: False,
) -> ComponentReport:
    """Compare what a file holds with a list.

    Args:
        shapes, dtypes: by name, as found.
        expected: the list.
        runs: which names of the list are part of the model.
        required: which names of the list may not be missing.
        ignored: which names outside the list are of no use and no harm.
    """
    wrong = []
    for name in sorted(shapes.keys() & expected.keys()):
        if tuple(shapes[name]) != tuple(expected[name]):
            wrong.append((name, f"has shape {_size(shapes[name])}, not {_size(expected[name])}"))
        elif dtypes[name] not in FLOATING:
            wrong.append((name, f"is {dtypes[name]}; valid: {', '.join(FLOATING)}"))
    outside = sorted(shapes.keys() - expected.keys())
    present = sorted(shapes.keys() & expected.keys())
    return ComponentReport(
        component=component,
        where=where,
        read=tuple(name for name in present if runs(name)),
        missing=tuple(n for n in expected if n not in shapes and required(n)),
        unexpected=tuple(name for name in outside if not ignored(name)),
        wrong=tuple(wrong),
        unused=tuple(name for name in present if not runs(name)),
        ignored=tuple(name for name in outside if ignored(name)),
    )


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"
