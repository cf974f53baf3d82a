"""A secured connection: bytes in order, other libp2p's sessions, and what ends it."""

from __future__ import annotations

import random

import pytest
import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.security.noise import transport as noise
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH

from shoal.protocol.session import Noise, Session
from tests.unit.secured_kit import run, secured

SIZES = [1, 12, 4096, MAX_PLAINTEXT_LENGTH, MAX_PLAINTEXT_LENGTH + 1, 1 << 20]


async def read_all(session: Session, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await session.read(min(size - len(data), 70_001))
    return data


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
        async with secured() as (near, far), trio.open_nursery() as nursery:

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
        async with secured() as (near, far), trio.open_nursery() as nursery:
            assert near.write_soon(b"hello") == 5
            nursery.start_soon(near.write_queued)
            assert await far.read(5) == b"hello"
            nursery.cancel_scope.cancel()

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
    """Half of a message may be on its way: what followed would not be understood."""

    async def test() -> None:
        async with secured() as (near, _far):
            with trio.move_on_after(0.1) as scope:
                await near.write(bytes(64 << 20))
            assert scope.cancelled_caught
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
