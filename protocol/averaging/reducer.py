"""What the all-reduce needs to know of arithmetic: nothing but this.

The core moves opaque payloads; an owner opens one Sum per chunk, adds what contributors sent, and finishes
it. So a simulation reduces floats, and production tensors (`shoal.protocol.tensors.reduction`), under one core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.protocol.base.wire import Payload

Contribute = Callable[[int], Payload]
"""What a member has to add to a chunk, encoded; in any thread."""


class Sum(Protocol):
    """One chunk in the making, at its owner."""

    def add(self, weight: int, payload: Payload) -> None:
        """Count one contribution in the scatter codec; on PayloadError the sum is unchanged."""

    def finish(self) -> Payload:
        """The weighted mean of what was added, in the gather codec; zeros if all weight is zero."""


class Reducer(Protocol):
    """Opens the chunks of one reduction."""

    def open(self, chunk: int) -> Sum:
        """An empty sum for the chunk of this index."""

    def fits(self, chunk: int, size: int) -> bool:
        """Whether a contribution to this chunk may be of so many bytes; costs next to nothing."""

    def check(self, chunk: int, payload: Payload) -> None:
        """PayloadError unless `payload` is a mean of this chunk in the gather codec: right size, all finite."""
