"""Calls for the data of a run: a dataset's pieces, and the hashes by which they are checked, from whoever has it.

They are calls and no bulk messages, as these belong to a run that both are in, which a joiner is not yet. Answers are
short, so that pings beside them stay in time.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, message


@message(83)
class GetPiece(Message):
    """Call: what lies at this place of the tree of the dataset with that root? Who lacks it answers Refused."""

    dataset: Digest
    level: int  # 0: pieces of the data; 1: pages of their hashes; 2: the hashes of the pages
    number: int


@message(84)
class PieceIs(Message):
    """Answer: the bytes."""

    content: bytes


@message(85)
class Later(Message):
    """Answer: I have it, and others are being served; ask again after so many milliseconds."""

    milliseconds: int
