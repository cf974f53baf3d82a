"""The store of records: what it holds, what it gives back, and what it drops."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shoal.dht.clock import WallClock
from shoal.dht.keys import COPIES, node_id, place
from shoal.dht.store import Limits, RecordStore
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import encode
from shoal.protocol.messages.dht import Record, StoreResult
from tests.unit.dht.record_kit import HOUR, KEY, NOW, key_of, unsigned

OWN = PeerId("us")
PLENTY = 1 << 20
SMALL = Limits(records=8, per_key=6, per_peer=4, per_author_and_key=2)


def put(store: RecordStore, record: Record, copy: int = 0, sender: str | None = None, now: float = NOW) -> StoreResult:
    return store.put(now, record, copy, PeerId(sender) if sender else record.author)


def found(store: RecordStore, key: Digest = KEY, now: float = NOW) -> tuple[Record, ...]:
    return store.find(now, key, (), PLENTY)[0]


def filled(records: Iterable[Record], sender: str | None = None, limits: Limits = SMALL) -> RecordStore:
    store = RecordStore(OWN, limits)
    for record in records:
        assert put(store, record, sender=sender) is StoreResult.HELD
    return store


def far_to_near(count: int) -> list[Digest]:
    """Keys by the distance of their first place from us, the farthest first."""
    keys = [key_of(str(number)) for number in range(count)]
    return sorted(keys, key=lambda key: -(int.from_bytes(place(key, 0), "big") ^ node_id(OWN)))


# -- versions -----------------------------------------------------------------------------------------------


def test_the_newest_version_is_held_in_whatever_order_they_come() -> None:
    old, new = unsigned("alice", sequence=1), unsigned("alice", sequence=2, value=b"new")
    for order in ([old, new], [new, old]):
        store = RecordStore(OWN)
        results = [put(store, record) for record in order]
        assert found(store) == (new,)
        assert results == [StoreResult.HELD, StoreResult.OUTDATED if order[0] is new else StoreResult.HELD]


def test_two_versions_of_one_sequence_come_out_the_same_everywhere() -> None:
    one, other = unsigned("alice", value=b"one"), unsigned("alice", value=b"other")
    longer = unsigned("alice", value=b"longer", expires=NOW + HOUR + 1)
    for pair in ([one, other], [one, longer], [longer, other]):
        stores = [RecordStore(OWN), RecordStore(OWN)]
        for store, order in zip(stores, (pair, pair[::-1]), strict=True):
            for record in order:
                put(store, record)
        assert found(stores[0]) == found(stores[1])
        assert longer not in pair or found(stores[0]) == (longer,)


def test_storing_again_with_a_later_expiry_extends_its_life() -> None:
    store = filled([unsigned("alice", expires=NOW + 10)])
    assert put(store, unsigned("alice", expires=NOW + 20)) is StoreResult.HELD
    assert len(store) == 1
    assert found(store, now=NOW + 19)
    assert not found(store, now=NOW + 20)


def test_a_clock_that_is_right_again_takes_what_it_took_before() -> None:
    wall = WallClock()
    store = RecordStore(OWN, wall=wall)
    for ahead, result in ((3 * 24 * HOUR, StoreResult.EXPIRED), (0, StoreResult.HELD)):
        wall.ahead = ahead
        assert put(store, unsigned("alice")) is result
    assert found(store)


def test_an_older_version_changes_nothing() -> None:
    store = filled([unsigned("alice", sequence=2)], sender="carrier")
    before = store.due(NOW + HOUR - 1, HOUR - 1, 9)
    assert put(store, unsigned("alice", sequence=1), copy=1, now=NOW + HOUR - 1) is StoreResult.OUTDATED
    assert store.due(NOW + HOUR - 0.5, HOUR, 9) == []
    assert before == [(unsigned("alice", sequence=2), 0)]


def test_nothing_outlives_its_expiry() -> None:
    store = filled(unsigned(name, expires=NOW + end) for name, end in (("a", 5), ("b", 10), ("c", 10), ("d", 20)))
    for now, left in ((4.9, 4), (5, 3), (9, 3), (10, 1), (30, 0)):
        store.expire(NOW + now)
        assert len(store) == left
    assert put(store, unsigned("e", expires=NOW + 30), now=NOW + 30) is StoreResult.EXPIRED
    assert repr(store) == "RecordStore(0 records, 0 keys, 0 authors)"


def test_a_short_life_ends_in_time_whatever_was_there_before() -> None:
    store = filled([unsigned("a", expires=NOW + 100)])
    assert found(store)
    put(store, unsigned("b", expires=NOW + 2))
    assert [record.author for record in found(store, now=NOW + 2)] == ["a"]
    put(store, unsigned("a", sequence=2, expires=NOW + 5), now=NOW + 3)
    assert found(store, now=NOW + 5) == ()


# -- what is given back -------------------------------------------------------------------------------------


def test_the_freshest_come_first_and_everybodys_before_anybodys_second() -> None:
    names = [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")]
    store = filled(unsigned(author, subkey=subkey) for author, subkey in names)
    assert [(each.author, each.subkey) for each in found(store)] == [("c", "1"), ("b", "1"), ("a", "2"), ("a", "1")]
    put(store, unsigned("b", subkey="1"))  # the same again is no news
    put(store, unsigned("a", subkey="1", sequence=2))
    assert [(each.author, each.subkey) for each in found(store)] == [("a", "1"), ("c", "1"), ("b", "1"), ("a", "2")]


def test_an_answer_is_bounded_and_says_how_many_there_are() -> None:
    records = [unsigned(name, value=bytes(100)) for name in "abcdef"]
    store = filled(records)
    size = len(encode(records[0]))
    assert store.find(NOW, KEY, (), 3 * size) == (tuple(records[:2:-1]), 6)
    assert store.find(NOW, KEY, (), 3 * size - 1) == (tuple(records[:3:-1]), 6)
    assert store.find(NOW, KEY, (), 0) == ((), 6)


def test_what_is_asked_for_by_name_is_given_once() -> None:
    store = filled(unsigned(name) for name in "abc")
    wanted = [(PeerId("c"), ""), (PeerId("a"), ""), (PeerId("a"), "other"), (PeerId("x"), ""), (PeerId("c"), "")]
    assert store.find(NOW, KEY, wanted, PLENTY) == ((unsigned("c"), unsigned("a")), 2)
    assert store.find(NOW, key_of("other"), wanted, PLENTY) == ((), 0)


# -- republishing -------------------------------------------------------------------------------------------


def test_what_nobody_has_stored_for_a_period_is_due_at_each_of_its_places() -> None:
    store = filled([unsigned("a"), unsigned("b")])
    put(store, unsigned("a"), copy=2, now=NOW + 10)
    assert store.due(NOW + 59, 60, 9) == []
    assert store.due(NOW + 60, 60, 9) == [(unsigned("a"), 0), (unsigned("b"), 0)]
    put(store, unsigned("b"), now=NOW + 65, sender="other replica")
    assert store.due(NOW + 70, 60, 9) == [(unsigned("a"), 2)]
    assert store.due(NOW + 120, 60, 9) == [(unsigned("a"), 0)]
    assert store.due(NOW + 125, 60, 9) == [(unsigned("b"), 0)]


def test_a_new_version_keeps_the_places_of_the_old_one() -> None:
    store = filled([unsigned("a")])
    put(store, unsigned("a", sequence=2), copy=1, now=NOW + 30)
    assert store.due(NOW + 60, 60, 9) == [(unsigned("a", sequence=2), 0)]


def test_those_who_store_most_do_not_delay_the_others() -> None:
    flood = [unsigned("flood", key=key_of(str(number))) for number in range(4)]
    store = filled(flood)
    put(store, unsigned("honest"), now=NOW + 1)
    assert [record.author for record, _ in store.due(NOW + 100, 60, 2)] == ["flood", "honest"]
    assert store.due(NOW + 100, 60, 9) == [(record, 0) for record in flood[1:]]


# -- who goes when there is no room -------------------------------------------------------------------------


def test_an_author_at_its_limit_under_a_key_displaces_its_own_that_ends_soonest() -> None:
    ends = [NOW + 50, NOW + 40]
    store = filled([unsigned("other"), *(unsigned("a", subkey=str(end), expires=end) for end in ends)])
    soonest = put(store, unsigned("a", subkey="30", expires=NOW + 30))
    assert soonest is StoreResult.NO_ROOM_FOR_AUTHOR_UNDER_KEY
    assert put(store, unsigned("a", subkey="60", expires=NOW + 60)) is StoreResult.HELD
    assert sorted(each.expires - NOW for each in found(store)) == [50, 60, HOUR]


@pytest.mark.parametrize("sender", ["a", "carrier"])
def test_an_author_at_its_limit_displaces_its_own_that_is_farthest(sender: str) -> None:
    keys = far_to_near(6)
    store = filled((unsigned("a", key=key) for key in keys[1:5]), sender=sender)
    assert put(store, unsigned("a", key=keys[0]), sender="second") is StoreResult.NO_ROOM_FOR_AUTHOR
    assert put(store, unsigned("a", key=keys[5]), sender="second") is StoreResult.HELD
    assert [len(found(store, key)) for key in keys] == [0, 0, 1, 1, 1, 1]


def test_who_passes_on_others_records_has_no_more_room_than_one_author() -> None:
    keys = far_to_near(6)
    store = filled((unsigned(f"author {number}", key=keys[number]) for number in range(1, 5)), sender="carrier")
    assert put(store, unsigned("x", key=keys[0]), sender="carrier") is StoreResult.NO_ROOM_FOR_SENDER
    assert put(store, unsigned("x", key=keys[5]), sender="carrier") is StoreResult.HELD
    assert put(store, unsigned("x", key=keys[0]), sender="x") is StoreResult.HELD
    assert [len(found(store, key)) for key in keys] == [1, 0, 1, 1, 1, 1]


def test_a_full_key_takes_from_whoever_has_most_there_and_never_from_single_records() -> None:
    carried = [unsigned(f"author {number}", expires=NOW + 10 + number) for number in range(4)]
    store = filled(carried, sender="carrier")
    for name in ("a", "b", "c", "d"):  # six fill the key; then the carrier loses two, those that end first
        assert put(store, unsigned(name)) is StoreResult.HELD
    assert {each.author for each in found(store)} == {"author 2", "author 3", "a", "b", "c", "d"}
    assert put(store, unsigned("e")) is StoreResult.HELD
    for name in ("f", "g"):
        assert put(store, unsigned(name)) is StoreResult.KEY_IS_FULL
    assert put(store, unsigned("a", subkey="second", expires=NOW + 9)) is StoreResult.KEY_IS_FULL
    assert put(store, unsigned("a", subkey="second", expires=NOW + HOUR + 1)) is StoreResult.HELD  # in place of its own
    assert sorted((each.author, each.subkey) for each in found(store)) == [
        *(("a", "second"), ("author 3", ""), ("b", ""), ("c", ""), ("d", ""), ("e", ""))
    ]


def test_a_full_store_takes_the_farthest_of_whoever_has_most() -> None:
    keys = far_to_near(20)
    store = filled(unsigned("big", key=key) for key in keys[:4])
    for number in range(4, 8):
        put(store, unsigned(f"single {number}", key=keys[number]))
    for number, left in ((8, 3), (9, 2), (10, 1)):
        assert put(store, unsigned(f"single {number}", key=keys[number])) is StoreResult.HELD
        assert [len(found(store, key)) for key in keys[:4]] == [0] * (4 - left) + [1] * left
    assert put(store, unsigned("late", key=keys[19])) is StoreResult.STORE_IS_FULL
    assert put(store, unsigned("single 10", key=keys[11])) is StoreResult.HELD  # nearer than its own, which goes
    assert [len(found(store, key)) for key in keys[3:12]] == [1, 1, 1, 1, 1, 1, 1, 0, 1]
    assert len(store) == SMALL.records


def test_what_its_author_brings_is_on_its_own_account() -> None:
    store = filled((unsigned(name) for name in ("a", "b", "c", "d")), sender="carrier")
    assert put(store, unsigned("a"), sender="a") is StoreResult.HELD
    assert put(store, unsigned("b", sequence=2), sender="b") is StoreResult.HELD
    assert put(store, unsigned("a"), sender="thief") is StoreResult.HELD  # and stays there
    for name in ("e", "f", "g"):
        assert put(store, unsigned(name)) is StoreResult.HELD
    assert {each.author for each in found(store)} >= {"a", "b", "e", "f", "g"}


def test_one_newcomer_may_displace_two() -> None:
    """One because its author is at its limit, and one more because this key is full."""
    far = far_to_near(50)[0]
    limits = Limits(records=8, per_key=3, per_peer=3, per_author_and_key=3)
    store = filled((unsigned("a", key=far, subkey=str(number)) for number in range(3)), limits=limits)
    for number in range(3):
        put(store, unsigned(f"author {number}", expires=NOW + 10 + number), sender="carrier")
    assert put(store, unsigned("a")) is StoreResult.HELD
    assert len(found(store, far)) == 2
    assert {each.author for each in found(store)} == {"author 1", "author 2", "a"}


def _distance(key: Digest) -> int:
    return int.from_bytes(place(key, 0), "big") ^ node_id(OWN)


def test_every_place_of_a_key_counts_for_how_near_it_is() -> None:
    """A record that is also stored for a nearer place of its key outlives one that is not."""
    by_best = sorted((key_of(str(number)) for number in range(40)), key=lambda key: _nearest(key) - _distance(key))
    better, others = by_best[0], far_to_near(12)[8:]
    assert _nearest(better) < min(map(_distance, others)) < _distance(better)
    store = filled(unsigned("a", key=key) for key in (better, *others[:3]))
    put(store, unsigned("a", key=better), copy=_copy(better))
    assert put(store, unsigned("a", key=others[3])) is StoreResult.HELD
    assert found(store, better)


def _nearest(key: Digest) -> int:
    return int.from_bytes(place(key, _copy(key)), "big") ^ node_id(OWN)


def _copy(key: Digest) -> int:
    return min(range(COPIES), key=lambda copy: int.from_bytes(place(key, copy), "big") ^ node_id(OWN))
