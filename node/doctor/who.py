"""Whom a person means by PEER: a PeerID, some characters of one that we know, or an address. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.dht.link import is_address, looks_like_link, parse_link
from shoal.protocol.errors import LocalError
from shoal.protocol.identity import public_key
from shoal.protocol.ids import PeerId
from shoal.protocol.multiaddrs import split

LEAST = 4  # characters of a name
SHOWN = 60  # characters of what is wrong
HOW = "it is a PeerID, the last characters of one in `shoal peers`, or an address like /ip4/203.0.113.7/tcp/4101"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A peer, an address at which it should be, or both."""

    peer: PeerId | None
    address: str = ""


def whom(asked: str, known: Iterable[PeerId]) -> Wanted:
    """Who is meant, among those that are `known`; LocalError in one sentence if nobody is, or several are."""
    asked = asked.strip()
    if looks_like_link(asked):
        addresses = parse_link(asked).addresses
        hint = f"one of its addresses, `shoal doctor {addresses[0]}`" if addresses else "a PeerID or an address"
        raise LocalError(f"a run's link leads to several peers: ask about {hint}")
    if asked.startswith("/"):
        return _at(asked)
    if _is_name(asked):
        return Wanted(PeerId(asked))
    return Wanted(_known_as(asked, sorted(set(known))))


def _at(asked: str) -> Wanted:
    place, name = split(asked)
    if not is_address(place) or (name and not _is_name(name)):
        raise LocalError(f"'{asked[:SHOWN]}' is no address: one looks like /ip4/203.0.113.7/tcp/4101/p2p/PEERID")
    return Wanted(PeerId(name) if name else None, place)


def _known_as(asked: str, known: list[PeerId]) -> PeerId:
    found = [peer for peer in known if len(asked) >= LEAST and (peer.endswith(asked) or peer.startswith(asked))]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(peer[-12:] for peer in found[:5])
        raise LocalError(f"'{asked[:SHOWN]}' means several peers, those that end in {listed}: give more of the end")
    raise LocalError(f"no peer '{asked[:SHOWN]}' is known here: {HOW}")


def _is_name(text: str) -> bool:
    try:
        public_key(PeerId(text))
    except ValueError:
        return False
    return True
