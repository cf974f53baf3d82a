"""Joining from one link: whoever has it, and reaches any member in it, is in the run; its first member is not needed.

No node here is told an address but by a link, or by what it has seen in an earlier life.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from shoal.dht.link import MAX_LINK, OTHER, encode_link, format_link, parse_link
from shoal.node.api.answers import Answer
from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import RunId
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import RealNode, until, words_of
from tests.integration.test_node import MANIFEST


@pytest.fixture
def hole() -> Iterator[str]:
    """An address at which connections are taken, and nobody ever says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"


def has_noted(node: RealNode, other: RealNode) -> Callable[[], bool]:
    peer = other.client.status()["peer"]
    return lambda: node.home.peers.exists() and peer in node.home.peers.read_text()


@pytest.mark.slow
def test_a_run_outlives_the_one_that_its_first_link_led_to(children: Children, tmp_path: Path, hole: str) -> None:
    a, b, c, d = nodes = [RealNode(tmp_path / name) for name in "abcd"]
    words = partial(words_of, *nodes)
    for node in (a, b, c):
        node.launch(children)
    for node in (a, b, c):
        node.ready()
    created = a.client.create_run(MANIFEST, False)
    run, link = str(created["run"]), str(created["link"])
    assert len(link) <= MAX_LINK
    broken = format_link(RunId(bytes.fromhex(run)), [hole, "/ip4/127.0.0.1/tcp/1", *parse_link(link).addresses])
    b.client.join_run(broken, True)  # what does not answer delays nobody
    c.client.join_run(link, True)
    until(lambda: len(c.voters(run)) == 3, "all three to vote, so that two of them can go on", words)
    until(lambda: min(node.round() for node in (b, c)) >= 1, "a round that they have, too", words)
    until(lambda: len(c.client.peers()) == 2, "c to know both", words)

    a.kill()
    before = c.round()
    fresh = str(c.client.run_link(run[:8])["link"])
    assert all(port_of(node) in parse_link(fresh).addresses for node in (b, c))
    d.start(children)
    preview = d.client.preview_run(fresh)
    assert (preview["name"], preview["data"]["problem"]) == ("tiny", "")
    assert preview["members"] in (2, 3)
    assert preview["round"] >= 1
    assert preview["pace"] is None or preview["pace"] > 0
    assert d.client.runs() == []
    assert list(d.home.runs.iterdir()) == [], "who only looks keeps nothing"
    d.client.join_run(fresh, True)
    until(lambda: d.round() > before and d.client.status()["peer"] in d.voters(run), "the run to go on, with d", words)

    until(has_noted(b, c), "a note of where the others are", words)
    b.kill()
    b.start(children)  # told nothing
    before = c.round()
    until(lambda: b.round() > before, "b to be back by its cache alone", words)
    assert all("Traceback" not in node.words() for node in nodes)


def port_of(node: RealNode) -> str:
    return node.address.partition("/p2p/")[0]


@pytest.mark.slow
def test_a_link_on_the_command_line_is_tried_until_somebody_answers(children: Children, tmp_path: Path) -> None:
    a, b = RealNode(tmp_path / "a").start(children), RealNode(tmp_path / "b")
    link = str(a.client.create_run(MANIFEST, False)["link"])
    where = int(port_of(a).rpartition("/")[2])
    a.client.stop()
    until(lambda: not a.is_running, "the end", a.words)
    b.start(children, join=(link,), train=False)
    until(lambda: "nobody has told us" in str(b.client.status()["obstacle"]), "b to say so", b.words)
    a.start(children, port=where)
    until(lambda: b.row().get("members") == 2, "b in the run", b.words)


def test_what_leads_nowhere_is_one_sentence_and_an_old_name_is_no_obstacle(children: Children, tmp_path: Path) -> None:
    a, c = (RealNode(tmp_path / name).launch(children) for name in "ac")
    b = RealNode(tmp_path / "b").start(children, c.ready().address)
    until(b.client.peers, "b to be connected", b.words)
    other = format_link(RunId(bytes(32)), a.ready().client.status()["addresses"])
    asks: list[Callable[[str], Answer]] = [b.client.preview_run, lambda link: b.client.join_run(link, True)]
    for ask in asks:
        with pytest.raises(LocalError, match="none of the 2 peers that answered is in a run 0000"):
            ask(other)
        with pytest.raises(TransportError, match=r"/ip4/127\.0\.0\.1/tcp/1: "):
            ask(format_link(RunId(bytes(32)), ["/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2"]))
        with pytest.raises(LocalError, match="is cut off"):
            ask("shoal2aaaa")
    assert b.client.runs() == []
    assert list(b.home.runs.iterdir()) == [], "what leads nowhere leaves nothing"
    assert "Traceback" not in b.words()

    # a member answers there under a new key; b is connected with somebody, and so misses nobody
    created = a.client.create_run(MANIFEST, False)
    assert a.row()["link"] == created["link"], "it is alone"
    old = f"{port_of(a)}/p2p/{Identity.generate().peer}"
    link = encode_link(RunId(bytes.fromhex(str(created["run"]))), [(OTHER, old.encode())])
    for _ in range(2):
        assert b.client.preview_run(link)["name"] == "tiny"
    assert b.client.join_run(link, False)["run"] == created["run"]

    # the founder says who has left it, and what to send to others
    b.client.leave_run(str(created["run"]))
    until(lambda: a.row().get("left") == [b.client.status()["peer"]], "a to say who has left", lambda: words_of(a, b))
    assert parse_link(str(a.row()["link"])).run.hex() == created["run"]
