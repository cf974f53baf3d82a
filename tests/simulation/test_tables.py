"""A table of a result's means, of whoever sends it: the words in it are the owners' own, or it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.shelf import table_digest
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.swarm import peers_named

LIAR, *_ = NAMES = peers_named(3)


def complete_exchange() -> Exchange:
    """One whose means are all here."""
    world, _ = build(1, 3, LAN)
    found: list[Exchange] = []

    def look(peer: PeerId) -> None:
        round = world.node(peer).member.rounds.round if world.is_alive(peer) else None
        if round is not None and round.exchange.is_complete:
            found.append(round.exchange)

    world.watchers.append(look)
    world.run_until(lambda: bool(found), within=60.0, every=0.001)
    return found[0]


def test_the_owners_words_are_taken_and_no_others_though_the_digest_is_the_same() -> None:
    exchange = complete_exchange()
    means = exchange.table()
    exchange.check_table(means, exchange.roster, exchange._base_root, exchange._us.branches(), LIAR)
    made = means[0]
    another = next(name for name in NAMES if name != made.owner)
    for forged in (
        replace(made, signature=bytes(64)),
        replace(made, owner=another),
        replace(made, life=made.life + 1),
        replace(made, epoch=made.epoch + 1),
    ):
        table = (forged, *means[1:])
        assert table_digest(table) == table_digest(means)
        with pytest.raises(RemoteError) as raised:
            exchange.check_table(table, exchange.roster, exchange._base_root, exchange._us.branches(), LIAR)
        assert raised.value.peer == LIAR
