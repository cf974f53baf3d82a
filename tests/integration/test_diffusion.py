"""Real nodes of a family of experts on pictures: clusters and router are trained apart, what is published is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.integration.test_families import are_finished, payload_bytes, words_of

FAMILY = """
name = "digits"
seed = 3
[model]
name = "flow"
width = 64
layers = 2
hidden = 128
[data]
name = "digits"
[method]
name = "experts"
inner_steps = 50
batch = 64
inner_lr = 3e-3
warmup_steps = 20
[experts]
steps = 250
publish_every = 2
[experts.clusters]
count = 2
by = "pixels"
[[experts.parts]]
name = "router"
[experts.parts.model]
name = "router"
experts = 2
width = 32
layers = 1
hidden = 64
"""


@pytest.mark.slow
def test_two_nodes_train_clusters_and_router_apart(children: Children, tmp_path: Path) -> None:
    first = RealNode(tmp_path / "first").start(children)
    second = RealNode(tmp_path / "second").start(children, first.address)
    until(lambda: second.client.status()["dht"]["servers"], "the second node to know a server", second.words)
    family = first.client.create_run(FAMILY, True)["run"]
    second.client.join_run(first.client.run_link(family)["link"], True)

    def all_done() -> bool:
        assert payload_bytes(first) == payload_bytes(second) == 0, "experts have exchanged something"
        return are_finished(first, family) and are_finished(second, family)

    until(all_done, "all parts", lambda: words_of(first, second))
    answer = second.client.fetch_experts(family, str(tmp_path / "out"))
    assert answer["missing"] == []
    assert {each["name"] for each in answer["experts"]} == {"cluster-0", "cluster-1", "router"}
