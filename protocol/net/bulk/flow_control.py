"""Flow control on a bulk socket: how much the receiver lets be sent, and which payloads have arrived.

Both flows share a socket. Were contributions held back by not reading it, means behind them would wait, too, and two
owners that wait for each other's would do so for ever. So whoever receives gives credit, as QUIC's MAX_DATA does (RFC
9000, 4.1): so many bytes of contributions in all may be sent on this connection. Whoever has none left sends means.

Rules of credit:
- A contribution costs the memory that it takes (`payload_memory`). It may be sent as long as any credit is left.
- What is held of one peer's contributions (`MemoryAccount`), and what is on credit, is SHARED, and the last payload of
  each socket. Credit grows as room is given back, and is shared out evenly among the peer's sockets.
- What was given to a socket cannot be taken back, and it may be dead. So while less than LEAST is held, another one
  gets LEAST in any case.
- Streams have no credit, and are not read while SHARED is held: who uses both may fill it twice.

Rules of acknowledgement:
- What was written may lie in the buffers of both ends, which hold tens of MiB where a system lets them, and is lost
  with the socket. So a payload is kept until the other end says that it has it: no number of bytes that were written
  last would do.
- Both ends count the memory that payloads take, however short they are: so who has MOST to hear of is always
  told. Who takes and never says so gets no more: else it could make us keep all that we ever sent.

Both are told in reports, on the socket itself, the other way: two totals since the socket began, so only the newest
counts. A report is 32 bytes, sealed, and comes with about each GRAIN of payloads.
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

SHARED = 32 << 20  # bytes; both ends know it
LEAST = 8 << 20  # bytes that one more socket gets in any case
GRAIN = 2 << 20  # bytes, of credit or of what was received, that are worth a report
MOST = 32 << 20  # bytes that are on their way, and the last payload: as many as there may be of contributions
NUMBERS = struct.Struct(">QQ")
RECORD = NUMBERS.size + TAG


class Credit:
    """How many bytes of contributions may still be sent on one socket, kept at either end.

    One thread spends, the loop grants.
    """

    def __init__(self) -> None:
        self._granted, self._spent = 0, 0

    @property
    def granted(self) -> int:
        """Bytes given so far, in all."""
        return self._granted

    @property
    def available(self) -> int:
        """Bytes that may still be sent; negative if the last payload took more."""
        return self._granted - self._spent

    def spend(self, size: int) -> None:
        """Take what a contribution of so many bytes costs."""
        self._spent += payload_memory(size)

    def charge(self, size: int, sender: PeerId) -> None:
        """The same at the receiver, who gave the credit; RemoteError if there was none."""
        if self.available <= 0:
            raise RemoteError("sends contributions without credit", sender)
        self.spend(size)

    def grow(self, size: int) -> None:
        """Give so many bytes more."""
        self._granted += size

    def grant(self, total: int) -> None:
        """Take the total that the receiver reports; TransportError for one that no honest receiver would report."""
        if total != self._granted and not self._granted + GRAIN <= total <= self._spent + SHARED:
            raise TransportError(f"was given credit of {total} bytes, after {self._granted}")
        self._granted = total


class CreditPool:
    """The credit of one peer, shared out among the sockets by which it sends."""

    def __init__(self) -> None:
        self._credits: list[Credit] = []

    def open(self, credit: Credit) -> None:
        """There is one more socket."""
        self._credits.append(credit)

    def close(self, credit: Credit) -> None:
        """That socket is gone."""
        self._credits.remove(credit)

    def share_out(self, held: int) -> list[Credit]:
        """Give more credit where it is due, while `held` bytes wait here; returns what senders are to be told."""
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
    """Payloads that were given to a socket and are not acknowledged. One thread adds, the loop takes away."""

    def __init__(self) -> None:
        self._payloads: deque[tuple[QueuedPayload, int]] = deque()
        self._heard = 0  # payloads
        self._added = self._gone = 0  # bytes; each belongs to one thread

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be added before the other end has said something."""
        return self._added - self._gone >= MOST

    def add(self, queued: QueuedPayload, size: int) -> None:
        """The first byte of a payload of `size` bytes is about to be written."""
        self._added += payload_memory(size)
        self._payloads.append((queued, payload_memory(size)))

    def hear(self, taken: int) -> None:
        """It reports `taken` payloads in all; TransportError for more than were sent, or fewer than before."""
        if not self._heard <= taken <= self._heard + len(self._payloads):
            raise TransportError(f"took {taken} payloads, after {self._heard}, with {len(self._payloads)} on their way")
        while self._heard < taken:
            _, room = self._payloads.popleft()
            self._heard, self._gone = self._heard + 1, self._gone + room

    def payloads(self) -> list[QueuedPayload]:
        """All of them, in the order in which they were added."""
        return [queued for queued, _ in list(self._payloads)]


class Received:
    """How many payloads came by a socket, and how many bytes of them are not reported yet. Belongs to the loop."""

    def __init__(self) -> None:
        self.count = 0  # payloads
        self._untold = 0  # bytes

    def add(self, size: int) -> bool:
        """One more payload, of about `size` bytes, has come; returns whether it is time for a report."""
        self.count += 1
        self._untold += payload_memory(size)
        return self._untold >= GRAIN

    def told(self) -> None:
        """A report has told the sender of all that came."""
        self._untold = 0


class Report(NamedTuple):
    """Totals since a socket began."""

    credit: int  # bytes of contributions that may be sent
    taken: int  # payloads, of any kind


class ReportWriter(Sealed):
    """The receiver's end: makes reports."""

    def __init__(self, key: bytes) -> None:
        super().__init__(report_key(key))

    def record(self, report: Report) -> bytes:
        """A report, sealed, as it goes on the wire."""
        return self._cipher.encrypt(self._nonce(), NUMBERS.pack(*report), None)


class ReportReader(Sealed):
    """The sender's end: reads reports."""

    def __init__(self, key: bytes) -> None:
        super().__init__(report_key(key))
        self._unread, self._newest = b"", Report(0, 0)

    def heard(self, data: bytes) -> Report | None:
        """The newest report in what has come, if there is one.

        TransportError for what the other end did not seal, and for what takes back or says nothing new: to read it
        costs us time.
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
    """How much memory the contributions of one peer take. For any thread.

    `returned` is called when some was given back, in whatever thread: by the garbage collector, too, in the midst of
    our own lines, so nothing there may wait.
    """

    def __init__(self, returned: Callable[[], None] = lambda: None) -> None:
        self._held = 0
        self._tell = returned
        self._returned: SimpleQueue[int] = SimpleQueue()  # bytes that were given back, and are not settled
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes that are lent now."""
        with self._lock, suppress(Empty):
            while True:
                self._held -= self._returned.get_nowait()
        return self._held

    def lend(self, size: int) -> memoryview:
        """Memory for so many bytes, counted until nobody uses it any more."""
        with self._lock:
            self._held += payload_memory(size)
        gave_back = partial(self._gave_back, payload_memory(size))
        try:
            return MEMORY.lend(size, gave_back)
        except BaseException:  # there is none
            gave_back()
            raise

    def _gave_back(self, size: int) -> None:
        self._returned.put(size)
        self._tell()
