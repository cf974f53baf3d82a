"""How a newcomer learns what a run is: it asks the peers that it is connected with for the manifest.

Whoever answers is believed in nothing: the manifest must hash to the run's id, and its author must have signed it;
the members that it names must be few, and possible. A bad answer is logged and the next peer is asked. Today the peers
are those of `--bootstrap`; a directory of runs would ask here, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from shoal.node.logs import warn
from shoal.node.manifest import MAX_MANIFEST, Manifest, check_manifest
from shoal.node.service import MIN_PREFIX, UnknownRun
from shoal.protocol.errors import LocalError, RemoteError, TransportError
from shoal.protocol.identity import Identity, public_key
from shoal.protocol.ids import PeerId, RunId, short
from shoal.protocol.messages.node import GetManifest, ManifestIs, Refused
from shoal.protocol.network import Network
from shoal.protocol.vetting import MAX_ADDRESSES, vet_addresses
from shoal.protocol.wire import Message

if TYPE_CHECKING:
    from shoal.node.run import Run

MEMBERS_TOLD = 16  # at most, by us and by those whom we ask

log = logging.getLogger("shoal.daemon")


@dataclass(frozen=True, slots=True)
class Introduction:
    """A manifest that was checked, and members to begin with and where they are, the one who told us first."""

    manifest: Manifest
    author: PeerId
    signature: bytes
    members: dict[PeerId, tuple[str, ...]]


def introduce(message: GetManifest, runs: Sequence[Run], own_addresses: tuple[str, ...]) -> Message:
    """Our answer to a newcomer."""
    if len(message.run_prefix) < MIN_PREFIX:
        return Refused(f"a run is named by at least {MIN_PREFIX} hex digits")
    found = [run for run in runs if run.id.hex().startswith(message.run_prefix)]
    if len(found) != 1:
        return Refused("several runs here begin like that" if found else "no such run here")
    run = found[0]
    membership = run.member.membership
    others = [(peer, entry.addresses) for peer in membership.alive() if (entry := membership.entry(peer))]
    members = ((run.member.me, own_addresses[:MAX_ADDRESSES]), *others[: MEMBERS_TOLD - 1])
    return ManifestIs(run.manifest.canonical(), run.author, run.signature, members)


async def find_manifest(run: str, network: Network, identity: Identity) -> Introduction:
    """The first good answer of all connected peers; without one, the error of the last bad one, or UnknownRun."""
    peers = [link.peer for link in network.links()]
    if not peers:
        raise LocalError("no other peer is connected: --bootstrap ADDRESS of a member of the run is how to begin")
    failure: TransportError | RemoteError | None = None
    for peer in peers:
        try:
            answer = await network.call(peer, GetManifest(run))
            if isinstance(answer, ManifestIs):
                return _check(run, answer, peer, identity)
        except (TransportError, RemoteError) as error:
            warn(log, "no-manifest", f"{peer} did not introduce us to the run {run}: {error}")
            failure = error
    raise failure or UnknownRun(f"none of the {len(peers)} connected peers is in a run {run}")


def _check(run: str, answer: ManifestIs, source: PeerId, identity: Identity) -> Introduction:
    if len(answer.manifest) > MAX_MANIFEST:
        raise RemoteError(f"answered with a manifest of {len(answer.manifest)} bytes", source)
    run_id = RunId(sha256(answer.manifest).digest())
    if not run_id.hex().startswith(run):
        raise RemoteError("answered with another run's manifest", source)
    manifest = check_manifest(answer.manifest, run_id, answer.author, answer.signature, identity.signer(run_id))
    _check_members(answer.members, source)
    members = {source: (), **dict(answer.members)}
    members.pop(identity.peer, None)  # an earlier life of ours
    return Introduction(manifest, answer.author, answer.signature, members)


def _check_members(members: tuple[tuple[PeerId, tuple[str, ...]], ...], source: PeerId) -> None:
    """RemoteError, naming `source`, for members that no honest peer names: we are about to remember and dial them."""
    if len(members) > MEMBERS_TOLD:
        raise RemoteError(f"names {len(members)} members, more than the {MEMBERS_TOLD} to begin with", source)
    for peer, addresses in members:
        vet_addresses(addresses, source)
        try:
            public_key(peer)
        except ValueError as error:
            raise RemoteError(f"names a member {short(peer)}, which is not a PeerID", source) from error
