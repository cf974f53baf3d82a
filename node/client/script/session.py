"""A script's part in a run, from its `wrap` on: it carries out the node's orders, one step of its optimizer at a time.

A step of the optimizer is an inner step. The node's orders are read after each step, never before: the gradients of a
step belong to the weights that were there when it began. When the steps of an order are done, the weights are handed
in, the script waits as long as its method waits, and the result is in the module when `step()` returns.

A loss belongs to a step's forward pass. Scripts report it before `optimizer.step()` or after: a loss that is reported
after a step without one belongs to that step, otherwise to the next one. A step that ends a round hands in at once, so
its loss is in the round's mean only if it was reported before.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shoal.node.client.script.module import OwnModule
from shoal.node.client.script.stepping import after_each_step
from shoal.node.client.script.told import CLOSED, Line
from shoal.node.ipc.messages import Finished, Ready, Train
from shoal.node.ipc.messages import Progress as Report
from shoal.node.training.methods.method import Method
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.trainer.device import device_bytes, device_name
from shoal.node.training.trainer.inner import InnerRound
from shoal.node.worker.stints import Stints
from shoal.node.worker.weights import WorkerWeights
from shoal.protocol.base.errors import LocalError

# -- losses ------------------------------------------------------------------------------------------------


class Losses:
    """Of one script; the means are those of stints, as their ends hand them in."""

    def __init__(self) -> None:
        self._latest = math.nan
        self._is_ahead = False  # the latest is of the step that comes
        self._is_open = False  # nothing was told of the last step yet
        self._is_over = False  # the last step's stint has ended
        self._total, self._count = 0.0, 0  # of the stint's steps of which something was told

    @property
    def known(self) -> float | None:
        """The latest, if it is a number."""
        return self._latest if math.isfinite(self._latest) else None

    def tell(self, loss: float) -> None:
        """The script has computed a loss."""
        self._latest = loss
        if not self._is_open:
            self._is_ahead = True
        elif not self._is_over:
            self._count_in()
        self._is_open = False

    def stepped(self) -> None:
        """The script has made a step."""
        if self._is_ahead:
            self._count_in()
        self._is_open, self._is_ahead, self._is_over = not self._is_ahead, False, False

    def take_mean(self) -> float:
        """The mean of what was told of this stint's steps, the latest if it was nothing; another stint begins."""
        mean = self._total / self._count if self._count else self._latest
        self._total, self._count, self._is_over = 0.0, 0, True
        return mean

    def _count_in(self) -> None:
        self._total, self._count = self._total + self._latest, self._count + 1


REPLACED = (
    "another `wrap` of this script has taken the place of this optimizer in the run: step that one, or give each "
    "optimizer a run of its own"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is, not this script: who joins late begins where the others are."""

    step: int  # inner steps of the run's clock, as one member makes them
    round: int  # that is trained; after the end, the last one
    samples: int  # of all members, behind the state that the round began with


class Session:
    """One wrapped optimizer. `look` is called while it waits, and raises what makes waiting useless.

    When nobody has the optimizer any more, nor this, the part in the run is over, as after `close`.
    """

    def __init__(self, line: Line, own: OwnModule, method: Method, batch: int, look: Callable[[], None]) -> None:
        self.is_closed = False
        self._is_replaced = False
        self._losses = Losses()
        self._line, self._link, self._told = line, line.link, line.told
        self._own, self._batch, self._look = own, batch, look
        self._timetable = Timetable(method)
        own.has_private = bool(method.keeps)
        vectors = self._link.vectors
        contribution, moments = vectors.contribution.array, vectors.moments.array
        own.restore(torch.from_numpy(moments))
        weights = WorkerWeights.over(method, own, vectors)
        self._stints = Stints(own, weights, self._told, contribution, moments, self._link.send)
        self._order: Train | None = None  # None: before the first, and after the end
        self._is_answered = False  # the order; what comes of it is still waited for
        self._made = 0  # steps of the order
        self._began = 0.0
        self._working = self._stints.utilisation.working(time.monotonic)
        self._hook = after_each_step(own.optimizer, self._stepped)
        weakref.finalize(self, line.forget).atexit = False  # a process that ends hangs up anyway

    def start(self) -> None:
        """Wait for the run's state; it is in the module then."""
        self._link.send(Ready(device_name(self._own.device)))
        self._line.start()
        self._next(0)

    def report(self, loss: float) -> None:
        """The script tells its loss."""
        self._losses.tell(loss)

    def close(self) -> None:
        """Take no part any more, in any thread: the optimizer is an ordinary one again, and whoever waits is told.

        When this returns the node knows: the run may be joined again at once.
        """
        self.is_closed = True
        self._hook.remove()
        self._line.hang_up()

    def give_way(self) -> None:
        """The same, for another part of this script in the run; the optimizer says so if it is stepped once more."""
        self.is_closed = self._is_replaced = True
        self._line.hang_up()

    @property
    def has_begun(self) -> bool:
        """Whether the run's state has come."""
        return self._order is not None or self.is_over

    @property
    def own(self) -> OwnModule:
        """What it trains."""
        return self._own

    @property
    def is_over(self) -> bool:
        """Whether the run's last round is in the module."""
        return self._order is None and self._told.finished is not None

    @property
    def progress(self) -> Progress:
        """See there; LocalError before the run's state has come."""
        order, end = self._order, self._told.finished
        if order is None:
            if end is None:
                raise LocalError("the run's state is not here yet: `wrap` waits for it")
            return Progress(self._timetable.launch(end.round), end.round, end.samples)
        return Progress(self._timetable.launch(order.round - 1) + order.first + self._made, order.round, order.samples)

    # -- inside ---------------------------------------------------------------------------------------------

    def _stepped(self) -> None:
        """The optimizer has made a step, unless a GradScaler lets a fused one skip it inside."""
        found_inf = getattr(self._own.optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf):
            return
        if self.is_closed:
            raise LocalError(REPLACED if self._is_replaced else CLOSED)
        order = self._order
        if order is None:
            self._load_end()  # steps after the end change nothing
            return
        self._told.check()
        self._own.check_unchanged()
        if (
            self._is_answered
        ):  # the wait after an earlier step was broken off, as by Ctrl-C: it goes on, and this is none
            self._next(order.order)
            return
        self._made += 1
        self._own.stepped()
        self._losses.stepped()
        self._report(order)
        if self._made >= order.steps or self._told.is_due(order):
            self._end(order)
            self._next(order.order)

    def _next(self, done: int) -> None:
        """Wait for the next order that wants steps, or the end."""
        while not isinstance(order := self._told.next(done, self._look), Finished):
            self._order, self._made, self._is_answered, done = order, 0, False, order.order
            if not self._stints.begin(order):
                continue  # the order that has replaced it is coming
            self._began = time.monotonic()
            if order.steps and not self._told.is_due(order):
                self._working = self._stints.utilisation.working(time.monotonic)
                self._working.__enter__()
                return
            self._end(order)
        self._order = None
        self._load_end()

    def _end(self, order: Train) -> None:
        if self._made:
            self._own.check_still()
            self._working.__exit__(None, None, None)
            self._stints.add(InnerRound(self._made, self._made * self._batch, self._losses.take_mean()))
        try:
            self._stints.end(order)
        except ArithmeticError as error:
            raise LocalError(
                f"training has diverged in round {order.round}: {error}. Nothing of it was sent; mend the script and "
                "run it again: it goes on from the run's state"
            ) from error
        self._is_answered = True

    def _load_end(self) -> None:
        self._own.load(torch.from_numpy(self._link.vectors.agreed.array[: self._own.layout.size]), is_end=True)

    def _report(self, order: Train) -> None:
        now, samples = time.monotonic(), self._made * self._batch
        step, loss = order.first + self._made, self._losses.known
        speed, memory = samples / max(now - self._began, 1e-9), device_bytes(self._own.device)
        share = self._stints.utilisation.share(now)
        self._link.send(Report(order.order, order.round, step, loss, samples, speed, memory, share))
