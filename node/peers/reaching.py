"""Finding the others: by addresses that somebody gave us, the peers that we knew, and those on the local network.

Rules:
- Every address that we were given, at the start or with a link, is knocked at by a task of its own, until it was
  reached once, and again whenever somebody is missed: where nobody else is known, it is the only way back. So none
  waits for another, and one that swallows what is sent there costs nobody anything.
- Peers that we only know of are knocked at while somebody is missed, each STAGGER seconds after the one before, those
  first that were seen last. So no bootstrap node is needed. A peer that is heard of on the local network is greeted at
  once, too, whether or not anybody is missed: who asks it later finds it there.
- Pauses double up to RETRY_MOST, and are never quite the same, so that nodes that lost each other do not knock in step.
- No answer is final: an address that leads to nobody but ourselves, or to another peer than it names, may lead
  elsewhere the next time; a host name is looked up each time, and may stand for several peers.
- Whoever answers where another peer was looked for is greeted under its own name, while somebody is missed: addresses
  are dealt anew, and it may know the others.
- Nobody is called silent while nobody at all answers: then the fault may be ours.
- What we are told is bounded: LINKED addresses, NEARBY peers, STRANGERS.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from shoal.node.peers.doors import Doors, Kind
from shoal.node.pools import NOTES
from shoal.node.run.remembered import PeerCache
from shoal.protocol.addresses import resolve
from shoal.protocol.errors import ShoalError, TransportError
from shoal.protocol.ids import PeerId
from shoal.protocol.journal import ITSELF, OTHER
from shoal.protocol.multiaddrs import host_and_port, is_relayed, place_of, split
from shoal.protocol.network import Network

RETRY_FIRST, RETRY_MOST = 0.5, 30.0  # seconds between two tries
LOOK = 1.0  # seconds between two looks whether somebody is missed
STAGGER = 0.25  # seconds between the knocks at two peers
LINKED = 32  # addresses from links; the oldest go
NEARBY, WAITING = 32, 256  # peers on the local network; those for whom there is no room yet
STRANGERS = 32  # addresses at which somebody else is greeted at once

log = logging.getLogger("shoal.daemon")


class Reaching:
    """Knocks at doors. `misses_somebody` says whether anybody is wanted that is not here."""

    def __init__(
        self, network: Network, bootstrap: Sequence[str], cache: PeerCache, misses_somebody: Callable[[], bool]
    ) -> None:
        self.on_met: Callable[[PeerId, tuple[str, ...]], None] = lambda peer, addresses: None  # who answered, and where
        self.last_seen = cache.load()
        self._network = network
        self._bootstrap = dict.fromkeys(bootstrap)
        self._linked: OrderedDict[str, asyncio.Task[None] | None] = OrderedDict()
        self._nearby: dict[PeerId, tuple[str, ...]] = {}
        self._waiting: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()  # heard of, beyond NEARBY
        self._greetings: set[asyncio.Task[None]] = set()
        self._behind: dict[str, frozenset[str]] = {}  # the doors to which each address has led when last tested
        self._strangers: dict[str, asyncio.Task[None]] = {}  # who are being greeted, by where they are
        self._cache = cache
        self._misses_somebody = misses_somebody
        self._doors = Doors()
        self._tasks: asyncio.TaskGroup | None = None  # while we run
        network.on_stranger = self.find

    async def run(self) -> None:
        """For good."""
        for peer, addresses in self.last_seen.items():
            self._network.remember(peer, addresses)
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._recall())
            for address in self._bootstrap:
                self._tasks.create_task(self._reach(address, Kind.BOOTSTRAP))
            linked, self._linked = list(self._linked), OrderedDict()
            self.also(linked)
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # what is heard from now on comes too late

    def also(self, addresses: Sequence[str]) -> None:
        """Knock at these, too, a link's multiaddrs: at once, side by side, and from now on like bootstrap addresses."""
        for address in addresses:
            self._cancel(self._linked.pop(address, None))  # whoever gives it again wants no pause
            self._linked[address] = self._start(lambda address=address: self._reach(address, Kind.LINK))  # type: ignore[misc]
        while len(self._linked) > LINKED:
            shut = (each for each in self._linked if self._doors.is_shut(each) and each not in addresses)
            least = next(shut, next(iter(self._linked)))
            self._cancel(self._linked.pop(least))
            self._doors.forget(least)
            self._leads_to(least, [])
            log.info("the address %s of a link is not tried any more: %d others are", least, LINKED)

    def hear(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Somebody on the local network says that `peer` is there: hearsay, so it has to answer by that name."""
        if self._nearby.get(peer) == addresses or not self._has_room_for(peer, addresses):
            return
        self._nearby[peer] = addresses
        if len(self._greetings) < NEARBY:  # who comes and goes faster than doors answer is not greeted each time
            greeting = self._start(lambda: self._greet(peer))
            if greeting is not None:
                self._greetings.add(greeting)
                greeting.add_done_callback(self._greetings.discard)

    def unhear(self, peer: PeerId) -> None:
        """It is not there any more, says somebody on the local network."""
        self._waiting.pop(peer, None)
        if self._nearby.pop(peer, None) and peer not in self.last_seen:
            self._doors.forget(peer)
        if self._waiting and len(self._nearby) < NEARBY:
            self.hear(*self._waiting.popitem(last=False))

    def _has_room_for(self, peer: PeerId, addresses: tuple[str, ...]) -> bool:
        """Whether to greet a peer now; one from our last life takes a stranger's place. The others wait for theirs."""
        self._waiting.pop(peer, None)
        if peer in self._nearby or len(self._nearby) < NEARBY:
            return True
        stranger = next((each for each in self._nearby if each not in self.last_seen), None)
        if peer in self.last_seen and stranger is not None:
            self._keep_waiting(stranger, self._nearby.pop(stranger))
            self._doors.forget(stranger)
            return True
        self._keep_waiting(peer, addresses)
        return False

    def _keep_waiting(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        if not self._waiting:
            log.info("more than %d peers are on this network: the others are greeted when some have gone", NEARBY)
        self._waiting[peer] = addresses
        if len(self._waiting) > WAITING:
            self._waiting.popitem(last=False)

    def find(self, place: str) -> None:
        """Another peer answers at `place` than was looked for there."""
        if not self._misses_somebody() or place in self._strangers or len(self._strangers) >= STRANGERS:
            return
        if (greeting := self._start(lambda: self._greet_at(place))) is not None:
            self._strangers[place] = greeting
            greeting.add_done_callback(lambda _: self._strangers.pop(place))

    def peers(self) -> list[PeerId]:
        """All whom we know of, here or from an earlier life."""
        return [*self._nearby, *self.last_seen]

    def places(self, peer: PeerId) -> dict[str, tuple[str, ...]]:
        """Where a peer may be, by who says so."""
        return {"mdns": self._nearby.get(peer, ()), "cache": self.last_seen.get(peer, ())}

    @property
    def is_told(self) -> bool:
        """Whether somebody gave us an address, and so expects us not to be alone."""
        return bool(self._bootstrap or self._linked)

    def obstacle(self) -> str | None:
        """What keeps us alone, in words; None if nothing was tried in vain."""
        return self._doors.summary()

    @property
    def is_misled(self) -> bool:
        """Whether somebody answers at one of the addresses, and is not whom we look for: waiting may not help."""
        return self._doors.are_wrong

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None] | None:
        """None before `run`, which will start it."""
        return self._tasks.create_task(work()) if self._tasks is not None else None

    def _cancel(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()

    # -- addresses that we were given -----------------------------------------------------------------------

    async def _reach(self, address: str, kind: Kind) -> None:
        pause, reached = RETRY_FIRST, False
        while True:
            try:
                peer = await self._network.connect(address)
            except ShoalError as error:
                self._doors.shut(address, kind, error)
            else:
                if not reached:
                    log.info("reached the %s %s: %s", kind.value[0], address, peer)
                reached = True
                await self._met(peer, address)
                await self._test(address, kind, peer)
            await asyncio.sleep(_about(pause))
            pause = min(RETRY_MOST, 2 * pause)
            if reached and not self._misses_somebody():
                await self._until_somebody_is_missed()
                pause = RETRY_FIRST

    async def _test(self, address: str, kind: Kind, peer: PeerId) -> None:
        """`peer` was reached, perhaps by another way: whoever gave us a broken address should know, for next time."""
        plain, name = split(address)
        if is_relayed(plain):
            return  # whether it leads to somebody is for the relay to say
        in_use = {place_of(used) for link in self._network.links() for used in link.addresses}
        with suppress(TransportError):  # a name that was just looked up, and cannot be now, is no news
            places = await resolve(plain)
            if places != (plain,):
                self._doors.opened(address, peer)
                self._leads_to(address, [_door(place, name) for place in places])
            for place in places:
                if place not in in_use:
                    await self._test_place(place, PeerId(name), kind)
                else:
                    self._doors.opened(_door(place, name), peer)

    def _leads_to(self, address: str, doors: Sequence[str]) -> None:
        """`address` leads to these: doors to which it led before, and no address leads now, are tried no more."""
        before = self._behind.pop(address, frozenset())
        if doors:
            self._behind[address] = frozenset(doors)
        for door in before.difference(self._bootstrap, self._linked, *self._behind.values()):
            self._doors.forget(door)

    async def _test_place(self, place: str, name: PeerId, kind: Kind) -> None:
        """One of the places to which an address leads; `name` is who should be there, if anybody was named."""
        try:
            found = await self._network.name_at(place)
        except TransportError as error:
            if error.code != ITSELF:  # among the addresses of a name may be our own
                self._doors.shut(_door(place, name), kind, error)
            return
        if name in ("", found):
            self._doors.opened(_door(place, name), found)
        else:
            self._doors.shut(_door(place, name), kind, TransportError(f"{found} answers there", OTHER))
        self.find(place)

    # -- peers that we know of ------------------------------------------------------------------------------

    async def _recall(self) -> None:
        pause = RETRY_FIRST
        while True:
            if not self._misses_somebody():
                await self._until_somebody_is_missed()
                pause = RETRY_FIRST
            await self._knock_at_all()
            await asyncio.sleep(_about(pause))
            pause = min(RETRY_MOST, 2 * pause)

    async def _knock_at_all(self) -> None:
        knocks: dict[PeerId, asyncio.Task[bool]] = {}
        async with asyncio.TaskGroup() as group:
            for peer in [*self._nearby, *(each for each in self.last_seen if each not in self._nearby)]:
                if not self._misses_somebody():
                    break
                knocks[peer] = group.create_task(self._knock(peer))
                await asyncio.wait([knocks[peer]], timeout=STAGGER)
        silent = [peer for peer, knock in knocks.items() if not knock.result()]
        if silent and len(silent) < len(knocks):
            NOTES.offer(partial(self._cache.missed, silent))

    async def _greet(self, peer: PeerId) -> None:
        await self._knock(peer)

    async def _knock(self, peer: PeerId) -> bool:
        """Whether a peer answers at any of its addresses."""
        addresses = [*self._nearby.get(peer, ()), *self.last_seen.get(peer, ())]
        if not addresses:
            return False
        kind = Kind.NEARBY if peer in self._nearby else Kind.KNOWN
        self._network.remember(peer, addresses)
        try:
            named = next((each for each in addresses if host_and_port(each) is None), addresses[0])
            await self._network.connect(f"{named}/p2p/{peer}")  # all are tried, and a name that it was met by, too
        except ShoalError as error:
            if peer in self._nearby or peer in self.last_seen:  # else it was unheard meanwhile
                self._doors.shut(peer, kind, error)
            return False
        self._doors.opened(peer, peer)
        await self._met(peer, *addresses)
        return True

    async def _greet_at(self, place: str) -> None:
        """Meet whoever is at `place`."""
        try:
            peer = await self._network.connect(place)
        except ShoalError as error:
            log.debug("nobody can be greeted at %s: %s", place, error)
            return
        log.info("%s answers at %s, and is greeted under its own name", peer, place)
        await self._met(peer, place)

    async def _met(self, peer: PeerId, *addresses: str) -> None:
        self.on_met(peer, addresses)
        NOTES.offer(partial(self._cache.reached, peer, addresses[0]))

    async def _until_somebody_is_missed(self) -> None:
        while not self._misses_somebody():
            await asyncio.sleep(LOOK)


def _door(place: str, name: str) -> str:
    return f"{place}/p2p/{name}" if name else place


def _about(pause: float) -> float:
    return pause * random.uniform(0.75, 1.25)
