"""Which peer a person means by PEER, and the addresses at which it may be, each with the sources that say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shoal.dht.directory import members_in
from shoal.dht.keys import run_key
from shoal.dht.link import looks_like_link, parse_link
from shoal.dht.link_addresses import is_address
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.peer_finder import PeerFinder
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import place_of, split
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import public_key

if TYPE_CHECKING:
    from shoal.node.run.run import Run

LEAST = 4  # characters of a PeerID that suffice
SHOWN = 60  # characters of a wrong query that an error repeats
HOW = "it is a PeerID, the last characters of one in `shoal peers`, or an address like /ip4/203.0.113.7/tcp/4101"
LOOK_UP_LIMIT = 4.0  # seconds
MOST_RUNS = 4  # runs whose directories are read

KnownAddresses = dict[str, list[str]]
"""Addresses of a peer, each with the sources that say that it is there."""


@dataclass(frozen=True, slots=True)
class PeerQuery:
    """A peer, an address at which it should be, or both."""

    peer: PeerId | None
    address: str = ""


def parse_query(asked: str, known: Iterable[PeerId]) -> PeerQuery:
    """The peer or address that `asked` means; LocalError if it is neither, or fits none or several of the `known`."""
    asked = asked.strip()
    if looks_like_link(asked):
        addresses = parse_link(asked).addresses
        hint = f"one of its addresses, `shoal doctor {addresses[0]}`" if addresses else "a PeerID or an address"
        raise LocalError(f"a run's link leads to several peers: ask about {hint}", code="unknown-peer")
    if asked.startswith("/"):
        return _at(asked)
    if _is_name(asked):
        return PeerQuery(PeerId(asked))
    return PeerQuery(known_as(asked, sorted(set(known))))


def _at(asked: str) -> PeerQuery:
    place, name = split(asked)
    if not is_address(place) or (name and not _is_name(name)):
        raise LocalError(
            f"'{asked[:SHOWN]}' is no address: one looks like /ip4/203.0.113.7/tcp/4101/p2p/PEERID", code="unknown-peer"
        )
    return PeerQuery(PeerId(name) if name else None, place)


def known_as(asked: str, known: Sequence[PeerId]) -> PeerId:
    """The one of these whose name begins or ends with what a person typed; LocalError if that is none, or several."""
    found = [peer for peer in known if len(asked) >= LEAST and (peer.endswith(asked) or peer.startswith(asked))]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(peer[-12:] for peer in found[:5])
        raise LocalError(
            f"'{asked[:SHOWN]}' means several peers, those that end in {listed}: give more of the end",
            code="unknown-peer",
        )
    raise LocalError(f"no peer '{asked[:SHOWN]}' is known here: {HOW}", code="unknown-peer")


def _is_name(text: str) -> bool:
    try:
        public_key(PeerId(text))
    except ValueError:
        return False
    return True


class AddressSources:
    """Knows addresses of peers, from membership, the DHT, the local network, the cache on disk, and other peers."""

    def __init__(
        self, network: Network, discovery: Discovery, peer_finder: PeerFinder, runs: Callable[[], Mapping[str, Run]]
    ) -> None:
        self._network, self._discovery, self._peer_finder, self._runs = network, discovery, peer_finder, runs

    def peers(self) -> list[PeerId]:
        """All peers of which we know the PeerID; some several times."""
        members = (peer for run in self._runs().values() for peer in run.member.membership.alive())
        linked = (link.peer for link in self._network.links())
        return [*linked, *members, *(each.peer for each in self._discovery.contacts()), *self._peer_finder.peers()]

    def places(self, peer: PeerId) -> KnownAddresses:
        """The addresses of `peer` that are known here, without asking anybody."""
        found: KnownAddresses = {}
        for run in self._runs().values():
            if (entry := run.member.membership.entry(peer)) is not None:
                _add(found, entry.addresses, "membership")
        for contact in self._discovery.contacts():
            _add(found, contact.addresses if contact.peer == peer else (), "dht")
        for source, addresses in self._peer_finder.places(peer).items():
            _add(found, addresses, source)
        for address in self._network.link_report(peer).known:
            found.setdefault(address, ["heard"])
        return found

    async def look_up(self, peer: PeerId) -> KnownAddresses:
        """The addresses of `peer` in the directories of our runs, as far as they answer within LOOK_UP_LIMIT."""
        found: KnownAddresses = {}
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
        """Whether there are directories to look a peer up in."""
        return bool(self._runs() and self._discovery.contacts())


def _is_stranger(peer: PeerId, run: Run) -> bool:
    """Whether a run has not heard of a peer."""
    return run.member.membership.entry(peer) is None


def merge(places: KnownAddresses, more: KnownAddresses) -> None:
    """Add `more` to `places`."""
    for address, sources in more.items():
        for source in sources:
            _add(places, (address,), source)


def _add(places: KnownAddresses, addresses: Iterable[str], source: str) -> None:
    for address in addresses:
        sources = places.setdefault(place_of(address), [])
        if source not in sources:
            sources.append(source)
