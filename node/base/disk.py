"""A member's records, which must survive a crash: one small file each, replaced as a whole and synced (atomic.py)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from shoal.node.base.atomic import force, replace_file
from shoal.node.base.pools import RECORDS
from shoal.node.base.refusals import CODES
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.shortages import in_words, is_temporary
from shoal.protocol.base.wire import Message, decode, encode

SUFFIX = ".record"
AGAIN = (0.2, 5.0)  # seconds before a failed write is tried again: the first time, and at most


class Records(Protocol):
    """Where what must survive a crash is written to."""

    def put(self, name: str, record: Message) -> None:
        """Write a record; on return it survives a crash. LocalError if it could not be written."""


class Disk:
    """The records of one run, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> dict[str, Message]:
        """All records by name. LocalError if one is damaged: a member that has lost a vote must not vote again."""
        records = {}
        for path in list_folder(self.folder):
            if path.suffix == SUFFIX:
                records[path.name.removesuffix(SUFFIX)] = _read(path)
        return records

    def get(self, name: str) -> Message | None:
        """One record, whatever lies beside it; None if there is none, LocalError if it is damaged."""
        path = self.folder / f"{name}{SUFFIX}"
        return _read(path) if path in list_folder(self.folder) else None

    def put(self, name: str, record: Message) -> None:
        """Write a record; on return it survives a crash. On LocalError the old record is still there.

        The error's cause tells whether another try may succeed (protocol/base/shortages.py).
        """
        path = self.folder / f"{name}{SUFFIX}"
        try:
            replace_file(path, [encode(record)])
        except OSError as error:
            raise LocalError(
                f"cannot write {path}: {in_words(error)}; a member must not forget such a record: "
                "mend that, then leave the run and join it again",
                code=CODES.get(error.errno or 0, "record-unwritable"),
            ) from error

    def remove(self, name: str) -> None:
        """Remove a record, if there is one; LocalError if that is impossible."""
        try:
            (self.folder / f"{name}{SUFFIX}").unlink(missing_ok=True)
            force(self.folder)
        except FileNotFoundError:  # not even the folder is there
            return
        except OSError as error:
            raise LocalError(
                f"cannot remove the record {name} in {self.folder}: {in_words(error)}", code="record-unwritable"
            ) from error


def list_folder(folder: Path) -> list[Path]:
    """The sorted paths in a folder; empty if it does not exist. LocalError, unlike `glob`, if it cannot be read."""
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LocalError(f"cannot read {folder}: {in_words(error)}", code="unreadable") from error


async def write_with_retries(
    write: Callable[[], None], complain: Callable[[Exception], None], gives_up: Callable[[], bool] = lambda: False
) -> None:
    """Run `write` in a thread, however long it takes, and again as long as it fails for a temporary shortage.

    `complain` gets the error before each new try. Other errors are raised, and so are shortages once `gives_up()`.
    """
    pause, most = AGAIN
    while True:
        try:
            return await RECORDS.run(write)
        except Exception as error:
            if gives_up() or not is_temporary(error):
                raise
            complain(error)
        await asyncio.sleep(pause)
        pause = min(most, 2 * pause)


def _read(path: Path) -> Message:
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise LocalError(f"cannot read {path}: {in_words(error)}", code="unreadable") from error
    except RemoteError as error:
        raise LocalError(
            f"{path} is damaged ({error}); leave the run for good or restore the file", code="record-damaged"
        ) from error
