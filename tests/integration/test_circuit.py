"""Circuits over real sockets: a relay connects two who cannot dial each other, within limits, and harms nobody else."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from statistics import median
from typing import Any

import pytest
import trio
from libp2p.abc import INetStream
from libp2p.identity.identify.identify import parse_identify_response

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit import client as client_side
from shoal.protocol.net.circuit import relay as relay_side
from shoal.protocol.net.circuit.accounts import LIMITS, Limits
from shoal.protocol.net.circuit.client import Client
from shoal.protocol.net.circuit.probes import IDENTIFY
from shoal.protocol.net.circuit.reservations import Reservation
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.transport import host as host_side
from shoal.protocol.net.transport.transport import Stream, Transport

WORDS = "/test/words/1"
DEADLINE = 20.0
MINUTES = 300.0  # for a thousand questions, each of which takes up to 0.2 s on a machine with other work
LEAST_ANSWERS = 20
SLOWER = 5.0  # times, with another who sends all that it may; all run in this one process


class Host:
    """A transport that says back what it hears."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.identity = Identity.generate()
        self.transport = Transport(self.identity, (WORDS,), self.accept, lambda peer, up: None, limits)
        self.tasks: set[asyncio.Task[None]] = set()
        self.heard_from: list[PeerId] = []

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    def accept(self, peer: PeerId, protocol: str, stream: Stream) -> None:
        self.heard_from.append(peer)
        self.tasks.add(asyncio.create_task(self.echo(stream)))

    async def echo(self, stream: Stream) -> None:
        reader = reading(stream)
        try:
            while True:
                await stream.write(await reader.readexactly(5))
        except TransportError:
            stream.reset()

    def address(self) -> str:
        return self.transport.addresses()[0]

    async def reserve_with(self, relay: Host) -> Reservation:
        await self.transport.dial(relay.peer, relay.address(), DEADLINE)
        return await self.transport.reserve(relay.peer)


@asynccontextmanager
async def hosts(count: int, limits: Limits = LIMITS) -> AsyncIterator[list[Host]]:
    """The first is the relay."""
    made = [Host(limits) for _ in range(count)]
    try:
        for each in made:
            await each.transport.start("/ip4/127.0.0.1/tcp/0")
        made[0].transport.be_relay((made[0].address(),))
        yield made
    finally:
        for each in reversed(made):
            await each.transport.close()


async def says(host: Host, to: PeerId, word: bytes = b"hello") -> bytes:
    stream = await host.transport.open_stream(to, WORDS)
    reader = reading(stream)
    await stream.write(word)
    answer = await reader.readexactly(len(word))
    stream.reset()
    return answer


def reading(stream: Stream) -> asyncio.StreamReader:
    """What comes on a stream."""
    reader = asyncio.StreamReader()
    stream.listen(reader.feed_data, reader.set_exception)  # type: ignore[arg-type]
    stream.allow(1 << 40)
    return reader


@pytest.mark.asyncio
async def test_two_who_cannot_dial_each_other_talk_by_a_relay() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3) as [relay, listener, dialler]:
        promise = await listener.reserve_with(relay)
        assert promise.addresses == (f"{relay.address()}/p2p/{relay.peer}/p2p-circuit",)
        await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        assert await says(dialler, listener.peer) == b"hello"
        assert listener.heard_from == [dialler.peer]
        assert dialler.transport.remote_addresses(listener.peer) == promise.addresses
        [back] = listener.transport.remote_addresses(dialler.peer)
        assert back.endswith(f"/p2p/{relay.peer}/p2p-circuit")
        assert relay.transport.relay_accounts.circuits == 1


@pytest.mark.asyncio
async def test_a_node_says_what_it_is_by_its_own_name_and_version() -> None:
    async with asyncio.timeout(DEADLINE), hosts(2) as [told, asker]:
        connection = await asker.transport.dial(told.peer, told.address(), DEADLINE)
        stream = await asker.transport.open_stream_on(connection, IDENTIFY)
        said, has_ended = bytearray(), asyncio.Event()
        stream.listen(said.extend, lambda reason: has_ended.set())
        stream.allow(1 << 20)
        await has_ended.wait()
        assert parse_identify_response(bytes(said)).agent_version == f"shoal/{version('shoal')}"


@asynccontextmanager
async def way_that_dies(address: str) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Another address of the same, and what has it swallow all that comes from then on, without a word to anybody."""
    _, _, host, _, port = address.split("/")
    is_dead, tasks, ends = asyncio.Event(), set[asyncio.Task[None]](), list[asyncio.StreamWriter]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not is_dead.is_set():
                writer.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(port))
        ends.extend((there[1], writer))
        for pair in ((reader, there[1]), (there[0], writer)):
            tasks.add(asyncio.create_task(carry(*pair)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}", is_dead.set
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for each in ends:
            each.close()
        await asyncio.gather(*tasks, *(each.wait_closed() for each in ends), return_exceptions=True)


@pytest.mark.asyncio
async def test_of_two_connections_with_a_relay_the_one_that_lives_is_enough() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3) as [relay, *others], way_that_dies(relay.address()) as way:
        (listener, dialler), (place, die) = others, way
        await listener.transport.dial(relay.peer, place, DEADLINE)
        promise = await listener.reserve_with(relay)
        await until(lambda: len(relay.transport.remote_addresses(listener.peer)) == 2)
        die()
        begin = time.monotonic()
        await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        assert await says(dialler, listener.peer) == b"hello"
        assert time.monotonic() - begin < relay_side.ASK_LIMIT / 2


@pytest.mark.asyncio
async def test_a_connection_on_which_nobody_answers_keeps_nobody_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_side, "NEGOTIATE_LIMIT", 0.5)
    async with asyncio.timeout(DEADLINE), hosts(2) as [called, dialler], way_that_dies(called.address()) as way:
        place, die = way
        await dialler.transport.dial(called.peer, place, DEADLINE)
        await dialler.transport.dial(called.peer, called.address(), DEADLINE)
        die()
        with pytest.raises(TransportError, match="no answer to a new stream"):
            await says(dialler, called.peer)
        assert await says(dialler, called.peer) == b"hello"
        assert dialler.transport.remote_addresses(called.peer) == (called.address(),)


@pytest.mark.asyncio
async def test_why_a_connection_was_lost_is_known_at_both_ends() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3) as [called, leaver, dropped]:
        for each in (leaver, dropped):
            await each.transport.dial(called.peer, called.address(), DEADLINE)
            await until(lambda each=each: bool(called.transport.remote_addresses(each.peer)))  # type: ignore[misc]
        await called.transport.disconnect(dropped.peer, "nobody needs it")
        await leaver.transport.close()
        await until(lambda: not called.transport.remote_addresses(leaver.peer))
        await until(lambda: not dropped.transport.remote_addresses(called.peer))
        assert called.transport.why_lost(dropped.peer) == "nobody needs it"
        assert called.transport.why_lost(leaver.peer) == "the peer said good-bye"
        assert dropped.transport.why_lost(called.peer) == "the peer said good-bye"


@pytest.mark.asyncio
async def test_where_somebody_came_to_is_known_and_whom_we_dialled_came_nowhere() -> None:
    async with asyncio.timeout(DEADLINE), hosts(2) as [called, dialler]:
        await dialler.transport.dial(called.peer, called.address(), DEADLINE)
        await until(lambda: called.transport.came_to(dialler.peer) == (called.address(),))
        assert dialler.transport.came_to(called.peer) == ()


@pytest.mark.asyncio
async def test_who_hangs_up_harms_no_other_circuit_to_the_same_listener() -> None:
    async with asyncio.timeout(DEADLINE), hosts(4) as [relay, listener, one, other]:
        promise = await listener.reserve_with(relay)
        for dialler in (one, other):
            await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        stream = await other.transport.open_stream(listener.peer, WORDS)
        await one.transport.disconnect(listener.peer, "a test")
        await until(lambda: relay.transport.relay_accounts.circuits == 1)
        reader = reading(stream)
        await stream.write(b"still")
        assert await reader.readexactly(5) == b"still"
        assert await says(other, listener.peer) == b"hello"


@pytest.mark.asyncio
async def test_the_end_of_a_listener_ends_its_circuits_on_all_sides() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3) as [relay, listener, dialler]:
        promise = await listener.reserve_with(relay)
        await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        await listener.transport.close()
        await until(lambda: not dialler.transport.remote_addresses(listener.peer))
        assert relay.transport.relay_accounts.circuits == 0
        with pytest.raises(TransportError, match="connection failed"):
            await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)


@pytest.mark.asyncio
async def test_a_relay_refuses_what_it_has_not_promised() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3) as [relay, listener, dialler]:
        circuit = f"{relay.address()}/p2p/{relay.peer}/p2p-circuit"
        await listener.transport.dial(relay.peer, relay.address(), DEADLINE)
        with pytest.raises(TransportError, match="no reservation"):
            await dialler.transport.dial(listener.peer, circuit, DEADLINE)
        relay.transport.be_relay(())
        with pytest.raises(TransportError, match="permission denied"):
            await listener.transport.reserve(relay.peer)


@pytest.mark.asyncio
async def test_a_relay_that_we_have_not_asked_connects_nobody_with_us() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3) as [relay, listener, dialler]:
        promise = await listener.reserve_with(relay)
        listener.transport.forget_relay(relay.peer)
        with pytest.raises(TransportError, match="connection failed"):
            await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        assert listener.heard_from == []


@pytest.mark.asyncio
async def test_a_circuit_to_somebody_else_is_none() -> None:
    """The relay cannot pass off one peer for another: the handshake goes from end to end."""
    async with asyncio.timeout(DEADLINE), hosts(3) as [relay, listener, dialler]:
        promise = await listener.reserve_with(relay)
        stranger = Identity.generate().peer
        with pytest.raises(TransportError, match="no reservation"):
            await dialler.transport.dial(stranger, promise.addresses[0], DEADLINE)


@pytest.mark.asyncio
async def test_nobody_is_relayed_twice() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3) as [relay, listener, dialler]:
        promise = await listener.reserve_with(relay)
        listener.transport.be_relay((listener.address(),))
        await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        with pytest.raises(TransportError, match="not connected"):
            await dialler.transport.reserve(listener.peer)


@pytest.mark.asyncio
async def test_a_circuit_carries_its_share_and_then_ends() -> None:
    limits = dataclasses.replace(LIMITS, circuit_carries=50_000)
    async with asyncio.timeout(DEADLINE), hosts(3, limits) as [relay, listener, dialler]:
        promise = await listener.reserve_with(relay)
        await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        stream = await dialler.transport.open_stream(listener.peer, WORDS)
        with pytest.raises(TransportError):
            await _talk(stream)
        await until(lambda: relay.transport.relay_accounts.circuits == 0)
        assert relay.transport.relay_accounts.carried < 100_000


@pytest.mark.asyncio
async def test_a_circuit_ends_with_its_time() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3, dataclasses.replace(LIMITS, circuit_lasts=0.5)) as some:
        relay, listener, dialler = some
        promise = await listener.reserve_with(relay)
        await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        await until(lambda: not dialler.transport.remote_addresses(listener.peer))
        await until(lambda: relay.transport.relay_accounts.circuits == 0)


@pytest.mark.asyncio
async def test_a_greedy_peer_is_slowed_down_and_others_are_served() -> None:
    """One peer sends as much as it can; what the relay carries for it stays within its rate."""
    rate = 1 << 20
    limits = dataclasses.replace(LIMITS, rate_of_peer=(rate, rate))
    async with asyncio.timeout(3 * DEADLINE), hosts(5, limits) as [relay, listener, greedy, modest, third]:
        promise = await listener.reserve_with(relay)
        await greedy.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        other = await third.reserve_with(relay)
        await modest.transport.dial(third.peer, other.addresses[0], DEADLINE)
        stream = await greedy.transport.open_stream(listener.peer, WORDS)
        alone = [await answer_time(modest, third.peer) for _ in range(LEAST_ANSWERS)]
        begin, before = time.monotonic(), relay.transport.relay_accounts.carried
        flood = asyncio.create_task(_flood(stream))
        beside = list[float]()
        while time.monotonic() - begin < 3 or len(beside) < LEAST_ANSWERS:
            beside.append(await answer_time(modest, third.peer))
        took, carried = time.monotonic() - begin, relay.transport.relay_accounts.carried - before
        stream.reset()
        await asyncio.gather(flood, return_exceptions=True)
        print(f"{carried / rate:.1f} MiB for the greedy in {took:.1f} s, {len(beside)} answers for the other")
        print(f"an answer takes {median(alone) * 1e3:.0f} ms alone, and {median(beside) * 1e3:.0f} beside the greedy")
        assert carried < (took + 2.5) * rate, "a burst of 1 MiB, and 1 MiB a second; each byte counts for both ends"
        assert median(beside) < SLOWER * median(alone)


async def answer_time(host: Host, to: PeerId) -> float:
    begin = time.monotonic()
    assert await says(host, to) == b"hello"
    return time.monotonic() - begin


@pytest.mark.asyncio
async def test_who_floods_uses_up_one_share_after_the_other_and_nobody_elses() -> None:
    share = 1 << 20
    limits = dataclasses.replace(LIMITS, circuit_carries=share)
    async with asyncio.timeout(3 * DEADLINE), hosts(4, limits) as [relay, listener, greedy, modest]:
        promise = await listener.reserve_with(relay)
        await modest.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        for number in range(1, 4):
            await greedy.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
            await _flood(await greedy.transport.open_stream(listener.peer, WORDS))
            await until(lambda: relay.transport.relay_accounts.circuits == 1)
            assert relay.transport.relay_accounts.carried < (number + 0.5) * share
        assert relay.transport.relay_accounts.carried > 2 * share
        assert await says(modest, listener.peer) == b"hello"


@pytest.mark.asyncio
async def test_a_thousand_circuits_are_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is that a refusal costs the one who is called nothing; the time is that of 1,000 streams, here."""
    calls, accept = list[Client](), Client.accept

    async def counted(self: Client, stream: INetStream) -> None:
        calls.append(self)
        await accept(self, stream)

    monkeypatch.setattr(Client, "accept", counted)
    async with asyncio.timeout(MINUTES), hosts(4) as [relay, listener, greedy, modest]:
        promise = await listener.reserve_with(relay)
        refused = 0
        for _ in range(1000):
            try:
                await greedy.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
            except TransportError:
                refused += 1
        assert refused > 900
        assert len(calls) == 1000 - refused
        assert relay.transport.relay_accounts.circuits <= LIMITS.circuits_of_peer
        await greedy.transport.close()
        await until(lambda: relay.transport.relay_accounts.circuits == 0)
        await modest.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        assert await says(modest, listener.peer) == b"hello"


async def _talk(stream: Stream) -> None:
    reader = reading(stream)
    while True:
        await stream.write(bytes(1000))
        await reader.readexactly(1000)


async def _flood(stream: Stream) -> None:
    with suppress(TransportError):
        while True:
            await stream.write(bytes(1 << 18))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_relay_says_where_it_sees_the_port_that_we_listen_on() -> None:
    async with asyncio.timeout(DEADLINE), hosts(2) as [relay, other]:
        await other.transport.dial(relay.peer, relay.address(), DEADLINE)
        seen, port = await other.transport.seen_by(relay.peer)
        assert seen == other.address()
        assert seen.endswith(f"/{port}")


@pytest.mark.asyncio
async def test_a_circuit_on_which_nothing_is_said_is_taken_back() -> None:
    async with asyncio.timeout(DEADLINE), hosts(3, dataclasses.replace(LIMITS, circuit_idles=2.0)) as some:
        relay, listener, dialler = some
        promise = await listener.reserve_with(relay)
        await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        stream = await dialler.transport.open_stream(listener.peer, WORDS)
        reader, begin = reading(stream), time.monotonic()
        while time.monotonic() < begin + 3.0:
            await stream.write(b"still")
            assert await reader.readexactly(5) == b"still"
        assert relay.transport.relay_accounts.circuits == 1
        await until(lambda: relay.transport.relay_accounts.circuits == 0)
        await until(lambda: not dialler.transport.remote_addresses(listener.peer))


@pytest.mark.asyncio
async def test_who_is_called_and_never_answers_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the caller's place nor a stream of the relay: there are 64 of these on a connection."""
    monkeypatch.setattr(relay_side, "ASK_LIMIT", 0.2)

    async def never(self: Client, stream: INetStream) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Client, "accept", never)
    async with asyncio.timeout(5 * DEADLINE), hosts(3) as [relay, listener, dialler]:
        promise = await listener.reserve_with(relay)
        connections: Any = relay.transport._connections[listener.peer]
        [connection] = connections
        for _ in range(5):
            with pytest.raises(TransportError, match="connection failed"):
                await dialler.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        await until(lambda: relay.transport.relay_accounts.circuits == 0 and not connection.muxed_conn.has_streams)


@pytest.mark.asyncio
async def test_when_a_relay_is_full_the_biggest_user_yields(monkeypatch: pytest.MonkeyPatch) -> None:
    """All come from one host here, so the relay is told otherwise; nor does anybody ask meanwhile where to meet."""
    monkeypatch.setattr(client_side, "EARLY", ())
    async with asyncio.timeout(DEADLINE), hosts(5, dataclasses.replace(LIMITS, circuits=2)) as some:
        relay, listener, one, other, late = some
        theirs = {listener.peer: "192.0.2.1", late.peer: "192.0.2.3"}
        monkeypatch.setattr(relay_side, "_host_of", lambda stream: theirs.get(peer_of(stream), "192.0.2.2"))
        promise = await listener.reserve_with(relay)
        for each in (one, other):
            await each.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        assert await says(other, listener.peer) == b"hello"
        await late.transport.dial(listener.peer, promise.addresses[0], DEADLINE)
        await until(lambda: not one.transport.remote_addresses(listener.peer))
        for each in (late, other):
            assert await says(each, listener.peer) == b"hello"
        assert relay.transport.relay_accounts.circuits == 2


def peer_of(stream: INetStream) -> PeerId:
    return PeerId(str(stream.muxed_conn.peer_id))


@pytest.mark.asyncio
async def test_a_reservation_ends_with_its_holder() -> None:
    """Else names that have left would keep others from it for half an hour."""
    limits = dataclasses.replace(LIMITS, reservations=1)
    async with asyncio.timeout(DEADLINE), hosts(3, limits) as [relay, one, other]:
        await one.reserve_with(relay)
        with pytest.raises(TransportError, match="reservation refused"):
            await other.reserve_with(relay)
        await one.transport.close()
        await until(lambda: one.peer not in relay.transport._connections)
        await other.reserve_with(relay)
