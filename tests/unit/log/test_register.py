"""The register: which entries fit, and what they make of it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, digest
from shoal.protocol.base.masks import mask_of
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import MAX_INT, Message, decode, encode
from shoal.protocol.log.register import (
    MAX_ADMITTED,
    MAX_BODY,
    MAX_SEATS,
    MAX_VOTERS,
    REGISTERS,
    WINDOW,
    Rules,
    after,
    founded,
    member_of,
    next_entry,
    register_root,
    voters_root,
    who_left,
)
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.log import (
    AddVoters,
    Admit,
    Asks,
    Consent,
    End,
    Lacks,
    Leave,
    Member,
    Order,
    Register,
    Remove,
    Result,
    Roster,
    Seat,
    Unheard,
    Void,
    What,
)
from tests.simulation.signing import FakeSigner

BRANCH: Digest = digest("a run")
NOBODY = PeerId("")
A, B, C, D = (PeerId(name) for name in "ABCD")
RULES = Rules(Crash(), FakeSigner(PeerId("reader")))
LIVES = {A: 1, B: 2, C: 3, D: 4}


S = TypeVar("S", bound=Message)


def by(author: PeerId, statement: S) -> S:
    return signed(statement, FakeSigner(author))


def asks(peer: PeerId, leaves: bool = False, life: int | None = None) -> Asks:
    return by(peer, Asks(BRANCH, peer, LIVES[peer] if life is None else life, leaves, b""))


def consent(register: Register, peer: PeerId) -> Consent:
    return by(peer, Consent(BRANCH, register.tip, peer, LIVES[peer], b""))


def unheard(register: Register, absent: PeerId, witness: PeerId) -> Unheard:
    return by(witness, Unheard(BRANCH, register.tip, absent, LIVES[absent], witness, LIVES[witness], b""))


def order(author: PeerId, what: What, subject: PeerId = NOBODY, life: int = 0) -> Order:
    return by(author, Order(BRANCH, what, subject, life, author, LIVES[author], b""))


def seats(*peers: PeerId) -> tuple[Seat, ...]:
    return tuple(Seat(peer, 1) for peer in peers)


def result(register: Register, round: int, **changes: object) -> Result:
    base = register.parts[0].result if register.parts else 0
    usual = Result(0, round, base, NO_DIGEST, digest("chunks"), b"\x03", (60, 40), ())
    return replace(usual, **changes)  # type: ignore[arg-type]


def apply(register: Register, *bodies: Message | Callable[[Register], Message]) -> Register:
    for body in bodies:
        made = body(register) if callable(body) else body
        register = after(register, next_entry(register, made), RULES, D)
    return register


def run_of(voters: str, members: str = "ABC", **settings: int) -> Register:
    """A run with these members, of whom the first ones vote."""
    register = founded(BRANCH, A, LIVES[A], **({"rounds_to_vote": 0} | settings))
    register = apply(register, Admit(tuple(asks(PeerId(name)) for name in members[1:])))
    for name in voters[1:]:
        register = apply(
            register,
            AddVoters((consent(register, PeerId(name)),), (order(A, What.VOTE, PeerId(name), LIVES[PeerId(name)]),)),
        )
    return register


def refused(register: Register, body: Message) -> str:
    with pytest.raises(RemoteError) as error:
        apply(register, body)
    assert error.value.peer == D
    return error.value.reason


def test_a_founder_is_author_and_only_voter() -> None:
    register = founded(BRANCH, A, 1)
    assert (register.author, register.voters, register.tip) == (A, (A,), BRANCH)


def test_who_asks_is_a_member_without_a_vote() -> None:
    register = run_of("A")
    assert [member.peer for member in register.members] == [A, B, C]
    assert register.voters == (A,)
    assert "admits a member" in refused(register, Admit((asks(B),)))
    assert "admits a member" in refused(register, Admit((asks(B, life=1),)))
    assert "forged" in refused(register, Admit((replace(asks(D), life=9),)))
    assert "not asked" in refused(register, Admit((asks(D, leaves=True),)))
    assert "too many" in refused(register, Admit(tuple(asks(D, life=life) for life in range(MAX_ADMITTED + 1))))


def test_a_new_life_takes_the_place_of_the_old_one_and_has_no_vote() -> None:
    register = apply(run_of("ABC"), Admit((asks(B, life=20),)))
    assert member_of(register, B).life == 20
    assert register.voters == (A, C)
    assert "life that is over" in refused(register, Admit((asks(B),)))


def test_who_has_left_comes_back_with_a_later_life_only() -> None:
    left = apply(run_of("AB"), Leave(asks(B, leaves=True)))
    assert "life that is over" in refused(left, Admit((asks(B),)))
    back = apply(left, Admit((asks(B, life=20),)))
    assert "no member" in refused(back, Leave(asks(B, leaves=True)))


def test_an_entry_follows_the_one_before_in_one_form_only() -> None:
    register = run_of("A")
    entry = next_entry(register, Admit((asks(D),)))
    for wrong in (
        replace(entry, number=9),
        replace(entry, before=NO_DIGEST),
        replace(entry, branch=NO_DIGEST),
        replace(entry, body=b"\xdc\x00\x02" + entry.body[1:]),
        replace(entry, body=encode(asks(D))),
    ):
        with pytest.raises(RemoteError):
            after(register, wrong, RULES)


def test_a_member_may_leave_with_its_vote_but_not_the_last_voter() -> None:
    register = run_of("AB")
    left = apply(register, Leave(asks(A, leaves=True)))
    assert left.voters == (B,)
    assert "last vote" in refused(left, Leave(asks(B, leaves=True)))
    assert "not asked" in refused(register, Leave(asks(B)))
    assert "no member" in refused(register, Leave(asks(B, leaves=True, life=9)))
    elsewhere = by(B, replace(asks(B, leaves=True), branch=digest("another branch")))
    assert who_left(apply(register, Leave(elsewhere))) == [B], "that life is over"
    forged = by(A, replace(asks(B, leaves=True), branch=digest("another branch")))
    assert "signature" in refused(register, Leave(forged))


def test_who_is_not_heard_of_is_removed_by_a_quorum_that_says_so_now() -> None:
    register = run_of("ABC")
    both = (unheard(register, C, A), unheard(register, C, B))
    assert apply(register, Remove(C, LIVES[C], both, ())).voters == (A, B)
    assert "without proof" in refused(register, Remove(C, LIVES[C], both[:1], ()))
    assert "without proof" in refused(register, Remove(C, LIVES[C], (both[0], both[0]), ()))
    assert "somebody else" in refused(register, Remove(B, LIVES[B], both, ()))
    later = register
    for number in range(WINDOW):
        assert apply(later, Remove(C, LIVES[C], both, ())).voters == (A, B)
        later = apply(later, result(later, number + 1, counted=b"", weights=()))
    assert "too old" in refused(later, Remove(C, LIVES[C], both, ()))
    assert "without a vote" in refused(run_of("AB"), Remove(B, LIVES[B], (unheard(run_of("AB"), B, C),), ()))


def test_the_author_and_stewards_remove_by_order_and_others_do_not() -> None:
    register = run_of("ABC")
    assert apply(register, Remove(B, LIVES[B], (), (order(A, What.REMOVE, B, LIVES[B]),))).voters == (A, C)
    assert "without proof" in refused(register, Remove(B, LIVES[B], (), (order(C, What.REMOVE, B, LIVES[B]),)))
    nobody = (order(D, What.REMOVE, B, LIVES[B]),)
    assert "may give none" in refused(register, Remove(B, LIVES[B], (), nobody))
    former = by(C, replace(order(C, What.REMOVE, B, LIVES[B]), life=1))
    assert "may give none" in refused(register, Remove(B, LIVES[B], (), (former,)))
    assert "can be" in refused(register, Remove(B, LIVES[B], (), nobody * 40))
    assert "without proof" in refused(register, Remove(B, LIVES[B], (), (order(A, What.REMOVE, B, 9),)))
    stewarded = replace(register, stewards=(C,))
    assert apply(stewarded, Remove(B, LIVES[B], (), (order(C, What.REMOVE, B, LIVES[B]),))).voters == (A, C)


def test_a_voter_consents_and_was_counted_or_is_ordered() -> None:
    register = run_of("A", rounds_to_vote=1)
    assert "often enough" in refused(register, AddVoters((consent(register, B),), ()))
    counted = apply(register, Roster(0, seats(A, B)), lambda each: result(each, 1))
    assert apply(counted, lambda each: AddVoters((consent(each, B),), ())).voters == (A, B)
    stale = by(B, replace(consent(register, B), before=digest("another entry")))
    assert "too old" in refused(counted, AddVoters((stale,), ()))
    ordered = (order(A, What.VOTE, B, LIVES[B]),)
    assert apply(register, AddVoters((consent(register, B),), ordered)).voters == (A, B)


def test_there_are_at_most_so_many_voters() -> None:
    register = run_of("A")
    many = replace(register, voters=tuple(PeerId(f"V{number}") for number in range(MAX_VOTERS)))
    assert "too many" in refused(many, AddVoters((consent(many, B),), ()))
    assert "twice" in refused(register, AddVoters((consent(register, B), consent(register, B)), ()))
    assert "too many" in refused(run_of("AB", most_voters=2), AddVoters((consent(run_of("AB", most_voters=2), C),), ()))


def test_a_result_counts_tokens_and_members_and_follows_the_one_before() -> None:
    register = apply(run_of("A"), Roster(0, seats(A, B)), lambda each: result(each, 1))
    part = register.parts[0]
    assert (part.round, part.result, part.before, part.tokens) == (1, register.number, 0, 100)
    assert [member.counted for member in register.members] == [1, 1, 0]
    assert "another round" in refused(register, result(register, 1))
    assert "another state" in refused(register, result(register, 2, base=0))
    assert "others than the roster" in refused(register, result(register, 2, counted=b"\x04"))
    assert "others than the roster" in refused(register, result(register, 2, counted=b"\x03\0"))
    assert "other weights" in refused(register, result(register, 2, weights=(1,)))
    assert "other weights" in refused(register, result(register, 2, weights=(1, 0)))
    assert "more tokens" in refused(register, result(register, 2, weights=(MAX_INT, 1)))
    assert "part that the run" in refused(register, result(register, 2, part=1))
    following = apply(register, result(register, 2, roster=seats(A, C), counted=b"", weights=()))
    assert (following.parts[0].roster, following.parts[0].tokens) == (seats(A, C), 100)


def test_a_roster_is_of_members_and_only_grows_within_a_round() -> None:
    register = run_of("A")
    assert "others than members" in refused(register, Roster(0, seats(A, D)))
    assert "without an owner" in refused(register, Roster(0, ()))
    assert "somebody twice" in refused(register, Roster(0, seats(A, A)))
    assert "without an owner" in refused(register, Roster(0, (Seat(A, 0),)))
    once = apply(register, Roster(0, seats(A, B)))
    assert "adds nobody" in refused(once, Roster(0, seats(A, B)))
    assert "takes somebody out" in refused(once, Roster(0, seats(A, C, B)))
    assert apply(once, Roster(0, seats(A, B, C))).parts[0].roster == seats(A, B, C)


def test_a_full_roster_and_its_result_fit_into_entries_and_one_more_seat_does_not() -> None:
    peers = [PeerId(f"16Uiu2HA{number:045d}") for number in range(MAX_SEATS + 1)]  # the longest of real names
    register = replace(run_of("A"), members=tuple(Member(peer, 1, 0) for peer in peers))
    most = 1 << 16  # chunks of a vector, which one owner may own all
    full = tuple(Seat(peer, most) for peer in peers[:-1])
    register = apply(register, Roster(0, full))
    mask, weights = mask_of(peers[:-1], peers[:-1]), (MAX_INT // len(full),) * len(full)
    said = result(register, 1, counted=mask, weights=weights, roster=full)
    assert len(encode(said)) <= MAX_BODY
    assert len(apply(register, said).parts[0].roster) == MAX_SEATS
    more = (*full, Seat(peers[-1], most))
    assert f"more than {MAX_SEATS} seats" in refused(register, Roster(0, more))
    assert f"more than {MAX_SEATS} seats" in refused(
        register, result(register, 1, counted=b"", weights=(), roster=more)
    )


def test_who_leaves_keeps_its_place_until_the_round_is_over() -> None:
    gone = apply(run_of("A"), Roster(0, seats(A, B)), Leave(asks(B, leaves=True)))
    assert gone.parts[0].roster == seats(A, B)
    assert apply(gone, result(gone, 1)).parts[0].roster == seats(A)


def test_only_a_quorum_that_lacks_a_result_undoes_it_and_only_the_last() -> None:
    register = apply(run_of("ABC"), Roster(0, seats(A, B)), lambda each: result(each, 1), lambda each: result(each, 2))
    number = register.parts[0].result
    lacks = [by(peer, Lacks(BRANCH, register.tip, number, peer, LIVES[peer], b"")) for peer in (A, B, C)]
    assert "others may hold" in refused(register, Void(0, (lacks[1],)))
    assert "another result" in refused(register, Void(0, (by(A, replace(lacks[0], result=number - 1)), lacks[1])))
    undone = apply(register, Void(0, tuple(lacks[:2])))
    before = apply(run_of("ABC"), Roster(0, seats(A, B)), lambda each: result(each, 1)).parts[0]
    assert (undone.parts[0].round, undone.parts[0].result, undone.parts[0].tokens) == (2, number - 1, 100)
    assert undone.parts[0].history == before.history
    assert apply(undone, result(undone, 3)).parts[0].before == number - 1
    assert "there is not" in refused(undone, Void(0, tuple(lacks[:2])))


def test_a_run_ends_after_its_last_round_or_by_order_and_nothing_follows() -> None:
    register = run_of("ABC")
    assert "before its last round" in refused(register, End(()))
    assert "before its last round" in refused(register, End((order(C, What.END),)))
    assert apply(register, End((order(B, What.END), order(C, What.END), order(A, What.END)))).is_over
    short = apply(run_of("A", last_round=1), Roster(0, seats(A, B)), lambda each: result(each, 1))
    over = apply(short, End(()))
    assert "before its last round" in refused(replace(short, part_count=2), End(()))
    assert "after the end" in refused(over, Admit((asks(D),)))
    assert "another round" in refused(short, result(short, 2))


def test_the_same_voters_a_second_time_are_others() -> None:
    register = run_of("AB")
    gone = apply(register, Leave(asks(B, leaves=True)))
    back = apply(gone, Admit((asks(B, life=20),)))
    consents = by(B, replace(consent(back, B), life=20))
    again = apply(back, AddVoters((consents,), ()))
    assert again.voters == register.voters
    assert voters_root(again) != voters_root(register)


def test_the_number_of_liars_rises_with_the_voters_and_never_falls() -> None:
    register = run_of("A", most_faults=1)
    for peer in (B, C, D):
        if peer is D:
            register = apply(register, Admit((asks(D),)))
        register = apply(register, AddVoters((consent(register, peer),), ()))
    assert register.faults == 1
    assert apply(register, Leave(asks(D, leaves=True))).faults == 1


def test_a_register_travels_and_its_root_covers_all_of_it() -> None:
    register = apply(run_of("AB"), Roster(0, seats(A, B)))
    assert decode(encode(register)) == register
    assert register_root(register) != register_root(replace(register, faults=1))


def test_registers_that_were_left_are_not_kept_in_memory() -> None:
    """Each result makes a member of its own of everybody whom it counts."""
    register, before = apply(run_of("A"), Roster(0, seats(A, B))), registers_in_memory()
    for round in range(1, 300):
        register = apply(register, result(register, round))
        assert register_root(register) != voters_root(register)
    assert registers_in_memory() - before <= 4 * REGISTERS


def test_of_everybody_who_is_gone_only_the_last_life_is_remembered() -> None:
    register, life = run_of("A"), LIVES[B]
    for life in range(LIVES[B], LIVES[B] + 5):
        register = apply(register, Leave(by(B, replace(asks(B, leaves=True), life=life))))
        assert [each.life for each in register.gone if each.peer == B] == [life]
        assert "life that is over" in refused(register, Admit((asks(B, life=life),)))
        register = apply(register, Admit((asks(B, life=life + 1),)))
    assert all(each.peer != B for each in register.gone)
    assert "life that is over" in refused(register, Admit((asks(B, life=life),)))
    assert who_left(register) == []


def registers_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, Register) for each in gc.get_objects())
