"""Who is given a seat while a round is under way brings what it has, though it owns nothing."""

from __future__ import annotations

from shoal.protocol.averaging.exchange import Exchange, Self
from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.messages.averaging import Contribution
from tests.simulation.facts import FactReducer
from tests.simulation.signing import FakeSigner
from tests.unit.rounds_kit import BASE, BRANCH, CHUNKS, LIVES, ROUND, A, B, C, D, fact, seats, sent


def test_it_is_sent_to_the_owners_once_the_seat_is_decided() -> None:
    shelf, reducer = Shelf(), FactReducer()
    shelf.open(reducer)
    us = Self(D, lambda: (BRANCH,), 0, FakeSigner(D), lambda: LIVES[D])
    exchange = Exchange(us, ROUND, BASE.root, CHUNKS, reducer, shelf, tuple)
    assert exchange.seat(seats(A, B, C)) == []
    assert exchange.contribute(10, lambda chunk: fact(D, chunk)) == []
    brought = sent(exchange.seat((*seats(A, B, C), *seats(D))), Contribution)
    assert {each.to for each in brought} == {A, B, C}
    assert sorted(each.message.chunk for each in brought) == list(range(CHUNKS))  # type: ignore[attr-defined]
