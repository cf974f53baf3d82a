"""Whether a worker is waited for: by what has become of it, and how long it has been silent."""

from __future__ import annotations

from shoal.node.worker.attendance import LEAST, LOADING, MANY, Attendance

HERE, USUAL = True, 2.0


def test_who_loads_is_waited_for_and_not_for_ever() -> None:
    own = Attendance()
    assert not own.look(1000.0 + LOADING, 1000.0, HERE, 0.0)
    assert own.look(1000.1 + LOADING, 1000.0, HERE, 0.0)
    assert own.is_away
    own.heard(2000.0)
    assert not own.is_away


def test_who_makes_steps_is_waited_for_by_what_they_take() -> None:
    own = Attendance()
    own.heard(1000.0)
    assert not own.look(1000.0 + LEAST, 900.0, HERE, USUAL)
    assert own.look(1000.1 + LEAST, 900.0, HERE, USUAL)
    own.heard(2000.0)
    assert not own.look(2000.0 + MANY * 60.0, 1900.0, HERE, 60.0)
    assert own.look(2000.1 + MANY * 60.0, 1900.0, HERE, 60.0)


def test_silence_counts_only_while_the_others_wait() -> None:
    own = Attendance()
    own.heard(0.0)
    assert not own.look(1000.0 + LEAST, 1000.0, HERE, USUAL)


def test_how_long_it_has_been_silent() -> None:
    own = Attendance()
    assert own.silence(1010.0, 1000.0) == 10.0, "it has made no step yet: since it was called for"
    own.heard(900.0)
    assert own.silence(1010.0, 1000.0) == 110.0
    own.lost(for_good=False)
    assert own.silence(1010.0, 1000.0) == 10.0, "the next life"


def test_who_is_not_there_is_not_waited_for() -> None:
    own = Attendance()
    assert own.look(0.0, 0.0, not HERE, USUAL)
    own.heard(1.0)
    own.lost(for_good=False)
    assert not own.is_away
    assert own.look(1.0, 1.0, not HERE, USUAL)
    own.heard(2.0)
    own.lost(for_good=True)
    assert own.is_away
    own.lost(for_good=False)
    assert own.is_away, "until a step is made"
