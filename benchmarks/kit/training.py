"""What is trained in the benchmark goodput.py, by Shoal and by others, whose Python has nothing of Shoal's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Training:
    """A decoder of bytes, and a member's steps from one average to the next."""

    dim: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int = 128
    context: int = 64
    vocab: int = 256
    inner_steps: int = 20
    batch: int = 4  # sequences

    @property
    def tokens(self) -> int:
        """That one step learns from."""
        return self.batch * self.context


@dataclass(frozen=True, slots=True)
class HivemindTask:
    """What a peer of goodput_hivemind.py is told at its start."""

    reports: str  # the file that it writes to
    known: list[str]  # addresses of peers that live; none: it is the first
    peers: int
    matchmaking: float  # seconds
    averaging: float  # seconds, at most
