"""The directory of our runs in the DHT: we write that we are members, and read which other peers are.

Rules:
- shoal.dht.directory decides when to read and write; this module does it. Nothing is tried without a DHT server.
- A peer that is listed, but not a living member as membership sees it, is contacted: if it is a member, the two
  memberships exchange the rest. So any DHT node is a way into a run, and heals one that was cut.
- Our entries are withdrawn when we leave a run, or end; entries of a node that was killed expire.
- A public run is announced by ANNOUNCERS of its members: those with the lowest PeerIDs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.dht.directory import CUT_WINDOW, LIFETIME, MEMBER, Evidence, ListedMember, Schedule, members_in
from shoal.dht.keys import COPIES, PUBLIC_RUNS, REPLICAS, manifest_key, run_key
from shoal.node.peers.discovery import Discovery
from shoal.node.run.node_state import is_mass_loss
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.multiaddrs import shortlist
from shoal.protocol.base.wire import encode
from shoal.protocol.membership.members import NEVER, State
from shoal.protocol.messages.directory import ManifestEntry, MemberEntry, RunNotice
from shoal.protocol.net.peers.network import Network

if TYPE_CHECKING:
    from shoal.node.run.run import Run

LOOK = 2.0  # seconds between two checks whether something is to be done
ADDRESSES = 8  # in an entry: it must fit into a record
MAX_CONTACTED = 16  # unknown peers after one reading
ANNOUNCERS = 3  # members that announce a public run
READ_QUORUM = 2  # replicas that have answered when a reading ends
WITHDRAWN = 60.0  # seconds that an empty entry lives: as long as an older one may still be on its way
GOODBYE = 1.0  # seconds for withdrawing our entries as the node ends

log = logging.getLogger("shoal.dht")


class Directory:
    """Keeps a `Page` for each open run."""

    def __init__(self, discovery: Discovery, network: Network, runs: Callable[[], Mapping[str, Run]]) -> None:
        self._discovery = discovery
        self._network = network
        self._runs = runs
        self._pages: dict[str, Page] = {}
        self._has_erred = False

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            if self._discovery.contacts():
                await self._turn()
            await asyncio.sleep(LOOK)

    def evidence(self, run: Run) -> Evidence:
        """Contradictions between a run's directory and its membership."""
        page = self._pages.get(run.id.hex())
        return page.evidence if page is not None else Evidence()

    async def close(self) -> None:
        """Withdraws our entries, if that is quick."""
        pages, self._pages = list(self._pages.values()), {}
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await asyncio.gather(*(page.withdraw() for page in pages))

    async def _turn(self) -> None:
        open_runs = self._runs()
        left = [self._pages.pop(key) for key, page in list(self._pages.items()) if open_runs.get(key) is not page.run]
        await self._run_all(page.withdraw() for page in left)  # first: a run that was left may be open again
        for key, run in open_runs.items():
            if key not in self._pages:
                self._pages[key] = Page(run, self._discovery, self._network)
        await self._run_all(page.turn() for page in self._pages.values())

    async def _run_all(self, work: Iterable[Coroutine[None, None, None]]) -> None:
        """Runs all coroutines; a bug in one is logged once, and stops neither the others nor the node."""
        for error in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(error, Exception) and not self._has_erred:
                self._has_erred = True
                log.error("the directory of runs made a mistake", exc_info=error)


class Page:
    """Our entries in one run's directory, and what was read there."""

    def __init__(self, run: Run, discovery: Discovery, network: Network) -> None:
        self.evidence = Evidence()
        self.run = run
        self._discovery = discovery
        self._network = network
        self._rng = random.Random()
        self._schedule = Schedule(self._rng)
        self._written: dict[tuple[Digest, str], None] = {}

    async def turn(self) -> None:
        """Writes and reads, if it is time."""
        run, membership, now = self.run, self.run.member.membership, self._discovery.now()
        if run.failure:
            self.evidence = Evidence()
            return
        self.evidence.still_lost(membership.lost_since(NEVER))
        lost = membership.lost_since(run.driver.now() - CUT_WINDOW)
        cut = is_mass_loss(run.commits.group, len({*lost, *self.evidence.elsewhere}))
        addresses = self._addresses()
        if self._schedule.must_write(now, addresses, cut):
            held = await self._write(addresses)
            self._schedule.wrote(now, addresses, held)
        if self._schedule.must_read(now, not membership.alive() and not run.is_finished, len(lost), cut):
            self._schedule.read(now)
            await self._read(COPIES * REPLICAS if cut else READ_QUORUM)  # beyond a cut, others write to other replicas

    async def withdraw(self) -> None:
        """Replaces our entries by empty ones."""
        written, self._written = list(self._written), {}
        await asyncio.gather(*(self._put(*slot, b"", WITHDRAWN) for slot in written))

    # -- writing --------------------------------------------------------------------------------------------

    async def _write(self, addresses: tuple[str, ...]) -> bool:
        """Writes our entries; whether any server holds the one that says that we are a member."""
        run, status = self.run, self.run.member.status
        entry = MemberEntry(addresses, status.round, status.history)
        puts = [
            self._put(run_key(run.id), MEMBER, encode(entry)),
            self._put(manifest_key(run.manifest.digest), run.id.hex(), encode(ManifestEntry(run.id, addresses))),
        ]
        present = sorted([run.member.me, *run.member.membership.alive()])
        if run.manifest.public and run.member.me in present[:ANNOUNCERS]:
            notice = RunNotice(run.id, run.manifest.name, status.round, len(present), addresses)
            puts.append(self._put(PUBLIC_RUNS, run.id.hex(), encode(notice)))
        return (await asyncio.gather(*puts))[0]

    async def _put(self, key: Digest, subkey: str, value: bytes, lifetime: float = LIFETIME) -> bool:
        if value:
            self._written[key, subkey] = None  # before the put, so that it is withdrawn even if the put is cancelled
        try:
            put = await self._discovery.put(key, subkey, value, lifetime)
        except ShoalError as error:
            log.info("not in the directory of %s: %s", self.run.manifest.name, error)
            return False
        if not put.held and put.refusals:
            reasons = ", ".join(each.words for each in put.refusals)
            log.info("not in the directory of %s: %s", self.run.manifest.name, reasons)
        return put.held > 0

    def _addresses(self) -> tuple[str, ...]:
        """Our addresses: first those at which others have reached us, then those by relays."""
        network = self._network
        known = [*self._discovery.verdict.addresses, *network.relayed_addresses, *network.own_addresses()]
        return shortlist(known, ADDRESSES)

    # -- reading --------------------------------------------------------------------------------------------

    async def _read(self, quorum: int) -> None:
        run, membership = self.run, self.run.member.membership
        try:
            got = await self._discovery.get(run_key(run.id), quorum=quorum)
        except ShoalError as error:
            log.info("the directory of %s cannot be read: %s", run.manifest.name, error)
            return
        listed = [each for each in members_in(got.found) if each.peer != run.member.me]
        lost = membership.lost_since(NEVER)
        self.evidence.weigh(listed, lost, run.member.history_after)
        unseen = [each for each in listed if membership.state(each.peer) in (None, State.DEAD)]
        chosen = self._rng.sample(unseen, min(MAX_CONTACTED, len(unseen)))
        await asyncio.gather(*(self._contact(each) for each in chosen))

    async def _contact(self, listed: ListedMember) -> None:
        """Connects to a listed peer, as membership then asks it; a connected one is reported to membership now."""
        peer, addresses = listed.peer, self._discovery.worth_dialling(listed.entry.addresses)
        if not addresses:
            return
        self._network.remember(peer, addresses)
        if self._network.remote_addresses(peer):
            self.run.driver.link(peer, True)
            return
        try:
            await self._network.connect(f"{addresses[0]}/p2p/{peer}")
        except ShoalError as error:
            log.debug("%s, of the directory of %s, cannot be reached: %s", peer, self.run.manifest.name, error)
