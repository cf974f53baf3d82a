"""Bounds on incoming connections: those whose handshake is not finished, and those of one host.

A handshake takes an honest peer some milliseconds, so connections that have waited longest are least likely to be
honest. When there is no room, the oldest waiting one of the host with most waiting ones is closed. So silent strangers
make room for each other, and for peers that finish their handshake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

Leave = Callable[[], None]


def counted_host(host: str) -> str:
    """The name under which connections of an IP address are counted; ValueError for anything else.

    Of IPv6 that is the network of /64, as one machine has all of it. IPv4 within IPv6 counts as IPv4.
    """
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)


class InboundLimits:
    """`waiting` may be at the door at a time, and `of_host` of one host be there at all, at the door or inside."""

    def __init__(self, waiting: int, of_host: int) -> None:
        self.waiting, self.of_host = waiting, of_host
        self._here: dict[int, str] = {}  # host by number: all who have not gone
        self._waiting: dict[int, Leave] = {}  # the oldest first
        self._of: Counter[str] = Counter()
        self._last = 0

    def __len__(self) -> int:
        """How many connections there are, in their handshake or after it."""
        return len(self._here)

    def come(self, host: str, leave: Leave) -> int | None:
        """A connection has come, which `leave` ends: its number, or None if there is no room for it."""
        if self._of[host] >= self.of_host and not self._turn_out(host):
            return None
        if len(self._waiting) >= self.waiting:
            self._turn_out(self._most_waiting())
        self._last += 1
        self._here[self._last], self._waiting[self._last] = host, leave
        self._of[host] += 1
        return self._last

    def let_in(self, number: int) -> None:
        """Its handshake is finished."""
        self._waiting.pop(number, None)

    def gone(self, number: int) -> None:
        """It has left, from wherever it was; to say so twice does no harm."""
        self._waiting.pop(number, None)
        if (host := self._here.pop(number, None)) is not None:
            self._of -= Counter([host])  # which forgets those of whom nobody is left

    def _turn_out(self, host: str) -> bool:
        """Have the one go that has waited longest of a host; whether there is one."""
        number = next((each for each in self._waiting if self._here[each] == host), None)
        if number is None:
            return False
        leave = self._waiting[number]
        self.gone(number)
        leave()
        return True

    def _most_waiting(self) -> str:
        return Counter(self._here[each] for each in self._waiting).most_common(1)[0][0]
