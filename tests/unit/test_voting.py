"""The acceptor and the proposer of one round."""

from __future__ import annotations

import dataclasses

from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Ballot, VoteRecord
from shoal.protocol.rounds.agreement.voting import (
    NO_BALLOT,
    Election,
    Tally,
    VoteState,
    counting,
    left_before,
    must_propose,
)
from tests.unit.rounds_kit import ROUND, A, B, C, D, leave, refs, value

LOW, HIGH = Ballot(1, 0, A), Ballot(1, 1, B)
V = value(LOW)
W = value(HIGH, refs(b"\x03"))


def test_one_join_per_attempt_and_never_back() -> None:
    vote = VoteState(ROUND, 0)
    assert vote.may_join(2)
    vote.join(2)
    assert not vote.may_join(2)
    assert not vote.may_join(1)
    assert not vote.may_answer(Ballot(1, 9, C))
    assert vote.may_answer(Ballot(2, 0, A))


def test_a_vote_is_a_promise() -> None:
    vote = VoteState(ROUND, 0)
    vote.prepare(W)
    assert not vote.may_answer(LOW)
    vote.promise(LOW)
    assert vote.promised == HIGH


def test_a_restarted_member_takes_up_its_votes_in_the_round_of_its_record() -> None:
    record = VoteRecord(ROUND, 0, 3, HIGH, W, 0)
    again = VoteState.resume(ROUND, 0, record)
    assert again.record() == record
    assert not again.may_join(3)


def test_it_has_no_say_in_earlier_rounds_and_a_fresh_one_in_later_ones() -> None:
    record = VoteRecord(ROUND, 0, 3, HIGH, W, 0)
    earlier = VoteState.resume(ROUND - 1, 0, record)
    assert earlier.is_sealed
    assert not earlier.may_join(4)
    assert not earlier.may_answer(Ballot(2**63 - 1, 2**63 - 1, A))
    later = VoteState.resume(ROUND + 1, 0, record)
    assert later.promised == NO_BALLOT
    assert later.may_join(1)


def test_a_leader_is_bound_by_the_highest_ballot_that_may_have_decided() -> None:
    voters = (A, B, C)
    assert must_propose({A: None, B: None}, (), voters) is None
    assert must_propose({A: V, B: None}, (), voters) == V  # C may have voted too
    assert must_propose({A: V, B: W, C: None}, (), voters) is None  # neither can have two votes
    assert must_propose({A: V, B: W}, (), voters) == W


def test_the_vote_of_a_leaver_counts_as_an_answer() -> None:
    goodbye = leave(B, HIGH, W)
    assert must_propose({A: None}, (goodbye,), (A, B, C)) == W
    assert must_propose({A: None, C: None}, (goodbye,), (A, B, C)) is None


def test_only_those_who_vote_can_bind_a_leader_or_free_it() -> None:
    """A stranger's LEAVE, promise or JOIN may show whatever it likes, under a ballot above all others."""
    voters, stranger = (A, B, C), PeerId("x")
    proposal = dataclasses.replace(V.proposal, members=(stranger,), voters=(stranger,))
    invented = dataclasses.replace(V, ballot=Ballot(1, 9, stranger), proposal=proposal)
    assert must_propose({A: None, B: V}, (leave(stranger, invented.ballot, invented),), voters) == V
    assert must_propose({A: None, B: V, stranger: invented}, (), voters) == V
    assert must_propose({A: None, B: None, stranger: invented}, (), voters) is None


def test_new_voters_speak_for_their_own_electorate() -> None:
    """Only there: D never will vote for V, or already has; whoever else says so is nobody."""
    voters, stranger = (A, B, C), PeerId("x")
    named = dataclasses.replace(V, proposal=dataclasses.replace(V.proposal, voters=(B, C, D)))
    assert must_propose({A: named, B: None}, (), voters) == named
    assert must_propose({A: named, B: None, D: None}, (), voters) is None
    assert must_propose({A: named, B: None, D: named}, (), voters) == named
    assert must_propose({A: named, B: None}, (leave(D, LOW),), voters) is None
    assert must_propose({A: named, B: None}, (leave(D, LOW, named),), voters) == named
    assert must_propose({A: named, B: None, stranger: None}, (leave(stranger, LOW),), voters) == named


def test_a_leave_does_not_count_under_a_ballot_below_its_promise() -> None:
    """Else B and C could decide under LOW without D, after A and D had answered a poll under HIGH."""
    voters, goodbye = (A, B, C, D), leave(D, HIGH)
    assert counting((goodbye,), LOW) == ()
    tally = Tally(V, {B: b"", C: b""})
    assert not tally.decided(voters, (goodbye,))
    assert not Election(LOW, {B: None, C: None}).won(voters, (goodbye,))
    assert Election(HIGH, {B: None, C: None}).won(voters, (goodbye,))


def test_a_leave_does_not_count_for_a_group_that_its_author_may_have_joined_under_another_leader() -> None:
    """Else two groups of one attempt could be quorums: one with its JOIN, the other because it is gone."""
    goodbye = leave(D, Ballot(3, 0, PeerId("")))
    assert [left_before((goodbye,), attempt) for attempt in (2, 3, 4)] == [(), (), (goodbye,)]
    assert counting((goodbye,), Ballot(3, 0, A)) == (goodbye,)  # the group's votes are another matter


def test_a_decision_needs_the_old_voters_and_the_new_ones() -> None:
    tally = Tally(V, {A: b"", B: b""})
    assert tally.decided((A, B, C), ())
    assert not tally.decided((A, C, D), ())
    stranger = PeerId("z")
    assert not Tally(V, {A: b"", stranger: b"", D: b""}).decided((A, stranger, D), ())  # no quorum of V's own voters
