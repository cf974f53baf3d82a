"""What a run of replicas writes of ours on this node: checkpoints while it goes on, and one at a stop.

Nobody else has our replica, so it is kept at every stop, and we go on from it if the run has not gone on too far.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK
from shoal.node.base.refusals import CODES
from shoal.node.ipc.shm import FloatArray
from shoal.node.run.facts import first_history
from shoal.node.run.saving import Saving
from shoal.node.supervisor.training import Training
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.keep import prune
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.node.training.checkpoint.scan import CHECKPOINTS, folder_name, newest_first
from shoal.node.training.checkpoint.write import sweep, write_checkpoint
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.shortages import is_temporary

FOLDER = "rest"  # in a run's folder

log = logging.getLogger("shoal.run")


class ReplicaSaving(Saving):
    """One run's files."""

    async def checkpoint_own(self, round: int, root: Digest, samples: int, training: Training | None) -> None:
        """The same as `checkpoint`, of our replica after a round."""
        if not self.keeper.is_due(round):
            return
        lease = self._state.lease(root)
        moments = await training.moments() if training is not None else None
        self._write = self._spawn(self.keeper.write(lease, self._about_own(round, root, samples, moments), moments))

    async def end_own(self, samples: int, training: Training | None, for_good: bool) -> None:
        """We have parted: keep our replica, or forget it if we leave for good; LocalError if it cannot be kept."""
        if for_good:
            await DISK.run(forget_own, self._run_folder)
        elif self._run_folder.exists() and self._state.current.round:
            moments = await training.moments() if training is not None else None
            await DISK.run(self._keep_own, samples, moments)

    def _keep_own(self, samples: int, moments: FloatArray | None) -> None:
        folder = self._run_folder / FOLDER
        with self._state.lease() as snapshot:
            if (folder / folder_name(snapshot.round)).exists():
                return  # it was kept at the last stop, and no round is over since
            try:
                folder.mkdir(exist_ok=True)  # never its parents: a home that was removed stays so
                sweep(folder)
            except OSError as error:
                raise LocalError(
                    f"cannot keep the replica in {folder}: {error.strerror}",
                    code=CODES.get(error.errno or 0, "unwritable"),
                ) from error
            about = self._about_own(snapshot.round, snapshot.root, samples, moments)
            write_checkpoint(folder, about, snapshot, moments)
        prune(folder, 1)
        log.info(
            "our replica of %s is kept here until we are back, after round %d", self._manifest.name, snapshot.round
        )

    def _about_own(self, round: int, root: Digest, samples: int, moments: FloatArray | None) -> About:
        base = Base(round, 0, first_history(self._manifest), root)
        return self._about(base, (), samples, moments)


def forget_own(run_folder: Path) -> None:
    """We have left for good, or begin anew."""
    folder = run_folder / FOLDER
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        warn(log, "rest-not-removed", f"cannot remove {folder}, which is of no use any more: {error.strerror}")


def load_own(run_folder: Path) -> Checkpoint | None:
    """Our own replica as we have left it, the latest that is whole and of this run; None if there is none."""
    found = [each for name in (FOLDER, CHECKPOINTS) for each in newest_first(run_folder / name)]
    for each in sorted(found, key=lambda each: each.about.round if each.about is not None else -1, reverse=True):
        try:
            kept = load(each.path)
        except LocalError as error:
            if is_temporary(error):
                raise
            warn(log, "rest-damaged", f"a replica of ours is passed over: {error}")
            continue
        if kept.about.run == run_folder.name:
            return kept
        warn(log, "rest-damaged", f"{kept.path} is of another run, and passed over")
    return None
