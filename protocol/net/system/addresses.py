"""Addresses as people write them: host names are looked up when they are dialled, and our own addresses are found.

- Names are those of the system (a container's neighbours, /etc/hosts): /dns4/NAME, /dns6/NAME or /dns/NAME.
- Our own addresses are those of all interfaces, so that a network without a way out, or a second one, counts as well.
  That of the way out to the internet comes first, the loopback last. We tell others MAX_OWN of them, and the log which
  ones we do not tell. IPv6 addresses that are good on one link only are left out: they make no sense without the name
  of an interface, which is another one for each machine.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address

from shoal.protocol.base.multiaddrs import kind_of_host, multiaddr, shortlist
from shoal.protocol.net.system.interfaces import Interface, interfaces, ranked
from shoal.protocol.net.system.resolving import RESOLVER

FAMILIES = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6, "dns": socket.AF_UNSPEC}
PROTOCOLS = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}
EVERYWHERE = {"0.0.0.0": 4, "::": 6}  # the address that stands for all of a version
ROUTES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # nobody's, but in the internet's range
FRESH = 5.0  # seconds for which what was found is still believed
MAX_OWN = 6  # of our addresses, beside the loopback: a machine full of bridges and tunnels has dozens

log = logging.getLogger(__name__)


async def resolve(address: str) -> tuple[str, ...]:
    """`address` with its host name, if it has one, replaced by each of the name's addresses; TransportError without."""
    _, kind, name, *rest = [*address.split("/", 3), "", "", ""][:4]
    if kind not in FAMILIES:
        return (address,)
    found = await RESOLVER.look_up(name, FAMILIES[kind])
    return tuple(f"/{PROTOCOLS[family]}/{host}/{'/'.join(rest)}" for family, host in found if family in PROTOCOLS)


def listening(host: str, port: int) -> tuple[str, ...]:
    """Where to listen: at `host`, and for "everywhere" by IPv6, too, if this machine has it."""
    return tuple(multiaddr(each, port) for each in ((host, "::") if host == "0.0.0.0" and has_ipv6() else (host,)))


def has_ipv6() -> bool:
    """Whether sockets of IPv6 can be had here at all."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


def own_hosts() -> list[str]:
    """All our addresses, those first at which others are likeliest to reach us (interfaces.py); no loopbacks."""
    known, ways_out = interfaces(), [way for way in map(_way_out, ROUTES) if way]
    return ranked(known, ways_out) if known else ways_out


def own_addresses() -> list[str]:
    """Those of our addresses that we tell others: the likeliest of each kind, then the likeliest; the loopback last."""
    return _told(own_hosts())


def _told(hosts: Sequence[str]) -> list[str]:
    return [*shortlist(hosts, MAX_OWN, kind_of_host), "127.0.0.1"]


def reachable_at(listening: Iterable[str]) -> tuple[str, ...]:
    """The multiaddrs on which we listen, with "everywhere" spelled out; loopbacks come last."""
    return _reachable_at(list(listening), own_hosts())


def _reachable_at(addresses: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    found = _at_hosts(addresses, _told(hosts))
    return tuple(sorted(found, key=is_loopback)) or tuple(each.replace("/::/", "/::1/") for each in addresses)


def _at_hosts(listening: Iterable[str], own: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for address in listening for each in _spelled_out(address, own)))


class Whereabouts:
    """`reachable_at`, asked anew after a while only: to have the system list its interfaces takes a millisecond."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.untold: tuple[str, ...] = ()  # of our addresses, those that are too many to tell others
        self._clock = clock
        self._listening: tuple[str, ...] = ()
        self._found: tuple[str, ...] = ()
        self._until = -math.inf

    def of(self, listening: Iterable[str]) -> tuple[str, ...]:
        """The multiaddrs on which we listen."""
        now, listening = self._clock(), tuple(listening)
        if now >= self._until or listening != self._listening:
            hosts = own_hosts()
            self._listening, self._found, self._until = listening, _reachable_at(listening, hosts), now + FRESH
            self._note_untold(hosts)
        return self._found

    def everywhere(self, listening: Iterable[str]) -> tuple[str, ...]:
        """The same with those of our addresses that are too many to tell others, and no loopbacks."""
        found = self.of(listening)
        return (*(each for each in found if not is_loopback(each)), *self.untold)

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
    """Whether a multiaddr leads to the machine on which it is dialled."""
    host = [*address.split("/", 3), "", ""][2]
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def attached() -> list[Interface]:
    """Our addresses with the networks that they lie in, but for loopbacks and those good on one IPv6 link only."""
    return [address for each in interfaces() for address in each.addresses]


def way_out() -> str:
    """Our IPv4 address on the way to the internet; empty if there is no way."""
    return _way_out(ROUTES[0])


def _way_out(route: tuple[socket.AddressFamily, str]) -> str:
    """Our address on the way to the internet; empty if there is no way."""
    family, somebody = route
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((somebody, 9))  # asks for a route; sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""
