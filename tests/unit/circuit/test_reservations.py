"""Which relays are asked for reservations, renewed, replaced and left alone."""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit.reservations import LEFT_ALONE, MOST_IN_VAIN, WANTED, Reservation, Reservations

RELAYS = [PeerId(f"relay {number}") for number in range(6)]


def promise(relay: PeerId, expires: float = 1000.0) -> Reservation:
    return Reservation(relay, expires, (f"{relay} by day", f"{relay} by night"))


def holding(count: int = WANTED) -> Reservations:
    holder = Reservations()
    for relay in holder.whom_to_ask(0.0, RELAYS[:count]):
        holder.granted(0.0, promise(relay))
    return holder


def test_as_many_as_are_wanted_are_asked_the_best_first() -> None:
    holder = Reservations()
    assert holder.whom_to_ask(0.0, RELAYS) == RELAYS[:WANTED]
    assert holder.whom_to_ask(0.1, RELAYS) == [], "they have not answered yet"
    for relay in RELAYS[:WANTED]:
        holder.granted(0.2, promise(relay))
    assert holder.whom_to_ask(0.3, RELAYS) == []
    assert holder.relays == RELAYS[:WANTED]


def test_who_refuses_is_replaced_and_left_alone_for_a_while() -> None:
    holder = Reservations()
    holder.whom_to_ask(0.0, RELAYS[:WANTED])
    holder.refused(1.0, RELAYS[0])
    assert holder.whom_to_ask(1.0, RELAYS) == [RELAYS[WANTED]]
    holder.refused(1.0, RELAYS[WANTED])
    assert holder.whom_to_ask(1.9, RELAYS[:1]) == []
    assert holder.whom_to_ask(1.0 + LEFT_ALONE[0], RELAYS[:1]) == RELAYS[:1]


def test_who_refuses_again_is_left_alone_for_twice_as_long_and_never_for_good() -> None:
    holder, now, pauses = Reservations(), 0.0, list[float]()
    for _ in range(10):
        begin = now
        while not holder.whom_to_ask(now, RELAYS[:1]):
            now += 0.5
        pauses.append(now - begin)
        holder.refused(now, RELAYS[0])
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert holder.whom_to_ask(now + 60.0, RELAYS[:1]) == RELAYS[:1]
    holder.granted(now + 60.0, promise(RELAYS[0], now + 1000.0))
    holder.refused(now + 70.0, RELAYS[0])
    assert holder.whom_to_ask(now + 71.0, RELAYS[:1]) == RELAYS[:1], "it had given one since"


def test_a_lost_relay_is_replaced_at_once() -> None:
    holder = holding()
    assert holder.lost(RELAYS[1])
    assert not holder.lost(RELAYS[5])
    assert holder.relays == [RELAYS[0], RELAYS[2]]
    assert holder.whom_to_ask(1.0, RELAYS[3:]) == [RELAYS[3]]


def test_a_reservation_is_renewed_at_half_of_its_time() -> None:
    holder = holding(1)
    assert holder.whom_to_ask(499.0, []) == []
    assert holder.whom_to_ask(500.0, []) == [RELAYS[0]]
    assert holder.relays == [RELAYS[0]], "it holds meanwhile"
    holder.granted(501.0, promise(RELAYS[0], 1501.0))
    assert holder.whom_to_ask(1000.0, []) == []
    assert holder.whom_to_ask(1001.0, []) == [RELAYS[0]]


def test_a_renewal_is_not_counted_as_one_more() -> None:
    holder = holding()
    assert holder.whom_to_ask(500.0, RELAYS) == RELAYS[:WANTED]
    holder.refused(501.0, RELAYS[0])
    assert holder.whom_to_ask(501.0, RELAYS) == [RELAYS[3]]


def test_what_has_expired_is_held_no_more() -> None:
    holder = holding(1)
    assert holder.whom_to_ask(1000.0, RELAYS) == RELAYS[:WANTED]
    assert holder.relays == []


def test_the_first_addresses_of_all_relays_come_first() -> None:
    assert holding(2).addresses == ("relay 0 by day", "relay 1 by day", "relay 0 by night", "relay 1 by night")


def test_nothing_is_held_once_it_is_not_wanted() -> None:
    holder = holding()
    assert holder.clear() == RELAYS[:WANTED]
    assert (holder.relays, holder.addresses) == ([], ())


def test_what_is_remembered_of_those_that_refuse_is_bounded() -> None:
    holder = Reservations()
    for number in range(2 * MOST_IN_VAIN):
        holder.refused(0.0, PeerId(f"stranger {number}"))
    assert len(holder._in_vain) == MOST_IN_VAIN
