"""A page on how far a batch is; it loads itself again."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping

from acehand_core.atomic import atomic_path
from acehand_core.batch.folder import BatchFolder, Result

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
       color: #222; background: #fff }
progress { width: 100%; height: 1.5rem }
table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; font-weight: 600 }
th, td { text-align: left; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #ddd;
         vertical-align: top } td.n { text-align: right }
"""


def write_page(
    folder: BatchFolder, results: Mapping[str, Result], total: int, before: int, seconds: float
) -> None:
    """Write the page.

    Args:
        before: results that were there when the driver began, ``seconds`` ago.

    Raises:
        OutputError: it cannot be written.
    """
    done = len(results)
    states = Counter(result.state for result in results.values())
    verdicts = Counter(e["verdict"] for result in results.values() for e in result.episodes)
    recorded = sum(result.recorded_s for result in results.values())
    worked = sum(result.seconds for result in results.values())
    facts = {
        "recordings finished": f"{done} of {total}",
        **{f"of them {state}".replace("_", " "): str(n) for state, n in states.items()},
        **{f"episodes with verdict {verdict}": str(n) for verdict, n in verdicts.items()},
        "recorded": f"{recorded / 60:.1f} minutes",
        "work": f"{worked / 60:.1f} minutes of one worker",
        "this run": f"{seconds / 60:.1f} minutes",
    }
    if before < done < total:
        left = seconds / 60 * (total - done) / (done - before)
        facts["left at this pace"] = f"{left:.0f} minutes"
    problems = [result for result in results.values() if result.is_problem]
    rows = "".join(
        f"<tr><td>{html.escape(r.id)}<td>{r.state.replace('_', ' ')}<td>{html.escape(r.reason)}\n"
        for r in problems
    )
    table = (
        "<table><caption>Problems</caption>"
        f"<tr><th scope=col>recording<th scope=col>state<th scope=col>reason\n{rows}</table>"
        if problems
        else "<p>No recording has a problem.</p>"
    )
    counts = "".join(
        f"<tr><th scope=row>{html.escape(name)}<td class=n>{value}\n"
        for name, value in facts.items()
    )
    reload = "" if done == total else '<meta http-equiv="refresh" content="5">'
    name = html.escape(folder.output.name)
    text = f"""<!doctype html><html lang="en"><meta charset="utf-8">{reload}<title>{name}</title>
<style>{_STYLE}</style><h1>{name}</h1>
<progress aria-label="recordings finished" max="{total}" value="{done}"></progress>
<table><caption>So far</caption>{counts}</table>
{table}</html>
"""
    with atomic_path(folder.page, overwrite=True) as partial:
        partial.write_text(text, "utf-8")
