"""Checks of membership messages: each is checked as a whole before anything in it is believed or any state changes.

A signature is verified once per new version of an entry: entries that are not later than ours are not used.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import Signer, check_signature
from shoal.protocol.membership.exchange import deaths
from shoal.protocol.membership.members import MAX_MEMBERS, MemberTable
from shoal.protocol.messages.membership import MEMBERSHIP_MESSAGES, AckFor, Claim, Entry, Summary

MAX_ADDRESSES = 16
MAX_ADDRESS = 256  # characters
MAX_WORD = 32  # characters of a phase or a reachability
MAX_NEWS = 64  # entries, and as many claims, in one message
MAX_AHEAD = 1_000  # incarnations that a claim may be ahead of what we know
MAX_COUNT = 2**48  # incarnations and versions; out of reach by counting


def vet(table: MemberTable, signer: Signer, sender: PeerId, message: MEMBERSHIP_MESSAGES) -> None:
    """Raises RemoteError, naming the sender, unless all of `message` is valid."""
    if message.entry.peer != sender:
        raise RemoteError("speaks in the name of another peer", sender)
    _vet_entry(table, signer, sender, message.entry)
    if isinstance(message, Summary):
        if len(message.rows) > MAX_MEMBERS:
            raise RemoteError(f"a summary of {len(message.rows)} members", sender)
        _vet_claims(table, (), deaths(sender, message), sender)
        return
    news = message.news
    if len(news.entries) > MAX_NEWS or len(news.claims) > MAX_NEWS:
        raise RemoteError(f"more than {MAX_NEWS} pieces of news in one message", sender)
    for entry in news.entries:
        _vet_entry(table, signer, sender, entry)
    _vet_claims(table, news.entries, news.claims, sender)
    if isinstance(message, AckFor) and message.answer is not None:
        _vet_entry(table, signer, sender, message.answer)


def vet_addresses(addresses: tuple[str, ...], sender: PeerId) -> None:
    """Raises RemoteError, naming the sender, unless the addresses are few and short enough to be kept."""
    if len(addresses) > MAX_ADDRESSES:
        raise RemoteError(f"a peer with {len(addresses)} addresses", sender)
    if any(len(address) > MAX_ADDRESS for address in addresses):
        raise RemoteError(f"an address of more than {MAX_ADDRESS} characters", sender)


def _vet_entry(table: MemberTable, signer: Signer, sender: PeerId, entry: Entry) -> None:
    vet_addresses(entry.addresses, sender)
    if max(len(entry.status.phase), len(entry.status.reachability)) > MAX_WORD:
        raise RemoteError(f"a status with a word of more than {MAX_WORD} characters", sender)
    if max(entry.incarnation, entry.version) > MAX_COUNT:
        raise RemoteError("an entry from an absurdly far future", sender)
    if not table.is_later(entry):
        return
    try:
        check_signature(entry, entry.peer, signer)
    except RemoteError as error:  # the peer that passes on a forgery is to blame, not the one it names
        raise RemoteError(f"a forged entry of {entry.peer}", sender) from error


def _vet_claims(table: MemberTable, entries: tuple[Entry, ...], claims: Iterable[Claim], sender: PeerId) -> None:
    shown = {entry.peer: entry.incarnation for entry in entries}
    for claim in claims:
        known = table.incarnation(claim.peer)
        if known is None:
            continue
        if claim.incarnation > max(known, shown.get(claim.peer, 0)) + MAX_AHEAD:
            raise RemoteError("a claim about an incarnation absurdly far ahead", sender)
