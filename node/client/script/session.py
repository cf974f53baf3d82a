"""A script's part in a run after `wrap`: each step of its optimizer is an inner step of the node's current order.

The node's orders are read after each step, never before: the gradients of a step belong to the weights that were there
when it began. When the steps of an order are done, the weights are handed in, the script waits if its method waits, and
the result is in the module when `step()` returns.

A loss belongs to a step's forward pass. A script reports it before `optimizer.step()` or after it: a loss belongs to
the last step if none was reported for that one yet, otherwise to the next one. A step that ends a round hands in at
once, so its loss is in the round's mean only if it was reported before the step.

A script may have a function that measures the validation loss. It is called now and then while the module has the
run's committed weights, before the first step of a round.

A process has one session in a run. A second one, as of a notebook's cell that is run twice, replaces the first; the
replaced optimizer raises an error at its next step, as it would train alone. A session ends when its optimizer is
garbage-collected, closed or not.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch

from shoal.node.client.script.connection import CLOSED, NodeConnection
from shoal.node.client.script.hooks import after_each_step
from shoal.node.client.script.module import OwnModule
from shoal.node.ipc.link import WorkerLink
from shoal.node.ipc.messages import Finished, Ready, Train
from shoal.node.ipc.messages import Progress as Report
from shoal.node.manifest.manifest import decode_manifest
from shoal.node.manifest.model import CustomSpec
from shoal.node.training.methods.method import Method
from shoal.node.training.methods.registry import method_of
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.trainer.device import device_bytes, device_name, same_random_numbers
from shoal.node.training.trainer.evaluate import SampleLoss, evaluating
from shoal.node.training.trainer.inner import InnerRound
from shoal.node.worker.stints import Stints
from shoal.node.worker.weights import WorkerWeights
from shoal.protocol.base.errors import LocalError

# -- losses ------------------------------------------------------------------------------------------------


class Losses:
    """The losses that a script reports, and their mean over each stint."""

    def __init__(self) -> None:
        self._latest = math.nan
        self._is_of_next = False  # the latest loss belongs to the next step
        self._lacks_loss = False  # no loss was reported for the last step yet
        self._has_ended = False  # the last step's stint
        self._total, self._count = 0.0, 0  # of the losses of this stint

    @property
    def latest(self) -> float | None:
        """The latest loss; None if there is none, or if it is NaN or infinite."""
        return self._latest if math.isfinite(self._latest) else None

    def report(self, loss: float) -> None:
        """The script has computed a loss."""
        self._latest = loss
        if not self._lacks_loss:
            self._is_of_next = True
        elif not self._has_ended:
            self._count_in()
        self._lacks_loss = False

    def stepped(self) -> None:
        """The script has made a step."""
        if self._is_of_next:
            self._count_in()
        self._lacks_loss, self._is_of_next, self._has_ended = not self._is_of_next, False, False

    def take_mean(self) -> float:
        """The mean loss of the stint, which ends here; the latest loss if none was reported for its steps."""
        mean = self._total / self._count if self._count else self._latest
        self._total, self._count, self._has_ended = 0.0, 0, True
        return mean

    def _count_in(self) -> None:
        self._total, self._count = self._total + self._latest, self._count + 1


Validate = Callable[[], "float | torch.Tensor"]
"""A script's own measurement of the module's validation loss."""

REPLACED = (
    "another `wrap` of this script has taken the place of this optimizer in the run: step that one, or give each "
    "optimizer a run of its own"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is, not this script: a script that joins late begins where the others are."""

    step: int  # inner steps that one member makes from the run's begin to here
    round: int  # the round that is trained; after the end, the last one
    samples: int  # of all members, behind the state that the round began with


class Session:
    """One wrapped optimizer; `check_run` is called while it waits, and raises an error if waiting is useless.

    When neither the optimizer nor the session is referenced any more, the session ends, as after `close`.
    """

    def __init__(
        self,
        connection: NodeConnection,
        own: OwnModule,
        method: Method,
        batch: int,
        check_run: Callable[[], None],
        validate: Validate | None = None,
    ) -> None:
        self.is_closed = False
        self._is_replaced = False
        self._losses = Losses()
        self._validate = validate
        self._connection, self._link, self._orders = connection, connection.link, connection.orders
        self._own, self._batch, self._check_run = own, batch, check_run
        self._timetable = Timetable(method)
        own.has_private = bool(method.keeps)
        vectors = self._link.vectors
        moments = vectors.moments.array
        own.restore(torch.from_numpy(moments))
        weights = WorkerWeights.over(method, own, vectors)
        self._stints = Stints(own, weights, self._orders, vectors.contribution.array, moments, self._link.send)
        self._order: Train | None = None  # None: before the first, and after the end
        self._is_answered = False  # the order's steps are handed in, and the next order has not come yet
        self._made = 0  # steps of the order
        self._began = 0.0
        self._working = self._stints.utilisation.working(time.monotonic)
        self._hook = after_each_step(own.optimizer, self._stepped)
        weakref.finalize(self, connection.forget).atexit = False  # a process that ends hangs up anyway

    def start(self) -> None:
        """Wait for the run's state, and load it into the module."""
        self._link.send(Ready(device_name(self._own.device)))
        self._connection.start()
        self._next(0)

    def report(self, loss: float) -> None:
        """The script has computed a loss."""
        self._losses.report(loss)

    def close(self) -> None:
        """Leave the optimizer an ordinary one again; a thread that waits in a step gets an error.

        May be called from any thread. When this returns the node knows: the run may be joined again at once.
        """
        self.is_closed = True
        self._hook.remove()
        self._connection.hang_up()

    def give_way(self) -> None:
        """Close for another session of this script; the optimizer raises an error if it is stepped once more."""
        self.is_closed = self._is_replaced = True
        self._connection.hang_up()

    @property
    def has_begun(self) -> bool:
        """Whether the run's state has come."""
        return self._order is not None or self.is_over

    @property
    def own(self) -> OwnModule:
        """The module and optimizer that this session trains."""
        return self._own

    @property
    def is_over(self) -> bool:
        """Whether the run's last round is in the module."""
        return self._order is None and self._orders.finished is not None

    @property
    def progress(self) -> Progress:
        """How far the run is; LocalError before the run's state has come."""
        order, end = self._order, self._orders.finished
        if order is None:
            if end is None:
                raise LocalError("the run's state is not here yet: `wrap` waits for it", code="not-ready")
            return Progress(self._timetable.launch(end.round), end.round, end.samples)
        return Progress(self._timetable.launch(order.round - 1) + order.first + self._made, order.round, order.samples)

    # -- inside ---------------------------------------------------------------------------------------------

    def _stepped(self) -> None:
        """The optimizer has made a step, unless a GradScaler has made a fused one skip it (`found_inf`)."""
        found_inf = getattr(self._own.optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf):
            return
        if self.is_closed:
            raise LocalError(REPLACED if self._is_replaced else CLOSED, code="script-closed")
        order = self._order
        if order is None:
            self._load_end()  # steps after the end change nothing
            return
        self._orders.check()
        self._own.check_unchanged()
        if self._is_answered:  # Ctrl-C broke off the wait after an earlier step: go on waiting, do not count this step
            self._next(order.order)
            return
        self._made += 1
        self._own.stepped()
        self._losses.stepped()
        self._report(order)
        if self._made >= order.steps or self._orders.is_due(order):
            self._end(order)
            self._next(order.order)

    def _next(self, done: int) -> None:
        """Wait for the next order that wants steps, or the end."""
        while not isinstance(order := self._orders.next(done, self._check_run), Finished):
            self._order, self._made, self._is_answered, done = order, 0, False, order.order
            if not self._stints.begin(order):
                continue  # the order that has replaced it is coming
            if self._validate is not None:
                self._stints.validate(order, self._measure, may_swap=False)
            self._began = time.monotonic()
            if order.steps and not self._orders.is_due(order):
                self._working = self._stints.utilisation.working(time.monotonic)
                self._working.__enter__()
                return
            self._end(order)
        self._order = None
        self._load_end()

    def _measure(self, sequences: int, go_on: Callable[[], bool]) -> SampleLoss:
        """The figure of the script's own function.

        Afterwards the module's modes, and torch's random numbers of the CPU and the module's device, are as they were.
        """
        assert self._validate is not None
        with same_random_numbers(self._own.device), evaluating(self._own.module):
            return SampleLoss(float(self._validate()), 1)

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
                "run it again: it goes on from the run's state",
                code="diverged",
            ) from error
        self._is_answered = True

    def _load_end(self) -> None:
        self._own.load(torch.from_numpy(self._link.vectors.agreed.array[: self._own.layout.size]), is_end=True)

    def _report(self, order: Train) -> None:
        now, samples = time.monotonic(), self._made * self._batch
        step, loss = order.first + self._made, self._losses.latest
        speed, memory = samples / max(now - self._began, 1e-9), device_bytes(self._own.device)
        share = self._stints.utilisation.share(now)
        self._link.send(Report(order.order, order.round, step, loss, samples, speed, memory, share))


# -- the one session of a run in this process -------------------------------------------------------------


_sessions: WeakValueDictionary[Path, Session] = WeakValueDictionary()  # of this process, by socket
_connections: dict[Path, NodeConnection] = {}  # the newest by socket; it outlives a session that was collected
_replaced: WeakKeyDictionary[torch.optim.Optimizer, ref[Session]] = WeakKeyDictionary()  # by the optimizer they stepped
# Weak references: the optimizer's hook holds its session, which holds the optimizer; a strong one would keep both.


def attach(
    socket: Path,
    own: OwnModule,
    batch_size: int | None,
    check_run: Callable[[], None],
    validate: Validate | None = None,
) -> Session:
    """Become the worker of the run whose node listens at `socket`.

    LocalError if the module is not the run's, or another process is its worker already.
    """
    if (earlier := _sessions.get(socket)) is not None and not earlier.is_closed:
        own.check_fits(earlier.own.spec())
        earlier.give_way()
        _replaced[earlier.own.optimizer] = ref(earlier)
    if (connection := _connections.pop(socket, None)) is not None:
        connection.hang_up()
    connection = NodeConnection(WorkerLink.connect(socket))
    try:
        manifest = decode_manifest(connection.link.welcome.manifest)
        if not isinstance(manifest.model, CustomSpec):
            raise LocalError("this run's model is trained by nodes themselves", code="other-kind-of-run")
        own.check_fits(manifest.model)
        batch = batch_size or manifest.method.batch
        session = Session(connection, own, method_of(manifest, own.layout), batch, check_run, validate)
    except BaseException:
        connection.hang_up()
        raise
    replaced = _replaced.pop(own.optimizer, None)
    if replaced is not None and (session_then := replaced()) is not None:
        session_then.close()
    _sessions[socket], _connections[socket] = session, connection
    return session
