"""Calls: patience, late answers, blame, and how many there are at once."""

from __future__ import annotations

from shoal.dht.calls import FIRST_PATIENCE, IGNORE_ANSWER, IN_FLIGHT, LEAST_PATIENCE, MOST_QUEUED, Calls
from shoal.dht.effects import Blamed
from shoal.protocol.base.ids import Digest
from shoal.protocol.messages.dht import Contact, FindNode, Nodes
from shoal.protocol.messages.node import Refused
from tests.unit.dht.core_kit import NOW, Wire, Witness, contact, contacts, filled

QUESTION = FindNode(Digest(bytes(32)))
ANSWER = Nodes(())


def test_a_call_and_its_answer() -> None:
    calls, asker, to = Calls(filled([])), Witness(), contact()
    wire = Wire(calls)
    calls.ask(NOW, to, QUESTION, asker)
    [ask] = wire.look()
    assert (ask.to, ask.message) == (to, QUESTION)
    wire.answer(NOW + 0.1, ask, ANSWER)
    wire.lose_patience(NOW + 9)
    calls.answered(NOW + 9, ask.number, ANSWER)
    assert (asker.answers, asker.failures) == ([ANSWER], [])


def test_patience_is_learned_from_round_trips() -> None:
    calls = Calls(filled([]))
    wire = Wire(calls)
    for number in range(50):
        calls.ask(NOW + number, contact(), QUESTION, Witness())
        [ask] = wire.look()
        wire.answer(NOW + number + 0.2, ask, ANSWER)
    calls.ask(NOW + 60, contact(), QUESTION, Witness())
    wire.look()
    assert wire.wakes[0].after == FIRST_PATIENCE
    assert LEAST_PATIENCE < wire.wakes[-1].after < 0.3


def test_who_must_be_dialled_gets_more_patience_than_quick_answers_of_others_taught() -> None:
    calls = Calls(filled([]))
    near, far = contact(), contact()
    calls.link(near.peer, True)
    wire = Wire(calls)

    def patience(to: Contact) -> float:
        calls.ask(NOW + 60, to, QUESTION, Witness())
        wire.fail(NOW + 60, wire.look()[0])
        return wire.wakes[-1].after

    for number in range(50):
        calls.ask(NOW + number, near, QUESTION, Witness())
        wire.answer(NOW + number + 0.005, wire.look()[0], ANSWER)
    assert (patience(near), patience(far)) == (LEAST_PATIENCE, FIRST_PATIENCE)
    calls.link(near.peer, False)
    assert patience(near) == FIRST_PATIENCE


def test_a_silent_node_costs_one_patience_and_its_late_answer_counts() -> None:
    table = filled([to := contact()])
    calls, asker = Calls(table), Witness()
    wire = Wire(calls)
    calls.ask(NOW, to, QUESTION, asker)
    [ask] = wire.look()
    wire.lose_patience(NOW + FIRST_PATIENCE)
    assert asker.failures == [to]
    assert table.closest(0, 9) == [to], "there is nobody else"
    assert table.stalest().silences == 1  # type: ignore[union-attr]
    wire.answer(NOW + 5, ask, ANSWER)
    assert asker.answers == [ANSWER]
    assert table.stalest().silences == 0  # type: ignore[union-attr]


def test_a_failure_is_told_once() -> None:
    calls, asker = Calls(filled([])), Witness()
    wire = Wire(calls)
    calls.ask(NOW, contact(), QUESTION, asker)
    [ask] = wire.look()
    wire.lose_patience(NOW + 1)
    wire.fail(NOW + 10, ask)
    assert len(asker.failures) == 1


def test_what_the_asker_refuses_is_blamed_and_its_speaker_forgotten() -> None:
    table = filled([to := contact()])
    calls, asker = Calls(table), Witness(refuses=Nodes)
    wire = Wire(calls)
    calls.ask(NOW, to, QUESTION, asker)
    [ask] = wire.look()
    wire.answer(NOW + 0.1, ask, ANSWER)
    assert asker.failures == [to]
    assert wire.told == [Blamed(to.peer, "no")]
    assert to.peer not in table


def test_who_is_too_busy_has_failed_and_is_not_to_blame() -> None:
    table = filled([to := contact()])
    calls, asker = Calls(table), Witness()
    wire = Wire(calls)
    calls.ask(NOW, to, QUESTION, asker)
    [ask] = wire.look()
    wire.answer(NOW + 0.1, ask, Refused("later"))
    assert (asker.answers, asker.failures, wire.told) == ([], [to], [])
    assert to.peer in table


def test_so_many_wait_for_an_answer_and_the_rest_for_their_turn() -> None:
    calls, asker = Calls(filled([])), Witness()
    wire = Wire(calls)
    everybody = contacts(IN_FLIGHT + 10)
    for each in everybody:
        calls.ask(NOW, each, QUESTION, asker)
    assert len(wire.look()) == IN_FLIGHT
    wire.answer(NOW + 0.1, wire.asks[0], ANSWER)
    assert len(wire.asks) == IN_FLIGHT
    wire.lose_patience(NOW + 2)
    assert len(wire.asks) == IN_FLIGHT + 9, "those that are silent hold up nobody"
    assert [ask.to for ask in wire.asks] == everybody[1:]


def test_after_the_end_nothing_happens() -> None:
    calls, asker = Calls(filled([])), Witness()
    wire = Wire(calls)
    calls.ask(NOW, contact(), QUESTION, asker)
    [ask] = wire.look()
    calls.stop()
    wire.lose_patience(NOW + 1)
    calls.answered(NOW + 1, ask.number, ANSWER)
    assert (asker.answers, asker.failures) == ([], [])


def test_a_full_queue_takes_what_somebody_waits_for_and_nothing_else() -> None:
    calls = Calls(filled([]))
    for _ in range(2 * MOST_QUEUED):
        calls.ask(NOW, contact(), QUESTION, IGNORE_ANSWER)
    assert calls.is_busy
    assert len(calls._queue) == MOST_QUEUED
    calls.ask(NOW, contact(), QUESTION, Witness())
    assert len(calls._queue) == MOST_QUEUED + 1
