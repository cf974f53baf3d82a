"""Name servers that never answer hold up no round, join or end of a node, and the node says so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.integration.test_node import MANIFEST
from tests.preload import SLOW_RESOLVER, preloaded

NAMES = 12  # more than an event loop has threads for all else on this machine
SOON = 15.0  # seconds; they hang for as long as the test lasts


@pytest.mark.slow
def test_names_that_nobody_answers_for_hold_up_nothing(children: Children, tmp_path: Path) -> None:
    held, waits = tmp_path / "held", tmp_path / "waits"
    held.touch()
    creator = RealNode(tmp_path / "creator").start(children)
    run = str(creator.client.create_run(MANIFEST, True)["run"])
    shim = preloaded(tmp_path, SLOW_RESOLVER) | {"SHIM_HELD": str(held), "SHIM_WAITS": str(waits)}
    member = RealNode(tmp_path / "member")
    member.prefix = ("env", *(f"{name}={value}" for name, value in shim.items()))
    dead = [f"/dns4/name{number}.held/tcp/4101" for number in range(NAMES)]
    member.start(children, (*dead, creator.address))

    def words() -> str:
        return f"{creator.words()}\n{member.words()}"

    until(lambda: waits.exists() and len(waits.read_text().splitlines()) >= NAMES, "the look-ups to begin", words)
    begin = time.monotonic()
    until(member.client.peers, "a connection", words)
    member.client.join_run(run, True)
    until(lambda: member.round() >= 3, "rounds", words)
    took = time.monotonic() - begin
    until(lambda: "this machine's name servers have not answered" in member.log.read_text(), "a word", words)
    assert member.child is not None
    begin = time.monotonic()
    member.client.stop()
    until(lambda: not member.is_running, "the end", words)
    print(f"joined and three rounds in {took:.1f} s, ended in {time.monotonic() - begin:.1f} s")
    assert time.monotonic() - begin < SOON
    assert took < SOON
    assert len(waits.read_text().splitlines()) == NAMES, "one look-up for each name"
