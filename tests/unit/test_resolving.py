"""Names are looked up in threads of their own: shared, with a time limit, and answers are kept for a while."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.net.system import resolving
from shoal.protocol.net.system.addresses import resolve
from shoal.protocol.net.system.resolving import Resolver
from tests.preload import SLOW_RESOLVER, preloaded

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))] * 2
ANSWER = ((socket.AF_INET, "192.0.2.7"),)


class System:
    """A resolver of the system that answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held = set[str]()
        self.unknown = set[str]()
        self.let = threading.Event()

    def getaddrinfo(self, name: str, *_: object) -> list[object]:
        self.asked.append(name)
        if name in self.held:
            self.let.wait(60)
        if name in self.unknown:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return list(FOUND)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    system = System()
    monkeypatch.setattr(socket, "getaddrinfo", system.getaddrinfo)
    monkeypatch.setattr(resolving, "LIMIT", 0.1)
    monkeypatch.setattr(resolving, "REMEMBERED", (60.0, 60.0))
    yield system
    system.let.set()


@pytest.mark.asyncio
async def test_one_look_up_serves_all_who_ask(system: System) -> None:
    resolver = Resolver()
    system.held = {"seed"}
    asking = [asyncio.create_task(resolver.look_up("seed")) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()  # which is nothing to the others
    system.let.set()
    assert await asyncio.gather(*asking[1:]) == [ANSWER] * 19
    assert system.asked == ["seed"]
    assert await resolver.look_up("seed") == ANSWER
    assert system.asked == ["seed", "seed"], "a name may lead elsewhere the next time"


@pytest.mark.asyncio
async def test_silence_costs_the_limit_once_and_a_late_answer_is_kept(system: System) -> None:
    resolver = Resolver()
    system.held = {"seed"}
    with pytest.raises(TransportError, match=r"the name seed cannot be looked up: .*name servers have not answered"):
        await resolver.look_up("seed")
    begin = time.monotonic()
    for _ in range(50):
        with pytest.raises(TransportError):
            await resolver.look_up("seed")
    assert time.monotonic() - begin < 50 * resolving.LIMIT / 2
    assert system.asked == ["seed"]
    system.let.set()
    await until_over(resolver)
    assert await resolver.look_up("seed") == ANSWER
    assert system.asked == ["seed"]


@pytest.mark.asyncio
async def test_a_failure_is_remembered_and_not_for_ever(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver()
    system.unknown = {"seed"}
    for _ in range(20):
        with pytest.raises(TransportError, match="Name or service not known") as caught:
            await resolver.look_up("seed")
        assert caught.value.code == "unresolved"
    assert system.asked == ["seed"]
    monkeypatch.setattr(resolving, "REMEMBERED", (0.0, 0.0))
    system.unknown = set()
    assert await resolver.look_up("seed") == ANSWER


@pytest.mark.asyncio
async def test_names_that_hang_hold_up_no_other_and_no_thread_that_rounds_need(system: System) -> None:
    resolver = Resolver()
    system.held = {f"dead{number}" for number in range(resolving.AT_ONCE)}
    dead = [asyncio.create_task(resolver.look_up(name)) for name in sorted(system.held)[:-1]]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert await resolver.look_up("seed") == ANSWER
        assert await asyncio.to_thread(lambda: 7) == 7
    results = await asyncio.gather(*dead, return_exceptions=True)
    assert all(isinstance(each, TransportError) for each in results)
    with pytest.raises(TransportError):
        await resolver.look_up(max(system.held))
    with pytest.raises(TransportError, match="other names are being looked up"):
        await resolver.look_up("one too many")
    system.let.set()
    await until_over(resolver)
    assert await resolver.look_up("one too many") == ANSWER


@pytest.mark.asyncio
async def test_addresses_are_looked_up_by_it(system: System) -> None:
    system.held = {"addresses.held"}
    with pytest.raises(TransportError, match="have not answered"):
        await resolve("/dns4/addresses.held/tcp/4101")


def test_a_process_ends_while_a_look_up_hangs(tmp_path: Path) -> None:
    held, waits = tmp_path / "held", tmp_path / "waits"
    held.touch()
    environment = preloaded(tmp_path, SLOW_RESOLVER) | {"SHIM_HELD": str(held), "SHIM_WAITS": str(waits)}
    code = (
        "import asyncio\n"
        "from shoal.protocol.net.system import resolving\n"
        "resolving.LIMIT = 0.1\n"
        "try:\n"
        "    asyncio.run(resolving.RESOLVER.look_up('seed.held'))\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert "the name seed.held cannot be looked up" in done.stdout
    assert waits.read_text() == "seed.held\n"


async def until_over(resolver: Resolver) -> None:
    async with asyncio.timeout(10):
        while not all(each.is_over for each in resolver._look_ups.values()):
            await asyncio.sleep(0.001)
