"""A node finds the others when it starts: bootstrap addresses, and the peers that it saw last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

import pytest

from shoal.node import reaching
from shoal.node.reaching import Reaching
from shoal.protocol.errors import LocalError, TransportError
from shoal.protocol.ids import PeerId
from shoal.protocol.network import Network

ANNA, BERT = PeerId("anna"), PeerId("bert")
WHERE = {ANNA: ("/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/2"), BERT: ("/ip4/192.0.2.2/tcp/1",)}
NAME = "/dns4/bootstrap/tcp/4101"


class Doors:
    """A network that fails a number of times at each address."""

    def __init__(self, failures: Mapping[str, int], error: Exception | None = None) -> None:
        self.left = dict(failures)
        self.error = error or TransportError("nobody answers")
        self.tried: list[str] = []
        self.open: list[str] = []

    def remember(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        pass

    async def connect(self, address: str) -> PeerId:
        self.tried.append(address)
        self.left[address] = self.left.get(address, 0) - 1
        if self.left[address] >= 0:
            raise self.error
        self.open.append(address)
        return ANNA


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_FIRST", "RETRY_MOST", "LOOK"):
        monkeypatch.setattr(reaching, name, 0.001)


def made(doors: Doors, bootstrap: tuple[str, ...] = (), last_seen: Mapping[PeerId, tuple[str, ...]] = {}) -> Reaching:
    return Reaching(cast(Network, doors), bootstrap, last_seen, lambda: not doors.open)


@asynccontextmanager
async def working(seeking: Reaching) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(seeking.run())
    yield task
    task.cancel()
    await asyncio.wait([task])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_a_bootstrap_address_is_tried_until_it_answers() -> None:
    doors = Doors({NAME: 3})
    seeking = made(doors, (NAME,))
    async with working(seeking):
        await until(lambda: doors.open)
    assert doors.tried == [NAME] * 4
    assert seeking.obstacle() is None


@pytest.mark.asyncio
async def test_a_bootstrap_address_is_tried_again_when_everybody_is_lost() -> None:
    doors = Doors({NAME: 1})
    async with working(made(doors, (NAME,))):
        await until(lambda: doors.open)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(doors.tried) == 2  # somebody is there
        doors.left[NAME] = 5
        doors.open.clear()
        await until(lambda: doors.open)
    assert doors.tried == [NAME] * 8


@pytest.mark.asyncio
async def test_an_address_that_makes_no_sense_is_tried_once() -> None:
    doors = Doors({NAME: 3}, LocalError("this node itself"))
    await asyncio.wait_for(made(doors, (NAME,)).run(), 10)
    assert doors.tried == [NAME]


@pytest.mark.asyncio
async def test_the_peers_of_the_last_life_are_tried_while_nobody_is_there() -> None:
    doors = Doors({f"{WHERE[ANNA][0]}/p2p/anna": 99, f"{WHERE[BERT][0]}/p2p/bert": 2})
    seeking = made(doors, last_seen=WHERE)
    async with working(seeking):
        await until(lambda: len(doors.tried) >= 2)
        assert seeking.obstacle() == "nobody has answered yet, tried 3 addresses"
        await until(lambda: doors.open)
        assert doors.open == [f"{WHERE[BERT][0]}/p2p/bert"]
        doors.open.clear()
        await until(lambda: doors.open)


@pytest.mark.asyncio
async def test_without_anybody_to_look_for_it_ends() -> None:
    doors = Doors({})
    seeking = made(doors)
    await asyncio.wait_for(seeking.run(), 10)
    assert seeking.obstacle() is None
