"""Which donors are asked for which pieces: windows, patience, pauses, and another try after failures."""

from __future__ import annotations

import random

import pytest

from shoal.node.training.data.fetch import MAX_DONORS, MAX_MISSES, MAX_REST, MAX_WINDOW, Donors, Request
from shoal.node.training.data.pieces import PIECES, Blob
from shoal.protocol.base.ids import PeerId
from tests.unit.dataset_kit import ANNA, BOB, LIAR

BLOBS = [Blob(PIECES, number) for number in range(100)]


def donors_of(*peers: PeerId, blobs: int = 100) -> Donors:
    donors = Donors()
    donors.want(BLOBS[:blobs])
    for peer in peers:
        donors.add(peer)
    return donors


def test_a_new_donor_is_asked_for_one_thing_and_a_quick_one_for_more() -> None:
    donors = donors_of(ANNA)
    (request,) = donors.requests(0.0)
    assert (request.donor, request.blob) == (ANNA, BLOBS[0])
    assert donors.requests(1.0) == []
    on_their_way = [request]
    for window in (2, 3, 4, 4):
        donors.arrived(0.1, on_their_way.pop())
        on_their_way += donors.requests(0.1)
        assert len(on_their_way) == window <= MAX_WINDOW


def test_a_slow_donor_has_little_on_its_way() -> None:
    donors = donors_of(ANNA)
    for now in range(0, 50, 5):
        (request,) = donors.requests(float(now))
        donors.arrived(now + 5.0, request)


def test_the_faster_one_is_asked_more_often() -> None:
    donors, now, due, count = donors_of(ANNA, BOB), 0.0, list[tuple[float, Request]](), dict.fromkeys((ANNA, BOB), 0)
    while donors.waiting or due:
        for request in donors.requests(now):
            count[request.donor] += 1
            due.append((now + (0.1 if request.donor == ANNA else 0.5), request))
        due.sort(key=lambda each: each[0])
        now, request = due.pop(0)
        donors.arrived(now, request)
    assert sum(count.values()) == 100
    assert count[ANNA] > 3 * count[BOB] > 0
    assert donors.serving == [ANNA, BOB]


def test_who_is_late_rests_longer_each_time_and_somebody_else_is_asked() -> None:
    donors = donors_of(ANNA, blobs=1)
    now, rests = 0.0, []
    for _ in range(7):
        (request,) = donors.requests(now)
        donors.late(now, request)
        assert donors.requests(now) == []
        rest = donors.pause(now)
        assert rest is not None
        rests.append(rest)
        now += rest
    assert rests == [1.0, 2.0, 4.0, 8.0, MAX_REST, MAX_REST, MAX_REST]
    donors.add(BOB)
    (request,) = donors.requests(now - 0.1)
    assert request.donor == BOB


def test_one_broken_connection_is_one_miss_however_much_was_on_its_way() -> None:
    donors, now = donors_of(ANNA), 0.0
    for _ in range(4):
        for request in donors.requests(now):
            donors.arrived(now, request)
    requests = donors.requests(now)
    assert len(requests) == MAX_WINDOW
    for request in requests:
        donors.late(now, request)
    assert donors.pause(now) == 1.0
    assert donors.any_may_answer


def test_hope_ends_with_the_last_donor_and_comes_back_with_a_new_one() -> None:
    donors, now = donors_of(ANNA), 0.0
    assert donors.any_may_answer
    for _ in range(MAX_MISSES):
        (request,) = donors.requests(now)
        donors.late(now, request)
        now += donors.pause(now) or 0.0
    assert not donors.any_may_answer
    assert not donors.all_excluded
    donors.add(BOB)
    assert donors.any_may_answer


def test_a_donor_that_was_given_up_and_answers_gives_hope_again() -> None:
    donors, now = donors_of(ANNA), 0.0
    for _ in range(MAX_MISSES):
        (request,) = donors.requests(now)
        donors.late(now, request)
        now += donors.pause(now) or 0.0
    (request,) = donors.requests(now)
    donors.arrived(now, request)
    assert donors.any_may_answer


def test_who_lacks_it_or_has_lied_is_never_asked_again() -> None:
    donors = donors_of(LIAR)
    (request,) = donors.requests(0.0)
    donors.drop(request)
    donors.add(LIAR)
    assert donors.requests(1e6) == []
    assert donors.waiting == 100
    assert donors.all_excluded
    assert not donors.any_may_answer


def test_later_is_believed_within_reason() -> None:
    donors = donors_of(ANNA)
    (request,) = donors.requests(0.0)
    donors.put_off(0.0, request, 1e9)
    assert donors.requests(MAX_REST - 0.1) == []
    assert len(donors.requests(MAX_REST)) == 1
    assert donors.any_may_answer


def test_patience_is_learned_and_grows_while_it_is_not_enough() -> None:
    donors = donors_of(ANNA)
    (first,) = donors.requests(0.0)
    donors.arrived(20.0, first)
    (second,) = donors.requests(20.0)
    assert second.patience > first.patience
    donors.late(20.0, second)
    (third,) = donors.requests(30.0)
    assert third.patience >= second.patience


def test_donors_are_bounded() -> None:
    donors = donors_of(*(PeerId(str(number)) for number in range(2 * MAX_DONORS)))
    assert len(donors.requests(0.0)) <= MAX_DONORS


@pytest.mark.parametrize("seed", range(20))
def test_all_blobs_arrive_once_while_donors_come_and_fail(seed: int) -> None:
    """Whatever donors do, nothing is lost and nothing is asked for twice at a time."""
    print("seed", seed)
    source, donors, now, due, got = (
        random.Random(seed),
        donors_of(ANNA),
        0.0,
        list[tuple[float, Request]](),
        list[Blob](),
    )
    while len(got) < 100:
        if source.random() < 0.05:
            donors.add(PeerId(f"peer {source.randrange(20)}"))
        due += [(now + source.expovariate(2.0), request) for request in donors.requests(now)]
        out = [request.blob for _, request in due]
        assert len(set(out)) == len(out)
        assert sorted([*got, *out, *donors._queue]) == BLOBS
        now += 0.1
        for ripe in [each for each in due if each[0] <= now]:
            due.remove(ripe)
            request, what = ripe[1], source.random()
            if what < 0.8:
                got.append(request.blob)
                donors.arrived(now, request)
            elif what < 0.9:
                donors.late(now, request)
            elif what < 0.98 or request.donor == ANNA:
                donors.put_off(now, request, source.random())
            else:
                donors.drop(request)
        assert now < 10_000
