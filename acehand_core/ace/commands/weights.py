"""``acehand weights``: fetch, convert and inspect weights of the model and of trackers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acehand_core.ace.model.config import Variant
from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE
from acehand_core.settings import setting

if TYPE_CHECKING:
    from acehand_core.ace.model.weights.inspection import WeightsInspection

_VARIANT = "if the path does not name it"


@dataclass(frozen=True, slots=True)
class Fetch:
    """Download released weights into the hub's cache.

    "hands" are the two networks of the mediapipe tracker (Apache-2.0); it runs offline afterwards.
    """

    names: tuple[str, ...] = setting((), "see `list`", metavar="NAME", positional=True)
    list: bool = setting(False, "list available weights")
    revision: str | None = setting(None, "branch, tag or commit on the hub", metavar="REV")
    wheel: Path | None = setting(
        None, "of hands: MediaPipe's wheel", metavar="FILE", default_text="downloaded from PyPI"
    )

    def run(self, terminal: console.Terminal) -> int:
        """Download and check hashes."""
        from acehand_core.errors import InputError

        if self.names == ("hands",):
            return self._hands(terminal)
        from acehand_core.ace.model.weights import sums
        from acehand_core.ace.model.weights.fetch import SOURCES, fetch

        if self.list or not self.names:
            if not self.list:
                raise InputError(f"name the weights; valid: hands, {', '.join(SOURCES)}.")
            console.say("hands: the two networks of the mediapipe tracker (Apache-2.0)")
            for name, source in SOURCES.items():
                console.say(f"{name}: {source.about} ({source.gigabytes:g} GB, {source.repo})")
                console.say(f"  {source.licence}")
            keys = ("repo", "gigabytes", "licence", "about")
            listed = {n: {key: getattr(s, key) for key in keys} for n, s in SOURCES.items()}
            terminal.print_json({"sources": listed})
            return console.EXIT_OK
        console.say(sums.NOT_BUNDLED)

        done = []
        for name in self.names:
            fetched = fetch(name, self.revision, terminal.quiet)
            done.append(fetched.to_json())
            console.say(f"{name}: {fetched.folder}")
            console.say(f"  {fetched.licence}")
            for file in fetched.unchecked:
                console.say(f"  {file}: no hash is published; not checked")
        terminal.print_json({"fetched": done})
        return console.EXIT_OK

    def _hands(self, terminal: console.Terminal) -> int:
        """Fetch, unpack and check the networks, unless installed."""
        from acehand_core.trackers.mediapipe import networks

        folder = networks.installed() if self.wheel is None else None
        if folder is None:
            if self.wheel is not None:
                networks.unpack(self.wheel)
            else:
                networks.download()
            folder = networks.folder()
        networks.check(folder)
        console.say(f"the hand networks of mediapipe {networks.VERSION}: {folder}")
        terminal.print_json({"folder": str(folder), "version": networks.VERSION})
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class ConvertWeights:
    """Convert weights to another layout, or export a checkpoint of a training run.

    For a run, `base`, `vae` and `caption` are its own files, if moved.
    """

    sources: tuple[Path, ...] = setting(
        ...,
        "checkpoint or folder of a model and further parts, or a training run",
        metavar="SRC",
        positional=True,
    )
    to: Literal["official", "acehand"] = setting(..., "the layout")
    output: Path = setting(..., "folder to write", metavar="DIR")
    variant: Variant | None = setting(None, _VARIANT)
    base: Path | None = setting(None, "Wan2.2-Fun-5B-Control", metavar="DIR")
    vae: Path | None = setting(None, "Wan2.2_VAE.pth", metavar="FILE")
    caption: Path | None = setting(None, "caption embedding", metavar="FILE")
    config: Path | None = setting(
        None, "sizes of the model", metavar="FILE", default_text="the checkpoint's, else released"
    )
    seed: int = setting(0, "of tensors that `to=official` adds")
    step: int | None = setting(
        None, "checkpoint of a run", default_text="best by validation, else newest"
    )
    weights: Path | None = setting(None, "start.weights of a run, if moved")
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        """Convert and report."""
        from acehand_core.ace.model.config import ModelConfig
        from acehand_core.ace.model.weights.load import convert, is_of_a_run, sort_sources
        from acehand_core.user_files import read_object, structured

        if len(self.sources) == 1 and is_of_a_run(self.sources[0]):
            return self._export(terminal)
        sources = sort_sources(self.sources, self.base, self.vae, self.caption)
        config = None
        if self.config is not None:
            config = structured(ModelConfig, read_object(self.config), self.config)
        weights, exported = convert(
            sources, self.to, self.output, variant=self.variant, config=config, seed=self.seed,
            overwrite=self.overwrite,
        )  # fmt: skip
        console.say(f"{self.output}: {self.to}, variant {weights.config.variant}")
        console.say(f"  {weights.licence}")

        for name in weights.report.filled:
            console.say(f"  {name}: not in the source; has its initial value")
        if exported:
            count = len(exported["drawn"])
            console.say(f"  {count} tensors outside the running model have initial values")
        terminal.print_json(
            {
                "output": str(self.output), "layout": self.to,
                "variant": weights.config.variant, "licence": weights.licence,
                "sources": weights.sha256s, "report": weights.report.to_json(),
                "export": exported,
            }
        )  # fmt: skip
        return console.EXIT_OK

    def _export(self, terminal: console.Terminal) -> int:
        """Write the weights of a training run."""
        from acehand_core.ace.training.config import StartConfig
        from acehand_core.ace.training.run_folder import export
        from acehand_core.errors import InputError

        if self.to != "acehand":
            raise InputError("`to=acehand` is needed for a training run; convert its output again.")
        pieces = (self.weights, self.base, self.vae, self.caption)
        weights, base, vae, caption = (None if path is None else str(path) for path in pieces)
        moved = StartConfig(weights, base, vae, caption)
        checkpoint = export(self.sources[0], self.output, self.step, moved, self.overwrite)
        step, score = checkpoint.step, checkpoint.score
        validated = "not validated" if score is None else f"validation {score:.4f}"
        console.say(f"{self.output}: step {step}, {validated}")
        terminal.print_json({"output": str(self.output), "step": step, "score": score})
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class InspectWeights:
    """Describe weights and report problems."""

    path: Path | None = setting(None, "file or folder of weights", metavar="PATH", positional=True)
    variant: Variant | None = setting(None, _VARIANT)
    accounting: bool = setting(False, "count parameters; without PATH of the released model")
    check_files: bool = setting(False, "read every file and compare its SHA-256")

    def run(self, terminal: console.Terminal) -> int:
        """Describe the weights; exit code 0 only without problems."""
        from acehand_core.ace.model.config import ModelConfig
        from acehand_core.ace.model.weights.inspection import account, damaged, inspect, table
        from acehand_core.errors import InputError

        if self.path is None and not self.accounting:
            raise InputError("give a PATH, or `accounting` for the released model's table.")
        data: dict[str, Any] = {}
        config: ModelConfig | None = ModelConfig()
        if self.path is not None:
            inspection = inspect(self.path, self.variant)
            if self.check_files:
                inspection = replace(
                    inspection, others=(*inspection.others, *damaged(inspection, self.path))
                )
            config, data = inspection.config, inspection.to_json()
            _describe(inspection)

        if self.accounting:
            if config is None:
                raise InputError(f"{self.path}: a part without sizes of a model.")
            counted = account(config)
            data["accounting"] = {"rows": [asdict(row) for row in counted.values()]}
            for line in table(counted):
                console.say(line)
        terminal.print_json(data)
        return console.EXIT_SOME_FAILED if data.get("problems") else console.EXIT_OK


def _describe(inspection: WeightsInspection) -> None:
    from acehand_core.ace.model.weights import state

    console.say(f"layout {inspection.layout}, variant {inspection.variant or 'either'}")
    console.say(f"  {inspection.licence or 'licence not stated'}")
    if inspection.variant is not None and inspection.config is not None:
        trunk, decoder = inspection.config.trunk, inspection.config.decoder
        console.say(
            f"  transformer: width {trunk.dim}, read after block {trunk.tap} of "
            f"{trunk.num_layers}, adapters of rank {trunk.lora_rank}; decoder: width "
            f"{decoder.width}"
        )
    if inspection.variant is not None:
        console.say(f"  {state.describe_training(inspection.trained_on)}")
        console.say(f"  {inspection.inference.describe()}")

    for part in inspection.parts:
        kinds = ", ".join(f"{count} {dtype}" for dtype, count in part.dtypes.items())
        size = f"{part.parameters:,} values in {part.tensors} tensors"
        console.say(f"  {part.name}: {size} ({kinds})")
    for component in inspection.report.components:
        if component.unused:
            console.say(f"  {component.component}: {len(component.unused)} tensors do not run")
    for problem in inspection.problems:
        console.say(f"problem: {problem}")
