"""Results of benchmarks say by which code they were made."""

import dataclasses
import functools
import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from acehand_core.recordings.hands_file import read_hand_motion
from benchmarks import all as every
from benchmarks import documents, provenance
from benchmarks.retargeting import tables
from helpers import ROOT

SCRIPTS = sorted(
    path
    for path in (ROOT / "benchmarks").glob("*.py")
    if path.stem not in {"__init__", "all", "documents", "evaluation_reference", "provenance"}
)
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def script_of(command: str) -> Path:
    match = re.match(r"python (?:-m benchmarks\.([\w.]+)|benchmarks/(\w+)\.py)( |$)", command)
    name = (match[1] or match[2]).replace(".", "/") if match else "none"
    return ROOT / "benchmarks" / f"{name}.py"


def problems(result: dict) -> list[str]:
    made = result.get("provenance")
    if not isinstance(made, dict):
        return ["no provenance"]
    checks = {
        "commit": lambda v: re.fullmatch(r"[0-9a-f]{40}", v),
        "dirty": lambda v: isinstance(v, bool),
        "command": lambda v: script_of(v).is_file(),
        "date": lambda v: datetime.fromisoformat(v).tzinfo is not None,
        "seconds": lambda v: v > 0,
        "python": lambda v: re.fullmatch(r"3\.\d+\.\d+\S*", v),
        "packages": lambda v: "numpy" in v,
        "machine": lambda v: {"cpu", "architecture", "cores", "memory_gb", "gpu"} == set(v),
        "load_at_start": lambda v: v >= 0,
        "others_cores": lambda v: v is None or v >= 0,
        "idle": lambda v: v is None or isinstance(v, bool),
    }
    out = [f"{key}: not recorded" for key in checks if key not in made]
    out += [
        f"{key}: {made[key]!r}" for key, ok in checks.items() if key in made and not ok(made[key])
    ]
    if "command" in made and re.search(r"(^|[\s=])/|[A-Za-z]:\\", made["command"]):
        out.append(f"command: names a folder of a machine: {made['command']}")
    return out


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_say_how_they_were_made(path):
    result = json.loads(path.read_text("utf-8"))
    if excused(path.stem, result):
        return
    assert problems(result) == []
    made = {benchmark.name: benchmark for benchmark in every.BENCHMARKS}
    assert path.stem in made, "benchmarks.all would not make it again"
    assert script_of(result["provenance"]["command"]) == script_of(made[path.stem].command)


def excused(name: str, result: dict) -> bool:
    """Tell whether a result says why it has no record; only one that takes an hour may."""
    slow = {benchmark.name for benchmark in every.BENCHMARKS if benchmark.slow}
    made = result.get("provenance", {})
    return name in slow and set(made) == {"missing"} and len(made["missing"]) > 20


@functools.cache
def a_record() -> dict:
    made = provenance.record(provenance.start(ROOT / "benchmarks" / "synth.py"))
    command = "python -m benchmarks.synth"
    return made | {"commit": "0" * 40, "dirty": False, "seconds": 1.0, "command": command}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_records_how_it_was_made(script):
    text = script.read_text("utf-8")
    for call in ("provenance.start(__file__)", "provenance.add_output(", "provenance.publish("):
        assert text.count(call) == 1, call
    assert "platform.machine" not in text and "no GPU" not in text and "sys.path" not in text
    assert script in {script_of(benchmark.command) for benchmark in every.BENCHMARKS}
    assert len(text.splitlines()) <= 400


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "x.py").write_text("1\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        author = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", tmp_path, *author, *words], check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    return tmp_path


def test_commit_and_changes(checkout):
    head = subprocess.check_output(["git", "-C", checkout, "rev-parse", "HEAD"], text=True).strip()
    assert provenance.commit() == {"commit": head, "dirty": False}
    (checkout / "benchmarks" / "results" / "x.json").write_text("{}\n")  # what benchmarks write
    assert provenance.commit()["dirty"] is False
    run = provenance.start(str(checkout / "benchmarks" / "x.py"))
    (checkout / "benchmarks" / "y.py").write_text("2\n")  # a new module may change results
    assert provenance.commit()["dirty"] is True
    made = provenance.record(run)
    assert (made["commit"], made["dirty"]) == (head, False)  # as it was at the start
    (checkout / "benchmarks" / "y.py").unlink()
    (checkout / "benchmarks" / "x.py").write_text("3\n")
    assert provenance.commit()["dirty"] is True


def test_no_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() == {"commit": None, "dirty": None}


def test_the_command_names_no_folder_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("ACEHAND_SHARED", str(tmp_path / "shared"))
    arguments = [tmp_path / "shared" / "data" / "a.npz", ROOT / "out" / "b", "/elsewhere/c d.mp4",
                 "--runs", "3"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["ignored", *map(str, arguments)])
    assert provenance.command(ROOT / "benchmarks" / "bag.py") == (
        "python -m benchmarks.bag $ACEHAND_SHARED/data/a.npz out/b 'c d.mp4' --runs 3"
    )


def test_others_at_work_are_counted(monkeypatch):
    # In 10 s the machine was busy for 7 s of CPU time, 2 s of them this program: 0.5 cores.
    busy, own, clock = iter([100.0, 107.0]), iter([1.0, 3.0]), iter([1000.0, 1010.0])
    monkeypatch.setattr(provenance, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(provenance, "_own_seconds", lambda: next(own))
    monkeypatch.setattr(provenance.time, "time", lambda: next(clock))
    made = provenance.record(provenance.start(str(ROOT / "benchmarks" / "synth.py")))
    assert made["others_cores"] == 0.5 and made["idle"] is False and made["seconds"] == 10.0


def test_what_is_written_is_what_is_printed(tmp_path, capsys):
    run = provenance.start(str(ROOT / "benchmarks" / "synth.py"))
    values = {"a": np.nan, "b": np.float64(1 / 3), "c": (np.int64(2), np.array([1.5, np.inf]))}
    provenance.publish(run, values, tmp_path / "new" / "x.json")
    printed = capsys.readouterr().out
    assert (tmp_path / "new" / "x.json").read_text("utf-8") == printed
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.json"]
    result = json.loads(printed)
    assert result["a"] is None and result["b"] == 0.333333 and result["c"] == [2, [1.5, None]]
    assert result["provenance"]["command"].startswith("python -m benchmarks.synth")


def test_a_result_of_this_very_commit_is_kept(tmp_path, monkeypatch):
    benchmark = every.Benchmark("x", "x --fast", 1)
    monkeypatch.setattr(provenance, "RESULTS", ROOT / "benchmarks" / "results")
    here = {"commit": "1" * 40, "dirty": False}
    monkeypatch.setattr(provenance, "commit", lambda: here)
    command = "python -m benchmarks.x --fast --output benchmarks/results/x.json"
    made = here | {"command": command}

    assert benchmark.command == command
    path = tmp_path / "x.json"
    monkeypatch.setattr(every.Benchmark, "result", property(lambda self: path))
    monkeypatch.setattr(every.Benchmark, "command", command)

    def kept(record):
        path.write_text(json.dumps({"provenance": record}))
        return every.is_current(benchmark)

    assert kept(made)
    slow = command.replace("--fast", "--slow")
    for other in ({"commit": "2" * 40}, {"dirty": True}, {"command": slow}):
        assert not kept(made | other)
    here["dirty"] = True
    assert not kept(made | {"dirty": True})


def test_numbers_of_the_documentation_are_those_of_the_results():
    made, marks = documents.blocks(provenance.RESULTS), []
    for page in documents.pages():
        text = page.read_text("utf-8")
        assert documents.spliced(text, made) == text, f"{page.name}: python -m benchmarks.documents"
        marks += re.findall(r"<!-- result ([^:>]+):", text)
        ends = re.findall(r"<!-- end (?!-->)", text)
        assert marks.count("end") == 0 and text.count("<!-- result ") == len(ends)
    assert set(documents.WRITERS) <= set(marks) <= {*documents.WRITERS, *tables.NAMES}
    assert len(marks) == len(set(marks))
    result = provenance.RESULTS / "retarget.json"
    text = tables.document(json.loads(result.read_text("utf-8")))
    assert result.with_suffix(".md").read_text("utf-8") == text


def test_text_between_marks_is_replaced():
    text = "a\n<!-- result one: by hand -->\nold\n<!-- end one -->\nb\n"
    new = "a\n<!-- result one: by hand -->\n\n| x |\n\n<!-- end one -->\nb\n"
    assert documents.spliced(text, {"one": "| x |"}) == new
    assert documents.spliced(new, {"one": "| x |"}) == new
    assert documents.spliced(text, {"one": None}) == text  # no result: the old numbers stay
    with pytest.raises(KeyError, match="one"):
        documents.spliced(text, {"two": "| x |"})


def test_a_block_says_by_which_code_and_machine(tmp_path):
    made = a_record() | {"dirty": True, "idle": False, "others_cores": 0.7}
    made |= {"date": "2026-11-22T08:00:00+00:00"}
    made["machine"] = {"cores": 2, "architecture": "x86_64", "gpu": [], "cpu": "", "memory_gb": 4.0}
    row = {
        "clips": 4,
        "clips_per_minute_single": 33.04,
        "clips_per_minute": 39.59,
        "ratio_to_single": 1.2,
    }
    result = {"frames_per_clip": 21, "processes": 2, "fast 128x96": row, "provenance": made}
    (tmp_path / "synth.json").write_text(json.dumps(result))
    blocks = documents.blocks(tmp_path)
    assert blocks["synth"] is not None and blocks["bag"] is None and blocks["tips"] is None
    lines = blocks["synth"].splitlines()
    assert lines[0].startswith("| clips of 21 frames a minute | one process | 2 processes")
    assert lines[2] == "| fast 128x96 | 33.0 | 39.6 | 1.20 |"
    assert lines[-1] == (
        "(commit 0000000 with changes, 2026-11-22, 2 cores (x86_64), no GPU, next to other work "
        "(0.7 cores of it))"
    )


def test_the_demo_splits_the_error_of_the_wrist():
    from examples import demo

    truth = read_hand_motion(ROOT / "examples" / "two_hands_truth.parquet")
    joints = truth.joints_camera
    both = truth.known.all(1)
    assert both.any()
    far = 1e3 * np.linalg.norm(joints[both][:, :, 0], axis=-1).mean(0)
    # Everything a twentieth farther away: the error is along the ray.
    lines = demo.compare(dataclasses.replace(truth, joints_camera=1.05 * joints), truth)
    for line, distance in zip(lines, far, strict=True):
        found = list(map(float, re.findall(r"(\d+\.\d)(?: mm| in depth| sideways)", line)))
        assert found[1] == pytest.approx(0.05 * distance, abs=2) and found[1] == found[2]
        assert found[3] == 0.0
    # 30 mm across the ray.
    across = np.cross(joints[:, :, 0], [0.0, 1.0, 0.0])
    across = 0.03 * across / np.linalg.norm(across, axis=-1, keepdims=True)
    moved = dataclasses.replace(truth, joints_camera=joints + across[:, :, None])
    for line in demo.compare(moved, truth):
        assert "0.0 mm, wrist 30.0 mm" in line and "(0.0 in depth, 30.0 sideways)" in line
