"""A process's connection to its node, over the proxy's socket, for questions to peers and from them.

It is opened on first use, and again after the node was gone. It remembers which peers the node has connected with for
this process, until the node reports that a connection is lost. All of it belongs to one asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from shoal.node.base.pools import LONG
from shoal.node.experts.questions import (
    Answer,
    Asked,
    Dial,
    Failure,
    Lost,
    Meet,
    Met,
    Offer,
    error_of,
    failure,
    receive,
    send,
)
from shoal.protocol.base.errors import RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import NODE_TAGS, Message, decode, encode
from shoal.protocol.net.system.tasks import Tasks

SLACK = 2.0  # seconds beyond a call's limit in which the node may report that there was no answer

log = logging.getLogger("shoal.experts")


@dataclass(frozen=True, slots=True)
class _OpenQuestion:
    peer: PeerId
    answer: asyncio.Future[bytes]


class NodeAway(TransportError):
    """This machine's own node cannot be reached; no peer is to blame."""


class PeerCalls(Protocol):
    """Calls to peers; see NodeConnection."""

    def is_met(self, peer: PeerId) -> bool: ...

    async def meet(self, peer: PeerId, limit: float) -> None: ...

    async def call(self, peer: PeerId, message: Message, limit: float) -> Message: ...


class NodeConnection:
    """`where` returns the socket's path; it runs in a thread, as it may ask the node."""

    def __init__(
        self,
        where: Callable[[], str],
        on_asked: Callable[[PeerId, bytes], Awaitable[bytes]] | None = None,
        on_lost: Callable[[PeerId], None] = lambda peer: None,
    ) -> None:
        self._where, self._on_asked, self._on_lost = where, on_asked, on_lost
        self._writer: asyncio.StreamWriter | None = None
        self._connecting = asyncio.Lock()
        self._open: dict[int, _OpenQuestion] = {}
        self._last = 0
        self._met: set[PeerId] = set()
        self._tasks = Tasks(lambda error: log.error("the connection to the node failed", exc_info=error))
        self.gone = asyncio.Event()  # set when the node is gone

    def is_met(self, peer: PeerId) -> bool:
        """Whether our node has a connection with a peer, as far as is known here."""
        return peer in self._met

    async def meet(self, peer: PeerId, limit: float) -> None:
        """Have our node connect with a peer within `limit` seconds; otherwise TransportError, or NodeAway."""
        if peer not in self._met:
            await self._ask(peer, limit, lambda number: Meet(number, peer, _milliseconds(limit)))

    async def call(self, peer: PeerId, message: Message, limit: float) -> Message:
        """A peer's answer within `limit` seconds; otherwise RemoteError or TransportError, or NodeAway."""
        body = encode(message)
        said = await self._ask(peer, limit, lambda number: Dial(number, peer, _milliseconds(limit), body))
        return decode(said, peer, tags=NODE_TAGS)

    async def offer(self, offer: Offer) -> None:
        """Tell the node for which files this process answers."""
        await self.connect()
        assert self._writer is not None
        send(self._writer, offer)

    async def connect(self) -> None:
        """Connect with the node, unless that is done; TransportError if there is no node."""
        async with self._connecting:
            if self._writer is not None and not self._writer.is_closing():
                return
            path = await LONG.run(self._where)
            try:
                reader, self._writer = await asyncio.open_unix_connection(path)
            except OSError as error:
                raise TransportError(f"there is no node at {path}: {error.strerror}") from error
            self.gone.clear()
            self._tasks.spawn(self._read(reader, self._writer))

    async def close(self) -> None:
        """Close the connection."""
        await self._tasks.close()
        if self._writer is not None:
            self._writer.close()

    async def _ask(self, peer: PeerId, limit: float, ask: Callable[[int], Message]) -> bytes:
        """The node's answer to a message, which `ask` makes for a number."""
        try:
            async with asyncio.timeout(limit):
                await self.connect()
        except (TimeoutError, ShoalError) as error:
            words = str(error) or f"it has said nothing for {limit:.1f} s"
            raise NodeAway(f"this machine's node is away: {words}") from error
        assert self._writer is not None
        self._last += 1
        number = self._last
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[number] = _OpenQuestion(peer, answer)
        try:
            send(self._writer, ask(number))
            async with asyncio.timeout(limit + SLACK):
                return await answer
        except TimeoutError as error:
            raise NodeAway(f"this machine's node has said nothing for {limit + SLACK:.1f} s") from error
        finally:
            del self._open[number]

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._take(writer, await receive(reader))
        finally:
            writer.close()
            self._met.clear()
            self.gone.set()
            for each in self._open.values():
                if not each.answer.done():
                    each.answer.set_exception(NodeAway("this machine's node is gone"))

    def _take(self, writer: asyncio.StreamWriter, message: Message) -> None:
        if isinstance(message, Asked):
            self._tasks.spawn(self._answer(writer, message))
        elif isinstance(message, Lost):
            self._met.discard(message.peer)
            self._on_lost(message.peer)
        elif isinstance(message, Answer | Met | Failure) and (found := self._open.get(message.number)):
            self._settle(found, message)

    def _settle(self, found: _OpenQuestion, message: Answer | Met | Failure) -> None:
        if isinstance(message, Met):
            self._met.add(found.peer)
        if found.answer.done():
            return
        if isinstance(message, Failure):
            found.answer.set_exception(error_of(message, found.peer))
        else:
            found.answer.set_result(message.body if isinstance(message, Answer) else b"")

    async def _answer(self, writer: asyncio.StreamWriter, asked: Asked) -> None:
        try:
            if self._on_asked is None:
                raise RemoteError("asks who does not answer", asked.peer)
            body = await self._on_asked(asked.peer, asked.body)
        except Exception as error:
            if not isinstance(error, RemoteError):
                log.exception("a question of %s was not answered", asked.peer)
            send(writer, failure(asked.number, error))
        else:
            send(writer, Answer(asked.number, body))


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))
