"""The bytes of rounds: what this round's chunks may turn out to be, and what the last rounds were.

Bytes are taken only if their sender was asked for them by hash, or they came from a chunk's owner, and only if they
are a mean at all: what every member is going to apply must be readable.

A decided round stays until the next one is decided: till then, voters that have stopped may need it to go on. If
somebody has fetched of it, it stays for KEPT_ROUNDS; and for as long as somebody who is catching up leases it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.errors import PayloadError, RemoteError
from shoal.protocol.base.ids import Digest, PeerId, result_hash
from shoal.protocol.base.wire import Payload
from shoal.protocol.messages.rounds import Ask, Certificate, ChunkRef, Commit, Fetch, Fetched
from shoal.protocol.rounds.allreduce.reducer import Reducer

KEPT_ROUNDS, MOST_ROUNDS = 3, 32  # decided rounds that are kept for whoever fetches of them; and under a lease


@dataclass(frozen=True, slots=True)
class Decision:
    """A committed round: the proof, the hashes, the bytes."""

    certificate: Certificate
    chunks: tuple[ChunkRef, ...]
    payloads: tuple[Payload, ...]

    @property
    def round(self) -> int:
        """Which round."""
        return self.certificate.proposal.round


class Shelf:
    """One part's bytes."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[int, Digest], tuple[bytes, Payload]] = {}  # (mask, payload)
        self._asked: dict[tuple[int, Digest], set[PeerId]] = {}  # who was
        self._decisions: dict[int, Decision] = {}
        self._sought: set[int] = set()  # decided rounds of which somebody has fetched
        self._reducer: Reducer | None = None
        self.keep_after: int | None = None  # rounds above this one are leased by somebody who catches up

    def __repr__(self) -> str:
        return f"Shelf(bytes={len(self._bytes)}, asked={len(self._asked)}, decisions={sorted(self._decisions)})"

    def open(self, reducer: Reducer) -> None:
        """A new round begins; the bytes of the last one live on in its decision."""
        self._reducer = reducer
        self._bytes.clear()
        self._asked.clear()

    def check(self, chunk: int, payload: Payload, sender: PeerId) -> None:
        """PayloadError, naming the sender, for bytes that nobody could apply."""
        assert self._reducer is not None
        try:
            self._reducer.check(chunk, payload)
        except PayloadError as error:
            raise PayloadError(f"sent a bad result of chunk {chunk}: {error.reason}", sender) from error

    def put(self, chunk: int, hash: Digest, mask: bytes, payload: Payload) -> None:
        """Bytes that we made ourselves or got from the chunk's owner."""
        self._bytes[chunk, hash] = (mask, payload)

    def missing(self, chunks: Sequence[ChunkRef]) -> list[int]:
        """Which of these chunks are not here."""
        held = [self._bytes.get((index, ref.hash)) for index, ref in enumerate(chunks)]
        return [index for index, ref in enumerate(chunks) if (each := held[index]) is None or each[0] != ref.mask]

    def collect(self, chunks: Sequence[ChunkRef]) -> tuple[Payload, ...]:
        """The bytes of these chunks, all of which are here."""
        return tuple(self._bytes[index, ref.hash][1] for index, ref in enumerate(chunks))

    def fetch(self, round: int, part: int, chunk: int, hash: Digest, source: PeerId) -> Send:
        """Ask `source` for a chunk by hash."""
        self._asked.setdefault((chunk, hash), set()).add(source)
        return Send(source, Fetch(round, part, chunk, hash))

    def take(self, sender: PeerId, message: Fetched) -> bool:
        """Whether bytes are new; RemoteError if they are not what the hash says, or nobody asked `sender` for them."""
        key = (message.chunk, result_hash(message.mask, message.payload))
        if sender not in self._asked.get(key, ()):
            raise RemoteError(f"sent bytes of chunk {message.chunk} that nobody asked for", sender)
        if key in self._bytes:
            return False
        self.check(message.chunk, message.payload, sender)
        self._bytes[key] = (message.mask, message.payload)
        return True

    def decide(self, decision: Decision) -> None:
        """Keep a decided round for those who missed it."""
        self._decisions[decision.round] = decision
        self._forget(decision.round - 1)

    def decision(self, round: int) -> Decision | None:
        """A decided round, if it is still kept."""
        return self._decisions.get(round)

    def answer(self, sender: PeerId, message: Fetch | Ask) -> list[Effect]:
        """Serve somebody who missed something."""
        decision = self._decisions.get(message.round)
        if isinstance(message, Ask):
            return [Send(sender, Commit(decision.certificate, decision.chunks))] if decision else []
        found = self._bytes.get((message.chunk, message.hash))
        if decision is not None and message.chunk < len(decision.chunks):
            ref = decision.chunks[message.chunk]
            if ref.hash == message.hash:
                self._sought.add(message.round)
                found = (ref.mask, decision.payloads[message.chunk])
        if found is None:
            return []
        return [Send(sender, Fetched(message.round, message.part, message.chunk, *found))]

    def _forget(self, last: int) -> None:
        """Keep no round up to `last`, but for those that somebody fetches of, or leases."""
        newest = max(self._decisions)
        leased = newest if self.keep_after is None else max(self.keep_after, newest - MOST_ROUNDS)
        for round in [round for round in self._decisions if round <= min(last, leased)]:
            if round not in self._sought or round <= newest - KEPT_ROUNDS:
                del self._decisions[round]
                self._sought.discard(round)
