"""Random graphs of a round: the same for all members, with the density asked for and weights that keep the mean."""

from __future__ import annotations

from math import fsum
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.lab.network import Graph, Peer, neighbours, weights_of

groups = st.lists(st.text(max_size=6), unique=True, max_size=12)
probabilities = st.floats(0, 1)

RING: Graph[str] = {"a": ("b", "d"), "b": ("a", "c"), "c": ("b", "d"), "d": ("a", "c")}


def matrix_of(graph: Graph[Peer]) -> list[list[float]]:
    """The weights, (M, M), in the order of the graph's members: symmetric, and doubly stochastic."""
    places = {member: place for place, member in enumerate(graph)}
    rows = [[0.0] * len(places) for _ in places]
    for member, row in zip(graph, rows, strict=True):
        weights = weights_of(graph, member)
        for other, weight in zip(graph[member], weights, strict=True):
            row[places[other]] = weight
        row[places[member]] = 1 - sum(weights)
    return rows


@given(st.binary(max_size=40), st.integers(0, 2**63), groups, probabilities, st.randoms())
def test_all_draw_the_same_graph_whatever_order_they_name_members_in(
    seed: bytes, round: int, members: list[str], probability: float, random: Random
) -> None:
    shuffled = random.sample(members, len(members))
    assert neighbours(seed, round, shuffled, probability) == neighbours(seed, round, members, probability)


@given(groups, probabilities)
def test_edges_go_both_ways_and_never_to_oneself(members: list[str], probability: float) -> None:
    graph = neighbours(b"seed", 3, members, probability)
    assert list(graph) == members
    for member, others in graph.items():
        assert member not in others
        assert all(member in graph[other] for other in others)


@given(groups, probabilities, st.data())
def test_an_edge_does_not_depend_on_who_else_is_there(
    members: list[str], probability: float, data: st.DataObject
) -> None:
    gone = set(data.draw(st.lists(st.sampled_from(members)))) if members else set()
    graph = neighbours(b"seed", 3, members, probability)
    live = [member for member in members if member not in gone]
    expected = {member: tuple(other for other in graph[member] if other not in gone) for member in live}
    assert neighbours(b"seed", 3, live, probability) == expected


def test_probability_0_has_no_edge_and_1_has_all() -> None:
    members = list("abcdef")
    assert not any(neighbours(b"seed", 1, members, 0.0).values())
    assert all(len(others) == 5 for others in neighbours(b"seed", 1, members, 1.0).values())


def test_as_many_edges_are_there_as_the_probability_says() -> None:
    """4,950 possible ones of 100 members, of which 990 are due at 0.2, within five deviations of 28."""
    graph = neighbours(b"seed", 1, [str(n) for n in range(100)], 0.2)
    assert abs(sum(map(len, graph.values())) / 2 - 990) < 141


def test_another_seed_or_round_draws_another_graph() -> None:
    members = [str(n) for n in range(20)]
    first = neighbours(b"seed", 1, members, 0.5)
    assert first != neighbours(b"seed", 2, members, 0.5)
    assert first != neighbours(b"other", 1, members, 0.5)


def test_graphs_stay_what_they_are_over_versions() -> None:
    """Members of one run may run different versions."""
    assert neighbours(b"seed", 1, list("abcde"), 0.5) == {
        "a": ("e",),
        "b": ("d",),
        "c": ("d",),
        "d": ("b", "c"),
        "e": ("a",),
    }


def test_arguments_that_mean_nothing_are_refused() -> None:
    for probability in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            neighbours(b"seed", 1, ["a", "b"], probability)
    with pytest.raises(ValueError, match="twice"):
        neighbours(b"seed", 1, ["a", "a"], 0.5)


def test_weights_of_a_ring_are_thirds_and_of_a_star_those_of_its_middle() -> None:
    assert weights_of(RING, "a") == (1 / 3, 1 / 3)
    star: Graph[str] = {"m": ("a", "b", "c"), "a": ("m",), "b": ("m",), "c": ("m",)}
    assert matrix_of(star) == [
        [0.25, 0.25, 0.25, 0.25],
        [0.25, 0.75, 0, 0],
        [0.25, 0, 0.75, 0],
        [0.25, 0, 0, 0.75],
    ]


def test_who_has_no_neighbour_keeps_all_its_weight() -> None:
    alone: Graph[str] = {"a": ()}
    assert weights_of(alone, "a") == ()
    assert matrix_of(alone) == [[1.0]]


@given(groups, probabilities)
def test_the_matrix_is_symmetric_and_doubly_stochastic(members: list[str], probability: float) -> None:
    rows = matrix_of(neighbours(b"seed", 5, members, probability))
    assert [list(column) for column in zip(*rows, strict=True)] == rows
    assert all(fsum(row) == pytest.approx(1, abs=1e-15 * len(rows)) for row in rows)
    assert all(weight >= 0 for row in rows for weight in row)
    assert all(row[own] >= 1 / len(rows) - 1e-12 for own, row in enumerate(rows))
