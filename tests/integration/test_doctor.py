"""`shoal doctor` between real daemons: a live peer, a dead one, another identity, and what is nobody at all."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.node.api.answers import Answer
from shoal.node.base.exits import Exit
from shoal.node.client.up.processes import Children
from shoal.node.peers.bandwidth_probe import probe_from, probe_to, round_trip
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.net.measure.bandwidth_probe import MOST
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import RealNode, until


def examine(node: RealNode, peer: str) -> tuple[Sequence[Answer], Answer]:
    """The steps that were told, and the report."""
    first, *steps, report = node.client.examine(peer)
    assert (first["event"], {step["event"] for step in steps} - {"step"}, report["event"]) == ("peer", set(), "report")
    return steps, report


def test_what_is_wrong_is_said_with_the_steps_that_show_it(children: Children, tmp_path: Path) -> None:
    a, b, c = (RealNode(tmp_path / name) for name in "abc")
    a.start(children)
    for node in (b, c):
        node.launch(children)
    for node in (b, c):
        node.ready()
    names = {node: str(node.client.status()["peer"]) for node in (a, b, c)}

    # whom an address leads to is learned by dialling it
    place = a.address.partition("/p2p/")[0]
    steps, report = examine(b, place)
    assert (report["peer"], report["path"]) == (names[a], "direct")
    assert [(step["way"], step["code"]) for step in steps] == [("name", "ok"), ("dial", "ok")]
    _, report = examine(a, place)
    assert (report["peer"], report["verdict"]["code"]) == (None, "itself")
    _, report = examine(b, "/dns4/nowhere.invalid/tcp/4101")
    assert (report["peer"], report["verdict"]["code"]) == (None, "unresolved")

    # a live peer, by the end of its name
    _, report = examine(b, names[a][-6:])
    assert (report["peer"], report["path"], report["reason_code"]) == (names[a], "direct", "dialled")
    assert (report["verdict"]["code"], report["verdict"]["side"]) == ("direct", "nobody")
    assert (report["there"]["path"], report["there"]["reason_code"]) == ("direct", "it-dialled")
    assert report["here"]["addresses"] == b.client.status()["addresses"]
    assert report["send_rate"] > 1e5
    assert report["receive_rate"] > 1e5
    [row] = [row for row in b.client.peers() if row["peer"] == names[a]]
    assert row["reason"] == report["reason"]
    assert row["send_rate"] is not None, "what was measured is shown from then on"
    assert row["receive_rate"] is not None

    # it consents only to so many bytes, and so much of a busy machine may be less than once
    until(lambda: "was measured just now" in str(examine(b, names[a])[1]["rate_note"]), "a refusal", b.words)

    # nobody who could be meant: no event, but a sentence
    for asked, words in (("nonsense", "no peer 'nonsense'"), (names[b], "this node itself"), ("/ip4/1", "no address")):
        with pytest.raises(LocalError, match=words):
            list(b.client.examine(asked))

    # another identity, at the address of a living node
    wrong = a.address.replace(names[a], Identity.generate().peer)
    steps, report = examine(b, wrong)
    assert (report["path"], report["verdict"]["code"]) == (None, "other-identity")
    assert names[a] in report["verdict"]["sentence"]
    assert [step["code"] for step in steps if step["live"]] == ["other-identity", "other-identity"]

    # a dead one, that was there before
    door = c.address
    _, report = examine(b, door)
    assert report["path"] == "direct"
    c.kill()
    until(lambda: names[c] not in {row["peer"] for row in b.client.peers()}, "the loss", b.words)
    steps, report = examine(b, door)
    assert (report["path"], report["verdict"]["code"], report["verdict"]["side"]) == (None, "refused", "theirs")
    assert [step["way"] for step in steps if step["way"] == "lost"] == ["lost"]
    assert ("dial", "refused") in [(step["way"], step["code"]) for step in steps if step["live"]]

    shown = shoal(b, "doctor", door, "--json")
    assert shown.returncode == Exit.UNREACHABLE
    assert json.loads(shown.stdout)["verdict"]["code"] == "refused"
    assert shoal(b, "doctor", names[a][-6:]).returncode == 0
    assert all("Traceback" not in node.words() for node in (a, b, c))


def shoal(node: RealNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "shoal.node", *arguments]
    environ = {**os.environ, "SHOAL_HOME": str(node.home.root)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=False)


@pytest.mark.asyncio
async def test_whoever_does_not_answer_is_not_measured() -> None:
    """Nobody is served who is not asked for: a network without a desk refuses, and all ends with one error."""
    one, other = (Network(Identity.generate(), host="127.0.0.1", port=0) for _ in range(2))
    await one.start()
    await other.start()
    try:
        peer = await one.connect(other.addresses()[0])
        for ask in (round_trip(one, peer), probe_to(one, peer, MOST), probe_from(one, peer, MOST)):
            with pytest.raises(Exception, match="is not served here"):
                await asyncio.wait_for(ask, 30)
        await other.close()
        with pytest.raises(TransportError):
            await asyncio.wait_for(probe_to(one, peer, MOST), 30)
    finally:
        await one.close()
        await other.close()
