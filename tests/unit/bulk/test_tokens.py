"""Tokens: once, in time, and never too many."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.bulk import handshake
from shoal.protocol.net.bulk.handshake import LIFETIME, MOST, TOKEN_SIZE, Ticket, Tokens
from tests.unit.bulk.kit import in_thread

TICKET = Ticket(PeerId("a"), sends=True)


def test_a_token_is_good_once_and_says_what_it_is_for() -> None:
    good = Tokens()
    first, second = good.give(0.0, TICKET), good.give(0.0, Ticket(PeerId("b"), sends=False))
    assert len(first) == len(second) == TOKEN_SIZE
    assert first != second
    assert good.redeem(1.0, first) == TICKET
    assert good.redeem(1.0, first) is None
    assert good.redeem(1.0, second) == Ticket(PeerId("b"), sends=False)


def test_a_token_that_nobody_gave_is_none() -> None:
    good = Tokens()
    good.give(0.0, TICKET)
    assert good.redeem(0.0, b"x" * TOKEN_SIZE) is None
    assert good.redeem(0.0, b"") is None


@pytest.mark.parametrize(("late", "is_good"), [(-0.1, True), (0.0, False), (1.0, False)])
def test_a_token_ends_with_its_lifetime(late: float, is_good: bool) -> None:
    good = Tokens()
    token = good.give(100.0, TICKET)
    assert (good.redeem(100.0 + LIFETIME + late, token) is not None) is is_good


def test_of_one_peer_the_oldest_gives_way_and_no_other_peer_loses_any() -> None:
    good = Tokens()
    others = good.give(0.0, Ticket(PeerId("b"), sends=True))
    own = [good.give(0.0, TICKET) for _ in range(MOST + 3)]
    assert [good.redeem(0.0, token) is not None for token in own] == [False] * 3 + [True] * MOST
    assert good.redeem(0.0, others) is not None


def test_all_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "MOST_IN_ALL", 5)
    good = Tokens()
    given = [good.give(0.0, Ticket(PeerId(str(number)), True)) for number in range(7)]
    assert [good.redeem(0.0, token) is not None for token in given] == [False] * 2 + [True] * 5


def test_those_of_the_past_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "MOST_IN_ALL", 2)
    good = Tokens()
    for number in range(2):
        good.give(0.0, Ticket(PeerId(str(number)), True))
    fresh = [good.give(LIFETIME, Ticket(PeerId(str(number)), True)) for number in range(2)]
    assert all(good.redeem(LIFETIME, token) for token in fresh)


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """They take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_tokens_are_redeemed_in_other_threads_while_more_are_given() -> None:
    """The door's threads redeem, the loop gives: with many names, to give takes long enough to be overtaken."""
    good, failures = Tokens(), list[Exception]()
    given = [good.give(0.0, Ticket(PeerId(str(number)), True)) for number in range(500)]

    def redeem() -> None:
        for token in given:
            good.redeem(0.0, token)

    thread = in_thread(redeem)
    while thread.is_alive():
        try:
            good.give(0.0, TICKET)
        except RuntimeError as error:
            failures.append(error)
    thread.join()
    assert not failures
