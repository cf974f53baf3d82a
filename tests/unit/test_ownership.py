"""Owners and their epochs: in whatever order moves arrive, all members end with the same owners."""

from __future__ import annotations

from itertools import permutations

from shoal.protocol.messages.rounds import Assignment
from shoal.protocol.rounds.allreduce.ownership import Ownership
from tests.unit.rounds_kit import A, B, C, plan


def test_moves_may_arrive_in_any_order_and_twice() -> None:
    moves = [Assignment(0, A, (0, 1)), Assignment(0, B, (0, 2)), Assignment(0, C, (1, 1)), Assignment(1, A, (0, 2))]
    ends = set()
    for order in permutations(moves):
        owners = Ownership(plan())
        for move in (*order, *order):
            owners.follow(move)
        ends.add(tuple((owners.of(chunk), owners.epoch(chunk)) for chunk in range(len(owners))))
    assert len(ends) == 1
    assert owners.of(0) == C


def test_the_chunks_of_the_lost_go_to_live_owners_and_the_others_stay() -> None:
    owners = Ownership(plan())
    lost = owners.of(0)
    moves = owners.moves(range(len(owners)), [lost], (0, 1))
    assert all(move.owner != lost for move in moves)
    assert all(move.owner == owners.of(move.chunk) for move in moves if owners.of(move.chunk) != lost)


def test_each_member_sends_every_chunk_and_begins_with_another_owner() -> None:
    orders = [Ownership(plan()).send_order(peer) for peer in plan().members]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert len({order[0] for order in orders}) == 3
