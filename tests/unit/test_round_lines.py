"""A round's timeline for people: who was slow, what happened when, and nothing that steers the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.node.client.cli.round_lines import happenings, lines, show_round, slowest
from tests.fake_timeline import EVIL, QUICK, SLOW, TIMELINE, flow

SHOWN: Any = {"run": "ab" * 32, "name": "stdlib", **TIMELINE}
WIDTH = 100


def test_the_one_that_was_last_is_named_of_those_that_were_waited_for_as_long() -> None:
    words = "Most of it was reducing, 0.700 of 1.000 s: it waited 0.600 s for slow03 (relayed), and for 1 more as long."
    assert slowest(SHOWN) == words
    alone = SHOWN | {"waited_for": [{"phase": "reducing", "peer": QUICK, "seconds": 0.61}]}
    assert slowest(alone).endswith("it waited 0.610 s for quick2 (direct).")
    dead = SHOWN | {
        "waited_for": [*SHOWN["waited_for"], {"phase": "reducing", "peer": "12D3KooWdead04", "seconds": 0.6}]
    }
    assert "for dead04 (not connected), and for 2 more" in slowest(dead)


def test_own_work_is_said_to_be() -> None:
    for waits in ([], [{"phase": "matching", "peer": QUICK, "seconds": 0.1}]):
        words = "Most of it was reducing, 0.700 of 1.000 s: this node was at work itself, and waited for nobody."
        assert slowest(SHOWN | {"waited_for": waits}) == words


def test_a_wait_for_nobody_in_particular_is_no_work() -> None:
    alone = SHOWN | {"phases": [{"phase": "matching", "from": 0.0, "to": 44.5}], "waited_for": []}
    words = "Most of it was matching, 44.500 of 44.500 s: no member was late; the round waited for more to come, "
    assert slowest(alone) == f"{words}or to be decided on."


def test_what_happened_is_in_order_and_words_of_one_kind_are_one_line() -> None:
    assert happenings(SHOWN) == [
        (0.0, 0.0, "ready for the round"),
        (0.0, 0.0, "OFFER to quick2"),
        (0.1, 0.1, "the round has its roster, with quick2 as proposer: 4 members"),
        (0.1, 0.1, "CALL from quick2"),
        (0.3, 0.3, f"{EVIL[-6:]} sent a payload that is \x1b[2J none"),
        (0.4, 0.5, "GIVE from 2 members, the last slow03 (3 times)"),
        (0.85, 0.85, "PROGRESS to quick2"),
        (0.9, 0.9, "decided, and all bytes are here: entry 5 of the log"),
        (1.0, 1.0, "applied"),
    ]


@pytest.mark.parametrize(("blocks", "block"), [(True, "█"), (False, "#")])
def test_the_chart(blocks: bool, block: str) -> None:
    shown = lines(SHOWN, WIDTH, blocks=blocks)
    assert all(len(line) <= WIDTH and line.isprintable() for line in shown)
    assert shown[0] == "round 3 of stdlib, as self01 saw it"
    text = " ".join(shown)
    assert "Applied 1.000 s after this node was ready." in text
    assert "without all of" in text
    assert "proposed by quick2; 4 of 8 means are made here." in text
    assert "It received 12.0 MiB of payloads (8.0 MiB direct, 4.0 MiB relayed)." in text
    bars = {line[:23].strip(): line[60:] for line in shown if block in line}
    assert bars["training"] == block  # it was before, and is drawn at the edge
    assert bars["reducing"] == " " * 3 + block * 28  # from 0.1 to 0.8 of 39 columns
    assert bars["means to it"] == " " * 30 + block * 9  # up to the edge
    slow, quick = "slow03: relayed, makes 0 of 8 means", "quick2: direct, makes 4 of 8 means, proposes"
    assert shown.index(slow) < shown.index(quick)


def test_a_round_that_goes_on_or_came_to_nothing_is_shown_too() -> None:
    training = SHOWN | {"phases": [{"phase": "training", "from": 0.0, "to": 3.0}], "committed": None, "ended": None}
    training |= {"traffic": [], "events": [], "size": 0, "members": [], "owners": {}, "waited_for": []}
    training |= {"proposer": None}
    assert lines(training, WIDTH, blocks=True)[1] == "This node still trains for it; times are since it began to."
    assert "It goes on." in lines(SHOWN | {"committed": None, "ended": None}, WIDTH, blocks=True)[1]
    assert "Not committed here" in lines(SHOWN | {"committed": None}, WIDTH, blocks=True)[1]
    assert "about to be applied" in lines(SHOWN | {"ended": None}, WIDTH, blocks=True)[1]


def test_of_very_many_peers_the_last_ones_are_shown() -> None:
    traffic = [flow("received", "mean", f"peer{number:04}", 0.1, number / 1000, 1, 10) for number in range(900)]
    shown = lines(SHOWN | {"traffic": traffic}, WIDTH, blocks=True)
    assert len(shown) < 100
    names = [line.partition(":")[0] for line in shown if ", makes 0 of 8 means" in line]
    assert names == [f"er{number:04}" for number in range(899, 883, -1)]
    assert "and 884 more, whose payloads were done earlier; --json has all" in shown


def test_a_narrow_terminal_still_gets_bars(capsys: pytest.CaptureFixture[str]) -> None:
    assert any("█" * 8 in line for line in lines(SHOWN, 40, blocks=True))
    show_round(SHOWN)
    assert "applied" in capsys.readouterr().out
    assert SLOW in {each["peer"] for each in SHOWN["traffic"]}
