"""Packages with plug-ins, as pip lays them down."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


def lay_down(folder: Path, groups: Mapping[str, Mapping[str, str]], name: str = "others") -> Path:
    """Write the metadata of an installed package with these entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@contextmanager
def installed(
    folder: Path, groups: Mapping[str, Mapping[str, str]], name: str = "others"
) -> Iterator[None]:
    """A package in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(lay_down(folder, groups, name)))
        yield
