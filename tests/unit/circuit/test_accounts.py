"""A relay's accounts: what each peer gets, and when it is over."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit.accounts import LIMITS as DEFAULTS
from shoal.protocol.net.circuit.accounts import Limits, Refused, RelayAccounts, Status

LIMITS = Limits(
    reservations=3,
    reservations_of_host=2,
    reserved_for=100.0,
    circuits=4,
    circuits_of_peer=2,
    circuits_of_host=4,
    circuits_of_network=4,
    circuit_lasts=10.0,
    circuit_carries=1000,
    rate_of_peer=(100.0, 10.0),
    rate_of_host=(1e6, 1e6),
    rate_in_all=(300.0, 100.0),
    requests=(20.0, 1.0),
    requests_of_host=(1e6, 1e6),
)
A, B, C, D, E = (PeerId(name) for name in "ABCDE")


def refusal(action: object, *arguments: object) -> Status:
    with pytest.raises(Refused) as caught:
        action(*arguments)  # type: ignore[operator]
    return caught.value.status


def reserved(*peers: PeerId, limits: Limits = LIMITS) -> RelayAccounts:
    book = RelayAccounts(limits)
    for number, peer in enumerate(peers):
        book.reserve(0.0, peer, f"host {number}")
    return book


def test_a_reservation_lasts_its_time_and_can_be_renewed() -> None:
    book = reserved(A)
    assert book.reservations(99.0) == 1
    assert book.reserve(50.0, A, "host 0") == 150.0
    assert book.reservations(149.0) == 1
    assert book.reservations(150.0) == 0
    assert refusal(book.open, 150.0, B, f"at {B}", A) is Status.NO_RESERVATION


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
    circuits = [book.open(0.0, C, f"at {C}", A), book.open(0.0, C, f"at {C}", B)]
    assert refusal(book.open, 0.0, C, f"at {C}", A) is Status.RESOURCE_LIMIT_EXCEEDED
    book.open(0.0, D, f"at {D}", A)
    assert refusal(book.open, 0.0, E, f"at {E}", A) is Status.RESOURCE_LIMIT_EXCEEDED
    for circuit in circuits * 2:
        circuit.close()
    assert book.circuits == 1
    book.open(0.0, C, f"at {C}", A)


def test_all_together_are_only_so_many() -> None:
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, circuits=2))
    book.open(0.0, C, f"at {C}", A)
    book.open(0.0, D, f"at {D}", B)
    assert refusal(book.open, 0.0, E, f"at {E}", A) is Status.RESOURCE_LIMIT_EXCEEDED


def test_nobody_is_connected_with_himself() -> None:
    assert refusal(reserved(A).open, 0.0, A, f"at {A}", A) is Status.RESOURCE_LIMIT_EXCEEDED


def test_a_circuit_carries_its_share() -> None:
    circuit = reserved(A).open(0.0, B, f"at {B}", A)
    assert circuit.carry(1.0, 600) > 0
    assert circuit.carry(1.0, 400) > 0
    assert refusal(circuit.carry, 1.0, 1) is Status.RESOURCE_LIMIT_EXCEEDED


def test_a_circuit_ends_with_its_time() -> None:
    circuit = reserved(A).open(0.0, B, f"at {B}", A)
    assert circuit.ends_at == 10.0
    assert refusal(circuit.carry, 10.0, 1) is Status.RESOURCE_LIMIT_EXCEEDED


def test_the_circuits_of_a_peer_share_its_rate() -> None:
    book = reserved(A, B)
    one, other = book.open(0.0, C, f"at {C}", A), book.open(0.0, C, f"at {C}", B)
    assert one.carry(0.0, 100) == 0.0, "a burst"
    assert other.carry(0.0, 50) == 5.0
    assert one.carry(5.0, 0) == 0.0


def test_who_is_modest_does_not_wait_for_who_is_not() -> None:
    book = reserved(A, B)
    greedy, modest = book.open(0.0, C, f"at {C}", A), book.open(0.0, D, f"at {D}", B)
    assert greedy.carry(0.0, 250) == 15.0
    assert modest.carry(0.0, 10) == 0.0


def test_all_circuits_share_the_relays_rate() -> None:
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, rate_of_peer=(1e6, 1e6)))
    book.open(0.0, C, f"at {C}", A).carry(0.0, 300)
    assert book.open(0.0, D, f"at {D}", B).carry(0.0, 50) == 0.5
    assert book.carried == 350


def test_who_asks_without_end_is_refused() -> None:
    book = reserved(A)
    statuses = [refusal(book.open, 0.0, C, f"at {C}", B) for _ in range(25)]
    assert statuses == [Status.NO_RESERVATION] * 20 + [Status.RESOURCE_LIMIT_EXCEEDED] * 5
    assert refusal(book.open, 10.0, C, f"at {C}", B) is Status.NO_RESERVATION


def many(count: int) -> list[PeerId]:
    return [PeerId(f"name {number}") for number in range(count)]


def test_a_host_has_only_so_many_circuits_whatever_its_names() -> None:
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, circuits=9, circuits_of_host=3))
    names = many(4)
    for name in names[:3]:
        book.open(0.0, name, "192.0.2.7", A if name == names[0] else B)
    assert refusal(book.open, 0.0, names[3], "192.0.2.7", A) is Status.RESOURCE_LIMIT_EXCEEDED
    book.open(0.0, names[3], "192.0.2.8", A)


@pytest.mark.parametrize(
    ("ours", "elsewhere"),
    [("192.0.2.{}", "192.0.3.1"), ("2001:db8:7:{}::/64", "2001:db8:8::/64")],
)
def test_a_network_has_only_so_many_circuits_whatever_its_hosts(ours: str, elsewhere: str) -> None:
    limits = dataclasses.replace(LIMITS, circuits=9, circuits_of_peer=9, circuits_of_network=3)
    book = reserved(A, B, limits=limits)
    names = many(4)
    for number, name in enumerate(names[:3]):
        book.open(0.0, name, ours.format(number), A if number else B)
    assert refusal(book.open, 0.0, names[3], ours.format(3), B) is Status.RESOURCE_LIMIT_EXCEEDED
    book.open(0.0, names[3], elsewhere, B)


def test_who_fills_the_relay_yields_its_idlest_circuit_to_others_until_both_have_as_many() -> None:
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, circuits_of_peer=4))
    cut: list[int] = []
    for number, name in enumerate(many(4)):
        circuit = book.open(0.0, name, "fills it", A if number % 2 else B)
        circuit.cut = lambda number=number: cut.append(number)  # type: ignore[misc]
        circuit.carry(1.0 if number != 2 else 0.5, 1)
    for expected in ([2], [2, 0]):
        book.open(2.0, C if len(expected) == 1 else D, "is modest", A)
        assert (cut, book.circuits) == (expected, 4)
    assert refusal(book.open, 2.0, E, "is modest", B) is Status.RESOURCE_LIMIT_EXCEEDED
    book.open(2.0, E, "comes last", B)
    assert (cut, book.circuits) == ([2, 0, 1], 4)


def test_who_fills_the_places_of_one_that_is_called_yields_to_others() -> None:
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, circuits=9))
    cut: list[PeerId] = []
    for name in (C, D):
        book.open(0.0, name, "fills it", A).cut = lambda name=name: cut.append(name)  # type: ignore[misc]
    book.open(0.0, C, "fills it", B)
    book.open(0.0, E, "is modest", A)
    assert cut == [C]
    assert book.circuits == 3


def test_who_is_called_by_many_can_still_call() -> None:
    """Eight names of one host open as many circuits to a victim as it may have."""
    book = RelayAccounts()
    book.reserve(0.0, A, "the victim's")
    book.reserve(0.0, B, "a friend's")
    for name in many(8):
        for _ in range(2):
            book.open(0.0, name, "the attacker's", A)
    book.open(0.0, A, "the victim's", B)
    assert book.circuits == 17


def test_who_shares_an_address_with_one_that_calls_everywhere_can_be_called() -> None:
    """Behind a carrier's translation both have one host, which opens as many circuits as it may."""
    book = RelayAccounts(dataclasses.replace(DEFAULTS, requests=(1e6, 1e6), requests_of_host=(1e6, 1e6)))
    book.reserve(0.0, A, "the carrier's")
    far = many(8)
    for number, peer in enumerate(far):
        book.reserve(0.0, peer, f"198.51.{number}.1")
    for number in range(DEFAULTS.circuits_of_host):
        book.open(0.0, PeerId(f"bad {number // 4}"), "the carrier's", far[number % 8])
    assert refusal(book.open, 0.0, C, "the carrier's", far[0]) is Status.RESOURCE_LIMIT_EXCEEDED
    book.open(0.0, C, "elsewhere", A)
    assert book.circuits == DEFAULTS.circuits_of_host + 1


def test_a_host_that_has_opened_most_of_its_network_yields_to_its_neighbours() -> None:
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, circuits=9, circuits_of_peer=9, circuits_of_network=3))
    cut: list[PeerId] = []
    for name in many(3):
        book.open(0.0, name, "192.0.2.1", A).cut = lambda name=name: cut.append(name)  # type: ignore[misc]
    book.open(0.0, C, "192.0.2.2", B)
    assert (cut, book.circuits) == (many(1), 3)


def test_nobody_yields_to_one_that_is_refused_elsewhere() -> None:
    """The neighbour would yield, but whom it calls has as many callers as it may have, each with one circuit."""
    book = reserved(A, B, limits=dataclasses.replace(LIMITS, circuits=9, circuits_of_network=2))
    for name in (C, D):
        book.open(0.0, name, "192.0.2.1", A)
    for number, name in enumerate(many(2)):
        book.open(0.0, name, f"198.51.{number}.1", B)
    assert refusal(book.open, 0.0, E, "192.0.2.2", B) is Status.RESOURCE_LIMIT_EXCEEDED
    assert book.circuits == 4


def test_a_circuit_on_which_nothing_is_said_ends() -> None:
    book = reserved(A, limits=dataclasses.replace(LIMITS, circuit_idles=3.0))
    circuit = book.open(0.0, B, "b", A)
    assert circuit.ends_at == 3.0
    circuit.carry(2.0, 1)
    assert circuit.ends_at == 5.0
    circuit.carry(9.0, 1)
    assert circuit.ends_at == 10.0, "its time"


def test_the_names_of_a_host_share_its_rate_and_its_questions() -> None:
    limits = dataclasses.replace(LIMITS, rate_of_host=(150.0, 10.0), requests_of_host=(3.0, 1.0))
    book = reserved(A, B, limits=limits)
    one, other = book.open(0.0, C, "theirs", A), book.open(0.0, D, "theirs", B)
    assert one.carry(0.0, 100) == 0.0
    assert other.carry(0.0, 80) == 3.0
    assert book.open(0.0, E, "another", A).carry(0.0, 10) == 1.0, "for who is called, 110 of its 100"
    assert refusal(book.open, 0.0, E, "theirs", C) is Status.NO_RESERVATION
    assert refusal(book.open, 0.0, PeerId("F"), "theirs", C) is Status.RESOURCE_LIMIT_EXCEEDED


def test_a_network_has_only_so_many_reservations_and_who_is_gone_has_none() -> None:
    book = RelayAccounts(dataclasses.replace(LIMITS, reservations=9, reservations_of_network=2))
    for number, peer in enumerate((A, B)):
        book.reserve(0.0, peer, f"192.0.2.{number}")
    assert refusal(book.reserve, 0.0, C, "192.0.2.7") is Status.RESERVATION_REFUSED
    book.reserve(0.0, D, "192.0.3.7")
    assert book.holders == [A, B, D]
    book.release(A)
    book.reserve(0.0, C, "192.0.2.7")
    assert refusal(book.open, 0.0, D, "192.0.3.7", A) is Status.NO_RESERVATION


def test_its_users_are_those_with_a_reservation_and_both_ends_of_a_circuit() -> None:
    book = reserved(A, B)
    circuit = book.open(0.0, C, "host c", A)
    assert book.users == {A, B, C}
    book.release(A)
    assert book.users == {A, B, C}, "the circuit is still there"
    circuit.close()
    assert book.users == {B}
