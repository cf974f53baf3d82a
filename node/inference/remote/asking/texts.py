"""What an asker knows of its texts: their tokens, and how much of each text a peer has read. Pure.

The tokens are kept here, so any peer can read a text from the beginning. A peer holds a copy of a text under a number
that is never used again, so late messages about an old copy cannot be mistaken for messages about a newer one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from shoal.node.experts.questions import STEP, TEXTS
from shoal.node.inference.remote.asking.answerers import READ, Answerer
from shoal.node.inference.remote.rows import rows_fit
from shoal.node.inference.scorer import LogProbs
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.messages.experts import Addition

CHUNK = READ  # tokens of a text in one call


@dataclass(slots=True)
class Copy:
    """What a peer has read of a text."""

    name: int
    held: int = 0  # tokens


@dataclass(slots=True, eq=False)
class Text:
    """The text in one of our slots."""

    tokens: list[int] = field(default_factory=list)
    home: Answerer | None = None  # the peer that is asked
    copies: dict[Answerer, Copy] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Ask:
    """A piece to be scored: the last `length` tokens of a text."""

    slot: int
    text: Text
    length: int


@dataclass(slots=True, eq=False)
class AskState:
    """One ask to one peer: what the peer has read and answered so far."""

    ask: Ask
    copy: Copy
    row: LogProbs | None = None
    within: float = 0.0
    problem: ShoalError | None = None
    forgotten: int = 0  # how often the peer has forgotten the text

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.problem is not None or self.copy.held >= len(self.ask.text.tokens)

    def next(self) -> Addition:
        """The tokens to send next: first those before the piece that the peer lacks, then the piece."""
        tokens, held = self.ask.text.tokens, self.copy.held
        begin = len(tokens) - self.ask.length
        stop = min(held + CHUNK, begin if held < begin else len(tokens))
        return Addition(self.copy.name, held, tuple(tokens[held:stop]), stop > begin)

    def add_answer(self, addition: Addition, row: LogProbs | None, within: float) -> None:
        """Take in the answer. The first token of a chunk was predicted by the answer to the chunk before it."""
        if addition.wants_row:
            self.within += within
            if self.row is not None:
                self.within += float(np.float64(self.row[addition.tokens[0]]))
            self.row = row
        self.copy.held += len(addition.tokens)

    def restart(self, copy: Copy) -> None:
        """The peer has forgotten the text: begin with a new copy."""
        self.copy, self.row, self.within = copy, None, 0.0
        self.forgotten += 1


class CopyNumbers:
    """Gives numbers to copies, and notes which copies have ended."""

    def __init__(self) -> None:
        self._next = count(1)
        self._ended: dict[Answerer, list[int]] = {}

    def copy(self) -> Copy:
        """A new copy, for a peer that is about to begin a text."""
        return Copy(next(self._next))

    def drop(self, text: Text, answerer: Answerer) -> None:
        """The peer's copy of the text has ended."""
        if (copy := text.copies.pop(answerer, None)) is not None:
            self._ended.setdefault(answerer, []).append(copy.name)

    def ended(self, answerer: Answerer, most: int) -> tuple[int, ...]:
        """Take at most `most` ended copies of which the peer must be told."""
        its = self._ended.pop(answerer, [])
        if its[most:]:
            self._ended[answerer] = its[most:]
        return tuple(its[:most])

    def to_tell(self) -> Sequence[Answerer]:
        """The peers that must be told of ended copies."""
        return list(self._ended)


def calls_of(additions: Sequence[Addition], vocab: int) -> Iterator[range]:
    """Ranges of the additions that fit into one call each, by their number, tokens and rows."""
    start = tokens = rows = 0
    for number, each in enumerate(additions):
        is_full = number - start == TEXTS or tokens + len(each.tokens) > STEP
        is_full = is_full or not rows_fit(rows + each.wants_row, vocab)
        if number > start and is_full:
            yield range(start, number)
            start, tokens, rows = number, 0, 0
        tokens, rows = tokens + len(each.tokens), rows + each.wants_row
    if additions:
        yield range(start, len(additions))


def prompt_tokens(additions: Sequence[Addition]) -> int:
    """The tokens to be read, or 0 if it is one token of each text."""
    return 0 if all(len(each.tokens) == 1 for each in additions) else sum(len(each.tokens) for each in additions)


def to_read(answerer: Answerer, asks: Sequence[Ask]) -> int:
    """The same for all tokens that a peer lacks."""
    held = [copy.held if (copy := ask.text.copies.get(answerer)) is not None else 0 for ask in asks]
    missing = [len(ask.text.tokens) - has for ask, has in zip(asks, held, strict=True)]
    return 0 if all(each == 1 for each in missing) else sum(missing)
