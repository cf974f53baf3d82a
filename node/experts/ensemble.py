"""Fetches all published experts of a family into one folder, with an ensemble.json by which they are mixed or merged.

    <part>.safetensors     the expert's parameters
    partition.safetensors  how the data were cut, if groups were learned (partition/)
    tokenizer.json         the tokenizer of the family's data, if their tokens are not bytes
    ensemble.json          the family, the model and method settings of each expert, its file and the file's hash, its
                           steps, its card with the author's signature, the prior of each; how the data were cut, and
                           what a token is

A file that is not here is fetched, and each is hashed again as it is copied. The prior is uniform; a better one is
estimated on texts of the domain (posterior.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from shoal.node.api.answers import FetchedExperts
from shoal.node.base.atomic import replace_file
from shoal.node.base.pools import LONG
from shoal.node.base.refusals import CODES
from shoal.node.experts.card import check_card
from shoal.node.experts.parts import PARTITION
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import content_hash
from shoal.protocol.base.wire import encode
from shoal.protocol.messages.directory import ExpertCard

if TYPE_CHECKING:
    from shoal.node.experts.family import Family

ENSEMBLE, TOKENIZER = "ensemble.json", "tokenizer.json"
FORMAT = 1
PIECE = 1 << 20  # bytes that are copied at once


async def fetch_all(family: Family, folder: Path) -> FetchedExperts:
    """Fetch all published experts into a folder; LocalError if there are none."""
    cards, missing = [], []
    for part in family.experts.parts:
        found = await _newest(family, part.name)
        cards += [found] if found is not None else []
        missing += [part.name] if found is None else []
    if not cards:
        raise LocalError(
            f"no expert of {family.manifest.name} has been published yet, or nobody gives its file",
            code="experts-nowhere",
        )
    described = [_describe(family, card, len(cards)) for card in cards]
    tokens, tokenizer = await LONG.run(_tokens, family)
    table = {
        "format": FORMAT,
        "family": family.id.hex(),
        "name": family.manifest.name,
        "author": family.author,
        "complete": not missing,
        "tokens": tokens,
        "experts": described,
    }
    clusters = family.experts.clusters
    if clusters is not None:
        table["clusters"] = clusters.model_dump(mode="json")
    sources = {f"{card.part}.safetensors": (family.library.path(card.file), card) for card in cards}
    if clusters is not None and clusters.file:
        cut = await _newest(family, PARTITION)
        if cut is None:
            raise LocalError(
                "nobody that can be reached gives the partition of the data: try again", code="data-nowhere"
            )
        sources["partition.safetensors"] = (family.library.path(cut.file), cut)
    await LONG.run(_write, folder, table, sources, tokenizer)
    return {"folder": str(folder), "experts": described, "missing": missing, "tokens": tokens}


def _tokens(family: Family) -> tuple[dict[str, Any], bytes | None]:
    """The description of the experts' vocabulary, and the tokenizer.json if it is here or on the hub. In a thread.

    Without a tokenizer the description names the problem, and it is no error: the user may have the tokenizer.
    """
    data = family.manifest.data
    if not data.tokenizer:
        return {"kind": "bytes"}, None
    from shoal.node.training.checkpoint.tokenizer import find_tokenizer  # which needs torch

    described = {"kind": "tokenizer", "name": data.tokenizer, "end_of_text": data.end_of_text}
    try:
        content = find_tokenizer(data, [family.home])
    except LocalError as error:
        return described | {"problem": str(error)}, None
    return described | {"file": TOKENIZER, "blake3": content_hash(content).hex()}, content


async def _newest(family: Family, part: str) -> ExpertCard | None:
    """The card of the part's furthest file that can be fetched, and is here now; its card is checked again."""
    for card in family.view.cards(part):
        check_card(card, family.manifest, family.genesis, family.signer, card.author)
        if await family.training.obtain(card):
            return card
    return None


def _describe(family: Family, card: ExpertCard, experts: int) -> dict[str, Any]:
    part = family.experts.part(card.part)
    assert part is not None
    model = part.model or family.manifest.model
    return {
        "name": card.part,
        "file": f"{card.part}.safetensors",
        "blake3": card.file.hex(),
        "bytes": card.size,
        "round": card.round,
        "steps": card.steps,
        "finished": card.round >= family.claims.lasts[card.part],
        "tokens": card.tokens,
        "loss": card.loss,
        "author": card.author,
        "card": encode(card).hex(),
        "prior": 1 / experts,
        "only": list(part.only),
        "model": model.model_dump(mode="json"),
    }


def _write(
    folder: Path, table: dict[str, Any], sources: dict[str, tuple[Path, ExpertCard]], tokenizer: bytes | None
) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (path, card) in sources.items():
            replace_file(folder / name, _whole(path, card, name.partition(".")[0]))
        if tokenizer is not None:
            replace_file(folder / TOKENIZER, [tokenizer])
        replace_file(folder / ENSEMBLE, [json.dumps(table, indent=1).encode()])
    except OSError as error:
        raise LocalError(
            f"cannot write {folder}: {error.strerror or error}", code=CODES.get(error.errno or 0, "unwritable")
        ) from error


def _whole(path: Path, card: ExpertCard, what: str) -> Iterator[bytes]:
    """The bytes of an expert's file; LocalError at their end if they are not those of its card."""
    found = blake3()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
            yield piece
    if found.digest() != card.file:
        raise LocalError(f"the file of {what} is damaged on this node's disk: fetch it again", code="expert-damaged")
