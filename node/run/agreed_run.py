"""A run whose members agree on its state, round by round: all apply what is committed, to the same bits."""

from __future__ import annotations

import logging
import random
from pathlib import Path

from shoal.node.base.disk import Disk
from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK, ROUNDS
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Manifest
from shoal.node.peers.reach import own_standing
from shoal.node.run.facts import last_vote, run_facts, samples_before
from shoal.node.run.outgrown import unless_outgrown
from shoal.node.run.resting import Rested, rest_on
from shoal.node.run.run import Run
from shoal.node.run.saving import Saving
from shoal.node.run.settings import RunSettings
from shoal.node.training.checkpoint.lineage import check_fits
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.data.lanes import lane_after
from shoal.node.training.methods.method import has_own_weights
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.state.file import save_weights
from shoal.node.training.state.outer import OuterState, StateStore
from shoal.protocol.base.effects import Event
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.transfer import StateReceived
from shoal.protocol.member.member import Member
from shoal.protocol.net.peers.network import Network
from shoal.protocol.rounds.agreement.roster import Offer
from shoal.protocol.rounds.matchmaking.milestones import Aborted, Begun, Committed

log = logging.getLogger("shoal.run")


class AgreedRun(Run):
    """A member of such a run."""

    member: Member

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
        saved = checkpoint.committed() if checkpoint is not None else None
        outer = OuterState(manifest, saved, settings.trains)
        super().__init__(manifest, author, signature, signer, network, settings, outer, checkpoint)
        self.rest = rest_on(self.outer.root, rested)
        self._records = Disk(settings.folder).load()
        self.saving = Saving(manifest, signer.peer, self.outer.committed, settings, self._tasks.spawn)
        self._members = checkpoint.about.members if checkpoint is not None else ()  # of the last round

    @property
    def _lane(self) -> int:
        return lane_after(self._members, self._me)

    def _make_member(self, disk: Disk) -> Member:
        records = self._records
        self.voted_before = last_vote(records)
        root, chunks = self.rest.origin[1] if self.rest is not None else self.outer.root, self.outer.chunks
        facts = run_facts(self.manifest, self.author, seeded=root, chunks=chunks, holds_origin=self._holds_origin)
        return Member(
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

    def _on_outcome(self, event: Event) -> None:
        match event:
            case Committed():
                self._tasks.spawn(self._apply(event))
            case StateReceived():
                self._tasks.spawn(self._install(event))
            case Begun(plan):
                self.detours.begun(plan, self._network.own_addresses())
            case Aborted(round, attempt, reason):
                self.meters.failed(reason.kind)
                warn(log, "attempt-failed", f"attempt {attempt} of round {round} failed: {reason}; trying again")

    async def _apply(self, event: Committed) -> None:
        """The outer step on what was committed; only when it is read back do we say so."""
        async with self._busy:
            snapshot: Snapshot = await ROUNDS.run(self.outer.apply, event.decision.payloads)
            proposal = event.decision.certificate.proposal
            self.samples += proposal.samples
            self._members = proposal.members
            if self.training is not None:
                self.training.note(proposal.round, self.outer.outcome(event))
            self.driver.command(lambda now: self.member.applied(now, snapshot.root))
            driver, resent = self.driver, self.outgoing.resent
            record = self.commits.add(event.decision, self._me, driver.now(), resent, driver.phases, self.samples)
            self.meters.committed(record.round_samples, record.seconds, took_part=record.took_part)
            log.info("round %d committed: history %s, state %s", record.round, record.digest[:8], short(snapshot.root))
            await self.saving.checkpoint(proposal, snapshot.root, self.samples, self.training)
            self.rest = await unless_outgrown(self.rest, proposal.round, self._settings.folder)
        self._begin_round(goes_on=True)

    async def _install(self, event: StateReceived) -> None:
        """A state that others have sent us, and that is certified: if it does not fit, this run is not for us."""
        async with self._busy:
            await ROUNDS.run(self.outer.install, event.base, event.payloads)
        log.info("caught up with round %d: state %s", event.base.round, short(event.base.root))
        self.samples = samples_before(self.manifest) + self.member.history.samples(event.base.round)
        self._open_round = 0  # what was trained from another state is of no use, even in the same round
        self.driver.command(lambda now: self.member.opened(now, event.base))
        self._begin_round()

    def _offer(self, round: int, tokens: int, vector: FloatArray | None) -> None:
        reached = own_standing(self._network, self.member.membership)
        offer = Offer(min(tokens, self.manifest.rounds.max_weight), *self._network.bandwidth.claim(), reached)
        contribution = self.outer.encoder(vector, round) if vector is not None else None
        self.driver.command(lambda now: self.member.submit(now, offer, contribution))

    def _absent(self, round: int) -> None:
        """The others need our vote, and perhaps our JOIN: we are ready for the round, with nothing."""
        if round == self._open_round:
            self._submit(round, 0, None)

    async def save(self, path: Path, own: bool = False) -> Snapshot:
        """See Run; the worker's own are weights alone, of after the last round."""
        if not own:
            return await super().save(path)
        if self.training is None or not has_own_weights(self.outer.method):
            raise LocalError(
                "here no worker has weights that differ from the state that all agree on", code="other-kind-of-run"
            )
        if not self.is_finished:
            raise LocalError(
                "a worker shows its own weights when the run's last round is over; it is not", code="not-ready"
            )
        weights, state = await self.training.weights(), self.outer.committed.current
        return await DISK.run(save_weights, state.shape, weights, state.round, path)

    async def _end(self, for_good: bool) -> None:
        await self.saving.end(self.member, self.training, for_good)

    def left(self, to: PeerId, message: Message, sent: bool) -> None:
        """A payload no longer waits on this node: it was written to the network, or dropped."""
        if sent:
            self.outgoing.sent(message, self.member.rounds.attempt)
            self.meters.sent(message)
        self.driver.left(to, message, sent)
