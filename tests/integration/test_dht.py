"""Nodes of the DHT on loopback, over real sockets: put, get, lose some, and learn who can be dialled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from shoal.node.peers.discovery import Discovery
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, digest
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity

DEADLINE = 60.0


class Node:
    """A network with a DHT on it, and nothing else."""

    def __init__(self, identity: Identity | None = None) -> None:
        self.identity = identity = identity or Identity.generate()
        self.network = Network(identity, host="127.0.0.1", port=0)
        self.dht = Discovery(identity, self.network)

    @property
    def is_at_home(self) -> bool:
        """Whether others count on it, and it on others."""
        return self.dht.verdict.serves and bool(self.dht.contacts())

    async def start(self) -> None:
        await self.network.start(Handlers(on_call=self.dht.on_call, on_link=self.dht.link))
        self.dht.start()

    async def close(self) -> None:
        await self.dht.close()
        await self.network.close()


def key(name: str) -> Digest:
    return digest("test", name.encode())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def swarm(count: int) -> AsyncIterator[Sequence[Node]]:
    """Nodes that know each other through the first."""
    async with AsyncExitStack() as stack:
        nodes = [Node() for _ in range(count)]
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.close)
        for node in nodes[1:]:
            await node.network.connect(nodes[0].network.addresses()[0])
        await until(lambda: all(node.is_at_home for node in nodes))
        yield nodes


@pytest.mark.asyncio
async def test_what_one_node_says_every_other_finds_even_when_some_are_gone() -> None:
    async with swarm(8) as nodes:
        puts = [await node.dht.put(key(f"of {n}"), "", b"word %d" % n, 600.0) for n, node in enumerate(nodes)]
        assert all(put.held >= 5 for put in puts), puts
        for n, node in enumerate(nodes):
            got = await node.dht.get(key(f"of {(n + 3) % 8}"))
            assert [(each.record.value, each.replicas >= 2) for each in got.found] == [
                (b"word %d" % ((n + 3) % 8), True)
            ]
        assert (await nodes[5].dht.get(key("of nobody"))).found == ()

        for gone in nodes[1:4]:
            await gone.close()
        for n in range(8):
            got = await nodes[6].dht.get(key(f"of {n}"))
            assert [each.record.value for each in got.found] == [b"word %d" % n]


@pytest.mark.asyncio
async def test_the_last_word_wins_wherever_it_is_read() -> None:
    async with swarm(4) as nodes:
        author = nodes[1].network.peer
        for word in (b"first", b"second", b""):
            await nodes[1].dht.put(key("mine"), "entry", word, 600.0)
            for reader in nodes:
                got = await reader.dht.get(key("mine"), [(author, "entry")])
                assert [each.record.value for each in got.found] == [word]


@pytest.mark.asyncio
async def test_the_last_word_wins_though_the_clock_was_ahead_in_the_last_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers hold an older word with a later number: who is back goes on from that."""
    async with swarm(4) as nodes:
        last, readers = nodes[3], nodes[:3]
        with monkeypatch.context() as patch:
            patch.setattr(last.dht, "_sequence", int(1000 * (time.time() + 3 * 86_400)))
            await last.dht.put(key("mine"), "entry", b"old", 600.0)
        await last.close()
        back = Node(last.identity)
        await back.start()
        try:
            await back.network.connect(nodes[0].network.addresses()[0])
            await until(lambda: back.is_at_home)
            put = await back.dht.put(key("mine"), "entry", b"new", 600.0)
            assert put.held >= 3
            assert not put.refusals
            for reader in readers:
                got = await reader.dht.get(key("mine"), [(last.network.peer, "entry")])
                assert [each.record.value for each in got.found] == [b"new"]
        finally:
            await back.close()


@pytest.mark.asyncio
async def test_a_node_serves_once_somebody_has_dialled_it_and_a_lonely_one_does_not() -> None:
    async with swarm(2) as nodes:
        for node in nodes:
            assert node.dht.verdict.addresses == (node.network.addresses()[0].partition("/p2p/")[0],)
            assert node.dht.verdict.reachability == "unknown"  # which the loopback cannot tell
            assert node.dht.as_json() == {"servers": 1, "serves": True, "records": 0}
    alone = Node()
    with pytest.raises(LocalError, match="no node of the DHT yet"):
        await alone.dht.get(key("anything"))
    await alone.start()
    try:
        assert not alone.dht.verdict.serves
        assert (await alone.dht.get(key("anything"))).found == ()
        assert (await alone.dht.put(key("anything"), "", b"to nobody", 600.0)).held == 0
    finally:
        await alone.close()
