"""Whom a member asks for the means that a table names, and when again: one holder after the other, and no storm."""

from __future__ import annotations

import pytest

from shoal.protocol.averaging.fetching import REFUSED, Fetching
from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.base.effects import Send
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.messages.averaging import Progress
from tests.unit.rounds_kit import CHUNKS, ROUND, A, B, C, D, made

MEANS = [made(chunk, D, digest(f"chunk {chunk}")) for chunk in range(CHUNKS)]
WANTED = list(range(CHUNKS))
NOTHING = Progress(0, ROUND, 0, 0, is_waiting=True, is_queued=False)


@pytest.fixture
def fetching() -> Fetching:
    pace = Estimate(initial=10.0, floor=1.0, ceiling=60.0)
    return Fetching(0, ROUND, Shelf(), pace, lambda peer: 60.0)


def asked(fetching: Fetching, now: float, *holders: PeerId) -> list[PeerId]:
    """Who is asked, where these may hold what we want."""
    effects = fetching.ask(now, MEANS, WANTED, holders)
    return [each.to for each in effects if isinstance(each, Send)]


def test_who_has_nothing_is_not_asked_again_at_once(fetching: Fetching) -> None:
    assert asked(fetching, 0.0, A) == [A]
    fetching.put_off(0.1, A, NOTHING)
    assert asked(fetching, 0.1, A) == []
    assert asked(fetching, 0.1 + REFUSED, A) == [A]


def test_a_search_is_in_vain_once_all_have_refused_until_one_brings_something(fetching: Fetching) -> None:
    assert not fetching.is_in_vain([])
    for peer in (*asked(fetching, 0.0, A, B), *asked(fetching, 0.1, A, B)):
        fetching.put_off(0.1, peer, NOTHING)
    assert not fetching.is_in_vain([A, B])
    for peer in asked(fetching, 0.2, A, B):
        fetching.put_off(0.2, peer, NOTHING)
    assert fetching.is_in_vain([A, B])
    assert not fetching.is_in_vain([A, B, C]), "that one has just come"
    fetching.arrived(0.3, A)
    assert not fetching.is_in_vain([A, B])


def test_who_was_asked_for_something_else_has_refused_nothing(fetching: Fetching) -> None:
    fetching.put_off(0.0, A, NOTHING)
    assert asked(fetching, 0.1, A) == [A]


def test_who_has_nothing_is_not_asked_in_place_of_another(fetching: Fetching) -> None:
    assert asked(fetching, 0.0, A, B, C) == [A]
    fetching.put_off(0.1, A, NOTHING)
    second = asked(fetching, 0.1, A, B, C)
    assert len(second) == 1
    fetching.put_off(0.2, second[0], NOTHING)
    third = asked(fetching, 0.2, A, B, C)
    assert {A, *second, *third} == {A, B, C}
    fetching.put_off(0.3, third[0], NOTHING)
    assert asked(fetching, 0.3, A, B, C) == []
