"""How hard a code base is to take up, counted: files, lines, one-importer modules, walls of code.

    python tools/shape_of_code.py [ROOT] [--list KIND] [--under FOLDER]

Prints one JSON line. ``--list`` names what one count is made of: ``one_importer``, ``used_once``,
``unbroken``, ``settings`` or ``long_modules``. Counted are the packages that are installed, and
``launch``; tests, benchmarks, examples and tools are not.

- a module has one importer where one other counted module imports it, anywhere in its text;
- a private function is used once where it is called in one place and its name stands in no other;
- a body is what follows a function's docstring; it is unbroken where it has 15 lines or more and
  none of them is blank;
- settings are dataclasses or pydantic models whose names end as settings' names do.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from pathlib import Path

PACKAGES = ("acehand_core", "acehand_ros", "retarget", "robots", "launch")
LONG_BODY = 15
LONG_MODULE = 400
SETTINGS = ("Settings", "Options", "Config", "Configuration", "Reading", "Conditions")


def main() -> None:
    """Print the counts of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--list", dest="kind", help="name the members of one count")
    parser.add_argument("--under", default="", help="only members below this folder")
    arguments = parser.parse_args()

    members, numbers = measure(arguments.root)
    if arguments.kind is None:
        print(json.dumps(numbers))
        return
    for member in members[arguments.kind]:
        if member.startswith(arguments.under):
            print(member)


def measure(root: Path) -> tuple[dict[str, list[str]], dict[str, object]]:
    """Return what each count is made of, and the counts."""
    files = sorted(path for name in PACKAGES for path in (root / name).rglob("*.py"))
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in files}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}

    members: dict[str, list[str]] = defaultdict(list)
    importers = _importers(trees)
    members["one_importer"] = [name for name, users in importers.items() if len(users) == 1]
    members["long_modules"] = [f"{name} {n}" for name, n in lines.items() if n > LONG_MODULE]
    long_bodies, longest = 0, (0, "")

    for name, tree in trees.items():
        members["used_once"] += [f"{name}:{where}" for where in _used_once(tree)]
        members["settings"] += [f"{name}:{where}" for where in _settings(tree)]

        source = texts[name].splitlines()
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            end = function.end_lineno or function.lineno
            span = end - function.lineno + 1
            longest = max(longest, (span, f"{name}:{function.name}"))
            body = function.body[1:] if ast.get_docstring(function) else function.body
            if not body or end - body[0].lineno + 1 < LONG_BODY:
                continue
            long_bodies += 1
            if all(line.strip() for line in source[body[0].lineno - 1 : end]):
                members["unbroken"].append(f"{name}:{function.lineno} {function.name}")

    total = sum(lines.values())
    numbers = {
        "files": len(files),
        "lines": total,
        "modules with one importer": len(members["one_importer"]),
        "private functions used once per 1000 lines": round(
            1000 * len(members["used_once"]) / total, 2
        ),
        "unbroken bodies": f"{len(members['unbroken'])} of {long_bodies}",
        "unbroken share": round(len(members["unbroken"]) / max(long_bodies, 1), 3),
        "settings classes": len(members["settings"]),
        "modules over 400 lines": len(members["long_modules"]),
        "longest module": max(lines.items(), key=lambda item: item[1]),
        "longest function": longest,
    }
    return members, numbers


def _importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return, by module, the modules that import it."""
    modules = {name.removesuffix(".py").replace("/", "."): name for name in trees}
    importers: dict[str, set[str]] = defaultdict(set)

    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [one if one in modules else str(node.module) for one in full]
            else:
                continue
            for target in targets:
                if target in modules and modules[target] != name:
                    importers[modules[target]].add(name)
    return importers


def _used_once(tree: ast.Module) -> list[str]:
    """Return the private functions that a module names in one place: where they are called."""
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [
        f"{node.lineno} {node.name}"
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_")
        if uses[node.name] == 1 and node.name in called
    ]


def _settings(tree: ast.Module) -> list[str]:
    return [
        f"{node.lineno} {node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.name.endswith(SETTINGS)
        and (node.decorator_list or node.bases)
    ]


if __name__ == "__main__":
    main()
