"""When the rounds of a run begin and end, by its method; in inner steps of the whole run, counted from 1.

Round r is the r-th exchange that the method launches. The inner steps between two launches belong to the later round.
With fragments, a round is about one fragment, and each is exchanged once in the rounds of a period of H steps.
"""

from __future__ import annotations

from itertools import pairwise

from shoal.node.training.methods.method import Method


class Timetable:
    """The rounds of `method`, from 1; round 0 is the start of the run."""

    def __init__(self, method: Method) -> None:
        """ValueError if two rounds would overlap: the next exchange launched before the last answer is due."""
        self._period = method.period
        self._launches = [(step, part) for step in range(1, self._period + 1) for part in method.launches(step)]
        after = [step for step, _ in self._launches]
        gaps = [later - earlier for earlier, later in pairwise([*after, after[0] + self._period])]
        if min(gaps) < max(method.delay, 1):
            raise ValueError(
                f"an answer is due {method.delay} inner steps after its launch, the next launch {min(gaps)} after it"
            )
        self.delay = method.delay

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts of the rounds of one period, from round 1 on; later rounds repeat them in this order."""
        return tuple(part for _, part in self._launches)

    def launch(self, round: int) -> int:
        """The inner step after which the round's exchange begins; 0 for round 0."""
        if round == 0:
            return 0
        cycle, place = divmod(round - 1, len(self._launches))
        return cycle * self._period + self._launches[place][0]

    def part(self, round: int) -> int:
        """The part that the round is about; for round 0, that of the round before round 1 by the order of parts."""
        return self._launches[(round - 1) % len(self._launches)][1]

    def steps(self, round: int) -> int:
        """How many inner steps belong to the round."""
        return self.launch(round) - self.launch(round - 1)
