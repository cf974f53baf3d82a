"""When a daemon writes checkpoints of a run, and which ones it keeps.

A checkpoint is due every so many rounds, and after the last one. One is written at a time, in a thread, while training
goes on; if the next is due before it is finished, that one is left out (but never the last). Old ones are removed only
after the newest is complete. On a full disk there is no checkpoint, but the run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from shoal.node.base.logs import warn
from shoal.node.base.malloc import trim
from shoal.node.base.options import CHECKPOINT_EVERY, CHECKPOINT_KEEP
from shoal.node.base.pools import DISK
from shoal.node.ipc.shm import FloatArray
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.scan import newest_first
from shoal.node.training.checkpoint.write import remove, sweep, write_checkpoint
from shoal.node.training.state.committed import Lease
from shoal.protocol.base.errors import LocalError

log = logging.getLogger("shoal.checkpoint")


@dataclass(frozen=True, slots=True)
class Keeping:
    """How often checkpoints are written, and how many are kept."""

    every: int = CHECKPOINT_EVERY  # rounds; 0: never
    kept: int = CHECKPOINT_KEEP


class Keeper:
    """Writes and removes the checkpoints of one run on this node."""

    def __init__(self, folder: Path, keeping: Keeping, last: int | None) -> None:
        """`folder` is that of the run's checkpoints; `last` is the run's last round."""
        self._folder = folder
        self._keeping = keeping
        self._last = last
        newest = next((each.about for each in newest_first(folder) if each.about is not None), None)
        self.newest = newest.round if newest is not None else 0
        self.newest_at = newest.saved_at if newest is not None else None  # seconds since 1970

    def is_due(self, round: int, is_busy: bool = False) -> bool:
        """Whether a checkpoint of `round`, which is committed, is to be written.

        While another one `is_busy`, being written or waiting for that, only the last is: each holds a state in memory.
        """
        if not self._keeping.every or (round != self._last and round % self._keeping.every):
            return False
        if is_busy and round != self._last:
            warn(log, "checkpoint-late", f"no checkpoint of round {round}: the one before is not written yet")
            return False
        return True

    def begin_anew(self) -> None:
        """The checkpoints that are here are of another branch of the run, and about to be set aside."""
        self.newest, self.newest_at = 0, None

    async def write(
        self, lease: Lease, about: About, moments: FloatArray | None, ready: Awaitable[bool] | None = None
    ) -> None:
        """Writes a checkpoint, removes old ones, and releases `lease`; failures are logged, not raised.

        With `ready` it waits for that, and writes nothing if it is False. Never while another one is being written:
        what that has not finished would be swept away.
        """
        if ready is not None and not await ready:
            lease.release()
            return
        try:
            path = await DISK.run(self._write, lease, about, moments)
        except LocalError as error:
            warn(log, "checkpoint-failed", f"{error}; the run goes on without it")
        else:
            self.newest, self.newest_at = about.round, about.saved_at
            log.info("checkpoint of round %d: %s", about.round, path)
        del moments
        await DISK.run(trim)  # much memory was just freed

    def _write(self, lease: Lease, about: About, moments: FloatArray | None) -> Path:
        with lease as snapshot:
            sweep(self._folder)
            path = write_checkpoint(self._folder, about, snapshot, moments)
        prune(self._folder, self._keeping.kept)
        return path


def prune(folder: Path, kept: int) -> None:
    """Removes everything older than the newest `kept` complete checkpoints; LocalError if that fails."""
    found = newest_first(folder)
    whole = [index for index, each in enumerate(found) if each.about is not None]
    if len(whole) <= kept:
        return
    try:
        for each in found[whole[kept - 1] + 1 :]:
            remove(each.path)
    except OSError as error:
        raise LocalError(f"cannot remove old checkpoints in {folder}: {error.strerror}", code="unwritable") from error
