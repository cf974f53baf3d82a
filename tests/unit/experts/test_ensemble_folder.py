"""The folder into which a family's experts are fetched: a file that is damaged here replaces none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.node.experts.card import hash_file
from shoal.node.experts.ensemble import ENSEMBLE, fetch_all
from shoal.protocol.base.errors import LocalError
from tests.run_kit import id_of, unsigned
from tests.unit.experts.family_kit import ANNA, BOB, FAMILY, card, signer, size_of


def family(held: Path) -> Any:
    """One with an expert `net`, whose file is `held`, and none for the other part."""
    ours = card(ANNA, "net", file=hash_file(held))

    async def obtain(_: object) -> bool:
        return True

    return SimpleNamespace(
        experts=FAMILY.experts,
        manifest=FAMILY,
        genesis=unsigned(FAMILY, BOB.peer),
        author=BOB.peer,
        id=id_of(FAMILY, BOB.peer),
        signer=signer(ANNA),
        claims=SimpleNamespace(lasts={"net": 10, "text": 10}),
        view=SimpleNamespace(cards=lambda part: [ours] if part == "net" else []),
        training=SimpleNamespace(obtain=obtain),
        library=SimpleNamespace(path=lambda _: held),
    )


@pytest.mark.asyncio
async def test_a_file_that_is_damaged_here_replaces_none(tmp_path: Path) -> None:
    held, folder = tmp_path / "held", tmp_path / "folder"
    held.write_bytes(bytes(size_of("net")))
    published = family(held)
    assert (await fetch_all(published, folder))["missing"] == ["text"]
    assert (folder / "net.safetensors").read_bytes() == held.read_bytes()
    assert [each["name"] for each in json.loads((folder / ENSEMBLE).read_bytes())["experts"]] == ["net"]

    whole = held.read_bytes()
    held.write_bytes(whole[:-1] + b"x")
    with pytest.raises(LocalError, match="the file of net is damaged") as raised:
        await fetch_all(published, folder)
    assert raised.value.code == "expert-damaged"
    assert (folder / "net.safetensors").read_bytes() == whole
    assert len(list(folder.iterdir())) == 2, "nothing unfinished is left"
