"""The kind of NAT, from the addresses under which others see us."""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit.nat import MOST, NatMapping

OWN = ("/ip4/192.168.1.2/tcp/4101", "/ip4/192.0.2.9/tcp/4101")
OUTSIDE = "/ip4/203.0.113.1/tcp/4101"
A, B, C = (PeerId(name) for name in "ABC")


def seen(*places: str) -> NatMapping:
    mapping = NatMapping()
    for observer, host, place in zip((A, B, C), ("192.0.2.1", "198.51.100.1", "198.51.100.2"), places, strict=False):
        mapping.note(observer, host, place)
    return mapping


def test_one_who_says_so_is_not_enough_to_know_but_to_try() -> None:
    assert seen(OUTSIDE).kind(OWN) == "unknown"
    assert seen(OUTSIDE).places == (OUTSIDE,)
    assert NatMapping().kind(OWN) == "unknown"
    assert NatMapping().places == ()


def test_two_on_one_host_are_not_enough_either() -> None:
    mapping = seen(OUTSIDE)
    mapping.note(B, "192.0.2.1", OUTSIDE)
    assert mapping.kind(OWN) == "unknown"


def test_a_router_that_keeps_to_one_place_can_be_met_there() -> None:
    assert seen(OUTSIDE, OUTSIDE).kind(OWN) == "keeping"
    assert seen(OUTSIDE, OUTSIDE).places == (OUTSIDE,)
    other_port = "/ip4/203.0.113.1/tcp/61234"
    assert seen(other_port, other_port).kind(OWN) == "keeping"


def test_one_that_gives_each_another_place_cannot() -> None:
    mapping = seen(OUTSIDE, "/ip4/203.0.113.1/tcp/61234")
    assert mapping.kind(OWN) == "symmetric"
    assert mapping.places == ()


def test_each_version_of_ip_has_a_place_of_its_own() -> None:
    modern = "/ip6/2001:db8::9/tcp/4101"
    assert seen(OUTSIDE, modern, OUTSIDE).kind(OWN) == "keeping"
    assert seen(modern, OUTSIDE).places == (OUTSIDE, modern)
    assert seen(modern, OUTSIDE).kind(OWN) == "unknown", "one has said so, and one something else"
    assert seen(modern, modern).kind((*OWN, modern)) == "public"
    symmetric = seen(OUTSIDE, modern, "/ip4/203.0.113.1/tcp/61234")
    assert (symmetric.kind(OWN), symmetric.places) == ("symmetric", (modern,))


def test_who_is_seen_where_it_is_has_no_router() -> None:
    assert seen(OWN[1], OWN[1]).kind(OWN) == "public"


def test_after_a_move_only_those_count_that_are_still_connected() -> None:
    mapping = seen(OUTSIDE, "/ip4/203.0.113.77/tcp/4101")
    mapping.forget(A)
    mapping.forget(C)
    assert mapping.places == ("/ip4/203.0.113.77/tcp/4101",)


def test_what_nobody_can_dial_is_left_aside() -> None:
    for nonsense in (
        "/ip4/10.0.0.1/tcp/4101",
        "/ip4/127.0.0.1/tcp/4101",
        "/dns4/here/tcp/1",
        "",
        "/ip4/203.0.113.1/udp/1",
    ):
        assert seen(nonsense).places == ()


def test_it_is_bounded() -> None:
    mapping = NatMapping()
    for number in range(3 * MOST):
        mapping.note(PeerId(f"{number}"), f"192.0.2.{number}", OUTSIDE)
    assert len(mapping._seen) == MOST
