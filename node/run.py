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
from functools import partial
from pathlib import Path

from shoal.node.checkpoint.lineage import check_fits
from shoal.node.checkpoint.read import Checkpoint
from shoal.node.detours import Detours
from shoal.node.disk import Disk
from shoal.node.driver import Driver
from shoal.node.lanes import lane_after
from shoal.node.logs import warn
from shoal.node.manifest import Manifest
from shoal.node.meters import Meters
from shoal.node.newcomer import find_uplink
from shoal.node.outer import OuterState, StateStore
from shoal.node.outgoing import Outgoing
from shoal.node.outgrown import unless_outgrown
from shoal.node.reach import own_standing, worth_remembering
from shoal.node.records import CommitLog
from shoal.node.resting import Rested, rest_on
from shoal.node.run_facts import last_vote, run_facts, samples_before
from shoal.node.run_settings import RunSettings
from shoal.node.saving import Saving
from shoal.node.shm import FloatArray
from shoal.node.state import Snapshot
from shoal.node.state_file import save_state
from shoal.node.training import Training
from shoal.protocol.allreduce import Blamed
from shoal.protocol.effects import Effect, Event
from shoal.protocol.errors import ShoalError
from shoal.protocol.ids import PeerId, short
from shoal.protocol.member import Member
from shoal.protocol.members import NamesakeSeen, PeerUp
from shoal.protocol.milestones import Aborted, Begun, Committed, HandIn, Waiting
from shoal.protocol.network import Network
from shoal.protocol.parting import Parted
from shoal.protocol.roster import Offer
from shoal.protocol.signing import Signer
from shoal.protocol.tasks import Tasks
from shoal.protocol.transfer import StateReceived
from shoal.protocol.wire import Message

REPORT_EVERY = 1.0  # seconds between two reports of our progress to the others

log = logging.getLogger("shoal.run")


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
        checkpoint: Checkpoint | None = None,
        rested: Rested | None = None,
    ) -> None:
        """`checkpoint` is that of the manifest's origin; without it, such a run's state is downloaded.

        `rested` is what we kept of the run when we stopped; then we go on from there.
        """
        check_fits(manifest, checkpoint)
        self._holds_origin = checkpoint is not None or manifest.origin is None
        if rested is not None and rested.checkpoint is not None:
            checkpoint = rested.checkpoint
        self.manifest = manifest
        self.author = author
        self.signature = signature
        self.id = manifest.run_id
        self.outer = OuterState(manifest, checkpoint.committed() if checkpoint is not None else None)
        self.rest = rest_on(self.outer.root, rested)  # what we kept of it in an earlier life
        self.commits = CommitLog()
        self.meters = Meters()
        self.detours = Detours(manifest.name)
        self.outgoing = Outgoing(signer.peer, self.commits, settings.fault)
        self.training: Training | None = None  # None: we keep state and vote, and contribute nothing
        self.samples = samples_before(manifest, checkpoint)  # tokens behind the committed state
        self._tasks = Tasks(self._task_failed)
        self.saving = Saving(manifest, signer.peer, self.outer.committed, settings, self._tasks.spawn)
        self.obstacle = ""  # why we, as leader, cannot close a group
        self.voted_before = 0  # the last round that we have voted in, in an earlier life
        self.failure = ""  # why this run has ended on this node
        self._me, self._signer = signer.peer, signer
        self._network = network
        self._settings = settings
        self._moments = checkpoint.moments if checkpoint is not None else None  # until the worker has them
        self._lane = lane_after(checkpoint.about.members if checkpoint is not None else (), self._me)
        self._open_round = 0  # the round that we have begun
        self._busy = asyncio.Lock()  # one long piece of work at a time
        self._parted = asyncio.Event()  # we have said good-bye, or cannot

    # -- life -----------------------------------------------------------------------------------------------

    def start(self, seeds: list[PeerId]) -> None:
        """Join the swarm through `seeds` and begin to train."""
        disk = Disk(self._settings.folder)
        records = disk.load()
        self.voted_before = last_vote(records)
        root, chunks = self.rest.origin[1] if self.rest is not None else self.outer.root, self.outer.chunks
        facts = run_facts(self.manifest, self.author, seeded=root, chunks=chunks, holds_origin=self._holds_origin)
        self.origin = facts.origin
        member = Member(
            self._me,
            self._network.addresses(),
            facts,
            self._signer,
            self.outer.reducer,
            StateStore(self.outer.committed),
            random.Random(),
            records,
            rest=self.rest,
            trains=self._settings.trains,
        )
        send = partial(self._network.carry_out, self.id)
        self.driver = Driver(member, disk, send, self._on_event, self._fail)
        self.driver.timelines.links = self._network.links
        self.member = member
        if self._settings.trains:
            worker, last = self._settings.worker(self.manifest, self.outer.sizes), self.manifest.rounds.last
            self.training = Training(worker, self.outer, self._submit, self._tasks.spawn, self._moments, last)
            self._moments = None
            self.training.start()
        self._tasks.spawn(self._report())
        self._tasks.spawn(find_uplink(self._network, member.membership.alive))
        self.driver.command(lambda now: member.start(now, seeds))
        self._begin_round()

    async def close(self, for_good: bool = False) -> None:
        """Say goodbye to the others, finish what we are doing and its checkpoint, and end our part.

        If nobody else may be able to go on, the run is kept, unless we leave it `for_good`; LocalError if it cannot be.
        """
        self.driver.command(self.member.leave if for_good else self.member.stop)
        if not for_good:
            await self._parted.wait()
        self.driver.close()
        try:
            async with self._busy:
                await self.saving.written()
                if not self.failure:
                    await self.saving.end(self.member, self.training, for_good)
        finally:
            if self.training is not None:
                await self.training.stop()
            await self._tasks.close()

    def _fail(self, error: Exception) -> None:
        """Our own mistake, or a full disk: we are silent from now on, and say so in `status`."""
        expected = isinstance(error, ShoalError)
        self.failure = str(error) if expected else f"{type(error).__name__}: {error}"
        words = f"run {self.manifest.name} has failed on this node and is given up here: {self.failure}"
        self._parted.set()
        log.error("%s", words, exc_info=None if expected else error, extra={"code": "run-failed"})
        if self.training is not None:
            self._tasks.spawn(self.training.stop())

    # -- what the member says -------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case Committed():
                self._tasks.spawn(self._apply(event))
            case StateReceived():
                self._tasks.spawn(self._install(event))
            case HandIn(round) if self.training is not None:
                self.commits.called()
                self.training.call(round)
            case Parted():
                self._parted.set()
            case PeerUp(peer, addresses):
                self._network.remember(peer, worth_remembering(addresses, self._network.links()))
            case NamesakeSeen():
                self._network.meet_namesake()
            case Begun(plan):
                self.detours.begun(plan, self._network.own_addresses())
            case Waiting(reason):
                self.obstacle = reason  # often for some milliseconds only: `_report` says what lasts
            case Aborted(round, attempt, reason):
                self.meters.failed(reason.kind)
                warn(log, "attempt-failed", f"attempt {attempt} of round {round} failed: {reason}; trying again")
            case Blamed(peer, reason):
                warn(log, "peer-blamed", f"peer {peer} {reason}")

    async def _apply(self, event: Committed) -> None:
        """The outer step on what was committed; only when it is read back do we say so."""
        async with self._busy:
            snapshot: Snapshot = await asyncio.to_thread(self.outer.apply, event.decision.payloads)
            proposal = event.decision.certificate.proposal
            self.samples += proposal.samples
            self._lane = lane_after(proposal.members, self._me)
            if self.training is not None:
                self.training.note(proposal.round, self.outer.outcome(event))
            self.driver.command(lambda now: self.member.applied(now, snapshot.root))
            driver, resent = self.driver, self.outgoing.resent
            record = self.commits.add(event.decision, self._me, driver.now(), resent, driver.phases, self.samples)
            self.meters.committed(record.round_samples, record.seconds, took_part=record.took_part)
            log.info("round %d committed: history %s, state %s", record.round, record.digest[:8], short(snapshot.root))
            await self.saving.checkpoint(proposal, snapshot.root, self.samples, self.training)
            self.rest = await unless_outgrown(self.rest, proposal.round, self._settings.folder)
        self._begin_round(has_committed=True)

    async def _install(self, event: StateReceived) -> None:
        """A state that others have sent us, and that is certified: if it does not fit, this run is not for us."""
        async with self._busy:
            await asyncio.to_thread(self.outer.install, event.base, event.payloads)
        log.info("caught up with round %d: state %s", event.base.round, short(event.base.root))
        self.samples = samples_before(self.manifest) + self.member.history.samples(event.base.round)
        self._open_round = 0  # what was trained from another state is of no use, even in the same round
        self.driver.command(lambda now: self.member.opened(now, event.base))
        self._begin_round()

    # -- what the member is told ----------------------------------------------------------------------------

    def _begin_round(self, has_committed: bool = False) -> None:
        """Train, if there is a round to train for that we have not begun; a script is told of the end, too."""
        base = self.member.rounds.base
        if base is None or self._open_round == base.round + 1:
            return
        goes_on, self._open_round, self.obstacle = has_committed and self._open_round > 0, base.round + 1, ""
        if self.training is None:
            self._submit(self._open_round, 0, None)
        elif goes_on:  # not after a state from elsewhere, of which a round was decided already
            self.training.committed(base.round, self._lane, self.samples)
        else:
            self.training.begin(base.round, self._lane, self.samples)

    def _submit(self, round: int, tokens: int, vector: FloatArray | None) -> None:
        """We are ready for the round: `vector` is our contribution, and stays as it is until the next one."""
        if (base := self.member.rounds.base) is None or base.round + 1 != round or self.is_finished:  # decided already
            return
        loss = self.training.last_loss if self.training is not None else None
        self.commits.submitted(self.driver.now(), tokens, loss if tokens else None)
        reached = own_standing(self._network, self.member.membership)
        offer = Offer(min(tokens, self.manifest.rounds.max_weight), *self._network.bandwidth.claim(), reached)
        contribution = self.outer.encoder(vector, round) if vector is not None else None
        self.driver.command(lambda now: self.member.submit(now, offer, contribution))

    def left(self, to: PeerId, message: Message, sent: bool) -> None:
        """A payload no longer waits on this node: it was written to the network, or dropped."""
        if sent:
            self.outgoing.sent(message, self.member.rounds.attempt)
            self.meters.sent(message)
        self.driver.left(to, message, sent)

    async def _report(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(REPORT_EVERY)
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

    async def save(self, path: Path) -> Snapshot:
        """Write the committed state to a file; a checkpoint that is under way comes first."""
        async with self._busy:
            lease = self.outer.committed.lease()
        await self.saving.written()
        with lease as snapshot:
            await asyncio.to_thread(save_state, snapshot, path)
        return snapshot

    # -- inside ---------------------------------------------------------------------------------------------

    def _task_failed(self, error: Exception) -> None:
        self.driver.close()
        self._fail(error)
