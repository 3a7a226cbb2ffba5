"""Whether the acceptance report finds what went wrong in a batch, and leaves healthy clips alone.

    python -m benchmarks.review --clips 30 --seed 2 --keep out/review

A batch of one lab is rendered, three people doing three things before one head camera, and
converted as a user does it (``reviewing/recordings.py``, ``reviewing/making.py``). A third of the
recordings went wrong in the ways of ``reviewing/damages.py``, each kind once before any comes
again; which variant of a kind, says the seed. A recording is healthy if the main job finds each
hand in 70 % of its frames or more and its own verdict is not "fail"; that is decided before
anything is damaged, and without the report.

A damage is found where the episode warns or fails and a finding says what is wrong (one of
the checks listed for the damage); ``found_by_status`` counts those episodes
whatever the reason. The peer is what there is without the report: ``acehand dataset check``, which
finds an episode whose files it names, and the main job's own verdict, which finds one if it is
"fail" (in ``found_by_peer``), or also "warn" (``found_by_peer_with_warnings``).

One kind cannot always be detected: a mirrored video shows a left-handed world that is sound in
itself, so only the task can betray it, where nearly all others do it with the right hand.

With ``--keep`` the batch stays there, and is taken from there next time.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_dataset
from benchmarks import provenance
from benchmarks.reviewing.damages import DAMAGES
from benchmarks.reviewing.making import DATASET, TRUTH, make_batch


def main() -> None:
    """Make the batch or take it from where it is; judge it and print the result."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--clips", type=int, default=30, help="episodes of the batch (default: 30)")
    parser.add_argument("--seed", type=int, default=2, help="of everything drawn (default: 2)")
    parser.add_argument(
        "--variant", type=int, help="which variants of the damages (default: those of the seed)"
    )
    parser.add_argument("--workers", type=int, default=2, help="side by side (default: 2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the batch is, or stays")
    parser.add_argument("--no-overlay", action="store_true", help="draw no overlay videos")
    provenance.add_output(parser)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="acehand_review_") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        variant = options.seed if options.variant is None else options.variant
        truth = kept_truth(folder, options.clips, options.seed, variant)
        if truth is None:
            started = time.monotonic()
            truth = make_batch(
                folder, options.clips, options.clips // 3, options.seed, variant=variant,
                workers=options.workers, overlay=not options.no_overlay,
                say=lambda text: print(
                    f"{time.monotonic() - started:6.0f} s  {text}", file=sys.stderr, flush=True
                ),
            )  # fmt: skip
        result = scores(folder / DATASET, truth)
    provenance.publish(run, result, options.output)


def kept_truth(folder: Path, count: int, seed: int, variant: int) -> dict[str, Any] | None:
    """Return the truth of the batch that is in a folder, None if there is none such."""
    path = folder / TRUTH
    if not path.is_file():
        return None
    truth: dict[str, Any] = json.loads(path.read_text("utf-8"))
    same = (truth["seed"], truth["variant"], len(truth["episodes"])) == (seed, variant, count)
    return truth if same else None


def scores(dataset: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """Return what the report, and what there is without it, find of what went wrong."""
    from acehand_core.review.inspect import inspect

    started = time.perf_counter()
    inspection = inspect((dataset,))
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    named = named_by_check(dataset)
    check_seconds = time.perf_counter() - started

    damaged, healthy, findings = [], Counter({"pass": 0, "warn": 0, "fail": 0}), []
    verdicts: dict[int, str] = {}
    for episode in inspection.episodes:
        number = episode.number
        verdicts[number] = layout.read_report(dataset, number).get("verdict", "")
        said = [finding for finding in episode.findings if finding.level != "note"]
        kind = truth["episodes"][str(number)]
        if kind is None:
            healthy[episode.status] += 1
            findings += sorted({f"{finding.check} {finding.level}" for finding in said})
            continue

        variant = truth["variants"][str(number)]
        (damage,) = (d for d in DAMAGES if (d.kind, d.variant) == (kind, variant))
        by = sorted({finding.check for finding in said if finding.check in damage.checks})
        damaged.append({
            "episode": number, "damage": kind, "variant": variant, "status": episode.status,
            "found": episode.status != "pass" and bool(by), "by": by,
            "also": sorted({finding.check for finding in said} - {*by}),
            "check": number in named, "verdict": verdicts[number],
        })  # fmt: skip

    whole = [number for number in verdicts if truth["episodes"][str(number)] is None]
    flagged = {n for n, verdict in verdicts.items() if verdict == "fail"} | named
    warned = {n for n, verdict in verdicts.items() if verdict == "warn"} | flagged
    return {
        "clips": len(verdicts), "seed": truth["seed"], "variant": truth["variant"],
        "damaged": len(damaged),
        "found": sum(entry["found"] for entry in damaged),
        "found_by_status": sum(entry["status"] != "pass" for entry in damaged),
        "healthy": dict(healthy),
        "healthy_findings": dict(Counter(findings)),
        "found_by_peer": len(flagged.difference(whole)),
        "found_by_peer_with_warnings": len(warned.difference(whole)),
        "healthy_flagged_by_peer": len(flagged.intersection(whole)),
        "healthy_warned_by_peer": len(warned.intersection(whole)),
        "report_s_per_episode": seconds / len(verdicts),
        "check_s_per_episode": check_seconds / len(verdicts),
        "damages": damaged,
    }  # fmt: skip


def named_by_check(dataset: Path) -> set[int]:
    """Return the episodes whose files ``acehand dataset check`` names, or that it names itself."""
    rows = layout.read_episode_rows(dataset)
    numbers: dict[str, int] = {}
    for row in rows:
        number = row["episode_index"]
        numbers[layout.data_file(row)] = numbers[layout.episode_folder(number)] = number
        for key in layout.video_keys(layout.read_json(dataset / layout.INFO_PATH)["features"]):
            numbers[layout.video_file(row, key)] = number
    found = set()
    for problem in check_dataset(dataset):
        said = re.match(r"episode (\d+):", problem.message)
        number = int(said[1]) if said else numbers.get(problem.path)
        found |= set() if number is None else {number}
    return found


if __name__ == "__main__":
    main()
