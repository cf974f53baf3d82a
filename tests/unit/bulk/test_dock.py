"""Where bulk sockets come to be: keys are those of these two, and an invitation that is handed on is worth nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.protocol.bulk.dock import Dock
from shoal.protocol.bulk.handshake import Opened
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.bulk import Flow, Knocked
from shoal.protocol.throttle import Throttle

ANNA, BERT, MALLORY = PeerId("anna"), PeerId("bert"), PeerId("mallory")
HOST = "127.0.0.1"


@contextmanager
def docked(name: PeerId) -> Iterator[tuple[Dock, list[tuple[PeerId, Flow, bool, Opened]]]]:
    opened: list[tuple[PeerId, Flow, bool, Opened]] = []
    dock = Dock(name, lambda *what: opened.append(what), Throttle())
    listener = socket.create_server((HOST, 0))
    dock.open([listener], [listener.getsockname()[1]])
    try:
        yield dock, opened
    finally:
        dock.close()
        for *_, each in opened:
            each.socket.close()


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.asyncio
@pytest.mark.parametrize("flow", Flow)
@pytest.mark.parametrize("sends", [False, True])
async def test_both_ends_have_one_key(flow: Flow, sends: bool) -> None:
    with docked(ANNA) as (anna, at_anna), docked(BERT) as (bert, at_bert):
        invited = anna.invitation(BERT, flow, sends=sends)
        assert await bert.follow(ANNA, [HOST], invited, sends=not sends) == Knocked(True)
        await eventually(lambda: at_anna)
        assert (at_anna[0][:3], at_bert[0][:3]) == ((BERT, flow, sends), (ANNA, flow, not sends))
        assert at_anna[0][3].key == at_bert[0][3].key


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", ["name", "flow", "way"])
async def test_who_is_taken_for_another_or_for_another_use_has_another_key(wrong: str) -> None:
    """Mallory gives Anna's invitation to Bert as its own, or says that it is for something else."""
    with docked(ANNA) as (anna, at_anna), docked(BERT) as (bert, at_bert):
        invited = anna.invitation(MALLORY if wrong == "name" else BERT, Flow.GATHER, sends=True)
        if wrong == "flow":
            invited = type(invited)(Flow.SCATTER, invited.ports, invited.fingerprint, invited.token)
        whom = MALLORY if wrong == "name" else ANNA
        assert await bert.follow(whom, [HOST], invited, sends=wrong == "way") == Knocked(True)
        await eventually(lambda: at_anna)
        assert at_anna[0][3].key != at_bert[0][3].key


@pytest.mark.asyncio
async def test_no_port_of_the_system_is_dialled_for_a_peer() -> None:
    with docked(ANNA) as (anna, _), docked(BERT) as (bert, _):
        invited = anna.invitation(BERT, Flow.GATHER, sends=True)
        odd = type(invited)(invited.flow, (22, 80, (1 << 40) + 8080), invited.fingerprint, invited.token)
        assert await bert.follow(ANNA, [HOST], odd, sends=False) == Knocked(False)
