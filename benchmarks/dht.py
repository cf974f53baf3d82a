"""How long the DHT takes to store and to find, by Shoal and by hivemind, on this machine and in the same run.

    python benchmarks/dht.py --nodes 32 --records 200 --against hivemind          # a table
    python benchmarks/dht.py --nodes 32 --records 200 --against hivemind --json   # for each system, and the ratios

Every node is a process of its own on loopback (hivemind's with its p2pd beside it). The records are stored and got one
after the other, each got by another node than its author, keys that nobody stored likewise; seconds are taken inside
the nodes, around each call. `store`, `get` and `missing` are over connections that are there, by nodes that have talked
before; `cold_store`, `cold_get` and `cold_missing` are each by a node of its own that has just joined through one
address, and has no connection with the servers that it needs. `replicas` is how many nodes hold a record: a store that
makes more of them has more to do. `crippled_get` is Shoal's alone: 8 of 32 nodes were killed, and 4 stopped, so that
they are silent.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any

from kit.fleet import HIVEMIND, Child, PeerFailed, has_hivemind, script

REPLICAS = {"shoal": 15, "hivemind": 5}  # shoal: 5 at each of 3 places of the id space
COLD = 8  # fresh nodes
KILLED, STOPPED = 8, 4  # of every 32
LIMIT = 1.0  # seconds at p95 for a get in a crippled network

ROWS = {
    "store": "store",
    "get": "get",
    "missing": "a key that is missing",
    "cold_store": "cold store",
    "cold_get": "cold get",
    "cold_missing": "cold, a key that is missing",
    "crippled_get": "get, a quarter killed, an eighth stopped",
}

Timed = tuple[list[float], int]


class System:
    """All nodes of one system, in one child each, or, for hivemind, all in one child."""

    def __init__(self, name: str, nodes: int, patience: float) -> None:
        self.name, self.count, self._patience = name, nodes, patience
        self._is_one_child = name == "hivemind"  # which itself makes a process for each node
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 (closed with the system)
        argv = script(f"dht_{name}.py", HIVEMIND if self._is_one_child else sys.executable)
        self.children = [Child(argv, patience, self._errors) for _ in range(1 if self._is_one_child else nodes)]

    def node(self, index: int) -> tuple[Child, int]:
        """The child of a node, and the node's number within that child."""
        return (self.children[0], index) if self._is_one_child else (self.children[index], 0)

    def join(self) -> str:
        """Lets all nodes find each other; the address of the first."""
        each = self.count if self._is_one_child else 1
        first = str(self.children[0].ask(nodes=each, first="")["addresses"][0])
        for child in self.children[1:]:
            child.tell(nodes=1, first=first)
        for child in self.children[1:]:
            child.answer()
        if not self._is_one_child:
            for child in self.children:
                child.tell(settle=True)
            for child in self.children:
                child.answer()
        return first

    def timed(self, what: str, keys: Sequence[str], nodes: Sequence[int], shift: int) -> Timed:
        """Does `what` with each key, one after the other, at the nodes in turn, starting at index `shift`."""
        seconds, right = list[float](), 0
        for number, key in enumerate(keys):
            child, index = self.node(nodes[(number + shift) % len(nodes)])
            answer = child.ask(node=index, **{what: [key]})
            seconds += answer["seconds"]
            right += answer["right"]
        return seconds, right

    def cold(self, what: str, keys: Sequence[str], first: str) -> Timed:
        """Does `what` with each key, each time by a new node that joins at the address `first`."""
        answer = self.children[0].ask(first=first, **{what: keys})
        return answer["seconds"], answer["right"]

    def __enter__(self) -> System:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.children:
            child.end(self._patience / 10)
        self._errors.close()


def main() -> int:
    """Measures each system in turn; 0 if all answers were right, and Shoal's in time."""
    options = _parse()
    results = []
    for name in ["shoal", *options.against]:
        if name == "hivemind" and not has_hivemind():
            continue
        try:
            results.append(measure(name, options))
        except PeerFailed as failure:
            print(f"{name} failed: {failure}", file=sys.stderr)
            results.append({"system": name, "ok": False})
        if options.json:
            print(json.dumps(results[-1]), flush=True)
    ratios = [_ratios(results[0], other) for other in results[1:]]
    for line in map(json.dumps, ratios) if options.json else _table(results, ratios):
        print(line)
    return 0 if results and all(result["ok"] for result in results) else 1


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measures one system."""
    keys = [f"key {number}" for number in range(options.records)]
    missing = [f"missing {number}" for number in range(options.records)]
    everybody = list(range(options.nodes))
    with System(name, options.nodes, options.patience) as system:
        first = system.join()
        system.timed("store", [f"warm {number}" for number in everybody], everybody, 0)
        system.timed("get", [f"warm {number}" for number in everybody], everybody, 1)
        done = {
            "store": system.timed("store", keys, everybody, 0),
            "get": system.timed("get", keys, everybody, options.nodes // 2 + 1),
            "missing": system.timed("miss", missing, everybody, 0),
        }
        done["cold_store"] = system.cold("store", [f"cold {number}" for number in range(COLD)], first)
        done["cold_get"] = system.cold("get", keys[:COLD], first)
        done["cold_missing"] = system.cold("miss", [f"missing, cold {number}" for number in range(COLD)], first)
        if name == "shoal":
            done["crippled_get"] = cripple(system, keys)
    right = {what: f"{count} of {len(seconds)}" for what, (seconds, count) in done.items()}
    figures = {what: _figures(seconds) for what, (seconds, _) in done.items()}
    ok = all(count == len(seconds) for seconds, count in done.values())
    if "crippled_get" in figures:
        ok = ok and figures["crippled_get"]["p95_ms"] < 1000 * LIMIT
    return {"system": name, "nodes": options.nodes, "records": options.records, "replicas": REPLICAS[name]} | {
        **figures,
        "right": right,
        "ok": ok,
    }


def cripple(system: System, keys: Sequence[str]) -> Timed:
    """Kills a quarter of the nodes and stops an eighth; then the rest get all records."""
    killed, stopped = KILLED * system.count // 32, STOPPED * system.count // 32
    for index in range(1, 1 + killed):
        system.children[index].process.send_signal(signal.SIGKILL)
    for index in range(1 + killed, 1 + killed + stopped):
        system.children[index].process.send_signal(signal.SIGSTOP)
    return system.timed("get", keys, [0, *range(1 + killed + stopped, system.count)], 1)


def _ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Our median over theirs: below one is faster. A store of ours makes three times as many replicas."""
    both = [what for what in ROWS if what in ours and what in theirs]
    ratios = {what: round(ours[what]["median_ms"] / theirs[what]["median_ms"], 2) for what in both}
    return {f"shoal / {theirs['system']}": ratios}


def _figures(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for name, share in (("median_ms", 0.5), ("p95_ms", 0.95))
    }


def _table(results: Sequence[dict[str, Any]], ratios: Sequence[dict[str, Any]]) -> list[str]:
    """Milliseconds, median and p95, a column for each system and each ratio; then what went wrong."""
    names = [f"{each['system']}, {REPLICAS[each['system']]} replicas" for each in results]
    table = [["ms, median (p95)", *names, *(name for each in ratios for name in each)]]
    for what, words in ROWS.items():
        figures = [each.get(what) for each in results]
        cells = [f"{each['median_ms']} ({each['p95_ms']})" if each else "" for each in figures]
        table.append([words, *cells, *(str(row.get(what, "")) for each in ratios for row in each.values())])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return lines + [f"WRONG: {json.dumps(each)}" for each in results if not each["ok"]]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the DHT of Shoal and of its peers.")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--against", type=lambda names: [name for name in names.split(",") if name], default=[])
    parser.add_argument("--patience", type=float, default=180.0, help="seconds for any one answer")
    parser.add_argument("--json", action="store_true", help="lines of JSON instead of a table")
    options = parser.parse_args()
    if options.nodes < 4 or options.records < 1:
        parser.error("--nodes must be at least 4, --records at least 1")
    if unknown := set(options.against) - {"hivemind"}:
        parser.error(f"unknown system '{min(unknown)}'; known is hivemind")
    return options


if __name__ == "__main__":
    sys.exit(main())
