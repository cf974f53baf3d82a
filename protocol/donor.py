"""The donor's side of state transfer: offer a certified version, pin it while it is asked for, serve its chunks.

Rules: only a version whose root the next round's certificate names is offered, and only if ours is that very state;
a version is pinned until `LEASE` seconds after the last chunk that was asked of it, for a bounded number of joiners.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.protocol.effects import Effect, Send
from shoal.protocol.errors import RemoteError
from shoal.protocol.history import History
from shoal.protocol.ids import Digest, PeerId, digest
from shoal.protocol.messages.transfer import GetState, GetStateChunk, StateChunk, StateIs

MAX_LEASES = 16
LEASE = 30.0  # seconds


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
        """A chunk's bytes."""
        ...

    def pin(self, rounds: Sequence[int]) -> None:
        """Keep these versions, and only these beside the newest two."""
        ...


class Donor:
    """Serves those who catch up."""

    def __init__(self, part: int, history: History, store: Store) -> None:
        self._part = part
        self._history = history
        self._store = store
        self._leases: dict[PeerId, tuple[int, float]] = {}  # version, until when

    def __repr__(self) -> str:
        return f"Donor({self._leases})"

    @property
    def has_leases(self) -> bool:
        """Whether somebody is catching up from us."""
        return bool(self._leases)

    def oldest_lease(self) -> int | None:
        """The oldest version that is pinned; later rounds must be kept for whoever downloads it."""
        return min((round for round, _ in self._leases.values()), default=None)

    def offer(self, now: float, sender: PeerId, message: GetState) -> list[Effect]:
        """Pin a version and say what it is made of; silence if there is none, or too many ask."""
        self.expire(now)
        certified = [version for version in self._store.versions() if self._is_certified(version)]
        if message.round:
            certified = [version for version in certified if version == message.round]
        is_full = sender not in self._leases and len(self._leases) >= MAX_LEASES
        if not certified or is_full:
            return []
        version = certified[-1]
        self._lease(now, sender, version)
        layout, chunks = self._store.describe(version)
        return [Send(sender, StateIs(self._part, version, layout, chunks))]

    def serve(self, now: float, sender: PeerId, message: GetStateChunk) -> list[Effect]:
        """One chunk; empty if the version is here no more."""
        if message.round not in self._store.versions():
            return [Send(sender, StateChunk(self._part, message.round, message.index, b""))]
        _, chunks = self._store.describe(message.round)
        if message.index >= len(chunks):
            raise RemoteError(f"asks for chunk {message.index} of {len(chunks)}", sender)
        if sender in self._leases:
            self._lease(now, sender, message.round)
        payload = self._store.chunk(message.round, message.index)
        return [Send(sender, StateChunk(self._part, message.round, message.index, payload))]

    def expire(self, now: float) -> None:
        """End the leases that have run out."""
        live = {peer: lease for peer, lease in self._leases.items() if lease[1] > now}
        if len(live) != len(self._leases):
            self._leases = live
            self._pin()

    # -- inside ---------------------------------------------------------------------------------------------

    def _is_certified(self, version: int) -> bool:
        root = self._history.certified_root(version)
        return root is not None and root == state_root(*self._store.describe(version))

    def _lease(self, now: float, peer: PeerId, version: int) -> None:
        before = self._leases.get(peer)
        self._leases[peer] = (version, now + LEASE)
        if before is None or before[0] != version:
            self._pin()

    def _pin(self) -> None:
        self._store.pin(sorted({round for round, _ in self._leases.values()}))
