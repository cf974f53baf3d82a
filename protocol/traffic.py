"""The bytes of one run on the network, framing included, by class: words (control) and payloads (bulk)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Only ever grows."""

    control_sent: int = 0
    control_received: int = 0
    bulk_sent: int = 0
    bulk_received: int = 0

    @property
    def sent(self) -> int:
        """Of both classes."""
        return self.control_sent + self.bulk_sent

    @property
    def received(self) -> int:
        """Of both classes."""
        return self.control_received + self.bulk_received

    def count(self, sent: int, received: int, bulk: bool) -> None:
        """So many bytes have left, or come, on a stream of one class."""
        if bulk:
            self.bulk_sent += sent
            self.bulk_received += received
        else:
            self.control_sent += sent
            self.control_received += received
