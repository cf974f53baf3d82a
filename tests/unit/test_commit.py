"""One member's side of a decision: what it answers, and which messages it does not believe."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.effects import Persist
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.wire import MAX_INT, Message
from shoal.protocol.messages.rounds import Ballot, Leave, Poll, Prepare, Prepared, Promise, Refuse
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.commit.commit import MAX_COUNTER, Commit, Decided, Elected, Overtaken, Proposed
from tests.simulation.signing import FakeSigner
from tests.unit.rounds_kit import BASE, CHUNKS, ROUND, STRANGER, leave, plan, refs, refused, sent, told, value, vote

LEADER, SECOND, THIRD = plan().members
FIRST_BALLOT = Ballot(1, 0, LEADER)
V = value()


def _core(me: PeerId, leaves: tuple[Leave, ...] = ()) -> Commit:
    state = VoteState(ROUND, 0)
    state.join(1)
    core = Commit(me, BASE, CHUNKS, state, FakeSigner(me), lambda: leaves)
    core.open(FIRST_BALLOT, plan().members)
    return core


def _prepare(ballot: Ballot = FIRST_BALLOT) -> Prepare:
    return Prepare(ROUND, 0, ballot, V.proposal, V.chunks)


def _leading() -> Commit:
    core = _core(LEADER)
    core.propose(V.proposal, V.chunks)
    core.bytes_held()
    return core


def test_a_round_is_decided_by_quorums_and_the_vote_is_on_disk_first() -> None:
    leader, member = _leading(), _core(SECOND)
    assert told(member.receive_prepare(LEADER, _prepare()), Proposed)
    persist, send = member.bytes_held()
    assert isinstance(persist, Persist)
    assert send.message == vote(SECOND, V)  # type: ignore[union-attr]
    (decided,) = told(leader.receive_prepared(SECOND, vote(SECOND, V)), Decided)
    assert {voted.peer for voted in decided.certificate.votes} == {LEADER, SECOND}


def test_whoever_is_asked_again_votes_again() -> None:
    """The vote was lost. It is on disk already, and its bytes are here: nothing else is to be done."""
    member = _core(SECOND)
    member.receive_prepare(LEADER, _prepare())
    member.bytes_held()
    (again,) = member.receive_prepare(LEADER, _prepare())
    assert again.message == vote(SECOND, V)  # type: ignore[union-attr]


def test_a_new_leader_learns_what_may_be_decided_and_proposes_it() -> None:
    core = _core(SECOND)
    (poll, _) = sent(core.take_over(), Poll)
    ballot = poll.message.ballot  # type: ignore[attr-defined]
    effects = core.receive_promise(THIRD, Promise(ROUND, 0, ballot, V))
    assert {effect.message.proposal for effect in sent(effects, Prepare)} == {V.proposal}  # type: ignore[attr-defined]
    assert not told(effects, Elected)


def test_a_stranger_that_signs_off_does_not_free_a_new_leader() -> None:
    """Its LEAVE shows an invented value under a ballot above the one that was voted for."""
    proposal = dataclasses.replace(V.proposal, members=(STRANGER,), weights=(1,), voters=(STRANGER,))
    invented = dataclasses.replace(V, ballot=Ballot(1, 0, STRANGER), proposal=proposal)
    core = _core(SECOND, leaves=(leave(STRANGER, invented.ballot, invented),))
    (poll, _) = sent(core.take_over(), Poll)
    effects = core.receive_promise(THIRD, Promise(ROUND, 0, poll.message.ballot, V))  # type: ignore[attr-defined]
    assert {effect.message.proposal for effect in sent(effects, Prepare)} == {V.proposal}  # type: ignore[attr-defined]


def test_a_new_leader_is_free_if_nothing_was_prepared() -> None:
    core = _core(SECOND)
    ballot = sent(core.take_over(), Poll)[0].message.ballot  # type: ignore[attr-defined]
    assert told(core.receive_promise(THIRD, Promise(ROUND, 0, ballot, None)), Elected)


def test_no_two_members_claim_the_same_counter() -> None:
    ballots = [sent(_core(peer).take_over(), Poll)[0].message.ballot for peer in plan().members]  # type: ignore[attr-defined]
    assert len({ballot.counter for ballot in ballots}) == 3
    assert all(ballot.order > FIRST_BALLOT.order for ballot in ballots)


def test_what_was_promised_to_a_later_leader_is_refused_to_an_earlier_one() -> None:
    core = _core(THIRD)
    core.receive_poll(SECOND, Poll(ROUND, 0, Ballot(1, 5, SECOND)))
    (refusal,) = core.receive_prepare(LEADER, _prepare())
    assert isinstance(refusal.message, Refuse)  # type: ignore[union-attr]
    assert told(_leading().receive_refuse(THIRD, refusal.message), Overtaken)  # type: ignore[union-attr]


@pytest.mark.parametrize("counter", [2_000_000, MAX_COUNTER])
def test_nobody_is_blamed_for_following_a_liar_that_others_have_not_heard(counter: int) -> None:
    core, other = _core(SECOND), _core(LEADER)
    for step in range(1_000_000, counter + 1, 1_000_000) if counter < MAX_COUNTER else (counter,):
        core.receive_poll(THIRD, Poll(ROUND, 0, Ballot(1, step, THIRD)))
    for poll in sent(core.take_over(), Poll):
        assert sent(other.receive_poll(SECOND, poll.message), Promise)  # type: ignore[arg-type]
    assert core.is_polling == (counter < MAX_COUNTER)


def test_a_leave_may_complete_a_poll() -> None:
    core = _core(SECOND, leaves=())
    core.take_over()
    core._leaves = lambda: (leave(LEADER, FIRST_BALLOT), leave(THIRD, FIRST_BALLOT))
    assert told(core.recount(), Elected)


HIGHER = Ballot(1, 4, SECOND)
BAD_TO_A_MEMBER = [
    ("receive_poll", SECOND, Poll(ROUND, 0, Ballot(1, 3, LEADER)), "somebody else's ballot"),
    ("receive_poll", SECOND, Poll(ROUND, 0, Ballot(1, MAX_INT, SECOND)), "absurdly far ahead"),
    ("receive_prepare", LEADER, _prepare(Ballot(1, MAX_INT, LEADER)), "absurdly far ahead"),
    ("receive_prepare", SECOND, _prepare(), "somebody else's ballot"),
    ("receive_prepare", LEADER, dataclasses.replace(_prepare(), chunks=refs(b"\x01")), "not the proposed result"),
    ("receive_prepare", LEADER, dataclasses.replace(_prepare(), chunks=V.chunks[:1]), "names 1 chunks of 3"),
    (
        "receive_prepare",
        LEADER,
        dataclasses.replace(_prepare(), proposal=dataclasses.replace(V.proposal, base_history=NO_DIGEST)),
        "another history",
    ),
]


@pytest.mark.parametrize(("method", "sender", "message", "reason"), BAD_TO_A_MEMBER)
def test_bad_messages_to_a_member(method: str, sender: PeerId, message: Message, reason: str) -> None:
    core = _core(THIRD)
    with refused(core, sender, reason):
        getattr(core, method)(sender, message)


def test_two_proposals_under_one_ballot() -> None:
    core = _core(THIRD)
    core.receive_prepare(LEADER, _prepare())
    other = value(chunks=refs(b"\x03"))
    with refused(core, LEADER, "two results under one ballot"):
        core.receive_prepare(LEADER, Prepare(ROUND, 0, FIRST_BALLOT, other.proposal, other.chunks))


def _vote(**changes: object) -> Prepared:
    return dataclasses.replace(vote(SECOND, V), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (_vote(signature=b"forged"), "forged or missing"),
        (_vote(peer=THIRD), "was not proposed"),
        (_vote(proposal=NO_DIGEST), "was not proposed"),
    ],
)
def test_bad_votes(message: Prepared, reason: str) -> None:
    core = _leading()
    with refused(core, SECOND, reason):
        core.receive_prepared(SECOND, message)


def test_a_bad_promise() -> None:
    core = _core(SECOND)
    ballot = sent(core.take_over(), Poll)[0].message.ballot  # type: ignore[attr-defined]
    with refused(core, THIRD, "voted above"):
        core.receive_promise(THIRD, Promise(ROUND, 0, ballot, value(Ballot(2, 0, LEADER))))
    with refused(core, THIRD, "not the proposed result"):
        bad = dataclasses.replace(V, chunks=refs(b"\x01"))
        core.receive_promise(THIRD, Promise(ROUND, 0, ballot, bad))
