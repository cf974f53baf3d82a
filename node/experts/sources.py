"""Where the experts of a family can be had: as files on this node, and at peers that can be asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.node.experts.spec import PartSpec
from shoal.node.service import Answer

if TYPE_CHECKING:
    from shoal.node.experts.family import Family

FRESH = 5.0  # seconds for which what was read is new
GLANCE = 0.05  # seconds between two looks whether it has been read


async def sources_of(family: Family, socket: str) -> Answer:
    """See NodeService.expert_sources; what others say is read anew for it, if that was not done just now."""
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
    """Return when what all say has been read just now, or if that takes long."""
    clock = asyncio.get_running_loop().time
    if (asked := clock()) - family.looked_at < FRESH:
        return
    family.stir(looks=True)
    while family.looked_at < asked and clock() < asked + FRESH and not family.failure:
        await asyncio.sleep(GLANCE)


def _part(family: Family, part: PartSpec) -> Answer:
    now, last = asyncio.get_running_loop().time(), family.claims.lasts[part.name]
    model = part.model or family.manifest.model
    files = []
    for card in family.view.cards(part.name):
        peers = family.view.answerers(now, card)
        own = [family.me] if family.answered(part.name) == card.file else []
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
