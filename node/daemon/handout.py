"""The node's end of node/handout.py: gives readers a copy of the parameters of a run's newest committed state.

Rules:
- The event loop only moves messages. Copies are made in a thread, one at a time, of a version that is leased meanwhile:
  no round waits for a reader, and no reader sees half of a commit.
- The copy belongs to the reader: the node closes it once it is sent, and its memory is freed when the reader closes it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.node.base.home import Home
from shoal.node.base.logs import warn
from shoal.node.base.pools import LONG
from shoal.node.handout import HANDOUT_PROTOCOL, AskWeights, HasWeights, NoWeights
from shoal.node.ipc.link import frame
from shoal.node.ipc.private_socket import PrivateSocket
from shoal.node.ipc.shm import SharedVector
from shoal.node.run.runs import Runs
from shoal.node.supervisor.listener import receive_frame
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import RunId
from shoal.protocol.base.wire import Message
from shoal.protocol.net.system.tasks import Tasks

if TYPE_CHECKING:
    from shoal.node.run.run import Run  # imports torch

PATIENCE = 10.0  # seconds for a reader to send its question, and to take the answer

log = logging.getLogger("shoal.daemon")


class Handout:
    """Answers at the socket of `home` for as long as `run` is awaited."""

    def __init__(self, home: Home, runs: Runs) -> None:
        self._home, self._runs = home, runs
        self._copying = asyncio.Lock()

    async def run(self) -> None:
        """Serve until cancelled; returns at once, with a warning, if no socket can be made."""
        try:
            listener = await PrivateSocket.listening(self._home.weights_socket)
        except OSError as error:
            words = "nobody can ask this node for the parameters of its runs: no socket can be made"
            return warn(log, "no-handout", f"{words} in {self._home.root}: {error.strerror or error}")
        tasks = Tasks(lambda error: log.error("a reader of parameters got no answer", exc_info=error))
        try:
            async for connection in listener.connections():
                tasks.spawn(self._attend(connection))
        finally:
            await listener.end()
            await tasks.close()

    async def _attend(self, connection: socket.socket) -> None:
        """Answer one question; a reader that is gone, too slow or breaks the protocol gets no answer."""
        with connection, suppress(OSError, TimeoutError, RemoteError):
            async with asyncio.timeout(PATIENCE):
                asked = await receive_frame(connection)
            if not isinstance(asked, AskWeights) or asked.protocol != HANDOUT_PROTOCOL:
                return await _send(connection, NoWeights("the node is of another version of Shoal than who asks"))
            answer, vector = await self._answer(asked)
            if vector is None:
                return await _send(connection, answer)
            with vector:
                await _send(connection, answer, vector.fd)

    async def _answer(self, asked: AskWeights) -> tuple[Message, SharedVector | None]:
        run = self._runs.get(asked.run)
        if run is None:
            return self._why_not(asked.run), None
        if run.failure:
            return NoWeights(f"the run has failed on this node: {run.failure}"), None
        current = run.outer.committed.current
        if current.root == asked.known:  # also while the node is catching up and has no newer state yet
            return HasWeights(current.round, current.root, run.samples), None
        if run.member.base_round is None:
            reason = run.obstacle or "it looks for one to download"
            return NoWeights(f"the node has no state of the run yet: {reason}", waits=True), None
        if not asked.wants:
            return HasWeights(current.round, current.root, run.samples), None
        async with self._copying:
            return await LONG.run(_copied, run)

    def _why_not(self, run: RunId) -> NoWeights:
        """The answer for a run that is not open."""
        if self._runs.paused:
            return NoWeights(self._runs.paused, waits=True)
        if run.hex() in self._runs.restoring:
            return NoWeights("the node has just started, and is on its way back into the run", waits=True)
        return NoWeights(self._runs.broken.get(run.hex(), f"the node is not in the run {run.hex()[:8]}"))


def _copied(run: Run) -> tuple[HasWeights, SharedVector]:
    """The answer, with a copy of the parameters; runs in a thread."""
    with run.outer.committed.lease() as snapshot:
        parameters = snapshot.array()
        vector = SharedVector.create(parameters.size)
        vector.array[:] = parameters
        manifest = run.manifest.canonical()
        return HasWeights(snapshot.round, snapshot.root, run.samples, parameters.size, manifest), vector


async def _send(connection: socket.socket, answer: Message, *descriptors: int) -> None:
    """Send an answer. The buffer of a new socket takes the first bytes and the descriptor without blocking."""
    data = frame(answer)
    sent = socket.send_fds(connection, [data], descriptors)
    async with asyncio.timeout(PATIENCE):
        await asyncio.get_running_loop().sock_sendall(connection, data[sent:])
