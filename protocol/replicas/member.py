"""One peer's part in one run of replicas: membership, the log, rounds and copying as one machine.

    membership: PeerUp, StatusChanged ──► log, exchanges.peer_up      most are far beyond us ──► copying.start
    membership: PeerDown, PeerLeft    ──► log, exchanges.peer_down    copying: ReplicaReceived ──► the application
    log: EntryDecided, LogSkipped     ──► exchanges.open or .suspend

What is left for the application: install a replica (`opened`), train, `submit`, take what a round has brought
(`applied`). The log says who is a member, who votes, and that the run is over; of exchanges it says nothing, and
members whose roots differ are in one run all the same. Who is a member exchanges, whether or not anything can be
decided; a newcomer begins when it is admitted.

The last round, if the run has one, is no exchange: what all have trained is averaged as in a run with a common state,
and the log decides the result (`submit_last`, `Committed`, `concluded`). Whoever comes later gets that result.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.protocol.averaging import events as told
from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.averaging.policy import Base, Ready
from shoal.protocol.averaging.reducer import Contribute, Reducer
from shoal.protocol.base.effects import Effect, Event, Tell, Timer, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Room
from shoal.protocol.log.core import EntryDecided
from shoal.protocol.log.keeper import LogSkipped, Switched
from shoal.protocol.log.register import state_of
from shoal.protocol.member.facts import PART
from shoal.protocol.member.past import Past
from shoal.protocol.member.presence import Presence
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerUp, StatusChanged
from shoal.protocol.messages.averaging import AVERAGING_MESSAGES
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.replicas import Chunk, Meet
from shoal.protocol.replicas.context import Counted, Means, pack, standing, stands
from shoal.protocol.replicas.copying import COPY_MESSAGES, Copying
from shoal.protocol.replicas.facts import ReplicaFacts
from shoal.protocol.replicas.pair import key_of, usual_length
from shoal.protocol.replicas.rounds import REPLICA_MESSAGES, ReplicaRounds

LINGER = 3.0  # seconds that who stops in the middle of an exchange waits for its end
STANDSTILL = 600.0  # seconds in which somebody ends no round, after which the last round is begun without it
LOOK = 0.05  # seconds between two looks at that


@dataclass(frozen=True, slots=True)
class Seen:
    """A member, as we have seen it since it is here and has copied no replica."""

    first: int  # round after which it stood
    last: int
    moved_at: float  # when it got there


class ReplicaMember(Presence):
    """A `Machine` for one run of replicas on one peer."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        facts: ReplicaFacts,
        past: Past,
        base: Base | None,
        signer: Signer,
        reducer: Callable[[int], Reducer],
        room: Room,
        rng: random.Random,
        *,
        trains: bool = True,
    ) -> None:
        """`base` is the replica that is here, and in `room`; None: none is. `trains`: whether it is to change.

        `reducer` opens that of the last round.
        """
        spread = Estimate(initial=10.0, floor=2.0, ceiling=600.0)
        super().__init__(me, addresses, base, facts.run, past, signer, reducer, rng, trains=trains, spread=spread)
        self._facts = facts
        self._trains = trains
        self._base = base.round if base is not None else None  # after which round our replica stands
        self._root = base.root if base is not None else facts.run.origin.root
        pace = Estimate(initial=4.0, floor=2.0, ceiling=10.0)
        self._outbox = Outbox(key_of)
        self._counted = Counted(self.membership, lambda: self.log.register)
        self.exchanges = ReplicaRounds(
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
        self._catching_up = self.copying = Copying(me, facts, self._counted, room, signer)
        self._is_installing = self._is_fresh = False
        self._ready: int | None = None  # the round that what was submitted last builds on
        self._seen: dict[PeerId, Seen] = {}  # the members that have a replica
        self._last = facts.run.decided_from  # what the last round builds on; None: the run has none
        self._held_back: tuple[Ready, Contribute | None] | None = None  # of the last round, as others are behind
        self._must_begin_anew = False  # with the last round, as another branch decides it
        self._linger_until: float | None = None  # since we are to stop

    # -- commands -------------------------------------------------------------------------------------------

    def submit(self, now: float) -> list[Effect]:
        """The inner steps of round base + 1 are done, and the application has what we exchange.

        It makes chunks of that until the round's outcome is `applied`, or another replica received. While one is copied
        what is submitted waits: it counts if we go on with our own replica after all.
        """
        if self._is_suspended or self.exchanges.phase == "training":
            assert self._base is not None
            self._ready = self._base
        return self._digest(now, self.exchanges.submit(now))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """What the round has brought is taken; our replica has this root now."""
        if self.exchanges.outcome is None:  # we have left meanwhile
            return []
        self._base, self._root, self._ready = self.exchanges.outcome, root, None
        self._see(now, self.me)
        if self._may_exchange:
            return self._digest(now, [*self.exchanges.applied(now), *self._catch_up(now)])
        return self._digest(now, self.exchanges.suspend())

    def submit_last(self, now: float, ready: Ready, contribution: Contribute | None) -> list[Effect]:
        """The inner steps of the last round are done: `contribution(chunk)` encodes a chunk of the weights.

        They are offered once those who are behind have come, if these get on.
        """
        self._held_back = ready, contribution
        return self._digest(now, self._offer_last(now))

    def concluded(self, now: float, root: Digest) -> list[Effect]:
        """What the log has decided about the last round is applied; what we hold has this root now."""
        assert self._last is not None
        self._base, self._root = self._last.round + 1, root
        return self._digest(now, self.rounds.applied(now, root))

    def opened(self, now: float, round: int, root: Digest) -> list[Effect]:
        """The replica that we were told of is installed."""
        self._base, self._root, self._is_installing, self._is_fresh = round, root, False, True
        return self._digest(now, self._open(now))

    def leave(self, now: float) -> list[Effect]:
        """See Presence."""
        return [*self._conclude(), *super().leave(now)]

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """See Presence."""
        if timer.core == "stop":
            return self.stop(now) if not self._has_parted else []
        return super().fire(now, timer)

    def stop(self, now: float) -> list[Effect]:
        """See Presence; an exchange that is under way comes first, if it ends soon."""
        if self._linger_until is None:
            self._linger_until = now + LINGER
        if self.exchanges.phase == "exchanging" and now < self._linger_until:
            return [Wake(LOOK, Timer("stop", "look", 0))]
        return super().stop(now)

    def left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """See Presence."""
        if not isinstance(message, Chunk):
            super().left(now, to, message, sent)
        elif sent:
            self._outbox.sent(now, to, message)
        else:
            self._outbox.dropped(to, message)

    # -- read side ------------------------------------------------------------------------------------------

    @property
    def base_round(self) -> int | None:
        """See Presence."""
        if self._is_through:
            return self._base if self.rounds.base is not None else None
        if self._trains and self._stands_before_last:
            return self.rounds.base.round if self.rounds.base is not None and self._may_go_on else None
        return self.exchanges.base if self._trains and not self._is_suspended else self._base

    @property
    def awaits_quorum(self) -> bool:
        """See Presence; no exchange waits for a quorum."""
        return False

    @property
    def phase(self) -> str:
        """A word for what we are doing: syncing, training, matching, exchanging, applying, or keeping.

        In the last round also reducing and deciding.
        """
        if self._base is not None and (not self._trains or self.log.register.is_over or self._is_through):
            return "keeping"
        if self._stands_before_last and self._may_go_on:
            return "matching" if self._held_back is not None else self.rounds.phase
        return self.exchanges.phase

    def waiting_for(self) -> Sequence[PeerId]:
        """Whom we wait for now, or exchange with."""
        if self._held_back is not None:
            return self._behind
        return self.rounds.waiting_for() if self._stands_before_last else self.exchanges.waiting_for()

    def history_after(self, round: int) -> Digest:
        """See Presence."""
        return self._facts.history

    # -- what the log asks ----------------------------------------------------------------------------------

    @property
    def held_round(self) -> int | None:
        """See Judge: the last round builds on no state, so whoever is a member can vote on it."""
        return max(self._last.round, self.rounds.held_round or 0) if self._last is not None else 0

    def has_gone(self, peer: PeerId) -> bool:
        """See Judge: it has gone them before our eyes, as it says."""
        seen = self._seen.get(peer)
        return seen is not None and seen.last - seen.first >= self._facts.run.rounds_to_vote

    def _round_of(self, peer: PeerId) -> int | None:
        if peer == self.me:
            return self._base if self._trains else None
        status = self.membership.status(peer)
        return status.round if status is not None and stands(status, self._facts) else None

    def _see(self, now: float, peer: PeerId) -> None:
        """Rounds that somebody leaps, as it has copied another's replica, it has not gone."""
        round, before = self._round_of(peer), self._seen.get(peer)
        if round is None or (before is not None and round == before.last):
            return
        if before is not None and 0 < round - before.last <= self._facts.window:
            self._seen[peer] = Seen(before.first, round, now)
        else:
            self._seen[peer] = Seen(round, round, before.moved_at if before is not None else now)

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def _is_suspended(self) -> bool:
        """Whether our replica is here, and another is copied as ours is old."""
        return self.copying.active and self._base is not None

    @property
    def _may_go_on(self) -> bool:
        """Whether there are rounds for us: as a member of the run, until it is over."""
        return self._trains and self._counted.counts(self.me) and not self.log.register.is_over

    @property
    def _may_exchange(self) -> bool:
        return self._may_go_on and not (self._stands_before_last or self._is_through or self._is_last_decided)

    @property
    def _is_last_decided(self) -> bool:
        return self._last is not None and state_of(self.log.register, PART).round > self._last.round

    @property
    def _stands_before_last(self) -> bool:
        """Whether our replica is to be averaged with all others, in the round that is open."""
        return self._last is not None and self._base == self._last.round

    @property
    def _is_through(self) -> bool:
        """Whether what the last round has brought is here."""
        return self._last is not None and self._base is not None and self._base > self._last.round

    @property
    def _behind(self) -> list[PeerId]:
        """Who has exchanges before it until the last round, as we last saw it."""
        return [peer for peer, round in standing(self._counted, self._facts).items() if round < self._facts.limit]

    def _begin(self, now: float) -> list[Effect]:
        return [*self._open_last(now), *self._open(now), *self._catch_up(now)]

    def _open_last(self, now: float) -> list[Effect]:
        """The last round builds on nothing, so it is open from the start: who is late gets its result."""
        if self._last is None:
            return []
        part = state_of(self.log.register, PART)
        is_here = self._is_through and part.round > self._last.round
        base = Base(part.round, part.result, part.history, self._root) if is_here else self._last
        return self.rounds.open(now, base)

    def _offer_last(self, now: float, is_called: bool = False) -> list[Effect]:
        """Once nobody is behind who still gets on, or the others have begun."""
        if self._held_back is None:
            return []
        seen = [self._seen[peer] for peer in self._behind if peer in self._seen]
        if not is_called and any(now - each.moved_at < STANDSTILL for each in seen):
            return []
        (ready, contribution), self._held_back = self._held_back, None
        return self.rounds.submit(now, ready, contribution)

    def _conclude(self) -> list[Effect]:
        """There are no more exchanges for us: the last round is decided, or we go."""
        self.copying.stop()
        self._held_back = self._ready = None
        return self.exchanges.suspend()

    def _receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        if not isinstance(message, REPLICA_MESSAGES | COPY_MESSAGES | AVERAGING_MESSAGES):
            raise RemoteError(f"sent {type(message).__name__}, which is not for a run of replicas", sender)
        if (part := getattr(message, "part", PART)) != PART:
            raise RemoteError(f"names part {part} of a run that has only part {PART}", sender)
        if isinstance(message, AVERAGING_MESSAGES):
            return self.rounds.receive(now, sender, message) if self._last is not None else []
        if isinstance(message, COPY_MESSAGES):
            return self.copying.receive(now, sender, message)
        asked = self._compare_logs(sender, message.log) if isinstance(message, Meet) else []
        return [*asked, *self.exchanges.receive(now, sender, message)]

    def _compare_logs(self, sender: PeerId, number: int) -> list[Effect]:
        """Whoever is behind asks: who misses an entry would not know whom to meet."""
        is_same = number == self.log.register.number or not self.membership.is_alive(sender)
        return [] if is_same else self.log.heard_end(sender, number)

    def _fire(self, now: float, timer: Timer) -> list[Effect]:
        if timer.core == "rounds":
            return [*self.rounds.fire(now, timer), *self._offer_last(now), *self._begin_last_anew(now)]
        return [*(self.copying if timer.core == "copying" else self.exchanges).fire(now, timer), *self._catch_up(now)]

    def _note(self, now: float, event: Event) -> list[Effect]:
        return [*self._tell_rounds(now, event), *self._note_for_exchanges(now, event)]

    def _note_for_exchanges(self, now: float, event: Event) -> list[Effect]:
        match event:
            case PeerUp(peer=peer) | StatusChanged(peer=peer):
                self._see(now, peer)
                return [*self.exchanges.peer_up(now), *self._offer_last(now)]
            case PeerDown(peer=peer) | PeerLeft(peer=peer):
                self._seen.pop(peer, None)
                return [*self.exchanges.peer_down(now, peer), *self._offer_last(now)]
            case EntryDecided() | LogSkipped():
                return self._read_log(now)
            case Switched():
                self._must_begin_anew = self._last is not None
                return [*self._begin_last_anew(now), *self._read_log(now)]
            case told.Committed() | told.Lapsed():
                return self._conclude()
            case told.HandIn():
                return self._offer_last(now, is_called=True)
        return []

    def _begin_last_anew(self, now: float) -> list[Effect]:
        """What another branch had decided about the last round counts no more, once it is not being applied."""
        if not self._must_begin_anew or self.rounds.phase == "applying":
            return []
        self._must_begin_anew = False
        return [*self.rounds.forget(), *self._open_last(now)]

    def _read_log(self, now: float) -> list[Effect]:
        """Others count from now on, or we do, or the run is over."""
        if self.log.register.is_over:
            return self.exchanges.suspend() if self.exchanges.outcome is None else []  # what it has brought comes first
        is_idle = self.exchanges.phase == "syncing" and not self.copying.active and not self._is_installing
        return [*(self._open(now) if is_idle else self.exchanges.peer_up(now)), *self._catch_up(now)]

    def _open(self, now: float) -> list[Effect]:
        if self._base is None or not self._may_exchange:
            return []
        self._see(now, self.me)
        may_leap, self._is_fresh = self._is_fresh, False
        return self.exchanges.open(now, self._base, may_leap=may_leap)

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
        is_busy = self._is_installing or self.exchanges.phase == "applying"
        if is_busy or self._has_parted or self._is_last_decided:
            return []
        if base is None:
            return self.copying.start(now, self._facts.round)
        if self.copying.active and not self._lags(base):
            self.copying.stop()
            return self._reopen(now)
        if self.exchanges.lead() <= self._facts.window:
            return []
        return [*self.exchanges.suspend(), *self.copying.start(now, base + 1)]

    def _reopen(self, now: float) -> list[Effect]:
        """Go on with our own replica, and with what we have submitted for its round already."""
        opened = self._open(now)
        if self._ready is None or self._ready != self.exchanges.base:
            return opened
        return [*opened, *self.exchanges.submit(now)]

    def _lags(self, base: int) -> bool:
        most = pack(standing(self._counted, self._facts).values())
        return most is not None and most - base > self._facts.window

    def _announce(self, now: float) -> list[Effect]:
        """Where we stand is news for everybody, and what was reported since the last time is told with it."""
        hangs = self.phase != "training" if self._stands_before_last else self.exchanges.hangs_on_others
        watched = self.membership.probing.let_rest(now, not hangs and self._base is not None)
        before, self._status = self._status, self._placed()
        if (before.round, before.root, before.history) == (self._status.round, self._status.root, self._status.history):
            return watched
        return [*watched, *self.membership.set_status(now, self._status)]

    def _placed(self) -> RunStatus:
        status = dataclasses.replace(self._status, phase=self.phase)
        if self._base is None:
            return status
        return dataclasses.replace(status, round=self._base, history=self._facts.history, root=self._root)
