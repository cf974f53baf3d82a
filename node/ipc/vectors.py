"""The vectors that a daemon and its worker share, and their sizes. The daemon creates them; the worker attaches.

    agreed         the vectors of the committed state that the method reads, concatenated, the parameters first
    contribution   what the worker hands in; a round uses as many of its first numbers as the round's part has
    moments        state that only this member has, see below
    loaded         one number: the order for which `agreed` and `answer` are written, see `mark_of`
    answer         the mean of the newest round, if the method reads it

The daemon may write for the next order while the worker still reads for the one before; `loaded` is 0 meanwhile. A
worker that finds its own order there after reading has read valid data; otherwise a newer order is on its way.

`moments` is one flat fp32 vector in shared memory, so that it outlives the worker:

    [steps, first moments (d), second moments (d), private vectors of the method (d each)]

The moments are those of the inner optimizer, with d numbers in the order of the model's layout. The private vectors are
those that the method keeps (methods/method.py), in the version that holds if the last contribution is counted; if it is
not counted, a worker that continues from here has lost what the contribution held. For weights that Muon updates, the
first moments are its momentum and the second are 0. For weights that had no gradient yet, both are 0.

`steps` is AdamW's step count. It is 0 if there are no moments, and while they are being written, so a worker that dies
while writing leaves nothing that could be mistaken for moments. As it only ever grows, a reader that finds it unchanged
after copying has copied a consistent vector. The part that needs torch is in training/trainer/inner_state.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.node.ipc.shm import FloatArray, SharedVector
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.wire import value


def moments_size(elements: int, private: int = 0) -> int:
    """The length of `moments` for a model of `elements` parameters and a method with `private` private vectors."""
    return 1 + (2 + private) * elements


def copy_whole(shared: SharedVector) -> FloatArray | None:
    """A copy of the moments in `shared`; None if there are none, or the worker was writing them."""
    if not (steps := float(shared.array[0])):
        return None
    copied = shared.copied()
    return copied if steps == float(copied[0]) == float(shared.array[0]) else None


WRITABLE = (False, True, True, False, False)  # whether the worker may write each vector
MARKS = 1 << 20  # distinct marks; fp32 represents them exactly


def mark_of(order: int) -> int:
    """The value of `loaded` for an order; never 0."""
    return 1 + order % MARKS


@value
class Sizes:
    """The sizes of the shared vectors."""

    elements: int  # parameters of the model
    agreed: int = 1  # vectors of so many elements in `agreed`
    private: int = 0  # vectors of so many elements at the end of `moments`
    answers: int = 0  # 1 if there is an `answer`

    @property
    def numbers(self) -> tuple[int, ...]:
        """The length of each vector, in the order above."""
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
        """New vectors of zeros."""
        return cls(*map(SharedVector.create, sizes.numbers))

    @classmethod
    def attach(cls, descriptors: Sequence[int], sizes: Sizes) -> SharedVectors:
        """The other process's vectors. On LocalError, if the sizes differ, the caller still owns the descriptors."""
        if len(descriptors) != len(sizes.numbers):
            raise LocalError(f"{len(descriptors)} shared vectors came instead of {len(sizes.numbers)}", code="bug")
        attached = zip(descriptors, sizes.numbers, WRITABLE, strict=False)
        return cls(*(SharedVector(descriptor, size, writable=may) for descriptor, size, may in attached))

    @property
    def descriptors(self) -> list[int]:
        """The descriptors to pass over a Unix socket."""
        return [each.fd for each in self._all()]

    def clear(self, keeps_contribution: bool) -> None:
        """Return the memory of all vectors, or of all but the contribution, to the system."""
        for each in self._all():
            if not (keeps_contribution and each is self.contribution):
                each.clear()

    def close(self) -> None:
        """Close all vectors."""
        for each in self._all():
            each.close()

    def _all(self) -> list[SharedVector]:
        first = (self.agreed, self.contribution, self.moments, self.loaded)
        return [*first] if self.answer is None else [*first, self.answer]
