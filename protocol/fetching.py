"""Getting the bytes that a result names: by hash, from one holder after the other."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.effects import Effect
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import ChunkRef
from shoal.protocol.shelf import Shelf


class Fetching:
    """Asks another holder each time, so that one who lacks the bytes, or withholds them, costs one turn only."""

    def __init__(self, shelf: Shelf, round: int, part: int) -> None:
        self._shelf = shelf
        self._round = round
        self._part = part
        self._turn = 0

    def ask(self, refs: Sequence[ChunkRef], chunks: Sequence[int], holders: Sequence[PeerId]) -> list[Effect]:
        """Ask the next of `holders` for these of the chunks that `refs` name."""
        if not chunks or not holders:
            return []
        source = holders[self._turn % len(holders)]
        self._turn += 1
        return [self._shelf.fetch(self._round, self._part, chunk, refs[chunk].hash, source) for chunk in chunks]
