"""The experts' files on this node: made here or fetched, kept, and given to whoever asks for them.

Files are given and fetched by the code for the text of runs (node/training/data/): pieces by the root of their tree,
from any holder, each checked on arrival; a peer that sends a wrong one is named, and not asked again.

    experts/<hash>/expert.safetensors    and beside it what a Store has

Rules:
- All files together take no more of the disk than --data-limit allows; files that were made here are always kept.
- A node that does not share data gives its own experts all the same, as a family needs them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from shoal.node.base.pools import DISK
from shoal.node.experts.card import Write, hash_file, wanted
from shoal.node.experts.parts import words
from shoal.node.training.data.fetch import Fetch
from shoal.node.training.data.store import Dataset, Store
from shoal.node.training.data.supply import GIB, Supply
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.directory import ExpertCard

FILE = "expert.safetensors"


class Library:
    """One per node. `supply` serves what is offered here, and knows whom not to ask."""

    def __init__(self, root: Path, supply: Supply) -> None:
        self._root, self._supply = root, supply
        self._store = Store(root, FILE, hash_file)
        self._held: dict[Digest, Dataset] = {}
        self._fetching = WeakValueDictionary[Digest, asyncio.Lock]()  # of those that somebody waits for
        self._tidying, self._is_tidy = asyncio.Lock(), False

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return sum(each.index.size for each in self._held.values())

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be fetched."""
        return self.used + size <= self._supply.limit

    def has(self, file: Digest) -> bool:
        """Whether the file is here."""
        return file in self._held

    def place(self, file: Digest) -> Path:
        """Where a file lies, or would."""
        return self._root / file.hex() / FILE

    def held(self, file: Digest) -> Dataset | None:
        """The file, if it is here."""
        return self._held.get(file)

    def path(self, file: Digest) -> Path:
        """Where a file that is here lies."""
        found = self._held[file].path
        assert found is not None
        return found

    async def make(self, write: Write) -> Dataset:
        """A file of our own; LocalError if it cannot be written."""
        return self._keep(await DISK.run(self._store.take, write))

    async def open(self, card: ExpertCard) -> bool:
        """Whether a file of our last life is here and whole; it is read to the last byte."""
        if not self.has(card.file) and (found := await DISK.run(self._store.open, card.file, card.root)):
            self._keep(found)
        return self.has(card.file)

    async def fetch(self, card: ExpertCard, donors: Callable[[], Sequence[PeerId]]) -> Path:
        """The card's file, from whoever has it; LocalError if it has no room, TransportError if nobody gives it."""
        lock = self._fetching.setdefault(card.file, asyncio.Lock())
        async with lock:
            if not await self.open(card):
                if not self.has_room(card.size):
                    raise LocalError(
                        f"{words(card.part, card.round)} has {card.size} bytes: with the files that are here, that "
                        f"is more than {self._supply.limit / GIB:g} GiB: start this node with a greater --data-limit"
                    )
                self._keep(await self._get(card, donors))
        return self.path(card.file)

    async def _get(self, card: ExpertCard, donors: Callable[[], Sequence[PeerId]]) -> Dataset:
        try:
            return await Fetch(wanted(card), self._store, self._supply.calls, donors).run()
        except ShoalError as error:
            raise TransportError(
                f"{words(card.part, card.round)} cannot be fetched: nobody that can be reached gives the file"
            ) from error

    async def drop(self, file: Digest) -> None:
        """The file is of no use any more."""
        if self._held.pop(file, None) is not None:
            self._supply.serving.withdraw(file)
            await DISK.run(self._store.forget, file)

    async def tidy(self, known: Callable[[], Iterable[Digest]]) -> None:
        """Remove what no family of this node knows of, as a crash may have left it; once, before anything is here."""

        def remove() -> None:
            names = {each.hex() for each in known()}
            for path in self._root.glob("*"):
                if path.name not in names:
                    shutil.rmtree(path, ignore_errors=True)

        async with self._tidying:
            if not self._is_tidy:
                self._is_tidy = True
                await DISK.run(remove)

    def _keep(self, dataset: Dataset) -> Dataset:
        self._held[dataset.digest] = dataset
        self._supply.serving.offer(dataset)
        return dataset
