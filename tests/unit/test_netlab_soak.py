"""What a soak plays, and what it takes for an unannounced pause (tests/netlab/test_soak.py)."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest

from tests.netlab.schedule import DECK, Turn, turns
from tests.netlab.sightings import Answers, Sightings

STUCK: Answers = {"runs": [{"waiting_for": "the run waits until a quorum of its 5 voters is back; away: x"}]}
FINE: Answers = {"runs": [{"waiting_for": "round 7 waits for n3"}]}


def drawn(seed: int, count: int) -> list[Turn]:
    return list(itertools.islice(turns(seed, 6), count))


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_follows_from_its_seed_and_each_deck_has_all_kinds(seed: int) -> None:
    found = drawn(seed, 3 * len(DECK))
    assert found == drawn(seed, 3 * len(DECK))
    for begin in range(0, len(found), len(DECK)):
        deck = found[begin : begin + len(DECK)]
        kinds = Counter(turn.events[0].kind if len(turn.events) == 1 else "double" for turn in deck)
        assert kinds == Counter(DECK)


@pytest.mark.parametrize("seed", range(20))
def test_events_concern_members_and_two_at_once_different_ones(seed: int) -> None:
    members = set(range(6))
    for turn in drawn(seed, 3 * len(DECK)):
        peers = [peer for event in turn.events for peer in event.peers]
        assert len(peers) == len(set(peers)) > 0
        match turn.events[0].kind:
            case "join":
                assert not members & set(peers)
                members |= set(peers)
            case "leave":
                members -= set(peers)
            case _:
                assert members > set(peers)


def looked(begin: float, statuses: list[Answers], *rounds: float) -> Sightings:
    """Rounds that were decided so many seconds after `begin`, and one look at the members now."""
    seen = Sightings()
    rows: list[Answers] = [
        {"round": number, "applied_at": begin + at, "loss": 9.0 - number} for number, at in enumerate(rounds, start=1)
    ]
    seen.take(statuses, {"n0": rows})
    return seen


def test_a_pause_is_announced_if_most_members_say_why() -> None:
    begin = time.time() - 30.0
    [pause] = looked(begin, [STUCK, STUCK, FINE], 0.0, 1.0).pauses(15.0)
    assert 28.0 < pause.seconds < 40.0
    assert "a quorum" in str(pause)
    [pause] = looked(begin, [STUCK, FINE], 0.0, 1.0).pauses(15.0)
    assert "not announced" in str(pause)
    assert looked(begin, [FINE], 0.0, 10.0, 20.0, 30.0).pauses(15.0) == []


def test_losses_are_compared_by_parts_of_the_rounds() -> None:
    seen = looked(time.time() - 6.0, [FINE], 0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert (seen.newest, seen.loss(0, 3), seen.loss(2, 3)) == (6, 7.5, 3.5)
