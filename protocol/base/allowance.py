"""Allowances (token buckets): how much work of a kind peers may cause here, in a burst and over time.

Rules:
- The time comes with each call, as in the cores; its origin does not matter.
- A table of allowances is bounded: the key unused for longest is forgotten, and would start with a full allowance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Allowance:
    """At most `burst` units at once, and `rate` units a second over time."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, burst: float, rate: float) -> None:
        self._burst, self._rate = burst, rate
        self._level = burst
        self._at = 0.0

    def take(self, now: float, units: float = 1.0) -> bool:
        """Spend `units` if that many are left; returns whether they were."""
        self._refill(now)
        if self._level < units:
            return False
        self._level -= units
        return True

    def owe(self, now: float, units: float) -> float:
        """Spend `units` that are already used; returns the seconds until the resulting debt, if any, is paid."""
        self._refill(now)
        self._level -= units
        return max(0.0, -self._level / self._rate)

    def give_back(self, units: float = 1.0) -> None:
        """Give back units that were taken and not needed."""
        self._level = min(self._burst, self._level + units)

    def _refill(self, now: float) -> None:
        self._level = min(self._burst, self._level + self._rate * max(0.0, now - self._at))
        self._at = now


class Allowances(Generic[K]):
    """One allowance for each of at most `most` keys."""

    def __init__(self, burst: float, rate: float, most: int) -> None:
        self._burst, self._rate, self._most = burst, rate, most
        self._known: OrderedDict[K, Allowance] = OrderedDict()

    def of(self, key: K) -> Allowance:
        """The allowance of `key`, which counts as used now."""
        found = self._known.setdefault(key, Allowance(self._burst, self._rate))
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return found
