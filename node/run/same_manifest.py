"""The runs of one manifest that others are in, found by its digest: by asking peers, and in the DHT.

What is said of a run is hearsay, until a peer introduces us to it with a genesis that hashes to its id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from shoal.dht.directory import read_entry
from shoal.dht.keys import manifest_key
from shoal.node.base.logs import warn
from shoal.node.manifest.manifest import Introduction, Manifest
from shoal.node.peers.discovery import Discovery
from shoal.protocol.base.errors import RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId, RunId, short
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.directory import ManifestEntry
from shoal.protocol.messages.node import GetRuns, RunsAre
from shoal.protocol.net.peers.network import Network

AT_ONCE = 16  # peers that are asked at once
MOST_RUNS = 8  # of one manifest, that a peer tells, and that are looked at
PATIENCE = 10.0  # seconds in which somebody must introduce us to a run
MOMENT, GLANCE = 3.0, 0.1  # seconds: in which peers are met after the start, and between two looks

log = logging.getLogger("shoal.daemon")


def tell_runs(message: GetRuns, runs: Iterable[tuple[RunId, Manifest]]) -> Message:
    """Our answer to whoever asks which runs of a manifest we are in."""
    ours = [run for run, manifest in runs if is_of(manifest, message.manifest)]
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


def is_of(manifest: Manifest, wanted: Digest) -> bool:
    """Whether a run's manifest has this digest, as it is or as its file had it.

    A file that names its text by digest may leave out the pieces by which its founder's node shares it.
    """
    unshared = manifest.model_copy(update={"data": manifest.data.model_copy(update={"pieces": "", "size": 0})})
    return wanted in (manifest.digest, unshared.digest)


async def live_runs(
    manifest: Digest, network: Network, discovery: Discovery, introduce: Callable[[str], Awaitable[Introduction]]
) -> list[Introduction]:
    """The runs of a manifest to which peers that we know, or who are announced in the DHT, introduce us."""
    await _met_somebody(network)
    peers = [link.peer for link in network.links()]
    known = [*await runs_of(peers, manifest, network), *await announced(discovery, manifest)]

    async def meet(run: RunId) -> Introduction | None:
        try:
            async with asyncio.timeout(PATIENCE):
                return await introduce(run.hex())
        except (ShoalError, TimeoutError) as error:
            log.info("the run %s is not offered: %s", short(run), error)
            return None

    met = await asyncio.gather(*map(meet, list(dict.fromkeys(known))[:MOST_RUNS]))
    return [each for each in met if each is not None and is_of(each.manifest, manifest)]


async def _met_somebody(network: Network) -> None:
    """Returns once a peer is connected, or was sought for a moment: a node that was just started has met nobody yet."""
    with suppress(TimeoutError):
        async with asyncio.timeout(MOMENT):
            while not network.links():
                await asyncio.sleep(GLANCE)
