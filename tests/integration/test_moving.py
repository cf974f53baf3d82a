"""Two that speak by a relay move to a direct connection in the middle of it: no word is lost, doubled or late.

The way to the relay is slow, so that there is always something on it; the direct one is not.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.multiaddrs import is_relayed
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.node import GetManifest, Refused
from shoal.protocol.net.circuit import client
from shoal.protocol.net.peers import network
from tests.integration.test_network import Load, Node, Word, eventually, running

RUN = RunId(b"r" * 32)
DELAY = 0.1  # seconds, each way
RATE = 200  # calls a second
MOST_LATE = 1.0  # seconds over the usual for an answer, on a machine that is busy; who asks again waits for LIMIT
LIMIT = 30.0
PROMPT = 1.0


@asynccontextmanager
async def slow_way(address: str, delay: float) -> AsyncIterator[str]:
    """Another address of the same: what goes by it takes `delay`, each way."""
    _, _, host, _, port = address.split("/")
    lines, ends = set[asyncio.Task[None]](), list[asyncio.StreamWriter]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                asyncio.get_running_loop().call_later(delay, writer.write, data)
        finally:
            asyncio.get_running_loop().call_later(2 * delay, writer.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(port))
        ends.extend((there[1], writer))
        for pair in ((reader, there[1]), (there[0], writer)):
            lines.add(asyncio.create_task(carry(*pair)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for each in lines:
            each.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        async with asyncio.timeout(LIMIT):  # each end is closed when what was on its way is there
            await asyncio.gather(*(each.wait_closed() for each in ends), return_exceptions=True)


@dataclass
class Pair:
    """Two that are connected by a relay alone."""

    caller: Node
    called: Node

    async def move(self) -> None:
        """Make them a direct connection, as punching would."""
        await self.caller._transport.dial(self.called.peer, self.called.own_addresses()[0], LIMIT)
        await eventually(lambda: self.path(self.caller) == self.path(self.called) == "direct")

    def path(self, one: Node) -> str:
        other = self.called if one is self.caller else self.caller
        return one._transport.path(other.peer)


@asynccontextmanager
async def a_pair(delay: float = DELAY / 4) -> AsyncIterator[Pair]:
    relay, caller, called = Node(), Node(), Node()
    called.on(on_call=answer)
    async with running(relay, caller, called), slow_way(relay.own_addresses()[0], delay) as way:
        relay.be_relay(relay.own_addresses())
        called.remember(relay.peer, (way,))
        caller.remember(called.peer, (await called.reserve(relay.peer)).addresses)
        await caller.call(called.peer, GetManifest("1234"))
        pair = Pair(caller, called)
        assert pair.path(caller) == pair.path(called) == "relayed"
        yield pair


def answer(peer: PeerId, message: Message) -> Message:
    assert isinstance(message, GetManifest)
    return Refused(message.run_prefix)


async def took(pair: Pair, number: int) -> float:
    begin, prefix = time.monotonic(), f"{number:08x}"
    assert await pair.caller.call(pair.called.peer, GetManifest(prefix), LIMIT) == Refused(prefix)
    return time.monotonic() - begin


@pytest.mark.asyncio
async def test_of_200_calls_a_second_none_is_lost_and_none_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.3,) * 10)  # until the circuit is found to be needed no more
    async with asyncio.timeout(LIMIT), a_pair(DELAY) as pair:
        usual = max([await took(pair, number) for number in range(5)])
        calls = list[asyncio.Task[float]]()
        moving = None
        for number in range(4 * RATE):
            calls.append(asyncio.create_task(took(pair, number)))
            await asyncio.sleep(1 / RATE)
            if number == RATE:
                moving = asyncio.create_task(pair.move())
        assert moving is not None
        await moving
        times = await asyncio.gather(*calls)
        late = max(times) - usual
        after = sorted(times[-RATE:])[RATE // 2]
        print(f"usual {usual * 1e3:.0f} ms, slowest {late * 1e3:+.0f} ms, then {after * 1e3:.1f} ms")
        assert late < MOST_LATE
        assert after < DELAY, "they did move"
        await eventually(lambda: len(pair.caller._transport.remote_addresses(pair.called.peer)) == 1)
        assert await took(pair, 0) < PROMPT, "the circuit is closed, and missed by nobody"


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(3))
async def test_words_arrive_once_and_in_order_and_payloads_whatever_carries_them(seed: int) -> None:
    draw = random.Random(seed)
    async with asyncio.timeout(LIMIT), a_pair() as pair:
        moving = None
        for number in range(300):
            for here, there in ((pair.caller, pair.called), (pair.called, pair.caller)):
                here.send(there.peer, RUN, Word(number))
                if number % 10 == 0:
                    here.send(there.peer, RUN, Load(number, draw.randbytes(draw.randrange(1 << 17))))
            await asyncio.sleep(draw.random() * 0.004)
            if number == 100:
                moving = asyncio.create_task(pair.move())
        assert moving is not None
        await moving
        for each in (pair.caller, pair.called):
            await eventually(lambda each=each: len(each.words) >= 300 and len(each.loads) >= 30)  # type: ignore[misc]
            assert each.words == list(range(300))
            assert sorted(each.loads) == list(range(0, 300, 10))
            assert each.dropped == 0


@pytest.mark.asyncio
async def test_whose_connection_for_payloads_is_the_first_direct_one_moves_but_once() -> None:
    async with asyncio.timeout(LIMIT), a_pair() as pair:
        caller, called = pair.caller, pair.called
        caller.remember(called.peer, called.own_addresses())
        for number in range(40):
            caller.send(called.peer, RUN, Load(number, bytes(1 << 16)))
            await asyncio.sleep(0.005)
        await eventually(lambda: len(called.loads) >= 40)
        assert sorted(called.loads) == list(range(40))
        assert caller.dropped == 0
        assert pair.path(caller) == "direct"
        assert len([each for each in caller.remote_addresses(called.peer) if not is_relayed(each)]) == 1


@pytest.mark.asyncio
async def test_no_round_trip_by_the_relay_is_shown_for_the_direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "CHECK_INTERVAL", 0.02)
    async with asyncio.timeout(LIMIT), a_pair(DELAY) as pair:
        await eventually(lambda: round_trip(pair))
        assert round_trip(pair) > 2 * DELAY
        await pair.move()
        await eventually(lambda: round_trip(pair))
        assert round_trip(pair) < DELAY


def round_trip(pair: Pair) -> float:
    """The round trip that the caller shows, in seconds; 0 if it is not known."""
    (link,) = [each for each in pair.caller.links() if each.peer == pair.called.peer]
    return (link.rtt_ms or 0) / 1000
