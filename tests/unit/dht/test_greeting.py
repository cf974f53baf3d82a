"""Greetings: the table holds who has answered us itself, and nobody makes us call at will."""

from __future__ import annotations

import pytest

from shoal.dht.calls import Calls
from shoal.dht.clock import FEWEST, MOST, WITNESSES
from shoal.dht.effects import Blamed, ClockOff
from shoal.dht.greeting import PAUSE, REMEMBERED, Greeter
from shoal.dht.table import UNANSWERED, Table
from shoal.dht.vetting import MAX_ADDRESSES
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.messages.dht import Contact, Greet, Greeted, Nodes
from tests.unit.dht.core_kit import ME, NOW, Wire, contact, contacts

HERE = ("/ip4/8.8.8.8/tcp/4101",)


class Meeting:
    """A greeter and what it does."""

    def __init__(self) -> None:
        self.table = Table(ME)
        calls = Calls(self.table)
        self.wire = Wire(calls)
        self.known: list[tuple[Contact, bool]] = []
        self.greeter = Greeter(ME, self.table, calls, lambda now, who, serves: self.known.append((who, serves)))

    def greet(self, now: float, who: Contact, answer: Greeted) -> None:
        self.greeter.greet(now, who, anew=True)
        self.wire.answer(now, self.wire.look()[-1], answer)


def greeted(who: Contact, serves: bool = True, clock: float = NOW) -> Greeted:
    return Greeted(who.addresses, serves, int(clock))


def test_a_server_that_answers_gets_in_with_its_own_addresses() -> None:
    meeting, rumour = Meeting(), contact()
    truth = contact(rumour.peer)
    meeting.greet(NOW, rumour, greeted(truth))
    assert meeting.table.closest(0, 9) == [truth]
    assert meeting.known == [(truth, True)]


def test_a_client_does_not() -> None:
    meeting, client = Meeting(), contact()
    meeting.greet(NOW, client, Greeted((), False, int(NOW)))
    assert len(meeting.table) == 0
    assert meeting.known == [(client, False)], "somebody may ask it what servers it knows"


def test_a_server_that_becomes_a_client_goes() -> None:
    meeting, who = Meeting(), contact()
    meeting.greet(NOW, who, greeted(who))
    meeting.greet(NOW + 60, who, greeted(who, serves=False))
    assert len(meeting.table) == 0


@pytest.mark.parametrize("answer", [Nodes(()), Greeted(("x",), True, 0), Greeted(HERE * (MAX_ADDRESSES + 1), True, 0)])
def test_nonsense_is_blamed(answer: Nodes | Greeted) -> None:
    meeting, who = Meeting(), contact()
    meeting.greeter.greet(NOW, who)
    meeting.wire.answer(NOW, meeting.wire.look()[0], answer)
    assert [event.peer for event in meeting.wire.told if isinstance(event, Blamed)] == [who.peer]
    assert len(meeting.table) == 0


def test_who_greets_us_and_serves_is_greeted_before_it_is_believed() -> None:
    meeting, who = Meeting(), contact()
    meeting.greeter.addresses, meeting.greeter.serves = HERE, True
    assert meeting.greeter.serve(NOW, who.peer, Greet(who.addresses, True)) == Greeted(HERE, True, int(NOW))
    assert len(meeting.table) == 0
    [ask] = meeting.wire.look()
    assert (ask.to, ask.message) == (who, Greet(HERE, True))
    meeting.wire.answer(NOW, ask, greeted(who))
    assert who.peer in meeting.table


def test_who_greets_us_often_is_greeted_once() -> None:
    meeting, who = Meeting(), contact()
    for second in range(int(PAUSE)):
        meeting.greeter.serve(NOW + second, who.peer, Greet(who.addresses, True))
    assert len(meeting.wire.look()) == 1
    meeting.wire.fail(NOW + PAUSE, meeting.wire.asks[0])
    meeting.greeter.serve(NOW + PAUSE + 1, who.peer, Greet(who.addresses, True))
    assert len(meeting.wire.look()) == 0, "nothing answers at its address"
    meeting.greeter.serve(NOW + PAUSE + UNANSWERED, who.peer, Greet(who.addresses, True))
    assert len(meeting.wire.look()) == 1


def test_who_did_not_serve_when_it_greeted_us_and_does_now_is_greeted_back_at_once() -> None:
    meeting, who = Meeting(), contact()
    meeting.greeter.greet(NOW, who)
    meeting.greeter.serve(NOW, who.peer, Greet((), False))
    meeting.wire.answer(NOW + 1, meeting.wire.look()[0], Greeted((), False, int(NOW)))
    meeting.greeter.serve(NOW + 2, who.peer, Greet(who.addresses, True))
    [ask] = meeting.wire.look()
    meeting.wire.answer(NOW + 3, ask, greeted(who))
    assert who.peer in meeting.table


def test_clients_and_those_without_an_address_are_not_greeted_back() -> None:
    meeting = Meeting()
    meeting.greeter.serve(NOW, contact().peer, Greet((), True))
    meeting.greeter.serve(NOW, contact().peer, Greet(HERE, False))
    assert meeting.wire.look() == []


def test_a_greeting_tells_that_a_known_server_lives_moves_or_stops() -> None:
    meeting, who = Meeting(), contact()
    meeting.greet(NOW, who, greeted(who))
    moved = contact(who.peer)
    meeting.greeter.serve(NOW + 100, who.peer, Greet(moved.addresses, True))
    assert meeting.table.closest(0, 1) == [moved]
    meeting.greeter.serve(NOW + 101, who.peer, Greet(moved.addresses, False))
    assert len(meeting.table) == 0


def test_a_bad_greeting_changes_nothing() -> None:
    meeting, who = Meeting(), contact()
    with pytest.raises(RemoteError):
        meeting.greeter.serve(NOW, who.peer, Greet(("not an address",), True))
    assert meeting.wire.look() == []


def test_we_do_not_greet_ourselves_and_remember_a_bounded_number() -> None:
    meeting = Meeting()
    meeting.greeter.greet(NOW, contact(ME))
    assert meeting.wire.look() == []
    for each in contacts(REMEMBERED + 50):
        meeting.greeter.greet(NOW, each)
    assert len(meeting.greeter._greeted) == REMEMBERED


# -- clocks ---------------------------------------------------------------------------------------------------


def test_a_wrong_clock_is_told_once_and_a_few_liars_move_nothing() -> None:
    meeting = Meeting()
    for number in range(WITNESSES):
        lie = MOST * 9 if number % 3 == 0 else 0.0
        meeting.greet(NOW + number, who := contact(), greeted(who, clock=NOW + lie))
    assert meeting.wire.told == []
    for number in range(2 * WITNESSES):
        meeting.greet(NOW + number, who := contact(), greeted(who, clock=NOW + number + 600))
    assert meeting.wire.told == [ClockOff(-600)]


def test_one_or_two_clocks_prove_nothing() -> None:
    meeting = Meeting()
    for _ in range(FEWEST - 1):
        meeting.greet(NOW, who := contact(), greeted(who, clock=NOW - 600))
    assert meeting.wire.told == []


def test_a_clock_that_is_set_is_compared_as_it_is_now_with_what_was_heard_before() -> None:
    meeting = Meeting()
    for ahead in (0, 0, 0, 0, 0, 3 * 86_400, 0):
        meeting.greeter._wall.ahead = ahead
        meeting.greet(NOW, who := contact(), greeted(who, clock=NOW))
    assert meeting.wire.told == [ClockOff(3 * 86_400)]
