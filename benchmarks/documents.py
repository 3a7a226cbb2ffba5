"""Write the numbers of the documentation from the results that are there; nothing is run.

    python -m benchmarks.documents

A block that is written from here stands between two comments in README.md or docs/*.md::

    <!-- result NAME: python -m benchmarks.documents -->
    <!-- end NAME -->

A block whose result is not there stays as it is. ``results/retarget.md`` has every
table of the comparison with dex-retargeting.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks.retargeting import tables
from benchmarks.retargeting.tables import record

Result = Mapping[str, Any]
WIDTH = 120
_BLOCK = re.compile(r"(<!-- result ([^:>]+): [^>]*-->\n).*?(<!-- end \2 -->)", re.DOTALL)


def main() -> int:
    for path in pages():
        text = path.read_text("utf-8")
        new = spliced(text, blocks(provenance.RESULTS))
        if new != text:
            path.write_text(new, "utf-8")
            print(path.relative_to(provenance.ROOT))
    result = provenance.RESULTS / "retarget.json"
    if result.is_file():
        text = tables.document(json.loads(result.read_text("utf-8")))
        result.with_suffix(".md").write_text(text, "utf-8")
    return 0


def pages() -> list[Path]:
    """Return the pages that may hold blocks."""
    root = provenance.ROOT
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def blocks(folder: Path) -> dict[str, str | None]:
    """Return the text of every block by name; None where its result is not there."""
    out: dict[str, str | None] = {}
    for name, write in WRITERS.items():
        path = folder / f"{name.replace(' ', '_')}.json"
        out[name] = write(json.loads(path.read_text("utf-8"))) if path.is_file() else None
    path = folder / "retarget.json"
    made = json.loads(path.read_text("utf-8")) if path.is_file() else None
    for name in tables.NAMES if made is None else ():
        out[name] = None
    return out | (tables.blocks(made) if made else {})


def spliced(text: str, made: Mapping[str, str | None]) -> str:
    """Return a page with the text between its marks replaced by the block of that name.

    Raises:
        KeyError: a mark names a block that there is not.
    """

    def block(found: re.Match[str]) -> str:
        new = made[found[2]]
        return found[0] if new is None else f"{found[1]}\n{new}\n\n{found[3]}"

    return _BLOCK.sub(block, text)


def _batch(result: Result) -> str:
    one, two = result["runs"]
    faster, ceiling = result["speedup_of_two_workers"], result["speedup_of_two_main_jobs"]
    longer, overhead = result["one_worker_over_main_job"], one["overhead_ms_per_recording"]
    return _wrapped(
        f"`python -m benchmarks.batch`, {result['recordings']} recordings of "
        f"{result['frames_each']} frames: one worker {one['wall_s']:.0f} s, two "
        f"{two['wall_s']:.0f} s, {faster:.2f} times as fast. Two independent main jobs at the "
        f"same time are {ceiling:.2f} times as fast as one: so much this machine "
        f"has to gain. One worker takes {longer:.2f} times as long as one main job over all, "
        f"which opens its dataset and its robot once. The driver adds {overhead:.0f} ms per "
        f"recording, the workers' start included, and the merge "
        f"{one['merge_ms_per_recording']:.0f} ms ({record(result)})."
    )


def _batch_cost(result: Result) -> str:
    plain, overlay = result["plain"], result["overlay"]
    hours, gigabytes = "core_hours_per_hour", "dataset_gb_per_hour"
    return _wrapped(
        f"`python -m benchmarks.batch --cost` on a video of {result['recorded_s']:.1f} s, "
        f"1280 x 720 at 30 fps: an hour of recordings takes {plain[hours]:.2f} core hours and "
        f"{plain[gigabytes]:.1f} GB, with overlay videos {overlay[hours]:.2f} and "
        f"{overlay[gigabytes]:.1f} GB. The batch's folder takes "
        f"{plain['batch_folder_beyond_it_gb_per_hour']:.2f} GB beyond that, a worker up to "
        f"{overlay['peak_mb']:.0f} MB of memory, a dataset of this one recording "
        f"{plain['files_per_recording']} files ({record(result)})."
    )


def _batch_faults(result: Result) -> str:
    kills = ", ".join(f"{n} of a {kind}" for kind, n in result["kills"].items())
    same = "equal to that" if result["same_bytes"] else "NOT equal to that"
    again, retried = result["finished_then_done_again"], result["quarantined_and_retried"]
    return _wrapped(
        f"Engine `{result['engine']}`, {result['recordings']} recordings, "
        f"{sum(result['kills'].values())} SIGKILLs at random moments ({kills}): {again} finished "
        f"recordings were done again, {retried} were quarantined for it and needed `--retry`; "
        f"the output is {same} of an undisturbed batch, byte for byte ({record(result)})."
    )


def _main_job(result: Result) -> str:
    short = result["short"]
    overlay = result["overlay_s"] / result["mediapipe_alone_s"]
    rows = [
        ("from process start to exit", result["ratio_to_mediapipe_alone"], "MediaPipe alone"),
        ("with the overlay video", overlay, "MediaPipe alone"),
        ("4 s of it in 1920 x 1080", short["ratio_no_overlay"], "its length"),
        ("the same, with the overlay", short["ratio_overlay"], "its length"),
    ]
    lines = [f"| {what} | {ratio:.2f} | {peer} |" for what, ratio, peer in rows]
    lines += [
        f"| {one['minutes']:g} minutes, peak memory {one['peak_mb']:.0f} MB | "
        f"{one['ratio_to_clip']:.2f} | its length |"
        for one in result["minutes"]
    ]
    head = f"| {result['frames']} frames that last {result['clip_s']:.1f} s | time | over that of |"
    wall = f"{result['no_overlay_s']:.1f} s, {result['overlay_s']:.1f} with the overlay"
    note = _wrapped(
        f"`python -m benchmarks.main_job`: {wall}; `acehand --help` takes {result['help_s']:.2f} s "
        f"({record(result)})."
    )
    return "\n".join([head, "|---|---|---|", *lines]) + f"\n\n{note}"


def _encoding(result: Result) -> str:
    lines = [
        "| x264 preset | CPU time to encode | size | PSNR, dB | CPU time to load a frame |",
        "|---|---|---|---|---|",
    ]
    for video, presets in result["videos"].items():
        for preset, one in presets.items():
            lines.append(
                f"| {video}: {preset} | {one['ratio_cpu_ms']:.2f} | {one['ratio_megabytes']:.2f} | "
                f"{one['psnr_db']:.1f} | {one['ratio_access_ms']:.2f} |"
            )
    note = _wrapped(
        f"Times and sizes over those of superfast, the first {result['frames']} frames of each "
        f"video (`python -m benchmarks.encoding`; {record(result)})."
    )
    return "\n".join(lines) + f"\n\n{note}"


def _retarget_hour(result: Result) -> str:
    *_, short, long = result["runs"]
    return _wrapped(
        f"{long['minutes']:.0f} minutes of frames ({long['frames']}) peak at {long['peak_mb']:.0f} "
        f"MB, {short['minutes']:.0f} minutes at {short['peak_mb']:.0f} MB, targets included; a "
        f"clip of two chunks differs from one solve by {result['seam_rad']:.0e} rad "
        f"(`python -m benchmarks.retarget_hour`; {record(result)})."
    )


def _synth(result: Result) -> str:
    rows = {name: row for name, row in result.items() if isinstance(row, dict) and "clips" in row}
    lines = [
        f"| clips of {result['frames_per_clip']} frames a minute | one process | "
        f"{result['processes']} processes | ratio |\n|---|---|---|---|"
    ]
    lines += [
        f"| {name} | {row['clips_per_minute_single']:.1f} | {row['clips_per_minute']:.1f} | "
        f"{row['ratio_to_single']:.2f} |"
        for name, row in rows.items()
    ]
    return "\n".join(lines) + f"\n\n({record(result)})"


def _train_step(result: Result) -> str:
    return _wrapped(
        f"Without `--size real` it does the same with `tiny` on a CPU: a step of {result['clips']} "
        f"clips of {result['frames']} frames takes {result['step_over_forward']:.1f} times a "
        f"forward pass without gradients ([train_step.json](../benchmarks/results/"
        f"train_step.json); {record(result)})."
    )


def _overfit(result: Result) -> str:
    terms = result["terms"]
    left = {name: (row["last"] - row["truth"]) / row["first"] for name, row in terms.items()}
    most = sorted(left, key=lambda name: -left[name])[:4]
    kept = [
        f"`{name}` {100 * left[name]:.1f} % ({terms[name]['first']:.4f} to "
        f"{terms[name]['last']:.4f}; the truth's value {terms[name]['truth']:.4f})"
        for name in most
    ]
    return _wrapped(
        f"After {result['steps']} steps and {result['seconds']:.0f} s, of the {len(left)} terms "
        f"those that keep most of their first value above the truth's: {', '.join(kept)} "
        f"([overfit.json](../benchmarks/results/overfit.json); {record(result)})."
    )


def _arms(result: Result) -> str:
    lines = [
        "| arm | alone: frames in which the arms collide, deepest mm | with themselves, of both | "
        "together, nearest mm | with themselves | reached, left and right | verdict |\n"
        "|---|---|---|---|---|---|---|"
    ]
    for row in result["arms"]:
        name = f"`{row['model'].rsplit('/', 1)[-1]}`"
        if "left_out" in row:
            lines.append(f"| {name} | {row['left_out']} | | | | | |")
            continue
        alone, both = row["alone"], row["together"]
        deepest = f", {-alone['smallest_distance_mm']:.0f}" if alone["colliding_frames"] else ""
        reached = " and ".join(f"{share:.0%}" for share in both["reached_share"].values())
        lines.append(
            f"| {name} | {alone['colliding_frames']}{deepest} | {alone['self_colliding_frames']} | "
            f"{both['colliding_frames']}, {both['smallest_distance_mm']:.0f} | "
            f"{both['self_colliding_frames']} | {reached} | {both['verdict']} |"
        )
    rows = [row for row in result["arms"] if "left_out" not in row]
    took = [
        statistics.median([row[way]["seconds"] for row in rows]) for way in ("alone", "together")
    ]
    return (
        "\n".join(lines)
        + "\n\n"
        + _wrapped(f"(median {took[0]:.0f} s alone and {took[1]:.0f} s together; {record(result)})")
    )


#: Of the cells of fit_guards.py, those of the documentation.
_GUARD_ROWS = {
    ("pinhole", 70): [("independent", 0), ("independent", 5), ("smooth over 2 tokens", 3)],
    ("pinhole", 110): [("smooth over 2 tokens", 3), ("smooth over 5 tokens", 5),
                       ("smooth over 3 tokens, fit right", 8)],
    ("equidistant", 70): [("independent", 0), ("independent", 3)],
    ("equidistant", 90): [("independent", 0), ("independent", 5), ("smooth over 2 tokens", 3)],
    ("equidistant", 150): [("independent", 0)],
    ("stereographic", 110): [("independent", 0), ("smooth over 2 tokens", 3)],
}  # fmt: skip


def _fit_guards(result: Result) -> str:
    ways = ("paper", "before", "plain", "now")
    rows = {(r["lens"], r["view"], r["error"], r["degrees"]): r for r in result["rows"]}
    lines = [
        "| lens, degrees across | error of the rays, degrees per axis | by the fit, mm | by the "
        "field, mm | outer cells on the edge | the paper's two guards | misfit up to "
        f"{result['before_degrees']:g} degrees (before) | plain excess up to "
        f"{result['plain_degrees']:g} degrees | `excess` |", "|---|" + "---|" * 8,
    ]  # fmt: skip
    for lens, errors in _GUARD_ROWS.items():
        for name, degrees in errors:
            row = rows[(*lens, name, degrees)]
            fit = "-" if row["fit_mm"] is None else f"{row['fit_mm']:.1f}"
            cells = [f"{row[way]['accepted']:.0%}, {row[way]['mm']:.1f}" for way in ways]
            error = f"{degrees} {name}" if degrees else "none"
            lines.append(
                f"| {lens[0]} {lens[1]} | {error} | {fit} | {row['field_mm']:.1f} | "
                f"{row['edges_mm']:.1f} | {' | '.join(cells)} |"
            )
    lost = [
        [row[way]["mm"] - min(row["paper"]["mm"], row["field_mm"]) for row in rows.values()]
        for way in ways
    ]
    mean = ", ".join(f"{sum(values) / len(values):.1f}" for values in lost)
    most = ", ".join(f"{max(values):.0f}" for values in lost)
    return "\n".join(lines) + "\n\n" + _wrapped(
        f"Of the last four columns: the share of fields whose hands the fit places, and the mean "
        f"error of all hands, mm. To the better of fit and field they lose {mean} mm in the mean "
        f"of all {len(rows)} pairs of lens and error, {most} mm in the worst ([fit_guards.json]"
        f"(../benchmarks/results/fit_guards.json); {result['fields']} fields and {result['hands']} "
        f"hands each; {record(result)})."
    )  # fmt: skip


_GAPS = {
    "out_of_sight": "out of the picture",
    "random": "withheld, 5 to 30 frames",
    "carried": "withheld, hands carried with the head",
}


def _gap_filling(result: Result) -> str:
    ways = ("camera", "chosen", "chosen_noisy", "chosen_poses")
    lines = [
        "| wrists, mean error | camera frame (motion unknown) | chosen by rotation | the same, "
        "rotation as estimated | chosen with poses |\n|---|---|---|---|---|"
    ]
    for case, words in _GAPS.items():
        row = result["sightings"]["true"][case]
        cells = (f"{row['mm'][way]:.0f} mm, {row['px'][way]:.0f} px" for way in ways)
        lines.append(f"| {words} | {' | '.join(cells)} |")
    clips, noisy = sum(result["clips"].values()), result["sightings"]["tracked"]["out_of_sight"]
    return "\n".join(lines) + "\n\n" + _wrapped(
        f"True hands of {clips} posed clips; pixels are angles times the focal length. With "
        f"sightings that are off as a tracker's (3 px, 6 % of distance) the first row is "
        f"{noisy['mm']['camera']:.0f}, {noisy['mm']['chosen']:.0f}, "
        f"{noisy['mm']['chosen_noisy']:.0f} and {noisy['mm']['chosen_poses']:.0f} mm "
        f"(`python -m benchmarks.gap_filling`; {record(result)})."
    )  # fmt: skip


def _bag(result: Result) -> str:
    reading, converting, memory = result["reading"], result["converting"], result["memory"]
    width, height = reading["jpeg"]["size"]
    with_bag = converting["bag_and_bag_output_s"] / converting["bag_s"]
    lines = [
        "| what | measured |", "|---|---|",
        f"| {reading['jpeg']['frames']} pictures of {width} x {height} in jpeg, indexed and read "
        f"in order | {reading['jpeg']['ratio']:.2f} x rosbags and OpenCV reading them once |",
        f"| the same as bgr8 | {reading['bgr8']['ratio']:.1f} x: the bag is read twice more, for "
        f"the index and for its SHA-256 ({reading['bgr8']['recording_s']:.2f} s in all) |",
        f"| converting {converting['frames']} frames of `examples/two_hands.mp4` from a bag | "
        f"{converting['ratio_to_video']:.1f} x the main job on the video; "
        f"{converting['ratio_to_rosbags_alone']:.0f} x reading alone |",
        "| with `--bag-output` | "
        f"{with_bag:.1f} x without |",
    ]  # fmt: skip
    for kind, one in memory.items():
        lines.append(
            f"| peak memory of a conversion, {kind} of {one['size'][0]} x {one['size'][1]} at "
            f"{one['fps']} Hz | {one['peak_mb'][0]} MB for 1 minute, {one['peak_mb'][1]} MB for "
            f"{one['minutes'][1]:.0f}; the goal, 1.1 times that of one minute and 50 MB, is "
            f"{one['bound_mb']} MB |"
        )
    return "\n".join(lines) + f"\n\n({record(result)})"


def _rig(result: Result) -> str:
    names = {
        "camera": "one camera",
        "depth": "depth",
        "views": "the other cameras",
        "views and depth": "both",
        "2 % off": "depth 2 % off",
        "20 ms late": "depth 20 ms late",
        "30 % holes": "depth with 30 % more holes",
    }
    lines = [
        "| rendered clips | wrist, mm (in depth) | joints, mm | palms over 30 degrees | found of "
        "hands mostly seen | hands on the wrong side, of none |",
        "|---|---|---|---|---|---|",
    ]
    for store, modes in result["rendered"].items():
        for mode, name in names.items():
            if mode not in modes:
                continue
            one, about = modes[mode], f"{store}, {modes['clips']} clips: "
            lines.append(
                f"| {about if mode == 'camera' else ''}{name} | {one['wrist_mm']:.1f} "
                f"({one['wrist_depth_mm']:.1f}) | {one['joints_mm']:.1f} | "
                f"{100 * one['over_30']:.1f} % | {100 * one['recall_mostly_seen']:.0f} % | "
                f"{one['wrong_side']}, {one['nothing_there']} |"
            )
    return "\n".join(lines) + f"\n\n({record(result)})"


def _photographs(result: Result) -> str:
    names = {
        "camera0": "a hand over a keyboard, from above",
        "camera1": "the same, from the side",
        "fisheye0": "from above, at the edge of a fisheye",
        "fisheye1": "from the side, at the edge of a fisheye",
        "both": "both, as a rig",
        "hand_graph": "a hand before a screen, 583 pictures",
    }
    lines = [
        "| real pictures | joints, mm (about their mean) | palm, degrees (share over 30) | depth "
        "spread, mm (mean error) | wrist, mm | 68 % interval along, across |",
        "|---|---|---|---|---|---|",
    ]
    for key, name in names.items():
        for method, one in (("", result[key]), *sorted(result[key].items())):
            if not isinstance(one, dict):
                continue
            covered = [one.get(f"covered_68_{way}") for way in ("along", "across")]
            lines.append(
                f"| {name}{method and ': ' + method} | {one['joints_mm']:.1f} "
                f"({one['about_mean_mm']:.1f}) | {one['palm_deg']:.0f} ({one['over_30']:.0%}) | "
                f"{one['depth_spread_mm']:.0f} ({one['depth_percent']:+.1f} %) | "
                f"{one['wrist_mm']:.0f} | "
                f"{', '.join('-' if share is None else f'{share:.0%}' for share in covered)} |"
            )
    none = result["without_hands"]
    lines.append("\n" + _wrapped(
        f"In {none['pictures']} pictures without hands ours finds {none['ours']}, plain MediaPipe "
        f"{none['mediapipe stills 0.5']}."
    ))  # fmt: skip
    return "\n".join(lines) + f"\n\n({record(result)})"


def _evaluate(result: Result) -> str:
    return textwrap.fill(
        f"`python -m benchmarks.evaluate`: {result['segments_per_second']:.1f} segments of "
        f"{result['frames_per_segment']} frames per second with the default hand's mesh of "
        f"{result['mesh_vertices']} vertices, {result['ratio_to_twin']:.0f} times the twin "
        f"([result](../benchmarks/results/evaluate.json); {record(result)}).",
        WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _recovery(result: Result) -> str:
    lines = ["| robot | share of its range used | found with tracking terms, largest error | found "
             "with the default weights, largest error |", "|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| `{name}` | {row['range_used']:.0%} | {row['tracking_found']:.0%}, "
        f"{row['tracking_error']:.1g} | {row['smooth_found']:.0%}, {row['smooth_error']:.2g} |"
        for name, row in result["robots"].items()
    ]
    return "\n".join(lines) + f"\n\n(errors in rad, of the gripper in m; {record(result)})"


def _own_robots(result: Result) -> str:
    lines = [
        "| model | hands, fingers | driven, following | failed checks | base off the fingers, "
        f"degrees | verdict on {result['frames']} frames | self-contact mm: commands, replay | "
        "fingertips off, mm |",
        "|---|---|---|---|---|---|---|---|",
    ]
    refused, passed = [], []
    for name, row in result["models"].items():
        if "refused" in row:
            refused.append(f"{name} ({row['refused'].rstrip('.')})")
            continue
        if row["verdict"] == "pass" and not row["failed"]:
            passed.append((name, row["tip_mm"]))
            continue
        sides = " and ".join(row["sides"])
        failed = "; ".join(text.split(":")[0] for text in row["failed"]) or "none"
        palm = row["palm_frame"].split(" degrees")[0]
        lines.append(
            f"| {name} | {sides}, {len(row['fingers'])} | {row['driven']}, {row['following']} | "
            f"{failed} | {palm} | {row['verdict']} | {row['commanded_contact_mm']:.1f}, "
            f"{row['replay_contact_mm']:.1f} | {row['tip_mm']:.1f} |"
        )
    text = (
        f"{len(passed)} more pass without a failed check, fingertips off by "
        f"{min(mm for _, mm in passed):.1f} to {max(mm for _, mm in passed):.1f} mm: "
        f"{', '.join(name for name, _ in passed)}. Refused: {', '.join(refused) or 'none'} "
        f"([own_robots.json](../benchmarks/results/own_robots.json); "
        f"{', '.join(result['checkouts'])}; {record(result)})."
    )
    return "\n".join(lines) + "\n\n" + _wrapped(text)


def _review(result: Result) -> str:
    missed = [f"{d['damage']} ({d['variant']})" for d in result["damages"] if not d["found"]]
    missing = f"; not found: {', '.join(missed)}" if missed else ""
    command = result["provenance"]["command"].split(" --keep")[0]
    healthy = result["healthy"]
    text = (
        f"`{command}`, {result['clips']} rendered clips of one lab, {result['damaged']} of them "
        f"damaged, one of each kind: {result['found']} found, which is an episode that warns "
        f"or fails with a finding that says what is wrong{missing}"
        f". Of the healthy ones {healthy['pass']} passed, {healthy['warn']} "
        f"warned, {healthy['fail']} failed. What there is without the report: `acehand "
        f"dataset check` and a verdict of `fail` find {result['found_by_peer']}; counting `warn`, "
        f"too, {result['found_by_peer_with_warnings']}, and {result['healthy_warned_by_peer']} "
        f"healthy clips. {result['report_s_per_episode']:.1f} s per episode, without the page; "
        f"[review.json](../benchmarks/results/review.json) has each ({record(result)})."
    )
    return _wrapped(text)


WRITERS: dict[str, Callable[[Result], str]] = {
    "arms": _arms,
    "batch": _batch,
    "encoding": _encoding,
    "batch cost": _batch_cost,
    "batch faults": _batch_faults,
    "batch faults ray": _batch_faults,
    "main job": _main_job,
    "retarget hour": _retarget_hour,
    "review": _review,
    "synth": _synth,
    "train step": _train_step,
    "overfit": _overfit,
    "fit guards": _fit_guards,
    "gap filling": _gap_filling,
    "bag": _bag,
    "rig": _rig,
    "rig aria": _rig,
    "photographs": _photographs,
    "evaluate": _evaluate,
    "recovery": _recovery,
    "own robots": _own_robots,
}


def _wrapped(text: str, width: int = WIDTH) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
