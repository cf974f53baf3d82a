"""Calls for the data of a run: a dataset's pieces, and the hashes by which they are checked.

They are calls and not bulk messages: those are for members of a run, and a joiner is not one yet. Answers are short, so
that they do not delay pings.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, message


@message(83)
class GetPiece(Message):
    """Call: the content at this place of the tree with this root. A node without it answers Refused."""

    dataset: Digest
    level: int  # 0: pieces of the data; 1: pages of their hashes; 2: the hashes of the pages
    number: int


@message(84)
class PieceIs(Message):
    """Answer to GetPiece: the bytes."""

    content: bytes


@message(85)
class Later(Message):
    """Answer: the node is busy serving others; ask again after so many milliseconds."""

    milliseconds: int
