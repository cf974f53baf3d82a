"""From JOINs to a roster: which members are waited for, which are called, which are not believed."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.effects import Timer, Wake
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import NO_DIGEST, PeerId, digest
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, encode
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.rounds import Ballot, Call, CatchUp, Join, Noted, Retry
from shoal.protocol.rounds.agreement.roster import Offer, check_roster, rank
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.allreduce.outbox import Outbox
from shoal.protocol.rounds.allreduce.shelf import Shelf
from shoal.protocol.rounds.matchmaking.candidates import MAX_ATTEMPT_STEP
from shoal.protocol.rounds.matchmaking.context import Means
from shoal.protocol.rounds.matchmaking.gathering import STRANGERS_BYTES, Gathering
from shoal.protocol.rounds.matchmaking.matchmaking import RETRY, RETRY_MOST, SILENCE, Astray, GroupFormed, Matchmaking
from shoal.protocol.rounds.matchmaking.milestones import HandIn, Waiting
from tests.simulation.signing import FakeSigner
from tests.unit.rounds_kit import (
    BASE,
    PEERS,
    POLICY,
    ROUND,
    SIGNER,
    STRANGER,
    D,
    join,
    leave,
    refs,
    refused,
    roster,
    sent,
    told,
    value,
)

LEADER, SECOND, THIRD = rank(BASE, 1, PEERS)
OFFER = Offer(10)


class _View:
    """A view with the living peers that a test names."""

    def __init__(self, me: PeerId, others: list[PeerId]) -> None:
        self.others = [peer for peer in others if peer != me]
        self.statuses: dict[PeerId, RunStatus] = {}

    def alive(self) -> list[PeerId]:
        return self.others

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self.others

    def is_suspect(self, peer: PeerId) -> bool:
        return False

    def status(self, peer: PeerId) -> RunStatus | None:
        return self.statuses.get(peer)


def _means(me: PeerId, view: _View | None = None, slack: float = 0.0) -> Means:
    view, spread, pace = view or _View(me, list(PEERS)), Estimate(2.0, 0.5, 60.0), Estimate(1.0, 1.0, 60.0)
    policy = dataclasses.replace(POLICY, slack=slack)
    return Means(me, 0, FakeSigner(me), view, policy, Shelf(), Outbox(), spread, pace)


def _core(me: PeerId, vote: VoteState | None = None, view: _View | None = None, slack: float = 0.0) -> Matchmaking:
    return Matchmaking(_means(me, view, slack), BASE, vote or VoteState(ROUND, 0))


def _wake(core: Matchmaking) -> Timer:
    return Timer("matchmaking", "retry", core._token, "0")


def test_the_first_live_voter_leads_and_closes_when_all_are_there() -> None:
    leader = _core(LEADER)
    leader.submit(0.0, OFFER)
    assert sent(_core(SECOND).submit(0.0, OFFER), Join)[0].to == LEADER
    assert not told(leader.receive_join(0.1, join(SECOND, LEADER)), GroupFormed)
    (formed,) = told(leader.receive_join(0.2, join(THIRD, LEADER)), GroupFormed)
    check_roster(formed.roster, BASE, POLICY, SIGNER)
    assert len(formed.roster.joins) == 3


def test_a_leader_waits_for_joins_and_a_follower_for_those_who_say_that_they_train() -> None:
    view = _View(SECOND, list(PEERS))
    leader, follower = _core(LEADER), _core(SECOND, view=view)
    assert leader.waiting_for() == follower.waiting_for() == []  # we train ourselves
    leader.submit(0.0, OFFER)
    assert set(leader.waiting_for()) == {SECOND, THIRD}
    leader.receive_join(0.1, join(SECOND, LEADER))
    assert leader.waiting_for() == [THIRD]
    follower.submit(0.0, OFFER)
    assert follower.waiting_for() == []  # nobody has said anything
    here = RunStatus(BASE.round, BASE.history, BASE.root, "training", 0, 0, None, True, 0, 0, "unknown")
    ready, elsewhere = dataclasses.replace(here, phase="matching"), dataclasses.replace(here, round=BASE.round + 1)
    for third, late in ((here, [THIRD]), (ready, []), (elsewhere, [])):
        view.statuses = {THIRD: third, LEADER: ready}
        assert follower.waiting_for() == late


def test_who_came_just_too_late_for_a_round_is_waited_for_in_the_next_ones_but_not_in_all() -> None:
    newcomer = PeerId("newcomer")
    leader = _core(LEADER, view=_View(LEADER, [*PEERS, newcomer]))
    leader.submit(0.0, OFFER)
    assert newcomer not in leader.waiting_for()  # it stands elsewhere, and has no vote
    late = leader.candidates.followers
    late.note(newcomer, BASE.round - 2, BASE.round)
    assert newcomer not in leader.waiting_for(), "it is not close"
    late.note(newcomer, BASE.round - 1, BASE.round)
    assert newcomer in leader.waiting_for()
    for peer in (SECOND, THIRD):
        assert not told(leader.receive_join(0.1, join(peer, LEADER)), GroupFormed)
    assert told(leader.receive_join(0.2, join(newcomer, LEADER)), GroupFormed)
    waits = []
    for newest in range(BASE.round, BASE.round + 21):
        late.note(newcomer, newest, newest)  # it is late for each
        waits.append(late.is_due(newcomer, newest + 1))
    assert waits == ([True] * 2 + [False] * 8) * 2 + [True]


def test_the_late_are_called_and_then_left_out() -> None:
    leader = _core(LEADER)
    leader.submit(0.0, OFFER)
    leader.receive_join(0.0, join(SECOND, LEADER))
    (call,) = sent(leader.fire(2.1, _wake(leader)), Call)
    assert (call.to, call.message) == (THIRD, Call(ROUND, 0, 0))
    (formed,) = told(leader.fire(4.1, _wake(leader)), GroupFormed)
    assert len(formed.roster.joins) == 2


def test_with_slack_nobody_is_called_or_left_out_before_it_is_over() -> None:
    leader = _core(LEADER, slack=60.0)
    leader.submit(0.0, OFFER)
    leader.receive_join(0.0, join(SECOND, LEADER))
    for now in (2.1, 4.1, 59.9):
        assert not sent(leader.fire(now, _wake(leader)), Call)
    assert sent(leader.fire(60.1, _wake(leader)), Call)
    assert not told(leader.fire(119.9, _wake(leader)), GroupFormed)
    assert told(leader.fire(120.1, _wake(leader)), GroupFormed)


def test_with_slack_a_call_away_reaches_those_who_follow_another_and_cuts_nobody_short() -> None:
    alone, training = _core(LEADER, slack=60.0), _core(SECOND, slack=60.0)
    alone.submit(0.0, OFFER)
    (away, _) = sent(alone.fire(6.1, _wake(alone)), Call)
    assert not training.receive_call(6.2, LEADER, away.message)  # type: ignore[arg-type]
    assert told(training.receive_call(60.2, LEADER, Call(ROUND, 0, 0)), HandIn)


def test_with_slack_a_leader_trains_to_its_end_while_the_others_wait() -> None:
    leader = _core(LEADER, slack=60.0)
    (wake,) = (effect for effect in leader.receive_join(0.0, join(SECOND, LEADER)) if isinstance(effect, Wake))
    assert wake.after == 60.0
    assert told(leader.fire(60.0, wake.timer), HandIn)


def test_without_a_quorum_nobody_closes_and_the_run_says_for_whom_it_waits() -> None:
    leader = _core(LEADER)
    (waiting,) = told(leader.submit(0.0, OFFER), Waiting)
    assert waiting.reason == f"no quorum with 2 of 3 voters absent ({', '.join(p for p in PEERS if p != LEADER)})"
    assert not told(leader.fire(100.0, _wake(leader)), GroupFormed)


def test_who_waits_long_without_a_quorum_calls_the_others_away_from_their_leader() -> None:
    """Three leaders with two followers each would wait for ever: nobody of them is silent."""
    leader, follower = _core(LEADER), _core(THIRD)
    leader.submit(0.0, OFFER)
    calls = sent(leader.fire(6.1, _wake(leader)), Call)
    assert [call.message for call in calls] == [Call(ROUND, 0, 1)] * 2
    follower._view.others.remove(LEADER)  # type: ignore[attr-defined]
    follower.submit(0.0, OFFER)
    assert follower.leader == SECOND
    retries = {retry.to: retry.message for retry in sent(follower.receive_call(6.2, LEADER, Call(ROUND, 0, 1)), Retry)}
    assert retries == {LEADER: Retry(ROUND, 0, 2), SECOND: Retry(ROUND, 0, 2)}
    assert follower.attempt == 2


def test_two_that_lead_different_attempts_meet_in_the_higher_one_at_once() -> None:
    """One was alone for a while; the other comes back. Neither waits until it may call the other away."""
    view, other = _View(LEADER, list(PEERS)), LEADER if rank(BASE, 2, PEERS)[0] != LEADER else SECOND
    back, alone = _core(LEADER, view=view), _core(other, view=_View(other, []))
    back.submit(0.0, OFFER)
    alone.attempt = 1
    alone._offer = OFFER
    alone.enter(0.0, 2)
    assert (back.leader, back.attempt, alone.leader, alone.attempt) == (LEADER, 1, other, 2)
    assert not sent(back.fire(0.5, _wake(back)), Retry), "its JOIN may be on the way"
    words = sent(back.fire(1.1, _wake(back)), Retry)
    assert {word.to: word.message for word in words} == {peer: Retry(ROUND, 0, 1) for peer in PEERS if peer != LEADER}
    assert not sent(back.fire(2.5, _wake(back)), Retry), "once is enough"
    (answer,) = sent(alone.receive_retry(1.2, LEADER, 1), Retry)
    assert (answer.to, answer.message) == (LEADER, Retry(ROUND, 0, 2))
    back.receive_retry(1.3, other, 2)
    assert back.attempt == 2


def test_who_has_no_vote_calls_nobody() -> None:
    """Every voter has signed off. Whoever is left would be taken for an impostor: it waits, and says so."""
    stranger = _core(STRANGER)
    stranger.candidates.expected = lambda: [D]  # type: ignore[method-assign]
    stranger.receive_leaves(0.0, [leave(peer, Ballot(0, 0, peer)) for peer in PEERS])
    assert told(stranger.submit(0.0, OFFER), Waiting)
    assert not sent(stranger.fire(100.0, _wake(stranger)), Call)


def test_a_silent_leader_is_given_up() -> None:
    member = _core(SECOND)
    member.submit(0.0, OFFER)
    for turn in range(SILENCE):
        assert sent(member.fire(float(turn), _wake(member)), Join)[0].message.attempt == 1  # type: ignore[attr-defined]
    member.fire(20.0, _wake(member))
    assert member.attempt == 2


def test_while_no_voter_is_there_nobody_moves_on() -> None:
    """Else whoever comes back after a while would find the others in an attempt that it must take for a lie."""
    member = _core(STRANGER)
    member.submit(0.0, OFFER)
    voters, member._view.others = member._view.others, []  # type: ignore[attr-defined]
    for turn in range(3 * MAX_ATTEMPT_STEP):
        assert sent(member.fire(float(turn), _wake(member)), Join)
        member.peer_changed(float(turn))
    assert (member.attempt, member.leader) == (1, LEADER)
    member._view.others = [peer for peer in voters if peer != LEADER]  # type: ignore[attr-defined]
    member.peer_changed(1000.0)
    assert (member.attempt, member.leader) == (2, rank(BASE, 2, [SECOND, THIRD])[0])


def test_noted_is_a_sign_of_life() -> None:
    member = _core(SECOND)
    member.submit(0.0, OFFER)
    for turn in range(3 * SILENCE):
        member.receive_noted(LEADER, Noted(ROUND, 0, 1))
        member.fire(float(turn), _wake(member))
    assert member.attempt == 1


def test_who_waits_for_long_and_is_counted_repeats_its_join_less_often_until_it_is_not() -> None:
    member = _core(SECOND)
    [wake] = [each for each in member.submit(0.0, OFFER) if isinstance(each, Wake)]
    now, pauses = 0.0, []
    while now < 300.0:
        now += wake.after
        member.receive_noted(LEADER, Noted(ROUND, 0, 1))
        [wake] = [each for each in member.fire(now, wake.timer) if isinstance(each, Wake)]
        pauses.append(wake.after)
    assert pauses == sorted(pauses)
    assert pauses[0] < 2 * RETRY
    assert RETRY_MOST < pauses[-1] < 2 * RETRY_MOST
    [wake] = [each for each in member.fire(now + wake.after, wake.timer) if isinstance(each, Wake)]
    assert wake.after <= 3 * RETRY, "its leader was silent once"


def test_a_stale_timer_is_ignored() -> None:
    member = _core(SECOND)
    member.submit(0.0, OFFER)
    old = _wake(member)
    member.enter(1.0, 2)
    assert member.fire(2.0, old) == []


def test_who_trains_still_is_urged_if_it_is_to_lead() -> None:
    leader = _core(LEADER)
    effects = leader.receive_join(0.0, join(SECOND, LEADER))
    assert any(isinstance(effect, Wake) for effect in effects)
    assert told(leader.fire(2.0, _wake(leader)), HandIn)


def test_who_trains_still_steps_aside_when_the_others_can_do_without_it() -> None:
    """It is live, so nobody else would take its place; and it must not lead the retry, in which it still trains."""
    leader = _core(LEADER)
    leader.receive_join(0.0, join(SECOND, LEADER))
    leader.receive_join(0.0, join(THIRD, LEADER))
    for now in (2.0, 4.0):
        assert told(leader.fire(now, _wake(leader)), HandIn)
    retries = sent(leader.fire(6.0, _wake(leader)), Retry)
    (attempt,) = {retry.message.attempt for retry in retries}  # type: ignore[attr-defined]
    assert [retry.to for retry in retries] == [SECOND, THIRD]
    assert rank(BASE, attempt, PEERS)[0] != LEADER
    (late,) = leader.receive_join(6.1, join(SECOND, LEADER))
    assert late.message == Retry(ROUND, 0, attempt)  # type: ignore[union-attr]
    assert sent(leader.submit(7.0, OFFER), Join)[0].message.attempt == attempt  # type: ignore[attr-defined]


def test_who_has_stepped_aside_does_so_at_once_when_a_quorum_comes_to_it_again() -> None:
    leader = _core(LEADER)
    leader.receive_join(0.0, join(SECOND, LEADER))
    leader.receive_join(0.0, join(THIRD, LEADER))
    for now in (2.0, 4.0, 6.0):
        leader.fire(now, _wake(leader))
    again = next(attempt for attempt in range(leader.attempt, 64) if rank(BASE, attempt, PEERS)[0] == LEADER)
    retries = sent(leader.receive_join(7.0, join(SECOND, LEADER, again)), Retry)  # the other's JOIN is here already
    assert {retry.to for retry in retries} == {SECOND, THIRD}
    assert leader.attempt > again


def test_who_trains_still_is_waited_for_if_nothing_goes_without_it() -> None:
    leader = _core(LEADER)
    leader.receive_join(0.0, join(SECOND, LEADER))
    for now in (2.0, 4.0, 6.0, 8.0, 100.0):
        effects = leader.fire(now, _wake(leader))
        assert told(effects, HandIn)
        assert not sent(effects, Retry)


def test_a_stray_is_told_to_catch_up_when_the_group_is_closed() -> None:
    leader = _core(LEADER)
    leader.submit(0.0, OFFER)
    leader.receive_join(0.1, join(THIRD, LEADER, base_root=NO_DIGEST))
    effects = leader.receive_join(0.2, join(SECOND, LEADER))
    assert [effect.to for effect in sent(effects, CatchUp)] == [THIRD]
    assert len(told(effects, GroupFormed)[0].roster.joins) == 2


def test_whom_a_quorum_contradicts_is_astray_itself() -> None:
    leader = _core(LEADER)
    leader.submit(0.0, OFFER)
    assert not told(leader.receive_join(0.1, join(THIRD, LEADER, base_root=NO_DIGEST)), Astray)
    assert not told(leader.receive_join(0.2, join(SECOND, LEADER, base_root=digest("third"))), Astray)
    assert told(leader.receive_join(0.3, join(SECOND, LEADER, 2, base_root=NO_DIGEST)), Astray)


def test_whoever_forgot_its_votes_neither_joins_nor_leads() -> None:
    vote = VoteState(ROUND, 0)
    vote.seal()
    core = _core(LEADER, vote)
    assert core.submit(0.0, OFFER) == []
    (effect,) = core.receive_join(0.1, join(SECOND, LEADER))
    assert effect.message == Retry(ROUND, 0, 2)  # type: ignore[union-attr]


def test_a_leaver_is_not_waited_for() -> None:
    leader = _core(LEADER)
    leader.submit(0.0, OFFER)
    leader.receive_join(0.0, join(SECOND, LEADER))
    (formed,) = told(leader.receive_leaves(0.1, [leave(THIRD, Ballot(0, 0, PeerId("")))]), GroupFormed)
    assert [goodbye.peer for goodbye in formed.roster.leaves] == [THIRD]


def test_a_leaver_that_was_ahead_takes_the_group_along() -> None:
    leader = _core(LEADER)
    leader.submit(0.0, OFFER)
    leader.receive_leaves(0.1, [leave(THIRD, Ballot(3, 0, SECOND))])
    assert leader.attempt == 4


def test_whoever_starts_again_knows_from_its_record_how_far_the_attempts_have_come() -> None:
    leader = _core(SECOND, VoteState(ROUND, 0, 100, Ballot(100, 0, PeerId(""))))
    leader.receive_leaves(0.0, [leave(THIRD, Ballot(101, 0, PeerId("")))])
    leader.submit(0.1, OFFER)
    assert leader.attempt == 102


def test_a_group_does_not_do_without_the_join_of_one_that_may_have_joined_another() -> None:
    leader = _core(LEADER)
    leader.submit(0.0, OFFER)
    leader.candidates.sign_off([leave(THIRD, Ballot(1, 0, PeerId("")))])
    (formed,) = told(leader.receive_join(0.1, join(SECOND, LEADER)), GroupFormed)
    assert formed.roster.leaves == ()
    check_roster(formed.roster, BASE, POLICY, SIGNER)


def _stuffed(peer: PeerId, leader: PeerId, size: int) -> Join:
    """A JOIN with an invented vote of many bytes."""
    names = tuple(f"{number:040}" for number in range(size // 42))
    group = dict(members=names, weights=(0,) * len(names), voters=names[:1], samples=0)
    proposal = dataclasses.replace(PREPARED.proposal, **group)  # type: ignore[arg-type]
    return join(peer, leader, prepared=dataclasses.replace(PREPARED, proposal=proposal))


def test_what_strangers_bring_leaves_room_for_the_others_in_one_message() -> None:
    """Whoever brings most is left out, and is not told that it counts."""
    gathering, size = Gathering(_means(LEADER), BASE), STRANGERS_BYTES // 3
    strangers = [PeerId(f"s{number}") for number in range(8)]
    kept = [gathering.add(0.0, _stuffed(peer, LEADER, size + 1000 * place)) for place, peer in enumerate(strangers)]
    assert kept == [True, True, False, False, False, False, False, False]
    small, voter = join(STRANGER, LEADER), _stuffed(SECOND, LEADER, 2 * size)
    assert gathering.add(0.1, small)
    assert gathering.add(0.1, voter)
    assert gathering.add(0.1, _stuffed(D, LEADER, size // 2))
    assert gathering.add(0.1, _stuffed(PeerId("z"), LEADER, size * 9 // 10))
    assert list(gathering.present(1)) == [strangers[0], STRANGER, SECOND, D, PeerId("z")]
    others = [joined for joined in gathering.present(1).values() if joined.peer != SECOND]
    assert len(encode(roster(joins=tuple(others)))) < MAX_CONTROL_FRAME // 2 + 1000


def test_room_is_free_again_when_a_stranger_brings_less_or_turns_out_a_stray() -> None:
    gathering, most = Gathering(_means(LEADER), BASE), STRANGERS_BYTES * 9 // 10
    big = _stuffed(STRANGER, LEADER, most)
    for attempt, change in enumerate((dict(prepared=None), dict(base_root=NO_DIGEST)), start=2):
        assert gathering.add(0.0, dataclasses.replace(big, attempt=2 * attempt))
        assert gathering.add(0.0, dataclasses.replace(big, attempt=2 * attempt + 1, **change))  # type: ignore[arg-type]
        assert gathering.add(0.0, dataclasses.replace(big, peer=D, attempt=2 * attempt))
        assert gathering.add(0.0, join(D, LEADER, attempt=2 * attempt + 1))
    assert gathering._strays[STRANGER].prepared is None


PREPARED = value()
BAD = [
    (join(SECOND, THIRD), "for somebody else"),
    (join(SECOND, LEADER, weight=POLICY.max_weight + 1), "over the run's cap"),
    (dataclasses.replace(join(SECOND, LEADER), signature=b""), "forged or missing"),
    (join(SECOND, LEADER, 1 + MAX_ATTEMPT_STEP + 1), "far from anybody"),
    (join(SECOND, LEADER, 0), "far from anybody"),
    (join(SECOND, LEADER, base_history=NO_DIGEST), "another history"),
    (join(SECOND, LEADER, prepared=dataclasses.replace(PREPARED, chunks=refs(b"\x01"))), "not the proposed result"),
]


@pytest.mark.parametrize(("message", "reason"), BAD)
def test_a_bad_join_names_its_author_and_changes_nothing(message: Join, reason: str) -> None:
    leader = _core(LEADER)
    leader.submit(0.0, OFFER)
    with refused(leader, SECOND, reason):
        leader.receive_join(0.1, message)
