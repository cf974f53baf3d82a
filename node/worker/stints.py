"""A worker's stints: what it begins each with, how much it has done of its round, and how it hands that in.

Whoever makes the inner steps between `begin` and `end` says so with `add`: the loop of the built-in trainer
(worker.py), or a script of the user's (script/session.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from shoal.node.trainer.device import pin
from shoal.node.trainer.inner import NOTHING, InnerRound
from shoal.node.worker.messages import Contribution, Train, Trained
from shoal.node.worker.orders import Orders
from shoal.node.worker.replica import Model, Replica
from shoal.node.worker.shm import FloatArray
from shoal.protocol.wire import Message


class Stored(Model, Protocol):
    """A model whose optimizer's state can be kept for a successor."""

    def store(self, out: Tensor) -> None: ...


class Stints:
    """Of `trainer` and its `replica`, between the shared vectors; `send` speaks to the daemon."""

    def __init__(
        self,
        trainer: Stored,
        replica: Replica,
        orders: Orders,
        contribution: FloatArray,
        moments: FloatArray,
        send: Callable[[Message], None],
        *,
        wants_gradients: bool = False,
    ) -> None:
        self._stored, self._replica, self._orders, self._send = trainer, replica, orders, send
        self._contribution = torch.from_numpy(contribution)
        self._moments = torch.from_numpy(moments)
        self._wants_gradients = wants_gradients
        self._round = 0
        self._done = NOTHING  # in this round
        for vector in (self._contribution, self._moments):
            pin(vector, trainer.device)

    def begin(self, order: Train) -> bool:
        """Get the weights to train on; whether they are here: not if another order has overtaken this one."""
        if not self._replica.take(order):
            return False
        if order.is_fresh or order.round != self._round:
            self._round, self._done = order.round, NOTHING
        return True

    def add(self, made: InnerRound) -> None:
        """So much more of the round is trained."""
        self._done += made

    def end(self, order: Train) -> None:
        """Answer the order, unless another has come."""
        if self._orders.is_replaced(order):
            return
        if order.hand_in:
            self._hand_in(order)
        else:
            if order.shows:
                self._stored.read(self._contribution)
            self._send(Trained(order.order, order.round))

    def _hand_in(self, order: Train) -> None:
        done, out = self._done, self._contribution
        source = out if self._wants_gradients else self._stored.read(out)
        if not done.steps and self._wants_gradients:
            out.zero_()
        payload = self._replica.contribute(order.round, source, out)
        if not torch.stack(torch.aminmax(payload)).isfinite().all():  # in one pass, without a copy
            raise ArithmeticError("the contribution has NaN or Inf")
        self._moments[0] = 0  # until the rest is written (moments.py)
        self._replica.keep()
        self._stored.store(self._moments)
        self._send(Contribution(order.order, order.round, done.steps, done.tokens, _known(done)))


def _known(done: InnerRound) -> float | None:
    return done.loss if done.steps and math.isfinite(done.loss) else None
