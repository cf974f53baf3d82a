"""Resolves host names in multiaddrs, and finds this machine's own addresses.

- /dns4/NAME, /dns6/NAME and /dns/NAME are looked up by the system (so /etc/hosts and a container's neighbours count)
  when they are dialled.
- Our own addresses are those of all interfaces, so that a network without internet access, or a second one, counts as
  well. The address on the route to the internet comes first, the loopback last. Others are told MAX_OWN of them; the
  log says which ones are left out. Link-local IPv6 addresses are left out: they mean nothing without the name of an
  interface, which differs from machine to machine.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address

from shoal.protocol.base.multiaddrs import OwnNetworks, kind_of_host, multiaddr, shortlist
from shoal.protocol.net.system.interfaces import InterfaceAddress, interfaces, own_networks, ranked
from shoal.protocol.net.system.resolving import RESOLVER

FAMILIES = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6, "dns": socket.AF_UNSPEC}
PROTOCOLS = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}
EVERYWHERE = {"0.0.0.0": 4, "::": 6}  # the unspecified address of each IP version: listen on all interfaces
ROUTES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # nobody's, but routed like the internet
FRESH = 5.0  # seconds for which the addresses that were found are kept
MAX_OWN = 6  # of our addresses, beside the loopback: a machine full of bridges and tunnels has dozens

log = logging.getLogger(__name__)


async def resolve(address: str) -> tuple[str, ...]:
    """`address` with its host name, if any, replaced by each of the name's IP addresses; TransportError if none."""
    _, kind, name, *rest = [*address.split("/", 3), "", "", ""][:4]
    if kind not in FAMILIES:
        return (address,)
    found = await RESOLVER.look_up(name, FAMILIES[kind])
    return tuple(f"/{PROTOCOLS[family]}/{host}/{'/'.join(rest)}" for family, host in found if family in PROTOCOLS)


def listening(host: str, port: int) -> tuple[str, ...]:
    """The multiaddrs to listen on: `host`, and for 0.0.0.0 also ::, if this machine has IPv6."""
    return tuple(multiaddr(each, port) for each in ((host, "::") if host == "0.0.0.0" and has_ipv6() else (host,)))


def has_ipv6() -> bool:
    """Whether this machine can open IPv6 sockets."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


def own_hosts() -> list[str]:
    """All our IP addresses but loopbacks, the likeliest to be reachable for others first (interfaces.py)."""
    known, ways_out = interfaces(), _ways_out()
    return ranked(known, ways_out) if known else ways_out


def found_networks() -> OwnNetworks:
    """The networks that this machine is in, as far as the system tells."""
    return own_networks(interfaces(), _ways_out())


def advertised(hosts: Sequence[str]) -> list[str]:
    """The addresses that others are told: the best one of each kind, then the best of the rest; the loopback last."""
    return [*shortlist(hosts, MAX_OWN, kind_of_host), "127.0.0.1"]


def reachable_at(addresses: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """The multiaddrs on which we listen, with "everywhere" replaced by each of `hosts`; loopbacks come last."""
    found = _at_hosts(addresses, advertised(hosts))
    return tuple(sorted(found, key=is_loopback)) or tuple(each.replace("/::/", "/::1/") for each in addresses)


def _at_hosts(listening: Iterable[str], own: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for address in listening for each in _spelled_out(address, own)))


class OwnAddresses:
    """`reachable_at`, cached for FRESH seconds, as listing the system's interfaces takes a millisecond."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.untold: tuple[str, ...] = ()  # our addresses beyond MAX_OWN, which others are not told
        self.networks = OwnNetworks()
        self._clock = clock
        self._listening: tuple[str, ...] = ()
        self._found: tuple[str, ...] = ()
        self._until = -math.inf

    def of(self, listening: Iterable[str]) -> tuple[str, ...]:
        """The multiaddrs at which we listen and that others are told."""
        now, listening = self._clock(), tuple(listening)
        if now >= self._until or listening != self._listening:
            hosts = own_hosts()
            self._listening, self._found, self._until = listening, reachable_at(listening, hosts), now + FRESH
            self._note_networks(hosts)
            self._note_untold(hosts)
        return self._found

    def everywhere(self, listening: Iterable[str]) -> tuple[str, ...]:
        """All multiaddrs at which we listen, those beyond MAX_OWN included, without loopbacks."""
        found = self.of(listening)
        return (*(each for each in found if not is_loopback(each)), *self.untold)

    def _note_networks(self, hosts: Sequence[str]) -> None:
        before, self.networks = self.networks.inside, found_networks()
        inside = [each for each in hosts if any(ip_address(each) in network for network in self.networks.inside)]
        if self.networks.inside != before and inside:
            words = "lead only to its own containers and virtual machines, or to no machine at all"
            log.info("links to runs do not name these addresses of this node, which %s: %s", words, ", ".join(inside))

    def _note_untold(self, hosts: Sequence[str]) -> None:
        everywhere = [each for each in self._listening if each.split("/")[2:3] in ([host] for host in EVERYWHERE)]
        untold = tuple(each for each in _at_hosts(everywhere, hosts) if each not in self._found)
        if untold != self.untold and untold:
            told = len([each for each in self._found if not is_loopback(each)])
            log.info("others are told %d addresses of this node, and not %s", told, ", ".join(untold))
        self.untold = untold


def _spelled_out(address: str, own: Sequence[str]) -> list[str]:
    _, _, host, rest = address.split("/", 3)
    if host not in EVERYWHERE:
        return [address]
    return [f"/ip{EVERYWHERE[host]}/{each}/{rest}" for each in own if ip_address(each).version == EVERYWHERE[host]]


def is_loopback(address: str) -> bool:
    """Whether a multiaddr is a loopback address."""
    host = [*address.split("/", 3), "", ""][2]
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def interface_addresses() -> list[InterfaceAddress]:
    """Our addresses with their networks, without loopbacks and link-local IPv6 addresses."""
    return [address for each in interfaces() for address in each.addresses]


def way_out() -> str:
    """Our IPv4 address on the route to the internet; empty if there is no route."""
    return _way_out(ROUTES[0])


def _ways_out() -> list[str]:
    """Our addresses on the routes to the internet."""
    return [way for way in map(_way_out, ROUTES) if way]


def _way_out(route: tuple[socket.AddressFamily, str]) -> str:
    """Our address on a route; empty if there is no route."""
    family, somebody = route
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((somebody, 9))  # only looks up the route: a UDP connect sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""
