"""Where two peers that dial each other at the same moment meet, from what each says of itself in DCUtR. Pure.

Rules:
- A peer whose router shows it to each destination at another address names none. A peer that does not know its outside
  address yet names the unspecified address, so that the other does not take it for the former.
- They meet by an IP version by which both are seen: IPv4 if possible, as both must choose alike.
- Only public addresses count, and few.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.multiaddrs import Place, few, host_and_port, is_public, multiaddr
from shoal.protocol.net.circuit.accounts import Refused, Status
from shoal.protocol.net.measure.link import NOT_YET, WHOSE_ROUTER

MAX_PLACES = 2
MAX_READ = 64  # addresses: who speaks other protocols, too, names those of all
UNKNOWN = "/ip4/0.0.0.0/tcp/0"


@dataclass(frozen=True, slots=True)
class Side:
    """Where one of the two is seen; nowhere if its router is symmetric, or it is not known yet."""

    places: tuple[Place, ...] = ()
    is_symmetric: bool = False


class NowhereToMeet(TransportError):
    """To try again at once would be of no use."""


def side_of(addresses: Sequence[str], is_symmetric: bool) -> Side:
    """Our own."""
    found = [place for each in addresses if (place := host_and_port(each)) is not None and is_public(place[0])]
    return Side(tuple((str(host), port) for host, port in found), is_symmetric and not found)


def connect_message(own: Side) -> HolePunch:
    """What we say of ourselves."""
    named = [multiaddr(*place) for place in own.places] or ([] if own.is_symmetric else [UNKNOWN])
    return HolePunch(type=HolePunch.CONNECT, ObsAddrs=[Multiaddr(each).to_bytes() for each in named])


def side_from(message: HolePunch) -> Side:
    """What the other one says of itself; Refused if it says something else."""
    if message.type != HolePunch.CONNECT:
        raise Refused(Status.UNEXPECTED_MESSAGE)
    named: list[str] = []
    for each in message.ObsAddrs[:MAX_READ]:
        with suppress(ValueError):
            named.append(str(Multiaddr(each)))
    public = (multiaddr(*place) for place in side_of(named, False).places)
    return side_of(few(public, MAX_PLACES), not message.ObsAddrs)


def nowhere(own: Side, other: Side) -> NowhereToMeet | None:
    """Why the two cannot meet, if they cannot."""
    if own.places and other.places:
        if _goals(own, other):
            return None
        return NowhereToMeet("one of the two is met by IPv4 alone, the other by IPv6", "unreachable")
    if own.is_symmetric or other.is_symmetric:
        whose = "both" if own.is_symmetric and other.is_symmetric else "here" if own.is_symmetric else "there"
        return NowhereToMeet(WHOSE_ROUTER[f"no-place-{whose}"], f"no-place-{whose}")
    return NowhereToMeet(NOT_YET, "no-place-yet")


def goals(own: Side, other: Side) -> list[Place]:
    """The places to dial, all of one version of IP; NowhereToMeet if there are none."""
    failure = nowhere(own, other)
    if failure is not None:
        raise failure
    return _goals(own, other)


def _goals(own: Side, other: Side) -> list[Place]:
    common = {_version(place) for place in own.places} & {_version(place) for place in other.places}
    return [place for place in other.places if _version(place) == min(common, default=0)]


def _version(place: Place) -> int:
    return 6 if ":" in place[0] else 4
