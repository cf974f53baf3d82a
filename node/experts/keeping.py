"""Decides which files of a family this node keeps: its own, the last of each part, and the newest of some parts.

Rules:
- Every member keeps the last file of each part, the seeds and the partition, if its limit on disk space allows it. So
  any member can give them.
- The newest file of an unfinished part is kept by MOST_KEEPERS members beside its owner (claims.py), chosen by a hash,
  so that it outlives the owner.
- An older file is removed once it is unlikely that a peer still fetches it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from shoal.node.base.disk import write_with_retries
from shoal.node.base.logs import warn
from shoal.node.base.pools import RECORDS
from shoal.node.experts.claims import LOOK, keepers
from shoal.node.experts.library import Library
from shoal.node.experts.records import FamilyRecords
from shoal.node.experts.view import View
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.messages.directory import ExpertCard
from shoal.protocol.net.system.tasks import Tasks

FETCHING = 2 * LOOK  # seconds until an older file is removed

log = logging.getLogger("shoal.experts")


class Obtain(Protocol):
    """Fetches and checks a card's file; False if that fails."""

    async def __call__(self, card: ExpertCard) -> bool: ...


class KeptFiles:
    """One family's files. `lasts` has each part's last round, `common` the names of its other files (parts.py)."""

    def __init__(
        self,
        family: RunId,
        me: PeerId,
        lasts: Mapping[str, int],
        common: Sequence[str],
        view: View,
        library: Library,
        records: FamilyRecords,
    ) -> None:
        self.held: dict[str, ExpertCard] = {}  # by part, the card of the newest file that is here
        self._family, self._me, self._lasts, self._common = family, me, lasts, common
        self._view, self._library, self._records = view, library, records
        self._noting = asyncio.Lock()

    async def recall(self, cards: list[ExpertCard]) -> None:
        """Take in the files that were here before a restart, if they are whole."""
        for card in cards:
            if await self._library.open(card):
                self.held[card.part] = card
                self._view.add(card)

    async def look(self, now: float, mine: str, obtain: Obtain, on_held: Callable[[ExpertCard], None]) -> None:
        """Fetch the files that we should keep; `mine` is the part that we train."""
        for card in self.wanted(now, mine):
            if await obtain(card):
                on_held(card)

    def wanted(self, now: float, mine: str) -> list[ExpertCard]:
        """The files that we should keep, and do not have."""
        live, found = [*self._view.live(now), self._me], []
        for part in (*self._common, *self._lasts):
            held, cards = self.held.get(part), self._view.cards(part)
            if not cards or (held is not None and held.round >= cards[0].round):
                continue
            owner = self._view.owner(now, part)
            is_last = part in self._common or cards[0].round >= self._lasts[part]
            chosen = keepers(self._family, part, live, owner[0] if owner is not None else None)
            if (is_last or (part != mine and self._me in chosen)) and self._library.has_room(cards[0].size):
                found.append(cards[0])
        return found

    def hold(self, card: ExpertCard, tasks: Tasks) -> None:
        """The card's file is here now; it may be of an earlier round than the one that was here."""
        before = self.held.get(card.part, card)
        older, newer = sorted((before, card), key=lambda each: each.round)
        self.held[card.part] = newer
        tasks.spawn(self._note(card.part))
        self._view.add(card)
        if older.file != newer.file:
            asyncio.get_running_loop().call_later(FETCHING, self._drop, older.file, tasks)

    async def forget(self) -> None:
        """Remove all files and records."""
        for card in self.held.values():
            await self._library.drop(card.file)
        await RECORDS.run(self._records.forget)

    async def _note(self, part: str) -> None:
        """Record the newest file of a part, for a restart."""
        async with self._noting:
            if (card := self.held.get(part)) is not None:
                try:
                    await write_with_retries(partial(self._records.put_card, card), self._complain)
                except LocalError as error:
                    self._complain(error)

    def _complain(self, error: Exception) -> None:
        warn(log, "expert-not-noted", f"after a restart this node would not know a file that it has: {error}")

    def _drop(self, file: Digest, tasks: Tasks) -> None:
        if all(card.file != file for card in self.held.values()):
            tasks.spawn(self._library.drop(file))
