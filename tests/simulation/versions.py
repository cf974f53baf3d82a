"""The state of a simulated swarm: chunks of bytes, of which each peer holds the newest two versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.protocol.base.ids import Digest, content_hash
from shoal.protocol.base.wire import Payload
from shoal.protocol.catchup.donor import state_root
from tests.simulation.uplink import PAYLOAD

LAYOUT = b"simulated"


def initial_state(chunks: int) -> list[bytes]:
    """The state that the manifest's seed gives."""
    return [b"initial"] * chunks


def root_of(state: Sequence[bytes]) -> Digest:
    """The state root as production computes it."""
    return state_root(LAYOUT, [content_hash(chunk) for chunk in state])


@dataclass
class Versions:
    """A Room: the newest two versions and the pinned ones. What comes is on a disk, which outlives the process."""

    states: dict[int, list[bytes]] = field(default_factory=dict)
    pinned: tuple[int, ...] = ()
    disk: dict[Digest, bytes] = field(default_factory=dict)  # chunks that have come
    wanted: tuple[int, tuple[Digest, ...]] | None = None  # the round and the chunks of what is being downloaded

    @property
    def size(self) -> int:
        return PAYLOAD * max((len(state) for state in self.states.values()), default=0)

    def versions(self) -> list[int]:
        return sorted(self.states)

    def describe(self, round: int) -> tuple[bytes, tuple[Digest, ...]] | None:
        if round not in self.states:
            return None
        return LAYOUT, tuple(content_hash(chunk) for chunk in self.states[round])

    def chunk(self, round: int, index: int) -> bytes:
        if round in self.states:
            return self.states[round][index]
        hashes = self.wanted[1] if self.wanted is not None and self.wanted[0] == round else ()
        return self.disk.get(hashes[index], b"") if hashes else b""

    def pin(self, round: int) -> bool:
        if round in self.states and round not in self.pinned:
            self.pinned = (*self.pinned, round)
        return round in self.states

    def unpin_all_but(self, rounds: Sequence[int]) -> None:
        self.pinned = tuple(round for round in self.pinned if round in rounds)

    def begin(self, round: int, layout: bytes, hashes: Sequence[Digest]) -> set[int]:
        self.wanted = round, tuple(hashes)
        return {index for index, each in enumerate(hashes) if each in self.disk}

    def put(self, index: int, payload: Payload) -> None:
        assert self.wanted is not None
        assert content_hash(payload) == self.wanted[1][index]
        self.disk[self.wanted[1][index]] = bytes(payload)

    def drop(self) -> None:
        self.wanted = None
        self.disk.clear()

    def take(self) -> list[bytes]:
        """The state that was downloaded."""
        assert self.wanted is not None
        state = [self.disk[each] for each in self.wanted[1]]
        self.drop()
        return state

    def add(self, round: int, state: list[bytes]) -> None:
        """A version that we have made."""
        self.states = {kept: old for kept, old in self.states.items() if kept < round} | {round: state}
        newest = sorted(self.states)[-2:]
        self.states = {kept: self.states[kept] for kept in self.states if kept in newest or kept in self.pinned}
