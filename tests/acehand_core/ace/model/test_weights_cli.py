"""``acehand weights`` as it is typed."""

import json

from acehand_core.ace.model.weights import fetch
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.cli.main import main as acehand
from helpers import weights_samples as samples
from helpers.weights_samples import release


def run(*words):
    return acehand(["weights", *map(str, words)])


def last_json(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_convert_inspect(checkpoint, base, tmp_path, capsys):
    loose = tmp_path / "elsewhere" / samples.CHECKPOINT
    loose.parent.mkdir()
    checkpoint.rename(loose)
    pieces = [base, checkpoint.parent / "caption_embed.pt"]
    own, back = tmp_path / "own", tmp_path / "back"
    assert run("convert", loose, *pieces, "--to", "acehand", "--output", own, "--json") == 0
    data = last_json(capsys)
    assert data["variant"] == "kfree" and samples.CHECKPOINT in data["sources"]
    assert run("convert", own, "--to", "official", "--output", back, "--base", base) == 0
    assert "initial values" in capsys.readouterr().err
    samples.write_repackaged(tmp_path / "r", load_weights(own))
    for path in (own, tmp_path / "r", back, loose):
        assert run("inspect", path, "--json") == 0
        assert last_json(capsys)["problems"] == []
    # Flags may also stand before the action's name.
    assert run("--json", "inspect", back, "--variant", "kfree") == 0
    assert last_json(capsys)["tap"] == 1


def test_what_is_wrong_gives_an_exit_code(checkpoint, base, tmp_path, capsys):
    made = release()
    del made.parts["projectors"]["l1.hand_fuse.1.weight"]
    bad = made.write(tmp_path / "bad")
    assert run("inspect", bad) == 1
    assert "l1.hand_fuse.1.weight" in capsys.readouterr().err
    assert run("convert", bad, "--to", "acehand", "--output", tmp_path / "o") == 2
    assert not (tmp_path / "o").exists()
    assert run("inspect", tmp_path / "nothing") == 2
    assert run("inspect") == 2
    assert run("convert", base, "--to", "acehand", "--output", tmp_path / "o") == 2
    assert "only pieces" in capsys.readouterr().err
    assert run("convert", checkpoint, bad, "--to", "acehand", "--output", tmp_path / "o") == 2
    assert run("convert", checkpoint, "--to", "acehand", "--output", checkpoint.parent) == 4
    assert run("convert", checkpoint, "--variant", "k", "--to", "acehand", "--output", "o") == 2


def test_list_of_what_can_be_fetched(capsys):
    assert run("inspect", "--accounting", "--json") == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)["accounting"]["rows"]
    assert {row["name"]: row["parameters"] for row in rows}["optimiser"] == 183_992_299
    assert "100,100,920" in captured.err
    assert run("fetch", "--list", "--json") == 0
    captured = capsys.readouterr()
    sources = json.loads(captured.out)["sources"]
    assert {"official-k", "official-kfree", "wan-base", "repackaged"} <= sources.keys()
    assert all(entry["licence"] for entry in sources.values())
    assert "CC BY-NC 4.0" in captured.err
    assert run("fetch") == 2


def test_fetch_prints_where_and_under_which_licence(tmp_path, monkeypatch, capsys):
    asked, licence = [], "CC BY-NC 4.0"

    def fetched(name, revision, quiet):
        asked.append((name, revision))
        return fetch.FetchedWeights(name, "a/b", "c0ffee", tmp_path, {}, {}, ("x.json",), licence)

    monkeypatch.setattr(fetch, "fetch", fetched)
    assert run("fetch", "official-k", "wan-base", "--json") == 0
    captured = capsys.readouterr()
    assert asked == [("official-k", None), ("wan-base", None)]
    assert [f["folder"] for f in json.loads(captured.out)["fetched"]] == [str(tmp_path)] * 2
    assert "not part of acehand" in captured.err and "CC BY-NC" in captured.err
    assert "x.json: no hash" in captured.err
