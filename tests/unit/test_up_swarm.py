"""What `shoal up` says of its peers while they train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.node.up.peers import LocalPeer
from shoal.node.up.records import Metrics
from shoal.node.up.swarm import Swarm
from shoal.protocol.errors import LocalError

LOST = "the worker has failed in round 1: IndexError: 32; it is started again"


class Said(list[str]):
    """A display that keeps what it is told."""

    def say(self, text: str) -> None:
        self.append(text)


class Peer(LocalPeer):
    """One that is as the test says."""

    async def observe(self, run: str | None) -> None:
        pass


@pytest.mark.asyncio
async def test_a_lost_worker_is_told_of_once_for_as_long_as_none_trains(tmp_path: Path) -> None:
    said, peer = Said(), Peer("peer-1", tmp_path)
    with Metrics(tmp_path / "metrics.jsonl") as metrics:
        swarm = Swarm(metrics, said, lambda: False)  # type: ignore[arg-type]
        for lost in (None, LOST, LOST, "the worker was ended by SIGKILL; it is started again", LOST, None, LOST):
            peer.row = {"worker_lost": lost}
            await swarm._observe(peer)
        peer.row = {"worker_failure": "the worker has failed: IndexError: 32. No other is started"}
        with pytest.raises(LocalError, match="peer-1 cannot train: the worker has failed: IndexError: 32"):
            await swarm._observe(peer)
    killed = "peer-1: the worker was ended by SIGKILL; it is started again"
    assert said == [f"peer-1: {LOST}", killed, f"peer-1: {LOST}", f"peer-1: {LOST}"]
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(each["event"], each["peer"], each["text"]) for each in written] == [
        ("worker-lost", "peer-1", text) for text in said
    ]
