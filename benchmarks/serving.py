"""Tokens per second of a real `shoal serve`, by how many clients ask at once: what continuous batching is worth.

    python benchmarks/serving.py --threads 1

The model has random weights, so all of it is about time: dim 256, 6 layers, in fp32. Each client is a task of one
process beside the server's, reads a stream, and asks again when it has it. `first` is the time to the first token as
the median client has it, `gap` the longest time between two tokens of any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp

sys.path.append(str(Path(__file__).parents[1]))  # for the tests' checkpoints

from shoal.node.manifest.manifest import Manifest, ModelSpec
from tests.unit.checkpoint_kit import write

MODEL = ModelSpec(dim=256, layers=6, heads=8, kv_heads=4, hidden=768, context=512)
PROMPT, TOKENS = "x" * 64, 192
CLIENTS = (1, 4, 16, 32)
ROUNDS = {1: 3, 4: 2}  # requests of each client one after the other; else as below
USUAL_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the answer."""

    clients: int
    tokens_per_second: float
    first: float  # seconds
    gap: float  # seconds


def main() -> int:
    """Measure with each number of clients in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="of the server; 0: as it chooses")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder), 1, Manifest(name="serving", model=MODEL))
        with serving(str(source), ["--threads", str(options.threads)], os.environ) as url:
            results = asyncio.run(_measure(url))
    for result in results:
        print(json.dumps(asdict(result)) if options.json else _line(result, results[0]))
    return 0


@contextmanager
def serving(source: str, flags: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Runs `shoal serve` for a source while the context is open; yields its URL."""
    command = [sys.executable, "-m", "shoal.node", "serve", source, "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            server.terminate()


async def _measure(url: str) -> list[Result]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await many(session, url, 2, 1)  # warm
        return [await many(session, url, clients, ROUNDS.get(clients, USUAL_ROUNDS)) for clients in CLIENTS]


async def many(session: aiohttp.ClientSession, url: str, clients: int, rounds: int) -> Result:
    """So many clients at once, each of which asks `rounds` times."""
    began = time.perf_counter()
    parts = await asyncio.gather(*(_client(session, url, rounds) for _ in range(clients)))
    times = [each for part in parts for each in part]
    seconds = time.perf_counter() - began
    gaps = max(after - before for each in times for before, after in pairwise(each[1:]))
    first = statistics.median(each[1] - each[0] for each in times)
    return Result(clients, clients * rounds * TOKENS / seconds, first, gaps)


async def _client(session: aiohttp.ClientSession, url: str, rounds: int) -> list[list[float]]:
    """For each request when it was sent, and when each of its events came."""
    return [await request(session, url) for _ in range(rounds)]


async def request(session: aiohttp.ClientSession, url: str) -> list[float]:
    """When it was sent, and when each of its events came."""
    body = {"model": "serving", "prompt": PROMPT, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    times, written = [time.perf_counter()], 0
    options = {"stream_options": {"include_usage": True}}
    async with session.post(f"{url}/completions", json=body | options) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                if b'"usage"' in line:
                    written = json.loads(line[6:])["usage"]["completion_tokens"]
    assert written == TOKENS, f"{written} tokens instead of {TOKENS}"
    return times


def _line(result: Result, alone: Result) -> str:
    times = result.tokens_per_second / alone.tokens_per_second
    return (
        f"{result.clients:3} clients: {result.tokens_per_second:7.0f} tokens/s ({times:4.1f} x), "
        f"first after {1000 * result.first:5.0f} ms, longest gap {1000 * result.gap:4.0f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
