"""The interface of a training method, as seen by one peer: when it communicates, what it sends, how it uses answers.

A method is stateless: all its memory is in named vectors of d numbers, which are passed in and returned. They are of
two kinds:

- *agreed* vectors: a peer's daemon holds them, applies answers to them, saves them, and gives them to joiners under
  their root;
- *private* vectors: they belong to one peer's worker and are never sent; some are saved in its checkpoints.

With a MEAN, the agreed vectors are the same to the bit on all members, and fencing covers them. With a PAIR or a GRAPH
they are those of one peer's *replica*: held like agreed vectors, but not agreed with anybody.

A *part* is what one exchange is about: the whole vector, or a fragment of it. After inner step t (from 1, over the
whole run) a method may launch exchanges of some parts. Their answers are used `delay` steps later:

    launches(t): contribute(part)  ->  the network  ->  after step t + delay: apply(part), merge(part)

`launches` repeats itself after `period` steps. With a delay of 0, training waits for the network. Otherwise training
goes on, and only waits if an answer is due but has not come. If one exchange is launched and another is due after the
same step, the contribution is made first, so it starts from the agreed vectors with which it was trained. `apply`
computes the next agreed vectors from the answer: the daemon does that on the CPU, as the method's file says. `merge`
computes the weights to train on: the worker does that between two inner steps.

The answer depends on the kind of the exchange:

- MEAN: the mean of all contributions to the part, the same for all;
- PAIR: the contributions of a group that was drawn for the round, and which of them is our own;
- GRAPH: the mean of our own and our neighbours' contributions, weighted by a graph that was drawn for the round.

An exchange fails if its round is aborted or the partner is gone. Then there is no answer: nothing is applied, the
private vectors stay as they were before the contribution, and `lapse` is called in place of `merge`. The same holds if
launches(t - delay) names a part of which this peer has sent nothing: before the run's first step, or before it joined.

In the last round of a run of replicas there is no exchange: the plain mean of the weights that all members have after
its inner steps is the run's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from torch import Tensor

from shoal.node.training.methods.fragments import Fragment

Vectors = Mapping[str, Tensor]
NONE: Vectors = {}

PARAMETERS = "parameters"
MOMENTUM = "momentum"  # of the outer optimizer


class Exchange(Enum):
    """The kind of a method's exchanges, see above."""

    MEAN = "mean"
    PAIR = "pair"
    GRAPH = "graph"

    @property
    def is_of_replicas(self) -> bool:
        """Whether each peer has its own parameters."""
        return self is not Exchange.MEAN


class Contribution(NamedTuple):
    """The vector to send, and the private vectors that become valid if the exchange counts it."""

    payload: Tensor  # (k,)
    private: Vectors


class Merged(NamedTuple):
    """The weights to train on, and the next private vectors."""

    theta: Tensor  # (d,)
    private: Vectors


class Answer(NamedTuple):
    """The result of an exchange, or a block of it."""

    value: (
        Tensor  # MEAN and GRAPH: (k,). PAIR: (members, 1 + len(sends), k), the contribution and then the sent vectors
    )
    members: int  # how many took part
    own: int = 0  # PAIR: our own place among the members
    number: int = 0  # MEAN: how many answers to the part were applied, with this one; agreed, as the value is
    start: int = 0  # MEAN: where in the part's numbers this block begins


class Method(Protocol):
    """A training method; `step` counts inner steps of the run from 1."""

    @property
    def exchange(self) -> Exchange:
        """The kind of its exchanges."""

    @property
    def wants_gradients(self) -> bool:
        """Whether members contribute gradients and make no inner steps of their own."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The agreed vectors that `join`, `contribute`, `merge` and `lapse` use."""

    @property
    def sends(self) -> tuple[str, ...]:
        """The agreed vectors that are sent with a contribution, as they are when it is made; only with a PAIR."""

    @property
    def merges_weights(self) -> bool:
        """Whether `merge` and `lapse` use the trained weights; if not, these are replaced."""

    @property
    def merges_answers(self) -> bool:
        """Whether `merge` uses the answer's value; if not, it only uses the agreed vectors after `apply`."""

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """The agreed and the private vectors at the start of a run."""

    def join(self, agreed: Vectors) -> Vectors:
        """The private vectors of a peer that joins later or has lost its own, and starts from these agreed vectors.

        A replica's agreed vectors are then a copy of another peer's.
        """

    def launches(self, step: int) -> tuple[int, ...]:
        """The parts that are sent after this step; for steps before the first, the parts whose answers would be due.

        With a delay of 0 they are exchanged one by one, each after the one before is merged. A part that is named twice
        is exchanged twice, the second time with the result of the first.
        """

    @property
    def keeps(self) -> tuple[str, ...]:
        """The private vectors that survive a restart of the worker; the others are made anew by `join`."""

    @property
    def period(self) -> int:
        """Inner steps after which `launches` names the same parts again."""

    def fragment(self, part: int) -> Fragment | None:
        """The numbers that a part consists of; None: all of them."""

    @property
    def delay(self) -> int:
        """Inner steps between the launch of an exchange and the use of its answer; 0: training waits."""

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The contribution to a part, from the weights (with `wants_gradients`: the gradient) `theta`, (d,).

        `theta` is a copy that the method may overwrite; the payload may share its memory.
        """

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The next agreed vectors, only the part's numbers, (k,) each.

        It is elementwise, so callers may apply block by block, with `answer.start` of each.
        """

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The weights to train on after `apply`; `agreed` are the next agreed vectors."""

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """The weights to train on if an answer is due but there is none; `members` is how many take part now."""


class MethodDefaults:
    """What most methods have in common: a mean of the whole vector after each `period` inner steps.

    Training waits for the mean, then continues from the agreed parameters, which stay as they are if an exchange fails.
    Nothing is private.
    """

    exchange = Exchange.MEAN
    wants_gradients = merges_weights = merges_answers = False
    delay = 0
    period: int
    reads: tuple[str, ...] = (PARAMETERS,)
    sends: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()

    def join(self, agreed: Vectors) -> Vectors:
        """See Method."""
        return NONE

    def launches(self, step: int) -> tuple[int, ...]:
        """See Method."""
        return (0,) if step % self.period == 0 else ()

    def fragment(self, part: int) -> Fragment | None:
        """See Method."""
        return None

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """See Method."""
        return Merged(agreed[PARAMETERS], private)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """See Method."""
        return Merged(agreed[PARAMETERS], private)


def has_own_weights(method: Method) -> bool:
    """Whether each worker trains its own weights although all agree on a state."""
    return method.merges_weights and not method.exchange.is_of_replicas


def applied(method: Method, part: int, agreed: Vectors, answer: Answer) -> Vectors:
    """The next agreed vectors, (d,) each, after an answer to `part`."""
    fragment = method.fragment(part)
    if fragment is None:
        return method.apply(part, agreed, answer)
    made = method.apply(part, {name: fragment.take(vector) for name, vector in agreed.items()}, answer)
    return {name: fragment.put(vector, made[name]) for name, vector in agreed.items()}
