"""One run on this node: the member that talks, the state that is held, the worker that trains.

    base opened ──► worker trains ──► contribution ──► member ──► an answer ──► state ──► member.applied
                                                                                   └──► base opened

What depends on what the members agree on is in agreed_run.py, and in replica_run.py where each has its own replica.
Nothing here decides anything about the protocol; it moves what the member says to the state and the worker, and
what these say to the member. Long work runs in a thread, one piece at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.base.kept import KeptVote, names
from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK, NOTES, RECORDS
from shoal.node.base.refusals import refusal
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Introduction
from shoal.node.peers.bandwidth_probe import find_uplink
from shoal.node.peers.reach import worth_remembering
from shoal.node.peers.remembered import forget_anchor
from shoal.node.run.branch_watch import BranchWatch
from shoal.node.run.driver import Driver
from shoal.node.run.facts import samples_before, training_now
from shoal.node.run.fault_watch import FaultWatch
from shoal.node.run.log_store import DOWNLOAD, LONGEST, LogStore
from shoal.node.run.meters import Meters, Outgoing
from shoal.node.run.payload_sources import PayloadSources
from shoal.node.run.records import CommitLog, CommitRecord
from shoal.node.run.relay_warning import RelayWarning
from shoal.node.run.saving import Saving
from shoal.node.run.settings import RunSettings
from shoal.node.run.timelines import kept_in
from shoal.node.supervisor.training import Training
from shoal.node.training.state.committed import CommittedState, Snapshot
from shoal.node.training.state.file import save_state
from shoal.node.training.state.outer import HeldState, StateStore
from shoal.protocol.averaging.events import HandIn, Waiting
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.effects import Blamed, Effect, Event
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.shortages import is_temporary
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.log.core import EntryDecided
from shoal.protocol.log.keeper import SLEPT, CameBack, LogSkipped, Unanchored, Unfit
from shoal.protocol.log.register import has_member
from shoal.protocol.member.facts import PART
from shoal.protocol.member.presence import Parted, Presence
from shoal.protocol.membership.members import NamesakeSeen, PeerDown, PeerUp
from shoal.protocol.messages.log import Register
from shoal.protocol.net.bulk.backlog import LatePayload
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.tasks import Tasks

if TYPE_CHECKING:
    from shoal.node.training.checkpoint.read import Checkpoint

REPORT_EVERY = 1.0  # seconds between two reports of our progress to the others
NOTE_EVERY = 15.0  # seconds between two notes on our disk that we run (AWAY of log_store.py)

# macOS has no such clock, and counts sleep in this one.
WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

log = logging.getLogger("shoal.run")


def _asleep() -> float:
    """Seconds for which this machine was suspended so far, but for a constant: the event loop's clock lacks them."""
    return time.clock_gettime(WITH_SLEEP) - time.monotonic()


class Run(ABC):
    """A member of one run. Built in a thread (it makes the model); everything else belongs to the event loop."""

    member: Presence

    def __init__(
        self,
        found: Introduction,
        signer: Signer,
        network: Network,
        settings: RunSettings,
        outer: HeldState,
        checkpoint: Checkpoint | None,
        store: LogStore,
    ) -> None:
        """`outer` is what we begin with, that of `checkpoint` if there is one; `store` has the log."""
        self.manifest = manifest = found.manifest
        self.genesis = found.genesis
        self.id = found.run
        self.me = signer.peer
        self.outer = outer
        self.store = store
        self.commits = CommitLog()
        self.meters = Meters(settings.tally)
        self.branches = BranchWatch(manifest.name)
        self.detours = RelayWarning(manifest.name)
        self.outgoing = Outgoing(self.commits)
        self._faults = FaultWatch(signer.peer, settings.fault) if settings.fault is not None else None
        self.training: Training | None = None  # None: we keep state and vote, and contribute nothing
        self.samples = samples_before(manifest, checkpoint)  # tokens behind the state that is held
        self.obstacle = ""  # why no round goes on, as far as it is known here
        self.failure = ""  # why this run has ended on this node
        self.may_be_opened_again = False  # whether that was for want of something that there may be again
        self._kept_timelines = kept_in(settings.folder)
        self._tasks = Tasks(self._task_failed)
        self.saving = Saving(manifest, self.id, signer.peer, outer.committed, settings, self._tasks.spawn, store)
        self._states = StateStore(outer.committed, store.folder / DOWNLOAD)
        self._sources = PayloadSources(self._states, store.means)
        self._signer = signer
        self._network = network
        self._settings = settings
        self._moments = checkpoint.moments if checkpoint is not None else None  # until the worker has them
        self._open_round = 0  # the round that we have begun
        self._members: tuple[PeerId, ...] = ()  # of the last round, in order, where all agree on them
        self._was_stopped = False  # in order, and not killed, the last time
        self._has_met = False  # somebody else is here, or was since we are
        self._busy = asyncio.Lock()  # one long piece of work at a time
        self._parted = asyncio.Event()  # the others have let us go, or cannot

    # -- life -----------------------------------------------------------------------------------------------

    def start(self, seeds: list[PeerId]) -> None:
        """Join the swarm through `seeds` and begin to train."""
        self.member = member = self._make_member()
        folder, kept = self._settings.folder, self._kept_timelines
        self.driver = Driver(member, folder, self.store, self._sources, self._send, self._on_event, self._fail, kept)
        self.driver.timelines.links = self._network.links
        if self._settings.trains:
            worker, last = self._settings.worker(self.manifest, self.outer.sizes), self.manifest.rounds.last
            count, spawn = partial(training_now, member.membership), self._tasks.spawn
            self.training = Training(
                worker,
                self.outer,
                self._submit,
                spawn,
                count,
                self._moments,
                last,
                self._absent,
                self.commits.validated,
                self._late_from,
            )
            self._moments = None
            self.training.start()
        self._tasks.spawn(self._report())
        self._tasks.spawn(find_uplink(self._network, member.membership.alive))
        self.driver.command(lambda now: member.start(now, seeds))
        self._begin_round()

    @property
    def _late_from(self) -> int | None:
        """The first round after which, if it is over when our worker is yet to load, the others go on without us.

        None: at this pace all are waited for. After a start of all nodes nobody is ahead, and all load at once.
        """
        if self.manifest.rounds.pace == "steps":
            return None
        return max(self.manifest.first_round, self.outer.committed.current.round + 1)

    async def free_device(self) -> None:
        """End the worker, which nobody needs any more as the run is about to be closed."""
        if self.training is not None:
            await self.training.rest()

    def promote(self, peer: PeerId) -> None:
        """Order that a member be given a vote; LocalError if this node may not, or if it has one."""
        self.member.log.check_promotion(peer)
        self.driver.command(lambda now: self.member.promote(now, peer))

    def go_on(self) -> None:
        """Go on with those who are here, as they can decide nothing; LocalError if they can, or if we may not."""
        self.member.log.check_going_on()
        self.driver.command(self.member.go_on)

    async def close(self, for_good: bool = False) -> None:
        """Be let go by the others, finish what we are doing and its checkpoint, and end our part.

        If nobody else may be able to go on, the run is kept, unless we leave it `for_good`; LocalError if it cannot be,
        or if the run has failed at its end.
        """
        failure_before = self.failure
        self.driver.end()
        if for_good and not self.member.log.is_member:  # nobody has to let us go
            self.driver.command(self.member.leave)
        else:
            self.driver.command(self.member.stop)
            await self._parted.wait()
        await self.driver.settled()
        self.driver.close()
        try:
            async with self._busy:
                await self.saving.written()
                if not (self.failure or for_good):  # for good: all is removed once we have ended
                    self._note_running()
                    await self._keep()
        finally:
            if self.training is not None:
                await self.training.stop()
            await self._tasks.close()
        if self.failure and not (failure_before or for_good):
            raise LocalError(self.failure, code="run-failed")

    async def keep(self) -> None:
        """After a `close` that has failed: try again to keep the run; LocalError if it cannot be."""
        self.training = None  # its moments are gone
        async with self._busy:
            if not self.failure:
                await self._keep()

    def _fail(self, error: Exception) -> None:
        """Our own mistake, or a want of memory or disk: we are silent from now on, and say so in `status`.

        The first reason stays: what else fails may only follow from it.
        """
        said = refusal(error) or error
        expected = isinstance(said, ShoalError)
        failure = str(said) if expected else f"{type(said).__name__}: {said}"
        words = f"run {self.manifest.name} has failed on this node and is given up here: {failure}"
        log.error("%s", words, exc_info=None if expected else said, extra={"code": "run-failed"})
        if self.failure:
            return
        self.failure, self.may_be_opened_again = failure, is_temporary(error) or is_temporary(said)
        self._parted.set()
        if self.training is not None:
            self._tasks.spawn(self.training.stop())

    # -- what the member says -------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case HandIn(round) if self.training is not None:
                self.commits.called()
                self.training.call(round)
            case Parted():
                self._parted.set()
            case EntryDecided(_, before, register) if self._is_taken_along(before, register):
                self.branches.founded(before, register)
            case CameBack(peers):
                self.branches.joined_by(peers)
            case Unanchored():
                self.branches.is_free_of_link()
                self._tasks.spawn(self._forget_anchor())
            case PeerUp(peer, addresses):
                self._has_met = True
                self._network.remember(peer, worth_remembering(addresses, self._network.links()))
            case PeerDown(peer):
                self._network.doubt(peer)
            case NamesakeSeen():
                self._network.report_same_key()
            case Waiting(reason):
                self.obstacle = reason  # often for some milliseconds only: `_report` says what lasts
            case Blamed(peer, reason):
                warn(log, "peer-blamed", f"peer {peer} {reason}")
            case Unfit(kind, reason):
                log.info("%s: this node asks for no %s in the log, as it %s", self.manifest.name, kind, reason)
            case _:
                if isinstance(event, LogSkipped) and self._is_taken_along(event.before, event.register):
                    self.branches.founded(event.before, event.register)
                self._on_outcome(event)

    def _is_taken_along(self, before: Register, register: Register) -> bool:
        """Whether we were a member, and the log goes on as a branch: whoever has just come has not seen it part."""
        return register.branch != before.branch and has_member(before, self.me)

    async def _forget_anchor(self) -> None:
        with suppress(LocalError):  # then a restart looks for that branch again, for a minute
            await RECORDS.run(forget_anchor, self._settings.folder)

    @abstractmethod
    def _make_member(self) -> Presence:
        """The machine that talks for us, with what an earlier life of ours has left on disk."""

    @abstractmethod
    def _on_outcome(self, event: Event) -> None:
        """What is told of rounds and of states."""

    @property
    @abstractmethod
    def _lane(self) -> int:
        """Whose data we read in the next round."""

    @abstractmethod
    def _offer(self, round: int, tokens: int, vector: FloatArray | None) -> None:
        """Give our contribution to `round`, which is open, to the member; None: there is none."""

    # -- what the member is told ----------------------------------------------------------------------------

    def _begin_round(self, goes_on: bool = False) -> None:
        """Train, if there is a round to train for that we have not begun; a script is told of the end, too.

        `goes_on`: after the round before it, and not with a state from elsewhere.
        """
        base = self.member.base_round
        if base is None or self._open_round == base + 1:
            return
        goes_on, self._open_round, self.obstacle = goes_on and self._open_round > 0, base + 1, ""
        if self.training is None:
            self._submit(self._open_round, 0, None)
        elif goes_on:  # not after a state from elsewhere, of which a round was decided already
            self.training.committed(base, self._lane, self.samples)
        else:
            self.training.begin(base, self._lane, self.samples)

    def _submit(self, round: int, tokens: int, vector: FloatArray | None) -> None:
        """We are ready for the round: `vector` is our contribution, and stays as it is until the next one."""
        if (base := self.member.base_round) is None or base + 1 != round or self.is_finished:  # it is over without us
            return
        loss = self.training.last_loss if self.training is not None else None
        self.commits.submitted(self.driver.now(), tokens, loss if tokens else None)
        self._offer(round, tokens, vector)

    @abstractmethod
    def _absent(self, round: int) -> None:
        """Nobody trains for `round` here, for now."""

    @property
    @abstractmethod
    def _to_keep(self) -> Base | None:
        """The state that must be on our disk while we are stopped, since nobody else may have it."""

    async def _keep(self) -> None:
        """What may be needed when we are back; LocalError if it is needed and cannot be kept."""
        if (base := self._to_keep) is None:
            return
        is_kept = await self.saving.keep(base, self._members, self.samples, self.training)
        if is_kept and self.member.keeps_vote:
            vote = KeptVote(len(self.member.log.register.voters), tuple(self.member.awaited_voters))
            await RECORDS.run(self.store.mark_kept, vote)
            log.info("stopped with a vote that is needed: %s", vote.words(self.manifest.name))

    @property
    def stuck_without_us(self) -> str:
        """Why those who stay can decide nothing, once we have left for good with our vote; empty: they can."""
        member = self.member
        if not (member.keeps_vote and self.others()):
            return ""
        others = [voter for voter in member.log.register.voters if voter != member.me]
        away = [voter for voter in others if not member.membership.is_alive(voter)]
        until = f"until {names(away)} are back" if member.log.is_quorum(others) else "any more"
        return f"the vote of this node was needed in {self.manifest.name}: those who stay can decide nothing {until}"

    def received(self, sender: PeerId, message: Message) -> None:
        """A message of this run; RemoteError if it is bad, and then nothing has changed."""
        self.meters.received(message)
        self.driver.receive(sender, message)
        if self._faults is not None:
            self._faults.received(message, self.member.rounds, self.member.log.proposer == self.me)

    def _send(self, to: PeerId, message: Message, late: LatePayload | None) -> None:
        if self._faults is not None:
            self._faults.leaves(message, self.member.rounds)
        self._network.send(to, self.id, message, late)

    def _shortening(self, round: int) -> Callable[[], None]:
        """To be called once the state after `round` is on our disk: neither the disk nor a restart is to get slow."""
        beginning = self.member.log.beginning_for(PART, round) if self.store.size > LONGEST else None
        if beginning is None:
            return lambda: None
        return lambda: self.driver.command(lambda now: self.member.log.shorten(beginning))

    def left(self, to: PeerId, message: Message, sent: bool) -> None:
        """A payload no longer waits on this node: it was written to the network, or dropped."""
        if sent:
            self._count_sent(to, message)
            self.meters.sent(message)
        self.driver.left(to, message, sent)

    def _count_sent(self, to: PeerId, message: Message) -> None:
        """A payload was written to the network."""
        self.outgoing.sent(to, message, self.member.rounds)
        if self._faults is not None:
            self._faults.sent(to, message, self.member.rounds, self.member.log.proposer == self.me)

    def _note_running(self) -> None:
        """We are here, and not away; but not before we have looked for those who may have gone on without us."""
        if not (self.failure or self.member.log.core.looks):
            NOTES.offer(self.store.note_running)

    async def _report(self) -> None:
        said, noted, asleep = "", -math.inf, _asleep()
        while True:
            await asyncio.sleep(REPORT_EVERY)
            if self.driver.now() >= noted + NOTE_EVERY:
                noted = self.driver.now()
                self._note_running()
            before, asleep = asleep, _asleep()
            if asleep - before > SLEPT:  # the clock of the cores stood still meanwhile
                self.driver.command(self.member.woke)
            self.driver.command(self._report_now)
            obstacle = self.obstacle if self.member.phase == "matching" else ""
            if obstacle not in ("", said):
                log.info("round %d waits: %s", self._open_round, obstacle)
            said = obstacle

    def _report_now(self, now: float) -> list[Effect]:
        training = self.training
        step = training.progress.step if training is not None and training.progress is not None else 0
        loss = training.loss if training is not None else None
        word, line = self._network.reachability, self._network.bandwidth.claim()
        return self.member.report(now, step=step, samples=self.samples, loss=loss, reachability=word, line=line)

    # -- read side ------------------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether the run's last round is committed here."""
        last = self.manifest.rounds.last
        return last is not None and self.outer.committed.current.round >= last

    @property
    def committed(self) -> CommittedState:
        """The parameters and the outer state that this node holds."""
        return self.outer.committed

    def committed_round(self, round: int) -> CommitRecord | None:
        """What is remembered of it."""
        return next((record for record in reversed(self.commits.records) if record.round == round), None)

    @property
    def is_alone(self) -> bool:
        """Whether no other member is known to live."""
        return not self.member.membership.alive()

    @property
    def is_stuck(self) -> bool:
        """Whether nothing can be decided here, and nobody else is here who could."""
        return False

    @property
    def is_resting(self) -> bool:
        """Whether we are back with a run, after it was stopped here in order, and nobody else is yet."""
        return self._was_stopped and self.is_alone and not self._has_met and not self.commits.records

    @property
    def loss(self) -> float | None:
        """The loss of the worker's last steps; None while nothing is trained here."""
        return self.training.loss if self.training is not None else None

    @property
    def trouble(self) -> str:
        """Why the worker does not train; empty if it does."""
        return self.training.trouble if self.training is not None else ""

    @property
    def pace(self) -> tuple[int, float]:
        """The last round, and how many seconds one takes; 0.0 while that is not known."""
        return self.outer.committed.current.round, self.commits.pace

    @property
    def register(self) -> Register:
        """What the run's log says in sum, as far as we know it."""
        return self.member.log.register

    def others(self) -> dict[PeerId, tuple[str, ...]]:
        """The other members that are alive, and where."""
        membership = self.member.membership
        return {peer: entry.addresses for peer in membership.alive() if (entry := membership.entry(peer))}

    async def save(self, path: Path, own: bool = False) -> Snapshot:
        """Write the committed state to a file.

        `own`: what this node's worker has in its place, if that is another; LocalError if it is not there.
        """
        async with self._busy:
            lease = self.outer.committed.lease()
        with lease as snapshot:
            await DISK.run(save_state, snapshot, path)
        return snapshot

    # -- inside ---------------------------------------------------------------------------------------------

    def _task_failed(self, error: Exception) -> None:
        self.driver.close()
        self._fail(error)
