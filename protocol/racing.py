"""Several addresses of one door, side by side: each a little after the one before, and the first that answers wins.

Rules (those of RFC 8305, "happy eyeballs"):
- The next address is tried as soon as one has failed, and after STAGGER seconds at the latest: an address that swallows
  what is sent there costs the others STAGGER seconds, not its own time limit.
- IPv6 and IPv4 take turns, so that a family that is broken as a whole costs no more than that.
- An address that becomes known while the others are tried is tried as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import zip_longest
from typing import Any, TypeVar

from shoal.protocol.errors import TransportError
from shoal.protocol.journal import OTHER

STAGGER = 0.25  # seconds between the starts of two addresses

T = TypeVar("T")


async def first_answer(addresses: Callable[[], Iterable[str]], dial: Callable[[str], Coroutine[Any, Any, T]]) -> T:
    """What `dial` makes of the first of `addresses()` that answers; TransportError with all reasons if none does."""
    tried, attempts, failures, codes = set[str](), set[asyncio.Task[T]](), list[str](), set[str]()
    try:
        while True:
            address = next((each for each in addresses() if each not in tried), None)
            if address is not None:
                tried.add(address)
                attempts.add(asyncio.create_task(dial(address), name=address))
            elif not attempts:
                raise TransportError("; ".join(failures), _code_of_all(codes))
            done, attempts = await asyncio.wait(attempts, timeout=STAGGER, return_when="FIRST_COMPLETED")
            for attempt in done:
                if not isinstance(error := attempt.exception(), TransportError):
                    return attempt.result()
                failures.append(f"{attempt.get_name()}: {error}")
                codes.add(error.code)
    finally:
        for attempt in attempts:
            attempt.cancel()  # what it may still achieve is a spare
            attempt.add_done_callback(_retrieve)


def _code_of_all(codes: set[str]) -> str:
    """What to call a failure of all: that somebody else answers anywhere is worth more than silence elsewhere."""
    if len(codes) == 1:
        return next(iter(codes))
    return OTHER if OTHER in codes else "failed"


def by_turns(addresses: Iterable[str]) -> tuple[str, ...]:
    """The same, each once, IPv6 and others by turns; within a family in the order given."""
    each = list(dict.fromkeys(addresses))
    kinds = [address.startswith("/ip6/") for address in each]
    first = [address for address, kind in zip(each, kinds, strict=True) if kind == kinds[0]]
    second = [address for address, kind in zip(each, kinds, strict=True) if kind != kinds[0]]
    return tuple(address for pair in zip_longest(first, second) for address in pair if address is not None)


def _retrieve(attempt: asyncio.Task[T]) -> None:
    """It may have failed in the moment in which it was cancelled; nobody asks any more."""
    if not attempt.cancelled():
        attempt.exception()
