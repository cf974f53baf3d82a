"""Finding the others: by addresses that we were given, peers that we knew, and those on the local network.

Rules:
- Every address that we were given, at the start or with a link, is dialled by a task of its own, until it was
  reached once, and again whenever somebody is missed: where nobody else is known, it is the only way back. So none
  waits for another, and one that swallows what is sent there costs nobody anything.
- Peers that we only know of are dialled while somebody is missed, each STAGGER seconds after the one before, those
  first that were seen last. So no bootstrap node is needed. A peer that is heard of on the local network is greeted at
  once, too, whether or not anybody is missed: who asks it later finds it there.
- Pauses double up to RETRY_MOST, and are never quite the same, so that nodes that lost each other do not dial in step.
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
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from shoal.node.base.logs import warn
from shoal.node.base.pools import NOTES
from shoal.node.peers.remembered import PeerCache
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import host_and_port, is_relayed, place_of, split
from shoal.protocol.net.measure.journal import ITSELF, OTHER
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import resolve

# -- addresses that do not answer ----------------------------------------------------------------------------------


SAID, LONGEST = 3, 240  # targets of which a summary says what came of them; characters of each


class Kind(Enum):
    """How we came to know of a target: in words, for one and for several."""

    BOOTSTRAP = ("bootstrap address", "bootstrap addresses")
    LINK = ("address of a link", "addresses of links")
    KNOWN = ("peer seen before", "peers seen before")
    NEARBY = ("peer on this network", "peers on this network")

    def count(self, number: int) -> str:
        """Such a number of targets."""
        return f"{number} {self.value[number != 1]}"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why nobody whom we look for is at a target."""

    kind: Kind
    reason: str
    is_wrong: bool  # somebody answers there: another peer, or ourselves


class Unanswered:
    """The targets (addresses, or peers that we know of) that do not answer. Whoever drops a target must `forget` it."""

    def __init__(self) -> None:
        self._shut: dict[str, _Failure] = {}

    def failed(self, target: str, kind: Kind, error: ShoalError) -> None:
        """Nobody answers at `target`, or not whom we look for. A LocalError: it leads to ourselves."""
        is_wrong = isinstance(error, LocalError) or getattr(error, "code", "") in (ITSELF, OTHER)
        is_known = target in self._shut
        self._shut[target] = _Failure(kind, str(error), is_wrong)
        if is_known:
            return
        if kind in (Kind.BOOTSTRAP, Kind.LINK):
            code, words = _complaint(target, kind, error)
            warn(log, code, words)
        else:
            log.info("no answer from the %s %s: %s", kind.value[0], target, error)

    def answered(self, target: str, peer: PeerId) -> None:
        """`peer` answers at `target`."""
        if self._shut.pop(target, None) is not None:
            log.info("%s answers now, and is the peer %s", target, peer)

    def has_failed(self, target: str) -> bool:
        """Whether nobody has answered at `target` when it was last tried."""
        return target in self._shut

    def forget(self, target: str) -> None:
        """The target is of no interest any more."""
        self._shut.pop(target, None)

    @property
    def are_wrong(self) -> bool:
        """Whether somebody answers at any of them, and not whom we look for."""
        return any(each.is_wrong for each in self._shut.values())

    def summary(self) -> str | None:
        """What was tried in vain, and how it ended, in words; None if nothing was."""
        if not self._shut:
            return None
        counts = Counter(each.kind for each in self._shut.values())
        tried = [kind.count(counts[kind]) for kind in Kind if counts[kind]]
        listed = " and ".join([*([", ".join(tried[:-1])] if tried[1:] else []), tried[-1]])
        return f"nobody has answered yet, tried {listed}; trying again ({self._reasons()})"

    def _reasons(self) -> str:
        """Those that tell most come first: where somebody answers, then what a person can mend."""
        kinds = list(Kind)
        ranked = sorted(self._shut.items(), key=lambda item: (not item[1].is_wrong, kinds.index(item[1].kind)))
        said = [_reason(target, shut.reason) for target, shut in ranked[:SAID]]
        return "; ".join([*said, *([f"and {len(ranked) - SAID} more"] if len(ranked) > SAID else [])])


def _reason(target: str, reason: str) -> str:
    """What came of a target: the end of a PeerID is enough, and long reasons are cut."""
    words = reason if target in reason else f"{target[-6:] if '/' not in target else target}: {reason}"
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}..."


def _complaint(target: str, kind: Kind, error: ShoalError) -> tuple[str, str]:
    """The code and the words."""
    meanwhile = "all others are tried meanwhile, and this one again"
    if isinstance(error, LocalError):
        return "bootstrap-refused", f"the {kind.value[0]} {target} cannot be used: {error}; {meanwhile}"
    return "bootstrap-unreachable", (
        f"nobody can be reached at the {kind.value[0]} {target} ({error}): check that the node there runs, and with "
        f"`shoal status` there that this is still its address; {meanwhile}"
    )


RETRY_FIRST, RETRY_MOST = 0.5, 30.0  # seconds between two tries
LOOK = 1.0  # seconds between two looks whether somebody is missed
STAGGER = 0.25  # seconds between the dials of two peers
LINKED = 32  # addresses from links; the oldest go
NEARBY, WAITING = 32, 256  # peers on the local network; those for whom there is no room yet
STRANGERS = 32  # addresses at which somebody else is greeted at once

log = logging.getLogger("shoal.daemon")


class Reaching:
    """Dials all targets. `misses_somebody` says whether anybody is wanted that is not here."""

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
        self._behind: dict[str, frozenset[str]] = {}  # the targets to which each address has led when last tested
        self._strangers: dict[str, asyncio.Task[None]] = {}  # who are being greeted, by where they are
        self._cache = cache
        self._misses_somebody = misses_somebody
        self._unanswered = Unanswered()
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
        """Dial these, too, a link's multiaddrs: at once, side by side, and from now on like bootstrap addresses."""
        for address in addresses:
            self._cancel(self._linked.pop(address, None))  # whoever gives it again wants no pause
            self._linked[address] = self._start(lambda address=address: self._reach(address, Kind.LINK))  # type: ignore[misc]
        while len(self._linked) > LINKED:
            shut = (each for each in self._linked if self._unanswered.has_failed(each) and each not in addresses)
            least = next(shut, next(iter(self._linked)))
            self._cancel(self._linked.pop(least))
            self._unanswered.forget(least)
            self._leads_to(least, [])
            log.info("the address %s of a link is not tried any more: %d others are", least, LINKED)

    def hear(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """`peer` was announced on the local network: hearsay, so it has to prove that name."""
        if self._nearby.get(peer) == addresses or not self._has_room_for(peer, addresses):
            return
        self._nearby[peer] = addresses
        if len(self._greetings) < NEARBY:  # who comes and goes faster than targets answer is not greeted each time
            greeting = self._start(lambda: self._greet(peer))
            if greeting is not None:
                self._greetings.add(greeting)
                greeting.add_done_callback(self._greetings.discard)

    def unhear(self, peer: PeerId) -> None:
        """The announcement was withdrawn."""
        self._waiting.pop(peer, None)
        if self._nearby.pop(peer, None) and peer not in self.last_seen:
            self._unanswered.forget(peer)
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
            self._unanswered.forget(stranger)
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
        """All peers that we know of, from now or before a restart."""
        return [*self._nearby, *self.last_seen]

    def places(self, peer: PeerId) -> dict[str, tuple[str, ...]]:
        """Where a peer may be, by who says so."""
        return {"mdns": self._nearby.get(peer, ()), "cache": self.last_seen.get(peer, ())}

    @property
    def is_told(self) -> bool:
        """Whether somebody gave us an address, and so expects us not to be alone."""
        return bool(self._bootstrap or self._linked)

    def obstacle(self) -> str | None:
        """Why we are alone, in words; None if nothing was tried in vain."""
        return self._unanswered.summary()

    @property
    def is_misled(self) -> bool:
        """Whether somebody answers at one of the addresses, and is not whom we look for: waiting may not help."""
        return self._unanswered.are_wrong

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
                self._unanswered.failed(address, kind, error)
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
                self._unanswered.answered(address, peer)
                self._leads_to(address, [_target(place, name) for place in places])
            for place in places:
                if place not in in_use:
                    await self._test_place(place, PeerId(name), kind)
                else:
                    self._unanswered.answered(_target(place, name), peer)

    def _leads_to(self, address: str, targets: Sequence[str]) -> None:
        """`address` leads to these: targets to which it led before, and no address leads now, are tried no more."""
        before = self._behind.pop(address, frozenset())
        if targets:
            self._behind[address] = frozenset(targets)
        for target in before.difference(self._bootstrap, self._linked, *self._behind.values()):
            self._unanswered.forget(target)

    async def _test_place(self, place: str, name: PeerId, kind: Kind) -> None:
        """One of the places to which an address leads; `name` is who should be there, if anybody was named."""
        try:
            found = await self._network.name_at(place)
        except TransportError as error:
            if error.code != ITSELF:  # among the addresses of a name may be our own
                self._unanswered.failed(_target(place, name), kind, error)
            return
        if name in ("", found):
            self._unanswered.answered(_target(place, name), found)
        else:
            self._unanswered.failed(_target(place, name), kind, TransportError(f"{found} answers there", OTHER))
        self.find(place)

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
            await self._network.connect(f"{named}/p2p/{peer}")  # all are tried, and a name that it was met by, too
        except ShoalError as error:
            if peer in self._nearby or peer in self.last_seen:  # else it was unheard meanwhile
                self._unanswered.failed(peer, kind, error)
            return False
        self._unanswered.answered(peer, peer)
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


def _target(place: str, name: str) -> str:
    return f"{place}/p2p/{name}" if name else place


def _about(pause: float) -> float:
    return pause * random.uniform(0.75, 1.25)
