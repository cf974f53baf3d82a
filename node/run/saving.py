"""What a run writes of its state on this node: checkpoints while it goes on, and all of it at a stop if need be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from shoal.node.base.pools import DISK
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Manifest
from shoal.node.run.facts import samples_before
from shoal.node.run.resting import forget_rest, save_rest
from shoal.node.run.settings import RunSettings
from shoal.node.supervisor.training import Training
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.keep import Keeper
from shoal.node.training.checkpoint.scan import CHECKPOINTS
from shoal.node.training.state.committed import CommittedState
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.member.member import Member
from shoal.protocol.messages.rounds import Proposal
from shoal.protocol.rounds.agreement.certificate import next_base
from shoal.protocol.rounds.agreement.roster import Base
from shoal.protocol.rounds.rest import Rest

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

log = logging.getLogger("shoal.run")


class Saving:
    """One run's files. `spawn` runs a coroutine beside us."""

    def __init__(
        self, manifest: Manifest, me: PeerId, state: CommittedState, settings: RunSettings, spawn: Spawn
    ) -> None:
        self.keeper = Keeper(settings.folder / CHECKPOINTS, settings.keeping, manifest.rounds.last)
        self._manifest = manifest
        self._me = me
        self._state = state
        self._folder: Path = settings.folder
        self._spawn = spawn
        self._write: asyncio.Task[None] | None = None  # of the latest checkpoint, which waits for those before it

    async def checkpoint(self, proposal: Proposal, root: Digest, samples: int, training: Training | None) -> None:
        """Take what belongs to a round, if it is due, before the next one changes it; it is written beside us."""
        if not self.keeper.is_due(proposal.round):
            return
        lease = self._state.lease(root)
        moments = await training.moments() if training is not None else None
        about = self._about(next_base(proposal, root), proposal.members, samples, moments)
        self._write = self._spawn(self.keeper.write(lease, about, moments))

    async def written(self) -> None:
        """Wait for checkpoints that are under way."""
        if self._write is not None:
            await asyncio.wait([self._write])

    async def end(self, member: Member, training: Training | None, for_good: bool) -> None:
        """We have parted, and nothing changes any more: keep the run if nobody else may, forget it if others go on.

        LocalError if it is to be kept, and cannot be.
        """
        rest = None if for_good else member.rest()
        if rest is not None:
            await self._keep(rest, member, training)
        elif for_good or member.rounds.departure.has_signed_off:
            await DISK.run(forget_rest, self._folder)

    async def _keep(self, rest: Rest, member: Member, training: Training | None) -> None:
        if not self._folder.exists():
            return  # the node's home was removed, which is why it ends: nothing is ours to keep there
        name, last = self._manifest.name, self._manifest.rounds.last
        is_finished = last is not None and rest.newest >= last  # then nobody trains on
        moments = await training.moments() if training is not None and not is_finished else None
        base, members = member.history.base(rest.round, rest.root), rest.made_by.members if rest.made_by else ()
        samples = samples_before(self._manifest) + member.history.samples(rest.round)
        # round 0 is made of the seed, unless it is the founder's
        about = self._about(base, members, samples, moments) if rest.round or self._manifest.origin else None
        try:
            with self._state.lease(rest.root) as snapshot:
                await DISK.run(save_rest, self._folder, rest, about, snapshot, moments)
        except LocalError as error:
            raise LocalError(f"{error}; if all members of {name} stop, it cannot go on", code=error.code) from error
        log.info("the run %s is kept here until we are back, after round %d", name, rest.newest)

    def _about(self, base: Base, members: tuple[PeerId, ...], samples: int, moments: FloatArray | None) -> About:
        steps = int(moments[0]) if moments is not None else 0
        return About.of(self._manifest, base, members, samples=samples, peer=self._me, inner_steps=steps)
