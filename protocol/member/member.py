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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.protocol.averaging import events as told
from shoal.protocol.averaging.policy import Base, Ready
from shoal.protocol.averaging.reducer import Contribute, Reducer
from shoal.protocol.base.effects import Effect, Event, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Room
from shoal.protocol.catchup.transfer import Transfer
from shoal.protocol.log.core import EntryDecided
from shoal.protocol.log.keeper import LogSkipped, Switched
from shoal.protocol.log.register import body_of
from shoal.protocol.member.facts import PART, RunFacts
from shoal.protocol.member.lag import Lag
from shoal.protocol.member.past import Past
from shoal.protocol.member.presence import Presence
from shoal.protocol.membership.members import PeerUp, StatusChanged
from shoal.protocol.messages.averaging import AVERAGING_MESSAGES, GetTable, Give
from shoal.protocol.messages.transfer import TRANSFER_MESSAGES

NEAR = 8  # rounds: a state that is older than the newest by more is none for a member that falls behind


@dataclass(frozen=True, slots=True)
class FallsBehind(Event):
    """Results come or are applied here more slowly than they are made: so many `behind`, it gets a later state."""

    behind: int


class Member(Presence):
    """A `Machine` for one run on one peer."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        facts: RunFacts,
        past: Past,
        base: Base | None,
        signer: Signer,
        reducer: Callable[[int], Reducer],
        room: Room,
        rng: random.Random,
        *,
        trains: bool = True,
    ) -> None:
        """`base` is the state that is here; None: none is."""
        super().__init__(me, addresses, base, facts, past, signer, reducer, rng, trains=trains)
        self._first = base
        self._origin = facts.origin
        self._has_switched = False  # to another branch, whose state is not here
        self._installing: int | None = None  # the round after which the state is that is being installed
        self._replays = base is not None and base.round > facts.origin.round  # whether we may apply results since then
        self._lag = Lag()
        self._policy = facts.policy
        self.certified = past.certified
        self._catching_up = self.transfer = Transfer(me, PART, self.certified, self.membership, room, self._is_vouched)
        self.rounds.shelf.leases = self.transfer.donor

    # -- commands -----------------------------------------------------------------------------------------------

    def submit(self, now: float, ready: Ready, contribution: Contribute | None) -> list[Effect]:
        """The inner steps of the current round are done."""
        return self._digest(now, self.rounds.submit(now, ready, contribution))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """What we were told of is applied and read back."""
        return self._digest(now, self.rounds.applied(now, root))

    def opened(self, now: float, base: Base) -> list[Effect]:
        """The state that we were told of is installed, unless we have left the branch that it is of meanwhile."""
        self._installing, self._replays = None, True
        self._lag.begin()
        if self.certified.history(base.round) not in (None, base.history):
            return []
        return self._digest(now, self.rounds.open(now, base))

    # -- read side ----------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """See Presence."""
        return "syncing" if self.transfer.active else self.rounds.phase

    @property
    def base_round(self) -> int | None:
        """See Presence."""
        return self.rounds.base.round if self.rounds.base is not None else None

    def waiting_for(self) -> Sequence[PeerId]:
        """See Presence."""
        return self.rounds.waiting_for()

    def history_after(self, round: int) -> Digest | None:
        """See Presence."""
        return self.certified.history(round)

    # -- what the log asks --------------------------------------------------------------------------------------

    @property
    def held_round(self) -> int | None:
        """See Judge."""
        if self._has_switched:
            return None
        return self.rounds.held_round if self.rounds.held_round is not None else self._installing

    def has_gone(self, peer: PeerId) -> bool:
        """See Judge."""
        return True

    # -- inside -------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> list[Effect]:
        return self.rounds.open(now, self._first) if self._first is not None else []

    def _receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        if not isinstance(message, TRANSFER_MESSAGES | AVERAGING_MESSAGES):
            raise RemoteError(f"sent {type(message).__name__}, which is not for a run's members", sender)
        if message.part != PART:
            raise RemoteError(f"names part {message.part} of a run that has only part {PART}", sender)
        if isinstance(message, TRANSFER_MESSAGES):
            return self.transfer.receive(now, sender, message)
        if isinstance(message, GetTable | Give) and message.round < self.rounds.state.round:
            self.transfer.donor.renew(now, sender, message.round)  # it has the state, and needs what came after it
        return self.rounds.receive(now, sender, message)

    def _fire(self, now: float, timer: Timer) -> list[Effect]:
        return (self.transfer if timer.core == "transfer" else self.rounds).fire(now, timer)

    def _note(self, now: float, event: Event) -> list[Effect]:
        match event:
            case PeerUp() | StatusChanged():
                return [*self._look_for_state(now), *self._tell_rounds(now, event)]
            case told.Behind(round):
                return self._catch_up(now, round)
            case told.Committed(decision=decision):
                self.transfer.passed(decision.round)
                if decision.round >= self.rounds.state.round:
                    self._replays = False
                    self._lag.end()
            case EntryDecided(entry, _, register):
                self.certified.read(body_of(entry.body), register)
                return [*self._tell_rounds(now, event), *self.transfer.log_read(now)]
            case Switched(register=register):
                self._has_switched, self._lag = True, Lag()
                self.certified.restart(register)
            case LogSkipped(register=register):
                self.certified.skip(register)
        return self._tell_rounds(now, event)

    def _settle(self, now: float) -> list[Effect]:
        return self._leave_branch(now) + self._install_if_complete() + self._announce(now)

    def _leave_branch(self, now: float) -> list[Effect]:
        """Get the state of the branch that we are on now, when the application is not busy with a result."""
        if not self._has_switched or self.rounds.phase == "applying":
            return []
        self._has_switched, self._first, self._installing = False, None, None
        forgotten = self.rounds.forget()
        nothing = dataclasses.replace(self._status, round=0, history=NO_DIGEST, root=NO_DIGEST, phase="syncing")
        self._status = nothing  # so that nobody asks us for a state
        told = self.membership.set_status(now, nothing)
        return [*forgotten, *told, *self.transfer.restart(now, self._origin.round - 1)]

    def _is_vouched(self, round: int, root: Digest) -> bool:
        """Whether f + 1 voters, and most of those who stand after that round, say that this is its state.

        No result was made on it yet; if it is wrong the next one is made on another, and who took it catches up again.
        """
        register, history = self.log.register, self.certified.history(round)
        statuses = [self._status if each == self.me else self.membership.status(each) for each in register.voters]
        said = Counter(each.root for each in statuses if each and (each.round, each.history) == (round, history))
        is_newest = round == self.certified.newest and root != NO_DIGEST
        return is_newest and said[root] > register.faults and 2 * said[root] > said.total()

    def _look_for_state(self, now: float) -> list[Effect]:
        if self._first is not None or self._has_switched or self.held_round is not None:
            return []
        return self.transfer.start(now, beyond=self._origin.round - 1)

    def _catch_up(self, now: float, round: int) -> list[Effect]:
        """Get a later state; or, if `round` is our own and our state is doubted, that before it, to do it again.

        After a start or a download, only if the results since do not come, or we apply them more slowly than they are
        made: the others have them on their disks for a while, our donors keep them for us, and on a slow line a
        download would take their place.
        """
        base = self.rounds.base
        if base is None:  # also while a state is being installed
            return []
        behind = round - base.round
        if behind <= 1:
            return self.transfer.start(now, beyond=base.round - 2)
        if not self._replays or not self.rounds.is_next_coming(now):
            return self.transfer.start(now, beyond=base.round)
        if self.transfer.active or not self._lag.is_hopeless(now, behind, self.log.is_reading):
            return []
        asked = self.transfer.start(now, beyond=max(base.round, round - NEAR))
        if not self.transfer.active:  # nobody has one
            return asked
        self._lag.give_up()
        return [*asked, Tell(FallsBehind(behind))]

    def _install_if_complete(self) -> list[Effect]:
        """Hand a downloaded state to the application, when it is not busy with a result."""
        received = self.transfer.take() if self.rounds.phase != "applying" else None
        if received is None:
            return []
        self._installing = received.base.round
        return [*self.rounds.suspend(), Tell(received)]

    def _announce(self, now: float) -> list[Effect]:
        """A new base is news for everybody, and what was reported since the last one is told with it."""
        base = self.rounds.base
        watched = self.membership.probing.let_rest(now, self._hangs_on_nobody())
        if base is None or (base.history, base.root) == (self._status.history, self._status.root):
            return watched
        self._status = dataclasses.replace(
            self._status, phase=self.phase, round=base.round, history=base.history, root=base.root
        )
        return [*watched, *self.membership.set_status(now, self._status)]

    def _hangs_on_nobody(self) -> bool:
        """While we train, and while the run waits for more members, which may take days. A round hangs on all in it."""
        phase = self.phase
        if phase != "matching" or self.rounds.base is None:
            return phase == "training"
        needed = self._policy.members_needed(self.rounds.base.round + 1)
        return 1 + len(self.membership.alive()) < needed
