"""The peers that a network knows, by name: so many at most, and nobody is forgotten with whom we are connected."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from shoal.protocol.ids import PeerId
from shoal.protocol.link import Neighbour
from shoal.protocol.surroundings import Surroundings

MAX_NEIGHBOURS = 16_384  # more than a run may have members, as only here their addresses are kept


class Neighbours:
    """Those whom we know."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._known: OrderedDict[PeerId, Neighbour] = OrderedDict()

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def known(self, peer: PeerId) -> Neighbour | None:
        """Who is called so, if we know it."""
        return self._known.get(peer)

    def of(self, peer: PeerId) -> Neighbour:
        """Who is called so; from now on we know it."""
        if peer not in self._known:
            self._known[peer] = Neighbour(peer, self._around)
            self._forget_strangers()
        self._known.move_to_end(peer)
        return self._known[peer]

    async def speak_out(self) -> None:
        """Return when all words have left."""
        while any(each.has_words_left for each in self):
            await asyncio.sleep(0.01)

    def forget(self, peer: PeerId) -> None:
        """Know it no more."""
        del self._known[peer]

    def _forget_strangers(self) -> None:
        """Whoever was not heard of for longest, and is not connected, goes first."""
        if len(self._known) > MAX_NEIGHBOURS:
            oldest = next((each.peer for each in self._known.values() if not each.is_up), None)
            if oldest is not None:
                del self._known[oldest]
