"""The donor's side of state transfer: offer a version, pin it while it is asked for, serve its chunks.

Rules: `may_offer` says which version may be offered with which root: where members agree on one state, that whose root
the next round's certificate names, so ours only if it is that very state; of replicas, of which each is its own, any.
A lease pins a version until `LEASE` seconds after the last chunk that was asked of it, but however it is used no longer
than a slow joiner needs; who had one to its end makes room for others first. Who asks again keeps its version if that
is of use to it: rounds go on, and what is on its way would be lost. Leases, and versions that are pinned, are bounded
in number, and only who has a lease is served. A chunk is read when its turn to leave comes, so what waits holds no
memory; so many wait for each who asks, and none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.base.wire import MAX_INT
from shoal.protocol.messages.transfer import GetState, GetStateChunk, StateChunk, StateIs

MAX_LEASES = 16
MAX_VERSIONS = 4  # that are pinned at once: each may be a whole copy of the state
LEASE = 30.0  # seconds
MAX_WAITING = 16  # chunks of one joiner that wait here to be sent: a few times what it asks for at a time
SLOWEST = 10.0  # seconds that a joiner may take for a chunk, all chunks together


def state_root(layout: bytes, chunks: Sequence[Digest]) -> Digest:
    """The one digest of a state: its layout and its chunks' hashes."""
    return digest("state", layout, *chunks)


class Store(Protocol):
    """Our versions of the state."""

    def versions(self) -> Sequence[int]:
        """Rounds whose state is here, oldest first."""
        ...

    def describe(self, round: int) -> tuple[bytes, tuple[Digest, ...]]:
        """Layout and chunk hashes of a version."""
        ...

    def chunk(self, round: int, index: int) -> bytes:
        """A chunk's bytes; none if the version is here no more. In any thread."""
        ...

    def pin(self, rounds: Sequence[int]) -> None:
        """Keep these versions, and only these beside the newest two."""
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """A version that is pinned for somebody."""

    version: int
    until: float  # if no chunk is asked for
    ends: float  # whatever is asked for


def _exactly(round: int) -> range:
    return range(round, round + 1)


class Donor:
    """Serves those who catch up."""

    def __init__(self, part: int, may_offer: Callable[[int, Digest], bool], store: Store) -> None:
        self._part = part
        self._may_offer = may_offer
        self._store = store
        self._leases: dict[PeerId, Lease] = {}
        self._waiting: dict[PeerId, set[tuple[int, int]]] = {}  # chunks (version, index) that have not left yet
        self._resting: dict[PeerId, float] = {}  # who had a lease to its end; until when it gets no other

    def __repr__(self) -> str:
        return f"Donor({self._leases})"

    @property
    def has_leases(self) -> bool:
        """Whether somebody is catching up from us."""
        return bool(self._leases)

    def oldest_lease(self) -> int | None:
        """The oldest version that is pinned; later rounds must be kept for whoever downloads it."""
        return min((lease.version for lease in self._leases.values()), default=None)

    def offer(self, now: float, sender: PeerId, message: GetState) -> list[Effect]:
        """Pin a version and say what it is made of; silence if there is none, or too many ask."""
        version = self.lease(now, sender, _exactly(message.round) if message.round else range(message.least, MAX_INT))
        if version is None:
            return []
        layout, chunks = self._store.describe(version)
        return [Send(sender, StateIs(self._part, version, layout, chunks))]

    def lease(self, now: float, peer: PeerId, wanted: range) -> int | None:
        """Pin a version of the rounds `wanted` for `peer` from now on; None if that cannot be."""
        self.expire(now)
        before = self._leases.get(peer)
        version = before.version if before is not None and before.version in wanted else self._choose(peer, wanted)
        if version is None:
            return None
        _, chunks = self._store.describe(version)
        ends = before.ends if before is not None else now + LEASE + SLOWEST * len(chunks)
        self._leases[peer] = Lease(version, min(now + LEASE, ends), ends)
        if before is None or before.version != version:
            self._pin()
        return version

    def serve(self, now: float, sender: PeerId, message: GetStateChunk) -> list[Effect]:
        """One chunk; empty if the version is here no more, or not for `sender`. Nothing if it is about to leave."""
        is_leased = False
        if message.round in self._store.versions():
            _, chunks = self._store.describe(message.round)
            if message.index >= len(chunks):
                raise RemoteError(f"asks for chunk {message.index} of {len(chunks)}", sender)
            is_leased = self.lease(now, sender, _exactly(message.round)) is not None
        waiting, key = self._waiting.setdefault(sender, set()), (message.round, message.index)
        if key in waiting or len(waiting) >= MAX_WAITING:
            return []
        waiting.add(key)
        read = partial(self._store.chunk, *key) if is_leased else None
        return [Send(sender, StateChunk(self._part, message.round, message.index, b""), read)]

    def left(self, to: PeerId, message: StateChunk) -> None:
        """A chunk waits here no more: it was sent, or dropped."""
        waiting = self._waiting.get(to, set())
        waiting.discard((message.round, message.index))
        if not waiting:
            self._waiting.pop(to, None)

    def expire(self, now: float) -> None:
        """End the leases that have run out."""
        self._resting = {peer: until for peer, until in self._resting.items() if until > now}
        over = {peer: lease for peer, lease in self._leases.items() if lease.until <= now}
        for peer, lease in over.items():
            del self._leases[peer]
            if lease.ends <= now:
                self._resting[peer] = now + LEASE
        if over:
            self._pin()

    # -- inside ---------------------------------------------------------------------------------------------

    def _choose(self, peer: PeerId, wanted: range) -> int | None:
        """A version that there is a place for."""
        others = [lease.version for holder, lease in self._leases.items() if holder != peer]
        if peer in self._resting or len(others) >= MAX_LEASES:
            return None
        versions = [version for version in self._store.versions() if version in wanted]
        if len(set(others)) >= MAX_VERSIONS:
            versions = [version for version in versions if version in others]
        offered = [each for each in versions if self._may_offer(each, state_root(*self._store.describe(each)))]
        return offered[-1] if offered else None

    def _pin(self) -> None:
        self._store.pin(sorted({lease.version for lease in self._leases.values()}))
