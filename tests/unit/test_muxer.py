"""The multiplexer: streams, their windows and ends, what other yamux make of it, and peers that misbehave."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.abc import IMuxedStream
from libp2p.io.exceptions import IOException
from libp2p.peer.id import ID
from libp2p.security.noise import transport as noise
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamEOF, MuxedStreamReset
from libp2p.stream_muxer.yamux.yamux import Yamux

from shoal.protocol import muxer
from shoal.protocol.muxed import FIRST_WINDOW, MOST_WINDOW, MuxedStream
from shoal.protocol.muxer import HEADER, MAX_GROWN, MAX_STREAMS, Flag, Kind, Muxer
from shoal.protocol.session import Noise, Session
from tests.unit.secured_kit import run, secured

MIB = 1 << 20


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Muxer, Muxer]]:
    """Both ends of a connection, at work."""
    async with secured() as ends, trio.open_nursery() as nursery:
        near, far = (Muxer(end, ID(b"peer")) for end in ends)
        for each in (near, far):
            nursery.start_soon(each.start)
            await each.event_started.wait()
        yield near, far
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def against(raw: Callable[[Session, Muxer], Awaitable[None]]) -> AsyncIterator[Muxer]:
    """An end at work whose peer writes frames by hand."""
    async with secured() as (theirs, ours), trio.open_nursery() as nursery:
        end = Muxer(ours, ID(b"peer"))
        nursery.start_soon(end.start)
        await end.event_started.wait()
        await raw(theirs, end)
        yield end
        nursery.cancel_scope.cancel()


async def both(near: Muxer, far: Muxer) -> tuple[MuxedStream, MuxedStream]:
    """A stream, seen from its two ends."""
    return await near.open_stream(), await far.accept_stream()


async def read_all(stream: IMuxedStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += await stream.read(size - len(data))
    return bytes(data)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await trio.sleep(0.001)


def test_streams_side_by_side_keep_their_own_bytes() -> None:
    async def test() -> None:
        async with pair() as (near, far), trio.open_nursery() as nursery:

            async def speak(one: MuxedStream, other: MuxedStream, seed: int) -> None:
                data = random.Random(seed).randbytes(MIB + seed)
                nursery.start_soon(one.write, data)
                assert await read_all(other, len(data)) == data

            for seed in range(3):
                here, there = await both(near, far)
                nursery.start_soon(speak, here, there, seed)
                nursery.start_soon(speak, there, here, seed + 10)

    run(test)


def test_a_writer_waits_for_its_reader_and_for_no_other() -> None:
    async def test() -> None:
        async with pair() as (near, far), trio.open_nursery() as nursery:
            here, there = await both(near, far)
            nursery.start_soon(here.write, bytes(2 * MIB))
            await until(lambda: there.unread == FIRST_WINDOW)
            other_here, other_there = await both(near, far)
            await other_here.write(b"passes by")
            assert await other_there.read() == b"passes by"
            assert far.unread == there.unread == FIRST_WINDOW
            assert len(await read_all(there, 2 * MIB)) == 2 * MIB

    run(test)


def test_a_stream_that_is_used_gets_larger_windows_up_to_a_bound() -> None:
    async def test() -> None:
        async with pair() as (near, far), trio.open_nursery() as nursery:
            streams = [await both(near, far) for _ in range(6)]
            for here, there in streams:
                nursery.start_soon(here.write, bytes(60 * MIB))
                nursery.start_soon(read_all, there, 60 * MIB)
            await until(lambda: streams[0][1].window == MOST_WINDOW or far._grown > MAX_GROWN - MOST_WINDOW)
            assert all(FIRST_WINDOW <= there.window <= MOST_WINDOW for _, there in streams)
            assert far._grown == sum(there.window - FIRST_WINDOW for _, there in streams) <= MAX_GROWN
            for _, there in streams:
                far.forget(there._number)
            assert far._grown == 0, "what is over makes room"
            nursery.cancel_scope.cancel()

    run(test)


def test_one_side_may_end_first() -> None:
    async def test() -> None:
        async with pair() as (near, far):
            here, there = await both(near, far)
            await here.write(b"that is all")
            await here.close()
            assert await there.read() == b"that is all"
            with pytest.raises(MuxedStreamEOF):
                await there.read()
            await there.write(b"understood")
            assert await here.read() == b"understood"
            with pytest.raises(MuxedStreamReset):
                await here.write(b"one more thing")
            await there.close()
            await until(lambda: not near._streams and not far._streams)

    run(test)


def test_a_reset_drops_both_directions_but_not_what_came_before() -> None:
    async def test() -> None:
        async with pair() as (near, far):
            here, there = await both(near, far)
            await here.write(b"before")
            await until(lambda: there.unread)
            await here.reset()
            await until(lambda: not there.is_open)
            assert await there.read() == b"before"
            with pytest.raises(MuxedStreamReset):
                await there.read()
            with pytest.raises(MuxedStreamReset):
                await there.write(b"too late")
            assert not near._streams
            assert not far._streams
            again, _ = await both(near, far)
            assert again.is_open

    run(test)


def test_the_end_of_the_connection_is_the_end_of_its_streams() -> None:
    async def test() -> None:
        async with pair() as (near, far), trio.open_nursery() as nursery:
            here, there = await both(near, far)

            async def is_cut_off() -> None:
                with pytest.raises(MuxedStreamReset):
                    await there.read()

            nursery.start_soon(is_cut_off)
            await near.close()
            await far.event_closed.wait()
            for end in (near, far):
                with pytest.raises(MuxedConnUnavailable):
                    await end.open_stream()
                with pytest.raises(MuxedConnUnavailable):
                    await end.accept_stream()
            assert not here.is_open

    run(test)


@pytest.mark.parametrize("dials", [True, False])
def test_libp2ps_own_yamux_understands_us(dials: bool) -> None:
    async def test() -> None:
        kinds = (Noise, noise.Transport) if dials else (noise.Transport, Noise)
        async with secured(*kinds) as ends, trio.open_nursery() as nursery:
            ours = Muxer(ends[0 if dials else 1], ID(b"them"))
            theirs = Yamux(ends[1 if dials else 0], ID(b"us"), is_initiator=not dials)
            for end in (ours, theirs):
                nursery.start_soon(end.start)
                await end.event_started.wait()

            async def exchange(one: IMuxedStream, other: IMuxedStream) -> None:
                for source, target in ((one, other), (other, one)):
                    async with trio.open_nursery() as both_ways:
                        both_ways.start_soon(source.write, bytes(3 * MIB))
                        assert len(await read_all(target, 3 * MIB)) == 3 * MIB

            for opener, accepter in ((ours, theirs), (theirs, ours)):
                opened = await opener.open_stream()
                accepted = await accepter.accept_stream()
                await exchange(opened, accepted)
                await opened.close()
                with pytest.raises(MuxedStreamEOF):
                    await accepted.read(1)
                await accepted.reset()
            nursery.cancel_scope.cancel()

    run(test)


# -- peers that misbehave -------------------------------------------------------------------------------------


def frame(kind: int, flags: int, number: int, length: int, data: bytes = b"") -> bytes:
    return HEADER.pack(0, kind, flags, number, length) + data


MISBEHAVIOUR = {
    "more than granted": frame(Kind.DATA, Flag.SYN, 1, FIRST_WINDOW, bytes(FIRST_WINDOW)) + frame(0, 0, 1, 1, b"x"),
    "more than granted, before it comes": frame(Kind.WINDOW, Flag.SYN, 1, 0) + frame(0, 0, 1, FIRST_WINDOW + 1),
    "more at once than anybody is granted": frame(Kind.DATA, Flag.SYN, 1, 2**32 - 1),
    "a stream of ours": frame(Kind.WINDOW, Flag.SYN, 2, 0),
    "a stream twice": 2 * frame(Kind.WINDOW, Flag.SYN, 1, 0),
    "another version": b"\x01" + frame(Kind.WINDOW, Flag.SYN, 1, 0)[1:],
    "an unknown kind": frame(9, 0, 1, 0),
    "data after the end": frame(Kind.WINDOW, Flag.SYN | Flag.FIN, 1, 0) + frame(Kind.DATA, 0, 1, 1, b"x"),
}


@pytest.mark.parametrize("what", MISBEHAVIOUR)
def test_who_misbehaves_is_disconnected(what: str) -> None:
    async def test() -> None:
        async with against(lambda theirs, end: theirs.write(MISBEHAVIOUR[what])) as end:
            await end.event_closed.wait()

    run(test)


def test_streams_beyond_the_bound_are_refused_and_the_others_live() -> None:
    async def test() -> None:
        async def open_many(theirs: Session, end: Muxer) -> None:
            for number in range(1, 2 * (MAX_STREAMS + 3), 2):
                await theirs.write(frame(Kind.WINDOW, Flag.SYN, number, 0))
            answers = [HEADER.unpack(await theirs.read(HEADER.size)) for _ in range(MAX_STREAMS + 3)]
            assert [flags for _, _, flags, _, _ in answers] == [Flag.ACK] * MAX_STREAMS + [Flag.RST] * 3
            await theirs.write(frame(Kind.PING, Flag.SYN, 0, 7))
            assert HEADER.unpack(await theirs.read(HEADER.size)) == (0, Kind.PING, Flag.ACK, 0, 7)

        async with against(open_many) as end:
            assert len(end._streams) == MAX_STREAMS

    run(test)


def test_streams_that_are_opened_and_dropped_at_once_do_not_pile_up() -> None:
    async def test() -> None:
        async def open_and_drop(theirs: Session, end: Muxer) -> None:
            await theirs.write(b"".join(frame(1, Flag.SYN, n, 0) + frame(1, Flag.RST, n, 0) for n in range(1, 2001, 2)))
            await theirs.write(frame(Kind.PING, Flag.SYN, 0, 7))
            while HEADER.unpack(await theirs.read(HEADER.size))[1] != Kind.PING:
                pass

        async with against(open_and_drop) as end:
            assert end._opened.statistics().current_buffer_used == MAX_STREAMS
            assert not end._streams

    run(test)


def test_who_asks_and_does_not_read_the_answers_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muxer, "MAX_ANSWERS", 1 << 14)

    async def test() -> None:
        async def ask(theirs: Session, end: Muxer) -> None:
            questions = frame(Kind.PING, Flag.SYN, 0, 1) * 5000
            with trio.move_on_after(10), suppress(IOException):
                while not end.is_closed:
                    await theirs.write(questions)

        async with against(ask) as end:
            assert end.is_closed

    run(test)


def test_words_on_a_stream_that_is_gone_are_passed_over() -> None:
    async def test() -> None:
        async def speak(theirs: Session, end: Muxer) -> None:
            for each in (frame(Kind.DATA, 0, 31, 3, b"abc"), frame(Kind.WINDOW, Flag.RST, 33, 0)):
                await theirs.write(each)
            await theirs.write(frame(Kind.WINDOW, Flag.SYN, 1, 0))
            await end.accept_stream()

        async with against(speak) as end:
            assert not end.is_closed

    run(test)


frames = st.builds(
    lambda kind, flags, number, data, lie: frame(kind, flags, number, len(data) + lie if kind == 0 else lie, data),
    st.integers(0, 4),
    st.integers(0, 15),
    st.integers(0, 6),
    st.binary(max_size=30),
    st.sampled_from([0, 0, 0, 1, 2**31]),
)


@settings(max_examples=40)
@given(st.lists(frames | st.binary(max_size=20), max_size=12).map(b"".join))
def test_whatever_comes_nothing_is_raised_and_little_is_kept(data: bytes) -> None:
    async def test() -> None:
        async with against(lambda theirs, end: theirs.write(data)) as end:
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert end.unread <= len(data)
            assert len(end._streams) <= MAX_STREAMS

    run(test)
