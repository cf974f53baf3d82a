"""A family's records on disk, for restarts: which part is ours, in which run, and our files' cards.

Records are replaced as a whole (disk.py); a card counts only if its file is there.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from shoal.node.base.disk import Disk
from shoal.node.experts.claims import Claim
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, message
from shoal.protocol.messages.directory import ExpertCard

TRAINS = "training"


@message(241)
class Training(Message):
    """The record of the part that is ours."""

    part: str
    term: int
    run: str  # its id in hex; empty: none yet


class Memory:
    """One family's. Raises LocalError if the disk is full, or a record damaged."""

    def __init__(self, folder: Path) -> None:
        self._disk = Disk(folder)

    def load(self) -> tuple[Training | None, list[ExpertCard]]:
        """The part that was ours, and the cards of our files."""
        records = self._disk.load()
        training = records.get(TRAINS)
        cards = [each for each in records.values() if isinstance(each, ExpertCard)]
        return (training if isinstance(training, Training) else None), cards

    def trains(self, mine: Claim | None, run: str) -> None:
        """That is ours now; None: no part is."""
        if mine is None:
            self._disk.remove(TRAINS)
        else:
            self._disk.put(TRAINS, Training(mine.part, mine.term, run))

    def has(self, card: ExpertCard) -> None:
        """The newest file of its part is here."""
        self._disk.put(_name(card), card)

    def forget(self) -> None:
        """All of it."""
        _, cards = self.load()
        for name in (TRAINS, *map(_name, cards)):
            self._disk.remove(name)


def known_files(runs: Path) -> set[Digest]:
    """The files of all families whose folders are in this one; what cannot be read names none."""
    found: set[Digest] = set()
    for folder in {path.parent for path in runs.glob("*/card-*.record")}:
        with suppress(LocalError):
            found |= {card.file for card in Memory(folder).load()[1]}
    return found


def _name(card: ExpertCard) -> str:
    return f"card-{card.part}"
