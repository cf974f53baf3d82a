"""The routing table: who gets in, who goes, who is nearest."""

from __future__ import annotations

import random
from math import inf

import pytest

from shoal.dht.keys import BITS, K, node_id
from shoal.dht.table import FRESH, PER_NARROW, PER_WIDE, UNANSWERED, WAITING, Table
from shoal.protocol.messages.dht import Contact
from tests.unit.dht.core_kit import FAR, ME, NOW, contact, contacts, distance, filled, in_bucket


def test_a_crowd_is_nearer_than_we() -> None:
    table = filled(contacts(100))
    for target in map(random.Random(1).getrandbits, [256] * 20):
        nearer = sum(distance(known.contact, target) < node_id(ME) ^ target for known in table.known())
        assert table.nearer_at_least(target) <= nearer
        assert table.rank(target, 1000) == nearer
    assert table.nearer_at_least(node_id(ME) ^ (1 << 255)) == sum(
        known.id ^ node_id(ME) >= 1 << 255 for known in table.known()
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_closest_are_those_that_a_sort_finds(seed: int) -> None:
    table = filled(contacts(200))
    members = [known.contact for known in table.known()]
    rng = random.Random(seed)
    for target in (rng.getrandbits(256), node_id(ME), node_id(members[0].peer)):
        nearest = sorted(members, key=lambda each: distance(each, target))
        for count in (1, 5, K, 500):
            assert table.closest(target, count) == nearest[:count]


def test_old_ones_that_live_stay_and_newcomers_wait() -> None:
    *old, young = in_bucket(FAR, K + 1)
    table = filled(old)
    assert not table.add(NOW + 1, young)
    assert [known.contact for known in table.known()] == old


def test_who_is_silent_twice_makes_room_for_who_waits() -> None:
    *old, young, younger = in_bucket(FAR, K + 2)
    table = filled(old)
    table.add(NOW + 1, young)
    table.add(NOW + 2, younger)
    table.silent(NOW + 3, old[3].peer)
    assert old[3].peer in table
    table.heard(NOW + 4, old[0].peer)
    table.silent(NOW + 5, old[3].peer)
    assert old[3].peer not in table
    assert younger.peer in table
    assert young.peer not in table


def test_a_newcomer_takes_the_place_of_a_silent_one_at_once() -> None:
    *old, young = in_bucket(FAR, K + 1)
    table = filled(old)
    table.silent(NOW + 1, old[7].peer)
    assert table.add(NOW + 2, young)
    assert old[7].peer not in table


def test_when_all_are_silent_it_is_us_and_nobody_goes() -> None:
    known = contacts(10)
    table = filled(known)
    for _ in range(5):
        for each in known:
            table.silent(NOW + 1, each.peer)
    assert len(table) == 10
    assert len(table.closest(0, 5)) == 5, "there is nobody else to ask"


def test_a_silent_one_is_named_to_nobody_until_it_is_heard() -> None:
    known = contacts(5)
    table = filled(known)
    table.silent(NOW + 1, known[0].peer)
    assert known[0] not in table.closest(0, K)
    table.heard(NOW + 2, known[0].peer)
    assert known[0] in table.closest(0, K)


def test_one_host_cannot_fill_a_bucket() -> None:
    table = filled(in_bucket(FAR, K, "/ip4/8.8.8.8/tcp/1"))
    assert len(table) == PER_NARROW
    for each in in_bucket(FAR, K):
        table.add(NOW, each)
    assert len(table) == K


def test_nor_can_one_provider() -> None:
    table = filled([contact(each.peer, f"/ip4/8.8.{n}.8/tcp/1") for n, each in enumerate(in_bucket(FAR, K))])
    assert len(table) == PER_WIDE


def test_in_a_house_all_may_be_known() -> None:
    assert len(filled(in_bucket(FAR, K, "/ip4/192.168.0.7/tcp/1"))) == K
    assert len(filled(in_bucket(FAR, K, "/ip4/127.0.0.1/tcp/1"))) == K


def test_the_line_of_a_full_bucket_is_bounded() -> None:
    table = filled(in_bucket(FAR, K + 3 * WAITING))
    assert [len(bucket.waiting) for _, bucket in table.buckets()] == [WAITING]


def test_we_are_not_in_our_own_table() -> None:
    assert not Table(ME).add(NOW, contact(ME))


def test_who_comes_back_with_another_address_is_known_by_it() -> None:
    table = filled([first := contact()])
    table.add(NOW + 1, moved := contact(first.peer))
    assert table.closest(0, 1) == [moved]


def test_who_moves_to_a_crowded_place_is_no_longer_known() -> None:
    """Else whoever got in from anywhere could fill a bucket from one machine in the end."""
    known = in_bucket(FAR, K)
    table = filled(known)
    for each in known:
        table.add(NOW + 1, contact(each.peer, "/ip4/8.8.8.8/tcp/1"))
    assert len(table) == PER_NARROW
    again = table.known()[0].contact
    assert not table.add(NOW + 2, again)
    assert again.peer in table


def test_what_a_table_wants_is_room_and_hope() -> None:
    known = in_bucket(FAR, K)
    table = filled(known[:-1])
    assert table.wants(NOW, known[-1])
    assert not table.wants(NOW, known[0]), "it is in"
    table.silent(NOW, known[-1].peer)
    assert not table.wants(NOW + 1, known[-1]), "it was tried in vain"
    assert table.wants(NOW + UNANSWERED, known[-1])
    table.add(NOW, known[-1])
    assert not table.wants(NOW, *in_bucket(FAR, 1)), "the bucket is full"


# -- what is known to be all there is -------------------------------------------------------------------------


def test_a_small_network_is_known_whole() -> None:
    table = filled(contacts(12))
    assert table.is_complete(0, 5, NOW + 10)


@pytest.mark.parametrize("reason", ["unsettled", "old", "silent", "full", "doubt", "empty"])
def test_a_table_is_not_complete_when(reason: str) -> None:
    known = in_bucket(FAR, K if reason == "full" else K - 1) + in_bucket(FAR - 1, 5)
    table = filled([] if reason == "empty" else known, settled=reason != "unsettled")
    if reason == "silent":
        for each in known:
            table.silent(NOW, each.peer)
    if reason == "doubt":
        assert table.note_missing(NOW, in_bucket(FAR, 1))
    far = node_id(known[0].peer)
    assert not table.is_complete(far, 5, NOW + (FRESH if reason == "old" else 1) + 1)
    assert table.is_complete(node_id(ME), 5, NOW + 1) == (reason in ("old", "full", "doubt"))


def test_a_server_that_was_named_is_missing_though_its_bucket_is_empty() -> None:
    table, unknown = filled(in_bucket(FAR, 8)), in_bucket(FAR - 1, 1)
    there = node_id(unknown[0].peer)
    assert table.is_complete(there, 5, NOW + 1)
    table.note_missing(NOW + 1, unknown)
    assert not table.is_complete(there, 5, NOW + 1)
    assert [bits for bits, bucket in table.buckets() if not bucket.is_settled] == [FAR - 1], "a refresh will settle it"


def test_the_population_is_estimated_from_how_densely_servers_lie() -> None:
    assert filled(contacts(7)).population() == 7
    everybody = contacts(2000)
    nearest = sorted(everybody, key=lambda each: distance(each, node_id(ME)))[:60]
    assert 1000 < filled(nearest).population() < 4000


def test_a_small_part_of_the_space_has_a_small_part_of_the_population() -> None:
    table = filled(contacts(K))
    assert table.expected(1 << (BITS - 2)) == table.population() / 4


def test_who_knows_few_expects_anything() -> None:
    assert filled(contacts(K - 1)).expected(1) == inf


def test_the_stalest_is_who_was_not_heard_for_longest_or_is_silent() -> None:
    known = contacts(4)
    table = Table(ME)
    assert table.stalest() is None
    for number, each in enumerate(known):
        table.add(NOW + number, each)
    table.heard(NOW + 9, known[0].peer)
    assert _stalest(table) == known[1]
    table.silent(NOW + 10, known[3].peer)
    assert _stalest(table) == known[3]
    table.heard(NOW + 11, known[3].peer)
    assert _stalest(table) == known[1]


def _stalest(table: Table) -> Contact:
    known = table.stalest()
    assert known is not None
    return known.contact
