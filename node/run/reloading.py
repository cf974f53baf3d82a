"""What a node kept of a run on disk, read again or forgotten; states in threads, as reading them imports torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.base.home import Home
from shoal.node.base.logs import warn
from shoal.node.base.pools import LONG
from shoal.node.manifest.manifest import Introduction, check_manifest
from shoal.node.peers.remembered import Joined, recall_run, remembered_runs
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.shortages import is_temporary
from shoal.protocol.net.system.identity import Identity

if TYPE_CHECKING:
    from shoal.node.training.checkpoint.read import Checkpoint

log = logging.getLogger("shoal.daemon")


def recall(home: Home, identity: Identity, run: str, seeds: Sequence[PeerId] = ()) -> tuple[Introduction, Joined]:
    """What we had been told of a run, and how we were in it; its members may be `seeds`."""
    joined, run_id = recall_run(home, run), RunId(bytes.fromhex(run))
    if joined.genesis.run != run_id:
        raise LocalError(
            f"the record of the run in {home.run_folder(run)} is damaged, as it is about another run: leave this one, "
            "and join it again",
            code="record-damaged",
        )
    manifest = check_manifest(joined.genesis, identity.signer(run_id))
    return Introduction(manifest, joined.genesis, dict.fromkeys(seeds, ()), anchor=joined.anchor), joined


def names(home: Home, identity: Identity, runs: Sequence[str]) -> dict[str, str]:
    """The names of remembered runs by their ids, as far as they can be read now."""
    found = {}
    for run in runs:
        with suppress(ShoalError):  # whoever enters the run says what is wrong
            found[run] = recall(home, identity, run)[0].manifest.name
    return found


def remembers(home: Home, identity: Identity, fits: Callable[[Introduction], bool]) -> bool:
    """Whether we should be in a run that `fits`. What cannot be read just now may be that run, so that is raised."""
    for run in remembered_runs(home):
        try:
            found = recall(home, identity, run)[0]
        except ShoalError as error:
            if is_temporary(error):
                raise
            continue
        if fits(found):
            return True
    return False


async def load_checkpoint(folder: str) -> Checkpoint | None:
    """The checkpoint in a folder, verified; None if none is named."""
    if not folder:
        return None
    if not Path(folder).is_absolute():
        raise LocalError(f"{folder} is not an absolute path", code="bad-value")

    def load() -> Checkpoint:
        from shoal.node.training.checkpoint.read import load

        return load(Path(folder))

    return await LONG.run(load)


async def load_checkpoint_again(folder: str) -> Checkpoint | None:
    """The checkpoint that we came with; without it the others may still have the state, so that is a warning."""
    try:
        return await load_checkpoint(folder)
    except LocalError as error:
        if is_temporary(error):
            raise
        warn(log, "checkpoint-gone", f"the checkpoint that we came with cannot be used: {error}; others may have it")
        return None


async def forget_log(run_folder: Path) -> None:
    """We leave a run, or begin with it anew; what we kept of it in an earlier life must not come up."""

    def forget() -> None:
        from shoal.node.run.log_store import LogStore

        LogStore(run_folder).forget()

    await LONG.run(forget)
