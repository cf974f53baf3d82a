"""Limits for incoming connections: for those whose handshake is not finished, and for those of one host.

A handshake takes an honest peer some milliseconds, so the connections that have waited longest are the least likely to
be honest. If there is no room, the host with the most unfinished handshakes loses its oldest one. So silent strangers
make room for each other, and for peers that finish their handshake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

CloseConnection = Callable[[], None]


def counted_host(host: str) -> str:
    """The name under which connections of an IP address are counted; ValueError for anything else.

    Of IPv6 that is the network of /64, as one machine has all of it. IPv4 within IPv6 counts as IPv4.
    """
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)


class InboundLimits:
    """At most `waiting` connections in their handshake, and `of_host` of one host, in their handshake or after it."""

    def __init__(self, waiting: int, of_host: int) -> None:
        self.waiting, self.of_host = waiting, of_host
        self._here: dict[int, str] = {}  # the host of each connection that has not ended, by number
        self._waiting: dict[int, CloseConnection] = {}  # those in their handshake, the oldest first
        self._of: Counter[str] = Counter()
        self._last = 0

    def __len__(self) -> int:
        """How many connections there are, in their handshake or after it."""
        return len(self._here)

    def add(self, host: str, close: CloseConnection) -> int | None:
        """Count a new connection, which `close` ends; returns its number, or None if there is no room for it."""
        if self._of[host] >= self.of_host and not self._close_oldest(host):
            return None
        if len(self._waiting) >= self.waiting:
            self._close_oldest(self._most_waiting())
        self._last += 1
        self._here[self._last], self._waiting[self._last] = host, close
        self._of[host] += 1
        return self._last

    def finish_handshake(self, number: int) -> None:
        """The handshake of a connection is finished: it is not closed any more to make room."""
        self._waiting.pop(number, None)

    def remove(self, number: int) -> None:
        """A connection has ended, in its handshake or after it; may be called again."""
        self._waiting.pop(number, None)
        if (host := self._here.pop(number, None)) is not None:
            self._of -= Counter([host])  # this drops zero counts

    def _close_oldest(self, host: str) -> bool:
        """Close the connection of a host whose handshake began first; False if there is none."""
        number = next((each for each in self._waiting if self._here[each] == host), None)
        if number is None:
            return False
        close = self._waiting[number]
        self.remove(number)
        close()
        return True

    def _most_waiting(self) -> str:
        return Counter(self._here[each] for each in self._waiting).most_common(1)[0][0]
