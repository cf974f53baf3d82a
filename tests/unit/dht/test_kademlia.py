"""The core as a whole: small networks in virtual time."""

from __future__ import annotations

import random

import pytest

from shoal.dht.effects import Call, Got, Put
from shoal.dht.kademlia import MAX_QUEUED, MAX_RUNNING, Kademlia
from shoal.dht.record import RECORDS, make_record
from shoal.dht.upkeep import REFRESH
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import Digest, digest
from shoal.protocol.messages.dht import FindNode, FindRecords, Greet, Record, Store
from shoal.protocol.messages.node import GetManifest
from shoal.protocol.net.system.identity import Identity
from tests.simulation.dht_world import DhtWorld, Node, Weather, make_peer
from tests.simulation.signing import FakeSigner
from tests.unit.dht.core_kit import NOW, contact

LAN = Weather(fastest=0.001, slowest=0.002, loss=0.0)
KEY = digest("test", b"key")


class Village:
    """A small network that has grown node by node, each knowing the first."""

    def __init__(self, servers: int, clients: int = 0, weather: Weather = LAN) -> None:
        self.world = DhtWorld(7, weather)
        self.events: dict[int, Got | Put] = {}
        self.world.on_event = lambda node, event: self._hear(event)
        self.nodes: list[Node] = []
        rng = random.Random(7)
        for number in range(servers + clients):
            node = self.world.add(make_peer(rng), number < servers)
            if self.nodes:
                self.world.carry_out(node, node.core.meet(self.world.now, [self.nodes[0].contact]))
            self.nodes.append(node)
            self.world.run(1.0)
        self.world.run(30.0)

    def _hear(self, event: object) -> None:
        if isinstance(event, Got | Put):
            assert event.ticket not in self.events, "told twice"
            self.events[event.ticket] = event

    def record(self, author: Node, sequence: int = 1, key: Digest = KEY) -> Record:
        expires = int(self.world.now) + 3600
        return make_record(key, "", b"value", sequence, expires, FakeSigner(author.peer))

    def put(self, node: Node, record: Record) -> Put:
        ticket = len(self.events) + 1
        self.world.carry_out(node, node.core.put(self.world.now, ticket, record))
        self.world.run(5.0)
        put = self.events[ticket]
        assert isinstance(put, Put)
        return put

    def get(self, node: Node, key: Digest = KEY, seconds: float = 5.0) -> Got:
        ticket = len(self.events) + 1
        self.world.carry_out(node, node.core.get(self.world.now, ticket, key))
        self.world.run(seconds)
        got = self.events[ticket]
        assert isinstance(got, Got)
        return got


def test_who_begins_to_serve_tells_all_who_are_connected() -> None:
    """They may have been told that it does not, and know no other server."""
    me, other, here = make_peer(random.Random(1)), contact(), ("/ip4/192.0.2.7/tcp/4101",)
    core = Kademlia(me, FakeSigner(me), random.Random(1))
    core.link(NOW, other.peer, True)
    assert not [each for each in core.set_contact(NOW, here, False) if isinstance(each, Call)]
    [told] = [each for each in core.set_contact(NOW, here, True) if isinstance(each, Call)]
    assert (told.to.peer, told.message) == (other.peer, Greet(here, True))


def test_a_node_alone_answers_for_itself() -> None:
    village = Village(1)
    [alone] = village.nodes
    assert village.get(alone).found == ()
    assert village.put(alone, village.record(alone)).held == 3
    assert village.get(alone).found[0].replicas == 1


def test_all_get_to_know_all_in_a_small_network_and_clients_are_in_no_table() -> None:
    village = Village(10, clients=5)
    servers = {node.peer for node in village.nodes[:10]}
    for node in village.nodes:
        assert {each.peer for each in node.core.contacts()} == servers - {node.peer}
        assert node.core.has_joined
    assert not village.world.errors


def test_in_a_small_network_calls_are_few() -> None:
    village = Village(24, clients=4)
    reader, author = village.nodes[26], village.nodes[3]
    put = village.put(author, village.record(author))
    assert put.held == put.wanted == 15
    assert put.calls <= 15
    got = village.get(reader)
    assert (len(got.found), got.calls, got.hops) == (1, 3, 1)
    missing = village.get(reader, digest("test", b"missing"))
    assert (len(missing.found), missing.calls) == (0, 6)


def test_a_third_killed_or_stopped_delays_a_get_by_a_moment() -> None:
    village = Village(32)
    author, reader = village.nodes[1], village.nodes[0]
    village.put(author, village.record(author))
    for node in village.nodes[20:]:
        village.world.kill(node)
    assert len(village.get(reader, seconds=1.0).found) == 1


def test_a_second_version_is_what_everybody_reads() -> None:
    village = Village(12, clients=3)
    author = village.nodes[2]
    village.put(author, village.record(author))
    village.put(author, village.record(author, sequence=2))
    for node in village.nodes:
        assert [found.record.sequence for found in village.get(node).found] == [2]


def test_a_node_that_only_knows_a_client_finds_servers_through_it() -> None:
    village = Village(5, clients=1)
    client = village.nodes[-1]
    client.serves = True  # it can be called, and says that it does not serve
    newcomer = village.world.add(make_peer(random.Random(1)), False)
    village.world.carry_out(newcomer, newcomer.core.meet(village.world.now, [client.contact]))
    village.world.run(20.0)
    assert len(newcomer.core.contacts()) == 5


def test_a_network_that_grows_is_noticed_by_those_that_were_first() -> None:
    village = Village(2, clients=1)
    first = village.nodes[2]
    for number in range(10):
        node = village.world.add(make_peer(random.Random(f"newcomer {number}")), True)
        village.world.carry_out(node, node.core.meet(village.world.now, [village.nodes[0].contact]))
    village.world.run(REFRESH / 5)
    assert len(first.core.contacts()) == 12


def test_records_survive_those_that_held_them_first() -> None:
    village = Village(8)
    author = village.nodes[0]
    village.put(author, village.record(author))
    rng = random.Random(3)
    for node in village.nodes[:7]:
        newcomer = village.world.add(make_peer(rng), True)
        village.world.carry_out(newcomer, newcomer.core.meet(village.world.now, [village.nodes[7].contact]))
        village.world.run(60.0)
        village.world.kill(node)
    assert len(village.get(village.nodes[7]).found) == 1
    assert len(village.get(newcomer).found) == 1


def test_who_leaves_hands_over() -> None:
    village = Village(6)
    author, *others = village.nodes
    village.put(author, village.record(author))
    held = [node.core.records_held for node in others]
    leaver = others[0]
    effects = leaver.core.leave(village.world.now)
    assert any(isinstance(effect, Call) and isinstance(effect.message, Store) for effect in effects)
    assert all(held)


def test_many_gets_wait_for_their_turn_and_too_many_are_refused_in_words() -> None:
    village = Village(3)
    node = village.nodes[0]
    waiting = MAX_RUNNING + MAX_QUEUED
    for ticket in range(waiting):
        assert isinstance(node.core.get(village.world.now, ticket, KEY), list)
    with pytest.raises(LocalError, match="waiting"):
        node.core.get(village.world.now, waiting, KEY)


def test_with_real_signatures_it_is_the_same() -> None:
    identity = Identity.of_seed(b"s" * 32)
    world = DhtWorld(1, LAN)
    nodes = [
        world.add(
            make_peer(random.Random(n)), True, lambda peer, signer, rng: Kademlia(peer, identity.signer(RECORDS), rng)
        )
        for n in range(4)
    ]
    for node in nodes[1:]:
        world.carry_out(node, node.core.meet(world.now, [nodes[0].contact]))
    world.run(10.0)
    events: list[object] = []
    world.on_event = lambda node, event: events.append(event)
    record = make_record(KEY, "", b"value", 1, int(world.now) + 60, identity.signer(RECORDS))
    world.carry_out(nodes[1], nodes[1].core.put(world.now, 1, record))
    world.run(5.0)
    world.carry_out(nodes[2], nodes[2].core.get(world.now, 2, KEY))
    world.run(5.0)
    put, got = events
    assert isinstance(put, Put)
    assert isinstance(got, Got)
    assert put.held == 12
    assert got.found[0].record == record


def test_what_is_not_asked_of_the_dht_is_refused() -> None:
    core = Kademlia(contact().peer, FakeSigner(contact().peer), random.Random(1))
    for message in (GetManifest("0" * 64), FindRecords(KEY, 3, ()), Greet(("x",), True)):
        with pytest.raises(RemoteError):
            core.serve(NOW, contact().peer, message)
    answer, effects = core.serve(NOW, contact().peer, FindNode(KEY))
    assert effects == []
    assert answer.closer == ()  # type: ignore[attr-defined]
