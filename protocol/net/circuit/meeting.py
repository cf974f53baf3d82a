"""The addresses at which two peers meet in hole punching, from what each reports of itself in DCUtR. Pure.

Rules:
- A peer behind a symmetric router (another outside address for each destination) names no address. A peer that does not
  know its outside address yet names the unspecified one, so that the other can tell the two cases apart.
- Both use one IP version in which both have an address: IPv4 if possible, so that both choose the same.
- Only public addresses count, and only a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.multiaddrs import Place, host_and_port, is_public, multiaddr, shortlist
from shoal.protocol.net.circuit.accounts import Refused, Status
from shoal.protocol.net.measure.link import NOT_YET, WHOSE_ROUTER

MAX_PLACES = 2
MAX_READ = 64  # addresses of a peer that are read; some are of protocols that we do not speak
UNKNOWN = "/ip4/0.0.0.0/tcp/0"


@dataclass(frozen=True, slots=True)
class Side:
    """The outside addresses of one of the two; none if its router is symmetric, or they are not known yet."""

    places: tuple[Place, ...] = ()
    is_symmetric: bool = False


class NowhereToMeet(TransportError):
    """The two cannot meet now; trying again at once would not help."""


def side_of(addresses: Sequence[str], is_symmetric: bool) -> Side:
    """Our own side, from our outside addresses."""
    found = [place for each in addresses if (place := host_and_port(each)) is not None and is_public(place[0])]
    return Side(tuple((str(host), port) for host, port in found), is_symmetric and not found)


def connect_message(own: Side) -> HolePunch:
    """The CONNECT message of DCUtR that reports our side."""
    named = [multiaddr(*place) for place in own.places] or ([] if own.is_symmetric else [UNKNOWN])
    return HolePunch(type=HolePunch.CONNECT, ObsAddrs=[Multiaddr(each).to_bytes() for each in named])


def side_from(message: HolePunch) -> Side:
    """The side that the other peer reports in its CONNECT message; Refused if it is another message."""
    if message.type != HolePunch.CONNECT:
        raise Refused(Status.UNEXPECTED_MESSAGE)
    named: list[str] = []
    for each in message.ObsAddrs[:MAX_READ]:
        with suppress(ValueError):
            named.append(str(Multiaddr(each)))
    public = (multiaddr(*place) for place in side_of(named, False).places)
    return side_of(shortlist(public, MAX_PLACES), not message.ObsAddrs)


def nowhere(own: Side, other: Side) -> NowhereToMeet | None:
    """Why the two cannot meet, if they cannot."""
    if own.places and other.places:
        if _goals(own, other):
            return None
        return NowhereToMeet("one of the two is met by IPv4 alone, the other by IPv6", "unreachable")
    if own.is_symmetric or other.is_symmetric:
        alone = "no-place-here" if own.is_symmetric else "no-place-there"
        code = "no-place-both" if own.is_symmetric and other.is_symmetric else alone
        return NowhereToMeet(WHOSE_ROUTER[code], code)
    return NowhereToMeet(NOT_YET, "no-place-yet")


def goals(own: Side, other: Side) -> list[Place]:
    """The places to dial, all of one IP version; NowhereToMeet if there are none."""
    failure = nowhere(own, other)
    if failure is not None:
        raise failure
    return _goals(own, other)


def _goals(own: Side, other: Side) -> list[Place]:
    common = {_version(place) for place in own.places} & {_version(place) for place in other.places}
    return [place for place in other.places if _version(place) == min(common, default=0)]


def _version(place: Place) -> int:
    return 6 if ":" in place[0] else 4
