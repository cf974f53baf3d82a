"""Gets: the newest wins, forgers are blamed, places and quorum decide when it is over."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.dht.calls import Calls
from shoal.dht.effects import Blamed, Call, Found, Got
from shoal.dht.get import WANTED_PER_PATH, Get
from shoal.dht.keys import COPIES
from shoal.dht.record import MAX_LIFE
from shoal.protocol.messages.dht import Contact, FindRecords, Record, Records, Store, Stored
from tests.unit.dht.core_kit import ME, Wire, contacts, filled
from tests.unit.dht.record_kit import ALICE, BOB, HOUR, KEY, NOW, key_of, signed_record, signer_of

OLD, NEW = signed_record(sequence=1), signed_record(sequence=2)
FORGED = dataclasses.replace(NEW, sequence=9)
SERVERS = contacts(30)


class Reading:
    """A get in a network of SERVERS that are all known."""

    def __init__(self, *held: Record, quorum: int = 2, subkeys: tuple = (), servers: list[Contact] = SERVERS) -> None:
        table = filled(servers, NOW)
        calls = Calls(table)
        self.wire = Wire(calls)
        self.get = Get(7, FindRecords(KEY, 0, subkeys), quorum, signer_of(BOB), calls)
        self.get.begin(NOW, ME, table, held)
        self.wire.look()

    def questions(self, copy: int | None = None) -> list[Call]:
        asks = [ask for ask in self.wire.look() if isinstance(ask.message, FindRecords)]
        return [ask for ask in asks if copy is None or ask.message.copy == copy]  # type: ignore[attr-defined]

    def answer(self, ask: Call, *records: Record) -> None:
        self.wire.answer(NOW, ask, Records(records, len(records), ()))

    def all_answer(self, *records: Record) -> Got:
        while not self.get.is_over:
            for ask in self.questions():
                self.answer(ask, *records)
        return self.got()

    def got(self) -> Got:
        [got] = [event for event in self.wire.told if isinstance(event, Got)]
        return got

    def stores(self) -> list[Store]:
        return [ask.message for ask in self.wire.look() if isinstance(ask.message, Store)]


def test_one_call_for_each_place_is_enough_where_all_agree() -> None:
    reading = Reading()
    assert sorted(ask.message.copy for ask in reading.questions()) == [0, 1, 2]  # type: ignore[attr-defined]
    got = reading.all_answer(NEW)
    assert got == Got(7, (Found(NEW, COPIES),), answers=COPIES, hops=1, calls=COPIES)
    assert reading.stores() == []


def test_a_missing_key_costs_the_nearest_of_each_place() -> None:
    got = Reading().all_answer()
    assert got == Got(7, (), answers=COPIES * WANTED_PER_PATH, hops=1, calls=COPIES * WANTED_PER_PATH)


def test_the_newest_wins_and_who_lacked_it_is_given_it() -> None:
    reading = Reading()
    first, second, third = reading.questions()
    reading.answer(first, OLD)
    reading.answer(second, OLD)
    reading.answer(third, NEW)
    assert not reading.get.is_over, "two places have given an old version"
    got = reading.all_answer(NEW)
    assert got.found[0].record == NEW
    assert reading.stores() == [Store((NEW,), 0), Store((NEW,), 1)]


def test_our_own_copy_hides_nothing_and_counts_as_one() -> None:
    got = Reading(OLD).all_answer(NEW)
    assert got.found == (Found(NEW, COPIES),)
    assert Reading(NEW).all_answer(NEW).found == (Found(NEW, COPIES + 1),)


def test_one_place_alone_decides_nothing() -> None:
    reading = Reading()
    while not reading.get.is_over:
        for ask in reading.questions():
            captured = ask.message.copy == 0  # type: ignore[attr-defined]
            reading.answer(ask, OLD if captured else NEW)
    assert reading.got().found[0].record == NEW


def test_one_place_that_denies_it_hides_nothing() -> None:
    reading = Reading()
    for ask in reading.questions(0):
        reading.answer(ask)
    assert reading.all_answer(NEW).found[0].record == NEW


def test_a_replica_alone_is_reported_as_one() -> None:
    reading = Reading()
    reading.answer(reading.questions()[0], NEW)
    assert reading.all_answer().found == (Found(NEW, 1),)


def test_a_larger_quorum_asks_more() -> None:
    got = Reading(quorum=5).all_answer(NEW)
    assert got.found[0].replicas >= 5


BAD = [
    (FORGED,),
    (NEW, OLD),
    (signed_record(key=key_of("another")),),
    (dataclasses.replace(NEW, expires=NOW + MAX_LIFE + HOUR),),
]


@pytest.mark.parametrize("records", BAD)
def test_who_shows_what_nobody_said_is_blamed_and_nothing_is_believed(records: tuple[Record, ...]) -> None:
    reading = Reading()
    liar = reading.questions()[0]
    reading.answer(liar, *records)
    assert [event.peer for event in reading.wire.told if isinstance(event, Blamed)] == [liar.to.peer]
    assert reading.all_answer(OLD).found[0].record == OLD


def test_an_expired_record_is_left_aside_without_blame() -> None:
    got = (reading := Reading()).all_answer(signed_record(expires=NOW - 1))
    assert got.found == ()
    assert reading.wire.told == [got]


def test_entries_of_several_authors_are_found_together() -> None:
    hers, his = signed_record(ALICE), signed_record(BOB, subkey="x")
    reading = Reading()
    for ask in reading.questions(0):
        reading.answer(ask, hers)
    got = reading.all_answer(his, hers)
    assert {found.record.author for found in got.found} == {ALICE.peer, BOB.peer}
    assert all(found.replicas >= 2 for found in got.found)


def test_of_named_entries_others_are_refused() -> None:
    reading = Reading(subkeys=((ALICE.peer, ""),))
    first = reading.questions()[0]
    assert first.message.subkeys == ((ALICE.peer, ""),)  # type: ignore[attr-defined]
    reading.answer(first, signed_record(BOB))
    assert isinstance(reading.wire.told[0], Blamed)


def test_silent_servers_are_gone_around() -> None:
    reading = Reading()
    for ask in list(reading.questions()):
        reading.wire.fail(NOW, ask)
    assert reading.all_answer(NEW).found[0].record == NEW


def test_with_nobody_there_it_ends_with_what_we_hold() -> None:
    assert Reading(servers=[]).got() == Got(7, (), 0, 0, 0)
    assert Reading(NEW, servers=[]).got().found == (Found(NEW, 1),)


def test_it_is_told_once_whatever_comes_late() -> None:
    reading = Reading(servers=SERVERS[:4])
    asks = list(reading.questions())
    reading.all_answer(NEW)
    for ask in asks:
        reading.wire.answer_again(NOW, ask, Records((), 0, ()))
    assert reading.got()
    assert Stored not in map(type, reading.wire.told)
