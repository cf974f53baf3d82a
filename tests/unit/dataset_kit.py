"""Datasets for tests, and donors that answer from them, lie, die or dawdle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from shoal.node.training.data.fetch import DatasetRef
from shoal.node.training.data.pieces import PIECES, Blob
from shoal.node.training.data.store import Dataset, Store
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece, PieceIs
from shoal.protocol.messages.node import Refused

ANNA, BOB, CARL, LIAR = (PeerId(name) for name in ("anna", "bob", "carl", "liar"))
Donor = Callable[[GetPiece], Message]


def write_texts(root: Path, seed: int = 0, files: int = 7, size: int = 200_000) -> Path:
    """A folder of texts; 7 of 200 kB make six pieces."""
    source = random.Random(seed)
    for number in range(files):
        path = root / f"part {number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(source.choices("abcdefgh \n", k=1000)) * (size // 1000))
    return root


def packed(tmp_path: Path, seed: int = 0, files: int = 7) -> Dataset:
    """A whole dataset in a store of its own."""
    texts = write_texts(tmp_path / f"texts-{seed}-{files}", seed, files)
    return Store(tmp_path / f"origin-{seed}-{files}").add([texts])


def wanted(dataset: Dataset) -> DatasetRef:
    return DatasetRef(dataset.digest, dataset.root, dataset.index.size)


def honest(dataset: Dataset) -> Donor:
    def answer(message: GetPiece) -> Message:
        content = dataset.read(Blob(message.level, message.number))
        return PieceIs(content) if content is not None else Refused("no")

    return answer


def lying(dataset: Dataset) -> Donor:
    """Answers with true hashes and wrong data."""

    def answer(message: GetPiece) -> Message:
        content = dataset.read(Blob(message.level, message.number)) or b""
        return PieceIs(content[::-1] if message.level == PIECES else content)

    return answer


def dying(donor: Donor, after: int) -> Donor:
    """Answers `after` questions, and no more."""
    left = iter(range(after))

    def answer(message: GetPiece) -> Message:
        if next(left, None) is None:
            raise TransportError("gone")
        return donor(message)

    return answer


class Peers:
    """The network as a fetch sees it; counts what is asked."""

    def __init__(self, **donors: Donor) -> None:
        self.donors = {PeerId(name): donor for name, donor in donors.items()}
        self.asked: list[tuple[PeerId, Blob]] = []
        self.at_once = self.most_at_once = 0

    async def call(self, peer: PeerId, message: Message, timeout: float) -> Message:
        assert isinstance(message, GetPiece)
        self.asked.append((peer, Blob(message.level, message.number)))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return self.donors[peer](message)

    def names(self) -> list[PeerId]:
        return list(self.donors)

    def pieces_of(self, peer: PeerId) -> int:
        return sum(1 for each, blob in self.asked if each == peer and blob.level == PIECES)
