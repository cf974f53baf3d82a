"""What a worker is to do next, by the run's method: a pure core between the rounds of a run and its worker.

A round's inner steps are made in one stint or in two. With a delay of 0 (methods/method.py) there is one: it begins
when the round before is committed, and ends with a contribution. With a delay training goes on meanwhile:

    round r:  `delay` steps | wait for round r - 1 | take its answer, make the other steps, contribute

and with a delay as long as a round

    round r:  take the answer of round r - 2, make all steps | wait for round r - 1 | contribute

So a contribution is made only where its round can begin at once, and at most one round is open at a time. A round that
was committed without us is passed over: the next stint takes what it has made, and begins with the round after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.node.methods.timetable import Timetable

MOST_LANDINGS = 64  # of an order: who was away for longer is told of the latest


@dataclass(frozen=True, slots=True)
class Stint:
    """`steps` inner steps of `round` from its step `first` on, after the answers of `landings`."""

    round: int
    first: int
    steps: int
    hand_in: bool
    landings: tuple[int, ...]
    is_fresh: bool = False  # begin with the committed state


class Agenda:
    """One worker's. Each command returns what to do now, if there is something new."""

    def __init__(self, timetable: Timetable, last: int | None) -> None:
        """`last` is the run's last round, if it has one."""
        self._timetable, self._last = timetable, last
        self._base = 0  # the newest round that is committed here
        self._round = 1  # the one that is trained
        self._is_late = False  # in its second stint, or about to be
        self.landed = 0  # the newest round whose answer the worker has taken
        self._is_fresh = True
        self.running: Stint | None = None

    def begin(self, base: int) -> Stint | None:
        """The state of round `base` has come from elsewhere: all starts anew from it."""
        self._is_fresh = True
        self.landed = base - 1 if self._timetable.delay else base
        return self._turn_to(base)

    def committed(self, base: int) -> Stint | None:
        """Round `base` is committed and applied."""
        if base >= self._round:
            return self._turn_to(base)
        self._base = base
        return self._next() if self.running is None else None

    def done(self) -> Stint | None:
        """The stint that was running is over."""
        stint, self.running = self.running, None
        assert stint is not None
        self._is_fresh = False
        self.landed = max((self.landed, *stint.landings))
        if stint.hand_in:
            self._round, self._is_late = stint.round + 1, False
        else:
            self._is_late = True
        return self._next()

    def _turn_to(self, base: int) -> Stint | None:
        self._base, self._round, self._is_late, self.running = base, base + 1, False, None
        return self._next()

    def _next(self) -> Stint | None:
        round, delay = self._round, self._timetable.delay
        if self._last is not None and round > self._last:
            return None
        steps, early = self._timetable.steps(round), bool(delay) and not self._is_late
        if not early and self._base < round - 1:
            return None
        if early:
            first, length, due = 0, delay, round - 2
        else:
            first, length, due = delay, steps - delay, round - 1 if delay < steps else self.landed
        newest = min(due, self._base)
        landings = tuple(range(max(self.landed, newest - MOST_LANDINGS) + 1, newest + 1))
        self.running = Stint(round, first, length, not early, landings, self._is_fresh)
        return self.running
