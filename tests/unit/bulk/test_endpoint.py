"""Where bulk sockets come to be: keys are those of these two, and an invitation that is handed on is worth nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from shoal.protocol.base.allowance import Allowances
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.bulk import Knock, Knocked
from shoal.protocol.net.bulk import endpoint as endpoints
from shoal.protocol.net.bulk.endpoint import MAX_TRIED, OF_PEER, ConnectionLimit, Endpoint
from shoal.protocol.net.bulk.handshake import LIMIT, BulkSocket
from shoal.protocol.net.system.throttle import Throttle

ANNA, BERT, MALLORY = PeerId("anna"), PeerId("bert"), PeerId("mallory")
HOST = "127.0.0.1"
SHORT = 0.3  # seconds


@contextmanager
def docked(
    name: PeerId, failures: Allowances[str] | None = None
) -> Iterator[tuple[Endpoint, list[tuple[PeerId, bool, BulkSocket]]]]:
    opened: list[tuple[PeerId, bool, BulkSocket]] = []
    endpoint = Endpoint(name, lambda *what: opened.append(what), Throttle(), failures or Allowances(64, 1.0, 64))
    listener = socket.create_server((HOST, 0))
    endpoint.open([listener], [listener.getsockname()[1]])
    try:
        yield endpoint, opened
    finally:
        endpoint.close()
        for *_, each in opened:
            each.socket.close()


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.asyncio
@pytest.mark.parametrize("sends", [False, True])
async def test_both_ends_have_one_key(sends: bool) -> None:
    with docked(ANNA) as (anna, at_anna), docked(BERT) as (bert, at_bert):
        invited = anna.invitation(BERT, sends=sends)
        assert await bert.follow(ANNA, [HOST], invited, sends=not sends) == Knocked(True)
        await eventually(lambda: at_anna)
        assert (at_anna[0][:2], at_bert[0][:2]) == ((BERT, sends), (ANNA, not sends))
        assert at_anna[0][2].key == at_bert[0][2].key


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", ["name", "way"])
async def test_who_is_taken_for_another_or_for_another_use_has_another_key(wrong: str) -> None:
    """Mallory gives Anna's invitation to Bert as its own, or says that it is for something else."""
    with docked(ANNA) as (anna, at_anna), docked(BERT) as (bert, at_bert):
        invited = anna.invitation(MALLORY if wrong == "name" else BERT, sends=True)
        whom = MALLORY if wrong == "name" else ANNA
        assert await bert.follow(whom, [HOST], invited, sends=wrong == "way") == Knocked(True)
        await eventually(lambda: at_anna)
        assert at_anna[0][2].key != at_bert[0][2].key


@pytest.mark.asyncio
async def test_no_port_of_the_system_is_dialled_for_a_peer() -> None:
    with docked(ANNA) as (anna, _), docked(BERT) as (bert, _):
        invited = anna.invitation(BERT, sends=True)
        odd = type(invited)((22, 80, (1 << 40) + 8080), invited.fingerprint, invited.token)
        assert await bert.follow(ANNA, [HOST], odd, sends=False) == Knocked(False)


def handshaking() -> list[Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("bulk-handshake")]


@contextmanager
def silent() -> Iterator[int]:
    """The port of somebody who takes connections, and says nothing."""
    with socket.create_server((HOST, 0), backlog=64) as listener:
        yield listener.getsockname()[1]


def at(port: int, invited: Knock) -> Knock:
    return replace(invited, ports=(port,))


@pytest.mark.asyncio
async def test_to_follow_ends_in_time_however_many_places_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "FOLLOWING", SHORT)
    with docked(ANNA) as (anna, _), docked(BERT) as (bert, _), silent() as port:
        invited = at(port, anna.invitation(BERT, sends=True))
        async with asyncio.timeout(MAX_TRIED * LIMIT / 2):
            assert await bert.follow(ANNA, [HOST] * MAX_TRIED, invited, sends=False) == Knocked(False)


@pytest.mark.asyncio
async def test_one_peer_keeps_us_busy_with_few_invitations_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "FOLLOWING", 10 * SHORT)
    with docked(ANNA) as (anna, _), docked(BERT) as (bert, at_bert), silent() as port:
        bad = at(port, anna.invitation(BERT, sends=True))
        busy = [asyncio.create_task(bert.follow(MALLORY, [HOST], bad, sends=False)) for _ in range(OF_PEER)]
        await asyncio.sleep(0)
        assert await bert.follow(MALLORY, [HOST], bad, sends=False) == Knocked(False)
        assert not any(each.done() for each in busy), "one too many is refused at once"
        good = anna.invitation(BERT, sends=True)
        assert await bert.follow(ANNA, [HOST], good, sends=False) == Knocked(True)
        assert at_bert
        assert not any(each.done() for each in busy)
        assert await asyncio.gather(*busy) == [Knocked(False)] * OF_PEER


@pytest.mark.asyncio
async def test_dials_in_vain_are_on_the_account_of_the_host() -> None:
    with docked(ANNA) as (anna, at_anna), docked(BERT, Allowances(2, 1e-6, 8)) as (bert, _):
        for _ in range(3):  # what comes to a connection costs nothing
            invited = anna.invitation(BERT, sends=True)
            assert await bert.follow(ANNA, [HOST], invited, sends=False) == Knocked(True)
        with socket.create_server((HOST, 0)) as gone:
            shut = gone.getsockname()[1]
        for _ in range(2):
            assert await bert.follow(ANNA, [HOST], at(shut, invited), sends=False) == Knocked(False)
        invited = anna.invitation(BERT, sends=True)
        assert await bert.follow(ANNA, [HOST], invited, sends=False) == Knocked(False), "nobody is dialled any more"
        await eventually(lambda: len(at_anna) == 3)


@pytest.mark.asyncio
async def test_beyond_so_many_sockets_none_is_promised_and_none_taken() -> None:
    enough = threading.Event()
    with docked(ANNA) as (anna, at_anna), docked(BERT) as (bert, at_bert):
        invited = anna.invitation(BERT, sends=True)
        anna.limit = ConnectionLimit(most=2)
        lodgers = [Thread(target=enough.wait) for _ in range(2)]
        for each in lodgers:
            each.start()
            anna.limit.take(each)
        with pytest.raises(TransportError, match="no more"):
            anna.invitation(BERT, sends=True)
        assert await anna.follow(BERT, [HOST], invited, sends=True) == Knocked(False)
        assert await bert.follow(ANNA, [HOST], invited, sends=False) == Knocked(True), "it cannot know"
        came = at_bert[0][2].socket
        came.settimeout(10)
        assert await asyncio.to_thread(came.recv, 1) == b"", "hung up on"
        assert not at_anna
        enough.set()
        for each in lodgers:
            each.join()
        assert anna.invitation(BERT, sends=True)


@pytest.mark.asyncio
async def test_who_closes_leaves_no_thread_whatever_is_at_work() -> None:
    before = {*threading.enumerate()}
    with docked(ANNA) as (anna, _), docked(BERT) as (bert, _), silent() as port:
        bad = at(port, anna.invitation(BERT, sends=True))
        following = asyncio.create_task(bert.follow(ANNA, [HOST], bad, sends=False))
        with socket.create_connection((HOST, anna.invitation(BERT, sends=True).ports[0])):
            await eventually(lambda: len(handshaking()) >= 2)
            begin = asyncio.get_running_loop().time()
            for endpoint in (anna, bert):
                endpoint.close()
                await endpoint.wait_closed()
            assert asyncio.get_running_loop().time() - begin < LIMIT
        assert await following == Knocked(False)
        left = {*threading.enumerate()} - before
        assert not [each for each in left if each.name.startswith("bulk-")]


@pytest.mark.asyncio
async def test_nothing_comes_of_who_is_closed() -> None:
    with docked(ANNA) as (anna, at_anna), docked(BERT) as (bert, at_bert):
        invited = anna.invitation(BERT, sends=True)
        bert.close()
        assert await bert.follow(ANNA, [HOST], invited, sends=False) == Knocked(False)
        anna.close()
        assert not at_anna
        assert not at_bert


@pytest.mark.asyncio
async def test_whoever_is_invited_is_told_of_the_port_outside_of_our_router_too() -> None:
    with docked(ANNA) as (anna, at_anna), docked(BERT) as (bert, _):
        (inside,) = anna.invitation(BERT, sends=True).ports
        with socket.create_server((HOST, 0)) as taken:  # as where the port inside is another one's outside
            outside = taken.getsockname()[1]
        anna.set_mapped_port(outside)
        assert anna.invitation(BERT, sends=True).ports == (inside, outside)
        anna._ports = (outside,)
        anna.set_mapped_port(inside)
        invited = anna.invitation(BERT, sends=True)
        assert await bert.follow(ANNA, [HOST], invited, sends=False) == Knocked(True)
        await eventually(lambda: at_anna)
        anna.set_mapped_port(None)
        assert anna.invitation(BERT, sends=True).ports == (outside,)
