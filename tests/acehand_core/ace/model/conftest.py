"""Made-up weights on the disk: as released, and converted."""

import pytest

from acehand_core.ace.model.weights.load import convert, sort_sources
from helpers.weights_samples import release


@pytest.fixture
def checkpoint(tmp_path):
    return release().write(tmp_path / "release")


@pytest.fixture
def base(checkpoint):
    return checkpoint.parent / "Wan2.2-Fun-5B-Control"


@pytest.fixture
def own_folder(checkpoint, tmp_path):
    convert(sort_sources([checkpoint]), "acehand", tmp_path / "own")
    return tmp_path / "own"
