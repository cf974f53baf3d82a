"""The network as the daemon uses it: messages and calls to peers by PeerID, links that go up and down.

Rules:
- `send` never blocks, and never raises for failures of the network: messages may be lost, and the cores repair that.
  Messages to a peer arrive in order and at most once; payloads may arrive out of order or, rarely, twice.
- For each payload `on_payload_done` is called once: when it was written, or when it was dropped.
- The owner gives its handlers (shared.py) to `start`.
- Another node with our key would get some of our messages, and we some of its: a node that meets one logs it once.
- The listening port is the first of a pair (the second is for bulk sockets); if a pair is in use, the next is taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import PeerId, RunId, short
from shoal.protocol.base.multiaddrs import OwnNetworks, host_and_port, place_of, split
from shoal.protocol.base.wire import Message
from shoal.protocol.net.bulk.backlog import LatePayload
from shoal.protocol.net.bulk.endpoint import Endpoint
from shoal.protocol.net.bulk.handshake import BulkSocket
from shoal.protocol.net.circuit.reservations import Reservation
from shoal.protocol.net.measure.journal import ITSELF
from shoal.protocol.net.measure.link import Link, LinkReport
from shoal.protocol.net.peers.dialing import LIMIT, by_turns, failure_allowances, first_answer
from shoal.protocol.net.peers.peer import STREAM_PROTOCOLS, Peer, Peers
from shoal.protocol.net.peers.shared import Handlers, Shared
from shoal.protocol.net.system.addresses import OwnAddresses, is_loopback, listening, resolve
from shoal.protocol.net.system.identity import Identity, public_key
from shoal.protocol.net.system.ports import also_by_ipv6, claim_pair
from shoal.protocol.net.transport.transport import Stream, Transport

DEFAULT_PORT = 4101
BULK_QUEUE = 1 << 30  # bytes of payloads that may wait for one peer
CHECK_INTERVAL = 5.0  # seconds between two checks of all links
FLUSH_LIMIT = 0.3  # seconds that `close` waits for the last messages to be written
FLUSH_CHECK = 0.01  # seconds between two checks whether they are

log = logging.getLogger(__name__)


class Network:
    """Messages, calls, links and relaying of one node. Everything belongs to the asyncio loop that calls `start`."""

    def __init__(
        self, identity: Identity, *, host: str = "0.0.0.0", port: int = DEFAULT_PORT, bulk_queue: int = BULK_QUEUE
    ) -> None:
        self.peer = identity.peer
        self.relayed_addresses: tuple[str, ...] = ()  # ours through relays
        self.reachability = "unknown"  # whether others can dial us: "public" | "nat" | "unknown"
        self.mapped_addresses: tuple[str, ...] = ()  # of our router, from which it forwards to us
        self._listen_host, self._port = host, port
        self._own_addresses = OwnAddresses()
        self._transport = Transport(
            identity, STREAM_PROTOCOLS, self._accept, self._change, on_path=self._path_changed, on_fewer=self._lost_one
        )
        self.throttle = self._transport.throttle  # its rates are set before `start`
        self.relay_accounts = self._transport.relay_accounts  # what this node does for others as a relay; read only
        self.remote_addresses, self.came_to = self._transport.remote_addresses, self._transport.came_to
        self.seen_by, self.large_packets_pass = self._transport.seen_by, self._transport.large_packets_pass
        self.be_relay, self.forget_relay = self._transport.be_relay, self._transport.forget_relay
        self.meet_at, self.why_lost = self._transport.meet_at, self._transport.why_lost
        failures = failure_allowances()
        self._endpoint = Endpoint(identity.peer, self._opened, self.throttle, failures)
        self.set_mapped_port = self._endpoint.set_mapped_port  # of bulk sockets
        self._shared = Shared(self._transport, self._endpoint, failures, bulk_queue)
        self.bandwidth = self._shared.bandwidth  # of our own line
        self.traffic = self._shared.traffic  # traffic(run)
        self._peers = Peers(self._shared)
        self._same_key = (
            f"another node runs with a copy of this node's key ({self.peer}) and takes its messages: stop one of the "
            "two, or move its key file away so that it makes a key of its own"
        )
        self._has_met_same_key = self._closing = False

    async def start(self, handlers: Handlers | None = None) -> None:
        """Listen; LocalError if no port is free. Without `handlers` nobody is served, as by a node that only calls."""
        if handlers is not None:
            self._shared.handlers = handlers
        self._port, claim = claim_pair(self._listen_host, self._port)
        try:
            await self._transport.start(*listening(self._listen_host, self._port))
        except BaseException:  # re-raised: the port is given back
            claim.close()
            raise
        self._endpoint.open([claim, *also_by_ipv6(self._listen_host, self._port + 1)], [self._port + 1])
        self._shared.spawn(self._check_links_for_ever())

    async def close(self) -> None:
        """Send the queued control messages, if that is quick, and end all connections, tasks and threads."""
        self._closing = True
        self._endpoint.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_LIMIT):
                while any(each.has_unsent for each in self._peers):
                    await asyncio.sleep(FLUSH_CHECK)
        for each in self._peers:
            each.close()
        await self._shared.close()
        await self._transport.close()
        for each in self._peers:
            each.disconnected("this node ends")
        await self._endpoint.wait_closed()

    def addresses(self) -> tuple[str, ...]:
        """Where peers may reach us: multiaddrs that end in our PeerID; loopbacks come last."""
        own = self.own_addresses()
        lasting = [*(each for each in own if not is_loopback(each)), *self.mapped_addresses, *self.relayed_addresses]
        return tuple(f"{address}/p2p/{self.peer}" for address in dict.fromkeys([*lasting, *own]))

    def own_addresses(self) -> tuple[str, ...]:
        """The multiaddrs at which we listen ourselves, without our PeerID."""
        return self._own_addresses.of(self._transport.addresses())

    def every_address(self) -> tuple[str, ...]:
        """The same with the addresses that are too many to tell others, and without loopbacks."""
        return self._own_addresses.everywhere(self._transport.addresses())

    @property
    def untold_addresses(self) -> tuple[str, ...]:
        """Our own addresses that are too many to tell others."""
        self.own_addresses()
        return self._own_addresses.untold

    @property
    def own_networks(self) -> OwnNetworks:
        """The networks that this machine is in; at our addresses in those inside it nobody elsewhere reaches us."""
        self.own_addresses()
        return self._own_addresses.networks

    def remember(self, peer: PeerId, addresses: tuple[str, ...] | list[str]) -> None:
        """Note addresses of `peer`, which are tried first from now on; host names are left out, see `connect`."""
        places = [place for each in addresses if host_and_port(place := place_of(each)) is not None]
        self._peers.of(peer).dialing.learn(self._without_ours(places))

    async def connect(self, multiaddr: str) -> PeerId:
        """Connect with the peer that the multiaddr names in /p2p/; if it names none, with the other peer that answers.

        TransportError if none answers; LocalError if the PeerID is invalid, or the address is our own.
        """
        address, name = split(multiaddr)
        if address != multiaddr:
            _check_name(name, multiaddr)
        if name not in ("", self.peer):
            peer = PeerId(name)
            others = await self._also_at(peer, address)
        elif others := self._without_ours(await resolve(address)):  # may be an old address of ours
            peer, others = await self._somebody_at(multiaddr, others)
        else:
            raise LocalError(f"{multiaddr} is this node itself", code="itself")
        self.remember(peer, others)
        dialing = self._peers.of(peer).dialing
        if not dialing.can_dial and not dialing.is_up:
            raise TransportError(f"{multiaddr} is this node now", ITSELF)
        dialing.forget_failures()
        await dialing.reach()
        return peer

    async def _also_at(self, peer: PeerId, address: str) -> tuple[str, ...]:
        """The addresses behind one of a peer's; none if its name cannot be resolved and other addresses are known."""
        try:
            return self._without_ours(await resolve(address))
        except TransportError:
            if not self._peers.of(peer).dialing.can_dial:
                raise
            return ()

    async def name_at(self, *addresses: str) -> PeerId:
        """The peer, other than ourselves, that answers first at one of `addresses`; no connection is kept."""
        peer, _ = await self._first_of(addresses)
        return peer

    async def _somebody_at(self, multiaddr: str, addresses: Sequence[str]) -> tuple[PeerId, tuple[str, ...]]:
        """(peer, its address) of the first answer at `addresses`; the others may belong to other peers."""
        try:
            peer, address = await self._first_of(addresses)
        except TransportError as error:
            if error.code != ITSELF:
                raise
            words = f"{multiaddr} leads back to this node by some way, or {self._same_key}"
            raise LocalError(words, code="itself") from error
        return peer, (address,)

    async def _first_of(self, addresses: Sequence[str]) -> tuple[PeerId, str]:
        async def ask(address: str) -> tuple[PeerId, str]:
            if (peer := await self._transport.name_at(address, LIMIT)) == self.peer:
                raise TransportError("this node answers there", ITSELF)
            return peer, address

        in_turns = by_turns(addresses)
        return await first_answer(lambda: in_turns, ask)

    def _without_ours(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """The addresses that are not our own."""
        ours = {*self.mapped_addresses, *self.own_addresses()}
        return tuple(each for each in addresses if each not in ours)

    def send(self, to: PeerId, run: RunId, message: Message, late: LatePayload | None = None) -> None:
        """Queue a message; it may be lost. Its payload, unless `late` makes it, must not change until it was sent."""
        if not self._closing:
            self.traffic(run)
            self._peers.of(to).send(run, message, late)

    async def meet(self, peer: PeerId, timeout: float = 10.0) -> None:
        """Return when there is a connection with `peer`; TransportError if there is none within `timeout` seconds."""
        await self._peers.of(peer).dialing.reach_within(timeout)

    async def call(self, to: PeerId, message: Message, timeout: float = 10.0) -> Message:
        """The peer's answer; RemoteError if it refuses or its answer is malformed, TransportError if there is none."""
        if self._closing:
            raise TransportError("the network is closed")
        return await self._peers.of(to).call(message, timeout)

    def links(self) -> list[Link]:
        """The links to all connected peers."""
        return [each.link() for each in self._peers if each.is_up]

    def measure(self) -> None:
        """Ping all connected peers, to measure their round trips and clocks anew."""
        for each in [each for each in self._peers if each.is_up]:
            each.check(ping_now=True)

    def link_report(self, peer: PeerId) -> LinkReport:
        """How `peer` is reached or why not, what was tried, and what was measured."""
        return (self._peers.known(peer) or Peer(peer, self._shared)).link_report()

    async def try_at(self, peer: PeerId, address: str, limit: float) -> None:
        """Connect with `peer` at this address and no other; TransportError if that fails."""
        await self._peers.of(peer).dialing.try_at(address, limit)

    async def reserve(self, relay: PeerId) -> Reservation:
        """A reservation with a relay, which then connects others with us; TransportError if it gives none."""
        await self._peers.of(relay).dialing.reach()
        return await self._transport.reserve(relay)

    def doubt(self, peer: PeerId) -> None:
        """A run has given `peer` up: if a connection with it is silent, too, it is closed soon."""
        if (known := self._peers.known(peer)) is not None:
            known.doubt()

    async def disconnect(self, peer: PeerId, why: str) -> None:
        """Close all connections with `peer`; it may come back. `why` is shown to people."""
        with suppress(TransportError):  # the host has stopped, and with it the connection
            await self._transport.disconnect(peer, why)

    @property
    def dropped(self) -> int:
        """Frames that were dropped unsent."""
        return sum(each.dropped for each in self._peers)

    # -- events ---------------------------------------------------------------------------------------------

    def report_same_key(self) -> None:
        """Another node runs with our key: log that, once."""
        if not self._has_met_same_key:
            self._has_met_same_key = True
            log.warning("%s", self._same_key, extra={"code": "same-key"})

    def _path_changed(self, peer: PeerId) -> None:
        self._peers.of(peer).path_changed()

    def _lost_one(self, peer: PeerId, why: str) -> None:
        self._peers.of(peer).lost_one(why)

    def _accept(self, peer: PeerId, protocol: str, stream: Stream) -> None:
        if self._closing or peer == self.peer:
            stream.reset()
        else:
            self._peers.of(peer).accept(protocol, stream)

    def _opened(self, peer: PeerId, sends: bool, opened: BulkSocket) -> None:
        """A bulk socket was opened; it is closed if its peer was forgotten meanwhile."""
        if (known := self._peers.known(peer)) is None:
            opened.socket.close()
        else:
            known.payloads.opened(sends, opened)

    def _change(self, peer: PeerId, up: bool) -> None:
        if self._closing:
            return
        if peer == self.peer:
            self.report_same_key()
            self._shared.spawn(self.disconnect(peer, self._same_key))
            return
        known = self._peers.of(peer)
        if up:
            known.connected()
        else:
            why, is_stranger = self.why_lost(peer), not known.dialing.can_dial
            log.log(
                logging.DEBUG if is_stranger else logging.INFO,
                "the connection with %s is lost: %s",
                short(peer),
                why,
                extra={"code": "connection-lost", "peer": peer},
            )
            known.disconnected(why)
            if is_stranger:
                self._peers.forget(peer)  # nothing is kept of a peer that has no address and has disconnected
            else:
                self._shared.spawn(self._look_whether_ended(peer))
        self._shared.tell(self._shared.handlers.on_link, peer, up)

    async def _look_whether_ended(self, peer: PeerId) -> None:
        dialing = self._peers.of(peer).dialing
        if await dialing.has_ended() and not (dialing.is_up or self._closing):
            self._shared.tell(self._shared.handlers.on_ended, peer)

    async def _check_links_for_ever(self) -> None:
        """Check all links regularly; if we were stopped or asleep meanwhile, no peer is blamed for silence."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + CHECK_INTERVAL
            await asyncio.sleep(CHECK_INTERVAL)
            self._check_links(late=clock() - due > CHECK_INTERVAL)

    def _check_links(self, late: bool) -> None:
        """Check all links; a function of its own, as a sleeping loop would keep the last peer alive."""
        for each in [each for each in self._peers if each.is_up]:
            if late:
                each.forgive()
            each.check()


def _check_name(name: str, multiaddr: str) -> None:
    """LocalError unless `name` is a PeerID."""
    try:
        public_key(PeerId(name))
    except ValueError as error:
        raise LocalError(f"{multiaddr} does not end in /p2p/ and a PeerID", code="not-an-address") from error
