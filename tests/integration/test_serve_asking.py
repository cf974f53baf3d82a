"""A real `shoal serve FAMILY`, whose experts are on other nodes, in processes of their own; some are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.asking_kit import SEEN, Answerer, are_answered, start_nodes
from tests.integration.nodes import RealNode, until
from tests.integration.test_serve import ENDLESS, Server, end, start

STREAMS, LENGTH = 32, 120


@pytest.fixture
def answer() -> Iterator[Callable[..., Answerer]]:
    """Starts a process that answers; all that still run are ended, and must end well."""
    started: list[Answerer] = []

    def begin(node: RealNode, *parts: str) -> Answerer:
        started.append(Answerer(node, *parts))
        return started[-1]

    yield begin
    assert {each.end() for each in started} <= {0, -signal.SIGKILL}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Starts a server of the family."""
    started: list[subprocess.Popen[str]] = []

    def begin(node: RealNode, *flags: str) -> Server:
        monkeypatch.setenv("SHOAL_HOME", str(node.home.root))
        process, server = start(Path("fam"), "--prefer", "peers", *flags)
        started.append(process)
        return server

    yield begin
    assert {end(process) for process in started} <= {0}


def see(node: RealNode, **counts: int) -> None:
    """Wait until a node knows of so many peers that answer for each part."""
    until(partial(are_answered, node, "fam", counts), f"{counts} to be seen", node.words, SEEN)


def stream(server: Server, number: int) -> tuple[int, str, dict[str, Any]]:
    """How many tokens a stream had, why it ended, and what it says of its experts."""
    parts = server.client.completions.create(
        model="fam", prompt="x" * (1 + 5 * number), max_tokens=LENGTH + number, seed=number, stream=True,
        stream_options={"include_usage": True}, extra_body=ENDLESS,
    )  # fmt: skip
    *_, last, usage = parts
    return usage.usage.completion_tokens, last.choices[0].finish_reason, last.choices[0].shoal


def streams_while(server: Server, deed: Any) -> list[dict[str, Any]]:
    """Run 32 streams, and something else meanwhile; the experts that each stream names. All must be complete."""
    with ThreadPoolExecutor(STREAMS) as pool:
        found = [pool.submit(stream, server, number) for number in range(STREAMS)]
        until(lambda: server.about()["busy"] == STREAMS, "all streams to be written", lambda: str(server.about()))
        deed()
        answers = [each.result(240) for each in found]
    assert [(tokens, why) for tokens, why, _ in answers] == [(LENGTH + number, "length") for number in range(STREAMS)]
    return [said for _, _, said in answers]


@pytest.mark.slow
@pytest.mark.swarm
def test_a_killed_process_is_lost_to_all_streams_that_it_wrote_and_they_say_so(
    children: Children, tmp_path: Path, answer: Callable[..., Answerer], serve: Callable[..., Server]
) -> None:
    nodes = start_nodes(children, tmp_path, {"front": {}, "left": {"code": 1}, "right": {"prose": 2}})
    left, _ = answer(nodes["left"], "code"), answer(nodes["right"])
    see(nodes["front"], code=1, prose=1)
    server = serve(nodes["front"])
    rows = server.about()["experts"]
    assert [(each["name"], each["place"], each["answers"]) for each in rows] == [
        ("code", "peers", True),
        ("prose", "peers", True),
    ]
    said = streams_while(server, left.kill)
    assert all(each["lost"] == ["code"] and each["experts"] == {"prose": 1.0} for each in said), said
    assert (
        "code" in {each["name"] for each in server.about()["experts"] if not each["answers"]}
        or len(server.about()["experts"]) == 1
    )

    whole = server.post("completions", b'{"model": "fam", "prompt": "x", "max_tokens": 3}')
    assert whole[0] == 200
    answer(nodes["left"], "code")
    see(nodes["front"], code=1)

    def is_back() -> bool:
        told = server.client.completions.create(model="fam", prompt="x", max_tokens=3, extra_body=ENDLESS)
        return told.choices[0].shoal["lost"] == [] and set(told.choices[0].shoal["experts"]) == {"code", "prose"}

    until(is_back, "the expert to be back", lambda: str(server.about()))


@pytest.mark.slow
def test_a_replica_takes_over_from_a_killed_node_and_without_one_the_streams_go_on(
    children: Children, tmp_path: Path, answer: Callable[..., Answerer], serve: Callable[..., Server]
) -> None:
    """Of two nodes that answer for `code` one is killed; then the only one that answers for `prose`."""
    planted = {"front": {}, "left": {"code": 1}, "right": {"prose": 2}, "spare": {"code": 1}}
    nodes = start_nodes(children, tmp_path, planted)
    for name in ("left", "spare", "right"):
        answer(nodes[name])
    see(nodes["front"], code=2, prose=1)
    server = serve(nodes["front"])

    def kill_the_one_that_writes() -> None:
        until(lambda: times(server, "code"), "a time to be known", lambda: str(server.about()))
        peer = max(times(server, "code"), key=lambda each: times(server, "code")[each])
        victim = next(node for node in nodes.values() if node.client.status()["peer"] == peer)
        os.kill(victim.pid, signal.SIGKILL)

    said = streams_while(server, kill_the_one_that_writes)
    assert all(each["lost"] == [] and set(each["experts"]) == {"code", "prose"} for each in said), said

    said = streams_while(server, lambda: os.kill(nodes["right"].pid, signal.SIGKILL))
    assert all(each["lost"] == ["prose"] and each["experts"] == {"code": 1.0} for each in said), said


def times(server: Server, name: str) -> dict[str, float]:
    """How long the peers that were asked for an expert take, in milliseconds."""
    (row,) = (each for each in server.about()["experts"] if each["name"] == name)
    return {each["peer"]: each["milliseconds"] for each in row["peers"] if each["milliseconds"]}
