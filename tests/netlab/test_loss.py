"""Ten minutes of 1 % loss on every link; in the middle a peer is killed that carried others' circuits: no SPLIT."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.swarms import Diary, Resident, Swarm

MINUTES = 10
PLACES = ("public", "home-drop", "home-symmetric", "public", "home-drop", "home-symmetric")
VICTIM = 3
LONG = 300.0


def counts(residents: list[Resident]) -> dict[str, str]:
    """How many members each of them sees."""
    rows = {str(each): each.node.status().get("runs") or [{}] for each in residents}
    return {who: str(row[0].get("members", "")) for who, row in rows.items()}


def rounds(residents: list[Resident]) -> list[int]:
    """The last round that each of them has applied."""
    rows = [each.node.status().get("runs") or [{}] for each in residents]
    return [int(row[0].get("round") or 0) for row in rows]


@pytest.mark.slow
@pytest.mark.patient
def test_neither_a_lossy_internet_nor_one_death_is_a_split(lab: Lab, children: Children, tmp_path: Path) -> None:
    swarm = Swarm(lab, children, tmp_path, doors=2, link=Link(delay=0.02, loss=0.01))
    for number, place in enumerate(PLACES):
        swarm.join(place, train=number in (0, 1))
    until(swarm.is_whole, "a round of all", swarm.words, LONG)
    print(f"\nconnections of members {dict(swarm.paths())}")
    begin, states, seen = time.monotonic(), Diary(), Diary()
    alive = list(swarm.members)
    for second in range(60 * MINUTES):
        if second == 30 * MINUTES:
            victim = alive.pop(VICTIM).node.child
            assert victim is not None
            victim.kill()
            print(f"{swarm.members[VICTIM]} is killed at {time.monotonic() - begin:.1f} s")
        swarm.watch(states, begin, alive)
        seen.note(counts(alive), time.monotonic() - begin)
        time.sleep(max(0.0, begin + second + 1 - time.monotonic()))  # a sample each second is the subject
    losses = [sum(each.lost for each in lab.internet.traffic(one.outside)) for one in swarm.members]
    print(f"packets lost on each link: {losses}\nmembers seen:\n{seen.words()}")
    told = {state for times in states.of.values() for _, state in times}
    print(f"states seen: {sorted(told)}, changes: { {who: len(times) for who, times in states.of.items()} }")
    assert min(losses) > 0, "the links were meant to lose packets"
    assert "SPLIT" not in told, states.words()
    for each in alive:
        assert "state-split" not in each.node.log.read_text(errors="replace"), "not between two samples either"
    before = rounds(alive)
    until(lambda: min(rounds(alive)) > max(before), "rounds without the victim", swarm.words, LONG)
