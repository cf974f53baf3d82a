"""Inner training on a GPU: what goes in and out of the device is exact, and it learns what a CPU learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.node.base.step_options import TrainerOptions
from shoal.node.ipc.messages import Contribution, Train
from shoal.node.ipc.shm import SharedVector
from shoal.node.ipc.vectors import moments_size
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.methods.registry import method_of
from shoal.node.training.trainer.device import device_bytes, device_name, peak_flops, pin
from shoal.node.training.trainer.inner import InnerTrainer
from shoal.node.training.trainer.recorded_step import RecordedStep
from shoal.node.training.trainer.stepper import make_room
from shoal.node.worker.stints import Orders
from shoal.node.worker.weights import WorkerWeights
from shoal.node.worker.worker import TrainingLoop
from shoal.protocol.base.wire import Message
from tests.unit.test_inner import CORPUS, MANIFEST, weights

ROUNDS = 30


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every recorded step that is played again."""
    found, replay = list[int](), torch.cuda.CUDAGraph.replay

    def count(graph: torch.cuda.CUDAGraph) -> None:
        found.append(len(found))
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", count)
    return found


def trainer(device: str = "cuda") -> InnerTrainer:
    return InnerTrainer(MANIFEST, CORPUS, device)


def test_the_device_has_a_name_and_its_memory_is_counted() -> None:
    one = trainer()
    one.train(1, [0])
    assert device_name(one.device) == f"cuda:0 ({torch.cuda.get_device_name(0)})"
    assert device_bytes(one.device) > 0


def test_loading_and_reading_lose_no_bit() -> None:
    one = trainer()
    start, out = weights(trainer("cpu")) + 0.01, torch.empty(one.layout.size)
    one.load(start)
    assert torch.equal(one.read(out), start)


def as_written(one: InnerTrainer) -> InnerTrainer:
    """`one`, of which no step is ever recorded."""

    def run(tokens: Tensor) -> Tensor:
        return one.stepper._update(tokens.to(one.device))

    one.stepper._run = run
    return one


def test_a_recorded_step_does_what_is_written() -> None:
    """The rate falls within the recorded steps, and a round begins with parameters that were loaded."""
    decaying = MANIFEST.model_copy(update={"rounds": MANIFEST.rounds.model_copy(update={"last": 6})})
    recorded, written = (InnerTrainer(decaying, CORPUS, "cuda") for _ in range(2))
    start = weights(recorded)
    as_written(written)
    for round in range(1, 7):
        losses = [each.train(round, [0]).loss for each in (recorded, written)]
        assert abs(losses[0] - losses[1]) < 0.02
        for each in (recorded, written):
            each.load(weights(written))
    moved = (weights(written) - start).abs().mean()
    for each in (recorded, written):
        each.train(7, [0])
    assert (weights(recorded) - weights(written)).abs().mean() < 0.02 * moved


def test_the_rate_of_a_recorded_step_is_that_of_its_own_time() -> None:
    over = MANIFEST.model_copy(update={"rounds": MANIFEST.rounds.model_copy(update={"last": 2})})
    one = InnerTrainer(over, CORPUS, "cuda")
    one.train(1, [0])
    before = weights(one)
    one.train(9, [0])  # the rate is 0 after the last round
    assert torch.equal(weights(one), before)


def test_another_batch_size_is_recorded_anew() -> None:
    one = trainer()
    for round, lanes in enumerate(([0], [0, 1], [0]), start=1):
        assert one.train(round, lanes).tokens == 240 * len(lanes)
        assert one.train(round, lanes).loss < 6


@pytest.mark.filterwarnings("default:::torch")  # its compiler warns of its own parts
@pytest.mark.parametrize(
    "options",
    [TrainerOptions(2), TrainerOptions(recompute=True), TrainerOptions(compiled=True), TrainerOptions(1, True)],
)
def test_however_a_step_is_made_it_is_recorded_and_learns_the_same(options: TrainerOptions, played: list[int]) -> None:
    whole, other = trainer(), InnerTrainer(MANIFEST, CORPUS, "cuda", options)
    for round in range(1, 4):
        expected = whole.train(round, [0]).loss
        played.clear()
        assert expected == pytest.approx(other.train(round, [0]).loss, rel=0.05)
    assert other.stepper.options == options, "nothing had to be given up"
    assert isinstance(other.stepper._run, RecordedStep)
    assert played


def test_what_does_not_fit_a_gpu_is_halved_while_it_is_written_and_while_it_is_recorded(played: list[int]) -> None:
    """One gigabyte is all that this process may have; the steps of a whole batch would take more."""
    model = ModelSpec(vocab=16_384, dim=64, layers=2, heads=2, kv_heads=2, hidden=128, context=128)
    one = InnerTrainer(Manifest(name="wide", model=model, method=MethodSpec(batch=256, inner_steps=8)), CORPUS, "cuda")
    share = (1 << 30) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        losses = [one.train(round, [0]).loss for round in (1, 2)]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert 1 <= one.micro_batch < 256
    assert losses[1] < losses[0]
    assert isinstance(one.stepper._run, RecordedStep)
    assert played


def test_a_step_that_is_recorded_anew_takes_no_more_of_the_device() -> None:
    one, used = trainer(), list[int]()
    for round in range(1, 4):
        one.train(round, [0])
        one.stepper.begin_anew()
        make_room(one.device)
        used.append(torch.cuda.memory_allocated())
    assert used[-1] - used[0] < 1 << 20


def test_muon_learns_there_without_being_recorded() -> None:
    method = MANIFEST.method.model_copy(update={"optimizer": "muon"})
    one = InnerTrainer(MANIFEST.model_copy(update={"method": method}), CORPUS, "cuda")
    losses = [one.train(round, [0]).loss for round in range(1, ROUNDS + 1)]
    assert losses[-1] < 0.6 * losses[0]
    assert not isinstance(one.stepper._run, RecordedStep)


def test_a_gpu_has_a_peak() -> None:
    peak = peak_flops(torch.device("cuda"))
    assert peak is not None
    assert 1e12 < peak < 1e16


def test_memory_that_cannot_be_pinned_stops_nothing() -> None:
    with SharedVector.create(1_000_001) as shared:
        vector = torch.from_numpy(shared.array)
    pin(vector, torch.device("cuda"))
    assert vector.is_pinned()
    pin(vector, torch.device("cuda"))  # refused: it is pinned
    there = torch.ones(1_000_001, device="cuda")
    vector.copy_(there + 1)
    assert (vector == 2).all()


def test_what_shares_its_pages_with_other_memory_is_not_pinned() -> None:
    for size in range(10, 24):
        vector = torch.zeros(1 << size)[1:]  # never at the begin of a page
        pin(vector, torch.device("cuda"))
        assert not vector.is_pinned()


def test_a_worker_carries_out_an_order() -> None:
    one, size, sent = trainer(), trainer("cpu").layout.size, list[Message]()
    parameters, change, moments = (SharedVector.create(each).array for each in (size, size, moments_size(size)))
    parameters[:] = weights(trainer("cpu"))
    orders = Orders()
    trained = WorkerWeights(method_of(one.manifest, one.layout), one, parameters, moments, None)
    loop = TrainingLoop(one, trained, orders, change, moments, sent.append)
    for number in (1, 2):
        orders.take(order := Train(number, number, 0, version=0, steps=one.timetable.steps(number), is_fresh=True))
        loop.carry_out(order)
        assert isinstance(sent[-1], Contribution)
        assert (change == parameters - weights(one).numpy()).all()
        assert moments[0] == number * MANIFEST.method.inner_steps
    assert all(torch.from_numpy(each).is_pinned() for each in (change, moments))


def test_a_successor_goes_on_with_the_same_moments() -> None:
    one, successor = trainer(), trainer()
    for round in range(1, 4):
        one.train(round, [0])
    stored, again = (torch.empty(moments_size(one.layout.size)) for _ in range(2))
    one.store(stored)
    successor.restore(stored)
    successor.store(again)
    assert torch.equal(stored, again)
    assert stored[0] == 3 * MANIFEST.method.inner_steps
    successor.load(weights(one))
    successor.train(4, [0])
    successor.store(again)
    assert again[0] == stored[0] + MANIFEST.method.inner_steps


def test_learns_what_a_cpu_learns() -> None:
    there, here = trainer(), trainer("cpu")
    first = trainer("cpu").train(1, [0], lambda _: False).loss
    for round in range(1, ROUNDS + 1):
        losses = there.train(round, [0]).loss, here.train(round, [0]).loss
    assert losses[0] == pytest.approx(losses[1], rel=0.25)  # bf16, and 150 steps in which small differences grow
    assert max(losses) < 0.6 * first
