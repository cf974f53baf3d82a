"""All nodes of a run die at once, disks are lost, or the creator is: the run goes on, with the same bits everywhere.

What a node says of each round that it has applied, before its death and after, is the same at all of them.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from shoal.node.run.log_store import JOURNAL, MEANS
from shoal.node.run.means_store import _found
from shoal.protocol.base.ids import Digest
from shoal.protocol.log.journal import framed
from shoal.protocol.messages.log import Tip
from tests.integration.lasting import Lasting, applied, disputed
from tests.integration.nodes import RealNode

UNDONE = re.compile(r"the result of round (\d+) is lost on all disks")
TORN = framed(Tip(Digest(bytes(32)), 0, ()))[:-5]


def cut(lasting: Lasting) -> int:
    """Take what a power cut may take: the means of the newest round, which nobody waits for to be forced; and leave a
    part of a record that was being written. Returns that round."""
    slots = [slot for node in lasting.nodes for slot in (lasting.folder_of(node) / MEANS).iterdir()]
    found = {slot: _found(slot) for slot in slots}
    newest = max(each.newest for each in found.values())
    for slot, each in found.items():
        place = min((place.begin for place in each.records if place.round == newest), default=each.end)
        with slot.open("r+b") as file:
            file.truncate(place)
    for node in lasting.nodes:
        with (lasting.folder_of(node) / JOURNAL).open("ab") as file:
            file.write(TORN)
    return newest


def undone(node: RealNode) -> list[int]:
    """The rounds that it has said to be lost."""
    return [int(number) for number in UNDONE.findall(node.log.read_text(errors="replace"))]


@pytest.mark.slow
def test_five_are_killed_at_once_and_go_on_from_the_last_round_without_a_command(
    children: Children, tmp_path: Path
) -> None:
    five = Lasting(children, tmp_path, 5)
    last = five.kill(five.nodes)
    five.start(five.nodes)
    five.go_on(five.nodes, last + 2)
    assert sorted(applied(five.nodes)) == list(range(1, max(applied(five.nodes)) + 1))
    assert disputed(five.nodes) == []
    assert [undone(node) for node in five.nodes] == [[]] * 5


@pytest.mark.slow
@pytest.mark.swarm
def test_a_power_cut_of_all_costs_at_most_the_last_round_and_that_is_said(children: Children, tmp_path: Path) -> None:
    five = Lasting(children, tmp_path, 5)
    last = five.kill(five.nodes)
    newest = cut(five)
    five.start(five.nodes)
    five.go_on(five.nodes, last + 2)
    said = [undone(node) for node in five.nodes]
    print(f"\nkilled after round {last}, the means of round {newest} cut off, undone {said}")
    assert said == said[:1] * 5
    assert said[0] in ([[last]] if newest == last else [[], [newest]])
    assert disputed(five.nodes) == []


@pytest.mark.slow
def test_two_homes_are_lost_and_their_owners_come_in_anew_by_link(children: Children, tmp_path: Path) -> None:
    """Among them is the creator's."""
    five = Lasting(children, tmp_path, 5)
    last = five.kill(five.nodes)
    lost, kept = five.nodes[:2], five.nodes[2:]
    for node in lost:
        shutil.rmtree(node.home.root)
        node.home.create()
    five.start(kept)
    five.go_on(kept, last + 2)
    five.start(lost)
    for node in lost:
        assert node.client.join_run(five.link, True)["run"] == five.run
    five.go_on(five.nodes, max(node.round() for node in kept) + 2)
    assert disputed(five.nodes) == []


@pytest.mark.slow
@pytest.mark.swarm
def test_a_run_of_three_goes_on_when_its_creator_is_gone_for_good(children: Children, tmp_path: Path) -> None:
    three = Lasting(children, tmp_path, 3)
    creator, *others = three.nodes
    last = three.kill([creator])
    shutil.rmtree(creator.home.root)
    three.go_on(others, last + 3)
    assert disputed(others) == []
