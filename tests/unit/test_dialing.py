"""Dialing without a network: which addresses are tried when, which peers are left alone, and what ends a wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.peers import dialing
from shoal.protocol.net.peers.dialing import Dialing, failure_allowances, host_of
from shoal.protocol.net.transport.transport import Stream, Transport

BOB = PeerId("bob")


class Hosts:
    """A transport that reaches nobody but `up`."""

    def __init__(self, *up: str) -> None:
        self.up = up
        self.dialled: list[str] = []

    async def dial(self, peer: PeerId, address: str, limit: float) -> str:
        self.dialled.append(address)
        if address in self.up:
            return address
        raise TransportError("nobody there")

    async def open_stream(self, peer: PeerId, protocol: str) -> str:
        return "a shared stream"

    def remote_addresses(self, peer: PeerId) -> tuple[str, ...]:
        return self.up


class Tasks:
    """Starts tasks, and has ended them when the block ends."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(coroutine))


@asynccontextmanager
async def dialings(count: int, hosts: Hosts) -> AsyncIterator[list[Dialing]]:
    tasks, failures = Tasks(), failure_allowances()
    yield [Dialing(BOB, cast(Transport, hosts), tasks.spawn, failures) for _ in range(count)]
    await asyncio.gather(*tasks.tasks)


@pytest.mark.asyncio
async def test_the_first_address_that_answers_is_taken() -> None:
    hosts = Hosts("/ip4/b/tcp/1")
    async with dialings(1, hosts) as (one,):
        one.learn(("/ip4/a/tcp/1", "/ip4/b/tcp/1", "/ip4/c/tcp/1"))
        await one.reach()
        assert hosts.dialled == ["/ip4/a/tcp/1", "/ip4/b/tcp/1"]


@pytest.mark.asyncio
async def test_all_who_wait_share_one_attempt_and_then_one_pause() -> None:
    hosts = Hosts()
    async with dialings(1, hosts) as (one,):
        one.learn(("/ip4/a/tcp/1",))
        outcomes = await asyncio.gather(*(one.reach() for _ in range(5)), return_exceptions=True)
        assert all(isinstance(each, TransportError) for each in outcomes)
        with pytest.raises(TransportError, match="the next attempt is in"):
            await one.reach()
        assert hosts.dialled == ["/ip4/a/tcp/1"]
        one.forget_failures()
        with pytest.raises(TransportError, match="nobody there"):
            await one.reach()


@pytest.mark.asyncio
async def test_nobody_is_flooded_through_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many peers are said to be at one host, and on whichever of its ports."""
    monkeypatch.setattr(dialing, "FAILURES", (3, 1e-6))
    hosts = Hosts("/ip4/other/tcp/1")
    async with dialings(6, hosts) as (*many, last):
        for port, each in enumerate(many):
            each.learn((f"/ip4/victim/tcp/{port}",))
            with pytest.raises(TransportError):
                await each.reach()
        assert len(hosts.dialled) == 3
        last.learn(("/ip4/victim/tcp/9", "/ip4/other/tcp/1"))
        await last.reach()
        assert hosts.dialled[3:] == ["/ip4/other/tcp/1"]


@pytest.mark.asyncio
async def test_dials_that_succeed_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "FAILURES", (1, 1e-6))
    hosts = Hosts("/ip4/a/tcp/1")
    async with dialings(4, hosts) as many:
        for each in many:
            each.learn(("/ip4/a/tcp/1",))
            await each.reach()
        assert len(hosts.dialled) == 4


@pytest.mark.asyncio
async def test_a_connection_from_the_peer_ends_the_wait_and_the_pause() -> None:
    async with dialings(1, Hosts()) as (one,):
        one.learn(("/ip4/a/tcp/1",))
        waiting = asyncio.create_task(one.reach())
        await asyncio.sleep(0)
        one.connected()
        await waiting
        await one.reach()


@pytest.mark.parametrize(
    ("address", "host"),
    [("/ip4/1.2.3.4/tcp/4101", "1.2.3.4"), ("/dns4/example.org/tcp/1", "example.org"), ("nonsense", ""), ("", "")],
)
def test_the_host_in_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.asyncio
async def test_where_the_peer_has_answered_outlives_all_that_is_said_of_it() -> None:
    proven, relayed = "/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.9/tcp/1/p2p/R/p2p-circuit"
    async with dialings(1, Hosts(proven)) as (one,):
        one.learn((proven, relayed))
        await one.reach()
        one.learn(tuple(f"/ip4/192.168.{number}.1/tcp/1" for number in range(20)))
        assert proven in one.addresses
        assert relayed in one.addresses
        assert len(one.addresses) == dialing.MAX_ADDRESSES + 1


@pytest.mark.asyncio
async def test_a_connection_of_its_own_that_was_not_to_be_had_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()
    async with dialings(1, hosts) as (one,):
        one.learn(("/ip4/a/tcp/1",))
        one.connected()  # as the peer has dialled us
        for _ in range(3):
            assert await one.open_stream("bulk", False, own_connection=True) == cast(Stream, "a shared stream")
        assert hosts.dialled == ["/ip4/a/tcp/1"], "not again and again"
        monkeypatch.setattr(dialing, "OWN_PAUSE", 0.0)
        one._no_own_until = 0.0
        for _ in range(2):
            assert await one.open_stream("bulk", False, own_connection=True) == cast(Stream, "a shared stream")
        assert hosts.dialled == ["/ip4/a/tcp/1"] * 3


@pytest.mark.asyncio
async def test_a_peer_has_ended_once_its_host_refuses_all_that_it_listened_at() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    here = f"/ip4/127.0.0.1/tcp/{port}"
    async with dialings(2, Hosts("/ip4/127.0.0.1/tcp/1")) as (one, other):
        one.learn((here,))
        assert not await one.has_ended(), "it was at no host that we know"
        one.connected()
        assert not await one.has_ended(), "it listens"
        server.close()
        await server.wait_closed()
        assert await one.has_ended()
        one.learn(("/ip4/192.0.2.1/tcp/1",))
        assert await one.has_ended(), "it was never at that other host"
        other.connected()
        assert not await other.has_ended(), "nobody knows where it listens"
