"""Agendas and worker weights give what method.py says, to the bit, in any order of events."""

from __future__ import annotations

from time import process_time

import pytest
import torch

from shoal.node.ipc.messages import Range
from shoal.node.supervisor.agenda import MOST_LANDINGS, Agenda, Stint
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.late import CO2, DelayedDiLoCo, EagerDiLoCo
from shoal.node.training.methods.method import PARAMETERS, Method, has_own_weights
from shoal.node.training.methods.sparseloco import ERROR, SparseLoCo
from shoal.node.training.methods.streaming import Streaming
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.models.layout import Layout
from shoal.protocol.tensors.compression import codec
from tests.unit.methods import mean_kit
from tests.unit.methods.agenda_kit import Swarm

LAYOUT = Layout({"embed": (7,), "layers.0.w": (5, 2), "layers.1.w": (3,), "layers.2.w": (4,), "norm": (2,)})
D, PEERS, ROUNDS, STEPS = LAYOUT.size, 3, 7, 6
METHODS: dict[str, Method] = {
    "diloco": DiLoCo(STEPS, 0.7, 0.9),
    "delayed": DelayedDiLoCo(STEPS, 0.5, 0.5),
    "eager": EagerDiLoCo(STEPS, 0.5, 0.5),
    "co2": CO2(STEPS, 1.0, 0.2, 0.5, 0.1),
    "sparse": SparseLoCo(STEPS, 1.0, 0.9, codec("topk")),
    "streaming": Streaming(LAYOUT, 2, STEPS, 1, 0.5, 0.7, 0.9),
    "streaming, no delay": Streaming(LAYOUT, 2, STEPS, 0, 0.0, 0.7, 0.9),
    "streaming, no pause": Streaming(LAYOUT, 2, STEPS, 2, 0.3, 0.7, 0.9),
    "streaming, uneven": Streaming(LAYOUT, 3, 10, 2, 0.3, 0.7, 0.9),
}


def theta() -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(5))


def descent() -> mean_kit.Train:
    return mean_kit.descent(torch.randn(PEERS, D, generator=torch.Generator().manual_seed(6)), 0.1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", METHODS)
def test_any_order_of_events_comes_to_the_bits_of_the_interface(name: str, seed: int) -> None:
    print(f"seed {seed}")
    method = METHODS[name]
    swarm = Swarm(method, theta(), PEERS, descent(), ROUNDS, seed)
    swarm.run()
    steps = swarm.timetable.launch(ROUNDS)
    expected = mean_kit.Swarm(method, theta(), PEERS, descent())
    expected.run(steps + method.delay)  # the last answer, too, is applied
    for vector, value in expected.peers[0].agreed.items():
        assert torch.equal(swarm.agreed[-1][vector], value), vector
    for peer in swarm.peers:
        assert peer.agenda.running is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if has_own_weights(method)])
def test_what_is_shown_at_the_end_are_the_weights_that_each_would_go_on_with(name: str, seed: int) -> None:
    print(f"seed {seed}")
    swarm = Swarm(METHODS[name], theta(), PEERS, descent(), ROUNDS, seed)
    swarm.run()
    expected = mean_kit.Swarm(METHODS[name], theta(), PEERS, descent())
    expected.run(swarm.timetable.launch(ROUNDS))
    for peer, like in zip(swarm.peers, expected.peers, strict=True):
        [shown] = peer.shown
        assert torch.equal(shown, like.theta)
    assert not torch.equal(expected.peers[0].theta, expected.peers[1].theta), "there was nothing to tell apart"


def test_where_all_go_on_with_the_agreed_weights_nothing_is_shown() -> None:
    own = {name for name, method in METHODS.items() if has_own_weights(method)}
    assert own == {"eager", "streaming", "streaming, no delay", "streaming, no pause", "streaming, uneven"}
    swarm = Swarm(METHODS["delayed"], theta(), PEERS, descent(), ROUNDS, seed=0)
    swarm.run()
    assert not any(peer.shown for peer in swarm.peers)


@pytest.mark.parametrize("name", METHODS)
def test_who_loses_its_worker_goes_on(name: str) -> None:
    method = METHODS[name]
    for seed in range(6):
        print(f"seed {seed}")
        swarm = Swarm(method, theta(), PEERS, descent(), ROUNDS, seed)
        swarm.crashes = 0.3
        swarm.run()
        targets = torch.randn(PEERS, D, generator=torch.Generator().manual_seed(6)).mean(0)
        first, last = (each[PARAMETERS] - targets for each in (swarm.agreed[0], swarm.agreed[-1]))
        assert last.norm() < first.norm(), "it does not learn any more"


def test_what_a_round_has_missed_of_a_contribution_is_sent_again() -> None:
    method = SparseLoCo(STEPS, 1.0, 1.0, codec("topk"))
    swarm = Swarm(method, theta(), 1, descent(), 2, seed=0)
    swarm.run(missed=(Range(0, D),))
    lost = Swarm(method, theta(), 1, descent(), 2, seed=0)
    lost.run()
    assert torch.equal(swarm.peers[0].handed_in[1], lost.peers[0].handed_in[1])
    assert not torch.equal(swarm.peers[0].handed_in[2], lost.peers[0].handed_in[2])
    assert not swarm.peers[0].worker.weights._private[ERROR].any()  # as if the first had never been made


# -- agendas ------------------------------------------------------------------------------------------------


def agenda(method: Method, last: int | None = None) -> Agenda:
    return Agenda(Timetable(method), last)


def test_with_no_delay_a_round_is_one_stint_and_waits_for_the_last() -> None:
    one = agenda(DiLoCo(5, 1.0, 0.0))
    assert one.begin(0) == Stint(1, 0, 5, True, (), is_fresh=True)
    assert one.done() is None
    assert one.committed(1) == Stint(2, 0, 5, True, (1,))


def test_with_a_delay_training_goes_on_until_an_answer_is_due() -> None:
    one = agenda(Streaming(Layout({"w": (4,)}), 1, 5, 2, 0.5, 1.0, 0.0))
    assert one.begin(0) == Stint(1, 0, 2, False, (), is_fresh=True)
    assert one.done() == Stint(1, 2, 3, True, (0,))
    assert one.done() == Stint(2, 0, 2, False, ())
    assert one.done() is None
    assert one.committed(1) == Stint(2, 2, 3, True, (1,))


def test_an_answer_that_comes_early_is_not_taken_before_it_is_due() -> None:
    one = agenda(DelayedDiLoCo(5, 1.0, 0.0))
    assert one.begin(0) == Stint(1, 0, 5, False, (), is_fresh=True)
    assert one.done() == Stint(1, 5, 0, True, ())
    assert one.done() == Stint(2, 0, 5, False, (0,))
    assert one.committed(1) is None  # in the middle of it
    assert one.done() == Stint(2, 5, 0, True, ())
    assert one.done() == Stint(3, 0, 5, False, (1,))


def test_a_round_that_was_committed_without_us_is_passed_over() -> None:
    one = agenda(DiLoCo(5, 1.0, 0.0))
    one.begin(0)
    assert one.committed(1) == Stint(2, 0, 5, True, (1,), is_fresh=True)  # the worker has not even begun
    one.done()
    one.committed(2)
    assert one.committed(3) == Stint(4, 0, 5, True, (2, 3))  # 2 may not have come to the worker


def test_nothing_is_trained_after_the_last_round() -> None:
    one = agenda(DelayedDiLoCo(5, 1.0, 0.0), last=1)
    one.begin(0)
    one.done()
    assert one.done() is None
    assert one.committed(1) is None


def test_weights_are_shown_once_and_only_when_the_last_contribution_is_no_longer_needed() -> None:
    one = Agenda(Timetable(EagerDiLoCo(5, 1.0, 0.0)), 2, True)
    one.begin(0)
    one.done()
    one.done()
    assert one.committed(1) is None, "the second round is trained"
    one.done()
    assert one.done() is None, "the second round is not over"
    assert one.committed(2) == Stint(3, 0, 0, False, (1,), shows=True)
    assert one.done() is None
    assert one.begin(2) == Stint(3, 0, 0, False, (), is_fresh=True, shows=True)


def test_a_state_from_elsewhere_begins_anew() -> None:
    one = agenda(DelayedDiLoCo(5, 1.0, 0.0))
    one.begin(0)
    assert one.begin(7) == Stint(8, 0, 5, False, (), is_fresh=True)
    assert one.done() == Stint(8, 5, 0, True, ())
    assert one.done() == Stint(9, 0, 5, False, (7,))  # it lapses: what it brought is in the state already


@pytest.mark.parametrize("name", METHODS)
def test_who_was_away_for_long_is_told_of_the_latest_rounds_only(name: str) -> None:
    """An order has to fit into a frame."""
    one = agenda(METHODS[name])
    one.begin(0)
    stints = [one.committed(base) for base in range(1, 5000)]
    assert one.landed <= 0, "the worker has answered nothing"
    assert all(stint is not None and len(stint.landings) <= MOST_LANDINGS for stint in stints)
    last = stints[-1]
    assert last is not None
    assert last.landings[-1] in (4998, 4999)
    one.done()
    assert one.landed == last.landings[-1]


# -- timetables ---------------------------------------------------------------------------------------------


def test_rounds_of_fragments_come_in_turn() -> None:
    table = Timetable(METHODS["streaming"])
    assert [table.launch(round) for round in range(8)] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert [table.part(round) for round in range(1, 7)] == [1, 2, 0, 1, 2, 0]
    assert table.part(0) == 0
    uneven = Timetable(METHODS["streaming, uneven"])
    assert [uneven.steps(round) for round in range(1, 9)] == [2, 3, 2, 3, 2, 3, 2, 3]


def test_the_longest_timetable_that_a_manifest_may_ask_for_is_made_at_once() -> None:
    """A stranger's manifest must not keep us busy: 513 fragments in 100,000 steps took far longer than 2."""
    layout = Layout({"embed": (1,), **{f"layers.{layer}.w": (1,) for layer in range(512)}})

    def made(fragments: int) -> tuple[Timetable, float]:
        method = Streaming(layout, fragments, 100_000, 1, 0.5, 0.7, 0.9)
        began = process_time()
        return Timetable(method), process_time() - began

    table, _ = made(512)
    few, most = (min(made(fragments)[1] for _ in range(3)) for fragments in (1, 512))
    assert most < 20 * few
    assert table.launch(513) == 100_000
    assert sorted(table.parts) == list(range(513))


def test_two_rounds_cannot_be_open_at_once() -> None:
    with pytest.raises(ValueError, match="an answer is due 3 inner steps after its launch, the next launch 2 after it"):
        Timetable(Streaming(LAYOUT, 2, STEPS, 3, 0.5, 0.7, 0.9))
