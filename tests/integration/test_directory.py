"""Real nodes that find a run by its directory alone: all they know is a node of the DHT that is not in the run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from shoal.dht.link import parse_link
from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until

MANIFEST = """
name = "public-run"
public = true
seed = 7
[model]
dim = 32
layers = 1
heads = 2
kv_heads = 1
hidden = 64
context = 32
[method]
inner_steps = 4
batch = 2
warmup_steps = 2
[rounds]
min_members = 1
start_members = 1
"""


@pytest.mark.slow
def test_a_node_that_knows_no_member_finds_the_run_and_outlives_its_founder(tmp_path: Path) -> None:
    with Children() as children:
        outsider = RealNode(tmp_path / "outsider").start(children)
        far = RealNode(tmp_path / "far").start(children, outsider.address)
        founder = RealNode(tmp_path / "founder").start(children, outsider.address)
        run = founder.client.create_run(MANIFEST, True)["run"]

        def words() -> str:
            return "\n".join(each.words() for each in (outsider, far, founder))

        def listed() -> list[str]:
            return [row["run"] for row in far.client.public_runs()]

        def announcers() -> int:
            """The members with an entry; entries of killed members stay until they expire."""
            return sum(row["announced_by"] for row in far.client.public_runs() if row["run"] == run)

        until(lambda: run in listed(), "the run to be listed for a stranger", words)
        row = far.client.public_runs()[0]
        assert (row["name"], row["members"]) == ("public-run", 1)
        assert parse_link(row["link"]).run.hex() == run

        def join(name: str, known: RealNode) -> RealNode:
            node = RealNode(tmp_path / name).start(children, known.address)
            until(lambda: node.client.status()["dht"]["servers"], f"{name} to know a server", node.words)
            node.client.join_run(run, True)
            return node

        second = join("second", outsider)
        until(lambda: second.row().get("members") == 2, "the second member to see the first", words)
        third = join("third", far)
        until(lambda: third.row().get("members") == 3, "the third member to see both", words)

        until(lambda: len(third.voters(run)) == 3, "all three to vote, so that two of them can go on", words)
        assert founder.child is not None
        founder.child.process.send_signal(signal.SIGKILL)
        before = max(second.round(), third.round())
        until(lambda: min(second.round(), third.round()) > before + 1, "the run to go on", second.words)

        last = join("last", far)
        until(lambda: last.row().get("members") == 3, "the newcomer to see the two that live", last.words)
        second.client.leave_run(run)
        third.client.leave_run(run)
        last.client.leave_run(run)
        until(lambda: announcers() == 1, "what those who left had announced to be withdrawn", words)
