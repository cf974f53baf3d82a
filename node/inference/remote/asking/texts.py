"""What an asker knows of its texts: their tokens, and how much of each a peer has read. Pure.

The tokens are kept here, so any peer can read a text anew. What a peer holds is a copy, under a number that is never
used again, so late messages about an older copy are never mistaken for the newer one.
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
    """In one slot of ours."""

    tokens: list[int] = field(default_factory=list)
    home: Answerer | None = None  # who is asked
    copies: dict[Answerer, Copy] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Ask:
    """A piece that is to be scored: the last `length` tokens of a text."""

    slot: int
    text: Text
    length: int


@dataclass(slots=True, eq=False)
class Hearing:
    """One ask on its way through one peer: what it has read, and said, so far."""

    ask: Ask
    copy: Copy
    row: LogProbs | None = None
    within: float = 0.0
    problem: ShoalError | None = None
    forgotten: int = 0  # times

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to be asked."""
        return self.problem is not None or self.copy.held >= len(self.ask.text.tokens)

    def next(self) -> Addition:
        """What is to be read next: what the peer lacks of the text before the piece, then the piece."""
        tokens, held = self.ask.text.tokens, self.copy.held
        begin = len(tokens) - self.ask.length
        stop = min(held + CHUNK, begin if held < begin else len(tokens))
        return Addition(self.copy.name, held, tuple(tokens[held:stop]), stop > begin)

    def heard(self, addition: Addition, row: LogProbs | None, within: float) -> None:
        """The answer to that; what a piece's chunk begins with was foreseen by the answer to the chunk before."""
        if addition.wants_row:
            self.within += within
            if self.row is not None:
                self.within += float(np.float64(self.row[addition.tokens[0]]))
            self.row = row
        self.copy.held += len(addition.tokens)

    def begin_anew(self, copy: Copy) -> None:
        """The peer has forgotten the text."""
        self.copy, self.row, self.within = copy, None, 0.0
        self.forgotten += 1


class Names:
    """Numbers for copies, and which of them have ended."""

    def __init__(self) -> None:
        self._next = count(1)
        self._ended: dict[Answerer, list[int]] = {}

    def copy(self) -> Copy:
        """Of a text that a peer is about to begin."""
        return Copy(next(self._next))

    def drop(self, text: Text, answerer: Answerer) -> None:
        """What the peer holds of the text is of no use."""
        if (copy := text.copies.pop(answerer, None)) is not None:
            self._ended.setdefault(answerer, []).append(copy.name)

    def ended(self, answerer: Answerer, most: int) -> tuple[int, ...]:
        """Some that the peer is to be told of now."""
        its = self._ended.pop(answerer, [])
        if its[most:]:
            self._ended[answerer] = its[most:]
        return tuple(its[:most])

    def to_tell(self) -> Sequence[Answerer]:
        """Whom there is something to tell."""
        return list(self._ended)


def calls_of(additions: Sequence[Addition], vocab: int) -> Iterator[range]:
    """The additions in groups that may be asked about in one call each: by their number, tokens and rows."""
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
    """Tokens to be read, where it is more than one of each text."""
    return 0 if all(len(each.tokens) == 1 for each in additions) else sum(len(each.tokens) for each in additions)


def to_read(answerer: Answerer, asks: Sequence[Ask]) -> int:
    """The same, of all that a peer lacks."""
    held = [copy.held if (copy := ask.text.copies.get(answerer)) is not None else 0 for ask in asks]
    missing = [len(ask.text.tokens) - has for ask, has in zip(asks, held, strict=True)]
    return 0 if all(each == 1 for each in missing) else sum(missing)
