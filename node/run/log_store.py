"""The run's log on this node's disk: the journal, and the means of the rounds since the last snapshot of the state.

    runs/<id>/log/journal    entries and votes, each forced to disk before anything that follows from it leaves
                  means      means and tables (messages/averaging.py), one after the other: written at once, so that
                             they outlive this process, and forced with the next vote
                  kept       is there while this node is stopped, if nothing can be decided without it
                  state/     a snapshot of the state as a checkpoint, if one was needed beside those of the run

A mean whose bytes are not what its hash says was being written when the power failed: what follows it is cut off. All
methods block. LocalError says what cannot be read or written; its cause, whether another try may succeed.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.node.base.atomic import force, replace_file
from shoal.node.base.home import KEPT
from shoal.node.base.logs import warn
from shoal.node.base.refusals import CODES
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import result_hash
from shoal.protocol.base.shortages import in_words
from shoal.protocol.base.wire import (
    MAX_BULK_FRAME,
    MAX_CONTROL_FRAME,
    Message,
    decode,
    decode_bulk,
    encode,
    encode_head,
)
from shoal.protocol.log.journal import compacted, framed, read
from shoal.protocol.log.register import Rules, voters_root
from shoal.protocol.member.member import FOUNDING_LIFE, Kept
from shoal.protocol.messages.averaging import Mean, Table
from shoal.protocol.messages.log import Compaction, Register, Shortcut, VoteFile

FOLDER, JOURNAL, MEANS, STATE = "log", "journal", "means", "state"
SIZES = struct.Struct("<II")  # of a record's head and of its payload
LONGEST = 4 << 20  # bytes of a journal that is not made shorter

log = logging.getLogger("shoal.run")


class LogStore:
    """One run's."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / FOLDER
        self._votes: VoteFile | None = None  # the last one written
        self._unforced = False  # whether means were written since they were last forced
        self._means_lock = threading.Lock()  # their file is written and replaced by different threads
        self.size = 0  # bytes of the journal
        self.means_size = 0

    def first(self, rules: Rules) -> Register | None:
        """The register that the journal begins with: that of the run's beginning, or where it was made shorter."""
        with self._or_error("read"):
            path = self.folder / JOURNAL
            return read(path.read_bytes(), rules).first if path.exists() else None

    def open(self, founding: Register, rules: Rules, is_founder: bool) -> Kept:
        """What is here, once it is fit to be gone on with.

        Without a vote file that can be trusted this is another life: `is_founder`, its first one, that all know of.
        """
        with self._or_error("read"):
            self.folder.mkdir(exist_ok=True)
            (self.folder / KEPT).unlink(missing_ok=True)
            path = self.folder / JOURNAL
            content = path.read_bytes() if path.exists() else b""
            journal = read(content, rules)
            register, votes = journal.register or founding, journal.votes
            kept = content[: journal.length]
            if votes is None:
                if journal.is_damaged:
                    warn(log, "record-damaged", f"{path} is damaged: this node goes on without the vote that it had")
                life = FOUNDING_LIFE if is_founder and not content else time.time_ns() // 1_000_000
                votes = VoteFile(life, voters_root(register), 0, 0, None, None)
                kept += (b"" if journal.register is not None else framed(founding)) + framed(votes)
            if kept != content:
                replace_file(path, [kept])
            self._votes, self.size = votes, len(kept)
            means = tuple(self._read_means())
        return Kept(journal.first or founding, journal.headers, register, journal.entries, votes, means)

    def put(self, name: str, record: Message) -> None:
        """Append a record: of "log" and "vote" it is on disk on return, of "means" it is written."""
        with self._or_error("write"):
            if name == MEANS:
                with self._means_lock:
                    self._append(MEANS, _packed(record))
                self._unforced = True
            elif isinstance(record, Shortcut | Compaction):
                assert self._votes is not None
                shorter = record if isinstance(record, Compaction) else Compaction(record, ())
                self._replace_journal(compacted(shorter.beginning, shorter.entries, self._votes))
            else:
                if self._unforced and isinstance(record, VoteFile):
                    force(self.folder / MEANS)
                    self._unforced = False
                self.size += self._append(JOURNAL, [framed(record)], is_forced=True)
                if isinstance(record, VoteFile):
                    self._votes = record

    def mark_kept(self) -> None:
        """We have stopped with our vote, without which the others cannot decide anything."""
        with self._or_error("write"):
            (self.folder / KEPT).touch()

    def forget_means(self, round: int) -> None:
        """There is a snapshot of the state after `round`: means of earlier rounds are of no use any more.

        Those of that round are, to others who have not applied it.
        """
        with self._or_error("write"), self._means_lock:
            kept = [piece for each in self._read_means() if each.round >= round for piece in _packed(each)]
            replace_file(self.folder / MEANS, kept)
            self.means_size = sum(map(len, kept))

    def forget(self) -> None:
        """We have left the run for good, or are about to begin with it anew."""
        with self._or_error("remove"):
            if self.folder.exists():
                shutil.rmtree(self.folder)

    # -- inside -------------------------------------------------------------------------------------------------

    def _replace_journal(self, content: bytes) -> None:
        replace_file(self.folder / JOURNAL, [content])
        self.size = len(content)

    def _append(self, name: str, pieces: list[bytes], *, is_forced: bool = False) -> int:
        size = sum(map(len, pieces))
        with (self.folder / name).open("ab", buffering=0) as file:
            before = file.tell()
            try:
                for piece in pieces:
                    if file.write(piece) != len(piece):
                        raise OSError(28, "No space left on device")
                if is_forced:
                    os.fdatasync(file.fileno())
            except OSError:
                file.truncate(before)
                raise
        if name == MEANS:
            self.means_size += size
        return size

    def _read_means(self) -> Iterator[Mean | Table]:
        path = self.folder / MEANS
        if not path.exists():
            return
        good = 0
        with path.open("rb") as file:
            while len(sizes := file.read(SIZES.size)) == SIZES.size:
                head, payload = SIZES.unpack(sizes)
                if head > MAX_CONTROL_FRAME or payload > MAX_BULK_FRAME:
                    break
                record = _unpacked(file.read(head), file.read(payload))
                if record is None:
                    break
                good = file.tell()
                yield record
        if good < path.stat().st_size:
            os.truncate(path, good)
        self.means_size = good

    @contextmanager
    def _or_error(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LocalError(
                f"cannot {doing} {self.folder}: {in_words(error)}; a member must not forget what is there: mend that, "
                "then leave the run and join it again",
                code=CODES.get(error.errno or 0, "record-unwritable"),
            ) from error


def _packed(record: Message) -> list[bytes]:
    if not isinstance(record, Mean):
        head = encode(record)
        return [SIZES.pack(len(head), 0), head]
    head, payload = encode_head(record), record.payload
    return [SIZES.pack(len(head), len(payload)), head, payload]  # type: ignore[list-item]


def _unpacked(head: bytes, payload: bytes) -> Mean | Table | None:
    """A record; None if it is not whole."""
    try:
        record = decode_bulk(head, payload) if payload else decode(head)
    except RemoteError:
        return None
    if isinstance(record, Mean):
        return record if result_hash(record.made.mask, record.payload) == record.made.hash else None
    return record if isinstance(record, Table) else None
