"""A family as the API shows it: plain dicts, read from the parts, changing nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.node.experts.spec import PartSpec
from shoal.node.service import Answer

if TYPE_CHECKING:
    from shoal.node.experts.family import Family


def row(family: Family) -> Answer:
    """What a family has of a run's row in `status`, and beside it `experts`: how many parts there are, and how far."""
    now, parts = asyncio.get_running_loop().time(), [part_row(family, part) for part in family.experts.parts]
    finished = sum(part["finished"] for part in parts)
    mine = family.claims.mine
    is_finished = finished == len(parts)
    run = family.pursuit.open_run
    return {
        "run": family.id.hex(),
        "name": family.manifest.name,
        "round": run.outer.committed.current.round if run is not None else 0,
        "first_round": 1,
        "step": 0,
        "samples": run.samples if run is not None else 0,
        "members": len(family.view.live(now)) + 1,
        "phase": "failed" if family.failure else "finished" if is_finished else "training" if mine else "waiting",
        "trains": family.trains,
        "is_creator": family.author == family.me,
        "failure": family.failure or None,
        "waiting_for": None if is_finished else next(iter(family.obstacles.values()), None),
        "warnings": [],
        "experts": {"parts": len(parts), "finished": finished, "trains": mine.part if mine is not None else None},
    }


def parts_of(family: Family) -> list[Answer]:
    """All parts, see NodeService.experts."""
    return [part_row(family, part) for part in family.experts.parts]


def part_row(family: Family, part: PartSpec) -> Answer:
    """One part: who trains it, how far it is, and what was published of it."""
    now, cards = asyncio.get_running_loop().time(), family.view.cards(part.name)
    last, inner = family.claims.lasts[part.name], family.manifest.method.inner_steps
    owner, round, loss, run = _training(family, part, now)
    card = cards[0] if cards else None
    round = max(round, card.round if card is not None else 0)
    return {
        "part": part.name,
        "peer": owner,
        "run": run,
        "steps": round * inner,
        "of": last * inner,
        "loss": loss if loss is not None else card.loss if card is not None else None,
        "finished": card is not None and card.round >= last,
        "published": None
        if card is None
        else {
            "round": card.round,
            "steps": card.steps,
            "tokens": card.tokens,
            "loss": card.loss,
            "bytes": card.size,
            "file": card.file.hex(),
            "author": card.author,
            "holders": len({*family.view.tellers(card), *([family.me] if family.library.has(card.file) else [])}),
            "here": family.library.has(card.file),
        },
    }


def _training(family: Family, part: PartSpec, now: float) -> tuple[str | None, int, float | None, str | None]:
    """Who trains a part, how far it is, its loss, and the run."""
    mine, run = family.claims.mine, family.pursuit.open_run
    if mine is not None and mine.part == part.name:
        if run is None:
            return family.me, 0, None, None
        loss = run.training.loss if run.training is not None else None
        return family.me, run.outer.committed.current.round, loss, run.id.hex()
    found = family.view.owner(now, part.name)
    if found is None:
        return None, 0, None, None
    peer, entry = found
    return peer, entry.round, entry.loss, entry.run.hex() if entry.run else None
