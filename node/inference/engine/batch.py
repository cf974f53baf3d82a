"""Continuous batching: assigns sequences to slots, and chooses what each step computes. No clock, no thread.

Rules:
- A step is one call of the scorer. Every sequence that is being written gets one token, and at most `chunk` tokens of
  prompts are read, which bounds how long a long prompt delays the next token of other sequences.
- Prompts take turns for the chunk, so a short prompt never waits for all of a long one.
- Sequences join and leave between steps. A sequence whose reader is gone leaves before the next step; one whose reader
  has no room is skipped, and keeps its slot, until there is room.
- A call that fails ends the sequences that were in it, or only those that the answer names.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.node.base.textfile import check_text
from shoal.node.inference.engine.sequence import Composer, Delta, Job, Sampling
from shoal.node.inference.scorer import LogProbs, Piece, Scorer, as_shoal_error
from shoal.node.inference.served import Served
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError, ShoalError

CHUNK = 128  # tokens of prompts in a step


class Reader(Protocol):
    """The receiver of a sequence's text."""

    @property
    def is_gone(self) -> bool:
        """Whether the rest of the text is not wanted any more."""

    @property
    def has_room(self) -> bool:
        """Whether it can take another delta now."""


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What a step has for a reader: more text, or the error that ended its sequence."""

    reader: Reader
    content: Delta | ShoalError


@dataclass(slots=True, eq=False)
class ActiveSequence:
    """The sequence in one slot."""

    reader: Reader
    composer: Composer
    unread: tuple[int, ...]  # the rest of the prompt; after the prompt, the token that was drawn last
    is_prompt: bool = True
    version: str = ""  # of the weights that score it; known after the first call


class Batch:
    """Sequences in the slots of `scorer`."""

    def __init__(self, scorer: Scorer, vocabulary: Vocabulary, chunk: int = CHUNK) -> None:
        self._scorer, self._vocabulary, self._chunk = scorer, vocabulary, chunk
        self._free = list(range(scorer.slots))  # a heap: low slots are used first, so that used slots are adjacent
        self._sequences: dict[int, ActiveSequence] = {}  # by slot
        self._prompts: deque[int] = deque()  # slots whose prompts are being read, in the order of their turns

    @property
    def free(self) -> int:
        """The number of free slots."""
        return len(self._free)

    @property
    def busy(self) -> int:
        """The number of slots in use."""
        return len(self._sequences)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything now."""
        return any(each.reader.is_gone or each.reader.has_room for each in self._sequences.values())

    def join(self, job: Job, reader: Reader) -> None:
        """Begin a sequence in a free slot; there must be one."""
        slot = heapq.heappop(self._free)
        self._sequences[slot] = ActiveSequence(reader, Composer(job, self._vocabulary), job.prompt)
        self._prompts.append(slot)

    def step(self) -> list[Output]:
        """Compute one token for each sequence that is being written, and read a chunk of prompts."""
        for slot in [slot for slot, each in self._sequences.items() if each.reader.is_gone]:
            self._leave(slot)
        pieces = [*self._next_tokens(), *self._next_prompts()]
        if not pieces:
            return []
        try:
            answer = self._scorer.extend(pieces)
        except Exception as error:  # of the model's code, or no memory: these requests fail, and the server goes on
            reason = as_shoal_error(error)
            return [self._fail(piece.slot, reason) for piece in pieces]
        outputs: list[Output] = []
        for piece, row in zip(pieces, answer.rows, strict=True):
            if (failure := answer.failed.get(piece.slot)) is not None:
                outputs.append(self._fail(piece.slot, failure))
            elif (output := self._scored(piece, row)) is not None:
                outputs.append(output)
        return outputs

    def abandon(self, error: ShoalError) -> list[Output]:
        """End all sequences with this error."""
        return [self._fail(slot, error) for slot in list(self._sequences)]

    def _next_tokens(self) -> list[Piece]:
        rows = sorted(self._sequences.items())
        return [Piece(slot, each.unread) for slot, each in rows if not each.is_prompt and each.reader.has_room]

    def _next_prompts(self) -> list[Piece]:
        """One chunk of prompts: as much as fits of the first in turn, then of the next."""
        pieces: list[Piece] = []
        left = self._chunk
        for _ in range(len(self._prompts)):
            if not left:
                break
            slot = self._prompts[0]
            self._prompts.rotate(-1)
            if self._sequences[slot].reader.has_room:
                unread = self._sequences[slot].unread
                pieces.append(Piece(slot, unread[:left], more=len(unread) > left))
                left -= len(pieces[-1].tokens)
        return pieces

    def _scored(self, piece: Piece, row: LogProbs) -> Output | None:
        """Handle the prediction for a piece: draw a token, unless the prompt goes on."""
        sequence = self._sequences[piece.slot]
        if sequence.is_prompt:
            if not sequence.version:
                sequence.version = self._scorer.version_of(piece.slot)
            sequence.unread = sequence.unread[len(piece.tokens) :]
            if sequence.unread:
                return None
            sequence.is_prompt = False
            self._prompts.remove(piece.slot)
        try:
            token, delta = sequence.composer.next(row)
        except Exception as error:  # of a tokenizer's code, or of a model that has diverged: other sequences go on
            return self._fail(piece.slot, as_shoal_error(error))
        sequence.unread, delta = (token,), replace(delta, version=sequence.version)
        if delta.finish is not None:
            delta = replace(delta, notes=self._scorer.notes(piece.slot))
            self._leave(piece.slot)
        return Output(sequence.reader, delta)

    def _fail(self, slot: int, error: ShoalError) -> Output:
        output = Output(self._sequences[slot].reader, error)
        self._leave(slot)
        return output

    def _leave(self, slot: int) -> None:
        if self._sequences.pop(slot).is_prompt:
            self._prompts.remove(slot)
        self._scorer.end(slot)
        heapq.heappush(self._free, slot)


class Terminal:
    """A reader that takes every part at once."""

    is_gone = False
    has_room = True


def write(
    served: Served, text: str, *, max_tokens: int | None, sampling: Sampling, stops: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield what the model writes after `text`, in parts; LocalError if the text is empty, not valid, or too long."""
    for given, what in ((text, "the prompt"), *((stop, "a --stop") for stop in stops)):
        check_text(given, what)
    prompt, limit = tuple(served.vocabulary.encode(text)), served.scorer.limit
    if not prompt:
        raise LocalError("the prompt is empty: give the model something to go on from", code="prompt-wrong")
    if strange := next((each for each in prompt if each >= served.scorer.vocab), None):
        raise LocalError(
            f"the prompt has the token {strange}, and the model knows those below {served.scorer.vocab}",
            code="prompt-wrong",
        )
    if max_tokens is None:
        max_tokens = max(1, limit - len(prompt))
    if len(prompt) + max_tokens > limit:
        raise LocalError(
            f"{len(prompt):,} tokens of the prompt and {max_tokens:,} to write are more than the model's context, "
            f"{limit:,}",
            code="prompt-wrong",
        )
    batch = Batch(served.scorer, served.vocabulary)
    batch.join(Job(prompt, max_tokens, sampling, (*stops, *served.stops)), Terminal())
    while batch.busy:
        for output in batch.step():
            if isinstance(output.content, ShoalError):
                raise output.content
            yield output.content.text
