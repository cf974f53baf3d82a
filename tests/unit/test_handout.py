"""Other processes get a run's parameters, complete and of one round; a node without any says why."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from shoal.node.base.home import Home
from shoal.node.daemon.handout import Handout
from shoal.node.handout import AskWeights, NewestState, NotReady, NoWeights, fetch_newest
from shoal.node.ipc.link import frame, read_frame
from shoal.node.ipc.private_socket import MAX_PATH, PrivateSocket, find_socket
from shoal.node.manifest.manifest import decode_manifest
from shoal.node.run.runs import Runs
from shoal.node.training.methods.method import PARAMETERS
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import NO_DIGEST, Digest, RunId
from tests.run_kit import id_of
from tests.unit.checkpoint_kit import MANIFEST, state

RUN = id_of(MANIFEST)


class Node:
    """The part of a node's runs that the desk uses; one of them has a state after round 3."""

    def __init__(self) -> None:
        self.base: int | None = 3
        self.run = SimpleNamespace(
            manifest=MANIFEST,
            outer=SimpleNamespace(committed=state(3)),
            member=SimpleNamespace(base_round=3),
            failure="",
            obstacle="",
            samples=77,
        )
        self.open: dict[str, Any] = {RUN.hex(): self.run}
        self.paused = ""
        self.restoring: list[str] = []
        self.broken: dict[str, str] = {}

    def get(self, run: RunId) -> Any:
        return self.open.get(run.hex())

    def commit(self) -> None:
        """The next round's state, as an outer step makes it: in other buffers."""
        committed = self.run.outer.committed
        ones = [torch.ones(committed.shape.layout.size)]
        committed.apply(ones, lambda vectors, mean, start: {name: each + mean for name, each in vectors.items()})


@contextmanager
def locked(root: Path) -> Iterator[Home]:
    home = Home(root).create()
    with home.locked():
        yield home


def _is_listening(home: Home) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.connect(str(find_socket(home.weights_socket)))
        return True
    return False


@asynccontextmanager
async def handing_out(home: Home, node: Node) -> AsyncIterator[None]:
    task = asyncio.create_task(Handout(home, cast("Runs", node)).run())
    while not _is_listening(home):
        await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert not home.weights_socket.exists()


async def asked(home: Home, known: Digest = NO_DIGEST, wants: bool = True, run: RunId = RUN) -> NewestState:
    return await asyncio.to_thread(fetch_newest, home, run, known, wants)


@pytest.mark.asyncio
async def test_parameters_come_once_for_each_state(tmp_path: Path) -> None:
    node = Node()
    with locked(tmp_path) as home:
        async with handing_out(home, node):
            first = await asked(home)
            assert (first.round, first.samples) == (3, 77)
            assert decode_manifest(first.manifest) == MANIFEST
            assert first.parameters is not None
            expected = node.run.outer.committed.current.vectors[PARAMETERS].numpy().copy()
            np.testing.assert_array_equal(first.parameters, expected)
            again = await asked(home, first.root)
            assert (again.round, again.root, again.parameters) == (3, first.root, None)
            for _ in range(3):
                node.commit()
            looked = await asked(home, first.root, wants=False)
            assert (looked.round, looked.parameters) == (6, None)
            newer = await asked(home, first.root)
            assert (newer.round, newer.root) == (6, looked.root)
            assert newer.parameters is not None
            np.testing.assert_array_equal(newer.parameters, expected + 1 + 1 + 1)
            np.testing.assert_array_equal(first.parameters, expected, "what was given stays the reader's")


@pytest.mark.asyncio
async def test_the_memory_is_the_readers_to_let_go_of(tmp_path: Path) -> None:
    """Neither end keeps a descriptor, however often it is asked."""
    node = Node()
    with locked(tmp_path) as home:
        async with handing_out(home, node):
            await asked(home)
            gc.collect()  # what other tests have left open goes when it likes
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(50):
                await asked(home)
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) < before + 25
            held = node.run.outer.committed._leases
            assert held == []


@pytest.mark.asyncio
async def test_a_node_that_catches_up_still_has_what_the_reader_has(tmp_path: Path) -> None:
    node = Node()
    with locked(tmp_path) as home:
        async with handing_out(home, node):
            first = await asked(home)
            node.run.member.base_round = None
            assert (await asked(home, first.root)).round == 3
            with pytest.raises(NotReady, match="looks for one"):
                await asked(home)


WHY = [
    ("no state", NotReady, "no state of the run yet: nobody has sent it"),
    ("failed", LocalError, "has failed on this node: the disk is full"),
    ("left", LocalError, f"not in the run {RUN.hex()[:8]}"),
    ("broken", LocalError, "its data are gone"),
    ("restoring", NotReady, "on its way back"),
    ("paused", NotReady, "until midnight"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("case", "kind", "words"), WHY, ids=[case for case, *_ in WHY])
async def test_why_there_is_nothing_is_said(tmp_path: Path, case: str, kind: type[Exception], words: str) -> None:
    node, run = Node(), RUN.hex()
    if case == "no state":
        node.run.member.base_round, node.run.obstacle = None, "nobody has sent it"
    elif case == "failed":
        node.run.failure = "the disk is full"
    else:
        node.open = {}
        node.broken = {run: "its data are gone"} if case == "broken" else {}
        node.restoring = [run] if case == "restoring" else []
        node.paused = "paused until midnight" if case == "paused" else ""
    with locked(tmp_path) as home:
        async with handing_out(home, node):
            with pytest.raises(LocalError, match=words) as raised:
                await asked(home)
    assert raised.type is kind


@pytest.mark.asyncio
async def test_nonsense_and_silence_are_survived(tmp_path: Path) -> None:
    def talk(home: Home, data: bytes) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(home.weights_socket))
        connection.sendall(data)
        return connection

    with locked(tmp_path) as home:
        async with handing_out(home, Node()):
            silent = talk(home, b"")
            talk(home, b"\xff\xff\xff\xffnonsense").close()
            talk(home, frame(AskWeights(1, RUN, NO_DIGEST))).close()
            with talk(home, frame(AskWeights(2, RUN, NO_DIGEST))) as newer:
                newer.settimeout(30)
                answer = await asyncio.to_thread(read_frame, newer)
            assert isinstance(answer, NoWeights)
            assert "another version" in answer.reason
            assert (await asked(home)).parameters is not None
            silent.close()


@pytest.mark.asyncio
async def test_a_node_that_can_make_no_socket_does_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with locked(tmp_path) as home:
        home.weights_socket.mkdir()
        await Handout(home, cast("Runs", Node())).run()
    assert [record.code for record in caplog.records] == ["no-handout"]  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_who_cannot_be_let_in_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have as many files open as it is allowed to, for a moment."""
    let_in, failures = PrivateSocket.accept, [OSError(24, "Too many open files")]

    async def accept(self: PrivateSocket) -> socket.socket:
        if failures:
            raise failures.pop()
        return await let_in(self)

    monkeypatch.setattr(PrivateSocket, "accept", accept)
    monkeypatch.setattr("shoal.node.ipc.private_socket.PAUSE", 0.0)
    with locked(tmp_path) as home:
        async with handing_out(home, Node()):
            assert (await asked(home)).round == 3
    assert not failures


def test_without_a_node_there_is_nobody_to_ask(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no node runs"):
        fetch_newest(Home(tmp_path), RUN)
    with locked(tmp_path) as home, pytest.raises(TransportError, match="gives no parameters"):
        fetch_newest(home, RUN)


@pytest.mark.asyncio
async def test_a_home_whose_path_is_too_long_for_a_socket_is_asked_as_well(tmp_path: Path) -> None:
    with locked(tmp_path / ("long" * (MAX_PATH // 4))) as home:
        async with handing_out(home, Node()):
            assert (await asked(home)).round == 3
            place = home.weights_socket.resolve()
        assert not place.parent.exists()


@pytest.mark.asyncio
async def test_only_the_user_may_ask(tmp_path: Path) -> None:
    with locked(tmp_path) as home:
        async with handing_out(home, Node()):
            assert home.weights_socket.stat().st_mode & 0o777 == 0o600
