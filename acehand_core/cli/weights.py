"""``acehand weights``: fetch, convert, export, inspect and verify the model's weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acehand_core.cli import console

if TYPE_CHECKING:
    from acehand_core.model.config import ModelConfig
    from acehand_core.model.weights.inspection import Inspection

_LAYOUTS = ("official", "repackaged", "acehand")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text, add in (
        ("fetch", "download released weights into the hub's cache", _add_fetch),
        ("convert", "write weights in another layout", _add_convert),
        ("export", "write the weights of a training run at one of its checkpoints", _add_export),
        ("inspect", "say what a file or folder of weights holds", _add_inspect),
        ("verify", "check hashes, names, shapes and precisions", _add_verify),
    ):
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        add(action)
        _add_common(action)


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Run one action; exit code 0 only if all went well."""
    run = {"fetch": _fetch, "convert": _convert, "export": _export, "inspect": _inspect,
           "verify": _verify}  # fmt: skip
    return run[arguments.action](arguments, bars)


def _add_common(parser: argparse.ArgumentParser) -> None:
    # Suppressed defaults leave alone what stood before the action's name.
    for flags, text in (
        (("--json",), "print one JSON object at the end"),
        (("-v", "--verbose"), "say more, show tracebacks"),
        (("-q", "--quiet"), "no progress bars"),
    ):
        parser.add_argument(*flags, action="store_true", default=argparse.SUPPRESS, help=text)


def _add_variant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variant", choices=("k", "kfree"), help="where the path does not say")


def _add_sha256(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sha256", action="append", default=[], metavar="FILE=HEX", help="demand this hash"
    )


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="see --list")
    parser.add_argument("--list", action="store_true", help="say what can be fetched")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit on the hub")
    _add_sha256(parser)


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", nargs="+", type=Path, metavar="SRC",
        help="a checkpoint or a folder of a model; pieces of the released one may follow",
    )  # fmt: skip
    parser.add_argument("--to", required=True, choices=_LAYOUTS, metavar="LAYOUT",
                        help="official, repackaged or acehand")  # fmt: skip
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    _add_variant(parser)
    parser.add_argument("--base", type=Path, metavar="DIR", help="Wan2.2-Fun-5B-Control")
    parser.add_argument("--vae", type=Path, metavar="FILE", help="Wan2.2_VAE.pth")
    parser.add_argument("--caption", type=Path, metavar="FILE", help="caption embedding")
    parser.add_argument(
        "--dtype", choices=("bf16", "float32"),
        help="precision of VAE and transformer (as stored); what was trained keeps its own",
    )  # fmt: skip
    parser.add_argument("--config", type=Path, metavar="FILE", help="sizes, as inspect shows them")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="of what --to official fills in (%(default)s)")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a checkpoint")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument(
        "--step", type=int, metavar="N", help="which checkpoint (best by validation, else newest)"
    )
    for name in ("weights", "base", "vae", "caption"):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH",
                            help=f"start.{name} of the run, if it was moved")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH")
    _add_variant(parser)
    parser.add_argument(
        "--accounting", action="store_true",
        help="count parameters; without PATH those of the released model",
    )  # fmt: skip


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH")
    _add_variant(parser)
    _add_sha256(parser)


def _fetch(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.errors import InputError
    from acehand_core.model.weights import sums
    from acehand_core.model.weights.fetch import SOURCES, fetch, hashes_for

    if arguments.list or not arguments.names:
        if not arguments.list:
            raise InputError(f"name what to fetch; valid: {', '.join(SOURCES)}.")
        for name, source in SOURCES.items():
            console.say(f"{name}: {source.about} ({source.gigabytes:g} GB, {source.repo})")
            console.say(f"  {source.licence}")
        if arguments.json:
            listed = {
                name: {"repo": s.repo, "gigabytes": s.gigabytes, "licence": s.licence,
                       "about": s.about}
                for name, s in SOURCES.items()
            }  # fmt: skip
            console.print_json({"sources": listed})
        return console.EXIT_OK
    console.say(sums.NOT_BUNDLED)
    done = []
    expected = hashes_for(arguments.names, _hashes(arguments.sha256))
    for name in arguments.names:
        fetched = fetch(name, arguments.revision, expected[name], arguments.quiet)
        done.append(fetched.to_json())
        console.say(f"{name}: {fetched.folder}")
        console.say(f"  {fetched.licence}")
        for file in fetched.unchecked:
            console.say(f"  {file}: no hash is stated for it; it was not checked")
    if arguments.json:
        console.print_json({"fetched": done})
    return console.EXIT_OK


def _convert(arguments: argparse.Namespace, bars: console.Bars) -> int:
    import torch

    from acehand_core.model.weights.load import convert, sort_sources

    sources = sort_sources(arguments.sources, arguments.base, arguments.vae, arguments.caption)
    dtypes = {None: None, "bf16": torch.bfloat16, "float32": torch.float32}
    weights, exported = convert(
        sources,
        arguments.to,
        arguments.output,
        variant=arguments.variant,
        dtype=dtypes[arguments.dtype],
        config=_config(arguments.config),
        seed=arguments.seed,
        overwrite=arguments.overwrite,
    )
    console.say(f"{arguments.output}: {arguments.to}, variant {weights.config.variant}")
    console.say(f"  {weights.licence}")
    for note in weights.report.notes:
        console.say(f"  note: {note}")
    for name in weights.report.filled:
        console.say(f"  {name}: not in the source; holds its initial value")
    if exported:
        console.say(
            f"  {len(exported['drawn'])} tensors are not part of the running model and were filled "
            "with initial values"
        )
    if arguments.json:
        console.print_json(
            {
                "output": str(arguments.output), "layout": arguments.to,
                "variant": weights.config.variant, "licence": weights.licence,
                "sources": weights.sha256s, "report": weights.report.to_json(),
                "export": exported,
            }
        )  # fmt: skip
    return console.EXIT_OK


def _export(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.training.run_folder import Pieces, export

    pieces = Pieces(arguments.weights, arguments.base, arguments.vae, arguments.caption)
    checkpoint = export(
        arguments.run, arguments.output, arguments.step, pieces, arguments.overwrite
    )
    score = "not validated" if checkpoint.score is None else f"validation {checkpoint.score:.4f}"
    console.say(f"{arguments.output}: step {checkpoint.step}, {score}")
    if arguments.json:
        console.print_json(
            {"output": str(arguments.output), "step": checkpoint.step, "score": checkpoint.score}
        )
    return console.EXIT_OK


def _inspect(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.errors import InputError
    from acehand_core.model.config import ModelConfig
    from acehand_core.model.weights.accounting import account, table
    from acehand_core.model.weights.inspection import inspect

    if arguments.path is None and not arguments.accounting:
        raise InputError("give a PATH, or --accounting for the released model's table.")
    data: dict[str, Any] = {}
    config: ModelConfig | None = ModelConfig()
    if arguments.path is not None:
        found = inspect(arguments.path, arguments.variant)
        config, data = found.config, found.to_json()
        _describe(found)
    if arguments.accounting:
        if config is None:
            raise InputError(f"{arguments.path}: a piece without sizes of a model.")
        counted = account(config)
        data["accounting"] = counted.to_json()
        for line in table(counted):
            console.say(line)
    if arguments.json:
        console.print_json(data)
    return console.EXIT_SOME_FAILED if data.get("problems") else console.EXIT_OK


def _describe(found: Inspection) -> None:
    from acehand_core.model.weights import state

    console.say(f"layout {found.layout}, variant {found.variant or 'either'}")
    console.say(f"  {found.licence or 'licence not stated'}")
    if found.variant is not None and found.config is not None:
        trunk, decoder = found.config.trunk, found.config.decoder
        console.say(
            f"  transformer: width {trunk.dim}, read after block {trunk.tap} of "
            f"{trunk.num_layers}, adapters of rank {trunk.lora_rank}; decoder: width "
            f"{decoder.width}"
        )
    if found.variant is not None:
        console.say(f"  {state.describe_training(found.trained_on)}")
        console.say(f"  {found.inference.describe()}")
    for part in found.parts:
        kinds = ", ".join(f"{count} {dtype}" for dtype, count in part.dtypes.items())
        size = f"{part.parameters:,} values in {part.tensors} tensors"
        console.say(f"  {part.name}: {size} ({kinds})")
    for component in found.report.components:
        if component.unused:
            console.say(f"  {component.component}: {len(component.unused)} tensors do not run")
    for note in found.report.notes:
        console.say(f"  note: {note}")
    for problem in found.problems:
        console.say(f"problem: {problem}")


def _verify(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.model.weights.inspection import verify

    result = verify(arguments.path, arguments.variant, _hashes(arguments.sha256))
    if result.inspection is not None:
        _describe(result.inspection)
    known = result.inspection.problems if result.inspection is not None else ()
    for problem in result.problems:
        if problem not in known:
            console.say(f"problem: {problem}")
    compared = f"{len(result.compared)} of {len(result.sha256s)} hashes compared"
    if not result.problems:
        console.say(f"{arguments.path}: no problem found; {compared}")
    if arguments.json:
        console.print_json(
            {
                "ok": not result.problems, "problems": list(result.problems),
                "sha256": result.sha256s, "compared": list(result.compared),
            }
        )  # fmt: skip
    return console.EXIT_SOME_FAILED if result.problems else console.EXIT_OK


def _config(path: Path | None) -> ModelConfig | None:
    from acehand_core.model.config import ModelConfig
    from acehand_core.model.weights.storage import read_json

    return None if path is None else ModelConfig.from_json(read_json(path), str(path))


def _hashes(stated: list[str]) -> dict[str, str]:
    from acehand_core.errors import InputError

    out = {}
    for text in stated:
        name, _, digest = text.rpartition("=")
        if not name or len(digest) != 64:
            raise InputError(f"--sha256 {text!r}: FILE=HEX with 64 digits is needed.")
        out[name] = digest
    return out
