"""Addresses that lead to another node than expected: names for several nodes, and reassigned addresses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.node.api.status import verdict
from shoal.node.base.exits import Exit
from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode

NAME = "/dns4/seeds.test/tcp/4101"
ETC = Path("/etc/netns")  # what is in a folder of a namespace's name there stands in for /etc in it


class Names:
    """The hosts file of a machine, which its system asks first."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def say(self, node: LabNode, *addresses: str) -> None:
        """The name leads to these, from the next start of the machine's processes, or the next change, on."""
        folder = ETC / node.host.name
        folder.mkdir(parents=True, exist_ok=True)
        self.folders.append(folder)
        (folder / "hosts").write_text("".join(f"{each} seeds.test\n" for each in ("127.0.0.1 localhost #", *addresses)))


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names()
    yield names
    for folder in names.folders:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Household:
    """Three machines on one local network, each with a node that is not started, at `address(number)` from 1 on."""

    nodes: list[LabNode]
    cables: list[str]

    def words(self) -> str:
        return "\n".join(f"{node.host}: {node.status().get('obstacle')}\n{node.words()}" for node in self.nodes)


def address(number: int) -> str:
    return f"10.77.1.{number}"


@pytest.fixture
def home(lab: Lab, tmp_path: Path) -> Household:
    segment = lab.segment("home")
    home = Household([LabNode(lab.machine(name), tmp_path / name) for name in "abc"], [])
    for number, node in enumerate(home.nodes, 1):
        node.host.address = address(number)
        home.cables.append(segment.plug(node.host, f"{node.host.address}/24"))
    return home


def test_a_name_for_all_nodes_brings_each_to_the_others(home: Household, children: Children, names: Names) -> None:
    a, b = home.nodes[:2]
    names.say(a, address(1))
    a.start(children, bootstrap=(NAME,), mdns=False)
    until(lambda: a.status().get("obstacle"), "a word of being alone", home.words)
    assert verdict(a.status()) == Exit.ALONE
    assert "is this node itself" in a.status()["obstacle"]
    names.say(b, address(1), address(2))
    b.start(children, bootstrap=(NAME,), mdns=False)
    until(lambda: a.state() == b.state() == "CONNECTED", "the two", home.words)
    assert verdict(a.status()) == verdict(b.status()) == Exit.OK


def test_a_name_is_looked_up_again_when_it_led_to_ourselves(home: Household, children: Children, names: Names) -> None:
    a, b = home.nodes[:2]
    names.say(a, address(1))
    a.start(children, mdns=False, bootstrap=(NAME,))
    b.start(children, mdns=False)
    until(lambda: a.status().get("obstacle") and b.status(), "a word of being alone", home.words)
    names.say(a, address(1), address(2))
    until(lambda: a.peers() == {b.name()}, "the other, whom the name leads to now", home.words)


@pytest.mark.slow
def test_a_run_finds_itself_again_when_its_nodes_have_each_others_addresses(
    home: Household, children: Children, tmp_path: Path
) -> None:
    manifest = tmp_path / "tiny.toml"
    manifest.write_text(MANIFEST)
    nodes, words = home.nodes, home.words
    nodes[0].start(children, mdns=False, create=manifest, train=False)
    for node in nodes[1:]:
        node.start(children, mdns=False, join=(str(manifest),), bootstrap=(nodes[0].door,), train=False)
    until(lambda: all(members(node) == 3 for node in nodes), "all in the run", words)
    for node in nodes:
        until(lambda node=node: known(node) == 2, "a note of where the others are", words)  # type: ignore[misc]
    for node in nodes:
        assert node.child is not None
        node.child.process.terminate()
        node.child.process.wait(60)
    for number, (node, cable) in enumerate(zip(nodes, home.cables, strict=True), 1):
        before, node.host.address = node.host.address, address(number % 3 + 1)
        node.host.ip(f"address delete {before}/24 dev {cable}", f"address add {node.host.address}/24 dev {cable}")
        node.start(children, mdns=False)
    until(lambda: all(members(node) == 3 for node in nodes), "all in the run again", words)
    assert any("is greeted under its own name" in node.log.read_text() for node in nodes)


def members(node: LabNode) -> int:
    return max((int(run.get("members") or 0) for run in node.status().get("runs", [])), default=0)


def known(node: LabNode) -> int:
    return node.home.peers.read_text().count('"peer"') if node.home.peers.exists() else 0
