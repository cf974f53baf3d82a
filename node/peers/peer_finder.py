"""Finds other peers: at addresses that we were given, those known from before a restart, and on the local network.

A peer is missed while we are alone, or lack other members of a run (`misses_somebody`).

Rules:
- Each address that we were given, at the start or with a link, is dialled by a task of its own until it was reached
  once, and again whenever a peer is missed, as it may be the only way back. So no address waits for another, even if
  its packets are dropped silently.
- Peers that we only know of are dialled while a peer is missed, each STAGGER seconds after the one before, the last
  seen first. So no bootstrap node is needed. A peer that is announced on the local network is dialled at once, too,
  even if none is missed, so that it is connected when it is needed.
- Pauses double up to RETRY_MOST, with jitter, so that nodes that lost each other do not dial in step.
- No result is final: an address that leads to ourselves, or to another peer than it names, may lead elsewhere the next
  time; a host name is looked up each time, and may stand for several peers.
- If another peer answers than the one that was dialled, and a peer is missed, it is connected under its own name:
  addresses get reassigned, and it may know the others.
- While no peer at all answers, none counts as silent, because the fault may be ours.
- What others tell us is bounded: LINKED addresses, NEARBY peers, STRANGERS.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from shoal.dht.link_addresses import Reach, reach
from shoal.node.base.logs import warn
from shoal.node.base.pools import NOTES
from shoal.node.peers.remembered import PeerCache
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import (
    NO_NETWORKS,
    OwnNetworks,
    host_and_port,
    is_relayed,
    place_of,
    relay_of,
    split,
)
from shoal.protocol.net.measure.journal import ITSELF, OTHER
from shoal.protocol.net.peers.dialing import Unreachable
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import resolve

# -- addresses that do not answer ----------------------------------------------------------------------------------


MAX_REASONS, LONGEST = 3, 120  # reasons in a summary; characters of each


class Kind(Enum):
    """How we know of a target: in words, singular and plural."""

    BOOTSTRAP = ("bootstrap address", "bootstrap addresses")
    LINK = ("address of a link", "addresses of links")
    KNOWN = ("peer seen before", "peers seen before")
    NEARBY = ("peer on this network", "peers on this network")

    def count(self, number: int) -> str:
        """So many targets, in words."""
        return f"{number} {self.value[number != 1]}"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why the peer that we look for was not reached at a target."""

    kind: Kind
    reasons: Mapping[str, str]  # by place; by the target's end where no place was dialled
    is_wrong: bool  # the target leads to another peer, or to ourselves


class Unanswered:
    """The targets (addresses, or known peers) that do not answer. `forget` those that are not tried any more."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def failed(self, target: str, kind: Kind, error: ShoalError) -> None:
        """The peer was not reached at `target`. A LocalError means that the target leads to ourselves."""
        is_wrong = isinstance(error, LocalError) or error.code in (ITSELF, OTHER)
        is_known = target in self._failures
        self._failures[target] = _Failure(kind, _reasons(target, error), is_wrong)
        if is_known:
            return
        if kind in (Kind.BOOTSTRAP, Kind.LINK):
            code = "bootstrap-refused" if isinstance(error, LocalError) else "bootstrap-unreachable"
            warn(log, code, _complaint(target, kind, error))
        else:
            log.info("no answer from the %s %s: %s", kind.value[0], target, error)

    def answered(self, target: str, peer: PeerId) -> None:
        """`peer` answers at `target`."""
        if self._failures.pop(target, None) is not None:
            log.info("%s answers now, and is the peer %s", target, peer)

    def has_failed(self, target: str) -> bool:
        """Whether the last try at `target` has failed."""
        return target in self._failures

    def forget(self, target: str) -> None:
        """The target is not tried any more."""
        self._failures.pop(target, None)

    @property
    def are_wrong(self) -> bool:
        """Whether any of them leads to another peer than the one that we look for."""
        return any(each.is_wrong for each in self._failures.values())

    def summary(self, has_answered: bool, networks: OwnNetworks = NO_NETWORKS) -> str | None:
        """The targets that failed, and the reasons, in words; None if there are none.

        `has_answered`: whether anybody has ever been connected. `networks` are those that this machine is in.
        """
        if not self._failures:
            return None
        counts = Counter(each.kind for each in self._failures.values())
        tried = [kind.count(counts[kind]) for kind in Kind if counts[kind]]
        listed = " and ".join([*([", ".join(tried[:-1])] if tried[1:] else []), tried[-1]])
        nobody = "nobody answers now" if has_answered else "nobody has answered yet"
        return f"{nobody}, tried {listed}; trying again ({self._words(networks)})"

    def _words(self, networks: OwnNetworks) -> str:
        """The most informative reasons first: targets that lead to another peer, then those that a person can fix."""
        kinds = list(Kind)
        ranked = sorted(self._failures.values(), key=lambda each: (not each.is_wrong, kinds.index(each.kind)))
        found: dict[str, str] = {}  # by place, as several targets may lead to the same
        for failure in ranked:
            for place, reason in failure.reasons.items():
                found.setdefault(place, reason)
        reasons = [_shown(place, found[place]) for place in _telling(found, networks)]
        more = len(reasons) - MAX_REASONS
        return "; ".join([*reasons[:MAX_REASONS], *([f"and {more} more"] if more > 0 else [])])


def _reasons(target: str, error: ShoalError) -> dict[str, str]:
    """Why each place that was dialled for a target did not answer; a PeerID's end stands for a peer without any."""
    if isinstance(error, Unreachable):
        return {place_of(address): reason for address, reason in error.reasons.items()}
    return {place_of(target) if "/" in target else target[-6:]: str(error)}


def _telling(places: Iterable[str], networks: OwnNetworks) -> list[str]:
    """`places` without loopbacks and bridges to containers, which lead to no other machine, unless all are such."""
    reaches = {place: reach(place, networks) if "/" in place else Reach.LAN for place in places}
    least = min(Reach.LAN, max(reaches.values()))
    return [place for place, width in reaches.items() if width >= least]


def _shown(place: str, reason: str) -> str:
    if is_relayed(place):
        at, name = relay_of(place)
        place = f"the relay {name[-6:]} at {at}"
    words = reason if place in reason else f"{place}: {reason}"
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}..."


def _complaint(target: str, kind: Kind, error: ShoalError) -> str:
    """The words of the warning."""
    meanwhile = "all others are tried meanwhile, and this one again"
    if isinstance(error, LocalError):
        return f"the {kind.value[0]} {target} cannot be used: {error}; {meanwhile}"
    return (
        f"nobody can be reached at the {kind.value[0]} {target} ({error}): check that the node there runs, and with "
        f"`shoal status` there that this is still its address; {meanwhile}"
    )


RETRY_FIRST, RETRY_MOST = 0.5, 30.0  # seconds between two tries
LOOK = 1.0  # seconds between two checks whether a peer is missed
STAGGER = 0.25  # seconds between the dials of two peers
LINKED = 32  # addresses from links; the oldest are dropped
NEARBY, WAITING = 32, 256  # peers on the local network that are dialled; those that wait for a place
STRANGERS = 32  # addresses of unexpected peers that are dialled at once

log = logging.getLogger("shoal.daemon")


class PeerFinder:
    """Dials all targets. `misses_somebody` says whether we need connections that we do not have."""

    def __init__(
        self, network: Network, bootstrap: Sequence[str], cache: PeerCache, misses_somebody: Callable[[], bool]
    ) -> None:
        self.last_seen = cache.load()
        self._network = network
        self._bootstrap = dict.fromkeys(bootstrap)
        self._linked: OrderedDict[str, asyncio.Task[None] | None] = OrderedDict()
        self._nearby: dict[PeerId, tuple[str, ...]] = {}
        self._waiting: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()  # announced, beyond NEARBY
        self._greetings: set[asyncio.Task[None]] = set()  # dials of announced peers
        self._behind: dict[str, frozenset[str]] = {}  # the targets to which each address has led when last tested
        self._strangers: dict[str, asyncio.Task[None]] = {}  # dials of unexpected peers, by address
        self._cache = cache
        self._misses_somebody = misses_somebody
        self._unanswered = Unanswered()
        self.has_answered = False  # whether anybody has been connected in this life
        self._tasks: asyncio.TaskGroup | None = None  # while we run

    async def run(self) -> None:
        """Runs until it is cancelled."""
        for peer, addresses in self.last_seen.items():
            self._network.remember(peer, addresses)
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._recall())
            for address in self._bootstrap:
                self._tasks.create_task(self._reach(address, Kind.BOOTSTRAP))
            linked, self._linked = list(self._linked), OrderedDict()
            self.add_linked(linked)
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # what is announced from now on comes too late

    def add_linked(self, addresses: Sequence[str]) -> None:
        """Dials the multiaddrs of a link: at once, in parallel, and from now on like bootstrap addresses."""
        for address in addresses:
            self._cancel(self._linked.pop(address, None))  # given again: dial it without a pause
            self._linked[address] = self._start(lambda address=address: self._reach(address, Kind.LINK))  # type: ignore[misc]
        while len(self._linked) > LINKED:
            failed = (each for each in self._linked if self._unanswered.has_failed(each) and each not in addresses)
            dropped = next(failed, next(iter(self._linked)))
            self._cancel(self._linked.pop(dropped))
            self._unanswered.forget(dropped)
            self._leads_to(dropped, [])
            log.info("the address %s of a link is not tried any more: %d others are", dropped, LINKED)

    def on_announced(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """`peer` was announced on the local network: hearsay, so it has to prove its PeerID when it is dialled."""
        if self._nearby.get(peer) == addresses or not self._has_room_for(peer, addresses):
            return
        self._nearby[peer] = addresses
        if len(self._greetings) < NEARBY:  # a bound, as announcements may come faster than targets answer
            greeting = self._start(lambda: self._greet(peer))
            if greeting is not None:
                self._greetings.add(greeting)
                greeting.add_done_callback(self._greetings.discard)

    def on_withdrawn(self, peer: PeerId) -> None:
        """The announcement was withdrawn."""
        self._waiting.pop(peer, None)
        if self._nearby.pop(peer, None) and peer not in self.last_seen:
            self._unanswered.forget(peer)
        if self._waiting and len(self._nearby) < NEARBY:
            self.on_announced(*self._waiting.popitem(last=False))

    def _has_room_for(self, peer: PeerId, addresses: tuple[str, ...]) -> bool:
        """Whether to dial a peer now, or let it wait; a peer known from before takes the place of an unknown one."""
        self._waiting.pop(peer, None)
        if peer in self._nearby or len(self._nearby) < NEARBY:
            return True
        unknown = next((each for each in self._nearby if each not in self.last_seen), None)
        if peer in self.last_seen and unknown is not None:
            self._keep_waiting(unknown, self._nearby.pop(unknown))
            self._unanswered.forget(unknown)
            return True
        self._keep_waiting(peer, addresses)
        return False

    def _keep_waiting(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        if not self._waiting:
            log.info("more than %d peers are on this network: the others are greeted when some have gone", NEARBY)
        self._waiting[peer] = addresses
        if len(self._waiting) > WAITING:
            self._waiting.popitem(last=False)

    def greet_stranger(self, place: str) -> None:
        """Another peer answers at `place` than the one that was dialled there: connects to it."""
        if not self._misses_somebody() or place in self._strangers or len(self._strangers) >= STRANGERS:
            return
        if (greeting := self._start(lambda: self._greet_at(place))) is not None:
            self._strangers[place] = greeting
            greeting.add_done_callback(lambda _: self._strangers.pop(place))

    def link(self, peer: PeerId, up: bool) -> None:
        """`peer` is connected, or is no more."""
        self.has_answered |= up

    def peers(self) -> list[PeerId]:
        """All peers that we know of, from the local network or from before a restart."""
        return [*self._nearby, *self.last_seen]

    def places(self, peer: PeerId) -> dict[str, tuple[str, ...]]:
        """The addresses at which a peer may be, by source."""
        return {"mdns": self._nearby.get(peer, ()), "cache": self.last_seen.get(peer, ())}

    @property
    def has_given_addresses(self) -> bool:
        """Whether a person gave us an address, and so expects us not to stay alone."""
        return bool(self._bootstrap or self._linked)

    def obstacle(self) -> str | None:
        """Why we are alone, in words; None if no try has failed."""
        return self._unanswered.summary(self.has_answered, self._network.own_networks)

    @property
    def is_misled(self) -> bool:
        """Whether one of the addresses leads to another peer than the one that we look for: waiting may not help."""
        return self._unanswered.are_wrong

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None] | None:
        """Starts the work; None before `run`, which starts what was added by then."""
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
                self._unanswered.failed(address, kind, error)
            else:
                if not reached:
                    log.info("connected with the peer of the %s %s: %s", kind.value[0], address, peer)  # at any address
                reached = True
                self._note(peer, address)
                await self._test(address, kind, peer)
            await asyncio.sleep(_about(pause))
            pause = min(RETRY_MOST, 2 * pause)
            if reached and not self._misses_somebody():
                await self._until_somebody_is_missed()
                pause = RETRY_FIRST

    async def _test(self, address: str, kind: Kind, peer: PeerId) -> None:
        """Tests each place behind a given address, as `peer` may have been reached by another way."""
        plain, name = split(address)
        if is_relayed(plain):
            return  # only the relay can tell
        in_use = {place_of(used) for link in self._network.links() for used in link.addresses}
        with suppress(TransportError):  # a host name that could be resolved a moment ago
            places = await resolve(plain)
            if places != (plain,):
                self._unanswered.answered(address, peer)
                self._leads_to(address, [_target(place, name) for place in places])
            for place in places:
                if place not in in_use:
                    await self._test_place(place, PeerId(name), kind)
                else:
                    self._unanswered.answered(_target(place, name), peer)

    def _leads_to(self, address: str, targets: Sequence[str]) -> None:
        """Notes the targets of `address`, and forgets former ones to which no address leads any more."""
        before = self._behind.pop(address, frozenset())
        if targets:
            self._behind[address] = frozenset(targets)
        for target in before.difference(self._bootstrap, self._linked, *self._behind.values()):
            self._unanswered.forget(target)

    async def _test_place(self, place: str, name: PeerId, kind: Kind) -> None:
        """Tests one place to which an address leads; `name` is the peer that should be there, or empty."""
        try:
            found = await self._network.name_at(place)
        except TransportError as error:
            if error.code != ITSELF:  # a host name may stand for our own address, too
                self._unanswered.failed(_target(place, name), kind, error)
            return
        if name in ("", found):
            self._unanswered.answered(_target(place, name), found)
        else:
            self._unanswered.failed(_target(place, name), kind, TransportError(f"{found} answers there", OTHER))
        self.greet_stranger(place)

    # -- peers that we know of ------------------------------------------------------------------------------

    async def _recall(self) -> None:
        pause = RETRY_FIRST
        while True:
            if not self._misses_somebody():
                await self._until_somebody_is_missed()
                pause = RETRY_FIRST
            await self._dial_all()
            await asyncio.sleep(_about(pause))
            pause = min(RETRY_MOST, 2 * pause)

    async def _dial_all(self) -> None:
        tries: dict[PeerId, asyncio.Task[bool]] = {}
        async with asyncio.TaskGroup() as group:
            for peer in [*self._nearby, *(each for each in self.last_seen if each not in self._nearby)]:
                if not self._misses_somebody():
                    break
                tries[peer] = group.create_task(self._dial(peer))
                await asyncio.wait([tries[peer]], timeout=STAGGER)
        silent = [peer for peer, dialled in tries.items() if not dialled.result()]
        if silent and len(silent) < len(tries):
            NOTES.offer(partial(self._cache.missed, silent))

    async def _greet(self, peer: PeerId) -> None:
        await self._dial(peer)

    async def _dial(self, peer: PeerId) -> bool:
        """Whether a peer answers at any of its addresses."""
        addresses = [*self._nearby.get(peer, ()), *self.last_seen.get(peer, ())]
        if not addresses:
            return False
        kind = Kind.NEARBY if peer in self._nearby else Kind.KNOWN
        self._network.remember(peer, addresses)
        try:
            named = next((each for each in addresses if host_and_port(each) is None), addresses[0])
            await self._network.connect(f"{named}/p2p/{peer}")  # tries all remembered addresses, host names included
        except ShoalError as error:
            if peer in self._nearby or peer in self.last_seen:  # else it was withdrawn meanwhile
                self._unanswered.failed(peer, kind, error)
            return False
        self._unanswered.answered(peer, peer)
        self._note(peer, addresses[0])
        return True

    async def _greet_at(self, place: str) -> None:
        """Connects to the peer at `place`, whichever it is."""
        try:
            peer = await self._network.connect(place)
        except ShoalError as error:
            log.debug("nobody can be greeted at %s: %s", place, error)
            return
        log.info("%s answers at %s, and is greeted under its own name", peer, place)
        self._note(peer, place)

    def _note(self, peer: PeerId, address: str) -> None:
        NOTES.offer(partial(self._cache.reached, peer, address))

    async def _until_somebody_is_missed(self) -> None:
        while not self._misses_somebody():
            await asyncio.sleep(LOOK)


def _target(place: str, name: str) -> str:
    return f"{place}/p2p/{name}" if name else place


def _about(pause: float) -> float:
    return pause * random.uniform(0.75, 1.25)
