"""Hole punching: two peers behind routers dial each other at the same moment. Belongs to the trio thread.

DCUtR (https://github.com/libp2p/specs/blob/master/relay/DCUtR.md). The peer that was dialled through the relay begins:
it sends its outside addresses, receives the other's, and measures the round trip. Then it sends SYNC, waits for half of
a round trip, and dials, while the other dials as soon as it receives SYNC. The outgoing packets open each router for
the other side.

Rules:
- The peer that begins is the server of the resulting connection, whichever packets came first.
- Only one of the two begins. If both would, as each has dialled the other, the one with the lesser PeerID does: two
  servers, or two clients, would wait for each other.
- Only public addresses are dialled, at most two, for a short time and a few times each, and only for peers that are
  connected through a relay only. The number of attempts is bounded for each peer and for all together, as the peers
  choose the addresses. An exchange with a peer that does not know its outside address yet does not count.
- First the peer that begins dials normally, each address for a round trip or two: the other may have come through a
  relay only because we cannot be dialled ourselves.
- A connection that the other peer makes meanwhile is as good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from shoal.protocol.base.allowance import Allowance, Allowances
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import Place, multiaddr, relay_of
from shoal.protocol.net.circuit.accounts import Refused, Status
from shoal.protocol.net.circuit.meeting import NowhereToMeet, Side, connect_message, goals, nowhere, side_from
from shoal.protocol.net.circuit.messages import drop, read_message, write_message
from shoal.protocol.net.circuit.relay import OpenStream
from shoal.protocol.net.circuit.sockets import family_of, first_to_connect, listening_ports
from shoal.protocol.net.libp2p.muxer import goes_by_a_relay
from shoal.protocol.net.libp2p.swarm import BoundedRawConnection, BoundedSwarm, BoundedTcp, transport_error
from shoal.protocol.net.measure.journal import OK, Step, Way

DCUTR = "/libp2p/dcutr"
PER_PEER, IN_ALL = (8, 0.05), (32, 1.0)  # attempts that peers may make us take part in: in a burst, and per second
MAX_PEERS = 1024  # peers whose attempts are counted
ASK_LIMIT = 5.0  # seconds for the exchange of messages
DIAL_LIMIT = 2.5  # seconds; TCP repeats a SYN after one
LEAST_LIMIT = 0.3  # seconds for a normal dial, at least
PAUSE = 0.02  # seconds after the first dial that is refused
TRIES = 3
SETTLED = 1.0  # seconds after which a connection made by the other peer is known here

OnStep = Callable[[PeerId, Step], None]


class _Attempt:
    """An attempt at hole punching with one peer, of which at most one is under way."""

    def __init__(self, is_ours: bool) -> None:
        self.is_ours = is_ours  # whether we have begun it
        self.scope, self.over = trio.CancelScope(), trio.Event()


class Puncher:
    """Hole punching, begun by us or by other peers. `on_step` is told what was tried (journal.py)."""

    def __init__(self, swarm: BoundedSwarm, open_stream: OpenStream, on_step: OnStep) -> None:
        self._own, self.moved = Side(), trio.Event()
        self._on_step = on_step
        self._swarm, self._open_stream = swarm, open_stream
        self._for_one = Allowances[ID](*PER_PEER, MAX_PEERS)
        self._for_all = Allowance(*IN_ALL)
        self._attempts: dict[ID, _Attempt] = {}

    @property
    def own(self) -> Side:
        """Our outside addresses, at which others can meet us."""
        return self._own

    @own.setter
    def own(self, side: Side) -> None:
        """Change them; sets the event `moved` and replaces it by a new one."""
        if side != self._own:
            self._own, moved, self.moved = side, self.moved, trio.Event()
            moved.set()

    async def begin(self, relayed: INetConn) -> INetConn:
        """A direct connection with the peer of a relayed one; TransportError if that fails."""
        peer = relayed.muxed_conn.peer_id
        while True:
            while (attempt := self._attempts.get(peer)) is not None:
                await attempt.over.wait()
            if (direct := direct_connection(self._swarm, peer)) is not None:  # the other peer was faster
                return direct
            with self._attempt(peer, is_ours=True):  # cancelled if the other peer begins
                return await self._begin(relayed, peer)

    async def _begin(self, relayed: INetConn, peer: ID) -> INetConn:
        failure = TransportError("nothing was tried")
        for number in range(TRIES):
            try:
                return await self._try(relayed, peer, number == 0)
            except (NowhereToMeet, Refused):
                raise
            except Exception as error:  # libp2p raises many types, as when only one end has met the other
                if (direct := direct_connection(self._swarm, peer)) is not None:
                    return direct
                failure = transport_error(error)
        raise failure

    async def serve(self, stream: INetStream) -> None:
        """Answer a peer that begins."""
        peer, other, begin = stream.muxed_conn.peer_id, None, time.time()
        try:
            if direct_connection(self._swarm, peer) is not None or not self._gives_way(peer):
                raise Refused(Status.UNEXPECTED_MESSAGE)
            ours = self._attempts.get(peer)
            with self._attempt(peer, is_ours=False):
                if ours is not None:
                    ours.scope.cancel()
                    await ours.over.wait()
                with trio.move_on_after(ASK_LIMIT) as limit:
                    other = side_from(await read_message(stream, HolePunch))
                    await write_message(stream, connect_message(self.own))
                    await read_message(stream, HolePunch)
                if other is None or limit.cancelled_caught:
                    raise TransportError(f"no answer in {ASK_LIMIT:g} s", "silent")
                places = goals(self.own, other)
                self._account_for(peer)
                await self._dial(peer, places, as_client=True)
                self.note(stream.muxed_conn, Way.MEET, begin)
        except Refused:
            pass  # there is a direct connection, or we begin, or the peer has asked too often
        except Exception as error:  # libp2p raises many types; the other peer may try again
            await trio.sleep(SETTLED)
            if direct_connection(self._swarm, peer) is None:
                reason = nowhere(self.own, other) if other is not None else None
                self.note(stream.muxed_conn, Way.MEET, begin, reason or error)
        finally:
            await drop(stream)

    @contextmanager
    def _attempt(self, peer: ID, *, is_ours: bool) -> Iterator[None]:
        """Register an attempt as the one under way, until it ends or another replaces it."""
        attempt = self._attempts[peer] = _Attempt(is_ours)
        try:
            with attempt.scope:
                yield
        finally:
            if self._attempts[peer] is attempt:
                del self._attempts[peer]
            attempt.over.set()

    def _gives_way(self, peer: ID) -> bool:
        """Whether the peer, which has begun, may go on: unless we have begun as well and have the lesser PeerID."""
        attempt = self._attempts.get(peer)
        return attempt is None or (attempt.is_ours and peer.to_bytes() < self._swarm.self_id.to_bytes())

    def note(
        self,
        relayed: IMuxedConn,
        way: Way,
        begin: float,
        error: Exception | None = None,
        at: str = "",
        pause: float = 0.0,
    ) -> None:
        """Note in the journal what came of an attempt that began at `begin`; the next one follows after `pause`."""
        now, failure = time.time(), transport_error(error) if error is not None else None
        where = at or relay_of(str(relayed.get_transport_addresses()[0]))[1]
        code, words = (failure.code, str(failure)) if failure is not None else (OK, "")
        step = Step(now, way, where, code, words, now - begin, now + pause if pause else 0.0)
        self._on_step(PeerId(str(relayed.peer_id)), step)

    def _account_for(self, peer: ID) -> None:
        """Count an attempt, in which a peer makes us dial; Refused if there were too many."""
        now = trio.current_time()
        if not (self._for_one.of(peer).take(now) and self._for_all.take(now)):
            raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)

    async def _try(self, relayed: INetConn, peer: ID, is_first: bool) -> INetConn:
        stream = await self._open_stream(relayed, DCUTR)
        try:
            with trio.move_on_after(ASK_LIMIT):
                asked = trio.current_time()
                await write_message(stream, connect_message(self.own))
                other = side_from(await read_message(stream, HolePunch))
                trip = trio.current_time() - asked
                if not other.places and (failure := nowhere(self.own, other)) is not None:
                    raise failure
                if is_first:
                    self._account_for(peer)
                for place in other.places if is_first else ():
                    if (direct := await self._dial_plainly(relayed, place, trip)) is not None:
                        return direct
                places, begin = goals(self.own, other), time.time()
                await write_message(stream, HolePunch(type=HolePunch.SYNC))
                await trio.sleep(trip / 2)
                met = await self._dial(peer, places, as_client=False)
                self.note(relayed.muxed_conn, Way.MEET, begin)
                return met
            raise TransportError(f"no answer in {ASK_LIMIT:g} s", "silent")
        finally:
            await drop(stream)

    async def _dial_plainly(self, relayed: INetConn, place: Place, trip: float) -> INetConn | None:
        """Dial normally: a peer that came through a relay may be dialable, and then answers within a round trip."""
        begin, limit, address = time.time(), max(LEAST_LIMIT, 2 * trip), multiaddr(*place)
        failure: Exception = TransportError(f"no answer in {limit:.1f} s", "silent")
        try:
            line = None
            with trio.move_on_after(limit):
                line = await BoundedTcp().dial(Multiaddr(address))
            if line is not None:
                with trio.move_on_after(DIAL_LIMIT):
                    direct = await self._upgrade(line, relayed.muxed_conn.peer_id, as_client=True)
                    self.note(relayed.muxed_conn, Way.REVERSAL, begin, at=address)
                    return direct
        except Exception as error:  # libp2p raises many types: the peer cannot be dialled, or another answers there
            failure = error
        self.note(relayed.muxed_conn, Way.REVERSAL, begin, failure, at=address)
        return None

    async def _dial(self, peer: ID, places: Sequence[Place], as_client: bool) -> INetConn:
        source = listening_ports(self._swarm).get(family_of(places[0][0]))
        if source is None or peer in self._swarm.punching:
            raise TransportError("not now")
        self._swarm.punching[peer] = places
        try:
            with trio.move_on_after(DIAL_LIMIT):
                line = await first_to_connect(source, places, PAUSE)
                return await self._upgrade(BoundedRawConnection(line, as_client), peer, as_client)
            raise TransportError(f"neither has reached the other in {DIAL_LIMIT:g} s", "silent")
        finally:
            del self._swarm.punching[peer]

    async def _upgrade(self, raw: RawConnection, peer: ID, as_client: bool) -> INetConn:
        try:
            return await self._upgraded(raw, peer, as_client)
        except BaseException:  # re-raised: nobody else would close it
            with trio.CancelScope(shield=True):
                await raw.close()
            raise

    async def _upgraded(self, raw: RawConnection, peer: ID, as_client: bool) -> INetConn:
        if as_client:
            return await self._swarm.upgrade_outbound_raw_conn(raw, peer)
        muxed = await self._swarm.upgrade_inbound_raw_conn(raw, raw.get_transport_addresses()[0])
        for connection in self._swarm.get_connections(peer):
            if connection.muxed_conn is muxed:
                return connection
        await muxed.close()
        raise TransportError("somebody else answers there")


def direct_connection(swarm: BoundedSwarm, peer: ID) -> INetConn | None:
    """An open connection with a peer that does not go by a relay, if there is one."""
    there = (each for each in swarm.get_connections(peer) if not each.is_closed)
    return next((each for each in there if not goes_by_a_relay(each)), None)
