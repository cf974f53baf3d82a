"""What follows from the log that an earlier process of this peer has left; read once, as a long log takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shoal.protocol.averaging.certified import Certified
from shoal.protocol.averaging.context import Outcome
from shoal.protocol.averaging.policy import Base
from shoal.protocol.averaging.replay import outcome_of, written
from shoal.protocol.averaging.shelf import KEPT_ROUNDS, MOST_WRITTEN, Archive, Written
from shoal.protocol.log.register import Rules, body_of, steps
from shoal.protocol.log.shortcuts import Shortcuts, beginning
from shoal.protocol.member.facts import PART, RunFacts
from shoal.protocol.messages.averaging import Mean, Table
from shoal.protocol.messages.log import Decided, Register, VoteFile, Way


@dataclass(frozen=True, slots=True)
class Kept:
    """What the journal says."""

    first: Register  # before the entries
    way: Way  # that leads there
    register: Register  # after them
    entries: tuple[Decided, ...]
    votes: VoteFile
    was_away: bool = False  # for so long that the others may have gone on without it


@dataclass(slots=True)
class Past:
    """See `recall`."""

    kept: Kept
    shortcuts: Shortcuts
    certified: Certified
    outcomes: dict[int, Outcome | None]  # by round, what the log has decided; None where that was undone
    means: tuple[Mean | Table, ...] = ()
    written: tuple[Written, ...] = ()  # the oldest first
    archive: Archive | None = None  # the means on our disk

    def keep_tables(self, applied: int, tables: Callable[[int], Iterable[Table]]) -> None:
        """Know of the rounds that are applied here what others may still want.

        `tables` gives those of a round all of whose means are on our disk.
        """
        found, room = list[Written](), MOST_WRITTEN
        for round in sorted((round for round in self.outcomes if round <= applied), reverse=True):
            outcome = self.outcomes[round]
            known = written(outcome, tables(round)) if outcome is not None else None
            room -= len(known.means) if known is not None else 0
            if room < 0:
                break
            found += [known] if known is not None else []
        self.written = tuple(reversed(found))

    def keep_means(self, base: Base | None, read: Callable[[int], Iterable[Mean | Table]]) -> None:
        """Take those on our disk that somebody may need: of where we stand, of what follows, and of the last rounds.

        `read` gives what is there of a round. Of other rounds there may be more than fits into memory.
        """
        last = max((part.round for part in self.kept.register.parts), default=0)
        here = {base.round, base.round + 1} if base is not None else set()
        rounds = sorted(here.union(range(last - KEPT_ROUNDS + 1, last + 2)))
        self.means = tuple(record for round in rounds for record in read(round))


def recall(facts: RunFacts, kept: Kept, rules: Rules) -> Past:
    """What the log of a run says in which this peer was before."""
    shortcuts = Shortcuts(beginning(facts.register(), kept.way, rules), kept.way, kept.first)
    past = Past(kept, shortcuts, Certified(facts.origin, kept.first, PART), {})
    for before, decided, register in steps(kept.first, kept.entries, rules):
        body = body_of(decided.entry.body)
        shortcuts.read(before, decided, register)
        past.certified.recall(body, register)
        if (ended := outcome_of(before, decided.entry.number, body, PART)) is not None:
            round, past.outcomes[round] = ended
    return past
