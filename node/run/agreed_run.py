"""A run whose members agree on its state, round by round: all apply what is decided, to the same bits."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK, ROUNDS
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Introduction
from shoal.node.peers.reach import own_standing
from shoal.node.run.facts import run_facts, samples_before, trust_of
from shoal.node.run.log_store import LogStore
from shoal.node.run.run import Run
from shoal.node.run.saving import finish_leaving, newest_state
from shoal.node.run.settings import RunSettings
from shoal.node.training.checkpoint.lineage import check_fits
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.data.lanes import lane_after
from shoal.node.training.methods.method import has_own_weights
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.state.draft import Draft
from shoal.node.training.state.file import save_weights
from shoal.node.training.state.outer import OuterState
from shoal.protocol.averaging.events import Begun, Committed, Lapsed
from shoal.protocol.averaging.policy import Base, Ready
from shoal.protocol.averaging.replay import base_after, base_without, rounds_after
from shoal.protocol.base.effects import Event
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, short
from shoal.protocol.base.signing import Signer
from shoal.protocol.catchup.transfer import StateReceived
from shoal.protocol.log.branches import fork_of
from shoal.protocol.log.keeper import Switched
from shoal.protocol.log.register import Rules, who_left
from shoal.protocol.member.facts import PART, RunFacts
from shoal.protocol.member.member import FallsBehind, Member
from shoal.protocol.member.past import Past, recall
from shoal.protocol.messages.log import Register
from shoal.protocol.net.peers.network import Network

log = logging.getLogger("shoal.run")


class AgreedRun(Run):
    """A member of such a run."""

    member: Member
    outer: OuterState

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
        """`checkpoint` is that of the manifest's origin; without it, such a run's state is downloaded.

        `is_founding`: the run begins here and now; its author votes then, and in no other first life.
        """
        manifest, genesis = found.manifest, found.genesis
        check_fits(manifest, checkpoint)
        holds_origin = checkpoint is not None or manifest.origin is None
        store = LogStore(settings.folder)
        rules = Rules(trust_of(manifest), signer)
        first = store.first()
        finish_leaving(store)
        snapshot = newest_state(settings.folder, genesis.run) if first else None  # a log must certify it
        saved = snapshot or checkpoint
        outer = OuterState(manifest, saved.committed() if saved is not None else None, settings.trains)
        seeded = outer.root if saved is None else NO_DIGEST
        if first is not None and not first.number:
            seeded = first.parts[PART].root
        self._facts = run_facts(
            manifest, genesis.run, genesis.author, seeded=seeded, chunks=outer.chunks, anchor=found.anchor
        )
        past = recall(self._facts, store.open(self._facts.register(), rules, is_founding), rules)
        self._base = _standing(self._facts, past, snapshot, outer) if snapshot or holds_origin else None
        if snapshot is not None and self._base is None and holds_origin:  # it does not go with the log that is here
            outer = OuterState(manifest, checkpoint.committed() if checkpoint is not None else None, settings.trains)
            self._base = _standing(self._facts, past, None, outer)
            snapshot, saved = None, checkpoint
        super().__init__(found, signer, network, settings, outer, saved, store)
        self._members = tuple(map(PeerId, saved.about.members)) if saved is not None else ()
        self._was_stopped = store.had_kept_vote or signer.peer in who_left(past.kept.register)
        if snapshot is not None and self._base is not None:
            self.saving.forget_means(self._base.round)  # an earlier process may have had no time to
        if self._base is not None:
            self._replay(past)
            past.keep_tables(self._base.round, store.means.whole_tables)
        past.keep_means(self._base, store.means.read)
        past.archive = store.means
        self._past: Past | None = past  # until the member has it

    def _replay(self, past: Past) -> None:
        """Apply the results whose means are on our disk, so that we stand where we stood."""
        assert self._base is not None
        for round, decision in rounds_after(self._base, past.outcomes, self.store.means.read):
            if decision is None:
                self._base = base_without(self._base, self.outer.committed.skip(round).round)
                continue
            if decision.result.base_root != self.outer.root:
                return  # what our disk says of the state is wrong; others, or proof, will tell
            snapshot = self.outer.apply(decision.payloads)
            self._base = base_after(self._base, decision, snapshot.root)
            self.samples += decision.tokens
            self._members = decision.roster

    @property
    def _lane(self) -> int:
        return lane_after(self._members, self.me)

    @property
    def is_stuck(self) -> bool:
        """See Run: this member alone is no quorum of the voters."""
        return self.is_alone and not self.member.log.is_quorum([self.me])

    def _make_member(self) -> Member:
        past, self._past = self._past, None
        assert past is not None
        return Member(
            self.me,
            self._network.addresses(),
            self._facts,
            past,
            self._base,
            self._signer,
            self.outer.reducer,
            self._states,
            random.Random(),
            trains=self._settings.trains,
        )

    def _on_outcome(self, event: Event) -> None:
        if isinstance(event, Committed | StateReceived | Lapsed):
            self._sources.forget()
        match event:
            case Committed():
                self._tasks.spawn(self._apply(event, self.driver.results_written()))
            case StateReceived():
                if (draft := self._states.take(event.base.round)) is not None:
                    self._tasks.spawn(self._install(event, draft))
            case Begun():
                self.detours.begun(event, self._network.own_addresses())
            case Lapsed():
                self._tasks.spawn(self._lapse(event))
            case FallsBehind(behind):
                words = f"{behind} rounds behind, and results come or are applied here more slowly than they are made"
                warn(log, "falls-behind", f"{self.manifest.name}: {words}; a later state is fetched")
            case Switched(before, register):
                self._tasks.spawn(self._leave_branch(before, register))

    async def _leave_branch(self, before: Register, register: Register) -> None:
        """Others have done more on another branch: what is on our disk is of this one no more."""
        self.branches.left(register)
        async with self._busy:  # after the last round of that branch that is being applied
            dropped = self.commits.cut(fork_of(before, register))
            if dropped:
                self.driver.timelines.forget(dropped[0].round)
            self.branches.dropped(dropped, await self.saving.set_aside(short(before.branch)))

    async def _apply(self, event: Committed, results: asyncio.Future[bool]) -> None:
        """The outer step on what was decided; only when it is read back do we say so. `results`: see Saving."""
        async with self._busy:
            decision = event.decision
            snapshot: Snapshot = await ROUNDS.run(self.outer.apply, decision.payloads)
            self.samples += decision.tokens
            self._members = decision.roster
            if self.training is not None:
                self.training.note(decision.round, self.outer.outcome(event))
            base = self.member.rounds.base_with(decision, snapshot.root)  # before we may leave this branch of the log
            self.driver.command(lambda now: self.member.applied(now, snapshot.root))
            driver, resent = self.driver, self.outgoing.resent
            record = self.commits.add(
                decision, base.history, self.me, driver.now(), resent, driver.phases, self.samples
            )
            self.meters.committed(record.round_samples, record.seconds, took_part=record.took_part)
            log.info("round %d committed: history %s, state %s", record.round, record.digest[:8], short(snapshot.root))
            is_saved = self._shortening(base.round)
            await self.saving.checkpoint(base, self._members, self.samples, self.training, results, is_saved)
        self._begin_round(goes_on=True)

    async def _lapse(self, event: Lapsed) -> None:
        """A round is over without a result: its state is that before it."""
        async with self._busy:
            snapshot = self.outer.committed.skip(event.round)
            self.meters.voided()
            warn(log, "round-undone", f"the result of round {event.round} is lost on all disks: it counts for nothing")
            self.driver.command(lambda now: self.member.applied(now, snapshot.root))
        self._begin_round()

    async def _install(self, event: StateReceived, draft: Draft) -> None:
        """A state that others have sent us, and that is certified: if it does not fit, this run is not for us."""
        async with self._busy:
            self.outer.committed.adopt(await ROUNDS.run(draft.snapshot))
            self.samples = samples_before(self.manifest) + self.member.certified.tokens(event.base.round)
            await self.saving.received(event.base, self._members, self.samples)
        log.info("caught up with round %d: state %s", event.base.round, short(event.base.root))
        self._open_round = 0  # what was trained from another state is of no use, even in the same round
        self.driver.command(lambda now: self.member.opened(now, event.base))
        self._begin_round()

    def _offer(self, round: int, tokens: int, vector: FloatArray | None) -> None:
        reached = own_standing(self._network, self.member.membership)
        ready = Ready(min(tokens, self.manifest.rounds.max_weight), *self._network.bandwidth.claim(), reached)
        contribution = self.outer.encoder(vector, round) if vector is not None else None
        if contribution is not None:
            self._sources.submit(round, contribution)
        self.driver.command(lambda now: self.member.submit(now, ready, contribution))

    def _absent(self, round: int) -> None:
        """The others need our vote: we are ready for the round, with nothing."""
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

    @property
    def _to_keep(self) -> Base | None:
        """Also if the member was closed while it was told of a round that is applied by now."""
        state, certified = self.outer.committed.current, self.member.certified
        is_known = self.member.held_round is not None and certified.history(state.round) is not None
        if (
            not self.member.keeps_vote
            or not is_known
            or certified.certified_root(state.round) not in (None, state.root)
        ):
            return None
        return certified.base(state.round, state.root)


def _standing(facts: RunFacts, past: Past, snapshot: Checkpoint | None, outer: OuterState) -> Base | None:
    """Where we stand with the state that is here; None if our log does not know it."""
    if snapshot is None:  # the state is the run's first
        is_whole = past.kept.first.parts[PART].round == facts.origin.round
        return facts.origin if is_whole and outer.root == facts.origin.root else None
    round, root = snapshot.about.round, outer.root
    history = past.certified.history(round)
    if history is None or history.hex() != snapshot.about.history:
        return None  # later than our log, or of another branch of it
    if past.certified.certified_root(round) not in (None, root):
        return None
    return past.certified.base(round, root)
