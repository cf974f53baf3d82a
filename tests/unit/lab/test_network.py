"""The results of exchanges without a network, and their cost."""

from __future__ import annotations

import pytest
import torch

from shoal.node.lab.network import NO_TRAFFIC, Network
from shoal.node.training.methods.method import Answer, Exchange
from shoal.protocol.tensors.compression import codec

SIZE = 6


def draws(workers: int) -> list[torch.Tensor]:
    return list(torch.randn((workers, SIZE), generator=torch.Generator().manual_seed(3)))


def mixed(payloads: list[torch.Tensor], answers: list[Answer | None]) -> torch.Tensor:
    rows = [own if each is None else each.value for own, each in zip(payloads, answers, strict=True)]
    return torch.stack(rows)


def test_a_mean_is_the_same_for_all_and_travels_twice() -> None:
    payloads = draws(4)
    answers, traffic = Network(Exchange.MEAN, 4, 0).exchange(0, payloads)
    assert all(each is answers[0] for each in answers)
    assert answers[0] is not None
    assert answers[0].members == 4
    assert torch.allclose(answers[0].value, torch.stack(payloads).mean(0), atol=1e-6)
    assert traffic == (0.75 * 4 * SIZE, 0.75 * 4 * SIZE, 2 * 0.75 * 4 * SIZE)


def test_one_worker_sends_nothing() -> None:
    assert Network(Exchange.MEAN, 1, 0).exchange(0, draws(1)).traffic == NO_TRAFFIC


def test_a_codec_makes_contributions_smaller_and_not_their_mean() -> None:
    values = [torch.zeros(4096)] * 2
    _, traffic = Network(Exchange.MEAN, 2, 0, values=codec("topk")).exchange(0, values)
    assert traffic == (60, 2 * 4096, 60 + 2 * 4096)


@pytest.mark.parametrize("workers", [2, 5, 8])
def test_partners_have_the_same_group_and_know_their_place(workers: int) -> None:
    payloads = draws(workers)
    answers, traffic = Network(Exchange.PAIR, workers, 7).exchange(3, payloads)
    served = [place for place, each in enumerate(answers) if each is not None]
    assert len(served) == workers - workers % 2
    assert traffic == (len(served) / workers * 4 * SIZE,) * 3
    for place in served:
        each = answers[place]
        assert each is not None
        assert torch.equal(each.value[each.own], payloads[place])
        partners = [other for other in served if torch.equal(payloads[other], each.value[1 - each.own])]
        assert len(partners) == 1
        assert partners[0] != place


@pytest.mark.parametrize("lose", [0.0, 0.4])
def test_a_graph_keeps_the_mean_also_where_workers_are_lost(lose: float) -> None:
    payloads = draws(12)
    before, lost = torch.stack(payloads), 0
    for number in range(10):
        answers, _ = Network(Exchange.GRAPH, 12, 1, lose=lose, degree=4).exchange(number, payloads)
        lost += sum(each is None for each in answers)
        after = mixed(payloads, answers)
        assert torch.allclose(after.mean(0), before.mean(0), atol=1e-6)
        assert after.var(0).sum() < before.var(0).sum()
    assert (lost > 30) == (lose > 0)


def test_a_graph_costs_a_payload_for_each_neighbour() -> None:
    answers, traffic = Network(Exchange.GRAPH, 5, 1, degree=4).exchange(0, draws(5))
    assert all(each is not None and each.members == 5 for each in answers)
    assert traffic == (4 * 4 * SIZE,) * 3


@pytest.mark.parametrize("kind", list(Exchange))
def test_as_much_fails_as_was_asked_for(kind: Exchange) -> None:
    network = Network(kind, 8, 5, lose=0.25, degree=7)
    outcomes = [network.exchange(number, draws(8)) for number in range(200)]
    missed = [sum(each is None for each in outcome.answers) for outcome in outcomes]
    assert 0.15 < sum(missed) / 1600 < 0.35
    whole = {Exchange.MEAN: {0, 8}, Exchange.PAIR: {0, 2, 4, 6, 8}}.get(kind, set(range(9)))
    assert set(missed) <= whole
    assert [each.traffic == NO_TRAFFIC for each in outcomes] == [missing == 8 for missing in missed]


@pytest.mark.parametrize("kind", list(Exchange))
def test_where_all_is_lost_nobody_has_an_answer(kind: Exchange) -> None:
    assert Network(kind, 6, 0, lose=1.0, degree=5).exchange(0, draws(6)) == ([None] * 6, NO_TRAFFIC)
