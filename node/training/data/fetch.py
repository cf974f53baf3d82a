"""Downloading a dataset from other members: `Donors` decides which donor is asked for what; `Fetch` asks and stores.

`Donors` is the core, without clock, disk or network:
- A blob is requested from one donor at a time. A donor has few open requests, and more while it is quick. The donor
  with the shortest expected time is asked first, so faster donors are asked more often.
- The patience with a donor is learned from its own response times. If it is exceeded, or the connection breaks, another
  donor is asked, and this one rests for a while, twice as long each time.
- A donor that answers "later" rests for as long as it says, within bounds. A donor that lacks the data or has sent a
  wrong blob is never asked again.
- The download fails when no donor is left that may answer, and can be resumed with a new one.

`Fetch` is its shell:
- Every blob is checked against the manifest's root before it is used. A peer that sends a wrong one is named in the log
  once, and not asked again, in this or a later try.
- Blobs that have arrived are kept: a new try, after a crash or when all donors were gone, goes on from there.
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
from shoal.node.training.data.pieces import PAGES, PIECE, PIECES, TOP_BLOB, Blob, Tree
from shoal.node.training.data.store import Dataset, Download, Store
from shoal.protocol.base.errors import LocalError, RemoteError, Shortage, TransportError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece, Later, PieceIs
from shoal.protocol.messages.node import Refused

MAX_WINDOW = 4  # blobs on their way from one donor
QUICK = 1.0  # seconds within which an answer widens the window
FIRST_PATIENCE, MIN_PATIENCE, MAX_PATIENCE = 10.0, 2.0, 60.0  # seconds
MAX_REST = 15.0  # seconds
MAX_MISSES = 4  # late answers in a row after which a donor is given up
MAX_FIRST_MISSES = 2  # the same before its first answer: nobody may be at this address
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
    """How a peer that may have the data has served so far."""

    window: int = 1
    asked: int = 0
    served: int = 0
    misses: int = 0  # in a row
    rests_until: float = 0.0
    time: Estimate = field(default_factory=lambda: Estimate(FIRST_PATIENCE, MIN_PATIENCE, MAX_PATIENCE))

    def patience(self) -> float:
        """Seconds to wait for its next answer."""
        return min(MAX_PATIENCE, self.time.deadline() * 2.0**self.misses) if self.served else FIRST_PATIENCE

    @property
    def may_answer(self) -> bool:
        """Whether it is not given up."""
        return self.misses < (MAX_MISSES if self.served else MAX_FIRST_MISSES)


class Donors:
    """All wanted blobs and all donors. Each request ends by a call of `arrived`, `late`, `put_off` or `drop`."""

    def __init__(self) -> None:
        self._queue: deque[Blob] = deque()
        self._donors: dict[PeerId, Donor] = {}
        self._excluded: dict[PeerId, None] = {}  # never asked; the oldest are forgotten

    def want(self, blobs: Iterable[Blob]) -> None:
        """Adds blobs to those that are wanted, in this order."""
        self._queue.extend(blobs)

    def add(self, peer: PeerId) -> None:
        """Adds a peer that may have the data."""
        if peer not in self._excluded and len(self._donors) < MAX_DONORS:
            self._donors.setdefault(peer, Donor())

    @property
    def waiting(self) -> int:
        """How many wanted blobs no donor is asked for."""
        return len(self._queue)

    @property
    def serving(self) -> list[PeerId]:
        """Donors that have sent something and are expected to send more."""
        return [peer for peer, donor in self._donors.items() if donor.served and donor.may_answer]

    @property
    def any_may_answer(self) -> bool:
        """Whether any donor is not given up."""
        return any(donor.may_answer for donor in self._donors.values())

    @property
    def all_excluded(self) -> bool:
        """Whether all peers so far lack the data or have sent wrong blobs."""
        return bool(self._excluded) and not self._donors

    def requests(self, now: float) -> list[Request]:
        """The requests to send now."""
        requests = []
        while self._queue and (peer := self._quickest(now)) is not None:
            donor = self._donors[peer]
            donor.asked += 1
            requests.append(Request(peer, self._queue.popleft(), now, donor.patience()))
        return requests

    def pause(self, now: float) -> float | None:
        """Seconds until the first resting donor can be asked again; None if none rests, or nothing is wanted."""
        rests = [donor.rests_until - now for donor in self._donors.values() if donor.rests_until > now]
        return min(rests) if rests and self._queue else None

    def arrived(self, now: float, request: Request) -> None:
        """The blob has come and is right."""
        if (donor := self._back(request)) is None:
            return
        took = now - request.since
        donor.time.observe(took)
        donor.served += 1
        donor.misses = 0
        donor.window = min(MAX_WINDOW, donor.window + 1) if took < QUICK else max(1, donor.window - 1)

    def late(self, now: float, request: Request) -> None:
        """No answer has come in time. The donor rests then, and its other late requests do not count."""
        self._queue.appendleft(request.blob)
        if (donor := self._back(request)) is not None and now >= donor.rests_until:
            donor.misses += 1
            donor.window = 1
            donor.rests_until = now + min(MAX_REST, 2.0 ** (donor.misses - 1))

    def put_off(self, now: float, request: Request, seconds: float) -> None:
        """The donor asks to come again after so many seconds."""
        self._queue.appendleft(request.blob)
        if (donor := self._back(request)) is not None:
            donor.window = max(1, donor.window - 1)
            donor.rests_until = max(donor.rests_until, now + min(MAX_REST, seconds))

    def drop(self, request: Request) -> None:
        """The donor lacks the data, or has sent a wrong blob: it is never asked again."""
        self._queue.appendleft(request.blob)
        self.exclude(request.donor)

    def exclude(self, peer: PeerId) -> None:
        """Never asks this peer again."""
        self._donors.pop(peer, None)
        self._excluded[peer] = None
        if len(self._excluded) > MAX_DONORS:
            del self._excluded[next(iter(self._excluded))]

    def _back(self, request: Request) -> Donor | None:
        donor = self._donors.get(request.donor)
        if donor is not None:
            donor.asked -= 1
        return donor

    def _quickest(self, now: float) -> PeerId | None:
        """Of the donors that can be asked now, the one that is expected to answer first."""
        ready = [
            ((donor.asked + 1) * (donor.time.mean or MIN_PATIENCE), order, peer)
            for order, (peer, donor) in enumerate(self._donors.items())
            if donor.asked < donor.window and donor.rests_until <= now
        ]
        return min(ready)[2] if ready else None


LOOK = 0.5  # seconds between two looks at which donors there are
NO_DONOR_TIMEOUT = 10.0  # seconds without a donor, unless all have said that they lack the data
MAX_LIARS = 1024

log = logging.getLogger("shoal.data")

Call = Callable[[PeerId, Message, float], Awaitable[Message]]
"""Sends a request to a peer and returns its answer, within so many seconds; see `Network.call`."""


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A dataset as a manifest names it."""

    digest: Digest
    root: Digest
    size: int


@dataclass(slots=True)
class DonorCalls:
    """How downloads call donors, and which peers have sent wrong data, in this or an earlier download."""

    call: Call
    is_closing: Callable[[], bool] = lambda: False
    liars: dict[PeerId, None] = field(default_factory=dict)

    def blame(self, peer: PeerId) -> None:
        """Logs, once per peer, that it has sent wrong data, and remembers it."""
        if peer not in self.liars:
            self.liars[peer] = None
            error = RemoteError("gave data that are not what their hashes name", peer)
            warn(log, "data-liar", f"{error}; it is not asked for data again")
            if len(self.liars) > MAX_LIARS:
                del self.liars[next(iter(self.liars))]


class Fetch:
    """The download of one dataset. `donors` gives the peers that may have it now, and is called again and again."""

    def __init__(
        self, wanted: DatasetRef, store: Store, calls: DonorCalls, donors: Callable[[], Sequence[PeerId]]
    ) -> None:
        self.wanted = wanted
        self._store, self._calls, self._candidates = store, calls, donors
        self._tree = Tree(wanted.root, wanted.size)
        self._donors = Donors()
        self._download: Download | None = None
        self._missing = wanted.size
        self._hoped = asyncio.get_running_loop().time()  # when a donor was last expected to send something
        for liar in calls.liars:
            self._donors.exclude(liar)

    @property
    def words(self) -> str:
        """The progress in words: 12 of 48 MiB from 3 members."""
        count = len(self._donors.serving)
        here, whole = self.here >> 20, -(-self.wanted.size >> 20)
        return f"{here} of {whole} MiB from {count} member{'' if count == 1 else 's'}"

    @property
    def here(self) -> int:
        """Bytes that have come, or were here."""
        return max(0, self.wanted.size - self._missing)

    async def run(self) -> Dataset:
        """Downloads the dataset.

        Raises LocalError if no member has it or the disk has no room, and TransportError if all donors are gone.
        """
        await self._get([TOP_BLOB])
        await self._get([Blob(PAGES, number) for number in range(self._tree.shape.pages)])
        index = self._tree.index()
        assert index is not None  # all pages have come and were right
        self._download = await DISK.run(self._store.begin, self.wanted.digest, index)
        missing = self._download.missing
        self._missing = len(missing) * PIECE
        await self._get([Blob(PIECES, number) for number in missing])
        self._missing = 0
        return await DISK.run(self._download.finish)

    async def _get(self, blobs: Sequence[Blob]) -> None:
        """Downloads these blobs from any donors."""
        clock = asyncio.get_running_loop().time
        self._donors.want(blobs)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while self._donors.waiting or tasks:
                self._update_donors(bool(tasks))
                tasks |= {asyncio.create_task(self._ask(request)) for request in self._donors.requests(clock())}
                rest = self._donors.pause(clock())
                pause = min(LOOK, max(0.0, rest)) if rest is not None else LOOK
                if tasks:
                    done, _ = await asyncio.wait(tasks, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()  # raises errors of this machine, such as a full disk
                    tasks -= done
                else:
                    await asyncio.sleep(pause)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _update_donors(self, is_waiting: bool) -> None:
        """Adds new donors; raises an error if there have been none for too long, or if the node is ending."""
        if self._calls.is_closing():
            raise LocalError("the node is ending or paused; the data that have come are kept", code="ending")
        for peer in self._candidates():
            self._donors.add(peer)
        now = asyncio.get_running_loop().time()
        if is_waiting or self._donors.any_may_answer:
            self._hoped = now
        if now - self._hoped < (LOOK if self._donors.all_excluded else NO_DONOR_TIMEOUT):
            return
        if self._download is None:
            raise Shortage(
                f"this node has not the run's data ({-(-self.wanted.size >> 20)} MiB), and no member that can be "
                "reached gives them: start it with --data and the same text, or join when such a member is there",
                code="data-nowhere",
            )
        raise TransportError(
            f"all who gave the run's data are gone, {self.words}; joining again goes on from there", code="data-nowhere"
        )

    async def _ask(self, request: Request) -> None:
        """Sends a request, and handles the answer or its absence."""
        clock, blob = asyncio.get_running_loop().time, request.blob
        try:
            message = GetPiece(self.wanted.root, blob.level, blob.number)
            answer = await self._calls.call(request.donor, message, request.patience)
        except TransportError:
            self._donors.late(clock(), request)
        except RemoteError:  # it does not know this request, or its answer is malformed; the network logs that
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
                self._calls.blame(request.donor)

    async def _keep(self, blob: Blob, content: bytes) -> None:
        if blob.level == PIECES:
            assert self._download is not None
            await DISK.run(self._download.put, blob.number, content)
            self._missing -= PIECE
