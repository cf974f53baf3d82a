"""What the parts of this package hand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.protocol.errors import TransportError


class GatewayError(TransportError):
    """A router does not answer, or not in its protocol's words."""


class Declined(GatewayError):
    """A router answers that it will not; `is_taken` if another external port may do."""

    def __init__(self, words: str, *, is_taken: bool = False) -> None:
        super().__init__(words)
        self.is_taken = is_taken


@dataclass(frozen=True, slots=True)
class Lease:
    """A TCP port of ours, and the one that leads to it at the router's outside."""

    port: int
    external: int
    lifetime: float  # seconds; infinite where the router knows no end


@dataclass(frozen=True, slots=True)
class Seen:
    """What a router says of itself."""

    host: str  # its address outside; empty if it has none to give
    lost: tuple[int, ...] = ()  # ports of ours that do not lead to us any more


class Gateway(Protocol):
    """A router that can be asked; each question raises GatewayError where nothing comes of it."""

    protocol: str  # its name in `status`

    async def look(self, leases: Sequence[Lease]) -> Seen:
        """Where its outside is, and which of these leases it does not hold."""

    async def map(self, port: int, external: int, lifetime: int) -> Lease:
        """Have a port of ours lead to us, from that external port if it may be, for so many seconds."""

    async def unmap(self, lease: Lease) -> None:
        """Have it lead to us no more."""
