"""Signing off: a LEAVE covers the rounds in which its author may be a voter, and counts in the round it names."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import msgpack
import pytest

from shoal.protocol.base.effects import Persist, Send
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import encode
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.rounds import Ballot, Join, Leave, Proposal, Retry, Roster, VoteRecord
from shoal.protocol.rounds.agreement.certificate import result_digest
from shoal.protocol.rounds.agreement.quorum import is_quorum
from shoal.protocol.rounds.agreement.roster import Base, Offer, answers, check_roster, rank
from shoal.protocol.rounds.agreement.voting import (
    NO_BALLOT,
    Election,
    Tally,
    VoteState,
    counting,
    left_before,
    must_propose,
)
from shoal.protocol.rounds.allreduce.allreduce import Blamed
from shoal.protocol.rounds.allreduce.outbox import Outbox
from shoal.protocol.rounds.allreduce.shelf import Shelf
from shoal.protocol.rounds.matchmaking import leaving
from shoal.protocol.rounds.matchmaking.candidates import MAX_ATTEMPT_STEP
from shoal.protocol.rounds.matchmaking.context import Means
from shoal.protocol.rounds.matchmaking.leaving import FIRST_WAITS, MAX_STRANGERS, OTHERS_WAIT, Goodbyes
from shoal.protocol.rounds.matchmaking.milestones import Behind, Committed, Waiting
from shoal.protocol.rounds.rounds import Rounds
from tests.simulation.facts import FactReducer
from tests.simulation.signing import FakeSigner
from tests.unit.rounds_kit import (
    BASE,
    PEERS,
    POLICY,
    ROUND,
    SIGNER,
    A,
    B,
    C,
    D,
    join,
    leave,
    refs,
    refused,
    roster,
    sent,
    snapshot,
    told,
    value,
)

OFFER = Offer(10)
LEADER = rank(BASE, 1, PEERS)[0]
NEXT = dataclasses.replace(BASE, round=ROUND)
PREPARED = value(Ballot(2, 0, B))
RECORD = VoteRecord(ROUND, 0, 2, PREPARED.ballot, PREPARED, 0)  # of somebody who joined and voted in ROUND


class _View:
    """A view with the living peers that a test names; C and D are known, alive or not."""

    def __init__(self, others: Sequence[PeerId], known: Sequence[PeerId] = (C, D)) -> None:
        self.others = list(others)
        self.known = known
        self.round = 0

    def alive(self) -> list[PeerId]:
        return self.others

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self.others

    def is_suspect(self, peer: PeerId) -> bool:
        return False

    def status(self, peer: PeerId) -> RunStatus | None:
        known = peer in self.known or peer in self.others
        said = RunStatus(self.round, NO_DIGEST, NO_DIGEST, "syncing", 0, 0, None, True, 0, 0, "unknown")
        return said if known else None


def _rounds(me: PeerId, base: Base | None, record: VoteRecord | None = None, alive: Sequence[PeerId] = PEERS) -> Rounds:
    """A member that stands on `base`; None: a commit is being applied, or a state installed."""
    view = _View([peer for peer in alive if peer != me])
    policy = dataclasses.replace(POLICY, min_members=1)
    rounds = Rounds(me, 0, FakeSigner(me), view, policy, lambda _: FactReducer(), record)
    if base is not None:
        rounds.open(0.0, base)
    return rounds


def _goodbyes(*known: PeerId) -> Goodbyes:
    """The goodbyes of a member that knows these and the usual ones."""
    spread, pace = Estimate(1.0, 1.0, 1.0), Estimate(1.0, 1.0, 1.0)
    return Goodbyes(Means(A, 0, SIGNER, _View([A, B, C, D, *known]), POLICY, Shelf(), Outbox(), spread, pace))


def _ballot(size: int) -> Ballot:
    """A ballot of about that many bytes."""
    return Ballot(1, 0, PeerId("x" * size))


def _goodbye(round: int, peer: PeerId = C) -> Leave:
    """A LEAVE of somebody that has said nothing in `round`."""
    return signed(dataclasses.replace(leave(peer, NO_BALLOT), round=round), FakeSigner(peer))


def _facts(chunk: int) -> bytes:
    packed: bytes = msgpack.packb([A, ROUND, BASE.root, chunk, 1.0])
    return packed


def _decide_alone(rounds: Rounds) -> Proposal | str:
    """The decision of a member that is ready and alone; or for whom it waits."""
    effects = rounds.submit(1.0, OFFER, _facts)
    committed = told(effects, Committed)
    if committed:
        proposal: Proposal = committed[0].decision.certificate.proposal
        return proposal
    return " ".join(event.reason for event in told(effects, Waiting))


# -- who leaves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [BASE, NEXT, None, Base(0, BASE.history, BASE.root, (C,))])
def test_a_leaver_signs_off_from_the_round_it_joined_last_and_from_the_next(base: Base | None) -> None:
    """In that round, in the next, while it applies what was decided, and while it catches up after a restart."""
    persisted, *goodbyes = _rounds(C, base, RECORD).leave(1.0)
    leaves = [effect.message for effect in sent(goodbyes, Leave) if effect.to == A]
    assert leaves == [leave(C, RECORD.promised, PREPARED), _goodbye(ROUND + 1)]
    assert len(goodbyes) == 2 * len(leaves)
    assert isinstance(persisted, Persist)
    assert isinstance(persisted.record, VoteRecord)
    votes = [VoteState.resume(ROUND + after, 0, persisted.record) for after in range(3)]
    assert [vote.may_answer(Ballot(9, 0, A)) for vote in votes] == [False, False, True]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_who_comes_back_takes_part_without_a_vote_where_it_signed_off(after: int) -> None:
    """It says its goodbye again, in case nobody has heard it, and with it all that it has voted for."""
    record = dataclasses.replace(RECORD, left=ROUND + 1)
    back = _rounds(C, dataclasses.replace(BASE, round=BASE.round + after, voters=(A, C)), record)
    effects = back.submit(1.0, OFFER, None)
    persisted, (joining,) = effects[0], sent(effects, Join)
    assert isinstance(joining.message, Join)
    assert joining.message.votes == (after == 2)
    assert joining.message.prepared is None
    goodbyes = {0: [leave(C, RECORD.promised, PREPARED)], 1: [_goodbye(ROUND + 1)], 2: []}
    assert [effect.message for effect in sent(effects, Leave)] == goodbyes[after]
    assert isinstance(persisted, Persist)
    assert isinstance(persisted.record, VoteRecord)
    again = [effect.message for effect in sent(back.leave(2.0), Leave) if effect.to == A]
    assert again[:1] == goodbyes[after] or after == 2
    assert [goodbye.round for goodbye in again] == [ROUND + after, ROUND + after + 1]  # type: ignore[attr-defined]


def test_who_comes_back_does_not_lead_where_it_signed_off() -> None:
    back = _rounds(LEADER, BASE, dataclasses.replace(RECORD, left=ROUND + 1))
    asker = next(peer for peer in PEERS if peer != LEADER)
    answers = back.receive(0.5, asker, join(asker, LEADER))
    assert [type(each.message) for each in answers if isinstance(each, Send)] == [Leave, Retry]
    assert back.receive(0.6, asker, join(asker, LEADER)) == []  # or two like it would send each other on and on
    (joining,) = sent(back.submit(1.0, OFFER, None), Join)
    assert joining.to != LEADER


def test_it_is_silent_once_it_has_left() -> None:
    rounds = _rounds(C, BASE, RECORD)
    rounds.leave(1.0)
    assert rounds.leave(1.0) == []
    assert rounds.submit(1.0, OFFER, None) == []
    assert rounds.receive(1.0, A, _goodbye(ROUND, A)) == []


@pytest.mark.parametrize(
    ("base", "record", "alive"),
    [
        (BASE, None, PEERS),  # it has joined nothing yet
        (dataclasses.replace(BASE, voters=(C, D)), RECORD, PEERS),  # the other voter is not there
        (dataclasses.replace(BASE, voters=(C,)), RECORD, PEERS),
        (BASE, RECORD, (C,)),
    ],
)
def test_who_leaves_nobody_behind_that_could_decide_goes_without_a_word(
    base: Base, record: VoteRecord | None, alive: Sequence[PeerId]
) -> None:
    """So it may come back and go on."""
    assert _rounds(C, base, record, alive).leave(1.0) == []


def test_nor_does_one_say_a_word_whose_only_successor_has_signed_off() -> None:
    """It may be back, but without a vote."""
    rounds = _rounds(A, dataclasses.replace(BASE, voters=(A, C)), dataclasses.replace(RECORD, round=ROUND - 1))
    rounds.receive(0.1, C, _goodbye(ROUND))
    assert rounds.leave(1.0) == []


# -- who had better wait ------------------------------------------------------------------------------------


def test_the_first_voter_goes_when_it_has_heard_all_the_others_say_goodbye() -> None:
    rounds = _rounds(A, BASE)
    for peer in (C, B):
        assert rounds.departure.patience == FIRST_WAITS
        rounds.receive(0.1, peer, _goodbye(ROUND, peer))
    assert not rounds.departure.patience
    assert rounds.departure.must_keep


@pytest.mark.parametrize(("me", "alive", "waits"), [(B, PEERS, False), (B, (B, C), True), (C, PEERS, False)])
def test_others_wait_only_if_all_before_them_are_gone(me: PeerId, alive: Sequence[PeerId], waits: bool) -> None:
    record = dataclasses.replace(RECORD, prepared=None)
    rounds = _rounds(me, dataclasses.replace(BASE, round=0), record, alive)
    rounds.open(0.0, BASE)
    _standing(rounds, BASE.round)
    assert bool(rounds.departure.patience) == waits


def test_who_has_voted_waits_for_the_decision_and_keeps_the_bytes() -> None:
    rounds = _rounds(C, BASE, RECORD)
    _standing(rounds, BASE.round)
    assert rounds.departure.patience == OTHERS_WAIT
    assert rounds.departure.must_keep


def test_who_is_ahead_of_the_one_who_goes_last_waits_for_it() -> None:
    rounds = _rounds(C, BASE)
    _standing(rounds, BASE.round)
    assert not rounds.departure.patience
    _standing(rounds, BASE.round - 1)
    assert rounds.departure.patience == OTHERS_WAIT
    assert rounds.departure.must_keep


def test_a_creator_that_is_back_without_the_state_waits_for_nobody() -> None:
    """It stands where only it votes; who votes now it does not know, but whoever is there may."""
    departure = _rounds(A, dataclasses.replace(BASE, round=0, voters=(A,)), RECORD).departure
    assert departure.successors == [B, C]
    assert departure.patience == 0.0
    assert departure.last_words()


def test_a_member_without_a_vote_in_the_round_keeps_none() -> None:
    assert not _rounds(C, BASE, dataclasses.replace(RECORD, left=ROUND + 1)).departure.keeps_vote
    assert not _rounds(D, BASE).departure.keeps_vote


def _standing(rounds: Rounds, round: int) -> None:
    """A view in which all others have applied `round`."""
    view = rounds._means.view
    assert isinstance(view, _View)
    view.round = round


# -- who hears of it ----------------------------------------------------------------------------------------


def test_the_voters_that_are_left_decide_alone() -> None:
    assert "no quorum" in str(_decide_alone(_rounds(A, NEXT, alive=())))
    rounds = _rounds(A, NEXT, alive=())
    rounds.receive(0.1, C, _goodbye(ROUND + 1))
    assert isinstance(_decide_alone(rounds), Proposal)


@pytest.mark.parametrize(
    ("base", "record"),
    [
        (BASE, None),
        (None, None),
        (dataclasses.replace(BASE, round=ROUND - 2), None),
        (dataclasses.replace(BASE, round=0), RECORD),  # it was started again
    ],
)
def test_a_leave_counts_when_its_round_has_come(base: Base | None, record: VoteRecord | None) -> None:
    """It came in the round before, while a commit was applied, or long before; twice, and after the next one's."""
    rounds = _rounds(A, base, record, alive=())
    for goodbye in (_goodbye(ROUND + 2), _goodbye(ROUND + 1), _goodbye(ROUND + 1)):
        assert not told(rounds.receive(0.1, C, goodbye), Behind)
    rounds.open(0.2, NEXT)
    assert isinstance(_decide_alone(rounds), Proposal)


def test_a_leave_outlives_the_state_that_its_round_was_on() -> None:
    rounds = _rounds(A, NEXT, alive=())
    rounds.receive(0.1, C, _goodbye(ROUND + 1))
    rounds.suspend()
    rounds.open(0.2, NEXT)
    assert isinstance(_decide_alone(rounds), Proposal)


def test_a_leave_of_an_earlier_round_unseats_nobody() -> None:
    rounds = _rounds(A, BASE, alive=())
    rounds.receive(0.1, C, _goodbye(ROUND))
    rounds.open(0.2, NEXT)
    rounds.receive(0.3, C, _goodbye(ROUND))
    assert "no quorum" in str(_decide_alone(rounds))


def test_a_group_begins_where_the_promises_of_those_that_left_count() -> None:
    """Else its first attempt would be below them, for ever without a quorum; but nobody is led far astray."""
    rounds = _rounds(A, BASE, alive=())
    rounds.receive(0.1, C, leave(C, Ballot(3, 1, B)))
    rounds.receive(0.1, B, leave(D, Ballot(MAX_ATTEMPT_STEP + 1, 0, B)))
    decided = _decide_alone(rounds)
    assert isinstance(decided, Proposal)
    assert decided.attempt == 4


def test_a_new_voter_that_leaves_is_not_counted_either() -> None:
    """D was named by the proposal, and left before its vote; A alone is a quorum of A and C, but not of A, C and D."""
    named = dataclasses.replace(PREPARED, proposal=dataclasses.replace(PREPARED.proposal, voters=(A, C, D)))
    tally, goodbye = Tally(named, {A: b""}), leave(D, Ballot(2, 0, PeerId("")))
    assert not tally.decided((A, C), ())
    assert tally.decided((A, C), (goodbye,))
    assert tally.certificate((A, C), (goodbye, leave(PeerId("x"), NO_BALLOT))).leaves == (goodbye,)


def test_only_goodbyes_that_matter_are_in_a_roster() -> None:
    rounds = _rounds(A, BASE, alive=(D, PeerId("x")))
    for peer in (C, PeerId("x")):
        rounds.receive(0.1, peer, _goodbye(ROUND, peer))
    rounds.receive(0.9, D, join(D, A))
    (roster,) = [effect.message for effect in sent(rounds.submit(1.0, OFFER, _facts), Roster)]
    assert isinstance(roster, Roster)
    assert [each.peer for each in roster.leaves] == [C]


def test_a_join_without_a_vote_makes_a_member_but_no_quorum() -> None:
    """Else a leader who has not heard the goodbye would count on a voter that another has counted as gone."""
    silent = join(D, A, votes=False)
    joins = [join(A, A), silent]
    base = dataclasses.replace(BASE, voters=(C, A, D))
    assert answers(joins) == {A: None}
    order = rank(base, 1, [A, D])
    made = roster(joins=tuple(sorted(joins, key=lambda each: order.index(each.peer))), leader=A)
    with pytest.raises(RemoteError, match="no quorum"):
        check_roster(made, base, POLICY, SIGNER)
    known = dataclasses.replace(made, leaves=(leave(C, NO_BALLOT), leave(D, NO_BALLOT)))
    check_roster(signed(known, FakeSigner(A)), base, POLICY, SIGNER)


def test_a_goodbye_that_comes_again_does_not_drop_who_is_back() -> None:
    rounds = _rounds(A, BASE, alive=(B, C))
    rounds.receive(0.1, C, _goodbye(ROUND))
    for peer in (B, C):
        rounds.receive(0.9, peer, join(peer, A, votes=peer != C))
    rounds.submit(1.0, OFFER, _facts)
    assert rounds.attempt is not None
    before = snapshot(rounds)
    assert rounds.receive(1.1, C, _goodbye(ROUND)) == []
    assert snapshot(rounds) == before


# -- who is not believed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("round", [ROUND, ROUND + 1])
def test_a_forged_leave_is_refused_at_once(round: int) -> None:
    rounds = _rounds(A, BASE)
    with refused(rounds, B, "forged"):
        rounds.receive(0.1, B, dataclasses.replace(_goodbye(round), signature=b"no"))


def test_a_leave_is_no_place_for_other_bytes() -> None:
    short = dataclasses.replace(PREPARED, chunks=PREPARED.chunks[:1])
    bad = signed(dataclasses.replace(leave(C, PREPARED.ballot, short), round=ROUND + 2), FakeSigner(C))
    rounds = _rounds(A, BASE)
    with refused(rounds, C, "names 1 chunks of 3"):
        rounds.receive(0.1, C, bad)


def test_a_leave_that_turns_out_to_be_nonsense_is_blamed_on_its_author_and_not_counted() -> None:
    bad = signed(dataclasses.replace(leave(C, PREPARED.ballot, PREPARED), round=ROUND + 1), FakeSigner(C))
    rounds = _rounds(A, BASE, alive=())
    rounds.receive(0.1, C, bad)
    (blamed,) = told(rounds.open(0.2, NEXT), Blamed)
    assert blamed.peer == C
    assert "no quorum" in str(_decide_alone(rounds))


@pytest.mark.parametrize("round", [ROUND + 3, 2**60])
def test_rounds_that_nobody_can_have_joined_are_not_kept(round: int) -> None:
    rounds = _rounds(A, BASE)
    before = snapshot(rounds)
    assert rounds.receive(0.1, C, _goodbye(round)) == []
    assert snapshot(rounds) == before


def test_what_was_kept_before_we_knew_the_round_is_forgotten_if_it_was_invented() -> None:
    rounds = _rounds(A, None)
    for round in (ROUND - 1, ROUND, 2**60):
        rounds.receive(0.1, C, _goodbye(round))
    rounds.open(0.2, BASE)
    assert [len(rounds._goodbyes.of(round)) for round in (ROUND - 1, ROUND, 2**60)] == [0, 1, 0]
    rounds.receive(0.3, C, _goodbye(ROUND + 1))
    assert len(rounds._goodbyes.of(ROUND + 1)) == 1


def test_a_stranger_that_nobody_knows_signs_off_in_vain() -> None:
    goodbyes = _goodbyes()
    assert not goodbyes.admit(_goodbye(ROUND, PeerId("x")), ROUND, PEERS)
    assert goodbyes.admit(_goodbye(ROUND, D), ROUND, PEERS)
    assert goodbyes.admit(_goodbye(ROUND, PeerId("x")), ROUND, [PeerId("x")])


def test_a_leave_is_no_place_for_masks_of_any_size() -> None:
    fat = dataclasses.replace(PREPARED, chunks=refs(bytes(1000)))
    fat = dataclasses.replace(fat, proposal=dataclasses.replace(fat.proposal, result=result_digest(fat.chunks)))
    with pytest.raises(RemoteError, match="mask that does not fit"):
        _goodbyes().keep(leave(C, PREPARED.ballot, fat))


def test_strangers_cannot_crowd_out_a_voter() -> None:
    names = [PeerId(f"x{number}") for number in range(MAX_STRANGERS + 1)]
    goodbyes = _goodbyes(*names)
    for name in names[:-1]:
        goodbyes.keep(_goodbye(ROUND + 1, name))
    assert not goodbyes.admit(_goodbye(ROUND, names[-1]), ROUND, (A, C))
    assert goodbyes.admit(_goodbye(ROUND, C), ROUND, (A, C))


@pytest.mark.parametrize("votes", [False, True])
def test_bytes_are_bounded_and_an_equal_share_is_sure(votes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    small = len(encode(_goodbye(ROUND)))
    big = [
        signed(dataclasses.replace(_goodbye(ROUND, peer), promised=_ballot(3 * small)), FakeSigner(peer))
        for peer in (A, B)
    ]
    monkeypatch.setattr(leaving, "STRANGERS_BYTES", 10 * small)
    monkeypatch.setattr(leaving, "VOTERS_BYTES", 10 * small)
    monkeypatch.setattr(leaving, "MAX_STRANGERS", 5)
    goodbyes, voters = _goodbyes(), [A, B, C, D, PeerId("x")] if votes else []
    goodbyes.keep(big[0])
    assert goodbyes.admit(big[0], ROUND, voters)  # again: that is no more
    assert goodbyes.admit(big[1], ROUND, voters)
    goodbyes.keep(dataclasses.replace(big[1], round=ROUND))
    goodbyes.keep(_goodbye(ROUND, D))
    fatter = signed(dataclasses.replace(big[1], round=ROUND + 1), FakeSigner(B))
    assert not goodbyes.admit(fatter, ROUND + 1, voters)
    assert goodbyes.admit(_goodbye(ROUND), ROUND, voters)


def test_the_latest_rounds_of_each_author_are_kept_until_they_are_over() -> None:
    goodbyes = _goodbyes()
    for round in (ROUND + 1, ROUND + 3, ROUND + 2):
        goodbyes.keep(_goodbye(round))
    assert [len(goodbyes.of(round)) for round in range(ROUND + 1, ROUND + 5)] == [0, 1, 1, 0]
    goodbyes.keep_only(ROUND + 3, None)
    assert [len(goodbyes.of(round)) for round in range(ROUND + 1, ROUND + 5)] == [0, 0, 1, 0]
    goodbyes.keep_only(ROUND + 1, ROUND + 2)
    assert repr(goodbyes) == "Goodbyes(0)"


# -- agreement ----------------------------------------------------------------------------------------------

EARLY, LATE = Ballot(1, 0, A), Ballot(1, 1, B)


@dataclasses.dataclass(frozen=True)
class Fate:
    """The answers of one voter to a value under EARLY, and then to a poll under LATE."""

    votes: bool = False
    answers: bool = False  # its promise reaches the new leader
    left: Ballot | None = None  # what it had promised when it left
    heard: tuple[bool, bool] = (False, False)  # its LEAVE, by the leaders of EARLY and of LATE


HEARD = [(one, other) for one in (False, True) for other in (False, True)]
FATES = [Fate(votes, answers) for votes in (False, True) for answers in (False, True)]
FATES += [Fate(votes, False, EARLY, heard) for votes in (False, True) for heard in HEARD]
FATES += [Fate(votes, answers, LATE, heard) for votes in (False, True) for answers in (False, True) for heard in HEARD]


def test_an_attempt_has_one_group_whoever_left_after_joining_it_and_whoever_heard_it() -> None:
    """Every history of four voters, each of whom joins one of two leaders or none, and then stays or leaves."""
    attempt, voters = 2, (A, B, C, D)
    goodbyes = {(peer, number): leave(peer, Ballot(number, 0, PeerId(""))) for peer in voters for number in (1, 2)}
    fates = [(joins, heard) for joins in (None, 0, 1) for heard in (None, *HEARD)]
    groups = 0
    for lives in itertools.product(fates, repeat=len(voters)):
        formed = 0
        for leader in (0, 1):
            present = {peer for peer, (joins, _) in zip(voters, lives, strict=True) if joins == leader}
            known = [
                goodbyes[peer, attempt - 1 if joins is None else attempt]
                for peer, (joins, heard) in zip(voters, lives, strict=True)
                if heard is not None and heard[leader]
            ]
            formed += is_quorum(present, voters, [each.peer for each in left_before(known, attempt)])
        assert formed < 2, lives
        groups += formed
    assert groups > 1000


@pytest.mark.parametrize("new", [(A, B, C), (C, B), (B, D)], ids=str)
def test_what_may_be_decided_is_proposed_again_whoever_left_when_and_whoever_heard_it(new: tuple[PeerId, ...]) -> None:
    """Every history of three voters: a leader that wins the later poll is bound by what the earlier one decided."""
    proposal = dataclasses.replace(PREPARED.proposal, voters=new)
    decided = dataclasses.replace(PREPARED, ballot=EARLY, proposal=proposal)
    goodbyes = {
        (peer, promised, prepared is not None): leave(peer, promised, prepared)
        for peer in PEERS
        for promised in (EARLY, LATE)
        for prepared in (None, decided)
    }
    bound = 0
    for fates in itertools.product(FATES, repeat=len(PEERS)):
        lives = list(zip(PEERS, fates, strict=True))
        known = [
            [goodbyes[peer, fate.left, fate.votes] for peer, fate in lives if fate.left and fate.heard[leader]]
            for leader in (0, 1)
        ]
        votes = {peer: b"" for peer, fate in lives if fate.votes} | ({D: b""} if D in new else {})
        if not Tally(decided, votes).decided(PEERS, known[0]):
            continue
        answered = {peer: decided if fate.votes else None for peer, fate in lives if fate.answers}
        if Election(LATE, answered).won(PEERS, known[1]):
            bound += 1
            assert must_propose(answered, counting(known[1], LATE), PEERS) == decided, (lives, new)
    assert bound > 100
