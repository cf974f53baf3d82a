"""The daemon's proxy, which passes questions about experts between processes of this machine and peers.

    a peer's AskExpert  ->  the process here that answers for the file
    a process's Meet    ->  a connection with the peer's node, by any path, unless there is one
    a process's Dial    ->  the peer's node, or a process here if the peer is this node itself

Rules:
- Only the user can open the socket; a process that has may ask, and may offer to answer. A process that sends an
  invalid message is disconnected.
- At most PER_PEER questions of one peer are passed on at a time, and IN_ALL of all peers; further ones are told to come
  later. The answering process decides how much room a peer gets in a model
  (node/inference/remote/answering/sharing.py).
- A process that has stopped reading is asked nothing more until it reads again.
- A peer gets the process's answer unchanged, if it is an answer to that question. The daemon reads no numbers in it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from shoal.node.base.logs import warn
from shoal.node.experts.questions import (
    LATER,
    Answer,
    Asked,
    Dial,
    Failure,
    Lost,
    Meet,
    Met,
    Offer,
    check_size,
    error_of,
    failure,
    receive,
    send,
)
from shoal.node.ipc.private_socket import PrivateSocket
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import MAX_STRING, NODE_TAGS, Message, decode, encode
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.experts import AskExpert, ExpertSays
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.tasks import Tasks

NAME = "experts.sock"
LISTENING = 5.0  # seconds in which a healthy disk has made the socket
PER_PEER, IN_ALL = 32, 512  # questions that are passed on at a time
PATIENCE = 60.0  # seconds that a process may take for an answer
UNREAD = 4 << 20  # unread bytes after which a process is asked nothing more

log = logging.getLogger("shoal.experts")


class LocalProcess:
    """A connected process."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.files: tuple[Digest, ...] = ()
        self.asked: dict[int, tuple[PeerId, asyncio.Future[bytes]]] = {}
        self._last = 0

    @property
    def takes(self) -> bool:
        """Whether it reads what is sent to it."""
        return self.writer.transport.get_write_buffer_size() <= UNREAD

    async def ask(self, peer: PeerId, body: bytes) -> bytes:
        """The process's answer to a peer; TransportError if it is gone, does not read, or takes too long."""
        if not self.takes:
            raise TransportError("the process that answers for the expert has stopped taking questions")
        self._last += 1
        number = self._last
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.asked[number] = peer, answer
        try:
            send(self.writer, Asked(number, peer, body))
            async with asyncio.timeout(PATIENCE):
                return await answer
        except TimeoutError as error:
            raise TransportError(f"the expert has given no answer in {PATIENCE:g} s") from error
        finally:
            del self.asked[number]

    def lose(self) -> None:
        """The process is gone."""
        for _, answer in self.asked.values():
            if not answer.done():
                answer.set_exception(TransportError("the process that answers for the expert is gone"))


class ExpertProxy:
    """One per node; its socket is in `folder`."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        on_offer: Callable[[], None] = lambda: None,
        on_use: Callable[[PeerId], object] = lambda peer: None,
    ) -> None:
        """`on_offer` is called when the answered files change, `on_use` when a peer asks us, or is asked."""
        self._on_offer, self._on_use = on_offer, on_use
        self._network, self._folder = network, folder
        self._processes: list[LocalProcess] = []
        self._open: Counter[PeerId] = Counter()
        self._listening: PrivateSocket | None = None
        self._tasks = Tasks(lambda error: log.error("a question was lost", exc_info=error))

    async def start(self) -> None:
        """Listen on the socket. If that fails it is tried again in the background, and the node runs without it."""
        with suppress(OSError, TimeoutError):  # _accept tries again, and logs why it fails
            async with asyncio.timeout(LISTENING):
                self._listening = await PrivateSocket.made(self._folder / NAME)
        self._tasks.spawn(self._accept())

    async def close(self) -> None:
        """Close all connections, and the socket."""
        await self._tasks.close()
        if self._listening is not None:
            await self._listening.end()

    @property
    def path(self) -> str:
        """Where processes of this machine connect; empty before `start`."""
        return str(self._listening.path) if self._listening is not None else ""

    def answers(self, file: Digest) -> bool:
        """Whether a process here answers for an expert's file."""
        return self._process_of(file) is not None

    def link(self, peer: PeerId, up: bool) -> None:
        """A peer has connected, or its last connection is gone."""
        if not up:
            for process in self._processes:
                if process.takes:
                    send(process.writer, Lost(peer))

    async def on_call(self, peer: PeerId, question: AskExpert) -> Message:
        """Our answer to a peer; RemoteError if the question is not allowed."""
        self._on_use(peer)
        check_size(peer, question)
        process = self._process_of(question.file)
        if process is None:
            return Refused("nobody here answers for that expert")
        if self._open[peer] >= PER_PEER or self._open.total() >= IN_ALL:
            return Later(LATER)
        self._open[peer] += 1
        try:
            answer = decode(await process.ask(peer, encode(question)), tags=NODE_TAGS)
        except (TransportError, LocalError) as error:  # our side's failure: the question was valid
            return Refused(str(error)[:MAX_STRING])
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]
        if not isinstance(answer, ExpertSays | Later | Refused):
            return Refused("the process that answers for the expert talks nonsense")
        return answer

    def _process_of(self, file: Digest) -> LocalProcess | None:
        return next((process for process in self._processes if file in process.files), None)

    # -- a process --------------------------------------------------------------------------------------------

    async def _accept(self) -> None:
        try:
            self._listening = self._listening or await PrivateSocket.listening(self._folder / NAME)
        except OSError as error:
            words = f"no socket can be made in {self._folder}: {error.strerror or error}"
            return warn(log, "no-switchboard", f"experts cannot be asked for, nor answer, by this node: {words}")
        async for connection in self._listening.connections():
            self._tasks.spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        process = LocalProcess(writer)
        self._processes.append(process)
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._take(process, await receive(reader))
        except RemoteError as error:
            warn(log, "bad-process", f"a process at {self.path} is hung up on: {error}")
        finally:
            self._processes.remove(process)
            process.lose()
            writer.close()
            if process.files:
                self._on_offer()

    def _take(self, process: LocalProcess, message: Message) -> None:
        if isinstance(message, Offer):
            process.files = message.files
            self._on_offer()
        elif isinstance(message, Dial):
            self._tasks.spawn(self._do(process, message.number, self._dial(message)))
        elif isinstance(message, Meet):
            self._tasks.spawn(self._do(process, message.number, self._meet(message)))
        elif isinstance(message, Answer | Failure):
            self._settle(process, message)
        else:
            raise RemoteError(f"{type(message).__name__} is not for the node")

    def _settle(self, process: LocalProcess, message: Answer | Failure) -> None:
        peer, answer = process.asked.get(message.number, (None, None))
        if peer is None or answer is None or answer.done():
            return  # it came too late
        if isinstance(message, Answer):
            answer.set_result(message.body)
        else:
            answer.set_exception(error_of(message, peer))

    async def _do(self, process: LocalProcess, number: int, work: Awaitable[Message]) -> None:
        """Do what a process has asked for, and send it the outcome."""
        try:
            said = await work
        except ShoalError as error:
            said = failure(number, error)
        except Exception as error:  # a bug: this question fails, and others go on
            log.exception("a question was not passed on")
            said = failure(number, error)
        send(process.writer, said)

    async def _meet(self, meet: Meet) -> Met:
        if meet.peer != self._network.peer:
            await self._network.meet(meet.peer, meet.milliseconds / 1000)
        return Met(meet.number)

    async def _dial(self, dial: Dial) -> Answer:
        question = decode(dial.body, tags=NODE_TAGS)
        if not isinstance(question, AskExpert):
            raise LocalError(
                f"only experts are asked here, and that is a {type(question).__name__}", code="bad-request"
            )
        if dial.peer == self._network.peer:
            answer = await self.on_call(dial.peer, question)
        else:
            self._on_use(dial.peer)
            answer = await self._network.call(dial.peer, question, dial.milliseconds / 1000)
        return Answer(dial.number, encode(answer))
