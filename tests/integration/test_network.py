"""Networks on loopback, over real sockets: delivery, order, limits, faults, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import msgpack
import pytest

from shoal.node.ipc.messages import Stop
from shoal.protocol.base import wire
from shoal.protocol.base.errors import NOT_SPOKEN, LocalError, RemoteError, TransportError
from shoal.protocol.base.frames import LENGTH_SIZE, Kind, frame_head
from shoal.protocol.base.ids import NO_DIGEST, PeerId, RunId
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, Message, Payload, encode, message
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.messages.genesis import Genesis
from shoal.protocol.messages.membership import Entry, RunStatus
from shoal.protocol.messages.node import GetManifest, ManifestIs, Refused
from shoal.protocol.net.bulk import framing
from shoal.protocol.net.bulk.framing import PROTOCOLS, flow_of
from shoal.protocol.net.libp2p import swarm
from shoal.protocol.net.measure import heartbeat
from shoal.protocol.net.peers import calls, dialing
from shoal.protocol.net.peers import network as network_module
from shoal.protocol.net.peers import peer as peer_module
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.payloads import Payloads
from shoal.protocol.net.peers.peer import CONTROL, STREAM_PROTOCOLS, Peer
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.system.ports import claim_pair
from shoal.protocol.net.transport import streams
from shoal.protocol.net.transport.host import Usage
from shoal.protocol.net.transport.transport import Connection, Stream, Transport
from tests.bad_situations import shown

RUN = RunId(b"r" * 32)
MIB = 1 << 20
DEADLINE = 60.0  # seconds, on a machine that is busy
AT_ONCE = 5.0  # seconds, on such a machine; who waits for a silent peer waits for longer
STATUS = RunStatus(0, NO_DIGEST, NO_DIGEST, "training", 0, 0, None, True, 0, 0, "unknown")


@message(60)
class Word(Message):
    number: int


@message(62)
class Pad(Message):
    """A long word."""

    text: bytes


@message(61)
class Load(Message):
    bulk = True
    number: int
    payload: Payload


class Node(Network):
    """A network that keeps what it gets."""

    def __init__(self, identity: Identity | None = None, **options: int) -> None:
        self.identity = identity or Identity.generate()
        super().__init__(self.identity, host="127.0.0.1", **{"port": 0, **options})  # type: ignore[arg-type]
        self.words: list[int] = []
        self.loads: list[int] = []
        self.changes: list[bool] = []
        self.handlers = Handlers(
            takes=lambda run: True,
            shares_run=lambda peer: True,
            on_message=self.keep,
            on_link=lambda peer, up: self.changes.append(up),
        )

    def on(self, **handlers: object) -> None:
        """Have it start with these handlers, too."""
        self.handlers = replace(self.handlers, **handlers)  # type: ignore[arg-type]

    async def start(self, handlers: Handlers | None = None) -> None:
        await super().start(handlers or self.handlers)

    def keep(self, peer: PeerId, run: RunId | None, message: Message) -> None:
        if isinstance(message, Word):
            self.words.append(message.number)
        elif isinstance(message, Load):
            self.loads.append(message.number)

    def knows(self, other: Network) -> None:
        self.remember(other.peer, other.addresses())


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.close)
        yield


async def eventually(condition: Callable[[], object], limit: float = DEADLINE) -> None:
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.005)


# -- the other one ends ---------------------------------------------------------------------------------------


THERE = """
import asyncio, sys
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity

async def main():
    network = Network(Identity.generate(), host="127.0.0.1", port=0)
    await network.start(Handlers(takes=lambda run: True, shares_run=lambda peer: True))
    print(network.peer, *network.addresses(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_that_a_process_was_killed_is_known_at_once() -> None:
    ended: list[PeerId] = []
    a = Node()
    a.on(on_ended=ended.append)
    there = await asyncio.create_subprocess_exec(sys.executable, "-c", THERE, stdout=asyncio.subprocess.PIPE)
    try:
        assert there.stdout is not None
        peer, *addresses = (await there.stdout.readline()).decode().split()
        async with running(a):
            a.remember(PeerId(peer), tuple(addresses))
            a.send(PeerId(peer), RUN, Word(1))
            await eventually(lambda: a.changes == [True])
            there.kill()
            await eventually(lambda: ended == [peer])
    finally:
        with suppress(ProcessLookupError):
            there.kill()
        await there.wait()


@pytest.mark.asyncio
async def test_a_port_that_is_closed_a_moment_after_a_connection_is_one_at_which_nobody_listens() -> None:
    """The kernel of a busy machine may take its time between two sockets of a process that was killed."""

    def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        server.close()

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    assert await dialing._is_refused("127.0.0.1", server.sockets[0].getsockname()[1])


@pytest.mark.asyncio
async def test_who_has_only_closed_its_connection_lives() -> None:
    ended: list[PeerId] = []
    a, b = Node(), Node()
    a.on(on_ended=ended.append)
    async with running(a, b):
        a.knows(b)
        a.send(b.peer, RUN, Word(1))
        await eventually(lambda: b.words)
        await b.disconnect(a.peer, "a test")
        await eventually(lambda: False in a.changes)
        a.send(b.peer, RUN, Word(2))
        await eventually(lambda: 2 in b.words)
        assert ended == []


# -- delivery -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_messages_payloads_and_calls_arrive() -> None:
    a, b = Node(), Node()

    async def answer(peer: PeerId, message: Message) -> Message:
        assert peer == a.peer
        assert isinstance(message, GetManifest)
        return Refused(message.run_prefix)

    b.on(on_call=answer)
    sent: list[tuple[PeerId, RunId, Message, bool]] = []
    a.on(on_payload_done=lambda *parcel: sent.append(parcel))
    async with running(a, b):
        assert await a.connect(b.addresses()[0]) == b.peer
        payload = bytearray(b"p" * MIB)
        load = Load(7, memoryview(payload))  # type: ignore[arg-type]
        a.send(b.peer, RUN, Word(1))
        a.send(b.peer, RUN, load)
        assert await a.call(b.peer, GetManifest("abc")) == Refused("abc")
        await eventually(lambda: b.words == [1] and b.loads == [7])
        await eventually(lambda: sent == [(b.peer, RUN, load, True)])
        assert a.traffic(RUN).bulk_sent > MIB
        (seen,) = a.links()
        assert (seen.peer, seen.path) == (b.peer, "direct")
        assert seen.bytes_sent > MIB
        await eventually(lambda: a.links()[0].rtt_ms is not None)
        ahead = a.links()[0].ahead
        assert ahead is not None
        assert abs(ahead) < 1.0, "both have this machine's clock"
        assert a.changes == b.changes == [True]


@pytest.mark.asyncio
@pytest.mark.parametrize("attempt", range(3))
async def test_peers_that_dial_each_other_at_once_lose_and_double_nothing(attempt: int) -> None:
    a, b = Node(), Node()
    async with running(a, b):
        a.knows(b)
        b.knows(a)
        for number in range(300):
            a.send(b.peer, RUN, Word(number))
            b.send(a.peer, RUN, Word(number))
            if number % 30 == 0:
                a.send(b.peer, RUN, Load(number, bytes(100_000)))
                b.send(a.peer, RUN, Load(number, bytes(100_000)))
        for node in (a, b):
            await eventually(lambda node=node: len(node.words) >= 300 and len(node.loads) >= 10)  # type: ignore[misc]
            assert node.words == list(range(300))
            assert node.loads == list(range(0, 300, 30))
            assert node.dropped == 0
            assert node.changes == [True]


@pytest.mark.asyncio
async def test_a_word_does_not_wait_for_payloads() -> None:
    a, b = Node(), Node()
    payload = memoryview(bytes(MIB))
    async with running(a, b):
        await a.connect(b.addresses()[0])
        for number in range(256):
            a.send(b.peer, RUN, Load(number, payload))  # type: ignore[arg-type]
        a.send(b.peer, RUN, Word(1))
        await eventually(lambda: b.words)
        assert len(b.loads) < 64
        await eventually(lambda: len(b.loads) == 256)
        assert b.loads == list(range(256))


@pytest.mark.asyncio
async def test_a_peer_that_dialled_us_is_reached_without_its_address() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.connect(b.addresses()[0])
        await eventually(lambda: b.changes)
        b.send(a.peer, RUN, Word(1))
        b.send(a.peer, RUN, Load(2, b"x"))
        await eventually(lambda: a.words == [1] and a.loads == [2])


# -- out of reach -------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_cannot_be_sent_is_dropped_and_counted() -> None:
    a, stranger = Node(), Identity.generate().peer
    async with running(a):
        a.send(stranger, RUN, Word(1))
        a.send(stranger, RUN, Load(1, b"x"))
        await eventually(lambda: a.dropped == 2)
        with pytest.raises(TransportError, match="no address"):
            await a.call(stranger, GetManifest("abc"))
        a.remember(stranger, ["/ip4/127.0.0.1/tcp/1", "/not/an/address"])
        with pytest.raises(TransportError, match="cannot reach"):
            await a.call(stranger, GetManifest("abc"))
        with pytest.raises(TransportError, match="next attempt"):
            await a.call(stranger, GetManifest("abc"))
        assert a.links() == []


@pytest.mark.asyncio
async def test_a_word_that_is_too_long_is_dropped_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Others may have filled it; it must cost neither the link nor the run."""
    a, b = Node(), Node()
    async with running(a, b):
        await a.connect(b.addresses()[0])
        for _ in range(2):
            a.send(b.peer, RUN, Pad(bytes(MAX_CONTROL_FRAME)))
        a.send(b.peer, RUN, Word(1))
        await eventually(lambda: b.words == [1])
        assert a.dropped == 2
    assert caplog.text.count("is too long") == 1


@pytest.mark.asyncio
async def test_an_address_of_somebody_else_is_not_taken_for_the_peer() -> None:
    a, b, stranger = Node(), Node(), Identity.generate().peer
    async with running(a, b):
        address = b.addresses()[0].replace(b.peer, stranger)
        with pytest.raises(TransportError, match="cannot reach"):
            await a.connect(address)
        for wrong in ("/ip4/127.0.0.1/tcp/1/p2p/", "/ip4/127.0.0.1/tcp/1/p2p/nobody", a.addresses()[0]):
            with pytest.raises(LocalError):
                await a.connect(wrong)


@pytest.mark.asyncio
async def test_whoever_answers_is_asked_for_its_name() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        port = b.addresses()[0].split("/")[4]
        assert await a.connect(f"/dns4/localhost/tcp/{port}") == b.peer
        assert [link.peer for link in a.links()] == [b.peer]
        with pytest.raises(LocalError, match="this node itself"):
            await a.connect(a.addresses()[0].partition("/p2p/")[0])


@pytest.mark.asyncio
async def test_a_name_is_not_asked_of_somebody_who_does_not_speak_noise() -> None:
    a = Node()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    async with running(a), await asyncio.start_server(speak, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        with pytest.raises(TransportError):
            await a.connect(f"/ip4/127.0.0.1/tcp/{port}")
        with pytest.raises(TransportError):
            await a.connect("/ip4/127.0.0.1/tcp/9")
        assert a.links() == []


@pytest.mark.asyncio
async def test_a_stranger_that_announces_much_is_hung_up_on() -> None:
    """libp2p would gather it, up to 100 reads of a socket or 10 seconds."""
    a = Node()
    async with running(a):
        _, _, host, _, port = a.addresses()[0].split("/")[:5]
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x13/multistream/1.0.0\n" + b"\xff\xff\xff\x7f" + bytes(1000))  # a line of 256 MiB
        with suppress(ConnectionResetError):  # as it hangs up on what it has not read
            async with asyncio.timeout(5):
                while await reader.read(100):
                    pass
        writer.close()


@pytest.mark.asyncio
async def test_a_full_lane_drops_what_is_too_much() -> None:
    a, b = Node(bulk_queue=4 * MIB), Node()
    payload = memoryview(bytes(MIB))
    async with running(a, b):
        await a.connect(b.addresses()[0])
        for number in range(50):
            a.send(b.peer, RUN, Load(number, payload))  # type: ignore[arg-type]
        assert a.dropped == 46
        await eventually(lambda: b.loads == [0, 1, 2, 3])


@pytest.mark.asyncio
async def test_links_go_down_and_come_back() -> None:
    a, identity = Node(), Identity.generate()
    async with running(a):
        for round_trip in range(3):
            b = Node(identity)
            async with running(b):
                await a.connect(b.addresses()[0])
                a.send(b.peer, RUN, Word(round_trip))
                await eventually(lambda b=b: b.words)  # type: ignore[misc]
                assert b.words == [round_trip]
            await eventually(lambda: not a.links())
        times = len(a.changes) // 2  # a peer that is just closing may be reached once more
        assert times >= 3
        assert a.changes == [True, False] * times


@pytest.mark.asyncio
async def test_a_peer_is_met_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = Node(), Node(), Node()
    async with running(a, b):
        with pytest.raises(TransportError, match="no address"):
            await a.meet(b.peer)
        a.knows(b)
        for _ in range(2):
            await a.meet(b.peer)
            assert [link.peer for link in a.links()] == [b.peer]

        async def dial_for_ever(*_: object) -> Connection:
            await asyncio.Event().wait()

        monkeypatch.setattr(Transport, "dial", dial_for_ever)
        a.remember(c.peer, b.addresses())
        with pytest.raises(TransportError, match=r"no connection with .* in 0.01 s"):
            await a.meet(c.peer, 0.01)


@pytest.mark.asyncio
async def test_last_words_are_sent_before_closing() -> None:
    a, b = Node(), Node()
    async with running(b):
        await a.start()
        await a.connect(b.addresses()[0])
        for number in range(100):
            a.send(b.peer, RUN, Word(number))
        await a.close()
        await eventually(lambda: b.words == list(range(100)))


PEER = textwrap.dedent("""
    import asyncio
    import shoal.protocol.messages
    from shoal.protocol.net.system.identity import Identity
    from shoal.protocol.net.peers.network import Network
    from shoal.protocol.net.peers.shared import Handlers

    async def main():
        network = Network(Identity.generate(), host="127.0.0.1", port=0)
        await network.start(Handlers(takes=lambda run: True, shares_run=lambda peer: True))
        print(network.addresses()[0], flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
""")


@asynccontextmanager
async def peer_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PEER, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.asyncio
async def test_the_death_of_a_process_is_noticed_at_once() -> None:
    a = Node()
    clock = asyncio.get_running_loop().time
    async with running(a), peer_process() as (process, address):
        peer = await a.connect(address)
        waiting = asyncio.create_task(a.call(peer, GetManifest("abc"), timeout=DEADLINE))
        with pytest.raises(RemoteError, match="not served"):
            await waiting
        killed_at = clock()
        process.kill()
        await eventually(lambda: a.changes == [True, False])
        assert clock() - killed_at < AT_ONCE


@pytest.mark.asyncio
async def test_a_peer_that_was_stopped_for_a_while_loses_nothing() -> None:
    """How long it was stopped does not matter: tests/unit/test_muxer.py."""
    a = Node()
    payload = memoryview(bytes(MIB))
    sent: list[int] = []
    a.on(on_payload_done=lambda peer, run, message, left: sent.append(message.number))
    async with running(a), peer_process() as (process, address):
        peer = await a.connect(address)

        def send(numbers: range) -> None:
            for number in numbers:
                a.send(peer, RUN, Load(number, payload))  # type: ignore[arg-type]

        send(range(32))
        await eventually(lambda: sent)  # what is stopped is the stream, not its opening
        os.kill(process.pid, signal.SIGSTOP)
        send(range(32, 64))  # more than all buffers on the way hold
        with pytest.raises(TransportError, match="no answer"):
            await a.call(peer, GetManifest("abc"), timeout=0.2)
        assert len(sent) < 64
        os.kill(process.pid, signal.SIGCONT)
        await eventually(lambda: sent == list(range(64)))
        assert (a.dropped, a.changes) == (0, [True])


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_a_peer_that_does_not_listen() -> None:
    a = Node()
    payload = memoryview(bytes(MIB))
    clock = asyncio.get_running_loop().time
    async with peer_process() as (process, address):
        await a.start()
        peer = await a.connect(address)
        os.kill(process.pid, signal.SIGSTOP)
        for number in range(64):
            a.send(peer, RUN, Load(number, payload))  # type: ignore[arg-type]
            a.send(peer, RUN, Pad(bytes(100_000)))
        begin = clock()
        await a.close()
        assert clock() - begin < AT_ONCE


@pytest.mark.asyncio
async def test_a_peer_that_reads_nothing_is_forgotten_when_the_link_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is closed by halves would count against the connections that we may have, for ever."""

    async def no_socket(self: Payloads) -> bool:
        return False

    monkeypatch.setattr(Payloads, "_connect", no_socket)
    a = Node()
    async with running(a), peer_process() as (process, address):
        peer = await a.connect(address)
        a.send(peer, RUN, Load(1, memoryview(bytes(MIB))))  # type: ignore[arg-type]
        await eventually(lambda: a._transport.usage.connections == 2)
        os.kill(process.pid, signal.SIGSTOP)
        for number in range(64):
            a.send(peer, RUN, Load(number, memoryview(bytes(MIB))))  # type: ignore[arg-type]
            a.send(peer, RUN, Pad(bytes(100_000)))
        await a.disconnect(peer, "a test")
        await eventually(lambda: not a._transport.usage.connections)
        await eventually(lambda: not a.links())


# -- calls --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_call_that_fails_says_whose_fault_it_is(caplog: pytest.LogCaptureFixture) -> None:
    a, b = Node(), Node()

    async def serve(peer: PeerId, message: Message) -> Message:
        assert isinstance(message, GetManifest)
        if message.run_prefix == "bug":
            raise KeyError("bug")
        if message.run_prefix == "slow":
            await asyncio.Event().wait()
        raise LocalError("we are full")

    b.on(on_call=serve)
    async with running(a, b):
        await a.connect(b.addresses()[0])
        with pytest.raises(RemoteError, match="we are full") as caught:
            await a.call(b.peer, GetManifest("x"))
        assert caught.value.peer == b.peer
        with pytest.raises(RemoteError, match="internal error"):
            await a.call(b.peer, GetManifest("bug"))
        await eventually(lambda: "a handler of the network failed" in caplog.text)
        with pytest.raises(TransportError, match="no answer"):
            await a.call(b.peer, GetManifest("slow"), timeout=0.05)
        with pytest.raises(LocalError, match="over the limit"):
            await a.call(
                b.peer, ManifestIs(Genesis(bytes(MAX_CONTROL_FRAME), b.peer, b"", b""), (), 0, 0, 0.0, 0, NO_DIGEST)
            )


@pytest.mark.asyncio
async def test_calls_are_bounded_on_both_sides() -> None:
    a, b = Node(), Node()
    gate = asyncio.Event()

    async def serve(peer: PeerId, message: Message) -> Message:
        await gate.wait()
        return Refused("later")

    b.on(on_call=serve)
    async with running(a, b):
        await a.connect(b.addresses()[0])
        asked = [asyncio.create_task(a.call(b.peer, GetManifest(str(n)))) for n in range(calls.MAX_ASKED + 1)]
        await eventually(lambda: sum(each.done() for each in asked) == len(asked) - calls.MAX_SERVED)
        gate.set()
        outcomes = [str(each) for each in await asyncio.gather(*asked, return_exceptions=True)]
        assert sum("too busy" in each for each in outcomes) == calls.MAX_ASKED - calls.MAX_SERVED
        assert sum("wait for an answer already" in each for each in outcomes) == 1
        assert sum("later" in each for each in outcomes) == calls.MAX_SERVED


@pytest.mark.asyncio
async def test_a_lost_connection_fails_the_calls_that_wait() -> None:
    a, b = Node(), Node()

    async def never(peer: PeerId, message: Message) -> Message:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    b.on(on_call=never)
    async with running(a):
        await b.start()
        await a.connect(b.addresses()[0])
        waiting = asyncio.create_task(a.call(b.peer, GetManifest("x"), timeout=DEADLINE))
        await eventually(lambda: a.links()[0].rtt_ms is not None)
        await b.close()
        with pytest.raises(TransportError, match="is lost"):
            await waiting


@pytest.mark.asyncio
@pytest.mark.parametrize("lost", ["question", "answer", "spare"])
async def test_the_loss_of_one_of_several_connections_fails_the_calls_on_it(lost: str) -> None:
    a = Node()
    async with running(a), Rogue() as rogue:
        connections = [await rogue.dial(a) for _ in range(3)]
        waiting = asyncio.create_task(a.call(rogue.identity.peer, GetManifest("x"), timeout=DEADLINE))
        await eventually(lambda: rogue.heard)
        answers = await rogue.transport.open_stream_on(connections[1], CONTROL)
        await answers.write(framed(b"", Kind.PONG))
        spare = await rogue.transport.open_stream_on(connections[2], PROTOCOLS[Flow.GATHER])
        questions = await rogue.transport.open_stream_on(connections[0], PROTOCOLS[Flow.GATHER])
        await eventually(lambda: len(a.links()[0].addresses) == 3)
        {"question": questions, "answer": answers, "spare": spare}[lost].reset()  # and the connection with it
        await eventually(lambda: len(a.links()[0].addresses) == 2)
        if lost == "spare":
            await answers.write(framed(encode(Refused("no")), Kind.ANSWER))
            assert await waiting == Refused("no")
        else:
            with pytest.raises(TransportError, match="is lost"):
                async with asyncio.timeout(AT_ONCE):
                    await waiting


# -- strangers ----------------------------------------------------------------------------------------------


class Rogue:
    """A peer that speaks libp2p well and our protocol badly."""

    def __init__(self, identity: Identity | None = None) -> None:
        self.identity = identity or Identity.generate()
        self.heard: list[Stream] = []  # what the other side opened
        self.transport = Transport(
            self.identity, STREAM_PROTOCOLS, lambda peer, protocol, stream: self.heard.append(stream), lambda *_: None
        )

    async def __aenter__(self) -> Rogue:
        await self.transport.start("/ip4/127.0.0.1/tcp/0")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.transport.close()

    async def dial(self, node: Node) -> Connection:
        return await self.transport.dial(node.peer, node.addresses()[0], DEADLINE)

    async def stream_to(self, node: Node, protocol: str = CONTROL) -> Stream:
        if not node.links():
            await self.dial(node)
        return await self.transport.open_stream(node.peer, protocol)


def loaded(load: Load, run: RunId = RUN) -> bytes:
    """A payload as it travels on a stream."""
    head = framing.packed_head(run, load)
    return framing.prefix(len(head), len(load.payload), flow_of(load)) + head + bytes(load.payload)


def framed(body: bytes, kind: Kind = Kind.MESSAGE, run: RunId | None = RUN) -> bytes:
    return frame_head(kind, 1, run, len(body)) + body


@pytest.mark.asyncio
async def test_bad_messages_are_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    a = Node()
    async with running(a), Rogue() as rogue:
        bad = [
            *([b"garbage"] * 50),
            msgpack.packb([99_999]),  # unknown tag
            msgpack.packb([60, "text"]),  # wrong type
            msgpack.packb([60, 1, 2]),  # too many fields
            b"\x91" * 5000,  # deeply nested
            encode(Load(1, b"x")),  # a payload on the control stream
            encode(Stop()),  # what only a worker may be told
            encode(GetManifest("abc")),  # a call that is none
            encode(Entry(rogue.identity.peer, 0, 0, (), STATUS, False, b"")),  # what travels within messages only
        ]
        stream = await rogue.stream_to(a)
        await stream.write(*(framed(each) for each in bad), framed(b"garbage", Kind.CALL))
        await stream.write(framed(encode(Word(4)), Kind.CALL))
        await stream.write(framed(b"", Kind.ANSWER), framed(b"", Kind.BUSY), framed(b"", Kind.PONG))
        await stream.write(framed(encode(Word(5))))
        await eventually(lambda: a.words == [5])
        assert a.loads == []
        complaints = [each.message for each in caplog.records if each.levelno == logging.WARNING]
        assert len(complaints) == len(set(complaints)) == 10
        assert all(rogue.identity.peer in each for each in complaints)


@pytest.mark.asyncio
async def test_messages_of_other_runs_are_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    a = Node()
    a.on(takes=lambda run: run == RUN)
    decoded: list[bytes] = []

    def decode(data: memoryview, sender: PeerId, tags: range) -> Message:
        decoded.append(bytes(data))
        return wire.decode(data, sender, tags=tags)

    def decode_bulk(head: bytes, payload: Payload, sender: PeerId) -> Message:
        decoded.append(head)
        return wire.decode_bulk(head, payload, sender)

    monkeypatch.setattr(peer_module, "decode", decode)
    monkeypatch.setattr(framing, "decode_bulk", decode_bulk)
    async with running(a), Rogue() as rogue:
        stream, bulk = await rogue.stream_to(a), await rogue.stream_to(a, PROTOCOLS[Flow.GATHER])
        for run in (RunId(b"x" * 32), None):
            await stream.write(framed(encode(Word(1)), run=run), framed(b"garbage", run=run))
        await bulk.write(loaded(Load(1, b"x"), RunId(b"x" * 32)))
        await stream.write(framed(encode(Word(2))))
        await bulk.write(loaded(Load(2, b"x")))
        await eventually(lambda: a.words and a.loads)
        assert (a.words, a.loads) == ([2], [2])
        assert sorted(decoded) == sorted([encode(Word(2)), wire.encode_head(Load(2, b"x"))])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "data",
    [
        (MAX_CONTROL_FRAME + 1000).to_bytes(LENGTH_SIZE, "big"),
        b"\xff" * 100,
        (10).to_bytes(LENGTH_SIZE, "big") + b"not msgpack",
    ],
)
async def test_bad_framing_costs_the_stream_but_not_the_link(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    a = Node()
    async with running(a), Rogue() as rogue:
        stream = await rogue.stream_to(a)
        await stream.write(data)
        await eventually(lambda: not stream.is_open)
        assert f"peer {rogue.identity.peer}: frame is" in caplog.text
        again = await rogue.stream_to(a)
        await again.write(framed(encode(Word(6))))
        await eventually(lambda: a.words == [6])


@pytest.mark.asyncio
async def test_a_frame_that_does_not_come_to_its_end_costs_the_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "FRAME_LIMIT", 0.1)
    a = Node()
    async with running(a), Rogue() as rogue:
        stream = await rogue.stream_to(a, PROTOCOLS[Flow.GATHER])
        await stream.write((1000).to_bytes(LENGTH_SIZE, "big"), b"half of it")
        await eventually(lambda: not stream.is_open)
        assert "for one frame" in caplog.text


@pytest.mark.asyncio
async def test_a_new_stream_replaces_the_old() -> None:
    a = Node()
    async with running(a), Rogue() as rogue:
        streams = []
        for number in range(10):
            streams.append(await rogue.stream_to(a))
            await streams[-1].write(framed(encode(Word(number))))
            await eventually(lambda number=number: number in a.words)  # type: ignore[misc]
        await eventually(lambda: sum(each.is_open for each in streams) == 1)
        assert streams[-1].is_open


@pytest.mark.asyncio
async def test_streams_that_are_replaced_before_they_are_read_are_ended_too() -> None:
    a = Node()
    async with running(a), Rogue() as rogue:
        connection = await rogue.dial(a)
        opened = [rogue.transport.open_stream_on(connection, CONTROL) for _ in range(20)]
        streams = await asyncio.gather(*opened)
        await eventually(lambda: sum(each.is_open for each in streams) == 1)


@pytest.mark.asyncio
async def test_a_peer_that_lost_a_connection_unnoticed_is_answered_on_its_new_one() -> None:
    """Its machine lost its power, say: the old connection looks alive here for a long time."""
    a = Node()
    async with running(a), Rogue() as rogue:
        for number in (1, 2):
            connection = await rogue.dial(a)
            stream = await rogue.transport.open_stream_on(connection, CONTROL)
            await stream.write(framed(b"", Kind.PING))
            await eventually(lambda number=number: len(rogue.heard) == number)  # type: ignore[misc]
        a.send(rogue.identity.peer, RUN, Word(7))
        answer = bytearray()
        rogue.heard[1].listen(answer.extend, lambda reason: None)
        rogue.heard[1].allow(MIB)
        await eventually(lambda: encode(Word(7)) in answer)
        stream.reset()  # which ends the new connection
        await eventually(lambda: not rogue.heard[1].is_open)


@pytest.mark.asyncio
async def test_connections_of_one_peer_are_bounded_and_the_oldest_goes() -> None:
    a = Node()
    async with running(a), Rogue() as rogue:
        made = [await rogue.dial(a) for _ in range(swarm.MAX_FROM_PEER + 3)]
        await eventually(lambda: sum(not each.is_closed for each in made) == swarm.MAX_FROM_PEER)
        assert not made[-1].is_closed
        assert a.changes == [True]


@pytest.mark.asyncio
async def test_connections_of_one_host_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "MAX_FROM_HOST", 3)
    a = Node()
    async with running(a):
        _, _, host, _, port, *_ = a.addresses()[0].split("/")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(5)]  # they never shake hands
        ended = [reader for reader, _ in idle[:2]]  # they have waited longest
        async with asyncio.timeout(DEADLINE):
            assert [(await reader.read())[-1:] for reader in ended] == [b"\n", b"\n"]  # after the words of a handshake
        async with Rogue() as rogue:
            await rogue.dial(a)
            for _, writer in idle:
                writer.close()
                await writer.wait_closed()
        await eventually(lambda: not a._transport.usage.inbound)


@pytest.mark.asyncio
async def test_a_flood_of_costly_words_does_not_keep_us_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BUSY", (0.02, 0.05))
    a, b = Node(), Node()

    def work(peer: PeerId, run: RunId | None, message: Message) -> None:
        a.keep(peer, run, message)
        if peer != b.peer:
            end = time.thread_time() + 0.01
            while time.thread_time() < end:
                pass

    a.on(on_message=work)
    async with running(a, b), Rogue() as rogue:
        stream = await rogue.stream_to(a)
        await stream.write(*(framed(encode(Word(1))) for _ in range(500)))
        await eventually(lambda: len(a.words) > 1)
        await b.connect(a.addresses()[0])
        b.send(a.peer, RUN, Word(2))
        await eventually(lambda: 2 in a.words)
        assert a.words.index(2) < 100


@pytest.mark.asyncio
async def test_another_node_with_our_key_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    a = Node()
    b = Node(a.identity)
    async with running(a, b):
        for _ in range(2):
            with pytest.raises(LocalError, match="copy of this node's key"):
                await b.connect(a.addresses()[0])
        rogue = Rogue(a.identity)
        async with rogue:
            for _ in range(2):
                connection = await rogue.dial(a)
                await eventually(lambda connection=connection: connection.is_closed)  # type: ignore[misc]
        said = [each for each in caplog.records if getattr(each, "code", "") == "same-key"]
        assert len(said) == 1
        shown("another node has a copy of the key", 0, f"{said[0].message} [same-key]")
        assert a.changes == b.changes == []


@pytest.mark.asyncio
async def test_a_handlers_mistake_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    a, b = Node(), Node()

    def fail(peer: PeerId, run: RunId | None, message: Message) -> None:
        b.keep(peer, run, message)
        raise RemoteError("a bad idea", peer) if len(b.words) == 1 else KeyError("our bug")

    b.on(on_message=fail)
    async with running(a, b):
        await a.connect(b.addresses()[0])
        for number in range(3):
            a.send(b.peer, RUN, Word(number))
        await eventually(lambda: b.words == [0, 1, 2])
        assert f"peer {a.peer}: a bad idea" in caplog.text
        assert "a handler of the network failed" in caplog.text


@pytest.mark.asyncio
async def test_a_silent_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.protocol.net.peers.network.CHECK_INTERVAL", 0.05)
    for name, seconds in {
        "SILENCE": 1.0,
        "SILENCE_AT_REST": 1.0,
        "OFTEN": 0.1,
        "QUIET": 0.1,
        "MEASURE": 0.1,
    }.items():
        monkeypatch.setattr(heartbeat, name, seconds)
    a, b = Node(), Node()
    async with running(a, b), Rogue() as rogue:
        await rogue.stream_to(a)  # answers no ping
        await eventually(lambda: a.changes == [True, False])
        await a.connect(b.addresses()[0])
        await eventually(lambda: b.links() and b.links()[0].rtt_ms is not None)
        times = set[float | None]()
        while len(times) < 20:  # pings, in twice the patience: a peer that answers stays
            times.add(a.links()[0].rtt_ms)
            await asyncio.sleep(0.01)
        assert a.changes == [True, False, True]


@pytest.mark.asyncio
async def test_who_says_that_it_does_not_speak_with_us_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other implementations of libp2p, which may have us as a relay, know nothing of our pings."""
    monkeypatch.setattr("shoal.protocol.net.peers.network.CHECK_INTERVAL", 0.02)
    for name, seconds in {
        "SILENCE": 0.3,
        "SILENCE_AT_REST": 0.3,
        "OFTEN": 0.02,
        "QUIET": 0.02,
        "MEASURE": 0.02,
    }.items():
        monkeypatch.setattr(heartbeat, name, seconds)
    a, stranger = Node(), Transport(Identity.generate(), ("/other/1",), lambda *_: None, lambda *_: None)
    refusals = 0

    def unheard(peer: Peer, reason: TransportError) -> None:
        nonlocal refusals
        refusals += reason.code == NOT_SPOKEN
        original(peer, reason)

    original = Peer._unheard
    monkeypatch.setattr(Peer, "_unheard", unheard)
    async with running(a):
        await stranger.start("/ip4/127.0.0.1/tcp/0")
        try:
            await stranger.dial(a.peer, a.addresses()[0], DEADLINE)
            begin = time.monotonic()
            await eventually(lambda: refusals > 20 and time.monotonic() > begin + 1.0)
            assert a.changes == [True]
        finally:
            await stranger.close()


# -- ports and leftovers ------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_pair_of_ports_in_use_gives_way_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    port, claim = claim_pair("127.0.0.1", 0)
    claim.close()
    a, b = Node(port=port), Node(port=port)
    async with running(a, b):
        assert f"/tcp/{port}/" in a.addresses()[0]
        assert f"/tcp/{port}/" not in b.addresses()[0]
        (said,) = [each for each in caplog.records if getattr(each, "code", "") == "ports-in-use"]
        assert f"ports {port} and {port + 1} are in use" in said.message
        await a.connect(b.addresses()[0])


def test_either_port_of_a_pair_may_be_taken() -> None:
    port, claim = claim_pair("127.0.0.1", 0)
    claim.close()
    for taken in (port, port + 1):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", taken))
            other.listen(1)
            found, claim = claim_pair("127.0.0.1", port)
            claim.close()
            assert found >= port + 2


def test_what_the_system_refuses_is_not_taken_for_a_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = socket.socket()
    broken.close()
    monkeypatch.setattr(socket, "socket", lambda *_: broken)
    with pytest.raises(LocalError, match="port 4101: Bad file descriptor"):
        claim_pair("127.0.0.1", 4101)


@pytest.mark.asyncio
async def test_an_address_that_is_not_ours_cannot_be_listened_on() -> None:
    with pytest.raises(LocalError, match="is not an address of this machine"):
        await Network(Identity.generate(), host="192.0.2.1", port=4101).start()
    transport = Transport(Identity.generate(), (), lambda *stream: None, lambda *change: None)
    with pytest.raises(LocalError, match="cannot listen"):
        await transport.start("/ip4/192.0.2.1/tcp/4101")


@pytest.mark.asyncio
async def test_closing_leaves_no_thread_and_no_socket() -> None:
    def leftovers() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/dev/fd"))

    async def once() -> None:
        a, b, c = Node(), Node(), Node()
        async with running(a, b, c):
            await a.connect(b.addresses()[0])
            await b.connect(c.addresses()[0])
            await eventually(lambda: c.links())
            a.send(b.peer, RUN, Load(1, bytes(MIB)))
            c.send(b.peer, RUN, Word(1))
            await eventually(lambda: b.words and b.loads)

    threads = threading.active_count()
    await once()  # what is made once and kept
    await eventually(lambda: threading.active_count() == threads)
    before = leftovers()
    for _ in range(3):
        await once()
    await eventually(lambda: leftovers() == before)


@pytest.mark.asyncio
async def test_the_end_of_the_host_is_the_end_of_its_links(caplog: pytest.LogCaptureFixture) -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.connect(b.addresses()[0])
        a.meet_at(None)  # type: ignore[arg-type]  # as by a bug of ours: it is found in the thread of the host
        await eventually(lambda: a.changes == [True, False])
        await eventually(lambda: "the libp2p host has failed" in caplog.text)
        with pytest.raises(TransportError, match="has stopped"):
            await a.connect(b.addresses()[0])
        await eventually(lambda: b.changes == [True, False])


@pytest.mark.asyncio
async def test_closed_connections_are_forgotten() -> None:
    """libp2p counts every connection that it ever accepted against its limit."""
    a = Node()
    async with running(a):
        for _ in range(5):
            async with Rogue() as rogue:
                await rogue.stream_to(a)
                await eventually(lambda: a.links())
            await eventually(lambda: not a.links())
        await eventually(lambda: a._transport.usage == Usage(connections=0, inbound=0, known_peers=0))
        assert not list(a._peers)


@pytest.mark.asyncio
async def test_of_a_name_that_leads_to_ourselves_too_the_others_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours first, as the system sorts them; and one that is ours by a way that we do not know of: a balancer."""
    a, b = Node(), Node()
    async with running(a, b):
        ours, theirs = (node.addresses()[0].partition("/p2p/")[0] for node in (a, b))
        answers = [ours], [ours, theirs]

        async def resolve(address: str) -> tuple[str, ...]:
            return tuple(answers[0]) if address.startswith("/dns4/alone") else tuple(answers[1])

        monkeypatch.setattr(network_module, "resolve", resolve)
        with pytest.raises(LocalError, match="this node itself"):
            await a.connect("/dns4/alone/tcp/4101")
        for known in (True, False):
            if not known:
                monkeypatch.setattr(a, "own_addresses", tuple)
            assert await a.connect("/dns4/all/tcp/4101") == b.peer
        assert a.link_report(b.peer).known == (theirs,), "what leads to another is not remembered for the peer"
        with pytest.raises(LocalError, match="leads back to this node"):
            await a.connect("/dns4/alone/tcp/4101")


@pytest.mark.asyncio
async def test_where_another_answers_than_was_looked_for_is_said_and_it_can_be_greeted() -> None:
    a, b, gone = Node(), Node(), Identity.generate().peer
    found: list[str] = []
    a.on(on_stranger=found.append)
    async with running(a, b):
        place = b.addresses()[0].partition("/p2p/")[0]
        a.remember(gone, ["/ip4/127.0.0.1/tcp/9"])
        with pytest.raises(TransportError, match="cannot reach") as caught:
            await a.connect(f"{place}/p2p/{gone}")
        assert caught.value.code == "other-identity"
        assert found == [place]
        assert await a.connect(place) == b.peer
        ours = a.addresses()[0].partition("/p2p/")[0]
        assert await a.connect(f"{place}/p2p/{a.peer}") == b.peer, "where we were once, somebody else may be now"
        with pytest.raises(TransportError, match="is this node now"):
            await a.connect(f"{ours}/p2p/{Identity.generate().peer}")
        a.remember(b.peer, [ours])
        assert ours not in a.link_report(b.peer).known


@pytest.mark.asyncio
async def test_a_name_that_cannot_be_looked_up_leaves_the_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Node(), Node()
    async with running(a, b):
        place = b.addresses()[0].partition("/p2p/")[0]
        named = f"/dns4/nobody.invalid/tcp/4101/p2p/{b.peer}"
        with pytest.raises(TransportError, match="cannot be looked up"):
            await a.connect(named)
        a.remember(b.peer, ["/dns4/nobody.invalid/tcp/4101", place])
        assert a.link_report(b.peer).known == (place,), "no peer makes us look a name up"
        assert await a.connect(named) == b.peer
