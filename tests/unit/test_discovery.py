"""The DHT's shell: its clock, and greetings before we know whether others can reach us."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.dht.effects import Call, Effect
from shoal.node.peers.discovery import LONG_IDLE, MAX_SPARE_OF_CLIENT, Discovery
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Greet, Greeted
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity
from tests.preload import CLOCK, preloaded

DAYS = 3 * 86_400
WATCH = """
import sys, time
from pathlib import Path
from shoal.node.peers.discovery import Discovery
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.peers.network import Network

ahead, identity = Path(sys.argv[1]), Identity.generate()
discovery = Discovery(identity, Network(identity, host="127.0.0.1", port=0))
for step in map(int, sys.argv[2:]):
    ahead.write_text(str(step))
    now = discovery.now()
    print(now, discovery._core.wall.at(now))
"""


def test_the_wall_clock_is_followed_both_ways_and_only_records_go_by_it(tmp_path: Path) -> None:
    """A clock that was wrong for a while, and is right again, is as right as before; nothing else has noticed."""
    steps = (0, DAYS, 0, -DAYS, 0)
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    environment = {**os.environ, **preloaded(tmp_path, CLOCK), "SHIM_AHEAD": str(ahead)}
    command = [sys.executable, "-c", WATCH, str(ahead), *map(str, steps)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [tuple(map(float, line.split())) for line in shown.splitlines()]
    (first, wall), *_ = lines
    for (now, clock), step in zip(lines, steps, strict=True):
        assert first <= now < first + 60
        assert step <= clock - wall < step + 60


@pytest.mark.asyncio
async def test_a_connection_over_which_others_ask_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many that the DHT has no use for, the one stays over which experts were asked."""
    identity = Identity.generate()
    network = Network(identity, host="127.0.0.1", port=0)
    discovery = Discovery(identity, network)
    discovery._running = True
    busy, *others = (PeerId(f"peer{number}") for number in range(MAX_SPARE_OF_CLIENT + 5))
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
    discovery._running = True
    monkeypatch.setattr(discovery._dial_back, "first_verdict", known.wait)
    monkeypatch.setattr(discovery, "_carry_out", asked.extend)

    def greet(serves: int) -> asyncio.Task[Message]:
        answer = discovery.on_call(other, Greet(("/ip4/203.0.113.7/tcp/4101",) * serves, bool(serves)))
        assert not isinstance(answer, Message)
        return asyncio.create_task(answer)

    first, second = greet(0), greet(1)
    await asyncio.sleep(0)
    (greeting,) = (effect for effect in asked if isinstance(effect, Call))
    assert greeting.to.peer == other
    assert not first.done()
    discovery._core.set_contact(discovery.now(), ("/ip4/127.0.0.1/tcp/4102",), True)
    known.set()
    for answer in (await first, await second):
        assert isinstance(answer, Greeted)
        assert answer.serves
