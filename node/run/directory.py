"""The directory of our runs: we write in it that we are members, and read who else is.

Rules:
- shoal.dht.directory decides when, and what follows; this module does it. Without a server of the DHT nothing is tried.
- A peer that is listed but not among the members that membership sees is contacted: if it is a member, the two
  memberships exchange the rest. So any node of the DHT is a way into a run, and heals one that was cut.
- What we wrote is withdrawn when we leave a run, or end; entries of a node that was killed expire.
- A public run is announced to all by some of its members; which ones follows from their names.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.dht.directory import CUT_WINDOW, LIFETIME, MANIFEST, MEMBER, Evidence, ListedMember, Schedule, members_in
from shoal.dht.keys import COPIES, PUBLIC_RUNS, REPLICAS, manifest_key, run_key
from shoal.node.peers.discovery import Discovery
from shoal.node.run.either_member import history_after
from shoal.node.run.standing import is_much
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.multiaddrs import shortlist
from shoal.protocol.base.wire import encode
from shoal.protocol.membership.members import NEVER, State
from shoal.protocol.messages.directory import ManifestEntry, MemberEntry, RunNotice
from shoal.protocol.net.peers.network import Network

if TYPE_CHECKING:
    from shoal.node.run.run import Run

LOOK = 2.0  # seconds between two looks whether something is to be done
ADDRESSES = 8  # in an entry: it must fit into a record
CALLED_UPON = 16  # strangers after one reading
ANNOUNCERS = 3  # members that announce a public run
AGREEING = 2  # replicas, and a reading ends
WITHDRAWN = 60.0  # seconds that an empty entry lives: as long as an older one may still be on its way
GOODBYE = 1.0  # seconds for withdrawing what we wrote, as the node ends

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
        """For good."""
        while True:
            if self._discovery.contacts():
                await self._turn()
            await asyncio.sleep(LOOK)

    def evidence(self, run: Run) -> Evidence:
        """What the directory says of a run against what its membership says."""
        page = self._pages.get(run.id.hex())
        return page.evidence if page is not None else Evidence()

    async def close(self) -> None:
        """Withdraw what we wrote, if that is quick."""
        pages, self._pages = list(self._pages.values()), {}
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await asyncio.gather(*(page.withdraw() for page in pages))

    async def _turn(self) -> None:
        open_runs = self._runs()
        left = [self._pages.pop(key) for key, page in list(self._pages.items()) if open_runs.get(key) is not page.run]
        await self._see_to(page.withdraw() for page in left)  # first: a run that we are in again is written anew
        for key, run in open_runs.items():
            if key not in self._pages:
                self._pages[key] = Page(run, self._discovery, self._network)
        await self._see_to(page.turn() for page in self._pages.values())

    async def _see_to(self, work: Iterable[Coroutine[None, None, None]]) -> None:
        """All of it; a mistake of ours is logged once, and costs the other runs, and the node, nothing."""
        for error in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(error, Exception) and not self._has_erred:
                self._has_erred = True
                log.error("the directory of runs made a mistake", exc_info=error)


class Page:
    """Our place in one run's directory."""

    def __init__(self, run: Run, discovery: Discovery, network: Network) -> None:
        self.evidence = Evidence()
        self.run = run
        self._discovery = discovery
        self._network = network
        self._rng = random.Random()
        self._schedule = Schedule(self._rng)
        self._written: dict[tuple[Digest, str], None] = {}

    async def turn(self) -> None:
        """Do what is due."""
        run, membership, now = self.run, self.run.member.membership, self._discovery.now()
        if run.failure:
            self.evidence = Evidence()
            return
        self.evidence.still_lost(membership.lost_since(NEVER))
        lost = membership.lost_since(run.driver.now() - CUT_WINDOW)
        cut = is_much(run.commits.group, len({*lost, *self.evidence.elsewhere}))
        addresses = self._addresses()
        if self._schedule.must_write(now, addresses, cut):
            held = await self._write(addresses)
            self._schedule.wrote(now, addresses, held)
        if self._schedule.must_read(now, not membership.alive() and not run.is_finished, len(lost), cut):
            self._schedule.read(now)
            await self._read(COPIES * REPLICAS if cut else AGREEING)  # those beyond a cut write with few of ours

    async def withdraw(self) -> None:
        """An empty entry hides what we wrote."""
        written, self._written = list(self._written), {}
        await asyncio.gather(*(self._put(*slot, b"", WITHDRAWN) for slot in written))

    # -- writing --------------------------------------------------------------------------------------------

    async def _write(self, addresses: tuple[str, ...]) -> bool:
        """Whether any server holds that we are in the run."""
        run, status = self.run, self.run.member.status
        entry = MemberEntry(addresses, status.round, status.history)
        puts = [
            self._put(run_key(run.id), MEMBER, encode(entry)),
            self._put(manifest_key(run.id), MANIFEST, encode(ManifestEntry(addresses))),
        ]
        present = sorted([run.member.me, *run.member.membership.alive()])
        if run.manifest.public and run.member.me in present[:ANNOUNCERS]:
            notice = RunNotice(run.id, run.manifest.name, status.round, len(present), addresses)
            puts.append(self._put(PUBLIC_RUNS, run.id.hex(), encode(notice)))
        return (await asyncio.gather(*puts))[0]

    async def _put(self, key: Digest, subkey: str, value: bytes, lifetime: float = LIFETIME) -> bool:
        if value:
            self._written[key, subkey] = None  # before anybody has it: who is cancelled meanwhile withdraws it, too
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
        """Where others were seen to reach us comes first, then where relays connect them with us."""
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
        self.evidence.weigh(listed, lost, self._history)
        unseen = [each for each in listed if membership.state(each.peer) in (None, State.DEAD)]
        chosen = self._rng.sample(unseen, min(CALLED_UPON, len(unseen)))
        await asyncio.gather(*(self._call_upon(each) for each in chosen))

    async def _call_upon(self, listed: ListedMember) -> None:
        """Membership asks whoever a connection is made with; with whom there is one already, now."""
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

    def _history(self, round: int) -> Digest | None:
        """Our history after a round that we know to be decided."""
        return history_after(self.run.member, round)
