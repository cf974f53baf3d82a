"""Getting a dataset from those who have it: the shell around `plan`, which asks, checks, writes and counts.

Rules:
- Every blob is checked against the manifest's root before anything is done with it. Who sends another is named once,
  and not asked again, in this or a later try.
- What has come stays: who tries again, after a crash or because all donors were gone, goes on from there.
- The disk is touched in threads; of the data only what is on its way is in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shoal.node.dataset.pieces import PAGES, PIECE, PIECES, THE_TOP, Blob, Tree
from shoal.node.dataset.plan import Ask, Plan
from shoal.node.dataset.store import Dataset, Download, Store
from shoal.node.logs import warn
from shoal.node.pools import DISK
from shoal.protocol.errors import LocalError, RemoteError, Shortage, TransportError
from shoal.protocol.ids import Digest, PeerId
from shoal.protocol.messages.data import GetPiece, Later, PieceIs
from shoal.protocol.messages.node import Refused
from shoal.protocol.wire import Message

LOOK = 0.5  # seconds between two looks at who is there
PATIENCE = 10.0  # seconds that we wait for somebody to come, if not all have said that they lack it
MAX_LIARS = 1024

log = logging.getLogger("shoal.data")

Call = Callable[[PeerId, Message, float], Awaitable[Message]]
"""A call to a peer that may take so many seconds, as `Network.call`."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A dataset as a manifest names it."""

    digest: Digest
    root: Digest
    size: int


@dataclass(slots=True)
class Swarm:
    """What a download needs of the network, and what it remembers for the next one."""

    call: Call
    is_closing: Callable[[], bool] = lambda: False
    liars: dict[PeerId, None] = field(default_factory=dict)

    def blame(self, peer: PeerId) -> None:
        """Say who has lied, once, and remember it."""
        if peer not in self.liars:
            self.liars[peer] = None
            error = RemoteError("gave data that are not what their hashes name", peer)
            warn(log, "data-liar", f"{error}; it is not asked for data again")
            if len(self.liars) > MAX_LIARS:
                del self.liars[next(iter(self.liars))]


class Fetch:
    """One dataset on its way to us. `donors` are those who may have it, looked at again and again."""

    def __init__(self, wanted: Wanted, store: Store, swarm: Swarm, donors: Callable[[], Sequence[PeerId]]) -> None:
        self.wanted = wanted
        self._store, self._swarm, self._donors = store, swarm, donors
        self._tree = Tree(wanted.root, wanted.size)
        self._plan = Plan()
        self._download: Download | None = None
        self._missing = wanted.size
        self._hoped = asyncio.get_running_loop().time()  # when anybody was last expected to send something
        for liar in swarm.liars:
            self._plan.shun(liar)

    @property
    def words(self) -> str:
        """How far we are: 12 of 48 MiB from 3 members."""
        count, whole = len(self._plan.serving), self.wanted.size
        here = max(0, whole - self._missing)
        return f"{here >> 20} of {-(-whole >> 20)} MiB from {count} member{'' if count == 1 else 's'}"

    async def run(self) -> Dataset:
        """All of it; LocalError if nobody has it or the disk has no room, TransportError if all who had it are gone."""
        await self._get([THE_TOP])
        await self._get([Blob(PAGES, number) for number in range(self._tree.shape.pages)])
        index = self._tree.index()
        assert index is not None  # all pages have come and were good
        self._download = await DISK.run(self._store.begin, self.wanted.digest, index)
        missing = self._download.missing
        self._missing = len(missing) * PIECE
        await self._get([Blob(PIECES, number) for number in missing])
        self._missing = 0
        return await DISK.run(self._download.finish)

    async def _get(self, blobs: Sequence[Blob]) -> None:
        """These blobs, from whoever sends them."""
        clock = asyncio.get_running_loop().time
        self._plan.want(blobs)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while self._plan.waiting or tasks:
                self._look_around(bool(tasks))
                tasks |= {asyncio.create_task(self._ask(ask)) for ask in self._plan.asks(clock())}
                rest = self._plan.pause(clock())
                pause = min(LOOK, max(0.0, rest)) if rest is not None else LOOK
                if tasks:
                    done, tasks = await asyncio.wait(tasks, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()  # a full disk, say, is not the donor's fault
                else:
                    await asyncio.sleep(pause)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _look_around(self, is_waiting: bool) -> None:
        """Who is there now; an error if nobody is any more, or if we must end."""
        if self._swarm.is_closing():
            raise LocalError("the node is ending or paused; the data that have come are kept")
        for peer in self._donors():
            self._plan.meet(peer)
        now = asyncio.get_running_loop().time()
        if is_waiting or self._plan.has_hope:
            self._hoped = now
        if now - self._hoped < (LOOK if self._plan.is_refused else PATIENCE):
            return
        if self._download is None:
            raise Shortage(
                f"this node has not the run's data ({-(-self.wanted.size >> 20)} MiB), and no member that can be "
                "reached gives them: start it with --data and the same text, or join when such a member is there"
            )
        raise TransportError(f"all who gave the run's data are gone, {self.words}; joining again goes on from there")

    async def _ask(self, ask: Ask) -> None:
        """Ask, and see what comes of it."""
        clock, blob = asyncio.get_running_loop().time, ask.blob
        try:
            message = GetPiece(self.wanted.root, blob.level, blob.number)
            answer = await self._swarm.call(ask.donor, message, ask.patience)
        except TransportError:
            self._plan.late(clock(), ask)
        except RemoteError:  # a node that does not know the question, or cannot speak; the network says so
            self._plan.drop(ask)
        else:
            await self._take(ask, answer)

    async def _take(self, ask: Ask, answer: Message) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(answer, PieceIs) and self._tree.accepts(ask.blob, answer.content):
            self._plan.arrived(now, ask)
            await self._keep(ask.blob, answer.content)
        elif isinstance(answer, Later):
            self._plan.put_off(now, ask, answer.milliseconds / 1000)
        else:
            self._plan.drop(ask)
            if not isinstance(answer, Refused):
                self._swarm.blame(ask.donor)

    async def _keep(self, blob: Blob, content: bytes) -> None:
        if blob.level == PIECES:
            assert self._download is not None
            await DISK.run(self._download.put, blob.number, content)
            self._missing -= PIECE
