"""What a member writes of each part, and when: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.dht.directory import EVERY
from shoal.node.experts.leases import RENEW
from shoal.protocol.messages.directory import PartEntry

if TYPE_CHECKING:
    from shoal.node.experts.family import Family

AGAIN = 2.0  # seconds until a writing that nobody took is tried again
HOLDERS = 4  # of one file that say so, beside its author and who trains the part


@dataclass(slots=True)
class Told:
    """What we have written about a part."""

    entry: PartEntry | None = None
    next_at: float = 0.0

    def is_due(self, now: float, entry: PartEntry | None) -> bool:
        """Whether that is missing, old or wrong. That training goes on is no reason: the next renewal says it."""
        if entry is None:
            return self.entry is not None
        return now >= self.next_at or self.entry is None or _substance(entry) != _substance(self.entry)

    def wrote(self, now: float, entry: PartEntry | None, held: bool) -> None:
        """`held`: at least one server has it."""
        self.entry = entry
        pause = EVERY if entry is not None and not entry.term else RENEW
        self.next_at = now + (pause if held else AGAIN)


def _substance(entry: PartEntry) -> tuple[object, ...]:
    return entry.addresses, entry.term, entry.run, entry.card, entry.answers


def entry_of(family: Family, part: str, addresses: tuple[str, ...]) -> PartEntry | None:
    """What we have to say of a part: that we train it, have its file, or answer for it; None: nothing."""
    card, mine, answers = family.keeping.held.get(part), family.claims.mine, family.answered(part)
    if mine is not None and mine.part == part:
        run = family.pursuit.open_run if family.pursuit.part == part else None
        if run is None:
            return PartEntry(addresses, mine.term, None, 0, None, card, answers)
        loss = run.training.loss if run.training is not None else None
        return PartEntry(addresses, mine.term, run.id, run.outer.committed.current.round, loss, card, answers)
    if card is None and answers is None:
        return None
    if answers is not None or card is None or family.is_told(card) or len(family.view.tellers(card)) < HOLDERS:
        return PartEntry(addresses, 0, None, 0, None, card, answers)
    return None
