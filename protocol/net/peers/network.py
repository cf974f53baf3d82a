"""The network as the daemon uses it: messages and calls to peers by name, links that go up and down.

Rules:
- `send` never blocks and never raises for the network's faults: messages may be lost, and the cores repair. Those to a
  peer arrive in order and once; payloads mostly.
- Of each payload the owner is told once: that it was written to its stream, or that it was dropped (`on_payload_done`).
- The owner sets the handlers (shared.py) before `start`.
- Another node with our key would get our messages, and we its: whoever meets one says so, once.
- The listening port is the first of a pair (the second is for bulk sockets); a pair in use gives way to the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from shoal.protocol.base.effects import Send
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import PeerId, RunId, short
from shoal.protocol.base.multiaddrs import host_and_port, place_of, split
from shoal.protocol.base.wire import Message
from shoal.protocol.net.bulk.endpoint import Endpoint
from shoal.protocol.net.bulk.handshake import BulkSocket
from shoal.protocol.net.circuit.reservations import Reservation
from shoal.protocol.net.measure.journal import ITSELF
from shoal.protocol.net.measure.link import Link, LinkReport
from shoal.protocol.net.peers.dialing import LIMIT, by_turns, failure_allowances, first_answer
from shoal.protocol.net.peers.peer import SPOKEN, Peer, Peers
from shoal.protocol.net.peers.shared import Handlers, Shared
from shoal.protocol.net.system.addresses import OwnAddresses, is_loopback, listening, resolve
from shoal.protocol.net.system.identity import Identity, public_key
from shoal.protocol.net.system.ports import also_by_ipv6, claim_pair
from shoal.protocol.net.transport.transport import Stream, Transport

DEFAULT_PORT = 4101
BULK_QUEUE = 1 << 30
LOOK = 5.0  # seconds between two looks whether a link is to be pinged
FLUSH_LIMIT = 0.3  # seconds that `close` waits for last messages to leave
LOOK_UNSENT = 0.01  # seconds between two looks whether they have

log = logging.getLogger(__name__)


class Network(Handlers):
    """Our place among the peers. Everything belongs to the asyncio loop that calls `start`."""

    def __init__(
        self, identity: Identity, *, host: str = "0.0.0.0", port: int = DEFAULT_PORT, bulk_queue: int = BULK_QUEUE
    ) -> None:
        super().__init__()
        self.peer = identity.peer
        self.relayed_addresses: tuple[str, ...] = ()  # where relays connect others with us
        self.reachability = "unknown"  # whether others can dial us: "public" | "nat" | "unknown"
        self.mapped_addresses: tuple[str, ...] = ()  # where our router lets others in
        self._listen_host, self._port = host, port
        self._own_addresses = OwnAddresses()
        self._transport = Transport(identity, SPOKEN, self._accept, self._change, on_path=self._path_changed)
        self.throttle = self._transport.throttle  # its rates are set before `start`
        self.relay_accounts = self._transport.relay_accounts  # what others have of us as a relay; to be read only
        self.large_packets_pass = self._transport.large_packets_pass  # to a peer: see there
        self.forget_relay = self._transport.forget_relay  # have it not any more
        failures = failure_allowances()
        self._endpoint = Endpoint(identity.peer, self._opened, self.throttle, failures)
        self.set_mapped_port = self._endpoint.set_mapped_port  # where our router lets bulk sockets in
        self._shared = Shared(self, self._transport, self._endpoint, failures, bulk_queue)
        self.bandwidth = self._shared.bandwidth  # our own
        self.traffic = self._shared.traffic  # of a run: see there
        self._peers = Peers(self._shared)
        self._same_key = (
            f"another node runs with a copy of this node's key ({self.peer}) and takes its messages: stop one of the "
            "two, or move its key file away so that it makes a key of its own"
        )
        self._has_met_same_key = self._closing = False

    async def start(self) -> None:
        """Listen; LocalError if no port is to be had."""
        self._port, claim = claim_pair(self._listen_host, self._port)
        try:
            await self._transport.start(*listening(self._listen_host, self._port))
        except BaseException:  # nothing is swallowed; the port is given back
            claim.close()
            raise
        self._endpoint.open([claim, *also_by_ipv6(self._listen_host, self._port + 1)], [self._port + 1])
        self._shared.spawn(self._look_after_links())

    async def close(self) -> None:
        """Send what is queued for control, if that is quick, and leave nothing behind."""
        self._closing = True
        self._endpoint.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_LIMIT):
                while any(each.has_unsent for each in self._peers):
                    await asyncio.sleep(LOOK_UNSENT)
        for each in self._peers:
            each.close()
        await self._shared.close()
        await self._transport.close()
        for each in self._peers:
            each.disconnected("this node ends")
        await self._endpoint.gone()

    def addresses(self) -> tuple[str, ...]:
        """Where peers may reach us: multiaddrs that end in our PeerID. Those of this machine alone come last."""
        own = self.own_addresses()
        lasting = [*(each for each in own if not is_loopback(each)), *self.mapped_addresses, *self.relayed_addresses]
        return tuple(f"{address}/p2p/{self.peer}" for address in dict.fromkeys([*lasting, *own]))

    def own_addresses(self) -> tuple[str, ...]:
        """Where we listen, without our name; what relays do for us is not in it."""
        return self._own_addresses.of(self._transport.addresses())

    def every_address(self) -> tuple[str, ...]:
        """Where we listen, with those of our addresses that are too many to tell all others."""
        return self._own_addresses.everywhere(self._transport.addresses())

    @property
    def untold_addresses(self) -> tuple[str, ...]:
        """Of our own addresses, those that are too many to tell others."""
        self.own_addresses()
        return self._own_addresses.untold

    def remember(self, peer: PeerId, addresses: tuple[str, ...] | list[str]) -> None:
        """Where `peer` may be reached; the latest words come first. Names are left out: `connect` looks them up."""
        places = [place for each in addresses if host_and_port(place := place_of(each)) is not None]
        self._peers.of(peer).dialing.learn(self._without_ours(places))

    async def connect(self, multiaddr: str) -> PeerId:
        """Connect with the peer of the name in the multiaddr's /p2p/; if it has none, with whoever else answers there.

        TransportError if nobody does; LocalError if it names no peer, or leads to nobody but ourselves.
        """
        address, name = split(multiaddr)
        if address != multiaddr:
            _check_name(name, multiaddr)
        if name not in ("", self.peer):
            peer = PeerId(name)
            others = await self._also_at(peer, address)
        elif others := self._without_ours(await resolve(address)):  # our name is where we were once: others may be now
            peer, others = await self._somebody_at(multiaddr, others)
        else:
            raise LocalError(f"{multiaddr} is this node itself")
        self.remember(peer, others)
        dialing = self._peers.of(peer).dialing
        if not dialing.can_dial and not dialing.is_up:
            raise TransportError(f"{multiaddr} is this node now", ITSELF)
        dialing.forget_failures()
        await dialing.reach()
        return peer

    async def _also_at(self, peer: PeerId, address: str) -> tuple[str, ...]:
        """Where an address of a peer's leads; if its name cannot be looked up, the other addresses have to do."""
        try:
            return self._without_ours(await resolve(address))
        except TransportError:
            if not self._peers.of(peer).dialing.can_dial:
                raise
            return ()

    async def name_at(self, *addresses: str) -> PeerId:
        """Who else answers at the first of `addresses` that has an answer; the connection serves for nothing else."""
        peer, _ = await self._first_of(addresses)
        return peer

    async def _somebody_at(self, multiaddr: str, addresses: Sequence[str]) -> tuple[PeerId, tuple[str, ...]]:
        """Who else answers at any of `addresses`, and where: others of them may be another's."""
        try:
            peer, address = await self._first_of(addresses)
        except TransportError as error:
            if error.code != ITSELF:
                raise
            words = f"{multiaddr} leads back to this node by some way, or {self._same_key}"
            raise LocalError(words) from error
        return peer, (address,)

    async def _first_of(self, addresses: Sequence[str]) -> tuple[PeerId, str]:
        async def ask(address: str) -> tuple[PeerId, str]:
            if (peer := await self._transport.name_at(address, LIMIT)) == self.peer:
                raise TransportError("this node answers there", ITSELF)
            return peer, address

        in_turns = by_turns(addresses)
        return await first_answer(lambda: in_turns, ask)

    def _without_ours(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Those that may lead to somebody else."""
        ours = {*self.mapped_addresses, *self.own_addresses()}
        return tuple(each for each in addresses if each not in ours)

    def send(self, to: PeerId, run: RunId, message: Message) -> None:
        """Queue `message`; it may be lost. A payload in it must not change before it was sent."""
        self.carry_out(run, Send(to, message))

    def carry_out(self, run: RunId, send: Send) -> None:
        """The same; what is to be filled in is when its turn comes, in another thread."""
        if not self._closing:
            self.traffic(run)
            self._peers.of(send.to).send(run, send)

    async def meet(self, peer: PeerId, timeout: float = 10.0) -> None:
        """Return when there is a connection with `peer`; TransportError if none is to be had within `timeout`."""
        await self._peers.of(peer).dialing.reach_within(timeout)

    async def call(self, to: PeerId, message: Message, timeout: float = 10.0) -> Message:
        """The peer's answer; RemoteError if it refused or answered nonsense, TransportError if there is none."""
        if self._closing:
            raise TransportError("the network is closed")
        return await self._peers.of(to).call(message, timeout)

    def links(self) -> list[Link]:
        """All peers that we are connected with."""
        return [each.link() for each in self._peers if each.is_up]

    def measure(self) -> None:
        """Ping all that we are connected with: how long that takes, and what their clocks show, is known anew soon."""
        for each in [each for each in self._peers if each.is_up]:
            each.look(anew=True)

    def remote_addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where our connections with `peer` lead; empty without one."""
        return self._transport.remote_addresses(peer)

    def came_to(self, peer: PeerId) -> tuple[str, ...]:
        """Where of ours `peer` has dialled us by itself."""
        return self._transport.came_to(peer)

    def link_report(self, peer: PeerId) -> LinkReport:
        """How `peer` is reached, or not, what was tried, and what was measured."""
        return (self._peers.known(peer) or Peer(peer, self._shared)).link_report()

    async def try_at(self, peer: PeerId, address: str, limit: float) -> None:
        """Connect with `peer` at one address, and no other."""
        await self._peers.of(peer).dialing.try_at(address, limit)

    async def reserve(self, relay: PeerId) -> Reservation:
        """Have a relay connect others with us; TransportError if it does not."""
        await self._peers.of(relay).dialing.reach()
        return await self._transport.reserve(relay)

    async def seen_by(self, peer: PeerId, at: str = "") -> tuple[str, int]:
        """Where a peer sees the port that we listen on, and that port; TransportError if it does not say.

        It is dialled `at` an address of its, or where we have dialled it before.
        """
        return await self._transport.seen_by(peer, at)

    def meet_at(self, addresses: tuple[str, ...], is_symmetric: bool = False) -> None:
        """Others who dial us when we dial them can meet us there; without any: nowhere, or not known yet where."""
        self._transport.meet_at(addresses, is_symmetric)

    def be_relay(self, addresses: tuple[str, ...]) -> None:
        """Connect others with each other, who dial us at these, within limits; without any, do so no more."""
        self._transport.be_relay(addresses)

    async def disconnect(self, peer: PeerId, why: str) -> None:
        """Close all connections with `peer`; it may come back. `why` is for people who miss them."""
        with suppress(TransportError):  # the host has stopped, and with it the connection
            await self._transport.disconnect(peer, why)

    def why_lost(self, peer: PeerId) -> str:
        """Why there is no connection with `peer` any more, for people to read."""
        return self._transport.why_lost(peer)

    @property
    def dropped(self) -> int:
        """Frames that never left."""
        return sum(each.dropped for each in self._peers)

    # -- what happens ---------------------------------------------------------------------------------------

    def report_same_key(self) -> None:
        """Another node has our key: say so, once."""
        if not self._has_met_same_key:
            self._has_met_same_key = True
            log.warning("%s", self._same_key, extra={"code": "same-key"})

    def _path_changed(self, peer: PeerId) -> None:
        self._peers.of(peer).path_changed()

    def _accept(self, peer: PeerId, protocol: str, stream: Stream) -> None:
        if self._closing or peer == self.peer:
            stream.reset()
        else:
            self._peers.of(peer).accept(protocol, stream)

    def _opened(self, peer: PeerId, sends: bool, opened: BulkSocket) -> None:
        """A socket for payloads; whoever has gone meanwhile has no use for it."""
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
                self._peers.forget(peer)  # who came by and went leaves nothing behind
        self._shared.tell(self.on_link, peer, up)

    async def _look_after_links(self) -> None:
        """Keep an eye on all of them. Who was stopped, or asleep, has no right to call others silent."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LOOK
            await asyncio.sleep(LOOK)
            self._look(late=clock() - due > LOOK)

    def _look(self, late: bool) -> None:
        """On its own, as a loop that sleeps would keep the last one alive."""
        for each in [each for each in self._peers if each.is_up]:
            if late:
                each.forgive()
            each.look()


def _check_name(name: str, multiaddr: str) -> None:
    """LocalError unless this can be a peer's name."""
    try:
        public_key(PeerId(name))
    except ValueError as error:
        raise LocalError(f"{multiaddr} does not end in /p2p/ and a PeerID") from error
