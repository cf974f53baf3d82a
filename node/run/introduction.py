"""How a newcomer gets a run's manifest from other peers.

It asks the peers that it is connected with and those at the addresses of a link, all at once, so that an address that
does not answer delays nothing. Once one of them has failed or refused, peers that have the manifest, as the DHT says,
are asked, too.

No answer is trusted: the run's genesis must hash to its id, and its author must have signed it; the named members must
be few, and plausible. A bad answer is logged with its sender, and has no other effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shoal.dht.link import format_link, parse_link
from shoal.dht.scope import scope_of
from shoal.node.api.answers import Preview
from shoal.node.api.errors import MIN_PREFIX, UnknownRun
from shoal.node.base.logs import warn
from shoal.node.base.options import is_run_id
from shoal.node.base.quantities import size
from shoal.node.manifest.manifest import MAX_MANIFEST, DataSpec, Introduction, check_manifest
from shoal.node.manifest.requirements import parameters, requirements
from shoal.node.run.preview import preview_words
from shoal.node.training.data.supply import DataStanding
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId, RunId, short
from shoal.protocol.base.multiaddrs import NO_NETWORKS, OwnNetworks, is_relayed, place_of, shortlist, split
from shoal.protocol.base.wire import Message
from shoal.protocol.log.anchors import anchor_of
from shoal.protocol.membership.vetting import MAX_ADDRESSES, vet_addresses
from shoal.protocol.messages.anchor import ANCHOR_SIZE, Anchor
from shoal.protocol.messages.dht import Contact
from shoal.protocol.messages.node import GetManifest, ManifestIs, Refused
from shoal.protocol.net.measure.journal import OTHER
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import resolve
from shoal.protocol.net.system.identity import Identity, public_key

if TYPE_CHECKING:
    from shoal.node.experts.family import Family
    from shoal.node.run.run import Run

MEMBERS_TOLD = 16  # members in an answer, at most
AT_ONCE = 8  # peers that are asked at once
MAX_FAILURES_SHOWN = 4
MAX_PACE = 1e9  # seconds of a round: thirty years

Providers = Callable[[RunId], Awaitable[Sequence[Contact]]]
"""Looks up peers that may have the manifest of a run."""

log = logging.getLogger("shoal.daemon")


def introduce(message: GetManifest, runs: Sequence[Run | Family], own_addresses: tuple[str, ...]) -> Message:
    """Our answer to a newcomer."""
    if len(message.run_prefix) < MIN_PREFIX:
        return Refused(f"a run is named by at least {MIN_PREFIX} hex digits")
    found = [run for run in runs if run.id.hex().startswith(message.run_prefix)]
    if len(found) != 1:
        return Refused("several runs here begin like that" if found else "no such run here")
    run, others = found[0], _others(found[0])
    members = ((run.me, shortlist(own_addresses, MAX_ADDRESSES)), *others[: MEMBERS_TOLD - 1])
    present, (round, pace) = len(others) + 1, run.pace
    end, branch = (run.register.number, run.register.branch) if run.register is not None else (0, Digest(run.id))
    return ManifestIs(run.genesis, members, present, round, pace, end, branch)


def link_to(run: Run | Family, own_addresses: tuple[str, ...], networks: OwnNetworks = NO_NETWORKS) -> str:
    """The link by which others join a run that we are in, with our addresses and those of other living members."""
    others = (address for _, addresses in _others(run) for address in addresses)
    anchor = anchor_of(run.register) if run.register is not None else None
    return format_link(run.id, [*own_addresses, *others], networks, anchor)


class NamedRun(NamedTuple):
    """What a run's link, its id or a prefix of it tells."""

    run: str  # the id in hex, or its prefix
    addresses: tuple[str, ...] = ()  # to ask
    anchor: Anchor | None = None


def parse_run_name(text: str) -> NamedRun:
    """The run that a person names by its link, its id or a prefix of it."""
    if is_run_id(text):
        return NamedRun(text.lower())
    link = parse_link(text)
    return NamedRun(link.run.hex(), link.addresses, link.anchor)


async def no_providers(run: RunId) -> Sequence[Contact]:
    """A lookup that finds no peers."""
    return ()


async def find_manifest(
    run: str,
    network: Network,
    identity: Identity,
    addresses: Sequence[str] = (),
    providers: Providers = no_providers,
    anchor: Anchor | None = None,
) -> Introduction:
    """The first good answer, of a log that does not end below `anchor`; `run` is the id in hex, or a prefix of it.

    Of another branch than that of the anchor a log may be shorter: see Keeper.

    If there is none: RemoteError after a bad answer, else TransportError if a peer was not reached, else UnknownRun.
    """
    peers = [link.peer for link in network.links()]
    if not peers and not addresses:
        raise LocalError(
            "no other peer is connected, who could know the run: give its whole link, as `shoal run link` prints it "
            "on a member",
            code="alone",
        )
    inquiry = _Inquiry(run, network, identity, anchor)
    found = await _first(
        [
            *(inquiry.ask_at(address) for address in addresses),
            *(inquiry.ask(peer) for peer in peers),
            inquiry.look_up(providers),
        ]
    )
    if found is None:
        raise inquiry.failure()
    return found


class _Inquiry:
    """Asks for one run, each peer once, and remembers failures. Its coroutines return None without a good answer."""

    def __init__(self, run: str, network: Network, identity: Identity, anchor: Anchor | None) -> None:
        self._run, self._anchor = run, anchor
        self._network = network
        self._identity = identity
        self._places = asyncio.Semaphore(AT_ONCE)
        self._asked: set[PeerId] = set()
        self._has_failed = asyncio.Event()  # a peer has not answered, or has refused
        self._refused = 0
        self._bad_answer: RemoteError | None = None
        self._unreached: list[str] = []  # failures, in words

    async def ask(self, peer: PeerId) -> Introduction | None:
        """Asks a connected peer."""
        if peer in self._asked:
            return None
        self._asked.add(peer)
        try:
            async with self._places:
                answer = await self._network.call(peer, GetManifest(self._run))
            if isinstance(answer, ManifestIs):
                return _check(self._run, answer, peer, self._identity, self._anchor)
            self._refused += 1
        except RemoteError as error:
            warn(log, "bad-introduction", f"{peer} did not introduce us to the run {self._run[:8]}: {error}")
            self._bad_answer = error
        except TransportError as error:
            self._unreached.append(str(error))
        self._has_failed.set()
        return None

    async def ask_at(self, address: str) -> Introduction | None:
        """Asks the peer at an address; if a host name stands for several, all of them."""
        place, name = split(address)
        with suppress(TransportError):  # `connect` says why
            places = () if name else await resolve(place)
            if len(places) > 1:
                return await _first(map(self._ask_at, places))
        return await self._ask_at(address)

    async def _ask_at(self, address: str) -> Introduction | None:
        try:
            peer = await self._connect(address)
        except ShoalError as error:
            self._unreached.append(str(error) if address in str(error) else f"{address}: {error}")
            self._has_failed.set()
            return None
        return await self.ask(peer)

    async def _connect(self, address: str) -> PeerId:
        """The peer that answers at an address, even if it is not the one named: that may have a new key, or have moved.

        Dials without a name are not counted against a host. Hosts are hearsay, so there is one only after each failed
        dial with a name.
        """
        try:
            return await self._network.connect(address)
        except TransportError as error:
            place = place_of(address)
            if error.code != OTHER or is_relayed(place) or place == address:
                raise
            with suppress(ShoalError):
                return await self._network.connect(place)
            raise

    async def look_up(self, providers: Providers) -> Introduction | None:
        """Asks peers that may have the manifest; they are looked up once another peer has failed or refused."""
        await self._has_failed.wait()
        if not is_run_id(self._run, whole=True):
            return None
        contacts = await providers(RunId(bytes.fromhex(self._run)))
        for each in contacts:
            self._network.remember(each.peer, each.addresses)  # all are tried, if the first does not answer
        first = [f"{place_of(each.addresses[0])}/p2p/{each.peer}" for each in contacts if each.addresses]
        return await _first(map(self.ask_at, first))

    def failure(self) -> ShoalError:
        """The error to raise when no peer has given a good answer."""
        if self._bad_answer is not None:
            return self._bad_answer
        if not self._unreached:
            who = f"none of the {self._refused} peers that answered is" if self._refused > 1 else "who answered is not"
            return UnknownRun(f"{who} in a run {self._run}")
        words = "; ".join(self._unreached[:MAX_FAILURES_SHOWN])
        more = len(self._unreached) - MAX_FAILURES_SHOWN
        words += (f"; and {more} more" if more > 0 else "") + ("; others do not know it" if self._refused else "")
        remedy = "check that a member of it runs, or take a new link from one"
        return TransportError(f"nobody has told us of the run {self._run[:8]}: {words}; {remedy}", code="run-nowhere")


async def _first(work: Iterable[Coroutine[None, None, Introduction | None]]) -> Introduction | None:
    """The first introduction that any of them returns; the rest are cancelled."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        for done in asyncio.as_completed(tasks):
            if (found := await done) is not None:
                return found
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _others(run: Run | Family) -> list[tuple[PeerId, tuple[str, ...]]]:
    """The other living members and their addresses; those with the widest scope first."""
    others = [(peer, addresses) for peer, addresses in run.others().items() if peer != run.me]
    return sorted(others, key=lambda other: -max((scope_of(place_of(each)) or 0 for each in other[1]), default=-1))


def _check(run: str, answer: ManifestIs, source: PeerId, identity: Identity, anchor: Anchor | None) -> Introduction:
    """The answer, checked: RemoteError, naming `source`, if it is bad; NewerProtocol if it needs a later version."""
    genesis = answer.genesis
    if len(genesis.manifest) > MAX_MANIFEST:
        raise RemoteError(f"answered with a manifest of {len(genesis.manifest)} bytes", source)
    if not genesis.run.hex().startswith(run):
        raise RemoteError("answered with another run, or one whose manifest or author was changed", source)
    manifest = check_manifest(genesis, identity.signer(genesis.run), source)  # who passes on a forgery is to blame
    _check_members(answer.members, source)
    if not 0 <= answer.pace <= MAX_PACE:
        raise RemoteError(f"says that a round takes {answer.pace:g} seconds", source)
    is_same = anchor is not None and answer.branch[:ANCHOR_SIZE] == anchor.branch  # of another one the log tells more
    if anchor is not None and is_same and answer.end < anchor.number:
        raise RemoteError(
            f"has a log of the run that ends at entry {answer.end}, and the link names entry {anchor.number}: it is "
            "behind, or an old copy",
            source,
        )
    members = {source: (), **dict(answer.members)}
    members.pop(identity.peer, None)  # we ourselves, before a restart
    return Introduction(manifest, genesis, members, answer.present, answer.round, answer.pace, anchor)


def _check_members(members: tuple[tuple[PeerId, tuple[str, ...]], ...], source: PeerId) -> None:
    """RemoteError, naming `source`, for implausible members: we are about to remember and dial them."""
    if len(members) > MEMBERS_TOLD:
        raise RemoteError(f"names {len(members)} members, more than the {MEMBERS_TOLD} to begin with", source)
    for peer, addresses in members:
        vet_addresses(addresses, source)
        try:
            public_key(peer)
        except ValueError as error:
            raise RemoteError(f"names a member {short(peer)}, which is not a PeerID", source) from error


# -- what joining would mean ---------------------------------------------------------------------------------------


def describe(found: Introduction, data: DataStanding, lack: str = "", line: tuple[int, int] = (0, 0)) -> Preview:
    """The preview of a run; `data` is which of its data are on this machine, `lack` why there is no room for it.

    `line` is what this node's line carries, in bytes a second up and down; 0 where that is not known.
    """
    manifest = found.manifest
    needs = requirements(manifest, found.present + 1)
    preview: Preview = {
        "run": found.run.hex(),
        "name": manifest.name,
        "author": found.genesis.author,
        "manifest": manifest.model_dump(mode="json"),
        "parameters": parameters(manifest.model),
        "state": needs.state,
        "memory": {"node": needs.node_memory, "worker": needs.worker_memory, "problem": lack},
        "traffic": {"sent": needs.sent, "received": needs.received},
        "result": needs.result,
        "data": {
            "missing": data.missing,
            "problem": data.problem,
            "code": data.code,
            "words": data_in_words(manifest.data, data),
        },
        "round": found.round,
        "members": found.present,
        "pace": found.pace or None,
        "words": [],
    }
    return {**preview, "words": preview_words(preview, line)}


def data_in_words(spec: DataSpec, data: DataStanding) -> str:
    """The run's data, and whether this machine has them, in words."""
    if spec.name == "own":
        return "what the script of each member trains on"
    if spec.name == "stdlib":
        return "the sources of Python's standard library, which are here"
    if spec.name == "digits":
        return data.problem or "scikit-learn's pictures of digits, which are here"
    if spec.stream is not None:
        return f"{spec.stream.dataset}, which is read from the hub while it is trained on"
    what = f"text files with the digest {spec.digest[:8]}" if spec.digest else "text files of each member's own"
    if data.problem:
        return f"{what}: {data.problem}"
    if data.missing:
        givers = "a member gives" if data.donors == 1 else f"{data.donors} members give"
        return f"{what}: {size(data.missing)} to download, which {givers}"
    return f"{what}, which are here"
