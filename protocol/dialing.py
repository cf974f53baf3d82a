"""Getting a connection with one peer: one attempt at a time, with exponential back-off after failures.

A connection that the peer makes while we dial ends the wait; ours is then a spare, and does no harm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from shoal.protocol.errors import TransportError
from shoal.protocol.ids import PeerId, short
from shoal.protocol.transport import Transport

LIMIT = 10.0  # seconds for one attempt at all addresses
BACK_OFF = (0.2, 15.0)  # seconds: the first and the longest
MAX_ADDRESSES = 8

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Dialing:
    """Whether one peer is connected, and what is known of where it is."""

    def __init__(self, peer: PeerId, transport: Transport, spawn: Spawn) -> None:
        self._peer = peer
        self._transport = transport
        self._spawn = spawn
        self._addresses: tuple[str, ...] = ()
        self._attempt: asyncio.Future[None] | None = None
        self._delay = 0.0
        self._retry_at = 0.0
        self.is_up = False

    def learn(self, addresses: tuple[str, ...]) -> None:
        """Where the peer may be; the latest news is tried first."""
        self._addresses = tuple(dict.fromkeys([*addresses, *self._addresses]))[:MAX_ADDRESSES]

    def connected(self) -> None:
        """A connection exists, whoever made it."""
        self.is_up = True
        self.forget_failures()
        if self._attempt is not None and not self._attempt.done():
            self._attempt.set_result(None)

    def forget_failures(self) -> None:
        """Dial at once when next asked: somebody knows that the peer is there."""
        self._delay = self._retry_at = 0.0

    async def reach(self) -> None:
        """Return when a connection exists; TransportError if there is none to be had now."""
        if self.is_up:
            return
        if self._attempt is None or self._attempt.done():
            self._check()
            self._attempt = asyncio.get_running_loop().create_future()
            self._attempt.add_done_callback(_retrieve)
            self._spawn(self._dial(self._attempt))
        await asyncio.shield(self._attempt)

    def _check(self) -> None:
        wait = self._retry_at - asyncio.get_running_loop().time()
        if wait > 0:
            raise TransportError(f"{short(self._peer)} was out of reach; the next attempt is in {wait:.1f} s")
        if not self._addresses:
            raise TransportError(f"no address of {short(self._peer)} is known")

    async def _dial(self, attempt: asyncio.Future[None]) -> None:
        try:
            await self._transport.dial(self._peer, self._addresses, LIMIT)
        except TransportError as error:
            if not attempt.done():
                self._back_off()
                attempt.set_exception(error)
        else:
            if not attempt.done():
                attempt.set_result(None)

    def _back_off(self) -> None:
        first, longest = BACK_OFF
        self._delay = min(longest, max(first, 2 * self._delay))
        jitter = random.uniform(0.75, 1.25)  # so that peers that lost each other do not dial in step
        self._retry_at = asyncio.get_running_loop().time() + self._delay * jitter


def _retrieve(attempt: asyncio.Future[None]) -> None:
    """All who waited may have gone; then the failure needs no words."""
    if not attempt.cancelled():
        attempt.exception()
