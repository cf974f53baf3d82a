"""The data of this node's runs: had, packed, fetched, and given to others.

Having them (`Supply`):
- What is in the home comes first, then the person's own text (--data) where it is what a manifest names, then what
  members give. So a node whose --data are about another run still gets what it lacks, and files that were changed
  since do not matter.
- What a node shares it has packed into its home: it does not change under those who download, or train. A node that
  does not share makes no copy, and names no pieces in the manifests that it founds. Text at --data that no run of the
  node is about is never given to anybody.
- A dataset is verified to the last byte once in a process's life. The same one is not fetched twice at a time.

Giving them (`Serving`):
- Each peer, and all together, have a rate: a peer that asks for more is told to come back later, so that the line is
  not full for rounds and other joiners.
- Pieces are read in threads, few at a time, when their turn has come, and hashed before they are sent, so that a
  damaged disk does not make us look like a liar.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK, LONG
from shoal.node.manifest.data import Columns
from shoal.node.manifest.manifest import DataSpec, Manifest
from shoal.node.training.data.fetch import Call, Fetch, Swarm, Wanted
from shoal.node.training.data.pieces import THE_TOP, Blob, root_of
from shoal.node.training.data.store import Dataset, Store, measure
from shoal.protocol.base.allowance import Allowance, Allowances
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece, Later, PieceIs
from shoal.protocol.messages.node import Refused

EACH = (64.0, 64.0)  # blobs for one peer, in a burst and per second: 16 MiB
ALL = (128.0, 128.0)  # for all peers
PEERS = 1024  # whose shares are known
AGAIN = 2.0  # seconds until whoever asks is to ask again, where a piece cannot be read now
WAIT = 1.0  # seconds that a question may wait for its turn
READING = 4  # blobs at a time

log = logging.getLogger("shoal.data")


class Serving:
    """The datasets that others may have of us, by their roots."""

    def __init__(self) -> None:
        self._datasets: dict[Digest, Dataset] = {}
        self._each: Allowances[PeerId] = Allowances(*EACH, PEERS)
        self._all = Allowance(*ALL)
        self._reading = asyncio.Semaphore(READING)

    def offer(self, dataset: Dataset) -> None:
        """From now on others may have it."""
        self._datasets[dataset.root] = dataset

    def withdraw(self, digest: Digest) -> None:
        """From now on nobody may."""
        self._datasets = {root: each for root, each in self._datasets.items() if each.digest != digest}

    async def answer(self, peer: PeerId, message: GetPiece) -> Message:
        """The bytes, or why there are none."""
        dataset, blob = self._datasets.get(message.dataset), Blob(message.level, message.number)
        if dataset is None or not dataset.index.shape.length(blob):
            return Refused("these data are not here, or not given away")
        wait = self._turn(peer, asyncio.get_running_loop().time())
        if wait > WAIT:
            return Later(round(wait * 1000))
        await asyncio.sleep(wait)
        async with self._reading:
            try:
                content = await DISK.run(dataset.read, blob)
            except OSError as error:
                log.debug("a piece cannot be read now: %s", error)
                return Later(round(AGAIN * 1000))
        if content is None:
            self._datasets.pop(dataset.root, None)
            warn(log, "data-damaged", f"{dataset.path} is damaged, so it is not given away; a restart mends it")
            return Refused("these data are damaged here")
        return PieceIs(content)

    def _turn(self, peer: PeerId, now: float) -> float:
        """Seconds until it is this peer's turn; more than WAIT, and it has lost none of its share by asking."""
        allowances = (self._each.of(peer), self._all)
        wait = max(each.owe(now, 1.0) for each in allowances)
        if wait > WAIT:
            for each in allowances:
                each.give_back()
        return wait


GIB = 1 << 30
ASKING = 5.0  # seconds for the question whether a member has the data


@dataclass(frozen=True, slots=True)
class DataStanding:
    """Whether this machine has a run's data, before it joins."""

    missing: int = 0  # bytes that must be downloaded; 0: all is here
    donors: int = 0  # members that said that they give them
    problem: str = ""  # why it cannot join, and what to do; empty: it can


class Supply:
    """One per node. `paths` are those of --data, `limit` the bytes that it is willing to download of a dataset."""

    def __init__(self, root: Path, paths: Sequence[Path], limit: int, shares: bool, call: Call) -> None:
        self._store = Store(root)
        self._paths = tuple(path.absolute() for path in paths)
        self.limit, self._shares = limit, shares
        self.is_paused = False  # nothing is fetched, and nothing given
        self._closing = False
        self.swarm = Swarm(call, lambda: self._closing or self.is_paused)
        self.serving = Serving()
        self._own: dict[Columns, Dataset] = {}  # the person's text, as it was measured, by the columns of tables
        self._open: dict[Digest, Dataset] = {}  # those that were looked at
        self._fetches: dict[Digest, Fetch] = {}
        self._locks: dict[Digest, asyncio.Lock] = {}
        self._measuring = asyncio.Lock()

    # -- what runs ask --------------------------------------------------------------------------------------

    async def named(self, manifest: Manifest) -> Manifest:
        """A manifest to be founded, with the name of its data; LocalError if this node has not the data."""
        spec = manifest.data
        if spec.name != "files" or spec.pieces or (spec.digest and not self._shares):
            return manifest
        digest = _digest(spec) or (await self._own_text(spec.columns)).digest
        found = await self._find(spec, digest, None)
        if found is None:
            raise LocalError(f"the text that the manifest names is not here; {REMEDY}")
        pieces = {"pieces": found.root.hex(), "size": found.index.size} if self._shares else {}
        data = DataSpec.model_validate({**spec.model_dump(), "digest": digest.hex(), **pieces})
        return manifest.model_copy(update={"data": data})

    async def size(self, spec: DataSpec) -> int:
        """Bytes of a run's text: as named, else as it is here, which is read for it; 0 of what is neither, or none."""
        if spec.name != "files" or spec.size:
            return spec.size
        digest = _digest(spec)
        own = await self._own_if_readable(spec) if self._paths else None
        if own is not None and digest in (None, own.digest):
            return own.index.size
        found = await self._find(spec, digest, _root(spec)) if digest is not None else None
        return found.index.size if found is not None else 0

    def left_out(self, spec: DataSpec) -> list[str]:
        """What of the text at --data is not in a run's data that were made of it, and why."""
        own = self._own.get(spec.columns) if spec.name == "files" else None
        is_of_it = own is not None and own.digest == _digest(spec)
        return own.left_out.words() if own is not None and is_of_it and own.left_out else []

    async def get(self, spec: DataSpec, donors: Callable[[], Sequence[PeerId]]) -> tuple[str, ...]:
        """What a worker is to read, fetched from `donors` if it must be; LocalError or TransportError if it cannot."""
        own = tuple(map(str, self._paths))
        digest = _digest(spec)
        if digest is None:
            return own  # the standard library; or text that nobody has named: what each has
        found = await self._find(spec, digest, _root(spec))
        if found is None:
            if problem := self._problem(spec):
                raise LocalError(problem)
            found = await self._fetch(_wanted(spec), donors)
        return (str(found.path),) if found.path is not None else own

    async def standing(self, spec: DataSpec, members: Sequence[PeerId]) -> DataStanding:
        """Whether the data are here, or whether `members` give them; asks these, and downloads nothing."""
        digest = _digest(spec)
        if digest is None:
            return DataStanding(problem="" if spec.name != "files" or self._paths else "start this node with --data")
        try:
            if digest not in self._fetches and await self._find(spec, digest, _root(spec)) is not None:
                return DataStanding()
        except LocalError as error:
            return DataStanding(problem=str(error))
        if problem := self._problem(spec):
            return DataStanding(problem=problem)
        wanted = _wanted(spec)
        said = await asyncio.gather(*(self._gives(peer, wanted) for peer in members))
        problem = "" if any(said) else f"no member that was asked gives the run's data; {REMEDY}"
        return DataStanding(wanted.size, sum(said), problem)

    async def has(self, spec: DataSpec) -> bool:
        """Whether nothing must be downloaded."""
        digest = _digest(spec)
        return digest is None or await self._find(spec, digest, _root(spec)) is not None

    async def forget(self, spec: DataSpec) -> None:
        """No run of this node is about these data any more."""
        if (digest := _digest(spec)) and digest not in self._fetches:
            self.serving.withdraw(digest)
            self._open.pop(digest, None)
            self._own.clear()  # it may have changed
            await DISK.run(self._store.forget, digest)

    # -- what others see ------------------------------------------------------------------------------------

    def obstacle(self) -> str | None:
        """Which data are on their way, and how far; None if none are."""
        return next((f"getting the data: {fetch.words}" for fetch in self._fetches.values()), None)

    async def answer(self, peer: PeerId, message: GetPiece) -> Message:
        """A peer asks for a piece."""
        if self.is_paused:
            return Refused("this node has no volume left for today")
        return await self.serving.answer(peer, message)

    def close(self) -> None:
        """The node ends: what is on its way stops, and stays."""
        self._closing = True

    # -- inside ---------------------------------------------------------------------------------------------

    async def _find(self, spec: DataSpec, digest: Digest, root: Digest | None) -> Dataset | None:
        """The data, if they are here: in the home, or the person's own."""
        if found := self._open.get(digest):
            return found
        async with self._locks.setdefault(digest, asyncio.Lock()):
            if found := await DISK.run(self._store.open, digest, root):
                return self._keep(found)
            own = await self._own_if_readable(spec) if self._paths else None
            if own is None or own.digest != digest:
                return None
            return self._keep(await self._packed(spec.columns, own) if self._shares else own)

    async def _own_if_readable(self, spec: DataSpec) -> Dataset | None:
        """The text at --data; None if it cannot be read, and members can give the run's data."""
        try:
            return await self._own_text(spec.columns)
        except LocalError as error:
            if self._problem(spec):
                raise
            warn(log, "own-data-not-read", f"the text at --data is not looked at: {error}")
            return None

    async def _own_text(self, columns: Columns) -> Dataset:
        """The name of the text at --data, which is nobody else's as long as no run is about it."""
        async with self._measuring:
            if columns not in self._own:
                if not self._paths:
                    raise LocalError(f"the run is about text of your own; {REMEDY}")
                own = self._own[columns] = await LONG.run(measure, self._paths, columns)
                for words in own.left_out.words() if own.left_out else ():
                    warn(log, "data-left-out", f"of the text at --data {words}")
            return self._own[columns]

    async def _packed(self, columns: Columns, own: Dataset) -> Dataset:
        """A copy of it in the home; LocalError if it has changed since, or there is no room."""
        await DISK.run(self._store.tidy)
        made = await DISK.run(self._store.add, self._paths, columns)
        if made.digest != own.digest:
            self._own.pop(columns, None)
            await DISK.run(self._store.forget, made.digest)
            raise LocalError("the text at --data has changed while it was read: try again")
        return made

    def _keep(self, dataset: Dataset) -> Dataset:
        self._open[dataset.digest] = dataset
        if self._shares and dataset.path is not None:
            self.serving.offer(dataset)
        return dataset

    def _problem(self, spec: DataSpec) -> str:
        """Why the data cannot be downloaded, whoever has them; empty if they can."""
        other = "the text given to --data is not that of the run, and " if self._paths else ""
        if not spec.pieces:
            return f"{other}the run's manifest names no pieces of its data, so members cannot give them; {REMEDY}"
        if spec.size > self.limit:
            return (
                f"{other}the run's data are {spec.size / GIB:.2f} GiB, and this node downloads at most "
                f"{self.limit / GIB:.2f}: start it with a greater --data-limit, or with --data and the same text"
            )
        return ""

    async def _fetch(self, wanted: Wanted, donors: Callable[[], Sequence[PeerId]]) -> Dataset:
        async with self._locks.setdefault(wanted.digest, asyncio.Lock()):
            if found := self._open.get(wanted.digest):  # another run has just got it
                return found
            fetch = self._fetches[wanted.digest] = Fetch(wanted, self._store, self.swarm, donors)
            log.info("getting the data %s (%d bytes)", wanted.digest.hex()[:8], wanted.size)
            try:
                return self._keep(await fetch.run())
            finally:
                del self._fetches[wanted.digest]

    async def _gives(self, peer: PeerId, wanted: Wanted) -> bool:
        """Whether a member has the data, as far as one answer tells."""
        try:
            answer = await self.swarm.call(peer, GetPiece(wanted.root, *THE_TOP), ASKING)
        except ShoalError:
            return False
        is_top = isinstance(answer, PieceIs) and root_of(wanted.size, answer.content) == wanted.root
        return isinstance(answer, Later) or is_top


REMEDY = "start this node with --data and the same text"


def _digest(spec: DataSpec) -> Digest | None:
    return Digest(bytes.fromhex(spec.digest)) if spec.name == "files" and spec.digest else None


def _root(spec: DataSpec) -> Digest | None:
    return Digest(bytes.fromhex(spec.pieces)) if spec.pieces else None


def _wanted(spec: DataSpec) -> Wanted:
    """Of a manifest that names its pieces."""
    return Wanted(Digest(bytes.fromhex(spec.digest)), Digest(bytes.fromhex(spec.pieces)), spec.size)
