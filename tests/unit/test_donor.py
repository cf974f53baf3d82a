"""What a donor offers, for how long it pins it, and for which peers."""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId
from shoal.protocol.catchup.donor import LEASE, MAX_LEASES, MAX_VERSIONS, MAX_WAITING, SLOWEST, Donor
from shoal.protocol.messages.transfer import GetState, GetStateChunk, StateChunk
from tests.simulation.versions import Versions
from tests.unit.rounds_kit import C, refused
from tests.unit.transfer_kit import (
    STATE,
    VERSION,
    certified_by,
    chunk_of,
    make_donor,
    make_offer,
    register_after,
    result_of,
    served,
)


def test_a_donor_offers_only_what_is_certified_and_right() -> None:
    assert make_offer(make_donor()).round == VERSION
    uncertified = Donor(0, certified_by(0).certifies, Versions({VERSION: STATE}))
    assert uncertified.offer(0.0, C, GetState(0, 0, 0)) == []
    wrong = Donor(0, certified_by(1).certifies, Versions({VERSION: [b"diverged"] * 10}))
    assert wrong.offer(0.0, C, GetState(0, 0, 0)) == []
    assert make_donor().offer(0.0, C, GetState(0, VERSION - 1, 0)) == []


def test_a_donor_pins_for_a_bounded_number_and_a_bounded_time() -> None:
    donor = make_donor()
    for number in range(MAX_LEASES):
        make_offer(donor, PeerId(f"joiner {number}"))
    assert donor.offer(1.0, C, GetState(0, 0, 0)) == []
    assert donor.oldest_lease() == VERSION
    served(donor, LEASE - 1, PeerId("joiner 3"))
    donor.expire(LEASE + 1)
    assert list(donor._leases) == ["joiner 3"]
    donor.expire(3 * LEASE)
    assert donor.oldest_lease() is None


def test_who_says_that_it_is_still_at_it_or_needs_the_results_keeps_its_lease() -> None:
    """On a slow line a chunk may take longer than a lease, and so may the results that come after the state."""
    donor, other = make_donor(), PeerId("other")
    make_offer(donor, C)
    make_offer(donor, other)
    for step in range(1, 5):
        now = step * LEASE / 2
        donor.renew(now, C, VERSION + step)
        donor.renew(now, other, VERSION - 1)
        donor.renew(now, PeerId("stranger"), VERSION)
        donor.expire(now)
        assert C in donor._leases
    assert list(donor._leases) == [C]
    ends = donor._leases[C].ends
    while donor.oldest_lease() is not None:
        assert now <= ends
        now += LEASE / 2
        donor.renew(now, C, VERSION)
        donor.expire(now)


def test_a_lease_ends_however_it_is_used_and_others_come_first_then() -> None:
    donor, greedy = make_donor(), PeerId("greedy")
    ends = LEASE + donor._store.size / SLOWEST
    assert donor.offer(0.0, greedy, GetState(0, 0, 0))
    now = 0.0
    while now < ends:
        assert served(donor, now, greedy) == [chunk_of(0)]
        assert donor.offer(now, greedy, GetState(0, 0, 0))
        now += LEASE / 2
    donor.expire(ends)
    assert donor.oldest_lease() is None
    assert donor.offer(ends, greedy, GetState(0, 0, 0)) == []
    assert served(donor, ends, greedy) == [StateChunk(0, VERSION, 0, b"")]
    assert donor.offer(ends, C, GetState(0, 0, 0))
    assert donor.offer(ends + LEASE, greedy, GetState(0, 0, 0))


def test_who_asks_again_keeps_its_version_while_that_is_of_use() -> None:
    """Chunks of it may be on their way; another one would be released only to be pinned once more."""
    certified = certified_by(0)
    for round in range(VERSION + 1, VERSION + 3):
        certified.read(result_of(round), register_after(round))
    versions = Versions({VERSION: STATE})
    donor = Donor(0, certified.certifies, versions)
    assert make_offer(donor).round == VERSION
    for round in (VERSION + 1, VERSION + 2):
        versions.add(round, STATE)
    assert make_offer(donor).round == VERSION
    assert served(donor, 1.0, C) == [chunk_of(0)]
    (passed,) = donor.offer(1.0, C, GetState(0, 0, VERSION + 1))
    assert passed.message.round == VERSION + 1  # type: ignore[union-attr]
    assert donor.oldest_lease() == VERSION + 1


def test_who_is_one_too_many_is_not_served() -> None:
    donor = make_donor()
    for number in range(MAX_LEASES):
        make_offer(donor, PeerId(f"joiner {number}"))
    assert served(donor, 0.0, C) == [StateChunk(0, VERSION, 0, b"")]
    donor.expire(LEASE)
    assert served(donor, LEASE, C) == [chunk_of(0)]


def test_a_donor_pins_a_bounded_number_of_versions() -> None:
    """As rounds go by and joiners come one by one, the later ones share what is pinned already."""
    newest = MAX_VERSIONS + 3
    certified = certified_by(0)
    for round in range(1, newest + 3):
        certified.read(result_of(round), register_after(round))
    versions = Versions({})
    donor = Donor(0, certified.certifies, versions)
    for round in range(1, newest + 1):
        versions.states[round] = STATE
        donor.offer(0.0, PeerId(f"joiner {round}"), GetState(0, 0, 0))
    assert sorted({lease.version for lease in donor._leases.values()}) == list(range(1, MAX_VERSIONS + 1))
    assert len(donor._leases) == newest


def test_a_donor_refuses_a_chunk_that_there_is_not() -> None:
    donor = make_donor()
    with refused(donor, C, "chunk 10 of 10"):
        donor.serve(0.0, C, GetStateChunk(0, VERSION, 10))
    assert served(donor, 0.0, C, version=VERSION + 1) == [StateChunk(0, VERSION + 1, 0, b"")]


def test_of_what_waits_to_be_sent_there_is_little_for_each_and_nothing_twice() -> None:
    donor, other = make_donor(), PeerId("other")
    make_offer(donor, C)
    first = [donor.serve(0.0, C, GetStateChunk(0, VERSION, index)) for index in range(10)]
    assert all(first)
    assert not any(donor.serve(0.0, C, GetStateChunk(0, VERSION, index)) for index in range(10)), "it waits already"
    others = [donor.serve(0.0, C, GetStateChunk(0, VERSION + number, 0)) for number in range(1, 100)]
    assert sum(map(len, others)) == MAX_WAITING - 10
    assert served(donor, 0.0, other) == [chunk_of(0)]
    assert list(donor._waiting) == [C]
