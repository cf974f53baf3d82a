"""Getting connections and streams with one peer: one attempt at a time, with exponential back-off after failures.

Rules:
- An attempt tries all known addresses side by side, and takes the first that answers. That one is the first to be tried
  next time. The rules are those of RFC 8305, "happy eyeballs": the next address is tried as soon as one has failed, and
  after STAGGER seconds at the latest, so that an address that swallows what is sent there costs the others STAGGER
  seconds, not its own time limit; IPv6 and IPv4 take turns; and an address that becomes known meanwhile is tried, too.
- A connection that the peer makes while we dial ends the wait; ours is then a spare, and does no harm.
- Addresses are hearsay: anybody can sign one that leads to somebody else. So failed dials are bounded for each host,
  over all peers that are said to be there, and nobody can be flooded through us.
- For payloads a peer is dialled at other ports, too, which it names: only at hosts where it has shown that it is there.
- Payloads get a connection of their own where the peer can be dialled. On a shared one, a message would stand behind
  all the payload that waits in the socket of a peer that cannot read it as fast as it comes: 100 ms and more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from itertools import zip_longest
from typing import Any, TypeVar

from shoal.protocol.base.allowance import Allowances
from shoal.protocol.base.errors import NOT_SPOKEN, TransportError
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.multiaddrs import few, host_and_port, is_relayed
from shoal.protocol.base.paths import RELAYED
from shoal.protocol.net.measure.journal import OTHER, TOO_OFTEN
from shoal.protocol.net.transport.transport import Connection, Stream, Transport

STAGGER = 0.25  # seconds between the starts of two addresses

T = TypeVar("T")
LIMIT = 10.0  # seconds for one address
OWN_LIMIT, OWN_PAUSE = 2.0, 60.0  # the same, for a connection that we can do without; and after it was not to be had
BACK_OFF = (0.2, 15.0)  # seconds: the first and the longest
MAX_ADDRESSES, MAX_RELAYED = 8, 4  # direct ones come first; see `few`
MAX_PROVEN = 2
FAILURES = (64, 2.0)  # dials of one host that may fail, in a burst and per second
MAX_HOSTS = 4096  # whose failures are remembered
OPEN_TRIES = 2  # a connection may end while we open a stream on it, and another one be there

Spawn = Callable[[Coroutine[Any, Any, None]], object]


async def first_answer(addresses: Callable[[], Iterable[str]], dial: Callable[[str], Coroutine[Any, Any, T]]) -> T:
    """What `dial` makes of the first of `addresses()` that answers; TransportError with all reasons if none does."""
    tried, attempts, failures, codes = set[str](), set[asyncio.Task[T]](), list[str](), set[str]()
    try:
        while True:
            address = next((each for each in addresses() if each not in tried), None)
            if address is not None:
                tried.add(address)
                attempts.add(asyncio.create_task(dial(address), name=address))
            elif not attempts:
                raise TransportError("; ".join(failures), _code_of_all(codes))
            done, attempts = await asyncio.wait(attempts, timeout=STAGGER, return_when="FIRST_COMPLETED")
            for attempt in done:
                if not isinstance(error := attempt.exception(), TransportError):
                    return attempt.result()
                failures.append(f"{attempt.get_name()}: {error}")
                codes.add(error.code)
    finally:
        for attempt in attempts:
            attempt.cancel()  # what it may still achieve is a spare
            attempt.add_done_callback(_retrieve)


def _code_of_all(codes: set[str]) -> str:
    """What to call a failure of all: that somebody else answers anywhere is worth more than silence elsewhere."""
    if len(codes) == 1:
        return next(iter(codes))
    return OTHER if OTHER in codes else "failed"


def by_turns(addresses: Iterable[str]) -> tuple[str, ...]:
    """The same, each once, IPv6 and others by turns; within a family in the order given."""
    each = list(dict.fromkeys(addresses))
    kinds = [address.startswith("/ip6/") for address in each]
    first = [address for address, kind in zip(each, kinds, strict=True) if kind == kinds[0]]
    second = [address for address, kind in zip(each, kinds, strict=True) if kind != kinds[0]]
    return tuple(address for pair in zip_longest(first, second) for address in pair if address is not None)


class Dialing:
    """Whether one peer is connected, where it may be, and how a connection or a stream with it is had."""

    def __init__(
        self,
        peer: PeerId,
        transport: Transport,
        spawn: Spawn,
        failures: Allowances[str],
        on_stranger: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._peer = peer
        self._transport = transport
        self._spawn = spawn
        self._failures = failures  # that each host may cause, whoever is said to be there
        self._on_stranger = on_stranger  # somebody else answers at this address
        self._addresses: tuple[str, ...] = ()
        self._proven: tuple[str, ...] = ()  # where it has answered by its name, the latest first
        self._attempt: asyncio.Future[None] | None = None
        self._delay = 0.0
        self._retry_at = 0.0
        self._no_own_until = 0.0
        self.is_up = False

    @property
    def can_dial(self) -> bool:
        """Whether any address is known."""
        return bool(self._addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the peer may be."""
        return self._addresses

    def learn(self, addresses: tuple[str, ...]) -> None:
        """Where the peer may be; the latest news is tried first."""
        known = dict.fromkeys([*by_turns(addresses), *self._addresses])
        direct, relayed = ([each for each in known if is_relayed(each) is by_relay] for by_relay in (False, True))
        self._addresses = (*self._best(direct, MAX_ADDRESSES), *self._best(relayed, MAX_RELAYED))
        self._no_own_until = 0.0

    def _best(self, addresses: list[str], most: int) -> list[str]:
        """What of it is kept, in its order: where the peer has answered, before all that is said of it."""
        proven = [each for each in self._proven if each in addresses]
        kept = few([*proven, *addresses], most)
        return [each for each in addresses if each in kept]

    @property
    def is_direct(self) -> bool:
        """Whether what is sent now goes without a relay."""
        return self._transport.path(self._peer) != RELAYED

    def hosts(self) -> tuple[str, ...]:
        """The hosts where the peer has been: first those that our connections with it lead to."""
        known = (*self._transport.remote_addresses(self._peer), *self._proven)
        places = (host_and_port(each) for each in known if not is_relayed(each))
        return tuple(dict.fromkeys(str(place[0]) for place in places if place is not None))

    def connected(self) -> None:
        """A connection exists, whoever made it."""
        self.is_up = True
        self.forget_failures()
        if self._attempt is not None and not self._attempt.done():
            self._attempt.set_result(None)

    def forget_failures(self) -> None:
        """Dial at once when next asked: somebody knows that the peer is there."""
        self._delay = self._retry_at = 0.0

    async def reach(self) -> None:
        """Return when a connection exists; TransportError if there is none to be had now."""
        if self.is_up:
            return
        if self._attempt is None or self._attempt.done():
            self._check()
            self._attempt = asyncio.get_running_loop().create_future()
            self._attempt.add_done_callback(_retrieve)
            self._spawn(self._dial(self._attempt))
        await asyncio.shield(self._attempt)

    async def reach_within(self, limit: float) -> None:
        """The same, within so many seconds; a dial that takes longer goes on."""
        try:
            async with asyncio.timeout(limit):
                await self.reach()
        except TimeoutError as error:
            raise TransportError(f"no connection with {short(self._peer)} in {limit:g} s") from error

    async def open_stream(self, protocol: str, may_connect: bool, own_connection: bool = False) -> Stream:
        """A new stream, with a connection for itself if that is wanted and to be had; TransportError without any."""
        for tries_left in reversed(range(OPEN_TRIES)):
            if may_connect:
                await self.reach()
            elif not self.is_up:
                raise TransportError(f"there is no connection with {short(self._peer)} any more")
            try:
                own = await self._open_own_connection(protocol) if own_connection else None
                return own or await self._transport.open_stream(self._peer, protocol)
            except TransportError as error:
                if not tries_left or error.code == NOT_SPOKEN:
                    raise
        raise AssertionError("OPEN_TRIES is positive")

    async def _open_own_connection(self, protocol: str) -> Stream | None:
        """A stream with a connection for itself, or None if the peer cannot be dialled."""
        clock = asyncio.get_running_loop().time
        if clock() < self._no_own_until or not self._direct():
            return None
        try:
            connection = await self._dial_any(self._direct, OWN_LIMIT)
            return await self._transport.open_stream_on(connection, protocol)
        except TransportError:
            self._no_own_until = clock() + OWN_PAUSE  # or an address is learnt: OWN_LIMIT is not to be spent each time
            return None

    def _check(self) -> None:
        wait = self._retry_at - asyncio.get_running_loop().time()
        if wait > 0:
            raise TransportError(f"{short(self._peer)} was out of reach; the next attempt is in {wait:.1f} s")
        if not self._addresses:
            raise TransportError(f"no address of {short(self._peer)} is known")

    async def _dial(self, attempt: asyncio.Future[None]) -> None:
        try:
            await self._dial_any(lambda: self._addresses, LIMIT)
        except TransportError as error:
            if not attempt.done():
                self._back_off()
                attempt.set_exception(error)
        else:
            if not attempt.done():
                attempt.set_result(None)

    def _direct(self) -> tuple[str, ...]:
        return tuple(each for each in self._addresses if not is_relayed(each))

    async def _dial_any(self, addresses: Callable[[], tuple[str, ...]], limit: float) -> Connection:
        try:
            return await first_answer(addresses, lambda address: self.try_at(address, limit))
        except TransportError as error:
            raise TransportError(f"cannot reach {short(self._peer)}: {error}", error.code) from error

    async def try_at(self, address: str, limit: float) -> Connection:
        """A new connection by this address and no other, made within `limit` seconds; TransportError if none is."""
        allowance = self._failures.of(host_of(address))
        if not allowance.take(asyncio.get_running_loop().time()):
            raise TransportError("dialled in vain too often, wait a little", TOO_OFTEN)
        try:
            connection = await self._transport.dial(self._peer, address, limit)
        except TransportError as error:
            if error.code == OTHER and not is_relayed(address):
                self._on_stranger(address)
            raise
        allowance.give_back()
        self.learn((address,))
        self._proven = tuple(dict.fromkeys((address, *self._proven)))[:MAX_PROVEN]
        return connection

    def _back_off(self) -> None:
        first, longest = BACK_OFF
        self._delay = min(longest, max(first, 2 * self._delay))
        jitter = random.uniform(0.75, 1.25)  # so that peers that lost each other do not dial in step
        self._retry_at = asyncio.get_running_loop().time() + self._delay * jitter


def failure_allowances() -> Allowances[str]:
    """What `Dialing` counts failures in; one for all peers."""
    return Allowances(*FAILURES, MAX_HOSTS)


def host_of(address: str) -> str:
    """The host in a multiaddr: "1.2.3.4" of /ip4/1.2.3.4/tcp/4101."""
    return [*address.split("/", 3), "", ""][2]


def _retrieve(attempt: asyncio.Future[Any]) -> None:
    """All who waited may have gone; then asyncio must not complain that nobody has heard of a failure."""
    if not attempt.cancelled():
        attempt.exception()
