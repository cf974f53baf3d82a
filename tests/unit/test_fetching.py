"""Fetching bytes by hash: which members are asked for which chunks, and when they are asked again."""

from __future__ import annotations

import pytest

from shoal.protocol.base.effects import Effect
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId, digest, result_hash
from shoal.protocol.messages.rounds import Busy, ChunkRef, Fetch, Fetched, Want
from shoal.protocol.rounds.allreduce.outbox import Outbox
from shoal.protocol.rounds.allreduce.shelf import Shelf
from shoal.protocol.rounds.fetching import Fetching
from shoal.protocol.rounds.matchmaking.context import Means
from tests.simulation.campaign import build
from tests.simulation.facts import FactReducer
from tests.simulation.links import LAN
from tests.simulation.swarm import peers_named
from tests.unit.rounds_kit import POLICY, ROUND, SIGNER, A, B, C, sent
from tests.unit.test_matchmaking import _View

CHUNKS = list(range(20))
REFS = [ChunkRef(digest("chunk", bytes([chunk])), b"\x01") for chunk in CHUNKS]
PATIENCE = 2.0
ANNA, BERT, _ = peers_named(3)


@pytest.fixture
def fetching() -> Fetching:
    shelf, pace, spread = Shelf(), Estimate(PATIENCE, PATIENCE, PATIENCE), Estimate(1.0, 1.0, 1.0)
    shelf.open(FactReducer())
    return Fetching(Means(A, 0, SIGNER, _View(A, [B, C]), POLICY, shelf, Outbox(), spread, pace), ROUND)


def asked(effects: list[Effect]) -> dict[PeerId, list[int]]:
    """The chunks that each peer is asked for."""
    fetches = [(send.to, send.message) for send in sent(effects, Fetch)]
    return {
        peer: [message.chunk for to, message in fetches if to == peer and isinstance(message, Fetch)]
        for peer in dict.fromkeys(to for to, _ in fetches)
    }


def test_each_chunk_is_asked_for_once_while_its_holder_gets_ahead(fetching: Fetching) -> None:
    assert asked(fetching.ask(0.0, REFS, CHUNKS, [B, C])) == {B: CHUNKS}
    for turn in range(10):
        fetching.arrived(turn * 1.5, B)
        assert fetching.ask(turn * 1.5 + 1.0, REFS, CHUNKS, [B, C]) == []


def test_a_late_holder_is_asked_again_for_all_of_it_and_then_another_one(fetching: Fetching) -> None:
    """The connection may have been lost, and all that waited there with it."""
    fetching.ask(0.0, REFS, CHUNKS, [B, C])
    assert asked(fetching.ask(2.0, REFS, CHUNKS[1:], [B, C])) == {B: CHUNKS[1:]}
    assert fetching.ask(3.0, REFS, CHUNKS[1:], [B, C]) == []
    assert asked(fetching.ask(4.0, REFS, CHUNKS[1:], [B, C])) == {C: CHUNKS[1:]}


def test_a_holder_whose_queue_moves_is_waited_for_but_not_for_ever(fetching: Fetching) -> None:
    asked_of_others, turn = asked(fetching.ask(0.0, REFS, CHUNKS, [B, C])).get(C, []), 0
    while not asked_of_others:
        turn += 1
        fetching.put_off(PATIENCE * turn, B, Busy(ROUND, 0, 0, turn, 0, is_waiting=False, is_queued=True))
        asked_of_others = asked(fetching.ask(PATIENCE * turn, REFS, CHUNKS, [B, C])).get(C, [])
        assert turn <= 2 * len(CHUNKS)
    assert turn > len(CHUNKS)
    assert asked_of_others == CHUNKS


def test_who_is_lost_or_lacks_the_bytes_is_asked_no_more(fetching: Fetching) -> None:
    fetching.ask(0.0, REFS, CHUNKS, [B, C])
    assert asked(fetching.ask(0.1, REFS, CHUNKS, [C])) == {C: CHUNKS}
    fetching.put_off(0.2, C, Busy(ROUND, 0, 0, 0, 0, is_waiting=True, is_queued=False))
    assert asked(fetching.ask(0.3, REFS, CHUNKS, [B])) == {B: CHUNKS}


def test_bytes_that_come_again_are_no_progress() -> None:
    """Else a member that owes us more could send the same for ever, and would never be given up."""
    world, _ = build(1, 3, LAN)
    world.run_until(lambda: all(node.phase() == "scatter" for node in world.nodes()), within=60.0, every=0.001)
    node, sender = world.node(ANNA), BERT
    rounds, attempt = node.member.rounds, node.member.rounds.attempt
    assert attempt is not None
    payload = FactReducer().open(0).finish()
    message = Fetched(attempt.plan.round, 0, 0, b"\x07", payload)
    rounds.shelf.fetch(attempt.plan.round, 0, 0, result_hash(message.mask, payload), sender)
    moved = []
    for _ in range(3):
        node.member.receive(world.now, sender, message)
        moved.append(rounds._means.outbox.taken_count)
    assert moved[0] == moved[1] == moved[2] > 0
    patience = rounds._means.pace.deadline()
    node.member.receive(world.now + patience / 2, sender, message)
    for seconds, is_reminded in ((0.9 * patience, False), (patience, True)):
        asked = [send.to for send in sent(attempt.tick(world.now + seconds), Want)]
        assert (sender in asked) == is_reminded
