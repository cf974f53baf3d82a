"""Connections of peers that have not said who they are: they make room for each other, and for known peers."""

from __future__ import annotations

from functools import partial

from shoal.protocol.net.libp2p.inbound_limits import InboundLimits


class Door:
    def __init__(self, waiting: int, of_host: int) -> None:
        self.limits = InboundLimits(waiting, of_host)
        self.left: list[str] = []

    def come(self, host: str, name: str) -> int | None:
        return self.limits.add(host, partial(self.left.append, name))


def test_who_has_waited_longest_of_the_host_with_most_makes_room() -> None:
    door = Door(waiting=3, of_host=9)
    for host, name in (("a", "first"), ("b", "second"), ("b", "third"), ("c", "fourth")):
        assert door.come(host, name) is not None
    assert door.left == ["second"]


def test_a_host_that_has_all_its_places_loses_one_that_waits_and_none_that_is_in() -> None:
    door = Door(waiting=9, of_host=2)
    first, second = door.come("a", "first"), door.come("a", "second")
    assert first is not None
    assert second is not None
    door.limits.finish_handshake(first)
    third = door.come("a", "third")
    assert third is not None
    assert door.left == ["second"]
    door.limits.finish_handshake(third)
    assert door.come("a", "fourth") is None
    assert door.come("b", "other") is not None
    assert door.left == ["second"]


def test_those_who_have_gone_leave_nothing_behind() -> None:
    door = Door(waiting=2, of_host=2)
    numbers = [door.come("a", str(number)) for number in range(5)]
    for number in numbers:
        assert number is not None
        door.limits.remove(number)
        door.limits.remove(number)
    assert not door.limits._here
    assert not door.limits._waiting
    assert not door.limits._of
