"""Posts: from threads to the loop, in order, and never at the cost of everything else there."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest

from shoal.protocol.net.bulk.posts import TURN, Posts
from tests.unit.bulk.kit import in_thread

COUNT = 500


def post_all(posts: Posts, called: list[int]) -> None:
    for number in range(COUNT):
        posts.post(called.append, number)


async def turns_until(condition: list[int], count: int) -> int:
    """How many turns of its own a task gets until there are so many."""
    turns = 0
    async with asyncio.timeout(20):
        while len(condition) < count:
            turns += 1
            await asyncio.sleep(0)
    return turns


@pytest.mark.asyncio
async def test_calls_come_in_their_order_and_in_the_loop() -> None:
    posts, called = Posts(), list[int]()
    thread = in_thread(lambda: post_all(posts, called))
    await turns_until(called, COUNT)
    thread.join()
    assert called == list(range(COUNT))


@pytest.mark.asyncio
async def test_calls_of_many_threads_all_come() -> None:
    posts, called = Posts(), list[int]()
    for _ in range(8):
        in_thread(lambda: post_all(posts, called))
    await turns_until(called, 8 * COUNT)
    assert sorted(called) == sorted(8 * list(range(COUNT)))


@pytest.mark.asyncio
async def test_a_long_turn_is_cut() -> None:
    posts, called = Posts(), list[int]()

    def work(number: int) -> None:
        time.sleep(TURN / 2)
        called.append(number)

    for number in range(20):
        posts.post(work, number)
    assert await turns_until(called, 20) >= 5


@pytest.mark.asyncio
async def test_a_turn_is_cut_also_while_more_is_posted() -> None:
    posts, called = Posts(), list[int]()

    def work(number: int) -> None:
        time.sleep(TURN / 2)
        called.append(number)
        if number < 40:
            posts.post(work, number + 1)

    posts.post(work, 1)
    posts.post(work, 21)
    assert await turns_until(called, 60) >= 10


@pytest.mark.asyncio
async def test_a_call_that_fails_costs_no_other_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    posts, called = Posts(), list[int]()
    posts.post([].pop)
    posts.post(called.append, 1)
    await turns_until(called, 1)
    assert "a call from a thread has failed" in caplog.text


@pytest.mark.asyncio
async def test_nothing_of_a_call_is_kept() -> None:
    class Payload:
        pass

    posts, called, payload = Posts(), list[int](), Payload()
    is_alive = weakref.ref(payload)
    posts.post(lambda payload: None, payload)
    del payload
    posts.post(called.append, 1)
    await turns_until(called, 1)
    gc.collect()
    assert is_alive() is None


def test_to_post_after_the_loop_has_closed_is_no_error() -> None:
    async def made() -> Posts:
        return Posts()

    posts = asyncio.run(made())
    posts.post(print, "never")
