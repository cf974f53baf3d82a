"""What a stranger cannot do: connect without Noise, take another's name, or stop a host with one bad stream.

The diallers are real libp2p hosts. libp2p's default host would let a plaintext dialler in under any name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import cast

import pytest
import trio
from libp2p import new_host
from libp2p.abc import IHost, ISecureTransport
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig
from libp2p.network.stream.exceptions import StreamError
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerInfo
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.security.noise import transport as noise
from libp2p.security.secio import transport as secio
from libp2p.security.tls import transport as tls
from libp2p.stream_muxer.yamux.yamux import YamuxStream
from multiaddr import Multiaddr

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit.accounts import Status
from shoal.protocol.net.circuit.messages import HOP, read_message, status_of, write_message
from shoal.protocol.net.libp2p import swarm
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.peer import CONTROL
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.transport.host import TrioHost
from tests.integration.test_circuit import hosts

LIMIT = 30.0
AT_THE_DOOR = 1.0  # seconds until who does not go on with a handshake is hung up on; usually 10
MULTISTREAM = "/multistream/1.0.0"


def noise_of(keys: KeyPair) -> ISecureTransport:
    return noise.Transport(keys, noise_privkey=create_new_x25519_key_pair().private_key)


SECURITY: dict[str, Callable[[KeyPair], ISecureTransport]] = {
    PLAINTEXT_PROTOCOL_ID: lambda keys: InsecureTransport(keys, peerstore=PeerStore()),
    str(secio.ID): secio.Transport,
    str(tls.PROTOCOL_ID): tls.TLSTransport,
    str(noise.PROTOCOL_ID): noise_of,
}
REFUSED = [each for each in SECURITY if each != noise.PROTOCOL_ID]


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Network, list[PeerId]]]:
    network, seen = Network(Identity.generate(), host="127.0.0.1", port=0), list[PeerId]()
    await network.start(Handlers(on_link=lambda peer, up: seen.append(peer)))
    try:
        yield network, seen
    finally:
        await network.close()


def dial(address: str, security: str, keys: KeyPair, then: Callable[[IHost, ID], Awaitable[None]] | None = None) -> str:
    """Connect a libp2p host that offers only `security`: "" if that works, else why it does not."""

    async def main() -> str:
        host = new_host(key_pair=keys, sec_opt={TProtocol(security): SECURITY[security](keys)})
        place, _, name = address.partition("/p2p/")
        async with host.run([]):
            try:
                with trio.fail_after(LIMIT):
                    await host.get_network().dial_addr(Multiaddr(place), ID.from_string(name))
                    if then is not None:
                        await then(host, ID.from_string(name))
            except Exception as error:
                return repr(error)
            finally:
                await host.close()
        return ""

    return trio.run(main)


@pytest.mark.asyncio
async def test_a_noise_dialler_is_let_in() -> None:
    keys = create_new_key_pair()
    async with listening() as (network, seen):
        outcome = await asyncio.to_thread(dial, network.addresses()[0], noise.PROTOCOL_ID, keys)
        assert outcome == ""
        assert set(seen) == {str(ID.from_pubkey(keys.public_key))}


@pytest.mark.asyncio
@pytest.mark.parametrize("security", REFUSED)
async def test_any_other_dialler_is_refused(security: str) -> None:
    async with listening() as (network, seen):
        outcome = await asyncio.to_thread(dial, network.addresses()[0], security, create_new_key_pair())
        assert "security" in outcome
        assert seen == []
        assert network.links() == []


def said(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode() + b"\n"


def proposal(security: str) -> bytes:
    return said(MULTISTREAM) + said(security)


def expected(security: str) -> bytes:
    return said(MULTISTREAM) + said(security if security == noise.PROTOCOL_ID else "na")


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    config = partial(ConnectionConfig, inbound_upgrade_timeout=AT_THE_DOOR)
    monkeypatch.setattr(swarm, "ConnectionConfig", config)


@pytest.mark.asyncio
@pytest.mark.usefixtures("_impatient")
async def test_only_noise_is_agreed_to_on_the_wire_and_who_does_not_go_on_is_hung_up_on() -> None:
    """The same without a libp2p dialler: what the listener says to each name, byte by byte."""

    def ask(address: str, security: str) -> bytes:
        _, _, host, _, port, *_ = address.split("/")
        with socket.create_connection((host, int(port)), timeout=LIMIT) as connection:
            connection.sendall(proposal(security))
            answer = b""
            while data := connection.recv(1024):
                answer += data
        return answer

    async with listening() as (network, seen):
        asked = [asyncio.to_thread(ask, network.addresses()[0], each) for each in SECURITY]
        for security, answer in zip(SECURITY, await asyncio.gather(*asked), strict=True):
            assert answer == expected(security)
        assert seen == []


@pytest.mark.asyncio
@pytest.mark.usefixtures("_impatient")
async def test_nor_is_anything_else_agreed_to_on_a_circuit() -> None:
    """A relay, or whoever comes by one, is no more trusted than the wire."""

    async def ask(host: TrioHost, relay: ID, target: ID, security: str) -> bytes:
        [connection] = host._swarm.get_connections(relay)
        stream = await host._negotiate(connection, HOP)
        await write_message(stream, HopMessage(type=HopMessage.CONNECT, peer=PeerInfo(id=target.to_bytes())))
        assert status_of(await read_message(stream, HopMessage)) is Status.OK
        await stream.write(proposal(security))
        answer = b""
        with suppress(StreamError), trio.fail_after(LIMIT):
            while data := await stream.read(1024):
                answer += data
        return answer

    async with hosts(2 + len(SECURITY)) as [relay, listener, *diallers]:
        await listener.reserve_with(relay)
        names = ID.from_string(relay.peer), ID.from_string(listener.peer)
        for each in diallers:
            await each.transport.dial(relay.peer, relay.address(), LIMIT)
        bridges = [(each.transport._bridge, each.transport._host) for each in diallers]
        asked = [bridge.call(ask, host, *names, each) for (bridge, host), each in zip(bridges, SECURITY, strict=True)]
        for security, answer in zip(SECURITY, await asyncio.gather(*asked), strict=True):
            assert answer == expected(security)
        assert listener.heard_from == []
        assert set(listener.transport._connections) == {relay.peer}


@pytest.mark.asyncio
async def test_nonsense_in_a_streams_negotiation_ends_that_stream_only() -> None:
    """Text that is not UTF-8 is an exception that libp2p does not expect; it would end the whole swarm."""
    spoken = []

    async def talk_nonsense(host: IHost, peer: ID) -> None:
        connection = host.get_network().connections[peer][0]  # type: ignore[attr-defined]
        for nonsense in (b"\x05\xff\xfe\xfd\xfc\n", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x00"):
            await (await connection.new_stream()).write(nonsense)
        stream = await connection.new_stream()
        await MultiselectClient().select_one_of([TProtocol(CONTROL)], MultiselectCommunicator(stream), 10)
        spoken.append(stream)

    async with listening() as (network, seen):
        keys = create_new_key_pair()
        for _ in range(2):
            outcome = await asyncio.to_thread(dial, network.addresses()[0], noise.PROTOCOL_ID, keys, talk_nonsense)
            assert outcome == ""
    assert len(spoken) == 2
    assert len(seen) >= 2


@pytest.mark.asyncio
async def test_streams_of_one_connection_are_bounded() -> None:
    states = list[bool]()

    async def open_many(host: IHost, peer: ID) -> None:
        connection = host.get_network().connections[peer][0]  # type: ignore[attr-defined]
        streams = [cast(NetStream, await connection.new_stream()).muxed_stream for _ in range(100)]
        with trio.move_on_after(LIMIT):
            while not any(cast(YamuxStream, each).closed for each in streams):
                await trio.sleep(0.01)
        states.extend(cast(YamuxStream, each).closed for each in streams)

    async with listening() as (network, _):
        outcome = await asyncio.to_thread(
            dial, network.addresses()[0], noise.PROTOCOL_ID, create_new_key_pair(), open_many
        )
        assert outcome == ""
        assert any(states)
        assert not all(states)
