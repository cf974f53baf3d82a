"""Rosters: computed from signed JOINs, and refused if anything in them was not."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.messages.rounds import Ballot, Join
from shoal.protocol.rounds.agreement.apart import MAX_APART, ways_between
from shoal.protocol.rounds.agreement.roster import (
    MAX_MEMBERS,
    Policy,
    check_join,
    check_proposed,
    check_roster,
    make_plan,
    rank,
    share_chunks,
)
from tests.simulation.signing import FakeSigner
from tests.unit.rounds_kit import BASE, CHUNKS, PEERS, POLICY, SIGNER, STRANGER, A, B, C, D, join, leave, roster, value

LEADER, SECOND, THIRD = rank(BASE, 1, PEERS)
SOUND = roster()


def test_a_sound_roster_passes() -> None:
    check_roster(SOUND, BASE, POLICY, SIGNER)
    check_roster(roster([A, B]), BASE, POLICY, SIGNER)
    check_roster(roster([*PEERS, STRANGER]), BASE, POLICY, SIGNER)  # whoever joins is a member, but no voter yet


def _with_join(index: int, **changes: object) -> object:
    joins = list(SOUND.joins)
    joins[index] = join(joins[index].peer, **{"leader": LEADER, **changes})  # type: ignore[arg-type]
    return roster(joins=tuple(joins))


BAD = [
    (roster(joins=(*SOUND.joins, SOUND.joins[1])), "twice"),
    (roster([A]), "too few"),
    (roster([A, STRANGER]), "no quorum"),
    (roster(joins=tuple(reversed(SOUND.joins))), "not in order"),
    (_with_join(1, attempt=2), "not made for it"),
    (_with_join(1, leader=SECOND), "not made for it"),
    (_with_join(1, round=BASE.round), "not made for it"),
    (_with_join(1, part=1), "not made for it"),
    (_with_join(1, base_history=NO_DIGEST), "another state"),
    (_with_join(1, base_root=NO_DIGEST), "another state"),
    (dataclasses.replace(SOUND, signature=b""), "forged or missing"),
    (dataclasses.replace(SOUND, attempt=2), "not made for it"),
    (roster([A, B], leaves=(leave(C, Ballot(2, 0, PeerId(""))),)), "may have joined another group"),
    (roster([A, B], leaves=(leave(C, Ballot(1, 0, PeerId(""))),)), "may have joined another group"),
    (roster(leaves=(leave(STRANGER, Ballot(0, 0, D)),)), "without a vote"),
    (roster(leaves=(leave(C, Ballot(0, 0, D)),) * (MAX_MEMBERS + 1)), "no run has more than"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_roster_is_refused_and_its_leader_named(bad: object, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason) as caught:
        check_roster(bad, BASE, POLICY, SIGNER)  # type: ignore[arg-type]
    assert caught.value.peer == LEADER or "too few" in reason or "no quorum" in reason


def test_a_member_cannot_be_put_into_a_roster_without_its_signature() -> None:
    forged = dataclasses.replace(SOUND.joins[1], weight=999)
    with pytest.raises(RemoteError, match="Join has a forged") as caught:
        check_roster(roster(joins=(SOUND.joins[0], forged, SOUND.joins[2])), BASE, POLICY, SIGNER)
    assert caught.value.peer == SECOND


def test_a_forged_leave_buys_no_quorum() -> None:
    forged = dataclasses.replace(leave(C, Ballot(0, 0, PeerId(""))), signature=b"")
    with pytest.raises(RemoteError, match="Leave has a forged"):
        check_roster(roster([A, B], leaves=(forged,)), BASE, POLICY, SIGNER)


def test_a_weight_over_the_cap_names_its_author() -> None:
    with pytest.raises(RemoteError, match="over the run's cap") as caught:
        check_join(join(B, A, weight=POLICY.max_weight + 1), POLICY, SIGNER)
    assert caught.value.peer == B


def test_the_rank_changes_with_the_attempt_and_not_with_the_order_of_the_names() -> None:
    assert rank(BASE, 1, PEERS) == rank(BASE, 1, reversed(PEERS))
    assert len({tuple(rank(BASE, attempt, PEERS)) for attempt in range(20)}) > 1


def test_shares_follow_lines_and_go_to_the_reachable() -> None:
    policy = dataclasses.replace(POLICY, chunks=(8,))
    fast, slow, hidden = join(A, A, up=300), join(B, A, up=190), join(C, A, up=300, reachable=False)
    owners = _shares([fast, slow, hidden], policy)
    assert (owners.count(A), owners.count(B), owners.count(C)) == (7, 1, 0)
    assert owners == (A,) * 7 + (B,)
    assert set(_shares([join(A, A, reachable=False), join(B, A, reachable=False)], POLICY)) == {A, B}


def test_whoever_contributes_nothing_sends_less_and_so_owns_more() -> None:
    joins = [join(peer, A, weight=0 if peer == A else 1, up=100, down=200) for peer in (A, B, C)]
    owners = _shares(joins, dataclasses.replace(POLICY, chunks=(9,)))
    assert owners.count(A) > owners.count(B) == owners.count(C)


def test_whoever_is_apart_from_somebody_owns_nothing_whichever_of_the_two_says_so() -> None:
    assert set(_shares([join(A, A), join(B, A, apart=(C,)), join(C, A)], POLICY)) == {A}
    assert set(_shares([join(A, A), join(B, A), join(C, A, apart=(B,))], POLICY)) == {A}
    assert set(_shares([join(A, A), join(B, A, apart=(STRANGER,)), join(C, A)], POLICY)) == {A, B, C}


def _shares(joins: list[Join], policy: Policy) -> tuple[PeerId, ...]:
    return share_chunks(joins, policy, ways_between(joins), policy.chunks_in(1))


def test_a_join_that_names_too_many_is_refused() -> None:
    check_join(join(B, A, apart=(C,) * MAX_APART), POLICY, SIGNER)
    with pytest.raises(RemoteError, match="apart from") as caught:
        check_join(join(B, A, apart=(C,) * (MAX_APART + 1)), POLICY, SIGNER)
    assert caught.value.peer == B


def test_max_group_bounds_the_owners_and_not_the_members() -> None:
    bounded = dataclasses.replace(POLICY, max_group=1)
    made = make_plan(SOUND, bounded)
    assert len(set(made.owners)) == 1
    assert len(made.owners) == CHUNKS
    assert set(made.members) == set(PEERS)


def test_weight_zero_contributes_nothing() -> None:
    order = rank(BASE, 1, PEERS)
    joins = tuple(join(peer, order[0], weight=0 if peer == SECOND else 5) for peer in order)
    made = make_plan(signed(dataclasses.replace(SOUND, joins=joins), FakeSigner(LEADER)), POLICY)
    assert made.contributors() == [LEADER, THIRD]


def test_a_leader_proposes_for_the_group_that_joined_it() -> None:
    proposal = value().proposal
    check_proposed(proposal, SOUND, LEADER)
    heavier = dataclasses.replace(proposal, weights=(10**9, *proposal.weights[1:]))
    smaller = dataclasses.replace(proposal, members=proposal.members[:1])
    for invented in (heavier, smaller):
        with pytest.raises(RemoteError, match="did not join it"):
            check_proposed(invented, SOUND, LEADER)


def test_an_earlier_result_is_proposed_again_only_if_somebody_had_voted_for_it() -> None:
    earlier = value()
    later = roster(attempt=2)
    with pytest.raises(RemoteError, match="nobody had voted for"):
        check_proposed(earlier.proposal, later, LEADER)
    voted = dataclasses.replace(later, joins=(dataclasses.replace(later.joins[0], prepared=earlier), *later.joins[1:]))
    check_proposed(earlier.proposal, voted, LEADER)
