"""The runs of one manifest that others are in, found by its digest: by asking peers, and in the DHT.

What is said of a run is hearsay, until a peer introduces us to it with a genesis that hashes to its id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from shoal.dht.directory import read_entry
from shoal.dht.keys import manifest_key
from shoal.node.base.logs import warn
from shoal.node.manifest.manifest import Introduction
from shoal.node.peers.discovery import Discovery
from shoal.protocol.base.errors import RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.directory import ManifestEntry
from shoal.protocol.messages.genesis import Genesis, manifest_digest
from shoal.protocol.messages.node import GetRuns, RunsAre
from shoal.protocol.net.peers.network import Network

AT_ONCE = 16  # peers that are asked at once
MOST_RUNS = 8  # of one manifest, that a peer tells, and that are looked at

log = logging.getLogger("shoal.daemon")


def tell_runs(message: GetRuns, runs: Iterable[Genesis]) -> Message:
    """Our answer to whoever asks which runs of a manifest we are in."""
    ours = [each.run for each in runs if manifest_digest(each.manifest) == message.manifest]
    return RunsAre(tuple(ours[:MOST_RUNS]))


async def runs_at(addresses: Sequence[str], manifest: Digest, network: Network) -> list[RunId]:
    """The runs of a manifest in which the peers at these addresses are; TransportError if none of them is reached."""
    ends = await asyncio.gather(*map(network.connect, addresses), return_exceptions=True)
    reached = [each for each in ends if not isinstance(each, BaseException)]
    if not reached:
        raise next((each for each in ends if isinstance(each, ShoalError)), TransportError("no address was given"))
    return await runs_of(reached, manifest, network)


async def runs_of(peers: Iterable[PeerId], manifest: Digest, network: Network) -> list[RunId]:
    """The runs of a manifest in which these peers, which are connected, say that they are."""
    places, found = asyncio.Semaphore(AT_ONCE), dict[RunId, None]()

    async def ask(peer: PeerId) -> None:
        try:
            async with places:
                answer = await network.call(peer, GetRuns(manifest))
            if not isinstance(answer, RunsAre):
                return
            if len(answer.runs) > MOST_RUNS:
                raise RemoteError(f"says that it is in {len(answer.runs)} runs of one manifest", peer)
            found.update(dict.fromkeys(answer.runs))
        except RemoteError as error:
            warn(log, "bad-introduction", f"{peer} did not say which runs it is in: {error}")
        except TransportError as error:
            log.info("%s did not say which runs it is in: %s", peer, error)

    await asyncio.gather(*map(ask, dict.fromkeys(peers)))
    return list(found)


async def announced(discovery: Discovery, manifest: Digest) -> list[RunId]:
    """The runs of a manifest that are announced in the DHT; none if no server of it answers."""
    if not discovery.contacts():
        return []
    try:
        entries = [
            (each.record.subkey, read_entry(each)) for each in (await discovery.get(manifest_key(manifest))).found
        ]
    except ShoalError as error:
        log.info("runs of the manifest cannot be looked up: %s", error)
        return []
    runs = [each.run for subkey, each in entries if isinstance(each, ManifestEntry) and subkey == each.run.hex()]
    return list(dict.fromkeys(runs))


def is_of(found: Introduction, manifest: Digest) -> bool:
    """Whether the run is one of the manifest with this digest."""
    return manifest_digest(found.genesis.manifest) == manifest
