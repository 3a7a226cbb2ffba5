"""Whole conversions that run into trouble: moved splits, bad recordings, inputs that change."""

import json
import shutil
from dataclasses import replace

import native_samples
import pytest

from acehand_core.data.clips import folders
from acehand_core.data.clips.store import ClipStore
from acehand_core.data.native.clip_pictures import ClipOptions
from acehand_core.data.native.run import RunOptions, run

pytest.importorskip("smplx")
pytest.importorskip("torch")

SUBJECTS = ("subject1_h1_0_cam4", "subject4_h1_0_cam4")


@pytest.fixture(scope="module")
def mano_file(shared, tmp_path_factory):
    path = tmp_path_factory.mktemp("mano") / "mano.npz"
    native_samples.write_faulty_mano(shared / "golden" / "mano_synthetic.npz", path)
    return path


@pytest.fixture(scope="module")
def samples(mano_file, tmp_path_factory):
    """Returns a fresh copy of a dataset; each is written once."""
    hands, folder = native_samples.Hands(mano_file), tmp_path_factory.mktemp("samples")

    def copy(name, target):
        source = folder / name
        if not source.is_dir():
            source.mkdir()
            native_samples.WRITERS[name](source, hands)
        return shutil.copytree(source, target / name)

    return copy


def convert(name, root, output, **changes):
    """Convert without pictures and return the report."""
    options = RunOptions(root, output, clips=ClipOptions(images="none"))
    return run(name, replace(options, **changes), lambda *step: None)


def clips_of(output):
    """Return split to the names of its clips, by folder and by index; they must agree."""
    out = {}
    for path in sorted(output.glob("*/store.json")):
        store = ClipStore(path.parent)
        index = json.loads((path.parent / "index.json").read_text())["clips"]
        assert sorted(index) == store.ids()
        out[path.parent.name] = store.ids()
    return out


def test_a_split_file_moves_clips_out_of_the_other_store(samples, tmp_path, capsys):
    """Else the same recording would be in train and in test."""
    root, output = samples("h2o", tmp_path), tmp_path / "out"
    assert convert("h2o", root, output).moved == {}
    splits = tmp_path / "splits.json"
    splits.write_text(json.dumps({"test": list(SUBJECTS)}))
    report = convert("h2o", root, output, split_file=splits)
    assert clips_of(output) == {"train": [], "test": list(SUBJECTS)}
    assert report.to_json()["moved"] == [{"from": "train", "to": "test", "clips": 1}]
    assert json.loads((output / "conversion-h2o.json").read_text()) == report.to_json()
    # Also where the new split is not converted itself: a test recording may not stay in train.
    splits.write_text(json.dumps({"train": [SUBJECTS[0]], "val": [SUBJECTS[1]]}))
    report = convert("h2o", root, output, split_file=splits, splits=("train",))
    assert clips_of(output) == {"train": [SUBJECTS[0]], "test": []}
    assert report.moved == {("test", "train"): 1, ("test", "val"): 1}
    from acehand_core.cli.main import main

    splits.write_text(json.dumps({"test": list(SUBJECTS)}))
    assert main(["data", "convert", "h2o", "--root", str(root), "--output", str(output), "--images",
                 "none", "--split-file", str(splits), "-q"]) == 0  # fmt: skip
    assert "removed from train: 1 clips that belong to test" in capsys.readouterr().err


@pytest.mark.parametrize("stop", ["rename", "rmtree", "write"])
def test_a_move_that_is_stopped_leaves_one_whole_clip_or_none(samples, tmp_path, monkeypatch, stop):
    """Wherever it ends: never in both splits, and no index names a clip that is not there."""
    root, output = samples("h2o", tmp_path), tmp_path / "out"
    convert("h2o", root, output)
    splits = tmp_path / "splits.json"
    splits.write_text(json.dumps({"test": [SUBJECTS[0]]}))

    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stop == "rename":
            patch.setattr(folders, "remove_folder", interrupted)
        elif stop == "rmtree":  # the folder is out of place already, its files are not gone
            real = shutil.rmtree
            patch.setattr(
                folders.shutil,
                "rmtree",
                lambda p, **named: interrupted() if p.exists() else real(p, **named),
            )
        else:
            patch.setattr("acehand_core.data.native.convert.hand_motion", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert("h2o", root, output, split_file=splits)
    found = {split: ClipStore(output / split).ids() for split in ("train", "test")}
    assert found["test"] == [SUBJECTS[1]]
    assert found["train"] == ([SUBJECTS[0]] if stop == "rename" else [])
    index = json.loads((output / "train" / "index.json").read_text())["clips"]
    assert index == {}
    convert("h2o", root, output, split_file=splits)
    assert clips_of(output) == {"train": [], "test": list(SUBJECTS)}
