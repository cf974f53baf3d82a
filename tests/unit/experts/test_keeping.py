"""Which file of a part a member keeps in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from shoal.node.experts import keeping
from shoal.node.experts.keeping import KeptFiles
from shoal.node.experts.library import Library
from shoal.node.experts.records import FamilyRecords
from shoal.protocol.base.ids import Digest
from shoal.protocol.net.system.tasks import Tasks
from tests.run_kit import id_of
from tests.unit.experts.family_kit import ANNA, BOB, FAMILY, card, view


class Shelf:
    """A library that records what is dropped from it."""

    def __init__(self) -> None:
        self.dropped: list[Digest] = []

    async def drop(self, file: Digest) -> None:
        self.dropped.append(file)


@pytest.mark.asyncio
@pytest.mark.parametrize("order", [(4, 6), (6, 4)])
async def test_the_further_file_stays_whichever_was_there_first(
    order: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that has lost its part may come to the end of an older file after a rival's further one has come."""
    monkeypatch.setattr(keeping, "FETCHING", 0.0)
    cards = {round: card(who, round=round) for who, round in ((ANNA, 4), (BOB, 6))}
    shelf, memory = Shelf(), FamilyRecords(tmp_path)
    kept = KeptFiles(id_of(FAMILY), ANNA.peer, {"net": 10}, ("",), view(), cast(Library, shelf), memory)
    tasks = Tasks(lambda error: None)
    for round in order:
        kept.hold(cards[round], tasks)
    while not shelf.dropped:
        await asyncio.sleep(0)
    assert kept.held == {"net": cards[6]}
    assert shelf.dropped == [cards[4].file]
    while memory.load()[1] != [cards[6]]:
        await asyncio.sleep(0.001)
    await tasks.close()
