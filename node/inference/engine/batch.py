"""Continuous batching: which sequence is in which slot, and whose turn it is. It has no clock and no thread.

Rules:
- A step is one call of the scorer. All that are writing get a token in it, and at most `chunk` tokens of prompts are
  read, so that a long prompt delays nobody's next token by more than that.
- Prompts take turns for the chunk, so a short one never waits for all of a long one.
- Sequences join and leave between steps. Whose reader is gone is out before the next; whose reader has not made room
  is passed over, and keeps its slot, until it has.
- A call that fails ends the sequences that were in it, or those of them that it names, and no others.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.node.base.textfile import check_text
from shoal.node.inference.engine.sequence import Composer, Delta, Job, Sampling
from shoal.node.inference.scorer import Changing, LogProbs, Piece, Scorer, SomeFailed, Telling, in_words
from shoal.node.inference.served import Served
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError, ShoalError

CHUNK = 128  # tokens of prompts in a step


class Reader(Protocol):
    """To whom a sequence's text goes."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody wants any more of it."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether another delta may come."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What a step has made for a reader: more text, or the error that has ended it."""

    reader: Reader
    what: Delta | ShoalError


@dataclass(slots=True, eq=False)
class Writing:
    """A sequence in a slot."""

    reader: Reader
    composer: Composer
    unread: tuple[int, ...]  # the rest of the prompt; once that is read, the token that was drawn last
    is_prompt: bool = True
    version: str = ""  # of the weights that score it; known with its first scores


class Batch:
    """Sequences in the slots of `scorer`."""

    def __init__(self, scorer: Scorer, vocabulary: Vocabulary, chunk: int = CHUNK) -> None:
        self._scorer, self._vocabulary, self._chunk = scorer, vocabulary, chunk
        self._telling = scorer if isinstance(scorer, Telling) else None
        self._changing = scorer if isinstance(scorer, Changing) else None
        self._free = list(range(scorer.slots))  # a heap: low slots first, so that those in use lie together
        self._writing: dict[int, Writing] = {}
        self._prompts: deque[int] = deque()  # slots whose prompts are read, whose turn is next first

    @property
    def free(self) -> int:
        """How many slots are empty."""
        return len(self._free)

    @property
    def busy(self) -> int:
        """How many are not."""
        return len(self._writing)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return any(each.reader.is_gone or each.reader.has_room for each in self._writing.values())

    def join(self, job: Job, reader: Reader) -> None:
        """Put a sequence into a slot; there must be a free one."""
        slot = heapq.heappop(self._free)
        self._writing[slot] = Writing(reader, Composer(job, self._vocabulary), job.prompt)
        self._prompts.append(slot)

    def step(self) -> list[Told]:
        """One token for each that is writing, and a chunk of prompts."""
        for slot in [slot for slot, each in self._writing.items() if each.reader.is_gone]:
            self._leave(slot)
        pieces = [*self._next_tokens(), *self._next_prompts()]
        if not pieces:
            return []
        try:
            scores = self._scorer.extend(pieces)
        except SomeFailed as some:
            lost = [self._lost(slot, error) for slot, error in some.failed.items()]
            rows = [(piece, row) for piece, row in zip(pieces, some.rows, strict=True) if piece.slot not in some.failed]
            return [*lost, *self._all_scored(rows)]
        except Exception as error:  # of the model's own code, out of memory: these requests are lost, the server is not
            reason = in_words(error)
            return [self._lost(piece.slot, reason) for piece in pieces]
        return self._all_scored(zip(pieces, scores, strict=True))

    def abandon(self, error: ShoalError) -> list[Told]:
        """End all of them."""
        told = [Told(each.reader, error) for each in self._writing.values()]
        for slot in list(self._writing):
            self._leave(slot)
        return told

    def _next_tokens(self) -> list[Piece]:
        rows = sorted(self._writing.items())
        return [Piece(slot, each.unread) for slot, each in rows if not each.is_prompt and each.reader.has_room]

    def _next_prompts(self) -> list[Piece]:
        """A chunk's worth of prompts: of the first in turn as much as fits, then of the next."""
        pieces: list[Piece] = []
        left = self._chunk
        for _ in range(len(self._prompts)):
            if not left:
                break
            slot = self._prompts[0]
            self._prompts.rotate(-1)
            if self._writing[slot].reader.has_room:
                unread = self._writing[slot].unread
                pieces.append(Piece(slot, unread[:left], more=len(unread) > left))
                left -= len(pieces[-1].tokens)
        return pieces

    def _all_scored(self, scored: Iterable[tuple[Piece, LogProbs]]) -> list[Told]:
        return [told for piece, row in scored if (told := self._scored(piece, row))]

    def _scored(self, piece: Piece, row: LogProbs) -> Told | None:
        """What follows from the scores after a piece."""
        writing = self._writing[piece.slot]
        if writing.is_prompt:
            if not writing.version:
                writing.version = self._version_of(piece.slot)
            writing.unread = writing.unread[len(piece.tokens) :]
            if writing.unread:
                return None
            writing.is_prompt = False
            self._prompts.remove(piece.slot)
        try:
            token, delta = writing.composer.next(row)
        except Exception as error:  # of a tokenizer's code, or of a model that has diverged: the others go on
            self._leave(piece.slot)
            return Told(writing.reader, in_words(error))
        writing.unread, delta = (token,), replace(delta, version=writing.version)
        if delta.finish is not None:
            if self._telling is not None:
                delta = replace(delta, notes=self._telling.told(piece.slot))
            self._leave(piece.slot)
        return Told(writing.reader, delta)

    def _version_of(self, slot: int) -> str:
        return self._changing.version_of(slot) if self._changing is not None else self._scorer.version

    def _lost(self, slot: int, error: ShoalError) -> Told:
        told = Told(self._writing[slot].reader, error)
        self._leave(slot)
        return told

    def _leave(self, slot: int) -> None:
        if self._writing.pop(slot).is_prompt:
            self._prompts.remove(slot)
        self._scorer.end(slot)
        heapq.heappush(self._free, slot)


class Terminal:
    """A reader that waits for every part."""

    is_gone = False
    has_room = True


def write(
    served: Served, text: str, *, most: int | None, sampling: Sampling, stops: tuple[str, ...] = ()
) -> Iterator[str]:
    """What the model writes after `text`, as it comes; LocalError if that is empty, no text, or does not fit."""
    for given, what in ((text, "the prompt"), *((stop, "a --stop") for stop in stops)):
        check_text(given, what)
    prompt, limit = tuple(served.vocabulary.encode(text)), served.scorer.limit
    if not prompt:
        raise LocalError("the prompt is empty: give the model something to go on from")
    if strange := next((each for each in prompt if each >= served.scorer.vocab), None):
        raise LocalError(f"the prompt has the token {strange}, and the model knows those below {served.scorer.vocab}")
    most = max(1, limit - len(prompt)) if most is None else most
    if len(prompt) + most > limit:
        raise LocalError(
            f"{len(prompt):,} tokens of the prompt and {most:,} to write are more than the model's context, {limit:,}"
        )
    batch = Batch(served.scorer, served.vocabulary)
    batch.join(Job(prompt, most, sampling, (*stops, *served.stops)), Terminal())
    while batch.busy:
        for told in batch.step():
            if isinstance(told.what, ShoalError):
                raise told.what
            yield told.what.text
