"""The simulator's ledger of votes: what it counts as decided, and which claims it checks itself."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.effects import Persist, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Ballot, PreparedValue, Promise
from shoal.protocol.rounds.agreement.voting import NO_BALLOT, VoteState
from tests.simulation.ledger import Ledger
from tests.simulation.promises import Violation
from tests.unit.rounds_kit import BASE, PEERS, ROUND, A, B, C, leave, refs, value, vote

V = value()
FIRST = V.ballot
LATER = Ballot(2, 0, B)


def _ledger() -> Ledger:
    """The round before was decided, and named A, B and C as voters."""
    ledger = Ledger(A)
    ledger.decided[BASE.round] = dataclasses.replace(V.proposal, round=BASE.round, voters=PEERS)
    return ledger


def _persist(ledger: Ledger, peer: PeerId, state: VoteState) -> None:
    ledger.saw(peer, Persist("vote-0", state.record()))


def _vote(ledger: Ledger, peer: PeerId, prepared: PreparedValue) -> None:
    _persist(ledger, peer, VoteState(prepared.proposal.round, 0, prepared.ballot.attempt, prepared.ballot, prepared))


def _sign_off(ledger: Ledger, peer: PeerId, promised: Ballot = NO_BALLOT) -> None:
    ledger.saw(peer, Send(B, leave(peer, promised)))


def test_a_value_is_decided_though_nobody_is_told() -> None:
    ledger = _ledger()
    _vote(ledger, A, V)
    assert ledger.newest == BASE.round
    _vote(ledger, C, V)
    assert ledger.decided[ROUND] == V.proposal
    assert ledger.has_voted(C, FIRST, V.proposal)
    assert not ledger.has_voted(B, FIRST, V.proposal)


def test_votes_under_different_ballots_are_not_counted_together() -> None:
    ledger = _ledger()
    _vote(ledger, A, V)
    _vote(ledger, C, dataclasses.replace(V, ballot=LATER))
    assert ROUND not in ledger.decided


def test_no_other_value_is_decided() -> None:
    ledger = _ledger()
    for peer in (A, B):
        _vote(ledger, peer, V)
    other = value(LATER, refs(b"\x03"))
    _vote(ledger, B, other)
    with pytest.raises(Violation, match=f"two values of round {ROUND} are decided"):
        _vote(ledger, C, other)


def test_a_quorum_of_the_old_voters_is_not_enough() -> None:
    ledger = _ledger()
    ledger.decided[BASE.round] = dataclasses.replace(ledger.decided[BASE.round], voters=(A,))
    _vote(ledger, A, V)
    assert ROUND not in ledger.decided


@pytest.mark.parametrize(("promised", "counts"), [(NO_BALLOT, True), (FIRST, True), (LATER, False)])
def test_who_signed_off_need_not_be_counted_unless_it_promised_more(promised: Ballot, counts: bool) -> None:
    ledger = _ledger()
    _vote(ledger, min(V.proposal.voters), V)
    _sign_off(ledger, max(V.proposal.voters), promised)
    assert (ROUND in ledger.decided) == counts


def test_who_signed_off_votes_no_more() -> None:
    ledger = _ledger()
    _sign_off(ledger, C)
    with pytest.raises(Violation, match="signed off"):
        _vote(ledger, C, V)


def test_a_leave_tells_the_last_vote() -> None:
    ledger = _ledger()
    _vote(ledger, C, V)
    with pytest.raises(Violation, match="not its last"):
        _sign_off(ledger, C, FIRST)


def test_a_vote_that_is_not_on_disk() -> None:
    ledger = _ledger()
    with pytest.raises(Violation, match="not on its disk"):
        ledger.saw(B, Send(A, vote(B, V)))
    _vote(ledger, B, V)
    ledger.saw(B, Send(A, vote(B, V)))


def test_a_promise_that_is_not_on_disk_or_hides_a_vote() -> None:
    ledger = _ledger()
    _vote(ledger, B, V)
    with pytest.raises(Violation, match="not on its disk"):
        ledger.saw(B, Send(A, Promise(ROUND, 0, LATER, V)))
    with pytest.raises(Violation, match="last vote"):
        ledger.saw(B, Send(A, Promise(ROUND, 0, FIRST, None)))


def test_two_values_under_one_ballot() -> None:
    ledger = _ledger()
    _vote(ledger, A, V)
    with pytest.raises(Violation, match="two values"):
        _vote(ledger, B, value(FIRST, refs(b"\x03")))


def test_a_promise_is_not_taken_back() -> None:
    ledger = _ledger()
    _vote(ledger, A, dataclasses.replace(V, ballot=LATER))
    with pytest.raises(Violation, match="takes back"):
        _vote(ledger, A, V)


def test_a_vote_in_a_round_that_was_forgotten() -> None:
    ledger = _ledger()
    _persist(ledger, A, VoteState(ROUND + 1, 0))
    with pytest.raises(Violation, match="forgotten"):
        _vote(ledger, A, V)


def test_a_vote_before_its_time() -> None:
    with pytest.raises(Violation, match="before round"):
        _vote(Ledger(A), A, V)
