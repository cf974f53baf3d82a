"""What `shoal up` reports of its peers while they train."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from shoal.node.base.lines import LineStream
from shoal.node.base.options import UpOptions
from shoal.node.client.up.orchestrate import _Command
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.up.swarm import Metrics, Swarm
from shoal.protocol.base.errors import LocalError

LOST = "the worker has failed in round 1: IndexError: 32; it is started again"


class Said(list[str]):
    """A display that keeps what it is told."""

    def say(self, text: str) -> None:
        self.append(text)


class Peer(LocalPeer):
    """A peer in the state that the test gives."""

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
        peer.row = {"worker_failure": "the worker has failed: IndexError: 32"}
        with pytest.raises(
            LocalError, match=r"peer-1 cannot train: the worker has failed: IndexError: 32 \(its log is"
        ):
            await swarm._observe(peer)
    killed = "peer-1: the worker was ended by SIGKILL; it is started again"
    assert said == [f"peer-1: {LOST}", killed, f"peer-1: {LOST}", f"peer-1: {LOST}"]
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(each["event"], each["peer"], each["text"]) for each in written] == [
        ("worker-lost", "peer-1", text) for text in said
    ]


@pytest.mark.asyncio
async def test_what_happened_to_a_run_that_went_on_in_parts_is_told_once_by_each_peer(tmp_path: Path) -> None:
    alone, again = "it goes on with one member (abcdef)", "bcdefg is a member again"
    said, peers = Said(), [Peer("peer-1", tmp_path), Peer("peer-2", tmp_path)]
    with Metrics(tmp_path / "metrics.jsonl") as metrics:
        swarm = Swarm(metrics, said, lambda: False)  # type: ignore[arg-type]
        for event in (None, alone, alone, again, again):
            for peer in peers:
                peer.row = {"branch_event": event}
                await swarm._observe(peer)
    assert said == [f"{name}: {event}" for event in (alone, again) for name in ("peer-1", "peer-2")]
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(each["event"], each["text"]) for each in written] == [("branch", text) for text in said]


@pytest.mark.asyncio
async def test_a_run_that_fails_on_a_peer_ends_all_unless_it_tries_again(tmp_path: Path) -> None:
    said, peer = Said(), Peer("peer-2", tmp_path)
    with Metrics(tmp_path / "metrics.jsonl") as metrics:
        swarm = Swarm(metrics, said, lambda: False)  # type: ignore[arg-type]
        for failure in (None, "the disk is full", "the disk is full", None, "the disk is full"):
            peer.row = {"failure": failure, "may_be_opened_again": True}
            await swarm._observe(peer)
        assert said == ["the run fails on peer-2, which tries again: the disk is full"] * 2
        peer.row = {"failure": "the disk is on fire", "may_be_opened_again": False}
        with pytest.raises(LocalError, match="the run has failed on peer-2: the disk is on fire \\(its log is "):
            await swarm._observe(peer)


class Late(_Command):
    """A command that hears a signal after its last chance to be cancelled: while it ends its children."""

    async def _run(self) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)  # the signal's handler is called when the loop next looks
        while not self.received:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
        self.answer = {}
        return 0


@pytest.mark.asyncio
async def test_a_signal_that_comes_as_the_children_are_ended_counts(tmp_path: Path) -> None:
    late = Late(UpOptions(json=True), tmp_path / "out", tmp_path, LineStream(sys.stdout))
    assert await late.unless_signalled() == 128 + signal.SIGTERM
