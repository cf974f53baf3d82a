"""What a run writes of its state on this node, and finds again: checkpoints, and a snapshot beside the log.

There is a snapshot when the log gets long, when the state has come from others, so that no rounds on this disk lead to
it, and at a stop if nobody else may have the state, as with a replica.

What is saved when a branch of the run is left is set aside before anything of the other branch is saved: by the next
process (`finish_leaving`), if this one is killed before. A replica is kept, whatever the branch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from shoal.node.base.atomic import force
from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK, RECORDS
from shoal.node.base.refusals import CODES
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Manifest
from shoal.node.run.log_store import FOLDER as LOG
from shoal.node.run.log_store import LEFT, LONGEST, STATE, LogStore
from shoal.node.run.settings import RunSettings
from shoal.node.supervisor.training import Training
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.keep import Keeper, prune
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.node.training.checkpoint.scan import CHECKPOINTS, newest_first
from shoal.node.training.checkpoint.write import sweep, write_checkpoint
from shoal.node.training.state.committed import CommittedState, Lease
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.shortages import in_words, is_temporary

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

LONG_LOG = 64 << 20  # bytes of means that are kept at least before there is a snapshot of the state,
STATES = 4  # and as many times the bytes of a state
SPARED = 64 << 20  # bytes of means that stay for others when there is one, or as many as a state has
SPARING = 100  # rounds between two snapshots that are written only so that the journal can be made shorter

log = logging.getLogger("shoal.run")


class Saving:
    """One run's files. `spawn` runs a coroutine beside us."""

    def __init__(
        self,
        manifest: Manifest,
        run: RunId,
        me: PeerId,
        state: CommittedState,
        settings: RunSettings,
        spawn: Spawn,
        store: LogStore,
    ) -> None:
        """`store` has the run's log."""
        self.keeper = Keeper(settings.folder / CHECKPOINTS, settings.keeping, manifest.rounds.last)
        self._manifest, self._run = manifest, run
        self._me = me
        self._state = state
        self._run_folder = settings.folder
        self._store = store
        self._spawn = spawn
        self._snapshot_of = -1  # the round of the last snapshot beside the log
        self._left = ""  # the branch whose states could not be set aside yet
        self._aside: Path | None = None  # where what was saved of that branch is
        self._write: asyncio.Task[None] | None = None  # the latest, which waits for those before it
        self._checkpoint: asyncio.Task[None] | None = None  # the latest of these

    async def checkpoint(
        self,
        base: Base,
        members: tuple[PeerId, ...],
        samples: int,
        training: Training | None,
        results: Awaitable[bool] | None,
        is_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what belongs to the state `base`, if it is due, before the next round changes it; written beside us.

        That comes once the means that led to it are on the disk, and not at all if they never will be: so whoever
        starts again with this state can serve them to those who lack them. `results` tells that; None: there are none.
        `is_saved` is called once the state is on the disk.
        """
        is_due = self.keeper.is_due(base.round, self._checkpoint is not None and not self._checkpoint.done())
        if not (is_due or self._is_long(base.round)) or not await self._are_ours():
            return
        lease = self._state.lease(base.root)
        moments = await training.moments() if training is not None else None
        about = self._about(base, members, samples, moments)
        save = self.keeper.write if is_due else self._snapshot
        self._write = self._spawn(
            self._in_turn(self._write, save(lease, about, moments, results), base.round, is_saved)
        )
        self._checkpoint = self._write if is_due else self._checkpoint

    async def received(self, base: Base, members: tuple[PeerId, ...], samples: int) -> None:
        """Have on our disk the state `base`, which others have sent us; written beside us."""
        if not await self._are_ours():
            return
        write = self._snapshot(self._state.lease(base.root), self._about(base, members, samples, None), None)
        self._write = self._spawn(self._in_turn(self._write, write, base.round))

    @property
    def newest(self) -> int:
        """The last round after which the state is on our disk; -1: none."""
        return max(self.keeper.newest, self._snapshot_of)

    async def keep(self, base: Base, members: tuple[PeerId, ...], samples: int, training: Training | None) -> bool:
        """Keep the state with what only this node has of it, its worker's moments, until it is back; whether we did."""
        if not self._store.folder.exists():
            return False  # the node's home was removed, which is why it ends: nothing is ours to keep there
        is_over = self._manifest.rounds.last is not None and base.round >= self._manifest.rounds.last
        moments = await training.moments() if training is not None and not is_over else None
        await self.written()
        await self._finish_leaving()
        await self._snapshot(self._state.lease(base.root), self._about(base, members, samples, moments), moments)
        await RECORDS.run(self.forget_means, base.round)
        return True

    def forget_means(self, round: int) -> None:
        """The state after `round` is on our disk: of those before it only what others may want is kept. Blocks."""
        self._store.forget_means(round, self.spared)

    @property
    def spared(self) -> int:
        """Bytes of means that stay for others: beyond a state's they had better download the state."""
        return max(SPARED, self._state_size)

    async def written(self) -> None:
        """Wait for checkpoints and snapshots that are under way."""
        if self._write is not None:
            await asyncio.wait([self._write])

    async def set_aside(self, branch: str) -> Path | None:
        """What is saved is of a branch of the run that we have left: whoever wants it finds it beside the others.

        Returns in which folder; None: nothing was saved, or it could not be moved.
        """
        await self.written()
        self._left, self._snapshot_of, self._aside = branch, -1, None
        self.keeper.begin_anew()
        await self._are_ours()
        return self._aside

    async def _are_ours(self) -> bool:
        """Whether all that is saved is of the branch that we are on, or is by now."""
        try:
            await self._finish_leaving()
        except LocalError as error:
            warn(log, "checkpoint-failed", f"{error}; before that no checkpoint is written")
            return False
        return True

    async def _finish_leaving(self) -> None:
        """Set aside what is still here of a branch that we have left; LocalError if that cannot be done."""
        if self._left:
            self._aside = await DISK.run(_set_aside, self._run_folder, self._left)
            self._left = ""

    def _is_long(self, round: int) -> bool:
        """Whether the means since the last snapshot take more room than it would, or the journal is to be cut there."""
        if self._write is not None and not self._write.done():
            return False
        if self._store.size > LONGEST and round >= self.newest + SPARING:
            return True
        return self._store.means.size > max(LONG_LOG, STATES * self._state_size)

    @property
    def _state_size(self) -> int:
        return sum(chunk.size for chunk in self._state.shape.chunks)

    async def _in_turn(
        self,
        before: asyncio.Task[None] | None,
        write: Coroutine[Any, Any, None],
        round: int,
        is_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Write, once what was begun before is written; then forget the means that nobody needs any more."""
        if before is not None:
            await asyncio.wait([before])
        try:
            await write
            if round in (self.keeper.newest, self._snapshot_of):
                is_saved()
                await RECORDS.run(self.forget_means, round)
        except LocalError as error:
            warn(log, "checkpoint-failed", f"{error}; the run goes on with more on its disk")

    async def _snapshot(
        self, lease: Lease, about: About, moments: FloatArray | None, results: Awaitable[bool] | None = None
    ) -> None:
        folder = self._store.folder / STATE
        if results is not None and not await results:
            lease.release()
            return

        def write() -> None:
            with lease as snapshot:
                try:
                    folder.mkdir(exist_ok=True)
                    sweep(folder)
                except OSError as error:
                    raise LocalError(
                        f"cannot keep the state of {self._manifest.name} in {folder}: {in_words(error)}",
                        code=CODES.get(error.errno or 0, "unwritable"),
                    ) from error
                write_checkpoint(folder, about, snapshot, moments)
            prune(folder, 1)

        await DISK.run(write)
        self._snapshot_of = about.round

    def _about(self, base: Base, members: tuple[PeerId, ...], samples: int, moments: FloatArray | None) -> About:
        steps = int(moments[0]) if moments is not None else 0
        return About.of(self._manifest, self._run, base, members, samples=samples, peer=self._me, inner_steps=steps)


def finish_leaving(store: LogStore) -> None:
    """Set aside the states of a branch that an earlier process has left; LocalError if that cannot be done."""
    if store.has_left():
        _set_aside(store.folder.parent, "branch")


def _set_aside(run_folder: Path, branch: str) -> Path | None:
    """Where they are now, if there were any; LocalError if that cannot be done: then it can be begun again."""
    aside = run_folder / f"set-aside-{branch}-{time.time_ns()}"  # a branch may be left twice
    try:
        _move_states(run_folder, aside)
        (run_folder / LOG / LEFT).unlink(missing_ok=True)
        force(run_folder / LOG)
    except OSError as error:
        raise LocalError(
            f"cannot set aside what is saved in {run_folder} of a branch that was left: {in_words(error)}",
            code=CODES.get(error.errno or 0, "unwritable"),
        ) from error
    return aside if aside.exists() else None


def _move_states(run_folder: Path, aside: Path) -> None:
    """All of the run's states, so that a crash does not undo it. Raises OSError."""
    folders = [each for each in (run_folder / CHECKPOINTS, run_folder / LOG / STATE) if each.exists()]
    for folder in folders:
        aside.mkdir(exist_ok=True)
        folder.rename(aside / folder.name)
    if folders:
        for changed in (aside, run_folder, run_folder / LOG):
            force(changed)


def newest_state(run_folder: Path, run: RunId) -> Checkpoint | None:
    """The newest whole state of this run on our disk: a snapshot beside the log, or a checkpoint."""
    found = [each for folder in (run_folder / LOG / STATE, run_folder / CHECKPOINTS) for each in newest_first(folder)]
    for each in sorted(found, key=lambda each: each.about.round if each.about is not None else -1, reverse=True):
        try:
            checkpoint = load(each.path)
        except LocalError as error:
            if is_temporary(error):
                raise
            warn(
                log, "rest-damaged", f"a state of the run is passed over: {error}; an earlier one is, or others have it"
            )
            continue
        if checkpoint.about.run == run.hex():
            return checkpoint
    return None
