"""Whatever a peer asks us to dial: only hosts from which it is connected are dialled, and few of them."""

from __future__ import annotations

import asyncio
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dht.reachability import HOSTS, PER_ASKER_RATE, PORTS
from shoal.node.peers.dialback import DialBack
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.multiaddrs import host_and_port
from shoal.protocol.messages.dht import Reached, TryMe
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.peers.network import Network
from tests.unit.dht.hostile_kit import PEERS, addresses

ASKER, OTHER = PEERS[:2]
SOURCES = ["/ip4/198.51.100.2/tcp/51234", "/ip4/192.168.1.9/tcp/9", "/ip6/2001:db8::7/tcp/4101", "/ip4/127.0.0.1/tcp/7"]
sources = st.lists(st.sampled_from(SOURCES), unique=True)
plain = st.lists(st.integers(0, 70_000).map(lambda port: f"/ip4/9.9.9.9/tcp/{port}"), max_size=9).map(tuple)
questions = addresses | plain


class Doors:
    """A network in which the asker is found at the doors with even ports, somebody else or nobody at others."""

    def __init__(self, connected_from: list[str]) -> None:
        self._connected_from = connected_from
        self.dialled: list[str] = []

    def remote_addresses(self, peer: object) -> tuple[str, ...]:
        return tuple(self._connected_from)

    async def name_at(self, address: str) -> object:
        self.dialled.append(address)
        where = host_and_port(address)
        assert where is not None
        if where[1] % 3 == 0:
            raise TransportError("connection refused")
        return OTHER if where[1] % 2 else ASKER


def ask(doors: Doors, *questions: tuple[str, ...]) -> list[object]:
    dial_back = DialBack(cast(Network, doors), lambda verdict: None)

    async def all_in_turn() -> list[object]:
        return [await dial_back.try_for(ASKER, TryMe(each)) for each in questions]

    return asyncio.run(all_in_turn())


@given(questions, sources)
@settings(max_examples=200)
def test_the_asker_chooses_ports_and_nothing_else(named: tuple[str, ...], connected_from: list[str]) -> None:
    doors = Doors(connected_from)
    [answer] = ask(doors, named)
    assert len(doors.dialled) == len(set(doors.dialled)) <= HOSTS * PORTS
    where_from = {each.split("/")[2] for each in connected_from}
    ports = {port for each in named for port in each.split("/")[4:5]}
    for address in doors.dialled:
        _, _, host, _, port = address.split("/")
        assert host in where_from
        assert port in ports
        assert 1 <= int(port) <= 65535
    there = tuple(each for each in doors.dialled if int(each.split("/")[4]) % 6 in (2, 4))
    assert answer == Reached(there)


@given(st.lists(questions, min_size=PER_ASKER_RATE[0], max_size=9))
@settings(max_examples=30)
def test_whatever_is_asked_counts(asked: list[tuple[str, ...]]) -> None:
    doors = Doors(SOURCES)
    answers = ask(doors, *asked)
    assert [type(each) for each in answers[: PER_ASKER_RATE[0]]] == [Reached] * PER_ASKER_RATE[0]
    assert all(isinstance(each, Refused) for each in answers[PER_ASKER_RATE[0] :])
    assert len(doors.dialled) <= PER_ASKER_RATE[0] * HOSTS * PORTS
