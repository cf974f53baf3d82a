"""What the members of both kinds of run do alike: one is there, has the log, and tells the others how it does."""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.protocol.averaging import events as told
from shoal.protocol.averaging.exchange import Self
from shoal.protocol.averaging.policy import Base
from shoal.protocol.averaging.reducer import Reducer
from shoal.protocol.averaging.replay import decision_of
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.base.effects import Effect, Event, Tell, Timer, Wake
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Donor
from shoal.protocol.log.core import Core, EntryDecided
from shoal.protocol.log.keeper import Gone, Judge, Keeper, LogSkipped, ResultProposed, Switched
from shoal.protocol.log.register import Rules, body_of
from shoal.protocol.member.facts import PART, RunFacts
from shoal.protocol.member.past import Past
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerUp, StatusChanged
from shoal.protocol.membership.membership import Membership
from shoal.protocol.messages.log import KeeperMessage
from shoal.protocol.messages.membership import MEMBERSHIP_MESSAGES, RunStatus
from shoal.protocol.messages.transfer import StateChunk

GOING = 8.0  # seconds that we wait, at a stop, until we are let go
STEPS_ASIDE = 2.0  # seconds for which a record cannot be written until we `step_aside`


@dataclass(frozen=True, slots=True)
class Parted(Event):
    """We have gone: the others have let us, or we have waited long enough; we are silent."""


class CatchingUp(Protocol):
    """How a state or a replica comes from others, and ours goes to them: Transfer or Copying."""

    donor: Donor

    def progress(self) -> tuple[int, int]: ...

    def seconds_left(self, now: float) -> float | None: ...


class Presence(Judge, ABC):
    """One peer among the members of one run: what Member and ReplicaMember are made of.

    What one core tells becomes a command of another in `_follow_up` and `_note`; what no core takes is told to the
    application.
    """

    _catching_up: CatchingUp

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        base: Base | None,
        facts: RunFacts,
        past: Past,
        signer: Signer,
        reducer: Callable[[int], Reducer],
        rng: random.Random,
        *,
        trains: bool,
        spread: Estimate | None = None,
    ) -> None:
        """`base`: the state that is here; None before there is one. `spread`: see Rounds."""
        stand = base or Base(0, 0, NO_DIGEST, NO_DIGEST)
        self.me = me
        self._status = RunStatus(
            round=stand.round,
            history=stand.history,
            root=stand.root,
            phase="training" if base is not None else "syncing",
            step=0,
            samples=0,
            loss=None,
            trains=trains,
            up=0,
            down=0,
            reachability="unknown",
        )
        kept = past.kept
        self.membership = Membership(me, addresses, self._status, signer, rng)
        self.log = Keeper(
            Core.resume(me, kept.register, kept.entries, kept.votes, Rules(facts.trust, signer)),
            self.membership,
            facts.register(),
            past.shortcuts,
            self,
            facts.anchor,
            kept.was_away,
            facts.continue_after,
        )
        us = Self(me, self._branches, PART, signer, lambda: self.log.core.life)
        self.rounds = Rounds(us, self.membership, facts.policy, self.log, reducer, spread)
        self.rounds.recall(past.outcomes)
        self.rounds.recall_means(past.means)
        self.rounds.shelf.archive = past.archive
        self.rounds.shelf.recall(past.written)
        last = past.outcomes.get(base.round) if base is not None else None
        if last is not None and (decision := decision_of(last, past.means)) is not None:
            self.rounds.shelf.decide(decision)  # others may still need its means, and nobody else may have them
        self._has_parted = False

    # -- commands -----------------------------------------------------------------------------------------------

    def start(self, now: float, seeds: list[PeerId]) -> list[Effect]:
        """Join the run through `seeds`, standing on the state that is here, if there is one."""
        return self._digest(now, [*self.membership.start(now, seeds), *self.log.start(), *self._begin(now)])

    def report(
        self,
        now: float,
        *,
        step: int,
        samples: int,
        loss: float | None,
        reachability: str,
        line: tuple[int, int],
    ) -> list[Effect]:
        """How the training goes, whether others can dial us, and our line's rates up and down.

        Whether others can dial us is told at once if it has changed, since others choose by it whom they ask, and the
        next base may be days away; all else is told with that.
        """
        has_changed = reachability != self._status.reachability
        up, down = line
        self._status = dataclasses.replace(
            self._status, step=step, samples=samples, loss=loss, up=up, down=down, reachability=reachability
        )
        return self._digest(now, self.membership.set_status(now, self._status) if has_changed else [])

    def kept(self, now: float, round: int) -> list[Effect]:
        """The records "result" of a round are on disk."""
        return self._digest(now, self.rounds.kept(now, round)) if not self._has_parted else []

    def link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        """The connection with `peer` was closed."""
        self.rounds.link_lost(peer)
        return self._digest(now, self.membership.doubt(now, peer))

    def ended(self, now: float, peer: PeerId) -> list[Effect]:
        """Nobody listens any more where `peer` was, whose connection was closed."""
        return self._digest(now, self.membership.ended(now, peer))

    def link_up(self, now: float, peer: PeerId) -> list[Effect]:
        """There is a connection with `peer`."""
        return self._digest(now, self.membership.link_up(now, peer))

    def promote(self, now: float, peer: PeerId) -> list[Effect]:
        """Order that a member be given a vote, which `log.check_promotion` allows."""
        return self._digest(now, self.log.promote(peer))

    def go_on(self, now: float) -> list[Effect]:
        """Go on as a branch, without a quorum, which `log.check_going_on` allows."""
        return self._digest(now, self.log.go_on())

    def woke(self, now: float) -> list[Effect]:
        """This machine was suspended for longer than `log.SLEPT`, in which the clock of `now` stood still."""
        self.log.woke()
        return []

    def stop(self, now: float) -> list[Effect]:
        """Ask to be let go, so that the others can decide without us; until then we go on.

        `Parted` is told when that is decided, or after a while: then we keep our vote.
        """
        if self.log.is_leaving:
            return []
        patience = Wake(GOING, Timer("parting", "patience", 0))
        return [patience, *self._digest(now, self.log.leave()), *self._part_if_alone(now)]

    def leave(self, now: float) -> list[Effect]:
        """Go at once. Send what this returns; the machine is silent from now on."""
        self._has_parted = True
        return self.membership.leave(now)

    def step_aside(self, now: float) -> list[Effect]:
        """No record can be written, so we can say nothing in the run: the others are not to wait for us."""
        return self.membership.leave(now)

    def come_back(self, now: float) -> list[Effect]:
        """Records can be written again."""
        return [] if self._has_parted else self._digest(now, self.membership.come_back(now, self._status))

    # -- inputs -------------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Any message of this run."""
        if self._has_parted:
            return []
        self.log.passes(now)
        if isinstance(message, MEMBERSHIP_MESSAGES):
            return self._digest(now, self.membership.receive(now, sender, message))
        if isinstance(message, KeeperMessage):
            return self._digest(now, self.log.receive(sender, message))
        return self._digest(now, self._receive(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Any timer of this run."""
        if self._has_parted:
            return []
        self.log.passes(now)
        if timer.core == "parting":
            return self._part(now)
        if timer.core == "membership":
            return self._digest(now, self.membership.fire(now, timer))
        if timer.core == "log":
            return self._digest(now, self.log.fire(now, timer))
        return self._digest(now, self._fire(now, timer))

    def left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """A bulk message no longer waits at this node: it was sent, or dropped together with its connection."""
        if isinstance(message, StateChunk):
            self._catching_up.donor.payload_done(to, message)
        else:
            self.rounds.left(now, to, message, sent)

    # -- read side ----------------------------------------------------------------------------------------------

    @property
    def status(self) -> RunStatus:
        """Our own status, as the others see it."""
        return self._status

    @property
    def keeps_vote(self) -> bool:
        """Whether we have stopped with a vote without which those who stay cannot decide anything."""
        is_needed = self.log.votes_here and not self.log.register.is_over
        return is_needed and not self.log.is_quorum(self.membership.alive())

    @property
    def awaits_quorum(self) -> bool:
        """Whether those who are here, as the log sees it, can decide nothing, and a round needs that."""
        log = self.log
        return log.may_stay and not log.register.is_over and not log.can_decide(log.here)

    @property
    def awaited_voters(self) -> list[PeerId]:
        """The voters without some of whom those who are here can decide nothing: not here, or without their vote."""
        here = self.log.here
        return [voter for voter in self.log.deciding if voter not in here] if self.awaits_quorum else []

    @property
    def is_applying(self) -> bool:
        """Whether the application has been told of a result, and has not applied it yet."""
        return self.rounds.is_applying

    @property
    @abstractmethod
    def phase(self) -> str:
        """A word for what we are doing."""

    @property
    @abstractmethod
    def base_round(self) -> int | None:
        """The round that the next one builds on; None while we have no state, and while one is taken."""

    @abstractmethod
    def waiting_for(self) -> Sequence[PeerId]:
        """The peers that the round waits for."""

    def progress(self) -> tuple[int, int]:
        """(chunks here, chunks in all) of the state that is being downloaded; (0, 0) if none is yet."""
        return self._catching_up.progress()

    def seconds_left(self, now: float) -> float | None:
        """How long that download still takes; None if it is not known."""
        return self._catching_up.seconds_left(now)

    @abstractmethod
    def history_after(self, round: int) -> Digest | None:
        """The history digest after a decided round; None if we do not know that. With replicas it is constant."""

    # -- what the log asks --------------------------------------------------------------------------------------

    def is_passed(self) -> bool:
        """See Judge."""
        register, held = self.log.register, self.held_round
        newest = max((part.round for part in register.parts), default=0)
        if held is not None and held + 1 >= newest:
            return False
        statuses = [self.membership.status(peer) for peer in self.log.here if peer in register.voters]
        stand = [status.round for status in statuses if status is not None and status.root != NO_DIGEST]
        return any(round + 1 >= newest for round in stand)

    def has_finished(self) -> bool:
        """See Judge: what is decided after it could undo nothing, so the last means are on our disk."""
        register, base = self.log.register, self.rounds.base
        if base is None or base.round < register.last_round or self.rounds.shelf.unkept is not None:
            return False
        here = [each.peer for each in register.members if self.membership.is_alive(each.peer)]
        statuses = [status for peer in here if (status := self.membership.status(peer)) is not None]
        return all(status.round >= register.last_round for status in statuses)

    # -- of each kind of run ------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, now: float) -> list[Effect]:
        """The rounds begin, if we can."""

    @abstractmethod
    def _receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """A message that is neither membership's nor the log's."""

    @abstractmethod
    def _fire(self, now: float, timer: Timer) -> list[Effect]:
        """Such a timer."""

    @abstractmethod
    def _note(self, now: float, event: Event) -> list[Effect]:
        """What follows from what the application is told as well."""

    @abstractmethod
    def _settle(self, now: float) -> list[Effect]:
        """After each input: hand out a state that is complete, and tell everybody where we stand."""

    # -- inside -------------------------------------------------------------------------------------------------

    def _digest(self, now: float, effects: Iterable[Effect]) -> list[Effect]:
        """Turn what one core tells into commands of another; then tell everybody where we stand."""
        done: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, Tell):
                done.append(effect)
                continue
            follow = self._follow_up(now, effect.event)
            done += [effect] if follow is None else self._digest(now, follow)
            if follow is None:
                event = effect.event
                noted = [*self._note_for_log(event), *self._note(now, event), *self._go_if_let(now, event)]
                done += self._digest(now, noted) if noted else []
        return done if self._has_parted else [*done, *self._settle(now)]

    def _follow_up(self, now: float, event: Event) -> list[Effect] | None:
        """What follows from what the cores tell each other; None for what is told to the application."""
        match event:
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
                return self.log.lacks(entry)
            case ResultProposed(entry, result, is_bound):
                return self.rounds.review(now, entry, result, is_bound)
        return None

    def _branches(self) -> tuple[Digest, ...]:
        """That of the log, and those before it, the newest first."""
        register = self.log.register
        return (register.branch, *(stem.branch for stem in reversed(register.earlier)))

    def _tell_rounds(self, now: float, event: Event) -> list[Effect]:
        match event:
            case PeerUp() | StatusChanged() | LogSkipped():
                return self.rounds.look(now)
            case PeerDown(peer=peer) | PeerLeft(peer=peer):
                return self.rounds.peer_down(now, peer)
            case told.Committed():
                self.log.has_bytes()
            case EntryDecided(entry, before, _):
                return self.rounds.committed(now, entry.number, body_of(entry.body), before)
            case Switched():
                self.rounds.switch()
        return []

    def _note_for_log(self, event: Event) -> list[Effect]:
        match event:
            case PeerUp(peer=peer) | StatusChanged(peer=peer):
                return self.log.peer_up(peer)
            case PeerDown(peer=peer) | PeerLeft(peer=peer):
                return self.log.peer_down(peer)
        return []

    def _go_if_let(self, now: float, event: Event) -> list[Effect]:
        match event:
            case EntryDecided() if self.log.is_leaving:
                return self._part_if_alone(now)
            case Gone() if self.log.is_leaving:
                return self._part(now)
        return []

    def _part(self, now: float) -> list[Effect]:
        return [*self.leave(now), Tell(Parted())] if not self._has_parted else []

    def _part_if_alone(self, now: float) -> list[Effect]:
        """Nobody takes the last vote away, and nothing is decided after the end, so there is nothing to wait for."""
        register = self.log.register
        return self._part(now) if register.voters == (self.me,) or register.is_over else []
