"""What one peer wants of the log for itself and for the run, and what it says about others: the shell of the core.

- Whoever is no member asks to be admitted. Whoever was counted in enough rounds says that it would vote.
- A voter says of a member that it has not heard it for long, and of a result that it lacks its bytes.
- The author, a steward or a voter orders that a member be given a vote though it was not counted in enough rounds.
- The proposer makes entries of such statements once there are enough of them.
- Whoever is told to go on without a quorum, or has had none for long, founds a branch with the members that are here,
  or joins that of another. Those who have not waited go along.
- Whoever is shown another branch yields to it, or leaves for it, if that is the run and somebody stays (rivals.py).
- Whoever leaves asks for that, and goes on until it is decided. Whoever comes over from another branch passes on the
  wishes of those who have left that one.

A `Judge` says what the log does not: which state is here, whether the last round is over and, where the log has no
results, who has gone enough.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from shoal.protocol.base.effects import Effect, Event, Persist, Send, Tell, Timer, Wake
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.signing import check_signature, signed
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, Message, decode, encode
from shoal.protocol.log.anchors import check_entry, check_skip, is_below, is_elsewhere
from shoal.protocol.log.core import Core, EntryDecided, LogWanted, Review, branch_of
from shoal.protocol.log.register import (
    MAX_BODY,
    MAX_SURVIVORS,
    REMEMBERED,
    after,
    body_of,
    entry_digest,
    has_life,
    has_member,
    has_quorum,
    is_ordered,
    is_voter,
    last_life,
    may_order,
    may_stay,
    may_survive,
    member_of,
    rank,
    steps,
    tokens_of,
    who_left,
)
from shoal.protocol.log.repetition import Repetition
from shoal.protocol.log.rivals import RIVAL, STAYING, Rank, Reaction, Rivals, Shown
from shoal.protocol.log.shortcuts import Shortcuts, beginning, check_shortcut
from shoal.protocol.messages.anchor import ANCHOR_SIZE, Anchor
from shoal.protocol.messages.log import (
    STATEMENT_TAGS,
    AddVoters,
    Admit,
    Asks,
    Consent,
    Decided,
    End,
    Entry,
    Found,
    GetLog,
    KeeperMessage,
    Lacks,
    Leave,
    Met,
    Order,
    Register,
    Remove,
    Request,
    Result,
    Shortcut,
    Statement,
    Stays,
    Switch,
    Tip,
    Unheard,
    Void,
    What,
    Yield,
)

ABSENT, MOST_ABSENT = 60.0, 600.0  # seconds without a sign of life before a voter says so of another: at least, at most
COMING = 5.0  # seconds after which a voter that was never heard since this process began counts as lost
TICK = 1.0  # seconds
RECENT = 8  # entries for which a statement is not repeated; it counts for 32
MOST_SHOWN = 4  # shortcuts that are shown in a second
REPEAT = 5.0  # seconds after which it is repeated all the same
MOST_ASKED = 5  # times, of who is no member, how the log goes on after the end
LOOK = 60.0  # seconds in which whoever was away for long looks for the others, at most
SLEPT = 60.0  # seconds between two inputs, from which on others may have gone on without us
WAKING = 2.0  # seconds after a sleep: what comes in these was sent before it, or is not all that there is to hear
SEEKING = 60.0  # seconds in which a newcomer looks for the branch that its link names, while it sees another one
LEAVING = 3.0  # seconds without a quorum before a branch that can decide is gone to
FOUNDING = 10.0  # seconds that the founder of a branch waits for the statements of all who are here
TOGETHER = 3.0  # seconds that a proposer waits for the consents of others who may vote, once it has one

Said = Unheard | Consent | Lacks | Order | Stays  # what is carried in a Statement
S = TypeVar("S", bound=Said)


class Alive(Protocol):
    """Who is there, as membership sees it."""

    def alive(self) -> Sequence[PeerId]: ...

    def is_alive(self, peer: PeerId) -> bool: ...


class Judge(Protocol):
    """What this peer has seen of the rounds, and the log does not show."""

    @property
    def held_round(self) -> int | None:
        """The round after which the state is that is here, or is being made; None: none is."""

    def has_gone(self, peer: PeerId) -> bool:
        """Whether `peer` has gone as many rounds as it takes to get a vote; yes, where the log has results."""

    def is_passed(self) -> bool:
        """Whether results beyond the next one are decided here, and another voter that is here has applied them."""

    def has_finished(self) -> bool:
        """Whether all who are here are through the last round, and nothing of it can be lost to this peer any more."""


@dataclass(frozen=True, slots=True)
class ResultProposed(Event):
    """May this peer vote for a result? To be answered by `Keeper.answer`."""

    entry: Digest
    result: Result
    is_bound: bool


@dataclass(frozen=True, slots=True)
class Gone(Event):
    """This peer was a member in this life, and is none any more."""


@dataclass(frozen=True, slots=True)
class Switched(Event):
    """The log goes on from this register on another branch; what this peer has of its own branch counts no more."""

    before: Register
    register: Register


@dataclass(frozen=True, slots=True)
class LogSkipped(Event):
    """The log goes on from this register; the entries after the register `before` are not known here."""

    before: Register
    register: Register


@dataclass(frozen=True, slots=True)
class Unfit(Event):
    """What this peer wants decided is asked of nobody, for this reason; told once, until the reason is another."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class CameBack(Event):
    """These were members before the log parted, went on without it or not at all, and are members again.

    Told to who was a member meanwhile: whoever is new, or back itself, only reads of it.
    """

    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Unanchored(Event):
    """The run has left the branch of which the run's link names an entry: it says nothing about the log any more."""


class Keeper:
    """One peer's log."""

    def __init__(
        self,
        core: Core,
        view: Alive,
        founding: Register,
        shortcuts: Shortcuts,
        judge: Judge,
        anchor: Anchor | None = None,
        was_away: bool = False,
        continue_after: float | None = None,
    ) -> None:
        """A log that ends below `anchor` is not joined, and one with another entry there is refused.

        But not one that is on another branch than the anchor: then `Unanchored` is told.

        After `continue_after` seconds without a quorum this peer goes on with those who are here; None: never.

        Who `was_away` for so long that others may have gone on without it looks for them before it decides anything.
        """
        self.core = core
        self._view = view
        self._founding = founding
        self._shortcuts = shortcuts
        self._judge = judge
        self._anchor = anchor
        self._sought_since: float | None = None  # the anchor's branch, while a member is here that shows another one
        self._shown_by: set[PeerId] = set()  # members that have shown the branch known here, which is such another one
        self._clock = 0.0  # seconds in which this process ran: a machine that slept accuses nobody
        self._ticked_at: float | None = None
        self._lost_at: dict[PeerId, float] = {}  # by that clock
        self._absence = Estimate(initial=ABSENT, floor=ABSENT, ceiling=MOST_ABSENT)  # of those who came back
        self._said: dict[tuple[type, PeerId], tuple[Digest, float]] = {}  # the entry at which it last did, and when
        self._statements: dict[tuple[type, PeerId, PeerId], Said] = {}  # by kind, subject and author
        self._consented_at: float | None = None  # when the first of those consented who are to be made voters
        self._lacks: int | None = None  # number of the result whose bytes are lost, as far as this peer knows
        self._end_asked: Digest | None = None  # the proposed `End` about which nothing was said yet
        self._continue_after = continue_after
        self._stuck_since: float | None = None  # without a quorum
        self._goes_on_since: float | None = None  # without a quorum, as it was told to, or as that has lasted long
        self._goes_along_since: float | None = None  # with others that do
        self._was_away = was_away
        self._now = 0.0  # of the last input, by the clock of whoever embeds this; 0: there was none
        self._woke_at: float | None = None  # after a sleep, until it was heard how the log goes on
        self._held_back: dict[type[Message], Message] = {}  # what was wanted since then, the last of each kind
        self._is_due_then = False  # a result was due since then: no view is given up meanwhile for want of it
        self._lives: dict[PeerId, int] = {}  # in which peers ask to be admitted
        self._elsewhere: set[PeerId] = set()  # who has spoken last of another branch than ours
        self._came_over: set[PeerId] = set()  # who has spoken of another branch before, and of ours now
        self._rivals = Rivals()
        self._stays_until = 0.0  # as it has promised
        self._follows_at = -math.inf  # when it was last shown a branch that goes on from ours, to follow it
        self._left: dict[PeerId, Leave] = {}  # the wishes of those who have left, here or on a branch of before
        for decided in core.log:
            self._note_who_left(decided.entry)
        self._promoted: set[PeerId] = set()  # members for whom this peer wants a vote
        self._repetition = Repetition()  # of what the core says
        self._turn = 0
        self._shown: deque[PeerId] = deque(maxlen=MOST_SHOWN)  # who was shown a shortcut in this second
        self._asked_after_end: Counter[PeerId] = Counter()  # how often, of those who are here and no members
        self._unfit: dict[str, str] = {}  # why what was wanted last could not be asked for, by kind
        self.is_leaving = False

    # -- read side ----------------------------------------------------------------------------------------------

    @property
    def register(self) -> Register:
        """After the last entry that is known here."""
        return self.core.register

    @property
    def proposer(self) -> PeerId:
        """Of the present view."""
        return self.core.proposer

    @property
    def view(self) -> int:
        """The present view."""
        return self.core.view

    @property
    def votes_here(self) -> bool:
        """Whether this peer is a voter, though it may just look around and say nothing."""
        return is_voter(self.register, self.core.me, self.core.life)

    @property
    def is_reading(self) -> bool:
        """Whether it has asked for entries, and not heard yet that there are no more."""
        return bool(self.core.asked)

    @property
    def listens(self) -> bool:
        """Whether what this peer wants is asked for; not while it looks around after a long absence."""
        return not self.core.looks

    @property
    def leads(self) -> bool:
        """Whether it is this peer's turn to propose, and it says something."""
        return self.core.votes_here and self.proposer == self.core.me

    @property
    def is_member(self) -> bool:
        """Whether this peer is a member in its present life."""
        return has_life(self.register, self.core.me, self.core.life)

    @property
    def is_below_anchor(self) -> bool:
        """Whether the log must go further than what is known here, as whoever gave us the run's link knew."""
        return self._anchor is not None and is_below(self._anchor, self.register)

    @property
    def seeks_branch(self) -> bool:
        """Whether what is known here is of another branch than the entry that the run's link names, so far."""
        anchor = self._anchor if self.is_below_anchor else None
        return anchor is not None and anchor.branch != self.register.branch[:ANCHOR_SIZE]

    @property
    def here(self) -> list[PeerId]:
        """The members that are here: voters first, in their order."""
        register = self.register
        known = dict.fromkeys((*register.voters, *(member.peer for member in register.members)))
        return [peer for peer in known if self._is_here(peer)]

    def is_elsewhere(self, peer: PeerId) -> bool:
        """Whether a peer has spoken last of another branch of the log, so that it does not count as here."""
        return peer in self._elsewhere

    @property
    def survivors(self) -> list[PeerId]:
        """Those who may go on without a quorum: the members that are here, in a later life too, and who had left."""
        here, members = self.here, [member.peer for member in self.register.members]
        return [
            *here,
            *(peer for peer in (*members, *who_left(self.register)) if peer not in here and self._is_back(peer)),
        ]

    @property
    def waits_for_ever(self) -> bool:
        """Whether this peer goes on without a quorum only if it is told to."""
        return self._continue_after is None

    @property
    def goes_on_in(self) -> float | None:
        """Seconds until this peer goes on without those who are away; None while it counts none."""
        if self._goes_on_since is not None or self._goes_along_since is not None:
            return 0.0
        if self._continue_after is None or self._stuck_since is None:
            return None
        return max(0.0, self._stuck_since + self._continue_after - self._clock)

    @property
    def left_behind(self) -> tuple[Register, list[PeerId]] | None:
        """The register before the log's branch began, and who did not go on and is not back; None: it is the first."""
        if (found := self._shortcuts.left_behind) is None:
            return None
        here = {self.core.me, *who_left(self.register)}  # who has left since is missed by nobody
        return found[0], [peer for peer in found[1] if not has_member(self.register, peer) and peer not in here]

    @property
    def may_stay(self) -> bool:
        """Whether this peer may be one of them."""
        return may_stay(self.register, self.core.me, self.core.life)

    # -- commands -----------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """Begin, or go on after a restart."""
        begun = self._do(self.core.look()) if self._was_away else self._begin()
        return [*begun, *self._act(), self._wake()]

    def want(self, body: Message) -> list[Effect]:
        """Have `body` decided, if it still fits, and not too much is wanted."""
        if not self.listens:
            return []
        if self._woke_at is not None:
            self._held_back[type(body)] = body
            return []
        kind = type(body).__name__
        try:
            turn = self.core.submit(body)
        except (RemoteError, LocalError) as error:  # whoever wants it looks again
            is_news = self._unfit.get(kind) != str(error)
            self._unfit[kind] = str(error)
            return [Tell(Unfit(kind, str(error)))] if is_news else []
        self._unfit.pop(kind, None)
        return self._do(turn)

    def expect(self) -> list[Effect]:
        """A result is due."""
        if self._woke_at is not None:
            self._is_due_then = True
            return []
        return self._do(self.core.expect()) if self.listens else []

    def answer(self, entry: Digest, is_approved: bool) -> list[Effect]:
        """Whether this peer may vote for a result."""
        return self._do(self.core.answer(entry, is_approved))

    def heard_end(self, peer: PeerId, number: int) -> list[Effect]:
        """`peer` says how far its log goes: ask it for what comes then, or tell it of ours."""
        self._hear_after_sleep(peer)
        if number < self.register.number:
            return self.core.tell_tip(peer)
        return self._do(self.core.hear_of(peer, number))

    def passes(self, now: float) -> None:
        """It is `now`, in seconds: to be told before each input."""
        before, self._now = self._now, now
        if before and now - before > SLEPT:
            self.woke()

    def woke(self) -> None:
        """This process did not run for so long that others may have gone on without it.

        It wants nothing decided until it has heard another member, or for a minute: it may be a quorum by itself. It
        goes on voting on what others want, so it holds up nobody who is here, and waits for nobody who is lost.
        """
        self._rivals.forget()
        if any(member.peer != self.core.me for member in self.register.members):
            self._woke_at = self._clock + 2 * TICK  # the second that is over now may count as two

    def lacks(self, result: int) -> list[Effect]:
        """Nobody that this peer reaches has the bytes of the last result."""
        self._lacks = result
        return self._act()

    def has_bytes(self) -> None:
        """The bytes of the last result are here after all."""
        self._lacks = None
        self._statements.pop((Lacks, PeerId(""), self.core.me), None)

    def check_promotion(self, peer: PeerId) -> None:
        """LocalError unless this peer may order that a member be given a vote, and that is due."""
        register, core = self.register, self.core
        if not may_order(register, core.me, core.life):
            raise LocalError("only the author of a run, its stewards and its voters may do that", code="no-steward")
        if not has_member(register, peer):
            raise LocalError(f"{peer} is no member of the run; `shoal run show` lists them", code="unknown-peer")
        if peer in register.voters:
            raise LocalError(f"{peer} has a vote already", code="votes-already")

    def promote(self, peer: PeerId) -> list[Effect]:
        """Order that a member be given a vote, which `check_promotion` allows.

        The order of a voter counts once a quorum of them has given it. It is repeated as long as this process runs.
        """
        self._promoted.add(peer)
        return self._act()

    def check_going_on(self) -> None:
        """LocalError unless this peer may go on with those who are here, since they cannot decide anything."""
        if not self.core.rules.trust.may_branch:
            raise LocalError("a run whose voters may lie goes on with a quorum of them only", code="quorum-only")
        if not self.may_stay:
            raise LocalError("this node is no member of the run yet, so it has nothing to go on with", code="not-ready")
        if self.register.is_over or self.is_below_anchor or self.can_decide(self.here):
            raise LocalError("the members that are here can decide all by themselves", code="no-need")

    def go_on(self) -> list[Effect]:
        """Found a branch of the log with the members that are here, which `check_going_on` allows."""
        self._goes_on_since = self._clock
        return self._act()

    def leave(self) -> list[Effect]:
        """Be a member no more: `Gone` is told when that is decided."""
        self.is_leaving = True
        return self._act()

    def peer_down(self, peer: PeerId) -> list[Effect]:
        """Membership has given `peer` up."""
        self._lost_at.setdefault(peer, self._clock)
        del self._asked_after_end[peer]
        return self._do(self.core.lost(peer))

    def peer_up(self, peer: PeerId) -> list[Effect]:
        """Membership has found `peer`."""
        if (since := self._lost_at.pop(peer, None)) is not None:
            self._absence.observe(self._clock - since)
        if peer not in self.core.down:
            return []
        return [*self._do(self.core.lost(peer, is_down=False)), *self._repeat_to(peer)]

    # -- inputs -------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, message: KeeperMessage) -> list[Effect]:
        """Any message of the log."""
        self._note_branch(sender, branch_of(message))
        self._hear_after_sleep(sender)
        was_down = sender in self.core.down
        effects = self._take(sender, message)
        if was_down and sender not in self.core.down:
            effects += self._repeat_to(sender)
        self._note_shown(sender, message)
        return effects

    def _take(self, sender: PeerId, message: KeeperMessage) -> list[Effect]:
        if isinstance(message, Request):
            self._note_life(sender, message)
        if isinstance(message, Statement):
            return self._take_statement(sender, message)
        if isinstance(message, Shortcut):
            return self._take_shortcut(Shown(message, sender))
        if isinstance(message, Met):
            return self._hear_of_branch(sender, message)
        shown = message.entries if isinstance(message, Tip) else (message,) if isinstance(message, Decided) else ()
        for each in shown:
            check_entry(self._anchor, each.entry, sender)
        if not self._follows(sender, shown, stays=isinstance(message, Tip) and message.stays):
            return self._ask_for_promise(sender) if isinstance(message, Decided) else []
        if self.core.looks and not isinstance(message, GetLog | Tip | Decided):
            return []
        return self._do(self.core.receive(sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """A timer of the core, or a second is over."""
        if timer.name == "duties":
            self._clock += min(2 * TICK, now - self._ticked_at) if self._ticked_at is not None else 0.0
            self._ticked_at = now
            self._shown.clear()
            return [self._wake(), *self._wake_up(), *self._act(), *self._repeat()]
        return self._do(self.core.fire(timer))

    # -- inside -------------------------------------------------------------------------------------------------

    def _do(self, turn: tuple[Core, list[Effect]]) -> list[Effect]:
        self.core, effects = turn
        done: list[Effect] = []
        for effect in effects:
            match effect:
                case Tell(EntryDecided(entry, before, register)):
                    decided = next(each for each in reversed(self.core.log) if each.entry == entry)
                    self._shortcuts.read(before, decided, register)
                    if len(register.members) < len(before.members):  # large entries are others
                        self._note_who_left(entry)
                    done.append(effect)
                    done += self._after_entry(before, register)
                case Tell(Review(entry, is_bound)):
                    done += self._review(entry, is_bound)
                case Tell(LogWanted(peer)):
                    done += self._show_shortcut(peer)
                case Send(peer, Tip() as tip):
                    done.append(Send(peer, replace(tip, stays=self._promise(peer))))
                case _:
                    done.append(effect)
        if any(isinstance(effect, Tell) and isinstance(effect.event, EntryDecided) for effect in effects):
            done += self._yield_to_rival() if self.register.yields_to != NO_DIGEST else []
            done += self._offer_to_vote()  # at once: in a fast run many rounds hang on the founder in a second
        return done

    def _after_entry(self, before: Register, register: Register) -> list[Effect]:
        me, self._end_asked = self.core.me, None
        self._is_due_then = False  # as of the core: whoever waits for another one says so
        if register.branch != before.branch:  # who still speaks of the one before is on its way
            self._elsewhere.clear()
            self._shown_by.clear()
            self._held_back.clear()
            self._goes_on_since = self._stuck_since = self._goes_along_since = None
        came_back = self._came_back(before, register)
        self._elsewhere.difference_update(came_back)
        self._came_over.difference_update(came_back)
        self._statements = {key: each for key, each in self._statements.items() if _counts(each, register)}
        self._promoted -= {peer for peer in self._promoted if not self._may_get_a_vote(peer)}
        was_here = has_life(before, me, self.core.life)
        told: list[Effect] = [Tell(CameBack(came_back))] if came_back and was_here else []
        return [*told, Tell(Gone())] if was_here and not has_life(register, me, self.core.life) else told

    def _came_back(self, before: Register, register: Register) -> tuple[PeerId, ...]:
        """Who was on another branch, or was left behind by this one, and is admitted."""
        if register.members is before.members or register.branch != before.branch:
            return ()
        left = self._shortcuts.left_behind
        away = {*self._elsewhere, *self._came_over, *(left[1] if left is not None else ())} - {self.core.me}
        lives = {(each.peer, each.life) for each in before.members}
        return tuple(
            each.peer for each in register.members if (each.peer, each.life) not in lives and each.peer in away
        )

    def _review(self, entry: Entry, is_bound: bool) -> list[Effect]:
        if entry.number != self.core.number:  # several came at once: what is still wanted is asked for anew
            return []
        body, digest = body_of(entry.body), entry_digest(entry)
        if isinstance(body, Result):
            return [Tell(ResultProposed(digest, body, is_bound))]
        if isinstance(body, End) and not self._is_good(body):
            self._end_asked = digest  # others are ahead of us
            return []
        return self._do(self.core.answer(digest, is_bound or self._is_good(body)))

    def _is_good(self, body: Message) -> bool:
        """What the entry alone does not show: who is there."""
        match body:
            case Leave(asks=Asks(peer=self.core.me)) if not self.is_leaving:
                return False
            case Leave(asks=asks) if asks.branch != self.register.branch and self._view.is_alive(asks.peer):
                return False  # it is back, and has not heard that it had left; or its leaving came to nothing
            case Leave(asks=Asks(peer=peer)) if peer in self.register.voters:
                rest = [voter for voter in self.register.voters if voter != peer]
                here = [voter for voter in rest if voter == self.core.me or self._view.is_alive(voter)]
                return self.core.rules.trust.is_quorum(here, rest, self.register.faults)
            case AddVoters(consents=consents, orders=orders):
                ordered = {each.subject for each in orders}
                peers = [each.peer for each in consents]
                here = [peer for peer in peers if has_member(self.register, peer) and self._is_here(peer)]
                return here == peers and all(peer in ordered or self._has_gone(peer) for peer in peers)
            case Remove(peer=peer, orders=()):
                return peer != self.core.me and not self._view.is_alive(peer)
            case Void(lacks=lacks):
                return all(each.result == self._lacks for each in lacks)
            case Yield():
                rival = self._rivals.best.shortcut if self._rivals.best is not None else None
                return rival is not None and rival.branch == body.branch and rival.tokens >= body.tokens
            case End(orders=()):
                return self._judge.has_finished()
        return True

    def _is_here(self, peer: PeerId) -> bool:
        if peer == self.core.me:
            return self.is_member
        return self._view.is_alive(peer) and peer not in self._elsewhere and not self._is_anew(peer)

    def _is_back(self, peer: PeerId) -> bool:
        """Whether somebody is here who had left, or is a member no more in its present life."""
        if peer == self.core.me:
            return self.may_stay
        return self._view.is_alive(peer) and peer not in self._elsewhere

    def _is_anew(self, peer: PeerId) -> bool:
        """Whether a member asks to be admitted in a later life: then it does not speak for this one any more."""
        life = next((each.life for each in self.register.members if each.peer == peer), None)
        return life is not None and self._lives.get(peer, life) > life

    def _has_gone(self, peer: PeerId) -> bool:
        """Whether a member has gone enough rounds to get a vote, as the register or else this peer itself knows."""
        is_counted = member_of(self.register, peer).counted >= self.register.rounds_to_vote
        return is_counted and self._judge.has_gone(peer)

    def _follows(self, sender: PeerId, shown: Sequence[Decided], stays: bool) -> bool:
        """Whether to go where these entries lead.

        A branch is followed by whom it names, and, if `sender` promises that it `stays` there, by who can decide
        nothing without it, and by who has less to show for the time since: fewer tokens behind its states.
        """
        register = self.register
        later = [each for each in shown if each.entry.number > register.number]
        bodies = (body_of(each.entry.body, sender) for each in later)
        founding = next((body for body in bodies if isinstance(body, Found)), None)
        if founding is None:
            return True
        is_named = any((each.peer, each.life) == (self.core.me, self.core.life) for each in founding.stays)
        if is_named or later[0].entry.before != register.tip:
            return True  # in the second case the core asks for what is between, or finds that we have gone elsewhere
        if self.can_decide(self.here):
            *_, (_, _, last) = steps(register, later, self.core.rules)
            if tokens_of(last) <= tokens_of(register):
                return False
        self._follows_at = self._now
        return self._may_leave(stays)

    def _act(self) -> list[Effect]:
        """Whatever this peer wants or has to say now."""
        return self._pass_by_anchor() + self._do_duties()

    def _pass_by_anchor(self) -> list[Effect]:
        """If the run has left its branch, or a member that shows another one is here for long, and nobody shows it."""
        if not self.seeks_branch or not any(map(self._view.is_alive, self._shown_by)):
            self._sought_since = None
        elif self._sought_since is None:
            self._sought_since = self._clock
        has_sought = self._sought_since is not None and self._clock - self._sought_since >= SEEKING
        is_past = self._anchor is not None and is_elsewhere(self._anchor, self.register)
        return self._drop_anchor() if has_sought or is_past else []

    def _drop_anchor(self) -> list[Effect]:
        had_one, self._anchor = self._anchor is not None, None
        return [Tell(Unanchored())] if had_one else []

    def _do_duties(self) -> list[Effect]:
        if self.register.is_over:  # members are asked only whether they show the branch that the link names
            asked = self._ask_around() if self.seeks_branch else self._ask_who_is_no_member()
            return asked + self._see_to_rival()
        if self._must_look():
            return self._miss() + self._ask_around() + self._see_to_rival()
        if self.register.yields_to != NO_DIGEST:
            return self._miss() + self._ask_around() + self._go_on() + self._see_to_rival()
        if self.core.looks:
            return [*self._begin(), *self._act()]
        effects = self._miss() + self._ask_around() + (self._be_let_go() if self.is_leaving else self._be_let_in())
        effects += self._pass_on_wishes() + self._offer_to_vote() + self._say_who_is_absent() + self._say_what_is_lost()
        effects += self._say_whom_to_promote() + self._go_on() + self._see_to_rival() + self._hand_on()
        return effects + self._make_entries() + self._end()

    def _hand_on(self) -> list[Effect]:
        """Who has no state to propose a result on lets another one propose, if that has."""
        return self._do(self.core.hand_on()) if self.leads and self._judge.is_passed() else []

    def _hear_after_sleep(self, peer: PeerId) -> None:
        """A member is here: what it knows of the log comes within seconds."""
        if self._woke_at is not None and self._clock - self._woke_at >= WAKING and has_member(self.register, peer):
            self._woke_at = min(self._woke_at, self._clock - LOOK + WAKING)

    def _wake_up(self) -> list[Effect]:
        if self._woke_at is None or self._clock - self._woke_at < LOOK:
            return []
        held, is_due = [body for body in self._held_back.values() if self._is_good(body)], self._is_due_then
        self._woke_at, self._held_back, self._is_due_then = None, {}, False
        return [*(effect for body in held for effect in self.want(body)), *(self.expect() if is_due else [])]

    def _begin(self) -> list[Effect]:
        """With other voters this is a restart; and of how long members take they know more than a new process."""
        return self._do(self.core.start(hands_on=len(self.register.voters) > 1))

    def _repeat(self) -> list[Effect]:
        """What was said for the present number and view, now and then."""
        core = self.core
        place = (core.register.branch, core.number, core.view, core.looks)
        return core.repeat() if self._repetition.is_due(self._clock, place, (core.voted, core.wanted)) else []

    def _repeat_to(self, peer: PeerId) -> list[Effect]:
        """To one that has been found again."""
        return [each for each in self.core.repeat() if isinstance(each, Send) and each.to == peer]

    def _must_look(self) -> bool:
        """Who was away: until all members are here and have told how their logs end, or for a minute."""
        others = [member.peer for member in self.register.members if member.peer != self.core.me]
        are_met = not self.core.asked and all(map(self._view.is_alive, others))
        return self.core.looks and not are_met and self._clock < LOOK

    def _end(self) -> list[Effect]:
        """Vote for the end that others saw before us."""
        if self._end_asked is None or not self._judge.has_finished():
            return []
        return self._do(self.core.answer(self._end_asked, True))

    def _miss(self) -> list[Effect]:
        """Membership says nothing of a member that it has never heard of, as after a start of all."""
        effects: list[Effect] = []
        for peer in (member.peer for member in self.register.members):
            if peer == self.core.me or self._view.is_alive(peer):
                continue
            lost_at = self._lost_at.setdefault(peer, self._clock)
            if self._clock - lost_at >= COMING and peer not in self.core.down:
                effects += self._do(self.core.lost(peer))
        return effects

    def _ask_around(self) -> list[Effect]:
        """Ask one peer after the other how the log goes on: who is here and no member may be on another branch.

        So may all be, if this one is no member itself, if no voter answers, or if its branch has ended. Who holds no
        state is in no round, so it hears nothing of its removal; nor does who has missed the end after the last one.
        """
        alive, core, register = self._view.alive(), self.core, self.register
        knows_nobody = not any(voter == core.me or voter in alive for voter in register.voters)
        awaits_end = bool(register.last_round) and all(part.round == register.last_round for part in register.parts)
        is_out = not self.is_member or self._judge.held_round is None or register.yields_to != NO_DIGEST
        if not (knows_nobody or core.asked or awaits_end or is_out):
            known = {member.peer for member in register.members}
            alive = [peer for peer in alive if peer not in known]
        if not alive:
            return []
        self._turn += 1
        return self._do(core.ask(alive[self._turn % len(alive)]))

    def _ask_who_is_no_member(self) -> list[Effect]:
        """After the end: who is here and was no member may be at the end of another branch."""
        members = {member.peer for member in self.register.members}
        for peer in self._view.alive():
            if peer not in members and self._asked_after_end[peer] < MOST_ASKED:
                self._asked_after_end[peer] += 1
                return self._do(self.core.ask(peer))
        return []

    def _be_let_in(self) -> list[Effect]:
        if self.is_member or self.is_below_anchor:
            return []
        effects, over = list[Effect](), last_life(self.register, self.core.me)
        if over >= self.core.life:  # it was removed meanwhile
            effects += self._do(self.core.begin_life(over + 1))
        asks = Asks(self.register.branch, self.core.me, self.core.life, False, b"")
        return effects + self.want(Admit((signed(asks, self.core.rules.signer),)))

    def _be_let_go(self) -> list[Effect]:
        """Unless that would leave others behind that cannot decide anything: our own vote would bind us, too."""
        if not self.is_member:
            return []
        core = self.core
        leave = Leave(signed(Asks(self.register.branch, core.me, core.life, True, b""), core.rules.signer))
        return self.want(leave) if self._is_good(leave) else []

    def _pass_on_wishes(self) -> list[Effect]:
        """Want out who has left the branch that this peer comes from, and is a member of this one still; one by one."""
        members = {(each.peer, each.life) for each in self.register.members} if self._left and self.is_member else ()
        wishes = [each for each in self._left.values() if (each.asks.peer, each.asks.life) in members]
        good = [wish for wish in wishes if self._is_good(wish)]
        return self.want(good[0]) if good else []

    def _note_who_left(self, entry: Entry) -> None:
        """Keep the wish by which a member has left, if the entry is one: it holds on other branches as well."""
        if isinstance(wish := body_of(entry.body), Leave):
            others = [(peer, each) for peer, each in self._left.items() if peer != wish.asks.peer]
            self._left = dict([*others, (wish.asks.peer, wish)][-REMEMBERED:])

    def _offer_to_vote(self) -> list[Effect]:
        register, core = self.register, self.core
        if not self.is_member or self.votes_here or self.is_leaving or len(register.voters) >= register.most_voters:
            return []
        if not self._has_earned(core.me):
            return []
        return self._say(Consent(register.branch, register.tip, core.me, core.life, b""))

    def _say_who_is_absent(self) -> list[Effect]:
        register, core = self.register, self.core
        effects: list[Effect] = []
        for member in register.members if self.votes_here else ():
            is_long = self._clock - self._lost_at.get(member.peer, self._clock) >= self._absence.deadline()
            if is_long and not self._view.is_alive(member.peer):
                said = Unheard(register.branch, register.tip, member.peer, member.life, core.me, core.life, b"")
                effects += self._say(said)
        return effects

    def _say_what_is_lost(self) -> list[Effect]:
        register, core = self.register, self.core
        if self._lacks is None or not self.votes_here:
            return []
        if all(part.result != self._lacks for part in register.parts):
            self._lacks = None
            return []
        return self._say(Lacks(register.branch, register.tip, self._lacks, core.me, core.life, b""))

    def _go_on(self) -> list[Effect]:
        """Say with whom this peer goes on, and found the branch if that is itself."""
        since = self._note_since_when_it_goes_on()
        if since is None:
            return []
        core, survivors = self.core, self.survivors
        founder = survivors[0]
        # A quorum that can decide nothing is bound to a change of the voters: whoever founds must show that one.
        is_bound = self.is_quorum(self.here)
        said = self._say_who_founds(founder, is_bound)
        if founder != core.me:
            return said
        named = {each.peer: each for each in self._said_by(Stays) if each.founder == core.me}
        with_us = [named[peer] for peer in survivors if peer in named]
        # Who is bound may know more of it than another one, with whom it could decide: so all who are here must agree.
        waits_for_all = is_bound or self._clock - since < FOUNDING
        if waits_for_all and len(with_us) < len(survivors):
            return said
        with suppress(RemoteError):  # somebody is in a later life by now, or too many would go on
            return [*said, *self._do(core.found(Found(tuple(with_us[:MAX_SURVIVORS]))))]
        return said

    def _note_since_when_it_goes_on(self) -> float | None:
        """Since when this peer is to go on without a quorum: it was told to, that has lasted long, or others are to.

        None if it is not to, or may not: then all times are counted anew.
        """
        may_branch = self.may_stay and self.core.rules.trust.may_branch
        if not may_branch or self.is_below_anchor or self.can_decide(self.here):
            self._goes_on_since = self._stuck_since = self._goes_along_since = None
            return None
        if self._stuck_since is None:
            self._stuck_since = self._clock
        has_waited = self._continue_after is not None and self._clock - self._stuck_since >= self._continue_after
        if self._goes_on_since is None and has_waited:
            self._goes_on_since = self._clock
        if self._goes_on_since is not None:
            return self._goes_on_since
        if not self._is_taken_along():
            self._goes_along_since = None
        elif self._goes_along_since is None:
            self._goes_along_since = self._clock
        return self._goes_along_since

    def _is_taken_along(self) -> bool:
        """Whether one of those who may go on with this peer is to go on, and not only goes along with others."""
        told = {each.peer for each in self._said_by(Stays) if each.has_waited}
        return not told.isdisjoint(self.survivors)

    def _say_who_founds(self, founder: PeerId, is_bound: bool) -> list[Effect]:
        """That this peer stays with `founder`, up to which round it is, and to what it is bound if that is itself."""
        register, core, held = self.register, self.core, self._judge.held_round
        standing, has_waited = held + 1 if held is not None else 0, int(self._goes_on_since is not None)
        bound = core.bound.body if is_bound and core.bound is not None and founder == core.me else b""
        before = self._statements.get((Stays, founder, core.me))
        now = (standing, has_waited, bound)
        if not isinstance(before, Stays) or (before.standing, before.has_waited, before.bound) != now:
            self._said.pop((Stays, founder), None)  # that one does not count, or says what is true no more
        return self._say(Stays(register.branch, register.tip, founder, *now, core.me, core.life, b""))

    def _say_whom_to_promote(self) -> list[Effect]:
        register, core = self.register, self.core
        effects: list[Effect] = []
        for peer in sorted(self._promoted):
            order = Order(register.branch, What.VOTE, peer, member_of(register, peer).life, core.me, core.life, b"")
            effects += self._say(order)
        return effects

    def _say(self, said: Said) -> list[Effect]:
        """Tell all whom it concerns, unless they were told just now."""
        register, place = self.register, (type(said), _subject(said))
        tip, at = self._said.get(place, (None, 0.0))
        if tip in register.tips[-RECENT:] and self._clock - at < REPEAT:
            return []
        self._said[place] = (register.tip, self._clock)
        statement = signed(said, self.core.rules.signer)
        self._statements[*place, self.core.me] = statement
        carried = Statement(register.branch, register.number, encode(statement))
        hearers = self.survivors if isinstance(said, Stays) else register.voters
        about = [said.subject] if isinstance(said, Order) else []
        return [Send(peer, carried) for peer in (*hearers, *about) if peer != self.core.me]

    def _take_statement(self, sender: PeerId, message: Statement) -> list[Effect]:
        register = self.register
        if message.branch != register.branch:
            return self.heard_end(sender, message.number)
        said = decode(message.body, sender, MAX_CONTROL_FRAME, STATEMENT_TAGS)
        assert isinstance(said, Said)
        if not _counts(said, register):
            return self.heard_end(sender, message.number)
        check_signature(said, said.peer, self.core.rules.signer, sender)
        self._statements[type(said), _subject(said), said.peer] = said
        if isinstance(said, Stays):
            if has_member(self.register, said.peer):
                self._lives[said.peer] = max(said.life, self._lives.get(said.peer, said.life))
            return [] if self.core.looks else self._go_on()
        return [*(self._offer_to_vote() if isinstance(said, Order) else []), *self._make_entries()]

    def beginning_for(self, part: int, round: int) -> Shortcut | None:
        """What a journal may begin with, beside the state of `part` after `round`; None: nothing later than now."""
        return self._shortcuts.behind(round, part, self.register)

    def shorten(self, beginning: Shortcut) -> list[Effect]:
        """Have the journal begin with this, unless we are on another branch by now; the state it is for is on disk."""
        return [Persist("shorten", beginning)] if beginning.branch == self.register.branch else []

    def _show_shortcut(self, peer: PeerId) -> list[Effect]:
        """To one who is far behind, or on another branch."""
        shortcut = self._shortcuts.to(self.core.log, self.register, self._is_able)
        if shortcut is None or peer in self._shown or len(self._shown) == MOST_SHOWN:
            return []
        self._shown.append(peer)
        return [Send(peer, replace(shortcut, stays=self._promise(peer)))]

    def _promise(self, peer: PeerId) -> bool:
        """Promise one who may be on another branch that this peer stays on its own; whether it does."""
        is_with_us = has_member(self.register, peer) and self._is_here(peer)
        if is_with_us or self.is_leaving or self._is_outranked or not self._holds_state:
            return False
        self._stays_until = self._now + STAYING
        return True

    def _ask_for_promise(self, peer: PeerId) -> list[Effect]:
        """Of one who is on another branch, with its answer."""
        return [Send(peer, GetLog(self.register.branch, self.register.number))]

    @property
    def _holds_state(self) -> bool:
        """Whether the state is here that this branch ends with, or the one before, as the founders of a branch need."""
        held, last = self._judge.held_round, max((part.round for part in self.register.parts), default=0)
        return held is not None and held + 1 >= last

    @property
    def _is_outranked(self) -> bool:
        """Whether a branch is known that ranks above ours, or goes on from it, and where somebody stays."""
        rival = self._rivals.best
        is_below = rival is not None and rival.rank > self._rank and self._rivals.is_promised(self._now, within=RIVAL)
        return is_below or self._now - self._follows_at <= RIVAL

    def _may_leave(self, stays: bool) -> bool:
        """Whether no state is lost by that (rivals.py); `stays`: somebody has promised it who is where we would go."""
        return not self._holds_state or (stays and self._now >= self._stays_until)

    def _take_shortcut(self, shown: Shown) -> list[Effect]:
        """Go on from there, if that is later in our own log; else it is of another branch."""
        core, shortcut, register = self.core, shown.shortcut, shown.shortcut.register
        if not self._goes_on_from_ours(register) and shortcut.branch != core.register.branch:
            return self._meet_branch(shown)
        is_other = shortcut.branch != core.register.branch
        is_lower = is_other and self.can_decide(self.here) and shown.rank <= self._rank
        if register.number <= core.register.number or is_lower:
            return []
        if is_other:
            self._follows_at = self._now
            if not self._may_leave(shortcut.stays):
                return []
        self._check_way(shown)
        self._shortcuts.take(beginning(self._founding, shortcut.way, core.rules), shortcut)
        resumed = Core.resume(core.me, register, (), core.vote_file(), core.rules)
        self.core = replace(resumed, down=core.down, looks=core.looks)
        skipped: list[Effect] = [Persist("log", shortcut), Tell(LogSkipped(core.register, register))]
        return [*skipped, *self._after_entry(core.register, register), *self._do(self.core.ask(shown.shown_by))]

    def _check_way(self, shown: Shown) -> None:
        """RemoteError unless it leads from the run's founder to the register, with the entry that the link names."""
        check_shortcut(shown.shortcut, self._founding, self.core.rules, shown.sender)
        check_skip(self._anchor, shown.shortcut.way, shown.shortcut.register, shown.sender)

    # -- branches -----------------------------------------------------------------------------------------------

    def _note_life(self, sender: PeerId, request: Request) -> None:
        """In which life a member asks to be admitted; of strangers nothing is kept."""
        body = body_of(request.body, sender)
        for asks in body.asks if isinstance(body, Admit) else ():
            if asks.peer == sender and asks.branch == self.register.branch and has_member(self.register, sender):
                self._lives[sender] = asks.life

    def _note_branch(self, peer: PeerId, branch: Digest) -> None:
        if branch == self.register.branch:
            if peer in self._elsewhere:
                self._elsewhere.remove(peer)
                self._came_over.add(peer)
        elif may_survive(self.register, peer):
            self._elsewhere.add(peer)

    def _note_shown(self, peer: PeerId, message: KeeperMessage) -> None:
        """Who shows the branch that is known here, though the run's link names another one.

        Its members only: what they have read leads from the run's founder, as was checked, and they would know of the
        other branch. Newcomers may have read as little as we, and strangers say anything.
        """
        if branch_of(message) != self.register.branch:
            self._shown_by.discard(peer)
        elif isinstance(message, Tip | Decided | Shortcut) and self.seeks_branch and may_survive(self.register, peer):
            self._shown_by.add(peer)

    def _goes_on_from_ours(self, register: Register) -> bool:
        """Whether our log leads to `register`, which is later."""
        ours = self.register
        is_later = register.branch == ours.branch and register.number > ours.number
        return is_later or any(stem.branch == ours.branch and stem.end > ours.number for stem in register.earlier)

    @property
    def _rank(self) -> Rank:
        return self._is_able, *rank(self.register)

    @property
    def _is_able(self) -> bool:
        """All that it has to: after the end that is nothing."""
        return self.register.is_over or self.can_decide(self.here)

    def _meet_branch(self, shown: Shown) -> list[Effect]:
        """What was shown does not go on from our log, nor our log from that: see rivals.py."""
        match self._rivals.meet(self._now, shown, self._rank, self.register, self._check_way):
            case Reaction.SHOW_OURS:
                return self._show_shortcut(shown.shown_by)
            case Reaction.SEE_TO_IT:
                return self._yield_to_rival()
            case Reaction.TELL_VOTERS:
                return [*self._tell_of_rival(shown.shortcut.stays), *self._yield_to_rival()]
        return []

    def _tell_of_rival(self, stays: bool) -> list[Effect]:
        """To the other voters, as they vote on whether to yield to it; with the promise that was made just now."""
        rival = self._rivals.best
        assert rival is not None
        others = [peer for peer in self.here if peer in self.register.voters and peer != self.core.me]
        met = Met(self.register.branch, rival.shown_by, replace(rival.shortcut, stays=stays))
        return [Send(voter, met) for voter in others]

    def _hear_of_branch(self, sender: PeerId, met: Met) -> list[Effect]:
        """Of a branch that another member has met."""
        if met.branch != self.register.branch or not has_member(self.register, sender) or met.peer == self.core.me:
            return []
        return self._take_shortcut(Shown(met.shortcut, met.peer, passed_on_by=sender))

    def _see_to_rival(self) -> list[Effect]:
        """Each second."""
        effects, rival = self._yield_to_rival(), self._rivals.best
        is_unsure = rival is not None and rival.rank > self._rank and not self._rivals.is_promised(self._now)
        return [*effects, *(self._ask_for_promise(rival.shown_by) if rival is not None and is_unsure else [])]

    def _yield_to_rival(self) -> list[Effect]:
        """By an entry, where this branch may still grow: not both can end so. What cannot grow is simply left."""
        self._rivals.lapse(self._now)
        rival, is_promised = self._rivals.best, self._rivals.is_promised(self._now)
        if rival is not None and rival.rank > self._rank:
            if self.register.yields_to != NO_DIGEST or not self._may_grow:
                return self._switch(rival) if self._may_leave(is_promised) else []
            if is_promised:
                return self.want(Yield(rival.shortcut.branch, rival.shortcut.tokens))
        self.core = self.core.drop(Yield)
        return []

    @property
    def _may_grow(self) -> bool:
        """A member that is lost for a moment is no reason to leave: the other branch may just be yielding to ours."""
        if not self.is_member or self.register.is_over:
            return False
        is_stuck = self._stuck_since is not None and self._clock - self._stuck_since >= LEAVING
        return self.can_decide(self.here) or not (is_stuck or self.core.looks)

    def _switch(self, shown: Shown) -> list[Effect]:
        """Go on there, in a later life: what was promised to the voters of before is forgotten."""
        core, shortcut, register, before = self.core, shown.shortcut, shown.shortcut.register, self.register
        life = max(core.life, last_life(register, core.me)) + 1
        has_reached_anchor = not self.is_below_anchor
        self._rivals.forget()
        self._shortcuts.take(beginning(self._founding, shortcut.way, core.rules), shortcut)
        self.core = Core(core.me, life, register, core.rules, core.patience, down=core.down)
        kept: list[Effect] = [Persist("switch", Switch(shortcut, self.core.vote_file()))]  # in one: we may be killed
        self._statements, self._promoted, self._elsewhere, self._came_over = {}, set(), set(), set()
        self._shown_by, self._held_back, self._is_due_then = set(), {}, False
        self._asked_after_end.clear()
        self._goes_on_since = self._stuck_since = self._goes_along_since = None
        self._consented_at = self._lacks = self._end_asked = None
        if has_reached_anchor and self.seeks_branch:  # we have been where it leads, and leave that
            kept += self._drop_anchor()
        return [*kept, Tell(Switched(before, register)), *self._do(self.core.ask(shown.shown_by)), *self._act()]

    def _make_entries(self) -> list[Effect]:
        """As proposer, have decided what enough have said."""
        if not self.core.votes_here:
            return []
        voids = self._voids()
        if self.proposer != self.core.me:  # nothing else may be due before a lost result is undone
            return self._do(self.core.expect()) if voids else []
        register, effects = self.register, list[Effect]()
        if consents := self._consents():
            effects += self.want(self._added(consents))
        unheard = [each for each in self._said_by(Unheard) if is_voter(register, each.peer, each.life)]
        for absent, life in dict.fromkeys((each.absent, each.absent_life) for each in unheard):
            witnesses = tuple(each for each in unheard if each.absent == absent)
            if self.is_quorum([each.peer for each in witnesses]) and has_life(register, absent, life):
                effects += self.want(Remove(absent, life, witnesses, ()))
        if register.last_round and self._judge.has_finished():
            effects += self.want(End(()))
        return [*effects, *(each for void in voids for each in self.want(void))]

    def _added(self, consents: Sequence[Consent]) -> AddVoters:
        """These as voters; of those who need orders one at a time, as an entry holds only so many."""
        earned = [each for each in consents if self._has_gone(each.peer)]
        ordered = [each for each in consents if each not in earned][:1]
        return AddVoters((*earned, *ordered), self._orders(ordered[0].peer) if ordered else ())

    def _voids(self) -> list[Void]:
        """Of results that a quorum lacks."""
        found = []
        for part in self.register.parts:
            lacks = tuple(each for each in self._said_by(Lacks) if each.result == part.result)
            if lacks and self.is_quorum([each.peer for each in lacks]):
                found.append(Void(part.part, lacks))
        return found

    def _said_by(self, kind: type[S]) -> list[S]:
        return [each for _, each in sorted(self._statements.items(), key=_place) if isinstance(each, kind)]

    def _consents(self) -> tuple[Consent, ...]:
        """Of those who are to be made voters now: together, as with two voters a run hangs on each of them."""
        members = [each.peer for each in self.register.members if self._may_get_a_vote(each.peer)]
        may_vote = [peer for peer in members if self._is_here(peer) and self._has_earned(peer)]
        consents = [each for each in self._said_by(Consent) if has_life(self.register, each.peer, each.life)]
        said = [each for each in consents if each.peer in may_vote]
        if not said:
            self._consented_at = None
            return ()
        if self._consented_at is None:
            self._consented_at = self._clock
        if len(said) < len(may_vote) and self._clock - self._consented_at < TOGETHER:
            return ()
        return tuple(said[: self.register.most_voters - len(self.register.voters)])

    def _may_get_a_vote(self, peer: PeerId) -> bool:
        return has_member(self.register, peer) and peer not in self.register.voters

    def _has_earned(self, peer: PeerId) -> bool:
        """Whether a member may get a vote: by its rounds, or because others want it to."""
        return self._has_gone(peer) or is_ordered(self.register, What.VOTE, peer, self._orders(peer), self.core.rules)

    def _orders(self, peer: PeerId) -> tuple[Order, ...]:
        """That it be given a vote."""
        return tuple(each for each in self._said_by(Order) if each.subject == peer)

    def is_quorum(self, peers: Sequence[PeerId]) -> bool:
        """Whether these are enough of the voters."""
        return has_quorum(self.register, peers, self.core.rules)

    @property
    def deciding(self) -> list[PeerId]:
        """Those who decide what comes next: the voters, and who votes after a change that they are bound to."""
        bound = self.core.bound
        changed = after(self.register, bound, self.core.rules).voters if bound is not None else ()
        return list(dict.fromkeys((*self.register.voters, *changed)))

    def can_decide(self, peers: Sequence[PeerId]) -> bool:
        """Whether these can decide what comes next: they may be bound to a change of the voters, or have yielded."""
        if self.register.yields_to != NO_DIGEST or not self.is_quorum(peers):
            return False
        if (bound := self.core.bound) is None:
            return True
        return has_quorum(after(self.register, bound, self.core.rules), peers, self.core.rules)

    def _wake(self) -> Wake:
        return Wake(TICK, Timer("log", "duties", 0))


def _subject(said: Said) -> PeerId:
    """Whom a statement is about; nobody, where it is about a result."""
    match said:
        case Unheard():
            return said.absent
        case Consent():
            return said.peer
        case Order():
            return said.subject
        case Stays():
            return said.founder
    return PeerId("")


def _counts(said: Said, register: Register) -> bool:
    """Whether a statement may still be part of an entry.

    One of each author is kept about everybody who is named: so only who can be meant may be, by who has a say in it.
    """
    match said:
        case Order():
            is_due = said.what == What.VOTE and said.branch == register.branch and said.subject not in register.voters
            is_about_member = has_life(register, said.subject, said.subject_life)
            return is_due and is_about_member and may_order(register, said.peer, said.life)
        case Stays():
            is_short = not said.bound or (said.peer == said.founder and len(said.bound) <= MAX_BODY)
            may_found = may_survive(register, said.founder) and said.before == register.tip
            return is_short and may_found and may_stay(register, said.peer, said.life)
        case Unheard():
            is_about_member = has_life(register, said.absent, said.absent_life)
            is_due = is_about_member and is_voter(register, said.peer, said.life)
        case Lacks():
            is_due = is_voter(register, said.peer, said.life)
        case Consent():
            is_due = has_life(register, said.peer, said.life)
    return is_due and said.before in register.tips


def _place(item: tuple[tuple[type, PeerId, PeerId], Message]) -> tuple[str, PeerId, PeerId]:
    (kind, about, author), _ = item
    return kind.__name__, about, author
