"""The mark in a run's log by which a stopped node says that it has kept its vote, and who else must be back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.protocol.base.ids import short

NAMED = 6  # peers, in one sentence


@dataclass(frozen=True, slots=True)
class KeptVote:
    """Without it those who stay cannot decide anything; with it they can, unless other voters are `away`, too."""

    voters: int = 0  # of the run
    away: tuple[str, ...] = ()  # peers

    def write(self, path: Path) -> None:
        """OSError if that is impossible."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> KeptVote:
        """What is marked there; what cannot be read says of nobody that it is away."""
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            return cls(int(said["voters"]), tuple(map(str, said["away"])))
        except (OSError, ValueError, LookupError, TypeError):
            return cls()

    def words(self, name: str) -> str:
        """A sentence about the run of this name and the node that was stopped."""
        if not self.away:
            return f"it keeps {name} until it is started again"
        away = f"this node and {names(self.away)} are away"
        return f"{name} waits until a quorum of its {self.voters} voters is back: {away}"


def names(peers: Sequence[str]) -> str:
    """Peers by their short names, in words."""
    every = [short(peer) for peer in peers]
    rest = len(every) - NAMED
    return ", ".join(every[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
