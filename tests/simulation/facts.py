"""The arithmetic of a simulated swarm: contributions are facts, and their mean lists them.

A contribution is a list of facts (who, which round, which base, chunk, weight, amount), so that a committed
chunk tells exactly who is in it, how often, and with what weight.
"""

from __future__ import annotations

import msgpack

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.wire import Payload

POISON = b"poison"  # a contribution or mean that no codec makes
LONGEST = 200  # bytes of a contribution
TOO_LONG = bytes(LONGEST + 1)  # a contribution that is refused for its size


class FactSum:
    """Collects facts; its result lists them, with the weighted mean of their amounts."""

    def __init__(self) -> None:
        self.facts: list[list[object]] = []

    def add(self, weight: int, payload: Payload) -> None:
        if payload == POISON:
            raise PayloadError("poison")
        self.facts.append([*msgpack.unpackb(payload), weight])

    def finish(self) -> bytes:
        total = sum(fact[-1] for fact in self.facts)  # type: ignore[misc]
        mean = sum(fact[-1] * fact[-2] for fact in self.facts) / total if total else 0.0  # type: ignore[operator]
        packed: bytes = msgpack.packb([self.facts, mean])
        return packed


class FactReducer:
    """Opens FactSums."""

    def open(self, chunk: int) -> FactSum:
        return FactSum()

    def fits(self, chunk: int, size: int) -> bool:
        return size <= LONGEST

    def check(self, chunk: int, payload: Payload) -> None:
        if payload == POISON:
            raise PayloadError("poison")
