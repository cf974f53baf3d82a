"""What the receiver says on a bulk socket, the other way: how much it gives credit for, and how much it has taken.

Both numbers are totals since the socket began, so only the newest report counts. A report is 32 bytes, sealed, and
comes with about each GRAIN of payloads (credit.py, receipts.py).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cryptography.exceptions import InvalidTag

from shoal.protocol.bulk.sealing import TAG, Sealed, key_back
from shoal.protocol.errors import TransportError

NUMBERS = struct.Struct(">QQ")
RECORD = NUMBERS.size + TAG


class Report(NamedTuple):
    """In all, on this socket."""

    credit: int  # bytes of contributions that may be sent
    taken: int  # payloads, of any kind


class Teller(Sealed):
    """Who receives, and reports."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key_back(key))

    def record(self, report: Report) -> bytes:
        """What goes on the wire."""
        return self._cipher.encrypt(self._nonce(), NUMBERS.pack(*report), None)


class Listener(Sealed):
    """Who sends, and hears it."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key_back(key))
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
