"""The state of a simulated swarm: chunks of bytes, of which each peer holds the newest two versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.protocol.base.ids import Digest, content_hash
from shoal.protocol.catchup.donor import state_root

LAYOUT = b"simulated"


def initial_state(chunks: int) -> list[bytes]:
    """The state that the manifest's seed gives."""
    return [b"initial"] * chunks


def root_of(state: Sequence[bytes]) -> Digest:
    """The state root as production computes it."""
    return state_root(LAYOUT, [content_hash(chunk) for chunk in state])


@dataclass
class Versions:
    """A Store: the newest two versions and the pinned ones."""

    states: dict[int, list[bytes]] = field(default_factory=dict)
    pinned: tuple[int, ...] = ()

    def versions(self) -> list[int]:
        return sorted(self.states)

    def describe(self, round: int) -> tuple[bytes, tuple[Digest, ...]]:
        return LAYOUT, tuple(content_hash(chunk) for chunk in self.states[round])

    def chunk(self, round: int, index: int) -> bytes:
        return self.states[round][index] if round in self.states else b""

    def pin(self, rounds: Sequence[int]) -> None:
        self.pinned = tuple(rounds)

    def put(self, round: int, state: list[bytes]) -> None:
        self.states = {kept: old for kept, old in self.states.items() if kept < round} | {round: state}
        newest = sorted(self.states)[-2:]
        self.states = {kept: self.states[kept] for kept in self.states if kept in newest or kept in self.pinned}
