"""A newcomer asks for a run's manifest.

It asks the peers that it is connected with and those at the addresses of a link, all side by side, so that an address
that does not answer delays nothing. When the first of them does not help, peers that the DHT names for the manifest are
asked, too.

No answer is trusted: the manifest must hash to the run's id, and its author must have signed it; the named members must
be few, and plausible. A bad answer names its sender in the log, and has no other effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from shoal.dht.link import format_link, parse_link
from shoal.dht.scope import scope_of
from shoal.node.api.answers import Preview
from shoal.node.api.errors import MIN_PREFIX, UnknownRun
from shoal.node.base.logs import warn
from shoal.node.base.options import is_run_id
from shoal.node.base.quantities import size
from shoal.node.manifest.manifest import MAX_MANIFEST, DataSpec, Introduction, check_manifest
from shoal.node.manifest.requirements import parameters, requirements
from shoal.node.training.data.supply import DataStanding
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import PeerId, RunId, short
from shoal.protocol.base.multiaddrs import is_relayed, place_of, shortlist, split
from shoal.protocol.base.wire import Message
from shoal.protocol.membership.vetting import MAX_ADDRESSES, vet_addresses
from shoal.protocol.messages.dht import Contact
from shoal.protocol.messages.node import GetManifest, ManifestIs, Refused
from shoal.protocol.net.measure.journal import OTHER
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import resolve
from shoal.protocol.net.system.identity import Identity, public_key

if TYPE_CHECKING:
    from shoal.node.experts.family import Family
    from shoal.node.run.run import Run

MEMBERS_TOLD = 16  # at most, by us and by those whom we ask
AT_ONCE = 8  # peers that are asked
SAID = 4  # failures that are put into words
MAX_PACE = 1e9  # seconds of a round: thirty years

Providers = Callable[[RunId], Awaitable[Sequence[Contact]]]
"""Who is said to have the manifest of a run."""

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
    return ManifestIs(run.manifest.canonical(), run.author, run.signature, members, present, round, pace)


def link_to(run: Run | Family, own_addresses: tuple[str, ...]) -> str:
    """The link by which others join a run that we are in: over us, and over other members that are alive."""
    return format_link(run.id, [*own_addresses, *(address for _, addresses in _others(run) for address in addresses)])


def wanted(text: str) -> tuple[str, tuple[str, ...]]:
    """The run that a person names by its link, its id or the begin of that: the id in hex, and where to ask."""
    if is_run_id(text):
        return text.lower(), ()
    link = parse_link(text)
    return link.run.hex(), link.addresses


async def nobody(run: RunId) -> Sequence[Contact]:
    """No providers."""
    return ()


async def find_manifest(
    run: str, network: Network, identity: Identity, addresses: Sequence[str] = (), providers: Providers = nobody
) -> Introduction:
    """The first good answer to be had; `run` is the id in hex, or the begin of it.

    Without one, the blame of a bad answer, or TransportError if somebody could not be asked, or UnknownRun.
    """
    peers = [link.peer for link in network.links()]
    if not peers and not addresses:
        raise LocalError(
            "no other peer is connected: give the run's whole link, as `shoal run link` prints it on a member, or "
            "start this node with --bootstrap ADDRESS of one"
        )
    inquiry = _Inquiry(run, network, identity)
    found = await _first(
        [
            *(inquiry.knock(address) for address in addresses),
            *(inquiry.ask(peer) for peer in peers),
            inquiry.look_up(providers),
        ]
    )
    if found is None:
        raise inquiry.failure()
    return found


class _Inquiry:
    """Asks for one run, nobody twice, and remembers what went wrong. Its coroutines give None where nobody helped."""

    def __init__(self, run: str, network: Network, identity: Identity) -> None:
        self._run = run
        self._network = network
        self._identity = identity
        self._places = asyncio.Semaphore(AT_ONCE)
        self._asked: set[PeerId] = set()
        self._disappointed = asyncio.Event()
        self._refused = 0
        self._liar: RemoteError | None = None
        self._unreached: list[str] = []  # in words

    async def ask(self, peer: PeerId) -> Introduction | None:
        """What a connected peer says."""
        if peer in self._asked:
            return None
        self._asked.add(peer)
        try:
            async with self._places:
                answer = await self._network.call(peer, GetManifest(self._run))
            if isinstance(answer, ManifestIs):
                return _check(self._run, answer, peer, self._identity)
            self._refused += 1
        except RemoteError as error:
            warn(log, "bad-introduction", f"{peer} did not introduce us to the run {self._run[:8]}: {error}")
            self._liar = error
        except TransportError as error:
            self._unreached.append(str(error))
        self._disappointed.set()
        return None

    async def knock(self, address: str) -> Introduction | None:
        """What the peer at an address says; a host name may stand for several, and one of them knows the run."""
        place, name = split(address)
        with suppress(TransportError):  # `connect` says why
            places = () if name else await resolve(place)
            if len(places) > 1:
                return await _first(map(self._knock, places))
        return await self._knock(address)

    async def _knock(self, address: str) -> Introduction | None:
        try:
            peer = await self._connect(address)
        except ShoalError as error:
            self._unreached.append(str(error) if address in str(error) else f"{address}: {error}")
            self._disappointed.set()
            return None
        return await self.ask(peer)

    async def _connect(self, address: str) -> PeerId:
        """Whoever answers at an address, also if it names another: a member may have a new key, or a new address.

        Once for each dial that was counted as failed: a dial without a name is not counted, and hosts are hearsay.
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
        """What those say who are said to have the manifest; they are looked for once somebody has not helped."""
        await self._disappointed.wait()
        if not is_run_id(self._run, whole=True):
            return None
        contacts = await providers(RunId(bytes.fromhex(self._run)))
        for each in contacts:
            self._network.remember(each.peer, each.addresses)  # all are tried, if the first does not answer
        doors = [f"{place_of(each.addresses[0])}/p2p/{each.peer}" for each in contacts if each.addresses]
        return await _first(map(self.knock, doors))

    def failure(self) -> ShoalError:
        """Why nobody has helped."""
        if self._liar is not None:
            return self._liar
        if not self._unreached:
            who = f"none of the {self._refused} peers that answered is" if self._refused > 1 else "who answered is not"
            return UnknownRun(f"{who} in a run {self._run}")
        words, more = "; ".join(self._unreached[:SAID]), len(self._unreached) - SAID
        words += (f"; and {more} more" if more > 0 else "") + ("; others do not know it" if self._refused else "")
        return TransportError(f"nobody has told us of the run {self._run[:8]}: {words}")


async def _first(work: Iterable[Coroutine[None, None, Introduction | None]]) -> Introduction | None:
    """The first introduction that comes of it, without waiting for the rest."""
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
    """The other members that are alive, and where: those first that can be dialled from farthest."""
    others = [(peer, addresses) for peer, addresses in run.others().items() if peer != run.me]
    return sorted(others, key=lambda other: -max((scope_of(place_of(each)) or 0 for each in other[1]), default=-1))


def _check(run: str, answer: ManifestIs, source: PeerId, identity: Identity) -> Introduction:
    """RemoteError, naming the one that answered, unless all holds; NewerProtocol if only a later version knows."""
    if len(answer.manifest) > MAX_MANIFEST:
        raise RemoteError(f"answered with a manifest of {len(answer.manifest)} bytes", source)
    run_id = RunId(sha256(answer.manifest).digest())
    if not run_id.hex().startswith(run):
        raise RemoteError("answered with another run's manifest, or one that was tampered with", source)
    try:
        manifest = check_manifest(answer.manifest, run_id, answer.author, answer.signature, identity.signer(run_id))
    except RemoteError as error:  # whoever passes on a forgery is to blame, not the one it names
        raise RemoteError(error.reason, source) from error
    _check_members(answer.members, source)
    if not 0 <= answer.pace <= MAX_PACE:
        raise RemoteError(f"says that a round takes {answer.pace:g} seconds", source)
    members = {source: (), **dict(answer.members)}
    members.pop(identity.peer, None)  # an earlier life of ours
    return Introduction(manifest, answer.author, answer.signature, members, answer.present, answer.round, answer.pace)


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


# -- what joining would mean ---------------------------------------------------------------------------------------


def describe(found: Introduction, data: DataStanding, lack: str = "") -> Preview:
    """The answer; `data` is how it stands with the run's data on this machine.

    `lack` is why it has no room for the run.
    """
    manifest = found.manifest
    needs = requirements(manifest, found.present + 1)
    return {
        "run": manifest.run_id.hex(),
        "name": manifest.name,
        "author": found.author,
        "manifest": manifest.model_dump(mode="json"),
        "parameters": parameters(manifest.model),
        "state": needs.state,
        "memory": {"node": needs.node_memory, "worker": needs.worker_memory, "problem": lack},
        "traffic": {"sent": needs.sent, "received": needs.received},
        "data": {"missing": data.missing, "problem": data.problem, "words": data_in_words(manifest.data, data)},
        "round": found.round,
        "members": found.present,
        "pace": found.pace or None,
    }


def data_in_words(spec: DataSpec, data: DataStanding) -> str:
    """What the run learns from, and whether this machine has it."""
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
