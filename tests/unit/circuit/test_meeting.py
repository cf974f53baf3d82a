"""Where two can meet, and the reason why they cannot."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from shoal.protocol.net.circuit.accounts import Refused
from shoal.protocol.net.circuit.meeting import (
    MAX_PLACES,
    NowhereToMeet,
    Side,
    connect_message,
    goals,
    nowhere,
    side_from,
    side_of,
)
from shoal.protocol.net.circuit.punch import Puncher
from shoal.protocol.net.measure.journal import Step

FOUR, SIX, THERE = ("203.0.113.7", 4101), ("2a01:4f8::7", 4101), ("198.51.100.7", 4101)
BOTH = Side((FOUR, SIX))
SYMMETRIC, UNKNOWN = Side(is_symmetric=True), Side()


@pytest.mark.parametrize("side", [BOTH, Side((SIX,)), SYMMETRIC, UNKNOWN])
def test_what_one_says_of_itself_the_other_hears(side: Side) -> None:
    assert side_from(connect_message(side)) == side


def test_what_no_router_shows_is_no_place() -> None:
    named = ["/ip4/192.168.1.7/tcp/4101", "/ip4/127.0.0.1/tcp/22", "/dns4/example.org/tcp/1"]
    message = HolePunch(type=HolePunch.CONNECT, ObsAddrs=[Multiaddr(each).to_bytes() for each in named] + [b"nonsense"])
    assert side_from(message) == UNKNOWN
    many = Side(tuple(("203.0.113.7", port) for port in range(1, 9)))
    assert side_from(connect_message(many)).places == many.places[:MAX_PLACES]
    with pytest.raises(Refused):
        side_from(HolePunch(type=HolePunch.SYNC))


def test_who_is_met_by_one_version_of_ip_is_not_symmetric() -> None:
    assert side_of([f"/ip6/{SIX[0]}/tcp/4101"], is_symmetric=True) == Side((SIX,))
    assert side_of([], is_symmetric=True) == SYMMETRIC


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (Side((THERE,)), BOTH, [FOUR]),
        (Side((SIX,)), BOTH, [SIX]),
        (BOTH, Side((SIX,)), [SIX]),
        (BOTH, Side((SIX, FOUR)), [FOUR]),
        (BOTH, Side((FOUR, THERE)), [FOUR, THERE]),
    ],
)
def test_they_meet_by_a_version_of_ip_that_both_have(own: Side, other: Side, expected: list[tuple[str, int]]) -> None:
    assert goals(own, other) == expected
    assert nowhere(own, other) is None


@pytest.mark.parametrize(
    ("own", "other", "code"),
    [
        (SYMMETRIC, BOTH, "no-place-here"),
        (BOTH, SYMMETRIC, "no-place-there"),
        (SYMMETRIC, SYMMETRIC, "no-place-both"),
        (UNKNOWN, BOTH, "no-place-yet"),
        (BOTH, UNKNOWN, "no-place-yet"),
        (UNKNOWN, SYMMETRIC, "no-place-there"),
        (Side((FOUR,)), Side((SIX,)), "unreachable"),
    ],
)
def test_why_they_cannot_meet(own: Side, other: Side, code: str) -> None:
    with pytest.raises(NowhereToMeet) as caught:
        goals(own, other)
    assert caught.value.code == code


class Caller:
    """The stream of one that begins, says some words, and then nothing, or leaves; and the swarm, which is empty."""

    def __init__(self, leaves: bool, *words: HolePunch) -> None:
        self.muxed_conn = self
        self.peer_id = ID.from_pubkey(create_new_key_pair().public_key)
        self._leaves = leaves
        self._data = b"".join(bytes([word.ByteSize()]) + word.SerializeToString() for word in words)

    async def read(self, n: int | None = None) -> bytes:
        if not self._data and self._leaves:
            raise ConnectionResetError("cut")
        if not self._data:
            await trio.sleep_forever()
        taken, self._data = self._data[:n], self._data[n:]
        return taken

    async def write(self, data: bytes) -> None:
        pass

    async def reset(self) -> None:
        pass

    def get_transport_addresses(self) -> list[str]:
        return [f"/ip4/198.51.100.1/tcp/4101/p2p/{self.peer_id}/p2p-circuit"]

    def get_connections(self, peer: ID) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("own", "leaves", "words", "code"),
    [
        (BOTH, False, (), "silent"),
        (BOTH, True, (), "failed"),
        (SYMMETRIC, True, (), "failed"),
        (BOTH, False, (connect_message(BOTH),), "silent"),
        (BOTH, True, (connect_message(SYMMETRIC),), "no-place-there"),
        (BOTH, True, (connect_message(UNKNOWN),), "no-place-yet"),
        (UNKNOWN, True, (connect_message(BOTH),), "no-place-yet"),
        (SYMMETRIC, True, (connect_message(BOTH),), "no-place-here"),
    ],
)
def test_who_is_called_knows_why_it_came_to_nothing(
    own: Side, leaves: bool, words: tuple[HolePunch, ...], code: str
) -> None:
    steps: list[Step] = []

    async def main() -> None:
        caller: Any = Caller(leaves, *words)
        puncher = Puncher(caller, caller, lambda peer, step: steps.append(step))
        puncher.own = own
        await puncher.serve(caller)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [step.code for step in steps] == [code]
