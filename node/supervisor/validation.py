"""When a worker measures the validation loss of a committed state, and on how many held-out sequences: a pure core.

- A state is measured every EVERY rounds, the same ones at all members. The first one is measured as soon as the worker
  has trained a round, on the smallest sample, because nothing is known of the cost before.
- The number of sequences is a power of two, as large as SHARE of the time of EVERY rounds allows. It stays until it is
  too large, or one GROWS times as large would do: the points of a curve should be of the same sequences.
- After the first one, measurements take at most SHARE of the time since the worker began. If not even the smallest
  sample fits, states are measured more rarely.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from shoal.node.ipc.messages import MOST_SEQUENCES, Train, Validated

SHARE = 0.01  # of the worker's time
EVERY = 4  # rounds
LEAST = 8  # sequences
GROWS = 4
REMEMBERED = 8  # rounds, and measurements, from which times are learned
MOST_SECONDS = 1e6  # more than any measurement takes


def mistake_in(answer: Validated, order: Train) -> str:
    """What is wrong with a worker's answer to an order that asks for a figure; empty if nothing is.

    That the numbers are finite, and none of the counts negative, holds for every message.
    """
    if answer.round != order.round:
        return f"it was asked for round {order.round}, not {answer.round}"
    if not 0 <= answer.sequences <= order.validates:
        return f"it was asked for a loss on {order.validates} sequences at most, and names {answer.sequences}"
    if not 0 <= answer.seconds <= MOST_SECONDS:
        return f"a measurement cannot have taken {answer.seconds:g} seconds"
    if answer.loss is not None and not answer.sequences:
        return "it names a loss on no sequence"
    return ""


class ValidationSchedule:
    """The schedule of one worker, to which the time is passed in, in seconds."""

    def __init__(self, least: int = LEAST, most: int = MOST_SEQUENCES) -> None:
        """`least` and `most` are numbers of sequences; if they are the same, so are all measurements."""
        self._least, self._most = least, most
        self._count = least
        self._began = self._at = 0.0  # when the first state was there, and when the newest was
        self._round: int | None = None  # of the newest state
        self._is_asked = False  # whether a measurement was due yet
        self._rounds: deque[float] = deque(maxlen=REMEMBERED)  # seconds of each
        self._costs: deque[float] = deque(maxlen=REMEMBERED)  # seconds for one sequence
        self._spent = 0.0  # seconds, without the first measurement

    def due(self, now: float, round: int) -> int:
        """On how many sequences to measure the state of `round`, from which the worker is about to train; 0: not now.

        To be called for each order that gives the worker a state.
        """
        before, since = self._round, now - self._at
        if before == round:
            return 0
        self._at, self._round = now, round
        if before is None:
            self._began = now
        if before is None or round < before:  # a state from elsewhere may be older
            return 0
        self._rounds.append(since / (round - before))
        if self._is_asked and round // EVERY == before // EVERY:
            return 0
        self._is_asked = True
        left = SHARE * (now - self._began) - self._spent
        if self._costs:
            self._count = self._fitting()
            return self._count if self._cost(self._count) <= left else 0
        return self._count if left >= 0 else 0  # none has succeeded yet

    def measured(self, seconds: float, sequences: int) -> None:
        """A measurement on so many sequences has taken so long, even if it was broken off."""
        if self._costs or not sequences:  # the first that succeeds is free
            self._spent += max(0.0, seconds)
        if sequences:
            self._costs.append(seconds / sequences)

    def _fitting(self) -> int:
        budget, fits = SHARE * EVERY * median(self._rounds), self._least
        while 2 * fits <= self._most and self._cost(2 * fits) <= budget:
            fits *= 2
        is_settled = len(self._costs) > 1 and self._count <= fits < GROWS * self._count
        return self._count if is_settled else fits

    def _cost(self, sequences: int) -> float:
        return sequences * min(self._costs)
