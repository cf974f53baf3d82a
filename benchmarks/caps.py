"""Checks that a node keeps to the rates that its owner sets: compares them with what the loopback carried.

    python benchmarks/caps.py [--rates 4Mbit,20Mbit,100Mbit] [--seconds 10] [--json]

Two networks, each with its own libp2p host, and one sends payloads without end to the other: as fast as it can, then
with its uplink at a rate, then with the other's downlink at that rate. `carried` is what the interface counted, with
all headers and answers, by the rate; `word` is how long a question and its answer take meanwhile, the median and the
worst. Run as root on Linux, it has a loopback of its own; else whatever others send over the machine's counts, too. The
loopback's packets are long, so their headers are few, and `carried` is 3 to 4 % below what a line counts.
Exit 1 if a rate is missed by more than 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace

from kit.loopback import carried

from shoal.node.base.quantities import parse_rate
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import RunId
from shoal.protocol.messages.node import GetManifest, Refused
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity

RUN = RunId(b"r" * 32)
PAYLOAD = 1 << 20  # bytes
AHEAD = 4  # payloads that wait in the lane
WARM = 0.3  # share of the time for warming up
TOLERANCE = 0.05
PAUSE = 0.05  # seconds between two questions
OWN = "SHOAL_BENCHMARK_OWN_LOOPBACK"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table; rates in bytes a second, times in milliseconds."""

    way: str
    rate: int | None
    carried: float
    word: float
    worst: float

    @property
    def holds(self) -> bool:
        """Whether the rate is not exceeded, and used."""
        return self.rate is None or abs(self.carried / self.rate - 1) <= TOLERANCE


def main() -> int:
    """Print a table, or a line of JSON per row; 0 if all rates hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="4Mbit,20Mbit,100Mbit")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = [parse_rate("--rates", each) for each in options.rates.split(",")]
    _have_own_loopback()
    results = [asyncio.run(measure("free", None, options.seconds))]
    results += [asyncio.run(measure(way, rate, options.seconds)) for rate in rates for way in ("up", "down")]
    show(results, options.json)
    return 0 if all(each.holds for each in results) else 1


async def measure(way: str, rate: int | None, seconds: float) -> Result:
    """Measures one transfer."""
    sender, receiver = (Network(Identity.generate(), host="127.0.0.1", port=0) for _ in range(2))
    if way != "free":
        (sender.throttle.up if way == "up" else receiver.throttle.down).cap(rate)
    payload, is_over = memoryview(bytes(PAYLOAD)), False

    def send(*left: object) -> None:
        if not is_over:
            sender.send(receiver.peer, RUN, StateChunk(0, 1, 0, payload))

    taking = Handlers(lambda run: True, lambda peer: True, on_call=lambda peer, message: Refused(""))
    handlers = {sender: replace(taking, on_payload_done=send), receiver: taking}
    async with AsyncExitStack() as stack:
        for each in (sender, receiver):
            await each.start(handlers[each])
            stack.push_async_callback(each.close)
        await sender.connect(receiver.addresses()[0])
        for _ in range(AHEAD):
            send()
        await _time(WARM * seconds)
        before, begin = carried() or 0, time.monotonic()
        words = await _words(sender, receiver, begin + seconds)
        speed = ((carried() or 0) - before) / (time.monotonic() - begin)
        is_over = True
    return Result(way, rate, speed, 1e3 * statistics.median(words), 1e3 * max(words))


async def _words(sender: Network, receiver: Network, until: float) -> list[float]:
    """The seconds that each question took."""
    times = []
    while (begin := time.monotonic()) < until:
        try:
            await sender.call(receiver.peer, GetManifest("ab"))
        except TransportError:
            times.append(float("inf"))
        else:
            times.append(time.monotonic() - begin)
        await _time(PAUSE)
    return times


async def _time(seconds: float) -> None:
    """Sleeps; a benchmark has to wait for real time."""
    await asyncio.sleep(seconds)


def show(results: Sequence[Result], as_json: bool) -> None:
    """A line each."""
    if not as_json:
        print("| way | rate, MB/s | carried, MB/s | by the rate | word, ms | worst |\n|---|---|---|---|---|---|")
    for each in results:
        if as_json:
            print(json.dumps(asdict(each) | {"holds": each.holds}))
            continue
        rate = "" if each.rate is None else f"{each.rate / 1e6:.3g}"
        ratio = "" if each.rate is None else f"{each.carried / each.rate:.3f}"
        print(f"| {each.way} | {rate} | {each.carried / 1e6:.3f} | {ratio} | {each.word:.1f} | {each.worst:.1f} |")


def _have_own_loopback() -> None:
    """Restarts this script in a network namespace of its own, if possible."""
    if os.environ.get(OWN) or os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        return
    again = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
    sys.stdout.flush()
    sys.exit(subprocess.call(again, env={**os.environ, OWN: "1"}))


if __name__ == "__main__":
    sys.exit(main())
