"""Trains a part in a run: founds the run from the furthest file, watches it, makes files of its state, and leaves it.

Rules:
- The run begins with the furthest file of the part that is available; without one, with the seed of its model, or the
  parameters that follow from the manifest's seed. A file that is not of the part's model is ignored, and its author is
  named.
- A peer that was alone in a run when it was killed may lack the state that it voted for. Then it founds the run again,
  from its own newest checkpoint if that is further than the furthest file.
- A worker that makes no step for HELPLESS seconds, crash after crash, counts as a failure, so that a part does not wait
  for a machine that cannot train it.
- A file is made of the committed state every `publish_every` rounds, at the round where that is noticed, and of the
  last round. Training goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.base.home import Home
from shoal.node.base.logs import warn
from shoal.node.base.pools import LONG
from shoal.node.experts.library import Library
from shoal.node.experts.needs import CommittedRound, NodeRuns, PartRun
from shoal.node.experts.parts import PARTITION, SEED, experts_of, last_round, own_seeds, part_manifest, seed_of, words
from shoal.node.experts.view import View
from shoal.node.manifest.experts import PartSpec
from shoal.node.manifest.manifest import Introduction, Manifest
from shoal.node.training.data.store import Dataset
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError
from shoal.protocol.base.ids import Digest, PeerId, RunId, digest
from shoal.protocol.messages.directory import ExpertCard

if TYPE_CHECKING:
    from shoal.node.experts.files import StartingPoint
    from shoal.node.training.checkpoint.read import Checkpoint

STRANDED = 5.0  # seconds that a run waits for a state that no peer has
HELPLESS = 120.0  # seconds without a step after a worker has crashed

log = logging.getLogger("shoal.experts")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that was made here, and the round that it is of."""

    part: PartSpec
    file: Dataset
    record: CommittedRound


class LastingCondition:
    """Whether a condition has held for a while without a break."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._since = seconds, inf

    def holds(self, is_now: bool, now: float) -> bool:
        """Note whether the condition is met now; whether it has lasted."""
        self._since = min(self._since, now) if is_now else inf
        return now - self._since >= self._seconds


class PartTraining:
    """The training of one family's part on this node. `part` and `run` name the part and its run; empty if none."""

    def __init__(
        self,
        family: Manifest,
        id: RunId,
        runs: NodeRuns,
        library: Library,
        view: View,
        home: Home,
        me: PeerId,
        held: Mapping[str, ExpertCard],
        remember: Callable[[], Awaitable[None]],
    ) -> None:
        """`held` has the newest file of each part that is here; `remember` records part and run on disk."""
        self._held, self._remember = held, remember
        self.part = self.run = ""
        self._family, self._id = family, id
        self._runs, self._library, self._view = runs, library, view
        self._home, self._me = home, me
        self._stranded, self._helpless = LastingCondition(STRANDED), LastingCondition(HELPLESS)

    @property
    def open_run(self) -> PartRun | None:
        """The part's run, if it is open."""
        return self._runs.open.get(self.run)

    async def go_on(self, part: PartSpec) -> NewFile | None:
        """Have the part trained. Returns a new file if one is due.

        LocalError or TransportError if the part cannot be trained.
        """
        if self.run in self._runs.restoring:
            return None
        run, before = self.open_run, self.run
        if run is not None and (failure := self._failure(run)):
            await self.leave()
            raise LocalError(failure, code="run-failed")
        if run is None or self._is_stranded(run):
            await self.leave()
            await self._begin(part, before)
            return None
        return await self._new_file(part, run)

    async def leave(self) -> None:
        """Leave the run, if there is one."""
        run, self.run, self.part = self.run, "", ""
        if run and self._runs.has(run):
            await self._runs.leave(run)

    # -- beginning --------------------------------------------------------------------------------------------

    async def _begin(self, part: PartSpec, before: str) -> None:
        """Found the part's run; `before` is the run in which we trained it until now."""
        manifest = part_manifest(self._family, part)
        await self._partition()
        start = await self._furthest(part) or await self._seed(part)
        found, checkpoint = await LONG.run(self._prepare, manifest, start, before)
        self.run, self.part = found.run.hex(), part.name
        await self._remember()  # before we are in it, so that a run is never forgotten, after a crash or when we leave
        await self._runs.found(found, True, checkpoint)
        at = found.manifest.first_round - 1
        log.info("training the part %s of %s from round %d in run %s", part.name, self._family.name, at, self.run[:8])

    def _prepare(self, manifest: Manifest, start: StartingPoint, before: str) -> tuple[Introduction, Checkpoint]:
        from shoal.node.experts.files import begin, begin_again

        sign = self._runs.sign
        again = begin_again(manifest, sign, self._home, before, start.round) if before else None
        return again or begin(manifest, sign, start, self._home, self._me)

    async def _furthest(self, part: PartSpec) -> StartingPoint | None:
        from shoal.node.experts.files import StartingPoint

        known = {card.file: card for card in self._view.cards(part.name)}
        if (held := self._held.get(part.name)) is not None:
            known[held.file] = held
        for card in sorted(known.values(), key=lambda card: -card.round):
            if card.round >= last_round(self._family, part) or not await self.obtain(card):
                continue
            return StartingPoint(
                self._library.path(card.file), card.round, self._history(card.part, card.file), card.tokens
            )
        return None

    async def _seed(self, part: PartSpec) -> StartingPoint:
        from shoal.node.experts.files import StartingPoint

        name, origin = seed_of(self._family, part), self._family.origin
        if name is None:
            return StartingPoint(None, 0, self._history(part.name), 0)
        file = await self._common(name)
        if name == SEED and origin is not None:
            return StartingPoint(file, 0, Digest(bytes.fromhex(origin.history)), origin.samples)
        assert part.seed is not None
        named = Digest(bytes.fromhex(part.seed.file))
        return StartingPoint(file, 0, self._history(part.name, named), part.seed.tokens)

    async def _partition(self) -> None:
        """Fetch the file that says which texts are the part's, if the manifest names one."""
        clusters = experts_of(self._family).clusters
        if clusters is None or not clusters.file:
            return
        await self._common(PARTITION)

    async def _common(self, name: str) -> Path:
        """The family's common file of that name (parts.py)."""
        for card in self._view.cards(name):
            if await self.obtain(card):
                return self._library.path(card.file)
        raise TransportError(f"nobody that can be reached gives {words(name, 0)}")

    def _history(self, part: str, *file: Digest) -> Digest:
        return digest("expert history", self._id, part.encode(), *file)

    # -- files ------------------------------------------------------------------------------------------------

    async def obtain(self, card: ExpertCard) -> bool:
        """Whether the card's file is here, fetched if need be, and valid. LocalError if there is no room."""
        try:
            if not await self._library.open(card) and not self._holders(card):
                raise TransportError(f"nobody that lives has {words(card.part, card.round)}")
            path = await self._library.fetch(card, partial(self._holders, card))
        except TransportError as error:
            log.info("%s", error)
            self._view.gone(card)
            return False
        try:
            await LONG.run(self._check, card)
        except LocalError as error:
            blame = RemoteError(f"published a file that is no expert of {self._family.name}: {error}", card.author)
            warn(log, "expert-refused", f"{blame}; it is not used")
            self._view.refuse(card)
            await self._library.drop(card.file)
            return False
        return path.exists()

    def _holders(self, card: ExpertCard) -> list[PeerId]:
        return self._view.holders(asyncio.get_running_loop().time(), card)

    def _check(self, card: ExpertCard) -> None:
        from shoal.node.experts.files import read_parameters
        from shoal.node.experts.founding import check_seed

        path, clusters = self._library.path(card.file), experts_of(self._family).clusters
        if card.part == PARTITION:
            from shoal.node.training.data.partition import read

            assert clusters is not None
            read(path, clusters)
            return
        if card.part == SEED:
            check_seed(path, self._family)
            return
        part = experts_of(self._family).part(card.part) or own_seeds(self._family)[card.part]
        read_parameters(path, part.model or self._family.model)

    async def _new_file(self, part: PartSpec, run: PartRun) -> NewFile | None:
        from shoal.node.experts.files import write_parameters

        cards = [card.round for card in self._view.cards(part.name)]
        done, every = max(cards, default=0), experts_of(self._family).publish_every
        with run.committed.lease() as snapshot:
            is_due = snapshot.round // every > done // every or run.is_finished
            record = run.committed_round(snapshot.round)
            if snapshot.round <= done or not is_due or record is None:  # the record follows a moment after the state
                return None
            made = await self._library.make(partial(write_parameters, snapshot=snapshot))
        return NewFile(part, made, record)

    def _failure(self, run: PartRun) -> str:
        """Why this node cannot train in the run; empty if it can."""
        is_helpless = self._helpless.holds(bool(run.trouble), asyncio.get_running_loop().time())
        return run.failure or (f"nothing is trained any more: {run.trouble}" if is_helpless else "")

    def _is_stranded(self, run: PartRun) -> bool:
        """Whether we have voted on rounds beyond our state, and no other peer may have the state."""
        is_waiting = run.is_stuck
        return self._stranded.holds(is_waiting, asyncio.get_running_loop().time())
