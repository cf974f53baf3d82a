"""What a worker trains, by the method of its run: its weights, and the vectors that the method remembers.

Agreed vectors are copied from the daemon when an order comes, so that the daemon may load the next ones before we end.
If it has begun to while they were copied, or an answer was looked at, nothing is taken: the next order is coming.
Private ones change with a contribution only once a round has counted it; what a round has missed of it stays as it was.

An answer counts once: not again where the agreed vectors that we began with hold it already. And one that is not kept
any more, though the method wants to see it, is in the agreed vectors, and only there: then we begin with those anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.node.ipc.messages import Landing, Range, Train
from shoal.node.ipc.shm import FloatArray, SharedVector
from shoal.node.training.methods.method import PARAMETERS, Answer, Merged, Method, Vectors
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.trainer.device import pin
from shoal.node.training.trainer.inner_state import private_views


class Model(Protocol):
    """Of a trainer: its weights as a flat vector (d,) on the CPU."""

    device: torch.device

    def load(self, theta: Tensor) -> None: ...

    def read(self, out: Tensor | None = None) -> Tensor: ...


class WorkerWeights:
    """The weights of `model`, and what belongs to them. `agreed`, `answer` and `moments` are shared with the daemon."""

    def __init__(
        self,
        method: Method,
        model: Model,
        agreed: FloatArray,
        moments: FloatArray,
        answer: FloatArray | None,
        is_loaded: Callable[[Train], bool] = lambda _: True,
    ) -> None:
        """`is_loaded` says whether `agreed` and `answer` are those of an order, wholly."""
        self._is_loaded = is_loaded
        self._method, self._timetable, self._model = method, Timetable(method), model
        self._shared, self._answer = agreed, answer
        with SharedVector.create(len(agreed)) as ours:
            self._copy = torch.from_numpy(ours.array)
        pin(self._copy, model.device)
        size = len(agreed) // len(method.reads)
        self._agreed: Vectors = dict(zip(method.reads, torch.split(self._copy, size), strict=True))
        own = torch.from_numpy(moments)
        self._has_kept = bool(own[0])  # an earlier worker, or a checkpoint, has left something
        self._kept = private_views(own, size, method.keeps)
        self._private: Vectors = {}
        self._offered: dict[int, Vectors] = {}  # by round: what a contribution leaves, if it is counted
        self._version: int | None = None  # of the agreed vectors; None: not whole
        self._has_weights = False
        self._began = 0  # the version that our weights go back to
        self._landed = -1  # the newest round whose answer is in our weights, or need not be

    def take(self, order: Train) -> bool:
        """Get the weights to train on: our own, those of the committed state, or what the method makes of both.

        False if the order was replaced while we read what it is about; what has landed until then has.
        """
        if order.is_fresh or not self._has_weights:
            return self._begin(order)
        landings = [each for each in order.landings if each.round > self._landed]
        if landings and not self._copy_agreed(order):
            return False
        if any(map(self._is_lost, landings)):
            return self._begin(order)
        return all(self._land(landing, order) for landing in landings)

    def contribute(self, round: int, source: Tensor, out: Tensor) -> Tensor:
        """What goes to the network, in the first numbers of `out`, of the weights or the gradient (d,).

        `source` may be written to, and may be `out`.
        """
        made = self._method.contribute(self._timetable.part(round), source, self._agreed, self._private)
        payload = out[: made.payload.numel()]
        if made.payload.data_ptr() != payload.data_ptr():  # it may lie there already
            payload.copy_(made.payload)
        self._offered[round] = {name: new for name, new in made.private.items() if new is not self._private.get(name)}
        return payload

    def keep(self) -> None:
        """Write what a successor goes on with to the shared vector."""
        newest = self._offered[max(self._offered)] if self._offered else {}
        for name, view in self._kept.items():
            view.copy_(newest.get(name, self._private[name]))

    def _begin(self, order: Train) -> bool:
        self._version = None
        if not self._copy_agreed(order):
            return False
        is_first, self._has_weights = not self._has_weights, True
        self._began = order.version
        joined = {name: vector.clone() for name, vector in self._method.join(self._agreed).items()}
        if is_first and self._has_kept:
            joined |= {name: view.clone() for name, view in self._kept.items()}
        self._private, self._offered = joined, {}
        self._landed = max((each.round for each in order.landings), default=-1)
        self._model.load(self._agreed[PARAMETERS])
        return True

    def _copy_agreed(self, order: Train) -> bool:
        if order.version != self._version:
            self._version = None
            np.copyto(self._copy.numpy(), self._shared)
            if self._is_loaded(order):
                self._version = order.version
        return self._version is not None

    def _is_new(self, landing: Landing) -> bool:
        return landing.is_there and landing.round > self._began

    def _is_lost(self, landing: Landing) -> bool:
        return self._method.merges_answers and self._is_new(landing) and not landing.is_shown

    def _land(self, landing: Landing, order: Train) -> bool:
        self._adopt(self._offered.pop(landing.round, {}), landing.missed)
        weights = self._model.read() if self._method.merges_weights else None
        merged = self._merged(landing, self._agreed[PARAMETERS] if weights is None else weights)
        if self._answer is not None and not self._is_loaded(order):
            return False
        self._private, self._landed = merged.private, landing.round
        if merged.theta is not weights:
            self._model.load(merged.theta)
        return True

    def _merged(self, landing: Landing, theta: Tensor) -> Merged:
        method, part = self._method, self._timetable.part(landing.round)
        if not self._is_new(landing):
            return method.lapse(part, theta, self._agreed, self._private, landing.members)
        fragment = method.fragment(part)
        size = len(theta) if fragment is None else fragment.size
        value = torch.empty(0) if self._answer is None else torch.from_numpy(self._answer[:size])
        answer = Answer(value, landing.members, number=landing.round)
        return method.merge(part, theta, self._agreed, self._private, answer)

    def _adopt(self, offered: Vectors, missed: Sequence[Range]) -> None:
        for name, vector in offered.items():
            for each in missed:
                vector[each.start : each.stop] = self._private[name][each.start : each.stop]
        self._private = {**self._private, **offered}
