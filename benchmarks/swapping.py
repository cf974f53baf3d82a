"""The cost of replacing weights while text is served: `shoal serve RUN` beside a node that commits every second.

    python benchmarks/swapping.py --threads 1

The node is a real one's desk (node/handout.py) over a state that changes by itself, so nobody trains beside it: what is
measured is the hand-over, the loading, and steps with two versions at once, but not the training that goes on in life.
The model is that of serving.py, 4.8 M parameters. The same clients ask with and without commits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import torch

sys.path.append(str(Path(__file__).parents[1]))  # for the tests' checkpoints

from serving import MODEL, TOKENS, request

from shoal.node.base.home import Home
from shoal.node.daemon.handout import Handout
from shoal.node.inference.http.server import ListenOptions, following, serving
from shoal.node.inference.live import open_run
from shoal.node.inference.served import ServeOptions
from shoal.node.manifest.manifest import Manifest
from shoal.node.run.runs import Runs
from shoal.protocol.base.ids import RunId
from tests.unit.checkpoint_kit import state

RUN = Manifest(name="serving", model=MODEL)
CLIENTS = (1, 8)
REQUESTS = 4  # of each client, one after the other


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the answer."""

    clients: int
    every: float  # seconds between commits; 0: there are none
    tokens_per_second: float
    median: float  # seconds between two parts of a stream
    high: float  # that 99 of 100 gaps are below
    longest: float
    swaps: int


def main() -> int:
    """Measure with and without commits, with each number of clients in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="of the server")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two commits")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for every in (0.0, options.every):
        for result in _measured(every, options.threads):
            print(json.dumps(asdict(result)) if options.json else _line(result), flush=True)
    return 0


def _measured(every: float, threads: int) -> list[Result]:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        node = spawn.Process(target=_node, args=(folder, every), daemon=True)
        node.start()
        ours, theirs = spawn.Pipe()
        server = spawn.Process(target=_server, args=(folder, threads, theirs), daemon=True)
        server.start()
        try:
            return asyncio.run(_asked(f"http://127.0.0.1:{ours.recv()}/v1", every))
        finally:
            for process in (server, node):
                process.terminate()
                process.join()


def _node(folder: str, every: float) -> None:
    """Hands out a state, and replaces it again and again."""
    torch.set_num_threads(1)
    committed = state(1, RUN)
    member = SimpleNamespace(base_round=1)
    run = SimpleNamespace(
        manifest=RUN, member=member, outer=SimpleNamespace(committed=committed), failure="", obstacle="", samples=0
    )
    runs = SimpleNamespace(get=lambda _: run, paused="", restoring=[], broken={})

    def commit() -> None:
        flips = [torch.ones(committed.shape.layout.size)]
        committed.apply(flips, lambda vectors, mean, start: {name: each * 1.0001 for name, each in vectors.items()})

    async def live() -> None:
        desk = asyncio.create_task(Handout(home, cast(Runs, runs)).run())
        while True:
            await asyncio.sleep(every or 3600)
            await asyncio.to_thread(commit)
            assert not desk.done()

    home = Home(Path(folder)).create()
    with home.locked():
        asyncio.run(live())


def _server(folder: str, threads: int, told: Connection) -> None:
    """Serve the run; the port goes to `told`."""
    os.environ["SHOAL_HOME"] = folder
    torch.set_num_threads(threads)
    home = Home(Path(folder))

    async def live() -> None:
        served = await asyncio.to_thread(open_run, home, RunId(RUN.digest), ServeOptions(threads=threads))
        async with serving(served, ListenOptions(port=0)) as port, following(served):
            told.send(port)
            await asyncio.Event().wait()

    while not home.weights_socket.exists():
        time.sleep(0.05)
    with suppress(KeyboardInterrupt):
        asyncio.run(live())


async def _asked(url: str, every: float) -> list[Result]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await request(session, url)  # warm
        return [await _many(session, url, clients, every) for clients in CLIENTS]


async def _many(session: aiohttp.ClientSession, url: str, clients: int, every: float) -> Result:
    async def client() -> list[list[float]]:
        return [await request(session, url) for _ in range(REQUESTS)]

    first, began = await _round(session, url), time.perf_counter()
    times = [each for parts in await asyncio.gather(*(client() for _ in range(clients))) for each in parts]
    seconds, last = time.perf_counter() - began, await _round(session, url)
    gaps = [after - before for each in times for before, after in pairwise(each[1:])]
    spread = statistics.quantiles(gaps, n=100)
    rate = clients * REQUESTS * TOKENS / seconds
    return Result(clients, every, rate, statistics.median(gaps), spread[98], max(gaps), last - first)


async def _round(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(f"{url}/models") as answer:
        about: dict[str, Any] = (await answer.json())["data"][0]["shoal"]
    return int(about["round"])


def _line(result: Result) -> str:
    commits = f"a commit every {result.every:g} s" if result.every else "no commits"
    return (
        f"{result.clients:3} clients, {commits}: {result.tokens_per_second:6.0f} tokens/s; between two parts "
        f"{1000 * result.median:.1f} ms, 99 % below {1000 * result.high:.1f} ms, "
        f"at most {1000 * result.longest:.1f} ms; {result.swaps} rounds passed"
    )


if __name__ == "__main__":
    sys.exit(main())
