"""How our router maps the port that we listen on, and which path two peers will therefore use. Pure.

`NatMapping` collects at which addresses peers see us that we dialled from that port. Its kinds:

public      others see us at our own address
keeping     behind a router, which uses the same outside address for all destinations: hole punching works
symmetric   it uses another outside address for each
unknown     fewer than two peers have reported

Of the two IP versions IPv4 decides, as it is there that addresses are translated. Each peer reports for both.

`forecast` predicts the path before two peers meet, from what each knows of itself:

one can be dialled                                   direct: the other dials, or is asked by a relay to dial back
neither; both have one outside address for all       punched
neither; one has another outside address for each    relayed, for good: nobody knows where to dial it
neither; and one has no relay                        none

If a fact is missing that matters, the forecast is `unknown`, which is better than a wrong one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import host_and_port, is_public
from shoal.protocol.base.paths import DIRECT, PUNCHED, RELAYED

ENOUGH = 2  # that agree
MOST = 8  # words that are remembered
NONE, UNKNOWN = "none", "unknown"
PUNCHABLE = ("keeping", "public")  # kinds of mapping (nat.py) at which others can meet us


class NatMapping:
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


@dataclass(frozen=True, slots=True)
class Situation:
    """What a peer knows of itself. `dialable` is None until somebody has tried."""

    dialable: bool | None
    mapping: str  # see nat.py
    has_relay: bool

    def as_json(self) -> dict[str, Any]:
        """For a file, or an answer."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Situation:
        """What `as_json` gave."""
        return cls(said["dialable"], said["mapping"], said["has_relay"])


PEER_KINDS = {
    "public": Situation(True, "public", False),
    "firewalled": Situation(False, "public", True),
    "keeping": Situation(False, "keeping", True),
    "symmetric": Situation(False, "symmetric", True),
}
"""The kinds of places where others may be; of those that cannot be dialled, with relays, as all find some."""


def forecast(one: Situation, other: Situation) -> str:
    """The best path between two: one of protocol/base/paths.py, `none` or `unknown`. Who calls makes no difference."""
    if one.dialable or other.dialable:
        return DIRECT
    if one.dialable is None or other.dialable is None:
        return UNKNOWN
    if not (one.has_relay or other.has_relay):
        return NONE
    kinds = (one.mapping, other.mapping)
    if all(kind in PUNCHABLE for kind in kinds):
        return PUNCHED
    return RELAYED if "symmetric" in kinds else UNKNOWN


def forecasts(one: Situation) -> dict[str, str]:
    """The path with each kind of others."""
    return {kind: forecast(one, other) for kind, other in PEER_KINDS.items()}
