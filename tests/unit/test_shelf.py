"""What a result names its means by."""

from __future__ import annotations

from dataclasses import replace

from shoal.protocol.averaging.shelf import table_digest
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.averaging import Made

MADE = Made(Digest(b"\x01" * 32), b"\x03", 0, PeerId("A"), 1, b"said")


def test_the_same_means_have_the_same_name_whoever_made_them_in_whichever_run() -> None:
    """So histories are alike where the bits are: `--seed 7` and a run that goes on from a checkpoint promise that."""
    other = replace(MADE, epoch=1, owner=PeerId("B"), life=7, signature=b"said by another")
    assert table_digest([MADE, MADE]) == table_digest([MADE, other])


def test_other_bits_and_other_contributors_have_another_name() -> None:
    others = [[], [MADE, MADE], [replace(MADE, hash=Digest(b"\x02" * 32))], [replace(MADE, mask=b"\x01")]]
    assert len({table_digest(each) for each in [[MADE], *others]}) == 1 + len(others)
