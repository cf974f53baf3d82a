"""Joins, and what keeps a table alive."""

from __future__ import annotations

import random

from shoal.dht.calls import Calls
from shoal.dht.effects import Blamed
from shoal.dht.greeting import Greeter
from shoal.dht.keys import node_id
from shoal.dht.table import UNANSWERED
from shoal.dht.upkeep import CLIENT, GREETED_PER_ANSWER, REFRESH, SERVER, Upkeep
from shoal.protocol.messages.dht import Contact, FindNode, Greet, Greeted, Nodes, Stored
from tests.unit.dht.core_kit import FAR, ME, NOW, Wire, contact, contacts, filled, in_bucket
from tests.unit.dht.test_kademlia import Village


class Keeping:
    """The upkeep of a table that has heard `known`."""

    def __init__(self, known: list[Contact]) -> None:
        self.table = filled(known)
        calls = Calls(self.table)
        self.wire = Wire(calls)
        self.greeter = Greeter(ME, self.table, calls, lambda now, who, serves: self.upkeep.met(now, who, serves))
        self.upkeep = Upkeep(ME, random.Random(1), self.table, calls, self.greeter)

    def asked(self, kind: type) -> list[Contact]:
        return [ask.to for ask in self.wire.look() if isinstance(ask.message, kind)]


def test_the_first_server_begins_the_join_and_others_do_not_begin_it_again() -> None:
    keeping = Keeping([])
    for each in contacts(2):
        keeping.greeter.greet(NOW, each)
        ask = keeping.wire.look()[-1]
        keeping.wire.answer(NOW, ask, Greeted(each.addresses, True, int(NOW)))
    [ask] = [ask for ask in keeping.wire.asks if isinstance(ask.message, FindNode)]
    assert int.from_bytes(ask.message.target, "big") == node_id(ME)  # type: ignore[attr-defined]
    keeping.wire.answer(NOW, ask, Nodes(()))
    assert keeping.upkeep.has_joined


def test_only_who_was_not_heard_for_long_is_asked_whether_it_is_there() -> None:
    keeping = Keeping(known := contacts(3))
    keeping.upkeep.tick(NOW + CLIENT.stale - 1)
    assert keeping.asked(Greet) == []
    keeping.table.heard(NOW + CLIENT.stale, known[0].peer)
    keeping.upkeep.tick(NOW + CLIENT.stale + 1)
    assert keeping.asked(Greet) == [known[1]]


def test_a_silent_one_is_asked_again_soon() -> None:
    keeping = Keeping(known := contacts(3))
    keeping.table.silent(NOW, known[2].peer)
    keeping.upkeep.tick(NOW + SERVER.tick)
    assert keeping.asked(Greet) == []
    keeping.upkeep.tick(NOW + 2 * SERVER.tick)
    assert keeping.asked(Greet) == [known[2]]


def test_a_bucket_is_refreshed_until_nobody_new_is_named() -> None:
    keeping = Keeping(in_bucket(FAR, 8))
    keeping.upkeep.has_joined = True
    keeping.upkeep.tick(NOW + REFRESH + 1)
    [ask] = [ask for ask in keeping.wire.look() if isinstance(ask.message, FindNode)]
    keeping.wire.answer(NOW + REFRESH + 1, ask, Nodes(tuple(in_bucket(FAR, 9))))
    assert len(keeping.asked(Greet)) == GREETED_PER_ANSWER
    assert not keeping.table.is_complete(node_id(ask.to.peer), 5, NOW + REFRESH + 2)
    keeping.upkeep.tick(NOW + REFRESH + 10)
    [ask] = [ask for ask in keeping.wire.look() if isinstance(ask.message, FindNode)]
    keeping.wire.answer(NOW + REFRESH + 11, ask, Nodes(()))
    assert keeping.table.is_complete(node_id(ask.to.peer), 5, NOW + REFRESH + 12)


def test_who_answers_a_refresh_with_something_else_is_blamed() -> None:
    keeping = Keeping(in_bucket(FAR, 8))
    keeping.upkeep.has_joined = True
    keeping.upkeep.tick(NOW + REFRESH + 1)
    [ask] = [ask for ask in keeping.wire.look() if isinstance(ask.message, FindNode)]
    keeping.wire.answer(NOW + REFRESH + 1, ask, Stored(()))
    assert isinstance(keeping.wire.told[0], Blamed)


def test_a_client_that_answers_is_asked_for_servers_only_while_we_know_none() -> None:
    keeping = Keeping([])
    keeping.upkeep.met(NOW, client := contact(), False)
    assert keeping.asked(FindNode) == [client]
    full = Keeping(contacts(1))
    full.upkeep.met(NOW, client, False)
    assert full.asked(FindNode) == []


def test_a_quiet_network_costs_little() -> None:
    village = Village(20, clients=10)
    before = village.world.calls.total()
    village.world.run(3600.0)
    per_node = (village.world.calls.total() - before) / 30
    assert per_node < 250, "three or four short calls a minute, for it may grow"


def test_a_node_that_was_cut_off_keeps_its_table_and_finds_all_again() -> None:
    village = Village(12)
    lonely = village.nodes[5]
    away = {peer: node for peer, node in village.world.nodes.items() if node is not lonely}
    for peer in away:
        del village.world.nodes[peer]
    village.world.run(2 * SERVER.stale)
    assert len(lonely.core.contacts()) == 11
    village.world.nodes.update(away)
    village.world.run(UNANSWERED)
    village.put(village.nodes[0], village.record(village.nodes[0]))
    assert len(village.get(lonely).found) == 1
