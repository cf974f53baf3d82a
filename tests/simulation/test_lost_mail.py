"""Messages that came too early and found no room cost time, not rounds: all of them are sent again."""

from __future__ import annotations

import pytest

from shoal.protocol.rounds import mailbox
from tests.simulation.campaign import build
from tests.simulation.links import Link
from tests.simulation.swarm import peers_named


@pytest.mark.parametrize("room", [0, 600])
def test_rounds_commit_without_room_for_early_mail(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "VOTERS_BYTES", room)
    monkeypatch.setattr(mailbox, "STRANGERS_BYTES", room)
    world, oracle = build(7, 5, Link(delay=0.02, jitter=0.15, loss=0.0, duplicate=0.0))
    world.run(60.0)
    assert oracle.newest >= 5
    assert len({world.node(peer).round for peer in peers_named(5)}) <= 2
