"""A relay's accounts: who gets what, and when it is over."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.circuit.book import Book, Limits, Refused, Status
from shoal.protocol.ids import PeerId

LIMITS = Limits(
    reservations=3,
    reservations_of_host=2,
    reserved_for=100.0,
    circuits=4,
    circuits_of_peer=2,
    circuit_lasts=10.0,
    circuit_carries=1000,
    rate_of_peer=(100.0, 10.0),
    rate_in_all=(300.0, 100.0),
    questions=(20.0, 1.0),
)
A, B, C, D, E = (PeerId(name) for name in "ABCDE")


def refusal(action: object, *arguments: object) -> Status:
    with pytest.raises(Refused) as caught:
        action(*arguments)  # type: ignore[operator]
    return caught.value.status


def reserved(*peers: PeerId, limits: Limits = LIMITS) -> Book:
    book = Book(limits)
    for number, peer in enumerate(peers):
        book.reserve(0.0, peer, f"host {number}")
    return book


def test_a_reservation_lasts_its_time_and_can_be_renewed() -> None:
    book = reserved(A)
    assert book.reservations(99.0) == 1
    assert book.reserve(50.0, A, "host 0") == 150.0
    assert book.reservations(149.0) == 1
    assert book.reservations(150.0) == 0
    assert refusal(book.open, 150.0, B, A) is Status.NO_RESERVATION


def test_there_are_only_so_many_reservations_and_fewer_for_one_host() -> None:
    book = reserved(A)
    book.reserve(0.0, B, "host 0")
    assert refusal(book.reserve, 0.0, C, "host 0") is Status.RESERVATION_REFUSED
    book.reserve(0.0, C, "elsewhere")
    assert refusal(book.reserve, 0.0, D, "far away") is Status.RESERVATION_REFUSED
    assert book.reserve(1.0, A, "host 0") == 101.0, "who has one renews it all the same"
    assert book.reserve(100.5, D, "far away") == 200.5, "places are free again"


def test_both_ends_have_only_so_many_circuits() -> None:
    book = reserved(A, B)
    circuits = [book.open(0.0, C, A), book.open(0.0, C, B)]
    assert refusal(book.open, 0.0, C, A) is Status.RESOURCE_LIMIT_EXCEEDED
    book.open(0.0, D, A)
    assert refusal(book.open, 0.0, E, A) is Status.RESOURCE_LIMIT_EXCEEDED
    for circuit in circuits * 2:
        circuit.close()
    assert book.circuits == 1
    book.open(0.0, C, A)


def test_all_together_are_only_so_many() -> None:
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, circuits=2))
    book.open(0.0, C, A)
    book.open(0.0, D, B)
    assert refusal(book.open, 0.0, E, A) is Status.RESOURCE_LIMIT_EXCEEDED


def test_nobody_is_connected_with_himself() -> None:
    assert refusal(reserved(A).open, 0.0, A, A) is Status.RESOURCE_LIMIT_EXCEEDED


def test_a_circuit_carries_its_share() -> None:
    circuit = reserved(A).open(0.0, B, A)
    assert circuit.carry(1.0, 600) > 0
    assert circuit.carry(1.0, 400) > 0
    assert refusal(circuit.carry, 1.0, 1) is Status.RESOURCE_LIMIT_EXCEEDED


def test_a_circuit_ends_with_its_time() -> None:
    circuit = reserved(A).open(0.0, B, A)
    assert circuit.until == 10.0
    assert refusal(circuit.carry, 10.0, 1) is Status.RESOURCE_LIMIT_EXCEEDED


def test_the_circuits_of_a_peer_share_its_rate() -> None:
    book = reserved(A, B)
    one, other = book.open(0.0, C, A), book.open(0.0, C, B)
    assert one.carry(0.0, 100) == 0.0, "a burst"
    assert other.carry(0.0, 50) == 5.0
    assert one.carry(5.0, 0) == 0.0


def test_who_is_modest_does_not_wait_for_who_is_not() -> None:
    book = reserved(A, B)
    greedy, modest = book.open(0.0, C, A), book.open(0.0, D, B)
    assert greedy.carry(0.0, 250) == 15.0
    assert modest.carry(0.0, 10) == 0.0


def test_all_circuits_share_the_relays_rate() -> None:
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, rate_of_peer=(1e6, 1e6)))
    book.open(0.0, C, A).carry(0.0, 300)
    assert book.open(0.0, D, B).carry(0.0, 50) == 0.5
    assert book.carried == 350


def test_who_asks_without_end_is_refused() -> None:
    book = reserved(A)
    statuses = [refusal(book.open, 0.0, C, B) for _ in range(25)]
    assert statuses == [Status.NO_RESERVATION] * 20 + [Status.RESOURCE_LIMIT_EXCEEDED] * 5
    assert refusal(book.open, 10.0, C, B) is Status.NO_RESERVATION
