"""Where a peer may be, and who says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shoal.dht.directory import members_in
from shoal.dht.keys import run_key
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.reaching import Reaching
from shoal.protocol.errors import ShoalError
from shoal.protocol.ids import PeerId
from shoal.protocol.multiaddrs import place_of
from shoal.protocol.network import Network

if TYPE_CHECKING:
    from shoal.node.run.run import Run

LOOK_UP_LIMIT = 4.0  # seconds
MOST_RUNS = 4  # whose directories are read

Places = dict[str, list[str]]
"""Addresses, and for each who says that a peer is there."""


class Sources:
    """Membership, the DHT, the local network, the cache on disk, and what was heard of otherwise."""

    def __init__(
        self, network: Network, discovery: Discovery, reaching: Reaching, runs: Callable[[], Mapping[str, Run]]
    ) -> None:
        self._network, self._discovery, self._reaching, self._runs = network, discovery, reaching, runs

    def peers(self) -> list[PeerId]:
        """All whom we could name."""
        members = (peer for run in self._runs().values() for peer in run.member.membership.alive())
        linked = (link.peer for link in self._network.links())
        return [*linked, *members, *(each.peer for each in self._discovery.contacts()), *self._reaching.peers()]

    def places(self, peer: PeerId) -> Places:
        """Where `peer` may be, as far as we know without asking anybody."""
        found: Places = {}
        for run in self._runs().values():
            if (entry := run.member.membership.entry(peer)) is not None:
                _add(found, entry.addresses, "membership")
        for contact in self._discovery.contacts():
            _add(found, contact.addresses if contact.peer == peer else (), "dht")
        for source, addresses in self._reaching.places(peer).items():
            _add(found, addresses, source)
        for address in self._network.account(peer).known:
            found.setdefault(address, ["heard"])
        return found

    async def look_up(self, peer: PeerId) -> Places:
        """What the directories of our runs say."""
        found: Places = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_UP_LIMIT):
                for run in sorted(self._runs().values(), key=partial(_is_stranger, peer))[:MOST_RUNS]:
                    with suppress(ShoalError):
                        got = await self._discovery.get(run_key(run.id), quorum=2)
                        entries = [each.entry for each in members_in(got.found) if each.peer == peer]
                        for entry in entries:
                            _add(found, self._discovery.worth_dialling(entry.addresses), "directory")
        return found

    @property
    def has_directories(self) -> bool:
        """Whether there is anything to be looked up."""
        return bool(self._runs() and self._discovery.contacts())


def _is_stranger(peer: PeerId, run: Run) -> bool:
    """Whether a run has not heard of a peer."""
    return run.member.membership.entry(peer) is None


def merge(places: Places, more: Places) -> None:
    """Add what somebody else says."""
    for address, sources in more.items():
        for source in sources:
            _add(places, (address,), source)


def _add(places: Places, addresses: Iterable[str], source: str) -> None:
    for address in addresses:
        sources = places.setdefault(place_of(address), [])
        if source not in sources:
            sources.append(source)
