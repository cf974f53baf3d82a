"""What a training method is, as one peer sees it: when it communicates, what it sends, and what it makes of the answer.

A method is stateless: all that it remembers are named vectors, which go in and come out. Two kinds, of d numbers each:

- *agreed* ones, which a peer's daemon holds, applies answers to, saves, and gives to joiners under their root;
- *private* ones, which belong to one peer's worker, and which nobody else ever sees; those worth it go into its
  checkpoints.

Of a MEAN the agreed ones are the same to the bit on all members, and fencing covers them. Of a PAIR or a GRAPH they are
those of a *replica*, which is one peer's: held like agreed ones, but agreed with nobody.

A *part* is what one exchange is about: the whole vector, or a fragment of it. After inner step t (from 1, over the
whole run) a method may launch exchanges of some parts, and `delay` steps later it takes their answers:

    launches(t): contribute(part)  ->  the network  ->  after step t + delay: apply(part), merge(part)

`launches` repeats itself after `period` steps. With a delay of 0 training waits for the network; else it goes on
meanwhile, and only waits where an answer is due but still under way. What is launched after a step is contributed
before what is due after it is applied, so that a contribution starts from the agreed vectors that were there while it
was trained. `apply` makes the agreed vectors of the answer: a daemon does that, on the CPU, as the rule's file says.
`merge` makes the weights that the peer trains on: a worker does that, between two inner steps.

What answers is the exchange's kind:

- MEAN: the mean of all contributions to the part, one vector for all;
- PAIR: the contributions of a group drawn for the round, ours among them, and which of them is ours;
- GRAPH: the mean of our own contribution and of our neighbours', by the weights of a graph drawn for the round.

An exchange that fails, as its round was aborted or the partner is gone, has no answer: nothing is applied, the private
vectors stay what they were before the contribution, and `lapse` takes the place of `merge`. So it does wherever
launches(t - delay) names a part that we sent nothing of: before the run's first step, or before we joined.

After the last step of a run of replicas one plain mean of the weights of all who are there is its result.
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
    """Who gets what of whom."""

    MEAN = "mean"
    PAIR = "pair"
    GRAPH = "graph"

    @property
    def is_of_replicas(self) -> bool:
        """Whether each peer has parameters of its own."""
        return self is not Exchange.MEAN


class Contribution(NamedTuple):
    """What goes to the network, and the private vectors as they are once the exchange has counted it."""

    payload: Tensor  # (k,)
    private: Vectors


class Merged(NamedTuple):
    """The weights to train on, and the private vectors that go on."""

    theta: Tensor  # (d,)
    private: Vectors


class Answer(NamedTuple):
    """What came of an exchange."""

    value: (
        Tensor  # (k,) of a MEAN or a GRAPH; (members, 1 + len(sends), k) of a PAIR: contribution, then what goes along
    )
    members: int  # who were in it
    own: int = 0  # of a PAIR: which of them we are
    number: int = 0  # of a MEAN: how many of its part were applied, this one too; agreed, as the value is
    start: int = 0  # of a block of a MEAN: which of the part's numbers is its first


class Method(Protocol):
    """One entry of the registry; `step` counts inner steps of the run from 1."""

    @property
    def exchange(self) -> Exchange:
        """The kind of its exchanges."""

    @property
    def wants_gradients(self) -> bool:
        """Whether a contribution is made of a gradient, and nobody makes inner steps by itself."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The agreed vectors that `join`, `contribute`, `merge` and `lapse` look at."""

    @property
    def sends(self) -> tuple[str, ...]:
        """The agreed vectors that go along with a contribution, as they are when it is made: of a PAIR."""

    @property
    def merges_weights(self) -> bool:
        """Whether `merge` and `lapse` look at the weights that were trained; else those are replaced."""

    @property
    def merges_answers(self) -> bool:
        """Whether `merge` looks at the answer's value; else what `apply` has made of it is enough."""

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """The agreed and the private vectors at the start of a run."""

    def join(self, agreed: Vectors) -> Vectors:
        """The private vectors of who comes later, or lost its own, and starts from these agreed ones.

        Those of a replica are a copy of another peer's.
        """

    def launches(self, step: int) -> tuple[int, ...]:
        """The parts that are sent after this step; of steps before the first, those whose answers would be due.

        With a delay of 0 they go one by one, each after the one before is merged: a part that is named twice is
        exchanged twice, the second time as the first has left it.
        """

    @property
    def keeps(self) -> tuple[str, ...]:
        """The private vectors that a peer goes on with after a restart, in place of those of `join`."""

    @property
    def period(self) -> int:
        """Inner steps after which `launches` names the same parts again."""

    def fragment(self, part: int) -> Fragment | None:
        """Which numbers a part is about; None: all."""

    @property
    def delay(self) -> int:
        """Inner steps between a part's launch and its landing; 0: training waits."""

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """What we send of a part, of the weights (with `wants_gradients`: the gradient) that we have now.

        They are a copy that the method may write to: the payload of the whole vector can lie in its memory.
        """

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The next agreed vectors, of the part's numbers only, (k,) each.

        Elementwise: callers may cut blocks, and say where each starts.
        """

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The weights to go on with, after `apply`."""

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """The weights to go on with where an answer is due and none is there; so many members take part now."""


def has_own_weights(method: Method) -> bool:
    """Whether weights to train on differ from worker to worker though all agree on a state."""
    return method.merges_weights and not method.exchange.is_of_replicas


def applied(method: Method, part: int, agreed: Vectors, answer: Answer) -> Vectors:
    """The next agreed vectors, whole, (d,) each, after an answer to `part`."""
    fragment = method.fragment(part)
    if fragment is None:
        return method.apply(part, agreed, answer)
    made = method.apply(part, {name: fragment.take(vector) for name, vector in agreed.items()}, answer)
    return {name: fragment.put(vector, made[name]) for name, vector in agreed.items()}
