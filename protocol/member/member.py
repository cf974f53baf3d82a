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

from shoal.protocol.averaging import events as told
from shoal.protocol.averaging.certified import Certified
from shoal.protocol.averaging.exchange import Self
from shoal.protocol.averaging.policy import Base, Policy, Ready
from shoal.protocol.averaging.reducer import Contribute, Reducer
from shoal.protocol.averaging.replay import decisions_of, outcomes
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.base.effects import Effect, Tell, Timer, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, Message, decode
from shoal.protocol.catchup.donor import Store
from shoal.protocol.catchup.transfer import Transfer
from shoal.protocol.log.core import Core
from shoal.protocol.log.keeper import EntryDecided, Gone, Keeper, LogSkipped, ResultProposed
from shoal.protocol.log.register import MAX_VOTERS, Rules, first_state, founded, steps, voters_root
from shoal.protocol.log.shortcuts import Shortcuts
from shoal.protocol.log.trust import Crash, Trust
from shoal.protocol.member.parting import Parted
from shoal.protocol.member.presence import Presence
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerUp, StatusChanged
from shoal.protocol.messages.anchor import Anchor
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
from shoal.protocol.messages.transfer import TRANSFER_MESSAGES, StateChunk

PART = 0  # a run is one chain of rounds; which numbers a round of fragments is about, the method says
GOING = 8.0  # seconds that we wait, at a stop, until we are let go
FOUNDING_LIFE = 1  # that of the founder's first vote file: everybody knows it from the run's id


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a member knows of a run before it has met anybody."""

    run: Digest
    founder: PeerId
    origin: Base  # what its first round builds on; the manifest says so, or the seed
    policy: Policy
    last_round: int = 0  # 0: the run has none
    stewards: tuple[PeerId, ...] = ()
    most_voters: int = MAX_VOTERS
    rounds_to_vote: int = 1
    trust: Trust = field(default_factory=Crash)
    anchor: Anchor | None = None  # an entry that its log has, as we were told with the run's link

    def register(self) -> Register:
        """The register before the first entry."""
        first = first_state(PART, self.origin.round, self.origin.root, self.origin.history)
        return founded(
            self.run,
            self.founder,
            FOUNDING_LIFE,
            stewards=self.stewards,
            most_voters=self.most_voters,
            rounds_to_vote=self.rounds_to_vote,
            last_round=self.last_round,
            parts=(first,),
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier process of this peer has left of the log."""

    first: Register  # before the entries
    headers: tuple[Header, ...]  # that lead there
    register: Register  # after them
    entries: tuple[Decided, ...]
    votes: VoteFile
    means: tuple[Message, ...] = ()  # and tables, of rounds that are not applied

    @classmethod
    def nothing(cls, facts: RunFacts, life: int) -> Kept:
        """That of a peer that has never been in the run; the founder begins in FOUNDING_LIFE."""
        first = facts.register()
        return cls(first, (), first, (), VoteFile(life, voters_root(first), 0, 0, None, None))

    def without_means(self) -> Kept:
        """The same without what takes much memory."""
        return dataclasses.replace(self, means=())


def certified_by(facts: RunFacts, kept: Kept, rules: Rules) -> Certified:
    """The states that the log of an earlier process certifies."""
    certified = Certified(facts.origin, kept.first, PART)
    for _, decided, register in steps(kept.first, kept.entries, rules):
        certified.read(decode(decided.entry.body, None, MAX_CONTROL_FRAME, BODY_TAGS), register)
    return certified


class Member(Presence):
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
        standing = (base.round, base.history, base.root) if base is not None else None
        super().__init__(me, addresses, standing, signer, rng, trains=trains)
        self._first = base
        self._origin = facts.origin
        self._policy = facts.policy
        rules = Rules(facts.trust, signer)
        core = Core.resume(me, kept.register, kept.entries, kept.votes, rules)
        founding = facts.register()
        shortcuts = Shortcuts(founding, kept.headers)
        for before, decided, register in steps(kept.first, kept.entries, rules):
            shortcuts.read(before, decided, register)
        self.certified = certified_by(facts, kept, rules)
        self.log = Keeper(core, self.membership, founding, shortcuts, facts.anchor)
        us = Self(me, facts.run, PART, signer, lambda: self.log.core.life)
        self.rounds = Rounds(us, self.membership, facts.policy, self.log, reducer)
        self.transfer = Transfer(me, PART, self.certified, self.membership, store)
        results = outcomes(kept.first, kept.entries, rules, PART)
        self.rounds.recall(results)
        self.rounds.recall_means(kept.means)
        for last in decisions_of([base.round], results, kept.means) if base is not None else ():
            self.rounds.shelf.decide(last)  # others may still need its means, and nobody else may have them
        self._has_parted = False

    # -- commands -----------------------------------------------------------------------------------------------

    def start(self, now: float, seeds: list[PeerId]) -> list[Effect]:
        """Join the run through `seeds`, standing on the state that is here, if there is one."""
        effects = [*self.membership.start(now, seeds), *self.log.start(now)]
        if self._first is not None:
            effects += self.rounds.open(now, self._first)
        return self._digest(now, effects)

    def submit(self, now: float, ready: Ready, contribution: Contribute | None) -> list[Effect]:
        """The inner steps of the current round are done."""
        return self._digest(now, self.rounds.submit(now, ready, contribution))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """What we were told of is applied and read back."""
        return self._digest(now, self.rounds.applied(now, root))

    def kept(self, now: float, round: int) -> list[Effect]:
        """The records "result" of a round are on disk."""
        return self._digest(now, self.rounds.kept(now, round))

    def opened(self, now: float, base: Base) -> list[Effect]:
        """The state that we were told of is installed."""
        return self._digest(now, self.rounds.open(now, base))

    def stop(self, now: float) -> list[Effect]:
        """Ask to be let go, so that the others can decide without us; until then we go on.

        `Parted` is told when that is decided, or after a while: then we keep our vote.
        """
        if self.log.is_leaving:
            return []
        patience = Wake(GOING, Timer("parting", "patience", 0))
        return [patience, *self._digest(now, self.log.leave(now)), *self._part_if_alone(now)]

    def leave(self, now: float) -> list[Effect]:
        """Go at once. Send what this returns; the machine is silent from now on."""
        self._has_parted = True
        return self.membership.leave(now)

    @property
    def keeps_vote(self) -> bool:
        """Whether we have stopped with a vote without which those who stay cannot decide anything."""
        return self.log.votes_here and not self.log.is_quorum(self.membership.alive())

    @property
    def awaited_voters(self) -> list[PeerId]:
        """The voters that are away, if those who are here cannot decide anything without some of them."""
        here = [self.me, *self.membership.alive()]
        if not self.log.is_member or self.log.is_quorum(here):
            return []
        return [voter for voter in self.log.register.voters if voter not in here]

    def _part(self, now: float) -> list[Effect]:
        return [*self.leave(now), Tell(Parted())] if not self._has_parted else []

    def _part_if_alone(self, now: float) -> list[Effect]:
        """Nobody takes the last vote away, so there is nothing to wait for."""
        return self._part(now) if self.log.register.voters == (self.me,) else []

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
        if timer.core == "parting":
            return self._part(now)
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
            case told.Doubted(peer):
                return self.membership.doubt(now, peer)
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
                alone = self._part_if_alone(now) if self.log.is_leaving else []
                return [*self.rounds.committed(now, entry.number, body, before), *self.transfer.log_read(now), *alone]
            case LogSkipped(register):
                self.certified.skip(register)
                return self.rounds.look(now)
            case Gone():
                return self._part(now) if self.log.is_leaving else []
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
        watched = self.membership.probing.let_rest(now, self._hangs_on_nobody())
        if base is None or (base.history, base.root) == (self._status.history, self._status.root):
            return watched
        return [*watched, *self._set_status(now, self._status)]

    def _hangs_on_nobody(self) -> bool:
        """While we train, and while the run waits for more members, which may take days. A round hangs on all in it."""
        if self.phase != "matching" or self.rounds.base is None:
            return self.phase == "training"
        needed = self._policy.members_needed(self.rounds.base.round + 1)
        return 1 + len(self.membership.alive()) < needed

    def _set_status(self, now: float, status: RunStatus) -> list[Effect]:
        base = self.rounds.base
        status = dataclasses.replace(status, phase=self.phase)
        if base is not None:
            status = dataclasses.replace(status, round=base.round, history=base.history, root=base.root)
        self._status = status
        return self.membership.set_status(now, status)
