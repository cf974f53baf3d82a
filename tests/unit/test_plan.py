"""Who is asked for what: windows, patience, rests, and hope."""

from __future__ import annotations

import random

import pytest

from shoal.node.dataset.pieces import PIECES, Blob
from shoal.node.dataset.plan import GIVEN_UP, MAX_DONORS, MAX_WINDOW, REST_MOST, Ask, Plan
from shoal.protocol.ids import PeerId
from tests.unit.dataset_kit import ANNA, BOB, LIAR

BLOBS = [Blob(PIECES, number) for number in range(100)]


def planned(*peers: PeerId, blobs: int = 100) -> Plan:
    plan = Plan()
    plan.want(BLOBS[:blobs])
    for peer in peers:
        plan.meet(peer)
    return plan


def test_a_new_donor_is_asked_for_one_thing_and_a_quick_one_for_more() -> None:
    plan = planned(ANNA)
    (ask,) = plan.asks(0.0)
    assert (ask.donor, ask.blob) == (ANNA, BLOBS[0])
    assert plan.asks(1.0) == []
    on_their_way = [ask]
    for window in (2, 3, 4, 4):
        plan.arrived(0.1, on_their_way.pop())
        on_their_way += plan.asks(0.1)
        assert len(on_their_way) == window <= MAX_WINDOW


def test_a_slow_donor_has_little_on_its_way() -> None:
    plan = planned(ANNA)
    for now in range(0, 50, 5):
        (ask,) = plan.asks(float(now))
        plan.arrived(now + 5.0, ask)


def test_the_faster_one_is_asked_more_often() -> None:
    plan, now, due, count = planned(ANNA, BOB), 0.0, list[tuple[float, Ask]](), dict.fromkeys((ANNA, BOB), 0)
    while plan.waiting or due:
        for ask in plan.asks(now):
            count[ask.donor] += 1
            due.append((now + (0.1 if ask.donor == ANNA else 0.5), ask))
        due.sort(key=lambda each: each[0])
        now, ask = due.pop(0)
        plan.arrived(now, ask)
    assert sum(count.values()) == 100
    assert count[ANNA] > 3 * count[BOB] > 0
    assert plan.serving == [ANNA, BOB]


def test_who_is_late_rests_longer_each_time_and_somebody_else_is_asked() -> None:
    plan = planned(ANNA, blobs=1)
    now, rests = 0.0, []
    for _ in range(7):
        (ask,) = plan.asks(now)
        plan.late(now, ask)
        assert plan.asks(now) == []
        rest = plan.pause(now)
        assert rest is not None
        rests.append(rest)
        now += rest
    assert rests == [1.0, 2.0, 4.0, 8.0, REST_MOST, REST_MOST, REST_MOST]
    plan.meet(BOB)
    (ask,) = plan.asks(now - 0.1)
    assert ask.donor == BOB


def test_one_broken_connection_is_one_miss_however_much_was_on_its_way() -> None:
    plan, now = planned(ANNA), 0.0
    for _ in range(4):
        for ask in plan.asks(now):
            plan.arrived(now, ask)
    asks = plan.asks(now)
    assert len(asks) == MAX_WINDOW
    for ask in asks:
        plan.late(now, ask)
    assert plan.pause(now) == 1.0
    assert plan.has_hope


def test_hope_ends_with_the_last_donor_and_comes_back_with_a_new_one() -> None:
    plan, now = planned(ANNA), 0.0
    assert plan.has_hope
    for _ in range(GIVEN_UP):
        (ask,) = plan.asks(now)
        plan.late(now, ask)
        now += plan.pause(now) or 0.0
    assert not plan.has_hope
    assert not plan.is_refused
    plan.meet(BOB)
    assert plan.has_hope


def test_a_donor_that_was_given_up_and_answers_gives_hope_again() -> None:
    plan, now = planned(ANNA), 0.0
    for _ in range(GIVEN_UP):
        (ask,) = plan.asks(now)
        plan.late(now, ask)
        now += plan.pause(now) or 0.0
    (ask,) = plan.asks(now)
    plan.arrived(now, ask)
    assert plan.has_hope


def test_who_lacks_it_or_has_lied_is_never_asked_again() -> None:
    plan = planned(LIAR)
    (ask,) = plan.asks(0.0)
    plan.drop(ask)
    plan.meet(LIAR)
    assert plan.asks(1e6) == []
    assert plan.waiting == 100
    assert plan.is_refused
    assert not plan.has_hope


def test_later_is_believed_within_reason() -> None:
    plan = planned(ANNA)
    (ask,) = plan.asks(0.0)
    plan.put_off(0.0, ask, 1e9)
    assert plan.asks(REST_MOST - 0.1) == []
    assert len(plan.asks(REST_MOST)) == 1
    assert plan.has_hope


def test_patience_is_learned_and_grows_while_it_is_not_enough() -> None:
    plan = planned(ANNA)
    (first,) = plan.asks(0.0)
    plan.arrived(20.0, first)
    (second,) = plan.asks(20.0)
    assert second.patience > first.patience
    plan.late(20.0, second)
    (third,) = plan.asks(30.0)
    assert third.patience >= second.patience


def test_donors_are_bounded() -> None:
    plan = planned(*(PeerId(str(number)) for number in range(2 * MAX_DONORS)))
    assert len(plan.asks(0.0)) <= MAX_DONORS


@pytest.mark.parametrize("seed", range(20))
def test_all_blobs_arrive_once_while_donors_come_and_fail(seed: int) -> None:
    """Whatever donors do, nothing is lost and nothing is asked for twice at a time."""
    print("seed", seed)
    source, plan, now, due, got = random.Random(seed), planned(ANNA), 0.0, list[tuple[float, Ask]](), list[Blob]()
    while len(got) < 100:
        if source.random() < 0.05:
            plan.meet(PeerId(f"peer {source.randrange(20)}"))
        due += [(now + source.expovariate(2.0), ask) for ask in plan.asks(now)]
        out = [ask.blob for _, ask in due]
        assert len(set(out)) == len(out)
        assert sorted([*got, *out, *plan._queue]) == BLOBS
        now += 0.1
        for ripe in [each for each in due if each[0] <= now]:
            due.remove(ripe)
            ask, what = ripe[1], source.random()
            if what < 0.8:
                got.append(ask.blob)
                plan.arrived(now, ask)
            elif what < 0.9:
                plan.late(now, ask)
            elif what < 0.98 or ask.donor == ANNA:
                plan.put_off(now, ask, source.random())
            else:
                plan.drop(ask)
        assert now < 10_000
