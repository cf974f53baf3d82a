"""One chunk at its owner: counted once, in roster order, without those that are lost or bad."""

from __future__ import annotations

from itertools import permutations

import msgpack
import pytest

from shoal.protocol.rounds.agreement.certificate import mask_of
from shoal.protocol.rounds.allreduce.owned import OwnedChunk
from tests.simulation.facts import POISON, TOO_LONG, FactReducer
from tests.unit.rounds_kit import PEERS, STRANGER, plan

FIRST, SECOND, THIRD = plan().members


def _fact(peer: str) -> bytes:
    packed: bytes = msgpack.packb([peer, 5, b"", 0, 1.0])
    return packed


@pytest.mark.parametrize("arrival", list(permutations(plan().members)))
def test_the_order_of_arrival_does_not_matter(arrival: tuple[str, ...]) -> None:
    owned = OwnedChunk(plan(), 0, FactReducer())
    for peer in arrival:
        assert not owned.is_complete
        owned.add(peer, _fact(peer))  # type: ignore[arg-type]
    mask, payload = owned.result()
    assert mask == mask_of(PEERS, PEERS)
    assert [fact[0] for fact in msgpack.unpackb(payload)[0]] == [FIRST, SECOND, THIRD]


def test_whoever_comes_twice_counts_once_and_a_stranger_never() -> None:
    owned = OwnedChunk(plan(), 0, FactReducer())
    for peer in (FIRST, FIRST, THIRD, THIRD, STRANGER, SECOND, SECOND):
        owned.add(peer, _fact(peer))
    assert [fact[0] for fact in msgpack.unpackb(owned.result()[1])[0]] == [FIRST, SECOND, THIRD]


def test_the_lost_are_gone_on_without_unless_they_have_come_already() -> None:
    owned = OwnedChunk(plan(), 0, FactReducer())
    owned.add(THIRD, _fact(THIRD))
    owned.lose(THIRD)
    owned.lose(FIRST)
    assert owned.missing() == [SECOND]
    owned.add(SECOND, _fact(SECOND))
    assert owned.is_complete
    assert owned.result()[0] == mask_of(plan().members, [SECOND, THIRD])


def test_bad_bytes_name_their_sender_and_leave_the_sum_as_it_was() -> None:
    owned = OwnedChunk(plan(), 0, FactReducer())
    owned.add(FIRST, _fact(FIRST))
    (error,) = owned.add(SECOND, POISON)
    assert error.peer == SECOND
    owned.add(THIRD, _fact(THIRD))
    assert owned.result()[0] == mask_of(plan().members, [FIRST, THIRD])


def test_what_cannot_be_a_contribution_is_refused_before_its_turn_and_not_held() -> None:
    owned = OwnedChunk(plan(), 0, FactReducer())
    (error,) = owned.add(THIRD, TOO_LONG)
    assert error.peer == THIRD
    assert str(len(TOO_LONG)) in error.reason
    assert owned.missing() == [FIRST, SECOND]
    assert not any(owned._held.values())
    for again in (TOO_LONG, _fact(THIRD)):
        assert owned.add(THIRD, again) == []
    owned.add(FIRST, _fact(FIRST))
    assert owned.add(SECOND, _fact(SECOND)) == [], "it was said once"
    assert owned.is_complete
    assert owned.result()[0] == mask_of(plan().members, [FIRST, SECOND])


def test_what_came_first_stays_whatever_comes_after() -> None:
    owned = OwnedChunk(plan(), 0, FactReducer())
    owned.add(SECOND, _fact(SECOND))
    assert owned.add(SECOND, TOO_LONG) == []
    owned.add(FIRST, _fact(FIRST))
    owned.lose(THIRD)
    assert owned.result()[0] == mask_of(plan().members, [FIRST, SECOND])


def test_only_wrong_sizes_are_hopeless() -> None:
    owned = OwnedChunk(plan(), 0, FactReducer())
    assert [owned.add(peer, TOO_LONG)[0].peer for peer in (THIRD, FIRST, SECOND)] == [THIRD, FIRST, SECOND]
    assert owned.is_hopeless


def test_the_mean_of_nothing_is_hopeless_and_not_a_result() -> None:
    owned = OwnedChunk(plan(), 0, FactReducer())
    owned.lose(FIRST)
    owned.add(SECOND, POISON)
    assert not owned.is_hopeless
    owned.lose(THIRD)
    assert owned.is_complete
    assert owned.is_hopeless
