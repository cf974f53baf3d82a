"""The experts' files on this node: made here or fetched, kept, and given to peers that ask for them.

Files are given and fetched by the code for the text of runs (node/training/data/): pieces of a hash tree, from any
holder, each checked on arrival; a peer that sends a wrong piece is named, and not asked again.

    experts/<hash>/expert.safetensors    with a Store's other files beside it

Rules:
- All files together take no more disk space than --data-limit allows; files that were made here are always kept.
- A node that does not share data still gives its own experts, as a family needs them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from shoal.node.base.pools import DISK
from shoal.node.experts.card import WriteFile, hash_file, wanted
from shoal.node.experts.parts import words
from shoal.node.training.data.fetch import Fetch
from shoal.node.training.data.store import Dataset, Store
from shoal.node.training.data.supply import GIB, Supply
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.directory import ExpertCard

FILE = "expert.safetensors"


class Library:
    """One per node. `supply` serves the files, and knows which peers not to ask."""

    def __init__(self, root: Path, supply: Supply) -> None:
        self._root, self._supply = root, supply
        self._store = Store(root, FILE, hash_file)
        self._held: dict[Digest, Dataset] = {}
        self._fetching = WeakValueDictionary[Digest, asyncio.Lock]()  # one for each file that a task waits for
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
        """Where a file is, or would be."""
        return self._root / file.hex() / FILE

    def held(self, file: Digest) -> Dataset | None:
        """The file, if it is here."""
        return self._held.get(file)

    def path(self, file: Digest) -> Path:
        """Where a file that is here is."""
        found = self._held[file].path
        assert found is not None
        return found

    async def make(self, write: WriteFile) -> Dataset:
        """Add a file that `write` makes; LocalError if it cannot be written."""
        return self._keep(await DISK.run(self._store.take, write))

    async def open(self, card: ExpertCard) -> bool:
        """Whether the file is here and whole; one from before a restart is read completely."""
        if not self.has(card.file) and (found := await DISK.run(self._store.open, card.file, card.root)):
            self._keep(found)
        return self.has(card.file)

    async def fetch(self, card: ExpertCard, donors: Callable[[], Sequence[PeerId]]) -> Path:
        """The card's file, fetched if need be; LocalError if there is no room, TransportError if no peer gives it."""
        lock = self._fetching.setdefault(card.file, asyncio.Lock())
        async with lock:
            if not await self.open(card):
                if not self.has_room(card.size):
                    raise LocalError(
                        f"{words(card.part, card.round)} has {card.size} bytes: with the files that are here, that "
                        f"is more than {self._supply.limit / GIB:g} GiB: start this node with a greater --data-limit",
                        code="no-room",
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
        """Remove a file."""
        if self._held.pop(file, None) is not None:
            self._supply.serving.withdraw(file)
            await DISK.run(self._store.forget, file)

    async def tidy(self, known: Callable[[], Iterable[Digest]]) -> None:
        """Remove files that no family knows, as a crash may leave them; only the first call has an effect."""

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
