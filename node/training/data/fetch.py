"""Downloading a dataset from other members: `Donors` decides who is asked for what, `Fetch` asks, checks and writes.

`Donors` is the core, without clock, disk or network:
- A blob is requested from one donor at a time. A donor has few requests open, more while it is quick; the one with the
  shortest queue is asked first, so a faster one is asked more often.
- Patience is learned from each donor's own times. A donor that takes longer, or whose connection breaks, is not asked
  for a while, twice as long each time, and another one is asked.
- A donor that answers "later" is not asked for as long as it says, within bounds; one that lacks the data, or has lied,
  is never asked again.
- The download fails when no donor is left that may answer, and resumes with a new one.

`Fetch` is its shell:
- Every blob is checked against the manifest's root before it is used. A peer that sends a wrong one is named once, and
  not asked again, in this or a later try.
- What has arrived is kept: a new try, after a crash or when all donors were gone, goes on from there.
- The disk is used in threads; only blobs that are being received are in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK
from shoal.node.training.data.pieces import PAGES, PIECE, PIECES, THE_TOP, Blob, Tree
from shoal.node.training.data.store import Dataset, Download, Store
from shoal.protocol.base.errors import LocalError, RemoteError, Shortage, TransportError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece, Later, PieceIs
from shoal.protocol.messages.node import Refused

MAX_WINDOW = 4  # blobs on their way from one donor
QUICK = 1.0  # seconds within which an answer widens the window
FIRST, LEAST, MOST = 10.0, 2.0, 60.0  # seconds of patience
REST_MOST = 15.0
GIVEN_UP = 4  # times in a row that a donor was late: from then on it gives no hope
NEVER_SERVED = 2  # the same of one that has sent nothing yet: it may be a place where nobody is
MAX_DONORS = 256


@dataclass(frozen=True, slots=True)
class Request:
    """Ask `donor` for `blob`, and wait for `patience` seconds."""

    donor: PeerId
    blob: Blob
    since: float
    patience: float


@dataclass(slots=True)
class Donor:
    """One that may have the data, and how it has served so far."""

    window: int = 1
    asked: int = 0
    served: int = 0
    misses: int = 0  # in a row
    rests_until: float = 0.0
    time: Estimate = field(default_factory=lambda: Estimate(FIRST, LEAST, MOST))

    def patience(self) -> float:
        return min(MOST, self.time.deadline() * 2.0**self.misses) if self.served else FIRST

    @property
    def gives_hope(self) -> bool:
        return self.misses < (GIVEN_UP if self.served else NEVER_SERVED)


class Donors:
    """All blobs that are wanted, and all donors. What is asked must come back: arrived, late, put off or dropped."""

    def __init__(self) -> None:
        self._queue: deque[Blob] = deque()
        self._donors: dict[PeerId, Donor] = {}
        self._out: dict[PeerId, None] = {}  # those of whom nothing is wanted; the oldest are forgotten

    def want(self, blobs: Iterable[Blob]) -> None:
        """These, too, in this order."""
        self._queue.extend(blobs)

    def meet(self, peer: PeerId) -> None:
        """Somebody who may have them."""
        if peer not in self._out and len(self._donors) < MAX_DONORS:
            self._donors.setdefault(peer, Donor())

    @property
    def waiting(self) -> int:
        """Blobs that are wanted and that nobody is asked for."""
        return len(self._queue)

    @property
    def serving(self) -> list[PeerId]:
        """Those who have sent something and are expected to send more."""
        return [peer for peer, donor in self._donors.items() if donor.served and donor.gives_hope]

    @property
    def has_hope(self) -> bool:
        """Whether anybody may still send anything."""
        return any(donor.gives_hope for donor in self._donors.values())

    @property
    def is_refused(self) -> bool:
        """Whether all whom we have met lack it, or have lied."""
        return bool(self._out) and not self._donors

    def requests(self, now: float) -> list[Request]:
        """Whom to ask now, for what."""
        requests = []
        while self._queue and (peer := self._readiest(now)) is not None:
            donor = self._donors[peer]
            donor.asked += 1
            requests.append(Request(peer, self._queue.popleft(), now, donor.patience()))
        return requests

    def pause(self, now: float) -> float | None:
        """Seconds until somebody who rests can be asked; None if nobody rests, or nothing is wanted."""
        rests = [donor.rests_until - now for donor in self._donors.values() if donor.rests_until > now]
        return min(rests) if rests and self._queue else None

    def arrived(self, now: float, request: Request) -> None:
        """The blob has come and is good."""
        if (donor := self._back(request)) is None:
            return
        took = now - request.since
        donor.time.observe(took)
        donor.served += 1
        donor.misses = 0
        donor.window = min(MAX_WINDOW, donor.window + 1) if took < QUICK else max(1, donor.window - 1)

    def late(self, now: float, request: Request) -> None:
        """Nothing has come."""
        self._queue.appendleft(request.blob)
        if (donor := self._back(request)) is not None and now >= donor.rests_until:  # its others were late with it
            donor.misses += 1
            donor.window = 1
            donor.rests_until = now + min(REST_MOST, 2.0 ** (donor.misses - 1))

    def put_off(self, now: float, request: Request, seconds: float) -> None:
        """The donor will send it later."""
        self._queue.appendleft(request.blob)
        if (donor := self._back(request)) is not None:
            donor.window = max(1, donor.window - 1)
            donor.rests_until = max(donor.rests_until, now + min(REST_MOST, seconds))

    def drop(self, request: Request) -> None:
        """The donor is of no use, for good."""
        self._queue.appendleft(request.blob)
        self.shun(request.donor)

    def shun(self, peer: PeerId) -> None:
        """Nothing is wanted of that peer."""
        self._donors.pop(peer, None)
        self._out[peer] = None
        if len(self._out) > MAX_DONORS:
            del self._out[next(iter(self._out))]

    def _back(self, request: Request) -> Donor | None:
        donor = self._donors.get(request.donor)
        if donor is not None:
            donor.asked -= 1
        return donor

    def _readiest(self, now: float) -> PeerId | None:
        """Who can be asked, and will be through with it first."""
        ready = [
            ((donor.asked + 1) * (donor.time.mean or LEAST), order, peer)
            for order, (peer, donor) in enumerate(self._donors.items())
            if donor.asked < donor.window and donor.rests_until <= now
        ]
        return min(ready)[2] if ready else None


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
        self._store, self._swarm, self._candidates = store, swarm, donors
        self._tree = Tree(wanted.root, wanted.size)
        self._donors = Donors()
        self._download: Download | None = None
        self._missing = wanted.size
        self._hoped = asyncio.get_running_loop().time()  # when anybody was last expected to send something
        for liar in swarm.liars:
            self._donors.shun(liar)

    @property
    def words(self) -> str:
        """How far we are: 12 of 48 MiB from 3 members."""
        count, whole = len(self._donors.serving), self.wanted.size
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
        self._donors.want(blobs)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while self._donors.waiting or tasks:
                self._look_around(bool(tasks))
                tasks |= {asyncio.create_task(self._ask(request)) for request in self._donors.requests(clock())}
                rest = self._donors.pause(clock())
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
        for peer in self._candidates():
            self._donors.meet(peer)
        now = asyncio.get_running_loop().time()
        if is_waiting or self._donors.has_hope:
            self._hoped = now
        if now - self._hoped < (LOOK if self._donors.is_refused else PATIENCE):
            return
        if self._download is None:
            raise Shortage(
                f"this node has not the run's data ({-(-self.wanted.size >> 20)} MiB), and no member that can be "
                "reached gives them: start it with --data and the same text, or join when such a member is there"
            )
        raise TransportError(f"all who gave the run's data are gone, {self.words}; joining again goes on from there")

    async def _ask(self, request: Request) -> None:
        """Ask, and see what comes of it."""
        clock, blob = asyncio.get_running_loop().time, request.blob
        try:
            message = GetPiece(self.wanted.root, blob.level, blob.number)
            answer = await self._swarm.call(request.donor, message, request.patience)
        except TransportError:
            self._donors.late(clock(), request)
        except RemoteError:  # a node that does not know the question, or cannot speak; the network says so
            self._donors.drop(request)
        else:
            await self._take(request, answer)

    async def _take(self, request: Request, answer: Message) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(answer, PieceIs) and self._tree.accepts(request.blob, answer.content):
            self._donors.arrived(now, request)
            await self._keep(request.blob, answer.content)
        elif isinstance(answer, Later):
            self._donors.put_off(now, request, answer.milliseconds / 1000)
        else:
            self._donors.drop(request)
            if not isinstance(answer, Refused):
                self._swarm.blame(request.donor)

    async def _keep(self, blob: Blob, content: bytes) -> None:
        if blob.level == PIECES:
            assert self._download is not None
            await DISK.run(self._download.put, blob.number, content)
            self._missing -= PIECE
