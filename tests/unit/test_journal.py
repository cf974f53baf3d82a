"""The journal of what was tried towards peers: counted, in order, and bounded."""

from __future__ import annotations

from shoal.protocol.ids import PeerId
from shoal.protocol.journal import MOST_PEERS, MOST_STEPS, Journal, Step, Way

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
