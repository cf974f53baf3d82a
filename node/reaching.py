"""Finding the others: by a node's bootstrap addresses, and the peers that it saw in its last life.

Rules:
- A bootstrap address is tried until it was reached once, and again whenever somebody is missed: where nobody else is
  known, it is the only way back.
- The peers that were seen last are tried while somebody is missed, so that no bootstrap node is needed.
- Pauses double up to RETRY_MOST. An unreachable peer is a warning, and never ends the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from shoal.node.logs import warn
from shoal.protocol.errors import LocalError, RemoteError, TransportError
from shoal.protocol.ids import PeerId
from shoal.protocol.network import Network

RETRY_FIRST, RETRY_MOST = 0.5, 30.0  # seconds between two tries
LOOK = 1.0  # seconds between two looks whether somebody is missed
AT_ONCE = 8  # peers of the last time

log = logging.getLogger("shoal.daemon")


class Reaching:
    """Knocks at doors. `misses_somebody` says whether anybody is wanted that is not here."""

    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[str],
        last_seen: Mapping[PeerId, tuple[str, ...]],
        misses_somebody: Callable[[], bool],
    ) -> None:
        self._network = network
        self._bootstrap = bootstrap
        self._last_seen = last_seen
        self._misses_somebody = misses_somebody
        self._unanswered: set[str] = set()  # addresses that were tried in vain

    async def run(self) -> None:
        """For good, unless nobody is known."""
        for peer, addresses in self._last_seen.items():
            self._network.remember(peer, addresses)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recall())
            for address in self._bootstrap:
                group.create_task(self._reach(address))

    def obstacle(self) -> str | None:
        """What keeps us alone, in words; None if nothing was tried in vain."""
        count = len(self._unanswered)
        return f"nobody has answered yet, tried {count} address{'es' if count > 1 else ''}" if count else None

    async def _reach(self, address: str) -> None:
        pause, reached = RETRY_FIRST, False
        while True:
            try:
                peer = await self._network.connect(address)
            except TransportError as error:
                self._unanswered.add(address)
                warn(log, "bootstrap-unreachable", f"cannot reach {address}: {error}; trying again")
            except (LocalError, RemoteError) as error:
                warn(log, "bootstrap-refused", f"{address} cannot be used: {error}")
                return
            else:
                if not reached or address in self._unanswered:
                    log.info("reached bootstrap peer %s", peer)
                self._unanswered.discard(address)
                reached = True
            await asyncio.sleep(pause)
            pause = min(RETRY_MOST, 2 * pause)
            if reached and not self._misses_somebody():
                await self._until_somebody_is_missed()
                pause = RETRY_FIRST

    async def _recall(self) -> None:
        pause, places = RETRY_FIRST, asyncio.Semaphore(AT_ONCE)
        while self._last_seen:
            if not self._misses_somebody():
                await self._until_somebody_is_missed()
                pause = RETRY_FIRST
            await asyncio.gather(*(self._knock(peer, places) for peer in self._last_seen))
            await asyncio.sleep(pause)
            pause = min(RETRY_MOST, 2 * pause)

    async def _until_somebody_is_missed(self) -> None:
        while not self._misses_somebody():
            await asyncio.sleep(LOOK)

    async def _knock(self, peer: PeerId, places: asyncio.Semaphore) -> None:
        async with places:
            if not self._misses_somebody():
                return
            addresses = self._last_seen[peer]
            try:
                await self._network.connect(f"{addresses[0]}/p2p/{peer}")
                self._unanswered.difference_update(addresses)
            except TransportError:
                self._unanswered.update(addresses)
            except (LocalError, RemoteError) as error:
                log.info("%s, seen last time, cannot be used: %s", peer, error)
