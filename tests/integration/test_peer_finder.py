"""Addresses that swallow everything, beside good ones, over real sockets: nobody waits for them, and they are named."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from shoal.node.peers import peer_finder
from shoal.node.peers.peer_finder import PeerFinder
from shoal.node.peers.remembered import PeerCache
from shoal.protocol.net.peers import dialing, network
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.addresses import has_ipv6
from shoal.protocol.net.system.identity import Identity
from tests.bad_situations import shown

LIMIT = 30.0  # seconds for one address: what each black hole would cost if anybody waited for it
SOON = LIMIT / 2  # on an idle machine it is half a second; it is printed

needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@contextmanager
def black_hole(host: str = "127.0.0.1") -> Iterator[str]:
    """The multiaddr of a port that answers nothing at all: its queue is full, and more is dropped."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket(family))
        full.bind((host, 0))
        full.listen(0)
        port = full.getsockname()[1]
        for _ in range(3):
            waiting = stack.enter_context(socket.socket(family))
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}"


class Node(Network):
    """A network that counts its links, and whose finder of peers comes later."""

    def __init__(self, host: str) -> None:
        super().__init__(Identity.generate(), host=host, port=0)
        self.ups: list[bool] = []
        self.greet: Callable[[str], None] = lambda address: None


@asynccontextmanager
async def node(host: str = "127.0.0.1") -> AsyncIterator[Node]:
    made = Node(host)
    strangers = lambda address: made.greet(address)  # noqa: E731
    await made.start(Handlers(on_link=lambda peer, up: made.ups.append(up), on_stranger=strangers))
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def reaching_out(seeker: Node, folder: Path, *bootstrap: str) -> AsyncIterator[PeerFinder]:
    seeking = PeerFinder(seeker, bootstrap, PeerCache(folder / "peers.json"), lambda: not seeker.links())
    seeker.greet = seeking.greet_stranger
    task = asyncio.create_task(seeking.run())
    try:
        yield seeking
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], object], limit: float = 30.0) -> float:
    begin = time.monotonic()
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.005)
    return time.monotonic() - begin


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, LIMIT)
    monkeypatch.setattr(peer_finder, "RETRY_FIRST", 0.1)


def allow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Allow one address."""
    for module in (dialing, network):
        monkeypatch.setattr(module, "LIMIT", seconds)


async def found_soon(seeker: Network) -> None:
    seconds = await until(seeker.links, 2 * LIMIT)
    print(f"connected beside a black hole in {seconds:.2f} s")
    assert seconds < SOON


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
@pytest.mark.parametrize("named", [True, False])
async def test_a_black_hole_beside_a_good_address_delays_nothing(tmp_path: Path, host: str, named: bool) -> None:
    """Be it another peer's address, or (`named`) another one of the very same peer."""
    with black_hole(host) as hole:
        async with node() as good, node() as seeker:
            broken = f"{hole}/p2p/{good.peer}" if named else hole
            async with reaching_out(seeker, tmp_path, broken, good.addresses()[0]):
                await found_soon(seeker)


def _codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(getattr(record, "code", "")) for record in caplog.records]


@pytest.mark.asyncio
@pytest.mark.parametrize("named", [True, False])
async def test_a_black_hole_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    allow(monkeypatch, 1.0)
    with black_hole() as hole:
        async with node() as good, node() as seeker:
            broken = f"{hole}/p2p/{good.peer}" if named else hole
            ups = seeker.ups
            async with reaching_out(seeker, tmp_path, broken, good.addresses()[0]) as seeking:
                await until(lambda: hole in caplog.text)
                await until(seeker.links)
                for _ in range(3):  # whoever is lost is looked for again
                    before = ups.count(True)
                    await seeker._transport.disconnect(good.peer, "a test")
                    await until(lambda before=before: ups.count(True) > before)  # type: ignore[misc]
                warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
                assert sum(hole in each for each in warnings) == 1
                assert "no answer in 1 s" in next(each for each in warnings if hole in each)
                shown("the bootstrap address is silent", 0, " ".join([*warnings, *_codes(caplog)]))
                assert "bootstrap address" in (seeking.obstacle() or "")


@pytest.mark.asyncio
async def test_the_addresses_of_a_link_are_tried_side_by_side(tmp_path: Path) -> None:
    with black_hole() as one, black_hole() as other:
        async with node() as good, node() as seeker, reaching_out(seeker, tmp_path) as seeking:
            seeking.add_linked([f"{one}/p2p/{good.peer}", f"{other}/p2p/{good.peer}", good.addresses()[0]])
            await found_soon(seeker)


@pytest.mark.asyncio
async def test_peers_of_the_last_life_are_found_though_most_are_gone(tmp_path: Path) -> None:
    with black_hole() as hole:
        async with node() as good, node() as seeker:
            gone = {Identity.generate().peer: (hole,) for _ in range(3)}
            PeerCache(tmp_path / "peers.json").update({**gone, good.peer: good.addresses()})
            async with reaching_out(seeker, tmp_path):
                await found_soon(seeker)
                await until(lambda: next(iter(PeerCache(tmp_path / "peers.json").load())) == good.peer)


@needs_ipv6
@pytest.mark.asyncio
async def test_a_node_that_listens_everywhere_is_reached_by_ipv6_as_well() -> None:
    async with node("0.0.0.0") as everywhere, node("::1") as six:
        port = everywhere.addresses()[0].split("/")[4]
        for address in (f"/ip6/::1/tcp/{port}", f"/ip4/127.0.0.1/tcp/{port}"):
            assert await six.name_at(address) == everywhere.peer
        assert six.addresses()[0].startswith("/ip6/::1/tcp/")
        assert await everywhere.connect(six.addresses()[0]) == six.peer
        await until(lambda: six.links())
