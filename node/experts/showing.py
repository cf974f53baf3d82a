"""A family as the API shows it, as plain dicts: its row, its parts, and where its experts are available."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.node.api.answers import Answer, ExpertRow, ExpertSources
from shoal.node.manifest.experts import PartSpec

if TYPE_CHECKING:
    from shoal.node.experts.family import Family


def row(family: Family) -> Answer:
    """A family's row in `status`: that of a run, and `experts`, with the number of parts and how many are finished."""
    now, parts = asyncio.get_running_loop().time(), [part_row(family, part) for part in family.experts.parts]
    finished = sum(part["finished"] for part in parts)
    mine = family.claims.mine
    is_finished = finished == len(parts)
    run = family.training.open_run
    return {
        "run": family.id.hex(),
        "name": family.manifest.name,
        "round": run.committed.current.round if run is not None else 0,
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


def parts_of(family: Family) -> list[ExpertRow]:
    """The rows of all parts."""
    return [part_row(family, part) for part in family.experts.parts]


def part_row(family: Family, part: PartSpec) -> ExpertRow:
    """The row of one part: who trains it, how far it is, and its published file."""
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
            "holders": len({*family.view.announcers(card), *([family.me] if family.library.has(card.file) else [])}),
            "here": family.library.has(card.file),
        },
    }


def _training(family: Family, part: PartSpec, now: float) -> tuple[str | None, int, float | None, str | None]:
    """Who trains a part, how far it is, its loss, and the run."""
    mine, run = family.claims.mine, family.training.open_run
    if mine is not None and mine.part == part.name:
        if run is None:
            return family.me, 0, None, None
        return family.me, run.committed.current.round, run.loss, run.id.hex()
    found = family.view.owner(now, part.name)
    if found is None:
        return None, 0, None, None
    peer, entry = found
    return peer, entry.round, entry.loss, entry.run.hex() if entry.run else None


# -- where experts are available ---------------------------------------------------------------------------


FRESH = 5.0  # seconds for which entries count as just read
GLANCE = 0.05  # seconds between two checks whether they have been read


async def sources_of(family: Family, socket: str) -> ExpertSources:
    """What a process that asks experts needs; entries are read again first, unless that was done just now."""
    await _look_anew(family)
    return {
        "family": family.id.hex(),
        "name": family.manifest.name,
        "me": family.me,
        "socket": socket,
        "manifest": family.manifest.canonical().hex(),
        "parts": [_part(family, part) for part in family.experts.parts],
    }


async def _look_anew(family: Family) -> None:
    """Have all entries read again, unless they were read just now; returns after FRESH seconds at the latest."""
    clock = asyncio.get_running_loop().time
    if (asked := clock()) - family.looked_at < FRESH:
        return
    family.wake(reads=True)
    while family.looked_at < asked and clock() < asked + FRESH and not family.failure:
        await asyncio.sleep(GLANCE)


def _part(family: Family, part: PartSpec) -> dict[str, Any]:
    now, last = asyncio.get_running_loop().time(), family.claims.lasts[part.name]
    model = part.model or family.manifest.model
    files = []
    for card in family.view.cards(part.name):
        peers = family.view.answerers(now, card)
        own = [family.me] if family.answered_file(part.name) == card.file else []
        files.append(
            {
                "file": card.file.hex(),
                "round": card.round,
                "steps": card.steps,
                "finished": card.round >= last,
                "path": str(family.library.path(card.file)) if family.library.has(card.file) else None,
                "peers": [*own, *(peer for peer in peers if peer != family.me)],
            }
        )
    return {"part": part.name, "model": model.model_dump(mode="json"), "files": files}
