"""Pieces over real connections: two donors and a joiner in this process, each with a host and a home of its own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.node.manifest.manifest import DataSpec, Manifest
from shoal.node.training.data.supply import GIB, Supply
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from tests.unit.dataset_kit import write_texts

FILES = Manifest(name="notes", data=DataSpec(name="files"))


@asynccontextmanager
async def node(home: Path, *paths: Path) -> AsyncIterator[tuple[Network, Supply]]:
    network = Network(Identity.generate(), host="127.0.0.1", port=0)
    supply = Supply(home / "data", paths, GIB, True, network.call)

    async def on_call(peer: PeerId, message: Message) -> Message:
        assert isinstance(message, GetPiece)
        return await supply.answer(peer, message)

    await network.start(Handlers(on_call=on_call))
    try:
        yield network, supply
    finally:
        await network.close()


@pytest.mark.asyncio
async def test_a_joiner_gets_a_dataset_from_two_donors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = write_texts(tmp_path / "texts", files=24, size=1 << 20)
    async with (
        node(tmp_path / "anna", texts) as (anna, annas),
        node(tmp_path / "bob", texts) as (bob, bobs),
        node(tmp_path / "joiner") as (joiner, joiners),
    ):
        spec = (await annas.named(FILES)).data
        assert (await bobs.named(FILES)).data == spec
        donors = [await joiner.connect(donor.addresses()[0]) for donor in (anna, bob)]
        assert (await joiners.standing(spec, donors)).donors == 2
        begin = time.perf_counter()
        (path,) = await joiners.get(spec, lambda: donors)
        took = time.perf_counter() - begin
    with capsys.disabled():
        print(f"\ndata: {spec.size / 1e6 / took:.0f} MB/s from two donors, all three in one process")
    (original,) = (tmp_path / "anna" / "data" / spec.digest).glob("*.shoalpack")
    assert Path(path).read_bytes() == original.read_bytes()
