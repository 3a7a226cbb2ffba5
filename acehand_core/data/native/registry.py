"""The datasets that can be read, by name."""

from __future__ import annotations

from acehand_core.data.native.arctic import ArcticReader
from acehand_core.data.native.egocentric import EgocentricReader
from acehand_core.data.native.freihand import FreiHandReader
from acehand_core.data.native.h2o import H2OReader
from acehand_core.data.native.hoi4d import Hoi4dReader
from acehand_core.data.native.hot3d_clips import Hot3dClipsReader
from acehand_core.data.native.hot3d_recordings import Hot3dReader
from acehand_core.data.native.interhand import ReInterHandReader
from acehand_core.data.native.oakink2 import OakInk2Reader
from acehand_core.data.native.protocol import Reader
from acehand_core.data.native.rhd import RhdReader
from acehand_core.errors import InputError, nearest

READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        ArcticReader(),
        Hot3dReader(),
        Hot3dClipsReader(),
        H2OReader(),
        OakInk2Reader(),
        ReInterHandReader(),
        FreiHandReader(),
        RhdReader(),
        Hoi4dReader(),
        EgocentricReader(),
        EgocentricReader("holoassist"),
        EgocentricReader("xperience10m"),
    )
}


def find_reader(name: str) -> Reader:
    """Return the reader of a dataset. Raises InputError with the valid names."""
    if name not in READERS:
        raise InputError(f"No dataset {name!r}; {nearest(name, READERS)}")
    return READERS[name]
