"""The bytes of one run on the network, framing included, by class: words (control) and payloads (bulk).

Payloads are counted by the path that their stream takes, too: "direct", "punched", "relayed".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.protocol.paths import PATHS


@dataclass(slots=True)
class Count:
    """Only ever grows."""

    sent: int = 0
    received: int = 0

    def add(self, sent: int, received: int) -> None:
        """So many bytes more."""
        self.sent += sent
        self.received += received


@dataclass(slots=True)
class Traffic:
    """Only ever grows."""

    control: Count = field(default_factory=Count)
    bulk: dict[str, Count] = field(default_factory=lambda: {path: Count() for path in PATHS})

    @property
    def bulk_sent(self) -> int:
        """By all paths."""
        return sum(each.sent for each in self.bulk.values())

    @property
    def bulk_received(self) -> int:
        """By all paths."""
        return sum(each.received for each in self.bulk.values())

    @property
    def sent(self) -> int:
        """Of both classes."""
        return self.control.sent + self.bulk_sent

    @property
    def received(self) -> int:
        """Of both classes."""
        return self.control.received + self.bulk_received

    def count(self, sent: int, received: int, bulk: str | None) -> None:
        """So many bytes have left, or come, as payloads by a path, or as words."""
        (self.control if bulk is None else self.bulk[bulk]).add(sent, received)
