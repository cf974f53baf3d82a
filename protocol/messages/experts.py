"""Calls that ask a peer's expert for the next token of texts: see node/inference/remote/.

The answering peer holds each text under a name that the asker chose; each call adds to texts. If the two disagree on
the length of one, it is lost, and the asker begins it anew, under another name.
"""

from __future__ import annotations

from enum import IntEnum

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, message, value


class Verdict(IntEnum):
    """The result of an addition to a text."""

    SCORED = 0
    FORGOTTEN = 1  # the text is not held as the asker says: begin it anew
    FULL = 2  # there is no room for another text, or none for another text of this asker
    NO_NUMBERS = 3  # the expert gave NaN or infinity: its training has diverged


@value
class Addition:
    """Tokens to append to a text."""

    text: int  # its name, which the asker never uses for another
    held: int  # tokens of it sent before; 0: a new text
    tokens: tuple[int, ...]
    wants_row: bool  # whether to answer the log-probabilities after the last token


@message(103)
class AskExpert(Message):
    """Call: append these tokens; answer their log-probabilities, and those of the next token."""

    file: Digest  # the expert: BLAKE3 of its file, as on its card
    asker: int  # the asking process of a peer: each has its own names of texts
    ended: tuple[int, ...]  # texts that may be dropped
    additions: tuple[Addition, ...]


@value
class Score:
    """The answer to one addition."""

    verdict: Verdict
    within: float  # log p of its tokens but the first, summed


@message(104)
class ExpertSays(Message):
    """Answer: a score for each addition, and the wanted rows, packed by node/inference/remote/rows.py."""

    scores: tuple[Score, ...]
    rows: bytes
