"""Which addresses are one host's doing.

Who rents one machine can put as many nodes on it as it likes, but all have addresses from a few prefixes. So a bucket
takes a bounded number of contacts per prefix (table.py). Addresses of this machine and of local networks are exempt:
whoever is there already has no need of sybils. All that are no IP addresses have one prefix together.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from shoal.dht.scope import Scope, scope_of
from shoal.protocol.messages.dht import Contact
from shoal.protocol.multiaddrs import host_and_port

NARROW = {4: 24, 6: 64}  # what one customer gets
WIDE = {4: 16, 6: 48}  # what one provider has at one place
CACHED = 16_384  # addresses whose prefixes are remembered

Prefixes = tuple[tuple[str, ...], tuple[str, ...]]
"""Narrow ones, and wide ones."""


def prefixes(contact: Contact) -> Prefixes:
    """The narrow and the wide prefixes of a contact's addresses on the internet, each once."""
    return _of(contact.addresses)


@lru_cache(CACHED)
def _of(addresses: tuple[str, ...]) -> Prefixes:
    pairs = [_prefixes(each) for each in addresses if scope_of(each) not in (Scope.LOOPBACK, Scope.LAN)]
    return tuple(dict.fromkeys(pair[0] for pair in pairs)), tuple(dict.fromkeys(pair[1] for pair in pairs))


def _prefixes(address: str) -> tuple[str, str]:
    where = host_and_port(address)
    if where is None:
        return "", ""
    host = where[0]
    narrow, wide = (ipaddress.ip_network((host, length[host.version]), strict=False) for length in (NARROW, WIDE))
    return str(narrow), str(wide)
