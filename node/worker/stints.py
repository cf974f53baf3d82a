"""What the built-in worker and users' scripts share: receiving orders, and beginning and ending their stints.

`Orders` passes the daemon's orders from the thread that reads the socket to the one that trains.
`Stints` gets the weights for an order, measures their validation loss if asked to, and answers it. The inner steps
between `begin` and `end` are made, and counted by `add`, by the loop of the built-in trainer (worker.py) or by a user's
script (client/script/session.py).
`Utilisation` is the share of its time in which a worker trains; else it waits for the network, or merges what came.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from shoal.node.ipc.messages import Contribution, HandIn, Hurry, Train, Trained, Validated
from shoal.node.ipc.shm import FloatArray
from shoal.node.training.trainer.device import pin
from shoal.node.training.trainer.evaluate import SampleLoss
from shoal.node.training.trainer.inner import NOTHING, InnerRound
from shoal.node.worker.weights import Model, WorkerWeights
from shoal.protocol.base.wire import Message

STINTS = 16  # latest stints that count for the utilisation
NOT_MEASURED = SampleLoss(None, 0)


class Orders:
    """The daemon's current orders: written by the reader thread, read by the training loop."""

    def __init__(self) -> None:
        self._newest: Train | None = None
        self._handed_in = 0  # the newest order that is to be handed in early
        self._hurried = 0  # the newest order whose steps are to begin at once
        self._changed = threading.Condition()

    def take(self, message: Message) -> None:
        """Take a message of the daemon."""
        with self._changed:
            if isinstance(message, Train):
                self._newest = message
            elif isinstance(message, HandIn):
                self._handed_in = message.order
            elif isinstance(message, Hurry):
                self._hurried = message.order
            self._changed.notify_all()

    def after(self, done: int) -> Train:
        """Wait for an order newer than `done`."""
        with self._changed:
            while self._newest is None or self._newest.order <= done:
                self._changed.wait()
            return self._newest

    def is_replaced(self, order: Train) -> bool:
        """Whether a newer order has replaced `order`."""
        return self._newest is not order

    def is_due(self, order: Train) -> bool:
        """Whether work on `order` must end: it is replaced, or to be handed in."""
        return self.is_replaced(order) or self._handed_in >= order.order

    def may_measure(self, order: Train) -> bool:
        """Whether there is time to measure a loss before the steps of `order`."""
        return not self.is_due(order) and self._hurried < order.order


class Utilisation:
    """The share of time spent within `working`, over the latest stints."""

    def __init__(self) -> None:
        self._stints: deque[tuple[float, float]] = deque(maxlen=STINTS)  # when each began and ended
        self._began: float | None = None

    @contextmanager
    def working(self, clock: Callable[[], float]) -> Iterator[None]:
        """A context for the work of a stint."""
        self._began = clock()
        yield
        self._stints.append((self._began, clock()))
        self._began = None

    def share(self, now: float) -> float:
        """The share, from 0 to 1; 1 until there was a pause."""
        stints = [*self._stints, *([(self._began, now)] if self._began is not None else [])]
        if not stints or now <= stints[0][0]:
            return 1.0
        return sum(end - start for start, end in stints) / (now - stints[0][0])


class StorableModel(Model, Protocol):
    """A model whose optimizer's state can be stored for the next worker."""

    def store(self, out: Tensor) -> None: ...


M = TypeVar("M", bound=StorableModel)

Measure = Callable[[int, Callable[[], bool]], SampleLoss]
"""Measures the model's loss on so many sequences, until the function that it is given returns False."""


class Stints(Generic[M]):
    """The stints of a trainer and its weights; reads and writes the shared vectors, and answers by `send`."""

    def __init__(
        self,
        trainer: M,
        weights: WorkerWeights,
        orders: Orders,
        contribution: FloatArray,
        moments: FloatArray,
        send: Callable[[Message], None],
        *,
        wants_gradients: bool = False,
    ) -> None:
        self.utilisation = Utilisation()
        self._trainer, self._weights, self._orders, self._send = trainer, weights, orders, send
        self._contribution = torch.from_numpy(contribution)
        self._moments = torch.from_numpy(moments)
        self._wants_gradients = wants_gradients
        self._round = 0
        self._done = NOTHING  # in this round
        for vector in (self._contribution, self._moments):
            pin(vector, trainer.device)

    def begin(self, order: Train) -> bool:
        """Load the weights for an order; False if a newer order has replaced it meanwhile."""
        if not self._weights.take(order):
            return False
        if order.is_fresh or order.round != self._round:
            self._round, self._done = order.round, NOTHING
        return True

    def validate(self, order: Train, measure: Measure, may_swap: bool = True) -> None:
        """Measure the validation loss of the state of an order that has begun, if it asks for that.

        The weights to train stay as they are; without `may_swap`, nothing is measured where they are not that state's.
        """
        if not order.validates or not self._orders.may_measure(order):
            return
        began = time.monotonic()
        go_on = partial(self._orders.may_measure, order)
        with self._weights.committed(order, may_swap) as is_there:
            made = measure(order.validates, go_on) if is_there else NOT_MEASURED
        loss = made.loss if made.loss is not None and math.isfinite(made.loss) else None
        self._send(Validated(order.order, order.round, loss, made.sequences, time.monotonic() - began))

    def add(self, made: InnerRound) -> None:
        """Count inner steps that were made."""
        self._done += made

    def end(self, order: Train) -> None:
        """Answer the order, unless a newer one has replaced it."""
        if self._orders.is_replaced(order):
            return
        if order.hand_in:
            self._hand_in(order)
        else:
            if order.shows:
                self._trainer.read(self._contribution)
            self._send(Trained(order.order, order.round))

    def _hand_in(self, order: Train) -> None:
        done, out = self._done, self._contribution
        source = out if self._wants_gradients else self._trainer.read(out)
        if not done.steps and self._wants_gradients:
            out.zero_()
        payload = self._weights.contribute(order.round, source, out)
        if not torch.stack(torch.aminmax(payload)).isfinite().all():  # in one pass, without a copy
            raise ArithmeticError("the contribution has NaN or Inf")
        self._moments[0] = 0  # until the rest is written (ipc/vectors.py)
        self._weights.keep()
        self._trainer.store(self._moments)
        self._send(Contribution(order.order, order.round, done.steps, done.tokens, _known(done)))


def _known(done: InnerRound) -> float | None:
    return done.loss if done.steps and math.isfinite(done.loss) else None
