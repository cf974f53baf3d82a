"""The backlog: order, bounds, and who waits there."""

from __future__ import annotations

from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.backlog import Backlog, QueuedPayload
from tests.unit.bulk.kit import in_thread, until


def queued(size: int = 1, flow: Flow = Flow.GATHER) -> QueuedPayload:
    return QueuedPayload(flow, size, lambda: (b"", b"", b""), lambda size: None, lambda reason: None)


def test_first_in_first_out_and_what_comes_back_is_next() -> None:
    backlog, made = Backlog(100), [queued() for _ in range(4)]
    assert all(backlog.put(each) for each in made)
    first, second = backlog.take_now(Flow.GATHER), backlog.take_now(Flow.GATHER)
    assert [first, second] == made[:2]
    backlog.put_back([made[0], made[1]])
    assert [backlog.take_now(Flow.GATHER) for _ in range(5)] == [*made, None]


def test_contributions_go_before_means_and_means_go_where_no_contribution_may() -> None:
    backlog = Backlog(100)
    means = [queued(), queued()]
    contributions = [queued(flow=Flow.SCATTER), queued(flow=Flow.SCATTER)]
    for each in (means[0], contributions[0], means[1], contributions[1]):
        backlog.put(each)
    assert backlog.take(lambda: [Flow.GATHER]) is means[0]
    backlog.put_back([means[0]])
    assert [backlog.take(lambda: list(Flow)) for _ in range(4)] == [*contributions, *means]


def test_who_may_take_means_only_is_no_obstacle_to_who_may_take_all() -> None:
    backlog, taken = Backlog(100), list[QueuedPayload | None]()
    flows: list[list[Flow] | None] = [[Flow.GATHER]]
    limited = in_thread(lambda: backlog.take(lambda: flows[0]))
    free = in_thread(lambda: taken.append(backlog.take(lambda: list(Flow))))
    one = queued(flow=Flow.SCATTER)
    backlog.put(one)
    free.join(20)
    assert taken == [one]
    flows[0] = []
    backlog.wake()
    limited.join(0.1)
    assert limited.is_alive(), "it waits"
    flows[0] = None
    backlog.wake()
    limited.join(20)
    assert not limited.is_alive()


def test_what_is_queued_is_bounded_in_bytes() -> None:
    backlog = Backlog(10)
    assert backlog.put(queued(6))
    assert not backlog.put(queued(5))
    assert backlog.put(queued(4))
    assert backlog.put(queued(0)), "what is made in its turn holds nothing"
    taken = backlog.take_now(Flow.GATHER)
    assert taken is not None
    assert backlog.put(queued(6))
    backlog.put_back([taken])
    assert len(backlog) == 4, "for what comes back there is always room"
    assert not backlog.put(queued(1))


def test_clear_gives_all_that_waited_and_makes_room() -> None:
    backlog, made = Backlog(2), [queued(), queued()]
    for each in made:
        backlog.put(each)
    assert backlog.clear() == made
    assert len(backlog) == 0
    assert backlog.put(queued(2))


def test_each_parcel_goes_to_one_of_those_who_wait() -> None:
    backlog, taken = Backlog(100), list[QueuedPayload | None]()
    threads = [in_thread(lambda: taken.append(backlog.take(lambda: list(Flow)))) for _ in range(3)]
    made = [queued() for _ in range(3)]
    backlog.put(made[0])
    backlog.put_back(made[1:])
    for thread in threads:
        thread.join(20)
    assert {id(each) for each in taken} == {id(each) for each in made}


def test_who_waits_goes_away_when_nothing_is_wanted_any_more() -> None:
    backlog, wanted, taken = Backlog(100), [True], list[QueuedPayload | None]()
    thread = in_thread(lambda: taken.append(backlog.take(lambda: list(Flow) if wanted[0] else None)))
    wanted[0] = False
    backlog.wake()
    thread.join(20)
    assert taken == [None]
    backlog.put(queued())
    assert backlog.take(lambda: None) is None, "what is there is not taken either"
    until(lambda: len(backlog) == 1, "it to stay")


def test_who_has_nothing_to_take_says_that_it_rests_before_it_waits() -> None:
    backlog, rests, taken = Backlog(100), list[int](), list[QueuedPayload | None]()
    backlog.put(first := queued())
    assert backlog.take(lambda: list(Flow), lambda: rests.append(1)) is first
    assert not rests
    thread = in_thread(lambda: taken.append(backlog.take(lambda: list(Flow), lambda: rests.append(1))))
    until(lambda: rests, "it to rest")
    backlog.put(second := queued())
    thread.join(20)
    assert taken == [second]
