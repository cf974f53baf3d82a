"""One peer's part in one run of replicas: membership, the log, rounds and copying as one machine.

    membership: PeerUp, StatusChanged ──► log, rounds.peer_up      most are far beyond us ──► copying.start
    membership: PeerDown, PeerLeft    ──► log, rounds.peer_down    copying: ReplicaReceived ──► the application
    log: EntryDecided, LogSkipped     ──► rounds.open or .suspend

What is left for the application: install a replica (`opened`), train, `submit`, take what a round has brought
(`applied`). The log says who is a member, who votes, and that the run is over; of rounds it says nothing, and members
whose roots differ are in one run all the same. Who is a member exchanges, whether or not anything can be decided; a
newcomer begins when it is admitted.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.effects import Effect, Event, Tell, Timer, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Store
from shoal.protocol.log.keeper import EntryDecided, LogSkipped, Switched
from shoal.protocol.log.register import Rules
from shoal.protocol.member.facts import PART
from shoal.protocol.member.kept import Kept
from shoal.protocol.member.presence import Presence
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerUp, StatusChanged
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.replicas import Meet
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.replicas.context import Counted, Means, pack, standing, stands
from shoal.protocol.replicas.copying import COPY_MESSAGES, Copying
from shoal.protocol.replicas.facts import ReplicaFacts
from shoal.protocol.replicas.pair import key_of, usual_length
from shoal.protocol.replicas.rounds import REPLICA_MESSAGES, ReplicaRounds

LINGER = 3.0  # seconds that who stops in the middle of an exchange waits for its end
LOOK = 0.05  # seconds between two looks at that


@dataclass(frozen=True, slots=True)
class Seen:
    """A member, as we have seen it since it is here and has copied no replica."""

    first: int  # round after which it stood
    last: int


class ReplicaMember(Presence):
    """A `Machine` for one run of replicas on one peer."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        facts: ReplicaFacts,
        kept: Kept,
        base: Base | None,
        signer: Signer,
        store: Store,
        rng: random.Random,
        *,
        trains: bool = True,
    ) -> None:
        """`base` is the replica that is here, and in `store`; None: none is. `trains`: whether it is to change."""
        held = (base.round, base.history, base.root) if base is not None else None
        rules = Rules(facts.run.trust, signer)
        super().__init__(me, addresses, held, facts.run, kept, rules, rng, trains=trains)
        self._facts = facts
        self._trains = trains
        self._base = base.round if base is not None else None  # after which round our replica stands
        self._root = base.root if base is not None else facts.run.origin.root
        spread = Estimate(initial=10.0, floor=2.0, ceiling=600.0)
        pace = Estimate(initial=4.0, floor=2.0, ceiling=10.0)
        self._outbox = Outbox(key_of)
        self._counted = Counted(self.membership, lambda: self.log.register)
        self._rounds = ReplicaRounds(
            Means(
                me,
                facts,
                self._counted,
                self._outbox,
                rng,
                spread,
                pace,
                usual_length(),
                lambda: self.log.register.number,
            )
        )
        self.copying = Copying(me, facts, self._counted, store, signer)
        self._is_installing = self._is_fresh = False
        self._ready: int | None = None  # the round that what was submitted last builds on
        self._seen: dict[PeerId, Seen] = {}  # the members that have a replica
        self._linger_until: float | None = None  # since we are to stop

    # -- commands -------------------------------------------------------------------------------------------

    def submit(self, now: float) -> list[Effect]:
        """The inner steps of round base + 1 are done, and the application has what we exchange.

        It makes chunks of that until the round's outcome is `applied`, or another replica received. While one is copied
        what is submitted waits: it counts if we go on with our own replica after all.
        """
        if self._is_suspended or self._rounds.phase == "training":
            assert self._base is not None
            self._ready = self._base
        return self._digest(now, self._rounds.submit(now))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """What the round has brought is taken; our replica has this root now."""
        if self._rounds.outcome is None:  # we have left meanwhile
            return []
        self._base, self._root, self._ready = self._rounds.outcome, root, None
        self._see(self.me)
        if self._may_go_on:
            return self._digest(now, [*self._rounds.applied(now), *self._catch_up(now)])
        return self._digest(now, self._rounds.suspend())

    def opened(self, now: float, round: int, root: Digest) -> list[Effect]:
        """The replica that we were told of is installed."""
        self._base, self._root, self._is_installing, self._is_fresh = round, root, False, True
        return self._digest(now, self._open(now))

    def leave(self, now: float) -> list[Effect]:
        """See Presence."""
        self.copying.stop()
        self._ready = None
        return [*self._rounds.suspend(), *super().leave(now)]

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """See Presence."""
        if timer.core == "stop":
            return self.stop(now) if not self._has_parted else []
        return super().fire(now, timer)

    def stop(self, now: float) -> list[Effect]:
        """See Presence; an exchange that is under way comes first, if it ends soon."""
        if self._linger_until is None:
            self._linger_until = now + LINGER
        if self._rounds.phase == "exchanging" and now < self._linger_until:
            return [Wake(LOOK, Timer("stop", "look", 0))]
        return super().stop(now)

    def left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """See Presence."""
        if isinstance(message, StateChunk):
            self.copying.donor.payload_done(to, message)
        elif sent:
            self._outbox.sent(now, to, message)
        else:
            self._outbox.dropped(to, message)

    # -- read side ------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> ReplicaRounds:
        """Our rounds, to be looked at."""
        return self._rounds

    @property
    def base_round(self) -> int | None:
        """See Presence."""
        return self._rounds.base if self._trains and not self._is_suspended else self._base

    @property
    def awaited_voters(self) -> list[PeerId]:
        """See Presence; no exchange waits for a quorum."""
        return []

    @property
    def phase(self) -> str:
        """A word for what we are doing: syncing, training, matching, exchanging, applying, or keeping."""
        if self._base is not None and (not self._trains or self.log.register.is_over):
            return "keeping"
        return self._rounds.phase

    def waiting_for(self) -> Sequence[PeerId]:
        """Whom we wait for now, or exchange with."""
        return self._rounds.waiting_for()

    def progress(self) -> tuple[int, int]:
        """See Presence."""
        return self.copying.progress()

    def seconds_left(self, now: float) -> float | None:
        """See Presence."""
        return None

    def history_after(self, round: int) -> Digest:
        """See Presence."""
        return self._facts.history

    # -- what the log asks ----------------------------------------------------------------------------------

    @property
    def held_round(self) -> int | None:
        """See Judge: no vote is about a state, so whoever is a member can cast it."""
        return 0

    def has_gone(self, peer: PeerId) -> bool:
        """See Judge: it has gone them before our eyes, as it says."""
        seen = self._seen.get(peer)
        return seen is not None and seen.last - seen.first >= self._facts.run.rounds_to_vote

    def has_finished(self) -> bool:
        """See Judge."""
        ours, others = self._round_of(self.me), standing(self._counted, self._facts).values()
        rounds = [*others, *([ours] if ours is not None else [])]
        return bool(rounds) and min(rounds) >= self._facts.limit

    def _round_of(self, peer: PeerId) -> int | None:
        if peer == self.me:
            return self._base if self._trains else None
        status = self.membership.status(peer)
        return status.round if status is not None and stands(status, self._facts) else None

    def _see(self, peer: PeerId) -> None:
        """Rounds that somebody leaps, as it has copied another's replica, it has not gone."""
        if (round := self._round_of(peer)) is not None:
            before = self._seen.get(peer)
            is_same = before is not None and round - before.last <= self._facts.window
            self._seen[peer] = Seen(before.first if before is not None and is_same else round, round)

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def _is_suspended(self) -> bool:
        """Whether our replica is here, and another is copied as ours is old."""
        return self.copying.active and self._base is not None

    @property
    def _may_go_on(self) -> bool:
        """Whether there are rounds for us: as a member of the run, until it is over."""
        return self._trains and self._counted.counts(self.me) and not self.log.register.is_over

    def _begin(self, now: float) -> list[Effect]:
        return [*self._open(now), *self._catch_up(now)]

    def _receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        if not isinstance(message, REPLICA_MESSAGES | COPY_MESSAGES):
            raise RemoteError(f"sent {type(message).__name__}, which is not for a run of replicas", sender)
        if (part := getattr(message, "part", PART)) != PART:
            raise RemoteError(f"names part {part} of a run that has only part {PART}", sender)
        if isinstance(message, COPY_MESSAGES):
            return self.copying.receive(now, sender, message)
        asked = self._compare_logs(sender, message.log) if isinstance(message, Meet) else []
        return [*asked, *self._rounds.receive(now, sender, message)]

    def _compare_logs(self, sender: PeerId, number: int) -> list[Effect]:
        """Whoever is behind asks: who misses an entry would not know whom to meet."""
        is_same = number == self.log.register.number or not self.membership.is_alive(sender)
        return [] if is_same else self.log.heard_end(sender, number)

    def _fire(self, now: float, timer: Timer) -> list[Effect]:
        return [*(self.copying if timer.core == "copying" else self._rounds).fire(now, timer), *self._catch_up(now)]

    def _follow_up(self, now: float, event: Event) -> list[Effect] | None:
        return None

    def _note(self, now: float, event: Event) -> list[Effect]:
        match event:
            case PeerUp(peer=peer) | StatusChanged(peer=peer):
                self._see(peer)
                return self._rounds.peer_up(now)
            case PeerDown(peer=peer) | PeerLeft(peer=peer):
                self._seen.pop(peer, None)
                return self._rounds.peer_down(now, peer)
            case EntryDecided() | LogSkipped() | Switched():
                return self._read_log(now)
        return []

    def _read_log(self, now: float) -> list[Effect]:
        """Others count from now on, or we do, or the run is over."""
        if self.log.register.is_over:
            return self._rounds.suspend() if self._rounds.outcome is None else []  # what it has brought comes first
        is_idle = self._rounds.phase == "syncing" and not self.copying.active and not self._is_installing
        return [*(self._open(now) if is_idle else self._rounds.peer_up(now)), *self._catch_up(now)]

    def _open(self, now: float) -> list[Effect]:
        if self._base is None or not self._may_go_on:
            return []
        self._see(self.me)
        may_leap, self._is_fresh = self._is_fresh, False
        return self._rounds.open(now, self._base, may_leap=may_leap)

    def _settle(self, now: float) -> list[Effect]:
        return [*self._install_if_complete(), *self._announce(now)]

    def _install_if_complete(self) -> list[Effect]:
        """Hand a copied replica to the application."""
        received = self.copying.take()
        if received is None:
            return []
        self._is_installing, self._ready = True, None
        return [Tell(received)]

    def _catch_up(self, now: float) -> list[Effect]:
        """Copy a replica if we have none, or an old one; go on without if nobody is far beyond us any more."""
        base = self._base
        if self._is_installing or self._has_parted or self._rounds.phase == "applying":
            return []
        if base is None:
            return self.copying.start(now, self._facts.round)
        if self.copying.active and not self._lags(base):
            self.copying.stop()
            return self._reopen(now)
        if self._rounds.lead() <= self._facts.window:
            return []
        return [*self._rounds.suspend(), *self.copying.start(now, base + 1)]

    def _reopen(self, now: float) -> list[Effect]:
        """Go on with our own replica, and with what we have submitted for its round already."""
        opened = self._open(now)
        if self._ready is None or self._ready != self._rounds.base:
            return opened
        return [*opened, *self._rounds.submit(now)]

    def _lags(self, base: int) -> bool:
        most = pack(standing(self._counted, self._facts).values())
        return most is not None and most - base > self._facts.window

    def _announce(self, now: float) -> list[Effect]:
        """Where we stand is news for everybody; all else waits for the next `report`."""
        watched = self.membership.probing.let_rest(now, not self._rounds.hangs_on_others and self._base is not None)
        before, self._status = self._status, self._placed()
        if (before.round, before.root, before.history) == (self._status.round, self._status.root, self._status.history):
            return watched
        return [*watched, *self.membership.set_status(now, self._status)]

    def _placed(self) -> RunStatus:
        status = dataclasses.replace(self._status, phase=self.phase)
        if self._base is None:
            return status
        return dataclasses.replace(status, round=self._base, history=self._facts.history, root=self._root)
