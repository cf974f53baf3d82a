"""A run of nodes at places of all kinds is cut in two for a minute: all notice in time, and all recover in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.swarms import GOOD, Diary, Swarm, sample

CUT = 60.0  # seconds
SPLIT_LIMIT, HEALED_LIMIT = 30.0, 60.0
LONG = 300.0

HALVES = {
    "3:3": (("public", "home-drop", "home-symmetric"), ("public", "home-drop", "home-symmetric")),
    "4:2": (("public", "home-drop", "home-symmetric", "home-drop"), ("public", "home-symmetric")),
}


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("halves", HALVES)
def test_a_cut_is_seen_by_all_and_heals(lab: Lab, children: Children, tmp_path: Path, halves: str) -> None:
    swarm = Swarm(lab, children, tmp_path, doors=2)
    left, right = ([swarm.join(place, train=place == "public") for place in half] for half in HALVES[halves])
    sides = [[each.outside for each in (door, *half)] for door, half in zip(swarm.doors, (left, right), strict=True)]
    until(swarm.is_whole, "a round of all", swarm.words, LONG)
    until(lambda: "relayed" in swarm.paths(), "relays in use", swarm.words, LONG)
    print(f"\n{halves}: connections of members {dict(swarm.paths())}")

    lab.internet.cut(*sides)
    begin, cut = time.monotonic(), Diary()
    all_say_so = sample(lambda: swarm.watch(cut, begin), lambda now: set(now.values()) == {"SPLIT"}, CUT)
    assert all_say_so, f"{cut.words()}\n{swarm.words()}"
    evidence = {str(each): each.node.status().get("evidence") for each in swarm.members}
    sample(lambda: swarm.watch(cut, begin), lambda _: False, begin + CUT - time.monotonic(), 1.0)
    print(f"cut:\n{cut.words()}\n" + "\n".join(f"{who:<22}{words}" for who, words in evidence.items()))

    lab.internet.mend()
    begin, healed = time.monotonic(), Diary()
    one = sample(
        lambda: swarm.watch(healed, begin), lambda now: set(now.values()) <= {*GOOD} and swarm.is_whole(), LONG
    )
    print(f"healed, and in one round after {time.monotonic() - begin:.1f} s:\n{healed.words()}")
    assert one, swarm.words()
    assert max(cut.first(str(each), ("SPLIT",)) for each in swarm.members) < SPLIT_LIMIT
    assert max(healed.last_not(str(each), GOOD) for each in swarm.members) < HEALED_LIMIT
    for each in swarm.members:
        assert each.node.log.read_text(errors="replace").count("state-split") == 1, "said once"
