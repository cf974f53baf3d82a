"""What our router makes of the port that we listen on, from where others see us who were dialled from it. Pure.

public      others see us where we are
keeping     behind a router, which gives us the same place for all whom we dial: they can meet us there
symmetric   it gives us another place for each
unknown     fewer than two have said

Of two versions of IP it is IPv4 that decides, as it is there that addresses are translated. Each peer has a word of
each.
"""

from __future__ import annotations

from collections import OrderedDict

from shoal.protocol.ids import PeerId
from shoal.protocol.multiaddrs import host_and_port, is_public

ENOUGH = 2  # that agree
MOST = 8  # words that are remembered


class Mapping:
    """What was said so far."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[PeerId, int], tuple[str, str]] = OrderedDict()  # its host, and where it sees us

    def note(self, observer: PeerId, host: str, seen: str) -> None:
        """A peer, dialled at `host` from the port that we listen on, sees us there."""
        place = host_and_port(seen)
        if place is None or not is_public(place[0]):
            return
        by = observer, place[0].version
        self._seen[by] = host, seen
        self._seen.move_to_end(by)
        if len(self._seen) > MOST:
            self._seen.popitem(last=False)

    def forget(self, observer: PeerId) -> None:
        """The connection with a peer is gone: we may be elsewhere now."""
        for version in (4, 6):
            self._seen.pop((observer, version), None)

    def kind(self, own: tuple[str, ...]) -> str:
        """What follows; `own` are our own addresses."""
        said = self._by_version()
        if not said:
            return "unknown"
        hosts, places = {host for host, _ in said[0]}, {seen for _, seen in said[0]}
        if len(hosts) < ENOUGH:
            return "unknown"
        if len(places) > 1:
            return "symmetric"
        return "public" if places <= set(own) else "keeping"

    @property
    def seen(self) -> tuple[str, ...]:
        """Where others see us, each place once."""
        return tuple(dict.fromkeys(seen for _, seen in self._seen.values()))

    @property
    def hosts(self) -> frozenset[str]:
        """The addresses under which others see us, whatever the port."""
        return frozenset(str(place[0]) for _, seen in self._seen.values() if (place := host_and_port(seen)) is not None)

    @property
    def places(self) -> tuple[str, ...]:
        """Where others can meet us who dial us when we dial them: nowhere, if each sees us elsewhere."""
        each = [dict.fromkeys(seen for _, seen in said) for said in self._by_version()]
        return tuple(place for places in each if len(places) == 1 for place in places)

    def _by_version(self) -> list[list[tuple[str, str]]]:
        """What was said of each version of IP, 4 first: each has a place of its own."""
        fours = [each for each in self._seen.values() if each[1].startswith("/ip4/")]
        sixes = [each for each in self._seen.values() if each not in fours]
        return [said for said in (fours, sixes) if said]
