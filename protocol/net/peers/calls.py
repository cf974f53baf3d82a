"""Remote calls on the control streams: numbered questions and answers, ours to the peer and the peer's to us.

Rules:
- The number of open calls is bounded in both directions; a call beyond it fails at once, here or at the peer.
- A call that can be answered without waiting is answered in the turn of the loop in which it came; only the others get
  a task.
- A late answer, for which nobody waits any more, is ignored.
- A malformed call is answered with a failure, a malformed answer fails its call, and both are reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from shoal.protocol.base.errors import RemoteError, ShoalError, TransportError
from shoal.protocol.base.frames import Frame, Kind
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.wire import NODE_TAGS, Message, decode, encode

MAX_ASKED = 256  # our calls that wait for an answer
MAX_SERVED = 64  # the peer's calls that we work on
MAX_REASON = 1024  # bytes

Serve = Callable[[PeerId, Message], Message | Awaitable[Message]]

log = logging.getLogger(__name__)


class PutFrame(Protocol):
    """Queues a frame to the peer; `lost` is called if it cannot leave, and `sent` when it has been written."""

    def __call__(
        self,
        kind: Kind,
        number: int,
        body: bytes,
        lost: Callable[[TransportError], None] | None = None,
        sent: Callable[[], None] | None = None,
    ) -> None: ...


class Calls:
    """The open calls between us and one peer; `serve(peer, message)` answers the peer's, now or later."""

    def __init__(
        self,
        peer: PeerId,
        put: PutFrame,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        serve: Serve,
    ) -> None:
        self._peer, self._put, self._spawn, self._serve = peer, put, spawn, serve
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._written: set[int] = set()  # those of them whose question is on its way, or at the peer
        self._served = 0
        self._last_number = 0

    async def ask(self, message: Message, timeout: float) -> Message:
        """The peer's answer; RemoteError if it is a failure or malformed, TransportError if none comes in time."""
        if len(self._asked) >= MAX_ASKED:
            raise TransportError(f"{MAX_ASKED} calls to {short(self._peer)} wait for an answer already")
        self._last_number += 1
        number = self._last_number
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Message] = loop.create_future()
        self._asked[number] = answer
        patience = loop.call_later(timeout, self._give_up, answer, timeout)
        try:
            lost, sent = partial(_fail, answer), partial(self._note_written, number)
            self._put(Kind.CALL, number, encode(message), lost, sent)
            return await answer
        finally:
            patience.cancel()
            del self._asked[number]
            self._written.discard(number)

    def _note_written(self, number: int) -> None:
        if number in self._asked:  # else its answer has come already, or nobody waits any more
            self._written.add(number)

    def lose(self, reason: TransportError) -> None:
        """Fail all our calls, as the connection is lost."""
        for answer in self._asked.values():
            _fail(answer, reason)

    def lose_written(self, reason: TransportError) -> None:
        """Fail those calls of which question or answer may be lost with a stream; the others go by the next one."""
        for number in sorted(self._written):
            _fail(self._asked[number], reason)

    def _give_up(self, answer: asyncio.Future[Message], timeout: float) -> None:
        _fail(answer, TransportError(f"no answer from {short(self._peer)} in {timeout:g} s"))

    def receive(self, frame: Frame) -> None:
        """Take in a call, or an answer to one of ours; RemoteError if it is malformed."""
        if frame.kind is Kind.CALL:
            self._receive_call(frame)
        elif frame.call in self._asked:
            self._receive_answer(frame, self._asked[frame.call])

    def _receive_answer(self, frame: Frame, answer: asyncio.Future[Message]) -> None:
        if frame.kind is Kind.BUSY:
            _fail(answer, TransportError(f"{short(self._peer)} is too busy"))
        elif frame.kind is Kind.FAILURE:
            reason = bytes(frame.body[:MAX_REASON]).decode(errors="replace")
            _fail(answer, RemoteError(f"refused our call: {reason}", self._peer))
        else:
            try:
                message = decode(frame.body, self._peer, tags=NODE_TAGS)
            except RemoteError as error:
                _fail(answer, error)
                raise
            if not answer.done():
                answer.set_result(message)

    def _receive_call(self, frame: Frame) -> None:
        if self._served >= MAX_SERVED:
            self._put(Kind.BUSY, frame.call, b"")
            return
        try:
            message = decode(frame.body, self._peer, tags=NODE_TAGS)
        except RemoteError as error:
            self._put(Kind.FAILURE, frame.call, error.reason.encode()[:MAX_REASON])
            raise
        with self._failure_reported(frame.call):
            answer = self._serve(self._peer, message)
            if isinstance(answer, Message):
                self._put(Kind.ANSWER, frame.call, encode(answer))
            else:
                self._served += 1
                self._spawn(self._answer_later(frame.call, answer))

    async def _answer_later(self, number: int, answer: Awaitable[Message]) -> None:
        try:
            with self._failure_reported(number):
                self._put(Kind.ANSWER, number, encode(await answer))
        finally:
            self._served -= 1

    @contextmanager
    def _failure_reported(self, number: int) -> Iterator[None]:
        """Answer with a failure if the block raises, so that the caller does not wait for its timeout."""
        try:
            yield
        except ShoalError as error:
            self._put(Kind.FAILURE, number, str(error).encode()[:MAX_REASON])
        except Exception:  # a bug of ours with one call, which must not end the others
            self._put(Kind.FAILURE, number, b"internal error")
            log.exception("a handler of the network failed")


def _fail(answer: asyncio.Future[Message], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
