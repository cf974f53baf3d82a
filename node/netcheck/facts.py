"""What a node has found out about its place in the network. Values only; see gathering.py for where they come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, ip_network

from shoal.protocol.circuit.forecast import Situation
from shoal.protocol.ids import PeerId
from shoal.protocol.multiaddrs import host_and_port, is_public

CARRIERS = ip_network("100.64.0.0/10")  # RFC 6598: between a carrier's translation and its customers


@dataclass(frozen=True, slots=True)
class Portmap:
    """What came of asking the router for a port; see `port_mapping` in a node's status."""

    protocol: str | None = None  # "upnp" | "nat-pmp"
    external: str | None = None  # "host:port"
    error: str | None = None
    behind_another_nat: bool | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that findings follow from; an empty or None part is not known."""

    port: int = 0
    own: tuple[str, ...] = ()  # where we listen, but for the loopback
    found_at: tuple[str, ...] = ()  # where others have dialled us
    seen_at: tuple[str, ...] = ()  # where relays see the port that we listen on
    peers: int = 0
    internet_peers: int = 0
    reachability: str = "unknown"  # "public" | "nat" | "unknown": of the internet
    mapping: str = "unknown"  # see shoal.protocol.circuit.mapping
    relays: tuple[tuple[PeerId, float | None], ...] = ()  # that connect others with us, and their round trip in ms
    lends: bool = False  # we are a relay for others
    clocks: tuple[float, ...] = ()  # by how many seconds ours is ahead of each peer's
    ipv6_answers: bool | None = None  # None: nobody was there to try
    large_packets: tuple[bool, ...] = ()  # whether they came through, to each peer that was tried
    portmap: Portmap | None = None  # None: not tried
    pending: tuple[str, ...] = ()  # what is about to be known

    def waiting_for(self, pending: Iterable[str]) -> Facts:
        """The same, with what is about to be known."""
        return replace(self, pending=tuple(pending))

    @property
    def situation(self) -> Situation:
        """What paths follow from."""
        known = {"public": True, "nat": False}.get(self.reachability)
        mapping = "public" if known and self.mapping == "unknown" else self.mapping
        return Situation(known, mapping, bool(self.relays))

    @property
    def ipv6(self) -> tuple[str, ...]:
        """Our addresses of IPv6 that are good on the internet."""
        return tuple(each for each in self.own if each.startswith("/ip6/") and _is_public(each))

    @property
    def is_local(self) -> bool:
        """Whether others found us, on this machine or a local network, and nobody is there from the internet."""
        return self.reachability == "unknown" and bool(self.found_at) and not self.internet_peers

    @property
    def is_behind_router(self) -> bool:
        """Whether what the internet sees as our address is another's: a router's."""
        return bool(places := self.found_at or self.seen_at) and not set(places) & set(self.own)

    @property
    def is_behind_carrier(self) -> bool:
        """Whether there is another translation beyond the router's that we can tell."""
        return any(_is_carriers(each) for each in self.own) or bool(self.portmap and self.portmap.behind_another_nat)

    @property
    def ahead(self) -> float | None:
        """By how many seconds our clock is ahead of the others': the median, so that few liars move nothing."""
        return sorted(self.clocks)[len(self.clocks) // 2] if self.clocks else None


def _is_public(address: str) -> bool:
    where = host_and_port(address)
    return where is not None and is_public(where[0])


def _is_carriers(address: str) -> bool:
    where = host_and_port(address)
    return where is not None and isinstance(where[0], IPv4Address) and where[0] in CARRIERS
