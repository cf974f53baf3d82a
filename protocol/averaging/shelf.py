"""The means of rounds by their hashes: what this round's may turn out to be, and what the last rounds decided.

Bytes are taken only if their owner vouches for them, or if their sender was asked for them by hash, and only if they
are a mean at all: what every member is going to apply must be readable.

A decided round stays until the next one is decided. If somebody has fetched of it, it stays for KEPT_ROUNDS; and for as
long as somebody who is catching up leases the state before it, while there is room. After that its means are on our
disk alone, until there is a later state on it, and for a while after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.protocol.averaging.reducer import Reducer
from shoal.protocol.base.errors import PayloadError, RemoteError
from shoal.protocol.base.ids import Digest, PeerId, digest, result_hash
from shoal.protocol.base.wire import Payload
from shoal.protocol.messages.averaging import Made, Mean
from shoal.protocol.messages.log import Result

MOST_WRITTEN = 1 << 14  # means that are known to be on our disk, in some megabytes of memory
KEPT_ROUNDS = 3  # decided rounds that are kept for whoever fetches of them


def table_digest(means: Sequence[Made]) -> Digest:
    """By which a result names its means: by their bits and masks, whoever made them, in whichever run.

    So the history of a run that is repeated, or goes on from a checkpoint, is the same.
    """
    return digest("table of means", *(part for made in means for part in (made.hash, made.mask)))


@dataclass(frozen=True, slots=True)
class Decision:
    """A round that is decided, with all its bytes."""

    number: int  # of its entry
    result: Result
    roster: tuple[PeerId, ...]
    means: tuple[Made, ...]
    payloads: tuple[Payload, ...]

    @property
    def round(self) -> int:
        """Which round."""
        return self.result.round

    @property
    def tokens(self) -> int:
        """Behind the contributions of those who are counted in every chunk."""
        return sum(self.result.weights)


@dataclass(frozen=True, slots=True)
class Written:
    """What is known of a decided round whose bytes are on our disk."""

    round: int
    table: Digest
    means: tuple[Made, ...]


class Leases(Protocol):
    """What those who catch up need. It is asked when a round is decided: the first that a joiner needs may be next."""

    def oldest_lease(self) -> int | None:
        """The oldest version of the state that somebody downloads."""

    def room_for_results(self) -> int:
        """How many bytes of results may be kept for that."""


class Archive(Protocol):
    """Means on our disk."""

    def holds(self, round: int) -> bool:
        """Whether those of a decided round, which was written, are still there."""


class Shelf:
    """One part's means."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[int, Digest], tuple[Made, Payload]] = {}  # of the open round, by chunk and hash
        self._asked: dict[tuple[int, Digest], set[PeerId]] = {}  # who was
        self._tables: dict[Digest, tuple[Made, ...]] = {}  # of the open round
        self._decisions: dict[int, Decision] = {}
        self._sought: set[int] = set()  # decided rounds of which somebody has fetched
        self._reducer: Reducer | None = None
        self.unkept: int | None = None  # the last decided round, until its means are on our disk
        self.leases: Leases | None = None
        self.archive: Archive | None = None
        self._written: dict[int, Written] = {}  # the oldest first
        self._written_means = 0  # of all of those

    def __repr__(self) -> str:
        return f"Shelf(bytes={len(self._bytes)}, decisions={sorted(self._decisions)})"

    def recall(self, written: Sequence[Written]) -> None:
        """What an earlier process of ours has left on our disk, the oldest first."""
        for each in written:
            self._note_written(each)

    def open(self, reducer: Reducer) -> None:
        """A new round begins; the means of the last one live on in its decision."""
        self._reducer = reducer
        self._bytes.clear()
        self._asked.clear()
        self._tables.clear()

    def forget(self) -> None:
        """No decided round counts any more."""
        self._decisions.clear()
        self._written.clear()
        self._written_means = 0
        self._sought.clear()
        self.unkept = None

    def undo(self, round: int) -> None:
        """That decided round counts no more."""
        self._decisions.pop(round, None)
        self._drop_written(round)
        self._sought.discard(round)

    # -- the open round -----------------------------------------------------------------------------------------

    def check(self, chunk: int, payload: Payload, sender: PeerId) -> None:
        """PayloadError, naming the sender, for bytes that nobody could apply."""
        assert self._reducer is not None
        try:
            self._reducer.check(chunk, payload)
        except PayloadError as error:
            raise PayloadError(f"sent a bad mean of chunk {chunk}: {error.reason}", sender) from error

    def put(self, chunk: int, made: Made, payload: Payload) -> bool:
        """Keep a mean that was checked; whether it is new."""
        is_new = (chunk, made.hash) not in self._bytes
        self._bytes.setdefault((chunk, made.hash), (made, payload))
        return is_new

    def put_table(self, means: tuple[Made, ...]) -> None:
        """Know a table by its digest."""
        self._tables[table_digest(means)] = means

    def table(self, name: Digest) -> tuple[Made, ...] | None:
        """The table with this digest, of the open round."""
        return self._tables.get(name)

    def missing(self, means: Sequence[Made]) -> list[int]:
        """Which of these chunks are not here."""
        return [chunk for chunk, made in enumerate(means) if (chunk, made.hash) not in self._bytes]

    def collect(self, means: Sequence[Made]) -> tuple[Payload, ...]:
        """The bytes of these means, all of which are here."""
        return tuple(self._bytes[chunk, made.hash][1] for chunk, made in enumerate(means))

    def ask(self, chunk: int, hash: Digest, source: PeerId) -> None:
        """Note that `source` is asked for a mean by its hash."""
        self._asked.setdefault((chunk, hash), set()).add(source)

    def was_asked(self, message: Mean, sender: PeerId) -> bool:
        """Whether `sender` was asked for this by its hash; RemoteError if the bytes are others."""
        if result_hash(message.made.mask, message.payload) != message.made.hash:
            raise RemoteError(f"sent other bytes of chunk {message.chunk} than it says", sender)
        return sender in self._asked.get((message.chunk, message.made.hash), ())

    # -- all of them --------------------------------------------------------------------------------------------

    def decide(self, decision: Decision) -> None:
        """Keep a decided round for those who missed it."""
        self._decisions[decision.round] = decision
        self._forget(decision.round - 1)

    def decision(self, round: int) -> Decision | None:
        """A decided round, if it is still kept."""
        return self._decisions.get(round)

    def served(self, round: int) -> Written | None:
        """What is known of a decided round whose bytes are here, or on our disk."""
        if (decision := self._decisions.get(round)) is not None:
            return Written(round, decision.result.table, decision.means)
        return self._written.get(round) if self._is_on_disk(round) else None

    def find(self, part: int, round: int, chunk: int, hash: Digest) -> Mean | None:
        """A mean of this or of a decided round; its bytes are left out if they are on our disk only."""
        known, decision = self.served(round), self._decisions.get(round)
        if known is not None and chunk < len(known.means) and known.means[chunk].hash == hash:
            if decision is None:
                return Mean(part, round, chunk, known.means[chunk], b"")
            self._sought.add(round)
            return Mean(part, round, chunk, known.means[chunk], decision.payloads[chunk])
        found = self._bytes.get((chunk, hash))
        return Mean(part, round, chunk, *found) if found is not None else None

    def find_table(self, round: int, name: Digest) -> tuple[Made, ...] | None:
        """A table of this or of a decided round."""
        known = self.served(round)
        if known is not None and known.table == name:
            return known.means
        return self._tables.get(name)

    def _forget(self, last: int) -> None:
        """Keep no round up to `last`, but for those that somebody fetches of, or leases."""
        newest = max(self._decisions)
        leased = self._leased(newest)
        for round in [round for round in self._decisions if round <= min(last, leased)]:
            if round not in self._sought or round <= newest - KEPT_ROUNDS:
                decision = self._decisions.pop(round)
                self._note_written(Written(round, decision.result.table, decision.means))
                self._sought.discard(round)
        while (oldest := next(iter(self._written), None)) is not None and not self._is_on_disk(oldest):
            self._drop_written(oldest)

    def _is_on_disk(self, round: int) -> bool:
        return self.archive is not None and self.archive.holds(round)

    def _note_written(self, written: Written) -> None:
        self._drop_written(written.round)
        self._written[written.round] = written
        self._written_means += len(written.means)
        while self._written_means > MOST_WRITTEN:
            self._drop_written(next(iter(self._written)))

    def _drop_written(self, round: int) -> None:
        if (written := self._written.pop(round, None)) is not None:
            self._written_means -= len(written.means)

    def _leased(self, newest: int) -> int:
        """All rounds after this one are kept for those who download the state before them."""
        version = self.leases.oldest_lease() if self.leases is not None else None
        if self.leases is None or version is None:
            return newest
        room = self.leases.room_for_results()
        for round in sorted(self._decisions, reverse=True):
            room -= sum(map(len, self._decisions[round].payloads))
            if room < 0:
                return max(version, round)
        return version
