"""Who begins, and who is the server, when two who are connected by a relay get a direct connection.

The clock is virtual, so that two who begin at the same moment do so to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing
from libp2p.abc import INetConn, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.multiaddrs import Place
from shoal.protocol.net.circuit.meeting import Side
from shoal.protocol.net.circuit.punch import DIAL_LIMIT, Puncher

TRIP = 0.04  # seconds there and back
DIALLED = 0.02  # seconds for a dial that finds the other one
RELAY = "/ip4/192.0.2.9/tcp/4101/p2p/12D3KooWKnDdG3iXw9eTFijk3EWSunZcFi54Zka4wmtqtt6rPxc8/p2p-circuit"
DIRECT = "/ip4/192.0.2.1/tcp/4101"


class Stream:
    """One end of a stream through a relay: each message arrives after half a round trip."""

    def __init__(self, muxed: Muxed, sends: trio.MemorySendChannel[Any], hears: trio.MemoryReceiveChannel[Any]) -> None:
        self.muxed_conn = muxed
        self._sends, self._hears, self._left = sends, hears, b""

    async def read(self, n: int | None = None) -> bytes:
        while not self._left:
            due, self._left = await self._hears.receive()
            await trio.sleep_until(due)
        taken, self._left = self._left[:n], self._left[n or 1 :]
        return taken

    async def write(self, data: bytes) -> None:
        await self._sends.send((trio.current_time() + TRIP / 2, data))

    async def reset(self) -> None:
        self._sends.close()
        self._hears.close()


class Muxed:
    def __init__(self, peer: ID, address: str) -> None:
        self.peer_id, self._address = peer, address

    def get_transport_addresses(self) -> list[str]:
        return [self._address]


class Connection:
    """One end of a connection, relayed or direct."""

    is_closed = False

    def __init__(self, peer: ID, address: str) -> None:
        self.muxed_conn = Muxed(peer, address)


class Swarm:
    """The part of a libp2p swarm that hole punching uses."""

    def __init__(self) -> None:
        self.self_id = ID.from_pubkey(create_new_key_pair().public_key)
        self.direct: list[Connection] = []

    def get_connections(self, peer: ID) -> Sequence[Connection]:
        return [each for each in self.direct if each.muxed_conn.peer_id == peer]


class End(Puncher):
    """One of two peers. They connect if both dial at the same time, one of them as client."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.swarm, self.other = Swarm(), self
        super().__init__(cast(Any, self.swarm), self._open, lambda peer, step: None)
        self.roles = list[str]()
        self.dialling = ""
        self.own = Side((("192.0.2.1", 4101),))
        self._nursery = nursery

    @property
    def name(self) -> ID:
        return self.swarm.self_id

    async def _open(self, relayed: INetConn, protocol: str) -> INetStream:
        there, back = trio.open_memory_channel[Any](9), trio.open_memory_channel[Any](9)
        self._nursery.start_soon(self.other.serve, Stream(Muxed(self.name, RELAY), back[0], there[1]))
        return cast(INetStream, Stream(Muxed(self.other.name, RELAY), there[0], back[1]))

    async def _dial_plainly(self, relayed: INetConn, place: Place, trip: float) -> None:
        await trio.sleep(0.3)

    async def _dial(self, peer: ID, places: Sequence[Place], as_client: bool) -> INetConn:
        if self.dialling:
            raise TransportError("not now")
        self.dialling = "client" if as_client else "server"
        self.roles.append(self.dialling)
        try:
            with trio.move_on_after(DIAL_LIMIT):
                while {self.dialling, self.other.dialling} != {"client", "server"}:
                    await trio.sleep(0.001)
                await trio.sleep(DIALLED)
                connection = Connection(peer, DIRECT)
                self.swarm.direct.append(connection)
                return cast(INetConn, connection)
            raise TransportError("neither has reached the other", "silent")
        finally:
            self.dialling = ""


def meet(begin: Callable[[End, End, trio.Nursery], None]) -> tuple[End, End, float]:
    """The result of hole punching, and the seconds it took; `begin` starts the work of both ends."""

    async def play() -> tuple[End, End, float]:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                one, other = End(nursery), End(nursery)
                one.other, other.other = other, one
                begin(one, other, nursery)
            return one, other, trio.current_time()

    clock = trio.testing.MockClock(autojump_threshold=0)
    start = clock.current_time()
    one, other, end = trio.run(play, clock=clock)
    return one, other, end - start


async def begins(one: End, later: float = 0.0) -> None:
    await trio.sleep(later)
    direct: object = await one.begin(cast(INetConn, Connection(one.other.name, RELAY)))
    assert direct is one.swarm.direct[0]


def test_who_begins_is_the_server() -> None:
    one, other, took = meet(lambda one, other, nursery: nursery.start_soon(begins, one))
    assert (one.roles, other.roles) == (["server"], ["client"])
    assert took < 1


@pytest.mark.parametrize("later", [0.0, 0.01, 0.03, 0.2, 0.35, 0.37, 0.39])
def test_two_who_begin_at_the_same_time_agree_who_is_the_server(later: float) -> None:
    def both(one: End, other: End, nursery: trio.Nursery) -> None:
        nursery.start_soon(begins, one)
        nursery.start_soon(begins, other, later)

    one, other, took = meet(both)
    assert sorted(one.roles + other.roles) == ["client", "server"]
    assert took < 1.5


def test_who_is_called_by_two_relays_begins_once() -> None:
    def twice(one: End, other: End, nursery: trio.Nursery) -> None:
        for _ in range(2):
            nursery.start_soon(begins, one)

    one, other, took = meet(twice)
    assert (one.roles, other.roles) == (["server"], ["client"])
    assert took < 1
