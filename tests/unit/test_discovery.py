"""The DHT's shell: its clock, and greetings before we know whether others can reach us."""

from __future__ import annotations

import asyncio
import time

import pytest

from shoal.dht.effects import Ask, Effect
from shoal.node.peers.discovery import SUSPENDED, Discovery
from shoal.node.peers.idle import FEW, LONG_IDLE
from shoal.protocol.identity import Identity
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.dht import Greet, Greeted
from shoal.protocol.network import Network
from shoal.protocol.wire import Message


@pytest.mark.asyncio
async def test_the_clock_never_goes_back_and_follows_after_a_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Identity.generate()
    discovery = Discovery(identity, Network(identity, host="127.0.0.1", port=0))
    discovery._origin = time.time() - asyncio.get_running_loop().time()
    began, wall = discovery.now(), time.time()
    for ahead, least in ((-3600.0, 0.0), (SUSPENDED / 2, 0.0), (3600.0, 3599.0), (-3600.0, 3599.0)):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: wall + ahead)
        assert least <= discovery.now() - began < least + 60


@pytest.mark.asyncio
async def test_a_connection_over_which_others_ask_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many that the DHT has no use for, the one stays over which experts were asked."""
    identity = Identity.generate()
    network = Network(identity, host="127.0.0.1", port=0)
    discovery = Discovery(identity, network)
    discovery._origin, discovery._running = time.time() - asyncio.get_running_loop().time(), True
    busy, *others = (PeerId(f"peer{number}") for number in range(FEW + 5))
    began = discovery.now()
    assert not discovery._last_use.to_close(began, [busy, *others], (), serves=False)
    monkeypatch.setattr(discovery, "now", lambda: began + LONG_IDLE)
    discovery.used(busy)
    closed = discovery._last_use.to_close(discovery.now(), [busy, *others], (), serves=False)
    assert len(closed) == 5
    assert busy not in closed


@pytest.mark.asyncio
async def test_a_greeting_is_taken_in_at_once_though_its_answer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """If both waited, a peer's first word, that it does not serve yet, would be heard after its second."""
    identity, other = Identity.generate(), Identity.generate().peer
    network, known = Network(identity, host="127.0.0.1", port=0), asyncio.Event()
    discovery, asked = Discovery(identity, network), list[Effect]()
    monkeypatch.setattr(network, "remote_addresses", lambda peer: ())
    discovery._origin, discovery._running = time.time() - asyncio.get_running_loop().time(), True
    monkeypatch.setattr(discovery._dial_back, "first_verdict", known.wait)
    monkeypatch.setattr(discovery, "_carry_out", asked.extend)

    def greet(serves: int) -> asyncio.Task[Message]:
        answer = discovery.on_call(other, Greet(("/ip4/203.0.113.7/tcp/4101",) * serves, bool(serves)))
        assert not isinstance(answer, Message)
        return asyncio.create_task(answer)

    first, second = greet(0), greet(1)
    await asyncio.sleep(0)
    (greeting,) = (effect for effect in asked if isinstance(effect, Ask))
    assert greeting.to.peer == other
    assert not first.done()
    discovery._core.set_contact(discovery.now(), ("/ip4/127.0.0.1/tcp/4102",), True)
    known.set()
    for answer in (await first, await second):
        assert isinstance(answer, Greeted)
        assert answer.serves
