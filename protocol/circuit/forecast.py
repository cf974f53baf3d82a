"""Which path two peers will come to, said before they meet, from what each knows of itself. Pure.

one can be dialled                               direct: whoever cannot, dials, or is asked by a relay to dial back
neither; both are met at one place by all        punched
neither; one is seen elsewhere by each           relayed, for good: nobody knows where to dial it
neither; and no relay connects others with one   none

While something is not known that it hangs on, the forecast is `unknown`: none is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shoal.protocol.paths import DIRECT, PUNCHED, RELAYED

NONE, UNKNOWN = "none", "unknown"
MET = ("keeping", "public")  # kinds of mapping (mapping.py) at which others can meet us


@dataclass(frozen=True, slots=True)
class Situation:
    """What a peer knows of itself. `dialable` is None until somebody has tried."""

    dialable: bool | None
    mapping: str  # see mapping.py
    has_relay: bool

    def as_json(self) -> dict[str, Any]:
        """For a file, or an answer."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Situation:
        """What `as_json` gave."""
        return cls(said["dialable"], said["mapping"], said["has_relay"])


OTHERS = {
    "public": Situation(True, "public", False),
    "firewalled": Situation(False, "public", True),
    "keeping": Situation(False, "keeping", True),
    "symmetric": Situation(False, "symmetric", True),
}
"""The kinds of places where others may be; of those that cannot be dialled, with relays, as all find some."""


def forecast(one: Situation, other: Situation) -> str:
    """The best path between two: one of shoal.protocol.paths, `none` or `unknown`. Who calls makes no difference."""
    if one.dialable or other.dialable:
        return DIRECT
    if one.dialable is None or other.dialable is None:
        return UNKNOWN
    if not (one.has_relay or other.has_relay):
        return NONE
    kinds = (one.mapping, other.mapping)
    if all(kind in MET for kind in kinds):
        return PUNCHED
    return RELAYED if "symmetric" in kinds else UNKNOWN


def forecasts(one: Situation) -> dict[str, str]:
    """The path with each kind of others."""
    return {kind: forecast(one, other) for kind, other in OTHERS.items()}
