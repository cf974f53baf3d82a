"""The data of this node's runs: found on this machine, packed, downloaded, and served to others.

Having data (`Supply`):
- The node's home is searched first, then the person's own text (--data) if it is what a manifest names; then other
  members are asked. So a node whose --data belong to another run still downloads what it lacks, and it does not matter
  if files were changed since they were packed.
- Data that a node shares are packed into its home, so they do not change while others download or train. A node that
  does not share makes no copy, and names no pieces in the manifests that it founds. Text at --data that no run of the
  node is about is never given to anybody.
- A dataset is verified to the last byte once in a process's life. It is never downloaded twice at a time.

Serving data (`Serving`):
- There is a rate limit for each peer and one for all together. A peer that asks for more is told to come back later,
  so that rounds and other joiners find room on the line.
- Pieces are read in threads, few at a time, and hashed before they are sent: after a disk error this node must not send
  wrong data, for which its peers would blame it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.node.api.answers import Download
from shoal.node.base.logs import warn
from shoal.node.base.pools import DISK, LONG
from shoal.node.manifest.data import Columns
from shoal.node.manifest.manifest import DataSpec, Manifest
from shoal.node.training.data.fetch import Call, DatasetRef, DonorCalls, Fetch
from shoal.node.training.data.pieces import TOP_BLOB, Blob, root_of
from shoal.node.training.data.store import Dataset, Store, measure
from shoal.protocol.base.allowance import Allowance, Allowances
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece, Later, PieceIs
from shoal.protocol.messages.node import Refused

PER_PEER_RATE = (64.0, 64.0)  # blobs for one peer, in a burst and per second: 16 MiB
TOTAL_RATE = (128.0, 128.0)  # blobs for all peers
MAX_PEERS = 1024  # whose rates are remembered
RETRY_AFTER = 2.0  # seconds, told to a peer if a piece cannot be read now
MAX_WAIT = 1.0  # seconds that a request may wait for its turn
READING = 4  # blobs that are read at a time

log = logging.getLogger("shoal.data")


class Serving:
    """Serves the datasets that this node shares, by their roots."""

    def __init__(self) -> None:
        self._datasets: dict[Digest, Dataset] = {}
        self._per_peer: Allowances[PeerId] = Allowances(*PER_PEER_RATE, MAX_PEERS)
        self._total = Allowance(*TOTAL_RATE)
        self._reading = asyncio.Semaphore(READING)

    def offer(self, dataset: Dataset) -> None:
        """Serves this dataset from now on."""
        self._datasets[dataset.root] = dataset

    def withdraw(self, digest: Digest) -> None:
        """Stops serving this dataset."""
        self._datasets = {root: each for root, each in self._datasets.items() if each.digest != digest}

    async def answer(self, peer: PeerId, message: GetPiece) -> Message:
        """The answer to a peer's request: the bytes, or why they are not sent."""
        dataset, blob = self._datasets.get(message.dataset), Blob(message.level, message.number)
        if dataset is None or not dataset.index.shape.length(blob):
            return Refused("these data are not here, or not given away")
        wait = self._turn(peer, asyncio.get_running_loop().time())
        if wait > MAX_WAIT:
            return Later(round(wait * 1000))
        await asyncio.sleep(wait)
        async with self._reading:
            try:
                content = await DISK.run(dataset.read, blob)
            except OSError as error:
                log.debug("a piece cannot be read now: %s", error)
                return Later(round(RETRY_AFTER * 1000))
        if content is None:
            self._datasets.pop(dataset.root, None)
            warn(log, "data-damaged", f"{dataset.path} is damaged, so it is not given away; a restart mends it")
            return Refused("these data are damaged here")
        return PieceIs(content)

    def _turn(self, peer: PeerId, now: float) -> float:
        """Seconds until it is this peer's turn. If they are more than MAX_WAIT, the request does not count."""
        allowances = (self._per_peer.of(peer), self._total)
        wait = max(each.owe(now, 1.0) for each in allowances)
        if wait > MAX_WAIT:
            for each in allowances:
                each.give_back()
        return wait


GIB = 1 << 30
ASK_TIMEOUT = 5.0  # seconds to ask a member whether it has the data


@dataclass(frozen=True, slots=True)
class DataStanding:
    """Whether this machine has a run's data, before it joins."""

    missing: int = 0  # bytes that must be downloaded
    donors: int = 0  # members that said that they serve them
    problem: str = ""  # why this machine cannot join, and what to do; empty: it can
    code: str = ""  # of that


HERE = DataStanding()


class Supply:
    """The datasets of a node. `paths` are those of --data; `limit` is the most bytes of a dataset that it downloads."""

    def __init__(self, root: Path, paths: Sequence[Path], limit: int, shares: bool, call: Call) -> None:
        self._store = Store(root)
        self._paths = tuple(path.absolute() for path in paths)
        self.limit, self._shares = limit, shares
        self.is_paused = False  # then nothing is downloaded or served
        self._closing = False
        self.calls = DonorCalls(call, lambda: self._closing or self.is_paused)
        self.serving = Serving()
        self._own: dict[Columns, Dataset] = {}  # the text at --data, as it was measured, by the columns of tables
        self._open: dict[Digest, Dataset] = {}  # datasets that were verified
        self._fetches: dict[Digest, Fetch] = {}
        self._locks: dict[Digest, asyncio.Lock] = {}
        self._measuring = asyncio.Lock()

    # -- for runs -------------------------------------------------------------------------------------------

    async def named(self, manifest: Manifest) -> Manifest:
        """The manifest of a run that is being founded, with the digests of its data; LocalError if they are missing"""
        spec = manifest.data
        if spec.name != "files" or spec.pieces or (spec.digest and not self._shares):
            return manifest
        digest = _digest(spec) or (await self._own_text(spec.columns)).digest
        found = await self._find(spec, digest, None)
        if found is None:
            raise LocalError(f"the text that the manifest names is not here; {REMEDY}", code="data-missing")
        pieces = {"pieces": found.root.hex(), "size": found.index.size} if self._shares else {}
        data = DataSpec.model_validate({**spec.model_dump(), "digest": digest.hex(), **pieces})
        return manifest.model_copy(update={"data": data})

    async def size(self, spec: DataSpec) -> int:
        """Bytes of a run's text by the manifest, else as measured on this machine; 0 if unknown, or not of `files`."""
        if spec.name != "files" or spec.size:
            return spec.size
        digest = _digest(spec)
        own = await self._own_if_readable(spec) if self._paths else None
        if own is not None and digest in (None, own.digest):
            return own.index.size
        found = await self._find(spec, digest, _root(spec)) if digest is not None else None
        return found.index.size if found is not None else 0

    def left_out(self, spec: DataSpec) -> list[str]:
        """What was left out of the text at --data, and why, if the run's data were made of it."""
        own = self._own.get(spec.columns) if spec.name == "files" else None
        is_of_it = own is not None and own.digest == _digest(spec)
        return own.left_out.words() if own is not None and is_of_it and own.left_out else []

    async def get(self, spec: DataSpec, donors: Callable[[], Sequence[PeerId]]) -> tuple[str, ...]:
        """The paths of the data for a worker, downloaded from `donors` if necessary.

        Raises LocalError or TransportError if that is impossible.
        """
        own = tuple(map(str, self._paths))
        digest = _digest(spec)
        if digest is None:
            return own  # the standard library; or text without a digest, which may differ between members
        found = await self._find(spec, digest, _root(spec))
        if found is None:
            if refused := self._refused(spec):
                raise refused
            found = await self._fetch(_ref(spec), donors)
        return (str(found.path),) if found.path is not None else own

    async def standing(self, spec: DataSpec, members: Sequence[PeerId]) -> DataStanding:
        """Whether the data are here, or else whether `members` serve them. Asks the members, and downloads nothing."""
        digest = _digest(spec)
        if digest is None:
            is_lacking = spec.name == "files" and not self._paths
            return DataStanding(problem="start this node with --data", code="data-missing") if is_lacking else HERE
        try:
            if digest not in self._fetches and await self._find(spec, digest, _root(spec)) is not None:
                return HERE
        except LocalError as error:
            return DataStanding(problem=str(error), code=error.code)
        if refused := self._refused(spec):
            return DataStanding(problem=str(refused), code=refused.code)
        wanted = _ref(spec)
        said = await asyncio.gather(*(self._is_donor(peer, wanted) for peer in members))
        if not any(said):
            words = f"no member that was asked gives the run's data; {REMEDY}"
            return DataStanding(wanted.size, problem=words, code="data-nowhere")
        return DataStanding(wanted.size, sum(said))

    async def has(self, spec: DataSpec) -> bool:
        """Whether nothing must be downloaded."""
        digest = _digest(spec)
        return digest is None or await self._find(spec, digest, _root(spec)) is not None

    async def forget(self, spec: DataSpec) -> None:
        """Deletes data that no run of this node is about any more, and stops serving them."""
        if (digest := _digest(spec)) and digest not in self._fetches:
            self.serving.withdraw(digest)
            self._open.pop(digest, None)
            self._own.clear()  # the text at --data may have changed
            await DISK.run(self._store.forget, digest)

    # -- for the node and its peers -------------------------------------------------------------------------

    def obstacle(self) -> str | None:
        """The progress of a download in words; None if there is none."""
        return next((f"getting the data: {fetch.words}" for fetch in self._fetches.values()), None)

    def download(self) -> Download | None:
        """The same for programs."""
        return next((Download(here=each.here, whole=each.wanted.size) for each in self._fetches.values()), None)

    async def answer(self, peer: PeerId, message: GetPiece) -> Message:
        """The answer to a peer that asks for a piece."""
        if self.is_paused:
            return Refused("this node is paused, and gives no data meanwhile")
        return await self.serving.answer(peer, message)

    def close(self) -> None:
        """Stops downloads as the node ends; pieces that have come are kept."""
        self._closing = True

    # -- inside ---------------------------------------------------------------------------------------------

    async def _find(self, spec: DataSpec, digest: Digest, root: Digest | None) -> Dataset | None:
        """The data, if they are in the home or at --data."""
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
        """The text at --data; None if it cannot be read but the run's data can be downloaded."""
        try:
            return await self._own_text(spec.columns)
        except LocalError as error:
            if self._refused(spec):
                raise
            warn(log, "own-data-not-read", f"the text at --data is not looked at: {error}")
            return None

    async def _own_text(self, columns: Columns) -> Dataset:
        """The text at --data, measured (hashed) but not packed; LocalError if there is none."""
        async with self._measuring:
            if columns not in self._own:
                if not self._paths:
                    raise LocalError(
                        "the run is about text of your own: start this node with --data and that text",
                        code="data-missing",
                    )
                own = self._own[columns] = await LONG.run(measure, self._paths, columns)
                for words in own.left_out.words() if own.left_out else ():
                    warn(log, "data-left-out", f"of the text at --data {words}")
            return self._own[columns]

    async def _packed(self, columns: Columns, own: Dataset) -> Dataset:
        """Packs the text at --data into the home; LocalError if it has changed since, or there is no room."""
        await DISK.run(self._store.tidy)
        made = await DISK.run(self._store.add, self._paths, columns)
        if made.digest != own.digest:
            self._own.pop(columns, None)
            await DISK.run(self._store.forget, made.digest)
            raise LocalError("the text at --data has changed while it was read: try again", code="data-changed")
        return made

    def _keep(self, dataset: Dataset) -> Dataset:
        self._open[dataset.digest] = dataset
        if self._shares and dataset.path is not None:
            self.serving.offer(dataset)
        return dataset

    def _refused(self, spec: DataSpec) -> LocalError | None:
        """Why the data cannot be downloaded from any member; None if they can."""
        other = "the text given to --data is not that of the run, and " if self._paths else ""
        if not spec.pieces:
            return LocalError(
                f"{other}the run's manifest names no pieces of its data, so members cannot give them; {REMEDY}",
                code="other-data" if self._paths else "data-missing",
            )
        if spec.size > self.limit:
            return LocalError(
                f"{other}the run's data are {spec.size / GIB:.2f} GiB, and this node downloads at most "
                f"{self.limit / GIB:.2f}: start it with a greater --data-limit, or with --data and the same text",
                code="data-too-large",
            )
        return None

    async def _fetch(self, wanted: DatasetRef, donors: Callable[[], Sequence[PeerId]]) -> Dataset:
        async with self._locks.setdefault(wanted.digest, asyncio.Lock()):
            if found := self._open.get(wanted.digest):  # another run has just downloaded it
                return found
            fetch = self._fetches[wanted.digest] = Fetch(wanted, self._store, self.calls, donors)
            log.info("getting the data %s (%d bytes)", wanted.digest.hex()[:8], wanted.size)
            try:
                return self._keep(await fetch.run())
            finally:
                del self._fetches[wanted.digest]

    async def _is_donor(self, peer: PeerId, wanted: DatasetRef) -> bool:
        """Whether a member serves the data, as far as one answer tells."""
        try:
            answer = await self.calls.call(peer, GetPiece(wanted.root, *TOP_BLOB), ASK_TIMEOUT)
        except ShoalError:
            return False
        is_top = isinstance(answer, PieceIs) and root_of(wanted.size, answer.content) == wanted.root
        return isinstance(answer, Later) or is_top


REMEDY = "start this node with --data and the same text"


def _digest(spec: DataSpec) -> Digest | None:
    return Digest(bytes.fromhex(spec.digest)) if spec.name == "files" and spec.digest else None


def _root(spec: DataSpec) -> Digest | None:
    return Digest(bytes.fromhex(spec.pieces)) if spec.pieces else None


def _ref(spec: DataSpec) -> DatasetRef:
    """The data of a manifest that names their pieces."""
    return DatasetRef(Digest(bytes.fromhex(spec.digest)), Digest(bytes.fromhex(spec.pieces)), spec.size)
