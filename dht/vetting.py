"""Checks the contacts and addresses that peers name before they are used: few, well-formed, not the speaker itself.

A contact that passes is not believed, only asked; it enters the table when it has answered itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from shoal.dht.keys import K
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Contact

MAX_ADDRESSES = 8
MAX_ADDRESS = 256  # characters
MAX_NAME = 64  # characters
PEER = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")  # Ed25519 PeerIDs; others are refused
CACHED = 4096  # PeerIDs whose check is remembered, as the same ones are named again and again


def vet_contact(contact: Contact, speaker: PeerId) -> None:
    """RemoteError, naming the speaker, unless `contact` is well-formed."""
    if len(contact.peer) > MAX_NAME or not _is_name(contact.peer):
        raise RemoteError("names a contact that has no PeerID", speaker)
    vet_addresses(contact.addresses, speaker)


@lru_cache(CACHED)
def _is_name(peer: PeerId) -> bool:
    return PEER.fullmatch(peer) is not None


def vet_addresses(addresses: Sequence[str], speaker: PeerId) -> None:
    """RemoteError, naming the speaker, unless these are few, short and look like addresses."""
    if len(addresses) > MAX_ADDRESSES:
        raise RemoteError(f"names {len(addresses)} addresses of one peer", speaker)
    for address in addresses:
        if len(address) > MAX_ADDRESS or not address.startswith("/"):
            raise RemoteError("names an address that is none", speaker)


def vetted_contacts(me: PeerId, speaker: PeerId, named: Sequence[Contact]) -> list[Contact]:
    """The named contacts that may be asked; RemoteError if no honest node gives such an answer."""
    if len(named) > K:
        raise RemoteError(f"names {len(named)} contacts, {K} are the most", speaker)
    for contact in named:
        vet_contact(contact, speaker)
        if contact.peer == speaker:
            raise RemoteError("names itself as one that is closer", speaker)
    others = {contact.peer: contact for contact in named if contact.peer != me}
    return [contact for contact in others.values() if contact.addresses]
