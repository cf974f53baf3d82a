"""Several versions of one model as one scorer: a sequence is written to its end with the weights that it began with.

Rules:
- A sequence belongs to the newest version there is when its first tokens are read, and to no other until it ends: so
  its keys and values are never those of other weights. A step calls each version that has sequences in it once.
- At most `MOST` versions are here at once. Each is a whole set of weights and a call of its own in every step, so with
  more of them both memory and the gain of batches would be lost. While there is no room nothing newer is taken, and
  new sequences begin with the newest that is here.
- A version that is not the newest is let go of with its last sequence.
- `take` and what reads are called from any thread; the rest by the engine's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.node.serve.scorer import LogProbs, Piece, Scorer, SomeFailed, in_words
from shoal.protocol.errors import ShoalError
from shoal.protocol.ids import Digest

MOST = 3  # versions: that of new texts, that of those which began before the last commit, and one that ends slowly


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """The model as a round has left it."""

    scorer: Scorer
    round: int
    root: Digest


class LiveScorer:
    """See Scorer, Telling and Changing."""

    def __init__(self, first: Version) -> None:
        self.vocab, self.limit, self.slots = first.scorer.vocab, first.scorer.limit, first.scorer.slots
        self.standing: Mapping[str, Any] = {}  # what is told of the source; replaced as a whole
        self._newest = first
        self._held: dict[int, Version] = {}  # by slots
        self._lock = threading.Lock()  # guards both

    @property
    def version(self) -> str:
        """See Scorer."""
        return self._newest.scorer.version

    @property
    def newest(self) -> Version:
        """That of sequences which begin now."""
        return self._newest

    @property
    def versions(self) -> int:
        """How many are here."""
        with self._lock:
            return len({id(each) for each in (self._newest, *self._held.values())})

    @property
    def has_room(self) -> bool:
        """Whether another version may be taken, which frees the newest if nobody writes with that."""
        with self._lock:
            held = {id(each) for each in self._held.values()}
            return len(held) < MOST

    def take(self, version: Version) -> None:
        """From now on sequences begin with this one."""
        with self._lock:
            self._newest = version

    def version_of(self, slot: int) -> str:
        """See Changing."""
        return self._held[slot].scorer.version

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        with self._lock:
            for piece in pieces:
                self._held.setdefault(piece.slot, self._newest)
        numbers: dict[Version, list[int]] = {}
        for number, piece in enumerate(pieces):
            numbers.setdefault(self._held[piece.slot], []).append(number)
        if len(numbers) == 1:
            return next(iter(numbers)).scorer.extend(pieces)
        rows = np.zeros((len(pieces), self.vocab), np.float32)
        failed: dict[int, ShoalError] = {}
        for version, its in numbers.items():
            part = [pieces[number] for number in its]
            try:
                rows[its] = version.scorer.extend(part)
            except Exception as error:  # of these weights, out of memory: those of other versions go on
                failed |= dict.fromkeys((piece.slot for piece in part), in_words(error))
        if failed:
            raise SomeFailed(rows, failed)
        return rows

    def end(self, slot: int) -> None:
        """See Scorer."""
        with self._lock:
            version = self._held.pop(slot, None)
        if version is not None:
            version.scorer.end(slot)

    def about(self) -> dict[str, Any]:
        """See Telling."""
        newest = self._newest
        return {"round": newest.round, "root": newest.root.hex(), "versions": self.versions, **self.standing}

    def told(self, slot: int) -> dict[str, Any]:
        """See Telling: the weights that wrote it."""
        version = self._held[slot]
        return {"round": version.round, "root": version.root.hex()}
