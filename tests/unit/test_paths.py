"""How the path of a connection is named, from how it was made, and the best of several connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError
from shoal.protocol.base.multiaddrs import Place
from shoal.protocol.base.paths import DIRECT, PUNCHED, RELAYED, Route, best_path
from shoal.protocol.net.libp2p.swarm import make_swarm
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.transport.transport import Transport

ANNA, BERT = Identity.generate(), Identity.generate()
THERE: Place = ("203.0.113.7", 4101)
CIRCUIT = f"/ip4/192.0.2.1/tcp/4101/p2p/{BERT.peer}/p2p-circuit"


@pytest.mark.parametrize(
    ("address", "goals", "path"),
    [
        ("/ip4/203.0.113.7/tcp/4101", [THERE], PUNCHED),
        ("/ip4/203.0.113.7/tcp/50000", [THERE], DIRECT),  # the other dials plainly meanwhile, and gets through
        ("/ip4/203.0.113.7/tcp/4101", [], DIRECT),
        (CIRCUIT, [THERE], RELAYED),  # another circuit, while both dial
    ],
    ids=["to where we dial", "from elsewhere", "nobody dials", "circuit"],
)
def test_a_connection_is_punched_if_both_dialled_and_it_leads_where_we_dialled(
    address: str, goals: list[Place], path: str
) -> None:
    swarm = make_swarm(ANNA, lambda *change: None)
    peer = ID.from_string(BERT.peer)
    if goals:
        swarm.punching[peer] = goals
    connection = SimpleNamespace(
        muxed_conn=SimpleNamespace(peer_id=peer, is_initiator=True),
        get_transport_addresses=lambda: [Multiaddr(address)],
    )
    assert swarm._route_of(cast(Any, connection)) == Route(path, (address,))


def test_of_several_connections_the_best_counts() -> None:
    ways = {path: Route(path, ()) for path in (RELAYED, DIRECT, PUNCHED)}
    assert best_path(ways.values()) == DIRECT
    assert best_path([ways[RELAYED], ways[PUNCHED]]) == PUNCHED
    assert best_path([ways[RELAYED]]) == RELAYED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, "ok"),
        (TransportError("nobody there", "silent"), "silent"),
        (RemoteError("it says nonsense", BERT.peer), "failed"),
        (LocalError("no such address"), "failed"),
        (asyncio.CancelledError(), "overtaken"),
    ],
)
def test_only_a_dial_that_worked_is_noted_as_one(error: BaseException | None, code: str) -> None:
    transport = Transport(ANNA, (), lambda *stream: None, lambda peer, up: None)
    with suppress(ShoalError, asyncio.CancelledError), transport._noted(BERT.peer, CIRCUIT):
        if error is not None:
            raise error
    (step,) = transport.journal.of(BERT.peer)
    assert (step.code, step.where) == (code, CIRCUIT)


class Dialled:
    """A connection that we made."""

    muxed_conn = SimpleNamespace(is_initiator=True, why="it has ended")


def test_it_is_told_when_a_way_without_a_relay_is_there_and_when_it_is_lost() -> None:
    told: list[str] = []
    transport = Transport(
        ANNA,
        (),
        lambda *stream: None,
        lambda peer, up: told.append("up" if up else "down"),
        on_path=lambda peer: told.append(transport.path(peer)),
    )
    first, second = Dialled(), Dialled()
    relayed, punched = Route(RELAYED, (CIRCUIT,)), Route(PUNCHED, ("/ip4/203.0.113.7/tcp/4101",))
    transport._change(BERT.peer, first, relayed, True)
    assert transport.path(BERT.peer) == RELAYED
    transport._change(BERT.peer, second, punched, True)
    assert (transport.path(BERT.peer), told) == (PUNCHED, ["up", PUNCHED])
    assert transport.remote_addresses(BERT.peer) == (CIRCUIT, "/ip4/203.0.113.7/tcp/4101")
    transport._change(BERT.peer, second, punched, False)
    assert told == ["up", PUNCHED, RELAYED], "what was measured is of the way that is lost"
    transport._change(BERT.peer, first, relayed, False)
    assert told == ["up", PUNCHED, RELAYED, "down"]
