"""The process that answers for experts whose files its node has: `shoal experts answer`.

Rules:
- Of each part it takes the newest file that is here, and looks for newer ones every LOOK seconds. Who asks about the
  file before it is still answered, until nobody has done so for LAST seconds.
- It outlives its node: while that is away nobody can ask, and then it offers what it has again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from shoal.node.asking.booth import Booth
from shoal.node.asking.line import Line
from shoal.node.asking.messages import Offer
from shoal.node.asking.sources import File, Node, Part, Sources, path_of
from shoal.node.lines import say
from shoal.node.pools import LONG
from shoal.node.serve.expert import Expert
from shoal.node.serve.served import Choices
from shoal.protocol.errors import LocalError, RemoteError, ShoalError
from shoal.protocol.ids import Digest, PeerId
from shoal.protocol.messages.experts import AskExpert
from shoal.protocol.messages.node import Refused
from shoal.protocol.tasks import Tasks
from shoal.protocol.wire import decode, encode

LOOK = 5.0  # seconds
LAST = 60.0

log = logging.getLogger("shoal.experts")


@dataclass(slots=True)
class Held:
    """An expert that answers."""

    part: str
    round: int
    booth: Booth
    task: asyncio.Task[None]


class Answering:
    """For these parts of a family, or for all that are here; a peer has at most `each` texts of an expert."""

    def __init__(self, node: Node, parts: Sequence[str], choices: Choices, each: int) -> None:
        self._node, self._parts, self._choices, self._each = node, parts, choices, each
        self._held: dict[Digest, Held] = {}
        self._line = Line(node.socket, self._asked, self._lost)
        self._tasks = Tasks(lambda error: log.error("an expert does not answer any more", exc_info=error))
        self._offered: tuple[Digest, ...] = ()
        self._refused: set[Digest] = set()  # files that cannot be used: that is said once

    async def run(self) -> None:
        """Answer, until this is cancelled; LocalError if there is nothing to answer for at the start."""
        try:
            sources = await LONG.run(self._node.sources)
            self._check(sources)
            await self._take_in(sources)
            if not self._held:
                raise LocalError(f"this node has no expert of {sources.manifest.name} yet: {_REMEDY}")
            while True:
                try:
                    await self._offer()
                    await self._look()
                except ShoalError as error:
                    log.warning("%s; trying again", error)
                    await asyncio.sleep(LOOK)
        finally:
            await self._line.close()
            await self._tasks.close()

    # -- what others ask --------------------------------------------------------------------------------------

    async def _asked(self, peer: PeerId, body: bytes) -> bytes:
        asked = decode(body, peer)
        if not isinstance(asked, AskExpert):
            raise RemoteError(f"{type(asked).__name__} is not answered here", peer)
        if (held := self._held.get(asked.file)) is None:
            return encode(Refused("nobody here answers for that expert"))
        return await held.booth.ask(peer, asked)

    def _lost(self, peer: PeerId) -> None:
        for held in self._held.values():
            held.booth.lost(peer)

    # -- what is here -----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Until it is time to look again, or the node is gone; then see what there is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await self._line.gone.wait()
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
            except Exception as error:  # also out of memory: what answers already goes on
                if file.digest not in self._refused:
                    words = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
                    log.warning("the expert %s of round %d cannot answer: %s", part.part, file.round, words)
                self._refused.add(file.digest)
                continue
            self._refused.discard(file.digest)
            booth = Booth(expert, self._each)
            self._held[file.digest] = Held(part.part, file.round, booth, self._tasks.spawn(booth.run()))
            say(f"answering for {part.part}, round {file.round} ({file.file[:8]})")
        self._drop_old()

    def _drop_old(self) -> None:
        """What a newer file has replaced, and nobody uses."""
        now = asyncio.get_running_loop().time()
        for digest, held in list(self._held.items()):
            if held.task.done():  # it has failed, which is in the log; it is taken in anew
                del self._held[digest]
                continue
            is_old = any(each.part == held.part and each.round > held.round for each in self._held.values())
            if is_old and not held.booth.texts and now - held.booth.used_at > LAST:
                del self._held[digest]
                held.task.cancel()

    async def _offer(self) -> None:
        files = tuple(self._held)
        if files != self._offered:
            await self._line.offer(Offer(files))
            self._offered = files

    def _load(self, part: Part, file: File) -> Expert:
        from shoal.node.experts.files import read_parameters
        from shoal.node.serve.ensemble.weights import expert_of

        return expert_of(part.model, read_parameters(path_of(file), part.model), self._choices, file.file[:16])

    def _check(self, sources: Sources) -> None:
        known = [part.part for part in sources.parts]
        if strange := next((part for part in self._parts if part not in known), None):
            raise LocalError(f"{sources.manifest.name} has no part {strange}; it has {', '.join(known)}")


_REMEDY = "wait until a part is published (`shoal experts FAMILY` says which files are here)"
