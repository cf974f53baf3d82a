"""One run on this node: the member that talks, the state that is agreed, the worker that trains.

    base opened ──► worker trains ──► contribution ──► member.submit ──► Committed ──► apply ──► member.applied
                                                                                          └──► base opened

Nothing here decides anything about the protocol; it moves what the member says to the state and the worker, and
what these say to the member. Long work runs in a thread, one piece at a time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.node.disk import Disk
from shoal.node.driver import Driver
from shoal.node.faults import FaultTrigger
from shoal.node.lanes import newcomer_lane
from shoal.node.logs import warn
from shoal.node.manifest import Manifest
from shoal.node.outer import OuterState, StateStore, parameters
from shoal.node.outgoing import Outgoing
from shoal.node.records import CommitLog
from shoal.node.state import Snapshot
from shoal.node.state_file import save_state
from shoal.node.worker_messages import Contribution, Progress
from shoal.node.worker_process import WorkerSettings
from shoal.node.workers import Worker
from shoal.protocol.allreduce import Blamed
from shoal.protocol.effects import Event
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId, short
from shoal.protocol.matchmaking import HandIn, Offer, Waiting
from shoal.protocol.member import Member, RunFacts
from shoal.protocol.members import PeerUp
from shoal.protocol.network import Network
from shoal.protocol.roster import Policy
from shoal.protocol.rounds import Aborted, Committed
from shoal.protocol.signing import Signer
from shoal.protocol.transfer import StateReceived

REPORT_EVERY = 1.0  # seconds between two reports of our progress to the others

log = logging.getLogger("shoal.run")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run needs to know of this node."""

    folder: Path
    threads: int
    data: tuple[str, ...]
    trains: bool
    fault: FaultTrigger | None = None


class Run:
    """A member of one run. Built in a thread (it makes the model); everything else belongs to the event loop."""

    def __init__(
        self,
        manifest: Manifest,
        author: PeerId,
        signature: bytes,
        signer: Signer,
        network: Network,
        settings: RunSettings,
    ) -> None:
        self.manifest = manifest
        self.author = author
        self.signature = signature
        self.id = manifest.run_id
        self.outer = OuterState(manifest)
        self.commits = CommitLog()
        self.outgoing = Outgoing(signer.peer, settings.fault)
        self.progress: Progress | None = None
        self.samples = 0  # tokens behind the state, as far as this node has followed
        self.last_loss: float | None = None
        self.waiting = ""
        self.failure = ""
        self._me = signer.peer
        self._signer = signer
        self._network = network
        self._settings = settings
        self._lane = newcomer_lane(self._me)
        self._open_round = 0  # the round that we have begun
        self._called_for = 0  # the round that the others wait for us to hand in
        self._worker: Worker | None = None
        self._busy = asyncio.Lock()  # one long piece of work at a time
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life -----------------------------------------------------------------------------------------------

    def start(self, seeds: list[PeerId]) -> None:
        """Join the swarm through `seeds` and begin to train."""
        disk = Disk(self._settings.folder)
        rounds = self.manifest.rounds
        policy = Policy(
            rounds.min_members, rounds.start_members, rounds.max_group, rounds.max_weight, self.outer.chunks
        )
        member = Member(
            self._me,
            self._network.addresses(),
            RunFacts(self.id, self.author, policy, self.outer.root),
            self._signer,
            lambda _: self.outer.reducer(),
            StateStore(self.outer.committed),
            random.Random(),
            disk.load(),
            trains=self._settings.trains,
        )
        self.driver = Driver(
            member, disk, lambda to, message: self._network.send(to, self.id, message), self._on_event, self._fail
        )
        self.member = member
        if self._settings.trains:
            self._worker = self._make_worker()
            self._spawn(self._worker.run())
        self._spawn(self._report())
        self.driver.command(lambda now: member.start(now, seeds))
        self._begin_round()

    async def close(self, leave: bool) -> None:
        """End our part in the run; with `leave`, say goodbye to the others."""
        if leave:
            self.driver.command(self.member.leave)
        self.driver.close()
        if self._worker is not None:
            await self._worker.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _fail(self, error: Exception) -> None:
        """Our own mistake: we are silent from now on, and say so in `status`."""
        self.failure = f"{type(error).__name__}: {error}"
        log.error("run %s has failed on this node and is given up here", self.manifest.name, exc_info=error)
        if self._worker is not None:
            self._spawn(self._worker.stop())

    def _make_worker(self) -> Worker:
        folder = self._settings.folder
        settings = WorkerSettings(
            folder=folder,
            log=folder / "worker.log",
            manifest=self.manifest.canonical(),
            elements=self.outer.elements,
            threads=self._settings.threads,
            data=self._settings.data,
        )
        return Worker(
            settings,
            on_progress=self._on_progress,
            on_contribution=self._on_contribution,
            on_lost=lambda reason: warn(log, "worker-lost", f"{reason}; it is started again"),
        )

    # -- what the member says -------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case Committed():
                self.waiting = ""
                self._spawn(self._apply(event))
            case StateReceived():
                self._spawn(self._install(event))
            case HandIn(round):
                self._called_for = round
                self._hand_in_if_called()
            case PeerUp(peer, addresses):
                self._network.remember(peer, addresses)
            case Waiting(reason):
                self.waiting = reason
                log.info("round %d waits: %s", self._open_round, reason)
            case Aborted(round, attempt, reason):
                warn(log, "attempt-failed", f"attempt {attempt} of round {round} failed: {reason}; trying again")
            case Blamed(peer, reason):
                warn(log, "peer-blamed", f"peer {peer} {reason}")

    async def _apply(self, event: Committed) -> None:
        """The outer step on what was committed; only when it is read back do we say so."""
        async with self._busy:
            snapshot: Snapshot = await asyncio.to_thread(self.outer.apply, event.decision.payloads)
        proposal = event.decision.certificate.proposal
        self.samples += proposal.samples
        members = proposal.members
        self._lane = members.index(self._me) if self._me in members else newcomer_lane(self._me)
        self.driver.command(lambda now: self.member.applied(now, snapshot.root))
        sent, _ = self._network.traffic(self.id)
        record = self.commits.add(event.decision, self._me, self.driver.now(), sent, self.outgoing.resent)
        log.info("round %d committed: history %s, state %s", record.round, record.digest[:8], short(snapshot.root))
        self._begin_round()

    async def _install(self, event: StateReceived) -> None:
        """A state that others have sent us."""
        try:
            async with self._busy:
                await asyncio.to_thread(self.outer.install, event.base, event.payloads)
        except RemoteError as error:
            warn(log, "state-refused", f"the state we were sent cannot be used: {error}")
            return
        log.info("caught up with round %d: state %s", event.base.round, short(event.base.root))
        self.driver.command(lambda now: self.member.opened(now, event.base))
        self._begin_round()

    # -- what the worker says -------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        """Train, if there is a round to train for that we have not begun."""
        base = self.member.rounds.base
        if base is None or self.is_finished or self._open_round == base.round + 1:
            return
        self._open_round = base.round + 1
        self.progress, self.waiting = None, ""
        if self._worker is None:
            self._submit(0, None)
        else:
            self._spawn(self._train(self._worker, self._open_round))

    async def _train(self, worker: Worker, round: int) -> None:
        with self.outer.committed.lease() as snapshot:
            await worker.train(round, self._lane, parameters(snapshot))

    def _on_progress(self, progress: Progress) -> None:
        self.progress = progress
        self._hand_in_if_called()

    def _hand_in_if_called(self) -> None:
        """The others wait: give them what there is, as soon as there is something."""
        if self._worker is not None and self.progress is not None and self.progress.round == self._called_for:
            self._worker.hand_in(self._called_for)
            self._called_for = 0

    def _on_contribution(self, contribution: Contribution) -> None:
        assert self._worker is not None
        if contribution.round != self._open_round:
            return
        self.last_loss = contribution.loss
        vector = self._worker.contribution
        weight = min(contribution.tokens, self.manifest.rounds.max_weight)
        if weight and not np.isfinite(vector).all():
            warn(log, "diverged", f"training diverged in round {contribution.round}; we contribute nothing to it")
            weight = 0
        self._submit(weight, self.outer.encoder(vector) if weight else None)

    def _submit(self, weight: int, contribution: Callable[[int], bytes] | None) -> None:
        self.commits.submitted(self.driver.now())
        offer = Offer(weight, bandwidth=0, reachable=True)
        self.driver.command(lambda now: self.member.submit(now, offer, contribution))

    # -- read side ------------------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether the run's last round is committed here."""
        last = self.manifest.rounds.last
        return last is not None and self.outer.committed.current.round >= last

    async def save(self, path: Path) -> Snapshot:
        """Write the committed state to a file, as this node holds it."""
        with self.outer.committed.lease() as snapshot:
            await asyncio.to_thread(save_state, snapshot, path)
        return snapshot

    # -- inside ---------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY)
            progress = self.progress
            step, loss = (progress.step, progress.loss) if progress is not None else (0, self.last_loss)
            self.driver.command(
                lambda now, step=step, loss=loss: self.member.report(  # type: ignore[misc]
                    now, step=step, samples=self.samples, loss=loss, bandwidth=0
                )
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.driver.close()
            self._fail(error)
