"""The journal of attempts to reach peers: counted, in order, and bounded."""

from __future__ import annotations

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.measure.journal import MOST_PEERS, MOST_STEPS, Journal, Step, Way

BOB = PeerId("bob")


def test_the_same_again_is_counted_and_comes_last() -> None:
    journal = Journal()
    for at in range(3):
        journal.note(BOB, Step(at, Way.DIAL, "/ip4/192.0.2.1/tcp/1", "silent", "no answer in 10 s", 10.0))
        journal.note(BOB, Step(at + 0.5, Way.DIAL, "/ip4/192.0.2.1/tcp/2", "refused"))
    journal.note(BOB, Step(9, Way.DIAL, "/ip4/192.0.2.1/tcp/1"))
    assert [(step.at, step.code, step.times) for step in journal.of(BOB)] == [
        (2, "silent", 3),
        (2.5, "refused", 3),
        (9, "ok", 1),
    ]


def test_what_is_kept_is_bounded() -> None:
    journal = Journal()
    for number in range(MOST_PEERS + 10):
        journal.note(BOB, Step(number, Way.DIAL, f"/ip4/192.0.2.1/tcp/{number}"))
        journal.note(PeerId(f"peer{number}"), Step(number, Way.CAME, ""))
    assert len(journal.of(BOB)) == MOST_STEPS
    assert journal.of(BOB)[-1].where.endswith(str(MOST_PEERS + 9))
    known = [number for number in range(MOST_PEERS + 10) if journal.of(PeerId(f"peer{number}"))]
    assert known == list(range(11, MOST_PEERS + 10)), "bob was spoken of all the time"


def test_nobody_is_remembered_for_being_asked_about() -> None:
    journal = Journal()
    assert journal.of(BOB) == ()
    assert journal._steps == {}


@pytest.mark.parametrize("change", [Step(5, Way.LOST, ""), Step(5, Way.CAME, ""), Step(5, Way.RELAY, "by carol")])
def test_failures_are_counted_since_there_was_last_another_connection_or_none(change: Step) -> None:
    journal = Journal()
    tries = [Step(at, Way.MEET, "carol", "silent") for at in range(4)]
    for step in (*tries[:3], change, tries[3]):
        journal.note(BOB, step)
    assert [(step.way, step.times) for step in journal.of(BOB)] == [(change.way, 1), (Way.MEET, 1)]
    journal.note(BOB, Step(6, Way.MEET, "carol", "silent"))
    journal.note(BOB, change)
    assert [(step.way, step.times) for step in journal.of(BOB)] == [(Way.MEET, 2), (change.way, 2)]


def test_strangers_who_come_and_go_do_not_make_us_forget_those_whom_we_sought() -> None:
    journal = Journal()
    sought = [PeerId(f"member{number}") for number in range(MOST_PEERS)]
    for peer in sought[1:]:
        journal.note(peer, Step(0, Way.DIAL, "/ip4/192.0.2.1/tcp/1", "silent"))
    for number in range(2 * MOST_PEERS):
        for way in (Way.CAME, Way.LOST):
            journal.note(PeerId(f"stranger{number}"), Step(number, way, ""))
    assert all(journal.of(peer) for peer in sought[1:])
    assert len(journal._steps) == MOST_PEERS
    journal.note(sought[0], Step(0, Way.NAME, "host"))
    assert [peer for peer in sought if not journal.of(peer)] == []
    journal.note(BOB, Step(0, Way.DIAL, "/ip4/192.0.2.1/tcp/1"))
    assert [peer for peer in sought if not journal.of(peer)] == sought[1:2], "of these the oldest"
    assert len(journal._steps) == MOST_PEERS
