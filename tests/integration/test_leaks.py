"""Two hundred connections made and closed, in one process: no file, thread, shared memory or object stays behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.node.ipc.link import WorkerLink, frame
from shoal.node.ipc.messages import HandIn, Progress, Welcome
from shoal.node.ipc.shm import SharedVector
from shoal.node.ipc.vectors import Sizes
from shoal.node.supervisor.listener import WorkerListener, receive
from shoal.protocol.net.measure import journal
from tests.integration.leftovers import Leftovers, live_objects, look, resident_bytes
from tests.integration.test_network import DEADLINE, RUN, Load, Node, Word, eventually, running

CYCLES = 200
WARM_UP = 20  # cycles, for what is made once and kept
SETTLE = 1.0  # seconds: what ends in its own time, such as the other side of a closed connection, has ended then
MOST_GROWN = 16e6  # bytes of memory, in all cycles: a cycle that keeps one payload would take more
PAYLOAD = 100_000
ELEMENTS = 50_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def settled() -> Leftovers:
    """What there is once nothing has changed for a while, and of what an earlier test has left nothing."""
    gc.collect()
    last, since = look(), time.monotonic()
    async with asyncio.timeout(DEADLINE):
        while time.monotonic() - since < SETTLE:
            await asyncio.sleep(SETTLE / 20)
            if (now := look()) != last:
                last, since = now, time.monotonic()
    return last


async def surplus(before: Counter[str]) -> Counter[str]:
    """Live objects that there were not before, once there are none or the last loose end has had its time."""
    deadline = time.monotonic() + DEADLINE
    while (more := live_objects() - before) and time.monotonic() < deadline:
        await asyncio.sleep(SETTLE)
    return more


async def repeat(once: Callable[[], Awaitable[None]]) -> None:
    """Do it CYCLES times, and compare what there is with what there was."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # a pool may start its next thread any time
    for _ in range(WARM_UP):
        await once()
    before, objects, memory = await settled(), live_objects(), resident_bytes()
    for _ in range(CYCLES):
        await once()
    after, left, grown = await settled(), await surplus(objects), resident_bytes() - memory
    print(f"{CYCLES} cycles: {grown / 1e6:+.1f} MB, {grown / CYCLES / 1e3:+.1f} kB each, of {memory / 1e6:.0f} MB")
    assert after == before
    assert not left
    assert grown < MOST_GROWN


@pytest.mark.slow
@pytest.mark.asyncio
async def test_two_hundred_networks_that_come_and_go_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a host of its own, and talks both ways with one that stays."""
    monkeypatch.setattr(journal, "MOST_PEERS", WARM_UP // 2)  # what is bounded is full before we look
    lasting = Node()

    async def once() -> None:
        guest = Node()
        async with running(guest):
            await guest.connect(lasting.addresses()[0])
            guest.send(lasting.peer, RUN, Word(1))
            guest.send(lasting.peer, RUN, Load(1, bytes(PAYLOAD)))
            await eventually(lambda: lasting.words and lasting.loads)
            lasting.send(guest.peer, RUN, Load(2, bytes(PAYLOAD)))
            await eventually(lambda: guest.loads)
        await eventually(lambda: not lasting.links())
        for heard in (lasting.words, lasting.loads, lasting.changes):
            heard.clear()

    async with running(lasting):
        await repeat(once)


@pytest.mark.asyncio
async def test_two_hundred_workers_that_connect_and_leave_leave_nothing_behind(tmp_path: Path) -> None:
    async def once() -> None:
        listener = await WorkerListener.listening(tmp_path)
        welcome = Welcome(b"", Sizes(ELEMENTS), threads=1, device="cpu", data=())
        vectors = [SharedVector.create(size) for size in welcome.sizes.numbers]
        accepting = listener.accept(os.getpid(), welcome, [vector.fd for vector in vectors])
        link, (reader, writer, _) = await asyncio.gather(
            asyncio.to_thread(WorkerLink.connect, listener.path), accepting
        )
        vectors[0].array[:] = 1
        link.vectors.contribution.array[:] = link.vectors.agreed.array
        writer.write(frame(HandIn(1)))
        assert await asyncio.to_thread(link.receive) == HandIn(1)
        link.send(said := Progress(1, 1, 1, 0.5, 10, 1.0, 0, 1.0))
        assert await receive(reader) == said
        assert vectors[1].array.sum() == ELEMENTS
        link.close()
        writer.close()
        await writer.wait_closed()
        await listener.close()
        for vector in vectors:
            vector.close()

    await repeat(once)
