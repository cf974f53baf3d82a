"""A run whose members have replicas: a round is an exchange with one partner, or passes without.

In the last round all replicas are averaged, and what all hold then is the run's result.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from pathlib import Path

from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK, ROUNDS
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Introduction
from shoal.node.peers.reach import own_standing
from shoal.node.run.facts import first_history, run_facts, samples_before, trust_of
from shoal.node.run.log_store import LogStore
from shoal.node.run.records import ReplicaOutcome, why_lapsed
from shoal.node.run.run import Run
from shoal.node.run.saving import newest_state
from shoal.node.run.settings import RunSettings
from shoal.node.training.checkpoint.lineage import check_fits
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.data.lanes import newcomer_lane
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.state.draft import Draft
from shoal.node.training.state.file import save_weights
from shoal.node.training.state.outer import Outcome
from shoal.node.training.state.replica_state import ReplicaState
from shoal.protocol.averaging import events as told
from shoal.protocol.averaging.policy import Base, Ready
from shoal.protocol.base.effects import Event
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, short
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import MAX_INT, Message
from shoal.protocol.log.core import EntryDecided
from shoal.protocol.log.keeper import LogSkipped, Switched
from shoal.protocol.log.register import Rules
from shoal.protocol.member.past import Past, recall
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

    def __init__(
        self,
        found: Introduction,
        signer: Signer,
        network: Network,
        settings: RunSettings,
        checkpoint: Checkpoint | None = None,
        *,
        is_founding: bool = False,
    ) -> None:
        """`checkpoint` is that of the manifest's origin; without it, such a run's first replica is a copy.

        `is_founding`: the run begins here and now; its author votes then, and in no other first life.
        """
        manifest, genesis = found.manifest, found.genesis
        check_fits(manifest, checkpoint)
        store, rules = LogStore(settings.folder), Rules(trust_of(manifest), signer)
        has_been_here = store.first() is not None
        saved = (newest_state(settings.folder, genesis.run) if has_been_here else None) or checkpoint
        outer = ReplicaState(manifest, saved.committed() if saved is not None else None)
        chunks = (outer.last_chunks,)
        facts = run_facts(manifest, genesis.run, genesis.author, seeded=NO_DIGEST, chunks=chunks, anchor=found.anchor)
        self._facts = replace(facts, has_replicas=True)
        self._past: Past | None = recall(self._facts, store.open(self._facts.register(), rules, is_founding), rules)
        self._has_replica = saved is not None or manifest.origin is None
        self._own: FloatArray | None = None  # our weights before the last round's average
        super().__init__(found, signer, network, settings, outer, saved, store)
        self._past.keep_means(self._base if self._has_replica else None, store.means.read)

    @property
    def _base(self) -> Base:
        """Our replica, as it stands now."""
        current = self.outer.committed.current
        return Base(current.round, 0, first_history(self.manifest), current.root)

    @property
    def is_finished(self) -> bool:
        """See Run; or it was ended before."""
        return super().is_finished or self.member.log.register.is_over

    @property
    def _lane(self) -> int:
        """No roster gives us one."""
        return newcomer_lane(self.me)

    def _make_member(self) -> ReplicaMember:
        shape = self.outer.committed.shape
        facts = ReplicaFacts(
            run=self._facts,
            seed=self.id,
            chunks=len(self.outer.exchange),
            check=self.outer.exchange.check,
            layout=shape.header,
            state_chunks=len(shape.chunks),
            check_state=self.outer.check_state,
        )
        past, self._past = self._past, None
        assert past is not None
        return ReplicaMember(
            self.me,
            self._network.addresses(),
            facts,
            past,
            self._base if self._has_replica else None,
            self._signer,
            lambda _: self.outer.last_reducer(),
            self._states,
            random.Random(),
            trains=self._settings.trains,
        )

    def _on_outcome(self, event: Event) -> None:
        match event:
            case Met(partner):
                path = next((link.path for link in self._network.links() if link.peer == partner), None)
                self.detours.met(path, self._network.own_addresses())
            case Exchanged():
                self._tasks.spawn(self._take(event))
            case Lapsed():
                self._tasks.spawn(self._pass(event))
            case ReplicaReceived():
                if (draft := self._states.take(event.round)) is not None:
                    self._tasks.spawn(self._install(event, draft))
            case told.Committed():
                self._tasks.spawn(self._conclude(event, self.driver.results_written()))
            case told.Lapsed():
                self._tasks.spawn(self._lapse(event))
            case EntryDecided() | LogSkipped():
                self._begin_round()  # we may have been admitted
            case Switched(register=register):
                self.branches.left(register)

    async def _take(self, event: Exchanged) -> None:
        """Apply what was exchanged; only when the replica is read back do we say so."""
        round, place = event.round, int(self.me > event.partner)
        own = self._sources.contribution(round)
        assert own is not None
        async with self._busy:
            snapshot = await ROUNDS.run(self.outer.exchanged, round, own, event.payloads, place)
            self._sources.forget()
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
            self._sources.forget()
            snapshot = self.outer.passed(event.round)
            reason = why_lapsed(event.reason)
            log.info("round %d passes without an exchange: %s", event.round, reason)
            await self._is_over(ReplicaOutcome(event.round, lapse=str(event.reason)), snapshot)
        self._begin_round(goes_on=True)

    async def _conclude(self, event: told.Committed, results: asyncio.Future[bool]) -> None:
        """What all have trained is averaged: the run's result. `results`: see Saving."""
        async with self._busy:
            decision = event.decision
            if self._own is None:
                self._own = await ROUNDS.run(self.outer.weights, None)
            self._has_replica = True
            snapshot = await ROUNDS.run(self.outer.concluded, decision.round, decision.payloads)
            self._sources.forget()
            if self.training is not None:
                self.training.note(decision.round, Outcome(len(decision.roster), ()))
            tokens, driver = self.commits.tokens, self.driver
            self.samples += tokens
            history = self.member.rounds.base_with(decision, snapshot.root).history
            driver.command(lambda now: self.member.concluded(now, snapshot.root))
            resent, phases = self.outgoing.resent, driver.phases
            record = self.commits.add(
                decision, history, self.me, driver.now(), resent, phases, self.samples, tokens=tokens
            )
            self.meters.committed(tokens, record.seconds, took_part=record.took_part)
            members = len(decision.result.weights)
            log.info("round %d, the last: the mean of %d replicas: %s", record.round, members, short(snapshot.root))
            await self.saving.checkpoint(self._base, decision.roster, self.samples, self.training, results)
        self._begin_round(goes_on=True)

    async def _lapse(self, event: told.Lapsed) -> None:
        """The last round is over without a result: each keeps its replica."""
        async with self._busy:
            snapshot = self.outer.passed(event.round)
            self.meters.voided()
            warn(log, "round-undone", f"the result of round {event.round} is lost on all disks: it counts for nothing")
            self.driver.command(lambda now: self.member.concluded(now, snapshot.root))
        self._begin_round()

    async def _is_over(self, outcome: ReplicaOutcome, snapshot: Snapshot) -> None:
        tokens, driver = self.commits.tokens, self.driver
        self.samples += tokens
        driver.command(lambda now: self.member.applied(now, snapshot.root))
        group = len(self.member.membership.alive()) + 1
        resent, phases = self.outgoing.resent, driver.phases
        record = self.commits.add_replica(outcome, snapshot.root, group, driver.now(), resent, phases, self.samples)
        self.meters.committed(tokens, record.seconds, took_part=record.took_part)
        self.meters.exchanged(outcome.lapse, is_mutual=outcome.is_mutual)
        await self.saving.checkpoint(self._base, (), self.samples, self.training, None)
        before_the_last = self._facts.last_round - 1  # of a round before it the log says nothing
        self._shortening(max(self.saving.newest, before_the_last, 0))()

    async def _install(self, event: ReplicaReceived, draft: Draft) -> None:
        """A copy of another's replica, which it has signed; if it does not fit, this run is not for us."""
        async with self._busy:
            self.outer.committed.adopt(await ROUNDS.run(draft.snapshot))
            self._has_replica = True
        log.info("copied the replica of %s after round %d: %s", short(event.donor), event.round, short(event.root))
        self.samples = self._samples_of(event.donor)
        self._open_round = 0  # what was trained from another replica is of no use
        self._sources.forget()
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
        if round == self.manifest.rounds.last:
            self._tasks.spawn(self._offer_weights(round, vector))
            return
        own = self.outer.encoder(self.outer.untrained() if vector is None else vector, round)
        self._sources.submit(round, own)
        self.driver.command(self.member.submit)

    async def _offer_weights(self, round: int, vector: FloatArray | None) -> None:
        """In the last round all who train take part, each with the same weight."""
        if not self._settings.trains:
            return
        self._own = await ROUNDS.run(self.outer.weights, vector)
        contribution = self.outer.last_encoder(self._own)
        self._sources.submit(round, contribution)
        ready = Ready(1, *self._network.bandwidth.claim(), own_standing(self._network, self.member.membership))
        self.driver.command(lambda now: self.member.submit_last(now, ready, contribution))

    def _absent(self, round: int) -> None:
        """Who would exchange with us looks for another after a while, or trains on; in the last round all wait for us.

        Nobody needs a vote of ours.
        """
        if round == self.manifest.rounds.last == self._open_round:
            self._submit(round, 0, None)

    async def save(self, path: Path, own: bool = False) -> Snapshot:
        """See Run; our own are the weights with which we went into the last round's average."""
        if not own:
            return await super().save(path)
        if self._own is None or not self.is_finished:
            raise LocalError(
                "a node shows its own weights, beside the mean of all, when the run's last round is over, until it is "
                "stopped",
                code="not-ready",
            )
        weights, state = self._own, self.outer.committed.current
        return await DISK.run(save_weights, state.shape, weights, state.round, path)

    @property
    def _to_keep(self) -> Base | None:
        return self._base if self._has_replica else None

    def _count_sent(self, to: PeerId, message: Message) -> None:
        super()._count_sent(to, message)
        if isinstance(message, Chunk) and self._faults is not None:
            self._faults.exchanged(message, len(self.outer.exchange))
