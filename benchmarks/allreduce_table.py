"""The table and the plot of docs/performance.md: one all-reduce by Shoal and by its peers, in five sizes.

    make bench-peers
    .venv/bin/python benchmarks/allreduce_table.py --rounds 5

One JSON line per size goes to docs/allreduce.jsonl, in place of an earlier one, and all that are there are drawn into
docs/allreduce.svg. `most` is how often gloo's time (in fp32 and in the clear) the goal allows.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allreduce import able, measure

from shoal.node.client.report.plot import Axis, Plot, picture

DOCS = Path(__file__).parent.parent / "docs"
TABLE, PLOT = DOCS / "allreduce.jsonl", DOCS / "allreduce.svg"
SIZES = {  # (peers, MiB, codec): the goal, in multiples of gloo's time
    (2, 64, "fp32"): None,
    (2, 256, "fp32"): 2.5,
    (4, 64, "fp32"): None,
    (4, 256, "fp32"): 3.0,
    (8, 64, "fp32"): 3.0,
    (4, 256, "int8"): 1.6,
}
COLORS = {"shoal": "#1a7f8e", "gloo": "#b0b0b0", "hivemind": "#e0a030"}

Row = dict[str, Any]


def run(peers: int, mib: int, codec: str, rounds: int) -> Row:
    """Measures one size with all systems; gloo has only fp32."""
    codecs = {"shoal": codec, "gloo": "fp32", **dict.fromkeys(able(["hivemind"], codec), codec)}
    results = measure(codecs, peers, mib, rounds)
    seconds: dict[str, Any] = {result.system: result.seconds for result in results if result.ok}
    row: Row = {"peers": peers, "mib": mib, "codec": codec, "date": datetime.now(UTC).date().isoformat(), **seconds}
    if "shoal" in seconds and "gloo" in seconds:
        row["shoal_by_gloo"] = round(seconds["shoal"] / seconds["gloo"], 2)
        row["most"] = SIZES[peers, mib, codec]
    if "shoal" in seconds and "hivemind" in seconds:
        row["hivemind_by_shoal"] = round(seconds["hivemind"] / seconds["shoal"], 2)
    return row


def name(row: Row) -> str:
    """The label of a size."""
    return f"{row['peers']} x {row['mib']}, {row['codec']}"


def keep(row: Row) -> list[Row]:
    """Stores a row in the table; all rows."""
    rows = {name(each): each for each in map(json.loads, TABLE.read_text().splitlines())} if TABLE.exists() else {}
    rows[name(row)] = row
    ordered = [
        rows[key]
        for key in (name(dict(zip(("peers", "mib", "codec"), size, strict=True))) for size in SIZES)
        if key in rows
    ]
    TABLE.write_text("".join(json.dumps(each) + "\n" for each in ordered), encoding="utf-8")
    return ordered


def words(rows: list[Row]) -> str:
    """The table, in Markdown."""
    lines = ["| peers x MiB, codec | Shoal | gloo | hivemind | Shoal / gloo | hivemind / Shoal |", "|---" * 6 + "|"]
    for row in rows:
        cells = [row.get(key, "") for key in ("shoal", "gloo", "hivemind", "shoal_by_gloo", "hivemind_by_shoal")]
        lines.append("| " + " | ".join([name(row), *(f"{cell:.3g}" if cell else "" for cell in cells)]) + " |")
    return "\n".join(lines)


def draw(rows: list[Row]) -> None:
    """Bars, in multiples of gloo's time."""
    compared = [row for row in rows if "gloo" in row]
    most = max((row[system] / row["gloo"] for row in compared for system in COLORS if system in row), default=1)
    x = Axis(0, 1.1 * most, "time of one all-reduce by gloo's: less is better")
    title = "peers x MiB of fp32, codec"
    plot = Plot(x, Axis(len(rows), 0, ""), title, width=800, height=78 + 62 * len(rows), left=120, top=34)
    plot.axes(rows=True)
    plot.text(14, 20, title, "start", "axis")
    for number, row in enumerate(rows):
        plot.text(plot.left - 8, plot.at_y(number + 0.5) + 4, name(row), "end", "tick")
        for place, system in enumerate(COLORS):
            if system in row and "gloo" in row:
                times, high = row[system] / row["gloo"], number + 0.12 + 0.26 * place
                plot.bar((0, times), (high + 0.24, high), system, f"{name(row)}, {system}: {times:.1f}")
                plot.text(plot.at_x(times) + 5, plot.at_y(high + 0.12) + 4, f"{times:.1f}", "start", "tick")
    keys = [(f"fill {each}", "gloo, in the clear, fp32" if each == "gloo" else f"{each}, encrypted") for each in COLORS]
    style = "".join(f".{each} {{ --hue: {color}; }}\n" for each, color in COLORS.items())
    PLOT.write_text(picture([plot], keys, style), encoding="utf-8")


def main() -> None:
    """Measure the sizes that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], help="like 4x256-fp32")
    options = parser.parse_args()
    rows: list[Row] = []
    for peers, mib, codec in SIZES:
        if not options.only or f"{peers}x{mib}-{codec}" in options.only:
            row = run(peers, mib, codec, options.rounds)
            print(json.dumps(row), flush=True)
            rows = keep(row)
            draw(rows)
    print(words(rows))


if __name__ == "__main__":
    main()
