"""Made-up weights on the disk: as released, and converted; written once, copied for each test."""

import shutil

import pytest

from acehand_core.ace.model.weights.load import convert, sort_sources
from helpers.weights_samples import release


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    convert(sort_sources([release().write(folder / "release")]), "acehand", folder / "own")
    return folder


@pytest.fixture
def checkpoint(written, tmp_path):
    (name,) = (path.name for path in (written / "release").glob("ace*.pt"))
    return shutil.copytree(written / "release", tmp_path / "release") / name


@pytest.fixture
def base(checkpoint):
    return checkpoint.parent / "Wan2.2-Fun-5B-Control"


@pytest.fixture
def own_folder(written, tmp_path):
    return shutil.copytree(written / "own", tmp_path / "own")
