"""What a node says of itself on the local network, and what is believed of such words.

A service of our own type, so that other programs' libp2p does not dial us, with a text record per node (RFC 6763):

    v=1                                   the version of these words
    peer=12D3Koo...                       the PeerID, which is the service's name as well
    a0=/ip4/10.0.0.7/tcp/4101  a1=...     where it listens, at most MAX_ADDRESSES

It is hearsay: anybody on the network can say anything. So only addresses that lie in a network to which we are attached
are believed to be worth a knock (nobody makes us knock at the internet's doors), and a peer has to answer by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.dht.scope import is_near
from shoal.protocol.identity import public_key
from shoal.protocol.ids import PeerId
from shoal.protocol.interfaces import Interface
from shoal.protocol.multiaddrs import few, place_of

SERVICE = "_shoal._tcp.local."
VERSION = b"1"
MAX_ADDRESSES = 16
MAX_ADDRESS = 100  # characters

Words = Mapping[bytes, bytes | None]


def words(peer: PeerId, addresses: Sequence[str]) -> dict[str, str]:
    """The text record of a node that listens at these multiaddrs."""
    plain = [place_of(address) for address in addresses]
    return {"v": VERSION.decode(), "peer": peer, **{f"a{i}": each for i, each in enumerate(few(plain, MAX_ADDRESSES))}}


def believed(said: Words, attached: Sequence[Interface]) -> tuple[PeerId, tuple[str, ...]] | None:
    """Who says to be where, as far as it may be so; None if nothing of it may."""
    if said.get(b"v") != VERSION:
        return None
    try:
        peer = PeerId((said.get(b"peer") or b"").decode())
        public_key(peer)
        claimed = [(said.get(b"a%d" % i) or b"").decode() for i in range(MAX_ADDRESSES)]
    except ValueError:
        return None
    near = tuple(dict.fromkeys(each for each in claimed if _is_door(each, attached)))
    return (peer, near) if near else None


def _is_door(address: str, attached: Sequence[Interface]) -> bool:
    """Whether a multiaddr is a TCP port, and no more, on a network to which we are attached."""
    return len(address) <= MAX_ADDRESS and address.count("/") == 4 and is_near(address, attached)
