"""The only public node of a swarm, its relay and holder of all records, dies: what remains until another one comes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode
from tests.netlab.places import settle

HOMES = ("home-drop", "home-double", "home-symmetric", "home-drop")
LONG = 180.0  # seconds


@pytest.mark.slow
@pytest.mark.patient
def test_members_behind_routers_write_their_run_into_the_next_server(
    lab: Lab, children: Children, tmp_path: Path
) -> None:
    """Nobody of them serves the DHT: who is in the run knows it, and writes it anew wherever there is a server."""
    first, second = (LabNode(lab.internet.host(f"server{number}"), tmp_path / f"server{number}") for number in (1, 2))
    first.start(children)
    until(lambda: bool(first.status()), "the first server", first.words, LONG)
    manifest = tmp_path / "tiny.toml"
    manifest.write_text(MANIFEST)
    members = [LabNode(settle(lab.internet, place, f"at{n}"), tmp_path / f"{n}") for n, place in enumerate(HOMES)]
    doors = (first.door, second.door)
    for node in members:
        run = {"join": (str(manifest),)} if node is not members[0] else {"create": manifest}
        node.start(children, bootstrap=doors, train=False, **run)

    def words() -> str:
        return "\n".join(f"{node.host} {node.status()}\n{node.words()}" for node in members)

    until(lambda: all(seen(node) == len(HOMES) for node in members), "one run", words, LONG)
    until(lambda: int(first.status()["dht"]["records"]) >= len(HOMES), "records", words, LONG)
    assert first.child is not None
    first.child.kill()
    second.start(children)
    begin = time.monotonic()
    until(lambda: int((second.status().get("dht") or {}).get("records", 0)) >= len(HOMES), "records", words, LONG)
    print(f"\nthe next server holds the run's records {time.monotonic() - begin:.1f} s after it was started")

    run_id = members[0].status()["runs"][0]["run"]
    stranger = LabNode(settle(lab.internet, "home-drop", "stranger"), tmp_path / "stranger")
    stranger.start(children, bootstrap=(second.door,), join=(run_id,), train=False)
    until(lambda: seen(stranger) == len(HOMES) + 1, "somebody who knows the run's id alone", words, LONG)
    print(f"a stranger is in the run {time.monotonic() - begin:.1f} s after it")


def seen(node: LabNode) -> int:
    """How many members of its run it sees."""
    return max((int(row.get("members") or 0) for row in node.status().get("runs", ())), default=0)
