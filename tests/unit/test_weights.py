"""By which weight an owner counts a contribution: that of the signed offer, whichever of the two comes first."""

from __future__ import annotations

import msgpack
import pytest

from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.base.effects import Effect
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.masks import masked
from shoal.protocol.messages.averaging import Contribution, Mean
from tests.unit.rounds_kit import BASE, PEERS, ROUND, A, B, C, contributed, fact, refused, sent

OURS = 0  # the chunk that A owns


def contribution(peer: PeerId, weight: int) -> Contribution:
    return Contribution(0, ROUND, OURS, 0, weight, BASE.root, fact(peer, OURS))


@pytest.fixture
def owner() -> Exchange:
    """That of A, which has contributed itself, and waits for B and C."""
    return contributed()


def weights(effects: list[Effect]) -> dict[str, int]:
    """Who is in the mean that is sent, with which weights."""
    send = sent(effects, Mean)[0]
    assert isinstance(send.message, Mean)
    facts, _ = msgpack.unpackb(send.message.payload)
    assert [each[0] for each in facts] == masked(PEERS, send.message.made.mask)
    return {each[0]: each[-1] for each in facts}


def test_a_contribution_that_comes_before_its_offer_waits_for_it(owner: Exchange) -> None:
    owner.offer(C, 30)
    owner.receive_contribution(C, contribution(C, 30))
    assert not owner.receive_contribution(B, contribution(B, 20))
    assert owner.offered(B) is None
    assert weights(owner.offer(B, 20)) == {A: 10, B: 20, C: 30}


def test_no_contribution_changes_what_was_offered(owner: Exchange) -> None:
    for peer in (B, C):
        owner.offer(peer, 20)
    taken = owner.taken
    owner.receive_contribution(B, contribution(B, 2**63 - 1))
    assert owner.offered(B) == 20
    assert owner.taken == taken, "it brings nobody further"
    assert owner.contradicts(B)
    assert owner.lacks_contribution(B)
    owner.receive_contribution(C, contribution(C, 20))
    assert weights(owner.lose(B)) == {A: 10, C: 20}


def test_one_that_was_started_again_counts_by_its_new_offer(owner: Exchange) -> None:
    """What its earlier process has brought may still be here, and come after it."""
    for peer in (B, C):
        owner.offer(peer, 20)
    owner.receive_contribution(C, contribution(C, 20))
    owner.offer(C, 25)
    owner.receive_contribution(C, contribution(C, 25))
    owner.receive_contribution(C, contribution(C, 20))
    assert not owner.contradicts(C)
    assert weights(owner.receive_contribution(B, contribution(B, 20))) == {A: 10, B: 20, C: 25}


def test_an_offer_of_nothing_yet_is_no_other_weight(owner: Exchange) -> None:
    """A worker that was loading makes its first step, and its contribution overtakes the offer."""
    owner.offer(C, 0)
    owner.offer(B, 20)
    owner.receive_contribution(C, contribution(C, 30))
    owner.offer(C, 30)
    assert weights(owner.receive_contribution(B, contribution(B, 20))) == {A: 10, B: 20, C: 30}


def test_nobody_contributes_with_weight_zero(owner: Exchange) -> None:
    with refused(owner, B, "weight zero"):
        owner.receive_contribution(B, contribution(B, 0))
