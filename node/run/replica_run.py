"""A run whose members have replicas, agreed with nobody: a round is an exchange with one partner, or passes without."""

from __future__ import annotations

import logging
import random

from shoal.node.base.logs import warn
from shoal.node.base.pools import ROUNDS
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Manifest
from shoal.node.run.facts import first_history, policy_of, samples_before
from shoal.node.run.records import ReplicaOutcome, why_lapsed
from shoal.node.run.replica_saving import ReplicaSaving
from shoal.node.run.run import Run
from shoal.node.run.settings import RunSettings
from shoal.node.training.checkpoint.lineage import check_fits
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.data.lanes import newcomer_lane
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.state.outer import Outcome, StateStore
from shoal.node.training.state.replica_state import ReplicaState
from shoal.protocol.averaging.reducer import Contribute
from shoal.protocol.base.effects import Event
from shoal.protocol.base.ids import Digest, PeerId, short
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import MAX_INT, Message
from shoal.protocol.messages.genesis import Genesis
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.net.peers.network import Network
from shoal.protocol.replicas.events import Exchanged, Lapsed, Met, ReplicaReceived
from shoal.protocol.replicas.facts import ReplicaFacts
from shoal.protocol.replicas.member import ReplicaMember

PAIR = 2

log = logging.getLogger("shoal.run")


class ReplicaRun(Run):
    """A member of such a run."""

    member: ReplicaMember
    outer: ReplicaState
    saving: ReplicaSaving

    def __init__(
        self,
        manifest: Manifest,
        genesis: Genesis,
        signer: Signer,
        network: Network,
        settings: RunSettings,
        checkpoint: Checkpoint | None = None,
        own: Checkpoint | None = None,
    ) -> None:
        """`checkpoint` is that of the manifest's origin; without it, such a run's first replica is a copy.

        `own` is our replica as we have left it; then we go on from there.
        """
        check_fits(manifest, checkpoint)
        self._has_replica = own is not None or checkpoint is not None or manifest.origin is None
        begun = own if own is not None else checkpoint
        outer = ReplicaState(manifest, begun.committed() if begun is not None else None)
        super().__init__(manifest, genesis, signer, network, settings, outer, begun)
        self.saving = ReplicaSaving(manifest, self.id, signer.peer, self.outer.committed, settings, self._tasks.spawn)
        self._submitted: tuple[int, Contribute] | None = None  # what we exchange in the round of this number

    @property
    def _lane(self) -> int:
        """No roster gives us one."""
        return newcomer_lane(self._me)

    def _make_member(self) -> ReplicaMember:
        shape, current = self.outer.committed.shape, self.outer.committed.current
        origin = self.manifest.origin
        is_held = self._has_replica or origin is None
        facts = ReplicaFacts(
            seed=self.id,
            history=first_history(self.manifest),
            round=current.round if is_held or origin is None else origin.round,
            root=current.root if is_held or origin is None else Digest(bytes.fromhex(origin.root)),
            chunks=len(self.outer.exchange),
            check=self.outer.exchange.check,
            layout=shape.header,
            state_chunks=len(shape.chunks),
            check_state=self.outer.check_state,
            policy=policy_of(self.manifest, (len(self.outer.exchange),)),
            holds_origin=is_held,
            last=self.manifest.rounds.last,
        )
        return ReplicaMember(
            self._me,
            self._network.addresses(),
            facts,
            self._signer,
            StateStore(self.outer.committed),
            random.Random(),
            trains=self._settings.trains,
        )

    def _on_outcome(self, event: Event) -> None:
        match event:
            case Met(partner=partner):
                path = next((link.path for link in self._network.links() if link.peer == partner), None)
                self.detours.met(path, self._network.own_addresses())
            case Exchanged():
                self._tasks.spawn(self._take(event))
            case Lapsed():
                self._tasks.spawn(self._pass(event))
            case ReplicaReceived():
                self._tasks.spawn(self._install(event))

    async def _take(self, event: Exchanged) -> None:
        """Apply what was exchanged; only when the replica is read back do we say so."""
        assert self._submitted is not None
        (round, own), place = self._submitted, int(self._me > event.partner)
        assert round == event.round
        async with self._busy:
            snapshot = await ROUNDS.run(self.outer.exchanged, round, own, event.payloads, place)
            self._submitted = None
            if self.training is not None:
                self.training.note(round, Outcome(PAIR, ()))
            log.info("round %d exchanged with %s: replica %s", round, short(event.partner), short(snapshot.root))
            if not event.is_mutual:
                warn(
                    log, "one-sided", f"{event.partner} was lost in round {round}, and may not have taken what we sent"
                )
            await self._is_over(ReplicaOutcome(round, event.partner, event.is_mutual), snapshot)
        self._begin_round(goes_on=True)

    async def _pass(self, event: Lapsed) -> None:
        """There is no answer: train on."""
        async with self._busy:
            self._submitted = None
            snapshot = self.outer.passed(event.round)
            reason = why_lapsed(event.reason)
            log.info("round %d passes without an exchange: %s", event.round, reason)
            await self._is_over(ReplicaOutcome(event.round, lapse=str(event.reason)), snapshot)
        self._begin_round(goes_on=True)

    async def _is_over(self, outcome: ReplicaOutcome, snapshot: Snapshot) -> None:
        tokens, driver = self.commits.tokens, self.driver
        self.samples += tokens
        driver.command(lambda now: self.member.applied(now, snapshot.root))
        group = len(self.member.membership.alive()) + 1
        resent, phases = self.outgoing.resent, driver.phases
        record = self.commits.add_replica(outcome, snapshot.root, group, driver.now(), resent, phases, self.samples)
        self.meters.committed(tokens, record.seconds, took_part=record.took_part)
        self.meters.exchanged(outcome.lapse, is_mutual=outcome.is_mutual)
        await self.saving.checkpoint_own(outcome.round, snapshot.root, self.samples, self.training)

    async def _install(self, event: ReplicaReceived) -> None:
        """A copy of another's replica, which it has signed; if it does not fit, this run is not for us."""
        async with self._busy:
            install = self.outer.committed.install
            await ROUNDS.run(install, event.round, event.payloads, event.root)
        log.info("copied the replica of %s after round %d: %s", short(event.donor), event.round, short(event.root))
        self.samples = self._samples_of(event.donor)
        self._open_round, self._submitted = 0, None  # what was trained from another replica is of no use
        self.commits.forget()
        self.driver.command(lambda now: self.member.opened(now, event.round, event.root))
        self._begin_round()

    def _samples_of(self, donor: PeerId) -> int:
        """Those behind its replica, as it says; no more than most say, and so few that later ones can be added."""
        seen = self.member.membership
        known = {peer: status for peer in seen.alive() if (status := seen.status(peer)) is not None}
        ours = [each for each in known.values() if each.history == first_history(self.manifest)]
        said = sorted(each.samples for each in ours if each.trains) or sorted(each.samples for each in ours)
        most = min(said[(len(said) - 1) // 2] if said else 0, MAX_INT // 2)
        return max(samples_before(self.manifest), min(known[donor].samples if donor in known else 0, most))

    def _offer(self, round: int, tokens: int, vector: FloatArray | None) -> None:
        own = self.outer.encoder(self.outer.untrained() if vector is None else vector, round)
        self._submitted = round, own
        self.driver.command(lambda now: self.member.submit(now, own))

    def _absent(self, round: int) -> None:
        """Nobody needs a vote of ours; who would exchange with us looks for another after a while, or trains on."""

    async def _end(self, for_good: bool) -> None:
        await self.saving.end_own(self.samples, self.training, for_good)

    def left(self, to: PeerId, message: Message, sent: bool) -> None:
        """A payload no longer waits on this node: it was written to the network, or dropped."""
        if sent:
            if isinstance(message, Chunk):
                self.outgoing.exchanged(message)
                if self._faults is not None:
                    self._faults.exchanged(message, len(self.outer.exchange))
            self.meters.sent(message)
        self.driver.left(to, message, sent)
