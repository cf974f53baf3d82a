"""One peer's part in one run whose members agree on a state: membership, the log, rounds and state transfer.

The simulator drives this very class. It routes messages and timers to the core they are for, and turns what one core
tells into a command of another:

    membership: PeerUp ──► log, rounds        rounds: Want, Due, Reviewed ──► log
    membership: PeerDown ──► log, rounds      log: EntryDecided, ResultProposed ──► rounds
                                              rounds: Behind ──► transfer: StateReceived ──► the application

What is left for the application: install a state (`opened`), apply a result (`applied`), train, `submit`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shoal.protocol.averaging import context as told
from shoal.protocol.averaging.certified import Certified
from shoal.protocol.averaging.context import Base
from shoal.protocol.averaging.exchange import Self
from shoal.protocol.averaging.replay import outcomes
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.base.effects import Effect, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, Message, decode
from shoal.protocol.catchup.donor import Store
from shoal.protocol.catchup.transfer import Transfer
from shoal.protocol.log.core import Core
from shoal.protocol.log.keeper import EntryDecided, Gone, Keeper, LogSkipped, ResultProposed
from shoal.protocol.log.register import Rules, first_state, founded, steps
from shoal.protocol.log.shortcuts import Shortcuts
from shoal.protocol.log.trust import Crash, Trust
from shoal.protocol.member.member import TRANSFER_MESSAGES
from shoal.protocol.member.parting import Parted
from shoal.protocol.member.presence import Presence
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerUp, StatusChanged
from shoal.protocol.messages.averaging import AVERAGING_MESSAGES
from shoal.protocol.messages.log import (
    BODY_TAGS,
    Decided,
    Header,
    LogMessage,
    Register,
    Shortcut,
    Statement,
    VoteFile,
)
from shoal.protocol.messages.membership import MEMBERSHIP_MESSAGES, RunStatus
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.rounds.agreement.roster import Base as OldBase
from shoal.protocol.rounds.agreement.roster import Offer, Policy
from shoal.protocol.rounds.allreduce.reducer import Contribute, Reducer

PART = 0  # a run is one chain of rounds; which numbers a round of fragments is about, the method says
FOUNDING_LIFE = 1  # that of the founder's first vote file: everybody knows it from the run's id


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a member knows of a run before it has met anybody."""

    run: Digest
    founder: PeerId
    origin: Base  # what its first round builds on; the manifest says so, or the seed
    policy: Policy
    last_round: int = 0  # 0: the run has none
    rounds_to_vote: int = 1
    trust: Trust = field(default_factory=Crash)

    def register(self) -> Register:
        """The register before the first entry."""
        first = first_state(PART, self.origin.round, self.origin.root, self.origin.history)
        settings = {"rounds_to_vote": self.rounds_to_vote, "last_round": self.last_round, "parts": (first,)}
        return founded(self.run, self.founder, FOUNDING_LIFE, **settings)


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier process of this peer has left of the log."""

    first: Register  # before the entries
    headers: tuple[Header, ...]  # that lead there
    register: Register  # after them
    entries: tuple[Decided, ...]
    votes: VoteFile
    means: tuple[Message, ...] = ()  # and tables, of rounds that are not applied


class AgreedMember(Presence):
    """A `Machine` for one run on one peer."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        facts: RunFacts,
        kept: Kept,
        base: Base | None,
        signer: Signer,
        reducer: Callable[[int], Reducer],
        store: Store,
        rng: random.Random,
        *,
        trains: bool = True,
    ) -> None:
        """`base` is the state that is here; None: none is."""
        standing = OldBase(base.round, base.history, base.root, ()) if base is not None else None
        super().__init__(me, addresses, standing, signer, rng, trains=trains)
        self._first = base
        self._origin = facts.origin
        self._policy = facts.policy
        rules = Rules(facts.trust, signer)
        core = Core.resume(me, kept.register, kept.entries, kept.votes, rules)
        founding = facts.register()
        shortcuts = Shortcuts(founding, kept.headers)
        self.certified = Certified(facts.origin, kept.first, PART)
        for before, decided, register in steps(kept.first, kept.entries, rules):
            shortcuts.read(before, decided, register)
            self.certified.read(decode(decided.entry.body, None, MAX_CONTROL_FRAME, BODY_TAGS), register)
        self.log = Keeper(core, self.membership, founding, shortcuts)
        us = Self(me, facts.run, PART, signer, lambda: self.log.core.life)
        self.rounds = Rounds(us, self.membership, facts.policy, self.log, reducer)
        self.transfer = Transfer(me, PART, self.certified, self.membership, store)  # type: ignore[arg-type]
        self.rounds.recall(outcomes(kept.first, kept.entries, rules, PART))
        self.rounds.recall_means(kept.means)
        self._leaves_at: float | None = None
        self._has_parted = False

    # -- commands -----------------------------------------------------------------------------------------------

    def start(self, now: float, seeds: list[PeerId]) -> list[Effect]:
        """Join the run through `seeds`, standing on the state that is here, if there is one."""
        effects = [*self.membership.start(now, seeds), *self.log.start(now)]
        if self._first is not None:
            effects += self.rounds.open(now, self._first)
        return self._digest(now, effects)

    def submit(self, now: float, offer: Offer, contribution: Contribute | None) -> list[Effect]:
        """The inner steps of the current round are done."""
        return self._digest(now, self.rounds.submit(now, offer, contribution))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """What we were told of is applied and read back."""
        return self._digest(now, self.rounds.applied(now, root))

    def opened(self, now: float, base: Base) -> list[Effect]:
        """The state that we were told of is installed."""
        return self._digest(now, self.rounds.open(now, base))

    def leave(self, now: float) -> list[Effect]:
        """Ask to be let go; `Parted` is told when we are. Until then we go on."""
        return self._digest(now, self.log.leave(now))

    def part(self, now: float) -> list[Effect]:
        """Go. Send what this returns; the machine is silent from now on."""
        self._has_parted = True
        return self.membership.leave(now)

    # -- inputs -------------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Any message of this run."""
        if self._has_parted:
            return []
        if isinstance(message, MEMBERSHIP_MESSAGES):
            return self._digest(now, self.membership.receive(now, sender, message))
        if isinstance(message, LogMessage | Statement | Shortcut):
            return self._digest(now, self.log.receive(now, sender, message))
        if not isinstance(message, TRANSFER_MESSAGES | AVERAGING_MESSAGES):
            raise RemoteError(f"sent {type(message).__name__}, which is not for a run's members", sender)
        if message.part != PART:
            raise RemoteError(f"names part {message.part} of a run that has only part {PART}", sender)
        if isinstance(message, TRANSFER_MESSAGES):
            return self._digest(now, self.transfer.receive(now, sender, message))
        return self._digest(now, self.rounds.receive(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Any timer of this run."""
        if self._has_parted:
            return []
        if timer.core == "membership":
            return self._digest(now, self.membership.fire(now, timer))
        if timer.core == "transfer":
            return self._digest(now, self.transfer.fire(now, timer))
        return self._digest(now, (self.log if timer.core == "log" else self.rounds).fire(now, timer))

    def left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """A bulk message no longer waits at this node: it was sent, or dropped together with its connection."""
        if isinstance(message, StateChunk):
            self.transfer.donor.payload_done(to, message)
        else:
            self.rounds.left(now, to, message, sent)

    # -- read side ----------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """A word for what we are doing."""
        return "syncing" if self.transfer.active else self.rounds.phase

    # -- inside -------------------------------------------------------------------------------------------------

    def _digest(self, now: float, effects: Iterable[Effect]) -> list[Effect]:
        """Turn what one core tells into commands of another; then tell everybody where we stand."""
        done: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, Tell):
                done.append(effect)
                continue
            follow = self._follow_up(now, effect)
            done += [effect] if follow is None else self._digest(now, follow)
            if follow is None:
                done += self._digest(now, self._note(now, effect))
        return done + self._install_if_complete() + self._announce(now)

    def _follow_up(self, now: float, effect: Tell) -> list[Effect] | None:
        """What follows from what the cores tell each other; None for what is told to the application."""
        match effect.event:
            case told.Want(body):
                return self.log.want(body)
            case told.Due():
                return self.log.expect()
            case told.Reviewed(entry, is_approved):
                return self.log.answer(entry, is_approved)
            case told.LogEnds(peer, number):
                return self.log.heard_end(peer, number)
            case told.Lost(entry):
                return self.log.lacks(now, entry)
            case ResultProposed(entry, result, is_bound):
                return self.rounds.review(now, entry, result, is_bound)
        return None

    def _note(self, now: float, effect: Tell) -> list[Effect]:
        """What follows from what the application is told as well."""
        match effect.event:
            case PeerUp(peer=peer) | StatusChanged(peer=peer):
                return [*self.log.peer_up(peer), *self._look_for_state(now), *self.rounds.look(now)]
            case PeerDown(peer=peer) | PeerLeft(peer=peer):
                return [*self.log.peer_down(now, peer), *self.rounds.peer_down(now, peer)]
            case told.Behind(round):
                return self._catch_up(now, round)
            case told.Committed(decision=decision):
                self.transfer.passed(decision.round)
                self.rounds.shelf.keep_after = self.transfer.donor.oldest_lease()
            case EntryDecided(entry, before, register):
                body = decode(entry.body, None, MAX_CONTROL_FRAME, BODY_TAGS)
                self.certified.read(body, register)
                return self.rounds.committed(now, entry.number, body, before)
            case LogSkipped(register):
                self.certified.skip(register)
                return self.rounds.look(now)
            case Gone():
                return [*self.part(now), Tell(Parted())] if self.log.is_leaving else []
        return []

    def _look_for_state(self, now: float) -> list[Effect]:
        if self._first is not None or self.rounds.base is not None:
            return []
        return self.transfer.start(now, beyond=self._origin.round - 1)

    def _catch_up(self, now: float, round: int) -> list[Effect]:
        """Get a later state; or, if `round` is our own and our state is doubted, that before it, to do it again."""
        base = self.rounds.base
        if base is None:
            return []
        return self.transfer.start(now, beyond=base.round if round > base.round + 1 else base.round - 2)

    def _install_if_complete(self) -> list[Effect]:
        """Hand a downloaded state to the application, when it is not busy with a result."""
        received = self.transfer.take() if self.rounds.phase != "applying" else None
        if received is None:
            return []
        self.rounds.suspend()
        return [Tell(received)]

    def _announce(self, now: float) -> list[Effect]:
        """A new base is news for everybody; all else waits for the next `report`."""
        base = self.rounds.base
        watched = self.membership.probing.let_rest(now, self.phase == "training")
        if base is None or (base.history, base.root) == (self._status.history, self._status.root):
            return watched
        return [*watched, *self._set_status(now, self._status)]

    def _set_status(self, now: float, status: RunStatus) -> list[Effect]:
        base = self.rounds.base
        status = dataclasses.replace(status, phase=self.phase)
        if base is not None:
            status = dataclasses.replace(status, round=base.round, history=base.history, root=base.root)
        self._status = status
        return self.membership.set_status(now, status)
