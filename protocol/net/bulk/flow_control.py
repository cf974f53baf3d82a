"""Flow control on a bulk socket: credit for contributions, and acknowledgement of payloads.

Both flows share a socket. If the receiver held contributions back by not reading, the means behind them would wait,
too, and two owners that wait for each other's means would wait for ever. So the receiver gives credit, like QUIC's
MAX_DATA (RFC 9000, 4.1): the total bytes of contributions that may be sent on this connection. A sender without credit
sends means.

Rules of credit:
- A contribution costs the memory that it takes (`payload_memory`). It may be sent as long as any credit is left.
- The contributions of one peer that are held here (`MemoryAccount`) plus its unused credit are at most SHARED, plus the
  last payload of each socket. Credit grows as memory is given back, and is divided evenly among the peer's sockets.
- Credit of a socket cannot be taken back, and the socket may be dead. So while less than LEAST is held, every other
  socket gets LEAST in any case.
- Streams have no credit; they are not read while SHARED is held. So a peer that uses both may fill it twice.

Rules of acknowledgement:
- Written bytes may lie in the buffers of both ends, which can hold tens of MiB, and are lost with the socket. So a
  payload is kept until the other end acknowledges it; keeping a number of recently written bytes would not do.
- Both ends count the memory of payloads, however short they are, so the receiver always reports before MOST is reached.
  A receiver that never acknowledges gets no more: else it could make us keep all that we ever sent.

Reports carry both, in the other direction of the same socket: two totals since the socket began, so that only the
newest report counts. A report is 32 bytes, sealed, and follows about each GRAIN of payloads.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from cryptography.exceptions import InvalidTag

from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import payload_memory
from shoal.protocol.net.bulk.backlog import QueuedPayload
from shoal.protocol.net.bulk.sealing import TAG, Sealed, report_key
from shoal.protocol.tensors.memory import MEMORY

SHARED = 32 << 20  # bytes of one peer's contributions, held or on credit; part of the protocol
LEAST = 8 << 20  # bytes of credit that a further socket gets in any case
GRAIN = 2 << 20  # bytes of new credit, or of received payloads, that are worth a report
MOST = 32 << 20  # unacknowledged bytes, without the last payload: as many as SHARED
NUMBERS = struct.Struct(">QQ")
RECORD = NUMBERS.size + TAG


class Credit:
    """The credit of one socket, kept at both ends: bytes of contributions that may be sent.

    One thread spends, the loop grants.
    """

    def __init__(self) -> None:
        self._granted, self._spent = 0, 0

    @property
    def granted(self) -> int:
        """Bytes of credit given so far, in total."""
        return self._granted

    @property
    def available(self) -> int:
        """Bytes that may still be sent; negative if the last payload took more than was left."""
        return self._granted - self._spent

    def spend(self, size: int) -> None:
        """Spend the credit for a contribution of `size` bytes."""
        self._spent += payload_memory(size)

    def charge(self, size: int, sender: PeerId) -> None:
        """Like `spend`, at the receiver; RemoteError if the sender had no credit."""
        if self.available <= 0:
            raise RemoteError("sends contributions without credit", sender)
        self.spend(size)

    def grow(self, size: int) -> None:
        """At the receiver: give so many bytes more."""
        self._granted += size

    def grant(self, total: int) -> None:
        """At the sender: take over the reported total; TransportError if no honest receiver would report it."""
        if total != self._granted and not self._granted + GRAIN <= total <= self._spent + SHARED:
            raise TransportError(f"was given credit of {total} bytes, after {self._granted}")
        self._granted = total


class CreditPool:
    """Divides the credit of one peer among the sockets on which it sends."""

    def __init__(self) -> None:
        self._credits: list[Credit] = []

    def open(self, credit: Credit) -> None:
        """Add a socket's credit."""
        self._credits.append(credit)

    def close(self, credit: Credit) -> None:
        """Remove the credit of a socket that has ended."""
        self._credits.remove(credit)

    def share_out(self, held: int) -> list[Credit]:
        """Give out free credit, with `held` bytes held now; returns the credits that have grown, to be reported."""
        room = SHARED - held - sum(max(0, each.available) for each in self._credits)
        share, grown = SHARED // max(1, len(self._credits)), list[Credit]()
        for each in self._credits:
            more = min(max(room, LEAST - held - each.available), share - each.available)
            if more >= GRAIN:
                room -= more
                each.grow(more)
                grown.append(each)
        return grown


class Unacknowledged:
    """Payloads that were written to a socket and are not acknowledged yet. One thread adds, the loop removes."""

    def __init__(self) -> None:
        self._payloads: deque[tuple[QueuedPayload, int]] = deque()
        self._heard = 0  # payloads that were acknowledged
        self._added = self._gone = 0  # bytes; each is changed by one thread only

    @property
    def is_full(self) -> bool:
        """Whether nothing should be added before the other end acknowledges something."""
        return self._added - self._gone >= MOST

    def add(self, queued: QueuedPayload, size: int) -> None:
        """Add a payload of `size` bytes, before its first byte is written."""
        self._added += payload_memory(size)
        self._payloads.append((queued, payload_memory(size)))

    def hear(self, taken: int) -> None:
        """Take in a report of `taken` payloads in total; TransportError if more than were sent or less than before."""
        if not self._heard <= taken <= self._heard + len(self._payloads):
            raise TransportError(f"took {taken} payloads, after {self._heard}, with {len(self._payloads)} on their way")
        while self._heard < taken:
            _, room = self._payloads.popleft()
            self._heard, self._gone = self._heard + 1, self._gone + room

    def payloads(self) -> list[QueuedPayload]:
        """All unacknowledged payloads, in the order in which they were added."""
        return [queued for queued, _ in list(self._payloads)]


class Received:
    """How many payloads a socket has received, and how many bytes of them are not reported yet. Belongs to the loop."""

    def __init__(self) -> None:
        self.count = 0  # payloads
        self._untold = 0  # bytes

    def add(self, size: int) -> bool:
        """Count a payload of about `size` bytes; returns whether a report is due."""
        self.count += 1
        self._untold += payload_memory(size)
        return self._untold >= GRAIN

    def told(self) -> None:
        """All that came was reported."""
        self._untold = 0


class Report(NamedTuple):
    """Totals since a socket began."""

    credit: int  # bytes of contributions that may be sent
    taken: int  # payloads, of any kind


class ReportWriter(Sealed):
    """Makes reports, at the receiver's end."""

    def __init__(self, key: bytes) -> None:
        super().__init__(report_key(key))

    def record(self, report: Report) -> bytes:
        """A report, sealed, as it goes on the wire."""
        return self._cipher.encrypt(self._nonce(), NUMBERS.pack(*report), None)


class ReportReader(Sealed):
    """Reads reports, at the sender's end."""

    def __init__(self, key: bytes) -> None:
        super().__init__(report_key(key))
        self._unread, self._newest = b"", Report(0, 0)

    def heard(self, data: bytes) -> Report | None:
        """Take in bytes; returns the newest whole report in them, if any.

        TransportError for a record that the other end did not seal, and for a report that says less than an earlier one
        or nothing new, as reading it costs us time.
        """
        self._unread += data
        report = None
        while len(self._unread) >= RECORD:
            record, self._unread = self._unread[:RECORD], self._unread[RECORD:]
            try:
                report = Report(*NUMBERS.unpack(self._cipher.decrypt(self._nonce(), record, None)))
            except InvalidTag as error:
                raise TransportError("a report was altered on its way") from error
            before, self._newest = self._newest, report
            if report == before or report.credit < before.credit or report.taken < before.taken:
                raise TransportError(f"was told {report} after {before}")
        return report


class MemoryAccount:
    """How much memory the contributions of one peer take. Thread-safe.

    `returned` is called when some was given back, in any thread: also by the garbage collector, in the middle of any of
    our own code, so it must not wait for anything.
    """

    def __init__(self, returned: Callable[[], None] = lambda: None) -> None:
        self._held = 0
        self._tell = returned
        self._returned: SimpleQueue[int] = SimpleQueue()  # bytes that were given back and are not subtracted yet
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes in use now."""
        with self._lock, suppress(Empty):
            while True:
                self._held -= self._returned.get_nowait()
        return self._held

    def lend(self, size: int) -> memoryview:
        """Memory for so many bytes, counted until its last user drops it."""
        with self._lock:
            self._held += payload_memory(size)
        gave_back = partial(self._gave_back, payload_memory(size))
        try:
            return MEMORY.lend(size, gave_back)
        except BaseException:  # there is no memory
            gave_back()
            raise

    def _gave_back(self, size: int) -> None:
        self._returned.put(size)
        self._tell()
