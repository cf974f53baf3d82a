"""The means of the rounds since the last snapshot of the state, on this node's disk: for a restart, and for others.

    runs/<id>/log/means/0, 1, ...    slots: means and tables (messages/averaging.py), one after the other

Some rounds before that are spared for others: who was away then needs a few results, and not a whole state.

Fresh room on a disk costs the processor ten times as much as writing over what is there. So a slot of which no round is
needed any more is used again from its beginning. Rounds only rise within a slot: a record that is of an earlier round
than the one before it, or that is not whole, is what is left of an earlier use, or was being written when the power
failed, and there the slot ends.

All may be used from any thread. OSError says what cannot be read or written. All but `size` and `holds` block: those
two wait for no other thread, and while one writes or forgets they may say what was here a moment before.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from shoal.node.base.atomic import force
from shoal.node.base.disk import list_folder
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, result_hash
from shoal.protocol.base.wire import (
    MAX_BULK_FRAME,
    MAX_CONTROL_FRAME,
    Payload,
    decode,
    decode_bulk,
    encode,
    encode_head,
)
from shoal.protocol.messages.averaging import Mean, Table

SIZES = struct.Struct("<II")  # of a record's head and of its payload
FULL = 8 << 20  # bytes of a slot in which no further round is begun


class _Place(NamedTuple):
    """A record, and where in its slot it begins."""

    round: int
    hash: Digest | None  # of a mean; None: it is a table
    begin: int

    @classmethod
    def of(cls, record: Mean | Table, begin: int) -> _Place:
        return cls(record.round, record.made.hash if isinstance(record, Mean) else None, begin)


@dataclass(slots=True, eq=False)
class _Slot:
    path: Path
    records: list[_Place] = field(default_factory=list)  # as they follow each other
    end: int = 0  # bytes in use

    @property
    def newest(self) -> int:
        """The last round of which it has something."""
        return self.records[-1].round if self.records else 0

    def of(self, round: int) -> list[_Place]:
        """Its records of a round; rounds only rise."""
        begin, end = (bisect_left(self.records, (each,)) for each in (round, round + 1))
        return self.records[begin:end]


class MeansStore:
    """One run's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used: list[_Slot] = []
        self._free: list[_Slot] = []
        self._unforced: list[_Slot] = []
        self._needed = 0  # rounds before this one are here for others only
        self._forgotten = 0  # rounds before this one may be gone
        self._is_new = False  # whether a file was made since the folder was last forced
        self._lock = threading.Lock()  # means are written by one thread, and forgotten by another one

    @property
    def size(self) -> int:
        """Bytes of what is kept, without what is spared for others."""
        return sum(slot.end for slot in self._used if slot.newest >= self._needed)

    def open(self) -> None:
        """Find out what is here, and force it, as an earlier process may have had no time to."""
        with self._lock:
            self._folder.mkdir(exist_ok=True)
            found = sorted(map(_found, list_folder(self._folder)), key=lambda slot: slot.newest)
            self._used, self._free = [slot for slot in found if slot.end], [slot for slot in found if not slot.end]
            self._unforced, self._is_new = list(self._used), True
        self.force()

    def read(self, round: int) -> list[Mean | Table]:
        """What is here of a round."""
        with self._lock:
            return [
                record
                for slot in self._used
                for each in slot.of(round)
                if (record := _read(slot.path, each.begin)) is not None
            ]

    def whole_tables(self, round: int) -> list[Table]:
        """Those of a round all of whose means are here; their bytes are not read."""
        with self._lock:
            places = [(slot.path, each) for slot in self._used for each in slot.of(round)]
            records = [_read(path, each.begin) for path, each in places if each.hash is None]
        here = {each.hash for _, each in places}
        tables = [record for record in records if isinstance(record, Table)]
        return [table for table in tables if all(made.hash in here for made in table.means)]

    def write(self, record: Mean | Table) -> None:
        """Append a record: on return it outlives this process, and once it is forced also a power cut."""
        with self._lock:
            slot, pieces = self._slot(record.round), _packed(record)
            size = sum(map(len, pieces))
            with slot.path.open("r+b") as file:
                if os.pwritev(file.fileno(), pieces, slot.end) != size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            slot.records.append(_Place.of(record, slot.end))
            slot.end += size
            self._forgotten = min(self._forgotten, record.round)  # on another branch numbers come again
            if slot not in self._unforced:
                self._unforced.append(slot)

    def force(self) -> None:
        """Have on disk all that was written before. Meanwhile more may be written."""
        with self._lock:
            slots, self._unforced = self._unforced, []
            is_new, self._is_new = self._is_new, False
        try:
            for slot in slots:
                with slot.path.open("r+b") as file:
                    os.fdatasync(file.fileno())
            if is_new:
                force(self._folder)
        except OSError:
            with self._lock:
                self._unforced, self._is_new = slots + self._unforced, self._is_new or is_new
            raise

    def holds(self, round: int) -> bool:
        """Whether the means of a round that was written are here, as far as we know without a look at the disk."""
        return round >= self._forgotten

    def payload(self, round: int, hash: Digest) -> Payload | None:
        """The bytes of a mean; None if they are not here, or not any more."""
        with self._lock:
            for slot in self._used:
                for each in slot.of(round):
                    if each.hash == hash:
                        record = _read(slot.path, each.begin)
                        return record.payload if isinstance(record, Mean) else None
        return None

    def forget(self, round: int, spare: int = 0, gives_back: bool = False) -> None:
        """Rounds before this one are needed no more; the newest of them stay, as far as `spare` bytes go.

        `gives_back`: the room of the others is for whoever needs it on that disk, and not for rounds to come.
        """
        with self._lock:
            self._needed = max(self._needed, round)
            for slot in sorted(self._used, key=lambda slot: slot.newest, reverse=True):
                spare -= slot.end if slot.newest < round else 0
                if slot.newest < round and spare < 0:
                    self._forgotten = max(self._forgotten, slot.newest + 1)
                    self._empty(slot, forced=False)
            if gives_back:
                for slot in self._free:
                    os.truncate(slot.path, 0)

    def forget_all(self) -> None:
        """No round counts any more, also after a power cut; others of the same numbers may follow."""
        with self._lock:
            self._needed, self._forgotten = 0, max([self._forgotten, *(slot.newest + 1 for slot in self._used)])
            for slot in list(self._used):
                self._empty(slot, forced=True)

    def _empty(self, slot: _Slot, forced: bool) -> None:
        with slot.path.open("r+b") as file:
            os.pwrite(file.fileno(), SIZES.pack(0, 0), 0)
            if forced:
                os.fsync(file.fileno())
        slot.records, slot.end = [], 0
        self._used.remove(slot)
        self._free.append(slot)

    def _slot(self, round: int) -> _Slot:
        """Where a record of this round goes: the means of a result come between ours of the next round."""
        fitting = [slot for slot in self._used if slot.newest == round or (slot.newest < round and slot.end < FULL)]
        if not fitting:
            if not self._free:
                known = {slot.path for slot in self._used}
                paths = (self._folder / str(number) for number in itertools.count())
                fresh = _Slot(next(path for path in paths if path not in known))
                fresh.path.touch()
                self._free.append(fresh)
                self._is_new = True
            fitting = [self._free.pop()]
            self._used += fitting
        return max(fitting, key=lambda slot: slot.newest)


def _found(path: Path) -> _Slot:
    """A slot with what is in it."""
    slot = _Slot(path)
    with path.open("rb") as file:
        while (record := _next(file)) is not None and record.round >= slot.newest:
            slot.records.append(_Place.of(record, slot.end))
            slot.end = file.tell()
    return slot


def _read(path: Path, place: int) -> Mean | Table | None:
    with path.open("rb") as file:
        file.seek(place)
        return _next(file)


def _next(file: BinaryIO) -> Mean | Table | None:
    """The record that begins here; None if none does that is whole."""
    if len(sizes := file.read(SIZES.size)) < SIZES.size:
        return None
    head, payload = SIZES.unpack(sizes)
    if not 0 < head <= MAX_CONTROL_FRAME or payload > MAX_BULK_FRAME:
        return None
    return _unpacked(file.read(head), file.read(payload))


def _packed(record: Mean | Table) -> list[Payload]:
    if not isinstance(record, Mean):
        head = encode(record)
        return [SIZES.pack(len(head), 0), head]
    head, payload = encode_head(record), record.payload
    return [SIZES.pack(len(head), len(payload)), head, payload]


def _unpacked(head: bytes, payload: bytes) -> Mean | Table | None:
    """A record; None if it is not whole."""
    try:
        record = decode_bulk(head, payload) if payload else decode(head)
    except RemoteError:
        return None
    if isinstance(record, Mean):
        return record if result_hash(record.made.mask, record.payload) == record.made.hash else None
    return record if isinstance(record, Table) else None
