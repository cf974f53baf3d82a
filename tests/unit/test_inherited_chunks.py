"""Whom the new owner of a chunk asks for the mean that the old one had sent: as long as somebody holds it."""

from __future__ import annotations

import pytest

from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.owners import PLACES
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution, Give, Have
from tests.unit.rounds_kit import BASE, ROUND, B, C, contributed, fact, sent

LOST = 2  # the chunk that C owned, and A is made owner of
EPOCH = PLACES  # in which A owns it, which is the first in the roster
HASH = digest("the mean of C")
HAVE = Have(0, ROUND, LOST, HASH)
TAKES = [Give(0, ROUND, (), (), ((LOST, HASH),))]


@pytest.fixture
def heir() -> Exchange:
    """That of A: C is lost, and B has said that it holds C's mean."""
    exchange = contributed()
    for peer in (B, C):
        exchange.offer(peer, 10)
    exchange.lose(C)
    exchange.move([(LOST, EPOCH)])
    assert takes(exchange, B) == TAKES
    return exchange


def takes(heir: Exchange, holder: PeerId) -> list[Message]:
    """What is asked of somebody who says that it holds the mean."""
    return [each.message for each in sent(heir.receive_have(holder, HAVE), Give)]


def is_asked(heir: Exchange, peer: PeerId) -> bool:
    """Whether `peer` will be reminded of the chunk, upon which it brings what it has."""
    wanted = heir.want(peer)
    return wanted is not None and LOST in wanted.contributions


def test_one_is_asked_at_a_time(heir: Exchange) -> None:
    heir.offer(C, 10)
    assert is_asked(heir, B)
    assert not is_asked(heir, C)
    assert not takes(heir, C)


def test_who_is_lost_is_not_asked(heir: Exchange) -> None:
    heir.offer(C, 10)
    heir.lose(B)
    assert not takes(heir, B)
    assert takes(heir, C) == TAKES


def test_who_contributes_instead_holds_it_no_more(heir: Exchange) -> None:
    heir.offer(C, 10)
    heir.receive_contribution(B, Contribution(0, ROUND, LOST, EPOCH, 10, BASE.root, fact(B, LOST)))
    assert is_asked(heir, C)
    assert takes(heir, C) == TAKES


def test_who_was_away_may_hold_it_no_more(heir: Exchange) -> None:
    heir.offer(C, 10)
    heir.lose(B)
    heir.offer(B, 10)
    assert is_asked(heir, C)
    assert takes(heir, C) == TAKES
