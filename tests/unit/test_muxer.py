"""The multiplexer: streams, their windows and ends, other implementations of yamux, and peers that misbehave."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.abc import IMuxedStream
from libp2p.io.exceptions import IOException
from libp2p.peer.id import ID
from libp2p.security.noise import transport as noise
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.yamux.yamux import Yamux

from shoal.protocol.net.libp2p import muxer
from shoal.protocol.net.libp2p.muxer import (
    FIRST_WINDOW,
    FRAME,
    HEADER,
    MAX_STREAMS,
    MOST_WINDOW,
    Flag,
    Kind,
    MuxedStream,
    Muxer,
)
from shoal.protocol.net.libp2p.session import LINE, Noise, Session
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
        data += await stream.read(min(size - len(data), LINE))
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
            here, there = await both(near, far)
            nursery.start_soon(here.write, bytes(100 * MIB))
            await read_all(there, 100 * MIB)
            assert there.window == MOST_WINDOW
            assert far._grown == MOST_WINDOW - FIRST_WINDOW
            await here.close()
            await there.close()
            await until(lambda: not far._grown)  # what is over makes room

    run(test)


def test_the_windows_of_one_connection_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muxer, "MAX_GROWN", 4 * FIRST_WINDOW)

    async def test() -> None:
        async with pair() as (near, far), trio.open_nursery() as nursery:
            streams = [await both(near, far) for _ in range(3)]
            async with trio.open_nursery() as readers:
                for here, there in streams:
                    nursery.start_soon(here.write, bytes(10 * MIB))
                    readers.start_soon(read_all, there, 10 * MIB)
            windows = sorted(there.window // FIRST_WINDOW for _, there in streams)
            assert windows in ([1, 1, 4], [1, 2, 4], [2, 2, 2]), "3 more for one and 1 for another, or 1 for each"
            assert far._grown == (sum(windows) - 3) * FIRST_WINDOW <= 4 * FIRST_WINDOW

    run(test)


def test_a_short_write_is_taken_at_once_within_the_window_and_by_an_open_stream_only() -> None:
    async def test() -> None:
        async with pair() as (near, far):
            here, there = await both(near, far)
            whole, rest = divmod(FIRST_WINDOW, FRAME)
            for number in range(whole):
                await until(lambda: here.write_now(bytes(FRAME)))  # the task that writes may be at it
                await until(lambda: there.unread == (number + 1) * FRAME)  # noqa: B023  # it is waited for here
            assert not here.write_now(bytes(rest + 1))
            await until(lambda: here.write_now(bytes(rest)))
            assert len(await read_all(there, FIRST_WINDOW)) == FIRST_WINDOW
            await until(lambda: here.write_now(b"granted anew"))
            assert not here.write_now(bytes(FRAME + 1)), "a frame is not cut"
            await there.reset()
            await until(lambda: not here.is_open)
            assert not here.write_now(b"too late")

    run(test)


def test_nothing_is_taken_at_once_when_the_connection_is_lost() -> None:
    async def test() -> None:
        async with pair() as (near, far):
            here, _ = await both(near, far)
            await near.secured_conn.close()
            assert here.is_open, "it has not been told yet"
            assert not here.write_now(b"lost")
            with pytest.raises((MuxedStreamReset, IOException)):
                await here.write(b"lost")

    run(test)


def test_what_comes_is_handed_to_the_reader_at_once_behind_what_it_has_not_taken() -> None:
    async def test() -> None:
        async with pair() as (near, far):
            here, there = await both(near, far)
            came = list[bytes]()
            await here.write(b"before")
            await until(lambda: there.unread)

            def hand_on(data: bytes) -> bool:
                came.append(data)
                return True

            there.hand_on = hand_on
            await here.write(b", behind")
            await until(lambda: there.unread == 14)
            assert await there.take(20) == b"before, behind"
            for _ in range(4):
                await here.write(bytes(FIRST_WINDOW // 2))  # what is handed on is granted anew
            await until(lambda: sum(map(len, came)) == 2 * FIRST_WINDOW)
            assert there.unread == 0

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
            with trio.move_on_after(0) as patience:
                await here.wait_over()
            assert patience.cancelled_caught, "the peer has not ended it"
            await there.close()
            await here.wait_over()
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


async def fill(near: Muxer, nursery: trio.Nursery) -> MuxedStream:
    """The socket, whose other end is not read; the stream whose write waits for it."""
    stream = await near.open_stream()
    stream.granted(64 * MIB)

    async def write() -> None:
        with pytest.raises((MuxedStreamReset, IOException)):
            await stream.write(bytes(64 * MIB))

    nursery.start_soon(write)
    await trio.testing.wait_all_tasks_blocked(0.1)
    return stream


def test_nobody_waits_for_a_peer_that_takes_nothing_but_who_sends_data() -> None:
    async def test() -> None:
        async with secured() as (ours, _theirs), trio.open_nursery() as nursery:
            near = Muxer(ours, ID(b"peer"))
            nursery.start_soon(near.start)
            await near.event_started.wait()
            stuck = await fill(near, nursery)
            with trio.fail_after(1):
                other = await near.open_stream()
                other.arrived(b"x" * FIRST_WINDOW)
                assert len(await other.take(FIRST_WINDOW)) == FIRST_WINDOW  # and grants anew
                await other.close()
                await stuck.reset()
            assert near._streams == {other._number: other}, "the peer may go on with the one that we closed"
            await near.close()

    run(test)


def test_closing_ends_and_says_so_even_if_the_peer_takes_nothing_and_who_closes_gives_up() -> None:
    async def test() -> None:
        async with secured() as (ours, _theirs), trio.open_nursery() as nursery:
            near, told = Muxer(ours, ID(b"peer")), list[str]()

            async def on_close() -> None:
                await trio.sleep(0.01)
                told.append("closed")

            near.on_close = on_close
            nursery.start_soon(near.start)
            await near.event_started.wait()
            await fill(near, nursery)
            with trio.fail_after(1), trio.move_on_after(0.01):
                await near.close()
            assert near.is_closed
            assert told == ["closed"]

    run(test)


def test_who_closes_says_good_bye() -> None:
    async def test() -> None:
        async with secured() as (ours, theirs), trio.open_nursery() as nursery:
            near = Muxer(ours, ID(b"peer"))
            nursery.start_soon(near.start)
            await near.event_started.wait()
            await near.close()
            assert await theirs.read(HEADER.size) == frame(Kind.GO_AWAY, 0, 0, 0)

    run(test)


def test_what_a_reset_left_unread_is_counted_until_it_is_read_or_given_up() -> None:
    async def test() -> None:
        async with pair() as (near, far):
            streams = [await both(near, far) for _ in range(3)]
            for here, _ in streams:
                await here.write(bytes(1000))
                await here.reset()
            await until(lambda: all(there._was_reset for _, there in streams))
            assert far.unread == 3000
            assert len(await streams[0][1].take(1000)) == 1000
            await streams[1][1].reset()
            assert far.unread == 1000
            assert list(far._streams.values()) == [streams[2][1]]

    run(test)


def test_the_negotiation_of_a_stream_reads_no_more_than_a_line() -> None:
    """libp2p asks for as many bytes as a varint says."""

    async def test() -> None:
        async with pair() as (near, far):
            _, there = await both(near, far)
            with pytest.raises(MuxedStreamError, match="announces"):
                await there.read(2**40)

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
    "more at once than a new stream is granted": frame(Kind.DATA, Flag.SYN, 1, FIRST_WINDOW + 1),
    "a stream of ours": frame(Kind.WINDOW, Flag.SYN, 2, 0),
    "the stream that is none": frame(Kind.WINDOW, Flag.SYN, 0, 0),
    "good-bye": frame(Kind.GO_AWAY, 0, 0, 0),
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


def test_the_answer_to_a_ping_is_not_answered() -> None:
    async def test() -> None:
        async def ping(theirs: Session, end: Muxer) -> None:
            await theirs.write(frame(Kind.PING, Flag.ACK, 0, 1) + frame(Kind.PING, Flag.SYN, 0, 2))
            assert await theirs.read(HEADER.size) == frame(Kind.PING, Flag.ACK, 0, 2)

        async with against(ping):
            pass

    run(test)


def test_a_grant_may_come_with_a_flag() -> None:
    async def test() -> None:
        async def grant(theirs: Session, end: Muxer) -> None:
            await theirs.write(frame(Kind.WINDOW, Flag.SYN, 1, 10 * MIB))
            stream = await end.accept_stream()
            await until(lambda: stream._may_send == FIRST_WINDOW + 10 * MIB)

        async with against(grant):
            pass

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
