"""Which files of a family are on this node: its own, the last of every part, and the newest of some that go on.

Rules:
- The last file of a part, the seeds and the partition are kept by every member whose limit allows it, so any of them
  gives them.
- The newest file of a part that is not finished is kept by MOST_KEEPERS members beside its owner (claims.py), chosen
  by a hash, so that it outlives the owner.
- An older file is removed once it is unlikely that anybody still fetches it.
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
from shoal.node.experts.memory import Memory
from shoal.node.experts.view import View
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.messages.directory import ExpertCard
from shoal.protocol.net.system.tasks import Tasks

FETCHING = 2 * LOOK  # seconds for which an older file stays

log = logging.getLogger("shoal.experts")


class Obtain(Protocol):
    """Has a card's file here, checked; False if that cannot be."""

    async def __call__(self, card: ExpertCard) -> bool: ...


class Keeping:
    """One family's. `lasts` has each part's last round, `common` what its other files are called (parts.py)."""

    def __init__(
        self,
        family: RunId,
        me: PeerId,
        lasts: Mapping[str, int],
        common: Sequence[str],
        view: View,
        library: Library,
        memory: Memory,
    ) -> None:
        self.held: dict[str, ExpertCard] = {}  # of each part, the newest file that is here
        self._family, self._me, self._lasts, self._common = family, me, lasts, common
        self._view, self._library, self._memory = view, library, memory
        self._noting = asyncio.Lock()

    async def recall(self, cards: list[ExpertCard]) -> None:
        """The files of an earlier life, if they are whole."""
        for card in cards:
            if await self._library.open(card):
                self.held[card.part] = card
                self._view.add(card)

    async def look(self, now: float, mine: str, obtain: Obtain, on_held: Callable[[ExpertCard], None]) -> None:
        """Get what we should have; `mine` is the part that we train."""
        for card in self.wanted(now, mine):
            if await obtain(card):
                on_held(card)

    def wanted(self, now: float, mine: str) -> list[ExpertCard]:
        """Files that we should have, and have not."""
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
        """The card's file is here; it may be less far than the one that was."""
        before = self.held.get(card.part, card)
        older, newer = sorted((before, card), key=lambda each: each.round)
        self.held[card.part] = newer
        tasks.spawn(self._note(card.part))
        self._view.add(card)
        if older.file != newer.file:
            asyncio.get_running_loop().call_later(FETCHING, self._drop, older.file, tasks)

    async def forget(self) -> None:
        """None of them any more."""
        for card in self.held.values():
            await self._library.drop(card.file)
        await RECORDS.run(self._memory.forget)

    async def _note(self, part: str) -> None:
        """Have the newest file of a part on record: without that, a restart does not know it."""
        async with self._noting:
            if (card := self.held.get(part)) is not None:
                try:
                    await write_with_retries(partial(self._memory.has, card), self._complain)
                except LocalError as error:
                    self._complain(error)

    def _complain(self, error: Exception) -> None:
        warn(log, "expert-not-noted", f"after a restart this node would not know a file that it has: {error}")

    def _drop(self, file: Digest, tasks: Tasks) -> None:
        if all(card.file != file for card in self.held.values()):
            tasks.spawn(self._library.drop(file))
