"""What others say about servers, checked before any of it is used: few, well-formed, and not the speaker itself.

Nothing here is believed. A contact that passes may be asked; it gets into the table when it has answered itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from shoal.dht.keys import K
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.dht import Contact

MAX_ADDRESSES = 8
MAX_ADDRESS = 256  # characters
PEER = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")  # how every Ed25519 PeerID looks; others have no place here
CACHED = 4096  # contacts that are known to be well-formed, or not: the same ones are named all the time


def vet_addresses(addresses: Sequence[str], speaker: PeerId) -> None:
    """RemoteError, naming the speaker, unless these are few, short and look like addresses."""
    _blame(speaker, _fault_of_addresses(addresses))


def _blame(speaker: PeerId, fault: str) -> None:
    if fault:
        raise RemoteError(fault, speaker)


@lru_cache(CACHED)
def _fault(contact: Contact) -> str:
    """Why this cannot be the contact of a peer; empty if it may be one."""
    if not PEER.fullmatch(contact.peer):
        return "names a contact that has no PeerID"
    return _fault_of_addresses(contact.addresses)


def _fault_of_addresses(addresses: Sequence[str]) -> str:
    if len(addresses) > MAX_ADDRESSES:
        return f"names {len(addresses)} addresses of one peer"
    if any(len(address) > MAX_ADDRESS or not address.startswith("/") for address in addresses):
        return "names an address that is none"
    return ""


def closer(me: PeerId, speaker: PeerId, named: Sequence[Contact]) -> list[Contact]:
    """Those of the named that may be asked; RemoteError if no honest node gives such an answer."""
    if len(named) > K:
        raise RemoteError(f"names {len(named)} contacts, {K} are the most", speaker)
    for contact in named:
        _blame(speaker, _fault(contact))
        if contact.peer == speaker:
            raise RemoteError("names itself as one that is closer", speaker)
    others = {contact.peer: contact for contact in named if contact.peer != me}
    return [contact for contact in others.values() if contact.addresses]
