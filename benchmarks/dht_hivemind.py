"""Nodes of hivemind's DHT for the benchmark, each in a process that hivemind makes for it, with its p2pd.

Calls are timed inside that process, so that hivemind's communication between processes is not counted.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import hivemind
from hivemind.utils import get_dht_time
from kit.dht import LIFETIME, value_of
from kit.peer import Parent

Timed = tuple[list[float], int]


async def store(node: Any, keys: list[str]) -> Timed:
    """Stores these keys, one after the other."""
    seconds, right = [], 0
    for key in keys:
        begin = time.perf_counter()
        right += bool(await node.store(key, value_of(key), get_dht_time() + LIFETIME))
        seconds.append(time.perf_counter() - begin)
    return seconds, right


async def get(node: Any, keys: list[str], wanted: bool) -> Timed:
    """Gets these keys, one after the other; right if there is a value just if `wanted`."""
    seconds, right = [], 0
    for key in keys:
        begin = time.perf_counter()
        found = await node.get(key)
        seconds.append(time.perf_counter() - begin)
        right += (found is not None and found.value == value_of(key)) if wanted else found is None
    return seconds, right


async def do(dht: hivemind.DHT, node: Any, what: str, keys: list[str]) -> Timed:
    """`store`, `get` or `miss`."""
    return await store(node, keys) if what == "store" else await get(node, keys, what == "get")


def make(first: str) -> hivemind.DHT:
    """Starts a node."""
    peers = [first] if first else None
    return hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=peers)


def cold(what: str, keys: list[str], first: str) -> Timed:
    """Each key by a node of its own."""
    seconds, right = [], 0
    for key in keys:
        dht = make(first)
        took, well = dht.run_coroutine(partial(do, what=what, keys=[key]))
        seconds += took
        right += well
        dht.shutdown()
    return seconds, right


def main() -> None:
    """Be all nodes until nobody asks any more."""
    parent, nodes = Parent(), list[hivemind.DHT]()
    while (question := parent.next()) is not None:
        if "nodes" in question:
            first = question["first"]
            while len(nodes) < question["nodes"]:
                nodes.append(make(first))
                first = first or str(nodes[0].get_visible_maddrs()[0])
            parent.say(addresses=[str(node.get_visible_maddrs()[0]) for node in nodes])
            continue
        [what] = set(question) & {"store", "get", "miss"}
        if "first" in question:
            seconds, right = cold(what, question[what], question["first"])
        else:
            work = partial(do, what=what, keys=question[what])
            seconds, right = nodes[question["node"]].run_coroutine(work)
        parent.say(seconds=seconds, right=right)
    for node in nodes:
        node.shutdown()


if __name__ == "__main__":
    main()
