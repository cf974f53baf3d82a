"""A run at rest on this node's disk: what is kept when it stops, so that the run goes on even if all stop.

    runs/<id>/rest/round-...   the state, as a checkpoint
                   messages    all else (protocol/rounds/rest.py): messages, each after its length, and a seal

The messages name their state: they are written after it, and removed before it. They are replaced as a whole at the
next such stop, and removed once others have gone on. The seal is the BLAKE3 of the run's id and all that is before
it: integrity, not authorship. What cannot be used is said, and the run entered as if it were not there: others may have
it.
"""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from shoal.node.base.atomic import force, replace_file
from shoal.node.base.logs import warn
from shoal.node.base.refusals import CODES
from shoal.node.ipc.shm import FloatArray
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.node.training.checkpoint.scan import folder_name, newest_first
from shoal.node.training.checkpoint.write import remove, sweep, write_checkpoint
from shoal.node.training.state.committed import Snapshot
from shoal.protocol.base.errors import LocalError, ShoalError, Shortage
from shoal.protocol.base.ids import Digest, short
from shoal.protocol.base.shortages import in_words, is_temporary
from shoal.protocol.base.wire import Message, decode, encode
from shoal.protocol.member.member import PART
from shoal.protocol.rounds.rest import Rest

FOLDER, MESSAGES = "rest", "messages"  # in a run's folder, whose name is the run's id
LENGTH = 4  # bytes; a length of 0 is before the seal

log = logging.getLogger("shoal.run")


@dataclass(frozen=True, slots=True, eq=False)
class Rested:
    """A run at rest, in memory."""

    rest: Rest
    checkpoint: Checkpoint | None  # of its state; None: that is what the manifest's seed gives


def save_rest(
    run_folder: Path, rest: Rest, about: About | None, snapshot: Snapshot, moments: FloatArray | None
) -> None:
    """Keep the run of a folder, or LocalError; where the disk is too full for `moments`, it is kept without them.

    `snapshot` is leased; without `about` it is what the manifest's seed gives, and is not written.
    """
    folder = run_folder / FOLDER
    try:
        folder.mkdir(exist_ok=True)  # never its parents: a home that was removed stays so
        sweep(folder)
        state = _write_state(folder, about, snapshot, moments) if about is not None else None
        replace_file(folder / MESSAGES, _sealed(rest, run_folder.name))
    except OSError as error:
        raise LocalError(
            f"cannot keep the run in {folder}: {error.strerror}", code=CODES.get(error.errno or 0, "unwritable")
        ) from error
    _remove_other_states(folder, state)


def load_rest(run_folder: Path) -> Rested | None:
    """The run at rest in a run's folder; None if there is none, or, said aloud, it cannot be used.

    LocalError if it cannot be read now, for want of something that there will be again.
    """
    folder, run = run_folder / FOLDER, run_folder.name
    try:
        if not (folder / MESSAGES).exists():
            return None
        rest = Rest.of(_unsealed(folder / MESSAGES, run))
        state = folder / folder_name(rest.round)
        checkpoint = load(state) if rest.round or state.exists() else None
        if checkpoint is not None and (checkpoint.about.run, checkpoint.about.root) != (run, rest.root.hex()):
            raise LocalError(
                f"{checkpoint.path} is another state than that of the messages beside it", code="record-damaged"
            )
    except (ShoalError, OSError) as error:
        if is_temporary(error):  # it is as good as ever
            raise Shortage(f"cannot read what was kept of the run in {folder}: {in_words(error)}") from error
        warn(log, "rest-damaged", f"what was kept of the run in {folder} cannot be used: {error}; others may have it")
        return None
    return Rested(rest, checkpoint)


def rest_on(root: Digest, rested: Rested | None) -> Rest | None:
    """What there is to go on from, for one who stands on the state `root`; None, said aloud, if that is another."""
    if rested is None or rested.rest.root == root:
        return rested.rest if rested is not None else None
    reason = f"it is of the state {short(rested.rest.root)}, and the manifest's seed gives {short(root)} here"
    warn(log, "rest-damaged", f"what was kept of the run cannot be used: {reason}; others may have it")
    return None


def forget_rest(run_folder: Path) -> None:
    """Others go on, or we have left for good."""
    folder = run_folder / FOLDER
    try:
        if folder.exists():
            (folder / MESSAGES).unlink(missing_ok=True)
            force(folder)
            shutil.rmtree(folder)
    except OSError as error:
        warn(log, "rest-not-removed", f"cannot remove {folder}, which is of no use any more: {error.strerror}")


def _write_state(folder: Path, about: About, snapshot: Snapshot, moments: FloatArray | None) -> Path:
    try:
        return write_checkpoint(folder, about, snapshot, moments)
    except LocalError as error:
        cause = error.__cause__
        if moments is None or not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    log.info("the disk is too full for all of the run: the inner optimizer's moments are not kept")
    return write_checkpoint(folder, about.model_copy(update={"inner_steps": 0}), snapshot, None)


def _remove_other_states(folder: Path, kept: Path | None) -> None:
    """The run is kept already, so what goes wrong here costs only room."""
    try:
        for found in newest_first(folder):
            if found.path != kept:
                remove(found.path)
    except OSError as error:
        warn(log, "rest-not-removed", f"cannot remove an older state in {folder}: {error.strerror}")


def _sealed(rest: Rest, run: str) -> Iterator[bytes]:
    """The bytes of the file."""
    seal = blake3(run.encode())
    for message in rest.messages(PART):
        data = encode(message)
        piece = len(data).to_bytes(LENGTH, "big") + data
        seal.update(piece)
        yield piece
    yield bytes(LENGTH) + seal.digest()


def _unsealed(path: Path, run: str) -> Iterator[Message]:
    """The messages of the file; LocalError at its end unless the seal is whole."""
    seal = blake3(run.encode())
    with path.open("rb") as file:
        while length := int.from_bytes(prefix := file.read(LENGTH), "big"):
            data = file.read(length)
            seal.update(prefix + data)
            yield decode(data)
        if file.read() != seal.digest():
            raise LocalError(f"{path} is damaged, or of another run: its seal is broken", code="record-damaged")
