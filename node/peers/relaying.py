"""Finding relays without configuration: the shell of shoal.protocol.net.circuit.reservations.

Rules:
- A node that can be dialled from the internet is a relay for others, within limits
  (shoal.protocol.net.circuit.accounts).
- A node that cannot keeps reservations with relays that it is connected with, or finds in the DHT: every DHT server on
  the internet is a relay. Peers of the local network are not used, as nodes that need a relay are not there. A node
  without an internet address, or that is not found at once by peers that try to dial it, does not wait until they have
  given up, which takes seconds.
- Each relay is asked where it sees the port that we listen on, whether or not it connects others with us. If all see it
  at one place, others can meet us there without a relay, when both dial at once (shoal.protocol.net.circuit.punch).
- Every change (our addresses, who serves, a relay that is gone) is acted on at once; the timer is for what time brings.
- Where we can be dialled by a relay is among our addresses as long as it holds: in the directory of a run, in its
  membership, in links.
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
LOOK = 2.0  # seconds between two looks whether something is to be done

log = logging.getLogger("shoal.daemon")


class Relaying:
    """`discovery` knows whether we can be dialled, and who can; `tell` hears when our addresses have changed."""

    def __init__(self, network: Network, discovery: Discovery, tell: Callable[[], None]) -> None:
        self._network, self._discovery, self._tell = network, discovery, tell
        self._holder = Reservations()
        self._mapping = NatMapping()
        self._changed = asyncio.Event()
        self._lent: tuple[str, ...] = ()  # our addresses, as a relay for others
        discovery.on_news = self._hear_news

    @property
    def relays(self) -> list[PeerId]:
        """Those that connect others with us."""
        return self._holder.relays

    @property
    def nat(self) -> str:
        """What our router makes of our port, see shoal.protocol.net.circuit.nat."""
        return self._mapping.kind(self._network.own_addresses())

    @property
    def seen_places(self) -> tuple[str, ...]:
        """Where relays see the port that we listen on."""
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
        """For good."""
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

    def _hear_news(self) -> None:
        self._lend()
        self._changed.set()

    def _lend(self) -> None:
        """Be a relay where others have found us."""
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
        """Servers of the internet, those first that we are connected with, of them the nearest."""
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
        except Exception as error:  # one relay's nonsense, or our own mistake with it, must not end the others' care
            is_ours = not isinstance(error, ShoalError)
            log.log(logging.ERROR if is_ours else logging.DEBUG, "no reservation with %s: %s", short(relay), error)
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
        """Ask a relay where it sees us, by each version of IP: who is met by the other one alone is met, too."""
        known = [*self._network.remote_addresses(relay), *self._addresses_of(relay)]
        public = [each for each in known if scope_of(each) is Scope.INTERNET and not is_relayed(each)]
        doors = {each.split("/")[1]: each for each in reversed(public)}
        await asyncio.gather(*(self._look_from_door(relay, door) for door in doors.values()))

    async def _look_from_door(self, relay: PeerId, door: str) -> None:
        try:
            seen, _ = await self._network.seen_by(relay, door)
        except ShoalError as error:
            log.debug("the relay %s at %s does not say where it sees us: %s", short(relay), door, error)
        else:
            self._mapping.note(relay, host_of(door), seen)
            self._network.meet_at(self._mapping.places, self.nat == "symmetric")

    def _announce(self) -> None:
        self._network.relayed_addresses = self._holder.addresses
        self._discovery.keep(self._holder.relays)
        self._tell()


def _for_others(promise: Reservation) -> Reservation:
    """Those addresses of it that make sense on the internet, and not more than all need to know."""
    public = [each for each in promise.addresses if scope_of(each) is Scope.INTERNET]
    if not public:
        raise TransportError(f"the relay {short(promise.relay)} does not say where it is")
    return replace(promise, addresses=shortlist(public, ADDRESSES, _family))


def _family(address: str) -> str:
    """IPv4 or IPv6: whoever has one of them only needs that one."""
    return address.split("/")[1]
