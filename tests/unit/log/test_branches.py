"""A branch of the log: who may found one, and how it is shown to those who lack the entries before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from shoal.protocol.base.effects import Send
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.log.certificate import certificate_of, check_certificate, subject_of
from shoal.protocol.log.core import Core
from shoal.protocol.log.keeper import Keeper, _counts
from shoal.protocol.log.register import (
    Rules,
    after,
    first_state,
    has_life,
    last_life,
    member_of,
    next_entry,
    voters_root,
    who_left,
)
from shoal.protocol.log.shortcuts import START, Shortcuts, beginning, check_shortcut
from shoal.protocol.log.trust import Byzantine, Crash
from shoal.protocol.messages.log import (
    Admit,
    Asks,
    Certificate,
    Decided,
    Found,
    GetLog,
    Leave,
    Member,
    Order,
    Phase,
    Register,
    Remove,
    Stays,
    Stem,
    Tip,
    Vote,
    VoteFile,
    What,
    Yield,
)
from tests.simulation.log_worlds import PEERS, Endless, register_of
from tests.simulation.signing import FakeSigner

A, B, C, D = PEERS[:4]
READER = PeerId("reader")
RULES = Rules(Crash(), FakeSigner(READER))


@dataclass(frozen=True)
class Seen:
    """Who is alive."""

    peers: tuple[PeerId, ...]

    def alive(self) -> Sequence[PeerId]:
        return self.peers

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self.peers


def stays(
    register: Register, peer: PeerId, founder: PeerId = B, standing: int = 1, bound: Message | None = None
) -> Stays:
    life, body = member_of(register, peer).life, encode(bound) if bound is not None else b""
    return signed(Stays(register.branch, register.tip, founder, standing, 1, body, peer, life, b""), FakeSigner(peer))


def goes_along(said: Stays) -> Stays:
    """The same by somebody who has not waited."""
    return signed(replace(said, has_waited=0), FakeSigner(said.peer))


def founding(register: Register, survivors: Sequence[PeerId] = (B, D)) -> Decided:
    """Of four members, of whom A, B and C vote."""
    entry = next_entry(register, Found(tuple(stays(register, peer) for peer in survivors)))
    subject = subject_of(register, after(register, entry, RULES), entry, 0, Phase.COMMIT)
    return Decided(entry, Certificate(subject, ()))


def test_those_who_have_signed_are_the_members_and_all_of_them_vote() -> None:
    register = register_of(4, 3)
    branch = after(register, founding(register).entry, RULES)
    assert branch.voters == (B, D)
    assert [member.peer for member in branch.members] == [B, D]
    assert {each.peer for each in branch.gone} == {A, C}
    assert (branch.earlier, branch.number) == ((Stem(register.branch, 1),), 1)
    assert branch.branch not in (register.branch, NO_DIGEST)


@pytest.mark.parametrize(
    ("standings", "voters"),
    [((8, 8), (B, D)), ((8, 7), (B, D)), ((8, 6), (B,)), ((0, 7), (D,)), ((7, 0), (B,))],
)
def test_who_lacks_the_state_with_which_the_log_ends_and_the_one_before_has_no_vote(
    standings: tuple[int, int], voters: tuple[PeerId, ...]
) -> None:
    register = replace(register_of(4, 3), parts=(replace(first_state(0), round=7),))
    survivors = zip((B, D), standings, strict=True)
    body = Found(tuple(stays(register, peer, standing=standing) for peer, standing in survivors))
    branch = after(register, next_entry(register, body), RULES)
    assert branch.voters == voters
    assert [member.peer for member in branch.members] == [B, D]


@pytest.mark.parametrize(("round", "standing"), [(7, 6), (7, 0), (0, 0)])
def test_members_none_of_whom_holds_that_state_found_nothing(round: int, standing: int) -> None:
    register = replace(register_of(4, 3), parts=(replace(first_state(0), round=round),))
    body = Found((stays(register, B, standing=standing),))
    with pytest.raises(RemoteError, match="hold no state of it"):
        after(register, next_entry(register, body), RULES)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda body: Found(()), "nobody, or too many"),
        (lambda body: Found((*body.stays, body.stays[0])), "nobody, or too many"),
        (lambda body: Found(body.stays[1:]), "without its founder"),
        (lambda body: Found((replace(body.stays[0], before=NO_DIGEST), *body.stays[1:])), "about another"),
        (lambda body: Found((stays(register_of(4, 3), B, founder=D), body.stays[1])), "about another"),
        (lambda body: Found((replace(body.stays[0], life=0), *body.stays[1:])), "no member, or not in that life"),
        (lambda body: Found((replace(body.stays[0], signature=b""), *body.stays[1:])), "signature"),
        (lambda body: Found(tuple(map(goes_along, body.stays))), "nobody has waited"),
    ],
)
def test_what_does_not_found_a_branch(spoil: Callable[[Found], Found], words: str) -> None:
    register = register_of(4, 3)
    body = spoil(Found((stays(register, B), stays(register, D))))
    with pytest.raises(RemoteError, match=words) as refusal:
        after(register, next_entry(register, body), RULES, READER)
    assert refusal.value.peer == READER


def gone(register: Register, peer: PeerId, is_removed: bool = False) -> Register:
    """After `peer` left by its own wish, or was removed by the author."""
    life = member_of(register, peer).life
    body: Leave | Remove = Leave(signed(Asks(register.branch, peer, life, True, b""), FakeSigner(peer)))
    if is_removed:
        order = Order(register.branch, What.REMOVE, peer, life, register.author, 0, b"")
        body = Remove(peer, life, (), (signed(order, FakeSigner(register.author)),))
    return after(register, next_entry(register, body), RULES)


def test_who_had_left_by_its_own_wish_may_go_on_in_a_new_life_and_who_was_removed_may_not() -> None:
    register = gone(gone(register_of(4, 4), B), D, is_removed=True)
    assert who_left(register) == [B]

    def found(peer: PeerId, life: int) -> Register:
        said = Stays(register.branch, register.tip, peer, 1, 1, b"", peer, life, b"")
        return after(register, next_entry(register, Found((signed(said, FakeSigner(peer)),))), RULES)

    over = last_life(register, B)
    branch = found(B, over + 1)
    assert branch.voters == (B,)
    assert branch.members == (Member(B, over + 1, 0),)
    assert who_left(branch) == []
    for peer, life in ((B, over), (D, last_life(register, D) + 1), (READER, 1)):
        with pytest.raises(RemoteError, match="no member, or not in that life"):
            found(peer, life)


def test_who_can_decide_founds_no_branch_and_nor_does_anybody_where_voters_may_lie() -> None:
    register = register_of(4, 3)
    entry = next_entry(register, Found((stays(register, B), stays(register, C))))
    with pytest.raises(RemoteError, match="voters who can decide"):
        after(register, entry, RULES)
    entry = next_entry(register, Found((stays(register, B),)))
    with pytest.raises(RemoteError, match="voters may lie"):
        after(register, entry, Rules(Byzantine(), FakeSigner(READER)))


def test_who_is_bound_to_let_one_go_and_is_too_few_without_it_may_found_a_branch() -> None:
    """B and C are enough of A, B and C; but C may have left by now, and B is not enough of A and B."""
    register = register_of(4, 3)
    leave = Leave(signed(Asks(register.branch, C, member_of(register, C).life, True, b""), FakeSigner(C)))
    entry = next_entry(register, Found((stays(register, B, bound=leave), stays(register, C))))
    assert after(register, entry, RULES).voters == (B, C)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (lambda register: Yield(NO_DIGEST, 10), "voters who can decide"),  # which changes no voters
        (lambda register: Found((stays(register, B),)), "another one was begun"),
        (lambda register: Admit(()), "entry of the log"),  # which does not fit
    ],
)
def test_what_does_not_bind(bound: Callable[[Register], Message], words: str) -> None:
    register = register_of(4, 3)
    body = Found((stays(register, B, bound=bound(register)), stays(register, C)))
    with pytest.raises(RemoteError, match=words) as refusal:
        after(register, next_entry(register, body), RULES, READER)
    assert refusal.value.peer == READER


def test_that_others_are_bound_is_for_the_founder_to_say() -> None:
    register = register_of(4, 3)
    leave = Leave(signed(Asks(register.branch, C, member_of(register, C).life, True, b""), FakeSigner(C)))
    entry = next_entry(register, Found((stays(register, B), stays(register, C, bound=leave))))
    with pytest.raises(RemoteError, match="voters who can decide"):
        after(register, entry, RULES)


def test_no_votes_are_needed_and_none_are_asked_for() -> None:
    register = register_of(4, 3)
    shown = founding(register)
    check_certificate(shown.certificate, shown.entry, Phase.COMMIT, register, RULES, READER)
    core = core_of(B, register)
    core, effects = core.found(Found((stays(register, B), stays(register, D))))
    assert core.register.voters == (B, D)
    assert {effect.to for effect in effects if hasattr(effect, "to")} >= {A, C, D}


def with_a_vote(shown: Decided, register: Register, voter: PeerId) -> Decided:
    subject = shown.certificate.subject
    vote = signed(Vote(subject, voter, member_of(register, voter).life, b""), FakeSigner(voter))
    return replace(shown, certificate=certificate_of(subject, [vote]))


def test_a_founding_that_somebody_has_voted_for_is_refused() -> None:
    register = register_of(4, 3)
    shown = with_a_vote(founding(register), register, A)
    with pytest.raises(RemoteError, match="votes for the founding"):
        check_certificate(shown.certificate, shown.entry, Phase.COMMIT, register, RULES, READER)


def test_a_founding_is_of_no_view() -> None:
    register = register_of(4, 3)
    shown = founding(register)
    later = replace(shown.certificate, subject=replace(shown.certificate.subject, view=1_000_000))
    with pytest.raises(RemoteError, match="another entry"):
        check_certificate(later, shown.entry, Phase.COMMIT, register, RULES, READER)


@pytest.mark.parametrize(
    "spoil", [lambda shown, register: shown, lambda shown, register: with_a_vote(shown, register, B)]
)
def test_who_can_decide_is_not_taken_to_a_branch_with_no_more_to_show(spoil: Callable) -> None:  # type: ignore[type-arg]
    """Nor by a vote under its founding."""
    register = register_of(4, 3)
    shown = spoil(founding(register), register)
    core = core_of(A, register)
    keeper = Keeper(core, Seen((B, C, D)), register, Shortcuts(register, START, register), Endless())
    keeper.passes(1000.0)
    keeper.start()
    branch = after(register, shown.entry, RULES)
    keeper.receive(B, Tip(branch.branch, 1, (shown,), stays=True))
    assert keeper.register == register


def test_who_can_decide_nothing_follows_whoever_promises_to_stay_where_the_entries_lead() -> None:
    """Else all might just be coming from there, and it has a state to lose."""
    register = register_of(4, 3)
    shown = founding(register)
    keeper = Keeper(core_of(A, register), Seen(()), register, Shortcuts(register, START, register), Endless())
    keeper.passes(1000.0)
    keeper.start()
    branch = after(register, shown.entry, RULES)
    keeper.receive(B, Tip(branch.branch, 1, (shown,)))
    assert keeper.receive(B, shown) == [Send(B, GetLog(register.branch, register.number))]
    assert keeper.register == register
    keeper.receive(B, Tip(branch.branch, 1, (shown,), stays=True))
    assert keeper.register == branch


def test_the_founding_is_sent_to_who_had_left_and_is_back_too() -> None:
    register = gone(register_of(4, 2), B)
    said = Stays(register.branch, register.tip, C, 1, 1, b"", B, last_life(register, B) + 1, b"")
    core, effects = core_of(C, register).found(Found((stays(register, C, founder=C), signed(said, FakeSigner(B)))))
    assert core.register.voters == (C, B)
    assert B in {effect.to for effect in effects if hasattr(effect, "to")}


def core_of(peer: PeerId, register: Register) -> Core:
    life = member_of(register, peer).life
    file = VoteFile(life, voters_root(register), 0, 0, None, None)
    return Core.resume(peer, register, (), file, Rules(Crash(), FakeSigner(peer)))


def test_who_lacks_the_entries_before_a_branch_is_shown_the_register_by_which_it_was_founded() -> None:
    register = register_of(4, 3)
    shown = founding(register)
    branch = after(register, shown.entry, RULES)
    shortcuts = Shortcuts(register, START, register)
    shortcuts.read(register, shown, branch)
    way = shortcuts.to((), branch)
    assert way is not None
    assert (way.register, way.branch) == (branch, branch.branch)
    check_shortcut(way, register, RULES, READER)
    assert beginning(register, way.way, RULES) == branch
    assert beginning(register, START, RULES) == register


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda crossing: replace(crossing, register=replace(crossing.register, voters=(B, D))), "no header"),
        (lambda crossing: replace(crossing, register=replace(crossing.register, branch=NO_DIGEST)), "another branch"),
        (lambda crossing: replace(crossing, entry=replace(crossing.entry, before=NO_DIGEST)), "follows another one"),
    ],
)
def test_a_forged_beginning_of_a_branch_is_refused(spoil: Callable, words: str) -> None:  # type: ignore[type-arg]
    register = register_of(4, 3)
    shown = founding(register)
    shortcuts = Shortcuts(register, START, register)
    branch = after(register, shown.entry, RULES)
    shortcuts.read(register, shown, branch)
    way = shortcuts.to((), branch)
    assert way is not None
    forged = replace(way.way, crossings=(spoil(way.way.crossings[0]),))
    with pytest.raises(RemoteError, match=words) as refusal:
        check_shortcut(replace(way, way=forged), register, RULES, READER)
    assert refusal.value.peer == READER


@pytest.mark.parametrize(
    ("tokens", "branch", "fits"),
    [(101, b"\x01" * 32, True), (100, b"\xff" * 32, True), (100, b"\x01" * 32, False), (99, b"\xff" * 32, False)],
)
def test_of_two_branches_with_as_many_tokens_that_with_the_lower_digest_yields(
    tokens: int, branch: bytes, fits: bool
) -> None:
    part = replace(first_state(0), tokens=60, voided=40)  # what was undone was worked for all the same
    register = replace(register_of(3, 3), parts=(part,))
    entry = next_entry(register, Yield(Digest(branch), tokens))
    if not fits:
        with pytest.raises(RemoteError, match="no more to show"):
            after(register, entry, RULES)
        return
    ended = after(register, entry, RULES)
    assert ended.yields_to == branch
    with pytest.raises(RemoteError, match="after the end"):
        after(ended, next_entry(ended, Yield(Digest(b"\xff" * 32), tokens + 1)), RULES)


def test_what_has_yielded_may_go_on_if_nobody_is_where_it_has_yielded_to() -> None:
    register = register_of(3, 3)
    ended = after(register, next_entry(register, Yield(Digest(b"\xff" * 32), 10)), RULES)
    branch = after(ended, next_entry(ended, Found(tuple(stays(ended, peer) for peer in (B, C, A)))), RULES)
    assert branch.yields_to == NO_DIGEST
    assert branch.voters == (A, B, C)


def test_who_goes_on_in_a_later_life_is_a_member_in_that_one() -> None:
    register = register_of(4, 3)
    later = last_life(register, B) + 7
    said = Stays(register.branch, register.tip, B, 1, 1, b"", B, later, b"")
    body = Found((signed(said, FakeSigner(B)), stays(register, C), stays(register, D)))
    branch = after(register, next_entry(register, body), RULES)
    assert Member(B, later, 0) in branch.members
    assert branch.voters == (B, C, D)
    assert has_life(branch, C, member_of(register, C).life)


def test_statements_about_strangers_as_founders_are_not_kept() -> None:
    register = gone(register_of(4, 3), D)
    assert _counts(stays(register, B, founder=C), register)
    assert _counts(stays(register, B, founder=D), register), "it had left, and may found"
    assert not _counts(stays(register, B, founder=READER), register)
