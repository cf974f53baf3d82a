"""Where an address lies: on this machine, in this house, on the internet; and which of those are one host's doing.

Who rents one machine can put as many nodes on it as it likes, but all have addresses from a few prefixes. So a bucket
takes a bounded number of contacts per prefix (table.py). Addresses of this machine and of local networks are exempt,
and so are names without a dot: whoever is there already has no need of sybils. Networks for documentation (RFC 5737)
count as internet.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from functools import lru_cache

from shoal.protocol.messages.dht import Contact

NARROW = {4: 24, 6: 64}  # what one customer gets
WIDE = {4: 16, 6: 48}  # what one provider has at one place
DOCUMENTATION = tuple(map(ipaddress.ip_network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")))


class Scope(IntEnum):
    """From where an address can be dialled."""

    LOOPBACK = 0
    LAN = 1
    INTERNET = 2


@lru_cache(maxsize=65_536)
def scope(address: str) -> Scope:
    """The scope of an address as libp2p writes it; one that is not an IP address or a local name counts as internet."""
    host = _host(address)
    if isinstance(host, str):
        return Scope.INTERNET if "." in host.removesuffix(".local") else Scope.LAN
    if host.is_loopback:
        return Scope.LOOPBACK
    if any(host in network for network in DOCUMENTATION):
        return Scope.INTERNET
    return Scope.INTERNET if host.is_global else Scope.LAN


def widest(contact: Contact) -> Scope:
    """The widest scope in which `contact` says that it can be dialled."""
    return max(map(scope, contact.addresses), default=Scope.LOOPBACK)


Prefixes = tuple[tuple[str, ...], tuple[str, ...]]
"""Narrow ones, and wide ones."""


def prefixes(contact: Contact) -> Prefixes:
    """The narrow and the wide prefixes of a contact's addresses on the internet, each once."""
    pairs = [_prefixes(address) for address in contact.addresses if scope(address) is Scope.INTERNET]
    return tuple(dict.fromkeys(pair[0] for pair in pairs)), tuple(dict.fromkeys(pair[1] for pair in pairs))


@lru_cache(maxsize=65_536)
def _prefixes(address: str) -> tuple[str, str]:
    host = _host(address)
    if isinstance(host, str):
        domain = ".".join(host.split(".")[-2:])
        return domain, domain
    narrow, wide = (ipaddress.ip_network((host, length[host.version]), strict=False) for length in (NARROW, WIDE))
    return str(narrow), str(wide)


def _host(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | str:
    _, kind, host, *_ = [*address.split("/", 3), "", "", ""]
    try:
        return ipaddress.ip_address(host) if kind in ("ip4", "ip6") else f"{host}."[:-1]
    except ValueError:
        return host
