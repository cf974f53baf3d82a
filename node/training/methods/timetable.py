"""When the rounds of a run begin and end, by its method, in inner steps of the whole run, counted from 1.

A round is one exchange: of all that the method launches, the r-th. What a member trains between two launches belongs to
the later one. With fragments a round is about one of them, and several rounds make the H steps in which each goes once.
"""

from __future__ import annotations

from itertools import pairwise

from shoal.node.training.methods.method import Method


class Timetable:
    """The rounds of `method`, from 1; round 0 is the start of the run."""

    def __init__(self, method: Method) -> None:
        """ValueError if two rounds would be open at once: a part launched before the answer of the last is due."""
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
        """The parts of round 1 and those after it, until they come again in the same order."""
        return tuple(part for _, part in self._launches)

    def launch(self, round: int) -> int:
        """The inner step after which the round's exchange begins; 0 for round 0."""
        if round == 0:
            return 0
        cycle, place = divmod(round - 1, len(self._launches))
        return cycle * self._period + self._launches[place][0]

    def part(self, round: int) -> int:
        """What the round is about; that of round 0 is what would be due before there was anything."""
        return self._launches[(round - 1) % len(self._launches)][1]

    def steps(self, round: int) -> int:
        """Inner steps that belong to the round."""
        return self.launch(round) - self.launch(round - 1)
