"""The datasets in their native layouts, each written once."""

import shutil

import pytest

from helpers import native_samples


@pytest.fixture(scope="session")
def datasets(mano_file, tmp_path_factory):
    """Returns root and truths of a dataset by its name."""
    hands = native_samples.Hands(mano_file)

    class Written(dict):
        def __missing__(self, name):
            root = tmp_path_factory.mktemp(name)
            self[name] = root, native_samples.WRITERS[name](root, hands)
            return self[name]

    return Written()


@pytest.fixture
def samples(datasets, tmp_path):
    """Returns a copy of a dataset, to be changed."""
    return lambda name: shutil.copytree(datasets[name][0], tmp_path / name)
