"""The vectors that a daemon and its worker share: how long they are, made by the one and attached to by the other.

agreed         what of the committed state the method reads, one vector behind the other: first the parameters
contribution   what the worker hands in: as many of its first numbers as the round's part has
moments        what only this member has (moments.py)
loaded         one number: for which order `agreed` and `answer` are written, see `mark_of`
answer         the mean of the newest round, where the method wants to see it

The daemon writes for the next order while the worker may still read for the one before. So `loaded` is 0 meanwhile: who
finds its own order there after reading has read what was meant for it; else a newer order is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.node.worker.moments import moments_size
from shoal.node.worker.shm import SharedVector
from shoal.protocol.errors import LocalError
from shoal.protocol.wire import value

WRITABLE = (False, True, True, False, False)  # by the worker
MARKS = 1 << 20  # that are told apart; whole numbers in fp32


def mark_of(order: int) -> int:
    """What `loaded` holds for an order of this number; never 0."""
    return 1 + order % MARKS


@value
class Sizes:
    """How many numbers the vectors have."""

    elements: int  # of the model
    agreed: int = 1  # vectors of so many elements
    private: int = 0  # the same, at the end of `moments`
    answers: int = 0  # 1 if there is an `answer`

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of each vector, in the order above."""
        own = moments_size(self.elements, self.private)
        return self.agreed * self.elements, self.elements, own, 1, *[self.elements] * self.answers


@dataclass(frozen=True, slots=True)
class SharedVectors:
    """The vectors themselves."""

    agreed: SharedVector
    contribution: SharedVector
    moments: SharedVector
    loaded: SharedVector
    answer: SharedVector | None = None

    @classmethod
    def create(cls, sizes: Sizes) -> SharedVectors:
        """New ones, of zeros."""
        return cls(*map(SharedVector.create, sizes.numbers))

    @classmethod
    def attach(cls, descriptors: Sequence[int], sizes: Sizes) -> SharedVectors:
        """Those of the other process; if they are not of these sizes, a LocalError, and they stay the caller's."""
        if len(descriptors) != len(sizes.numbers):
            raise LocalError(f"{len(descriptors)} shared vectors came instead of {len(sizes.numbers)}")
        attached = zip(descriptors, sizes.numbers, WRITABLE, strict=False)
        return cls(*(SharedVector(descriptor, size, writable=may) for descriptor, size, may in attached))

    @property
    def descriptors(self) -> list[int]:
        """To pass over a Unix socket."""
        return [each.fd for each in self._all()]

    def clear(self, keeps_contribution: bool) -> None:
        """Give the memory of all back, or of all but the contribution."""
        for each in self._all():
            if not (keeps_contribution and each is self.contribution):
                each.clear()

    def close(self) -> None:
        """Let go of all."""
        for each in self._all():
            each.close()

    def _all(self) -> list[SharedVector]:
        first = (self.agreed, self.contribution, self.moments, self.loaded)
        return [*first] if self.answer is None else [*first, self.answer]
