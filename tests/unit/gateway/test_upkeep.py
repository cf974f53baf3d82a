"""When a router is searched, checked and asked: in virtual time, with small fake routers."""

from __future__ import annotations

import math
from random import Random

from shoal.node.peers.gateway.router import PortLease, RouterStatus
from shoal.node.peers.gateway.upkeep import (
    LIFETIME,
    LOOK,
    MAX_OTHER_PORTS,
    MISSES,
    PAUSES,
    SOON,
    FindRouter,
    Look,
    MapPort,
    Upkeep,
    Wait,
)

HOST, ELSEWHERE = "203.0.113.7", "203.0.113.8"


def upkeep(*ports: int) -> Upkeep:
    return Upkeep(ports or (4101,), Random(7))


def mapped(now: float = 0.0, lifetime: float = LIFETIME) -> Upkeep:
    """Upkeep with a router that has mapped port 4101."""
    us = upkeep()
    us.found(now)
    us.saw(now, RouterStatus(HOST))
    us.mapped(now, PortLease(4101, 4101, lifetime))
    return us


def test_it_finds_looks_maps_and_rests() -> None:
    us = upkeep(4101, 4102)
    assert us.next(0.0) == FindRouter()
    us.found(1.0)
    assert us.next(1.0) == Look()
    us.saw(1.0, RouterStatus(HOST))
    assert us.next(1.0) == MapPort(4101, 4101)
    us.mapped(1.0, PortLease(4101, 4101, LIFETIME))
    assert us.next(1.0) == MapPort(4102, 4102)
    us.mapped(1.0, PortLease(4102, 9000, LIFETIME))
    assert us.next(1.0) == Wait(LOOK)
    assert (us.host, us.leases[4102].external) == (HOST, 9000)


def test_searches_in_vain_become_rare() -> None:
    us, now, pauses = upkeep(), 0.0, []
    for _ in range(10):
        assert us.next(now) == FindRouter()
        us.failed(now)
        action = us.next(now)
        assert isinstance(action, Wait)
        pauses.append(action.seconds)
        now += action.seconds
    assert pauses[:3] == [30.0, 60.0, 120.0]
    assert pauses[-1] == PAUSES[1]
    us.moved(now)
    assert us.next(now) == FindRouter()


def test_a_lease_is_renewed_at_half_its_time_under_the_number_that_it_has() -> None:
    us = upkeep()
    us.found(0.0)
    us.saw(0.0, RouterStatus(HOST))
    us.mapped(0.0, PortLease(4101, 5555, LIFETIME))
    now = 0.0
    while not isinstance(action := us.next(now), MapPort):
        if isinstance(action, Look):
            us.saw(now, RouterStatus(HOST))
        else:
            assert isinstance(action, Wait)
            now += action.seconds
    assert (now, action) == (LIFETIME / 2, MapPort(4101, 5555))


def test_a_lease_without_an_end_is_only_looked_at() -> None:
    us = mapped(lifetime=math.inf)
    assert us.next(0.0) == Wait(LOOK)


def test_a_lost_mapping_is_made_anew_at_once() -> None:
    us = mapped()
    assert us.next(LOOK) == Look()
    us.saw(LOOK, RouterStatus(HOST, lost=(4101,)))
    assert us.next(LOOK) == MapPort(4101, 4101)


def test_so_is_one_whose_router_has_another_outside() -> None:
    us = mapped()
    us.saw(LOOK, RouterStatus(ELSEWHERE))
    assert us.next(LOOK) == MapPort(4101, 4101)
    assert us.host == ELSEWHERE


def test_a_router_that_falls_silent_is_looked_for_anew() -> None:
    us, now = mapped(), LOOK
    for _ in range(MISSES - 1):
        assert us.next(now) == Look()
        us.failed(now)
        assert us.next(now) == Wait(SOON)
        now += SOON
    assert us.leases
    us.failed(now)
    assert (us.host, us.leases, us.has_router) == (None, {}, False)
    assert us.next(now) == FindRouter()


def test_a_router_that_is_found_and_never_speaks_is_asked_ever_more_rarely() -> None:
    us, now, searches = upkeep(), 0.0, list[float]()
    while now < 10_000:
        action = us.next(now)
        if isinstance(action, Wait):
            now += action.seconds
        elif isinstance(action, FindRouter):
            searches.append(now)
            us.found(now)
        else:
            now += 4.0
            us.failed(now)
    assert len(searches) < 12


def asked_for_a_port(us: Upkeep, now: float, until: float) -> list[float]:
    """When, of a router that answers all looks, and to a wish for a port nothing that makes sense."""
    asked = []
    while now < until:
        match us.next(now):
            case Wait(seconds):
                now += seconds
            case FindRouter():
                us.found(now)
            case Look():
                us.saw(now, RouterStatus(HOST))
            case MapPort(port, _):
                asked.append(now)
                us.unanswered(now, port)
    return asked


def test_a_router_that_says_nonsense_to_a_wish_is_asked_ever_more_rarely_and_stays_the_router() -> None:
    us = upkeep()
    assert asked_for_a_port(us, 0.0, 1000.0) == [0.0, 30.0, 90.0, 210.0, 450.0, 930.0]
    assert us.has_router


def test_a_renewal_in_vain_keeps_the_lease_to_its_end_and_no_longer() -> None:
    us = mapped()
    asked = asked_for_a_port(us, 0.0, LIFETIME - 1.0)
    assert asked[:3] == [LIFETIME / 2 + late for late in (0.0, 30.0, 90.0)]
    assert us.leases
    assert asked_for_a_port(us, LIFETIME - 1.0, LIFETIME + 1.0) == [LIFETIME]
    assert us.leases == {}


def test_a_lost_mapping_that_cannot_be_made_anew_is_none() -> None:
    us = mapped()
    us.saw(LOOK, RouterStatus(HOST, lost=(4101,)))
    us.unanswered(LOOK, 4101)
    assert us.leases == {}


def test_after_a_wish_in_vain_the_router_is_looked_at_soon() -> None:
    us = mapped(lifetime=40.0)
    us.unanswered(20.0, 4101)
    assert us.next(20.0) == Wait(SOON)
    assert us.next(20.0 + SOON) == Look()


def test_a_silent_router_is_not_asked_for_ports() -> None:
    us = upkeep()
    us.found(0.0)
    us.failed(0.0)
    assert us.next(0.0) == Wait(SOON)


def test_one_that_is_looked_at_and_falls_silent_without_giving_a_port_is_not_looked_for_at_once() -> None:
    us = upkeep()
    us.found(0.0)
    us.saw(0.0, RouterStatus(HOST))
    for _ in range(MISSES):
        us.failed(0.0)
    assert us.next(0.0) == Wait(PAUSES[0])


def test_a_taken_port_is_asked_for_under_other_numbers_and_then_later() -> None:
    us = mapped()
    us.saw(LOOK, RouterStatus(HOST, lost=(4101,)))
    asked = []
    for _ in range(MAX_OTHER_PORTS + 1):
        action = us.next(LOOK)
        assert isinstance(action, MapPort)
        asked.append(action.external)
        us.declined(LOOK, 4101, is_taken=True)
    assert asked[0] == 4101
    assert len(set(asked)) == MAX_OTHER_PORTS + 1
    assert us.leases == {}
    assert us.next(LOOK) == Wait(PAUSES[0])


def test_a_refusal_is_asked_again_ever_more_rarely() -> None:
    us = upkeep()
    us.found(0.0)
    now, asked = 0.0, list[float]()
    while now < 1000:
        action = us.next(now)
        if isinstance(action, Wait):
            now += action.seconds
        elif isinstance(action, Look):
            us.saw(now, RouterStatus(HOST))
        else:
            asked.append(now)
            us.declined(now, 4101, is_taken=False)
    assert asked == [0.0, 30.0, 90.0, 210.0, 450.0, 930.0]
