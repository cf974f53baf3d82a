"""Tokens per second of an ensemble of 1, 2 and 4 experts: in the server's process, and on as many other nodes.

    python benchmarks/asking.py

All nodes are on one machine, so they add no computing power: the benchmark measures the cost of asking over the
network, through two nodes on the loopback and three processes for each expert. The experts have the model of
benchmarks/serving.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import aiohttp

sys.path.append(str(Path(__file__).parents[1]))  # for the tests' nodes and experts

from serving import MODEL, Result, many, serving

from shoal.node.client.up.processes import Children
from tests.integration.asking_kit import Answerer, are_answered, start_nodes
from tests.integration.nodes import RealNode, until
from tests.unit.serve.ensemble.kit import write_experts

EXPERTS = (1, 2, 4)
ROUNDS = {1: 2, 16: 1}  # requests one after the other of each client, by how many clients there are
FLAGS = ["--threads", "1"]
SERVED = [*FLAGS, "--name", "serving"]  # the name that the clients of benchmarks/serving.py ask for


def main() -> int:
    """Measures with the experts in the server's process, then on other nodes."""
    with tempfile.TemporaryDirectory() as folder:
        for count in EXPERTS:
            experts = {f"e{number}": (number, MODEL) for number in range(count)}
            source = write_experts(Path(folder) / f"here-{count}", experts)
            with serving(str(source), SERVED, os.environ) as url:
                asyncio.run(_measure(url, count, "here"))
        _there(Path(folder))
    return 0


def _there(folder: Path) -> None:
    with Children() as children, ExitStack() as stack:
        planted: dict[str, dict[str, int]] = {"front": {}, **{f"n{each}": {f"e{each}": each} for each in range(4)}}
        nodes = start_nodes(children, folder, planted, MODEL)
        front, answering = nodes["front"], 0
        for count in EXPERTS:
            while answering < count:
                answerer = Answerer(nodes[f"n{answering}"], flags=tuple(FLAGS))
                stack.callback(answerer.end)
                answering += 1
            parts = {f"e{each}": 1 for each in range(count)}
            until(partial(are_answered, front, "fam", parts), "the experts to be seen", front.words)
            with serving("fam", [*SERVED, "--prefer", "peers"], _home(front)) as url:
                asyncio.run(_measure(url, count, "there"))


def _home(node: RealNode) -> dict[str, str]:
    return os.environ | {"SHOAL_HOME": str(node.home.root)}


async def _measure(url: str, experts: int, where: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await many(session, url, 2, 1)  # warm
        for clients, rounds in ROUNDS.items():
            _show(experts, where, await many(session, url, clients, rounds))


def _show(experts: int, where: str, result: Result) -> None:
    print(
        f"{experts} experts {where}, {result.clients:2} clients: {result.tokens_per_second:6.1f} tokens/s, "
        f"first after {1000 * result.first:5.0f} ms, longest gap {1000 * result.gap:5.0f} ms",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
