"""What an earlier process of this peer has left of the log."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.messages.log import Decided, Register, VoteFile, Way

FOUNDING_LIFE = 1  # that of the founder's first vote file: everybody knows it from the run's id


@dataclass(frozen=True, slots=True)
class Kept:
    """What the journal says."""

    first: Register  # before the entries
    way: Way  # that leads there
    register: Register  # after them
    entries: tuple[Decided, ...]
    votes: VoteFile
    was_away: bool = False  # for so long that the others may have gone on without it
