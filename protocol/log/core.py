"""One peer's part in the agreed log: an immutable value, whose methods give the next value and effects (docs/log.md).

A voter, a member without a vote and a peer on its way in have the same core; what it may do follows from the register.
Whoever embeds it

- carries out the effects in order (base/effects.py): `Persist("log", Decided)` and `Persist("vote", VoteFile)` are
  appended to the journal (journal.py), where the last vote file counts, and forced before the next effect leaves;
- answers each `Review` by `answer`, once it knows whether it may vote for the entry: of a result, whether its bytes
  are here;
- hands in by `submit` what it wants decided; as proposer also what only a proposer may want, such as a result, for
  which the other voters wait by `expect`;
- calls `repeat` now and then while the number and the view stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Concatenate, ParamSpec

from shoal.protocol.base.effects import Effect, Event, Persist, Send, Tell, Timer, Wake
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import check_signature, signed
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.log.certificate import (
    certificate_of,
    check_certificate,
    check_change,
    decides,
    electorate,
    is_founding,
    subject_of,
    votes_on,
)
from shoal.protocol.log.register import (
    MAX_ADMITTED,
    MAX_VOTERS,
    Rules,
    after,
    body_of,
    entry_digest,
    has_life,
    has_member,
    has_quorum,
    is_voter,
    next_entry,
    voters_root,
)
from shoal.protocol.messages.log import (
    Admit,
    Certificate,
    ChangeView,
    Decided,
    Entry,
    Found,
    GetLog,
    KeeperMessage,
    Leave,
    Lock,
    LogMessage,
    Phase,
    Propose,
    Register,
    Request,
    Result,
    Roster,
    Tip,
    Vote,
    Voted,
    VoteFile,
    Yield,
)

PATIENCE = 2.0  # seconds until a voter wants another view, if it is told no others; doubled with each view
MOST_DOUBLINGS = 6
MAX_ASKED = 300  # bytes of a body that a proposer asks others to want too, lest it dies
MAX_WANTED = 64  # bodies that others want; of its own a peer may want as many more
MAX_REVIEWED = (
    256  # entries about which the application was asked, or that it refused; about older ones it is asked anew
)
TAIL = 256  # newest entries that are kept in memory for those who are behind
MOST_AT_ONCE = 64  # of them, for one who asks
MOST_BYTES = 1 << 20  # of the bodies of these; beyond the first one

P = ParamSpec("P")
Step = tuple["Core", list[Effect]]  # how the core is after an input, and what is to be done


@dataclass(frozen=True, slots=True)
class EntryDecided(Event):
    """`entry` was decided after the register `before`."""

    entry: Entry
    before: Register
    register: Register


@dataclass(frozen=True, slots=True)
class Review(Event):
    """May this peer vote for `entry`? To be answered by `Core.answer`, now or later.

    If it `is_bound` it may have been decided, and no says that its bytes are lost: then the proposer lets it go if a
    quorum does not know of it, and else it is voted for all the same. A result without its bytes is undone by `Void`.
    """

    entry: Entry
    is_bound: bool


@dataclass(frozen=True, slots=True)
class LogWanted(Event):
    """`peer` needs a shortcut to where this log is.

    It lacks entries that are no longer in memory, or is on a branch that does not go on from ours, nor ours from it.
    """

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Core:
    """What a peer knows of the log, and has said. `number` and `view` below are those of the next entry."""

    me: PeerId
    life: int
    register: Register
    rules: Rules = field(compare=False, repr=False)
    patience: float = field(default=PATIENCE, compare=False)
    log: tuple[Decided, ...] = ()  # the newest, oldest first
    view: int = 0  # it votes in none below
    settled: int = 0  # the view in which the last entry was decided; after a restart, at most one below the present
    voted: Voted | None = None
    lock: Lock | None = None
    proposal: Voted | None = None  # that of the proposer of `view`, with the phase to vote in first
    announced: Propose | None = field(default=None, compare=False, repr=False)  # by this peer, for this number
    approved: tuple[Digest, ...] = ()  # entries that the application lets it vote for
    refused: tuple[Digest, ...] = ()  # and those that it does not
    reviewed: tuple[tuple[Digest, bool], ...] = ()  # those for which it was asked, and whether they were bound
    offered: tuple[bytes, ...] = ()  # bodies that others want, until the application has let it want them, too
    votes: tuple[Vote, ...] = ()  # of each peer and phase the one of the highest view, in order
    changes: tuple[ChangeView, ...] = ()  # of each voter the one of the highest view, in order
    wanted: tuple[bytes, ...] = ()  # bodies
    expects: bool = False  # an entry is due that only a proposer can want
    armed: Timer | None = None  # that is live
    down: tuple[PeerId, ...] = ()  # voters that membership takes for dead: views that they would lead are left at once
    looks: bool = False  # it reads how the log goes on, and says nothing yet
    asked: int = 0  # the place, from 1, of the voter that it has asked for entries; 0: it lacks none that it knows of
    asked_at: int = 0  # the number at which its log ended when it did so
    written: VoteFile | None = field(default=None, compare=False, repr=False)  # last, for this number; None: unknown

    @classmethod
    def resume(cls, me: PeerId, register: Register, log: Iterable[Decided], file: VoteFile, rules: Rules) -> Core:
        """The core of a peer whose disk has this log, up to `register`, and this vote file; see journal.py."""
        core = cls(me, file.life, register, rules, log=tuple(log)[-TAIL:])
        if file.voters != voters_root(register):
            return core
        core = replace(core, view=file.view, settled=max(0, file.view - 1))
        if file.number != register.number + 1:
            return core
        return replace(core, voted=file.voted, lock=file.lock)

    @property
    def number(self) -> int:
        """The next entry's."""
        return self.register.number + 1

    @property
    def bound(self) -> Entry | None:
        """What may have been decided next, so that nothing else can be, as far as is known here.

        Not what others have locked if a quorum of those who are in this view knows nothing of it.
        """
        if self.lock is not None:
            return self.lock.entry
        stated = [each for each in self.changes if each.view >= self.view]
        lock = binding(stated, self.number)
        if lock is None or is_ground(without(stated, lock), self.register, self.rules):
            return None
        return lock.entry

    @property
    def votes_here(self) -> bool:
        """Whether this peer, in its present life, is one of the voters, and says something."""
        return is_voter(self.register, self.me, self.life) and not self.looks

    @property
    def proposer(self) -> PeerId:
        """Of the present view."""
        return proposer_of(self.register, self.view)

    # -- inputs ---------------------------------------------------------------------------------------------------

    def start(self, hands_on: bool = False) -> Step:
        """Begin, or go on after a restart: ask the voters for what came after, and repeat the last vote.

        If it `hands_on`, and is the proposer, another one is to propose.
        """
        return self._turn(Turn.start, hands_on)

    def look(self) -> Step:
        """After a restart: ask the voters for what came after, and say nothing before `start`."""
        return replace(self, looks=True)._turn(Turn._ask_another)

    def begin_life(self, life: int) -> Step:
        """Go on in a later life, in which nothing was said yet: the present one is no member's any more."""
        core = Core(self.me, life, self.register, self.rules, self.patience, self.log, down=self.down)
        return core, [Persist("vote", core.vote_file())]

    def submit(self, body: Message) -> Step:
        """Want this decided. Raises RemoteError, naming nobody, if it does not fit the register, LocalError if too
        much is wanted.

        What only a proposer may want is dropped if this peer is none, or when it is none any more.
        """
        after(self.register, next_entry(self.register, body), self.rules)
        if len(self.wanted) >= 2 * MAX_WANTED:
            raise LocalError(f"{len(self.wanted)} entries of the log are wanted already", code="busy")
        return self._turn(Turn.submit, encode(body))

    def expect(self) -> Step:
        """Want another proposer if this one has nothing decided for long; until the next entry."""
        return self._turn(Turn.expect)

    def hand_on(self) -> Step:
        """Want another proposer than ourselves, now."""
        return self._turn(Turn.hand_on)

    def found(self, body: Found) -> Step:
        """Go on as a branch. Raises RemoteError, naming nobody, if that does not fit the register."""
        return self._turn(Turn.found, next_entry(self.register, body))

    def drop(self, kind: type[Message]) -> Core:
        """Want nothing of this kind any more."""
        kept = tuple(body for body in self.wanted if not isinstance(body_of(body), kind))
        return replace(self, wanted=kept)

    def answer(self, entry: Digest, is_approved: bool) -> Step:
        """The answer to a `Review`."""
        return self._turn(Turn.answer, entry, is_approved)

    def lost(self, peer: PeerId, is_down: bool = True) -> Step:
        """Membership has given `peer` up; or, unless it `is_down`, has found it again."""
        return self._turn(Turn.lost, peer, is_down)

    def vote_file(self) -> VoteFile:
        """What must not be forgotten over a crash."""
        return VoteFile(self.life, voters_root(self.register), self.view, self.number, self.voted, self.lock)

    def repeat(self) -> list[Effect]:
        """What this peer has said for this number and view, and wants: it may be lost, and views become long.

        It is what it has said before, to the bit: whoever has heard it ignores it, or answers with what we lack.
        Not to those that membership takes for dead: once they are found again they are told.
        """
        return [each for each in self._turn(Turn.repeat)[1] if not (isinstance(each, Send) and each.to in self.down)]

    def tell_tip(self, peer: PeerId) -> list[Effect]:
        """Let `peer` know how far this log goes, so that it asks if it lacks anything."""
        return [Send(peer, Tip(self.register.branch, self.register.number, ()))] if peer != self.me else []

    def hear_of(self, peer: PeerId, number: int) -> Step:
        """`peer` says, in passing, that its log ends with this number: ask it for what is not here."""
        return self._turn(Turn.hear_of, peer, number)

    def ask(self, peer: PeerId) -> Step:
        """Ask `peer` for what is not here, whoever was asked before: perhaps none of the voters known here is left."""
        return self._turn(Turn.ask, peer)

    def receive(self, sender: PeerId, message: LogMessage) -> Step:
        """Take a message. Raises RemoteError for one that no honest peer sends; nothing has changed then."""
        return self._turn(Turn.receive, sender, message)

    def fire(self, timer: Timer) -> Step:
        """A timer is due."""
        return self._turn(Turn.fire, timer)

    def _turn(self, act: Callable[Concatenate[Turn, P], None], *inputs: P.args, **named: P.kwargs) -> Step:
        """What comes of one input, which `act` takes."""
        turn = Turn(self)
        act(turn, *inputs, **named)
        return turn.core, turn.effects


def proposer_of(register: Register, view: int) -> PeerId:
    """Who proposes in `view`."""
    return register.voters[view % len(register.voters)]


class Turn:
    """The work of one input: `core` as it becomes, and the effects so far."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.effects: list[Effect] = []

    # -- inputs -------------------------------------------------------------------------------------------------

    def start(self, hands_on: bool) -> None:
        self._set(looks=False)
        self._ask_another()
        core = self.core
        if core.votes_here and core.proposer == core.me and (core.view or hands_on):
            self._ask_for(core.view + 1)  # it no longer has the statements by which it led
        elif core.voted is not None and core.voted.view == core.view:
            self._set(proposal=core.voted)
            for phase in core.rules.trust.phases[: core.rules.trust.phases.index(core.voted.phase) + 1]:
                self._send_vote(phase, core.voted.entry)
            if core.proposer == core.me:
                self._propose(core.voted.entry, is_bound=False, grounds=())
            self._count()
        elif core.votes_here and core.view > core.settled:
            self._ask_for(core.view)  # others may wait for that, and it is known here no more
        self._arm()
        self._leave_the_dead()
        self._lead()

    def expect(self) -> None:
        self._set(expects=True)
        self._arm()

    def hand_on(self) -> None:
        if self._has_entered():
            self._ask_for(self.core.view + 1)
            self._arm()

    def submit(self, body: bytes) -> None:
        core = self.core
        if not self._may_want(body) or body in core.wanted:
            return
        self._set(wanted=(*core.wanted, body), approved=(*core.approved, entry_digest(self._entry(body))))
        self._arm()
        self._lead()
        self._repeat_wishes()

    def found(self, entry: Entry) -> None:
        core, changed = self.core, self._changed(entry)
        subject = subject_of(core.register, changed, entry, 0, core.rules.trust.phases[-1])
        self._decide(entry, Certificate(subject, ()), changed)
        told = dict.fromkeys(member.peer for member in (*core.register.members, *changed.members))
        self._send(tuple(told), self.core.log[-1])

    def answer(self, entry: Digest, is_approved: bool) -> None:
        """For this number: after the next decision, what is still wanted is asked for anew."""
        core = self.core
        offered = [body for body in core.offered if entry_digest(self._entry(body)) == entry]
        self._set(offered=tuple(body for body in core.offered if body not in offered))
        if not is_approved:
            wanted = tuple(body for body in core.wanted if entry_digest(self._entry(body)) != entry)
            self._set(
                refused=_with(core.refused, entry)[-MAX_REVIEWED:],
                approved=_without(core.approved, entry),
                wanted=wanted,
            )
        else:
            self._set(approved=_with(core.approved, entry), refused=_without(core.refused, entry))
            self._set(wanted=(*core.wanted, *offered))
        is_proposed = core.proposal is not None and entry_digest(core.proposal.entry) == entry
        self._vote_on_proposal(is_bound=is_proposed and (entry, True) in core.reviewed)
        self._arm()
        self._lead()

    def lost(self, peer: PeerId, is_down: bool) -> None:
        others = tuple(each for each in self.core.down if each != peer)
        self._set(down=(*others, peer) if is_down else others)
        self._leave_the_dead()

    def repeat(self) -> None:
        core = self.core
        if core.looks:
            return
        if core.announced is not None and core.announced.view == core.view:
            self._send(electorate(core.register, self._changed(core.announced.entry)), core.announced)
        if core.voted is not None and core.voted.view == core.view:
            entitled = electorate(core.register, self._changed(core.voted.entry))
            for vote in (each for each in core.votes if each.peer == core.me and each.subject.view == core.view):
                self._send(entitled, vote)
        elif core.votes_here and core.proposal is None and core.view > core.settled:
            for change in (each for each in core.changes if each.peer == core.me and each.view == core.view):
                self._send(core.register.voters, change)
        self._tell_wishes()

    def hear_of(self, peer: PeerId, number: int) -> None:
        if number > self.core.register.number:
            self._ask(peer)

    def ask(self, peer: PeerId) -> None:
        self._set(asked=0)
        self._ask(peer)

    def receive(self, sender: PeerId, message: LogMessage) -> None:
        if (branch := branch_of(message)) != self.core.register.branch:
            self._meet(sender, branch, message)
            return
        if sender in self.core.down:  # else those who meet again leave view after view until membership has heard of it
            self._set(down=tuple(each for each in self.core.down if each != sender))
        match message:
            case Request():
                body_of(message.body, sender)  # names the sender, where it is malformed
                self._hand(sender, message.number)
                if may_be_asked_for(message.body) and may_ask(self.core.register, sender, message.body):
                    self._consider(message.body)
            case Propose(entry=entry):
                if self._is_next(sender, entry.number, tells=True):
                    self._take_proposal(sender, message)
            case Vote(subject=subject):
                if self._is_next(sender, subject.number):
                    self._take_vote(sender, message)
                elif self._has_counted(message):  # so it is repeated, as its sender has not heard that this is decided
                    self._hand_to_member(sender, subject.number - 1)
            case ChangeView():
                if message.number <= self.core.number:
                    self._take_change(sender, message)
                else:
                    self._ask(sender)
            case Decided(entry=entry):
                if self._is_next(sender, entry.number):
                    self._take_decided(sender, message)
            case GetLog(branch=branch):
                if not self._hand(sender, message.number):
                    self._send((sender,), Tip(branch, self.core.register.number, ()))
            case Tip():
                self._take_tip(sender, message)

    def fire(self, timer: Timer) -> None:
        core = self.core
        if core.armed != timer:
            return
        self._set(armed=None)
        if core.asked:
            self._ask_another()
        if not self._is_pending:
            return
        if core.votes_here:
            self._ask_for(core.view + 1 if self._has_entered() else core.view)
        else:
            self._repeat_wishes()

    # -- what is wanted -----------------------------------------------------------------------------------------

    def _consider(self, body: bytes) -> None:
        """Want what somebody else wants, if it fits and the application lets this peer want it."""
        core = self.core
        known = (*core.wanted, *core.offered)
        if body in known or len(known) >= MAX_WANTED or not self._fits(body):
            return
        if author_of(body) in [author for each in known if (author := author_of(each))]:  # one at a time of each
            return
        entry = self._entry(body)
        if self._may_vote_for(entry):
            self._set(wanted=(*core.wanted, body))
            self._arm()
            self._lead()
        elif entry_digest(entry) not in core.refused:
            self._set(offered=(*self.core.offered, body))

    def _fits(self, body: bytes) -> bool:
        try:
            after(self.core.register, self._entry(body), self.core.rules)
        except RemoteError:
            return False
        return True

    def _entry(self, body: bytes) -> Entry:
        return next_entry(self.core.register, body_of(body))

    def _may_want(self, body: bytes) -> bool:
        return may_be_asked_for(body) or (self.core.votes_here and self.core.proposer == self.core.me)

    def _repeat_wishes(self) -> None:
        """Tell the voters of what this peer wants, and drop what it may want no more."""
        self._set(wanted=tuple(body for body in self.core.wanted if self._may_want(body)))
        self._tell_wishes()

    def _tell_wishes(self) -> None:
        """What is long is made of statements that every voter has: whoever proposes makes it anew."""
        register, leads = self.core.register, self.core.proposer == self.core.me
        for body in self.core.wanted:
            if may_be_asked_for(body) and not (leads and len(body) > MAX_ASKED):
                self._send(register.voters, Request(register.branch, register.number, body))

    # -- proposing ----------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Propose, if it is this peer's turn and it may and can."""
        core = self.core
        if core.proposer != core.me or not core.votes_here or core.proposal is not None:
            return
        due = self._due()
        if due is not None:
            entry, is_bound, grounds = due
            if self._may_vote_for(entry, is_bound):
                self._propose(entry, is_bound, grounds)

    def _due(self) -> tuple[Entry, bool, tuple[ChangeView, ...]] | None:
        """What this peer is to propose as it leads its view, whether it is bound to that, and by which statements."""
        core, grounds = self.core, self._grounds()
        if grounds is None:
            return None
        lock = binding(grounds, core.number)
        if lock is not None and (
            (is_refused := entry_digest(lock.entry) in core.refused) or self._is_beyond(lock.entry)
        ):
            free = without(grounds, lock)
            if is_ground(free, core.register, core.rules):  # a quorum does not know of it, so it was never decided
                grounds, lock = free, binding(free, core.number)
            elif is_refused and not self._have_all_stated() and core.view - lock.view < len(core.register.voters):
                return None  # more statements may come, here or to the proposer of another view
        entry = lock.entry if lock is not None else self._choice()
        return (entry, lock is not None, grounds) if entry is not None else None

    def _is_beyond(self, entry: Entry) -> bool:
        """Whether it changes the voters to some who are away: then nothing is decided before they are back."""
        core, changed = self.core, self._changed(entry)
        here = [voter for voter in changed.voters if voter not in core.down]
        is_change = changed.voters != core.register.voters
        return is_change and not has_quorum(changed, here, core.rules)

    def _propose(self, entry: Entry, is_bound: bool, grounds: tuple[ChangeView, ...]) -> None:
        core = self.core
        shown = grounds if core.rules.trust.phases[:-1] else ()
        propose = signed(Propose(core.view, entry, is_bound, shown, core.me, core.life, b""), core.rules.signer)
        self._set(announced=propose)
        if core.voted is not None and core.voted.view == core.view:  # it was started again
            self._send(electorate(core.register, self._changed(entry)), propose)
            return
        self._set(proposal=Voted(core.view, core.rules.trust.phases[0], entry))
        self._cast(core.rules.trust.phases[0], entry, propose)

    def _grounds(self) -> tuple[ChangeView, ...] | None:
        """The statements by which this peer leads its view; None as long as they are no quorum.

        In the first view of these voters nobody can have voted before.
        """
        core = self.core
        if not core.view:
            return ()
        changes = tuple(each for each in core.changes if each.view == core.view)
        return changes if is_ground(changes, core.register, core.rules) else None

    def _have_all_stated(self) -> bool:
        """Whether no statement about this view is to be expected any more: who has not made one is lost."""
        stated = {each.peer for each in self.core.changes if each.view == self.core.view}
        return all(voter in stated or voter in self.core.down for voter in self.core.register.voters)

    def _choice(self) -> Entry | None:
        """The first of what is wanted that is not refused; of those who want to be admitted, all together."""
        wanted = [body for body in self.core.wanted if entry_digest(self._entry(body)) not in self.core.refused]
        if not wanted:
            return None
        together = first_of(wanted)
        is_right = self._fits(together) and entry_digest(self._entry(together)) not in self.core.refused
        return self._entry(together if is_right else wanted[0])

    # -- voting -------------------------------------------------------------------------------------------------

    def _take_proposal(self, sender: PeerId, message: Propose) -> None:
        core, entry = self.core, message.entry
        known = core.proposal
        if known is not None and (known.view, known.entry) == (message.view, entry):
            return  # it is repeated
        if message.peer != proposer_of(core.register, message.view) or not is_voter(
            core.register, message.peer, message.life
        ):
            raise RemoteError("passes on a proposal of somebody who does not propose in that view", sender)
        check_signature(message, message.peer, core.rules.signer, sender)
        changed = after(core.register, entry, core.rules, sender)
        if is_founding(core.register, changed):
            raise RemoteError("has votes on a branch, which nobody decides by votes", sender)
        self._check_grounds(sender, message)
        has_said = core.voted is not None and core.voted.view == message.view and core.voted.entry != entry
        if message.view < core.view or has_said or core.me not in electorate(core.register, changed):
            return
        if core.proposal is None or message.view > core.view:
            self._set(view=message.view, proposal=Voted(message.view, core.rules.trust.phases[0], entry))
            self._set(wanted=tuple(body for body in core.wanted if self._may_want(body)))
            self._arm()
            self._vote_on_proposal(message.is_bound)

    def _check_grounds(self, sender: PeerId, message: Propose) -> None:
        """RemoteError unless the proposer was free to propose this, where its word is not enough."""
        core = self.core
        if not core.rules.trust.phases[:-1]:
            return
        if not message.view:
            if message.is_bound:
                raise RemoteError("is bound by nothing, as there is no view before", sender)
            return
        for each in message.grounds:
            if each.view != message.view or each.number > core.number:
                raise RemoteError("proposes on statements about another view", sender)
            check_change(each, core.register, core.rules, sender)
        lock = binding(message.grounds, core.number)
        is_right = (lock is not None) == message.is_bound and (lock is None or lock.entry == message.entry)
        if not is_ground(message.grounds, core.register, core.rules) or not is_right:
            raise RemoteError("proposes what the statements that it shows do not allow", sender)

    def _vote_on_proposal(self, is_bound: bool) -> None:
        proposal = self.core.proposal
        if proposal is not None and self._may_vote_for(proposal.entry, is_bound):
            self._cast(proposal.phase, proposal.entry)
            self._count()

    def _may_vote_for(self, entry: Entry, is_bound: bool = False) -> bool:
        """Whether the application lets it; asks it if it has not been asked, and again once the entry is bound."""
        core, digest = self.core, entry_digest(entry)
        was_asked = (digest, is_bound) in core.reviewed
        if digest in core.approved or (is_bound and was_asked and digest in core.refused):
            return True
        if not was_asked:
            reviewed = (*core.reviewed, (digest, is_bound))[-MAX_REVIEWED:]
            self._set(reviewed=reviewed, refused=_without(core.refused, digest))
            self.effects.append(Tell(Review(entry, is_bound)))
        return False

    def _cast(self, phase: Phase, entry: Entry, announce: Propose | None = None) -> None:
        """Vote, once in each view and phase; a voter's disk has the vote, and its lock, before anybody sees it."""
        core = self.core
        if core.voted is not None and (core.voted.view, core.voted.phase) >= (core.view, phase):
            return
        changed = self._changed(entry)
        if not (core.votes_here or is_voter(changed, core.me, core.life)):
            return
        lock = core.lock if core.rules.trust.phases[:-1] else Lock(core.view, entry, None)
        self._set(voted=Voted(core.view, phase, entry), lock=lock)
        self._persist_vote()
        if announce is not None:
            self._send(electorate(core.register, changed), announce)
        self._send_vote(phase, entry)
        self._count()

    def _send_vote(self, phase: Phase, entry: Entry) -> None:
        core, changed = self.core, self._changed(entry)
        subject = subject_of(core.register, changed, entry, core.view, phase)
        vote = signed(Vote(subject, core.me, core.life, b""), core.rules.signer)
        self._send(electorate(core.register, changed), vote)
        self._set(votes=_with_vote(core.votes, vote))

    def _has_counted(self, vote: Vote) -> bool:
        """Whether it is among those by which an entry that is still in memory was decided."""
        if vote.subject.phase != self.core.rules.trust.phases[-1]:
            return False
        decided = next((each for each in reversed(self.core.log) if each.entry.number == vote.subject.number), None)
        return decided is not None and vote.peer in [proof.peer for proof in decided.certificate.proofs]

    def _take_vote(self, sender: PeerId, vote: Vote) -> None:
        core = self.core
        if not has_life(core.register, vote.peer, vote.life):
            return  # a member in a life that does not count, or one that was removed
        strangers = [each for each in core.votes if each.peer not in core.register.voters]
        if vote.peer not in core.register.voters and len(strangers) >= MAX_VOTERS:
            return
        check_signature(vote, vote.peer, core.rules.signer, sender)
        self._set(votes=_with_vote(core.votes, vote))
        self._count()
        if self.core.number == vote.subject.number:
            self._ask_if_missed()

    def _count(self) -> None:
        """Go on to the next phase, or decide, if enough have voted."""
        core, proposal = self.core, self.core.proposal
        if proposal is None:
            return
        changed = self._changed(proposal.entry)
        for place, phase in enumerate(core.rules.trust.phases):
            subject = subject_of(core.register, changed, proposal.entry, proposal.view, phase)
            entitled = electorate(core.register, changed)
            votes = [vote for vote in votes_on(subject, core.votes) if vote.peer in entitled]
            if not decides({vote.peer for vote in votes}, core.register, changed, core.rules):
                return
            certificate = certificate_of(subject, votes)
            if phase == core.rules.trust.phases[-1]:
                self._decide(proposal.entry, certificate, changed)
                return
            self._set(lock=Lock(proposal.view, proposal.entry, certificate))
            if entry_digest(proposal.entry) in core.approved:
                self._cast(core.rules.trust.phases[place + 1], proposal.entry)
            if self.core.number != core.number:
                return
            core = self.core

    def _ask_if_missed(self) -> None:
        """Ask one of those who have decided what this peer was not shown."""
        core, last = self.core, self.core.rules.trust.phases[-1]
        others = [vote for vote in core.votes if vote.subject.phase == last and vote.peer != core.me]
        for subject in dict.fromkeys(vote.subject for vote in others):
            voted = [vote.peer for vote in votes_on(subject, others)]
            if has_quorum(core.register, voted, core.rules):
                self._ask(voted[0])
                return

    # -- deciding -----------------------------------------------------------------------------------------------

    def _take_decided(self, sender: PeerId, message: Decided) -> None:
        core, last = self.core, self.core.rules.trust.phases[-1]
        changed = check_certificate(message.certificate, message.entry, last, core.register, core.rules, sender)
        self._decide(message.entry, message.certificate, changed)

    def _decide(self, entry: Entry, certificate: Certificate, changed: Register) -> None:
        """Append an entry. Views are counted anew if it changes the voters."""
        core, decided = self.core, Decided(entry, certificate)
        is_same = changed.voters_since == core.register.voters_since
        view = max(core.view, certificate.subject.view) if is_same else 0
        self.effects.append(Persist("log", decided))
        self.core = Core(
            me=core.me,
            life=core.life,
            register=changed,
            rules=core.rules,
            log=(*core.log, decided)[-TAIL:],
            patience=core.patience,
            view=view,
            settled=view,
            asked=core.asked,
            asked_at=core.asked_at,
            down=core.down,
            looks=core.looks,
            changes=core.changes if is_same else (),
        )
        self._set(wanted=tuple(body for body in core.wanted if self._fits(body)))
        self.effects.append(Tell(EntryDecided(entry, core.register, changed)))
        self._hand_on(decided, core.register)
        self._arm()
        self._leave_the_dead()
        self._lead()

    def _hand_on(self, decided: Decided, before: Register) -> None:
        """Each voter tells its share of those who do not vote, and of those who have just left."""
        core = self.core
        if not core.votes_here or is_founding(before, core.register):  # its founder tells all
            return
        known = dict.fromkeys(member.peer for member in (*core.register.members, *before.members))
        others = [peer for peer in known if peer not in core.register.voters]
        place = core.register.voters.index(core.me)
        self._send(others[place :: len(core.register.voters)], decided)

    # -- other views --------------------------------------------------------------------------------------------

    @property
    def _is_pending(self) -> bool:
        core = self.core
        return bool(core.wanted or core.expects or core.proposal or core.voted or core.lock)

    def _arm(self) -> None:
        """Have a timer for this number and view, if something is known to be wanted; anew once the view has begun.

        Else whoever has asked for it alone, and so too early, might leave it as the others come, in view after view.
        """
        core = self.core
        if not (self._is_pending or core.asked):
            return
        timer = Timer("log", "view", core.number, str(core.view) if self._has_entered() else f"{core.view}, asked for")
        if core.armed != timer:
            self._set(armed=timer)
            seconds = core.patience * 2 ** min(core.view - core.settled, MOST_DOUBLINGS)
            self.effects.append(Wake(seconds, timer))

    def _has_entered(self) -> bool:
        """Whether the present view has begun: only then may it be given up for the next.

        So nobody runs ahead of the others by more than a view, and all who are up come together in one.
        """
        core = self.core
        begun = core.view == core.settled or core.proposal is not None
        return begun or is_ground([each for each in core.changes if each.view >= core.view], core.register, core.rules)

    def _leave_the_dead(self) -> None:
        """Give the view up if its proposer is known to be dead, whether or not anything is wanted."""
        core = self.core
        if core.votes_here and core.proposer in core.down and self._has_entered():
            self._ask_for(core.view + 1)

    def _ask_for(self, view: int) -> None:
        """Vote in no lower view, and say so; not again to those who are down.

        What could not be decided goes behind what else is wanted.
        """
        failed, is_again = self._failed(), view == self.core.view
        wanted = sorted(self.core.wanted, key=lambda body: failed is not None and is_part(body, failed.body))
        self._set(view=view, proposal=None, wanted=tuple(wanted))
        self._persist_vote()
        core = self.core
        change = signed(
            ChangeView(
                branch=core.register.branch,
                number=core.number,
                view=view,
                voters=voters_root(core.register),
                lock=core.lock,
                peer=core.me,
                life=core.life,
                signature=b"",
            ),
            core.rules.signer,
        )
        self._set(changes=_with_change(core.changes, change))
        self._send((voter for voter in core.register.voters if not (is_again and voter in core.down)), change)
        self._repeat_wishes()
        self._arm()
        self._lead()

    def _failed(self) -> Entry | None:
        """What the view was for: what was proposed, or would be, had the application said that we may vote for it."""
        core = self.core
        if core.proposal is not None:
            return core.proposal.entry
        due = self._due() if core.proposer == core.me else None
        return due[0] if due is not None else None

    def _take_change(self, sender: PeerId, change: ChangeView) -> None:
        core = self.core
        if change.voters != voters_root(core.register):
            self._hand_to_member(sender, change.number - 1)
            return
        check_change(change, core.register, core.rules, sender)
        if change.number < core.number and has_member(core.register, sender):
            self.effects.extend(core.tell_tip(sender))  # it asks if it is behind, and may just repeat itself
        self._set(changes=_with_change(core.changes, change))
        for ours in (each for each in core.changes if each.peer == core.me):
            if core.votes_here and self._may_have_missed(change, ours, is_new=self.core.changes != core.changes):
                self._send((change.peer,), ours)
        views = sorted((each.view for each in self.core.changes if each.number == core.number), reverse=True)
        enough = core.register.faults + 1  # one of them is honest
        asked = views[enough - 1] if len(views) >= enough else 0
        if core.votes_here and max(asked, self._begun()) > core.view:
            self._ask_for(max(asked, self._begun()))
        self._arm()
        self._let_go()
        self._leave_the_dead()
        self._lead()

    def _may_have_missed(self, change: ChangeView, ours: ChangeView, is_new: bool) -> bool:
        """Whether whoever makes that statement, which `is_new` here, may not have heard ours, and lacks it.

        It comes to this view later than we, or leads it, and cannot without; or ours was made before the last decision,
        after which nobody repeats it.
        """
        core = self.core
        comes_to_lead = change.view == core.view and change.peer == core.proposer and is_new
        is_of_before = ours.view == change.view and ours.number < change.number
        return change.view < core.view or comes_to_lead or is_of_before

    def _let_go(self) -> None:
        """Forget the lock if a quorum has stated that it does not know of its entry, and votes in that view no more.

        So it was not decided and never will be. It would bind others later, when fewer are there to set them free: to
        what only its proposer has voted for, such as one whose state is damaged.
        """
        core, lock = self.core, self.core.lock
        if lock is None:
            return
        later = [each for each in core.changes if each.view > lock.view and each.peer != core.me]
        free = [each for each in later if (held := lock_on(each, core.number)) is None or held.entry != lock.entry]
        if is_ground(free, core.register, core.rules):
            self._set(lock=None)
            self._persist_vote()

    def _begun(self) -> int:
        """The highest view that a quorum has asked for, also before entries that it had not heard of."""
        core, views = self.core, sorted({each.view for each in self.core.changes}, reverse=True)
        for view in views:
            if is_ground([each for each in core.changes if each.view >= view], core.register, core.rules):
                return view
        return 0

    # -- being behind -------------------------------------------------------------------------------------------

    def _meet(self, sender: PeerId, branch: Digest, message: LogMessage) -> None:
        """`sender` is on another branch: tell it of ours, if ours goes on from where it is; else ask for its own."""
        ends = [stem.end for stem in self.core.register.earlier if stem.branch == branch]
        known = number_of(message) - 1  # up to where its log goes
        if isinstance(message, Tip):
            self._take_tip(sender, message)
        elif ends and known < ends[0]:
            self._hand(sender, known)
        elif ends or isinstance(message, GetLog):
            self._tell_once(LogWanted(sender))
        else:
            self._ask(sender)

    def _is_next(self, sender: PeerId, number: int, tells: bool = False) -> bool:
        """Whether `number` is the next one. Who is ahead is asked; if `tells`, who is behind is told."""
        if number > self.core.number:
            self._ask(sender)
        elif number < self.core.number and tells:
            self._hand_to_member(sender, number - 1)
        return number == self.core.number

    def _ask(self, peer: PeerId) -> None:
        """Ask for what comes after the end of this log, unless somebody was asked and may still answer."""
        core = self.core
        if not core.asked and peer != core.me:
            self._set(asked=1, asked_at=core.register.number)
            self._send((peer,), GetLog(core.register.branch, core.register.number))
            self._arm()

    def _take_tip(self, sender: PeerId, tip: Tip) -> None:
        """Go on asking whoever has brought something, else wait for the timer to ask another."""
        for decided in tip.entries:
            if decided.entry.number == self.core.number:
                if decided.entry.before != self.core.register.tip:
                    self._set(asked=0)
                    self._tell_once(LogWanted(sender))
                    return
                self._take_decided(sender, decided)
        core = self.core
        if tip.number <= core.register.number:
            self._set(asked=0)
        elif not core.asked or core.register.number > core.asked_at:
            self._set(asked=0)
            self._ask(sender)

    def _ask_another(self) -> None:
        core = self.core
        others = [voter for voter in core.register.voters if voter != core.me]
        if not others:
            self._set(asked=0)
            return
        turn = core.asked % len(others)
        self._set(asked=turn + 1, asked_at=core.register.number)
        self._send((others[turn],), GetLog(core.register.branch, core.register.number))
        self._arm()

    def _hand_to_member(self, peer: PeerId, number: int) -> None:
        if has_member(self.core.register, peer):
            self._hand(peer, number)

    def _hand(self, peer: PeerId, number: int) -> bool:
        """Give `peer` what came after `number`; whether there is anything here."""
        core = self.core
        if number >= core.register.number:
            return False
        if not core.log or core.log[0].entry.number > number + 1:
            self.effects.append(Tell(LogWanted(peer)))
            return False
        later = [each for each in core.log if each.entry.number > number][:MOST_AT_ONCE]
        sizes = accumulate(len(each.entry.body) for each in later[1:])
        shown = (later[0], *(each for each, size in zip(later[1:], sizes, strict=True) if size <= MOST_BYTES))
        self._send((peer,), Tip(core.register.branch, core.register.number, shown))
        return True

    # -- the rest -----------------------------------------------------------------------------------------------

    def _changed(self, entry: Entry) -> Register:
        return after(self.core.register, entry, self.core.rules)

    def _set(self, **changes: Any) -> None:
        self.core = replace(self.core, **changes)

    def _send(self, peers: Iterable[PeerId], message: LogMessage) -> None:
        self.effects.extend(Send(peer, message) for peer in peers if peer != self.core.me)

    def _tell_once(self, event: Event) -> None:
        if Tell(event) not in self.effects:
            self.effects.append(Tell(event))

    def _persist_vote(self) -> None:
        """Unless that is on the disk already: who hears nobody repeats itself for as long as that lasts."""
        file = self.core.vote_file()
        if file != self.core.written:
            self._set(written=file)
            self.effects.append(Persist("vote", file))


def branch_of(message: KeeperMessage) -> Digest:
    """Of which branch of the log the sender speaks."""
    match message:
        case Propose(entry=entry) | Decided(entry=entry):
            return entry.branch
        case Vote(subject=subject):
            return subject.branch
    return message.branch


def number_of(message: LogMessage) -> int:
    """Of the entry that a message is about, which its sender lacks."""
    match message:
        case Propose(entry=entry) | Decided(entry=entry):
            return entry.number
        case Vote(subject=subject):
            return subject.number
        case ChangeView():
            return message.number
    return message.number + 1


def author_of(body: bytes) -> PeerId | None:
    """Who has to ask for this, if it is one."""
    match body_of(body):
        case Admit(asks=(asks,)) | Leave(asks=asks):
            return asks.peer
    return None


def may_be_asked_for(body: bytes) -> bool:
    """Whether any voter may be asked to have this decided; what else is wanted, the proposer itself wants."""
    return type(body_of(body)) not in (Roster, Result, Found)


def may_ask(register: Register, sender: PeerId, body: bytes) -> bool:
    """Whether what `sender` asks for is looked at: anybody passes on what others have signed.

    But nobody has signed that there is a branch to yield to, so only voters may ask for that.
    """
    return not isinstance(body_of(body), Yield) or sender in register.voters


def first_of(wanted: Sequence[bytes]) -> bytes:
    """The first body, or all who ask to be admitted as one body if it admits somebody."""
    bodies = [body_of(body) for body in wanted]
    if not isinstance(bodies[0], Admit):
        return wanted[0]
    asks = {each.peer: each for body in bodies if isinstance(body, Admit) for each in body.asks}
    return encode(Admit(tuple(asks.values())[:MAX_ADMITTED]))


def is_part(body: bytes, decided: bytes) -> bool:
    """Whether it is what this decides, or asks for an admission that this decides, too: see `first_of`."""
    one, whole = body_of(body), body_of(decided)
    return body == decided or (isinstance(one, Admit) and isinstance(whole, Admit) and set(one.asks) <= set(whole.asks))


def is_ground(changes: Iterable[ChangeView], register: Register, rules: Rules) -> bool:
    """Whether a quorum of the voters, each once, has given up all lower views."""
    return has_quorum(register, [each.peer for each in changes], rules)


def without(changes: Iterable[ChangeView], lock: Lock) -> tuple[ChangeView, ...]:
    """The statements of those who do not hold this lock."""
    return tuple(each for each in changes if each.lock is None or each.lock.entry != lock.entry)


def binding(changes: Iterable[ChangeView], number: int) -> Lock | None:
    """The highest lock on `number` among statements, to which whoever leads by them is bound."""
    locks = [lock for each in changes if (lock := lock_on(each, number)) is not None]
    return max(locks, key=lambda lock: lock.view, default=None)


def lock_on(change: ChangeView, number: int) -> Lock | None:
    """The lock that a statement shows for the entry with this number."""
    return change.lock if change.number == number else None


def _with(known: tuple[Digest, ...], new: Digest) -> tuple[Digest, ...]:
    return known if new in known else (*known, new)


def _without(known: tuple[Digest, ...], old: Digest) -> tuple[Digest, ...]:
    return tuple(each for each in known if each != old)


def _with_vote(known: tuple[Vote, ...], new: Vote) -> tuple[Vote, ...]:
    """`known` with `new`, unless it has a vote of that peer and phase in this view or a higher one."""
    place = (new.peer, new.subject.phase)
    newest = {(each.peer, each.subject.phase): each for each in known}
    if place in newest and newest[place].subject.view >= new.subject.view:
        return known
    newest[place] = new
    return tuple(newest[place] for place in sorted(newest))


def _with_change(known: tuple[ChangeView, ...], new: ChangeView) -> tuple[ChangeView, ...]:
    """`known` with `new`, unless that voter has asked for this view or a higher one."""
    newest = {each.peer: each for each in known}
    if new.peer in newest and newest[new.peer].view >= new.view:
        return known
    newest[new.peer] = new
    return tuple(newest[peer] for peer in sorted(newest))
