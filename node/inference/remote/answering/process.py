"""The process that answers for experts whose files its node has: `shoal experts answer`.

Rules:
- Of each part it uses the newest file that is here, and looks for newer ones every LOOK seconds. It goes on answering
  for the previous file until there were no questions about it for LAST seconds.
- It survives a restart of its node: meanwhile no peer can ask, and afterwards it offers its files again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from shoal.node.base.home import Home
from shoal.node.base.lines import say
from shoal.node.base.options import check_device
from shoal.node.base.pools import LONG
from shoal.node.base.signals import on_ending
from shoal.node.experts.questions import Offer
from shoal.node.inference.models import use_threads
from shoal.node.inference.remote.answering.server import ExpertServer
from shoal.node.inference.remote.connection import NodeConnection
from shoal.node.inference.remote.sources import File, Node, Part, Sources, path_of
from shoal.node.inference.scorer import Scorer
from shoal.node.inference.served import ServeOptions
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import decode, encode
from shoal.protocol.messages.experts import AskExpert
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.system.tasks import Tasks

LOOK = 5.0  # seconds
LAST = 60.0

log = logging.getLogger("shoal.experts")


@dataclass(slots=True)
class Held:
    """One expert, and its server."""

    part: str
    round: int
    server: ExpertServer
    task: asyncio.Task[None]


class Answering:
    """Answers for `parts` of a family, or for all that are here; a peer may have at most `each` texts of an expert."""

    def __init__(self, node: Node, parts: Sequence[str], options: ServeOptions, each: int) -> None:
        self._node, self._parts, self._options, self._each = node, parts, options, each
        self._held: dict[Digest, Held] = {}
        self._connection = NodeConnection(node.socket, self._asked, self._lost)
        self._tasks = Tasks(lambda error: log.error("an expert does not answer any more", exc_info=error))
        self._offered: tuple[Digest, ...] = ()
        self._refused: set[Digest] = set()  # files that cannot be used; each is logged once

    async def run(self) -> None:
        """Answer until this is cancelled; LocalError if no file is here at the start."""
        try:
            sources = await LONG.run(self._node.sources)
            self._check(sources)
            await self._take_in(sources)
            if not self._held:
                raise LocalError(f"this node has no expert of {sources.manifest.name} yet: {_REMEDY}", code="not-ready")
            while True:
                try:
                    await self._offer()
                    await self._look()
                except ShoalError as error:
                    log.warning("%s; trying again", error, extra={"code": error.code})
                    await asyncio.sleep(LOOK)
        finally:
            await self._connection.close()
            await self._tasks.close()

    # -- what others ask --------------------------------------------------------------------------------------

    async def _asked(self, peer: PeerId, body: bytes) -> bytes:
        asked = decode(body, peer)
        if not isinstance(asked, AskExpert):
            raise RemoteError(f"{type(asked).__name__} is not answered here", peer)
        if (held := self._held.get(asked.file)) is None:
            return encode(Refused("nobody here answers for that expert"))
        return await held.server.ask(peer, asked)

    def _lost(self, peer: PeerId) -> None:
        for held in self._held.values():
            held.server.lost(peer)

    # -- what is here -----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Wait for LOOK seconds, or until the node is gone; then look for new files."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await self._connection.gone.wait()
                self._offered = ()
                return
        await self._take_in(await LONG.run(self._node.sources))

    async def _take_in(self, sources: Sources) -> None:
        for part in sources.parts:
            file = next((each for each in part.files if each.path is not None), None)
            if file is None or file.digest in self._held or (self._parts and part.part not in self._parts):
                continue
            try:
                expert = await LONG.run(self._load, part, file)
            except Exception as error:  # also no memory: the experts that answer already go on
                if file.digest not in self._refused:
                    words = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
                    log.warning(
                        "the expert %s of round %d cannot answer: %s",
                        part.part,
                        file.round,
                        words,
                        extra={"code": "expert-unusable"},
                    )
                self._refused.add(file.digest)
                continue
            self._refused.discard(file.digest)
            server = ExpertServer(expert, self._each)
            self._held[file.digest] = Held(part.part, file.round, server, self._tasks.spawn(server.run()))
            say(f"answering for {part.part}, round {file.round} ({file.file[:8]})")
        self._drop_old()

    def _drop_old(self) -> None:
        """Drop experts that a newer file has replaced, and no peer uses."""
        now = asyncio.get_running_loop().time()
        for digest, held in list(self._held.items()):
            if held.task.done():  # it has failed, and that was logged; it is loaded again
                del self._held[digest]
                continue
            is_old = any(each.part == held.part and each.round > held.round for each in self._held.values())
            if is_old and not held.server.texts and now - held.server.used_at > LAST:
                del self._held[digest]
                held.task.cancel()

    async def _offer(self) -> None:
        files = tuple(self._held)
        if files != self._offered:
            await self._connection.offer(Offer(files))
            self._offered = files

    def _load(self, part: Part, file: File) -> Scorer:
        from shoal.node.experts.files import read_parameters
        from shoal.node.inference.models import expert_of

        return expert_of(part.model, read_parameters(path_of(file), part.model), self._options, file.file[:16])

    def _check(self, sources: Sources) -> None:
        known = [part.part for part in sources.parts]
        if strange := next((part for part in self._parts if part not in known), None):
            raise LocalError(
                f"{sources.manifest.name} has no part {strange}; it has {', '.join(known)}", code="unknown-name"
            )


_REMEDY = "wait until a part is published (`shoal experts FAMILY` says which files are here)"


def answer_until_told(
    home: Home, family: str, parts: tuple[str, ...], slots: int, each: int, device: str, threads: int
) -> None:
    """Answer until the process is asked to end; LocalError if no file is here."""
    check_device(device)
    use_threads(threads)
    answering = Answering(Node(home, family), parts, ServeOptions(device, slots, threads=threads), min(each, slots))
    asyncio.run(_until_told(answering))


async def _until_told(answering: Answering) -> None:
    task = asyncio.ensure_future(answering.run())
    on_ending(lambda _: task.cancel())
    with suppress(asyncio.CancelledError):
        await task
