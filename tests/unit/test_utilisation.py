"""How much of its time a worker trains, by a clock that the test sets."""

from __future__ import annotations

from shoal.node.worker.utilisation import STINTS, Utilisation


class Clock:
    """Moves when it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_work_and_pauses_are_weighed() -> None:
    clock, worker = Clock(), Utilisation()
    assert worker.share(0.0) == 1.0  # nothing was done yet, and nothing waited for
    with worker.working(clock):
        clock.now = 3.0
        assert worker.share(3.0) == 1.0
    assert worker.share(4.0) == 0.75
    clock.now = 4.0
    with worker.working(clock):
        clock.now = 6.0
        assert worker.share(6.0) == 5 / 6  # the stint that is under way counts so far
    assert worker.share(10.0) == 0.5


def test_only_the_latest_stints_count() -> None:
    clock, worker = Clock(), Utilisation()
    with worker.working(clock):
        clock.now = 1.0
    clock.now = 1000.0  # a long wait for the first others
    for _ in range(STINTS):
        with worker.working(clock):
            clock.now += 1.0
    assert worker.share(clock.now) == 1.0
