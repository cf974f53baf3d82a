"""The donor's side of state transfer: offers a version, pins it while it is asked for, serves its chunks.

Rules:
- `may_offer` says which version may be offered with which root. Where members agree on one state, the next round's
  certificate must name the root, so ours counts only if it is that very state; of replicas, of which each member has
  its own, any version may be offered.
- A lease pins a version until `LEASE` seconds after the joiner last asked for a chunk, said what it has, or asked for
  the results since, but in all no longer than a slow joiner needs; a joiner that had a lease to that end makes room
  for others first.
- A joiner that asks again keeps its version if it can use it: rounds go on, and chunks on their way would be lost.
- Leases, and pinned versions, are bounded in number, and only joiners with a lease are served.
- Of a version that we are downloading ourselves, chunks that have come are served without a lease.
- A chunk is sent late, so waiting ones hold no memory; if its version is gone when its turn comes, it is empty. A
  bounded number wait for each joiner, and none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.protocol.base.effects import Effect, Send, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.base.wire import MAX_INT, Payload
from shoal.protocol.messages.transfer import GetState, GetStateChunk, StateChunk, StateIs

MAX_LEASES = 16
MAX_VERSIONS = 4  # pinned at once: each may be a whole copy of the state
LEASE = 30.0  # seconds after the joiner was last heard
RESULTS = 2  # times a version's size: while results come, and until they are here, others are made
MAX_WAITING = 16  # chunks that wait to be sent to one joiner: a few times as many as it asks for at once
SLOWEST = 32 << 10  # bytes a second, a quarter of 1 Mbit/s: whoever gets less, all in all, does not get there


def state_root(layout: bytes, chunks: Sequence[Digest]) -> Digest:
    """The digest of a whole state: of its layout and its chunks' hashes."""
    return digest("state", layout, *chunks)


class Store(Protocol):
    """Our versions of the state. Those that are not pinned may go at any time: results are applied in a thread."""

    @property
    def size(self) -> int:
        """Bytes of a version."""

    def versions(self) -> Sequence[int]:
        """The rounds whose state is held, oldest first."""

    def describe(self, round: int) -> tuple[bytes, tuple[Digest, ...]] | None:
        """Layout and chunk hashes of a version; None if it is not here."""

    def pin(self, round: int) -> bool:
        """Keep a version from now on; False if it is not here."""

    def unpin_all_but(self, rounds: Sequence[int]) -> None:
        """Keep the other pinned versions no longer."""


class Room(Store, Protocol):
    """The same, with room for a version that is being downloaded: chunks are large, so the cores hold none."""

    def begin(self, round: int, layout: bytes, hashes: Sequence[Digest]) -> set[int]:
        """Make room for this version, in place of any other; the indices of the chunks that are here already."""

    def put(self, index: int, payload: Payload) -> None:
        """A chunk of it has come, and has the right hash."""

    def drop(self) -> None:
        """It is of no use any more."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A version that is pinned for a joiner."""

    version: int
    until: float  # when it ends unless the joiner is heard
    ends: float  # when it ends in any case


def _exactly(round: int) -> range:
    return range(round, round + 1)


class Donor:
    """Serves joiners."""

    def __init__(
        self,
        part: int,
        may_offer: Callable[[int, Digest], bool],
        store: Store,
        is_vouched: Callable[[int, Digest], bool] = lambda round, root: False,
    ) -> None:
        """`may_offer` says of a version's round and root whether it may be offered; else one that `is_vouched` is."""
        self._part = part
        self._may_offer = may_offer
        self._is_vouched = is_vouched
        self._store = store
        self._leases: dict[PeerId, Lease] = {}
        self._waiting: dict[PeerId, set[tuple[int, int]]] = {}  # chunks (version, index) that have not left yet
        self._barred: dict[PeerId, float] = {}  # joiners that had a lease to its end, and until when they get no other
        self._is_watched = False  # whether a `look` is to come

    def __repr__(self) -> str:
        return f"Donor({self._leases})"

    def oldest_lease(self) -> int | None:
        """The oldest pinned version; later rounds must be kept for the joiners that download it."""
        return min((lease.version for lease in self._leases.values()), default=None)

    def room_for_results(self) -> int:
        """Bytes of the results since that version which are kept: for whom there are more, the line is too slow."""
        return RESULTS * self._store.size

    def forget(self) -> None:
        """No version that was pinned is of use any more."""
        self._leases.clear()
        self._unpin()

    def offer(self, now: float, sender: PeerId, message: GetState) -> list[Effect]:
        """Pin a version and send its layout and hashes; no answer if there is none, or too many ask."""
        version = self.lease(now, sender, _exactly(message.round) if message.round else range(message.least, MAX_INT))
        described = self._store.describe(version) if version is not None else None
        if version is None or described is None:
            return []
        return [Send(sender, StateIs(self._part, version, *described))]

    def lease(self, now: float, peer: PeerId, wanted: range) -> int | None:
        """Pin a version of one of the rounds `wanted` for `peer`; None if there is none or no room."""
        self.expire(now)
        before = self._leases.get(peer)
        is_held = before is not None and before.version in wanted and before.version in self._store.versions()
        version = before.version if before is not None and is_held else self._choose(peer, wanted)
        if version is None or not self._store.pin(version):
            return None
        ends = before.ends if before is not None else now + LEASE + self._store.size / SLOWEST
        self._leases[peer] = Lease(version, min(now + LEASE, ends), ends)
        if before is None or before.version != version:
            self._unpin()
        return version

    def renew(self, now: float, peer: PeerId, round: int) -> None:
        """`peer` downloads the version of `round`, or needs the result of it: its lease goes on, if it is of use."""
        lease = self._leases.get(peer)
        if lease is not None and lease.version <= round and now < lease.until:
            self._leases[peer] = replace(lease, until=min(now + LEASE, lease.ends))

    def serve(self, now: float, sender: PeerId, message: GetStateChunk, has_come: bool = False) -> list[Effect]:
        """Send a chunk, empty if the version is not held or `sender` gets no lease; nothing if it already waits.

        `has_come`: it is of a version that we are downloading, and is here. Raises RemoteError if the version has no
        such chunk.
        """
        is_leased = has_come
        if (described := self._store.describe(message.round)) is not None:
            count = len(described[1])
            if message.index >= count:
                raise RemoteError(f"asks for chunk {message.index} of {count}", sender)
            is_leased = self.lease(now, sender, _exactly(message.round)) is not None
        waiting, key = self._waiting.setdefault(sender, set()), (message.round, message.index)
        if key in waiting or len(waiting) >= MAX_WAITING:
            return []
        waiting.add(key)
        return [Send(sender, StateChunk(self._part, message.round, message.index, b""), is_late=is_leased)]

    def payload_done(self, to: PeerId, message: StateChunk) -> None:
        """Note that a chunk waits no more: it was sent or dropped."""
        waiting = self._waiting.get(to, set())
        waiting.discard((message.round, message.index))
        if not waiting:
            self._waiting.pop(to, None)

    def expire(self, now: float) -> None:
        """End leases that have expired."""
        self._barred = {peer: until for peer, until in self._barred.items() if until > now}
        over = {peer: lease for peer, lease in self._leases.items() if lease.until <= now}
        for peer, lease in over.items():
            del self._leases[peer]
            if lease.ends <= now:
                self._barred[peer] = now + LEASE
        if over:
            self._unpin()

    def watch(self, wake: Wake) -> list[Effect]:
        """`wake`, upon which to `look`, if there is a lease, and no `look` is to come already."""
        if self._is_watched or not self._leases:
            return []
        self._is_watched = True
        return [wake]

    def look(self, now: float, wake: Wake) -> list[Effect]:
        """What `watch` has returned is due: end leases that have expired, and `watch` again."""
        self.expire(now)
        self._is_watched = False
        return self.watch(wake)

    # -- inside ---------------------------------------------------------------------------------------------

    def _choose(self, peer: PeerId, wanted: range) -> int | None:
        """The newest version among `wanted` that may be offered and that there is room to pin."""
        others = [lease.version for holder, lease in self._leases.items() if holder != peer]
        if peer in self._barred or len(others) >= MAX_LEASES:
            return None
        versions = [version for version in self._store.versions() if version in wanted]
        if len(set(others)) >= MAX_VERSIONS:
            versions = [version for version in versions if version in others]
        described = {version: self._store.describe(version) for version in versions}
        roots = {version: state_root(*each) for version, each in described.items() if each is not None}
        offered = [version for version, root in roots.items() if self._may_offer(version, root)]
        vouched = [version for version, root in roots.items() if not offered and self._is_vouched(version, root)]
        found = offered or vouched
        return found[-1] if found else None

    def _unpin(self) -> None:
        self._store.unpin_all_but(sorted({lease.version for lease in self._leases.values()}))
