"""`shoal serve RUN` beside two real nodes that train: texts go on through commits, and the server outlives its node."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.integration.test_serve import ENDLESS, Server, end, start

pytest.importorskip("openai", reason="openai IS NOT INSTALLED: see `make install`")

MANIFEST = """
name = "living"
seed = 5
[model]
dim = 32
layers = 2
heads = 2
kv_heads = 1
hidden = 48
context = 2048
[method]
inner_steps = 2
batch = 1
"""


def words_of(*nodes: RealNode) -> str:
    return "\n".join(f"{node.folder.name}:\n{node.words()}" for node in nodes)


def two_nodes(children: Children, folder: Path, manifest: str = MANIFEST) -> tuple[RealNode, RealNode]:
    first = RealNode(folder / "first").start(children)
    second = RealNode(folder / "second").start(children, first.address)
    run = first.client.create_run(manifest, True)["run"]
    second.client.join_run(first.client.run_link(run)["link"], True)
    until(lambda: second.round() >= 2, "rounds", lambda: words_of(first, second))
    return first, second


def stream(server: Server, tokens: int) -> tuple[list[str], int, str | None, dict[str, Any]]:
    """The fingerprints of a text's parts, its tokens, how it ended, and what was said of it then."""
    parts = list(
        server.client.completions.create(
            model="living",
            prompt="def",
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=ENDLESS,
        )
    )
    *_, last, usage = parts
    fingerprints = list(dict.fromkeys(part.system_fingerprint for part in parts))
    return fingerprints, usage.usage.completion_tokens, last.choices[0].finish_reason, last.choices[0].shoal


@pytest.mark.slow
@pytest.mark.swarm
def test_a_live_run_is_served_across_commits_and_after_its_node(children: Children, tmp_path: Path) -> None:
    first, second = two_nodes(children, tmp_path)
    process, server = start("living", home=second.home)

    def words() -> str:
        return f"{words_of(first, second)}\n{server.about()}"

    try:
        begun = server.about()["round"]
        with ThreadPoolExecutor(4) as pool:
            texts = [pool.submit(stream, server, 1500) for _ in range(4)]
            until(lambda: server.about()["round"] >= begun + 3, "three commits", words)
            later = pool.submit(stream, server, 50)
            results = [text.result() for text in texts]
        fingerprints = set()
        for found, tokens, finish, notes in results:
            assert (len(found), tokens, finish) == (1, 1500, "length"), "a text goes on with the weights it began with"
            assert notes["root"].startswith(found[0])
            fingerprints.add(found[0])
        (newer,), tokens, _, notes = later.result()
        assert tokens == 50
        assert newer not in fingerprints
        assert notes["round"] > begun
        until(lambda: server.about()["follows"], "the node, if it is behind the other just now", words)

        os.kill(second.pid, signal.SIGKILL)
        until(lambda: "no node runs" in server.about().get("trouble", ""), "the node to be missed", words)
        about = server.about()
        assert not about["follows"]
        (last,), tokens, finish, _ = stream(server, 300)
        assert (tokens, finish) == (300, "length")
        assert last == about["version"] == about["root"][:16]

        second.start(children, first.address)
        until(lambda: server.about()["follows"], "the node to be back", words)
        until(lambda: server.about()["round"] > about["round"], "it to catch up", words)
        assert stream(server, 5)[0] != [last]
    finally:
        assert end(process) == 0
