"""Decides what a worker does next, by the run's method: a pure core between the rounds of a run and its worker.

The inner steps of a round are made in one or two stints. With a delay of 0 (methods/method.py) there is one stint: it
begins when the round before is committed, and ends with a contribution. With a delay, training overlaps with the round:

    round r:  `delay` steps | wait for round r - 1 | merge its answer, make the other steps, contribute

and with a delay as long as a round:

    round r:  merge the answer of round r - 2, make all steps | wait for round r - 1 | contribute

So a contribution is made only when its round can begin at once, and at most one round is open at a time. A round that
was committed without us is skipped: the next stint merges its result, and belongs to the round after it.

After the run's last round is committed, a worker whose weights differ from the agreed ones shows them once, as the next
round would begin with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.node.training.methods.timetable import Timetable

MOST_LANDINGS = 64  # of an order; a worker that was away for longer gets the latest ones


@dataclass(frozen=True, slots=True)
class Stint:
    """`steps` inner steps of `round`, from its step `first` on, after merging the answers of the rounds `landings`."""

    round: int
    first: int
    steps: int
    hand_in: bool  # ends with a contribution
    landings: tuple[int, ...]
    is_fresh: bool = False  # begins with the committed state
    shows: bool = False  # afterwards the worker shows its weights


class Agenda:
    """The agenda of one worker. Each method returns the stint to begin now, or None if there is no new one."""

    def __init__(self, timetable: Timetable, last: int | None, shows: bool = False) -> None:
        """`last` is the run's last round, if it has one; `shows`: after it the worker is to show its weights."""
        self._timetable, self._last, self._shows = timetable, last, shows
        self._base = 0  # the newest round that is committed here
        self._round = 1  # the round that is trained
        self._is_late = False  # its second stint is running or next
        self.landed = 0  # the newest round whose answer the worker has merged
        self._is_fresh = True
        self.running: Stint | None = None

    def begin(self, base: int) -> Stint | None:
        """The state of round `base` has come from elsewhere: start anew from it."""
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
        """The running stint has ended."""
        stint, self.running = self.running, None
        assert stint is not None
        self._is_fresh = False
        self.landed = max((self.landed, *stint.landings))
        if stint.hand_in or stint.shows:
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
            return self._show(round) if self._shows and round == self._last + 1 else None
        steps, early = self._timetable.steps(round), bool(delay) and not self._is_late
        if not early and self._base < round - 1:
            return None
        if early:
            first, length, due = 0, delay, round - 2
        else:
            first, length, due = delay, steps - delay, round - 1 if delay < steps else self.landed
        self.running = Stint(round, first, length, not early, self._landings(due), self._is_fresh)
        return self.running

    def _show(self, round: int) -> Stint | None:
        """Show the weights with which `round` would begin; not before the round before it is over, because until then
        the shared vector holds a contribution.
        """
        if self._base < round - 1:
            return None
        due = round - 2 if self._timetable.delay else round - 1
        self.running = Stint(round, 0, 0, False, self._landings(due), self._is_fresh, shows=True)
        return self.running

    def _landings(self, due: int) -> tuple[int, ...]:
        newest = min(due, self._base)
        return tuple(range(max(self.landed, newest - MOST_LANDINGS) + 1, newest + 1))
