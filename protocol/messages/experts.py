"""Calls by which a peer's expert is asked what follows a text: see node/inference/remote/.

The answering peer holds the text under a name that the asker gives it; each call adds to it. If the two disagree on its
length it is lost, and the asker begins it anew, under another name.
"""

from __future__ import annotations

from enum import IntEnum

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, message, value


class Verdict(IntEnum):
    """What came of an addition to a text."""

    SCORED = 0
    FORGOTTEN = 1  # the text is not held as the asker says: begin it anew
    FULL = 2  # there is no room for another text, or not for another one of this asker
    NO_NUMBERS = 3  # the expert gave something that is none: its training has diverged


@value
class Addition:
    """Tokens that follow what is held of a text."""

    text: int  # its name, which the asker never uses for another
    held: int  # tokens of it that came before; 0: it begins
    tokens: tuple[int, ...]
    wants_row: bool  # whether what follows the last of them is of use; else they are only read


@message(103)
class AskExpert(Message):
    """Call: read these, and say what follows them, and how well you had foreseen them."""

    file: Digest  # of the expert: BLAKE3, as on its card
    asker: int  # which of a peer's processes asks: the names of texts are its own
    ended: tuple[int, ...]  # texts of which no more will come
    additions: tuple[Addition, ...]


@value
class Score:
    """Of one addition."""

    verdict: Verdict
    within: float  # log p of its tokens but the first, summed


@message(104)
class ExpertSays(Message):
    """Answer: a score for each addition, and the rows that were wanted, as node/inference/remote/rows.py packs them."""

    scores: tuple[Score, ...]
    rows: bytes
