"""Finding relays without configuration: the shell of shoal.protocol.net.circuit.reservations.

Rules:
- A node that can be dialled from the internet is a relay for others, within limits
  (shoal.protocol.net.circuit.accounts).
- Any other node keeps reservations with relays that it is connected with, or finds in the DHT: every DHT server on the
  internet is a relay. Peers of the local network are not used, because those that dial us by a relay are elsewhere. A
  node without an internet address, or that peers do not reach at once, asks for reservations before those peers have
  given up, which takes seconds.
- Each relay is asked where it sees the port that we listen on, even if it refuses a reservation. If all see it at one
  place, others can reach us there without a relay, when both dial at once (shoal.protocol.net.circuit.punch).
- Every change (our addresses, who serves, a lost relay) is acted on at once; the timer is for what changes with time.
- Addresses by relays are among our addresses while the reservations hold: in the directory of a run, in its membership,
  in links.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from shoal.dht.scope import Scope, scope_between, scope_of
from shoal.node.api.answers import RelayStatus
from shoal.node.peers.discovery import Discovery
from shoal.protocol.base.errors import ShoalError, TransportError
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.multiaddrs import any_is_public, is_relayed, shortlist
from shoal.protocol.net.circuit.nat import NatMapping
from shoal.protocol.net.circuit.reservations import Reservation, Reservations
from shoal.protocol.net.peers.dialing import host_of
from shoal.protocol.net.peers.network import Network

ADDRESSES = 2  # of one relay
UNKNOWN = 1e6  # milliseconds to a relay that we are not connected with
LOOK = 2.0  # seconds between two checks whether something is to be done

log = logging.getLogger("shoal.daemon")


class Relaying:
    """Holds reservations with relays, or is a relay. `on_moved` is called when our addresses have changed."""

    def __init__(self, network: Network, discovery: Discovery, on_moved: Callable[[], None]) -> None:
        self._network, self._discovery, self._on_moved = network, discovery, on_moved
        self._holder = Reservations()
        self._mapping = NatMapping()
        self._changed = asyncio.Event()
        self._lent: tuple[str, ...] = ()  # our addresses, as a relay for others

    @property
    def relays(self) -> list[PeerId]:
        """The relays that connect others with us."""
        return self._holder.relays

    @property
    def nat(self) -> str:
        """How our router maps our port, see shoal.protocol.net.circuit.nat."""
        return self._mapping.kind(self._network.own_addresses())

    @property
    def seen_places(self) -> tuple[str, ...]:
        """The addresses at which relays see the port that we listen on."""
        return self._mapping.seen

    @property
    def lends(self) -> bool:
        """Whether we are a relay for others."""
        return bool(self._lent)

    @property
    def seen_hosts(self) -> frozenset[str]:
        """The hosts at which our relays see us."""
        return self._mapping.hosts

    def as_json(self) -> RelayStatus:
        """For `status`."""
        return {"relays": self.relays, "relaying": self._network.relay_accounts.given, "nat": self.nat}

    def link(self, peer: PeerId, up: bool) -> None:
        """A connection was made or lost."""
        if not up and self._holder.lost(peer):
            log.info("the relay %s is gone: %s", short(peer), self._network.why_lost(peer))
            self._network.forget_relay(peer)
            self._mapping.forget(peer)
            self._network.meet_at(self._mapping.places, self.nat == "symmetric")
        self._changed.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                wanted = self._whom_to_ask()
                if self._network.relayed_addresses != self._holder.addresses:
                    self._announce()
                for relay in wanted:
                    self._network.remember(relay, self._addresses_of(relay))
                    group.create_task(self._ask(relay))
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK):
                        await self._changed.wait()

    def hear_news(self) -> None:
        self._lend()
        self._changed.set()

    def _lend(self) -> None:
        """Offers ourselves as a relay at the internet addresses at which others have reached us."""
        public = tuple(each for each in self._discovery.verdict.addresses if scope_of(each) is Scope.INTERNET)
        if public != self._lent:
            self._lent = public
            self._network.be_relay(public)
            self._network.meet_at(public)

    def _whom_to_ask(self) -> list[PeerId]:
        if self._seems_hidden():
            return self._holder.whom_to_ask(time.monotonic(), self._candidates())
        for relay in self._holder.clear():
            self._network.forget_relay(relay)
        return []

    def _seems_hidden(self) -> bool:
        reachability = self._discovery.verdict.reachability
        if reachability != "unknown":
            return reachability == "nat"
        return self._discovery.is_doubtful or not any_is_public(self._network.own_addresses())

    def _candidates(self) -> list[PeerId]:
        """DHT servers on the internet: connected ones first, the lowest round trip first."""
        links = {link.peer: link for link in self._network.links()}
        found: dict[PeerId, float] = {}
        for contact in self._discovery.contacts():
            link = links.get(contact.peer)
            if scope_between(link.addresses if link else contact.addresses) is Scope.INTERNET:
                found[contact.peer] = link.rtt_ms or 0.0 if link and link.path != "relayed" else UNKNOWN
        return sorted(found, key=found.__getitem__)

    def _addresses_of(self, relay: PeerId) -> tuple[str, ...]:
        return next((each.addresses for each in self._discovery.contacts() if each.peer == relay), ())

    async def _ask(self, relay: PeerId) -> None:
        try:
            promise = _for_others(await self._network.reserve(relay))
        except Exception as error:  # a bad answer of one relay, or a bug, must not end the reservations with the others
            is_bug = not isinstance(error, ShoalError)
            log.log(logging.ERROR if is_bug else logging.DEBUG, "no reservation with %s: %s", short(relay), error)
            self._holder.refused(time.monotonic(), relay)
            self._network.forget_relay(relay)
            if not self._mapping.seen:
                await self._look_from(relay)
            return
        if relay not in self._holder.relays:
            log.info("others can reach this node by the relay %s", short(relay))
            self._holder.granted(time.monotonic(), promise)
            self._changed.set()
            await self._look_from(relay)
        else:
            self._holder.granted(time.monotonic(), promise)

    async def _look_from(self, relay: PeerId) -> None:
        """Asks a relay where it sees us, over IPv4 and IPv6, as other peers may have only one of them."""
        known = [*self._network.remote_addresses(relay), *self._addresses_of(relay)]
        public = [each for each in known if scope_of(each) is Scope.INTERNET and not is_relayed(each)]
        by_family = {_family(each): each for each in reversed(public)}
        await asyncio.gather(*(self._look_from_address(relay, address) for address in by_family.values()))

    async def _look_from_address(self, relay: PeerId, address: str) -> None:
        try:
            seen, _ = await self._network.seen_by(relay, address)
        except ShoalError as error:
            log.debug("the relay %s at %s does not say where it sees us: %s", short(relay), address, error)
        else:
            self._mapping.note(relay, host_of(address), seen)
            self._network.meet_at(self._mapping.places, self.nat == "symmetric")

    def _announce(self) -> None:
        self._network.relayed_addresses = self._holder.addresses
        self._discovery.keep(self._holder.relays)
        self._on_moved()


def _for_others(promise: Reservation) -> Reservation:
    """The reservation with at most ADDRESSES internet addresses; TransportError if it has none."""
    public = [each for each in promise.addresses if scope_of(each) is Scope.INTERNET]
    if not public:
        raise TransportError(f"the relay {short(promise.relay)} does not say where it is")
    return replace(promise, addresses=shortlist(public, ADDRESSES, _family))


def _family(address: str) -> str:
    """ip4 or ip6."""
    return address.split("/")[1]
