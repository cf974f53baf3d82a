"""Dials one peer and opens streams with it: one attempt at a time, with exponential back-off after failures.

Rules:
- An attempt tries all known addresses side by side, and takes the first that answers, which is tried first next time.
  As in RFC 8305 ("happy eyeballs"), the next address is tried as soon as one has failed, and after STAGGER seconds at
  the latest, so that an unresponsive address delays the others by STAGGER seconds, not by its own time limit; IPv6 and
  IPv4 take turns; and an address that becomes known meanwhile is tried, too.
- A connection that the peer makes while we dial ends the wait; ours is then a spare, and does no harm.
- Addresses are not verified: anybody can sign one that leads to somebody else. So failed dials are bounded for each
  host, over all peers that are said to be there, and nobody can be flooded through us.
- Where a connection is lost, and nobody listens any more at the host and the ports where the peer was, its process has
  ended: its kernel says at once what only silence would tell later.
- For bulk sockets a peer is dialled at other ports that it names, but only at hosts where it has proven to be.
- Payloads get a connection of their own if the peer can be dialled. On a shared one, messages would wait behind the
  payload in the socket's buffer, for 100 ms and more if the peer reads slowly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import zip_longest
from typing import Any, TypeVar

from shoal.protocol.base.allowance import Allowances
from shoal.protocol.base.errors import NOT_SPOKEN, TransportError
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.multiaddrs import host_and_port, is_relayed, shortlist
from shoal.protocol.base.paths import RELAYED
from shoal.protocol.net.measure.journal import OTHER, TOO_OFTEN
from shoal.protocol.net.transport.transport import Connection, Stream, Transport

STAGGER = 0.25  # seconds between the starts of two addresses
LIMIT = 10.0  # seconds for one address
LISTENS_LIMIT = 0.5  # seconds in which a host says that nobody listens there
LOOKS = (0.0, 0.05, 0.2)  # pauses before one looks: a kernel closes a dead process's sockets one after the other
OWN_LIMIT, OWN_PAUSE = 2.0, 60.0  # seconds for a separate connection for payloads, and until the next try
BACK_OFF = (0.2, 15.0)  # seconds until the next attempt: after the first failure, and at most
MAX_ADDRESSES, MAX_RELAYED = 8, 4  # direct and relayed addresses that are kept; direct ones come first
MAX_PROVEN = 2  # addresses at which the peer has answered that are remembered
FAILURES = (64, 2.0)  # failed dials of one host, in a burst and per second
MAX_HOSTS = 4096  # hosts whose failures are counted
OPEN_TRIES = 2  # as a connection may end while we open a stream on it, and another one exist

T = TypeVar("T")
Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Unreachable(TransportError):
    """None of the addresses that were dialled led to the peer; `reasons` says why, by address."""

    def __init__(self, reasons: Mapping[str, str], code: str, whom: str = "") -> None:
        words = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
        super().__init__(f"cannot reach {whom}: {words}" if whom else words, code)
        self.reasons = reasons


async def first_answer(addresses: Callable[[], Iterable[str]], dial: Callable[[str], Coroutine[Any, Any, T]]) -> T:
    """The result of `dial` for the first of `addresses()` to answer; Unreachable if none does."""
    tried, attempts, failures, codes = set[str](), set[asyncio.Task[T]](), dict[str, str](), set[str]()
    try:
        while True:
            address = next((each for each in addresses() if each not in tried), None)
            if address is not None:
                tried.add(address)
                attempts.add(attempt := asyncio.create_task(dial(address), name=address))
                attempt.add_done_callback(_retrieve)  # it may fail in the moment in which another one answers
            elif not attempts:
                raise Unreachable(failures, _code_of_all(codes))
            done, attempts = await asyncio.wait(attempts, timeout=STAGGER, return_when="FIRST_COMPLETED")
            for attempt in done:
                if not isinstance(error := attempt.exception(), TransportError):
                    return attempt.result()
                failures[attempt.get_name()] = str(error)
                codes.add(error.code)
    finally:
        for attempt in attempts:
            attempt.cancel()  # a connection that still comes of it is a spare


def _code_of_all(codes: set[str]) -> str:
    """The code of the failure of all addresses: that another peer answers at one says more than other failures."""
    if len(codes) == 1:
        return next(iter(codes))
    return OTHER if OTHER in codes else "failed"


def by_turns(addresses: Iterable[str]) -> tuple[str, ...]:
    """The same addresses, each once, with IPv6 and others alternating; within each of the two in the given order."""
    each = list(dict.fromkeys(addresses))
    kinds = [address.startswith("/ip6/") for address in each]
    first = [address for address, kind in zip(each, kinds, strict=True) if kind == kinds[0]]
    second = [address for address, kind in zip(each, kinds, strict=True) if kind != kinds[0]]
    return tuple(address for pair in zip_longest(first, second) for address in pair if address is not None)


class Dialing:
    """The known addresses of one peer, and the way to a connection or a stream with it."""

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
        self._failures = failures  # failed dials of each host, shared by all peers
        self._on_stranger = on_stranger  # on_stranger(address): another peer answers there
        self._addresses: tuple[str, ...] = ()
        self._proven: tuple[str, ...] = ()  # addresses at which it has answered, the latest first
        self._was_at: tuple[str, ...] = ()  # hosts of its last connections
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
        """The known addresses, those to be dialled first in front."""
        return self._addresses

    def learn(self, addresses: tuple[str, ...]) -> None:
        """Add addresses of the peer, which are tried before older ones."""
        known = dict.fromkeys([*by_turns(addresses), *self._addresses])
        direct, relayed = ([each for each in known if is_relayed(each) is by_relay] for by_relay in (False, True))
        self._addresses = (*self._best(direct, MAX_ADDRESSES), *self._best(relayed, MAX_RELAYED))
        self._no_own_until = 0.0

    def _best(self, addresses: list[str], most: int) -> list[str]:
        """The addresses to keep, in order; those at which the peer has answered go before those that we were told."""
        proven = [each for each in self._proven if each in addresses]
        kept = shortlist([*proven, *addresses], most)
        return [each for each in addresses if each in kept]

    @property
    def is_direct(self) -> bool:
        """Whether the peer is reached without a relay."""
        return self._transport.path(self._peer) != RELAYED

    def hosts(self) -> tuple[str, ...]:
        """The hosts at which the peer has proven to be: first those of the present connections."""
        known = (*self._transport.remote_addresses(self._peer), *self._proven)
        places = (host_and_port(each) for each in known if not is_relayed(each))
        return tuple(dict.fromkeys(str(place[0]) for place in places if place is not None))

    def connected(self) -> None:
        """A connection exists now, made by either side."""
        self.is_up = True
        self._was_at = self.hosts()
        self.forget_failures()
        if self._attempt is not None and not self._attempt.done():
            self._attempt.set_result(None)

    async def has_ended(self) -> bool:
        """Whether the peer, with which a connection was lost, listens nowhere any more at the hosts where it was."""
        places = [host_and_port(address) for address in self._direct()]
        known = dict.fromkeys((str(place[0]), place[1]) for place in places if place is not None)
        listened = [place for place in known if place[0] in self._was_at and self._may_fail_at(place[0])]
        return bool(listened) and all(await asyncio.gather(*(_is_refused(*place) for place in listened)))

    def _may_fail_at(self, host: str) -> bool:
        return self._failures.of(host).take(asyncio.get_running_loop().time())

    def forget_failures(self) -> None:
        """Forget the back-off, as the peer is known to be there: the next `reach` dials at once."""
        self._delay = self._retry_at = 0.0

    async def reach(self) -> None:
        """Return when a connection exists; TransportError if the peer cannot be reached now."""
        if self.is_up:
            return
        if self._attempt is None or self._attempt.done():
            self._check()
            self._attempt = asyncio.get_running_loop().create_future()
            self._attempt.add_done_callback(_retrieve)
            self._spawn(self._dial(self._attempt))
        await asyncio.shield(self._attempt)

    async def reach_within(self, limit: float) -> None:
        """Like `reach`, but wait `limit` seconds at most; the dial goes on after that."""
        try:
            async with asyncio.timeout(limit):
                await self.reach()
        except TimeoutError as error:
            raise TransportError(f"no connection with {short(self._peer)} in {limit:g} s") from error

    async def open_stream(self, protocol: str, may_connect: bool, own_connection: bool = False) -> Stream:
        """A new stream, with `own_connection` on a separate connection if possible; TransportError if there is none."""
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
        """A stream on a separate connection, or None if the peer cannot be dialled."""
        clock = asyncio.get_running_loop().time
        if clock() < self._no_own_until or not self._direct():
            return None
        try:
            connection = await self._dial_any(self._direct, OWN_LIMIT)
            return await self._transport.open_stream_on(connection, protocol)
        except TransportError:
            self._no_own_until = clock() + OWN_PAUSE  # or until an address is learnt: not OWN_LIMIT for each stream
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
        except Unreachable as error:
            raise Unreachable(error.reasons, error.code, whom=short(self._peer)) from error

    async def try_at(self, address: str, limit: float) -> Connection:
        """A new connection by this address and no other, made within `limit` seconds; TransportError if none is."""
        allowance = self._failures.of(host_of(address))
        if not self._may_fail_at(host_of(address)):
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
        jitter = random.uniform(0.75, 1.25)  # so that two peers that lost each other do not dial at the same time
        self._retry_at = asyncio.get_running_loop().time() + self._delay * jitter


def failure_allowances() -> Allowances[str]:
    """The allowances of failed dials for each host, to be shared by the `Dialing`s of all peers."""
    return Allowances(*FAILURES, MAX_HOSTS)


async def _is_refused(host: str, port: int) -> bool:
    """Whether the host says, now or in a moment, that nobody listens at this port."""
    for pause in LOOKS:
        await asyncio.sleep(pause)
        try:
            async with asyncio.timeout(LISTENS_LIMIT):
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
    return False


def host_of(address: str) -> str:
    """The host in a multiaddr: "1.2.3.4" of /ip4/1.2.3.4/tcp/4101."""
    return [*address.split("/", 3), "", ""][2]


def _retrieve(attempt: asyncio.Future[Any]) -> None:
    """Retrieve an exception for which nobody waits any more, so that asyncio does not log it."""
    if not attempt.cancelled():
        attempt.exception()
