"""A worker's weights, and the vectors that the run's method keeps beside them.

The agreed vectors are copied from shared memory when an order comes, so that the daemon may load the next ones before
this order ends. If it does so while they are copied, or an answer is read, nothing is taken: a newer order is coming.
The changes that a contribution makes to the private vectors hold only once a round has counted the contribution; parts
that a round has missed keep their old values.

An answer is merged once, and not at all if the agreed vectors with which we began contain it already. If an answer that
the method has to read is no longer there, only the agreed vectors contain it: then we begin anew from those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.node.ipc.messages import Landing, Range, Train
from shoal.node.ipc.shm import FloatArray, SharedVector
from shoal.node.ipc.vectors import SharedVectors, mark_of
from shoal.node.training.methods.method import PARAMETERS, Answer, Merged, Method, Vectors
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.trainer.device import pin
from shoal.node.training.trainer.inner_state import private_views


class Model(Protocol):
    """What is needed of a trainer: its weights as a flat vector (d,) on the CPU."""

    device: torch.device

    def load(self, theta: Tensor) -> None: ...

    def read(self, out: Tensor | None = None) -> Tensor: ...


class WorkerWeights:
    """The weights of `model` and the method's vectors; `agreed`, `answer` and `moments` are shared with the daemon."""

    def __init__(
        self,
        method: Method,
        model: Model,
        agreed: FloatArray,
        moments: FloatArray,
        answer: FloatArray | None,
        is_loaded: Callable[[Train], bool] = lambda _: True,
    ) -> None:
        """`is_loaded` tells whether `agreed` and `answer` are completely written for an order."""
        self._is_loaded = is_loaded
        self._method, self._timetable, self._model = method, Timetable(method), model
        self._shared, self._answer = agreed, answer
        with SharedVector.create(len(agreed)) as ours:
            self._copy = torch.from_numpy(ours.array)
        pin(self._copy, model.device)
        size = len(agreed) // len(method.reads)
        self._agreed: Vectors = dict(zip(method.reads, torch.split(self._copy, size), strict=True))
        own = torch.from_numpy(moments)
        self._has_kept = bool(own[0])  # an earlier worker, or a checkpoint, has left moments
        self._kept = private_views(own, size, method.keeps)
        self._private: Vectors = {}
        self._offered: dict[int, Vectors] = {}  # by round: the private vectors after its contribution, if it is counted
        self._version: int | None = None  # of our copy of the agreed vectors; None: it is not complete
        self._has_weights = False
        self._are_agreed = False  # whether the weights that `take` has left are the agreed parameters
        self._began = 0  # the version from which our weights began
        self._landed = -1  # the newest round whose answer is merged, or need not be

    @classmethod
    def over(cls, method: Method, model: Model, vectors: SharedVectors) -> WorkerWeights:
        """The weights of a worker that shares these vectors with its daemon."""
        loaded, answer = vectors.loaded.array, vectors.answer.array if vectors.answer is not None else None
        agreed, moments = vectors.agreed.array, vectors.moments.array
        return cls(method, model, agreed, moments, answer, lambda order: loaded[0] == mark_of(order.order))

    def take(self, order: Train) -> bool:
        """Load the weights to train: our own, those of the committed state, or what the method makes of both.

        False if the order was replaced while we read its vectors; landings that were merged by then stay merged.
        """
        self._are_agreed = False
        if order.is_fresh or not self._has_weights:
            return self._begin(order)
        landings = [each for each in order.landings if each.round > self._landed]
        if landings and not self._copy_agreed(order):
            return False
        if any(map(self._is_lost, landings)):
            return self._begin(order)
        return all(self._land(landing, order) for landing in landings)

    @contextmanager
    def committed(self, order: Train, may_swap: bool) -> Iterator[bool]:
        """A context in which the model has the agreed parameters of `order`, which was just taken; False if it has not.

        Where these are not the weights to train, the model gets them only if it `may_swap`, and then its own back.
        """
        if self._version != order.version or not (self._are_agreed or may_swap):
            yield False
            return
        try:
            own = None if self._are_agreed else self._model.read()
        except (MemoryError, RuntimeError):  # no room for a copy: that costs the figure, and not the training
            yield False
            return
        if own is not None:
            self._model.load(self._agreed[PARAMETERS])
        try:
            yield True
        finally:
            if own is not None:
                self._model.load(own)

    def contribute(self, round: int, source: Tensor, out: Tensor) -> Tensor:
        """Make the payload for a round's part from the weights or the gradient `source` (d,).

        The payload is a view of the first numbers of `out` (d,). `source` may be `out`, and may be overwritten.
        """
        made = self._method.contribute(self._timetable.part(round), source, self._agreed, self._private)
        payload = out[: made.payload.numel()]
        if made.payload.data_ptr() != payload.data_ptr():  # it may be there already
            payload.copy_(made.payload)
        self._offered[round] = {name: new for name, new in made.private.items() if new is not self._private.get(name)}
        return payload

    def keep(self) -> None:
        """Write the private vectors to the shared vector, for the next worker."""
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
        self._are_agreed = True
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
        self._are_agreed = merged.theta is self._agreed[PARAMETERS]
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
