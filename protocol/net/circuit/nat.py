"""How our router maps the port that we listen on, and which path two peers will therefore use. Pure.

`NatMapping` collects the addresses at which peers see us that we dialled from that port. The kinds of mapping:

public      others see us at our own address
keeping     a router that uses the same outside address for all destinations: hole punching works
symmetric   a router that uses another outside address for each destination
unknown     fewer than two hosts have reported

If there are reports for both IP versions, IPv4 decides, as addresses are translated there.

`forecast` predicts the path before two peers meet, from what each knows of itself:

one can be dialled                                   direct: the other dials, or is asked by a relay to dial back
neither; both have one outside address for all       punched
neither; one has another outside address for each    relayed, for good: nobody knows where to dial it
neither; and one has no relay                        none

If a fact that matters is missing, the forecast is `unknown`, which is better than a wrong one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import host_and_port, is_public
from shoal.protocol.base.paths import DIRECT, PUNCHED, RELAYED

ENOUGH = 2  # hosts that must have reported
MOST = 8  # reports that are remembered
NONE, UNKNOWN = "none", "unknown"
PUNCHABLE = ("keeping", "public")  # kinds of mapping with which hole punching works


class NatMapping:
    """The reports of peers on where they see us."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[PeerId, int], tuple[str, str]] = OrderedDict()  # (its host, where it sees us)

    def note(self, observer: PeerId, host: str, seen: str) -> None:
        """Note that a peer, dialled at `host` from our listening port, sees us at the multiaddr `seen`."""
        place = host_and_port(seen)
        if place is None or not is_public(place[0]):
            return
        by = observer, place[0].version
        self._seen[by] = host, seen
        self._seen.move_to_end(by)
        if len(self._seen) > MOST:
            self._seen.popitem(last=False)

    def forget(self, observer: PeerId) -> None:
        """Forget the reports of a peer that is not connected any more, as our address may have changed."""
        for version in (4, 6):
            self._seen.pop((observer, version), None)

    def kind(self, own: tuple[str, ...]) -> str:
        """The kind of mapping; `own` are our own multiaddrs."""
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
        """The multiaddrs at which others see us, each once."""
        return tuple(dict.fromkeys(seen for _, seen in self._seen.values()))

    @property
    def hosts(self) -> frozenset[str]:
        """The IP addresses at which others see us."""
        return frozenset(str(place[0]) for _, seen in self._seen.values() if (place := host_and_port(seen)) is not None)

    @property
    def places(self) -> tuple[str, ...]:
        """The multiaddrs for hole punching: of each IP version the one that all report, none if they differ."""
        each = [dict.fromkeys(seen for _, seen in said) for said in self._by_version()]
        return tuple(place for places in each if len(places) == 1 for place in places)

    def _by_version(self) -> list[list[tuple[str, str]]]:
        """The reports of each IP version that has any, IPv4 first."""
        fours = [each for each in self._seen.values() if each[1].startswith("/ip4/")]
        sixes = [each for each in self._seen.values() if each not in fours]
        return [said for said in (fours, sixes) if said]


@dataclass(frozen=True, slots=True)
class Situation:
    """What a peer knows of its own reachability. `dialable` is None until somebody has tried."""

    dialable: bool | None
    mapping: str  # a kind of NatMapping
    has_relay: bool

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Situation:
        """The inverse of `as_json`."""
        return cls(said["dialable"], said["mapping"], said["has_relay"])


PEER_KINDS = {
    "public": Situation(True, "public", False),
    "firewalled": Situation(False, "public", True),
    "keeping": Situation(False, "keeping", True),
    "symmetric": Situation(False, "symmetric", True),
}
"""The situations that other peers may be in; those that cannot be dialled have relays, as all peers find some."""


def forecast(one: Situation, other: Situation) -> str:
    """The best path between two peers, whoever dials: one of protocol/base/paths.py, `none` or `unknown`."""
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
    """The path to each kind of other peers."""
    return {kind: forecast(one, other) for kind, other in PEER_KINDS.items()}
