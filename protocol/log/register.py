"""The register: what the log says in sum, as a pure function of its entries.

`after` is the one place that says which entries fit. All that makes a body fit is in the body and signed, so whoever
reads the log later comes to the same verdict as those who voted. What only a voter can know at the time, such as
whether it holds a result's bytes, is no part of this: its application is asked (core.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, digest
from shoal.protocol.base.masks import is_mask, masked
from shoal.protocol.base.signing import Signer, check_signature
from shoal.protocol.base.wire import MAX_INT, Message, decode, encode, encode_value
from shoal.protocol.log.trust import Trust
from shoal.protocol.messages.log import (
    BODY_TAGS,
    AddVoters,
    Admit,
    Decided,
    Electorate,
    End,
    Entry,
    Found,
    Gone,
    Leave,
    Member,
    Order,
    PartState,
    Register,
    Remove,
    Result,
    Roster,
    Seat,
    Stem,
    Void,
    Voter,
    What,
    Yield,
)

MAX_BODY = 64 << 10  # bytes
MAX_SEATS = 900  # of a roster: a result with as many weights and a seat for each, of up to 70 bytes, fits into a body
MAX_MEMBERS = 4096
MAX_VOTERS = 32
MAX_ADMITTED = 64  # by one entry
MAX_STATEMENTS = MAX_VOTERS + 1  # of one kind in an entry: of each voter, and of the author
MAX_SURVIVORS = 200  # members with whom a branch begins; others are admitted to it
EARLIER = 16  # branches that a register remembers
WINDOW = 32  # entries for which a statement of a voter counts
REMEMBERED = 256  # peers that are gone, whose lives are not admitted again
REGISTERS = 32  # of which what was computed is kept: each result makes one, of up to 100 kB with 1,000 members


@dataclass(frozen=True, slots=True)
class Rules:
    """What everybody applies alike: the trust among voters, and how signatures are checked."""

    trust: Trust
    signer: Signer


@lru_cache(maxsize=256)
def entry_digest(entry: Entry) -> Digest:
    """By which an entry is voted for, and named by the one after it."""
    return digest("log entry", encode_value(entry))


def branch_founded_by(entry: Entry) -> Digest:
    """The branch that begins with this entry, if it founds one."""
    return digest("log branch", entry_digest(entry))


@lru_cache(maxsize=REGISTERS)
def register_root(register: Register) -> Digest:
    """The root that is in every vote."""
    return root_of(bare(register), rest_of(register))


def root_of(bare: Register, rest: Digest) -> Digest:
    """The root of a register of which only the `rest_of` is known, beside what it says without that."""
    return digest("log register", encode(bare), rest)


def bare(register: Register) -> Register:
    """Without what says only how it came about: enough to check by whom a branch was founded after it."""
    return replace(register, earlier=(), tips=register.tips[-1:])


def rest_of(register: Register) -> Digest:
    """What stands for what a `bare` register lacks."""
    return digest("log register rest", encode_value((register.earlier, register.tips[:-1])))


@lru_cache(maxsize=REGISTERS)
def voters_root(register: Register) -> Digest:
    """The root of those who decide the next entry."""
    return electorate_root(register.branch, electorate_of(register))


def electorate_of(register: Register) -> Electorate:
    """Those who decide the next entry."""
    voters = tuple(Voter(voter, member_of(register, voter).life) for voter in register.voters)
    return Electorate(register.voters_since, register.faults, voters)


def electorate_root(branch: Digest, electorate: Electorate) -> Digest:
    """What stands for voters in a vote.

    The number since when they vote is part of it: the same voters may come again, and a promise about views from their
    first time must not count in their second.
    """
    return digest("log voters", branch, encode_value(electorate))


def founded(branch: Digest, founder: PeerId, life: int, **settings: Any) -> Register:
    """The register before the first entry: its founder is the author, and votes alone."""
    usual: dict[str, Any] = {"stewards": (), "most_faults": 0, "most_voters": MAX_VOTERS, "rounds_to_vote": 1}
    usual |= {"last_round": 0, "part_count": 1, "parts": ()}
    return Register(
        branch=branch,
        earlier=(),
        yields_to=NO_DIGEST,
        number=0,
        tips=(branch,),
        author=founder,
        faults=0,
        members=(Member(founder, life, 0),),
        voters=(founder,),
        voters_since=0,
        gone=(),
        is_over=False,
        **(usual | settings),
    )


def first_state(part: int, round: int = 0, root: Digest = NO_DIGEST, history: Digest = NO_DIGEST) -> PartState:
    """A part before its first result: what it begins with is the state after `round`, with this root."""
    return PartState(
        part=part,
        roster=(),
        round=round,
        result=0,
        before=0,
        root=root,
        table=NO_DIGEST,
        history=history,
        tokens=0,
        last_tokens=0,
        voided=0,
        last_history=history,
    )


def state_of(register: Register, part: int) -> PartState:
    """Where a part stands."""
    for each in register.parts:
        if each.part == part:
            return each
    return first_state(part)


def next_history(before: Digest, table: Digest, tokens: int) -> Digest:
    """The history digest after a result.

    Nothing in it depends on the run or on who votes, so that a run that goes on from a checkpoint has the history that
    the other run would have had.
    """
    return digest("history", before, table, tokens.to_bytes(8, "little"))


def member_of(register: Register, peer: PeerId) -> Member:
    """The member `peer`; KeyError if it is none."""
    for member in register.members:
        if member.peer == peer:
            return member
    raise KeyError(peer)


def has_life(register: Register, peer: PeerId, life: int) -> bool:
    """Whether `peer` is a member in this life."""
    return any(member.peer == peer and member.life == life for member in register.members)


def has_member(register: Register, peer: PeerId) -> bool:
    """Whether `peer` is a member, in any life."""
    return any(member.peer == peer for member in register.members)


def last_life(register: Register, peer: PeerId) -> int:
    """The latest life of `peer` that was a member, as far as the register remembers; -1 if none was."""
    lives = [each.life for each in register.members if each.peer == peer]
    return max([*lives, *(each.life for each in register.gone if each.peer == peer)], default=-1)


def who_left(register: Register) -> list[PeerId]:
    """Those who left by their own wish, and have been neither admitted nor removed since."""
    last = {each.peer: each.left for each in register.gone}
    members = {member.peer for member in register.members}
    return [peer for peer, left in last.items() if left and peer not in members]


def may_survive(register: Register, peer: PeerId) -> bool:
    """Whether `peer` may go on without a quorum, in some life: as a member, or as one that left by its own wish."""
    return has_member(register, peer) or peer in who_left(register)


def may_stay(register: Register, peer: PeerId, life: int) -> bool:
    """Whether `peer` may go on without a quorum in this life: that of a member, or a new one.

    Without those in a new life a run would end whose voters have all begun one, as after a wrong turn between branches.
    """
    return has_life(register, peer, life) or (may_survive(register, peer) and life > last_life(register, peer))


def is_voter(register: Register, peer: PeerId, life: int) -> bool:
    """Whether `peer` votes on the next entry, in this life."""
    return peer in register.voters and has_life(register, peer, life)


def may_order(register: Register, peer: PeerId, life: int) -> bool:
    """Whether `peer` is the author, a steward, or in this life a voter."""
    return peer == register.author or peer in register.stewards or is_voter(register, peer, life)


def has_quorum(register: Register, peers: Collection[PeerId], rules: Rules) -> bool:
    """Whether these are enough of the voters to decide the next entry."""
    return rules.trust.is_quorum(peers, register.voters, register.faults)


def is_ordered(register: Register, what: What, subject: PeerId, orders: Iterable[Order], rules: Rules) -> bool:
    """Whether the author, a steward or a quorum of the voters is among those who have ordered this."""
    about = (register.branch, what, subject)
    by = {each.peer for each in orders if (each.branch, each.what, each.subject) == about}
    is_by_master = not by.isdisjoint((register.author, *register.stewards))
    return is_by_master or has_quorum(register, by, rules)


def body_of(content: bytes, shown_by: PeerId | None = None) -> Message:
    """What an entry with this content says; RemoteError, naming who showed it, if that is nothing, or too large."""
    return decode(content, shown_by, MAX_BODY, BODY_TAGS)


def next_entry(register: Register, body: Message) -> Entry:
    """The entry that `body` would be now."""
    return Entry(register.branch, register.number + 1, register.tip, encode(body))


@lru_cache(maxsize=4096)
def is_signed(statement: Message, author: PeerId, rules: Rules) -> bool:
    """Whether `author` signed `statement`: what is wanted is checked again after each entry."""
    try:
        check_signature(statement, author, rules.signer)
    except RemoteError:
        return False
    return True


@lru_cache(maxsize=2 * REGISTERS)
def after(register: Register, entry: Entry, rules: Rules, shown_by: PeerId | None = None) -> Register:
    """The register after `entry`; RemoteError, naming who showed it, if the entry does not fit."""
    step = _Step(register, rules, shown_by)
    if (entry.branch, entry.number, entry.before) != (register.branch, register.number + 1, register.tip):
        step.refuse("follows another one")
    body = body_of(entry.body, shown_by)
    if register.is_over or (register.yields_to != NO_DIGEST and not isinstance(body, Found)):
        step.refuse("comes after the end")
    if encode(body) != entry.body:
        step.refuse("is not in its canonical form")
    changed = _APPLY[type(body)](step, body)
    if changed.voters != register.voters:
        faults = max(changed.faults, min(changed.most_faults, (len(changed.voters) - 1) // 3))
        can_go_on = rules.trust.is_quorum(changed.voters, changed.voters, faults)
        step.require(can_go_on, "leaves too few voters to decide anything")
        changed = replace(changed, voters_since=entry.number, faults=faults)
    if isinstance(body, Found):
        earlier = (*register.earlier, Stem(register.branch, entry.number))[-EARLIER:]
        changed = replace(changed, branch=branch_founded_by(entry), earlier=earlier)
    return replace(changed, number=entry.number, tips=(*changed.tips, entry_digest(entry))[-WINDOW:])


def tokens_of(register: Register) -> int:
    """Behind all results that the log has decided since the run began; so it only grows, whatever is undone."""
    return sum(part.tokens + part.voided for part in register.parts)


def rank(register: Register) -> tuple[int, Digest]:
    """By which of two branches the higher one is the run: a total order, so that cuts of cuts are settled, too."""
    return tokens_of(register), register.branch


def steps(register: Register, entries: Iterable[Decided], rules: Rules) -> Iterator[tuple[Register, Decided, Register]]:
    """Each entry with the register before and after it."""
    for decided in entries:
        before, register = register, after(register, decided.entry, rules)
        yield before, decided, register


@dataclass(frozen=True, slots=True)
class _Step:
    """One application of a body."""

    register: Register
    rules: Rules
    shown_by: PeerId | None

    def refuse(self, why: str) -> NoReturn:
        raise RemoteError(f"shows an entry of the log that {why}", self.shown_by)

    def require(self, holds: bool, why: str) -> None:
        if not holds:
            self.refuse(why)

    def check(self, statement: Message, author: PeerId) -> None:
        if not is_signed(statement, author, self.rules):
            check_signature(statement, author, self.rules.signer, self.shown_by)

    def check_recent(self, branch: Digest, before: Digest) -> None:
        """Whether a statement was made a few entries ago at most."""
        is_recent = branch == self.register.branch and before in self.register.tips
        self.require(is_recent, "rests on statements that are too old, or of another branch")

    def check_count(self, statements: Sequence[Message]) -> None:
        self.require(len(statements) <= MAX_STATEMENTS, "has more statements than there can be")

    # -- members ------------------------------------------------------------------------------------------------

    def admit(self, body: Admit) -> Register:
        """A later life of a member takes the place of the earlier one, and has its vote no more."""
        self.require(0 < len(body.asks) <= MAX_ADMITTED, "admits nobody, or too many at once")
        register = self.register
        for asks in body.asks:
            self.require(not asks.leaves and asks.branch == register.branch, "admits who has not asked")
            self.require(asks.life > last_life(register, asks.peer), "admits a member, or a life that is over")
            self.check(asks, asks.peer)
            if has_member(register, asks.peer):
                register = self._without(register, asks.peer, left=False)
            members = (*register.members, Member(asks.peer, asks.life, 0))
            register = replace(register, members=members, gone=_remembered(register.gone, (), members))
        self.require(len(register.members) <= MAX_MEMBERS, "admits more members than a run may have")
        return register

    def leave(self, body: Leave) -> Register:
        """Who has left another branch leaves this one as well, by the same wish: that life is over.

        Voters let nobody go who is there, and has asked that on another branch (`Keeper`).
        """
        asks = body.asks
        self.require(asks.leaves, "lets go who has not asked")
        self._require_member(asks.peer, asks.life)
        self.check(asks, asks.peer)
        return self._without(self.register, asks.peer, left=True)

    def remove(self, body: Remove) -> Register:
        self._require_member(body.peer, body.life)
        self.check_count(body.unheard)
        for unheard in body.unheard:
            about = (unheard.absent, unheard.absent_life)
            fits = about == (body.peer, body.life) and unheard.peer != body.peer
            self.require(fits, "removes by statements about somebody else")
            self.check_recent(unheard.branch, unheard.before)
            self._check_voter(unheard, unheard.peer, unheard.life)
        witnessed = self._is_quorum(unheard.peer for unheard in body.unheard)
        ordered = self._ordered(What.REMOVE, body.peer, body.life, body.orders)
        self.require(witnessed or ordered, "removes without proof")
        return self._without(self.register, body.peer, left=False)

    # -- voters -------------------------------------------------------------------------------------------------

    def add_voters(self, body: AddVoters) -> Register:
        register = self.register
        self.require(bool(body.consents), "adds no voter")
        self.check_count(body.consents)
        for consent in body.consents:
            self._require_member(consent.peer, consent.life)
            self.require(consent.peer not in register.voters, "adds a voter twice")
            self.check_recent(consent.branch, consent.before)
            self.check(consent, consent.peer)
            is_earned = member_of(register, consent.peer).counted >= register.rounds_to_vote
            self.require(
                is_earned or self._ordered(What.VOTE, consent.peer, consent.life, body.orders),
                "adds a voter that has not been counted often enough",
            )
        voters = (*register.voters, *(consent.peer for consent in body.consents))
        self.require(len(set(voters)) == len(voters) <= register.most_voters, "adds voters twice, or too many")
        return replace(register, voters=voters)

    # -- rounds -------------------------------------------------------------------------------------------------

    def roster(self, body: Roster) -> Register:
        """While a round is under way nobody loses its place: masks count by places."""
        part = self._part(body.part)
        self._require_seats(body.seats)
        grows = len(body.seats) > len(part.roster) and body.seats[: len(part.roster)] == part.roster
        self.require(grows, "takes somebody out of a round, or adds nobody to it")
        return self._with_part(self.register, replace(part, roster=body.seats))

    def result(self, body: Result) -> Register:
        part, register = self._part(body.part), self.register
        last = register.last_round
        self.require(body.round == part.round + 1 and not (last and body.round > last), "decides another round")
        self.require(body.base == part.result, "has a result on another state")
        self.require(is_mask(body.counted, len(part.roster)), "counts others than the roster")
        counted = masked([seat.peer for seat in part.roster], body.counted)
        fits = len(counted) == len(body.weights) and all(body.weights)
        self.require(fits, "has other weights than for those whom it counts")
        tokens = sum(body.weights)
        self.require(part.tokens + tokens <= MAX_INT, "counts more tokens than there can be")
        if body.roster:
            self._require_seats(body.roster)
        members = tuple(
            replace(member, counted=member.counted + 1) if member.peer in counted else member
            for member in register.members
        )
        state = PartState(
            part=part.part,
            roster=body.roster or self._still_here(part.roster),
            round=body.round,
            result=register.number + 1,
            before=part.result,
            root=body.base_root,
            table=body.table,
            history=next_history(part.history, body.table, tokens),
            tokens=part.tokens + tokens,
            last_tokens=tokens,
            voided=part.voided,
            last_history=part.history,
        )
        return self._with_part(replace(register, members=members), state)

    def void(self, body: Void) -> Register:
        """The round is over all the same, without a result: so no two rounds ever have the same number."""
        part = self._part(body.part)
        self.require(part.result > part.before, "undoes a result that there is not")
        self.check_count(body.lacks)
        for lacks in body.lacks:
            self.require(lacks.result == part.result, "undoes another result")
            self.check_recent(lacks.branch, lacks.before)
            self._check_voter(lacks, lacks.peer, lacks.life)
        self.require(self._is_quorum(lacks.peer for lacks in body.lacks), "undoes a result that others may hold")
        undone = replace(
            part,
            result=part.before,
            table=NO_DIGEST,
            history=part.last_history,
            tokens=part.tokens - part.last_tokens,
            last_tokens=0,
            voided=part.voided + part.last_tokens,
        )
        return self._with_part(self.register, undone)

    def end(self, body: End) -> Register:
        register = self.register
        finished = [part for part in register.parts if part.round == register.last_round]
        is_done = bool(register.last_round) and len(finished) == register.part_count
        ordered = self._ordered(What.END, PeerId(""), 0, body.orders)
        self.require(is_done or ordered, "ends a run before its last round")
        return replace(register, is_over=True)

    def found(self, body: Found) -> Register:
        """Voters come first, in their order, and those last who had left before and are back.

        Where a quorum is left nobody may go on without the others, unless it is bound to a change of the voters that it
        is too small for; nor where nobody holds the state that the log ends with, or the one before. Who lacks both has
        no vote: it could say nothing about the next result.
        """
        register, stays = self.register, body.stays
        survivors = {each.peer: each for each in stays}
        voting = [each.peer for each in stays if has_life(register, each.peer, each.life)]
        self.require(0 < len(survivors) == len(stays) <= MAX_SURVIVORS, "founds a branch of nobody, or too many")
        for each in stays:
            may = may_stay(register, each.peer, each.life)
            self.require(may, "founds a branch of somebody who was no member, or not in that life")
            is_here = (each.branch, each.before) == (register.branch, register.tip)
            self.require(is_here and each.founder == stays[0].founder, "founds a branch by statements about another")
            self.check(each, each.peer)
        self.require(stays[0].founder in survivors, "founds a branch without its founder")
        self.require(any(each.has_waited for each in stays), "founds a branch though nobody has waited")
        self.require(self.rules.trust.may_branch, "founds a branch though voters may lie")
        has_yielded = register.yields_to != NO_DIGEST  # to a branch that nobody is on any more
        is_stuck = (
            has_yielded or not self._is_quorum(voting) or self._is_bound(voting, survivors[stays[0].founder].bound)
        )
        self.require(is_stuck, "founds a branch of voters who can decide")
        gone = [Gone(each.peer, each.life, False) for each in register.members if each.peer not in survivors]
        stayed = [
            each for each in register.members if each.peer in survivors and survivors[each.peer].life == each.life
        ]
        back = [Member(each.peer, each.life, 0) for each in stays if not has_life(register, each.peer, each.life)]
        members = (*stayed, *back)
        least = max((part.round for part in register.parts), default=0)
        able = {each.peer for each in stays if each.standing >= max(1, least)}
        self.require(bool(able), "founds a branch of members that hold no state of it")
        voters = dict.fromkeys((*register.voters, *(each.peer for each in members)))
        return replace(
            register,
            yields_to=NO_DIGEST,
            members=members,
            voters=tuple(voter for voter in voters if voter in able)[: register.most_voters],
            gone=_remembered(register.gone, gone, members),
        )

    def yield_to(self, body: Yield) -> Register:
        """Of two branches that both grow not both can end: each would have to have fewer tokens than the other."""
        self.require(body.branch != self.register.branch, "yields to itself")
        self.require((body.tokens, body.branch) > rank(self.register), "yields to a branch that has no more to show")
        return replace(self.register, yields_to=body.branch)

    # -- what they have in common -------------------------------------------------------------------------------

    def _require_member(self, peer: PeerId, life: int) -> None:
        self.require(has_life(self.register, peer, life), "is about somebody who is no member in that life")

    def _require_seats(self, seats: Sequence[Seat]) -> None:
        self.require(len(seats) <= MAX_SEATS, f"has a roster with more than {MAX_SEATS} seats")
        present = self._still_here(seats)
        fits = len({seat.peer for seat in seats}) == len(seats) and any(seat.share for seat in seats)
        self.require(fits, "has a roster with somebody twice, or without an owner")
        new = [seat for seat in seats if all(seat not in part.roster for part in self.register.parts)]
        self.require(set(new).issubset(present), "has a roster of others than members")

    def _still_here(self, seats: Sequence[Seat]) -> tuple[Seat, ...]:
        known = {member.peer for member in self.register.members}
        return tuple(seat for seat in seats if seat.peer in known)

    def _without(self, register: Register, peer: PeerId, left: bool) -> Register:
        """`register` without a member and its vote; `left`: by its own wish.

        Its place in a round that is under way stays, and stays empty.
        """
        voters = tuple(voter for voter in register.voters if voter != peer)
        self.require(bool(voters), "takes the last vote away")
        gone = Gone(peer, member_of(register, peer).life, left)
        members = tuple(member for member in register.members if member.peer != peer)
        return replace(register, gone=_remembered(register.gone, (gone,), members), members=members, voters=voters)

    def _part(self, number: int) -> PartState:
        self.require(number < self.register.part_count, "is about a part that the run does not have")
        return state_of(self.register, number)

    def _with_part(self, register: Register, part: PartState) -> Register:
        others = [each for each in register.parts if each.part != part.part]
        return replace(register, parts=tuple(sorted((*others, part), key=lambda each: each.part)))

    def _check_voter(self, statement: Message, peer: PeerId, life: int) -> None:
        self.require(is_voter(self.register, peer, life), "has the statement of somebody without a vote")
        self.check(statement, peer)

    def _is_quorum(self, peers: Iterable[PeerId]) -> bool:
        return has_quorum(self.register, set(peers), self.rules)

    def _is_bound(self, survivors: Collection[PeerId], body: bytes) -> bool:
        """Whether what must be decided next, by the founder's word, needs others than these."""
        if not body:
            return False
        is_change = not isinstance(body_of(body, self.shown_by), Found)
        self.require(is_change, "founds a branch because another one was begun")
        entry = Entry(self.register.branch, self.register.number + 1, self.register.tip, body)
        changed = after(self.register, entry, self.rules, self.shown_by)
        return not has_quorum(changed, survivors, self.rules)

    def _ordered(self, what: What, subject: PeerId, life: int, orders: Sequence[Order]) -> bool:
        """Whether the author, a steward or a quorum of the voters has ordered this."""
        self.check_count(orders)
        for each in orders:
            may = may_order(self.register, each.peer, each.life)
            self.require(may, "has the order of somebody who may give none")
            self.check(each, each.peer)
        fitting = [each for each in orders if each.subject_life == life]
        return is_ordered(self.register, what, subject, fitting, self.rules)


def _remembered(gone: Iterable[Gone], new: Iterable[Gone], members: Iterable[Member]) -> tuple[Gone, ...]:
    """Those who are gone, each once: of who is back, or gone again, the later life says what the earlier one did."""
    last = {each.peer: each for each in gone}
    for each in new:
        last.pop(each.peer, None)
        last[each.peer] = each
    back = {member.peer for member in members}
    return tuple(each for each in last.values() if each.peer not in back)[-REMEMBERED:]


_APPLY: dict[type[Message], Callable[[_Step, Any], Register]] = {
    Admit: _Step.admit,
    Leave: _Step.leave,
    Remove: _Step.remove,
    AddVoters: _Step.add_voters,
    Roster: _Step.roster,
    Result: _Step.result,
    Void: _Step.void,
    End: _Step.end,
    Found: _Step.found,
    Yield: _Step.yield_to,
}
