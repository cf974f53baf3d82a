"""How the time of a round divides into phases: in order, nothing counted twice, bounded."""

from __future__ import annotations

import pytest

from shoal.node.run.phases import MOST, PhaseLog, Span
from shoal.protocol.base.ids import PeerId

ANNA, BERT = PeerId("anna"), PeerId("bert")


def test_phases_follow_each_other_and_a_retry_comes_again() -> None:
    log = PhaseLog()
    steps = [(1.0, "training"), (3.0, "matching"), (3.5, "matching"), (4.0, "reducing"), (5.0, "matching")]
    for now, phase in [*steps, (6.0, "reducing"), (8.0, "applying")]:
        log.observe(now, phase, list)
    spans, waited = log.cut(8.5)
    assert [(span.phase, span.seconds) for span in spans] == [
        *(("training", 2.0), ("matching", 1.0), ("reducing", 1.0), ("matching", 1.0), ("reducing", 2.0)),
        ("applying", 0.5),
    ]
    assert waited == {}


def test_the_phase_goes_on_after_a_cut() -> None:
    log = PhaseLog()
    log.observe(1.0, "training", list)
    assert log.cut(2.0)[0] == (Span("training", 1.0),)
    assert log.cut(2.0001)[0] == ()  # too short to be told
    assert log.cut(5.0)[0] == (Span("training", 3.0),)


def test_who_is_waited_for_is_counted_while_it_is() -> None:
    log, missing = PhaseLog(), [ANNA, BERT]
    log.observe(1.0, "matching", lambda: missing)
    log.observe(2.0, "matching", lambda: missing)
    missing.remove(ANNA)
    log.observe(3.0, "matching", lambda: missing)
    log.observe(3.1, "matching", lambda: pytest.fail("it was asked a moment ago"))
    log.observe(5.0, "reducing", list)
    log.observe(9.0, "applying", list)
    assert log.cut(9.0)[1] == {BERT: 4.0, ANNA: 2.0}
    assert log.cut(9.0)[1] == {}


def test_a_round_of_many_attempts_stays_small_and_loses_no_time() -> None:
    log = PhaseLog()
    for number in range(1001):
        log.observe(float(number), ("matching", "reducing")[number % 2], list)
    spans, _ = log.cut(1000.0)
    assert len(spans) == MOST
    assert sum(span.seconds for span in spans) == pytest.approx(1000.0)
