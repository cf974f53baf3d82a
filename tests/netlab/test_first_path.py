"""How soon two behind routers that keep ports have a path to each other, and one without a relay, when all that they
know is one public node.

What could go wrong differs with how they know it: by a link with two of its addresses, each by another one, while it
has only just started, or calling each other at the same moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.protocol.base.paths import PUNCHED
from tests.integration.nodes import until
from tests.netlab.gates import KEEPS_PORTS
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.pathfinders import Pathfinder, Way, pathfinders
from tests.netlab.segments import Host

FAR = Link(delay=0.01)
PORT = 4101
FEW, MANY = 2, 20  # tries
GOALS = 2.0, 5.0  # seconds to the first path and to a punched one, each time
BUSY = 3.0  # times as long on a machine that has other work
LONG = 60.0
WAYS = ("IPv4 twice", "IPv4 beside IPv6", "each knows one", "just started", "calls that cross")


@pytest.mark.parametrize("way", WAYS)
def test_two_at_home_come_together_soon(lab: Lab, tmp_path: Path, way: str) -> None:
    check(way, tries(Town(lab, way), tmp_path, FEW), BUSY)


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("way", WAYS)
def test_two_at_home_come_together_soon_each_time(lab: Lab, tmp_path: Path, way: str) -> None:
    check(way, tries(Town(lab, way), tmp_path, MANY))


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.patient])])
def test_two_dials_that_cross_make_a_path_that_stays(lab: Lab, tmp_path: Path, count: int) -> None:
    one, other = (lab.internet.host(label, link=FAR) for label in ("one", "other"))
    limit = GOALS[0] * (BUSY if count == FEW else 1)
    ways = list[Way]()
    for number in range(count):
        with pathfinders(tmp_path, PORT + 2 * number, one, other) as both:
            ways += cross(both[0], both[1], limit)
    show("dials that cross", ways)
    assert all(each.first is not None and each.first < limit for each in ways)


def cross(one: Pathfinder, other: Pathfinder, limit: float) -> list[Way]:
    """Both ends' ways to each other, who dial each other now; they stay while the two find out where they are."""
    pairs = (one, other), (other, one)
    for each in (one, other):
        each.start()
    begin = time.monotonic()
    for here, there in pairs:
        here.want(there)
    ways = [here.way_to(there, begin, limit) for here, there in pairs]
    both = f"{one.peer} and {other.peer}"
    until(lambda: one.reachability == other.reachability == "public", "verdicts", lambda: both, LONG)
    assert all(here.is_connected_with(there) for here, there in pairs)
    return ways


class Town:
    """A public node's machine and two homes; how the two learn of it is a `way`."""

    def __init__(self, lab: Lab, way: str) -> None:
        self.way = way
        has_ipv6 = way == "IPv4 beside IPv6"
        self.server = lab.internet.host("server", link=FAR, ipv6="2001:db8::1" if has_ipv6 else "")
        first, second = self.server.address, "2001:db8::1" if has_ipv6 else lab.internet.second_address(self.server)
        self.links = [(first, second)] * 2 if way != "each knows one" else [(first,), (second,)]
        self.homes = [self._home(lab, number, has_ipv6) for number in range(2)]

    def _home(self, lab: Lab, number: int, has_ipv6: bool) -> Host:
        router = lab.internet.router(f"router{number}", KEEPS_PORTS, FAR)
        host = router.host(f"home{number}")
        if has_ipv6:
            lab.internet.also(router, router.give_ipv6(host, f"2001:db8:{number + 1}"))
        return host

    def link(self, number: int, port: int) -> list[str]:
        """The addresses by which node number `number` is bootstrapped."""
        return [f"/ip{6 if ':' in each else 4}/{each}/tcp/{port}" for each in self.links[number]]

    @contextmanager
    def settled(self, folder: Path, port: int) -> Iterator[tuple[Pathfinder, Pathfinder]]:
        """The two; the second of them comes now, and both but where all start at once."""
        with pathfinders(folder, port, self.server, *self.homes) as [server, one, other]:
            server.start()
            one.start(*self.link(0, port))
            if self.way != "just started":
                until(lambda: bool(one.relaying.relays), "a relay", lambda: server.reachability, LONG)
            if self.way == "calls that cross":
                other.start(*self.link(1, port))
                until(lambda: bool(other.relaying.relays), "a relay", lambda: server.reachability, LONG)
            else:
                other.start(*self.link(1, port))
            yield one, other
            assert server.reachability == "public", "whoever is asked which way"


def tries(town: Town, folder: Path, count: int) -> list[Way]:
    """The results of all tries; each has its own ports, as routers remember those of the one before."""
    ways = list[Way]()
    for number in range(count):
        with town.settled(folder, PORT + 2 * number) as (one, other):
            begin = time.monotonic()
            other.want(one)
            if town.way == "calls that cross":
                one.want(other)
            ways.append(other.way_to(one, begin, LONG))
    return ways


def check(way: str, ways: list[Way], times: float = 1.0) -> None:
    show(way, ways)
    assert {each.path for each in ways} == {PUNCHED}
    assert all(each.first is not None and each.first < times * GOALS[0] for each in ways)
    assert all(each.best is not None and each.best < times * GOALS[1] for each in ways)


def show(way: str, ways: list[Way]) -> None:
    """The seconds of each try, in order."""
    print(f"\n{way}: first path after {_row([each.first for each in ways])} s,")
    print(f"without a relay after {_row([each.best for each in ways])} s")


def _row(seconds: list[float | None]) -> str:
    return " ".join("-" if each is None else f"{each:.2f}" for each in seconds)
