"""go-libp2p, the implementation that most of the world runs, talks with us: directly, and by a relay of ours.

Its daemon is told which handshakes it may offer, so that what a connection came to is no matter of luck.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from libp2p.identity.identify.pb.identify_pb2 import Identify

from shoal.node.client.up.processes import Children
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit.messages import HOP, STOP
from shoal.protocol.net.peers.peer import CONTROL
from shoal.protocol.net.system.identity import public_key
from shoal.protocol.net.system.version import agent
from tests.integration.nodes import RealNode, until
from tests.integration.p2pd import GoPeer, find, read_exactly, read_message
from tests.integration.test_circuit import Host, hosts, reading
from tests.integration.test_circuit import until as turned

PING, IDENTIFY = "/ipfs/ping/1.0.0", "/ipfs/id/1.0.0"
NOISE, TLS = ("-noise=1", "-tls=0"), ("-noise=0", "-tls=1")
LIMIT = 60.0  # seconds
WORD = 32  # bytes


@pytest.fixture(scope="module")
def program() -> Path:
    return find()


@pytest.fixture
def children() -> Iterator[Children]:
    with Children(grace=2.0) as children:
        yield children


def ping(go: GoPeer, peer: PeerId) -> None:
    with go.open_stream(peer, PING) as stream:
        for _ in range(3):
            word = os.urandom(WORD)
            stream.write(word)
            assert read_exactly(stream, WORD) == word


def identify(go: GoPeer, peer: PeerId) -> Identify:
    with go.open_stream(peer, IDENTIFY) as stream:
        about = Identify()
        about.ParseFromString(read_message(stream))
        return about


def negotiated(host: Host, peer: PeerId) -> set[tuple[str, str]]:
    """The handshake and the multiplexer of each connection that a host of ours has with a peer."""
    there: Any = host.transport._connections.get(peer, {})
    muxed = [each.muxed_conn for each in there]
    return {(each.negotiated_security_protocol, each.negotiated_muxer_protocol) for each in muxed}


def relayed(relay: Host) -> str:
    """How the address of a circuit begins."""
    return f"{relay.address()}/p2p/{relay.peer}/p2p-circuit"


def test_with_noise_it_connects_with_a_node_identifies_and_pings_it(
    program: Path, children: Children, tmp_path: Path
) -> None:
    node = RealNode(tmp_path / "node").start(children)
    place, _, name = node.address.partition("/p2p/")
    peer = PeerId(name)
    with pytest.raises(AssertionError, match="failed to negotiate security protocol"):
        GoPeer(program, tmp_path / "with-tls", children, *TLS).connect(peer, place)
    assert node.client.peers() == []
    go = GoPeer(program, tmp_path / "with-noise", children, *NOISE)
    go.connect(peer, place)
    about = identify(go, peer)
    assert about.public_key[-32:] == public_key(peer).public_bytes_raw()
    assert {CONTROL, HOP, STOP, PING, IDENTIFY} <= set(about.protocols)
    assert about.agent_version == agent()
    ping(go, peer)
    until(lambda: go.peer in {row["peer"] for row in node.client.peers()}, "the node to show it", node.words)


@pytest.mark.asyncio
async def test_both_agree_on_noise_and_yamux_whoever_dials(program: Path, children: Children, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT), hosts(2) as [called, calling]:
        go = await asyncio.to_thread(GoPeer, program, tmp_path / "go", children)
        await asyncio.to_thread(go.connect, called.peer, called.address())
        await calling.transport.dial(go.peer, (await asyncio.to_thread(go.addresses))[0], LIMIT)
        for host in (called, calling):
            assert negotiated(host, go.peer) == {("/noise", "/yamux/1.0.0")}
            await pings(host, go.peer)
            await asyncio.to_thread(ping, go, host.peer)


@pytest.mark.asyncio
async def test_it_is_reached_by_a_relay_of_ours_and_reaches_others(
    program: Path, children: Children, tmp_path: Path
) -> None:
    """It looks for a relay on its own, as it does behind a router, and holds a reservation with ours."""
    async with asyncio.timeout(LIMIT), hosts(2) as [relay, host]:
        way = f"{relay.address()}/p2p/{relay.peer}"
        hidden_flags = "-dhtClient", "-autoRelay", "-forceReachabilityPrivate", "-relayDiscovery=0"
        hidden, go = await asyncio.gather(
            asyncio.to_thread(
                GoPeer,
                program,
                tmp_path / "hidden",
                children,
                *hidden_flags,
                f"-trustedRelays={way}",
                f"-bootstrapPeers={way}",
            ),
            asyncio.to_thread(GoPeer, program, tmp_path / "go", children),
        )
        await turned(lambda: relay.transport.relay_accounts.reservations(0.0) == 1)
        await asyncio.to_thread(go.connect, hidden.peer, f"{relayed(relay)}/p2p/{hidden.peer}")
        await asyncio.to_thread(ping, go, hidden.peer)
        await host.transport.dial(hidden.peer, relayed(relay), LIMIT)
        await pings(host, hidden.peer)
        promise = await host.reserve_with(relay)
        await asyncio.to_thread(go.connect, host.peer, f"{promise.addresses[0]}/p2p/{host.peer}")
        await asyncio.to_thread(ping, go, host.peer)
        for peer in (hidden.peer, go.peer):
            assert host.transport.path(peer) == "relayed"
            assert negotiated(host, peer) == {("/noise", "/yamux/1.0.0")}
        assert relay.transport.relay_accounts.circuits == 3


async def pings(host: Host, peer: PeerId) -> None:
    stream = await host.transport.open_stream(peer, PING)
    reader, word = reading(stream), os.urandom(WORD)
    await stream.write(word)
    assert await reader.readexactly(WORD) == word
    stream.reset()
