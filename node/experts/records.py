"""A family's records on disk, for restarts: the part that this node trains, its run, and the cards of our files.

Each record is replaced as a whole (disk.py); a card counts only if its file is there.
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
    """The record of the part that this node trains."""

    part: str
    term: int
    run: str  # its id in hex; empty: none yet


class FamilyRecords:
    """The records of one family. Methods raise LocalError if the disk is full, or a record is damaged."""

    def __init__(self, folder: Path) -> None:
        self._disk = Disk(folder)

    def load(self) -> tuple[Training | None, list[ExpertCard]]:
        """The part that this node trained, and the cards of its files."""
        records = self._disk.load()
        training = records.get(TRAINS)
        cards = [each for each in records.values() if isinstance(each, ExpertCard)]
        return (training if isinstance(training, Training) else None), cards

    def put_training(self, mine: Claim | None, run: str) -> None:
        """Record the part that this node trains now; None: no part."""
        if mine is None:
            self._disk.remove(TRAINS)
        else:
            self._disk.put(TRAINS, Training(mine.part, mine.term, run))

    def put_card(self, card: ExpertCard) -> None:
        """Record the card of the newest file of its part."""
        self._disk.put(_name(card), card)

    def forget(self) -> None:
        """Remove all records."""
        _, cards = self.load()
        for name in (TRAINS, *map(_name, cards)):
            self._disk.remove(name)


def known_files(runs: Path) -> set[Digest]:
    """The files of all families whose folders are in `runs`; unreadable records are skipped."""
    found: set[Digest] = set()
    for folder in {path.parent for path in runs.glob("*/card-*.record")}:
        with suppress(LocalError):
            found |= {card.file for card in FamilyRecords(folder).load()[1]}
    return found


def _name(card: ExpertCard) -> str:
    return f"card-{card.part}"
