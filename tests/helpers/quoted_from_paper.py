"""Reads the paper's tables from its LaTeX source. Run it to write the product's file of them.

python tests/helpers/quoted_from_paper.py SHARED/paper/*.txt
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[2] / "acehand_core/ace/evaluation/quoted.json"
VIDIHAND = "published by ViDiHand; the paper quotes it"
OWN = "the paper's own run"
MAIN = ["facc", "recall", "f1", "mpjpe_p", "pa_p", "mpjpe_plus_oos", "epe_p", "go_p", "ct_p",
        "jitter"]  # fmt: skip
STUDY = ["mpjpe_p", "pa_p", "epe_p", "go_p", "ct_p", "jitter"]
NAME = "ACE-Ego-Hand"


def body(text: str, label: str) -> str:
    start = text.index(f"\\label{{{label}}}")
    start = text.index("\\begin{tabular}", start)
    return text[start : text.index("\\end{tabular}", start)]


def clean(cell: str) -> str:
    cell = cell.replace("\\method{}", NAME).replace("$K$", "K").replace("~", " ")
    cell = re.sub(r"\\cite\w*\{[^}]*\}|\$\^\{\\d*dagger\}\$", "", cell)
    cell = re.sub(r"\$\\hat\\beta\$", "beta", cell)
    cell = re.sub(r"\\(?:textbf|mathbf|best|textit)\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1", cell)
    cell = cell.replace("$\\sigma{=}", "$sigma = ").replace("\\%", "%")
    cell = re.sub(r"\$|\\ |\\(?=[ ])|[{}]", "", cell)
    return " ".join(cell.replace("\\", " ").replace("--", "-").split())


def lines(table: str) -> list[list[str]]:
    out = []
    for line in table.split("\\\\"):
        line = re.sub(r"\\(?:mid|top|bottom)rule|\\cmidrule\([a-z]+\)\{[^}]*\}", "", line)
        line = re.sub(r"\\multirow\{\d+\}\{\*\}\{\\rotatebox\{90\}\{(.*?)\}\}", r"@\1@", line)
        out.append([cell.strip() for cell in re.split(r"(?<!\\)&", line)])
    return out


def number(cell: str) -> float | None:
    cell = clean(cell).removesuffix("%")
    return None if cell in ("-", "") else float(cell)


def is_number(cell: str) -> bool:
    try:
        number(cell)
    except ValueError:
        return False
    return True


def main_table(text: str, label: str, quoted_rows: bool) -> dict:
    blocks, name = {}, None
    for cells in lines(body(text, label)):
        if len(cells) != 12 or not is_number(cells[2]):
            continue
        if cells[0].startswith("@"):
            name = re.sub(r"\$.*?\$", "", cells[0].strip("@"))
            blocks[name] = []
        method = clean(cells[1])
        own = not quoted_rows or method.startswith((NAME, "EgoForce"))
        blocks[name].append({
            "method": method, "values": [number(c) for c in cells[2:]],
            "origin": OWN if own else VIDIHAND,
        })  # fmt: skip
    return {"label": label, "columns": MAIN, "blocks": blocks}


def study(text: str, label: str, columns: list[str]) -> dict:
    rows = [
        {"method": clean(cells[0]), "values": [number(c) for c in cells[1:]], "origin": OWN}
        for cells in lines(body(text, label))
        if len(cells) == len(columns) + 1 and is_number(cells[1])
    ]
    return {"label": label, "columns": columns, "blocks": {"ARCTIC": rows}}


def strata(text: str) -> dict:
    table = body(text, "tab:oos")
    heads = re.findall(r"\{(ARCTIC|HOT3D|OakInk2) \(\$([\d{},]+)\$[^/]*/ \$([\d{},]+)\$", table)
    whole = [int(re.sub(r"\D", "", v)) for _, *pair in heads for v in pair]
    counts = {h[0]: {"iv": whole[2 * i], "oos": whole[2 * i + 1]} for i, h in enumerate(heads)}
    blocks = {name: [] for name in counts}
    for cells in lines(table):
        if len(cells) != 10 or not is_number(cells[1]):
            continue
        for index, rows in enumerate(blocks.values()):
            values = [number(c) for c in cells[1 + 3 * index : 4 + 3 * index]]
            rows.append({"method": clean(cells[0]), "values": values, "origin": OWN})
    columns = ["mpjpe_iv", "mpjpe_oos", "mpjpe_plus_oos"]
    return {"label": "tab:oos", "columns": columns, "counts": counts, "blocks": blocks}


def radius(text: str) -> dict:
    blocks: dict = {}
    rows: list = []
    for cells in lines(body(text, "tab:radius")):
        head = re.search(r"\\textit\{(\w+)\}", " ".join(cells))
        if head:
            rows = blocks.setdefault(head[1], [])
            cells[0] = cells[0].split("}}")[-1]
        if len(cells) != 6 or not is_number(cells[1]):
            continue
        for method, pair in ((NAME, cells[2:4]), ("w/o camera fit", cells[4:6])):
            share = round(number(cells[1]) / 100, 4)
            values = [share, *(number(c) for c in pair)]
            low = clean(cells[0])
            rows.append({"method": method, "bin": low, "values": values, "origin": OWN})
    return {"label": "tab:radius", "columns": ["share", "mpjpe", "ct"], "blocks": blocks}


def conditions(text: str) -> dict:
    """How the quoted rows were scored: segments of every dataset, and the size of its pictures."""
    out = {}
    for cells in lines(body(text, "tab:mix")):
        if len(cells) == 7 and is_number(cells[5].replace("{,}", "")) and number(cells[5]):
            name = clean(cells[0]).removesuffix(" (held out)")
            out[name] = {"segments": int(number(cells[5])), "frames": 81, "split": "test"}
    sizes = re.search(
        r"resolutions are \$(\d+)\\times(\d+)\$ for ARCTIC and \$(\d+)\\times(\d+)\$ for HOT3D, "
        r"and H2O and OakInk2 are resized to a width of \$(\d+)\$", text,
    )  # fmt: skip
    numbers = [int(value) for value in sizes.groups()]
    out["ARCTIC"]["picture"], out["HOT3D"]["picture"] = numbers[:2], numbers[2:4]
    out["H2O"]["width"] = out["OakInk2"]["width"] = numbers[4]
    return out


#: Numbers that stand in sentences: the words that a test looks for, then what they say.
SENTENCES = {
    "length": {
        "label": "sec. Decoded Sequence Length", "columns": ["frames", "mpjpe_p", "jitter"],
        "blocks": {"ARCTIC": [
            {"method": NAME, "values": [81, 15.256, 2.700], "origin": OWN,
             "words": ["from $2.700$ to $2.585"]},
            {"method": f"{NAME}, whole recordings (594 to 1087 frames)",
             "values": [None, 17.99, 2.585], "origin": OWN,
             "words": ["$17.99$\\,mm when each recording is decoded in a single pass"]},
        ]},
    },
    "throughput": {
        "label": "sec. Inference Throughput", "columns": ["fps"],
        "blocks": {"ARCTIC, one A100": [
            {"method": NAME, "values": [63.1], "origin": OWN, "words": ["at $63.1$\\,fps"]},
            {"method": f"{NAME} (K-free)", "values": [63.3], "origin": OWN,
             "words": ["($63.3$\\,fps in the $K$-free configuration)"]},
            {"method": "ViDiHand", "values": [1.91], "origin": VIDIHAND,
             "words": ["For ViDiHand we use its published accuracy row",
                       "against $1.91$\\,fps for ViDiHand"]},
            {"method": "WiLoR", "values": [15.5], "origin": OWN,
             "words": ["WiLoR, reaches $15.5$\\,fps"]},
            {"method": "Hamba", "values": [1.5], "origin": f"{OWN}; a lower bound",
             "words": ["That $1.5$\\,fps is therefore a lower bound"]},
        ]},
    },
    "matched": {
        "label": "sec. Matched-Detection Errors", "columns": ["mpjpe"],
        "blocks": {
            "HOT3D": [
                {"method": NAME, "values": [12.68], "origin": OWN,
                 "words": ["($12.75$\\,mm against $12.68$\\,mm, wrist-aligned)"]},
                {"method": "w/o camera fit", "values": [12.75], "origin": OWN,
                 "words": ["($12.75$\\,mm against $12.68$\\,mm, wrist-aligned)"]},
            ],
            "OakInk2": [
                {"method": NAME, "values": [7.47], "origin": OWN,
                 "words": ["$7.96$\\,mm against $7.47$\\,mm"]},
                {"method": "w/o camera fit", "values": [7.96], "origin": OWN,
                 "words": ["$7.96$\\,mm against $7.47$\\,mm"]},
            ],
        },
    },
    "placement": {
        "label": "sec. Errors Toward the Image Border", "columns": ["ct_oos"],
        "blocks": {
            dataset: [
                {"method": NAME, "values": [new], "origin": OWN, "words": [words]},
                {"method": "w/o camera fit", "values": [old], "origin": OWN, "words": [words]},
            ]
            for dataset, old, new, words in (
                ("ARCTIC", 0.55, 0.10, "from $0.55$ to $0.10$\\,m on ARCTIC"),
                ("HOT3D", 0.52, 0.11, "from $0.52$ to $0.11$\\,m on HOT3D"),
                ("OakInk2", 0.45, 0.06, "from $0.45$ to $0.06$\\,m on OakInk2"),
            )
        },
    },
}  # fmt: skip


def quoted(text: str) -> dict:
    """Return everything that is quoted, with where it stands."""
    tables = {
        "main": main_table(text, "tab:main", True),
        "extra": main_table(text, "tab:supp_extra", False),
        "oos": strata(text),
        "features": study(text, "tab:vdm", ["mpjpe_p", "pa_p", "jitter", "mpjpe_oos"]),
        "decoder": study(text, "tab:decoder", ["mpjpe_p", "pa_p", "epe_p", "ct_p", "jitter"]),
        "tap": study(text, "tab:tap", STUDY),
        "sigma": study(text, "tab:sigma", STUDY),
        "radius": radius(text),
    }
    for name, table in SENTENCES.items():
        rows = [row for block in table["blocks"].values() for row in block]
        for row in rows:
            for words in row["words"]:
                assert words in text, words
        bare = {
            block: [{k: v for k, v in row.items() if k != "words"} for row in rows]
            for block, rows in table["blocks"].items()
        }
        tables[name] = {**table, "blocks": bare}
    source = "ACE-Ego-Hand, arXiv 2608.20308, LaTeX source"
    return {"source": source, "conditions": conditions(text), "tables": tables}


if __name__ == "__main__":
    found = quoted(Path(sys.argv[1]).read_text("utf-8"))
    TARGET.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
