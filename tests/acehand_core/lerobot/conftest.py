"""A small dataset, which a file of tests may replace by its own."""

import shutil

import pytest

from helpers import lerobot_samples as samples


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A finished dataset of three episodes (13, 7 and 5 frames); not to be changed."""
    return samples.write(tmp_path_factory.mktemp("finished") / "data")


@pytest.fixture
def own(dataset, tmp_path):
    """A copy of it."""
    return shutil.copytree(dataset, tmp_path / "data")
