"""Nodes on one network segment find each other by themselves; those on another do not, until they are plugged in."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(MANIFEST)
    return path


def test_two_nodes_without_any_address_find_each_other_and_are_in_one_run(
    lab: Lab, children: Children, tmp_path: Path, tiny: Path
) -> None:
    segment = lab.segment("home")
    nodes = [LabNode(lab.machine(name), tmp_path / name) for name in "ab"]
    for number, node in enumerate(nodes, 1):
        segment.plug(node.host, f"10.77.1.{number}/24")
        assert "default" not in node.host.ip("route")
    a, b = nodes
    a.start(children, create=tiny, train=False)
    b.start(children, join=(a.run(),), train=False)
    until(lambda: members(a) == members(b) == 2, "both in one run", lambda: a.words() + b.words())
    assert a.peers() == {b.name()}


@pytest.mark.slow
def test_another_segment_is_another_world_until_a_machine_is_carried_over(
    lab: Lab, children: Children, tmp_path: Path
) -> None:
    here, there = lab.segment("here"), lab.segment("there")
    a, b, c = (LabNode(lab.machine(name), tmp_path / name) for name in "abc")
    here.plug(a.host, "10.77.1.1/24")
    here.plug(b.host, "10.77.1.2/24")
    cable = there.plug(c.host, "10.77.1.3/24")  # of the same network by its numbers alone
    for node in (c, a, b):
        node.start(children)
    until(lambda: a.state() == b.state() == "CONNECTED", "the two", lambda: a.words() + b.words())
    assert c.state() == "SOLO"
    assert c.peers() == set()

    there.unplug(c.host, cable)
    here.plug(c.host, "10.77.1.4/24")
    everybody = {node.name() for node in (a, b, c)}
    until(lambda: c.peers() == everybody - {c.name()}, "a machine that was carried over", c.words)
    for node in (a, b, c):
        assert "mdns-unavailable" not in node.log.read_text()


def test_a_node_that_does_without_is_not_found(lab: Lab, children: Children, tmp_path: Path) -> None:
    segment = lab.segment("home")
    silent, a, b = (LabNode(lab.machine(name), tmp_path / name) for name in ("silent", "a", "b"))
    for number, node in enumerate((silent, a, b), 1):
        segment.plug(node.host, f"10.77.1.{number}/24")
        node.start(children, mdns=node is not silent)
    until(lambda: a.state() == b.state() == "CONNECTED", "the two", lambda: a.words() + b.words())
    assert silent.state() == "SOLO"


def members(node: LabNode) -> int:
    return max((int(run.get("members") or 0) for run in node.status().get("runs", [])), default=0)
