"""What docs/paper.md refers to exists, and its counts are right. Its verdicts no test can judge."""

import ast
import functools
import re
from collections import Counter
from pkgutil import resolve_name

import yaml

from acehand_core.cli.console import flag
from acehand_core.cli.main import all_commands
from acehand_core.settings import leaves
from helpers import ROOT

TEXT = (ROOT / "docs" / "paper.md").read_text("utf-8")
VERDICTS = ("equal", "ours by choice", "ambiguous", "not there")
REFERENCE = re.compile(r"`([\w./-]+\.(?:py|yaml)):([\w.]+)`")
#: ``name=value``, several with spaces between: settings of acehand-train.
SETTINGS = re.compile(r"`([\w.]+=\w+(?: [\w.]+=\w+)*)`")


def statements():
    """Number, section, statement, where, verdict, remark of every row."""
    rows = [line for line in TEXT.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in row[1:-1].split("|")] for row in rows]


@functools.cache
def names_in(path):
    """What a module defines at its own level, and ``Class.name`` of what stands in its classes."""
    return set(_defined(ast.parse(path.read_text("utf-8")).body))


def _defined(body, prefix=""):
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inside = (part for target in targets for part in ast.walk(target))
            yield from (prefix + part.id for part in inside if isinstance(part, ast.Name))
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body, f"{prefix}{node.name}.")


def exists(file, name):
    path = ROOT / file
    if not path.is_file():
        return False
    if path.suffix == ".py":
        return name in names_in(path)
    value = yaml.safe_load(path.read_text("utf-8"))
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def test_every_reference_is_alive():
    found = REFERENCE.findall(TEXT)
    assert len(found) > 200
    assert [f"{file}:{name}" for file, name in found if not exists(file, name)] == []
    batch, conf = "acehand_core/ace/model/batch.py", "acehand_core/ace/training/conf/experiment"
    for file, name in ((batch, "rays"), (batch, "Readout.detach"), ("acehand_core/bath.py", "x"),
                       (f"{conf}/kfree.yaml", "losses.fit.weight")):  # fmt: skip
        assert not exists(file, name)


def test_every_row_is_whole():
    rows = statements()
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        number, section, statement, where, verdict, remark = row
        assert re.match(r"\d|[A-E]\.\d|C", section) and statement, number
        assert REFERENCE.sub("", where).strip(", ") == "" and REFERENCE.search(where), number
        assert verdict in VERDICTS, number
        assert remark or verdict == "equal", number
    # Two rows that say the same would be counted twice.
    said = Counter((row[1], row[2]) for row in rows)
    assert [key for key, count in said.items() if count > 1] == []


def test_the_counts_are_those_of_the_tables():
    stated = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", TEXT, re.MULTILINE))
    counted = Counter(row[4] for row in statements())
    expected = {verdict: str(counted[verdict]) for verdict in VERDICTS}
    assert stated == expected | {"all": str(counted.total())}


def test_every_flag_exists():
    named = set(re.findall(r"--[\w-]+", " ".join(re.findall(r"`([^`]+)`", TEXT))))
    assert len(named) > 8 and named <= {
        flag(leaf) for _, place in all_commands().values() for leaf in leaves(resolve_name(place))
    }


def test_every_setting_of_training_exists():
    """By name: a group's file, or a field; test_train_config.py composes them."""
    rooms = ("training/config.py", "model/config.py", "labelled/clips/windows.py")
    files = [f"acehand_core/ace/{room}" for room in rooms]
    fields = {name.partition(".")[2] for file in files for name in names_in(ROOT / file)}
    settings = {word for line in SETTINGS.findall(TEXT) for word in line.split()}
    assert len(settings) > 10
    for setting in settings:
        name, _, value = setting.partition("=")
        group = ROOT / "acehand_core/ace/training/conf" / name
        if "." in name:
            assert name.rpartition(".")[2] in fields, setting
        else:
            assert (group / f"{value}.yaml").is_file(), setting
