"""An expert on other peers answers as it would here, while peers die, are late, forget, lie, or have no room."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from shoal.node.inference.remote.asking import answerers as answerers_module
from shoal.node.inference.remote.asking import expert as module
from shoal.node.inference.remote.asking.expert import Background
from shoal.node.inference.remote.connection import NodeAway
from shoal.node.inference.scorer import Piece, Predictions
from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.experts import ExpertSays, Score, Verdict
from shoal.protocol.messages.node import Refused
from tests.unit.asking.kit import ANNA, BOB, FILE, Peers, remote
from tests.unit.serve.ensemble.kit import SMALL, Unigram, ensemble, tiny_expert

LONG = SMALL.model_copy(update={"context": 1024})


@pytest.fixture(scope="module")
def background() -> Background:
    return Background()


@pytest.fixture
def peers(background: Background) -> Peers:
    return Peers(background)


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(each) for each in np.random.default_rng(seed).integers(0, 256, length))


def same(found: Predictions, expected: Predictions) -> None:
    assert not found.failed
    np.testing.assert_allclose(found.rows, expected.rows, atol=2e-5)
    np.testing.assert_allclose(found.within, expected.within, rtol=1e-5, atol=1e-4)


PLAN: Sequence[Sequence[Piece]] = [
    [Piece(0, text(100)), Piece(2, text(300, 1), more=True)],
    [Piece(0, (7,)), Piece(2, text(40, 2))],
    [Piece(0, (8,)), Piece(2, (1,)), Piece(1, (3,))],
]


def test_it_says_what_it_would_say_here(background: Background, peers: Peers) -> None:
    here = tiny_expert(1, LONG)
    peers.add(ANNA, tiny_expert(1, LONG))
    there = remote(peers, background, here)
    for pieces in PLAN:
        same(there.extend(pieces, within=True), here.extend(pieces, within=True))
    there.end(0)
    here.end(0)
    same(there.extend([Piece(0, text(9))], within=True), here.extend([Piece(0, text(9))], within=True))
    assert np.allclose(there.extend([Piece(0, (5,))]).rows, here.extend([Piece(0, (5,))]).rows, atol=2e-5)


@pytest.mark.parametrize("death", ["gone", "stuck"])
def test_another_peer_goes_on_where_one_has_died(background: Background, peers: Peers, death: str) -> None:
    here = tiny_expert(1, LONG)
    for peer in (ANNA, BOB):
        peers.add(peer, tiny_expert(1, LONG))
    there = remote(peers, background, here, 0.5)
    for pieces in PLAN[:2]:
        same(there.extend(pieces, within=True), here.extend(pieces, within=True))
    (used,) = {peer for peer, _ in peers.calls}
    getattr(peers, death).add(used)
    same(there.extend(PLAN[2], within=True), here.extend(PLAN[2], within=True))
    (other,) = {ANNA, BOB} - {used}
    assert peers.tokens_of(other) == 100 + 1 + 1 + 300 + 40 + 1 + 1, "it has read both texts, and nothing twice"
    asked = len(peers.asked(used))
    same(there.extend([Piece(0, (9,))], within=True), here.extend([Piece(0, (9,))], within=True))
    assert len(peers.asked(used)) == asked, "who has died is not asked about it again"


@pytest.mark.parametrize("has_another", [False, True])
def test_a_connection_that_breaks_is_made_anew_and_the_texts_go_on(
    background: Background, peers: Peers, has_another: bool
) -> None:
    """Also where the peer has read what was asked, and only its answer was lost: nothing is read twice into a text."""
    here = tiny_expert(1, LONG)
    peers.add(ANNA, tiny_expert(1, LONG))
    if has_another:
        peers.held_twice.add(ANNA)
    there = remote(peers, background, here)
    same(there.extend(PLAN[0], within=True), here.extend(PLAN[0], within=True))
    assert peers.met == {ANNA: 1}
    peers.breaking.add(ANNA)
    peers.on_break = peers.breaking.clear
    connected = 1 if has_another else 2
    for pieces in PLAN[1:3]:
        same(there.extend(pieces, within=True), here.extend(pieces, within=True))
        assert peers.met == {ANNA: connected}


def test_a_connection_that_breaks_again_and_again_is_made_anew_but_once(background: Background, peers: Peers) -> None:
    peers.add(ANNA, Unigram(a=1))
    peers.breaking.add(ANNA)
    there = remote(peers, background, Unigram())
    assert isinstance(there.extend([Piece(0, (1,))], within=True).failed[0], TransportError)
    assert (peers.met, len(peers.calls)) == ({ANNA: 2}, 2)


def test_with_nobody_left_it_is_lost_and_new_texts_ask_again_after_a_pause(
    background: Background, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answerers_module, "REST", (0.2, 0.2))
    peers.add(ANNA, Unigram(a=1))
    there = remote(peers, background, Unigram())
    assert not there.extend([Piece(0, (1,))], within=True).failed
    peers.gone.add(ANNA)
    assert isinstance(there.extend([Piece(0, (2,))], within=True).failed[0], TransportError)
    peers.gone.clear()
    asked = len(peers.calls)
    assert 1 in there.extend([Piece(1, (2,))], within=True).failed
    assert len(peers.calls) == asked, "it is left alone for a while"
    until = time.monotonic() + 20
    while there.extend([Piece(2, (2,))], within=True).failed:
        there.end(2)
        assert time.monotonic() < until
    assert len(peers.calls) > asked


def test_who_has_forgotten_a_text_reads_it_again(background: Background, peers: Peers) -> None:
    here = tiny_expert(1, LONG)
    peers.add(ANNA, tiny_expert(1, LONG))
    there = remote(peers, background, here)
    for pieces in PLAN[:2]:
        there.extend(pieces, within=True)
        here.extend(pieces, within=True)
    peers.add(ANNA, tiny_expert(1, LONG))  # its process was started anew
    same(there.extend(PLAN[2], within=True), here.extend(PLAN[2], within=True))


def test_a_text_without_room_is_lost_alone(background: Background, peers: Peers) -> None:
    peers.add(ANNA, tiny_expert(1), each=2)
    there = remote(peers, background, tiny_expert(1))
    answer = there.extend([Piece(slot, text(4, slot)) for slot in range(3)], within=True)
    assert list(answer.failed) == [2]
    assert "no room" in str(answer.failed[2])
    assert not there.extend([Piece(0, (1,)), Piece(1, (1,))], within=True).failed
    assert there.extend([Piece(0, (1,)), Piece(3, (1,))]).failed
    for slot in range(4):
        there.end(slot)
    assert not there.extend([Piece(0, (1,)), Piece(3, (1,))]).failed, "what had ended was told with the question"


def test_what_has_no_room_at_one_peer_goes_to_another(background: Background, peers: Peers) -> None:
    for peer in (ANNA, BOB):
        peers.add(peer, tiny_expert(1), each=2)
    answer = remote(peers, background, tiny_expert(1)).extend([Piece(slot, text(4, slot)) for slot in range(4)])
    assert not answer.failed
    assert {peer for peer, _ in peers.calls} == {ANNA, BOB}


def test_a_late_answer_is_asked_of_another_as_well(background: Background, peers: Peers) -> None:
    here = tiny_expert(1)
    for peer in (ANNA, BOB):
        peers.add(peer, tiny_expert(1))
    there = remote(peers, background, here, patience := 30.0)
    same(there.extend([Piece(0, text(4))], within=True), here.extend([Piece(0, text(4))], within=True))
    same(there.extend([Piece(0, (1,))], within=True), here.extend([Piece(0, (1,))], within=True))
    (used,) = {peer for peer, _ in peers.calls}
    peers.stuck.add(used)
    began = time.monotonic()
    same(there.extend([Piece(0, (2,))], within=True), here.extend([Piece(0, (2,))], within=True))
    assert time.monotonic() - began < patience, "it has waited for the one that is stuck"
    assert len(there.about()["peers"]) == 2
    assert [each["trouble"] for each in there.about()["peers"]] == [None, None], "who is late has not failed"


LIES = [
    lambda said: ExpertSays(said.scores, said.rows[:-1]),
    lambda said: ExpertSays(said.scores, b"\0" * len(said.rows)),  # all of them are certain
    lambda said: ExpertSays(said.scores, b"\xff" * len(said.rows)),  # no numbers
    lambda said: ExpertSays(said.scores[:-1], said.rows),
    lambda said: ExpertSays((*said.scores, *said.scores), said.rows),
    lambda said: ExpertSays(tuple(Score(Verdict.SCORED, 5.0) for _ in said.scores), said.rows),
    lambda said: ExpertSays(tuple(Score(Verdict.FORGOTTEN, 0.0) for _ in said.scores), b""),
    lambda said: ExpertSays(tuple(Score(Verdict.NO_NUMBERS, 0.0) for _ in said.scores), b""),
    lambda said: Later(10**9),
    lambda said: Refused("no"),
]


@pytest.mark.parametrize("lie", LIES)
def test_who_lies_is_not_believed_and_another_is_asked(background: Background, peers: Peers, lie: object) -> None:
    here = tiny_expert(1)
    peers.add(ANNA, tiny_expert(1))
    there = remote(peers, background, here)
    same(there.extend([Piece(0, text(4))], within=True), here.extend([Piece(0, text(4))], within=True))
    peers.lying[ANNA] = lie  # type: ignore[assignment]
    peers.add(BOB, tiny_expert(1))
    there.answered_by([ANNA, BOB])
    same(there.extend([Piece(0, (1,))], within=True), here.extend([Piece(0, (1,))], within=True))
    assert peers.asked(BOB)


def test_a_liar_is_named_and_left_alone(background: Background, peers: Peers) -> None:
    peers.add(ANNA, tiny_expert(1))
    peers.lying[ANNA] = LIES[1]  # type: ignore[assignment]
    there = remote(peers, background, tiny_expert(1))
    (problem,) = there.extend([Piece(0, (1,))], within=True).failed.values()
    assert isinstance(problem, RemoteError)
    assert problem.peer == ANNA
    assert "sum to" in there.about()["peers"][0]["trouble"]
    asked = len(peers.calls)
    assert there.extend([Piece(1, (1,))], within=True).failed
    assert len(peers.calls) == asked


def test_our_own_node_that_was_away_costs_no_peer_its_name(background: Background, peers: Peers) -> None:
    for peer in (ANNA, BOB):
        peers.add(peer, tiny_expert(1))
    there = remote(peers, background, tiny_expert(1))
    peers.is_away = True
    for _ in range(5):
        assert isinstance(there.extend([Piece(0, (1,))], within=True).failed[0], NodeAway)
        there.end(0)
    peers.is_away = False
    assert not there.extend([Piece(0, (1,))], within=True).failed, "it is asked as soon as our node is back"
    assert [each["trouble"] for each in there.about()["peers"]] == [None, None]


def test_a_peer_is_not_asked_all_at_once(background: Background, peers: Peers) -> None:
    """Else a call's deadline would be over while those before it are worked on."""
    here = tiny_expert(1, LONG, slots=48)
    peers.add(ANNA, tiny_expert(1, LONG, slots=48), each=48)
    there = remote(peers, background, here, 30.0)
    pieces = [Piece(slot, text(130, slot)) for slot in range(48)]
    same(there.extend(pieces, within=True), here.extend(pieces, within=True))
    assert 1 < peers.most_at_once <= module.AT_ONCE


def test_ends_are_told_when_nothing_is_asked(
    background: Background, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TELL", 0.01)
    peers.add(ANNA, tiny_expert(1))
    there = remote(peers, background, tiny_expert(1))
    there.extend([Piece(0, (1,)), Piece(1, (1,))], within=True)
    assert peers.servers[ANNA].texts == 2
    there.end(0)
    until = time.monotonic() + 20
    while peers.servers[ANNA].texts > 1:
        time.sleep(0.005)
        assert time.monotonic() < until


def test_an_ensemble_goes_on_without_the_texts_that_one_has_no_room_for(background: Background, peers: Peers) -> None:
    peers.add(ANNA, tiny_expert(1), each=1)
    mixed = ensemble({"there": remote(peers, background, tiny_expert(1)), "here": tiny_expert(2)})
    mixed.extend([Piece(0, text(4)), Piece(1, text(5))])
    assert (mixed.notes(0)["lost"], mixed.notes(1)["lost"]) == ([], ["there"])
    row = mixed.about()["experts"][0]
    assert (row["place"], row["peers"][0]["peer"], FILE.hex()[:4]) == (
        "peers",
        ANNA,
        mixed.panel.members[0].expert.version[:4],
    )
