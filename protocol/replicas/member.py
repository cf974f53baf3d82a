"""One peer's part in one run of replicas: membership, rounds and copying as one machine, as member.py is for others.

    membership: PeerUp, StatusChanged ──► rounds.peer_up      most are far beyond us ──► copying.start
    membership: PeerDown, PeerLeft    ──► rounds.peer_down    copying: ReplicaReceived ──► the application

What is left for the application: install a replica (`opened`), train, `submit`, take what a round has brought
(`applied`). Nothing is agreed: members whose roots differ are in one run all the same.
"""

from __future__ import annotations

import dataclasses
import random

from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.averaging.reducer import Contribute
from shoal.protocol.base.effects import Effect, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Store
from shoal.protocol.member.parting import Parted
from shoal.protocol.member.presence import Presence
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerUp, StatusChanged
from shoal.protocol.messages.membership import MEMBERSHIP_MESSAGES, RunStatus
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.replicas.context import Means, pack, standing
from shoal.protocol.replicas.copying import COPY_MESSAGES, Copying
from shoal.protocol.replicas.facts import ReplicaFacts
from shoal.protocol.replicas.pair import key_of, usual_length
from shoal.protocol.replicas.parting import Parting
from shoal.protocol.replicas.round import PART
from shoal.protocol.replicas.rounds import REPLICA_MESSAGES, ReplicaRounds

LINGER = 3.0  # seconds that who stops in the middle of an exchange waits for its end


class ReplicaMember(Presence):
    """A `Machine` for one run of replicas on one peer."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        facts: ReplicaFacts,
        signer: Signer,
        store: Store,
        rng: random.Random,
        *,
        trains: bool = True,
    ) -> None:
        """`store` holds the replica of round `facts.round`, if `facts.holds_origin`; `trains`: whether it is to change.

        Who goes on from a replica of its own gives facts with its round and root.
        """
        held = (facts.round, facts.history, facts.root) if facts.holds_origin else None
        super().__init__(me, addresses, held, signer, rng, trains=trains)
        self._facts = facts
        self._trains = trains
        self._base = facts.round if facts.holds_origin else None  # after which round our replica stands
        self._root = facts.root
        spread = Estimate(initial=10.0, floor=2.0, ceiling=600.0)
        pace = Estimate(initial=4.0, floor=2.0, ceiling=10.0)
        self._outbox = Outbox(key_of)
        means = Means(me, facts, self.membership, self._outbox, rng, spread, pace, usual_length())
        self._rounds = ReplicaRounds(means)
        self.copying = Copying(me, facts, self.membership, store, signer)
        self._is_installing = self._has_left = False
        self._ready: tuple[int, Contribute] | None = None  # the last contribution, and the round that it builds on
        self._parting: Parting | None = None

    # -- commands -------------------------------------------------------------------------------------------

    def start(self, now: float, seeds: list[PeerId]) -> list[Effect]:
        """Join the run through `seeds`, with the replica that it begins with, if that is here."""
        joined = self.membership.start(now, seeds)
        return self._digest(now, [*joined, *self._open(now, may_leap=False), *self._catch_up(now)])

    def submit(self, now: float, contribution: Contribute) -> list[Effect]:
        """The inner steps of round base + 1 are done: `contribution(chunk)` encodes a chunk of what we exchange.

        It is called from any thread until the round's outcome is `applied`, or another replica received. While one
        is copied it waits: it counts if we go on with our own after all.
        """
        if self._is_suspended or self._rounds.phase == "training":
            assert self._base is not None
            self._ready = self._base, contribution
        return self._digest(now, self._rounds.submit(now, contribution))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """What the round has brought is taken; our replica has this root now."""
        if self._rounds.outcome is None:  # we have left meanwhile
            return []
        self._base, self._root, self._ready = self._rounds.outcome, root, None
        return self._digest(now, [*self._rounds.applied(now), *self._catch_up(now)])

    def opened(self, now: float, round: int, root: Digest) -> list[Effect]:
        """The replica that we were told of is installed."""
        self._base, self._root, self._is_installing = round, root, False
        return self._digest(now, self._open(now, may_leap=True))

    def leave(self, now: float) -> list[Effect]:
        """Sign off at once. Send what this returns; the machine is silent from now on."""
        self._has_left = True
        self._rounds.suspend()
        self.copying.stop()
        self._ready = None
        return self.membership.leave(now)

    def stop(self, now: float) -> list[Effect]:
        """Sign off, after an exchange that is under way if it ends soon; `Parted` is told when we have."""
        if self._parting is None:
            self._parting = Parting(now)
        return self._part(now, self._parting)

    # -- inputs ---------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Any message of this run."""
        if isinstance(message, MEMBERSHIP_MESSAGES):
            return self._digest(now, self.membership.receive(now, sender, message))
        if not isinstance(message, REPLICA_MESSAGES | COPY_MESSAGES):
            raise RemoteError(f"sent {type(message).__name__}, which is not for a run of replicas", sender)
        if (part := getattr(message, "part", PART)) != PART:
            raise RemoteError(f"names part {part} of a run that has only part {PART}", sender)
        if isinstance(message, COPY_MESSAGES):
            return self._digest(now, self.copying.receive(now, sender, message))
        return self._digest(now, self._rounds.receive(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Any timer of this run."""
        if timer.core == "membership":
            return self._digest(now, self.membership.fire(now, timer))
        if timer.core == "copying":
            return self._digest(now, [*self.copying.fire(now, timer), *self._catch_up(now)])
        if timer.core == "parting":
            return self._part(now, self._parting) if self._parting is not None else []
        return self._digest(now, [*self._rounds.fire(now, timer), *self._catch_up(now)])

    def left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """A bulk message no longer waits at this node: it was sent, or dropped together with its connection."""
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
    def base(self) -> int | None:
        """After which round our replica stands; None before it is here, and while an outcome or a copy is taken."""
        return self._rounds.base if self._trains and not self._is_suspended else self._base

    @property
    def phase(self) -> str:
        """A word for what we are doing: syncing, training, matching, exchanging, applying, or keeping."""
        if not self._trains and self._base is not None:
            return "keeping"
        return self._rounds.phase

    def waiting_for(self) -> list[PeerId]:
        """Whom we wait for now, or exchange with."""
        return self._rounds.waiting_for()

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def _is_suspended(self) -> bool:
        """Whether our replica is here, and another is copied as ours is old."""
        return self.copying.active and self._base is not None

    def _open(self, now: float, *, may_leap: bool) -> list[Effect]:
        if self._base is None or not self._trains:
            return []
        return self._rounds.open(now, self._base, may_leap=may_leap)

    def _part(self, now: float, parting: Parting) -> list[Effect]:
        patience = LINGER if self._rounds.phase == "exchanging" else 0.0
        if (wait := parting.wait(now, patience)) is not None:
            return [wait]
        return [*self.leave(now), Tell(Parted())]

    def _digest(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Turn what one core tells into commands of another; then tell everybody where we stand."""
        done: list[Effect] = []
        if self._has_left:
            return done
        for effect in effects:
            done.append(effect)
            match effect:
                case Tell(PeerUp() | StatusChanged()):
                    done += self._digest(now, self._rounds.peer_up(now))
                case Tell(PeerDown(peer=peer) | PeerLeft(peer=peer)):
                    done += self._digest(now, self._rounds.peer_down(now, peer))
        return [*done, *self._install_if_complete(), *self._announce(now)]

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
        if self._is_installing or self._has_left or self._rounds.phase == "applying":
            return []
        if base is None:
            return self.copying.start(now, self._facts.round)
        if self.copying.active and not self._lags(base):
            self.copying.stop()
            return self._reopen(now)
        if self._rounds.lead() <= self._facts.window:
            return []
        self._rounds.suspend()
        return self.copying.start(now, base + 1)

    def _reopen(self, now: float) -> list[Effect]:
        """Go on with our own replica, and with what we have submitted for its round already."""
        opened, ready = self._open(now, may_leap=False), self._ready
        if ready is None or ready[0] != self._rounds.base:
            return opened
        return [*opened, *self._rounds.submit(now, ready[1])]

    def _lags(self, base: int) -> bool:
        most = pack(standing(self.membership, self._facts).values())
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
