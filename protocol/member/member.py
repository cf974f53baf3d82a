"""One peer's part in one run: membership, rounds and state transfer as one machine.

The simulator and the daemon drive this very class. It routes messages and timers to the core they are for, and
turns what one core tells into a command of another:

    membership: PeerUp, StatusChanged ──► rounds.peer_up        rounds: Behind ──► transfer.start
    membership: PeerDown, PeerLeft    ──► rounds.peer_down      transfer: StateReceived ──► the application

What is left for the application: install a state (`opened`), apply a commit (`applied`), train, `submit`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.protocol.base.effects import Effect, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Store, state_root
from shoal.protocol.catchup.transfer import Transfer
from shoal.protocol.member.parting import Parted, Parting
from shoal.protocol.member.presence import Presence
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerUp, StatusChanged
from shoal.protocol.messages import transfer as sync
from shoal.protocol.messages.membership import MEMBERSHIP_MESSAGES, RunStatus
from shoal.protocol.messages.rounds import ROUND_MESSAGES, Commit, VoteRecord
from shoal.protocol.rounds.agreement.history import History
from shoal.protocol.rounds.agreement.roster import Base, Offer, Policy
from shoal.protocol.rounds.allreduce.reducer import Contribute, Reducer
from shoal.protocol.rounds.matchmaking.milestones import Behind, Committed
from shoal.protocol.rounds.rest import Rest
from shoal.protocol.rounds.rounds import Rounds

PART = 0  # a run is one chain of rounds; which numbers a round of fragments is about, the method says

TRANSFER_MESSAGES = sync.GetChain | sync.Chain | sync.GetState | sync.StateIs | sync.GetStateChunk | sync.StateChunk


def part_of(message: TRANSFER_MESSAGES | ROUND_MESSAGES) -> int:
    """Which chain of rounds a message is about."""
    return message.certificate.proposal.part if isinstance(message, Commit) else message.part


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a member knows of a run before it has met anybody."""

    origin: Base  # what its first round builds on; the manifest says so, or the seed and the creator
    policy: Policy
    holds_origin: bool = True  # whether that state is here; else it is downloaded


class Member(Presence):
    """A `Machine` for one run on one peer."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        facts: RunFacts,
        signer: Signer,
        reducer: Callable[[int], Reducer],
        store: Store,
        rng: random.Random,
        disk: Mapping[str, Message],
        *,
        rest: Rest | None = None,
        trains: bool = True,
    ) -> None:
        """`disk` and `rest` are what an earlier life of ours has left; with `rest`, `store` holds its state."""
        self._stateless = not facts.holds_origin and rest is None
        super().__init__(me, addresses, None if self._stateless else facts.origin, signer, rng, trains=trains)
        self._origin = facts.origin
        self._policy = facts.policy
        self._store = store
        record = disk.get(f"vote-{PART}")
        restored = record if isinstance(record, VoteRecord) else None
        self.history = History(self._origin, signer)
        for certificate in rest.chain if rest is not None else ():
            self.history.append(certificate)
        self._first = self.history.base(rest.round, rest.root) if rest is not None else self._origin
        self._parting: Parting | None = None
        self.rounds = Rounds(me, PART, signer, self.membership, facts.policy, reducer, restored, rest)
        self.transfer = Transfer(me, PART, self.history, self.membership, store)

    # -- commands -------------------------------------------------------------------------------------------

    def start(self, now: float, seeds: list[PeerId]) -> list[Effect]:
        """Join the run through `seeds`, standing on the state that it begins with or rested on, if that is here."""
        joined = self.membership.start(now, seeds)
        return self._digest(now, joined if self._stateless else [*joined, *self.rounds.open(now, self._first)])

    def submit(self, now: float, offer: Offer, contribution: Contribute | None) -> list[Effect]:
        """The inner steps of the current round are done."""
        return self._digest(now, self.rounds.submit(now, offer, contribution))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """The commit that we were told of is applied and read back."""
        return self._digest(now, self.rounds.applied(now, root))

    def opened(self, now: float, base: Base) -> list[Effect]:
        """The state that we were told of is installed."""
        return self._digest(now, self.rounds.open(now, base))

    def leave(self, now: float) -> list[Effect]:
        """Sign off at once. Send what this returns; the machine is silent from now on."""
        return [*self.rounds.leave(now), *self.membership.leave(now)]

    def stop(self, now: float) -> list[Effect]:
        """Sign off, or keep the vote if others do: `Parted` is told when we have, soon; until then we go on."""
        if self._parting is None:
            self._parting = Parting(now)
        return self._part(now, self._parting)

    # -- inputs ---------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Any message of this run."""
        if isinstance(message, MEMBERSHIP_MESSAGES):
            return self._digest(now, self.membership.receive(now, sender, message))
        if not isinstance(message, TRANSFER_MESSAGES | ROUND_MESSAGES):
            raise RemoteError(f"sent {type(message).__name__}, which is not for a run's members", sender)
        if part_of(message) != PART:
            raise RemoteError(f"names part {part_of(message)} of a run that has only part {PART}", sender)
        if isinstance(message, TRANSFER_MESSAGES):
            return self._digest(now, self.transfer.receive(now, sender, message))
        return self._digest(now, self.rounds.receive(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Any timer of this run."""
        if timer.core == "membership":
            return self._digest(now, self.membership.fire(now, timer))
        if timer.core == "transfer":
            return self._digest(now, self.transfer.fire(now, timer))
        if timer.core == "parting":
            return self._part(now, self._parting) if self._parting is not None else []
        return self._digest(now, self.rounds.fire(now, timer))

    def left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """A bulk message no longer waits at this node: it was sent, or dropped together with its connection."""
        if isinstance(message, sync.StateChunk):
            self.transfer.donor.payload_done(to, message)
        else:
            self.rounds.left(now, to, message, sent)

    # -- read side ------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """A word for what we are doing."""
        return "syncing" if self.transfer.active else self.rounds.phase

    def rest(self) -> Rest | None:
        """What to keep until we are back, once we have parted; None if we do not vote, or on nothing yet."""
        departure = self.rounds.departure
        is_new = self.history.newest == self._origin.round and not departure.has_voted
        if self._stateless or is_new or not departure.must_keep:
            return None
        decided = self.rounds.shelf.decision
        versions = self._store.versions()
        round = max((each for each in versions if decided(each + 1) is not None), default=versions[-1])
        later = range(round + 1, self.history.newest + 1)
        decisions = tuple(decision for each in later if (decision := decided(each)) is not None)
        return Rest(round, state_root(*self._store.describe(round)), self.history.links, decisions, *self.rounds.kept())

    # -- inside ---------------------------------------------------------------------------------------------

    def _part(self, now: float, parting: Parting) -> list[Effect]:
        """Go, unless it is better to wait."""
        if (wait := parting.wait(now, self.rounds.departure.patience)) is not None:
            return [wait]
        return [*self.leave(now), Tell(Parted())]

    def _digest(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Turn what one core tells into commands of another; then tell everybody where we stand."""
        done: list[Effect] = []
        for effect in effects:
            done.append(effect)
            if isinstance(effect, Tell):
                done += self._digest(now, self._follow_up(now, effect))
        return done + self._install_if_complete() + self._announce(now)

    def _follow_up(self, now: float, told: Tell) -> list[Effect]:
        match told.event:
            case PeerUp() | StatusChanged() if self._stateless:
                return self.transfer.start(now, beyond=self._origin.round - 1)
            case PeerUp(peer=peer) | StatusChanged(peer=peer):
                return self.rounds.peer_up(now, peer)
            case PeerDown(peer=peer) | PeerLeft(peer=peer):
                return self.rounds.peer_down(now, peer)
            case Behind(round=round):
                return self._catch_up(now, round)
            case Committed(decision=decision):
                self.history.append(decision.certificate)
                self.transfer.passed(decision.round)
                self.rounds.shelf.keep_after = self.transfer.donor.oldest_lease()
        return []

    def _catch_up(self, now: float, round: int) -> list[Effect]:
        """Get a later state; or, if `round` is our own and our state is doubted, that before it, to do it again."""
        base = self.rounds.base
        if base is None:
            return []
        return self.transfer.start(now, beyond=base.round if round > base.round + 1 else base.round - 2)

    def _install_if_complete(self) -> list[Effect]:
        """Hand a downloaded state to the application, when it is not busy with a commit."""
        received = self.transfer.take() if self.rounds.phase != "applying" else None
        if received is None:
            return []
        self._stateless = False
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
