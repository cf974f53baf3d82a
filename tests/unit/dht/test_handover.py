"""Records follow the nearest servers: newcomers get theirs at once, and all are stored again from time to time."""

from __future__ import annotations

import random

from shoal.dht.calls import IN_FLIGHT, Calls
from shoal.dht.handover import BATCH, GIVERS, MAX_ON_LEAVE, REPUBLISH_AFTER, Handover
from shoal.dht.keys import REPLICAS, node_id, place
from shoal.dht.store import RecordStore
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.dht import Contact, Record, Store
from tests.unit.dht.core_kit import ME, Wire, contacts, distance, filled
from tests.unit.dht.record_kit import KEY, NOW, key_of, unsigned

RECORD = unsigned("alice")


def number_of(key: Digest, copy: int) -> int:
    return int.from_bytes(place(key, copy), "big")


TARGET = number_of(KEY, 0)
EVERYBODY = sorted(contacts(60), key=lambda each: distance(each, TARGET))
MINE = node_id(ME) ^ TARGET
NEARER = [each for each in EVERYBODY if distance(each, TARGET) < MINE]
FARTHER = [each for each in EVERYBODY if distance(each, TARGET) > MINE]


class Keeper:
    """We, who hold RECORD at one place, in a network of `known` servers."""

    def __init__(self, known: list[Contact], *records: Record) -> None:
        self.table = filled(known, NOW)
        calls = Calls(self.table)
        self.wire = Wire(calls)
        self.store = RecordStore(ME)
        self.handover = Handover(ME, random.Random(1), self.table, calls, self.store)
        for record in records or (RECORD,):
            self.store.put(NOW, record, 0, PeerId("somebody"))

    def come(self, newcomer: Contact) -> list[Store]:
        self.table.add(NOW, newcomer)
        self.handover.welcome(NOW, newcomer)
        asks = self.wire.look()
        assert all(ask.to == newcomer for ask in asks)
        return [ask.message for ask in asks if isinstance(ask.message, Store)]


def test_a_newcomer_among_the_nearest_is_given_what_lies_there() -> None:
    assert Keeper(FARTHER[:10]).come(FARTHER[11]) == []
    assert Keeper(FARTHER[1:11]).come(FARTHER[0]) == [Store((RECORD,), 0)]


def test_only_by_the_nearest_of_those_that_were_there() -> None:
    for nearer in range(GIVERS + 1):
        given = Keeper(NEARER[1 : 1 + nearer] + FARTHER[:10]).come(NEARER[0])
        assert bool(given) == (nearer < GIVERS)


def test_many_records_go_in_few_calls() -> None:
    records = [unsigned(f"author {number}") for number in range(BATCH + 3)]
    given = Keeper(FARTHER[1:11], *records).come(FARTHER[0])
    assert [len(store.records) for store in given] == [BATCH, 3]


def test_what_has_expired_is_given_to_nobody() -> None:
    keeper = Keeper(FARTHER[1:11])
    keeper.store.expire(RECORD.expires + 1)
    keeper.table.add(NOW, FARTHER[0])
    keeper.handover.welcome(RECORD.expires + 1, FARTHER[0])
    assert keeper.wire.look() == []
    assert keeper.store.places(RECORD.expires + 1) == []


def test_each_place_for_which_something_is_held_is_known_as_long_as_that_is() -> None:
    keeper = Keeper(FARTHER[1:11])
    for copy in (2, 0):
        keeper.store.put(NOW, unsigned("bob"), copy, PeerId("bob"))
    assert sorted(keeper.store.places(NOW)) == [(KEY, copy, number_of(KEY, copy)) for copy in (0, 2)]


def test_what_nobody_has_stored_for_long_is_stored_with_all_the_nearest() -> None:
    keeper = Keeper(FARTHER[:20])
    keeper.handover.republish(NOW + REPUBLISH_AFTER / 2)
    assert keeper.wire.look() == [], "not yet"
    keeper.handover.republish(NOW + 2 * REPUBLISH_AFTER)
    assert [(ask.to, ask.message) for ask in keeper.wire.look()] == [
        (each, Store((RECORD,), 0)) for each in FARTHER[:REPLICAS]
    ]
    keeper.handover.republish(NOW + 2 * REPUBLISH_AFTER + 60)
    assert len(keeper.wire.look()) == REPLICAS, "it is due again a period later"


def test_not_by_one_that_others_are_nearer_than() -> None:
    keeper = Keeper(NEARER[:REPLICAS] + FARTHER[:5])
    keeper.handover.republish(NOW + 2 * REPUBLISH_AFTER)
    assert keeper.wire.look() == []


def test_who_leaves_leaves_its_records() -> None:
    keeper = Keeper(FARTHER[:20])
    keeper.handover.leave(NOW + 1)
    assert [ask.to for ask in keeper.wire.look()] == FARTHER[:REPLICAS]


def test_last_words_are_few_calls_with_many_records_and_are_bounded() -> None:
    keeper = Keeper(
        FARTHER[:REPLICAS], *(unsigned(f"author {number}", key_of("many")) for number in range(2 * MAX_ON_LEAVE))
    )
    keeper.handover.leave(NOW + 1)
    calls = keeper.wire.look()
    given = [ask.message for ask in calls if isinstance(ask.message, Store)]
    assert len(calls) <= IN_FLIGHT, "what stands in the queue never leaves"
    assert sum(len(store.records) for store in given) == REPLICAS * MAX_ON_LEAVE
