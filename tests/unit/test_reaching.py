"""A node finds the others when it starts: bootstrap addresses, and the peers that it saw last."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
    monkeypatch.setattr(reaching, "RETRY_FIRST", 0.001)


def made(doors: Doors, bootstrap: tuple[str, ...] = (), last_seen: Mapping[PeerId, tuple[str, ...]] = {}) -> Reaching:
    return Reaching(cast(Network, doors), bootstrap, last_seen, lambda: not doors.open)


@pytest.mark.asyncio
async def test_a_bootstrap_address_is_tried_until_it_answers() -> None:
    doors = Doors({NAME: 3})
    seeking = made(doors, (NAME,))
    await asyncio.wait_for(seeking.run(), 10)
    assert doors.tried == [NAME] * 4
    assert seeking.obstacle() is None


@pytest.mark.asyncio
async def test_an_address_that_makes_no_sense_is_tried_once() -> None:
    doors = Doors({NAME: 3}, LocalError("this node itself"))
    await asyncio.wait_for(made(doors, (NAME,)).run(), 10)
    assert doors.tried == [NAME]


@pytest.mark.asyncio
async def test_the_peers_of_the_last_life_are_tried_while_nobody_is_there() -> None:
    doors = Doors({f"{WHERE[ANNA][0]}/p2p/anna": 9, f"{WHERE[BERT][0]}/p2p/bert": 2})
    seeking = made(doors, last_seen=WHERE)
    working = asyncio.create_task(seeking.run())
    async with asyncio.timeout(10):
        while len(doors.tried) < 2:
            await asyncio.sleep(0)
        assert seeking.obstacle() == "nobody has answered yet, tried 3 addresses"
        await working
    assert doors.open == [f"{WHERE[BERT][0]}/p2p/bert"]


@pytest.mark.asyncio
async def test_without_anybody_to_look_for_it_ends() -> None:
    doors = Doors({})
    seeking = made(doors)
    await asyncio.wait_for(seeking.run(), 10)
    assert seeking.obstacle() is None
