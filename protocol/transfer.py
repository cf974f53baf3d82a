"""Catching up: check the chain of rounds, get one certified version of the state from several donors at once.

    joiner                                      donors
    GET_CHAIN(after) ─────────────────────────► one
             ◄───────────────────────── CHAIN   until the newest round is known
    GET_STATE(any) ───────────────────────────► one, then GET_STATE(that round) to others
             ◄───────────────────────── STATE_IS, pinned
    GET_STATE_CHUNK(i) ... ───────────────────► all of them, a few at a time each
             ◄───────────────────────── STATE_CHUNK

Rules: a version counts only if the next round's certificate names its root, so donors offer the version before
their newest; the rounds after it are replayed by `rounds`. Every chunk is checked by hash; who sends a wrong one is
named and not asked again. A silent donor's chunks are asked of others. A donor pins a version as long as it is
asked for chunks, and for `LEASE` seconds more, for a bounded number of joiners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.protocol.allreduce import Blamed
from shoal.protocol.effects import Effect, Event, Send, Tell, Timer, Wake
from shoal.protocol.errors import RemoteError
from shoal.protocol.history import History
from shoal.protocol.ids import Digest, PeerId, content_hash, digest
from shoal.protocol.matchmaking import View
from shoal.protocol.messages.transfer import Chain, GetChain, GetState, GetStateChunk, StateChunk, StateIs
from shoal.protocol.roster import Base
from shoal.protocol.wire import Message

WINDOW = 4  # chunks asked of one donor at a time
MAX_DONORS = 8
MAX_LEASES = 16
LEASE = 30.0  # seconds
PATIENCE = 3.0  # seconds without an answer before another donor is asked


def state_root(layout: bytes, chunks: Sequence[Digest]) -> Digest:
    """The one digest of a state: its layout and its chunks' hashes."""
    return digest("state", layout, *chunks)


class Store(Protocol):
    """The donor's versions of the state."""

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


@dataclass(frozen=True, slots=True)
class StateReceived(Event):
    """A certified version is here: install it, then open rounds on `base`."""

    base: Base
    layout: bytes
    payloads: tuple[bytes, ...]


@dataclass(slots=True)
class Download:
    """A version in the making."""

    base: Base
    layout: bytes
    hashes: tuple[Digest, ...]
    payloads: dict[int, bytes] = field(default_factory=dict)
    asked: dict[int, tuple[PeerId, float]] = field(default_factory=dict)
    donors: list[PeerId] = field(default_factory=list)

    def unasked(self) -> list[int]:
        """Chunks that nobody is asked for."""
        return [index for index in range(len(self.hashes)) if index not in self.payloads and index not in self.asked]

    def drop(self, donor: PeerId) -> None:
        """Ask `donor` for nothing more."""
        self.donors = [peer for peer in self.donors if peer != donor]
        self.asked = {index: asked for index, asked in self.asked.items() if asked[0] != donor}


class Transfer:
    """One member's side of state transfer: joiner when it must be, donor whenever it can."""

    def __init__(self, me: PeerId, part: int, history: History, view: View, store: Store) -> None:
        self._me = me
        self._part = part
        self._history = history
        self._view = view
        self._store = store
        self._leases: dict[PeerId, tuple[int, float]] = {}
        self._download: Download | None = None
        self._source: PeerId | None = None
        self._heard_at = 0.0
        self._liars: list[PeerId] = []
        self._tries = 0
        self._token = 0
        self.active = False

    def progress(self) -> tuple[int, int]:
        """(chunks here, chunks in all) of the current download."""
        return (len(self._download.payloads), len(self._download.hashes)) if self._download else (0, 0)

    def oldest_lease(self) -> int | None:
        """The oldest version that a joiner is downloading; later rounds must be kept for it."""
        return min((round for round, _ in self._leases.values()), default=None)

    # -- joiner ---------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Catch up with whoever is ahead; once started, it goes on until it is done."""
        if self.active:
            return []
        self.active, self._download = True, None
        self._token += 1
        return [*self._ask_chain(now), self._wake()]

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Look after silent donors and after leases that have run out."""
        self._expire_leases(now)
        if timer.token != self._token or not self.active:
            return []
        effects: list[Effect] = [self._wake()]
        if self._download is None:
            return effects + (self._ask_chain(now) if now - self._heard_at > PATIENCE else [])
        late = [donor for donor, at in self._download.asked.values() if now - at > PATIENCE]
        for donor in dict.fromkeys(late):
            self._download.drop(donor)
        if not self._download.donors:
            self._download = None
            return effects + self._ask_chain(now)
        return effects + self._ask_chunks(now)

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Any message of state transfer."""
        match message:
            case GetChain():
                links = self._history.after(message.after)
                return [Send(sender, Chain(self._part, links, self._history.newest))]
            case GetState():
                return self._offer(now, sender, message.round)
            case GetStateChunk():
                return self._serve(now, sender, message)
            case Chain() if self.active and self._download is None:
                return self._receive_chain(now, sender, message)
            case StateIs() if self.active:
                return self._receive_offer(now, sender, message)
            case StateChunk() if self._download is not None:
                return self._receive_chunk(now, sender, message)
        return []

    def _ask_chain(self, now: float) -> list[Effect]:
        self._heard_at = now
        donors = self._candidates()
        if not donors:
            return []
        self._source = donors[self._tries % len(donors)]
        self._tries += 1
        return [Send(self._source, GetChain(self._part, self._history.newest))]

    def _candidates(self) -> list[PeerId]:
        """Members that have committed something, most advanced first."""

        def round_of(peer: PeerId) -> int:
            status = self._view.status(peer)
            return status.round if status is not None else 0

        known = [peer for peer in self._view.alive() if round_of(peer) > 0 and peer not in self._liars]
        return sorted(known, key=lambda peer: (-round_of(peer), peer))[:MAX_DONORS]

    def _receive_chain(self, now: float, sender: PeerId, message: Chain) -> list[Effect]:
        self._history.extend(message.certificates, sender)
        self._heard_at = now
        if message.certificates and self._history.newest < message.newest:
            return [Send(sender, GetChain(self._part, self._history.newest))]
        return [Send(sender, GetState(self._part, 0))]

    def _receive_offer(self, now: float, sender: PeerId, message: StateIs) -> list[Effect]:
        root = state_root(message.layout, message.chunks)
        if self._download is None:
            if self._history.certified_root(message.round) != root:
                raise RemoteError(f"offers a state of round {message.round} that no certificate names", sender)
            base = self._history.base(message.round, root)
            self._download = Download(base, message.layout, message.chunks)
            others = [peer for peer in self._candidates() if peer != sender]
            effects: list[Effect] = [Send(peer, GetState(self._part, message.round)) for peer in others]
        elif message.round == self._download.base.round and root == self._download.base.root:
            effects = []
        else:
            return []
        if sender not in self._download.donors:
            self._download.donors.append(sender)
        return effects + self._ask_chunks(now) + self._finish_if_complete()

    def _receive_chunk(self, now: float, sender: PeerId, message: StateChunk) -> list[Effect]:
        download = self._download
        assert download is not None
        asked = download.asked.get(message.index)
        if message.round != download.base.round or asked is None or asked[0] != sender:
            return []
        if content_hash(message.payload) != download.hashes[message.index]:
            download.drop(sender)
            if not message.payload:
                return self._ask_chunks(now)
            self._liars.append(sender)
            reason = f"sent a wrong chunk {message.index} of the state"
            return [Tell(Blamed(sender, reason)), *self._ask_chunks(now)]
        del download.asked[message.index]
        download.payloads[message.index] = message.payload
        return self._ask_chunks(now) + self._finish_if_complete()

    def _ask_chunks(self, now: float) -> list[Effect]:
        """Keep every donor busy with a few chunks."""
        download = self._download
        assert download is not None
        effects: list[Effect] = []
        unasked = download.unasked()
        for donor in download.donors:
            busy = sum(asked[0] == donor for asked in download.asked.values())
            for index in unasked[: WINDOW - busy]:
                download.asked[index] = (donor, now)
                effects.append(Send(donor, GetStateChunk(self._part, download.base.round, index)))
            unasked = unasked[max(0, WINDOW - busy) :]
        return effects

    def _finish_if_complete(self) -> list[Effect]:
        download = self._download
        if download is None or len(download.payloads) < len(download.hashes):
            return []
        self.active, self._download = False, None
        payloads = tuple(download.payloads[index] for index in range(len(download.hashes)))
        return [Tell(StateReceived(download.base, download.layout, payloads))]

    # -- donor ----------------------------------------------------------------------------------------------

    def _offer(self, now: float, sender: PeerId, round: int) -> list[Effect]:
        certified = [version for version in self._store.versions() if self._history.certified_root(version)]
        if round:
            certified = [version for version in certified if version == round]
        is_full = sender not in self._leases and len(self._leases) >= MAX_LEASES
        if not certified or is_full:
            return []
        self._leases[sender] = (certified[-1], now + LEASE)
        self._repin()
        layout, chunks = self._store.describe(certified[-1])
        return [Send(sender, StateIs(self._part, certified[-1], layout, chunks))]

    def _serve(self, now: float, sender: PeerId, message: GetStateChunk) -> list[Effect]:
        payload = b""
        if message.round in self._store.versions():
            _, chunks = self._store.describe(message.round)
            if message.index >= len(chunks):
                raise RemoteError(f"asks for chunk {message.index} of {len(chunks)}", sender)
            payload = self._store.chunk(message.round, message.index)
            if sender in self._leases:
                self._leases[sender] = (message.round, now + LEASE)
        return [Send(sender, StateChunk(self._part, message.round, message.index, payload))]

    def _expire_leases(self, now: float) -> None:
        live = {peer: lease for peer, lease in self._leases.items() if lease[1] > now}
        if len(live) != len(self._leases):
            self._leases = live
            self._repin()

    def _repin(self) -> None:
        self._store.pin(sorted({round for round, _ in self._leases.values()}))

    def _wake(self) -> Wake:
        return Wake(PATIENCE / 3, Timer("transfer", "look", self._token, str(self._part)))
