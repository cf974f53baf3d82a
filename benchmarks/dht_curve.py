"""How the DHT scales: whole networks of the real core, from 100 nodes up, in virtual time and with the real codec.

    python benchmarks/dht_curve.py --sizes 100 300 1000

Each network lives for an hour as tests/simulation/dht_town.py describes: 70 % of the nodes behind NATs, half of all
replaced, 1 % of the calls lost, 20-300 ms on the way. One JSON line per size goes to docs/dht.jsonl, in place of an
earlier one of that size, and all that are there are drawn into docs/dht.svg. The largest takes hours on a slow machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from kit.log_axis import LogAxis  # noqa: E402

from shoal.node.client.report.plot import Axis, Plot, picture  # noqa: E402
from tests.simulation.dht_town import Town, keys  # noqa: E402

SIZES = (100, 300, 1000, 2000, 5000, 10_000)
GETS, KEYS = 500, 60
TABLE, PLOT = ROOT / "docs" / "dht.jsonl", ROOT / "docs" / "dht.svg"

Row = dict[str, Any]


def measure(size: int, seed: int) -> Row:
    """Simulates one network for an hour."""
    begin = time.process_time()
    town = Town(size, seed)
    town.settle()
    outcome = town.live(keys(KEYS), GETS)
    got = outcome.got
    return {
        "nodes": size,
        "seed": seed,
        "gets": outcome.asks.total(),
        "success": round(outcome.success(), 5),
        "hops": median(each.hops for each in got),
        "hops_p90": quantiles([each.hops for each in got], n=10)[-1],
        "seconds": round(median(outcome.seconds), 3),
        "calls_per_get": median(each.calls for each in got),
        "calls_per_missing": median(each.calls for each in outcome.missing),
        "calls_per_put": median(each.calls for each in outcome.put),
        "calls_per_node_and_hour": round(town.world.calls.total() / size),
        "cpu_seconds": round(time.process_time() - begin),
    }


def keep(row: Row) -> list[Row]:
    """Stores a row in the table; all rows, by size."""
    rows = {each["nodes"]: each for each in map(json.loads, TABLE.read_text().splitlines())} if TABLE.exists() else {}
    rows[row["nodes"]] = row
    ordered = [rows[size] for size in sorted(rows)]
    TABLE.write_text("".join(json.dumps(each) + "\n" for each in ordered), encoding="utf-8")
    return ordered


def draw(rows: list[Row]) -> None:
    """Three small plots over the number of nodes."""
    sizes = [row["nodes"] for row in rows]
    hops = {"median": [row["hops"] for row in rows], "p90": [row["hops_p90"] for row in rows]}
    calls = {name: [row[f"calls_per_{name}"] for row in rows] for name in ("get", "missing", "put")}
    success = {"": [100 * row["success"] for row in rows]}
    charts = [
        _plot(sizes, "gets that succeed, %", success, Axis(99, 100.05, "")),
        _plot(sizes, "hops of a get", hops, Axis(0, 1.1 * max(hops["p90"]), "")),
        _plot(sizes, "calls", calls, Axis(0, 1.1 * max(max(each) for each in calls.values()), "")),
    ]
    PLOT.write_text(picture(charts, []), encoding="utf-8")


def _plot(sizes: list[int], title: str, series: dict[str, list[float]], y: Axis) -> Plot:
    """A curve for each series, with its name at its end."""
    x = LogAxis(sizes[0], 1.2 * sizes[-1], "nodes", "{:,.0f}".format)
    plot = Plot(x, y, title, width=340, height=260, top=32)
    plot.axes()
    plot.text(plot.left, 18, title, "start", "title")
    for number, (label, values) in enumerate(series.items()):
        plot.line(list(zip(sizes, values, strict=True)), f"peer-{number}", label or title)
        plot.text(plot.at_x(sizes[-1]), plot.at_y(values[-1]) - 8, label, "end", "tick")
    return plot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gc.disable()  # the cores of a network are one large living heap; looking through it again and again finds nothing
    for size in options.sizes:
        row = measure(size, options.seed)
        print(json.dumps(row), flush=True)
        draw(keep(row))


if __name__ == "__main__":
    main()
