"""A secured connection: bytes in order, sessions with libp2p's own Noise, and what ends it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.security.noise import transport as noise
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH

from shoal.protocol.net.libp2p.session import LINE, Noise, Session
from tests.unit.secured_kit import run, secured


@asynccontextmanager
async def writing() -> AsyncIterator[tuple[Session, Session]]:
    """Both ends, of which the first has a task that writes."""
    async with secured() as (near, far), trio.open_nursery() as nursery:
        near.hand_over(LINE)
        nursery.start_soon(near.write_queued)
        yield near, far
        nursery.cancel_scope.cancel()


async def read_on(session: Session, data: bytearray) -> None:
    while True:
        data += await session.read()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await trio.sleep(0.001)


SIZES = [1, 12, 4096, MAX_PLAINTEXT_LENGTH, MAX_PLAINTEXT_LENGTH + 1, 1 << 20]


async def read_all(session: Session, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += await session.read(min(size - len(data), 16_001))
    return bytes(data)


@pytest.mark.parametrize("ours", [(Noise, Noise), (Noise, noise.Transport), (noise.Transport, Noise)])
def test_bytes_come_as_they_were_written_and_other_sessions_understand_them(ours: tuple[type, type]) -> None:
    async def test() -> None:
        pieces = [random.Random(size).randbytes(size) for size in SIZES]
        whole = b"".join(pieces)
        async with secured(*ours) as ends, trio.open_nursery() as nursery:

            async def write(session: Session) -> None:
                for piece in pieces:
                    await session.write(piece)

            async def read(session: Session) -> None:
                assert await read_all(session, len(whole)) == whole

            for end in ends:
                nursery.start_soon(write, end)
                nursery.start_soon(read, end)

    run(test)


def test_writers_side_by_side_do_not_mix_their_bytes() -> None:
    async def test() -> None:
        async with writing() as (near, far), trio.open_nursery() as nursery:

            async def write(letter: bytes) -> None:
                for _ in range(20):
                    await near.write(letter * 10_000)

            for letter in (b"a", b"b", b"c"):
                nursery.start_soon(write, letter)
            data = await read_all(far, 600_000)
            runs = {data[at : at + 10_000] for at in range(0, len(data), 10_000)}
            assert runs == {letter * 10_000 for letter in (b"a", b"b", b"c")}

    run(test)


def test_what_is_queued_is_written_without_waiting() -> None:
    async def test() -> None:
        async with writing() as (near, far):
            assert near.write_soon(b"hello") == 5
            assert near.write_soon(b", world") == 12
            assert await far.read(12) == b"hello, world"
            assert near.write_soon(b"!") == 1, "what has left does not count"

    run(test)


def test_who_gives_up_waiting_takes_nothing_back_and_harms_nobody() -> None:
    async def test() -> None:
        async with writing() as (near, far), trio.open_nursery() as nursery:
            large = random.Random(1).randbytes(32 << 20)
            for _ in range(3):
                with trio.move_on_after(0.05) as scope:
                    await near.write(large)
                assert scope.cancelled_caught
            nursery.start_soon(near.write, b"x")
            assert await read_all(far, 3 * len(large) + 1) == 3 * large + b"x"

    run(test)


@pytest.mark.parametrize("size", [LINE + 1, 2**40])
def test_a_stranger_that_announces_much_is_not_listened_to(size: int) -> None:
    """libp2p asks for as many bytes as a varint says, and would hold all that comes until they are there."""

    async def test() -> None:
        async with secured() as (near, far):
            await near.write(bytes(LINE))
            with pytest.raises(ConnectionClosedError, match="announces"):
                await far.read(size)
            assert len(await far.read(LINE)) == LINE
            far.hand_over(2 * LINE)
            await near.write(bytes(2 * LINE))
            assert len(await far.read(2 * LINE)) == 2 * LINE

    run(test)


def test_what_came_and_was_not_read_is_counted() -> None:
    async def test() -> None:
        async with secured() as (near, far):
            await near.write(b"x" * 1000)
            assert len(await far.read(1)) == 1
            assert far.held == 999

    run(test)


def test_a_forged_message_ends_it() -> None:
    async def test() -> None:
        async with secured() as (near, far):
            await near.write(b"x" * 10)
            assert await far.read(10) == b"x" * 10
            await near._socket.write(bytearray(b"\x00\x20" + bytes(32)))
            with pytest.raises(ConnectionClosedError, match="forged"):
                await far.read(1)

    run(test)


def test_a_write_that_was_cancelled_halfway_is_the_last() -> None:
    """Before there is a writer, half of a message may be on its way: what followed would not be understood."""

    async def test() -> None:
        async with secured() as (near, _far):
            with trio.move_on_after(0.1) as scope:
                await near.write(bytes(64 << 20))
            assert scope.cancelled_caught
            with pytest.raises(ConnectionClosedError):
                await near.write(b"x")

    run(test)


def test_a_writer_that_ends_is_the_end_of_all_writing() -> None:
    async def test() -> None:
        async with secured() as (near, _far), trio.open_nursery() as nursery:
            waiting, writer = 0, trio.CancelScope()

            async def write_queued() -> None:
                with writer:
                    await near.write_queued()

            near.hand_over(LINE)
            nursery.start_soon(write_queued)

            async def write() -> None:
                nonlocal waiting
                waiting += 1
                with pytest.raises(ConnectionClosedError):
                    await near.write(bytes(64 << 20))
                waiting -= 1

            async with trio.open_nursery() as writers:
                for _ in range(3):
                    writers.start_soon(write)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert waiting == 3
                writer.cancel()
            assert waiting == 0
            with pytest.raises(ConnectionClosedError):
                await near.write(b"x")

    run(test)


def test_the_end_of_the_connection_is_said() -> None:
    async def test() -> None:
        async with secured() as (near, far):
            await near.write(b"last")
            await near.close()
            assert await far.read(4) == b"last"
            with pytest.raises(ConnectionClosedError):
                await far.read(1)

    run(test)


# -- from another thread --------------------------------------------------------------------------------------


def test_what_is_written_from_another_thread_does_not_mix_with_the_rest() -> None:
    async def test() -> None:
        async with writing() as (near, far), trio.open_nursery() as nursery:

            def write_from_there() -> int:
                return sum(near.write_now((letter * 500, letter * 500)) for letter in (b"c", b"d") * 200)

            async def write(letter: bytes) -> None:
                for _ in range(200):
                    await near.write(letter * 1000)

            async def write_there() -> None:
                taken.append(await trio.to_thread.run_sync(write_from_there))

            taken = list[int]()
            async with trio.open_nursery() as writers:
                nursery.start_soon(read_on, far, data := bytearray())
                for letter in (b"a", b"b"):
                    writers.start_soon(write, letter)
                writers.start_soon(write_there)
            await until(lambda: len(data) == 1000 * (400 + taken[0]))
            assert all(data[at : at + 1000] == data[at : at + 1] * 1000 for at in range(0, len(data), 1000))
            nursery.cancel_scope.cancel()

    run(test)


def test_what_the_socket_does_not_take_at_once_follows_and_until_then_nothing_else_is_taken() -> None:
    async def test() -> None:
        async with writing() as (near, far), trio.open_nursery() as nursery:
            sent = bytearray()
            for number in range(10_000):
                piece = bytes([number % 251]) * 60_000
                if not near.write_now((piece,)):
                    break
                sent += piece
            assert sent, "the socket has room for something"
            assert not near.write_now((b"more",))
            nursery.start_soon(read_on, far, data := bytearray())
            await until(lambda: len(data) == len(sent))
            assert data == sent
            await until(lambda: near.write_now((b"more",)))
            await until(lambda: data.endswith(b"more"))
            nursery.cancel_scope.cancel()

    run(test)


def test_nothing_is_taken_at_once_before_or_after_its_time() -> None:
    async def test() -> None:
        async with secured() as (near, _):
            assert not near.write_now((b"there is no task yet that could write the rest",))
            near.hand_over(LINE)
            assert near.write_now((b"now",))
            with near._write_lock:
                assert not near.write_now((b"others are at it",))
            await near.close()
            assert not near.write_now((b"its number may be another socket's",))

    run(test)
