"""What of others counts in a round: of which branch of the log it must be, of which round, and of whom."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from shoal.protocol.averaging.events import LogEnds
from shoal.protocol.averaging.exchange import Exchange, Self
from shoal.protocol.averaging.policy import Ready
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.base.ids import Digest, PeerId, digest, result_hash
from shoal.protocol.base.masks import mask_of
from shoal.protocol.base.signing import signed
from shoal.protocol.log.register import first_state, founded
from shoal.protocol.membership.view import View
from shoal.protocol.messages.averaging import Contribution, Made, Mean, MeanIs, Offer
from shoal.protocol.messages.log import Register
from shoal.protocol.messages.membership import RunStatus
from tests.simulation.facts import FactReducer
from tests.simulation.signing import FakeSigner
from tests.unit.rounds_kit import (
    BASE,
    BRANCH,
    CHUNKS,
    LIVES,
    PEERS,
    POLICY,
    ROUND,
    SIGNER,
    A,
    B,
    C,
    offer,
    refused,
    seats,
    sent,
    told,
)

OURS, RIVAL = digest("our branch"), digest("their branch")  # both go on from BRANCH


class Here(View):
    """All are."""

    def alive(self) -> list[PeerId]:
        return [B, C]

    def is_alive(self, peer: PeerId) -> bool:
        return True

    def status(self, peer: PeerId) -> RunStatus | None:
        return None


class Log:
    """A log that may go on as a branch, and in which B proposes."""

    def __init__(self) -> None:
        state = replace(first_state(0, BASE.round, BASE.root, BASE.history), roster=seats(), result=BASE.entry)
        self.register: Register = replace(founded(BRANCH, B, LIVES[B]), number=17, parts=(state,))
        self.branches: tuple[Digest, ...] = (BRANCH,)
        self.proposer, self.view, self.leads, self.listens = B, 0, False, True

    def found(self) -> None:
        """It goes on as a branch."""
        self.register = replace(self.register, branch=OURS, number=18)
        self.branches = (OURS, BRANCH)


def mean(branch: Digest, chunk: int = 1, owner: PeerId = B) -> Mean:
    """One that `owner` has made of its own contribution."""
    payload = msgpack.packb([[[owner, ROUND, BASE.root, chunk, 1.0, 10]], 1.0])
    mask = mask_of(PEERS, [owner])
    hash = result_hash(mask, payload)
    said = signed(MeanIs(branch, 0, ROUND, chunk, 0, BASE.root, hash, owner, LIVES[owner], b""), FakeSigner(owner))
    return Mean(0, ROUND, chunk, Made(hash, mask, 0, owner, LIVES[owner], said.signature), payload)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def rounds(log: Log) -> Rounds:
    """Those of A, which has offered and contributed to the open round."""
    us = Self(A, lambda: log.branches, 0, SIGNER, lambda: LIVES[A])
    rounds = Rounds(us, Here(), POLICY, log, lambda _: FactReducer())
    rounds.open(0.0, BASE)
    rounds.submit(0.0, Ready(10), lambda chunk: msgpack.packb([A, ROUND, BASE.root, chunk, 1.0]))
    return rounds


def exchange_of(rounds: Rounds) -> Exchange:
    assert rounds.round is not None
    return rounds.round.exchange


def test_a_mean_of_another_branch_is_none_of_this_round(rounds: Rounds) -> None:
    with refused(rounds, B, "has not signed"):
        rounds.receive(1.0, B, mean(RIVAL))
    rounds.receive(1.0, B, mean(BRANCH))
    assert exchange_of(rounds).means[1] is not None


def test_an_open_round_begins_anew_on_a_branch_with_what_was_brought_to_it(log: Log, rounds: Rounds) -> None:
    rounds.receive(1.0, B, mean(BRANCH))
    log.found()
    effects = rounds.look(2.0)
    assert not any(exchange_of(rounds).means)
    assert {each.message.branch for each in sent(effects, Offer)} == {OURS}  # type: ignore[attr-defined]
    assert {each.to for each in sent(effects, Contribution)} == {B, C}
    assert rounds.look(3.0) == []


def test_a_mean_from_before_the_branch_is_no_mean_and_nobodys_fault(log: Log, rounds: Rounds) -> None:
    log.found()
    rounds.look(1.0)
    rounds.receive(2.0, B, mean(BRANCH))
    assert exchange_of(rounds).means[1] is None
    rounds.receive(2.0, B, mean(OURS))
    assert exchange_of(rounds).means[1] is not None


def test_an_offer_of_another_branch_is_no_offer_and_its_means_are_not_looked_at(log: Log, rounds: Rounds) -> None:
    """Its sender has not heard yet how the log goes on, or we have not."""
    effects = rounds.receive(1.0, B, signed(replace(offer(B), branch=OURS, number=18), FakeSigner(B)))
    assert told(effects, LogEnds) == [LogEnds(B, 18)]
    assert exchange_of(rounds).offered(B) is None
    rounds.receive(1.0, B, mean(OURS))
    assert exchange_of(rounds).means[1] is None


def test_who_was_given_up_on_another_branch_is_believed_on_this_one(rounds: Rounds) -> None:
    """Where the rounds may have lower numbers."""
    context = rounds._context
    context.doubts.give_up(B, 1000)
    context.late.give_up(B, 1000)
    rounds.switch()
    assert context.doubts.believes(B)
    assert not context.late.leaves_out(B, ROUND)


def test_of_who_is_no_member_it_is_not_kept_that_it_was_late(rounds: Rounds) -> None:
    late = signed(replace(offer(C), round=ROUND - 1), FakeSigner(C))
    rounds.receive(1.0, C, late)
    assert not rounds._context.followers.is_due(C, ROUND)
    rounds.receive(1.0, B, replace(late, peer=B))
    assert rounds._context.followers.is_due(B, ROUND)


def test_who_is_behind_keeps_what_is_sent_of_the_round_in_which_the_others_are(log: Log, rounds: Rounds) -> None:
    """It may get there by their state, without the rounds between."""
    there = ROUND + 4
    log.register = replace(log.register, parts=(replace(log.register.parts[0], round=there - 1),))
    rounds.receive(1.0, B, replace(mean(BRANCH), round=there))
    rounds.receive(1.0, B, replace(mean(BRANCH, chunk=2), round=there - 1))
    kept = rounds._context.early.empty(())
    assert [(peer, message.round) for peer, message in kept] == [(B, there)]  # type: ignore[attr-defined]


def test_an_offer_says_to_who_comes_back_how_far_the_log_goes_by_then(log: Log, rounds: Rounds) -> None:
    assert rounds.round is not None
    rounds.round.peer_down(0.1, B)
    log.register = replace(log.register, number=19)
    assert [(each.to, each.message.number) for each in sent(rounds.round.tick(0.2), Offer)] == [(B, 19)]  # type: ignore[attr-defined]


def test_a_result_that_was_decided_before_the_branch_has_means_of_that_time() -> None:
    shelf = Shelf()
    shelf.open(FactReducer())
    us = Self(A, lambda: (OURS, BRANCH), 0, SIGNER, lambda: LIVES[A])
    exchange = Exchange(us, ROUND, BASE.root, CHUNKS, FactReducer(), shelf, tuple)
    exchange.seat(seats())
    table = [mean(BRANCH, chunk, owner).made for chunk, owner in enumerate(PEERS)]
    exchange.check_table(table, PEERS, BASE.root, (OURS, BRANCH), C)
    with refused(exchange, C, "has not signed"):
        exchange.check_table(table, PEERS, BASE.root, (OURS,), C)
