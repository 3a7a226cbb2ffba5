"""The paper's own numbers, and the report that compares ours."""

import itertools
import json
import re

import numpy as np
import pytest

from acehand_core.ace.evaluation.importing import CONVENTIONS, METHODS
from acehand_core.ace.evaluation.inputs import open_ground_truth
from acehand_core.ace.evaluation.run import Options, evaluate_predictions, write_evaluation
from acehand_core.ace.evaluation.summary import METRICS, mixture
from acehand_core.ace.evaluation.tables import (
    STUDIES,
    TABLES,
    TableEntry,
    build_tables,
    check_study,
    differences,
    markdown,
    quoted,
)
from acehand_core.errors import InputError
from acehand_core.recordings.hands_file import write_hand_motion
from helpers import ROOT
from helpers.commands import Acehand
from helpers.evaluation_samples import motion_of, still


@pytest.fixture
def evaluation(tmp_path):
    """An evaluation with hands in and out of sight, as a file."""
    where = still(6)
    where[3:, 0, 2] = -0.6
    write_hand_motion(motion_of(where), tmp_path / "arctic" / "seg.parquet")
    guess = motion_of(where + np.array([0.0, 0.0, 0.01234]), settings={"decoded_frames": 81})
    write_hand_motion(guess, tmp_path / "guess" / "seg.parquet")
    out = evaluate_predictions(
        tmp_path / "guess", open_ground_truth(tmp_path / "arctic"), Options(label="A <method>")
    )
    path = tmp_path / "one.json"
    write_evaluation(out, path)
    return path


def test_quoted_numbers_are_the_papers(shared):
    """The values of a row stand in one row of its table in this order, or in the text."""
    paper = next((shared / "paper").glob("*.txt")).read_text("utf-8")
    for name, table in quoted()["tables"].items():
        _, label, body = paper.partition(f"\\label{{{table['label']}}}")
        rows = body.partition(r"\end{tabular}")[0].split(r"\\") if label else [paper]
        lines = [[float(x) for x in re.findall(r"\d+\.?\d*", line)] for line in rows]
        for row in itertools.chain(*table["blocks"].values()):
            values = [value for value in row["values"] if value is not None]
            if name == "radius":
                values[0] *= 100  # a share

            def stand(line, values=values):
                numbers = iter(line)
                return all(any(abs(x - value) < 1e-9 for x in numbers) for value in values)

            assert (not label and set(values) <= set(lines[0])) or any(map(stand, lines)), row


def strata():
    table = quoted()["tables"]["oos"]
    return [
        (block, row["method"], row["values"], table["counts"][block])
        for block, rows in table["blocks"].items()
        for row in rows
    ]


def test_the_stratification_table_is_whole():
    """Its strata mix to its pooled errors to 0.001 mm, which stand in the main tables too."""
    assert len(strata()) == 33
    for _, _, (iv, oos, pooled), counts in strata():
        assert mixture(iv, oos, counts["iv"], counts["oos"]) == pytest.approx(pooled, abs=1.0e-3)
    shares = {b: c["oos"] / (c["iv"] + c["oos"]) for b, _, _, c in strata()}
    assert {b: round(100 * s, 1) for b, s in shares.items()} == {
        "ARCTIC": 6.9, "HOT3D": 17.6, "OakInk2": 14.5,
    }  # fmt: skip

    main = {
        (block, row["method"]): row["values"][table["columns"].index("mpjpe_plus_oos")]
        for table in (quoted()["tables"][name] for name in ("main", "extra"))
        for block, rows in table["blocks"].items()
        for row in rows
    }
    assert all(main[block, method] == values[2] for block, method, values, _ in strata())


@pytest.mark.parametrize("block", ["ARCTIC", "HOT3D"])
def test_the_papers_radius_table_mixes_to_its_in_view_column(block):
    """Shares have three digits and errors two, so only to about 0.03 mm."""
    rows = [r["values"] for r in quoted()["tables"]["radius"]["blocks"][block]
            if r["method"] == "ACE-Ego-Hand"]  # fmt: skip
    in_view = next(v[0] for b, m, v, _ in strata() if (b, m) == (block, "ACE-Ego-Hand"))
    assert sum(r[0] for r in rows) == pytest.approx(1, abs=2e-3)
    assert sum(r[0] * r[1] for r in rows) / sum(r[0] for r in rows) == pytest.approx(
        in_view, abs=0.03
    )


def test_every_quoted_row_says_where_it_is_from():
    for name, table in quoted()["tables"].items():
        assert name in TABLES and table["label"]
        for rows in table["blocks"].values():
            assert all(row["origin"] for row in rows)
    main = quoted()["tables"]["main"]["blocks"]["ARCTIC"]
    own = {row["method"] for row in main if row["origin"] == "the paper's own run"}
    assert own == {"EgoForce", "ACE-Ego-Hand", "ACE-Ego-Hand (K-free)"}


def scored(evaluation, **changes):
    """The evaluation as if it were of these segments and pictures."""
    value = json.loads(evaluation.read_text())
    for name, entry in changes.items():
        value[name] = entry if name != "segments" else value[name] | entry
    return TableEntry("one.json", value)


def test_rows_made_otherwise_than_the_quoted_ones_are_marked(evaluation, capsys, tmp_path):
    """Numbers of the paper's Table "Training and evaluation data" and its appendix, by hand."""
    size = {"width": 672, "height": 480, "diagonal_px": 825.8, "segments": 291}
    paper = {"count": 291, "frames": 81, "split": "test"}
    assert differences(scored(evaluation, segments=paper, pictures=[size])) == []
    for changed, pictures, word in (
        ({"count": 290}, [size], "segments: 290, the paper 291"),
        ({"frames": 41}, [size], "frames a segment: 41, the paper 81"),
        ({"split": "val"}, [size], "split: val, the paper test"),
        ({}, [size | {"width": 832}], "pictures: 832 x 480, the paper 672 x 480"),
        ({}, [], "pictures: not recorded, the paper 672 x 480"),
    ):
        other = scored(evaluation, segments=paper | changed, pictures=pictures)
        assert differences(other) == [word]
    wide = [{"width": 832, "height": 480, "diagonal_px": 960.5, "segments": 355}]
    h2o = {"count": 355, "frames": 81, "split": "test"}
    assert differences(scored(evaluation, dataset="h2o", segments=h2o, pictures=wide)) == []
    hoi4d = {"count": 498, "frames": 81, "split": "test"}
    found = differences(scored(evaluation, dataset="hoi4d", segments=hoi4d, pictures=wide))
    assert found == ["pictures: 832 x 480, the paper does not say"]
    assert differences(scored(evaluation, dataset="mine")) == []

    run = Acehand(capsys, "evaluate", evaluation, "--report", tmp_path / "report")
    assert run.code == 0 and "one.json" in run.err
    text = (tmp_path / "report/report.md").read_text()
    assert "[1]*" in text and "segments: 1, the paper 291" in text
    ours = [row for row in text.splitlines() if row.startswith("| A &lt;method")]
    assert ours and all(row.split("|")[-2].strip() == "[1]*" for row in ours)


def test_our_numbers_are_those_of_the_evaluation(evaluation):
    value = json.loads(evaluation.read_text())
    tables = {t.name: t for t in build_tables([TableEntry("one.json", value)])}
    every = {name: list(itertools.chain(*t.blocks.values())) for name, t in tables.items()}
    ours = {name: [row for row in rows if not row.quoted] for name, rows in every.items()}
    (row,) = ours["main"]
    assert row in tables["main"].blocks["ARCTIC"]  # the folder is named arctic
    expected = tuple(value["metrics"][name] for name in TABLES["main"][1])
    assert row.values == expected and row.label == "A <method>"
    assert ours["oos"][0].values[1] == value["metrics"]["mpjpe_oos"]
    assert ours["placement"][0].values[1] == pytest.approx(0.01234)
    assert ours["length"][0].values[0] == 81
    assert not ours["extra"] and not ours["throughput"]
    assert not any(ours[name] for name in STUDIES)


def test_a_study_takes_the_rows_it_is_given(evaluation):
    value = json.loads(evaluation.read_text())
    entry = TableEntry("one.json", value, check_study("tap"), "Block 3")
    tables = {t.name: t for t in build_tables([entry])}
    assert tables["tap"].blocks["ARCTIC"][-1].label == "Block 3"
    assert all(r.quoted for r in tables["main"].blocks["ARCTIC"])
    with pytest.raises(InputError, match="valid: decoder, features, sigma, tap"):
        check_study("tapp")


def test_texts_print_the_papers_digits_and_name_the_list(evaluation):
    value = json.loads(evaluation.read_text())
    entries = [TableEntry("one.json", value)]
    tables = build_tables(entries)
    text = markdown(tables, entries)
    assert value["segments"]["sha256"] in text and "list arctic" in text
    assert "| Block 10 (11/30) | 17.77 | 8.70 | 11.63 | 12.58 | 0.030 | 2.74 |" in text
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert all("| q: " in line or "[1]" in line or line.startswith(("| Method", "| ---"))
               for line in lines)  # fmt: skip


def test_the_command(capsys, tmp_path, evaluation):
    output = tmp_path / "report"
    run = Acehand(capsys, "evaluate", evaluation, "--row", "sigma", "mine", evaluation,
                  "--report", output)  # fmt: skip
    assert run.code == 0 and len(run.json["files"]) == 2 and run.json["rows"] > 5
    assert "| A &lt;method> |" in (output / "report.md").read_text()
    tables = {table["name"]: table for table in json.loads((output / "report.json").read_text())}
    ours = [row for row in tables["main"]["blocks"]["ARCTIC"] if not row["quoted"]]
    metrics = json.loads(evaluation.read_text())["metrics"]
    assert [row["label"] for row in ours] == ["A <method>"]
    assert ours[0]["values"] == [metrics[name] for name in tables["main"]["columns"]]
    assert Acehand(capsys, "evaluate", evaluation, "--report", output).code == 4
    broken = tmp_path / "broken.json"
    for content, message in (
        ("{", "JSON"),
        ("{}", "acehand-evaluation"),
        ('{"format": "acehand-evaluation", "version": 9}', "version 9"),
    ):
        broken.write_text(content)
        run = Acehand(capsys, "evaluate", broken, "--report", tmp_path / "other")
        assert run.code == 2 and message in run.err


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("metrics",), None, "metrics is None"),
        (("metrics", "facc"), "abc", "metrics.facc is 'abc'"),
        (("metrics", "facc"), float("nan"), "metrics.facc is nan"),
        (("metrics", "recall"), ..., "metrics.recall is missing"),
        (("radius",), [{}], "radius[0].from is missing"),
        (("radius",), {}, "radius is {}"),
        (("method", "trackers"), "abc", "method.trackers is 'abc'"),
        (("counts", "oos"), True, "counts.oos is True"),
        (("segments", "count"), -1, "segments.count is -1"),
        (("hand_model",), ..., "hand_model is missing"),
        (("out_of_sight_placement", "emitted"), "x", "out_of_sight_placement.emitted is 'x'"),
        (("decoded_length",), [{"frames": 1}], "decoded_length[0].segments is missing"),
        (("throughput",), {"fps": "fast"}, "throughput.machine is missing"),
    ],
)
def test_a_damaged_evaluation_is_refused_with_its_entry(
    capsys, tmp_path, evaluation, keys, value, message
):
    content = json.loads(evaluation.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(content))
    run = Acehand(capsys, "evaluate", broken, "--report", tmp_path / "other")
    assert run.code == 2 and f"{broken}: {message}" in run.err
    assert not (tmp_path / "other").exists()


DOC = (ROOT / "docs" / "evaluation.md").read_text("utf-8")


def test_the_documentation_names_every_metric_block_and_method(evaluation):
    first_cells = {
        name
        for line in DOC.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    }
    assert set(METRICS) <= first_cells
    assert set(METHODS) <= first_cells
    assert set(CONVENTIONS) <= first_cells
    for block in json.loads(evaluation.read_text()):
        assert f"`{block}`" in DOC or f'"{block}"' in DOC, block
