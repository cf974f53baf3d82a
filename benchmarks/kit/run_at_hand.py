"""A custom run without a node: this process is also the other end of the script's link, and simulates a second member.

The script sees the same as with a node: it founds a run or is refused, gets orders, hands in contributions and is given
the results. The second member contributes -0.5 times the script's contribution, so that the two never agree.
"""

from __future__ import annotations

import queue
from typing import Any

import torch
from torch import Tensor

from shoal.node.client.script.api import Run
from shoal.node.client.script.connection import NodeConnection
from shoal.node.client.script.founding import manifest_of
from shoal.node.client.script.module import OwnModule
from shoal.node.client.script.session import Session, Validate
from shoal.node.ipc.messages import Contribution, Finished, Stop, Train
from shoal.node.ipc.vectors import SharedVectors, Sizes, mark_of
from shoal.node.training.methods.method import PARAMETERS, Answer
from shoal.node.training.methods.registry import method_of
from shoal.protocol.base.wire import Message


class Loop:
    """The node's end of a link; `theta` is the agreed state."""

    def __init__(self, own: OwnModule, tables: dict[str, Any]) -> None:
        manifest = manifest_of(own, tables)
        self.method = method_of(manifest, own.layout)
        self._agreed, _ = self.method.begin(own.read())
        self._last = manifest.rounds.last or 1
        self._steps = manifest.method.inner_steps
        self._inbox: queue.Queue[Message] = queue.Queue()
        self.rounds = 0  # that are applied
        self.vectors = SharedVectors.create(Sizes(own.layout.size, agreed=len(self.method.reads)))
        self._order()

    @property
    def theta(self) -> Tensor:
        return self._agreed[PARAMETERS]

    def send(self, message: Message) -> None:
        if isinstance(message, Contribution):
            mean = torch.from_numpy(self.vectors.contribution.array) * 0.25  # of it and of -0.5 times it
            self._agreed = self.method.apply(self.rounds, self._agreed, Answer(mean, 2))
            self.rounds += 1
            self._order()

    def receive(self) -> Message:
        return self._inbox.get()

    def leave(self) -> None:
        self._inbox.put(Stop())

    def close(self) -> None:
        self.vectors.close()

    def _order(self) -> None:
        agreed = torch.cat([self._agreed[name] for name in self.method.reads])
        self.vectors.agreed.array[:] = agreed.numpy()
        self.vectors.loaded.array[0] = mark_of(self.rounds + 1)
        order = Train(self.rounds + 1, self.rounds + 1, 0, self.rounds, steps=self._steps, is_fresh=True, samples=0)
        self._inbox.put(Finished(self.rounds, 0) if self.rounds == self._last else order)


class RunAtHand(Run):
    """A run that `wrap` founds, as after `create`, with a `Loop` in place of a node."""

    loop: Loop | None = None  # once it is founded

    def _attached(self, own: OwnModule, batch_size: int | None, validate: Validate | None) -> Session:
        self.loop = self.loop or Loop(own, dict(self._tables))
        link: Any = self.loop
        return Session(NodeConnection(link), own, self.loop.method, batch_size or 1, lambda: None, validate)
