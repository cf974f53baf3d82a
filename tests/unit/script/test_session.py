"""A script's optimizer steps become the stints that its node orders."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from shoal.node.client.script import connection, session
from shoal.node.client.script.api import Run
from shoal.node.client.script.module import OwnModule
from shoal.node.client.script.session import Progress, Session, Validate
from shoal.node.ipc.link import WorkerLink
from shoal.node.ipc.messages import Contribution, Finished, HandIn, Ready, Stop, Train, Validated
from shoal.node.ipc.messages import Progress as Report
from shoal.node.ipc.vectors import SharedVectors, Sizes, mark_of
from shoal.node.training.methods.diloco import DiLoCo
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.wire import Message

BATCH = 10


class Node:
    """The other end of a link: what the script sends, and what it is told next."""

    def __init__(self, size: int) -> None:
        self.vectors = SharedVectors.create(Sizes(size))
        self.sent: list[Message] = []
        self.answer: Callable[[Contribution], Message] = lambda _: Stop()
        self._inbox: queue.Queue[Message] = queue.Queue()

    def tell(self, message: Message) -> None:
        if isinstance(message, Train):
            self.vectors.loaded.array[0] = mark_of(message.order)
        self._inbox.put(message)

    def send(self, message: Message) -> None:
        self.sent.append(message)
        if isinstance(message, Contribution):
            self.tell(self.answer(message))

    def receive(self) -> Message:
        return self._inbox.get()  # the thread that asks is a daemon, and most nodes here never say Stop

    def leave(self) -> None:
        self.tell(Stop())

    def close(self) -> None:
        self.vectors.close()


class Bench:
    """A module of four weights, which the first step of SGD lowers by 1 each."""

    def __init__(self, rate: float = 1.0, validate: Validate | None = None) -> None:
        self.model = nn.Linear(4, 1, bias=False)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.model.scale = self.frozen
        self.optimizer = torch.optim.SGD([self.model.weight], lr=rate)
        self.node = Node(4)
        self.node.vectors.agreed.array[:] = 5
        own: Any = OwnModule(self.model, self.optimizer)
        link: Any = self.node
        self.line = connection.NodeConnection(link)
        self.session = Session(self.line, own, DiLoCo(3, 0.7, 0.9), BATCH, lambda: None, validate)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 4)).sum().backward()
        self.optimizer.step()

    def until_due(self) -> None:
        """Wait until the orders have arrived."""
        first = self.session._order
        assert first is not None
        until(lambda: self.session._orders.is_due(first))

    @property
    def weights(self) -> list[float]:
        return list(self.model.weight.detach()[0].tolist())


def order(number: int, round: int, steps: int = 3, fresh: bool = True) -> Train:
    return Train(number, round, 0, round - 1, steps=steps, is_fresh=fresh, samples=100 * round)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.node.tell(order(1, 1))
    made.session.start()
    return made


def test_the_runs_state_is_in_the_module_before_the_first_step(bench: Bench) -> None:
    assert bench.weights == [5, 5, 5, 5]
    assert isinstance(bench.node.sent[0], Ready)
    assert bench.session.progress == Progress(step=0, round=1, samples=100)


def test_a_step_that_a_scaler_lets_a_fused_optimizer_skip_is_none(bench: Bench) -> None:
    for found, steps in ((1.0, 0), (0.0, 1)):
        bench.optimizer.found_inf = torch.tensor(found)  # type: ignore[attr-defined]
        bench.session._stepped()  # as a fused optimizer's step ends; a plain one knows no `found_inf`
        assert bench.session.progress.step == steps


# -- a validation loss of the script's own ------------------------------------------------------------------


def measuring(order: Train) -> Train:
    return dataclasses.replace(order, validates=1)


def test_a_scripts_own_function_measures_the_runs_state_before_the_steps() -> None:
    seen: list[list[float]] = []

    def validate() -> torch.Tensor:
        assert not torch.is_grad_enabled()
        assert not script.model.training
        torch.rand(3)
        seen.append(script.weights)
        return torch.tensor(2.5)

    script = Bench(validate=validate)
    random_state = torch.get_rng_state()
    script.node.answer = lambda _: order(2, 2)
    script.node.tell(measuring(order(1, 1)))
    script.session.start()
    for _ in range(3):
        script.step()
    assert seen == [[5, 5, 5, 5]], "the second order did not ask"
    [figure] = [each for each in script.node.sent if isinstance(each, Validated)]
    assert (figure.order, figure.round, figure.loss, figure.sequences) == (1, 1, 2.5, 1)
    assert script.model.training
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_script_without_such_a_function_measures_nothing() -> None:
    bench = Bench()
    bench.node.tell(measuring(order(1, 1)))
    bench.session.start()
    assert not [each for each in bench.node.sent if isinstance(each, Validated)]


def test_steps_make_a_round_which_is_handed_in_and_replaced_by_what_came_of_it(bench: Bench) -> None:
    def answer(made: Contribution) -> Message:
        assert bench.node.vectors.contribution.array.tolist() == [3, 3, 3, 3]  # uphill
        bench.node.vectors.agreed.array[:] = 7
        return order(2, 2)

    bench.node.answer = answer
    bench.session.report(2.5)
    for _ in range(3):
        bench.step()
    assert [each.step for each in bench.node.sent if isinstance(each, Report)] == [1, 2, 3]
    assert bench.node.sent[-1] == Contribution(1, 1, steps=3, tokens=3 * BATCH, loss=2.5)
    assert bench.weights == [7, 7, 7, 7]
    assert bench.session.progress == Progress(step=3, round=2, samples=200)


def test_who_is_asked_earlier_hands_in_what_there_is(bench: Bench) -> None:
    bench.node.answer = lambda _: order(2, 2)
    bench.node.tell(HandIn(1))
    bench.until_due()
    bench.step()
    assert bench.node.sent[-1] == Contribution(1, 1, steps=1, tokens=BATCH, loss=None)
    assert bench.session.progress.step == 3, "the run's clock goes on to the next round"


def test_a_newer_order_replaces_the_weights_after_a_step(bench: Bench) -> None:
    bench.node.vectors.agreed.array[:] = 9
    bench.node.tell(order(2, 6))
    bench.until_due()
    bench.step()
    assert not [each for each in bench.node.sent if isinstance(each, Contribution)]
    assert bench.weights == [9, 9, 9, 9]
    assert bench.session.progress == Progress(step=15, round=6, samples=600)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda bench: bench.frozen.requires_grad_(True), "scale is trained since `wrap`"),
        (lambda bench: bench.model.weight.requires_grad_(False), "weight is frozen since `wrap`"),
        (lambda bench: bench.optimizer.add_param_group({"params": [bench.frozen]}), "call add_param_group before"),
        (
            lambda bench: setattr(bench.model, "weight", nn.Parameter(torch.ones(1, 4))),
            "weight is another parameter than",
        ),
        (lambda bench: setattr(bench.model, "scale", nn.Parameter(torch.ones(1), False)), "scale is another parameter"),
        (lambda bench: bench.model.register_parameter("weight", None), "weight is no parameter of the module any more"),
        (lambda bench: bench.model.add_module("more", nn.Linear(1, 1)), "more.weight has come since `wrap`"),
    ],
)
def test_what_is_trained_does_not_change_after_wrap(change: Callable[[Bench], object], words: str) -> None:
    bench = Bench()
    bench.node.tell(order(1, 1))
    bench.session.start()
    bench.step()
    change(bench)
    with pytest.raises(LocalError, match=words):
        bench.optimizer.step()
    assert not [each for each in bench.node.sent if isinstance(each, Contribution)]


@pytest.mark.parametrize("by_data", [False, True])
def test_what_is_frozen_does_not_move_after_wrap(bench: Bench, by_data: bool) -> None:
    """As a teacher that is the mean of the weights: members compare frozen parameters when they come."""
    bench.node.answer = lambda made: order(made.order + 1, made.round + 1)
    bench.step()
    bench.step()
    with torch.no_grad():
        (bench.frozen.data if by_data else bench.frozen).add_(1)
    with pytest.raises(LocalError, match=r"frozen parameter scale has moved since `wrap`.*register_buffer"):
        bench.step()
    assert not [each for each in bench.node.sent if isinstance(each, Contribution)]


@pytest.mark.parametrize(("is_before", "means"), [(True, [2.0, 5.0]), (False, [1.5, 4.5])])
def test_a_loss_is_that_of_the_step_that_it_was_computed_for(bench: Bench, is_before: bool, means: list[float]) -> None:
    """Told after the step, that of a round's last step comes too late for its round, and is not the next one's."""
    bench.node.answer = lambda made: order(made.order + 1, made.round + 1)
    for loss in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        if is_before:
            bench.session.report(loss)
        bench.step()
        if not is_before:
            bench.session.report(loss)
    assert [each.loss for each in bench.node.sent if isinstance(each, Contribution)] == means


def test_after_the_end_steps_change_nothing(bench: Bench) -> None:
    def answer(made: Contribution) -> Message:
        bench.node.vectors.agreed.array[:] = 8
        return Finished(1, 300)

    bench.node.answer = answer
    for _ in range(5):
        bench.step()
    assert bench.session.is_over
    assert bench.weights == [8, 8, 8, 8]
    assert bench.session.progress == Progress(step=3, round=1, samples=300)
    assert sum(isinstance(each, Contribution) for each in bench.node.sent) == 1


def test_a_node_that_ends_is_named_at_the_next_step(bench: Bench) -> None:
    bench.node.tell(Stop())
    until(lambda: not bench.line._reader.is_alive())
    with pytest.raises(TransportError, match="has stopped, or has left this run: start it"):
        bench.step()


def test_an_order_that_comes_while_a_script_looks_at_its_run_is_noted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look is to ask the node over HTTP, which may take as long as the node is busy."""
    monkeypatch.setattr(connection, "CHECK_INTERVAL", 0.01)
    told, first = connection.ScriptOrders(), order(1, 1)

    def look() -> None:
        reader = threading.Thread(target=told.take, args=(first,), daemon=True)
        reader.start()
        reader.join(10)
        assert not reader.is_alive(), "who reads the socket waits for the look"

    assert told.next(0, look) is first


def test_a_closed_session_leaves_an_ordinary_optimizer(bench: Bench) -> None:
    bench.node.close = lambda: None  # type: ignore[method-assign]
    bench.session.close()
    before = bench.weights
    bench.step()
    assert bench.weights == [each - 1 for each in before]
    assert not [each for each in bench.node.sent if isinstance(each, Report)]
    with pytest.raises(LocalError, match=re.escape(connection.CLOSED)):
        bench.session._stepped()  # as of a step that was under way in another thread


def test_whoever_waits_in_a_step_is_told_that_another_thread_has_closed_the_run(bench: Bench) -> None:
    bench.node.answer = lambda _: HandIn(0)  # the node has nothing for us yet
    said: list[str] = []

    def train() -> None:
        bench.step()
        bench.step()
        with pytest.raises(LocalError) as error:
            bench.step()
        said.append(str(error.value))

    trainer = threading.Thread(target=train, daemon=True)
    trainer.start()
    until(lambda: any(isinstance(each, Contribution) for each in bench.node.sent))
    for _ in range(2):  # closing twice is closing
        bench.session.close()
    trainer.join(60)
    assert said == [connection.CLOSED]
    assert not bench.line._reader.is_alive()


def test_a_wait_that_was_broken_off_goes_on_with_the_next_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook's cell, which is run again: what was handed in is not handed in twice."""
    bench.node.answer = lambda _: HandIn(0)
    monkeypatch.setattr(connection, "CHECK_INTERVAL", 0.01)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.session, "_check_run", interrupt)
    bench.step()
    bench.step()
    with pytest.raises(KeyboardInterrupt):
        bench.step()
    bench.node.vectors.agreed.array[:] = 7
    bench.node.tell(order(2, 2))
    bench.until_due()
    bench.step()
    assert sum(isinstance(each, Contribution) for each in bench.node.sent) == 1
    assert bench.weights == [7, 7, 7, 7]
    assert bench.session.progress.step == 3


def test_training_that_diverges_is_handed_in_by_nobody() -> None:
    bench = Bench(rate=float("inf"))
    bench.node.tell(order(1, 1, steps=1))
    bench.session.start()
    with pytest.raises(LocalError, match="diverged in round 1"):
        bench.step()
    assert not [each for each in bench.node.sent if isinstance(each, Contribution)]


def test_a_scheduler_follows_the_run(bench: Bench) -> None:
    run = Run("00", {})
    run._session = bench.session
    bench.node.tell(order(2, 11))  # ten rounds of three steps are over
    bench.until_due()
    bench.step()
    scheduler = run.follow(torch.optim.lr_scheduler.StepLR(bench.optimizer, 15, gamma=0.5))
    assert scheduler.last_epoch == 30
    assert bench.optimizer.param_groups[0]["lr"] == 0.25
    scheduler.step()
    assert scheduler.last_epoch == 30, "the run has not gone on"
    bench.step()
    scheduler.step()
    assert scheduler.last_epoch == 31


def test_a_scheduler_that_follows_is_saved_and_loaded_as_ever(bench: Bench, tmp_path: Path) -> None:
    run = Run("00", {})
    run._session = bench.session
    scheduler = run.follow(torch.optim.lr_scheduler.StepLR(bench.optimizer, 15))
    bench.step()
    scheduler.step()
    torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
    other = run.follow(torch.optim.lr_scheduler.StepLR(bench.optimizer, 15))
    other.load_state_dict(torch.load(tmp_path / "scheduler.pt"))
    assert other.state_dict() == scheduler.state_dict()
    bench.step()
    other.step()
    assert other.last_epoch == 2


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_scheduler_that_follows_is_pickled_as_what_it_was(bench: Bench, protocol: int) -> None:
    run = Run("00", {})
    run._session = bench.session
    scheduler = run.follow(lr_scheduler.StepLR(bench.optimizer, 15))
    bench.step()
    scheduler.step()
    for other in (pickle.loads(pickle.dumps(scheduler, protocol)), copy.deepcopy(scheduler)):
        assert type(other) is lr_scheduler.StepLR
        assert other.state_dict() == scheduler.state_dict()
        assert run.follow(other).last_epoch == 1


def test_a_scheduler_that_goes_by_a_metric_is_left_as_it_is_and_said_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run("00", {})
    run._session = bench.session
    plateau: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(bench.optimizer, patience=0)
    assert run.follow(plateau) is plateau
    assert "ReduceLROnPlateau goes by this machine's own metrics" in caplog.text
    for metric in (1.0, 2.0):
        plateau.step(metric)
    assert bench.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    with pytest.raises(LocalError, match="no scheduler"):
        run.follow(object())  # type: ignore[type-var]


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda each: lr_scheduler.LambdaLR(each, lambda step: 0.9**step),
    "MultiplicativeLR": lambda each: lr_scheduler.MultiplicativeLR(each, lambda _: 0.9),
    "StepLR": lambda each: lr_scheduler.StepLR(each, 3),
    "MultiStepLR": lambda each: lr_scheduler.MultiStepLR(each, [2, 5]),
    "ConstantLR": lr_scheduler.ConstantLR,
    "LinearLR": lr_scheduler.LinearLR,
    "ExponentialLR": lambda each: lr_scheduler.ExponentialLR(each, 0.9),
    "PolynomialLR": lambda each: lr_scheduler.PolynomialLR(each, 10),
    "CosineAnnealingLR": lambda each: lr_scheduler.CosineAnnealingLR(each, 10),
    "CosineAnnealingWarmRestarts": lambda each: lr_scheduler.CosineAnnealingWarmRestarts(each, 4),
    "OneCycleLR": lambda each: lr_scheduler.OneCycleLR(each, 0.1, total_steps=10, cycle_momentum=False),
    "CyclicLR": lambda each: lr_scheduler.CyclicLR(each, 0.01, 0.1, cycle_momentum=False),
    "SequentialLR": lambda each: lr_scheduler.SequentialLR(
        each, [lr_scheduler.ConstantLR(each), lr_scheduler.ExponentialLR(each, 0.9)], [4]
    ),
    "ChainedScheduler": lambda each: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(each, total_iters=4), lr_scheduler.ExponentialLR(each, 0.9)]
    ),
    "SWALR": lambda each: torch.optim.swa_utils.SWALR(each, 0.05),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:Detected call of", "ignore:The epoch parameter")
def test_every_scheduler_of_torch_that_counts_steps_follows(bench: Bench, name: str) -> None:
    """Also one that has followed before; and where the run goes beyond its last step, it stays at that one."""
    run = Run("00", {})
    run._session = bench.session
    bench.node.tell(order(2, 11))  # ten rounds of three steps are over
    bench.until_due()
    bench.step()
    alone = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    by_hand, ours = (SCHEDULERS[name](each) for each in (alone, bench.optimizer))
    for _ in range(10 if name == "OneCycleLR" else 30):
        by_hand.step()
    for _ in range(2):
        run.follow(ours)
        ours.step()
    assert bench.optimizer.param_groups[0]["lr"] == alone.param_groups[0]["lr"]


def test_a_scheduler_of_a_closed_run_is_an_ordinary_one(bench: Bench) -> None:
    run = Run("00", {})
    run._session = bench.session
    scheduler = run.follow(torch.optim.lr_scheduler.ExponentialLR(bench.optimizer, 0.5))
    run.close()
    bench.step()
    scheduler.step()
    assert bench.optimizer.param_groups[0]["lr"] == 0.5


def test_every_scheduler_of_torch_was_tried() -> None:
    kinds = {
        name
        for name, each in vars(lr_scheduler).items()
        if isinstance(each, type) and issubclass(each, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert kinds - {"LRScheduler", "ReduceLROnPlateau"} <= SCHEDULERS.keys()


def test_before_wrap_there_is_nothing_to_ask() -> None:
    with pytest.raises(LocalError, match="comes first"):
        Run("00", {}).report(1.0)
    with pytest.raises(LocalError, match="comes first"):
        Run("00", {}).follow(lr_scheduler.ConstantLR(torch.optim.SGD([nn.Parameter(torch.ones(1))])))
    with pytest.raises(LocalError, match="founded by `wrap`"):
        assert Run("", {}).link


def test_what_was_wrapped_before_goes_when_its_script_lets_it_go(monkeypatch: pytest.MonkeyPatch) -> None:
    socket = Path("worker.sock")
    monkeypatch.setattr(WorkerLink, "connect", lambda _: pytest.fail("this is as far as it is looked at"))
    bench = Bench()
    bench.node.tell(order(1, 1))
    bench.session.start()
    monkeypatch.setitem(session._sessions, socket, bench.session)
    with pytest.raises(pytest.fail.Exception):
        session.attach(socket, bench.session.own, None, lambda: None)
    with pytest.raises(LocalError, match="has taken the place of this optimizer"):
        bench.step()
    gone = weakref.ref(bench.model)
    del bench
    gc.collect()
    assert gone() is None


def test_a_part_that_nobody_has_any_more_is_over(bench: Bench) -> None:
    """As of a function that wraps what it makes, and returns without `close`."""
    reader, hung_up = bench.line._reader, threading.Event()
    bench.node.close = hung_up.set  # type: ignore[method-assign]
    bench.step()
    del bench.session, bench.line
    gc.collect()
    bench.step()
    assert not hung_up.is_set(), "its optimizer can still be stepped"
    del bench.model, bench.optimizer, bench.frozen
    gc.collect()
    reader.join(60)
    assert not reader.is_alive()
    assert hung_up.is_set(), "the socket is closed"


def until(condition: Callable[[], Any]) -> None:
    """Wait for work of the reader thread."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
