"""The text of a run comes from its members: past a donor that dies and one that lies, into a home that was empty."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.node.api.answers import RunLink
from shoal.node.client.up.processes import Children
from shoal.node.training.data.store import PACKED, Dataset, Store
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import PATIENCE, RealNode, until
from tests.integration.test_node import MANIFEST
from tests.unit.dataset_kit import lying, write_texts

NOTES = MANIFEST.replace('name = "tiny"', 'name = "notes"') + '[data]\nname = "files"\n'
FILES, SIZE = 48, 1 << 20  # MiB: more than two donors give at once


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", files=FILES, size=SIZE)


@pytest.mark.slow
def test_a_joiner_with_an_empty_home_trains_on_the_founders_text(
    children: Children, tmp_path: Path, texts: Path
) -> None:
    founder = RealNode(tmp_path / "founder").start(children, data=(texts,))
    run = str(founder.client.create_run(NOTES, False)["run"])
    donor = RealNode(tmp_path / "donor").launch(children, founder.address, data=(texts,), join=(run,), train=False)
    joiner = RealNode(tmp_path / "joiner").launch(children, founder.address)
    nodes = [node.ready() for node in (founder, donor, joiner)]

    def words() -> str:
        return "\n".join(f"{node.folder.name}: {node.row()}\n{node.words()}" for node in nodes if node.is_running)

    until(lambda: donor.row() and founder.row().get("members") == 2, "the members to meet", words)
    until(joiner.client.peers, "a connection", words)
    dataset = held(founder, run)
    with ThreadPoolExecutor(1) as pool, liar_at(joiner, dataset) as (liar, asked):
        joining = pool.submit(joiner.client.join_run, run, True)
        until(lambda: progress(joiner, joining) >= 2, "a part of the data", words)
        assert not joining.done()
        os.kill(donor.pid, signal.SIGKILL)
        assert joining.result(timeout=PATIENCE)["run"] == run
    assert asked
    until(lambda: joiner.round() >= 1, "a round", words)
    assert pack_of(joiner).read_bytes() == pack_of(founder).read_bytes()
    assert held(joiner, run) == Dataset(dataset.digest, dataset.index, dataset.root, pack_of(joiner))
    lies = [line for line in joiner.log.read_text().splitlines() if "data-liar" in line]
    assert len(lies) == 1
    assert liar in lies[0]

    joiner.kill()
    joiner.start(children)
    until(lambda: joiner.row().get("phase") == "training", "it to be back", words)
    assert joiner.log.read_text().count("getting the data") == 1, "it was downloaded again"


@pytest.mark.slow
@pytest.mark.long
def test_it_is_said_before_joining_that_nobody_gives_the_data(children: Children, tmp_path: Path) -> None:
    texts, manifest = write_texts(tmp_path / "texts"), tmp_path / "run.toml"
    manifest.write_text(NOTES)
    founder = RealNode(tmp_path / "founder").start(children, data=(texts,), create=manifest, train=False)
    until(founder.row, "the run", founder.words)
    run = founder.row()["run"]
    founder.client.stop()
    until(lambda: not founder.is_running, "the end", founder.words)
    founder.start(children, data=(texts,), create=manifest, train=False, share_data=False)
    until(founder.row, "the run", founder.words)
    assert [row["run"] for row in founder.client.status()["runs"]] == [run], "the same manifest founded another run"

    joiner = RealNode(tmp_path / "joiner").start(children, founder.address)
    until(joiner.client.peers, "a connection", joiner.words)
    with pytest.raises(LocalError, match="no member that can be reached gives them: start it with --data"):
        joiner.client.join_run(run, True)
    assert joiner.client.status()["runs"] == []
    joiner.client.stop()
    until(lambda: not joiner.is_running, "the end", joiner.words)
    joiner.start(children, founder.address, data_limit=0)
    until(joiner.client.peers, "a connection", joiner.words)
    with pytest.raises(LocalError, match="--data-limit"):
        joiner.client.join_run(run, True)


def pack_of(node: RealNode) -> Path:
    (found,) = node.home.data.glob(f"*/{PACKED}")
    return found


def held(node: RealNode, run: str) -> Dataset:
    """The run's data, hashed again, as the node holds them."""
    data = node.client.run_details(run)["manifest"]["data"]
    digest, root = (Digest(bytes.fromhex(data[key])) for key in ("digest", "pieces"))
    found = Store(node.home.data).open(digest, root)
    assert found is not None
    return found


def progress(node: RealNode, joining: Future[RunLink]) -> int:
    """MiB that have come, as `status` says; an error if the joining has come to an end."""
    if joining.done():
        joining.result()
        raise AssertionError("it has joined already")
    found = re.match(r"getting the data: (\d+) of \d+ MiB from \d members?$", str(node.client.status()["obstacle"]))
    return int(found[1]) if found else -1


@contextmanager
def liar_at(node: RealNode, dataset: Dataset) -> Iterator[tuple[PeerId, list[GetPiece]]]:
    """A peer that calls on the node, tells the truth about hashes and lies about the text; what it was asked for."""
    asked: list[GetPiece] = []
    answer = lying(dataset)

    async def on_call(peer: PeerId, message: Message) -> Message:
        if not isinstance(message, GetPiece):
            return Refused("no")
        asked.append(message)
        return answer(message)

    async def live(met: Future[tuple[PeerId, asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
        network, ending = Network(Identity.generate(), host="127.0.0.1", port=0), asyncio.Event()
        await network.start(Handlers(on_call=on_call))
        try:
            await network.connect(node.address)
            met.set_result((network.peer, asyncio.get_running_loop(), ending))
            await ending.wait()
        finally:
            await network.close()

    with ThreadPoolExecutor(1) as pool:
        met: Future[tuple[PeerId, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        life = pool.submit(asyncio.run, live(met))
        peer, loop, ending = met.result(60)
        try:
            yield peer, asked
        finally:
            loop.call_soon_threadsafe(ending.set)
            life.result(60)
