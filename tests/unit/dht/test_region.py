"""Regions: no place is crowded by chance, only by an attacker; and a sweep finds all servers around a place."""

from __future__ import annotations

import random

import pytest

from shoal.dht.calls import Calls
from shoal.dht.keys import BITS, REPLICAS, K, node_id
from shoal.dht.region import MIN_SERVERS, POINT_BITS, Region, Sweep, is_crowded
from shoal.protocol.messages.dht import Contact
from tests.unit.dht.core_kit import ME, NOW, Everybody, Wire, contact, contacts, contacts_near, distance, filled

RNG = random.Random("regions")
MANY = contacts(400, RNG)
TARGETS = [RNG.getrandbits(BITS) for _ in range(500)]


def near(target: int, everybody: list[Contact]) -> list[Contact]:
    return sorted(everybody, key=lambda each: distance(each, target))


def test_chance_crowds_hardly_any_place() -> None:
    table = filled(MANY)
    crowded = sum(is_crowded(target, near(target, MANY), table) for target in TARGETS)
    assert crowded < len(TARGETS) / 40, "by chance one in 200 is; our estimate of how many there are is a rough one"


def test_five_ground_identities_crowd_a_place_and_four_do_not() -> None:
    table = filled(MANY)
    crowded = [
        sum(
            is_crowded(target, near(target, MANY + contacts_near(target, count, len(MANY), random.Random(3))), table)
            for target in TARGETS[:20]
        )
        for count in (REPLICAS - 1, REPLICAS)
    ]
    assert crowded[1] == 20
    assert crowded[0] < 18, "the fifth is honest, and may be near by chance"


def test_a_place_of_which_too_few_are_known_is_not_called_crowded() -> None:
    assert not is_crowded(TARGETS[0], contacts_near(TARGETS[0], REPLICAS - 1, 400, random.Random(3)), filled(MANY))


@pytest.mark.parametrize("size", [20, 70, 400])
def test_a_region_has_room_for_some_honest_servers_however_large_the_network(size: int) -> None:
    table = filled(MANY[:size])
    region = Region.around(TARGETS[0], table)
    assert table.expected(1 << region.bits) >= min(table.population(), MIN_SERVERS)
    assert table.expected(1 << region.bits) < 2 * MIN_SERVERS or region.bits == BITS


def test_who_knows_too_few_to_tell_takes_everything_for_the_region() -> None:
    assert Region.around(TARGETS[0], filled(MANY[: K - 1])).bits == BITS


def test_what_differs_in_the_last_bits_only_is_in_the_region() -> None:
    peer = contact().peer
    assert Region(node_id(peer), 0).holds(peer)
    assert Region(node_id(peer) ^ 0b111, 3).holds(peer)
    assert not Region(node_id(peer) ^ 0b1000, 3).holds(peer)
    assert Region(0, BITS).holds(peer)


def test_the_points_lie_one_in_each_part_of_the_region_and_are_ones_own() -> None:
    region = Region(TARGETS[0], 250)
    points = [int.from_bytes(point, "big") ^ region.target for point in region.points(ME)]
    assert [point >> (region.bits - POINT_BITS) for point in points] == list(range(1 << POINT_BITS))
    assert not set(region.points(ME)) & set(region.points(contact().peer))


def test_a_region_of_a_few_ids_has_a_point_for_each() -> None:
    points = [int.from_bytes(point, "big") for point in Region(TARGETS[0], 1).points(ME)]
    assert points == [TARGETS[0], TARGETS[0] ^ 1]


def test_a_sweep_finds_most_of_the_honest_behind_a_crowd_that_names_only_itself() -> None:
    crowd = contacts_near(TARGETS[0], 30, len(MANY), random.Random(3))
    table = filled(MANY)
    region = Region.around(TARGETS[0], table)
    calls = Calls(table)
    found: list[list[Contact]] = []
    sweep = Sweep(ME, table, calls, region, NOW + 10, lambda now, servers: found.append(servers))
    sweep.begin(NOW)
    Everybody(MANY, crowd).answer(Wire(calls))
    [servers] = found
    honest = {each.peer for each in MANY if region.holds(each.peer)}
    assert len(honest & {each.peer for each in servers}) >= max(REPLICAS, 0.7 * len(honest))
    assert all(region.holds(each.peer) for each in servers)
    assert sweep.calls_made < 200


def test_a_sweep_ends_with_its_time_and_what_it_has_found() -> None:
    """However slowly others answer; and it ends once."""
    table = filled(MANY)
    calls = Calls(table)
    found: list[list[Contact]] = []
    region = Region.around(TARGETS[0], table)
    Sweep(ME, table, calls, region, NOW, lambda now, servers: found.append(servers)).begin(NOW - 1)
    wire = Wire(calls)
    Everybody(MANY).answer(wire)
    assert len(found) == 1
    assert len(found[0]) <= 1, "the first answer came when it was over"
