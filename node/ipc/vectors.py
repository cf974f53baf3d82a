"""The vectors that a daemon and its worker share: their lengths; the daemon makes them, the worker attaches.

    agreed         what of the committed state the method reads, one vector behind the other: first the parameters
    contribution   what the worker hands in: as many of its first numbers as the round's part has
    moments        what only this member has, see below
    loaded         one number: for which order `agreed` and `answer` are written, see `mark_of`
    answer         the mean of the newest round, where the method wants to see it

The daemon writes for the next order while the worker may still read for the one before. So `loaded` is 0 meanwhile: who
finds its own order there after reading has read what was meant for it; else a newer order is on its way.

`moments` is one flat fp32 vector, so that it can lie in shared memory and outlive the worker:

    [steps, first moments (d), second moments (d), private vectors of the method (d each)]

The moments are the inner optimizer's; d numbers are in the order of the model's layout. The private vectors are those
that the method keeps (methods/method.py), as the last contribution leaves them if it is counted: should it not be, who
goes on from here has lost what it held. Of weights that Muon steps, the first moments are its momentum, and the second
0. Of weights that had no gradient yet both are 0.

`steps` is the count of AdamW's steps. It is 0 while the rest is being written and where there is nothing yet, so a
worker that dies while it writes leaves nothing that could be taken for moments; and as it only ever grows, a reader
that finds it unchanged after copying has copied a whole vector. What torch has to do with it is in inner_state.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.node.ipc.shm import FloatArray, SharedVector
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.wire import value


def moments_size(elements: int, private: int = 0) -> int:
    """Numbers in the vector of a model with so many parameters, and a method with so many private vectors."""
    return 1 + (2 + private) * elements


def copy_whole(shared: SharedVector) -> FloatArray | None:
    """A copy of what a worker has stored; None if there is nothing, or it was writing just then."""
    if not (steps := float(shared.array[0])):
        return None
    copied = shared.copied()
    return copied if steps == float(copied[0]) == float(shared.array[0]) else None


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
