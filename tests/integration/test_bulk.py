"""Payloads between two networks on loopback: by sockets of their own, whoever can be dialled and whatever breaks."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, RunId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution, Made, Mean
from shoal.protocol.messages.bulk import Knock, MayIKnock
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.bulk import endpoint, flow_control
from shoal.protocol.net.bulk.sender import Sender
from shoal.protocol.net.peers import payloads
from shoal.protocol.net.peers.dialing import Dialing
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from tests.integration.bulk_sockets import BulkSockets
from tests.integration.leftovers import resident_bytes
from tests.integration.test_network import MIB, RUN, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def contribution(number: int, size: int = MIB) -> Contribution:
    return Contribution(0, 1, number, 0, 10, NO_DIGEST, bytes(size))


def result(number: int, size: int = MIB) -> Mean:
    return Mean(0, 1, number, Made(NO_DIGEST, b"\x03", 0, PeerId("owner"), 1, b""), bytes(size))


@dataclass
class Heard:
    """What a node got: the payloads themselves if it holds them, and how often each number came."""

    holds: bool = False
    scattered: Counter[int] = field(default_factory=Counter)
    gathered: Counter[int] = field(default_factory=Counter)
    held: list[Message] = field(default_factory=list)

    def take(self, peer: PeerId, run: RunId | None, message: Message) -> None:
        if isinstance(message, Contribution):
            self.scattered[message.chunk] += 1
            if self.holds:
                self.held.append(message)
        elif isinstance(message, Mean):
            self.gathered[message.chunk] += 1


class Node:
    """A network, what it heard, and what became of what it sent."""

    def __init__(self) -> None:
        self.network = Network(Identity.generate(), host="127.0.0.1", port=0)
        self.heard = Heard()
        self.done: Counter[int] = Counter()
        self.shares_run, self.may_lose = True, False

    async def start(self) -> None:
        await self.network.start(
            Handlers(
                takes=lambda run: True,
                shares_run=lambda peer: self.shares_run,
                on_message=self.heard.take,
                on_payload_done=self._note,
            )
        )

    def _note(self, peer: PeerId, run: RunId, message: Message, was_sent: bool) -> None:
        assert isinstance(message, Contribution | Mean)
        assert was_sent or self.may_lose
        self.done[message.chunk] += 1

    def send(self, to: Node, *messages: Message) -> None:
        for each in messages:
            self.network.send(to.network.peer, RUN, each)

    def sockets(self, to: Node) -> int:
        """By how many sockets payloads go to another node; with none they go by streams."""
        return sum(link.sockets for link in self.network.links() if link.peer == to.network.peer)


@asynccontextmanager
async def two(a: Node | None = None, b: Node | None = None) -> AsyncIterator[tuple[Node, Node]]:
    a, b = a or Node(), b or Node()
    await a.start()
    await b.start()
    try:
        await a.network.connect(b.network.addresses()[0])
        await eventually(lambda: b.network.links())
        yield a, b
    finally:
        await a.network.close()
        await b.network.close()


class Router:
    """Passes on what is dialled, until it forgets a connection: only the end that has dialled is told of that."""

    def __init__(self) -> None:
        self._diallers: list[asyncio.StreamWriter] = []
        self._dialled: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, place: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, there = await asyncio.open_connection(*place)
        self._diallers.append(writer)
        self._dialled.append(there)
        self._tasks |= {
            asyncio.create_task(self._pass_on(reader, there)),
            asyncio.create_task(self._pass_on(answers, writer)),
        }

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                writer.write(data)
                await writer.drain()

    def forget(self) -> None:
        """Break off all connections, as the end that has dialled sees it."""
        for writer in self._diallers:
            writer.transport.abort()
        self._diallers.clear()

    def let_go(self) -> None:
        """Tell the other ends of the connections that were forgotten."""
        for writer in self._dialled[: len(self._dialled) - len(self._diallers)]:
            writer.transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in (*self._diallers, *self._dialled):
            writer.transport.abort()


@asynccontextmanager
async def router_between(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Router]:
    """All bulk sockets that are dialled go by the router."""
    router, dial = Router(), endpoint._dialled

    async def dialled(place: tuple[str, int]) -> socket.socket:
        server = await asyncio.start_server(partial(router.connect, place), "127.0.0.1", 0)
        async with server:
            return await dial(server.sockets[0].getsockname())

    monkeypatch.setattr(endpoint, "_dialled", dialled)
    try:
        yield router
    finally:
        await router.close()


def cannot_be_dialled(monkeypatch: pytest.MonkeyPatch, *nodes: Node) -> None:
    """As behind a router that lets nobody in: all others know no host of theirs."""
    hosts, unreachable = Dialing.hosts, {node.network.peer for node in nodes}

    def known(self: Dialing) -> tuple[str, ...]:
        return () if self._peer in unreachable else hosts(self)

    monkeypatch.setattr(Dialing, "hosts", known)


@pytest.mark.asyncio
@pytest.mark.parametrize("hidden", ["nobody", "who sends", "who receives"])
async def test_payloads_go_by_sockets_if_one_of_two_can_be_dialled(
    monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    a, b = Node(), Node()
    cannot_be_dialled(monkeypatch, *{"nobody": (), "who sends": (a,), "who receives": (b,)}[hidden])
    async with two(a, b):
        for one, other in ((a, b), (b, a)):
            one.send(other, *map(contribution, range(20)), *map(result, range(20)))
        for node in (a, b):
            await eventually(lambda node=node: len(node.heard.scattered) == len(node.heard.gathered) == 20)  # type: ignore[misc]
            await eventually(lambda node=node: node.done.total() == 40)  # type: ignore[misc]
            assert set((node.heard.scattered + node.heard.gathered).values()) == {2}
            assert set(node.done.values()) == {2}, "each said once, of both flows"
            assert node.network.dropped == 0
            assert node.network.traffic(RUN).bulk_sent > 40 * MIB
        assert a.sockets(b)
        assert b.sockets(a)


@pytest.mark.asyncio
async def test_payloads_go_by_streams_if_neither_can_be_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Node(), Node()
    cannot_be_dialled(monkeypatch, a, b)
    async with two(a, b):
        for one, other in ((a, b), (b, a)):
            one.send(other, *map(contribution, range(10)), *map(result, range(10)))
        for node in (a, b):
            await eventually(lambda node=node: len(node.heard.scattered) == len(node.heard.gathered) == 10)  # type: ignore[misc]
        assert not a.sockets(b)
        assert not b.sockets(a)
        assert a.network.dropped == b.network.dropped == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("who", ["who sends", "who receives"])
async def test_sockets_are_for_those_only_with_whom_we_share_a_run_and_come_soon_after(who: str) -> None:
    """As when one of two knows of a run that the other is about to hear of: payloads take streams till then."""
    a, b = Node(), Node()
    late = a if who == "who sends" else b
    late.shares_run = False
    async with two(a, b):
        a.send(b, contribution(0))
        b.send(a, contribution(0))
        await eventually(lambda: a.heard.scattered[0] and b.heard.scattered[0])
        to_late = b if late is a else a
        assert not to_late.sockets(late)
        for question in (MayIKnock(), Knock((4102,), Digest(bytes(32)), bytes(32))):
            answer = await to_late.network.call(late.network.peer, question)
            assert isinstance(answer, Refused)
            assert "no run" in answer.reason
        late.shares_run = True
        begin = asyncio.get_running_loop().time()
        for number in range(1, 200):
            to_late.send(late, contribution(number, 1000))
            await asyncio.sleep(0.05)
            if to_late.sockets(late):
                break
        assert asyncio.get_running_loop().time() - begin < 5
        await eventually(lambda: len(late.heard.scattered) == number + 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("by_sender", [True, False], ids=["at the sender's", "at the receiver's"])
async def test_sockets_that_are_shut_down_in_a_transfer_cost_what_was_on_its_way_and_no_more(
    monkeypatch: pytest.MonkeyPatch, by_sender: bool
) -> None:
    count, kills, written, push = 120, 2, list[int](), Sender._push

    def counted(self: Sender, data: memoryview) -> None:
        written.append(len(data))  # whether or not it breaks off
        push(self, data)

    monkeypatch.setattr(Sender, "_push", counted)
    sockets = BulkSockets(monkeypatch)
    async with two() as (a, b):
        a.send(b, *map(contribution, range(count)))
        for kill in range(kills):
            some = (kill + 1) * count // 4
            await eventually(lambda some=some: len(b.heard.scattered) >= some)  # type: ignore[misc]
            await eventually(lambda: sockets.of(a.network, sends=True) and sockets.of(b.network, sends=False))
            sockets.shut_down(a.network if by_sender else b.network, sends=by_sender)
        await eventually(lambda: len(b.heard.scattered) == count, 60)
        await eventually(lambda: len(a.done) == count)
        assert set(a.done.values()) == {1}
        assert a.network.dropped == 0
        again = sum(written) - count * MIB
        received = b.heard.scattered.total() - count
        print(f"written again {again / MIB:.1f} MiB; came again {received} MiB")
        most = kills * (flow_control.SHARED + 2 * MIB)  # what may be on its way
        assert 0 < again <= most + MIB
        assert received * MIB <= most


@pytest.mark.asyncio
async def test_a_socket_that_dies_while_nothing_is_sent_loses_nothing_that_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sockets = BulkSockets(monkeypatch)
    async with two() as (a, b):
        a.send(b, contribution(0))
        await eventually(lambda: b.heard.scattered[0] and a.sockets(b))
        assert sockets.shut_down(b.network, sends=False)
        a.send(b, contribution(1))
        await eventually(lambda: b.heard.scattered[1])
        assert a.sockets(b)


@pytest.mark.asyncio
@pytest.mark.parametrize("carrier", ["socket", "stream"])
async def test_who_floods_contributions_fills_its_share_and_no_more(
    monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    most, count = 4 * MIB, 64
    monkeypatch.setattr(flow_control, "SHARED", most)
    monkeypatch.setattr(payloads, "SHARED", most)
    monkeypatch.setattr(flow_control, "GRAIN", most // 4)
    a, b = Node(), Node()
    if carrier == "stream":
        cannot_be_dialled(monkeypatch, a, b)
    b.heard.holds = True
    async with two(a, b):
        a.send(b, *map(contribution, range(count)))
        await eventually(lambda: len(b.heard.held) >= 4)
        a.send(b, *map(result, range(count)))
        await eventually(lambda: len(b.heard.gathered) == count)
        assert len(b.heard.held) * MIB <= most
        assert bool(a.sockets(b)) is (carrier == "socket")
        b.heard.holds = False
        b.heard.held.clear()
        await eventually(lambda: len(b.heard.scattered) == count)
        a.send(b, *map(contribution, range(count, 2 * count)))
        await eventually(lambda: len(b.heard.scattered) == 2 * count)  # all that was held was given back


@pytest.mark.asyncio
async def test_a_socket_that_is_dead_at_the_other_end_keeps_no_credit_from_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a router has forgotten the connection: we go on to read a socket by which nothing comes any more."""
    async with router_between(monkeypatch) as router, two() as (a, b):
        a.send(b, contribution(0))
        await eventually(lambda: b.heard.scattered[0] and a.sockets(b))
        router.forget()
        a.send(b, *map(contribution, range(1, 60)))
        await eventually(lambda: len(b.heard.scattered) == 60)
        assert leftovers()["bulk-in"] == 2, "the dead one is read still"
        router.let_go()
        await eventually(lambda: leftovers()["bulk-in"] == 1)
        a.send(b, *map(contribution, range(60, 120)))
        await eventually(lambda: len(b.heard.scattered) == 120)


@pytest.mark.asyncio
async def test_a_full_share_does_not_keep_us_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "SHARED", 2 * MIB)
    before = leftovers()
    a, b = Node(), Node()
    b.heard.holds = True
    async with two(a, b):
        a.send(b, *map(contribution, range(64)))
        await eventually(lambda: len(b.heard.held) == 2)
    assert b.heard.held
    await eventually(lambda: leftovers() <= before)


def leftovers() -> Counter[str]:
    """The threads of bulk sockets, by name, and all sockets."""
    names = [re.sub(r"_\d+$", "", thread.name) for thread in threading.enumerate()]
    found = Counter(name for name in names if name.startswith("bulk-"))
    found["sockets"] = sum(is_socket(each) for each in os.listdir("/proc/self/fd"))
    return found


def is_socket(handle: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{handle}").startswith("socket:")
    except FileNotFoundError:
        return False


@pytest.mark.asyncio
async def test_networks_that_close_leave_no_thread_and_no_socket() -> None:
    before = leftovers()
    for _ in range(3):
        async with two() as (a, b):
            for one, other in ((a, b), (b, a)):
                one.send(other, *map(contribution, range(5)), *map(result, range(5)))
            for node in (a, b):
                await eventually(partial(lambda node: len(node.heard.scattered) == len(node.heard.gathered) == 5, node))
            assert leftovers()["bulk-in"] >= 2
        assert not +(leftovers() - before), "all has ended when `close` returns"


@pytest.mark.asyncio
async def test_a_connection_that_is_lost_leaves_no_socket_and_comes_back() -> None:
    async with two() as (a, b):
        for number in range(4):
            a.send(b, contribution(number))
            b.send(a, result(number))
            await eventually(lambda number=number: b.heard.scattered[number] and a.heard.gathered[number])  # type: ignore[misc]
            await a.network.disconnect(b.network.peer, "a test")
            await eventually(lambda: not a.network.links() and not b.network.links())
            await eventually(lambda: not (leftovers()["bulk-in"] or leftovers()["bulk-out"]))
            await a.network.connect(b.network.addresses()[0])
            await eventually(lambda: b.network.links())


@pytest.mark.asyncio
async def test_two_hundred_rounds_of_payloads_take_no_more_memory_than_twenty() -> None:
    chunks, size = 8, MIB // 4
    async with two() as (a, b):

        async def round(number: int) -> None:
            ids = set(range(number * chunks, (number + 1) * chunks))
            for one, other in ((a, b), (b, a)):
                one.send(other, *(contribution(each, size) for each in ids), *(result(each, size) for each in ids))
            for node in (a, b):
                heard, left = node.heard, node.done
                await eventually(partial(lambda heard: ids == set(heard.scattered) == set(heard.gathered), heard))
                await eventually(partial(lambda left: left.total() == 2 * chunks, left))
                for each in (heard.scattered, heard.gathered, left):
                    each.clear()

        for number in range(40):
            await round(number)
        before = resident_bytes()
        for number in range(40, 240):
            await round(number)
        grown = resident_bytes() - before
        print(f"{grown / 1e6:+.1f} MB in 200 rounds of {4 * chunks * size / 1e6:.0f} MB")
        assert grown < 8e6


@pytest.mark.asyncio
@pytest.mark.parametrize("carrier", ["socket", "stream"])
async def test_whoever_closes_in_a_transfer_leaves_no_task_and_no_thread(
    monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    before, tasks = leftovers(), asyncio.all_tasks()
    for begun in (0, 1, 5):
        a, b = Node(), Node()
        a.may_lose = True  # what is not sent any more is lost
        if carrier == "stream":
            cannot_be_dialled(monkeypatch, a, b)
        async with two(a, b):
            a.send(b, *map(contribution, range(100)))
            await eventually(lambda b=b, begun=begun: len(b.heard.scattered) >= begun)  # type: ignore[misc]
            await a.network.close()
            attempts = {task for task in asyncio.all_tasks() if "Carrier._try" in str(task.get_coro())}
            assert not attempts, "one that had not even begun was cancelled"
            await b.network.close()
        assert asyncio.all_tasks() == tasks
        assert not +(leftovers() - before)
