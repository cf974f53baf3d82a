"""A run of six is cut for longer than it waits for a quorum: each part goes on, and when it is whole it is one run."""

from __future__ import annotations

import itertools
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from shoal.node.base.kept import names
from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode
from tests.netlab.swarms import Resident, Swarm, newest, sample

CUT = 180.0  # seconds
ASLEEP, OFFLINE = 600.0, 30.0
HEALED_LIMIT = 60.0
LONG = 300.0
SLACK = 0.1  # of the loss, whose mean goes up and down by less

CUTS = {"3 | 3": (3, 3), "4 | 2": (4, 2), "2 | 2 | 2": (2, 2, 2)}


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("cut", CUTS)
def test_each_part_goes_on_and_the_whole_has_one_history_soon(
    lab: Lab, children: Children, tmp_path: Path, cut: str
) -> None:
    manifest = MANIFEST + '[trust]\ncontinue_after = "30s"\n'
    swarm = Swarm(lab, children, tmp_path, doors=len(CUTS[cut]), manifest=manifest)
    parts = [[swarm.join("public", train=True) for _ in range(size)] for size in CUTS[cut]]
    until(swarm.is_whole, "a round of all", swarm.words, LONG)

    sides = [[each.outside for each in (door, *part)] for door, part in zip(swarm.doors, parts, strict=True)]
    for one, other in itertools.combinations(sides, 2):
        lab.internet.cut(one, other)
    begin, before = time.monotonic(), [max(map(round_of, part)) for part in parts]
    sample(lambda: None, lambda _: False, CUT, 1.0)
    rounds = [min(map(round_of, part)) for part in parts]
    print(f"\n{cut}: rounds {before} at the cut, {rounds} after {time.monotonic() - begin:.0f} s of it")
    assert all(after > at for after, at in zip(rounds, before, strict=True)), swarm.words()
    greatest = max(zip(CUTS[cut], rounds, parts, strict=True), key=lambda part: part[:2])[2]
    alone = mean_loss(greatest)

    lab.internet.mend()
    begin = time.monotonic()
    until(lambda: is_one(swarm), "one history", swarm.words, LONG)
    took = time.monotonic() - begin
    goal = max(map(round_of, swarm.members)) + 3
    until(lambda: min(map(round_of, swarm.members)) >= goal, "three more rounds of all", swarm.words, LONG)
    healed = mean_loss(swarm.members)
    print(
        f"one history {took:.0f} s after it was mended; loss {alone:.3f} of the greater part alone, {healed:.3f} then"
    )
    assert took < HEALED_LIMIT
    assert healed < alone + SLACK
    said = [each.node.log.read_text(errors="replace") for each in swarm.members]
    assert any("branch-founded" in words for words in said)
    assert any("branch-left" in words for words in said)


@pytest.mark.slow
@pytest.mark.patient
def test_a_laptop_sleeps_for_ten_minutes_and_wakes_before_its_network(
    lab: Lab, children: Children, tmp_path: Path
) -> None:
    """It has the vote that the other needs, which goes on as a branch; what the laptop decides then counts no more."""
    manifest = MANIFEST.replace("min_members = 2", "min_members = 1") + '[trust]\ncontinue_after = "30s"\n'
    swarm = Swarm(lab, children, tmp_path, doors=1, manifest=manifest)
    laptop, other = (swarm.join("public", train=True) for _ in range(2))
    until(swarm.is_whole, "a round of all", swarm.words, LONG)

    asleep = processes_of(laptop.node)
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    begin, before = time.monotonic(), round_of(other)
    sample(lambda: None, lambda _: False, ASLEEP, 1.0)
    meanwhile = round_of(other)
    assert meanwhile > before + 1, swarm.words()
    lab.internet.cut([laptop.outside], [each.outside for each in (*swarm.doors, other)])
    for pid in asleep:
        os.kill(pid, signal.SIGCONT)
    sample(lambda: None, lambda _: False, OFFLINE, 1.0)
    decided_alone, there = round_of(laptop), round_of(other)

    lab.internet.mend()
    woken = time.monotonic()
    until(lambda: is_one(swarm), "one history", swarm.words, LONG)
    took = time.monotonic() - woken
    print(f"\nasleep for {woken - begin:.0f} s from round {before}; the other was in round {there} when it woke, it in")
    print(f"{decided_alone} before it had a network; one history {took:.0f} s later, round {round_of(laptop)}")
    assert took < HEALED_LIMIT
    assert round_of(laptop) >= there
    founded = [line for line in laptop.node.log.read_text(errors="replace").splitlines() if "branch-founded" in line]
    assert all(f"without {names([laptop.node.name()])}" in line for line in founded), "it founds none, but reads of one"


def processes_of(node: LabNode) -> list[int]:
    """All that run with its home."""
    entry, found = f"SHOAL_HOME={node.home.root}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    assert found
    return found


def round_of(each: Resident) -> int:
    return int(newest(each.node).get("round", -1))


def mean_loss(of: list[Resident]) -> float:
    """Of some twenty rounds now, over those who have trained for them: a round has few tokens, and no two are alike."""
    losses = list[float]()

    def look() -> None:
        losses.extend(loss for each in of if (loss := newest(each.node).get("loss")) is not None)

    sample(look, lambda _: False, 10.0)
    return sum(losses) / len(losses)


def is_one(swarm: Swarm) -> bool:
    """Whether all six have been in the same last round, and have the same history."""
    rounds = [newest(each.node) for each in swarm.members]
    return swarm.is_whole() and len({(each.get("round"), each.get("digest")) for each in rounds}) == 1
