"""What a node has found out about its place in the network. Values only; see gathering.py for where they come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from statistics import median

from shoal.node.gateway.judging import is_carriers
from shoal.protocol.circuit.forecast import Situation
from shoal.protocol.ids import PeerId
from shoal.protocol.multiaddrs import host_and_port, is_public


@dataclass(frozen=True, slots=True)
class Portmap:
    """What came of asking the router for a port; see `port_mapping` in a node's status."""

    protocol: str | None = None  # "upnp" | "nat-pmp"
    external: str | None = None  # "host:port"
    error: str | None = None
    behind_another_nat: bool | None = None
    pending: bool = False  # nobody knows yet

    @property
    def is_carriers(self) -> bool:
        """Whether the router's outside lies in its carrier's own network."""
        return self.external is not None and is_carriers(ip_address(self.external.rpartition(":")[0]))


@dataclass(frozen=True, slots=True)
class Facts:
    """All that findings follow from; an empty or None part is not known."""

    port: int = 0
    own: tuple[str, ...] = ()  # where we listen, that of our way out first; without the loopback
    found_at: tuple[str, ...] = ()  # where others have dialled us
    seen_places: tuple[str, ...] = ()  # where relays see the port that we listen on
    came: int = 0  # peers of the internet that have dialled us by themselves, and are connected so
    peers: int = 0
    internet_peers: int = 0
    reachability: str = "unknown"  # "public" | "nat" | "unknown": of the internet
    mapping: str = "unknown"  # see shoal.protocol.circuit.mapping
    relays: tuple[tuple[PeerId, float | None], ...] = ()  # that connect others with us, and their round trip in ms
    lends: bool = False  # we are a relay for others
    clocks: tuple[float, ...] = ()  # by how many seconds ours is ahead of each peer's
    ipv6_answers: bool | None = None  # None: nobody was there to try
    large_packets: tuple[bool, ...] = ()  # whether they came through, to each peer that was tried
    portmap: Portmap | None = None  # None: nobody is asked
    limits: str | None = None  # the rates that our owner has set, in words
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
        """Whether where the internet finds or sees us by IPv4, which alone is translated, is another's: a router's."""
        places = _of_internet(self.found_at) or _of_internet(self.seen_places)
        return bool(places) and not set(places) & set(self.own)

    @property
    def has_public_address(self) -> bool:
        """Whether this machine itself has an address of IPv4 that is good on the internet, as far as we can tell."""
        return bool(_of_internet(self.own)) and not self.is_behind_router

    @property
    def is_behind_carrier(self) -> bool:
        """Whether there is another translation beyond the router's that we can tell."""
        return self.is_carriers_customer or bool(self.portmap and self.portmap.behind_another_nat)

    @property
    def is_carriers_customer(self) -> bool:
        """Whether that is the carrier's for sure. Of our own addresses the way out decides: tunnels use that range."""
        where = host_and_port(self.own[0]) if self.own else None
        return (where is not None and is_carriers(where[0])) or bool(self.portmap and self.portmap.is_carriers)

    @property
    def ahead(self) -> float | None:
        """By how many seconds our clock is ahead of the others': the median, so that few liars move nothing."""
        return median(self.clocks) if self.clocks else None


def _of_internet(addresses: Iterable[str]) -> list[str]:
    """Those of IPv4 that are good on the internet."""
    return [each for each in addresses if each.startswith("/ip4/") and _is_public(each)]


def _is_public(address: str) -> bool:
    where = host_and_port(address)
    return where is not None and is_public(where[0])
