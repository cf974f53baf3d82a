"""One chunk at its owner: counted once, in roster order, without those that are lost or bad."""

from __future__ import annotations

from itertools import permutations

import msgpack
import pytest

from shoal.protocol.averaging.owned import OwnedChunk
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.ids import PeerId
from tests.simulation.facts import POISON, TOO_LONG, FactReducer
from tests.unit.rounds_kit import PEERS, A, B, C


def _fact(peer: str) -> bytes:
    packed: bytes = msgpack.packb([peer, 5, b"", 0, 1.0])
    return packed


class _Owner:
    """A chunk, its roster and who is lost."""

    def __init__(self) -> None:
        self.chunk = OwnedChunk(0, FactReducer())
        self.lost: list[PeerId] = []
        self.offers = dict.fromkeys((*PEERS, PeerId("x")), 10)

    def add(self, peer: PeerId, payload: bytes | None = None) -> list[PayloadError]:
        """A contribution comes in; the errors of those that turned out bad."""
        found = self.chunk.add(peer, 10, payload or _fact(peer)) if self.chunk.lacks(peer, 10) else []
        return [*found, *self.fold()[1]]

    def fold(self) -> tuple[bool, list[PayloadError]]:
        return self.chunk.fold(PEERS, self.offers.get, lambda peer: peer not in self.lost)

    @property
    def counted(self) -> list[str]:
        """Who is in the mean."""
        return [fact[0] for fact in msgpack.unpackb(self.chunk.finish())[0]]


@pytest.fixture
def owner() -> _Owner:
    return _Owner()


@pytest.mark.parametrize("arrival", list(permutations(PEERS)))
def test_the_order_of_arrival_does_not_matter(owner: _Owner, arrival: tuple[PeerId, ...]) -> None:
    for peer in arrival:
        assert not owner.fold()[0]
        owner.add(peer)
    assert owner.fold()[0]
    assert owner.counted == owner.chunk.counted == [A, B, C]


def test_whoever_comes_twice_counts_once_and_nobody_outside_the_roster(owner: _Owner) -> None:
    for peer in (A, A, C, C, PeerId("x"), B, B):
        owner.add(peer)
    assert owner.counted == [A, B, C]


def test_the_lost_are_gone_on_without_unless_they_have_come_already(owner: _Owner) -> None:
    owner.add(C)
    owner.lost = [C, A]
    assert not owner.fold()[0]
    owner.add(B)
    assert owner.counted == [B, C]


def test_bad_bytes_name_their_sender_and_leave_the_sum_as_it_was(owner: _Owner) -> None:
    owner.add(A)
    (error,) = owner.add(B, POISON)
    assert error.peer == B
    owner.add(C)
    assert owner.counted == [A, C]


def test_what_cannot_be_a_contribution_is_refused_before_its_turn(owner: _Owner) -> None:
    (error,) = owner.add(C, TOO_LONG)
    assert error.peer == C
    assert str(len(TOO_LONG)) in error.reason
    assert owner.add(C, TOO_LONG) == owner.add(C) == [], "it was said once"
    owner.add(A)
    owner.add(B)
    assert owner.counted == [A, B]


def test_what_came_first_stays_whatever_comes_after(owner: _Owner) -> None:
    owner.add(B)
    assert owner.add(B, TOO_LONG) == []
    owner.lost = [C]
    owner.add(A)
    assert owner.counted == [A, B]


def test_while_nothing_is_counted_whoever_comes_back_still_counts(owner: _Owner) -> None:
    owner.lost = [A, B, C]
    assert owner.fold() == (True, [])
    assert not owner.chunk.counted, "the mean of nothing is no mean"
    owner.lost = [A, C]
    owner.add(B)
    assert owner.counted == [B]
    assert not owner.chunk.lacks(A, 10), "its turn is over"


def test_what_comes_before_its_offer_waits_for_it(owner: _Owner) -> None:
    del owner.offers[B]
    for peer in PEERS:
        owner.add(peer)
    assert owner.chunk.counted == [A]
    owner.offers[B] = 10
    assert owner.fold()[0]
    assert owner.counted == [A, B, C]


def test_what_names_another_weight_than_was_offered_counts_for_nothing_and_is_still_lacking(owner: _Owner) -> None:
    owner.offers[B] = 20
    for peer in PEERS:
        owner.add(peer)
    assert owner.chunk.lacks(B, 20)
    assert owner.chunk.uncounted(B) == 10
    owner.lost = [B]
    assert owner.fold()[0]
    assert owner.counted == [A, C]


def test_who_was_started_again_counts_by_what_it_brings_and_offers_now(owner: _Owner) -> None:
    owner.add(B)
    owner.offers[B] = 20
    assert not owner.chunk.add(B, 20, _fact("b again"))
    for peer in (A, C):
        owner.add(peer)
    assert owner.counted == [A, "b again", C]
