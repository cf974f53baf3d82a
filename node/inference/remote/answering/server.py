"""Serves one expert to peers: takes their questions, computes in a thread of its own, and answers.

Only the loop touches the cores (sharing.py), only the thread touches the model. When a text ends in the cores, the
model is told with the next step, before the slot is used again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from shoal.node.experts.questions import LATER
from shoal.node.inference.remote.answering.sharing import Question, QuestionQueue, SlotAccounts
from shoal.node.inference.remote.rows import MOST_ROWS, pack, rows_fit
from shoal.node.inference.scorer import LogProbs, Piece, Scorer
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import encode
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.experts import Addition, AskExpert, ExpertSays, Score, Verdict
from shoal.protocol.messages.node import Refused

LOWEST = -1e30  # nats: stands for minus infinity, which cannot be sent
TIDY = 1.0  # seconds between two searches for idle texts

log = logging.getLogger("shoal.experts")

Scored = tuple[LogProbs, float]
"""The row (V,) of a piece, and `within` (Predictions)."""


@dataclass(frozen=True, slots=True)
class Job:
    """A question in a step, with a slot or a verdict for each of its additions."""

    question: Question
    places: Sequence[int | Verdict]

    @property
    def admitted(self) -> list[tuple[Addition, int]]:
        """The additions that have slots."""
        pairs = zip(self.question.asked.additions, self.places, strict=True)
        return [(each, place) for each, place in pairs if not isinstance(place, Verdict)]


class ExpertServer:
    """Answers for one file. A peer may have at most `each` texts."""

    def __init__(self, expert: Scorer, each: int) -> None:
        self._expert = expert
        self._accounts = SlotAccounts(expert.slots, each, expert.limit)
        self._queue = QuestionQueue()
        self._stirred = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answering")
        self._answers: dict[Question, asyncio.Future[bytes]] = {}
        self._is_over = False
        self.used_at = asyncio.get_running_loop().time()

    @property
    def texts(self) -> int:
        """How many texts are held."""
        return len(self._accounts)

    async def ask(self, peer: PeerId, asked: AskExpert) -> bytes:
        """The bytes of the answer; RemoteError if the question is not allowed."""
        question = Question(peer, asked)
        if self._is_over:
            return encode(Refused("the expert does not answer any more"))
        self._accounts.end(peer, asked.asker, asked.ended)
        self._queue.end(peer, asked.asker, asked.ended)
        self._check(question)
        if not asked.additions:
            return encode(ExpertSays((), b""))
        if not self._queue.add(question):
            return encode(Later(LATER))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[question] = answer
        self._stirred.set()
        try:
            return await answer
        finally:
            del self._answers[question]

    def lost(self, peer: PeerId) -> None:
        """A peer is not connected any more."""
        self._accounts.lost(peer)

    async def run(self) -> None:
        """Answer until this is cancelled; then all questions are refused."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    async with asyncio.timeout(TIDY):
                        await self._stirred.wait()
                except TimeoutError:
                    self._accounts.tidy(loop.time())
                self._stirred.clear()
                while taken := self._queue.take():
                    await self._step(taken)
        finally:
            self._is_over = True
            self._thread.shutdown(wait=False)
            for question in self._answers:
                self._settle(question, encode(Refused("the expert does not answer any more")))

    # -- inside -----------------------------------------------------------------------------------------------

    def _check(self, question: Question) -> None:
        if not rows_fit(sum(each.wants_row for each in question.asked.additions), self._expert.vocab):
            raise RemoteError(f"asks for over {MOST_ROWS} bytes of log-probabilities at once", question.peer)
        for each in question.asked.additions:
            if any(token >= self._expert.vocab for token in each.tokens):
                raise RemoteError(f"asks about a token beyond {self._expert.vocab}", question.peer)
        self._accounts.check(question.peer, question.asked.asker, question.asked.additions)

    async def _step(self, taken: Sequence[Question]) -> None:
        """Call the expert once for all these questions."""
        loop = asyncio.get_running_loop()
        self.used_at = loop.time()
        self._accounts.tidy(self.used_at)
        jobs = [job for question in taken if (job := self._admitted(question)) is not None]
        try:
            done = await loop.run_in_executor(self._thread, self._compute, jobs, self._accounts.freed())
        except Exception as error:  # of the model's code, or no memory: these texts are lost, the others are not
            log.exception("the expert failed")
            for job in jobs:
                self._failed(job, LocalError(f"the expert failed there: {type(error).__name__}"))
            return
        for job in jobs:
            self._tell(job, done)

    def _admitted(self, question: Question) -> Job | None:
        asked, now = question.asked, self.used_at
        try:
            self._check(question)  # an earlier question may have begun the same text meanwhile
        except RemoteError as error:
            self._settle(question, error)
            return None
        return Job(question, [self._place(now, question, each) for each in asked.additions])

    def _place(self, now: float, question: Question, addition: Addition) -> int | Verdict:
        if addition.text in question.ended:  # the asker has an answer from another peer already
            return Verdict.FORGOTTEN
        return self._accounts.admit(now, question.peer, question.asked.asker, addition)

    def _compute(self, jobs: Sequence[Job], freed: Sequence[int]) -> Mapping[int, Scored]:
        """Rows and `within` by slot; in the thread."""
        for slot in freed:
            self._expert.end(slot)
        pieces = [Piece(slot, each.tokens) for job in jobs for each, slot in job.admitted]
        if not pieces:
            return {}
        answer = self._expert.extend(pieces, within=True)
        return {
            piece.slot: (row, float(within))
            for piece, row, within in zip(pieces, answer.rows, answer.within, strict=True)
        }

    def _tell(self, job: Job, done: Mapping[int, Scored]) -> None:
        peer, asker = job.question.peer, job.question.asked.asker
        scores, rows = [], []
        for addition, place in zip(job.question.asked.additions, job.places, strict=True):
            if isinstance(place, Verdict):
                scores.append(Score(place, 0.0))
                continue
            row, within = done[place]
            if np.isnan(row).any() or np.isnan(within):
                self._accounts.failed(peer, asker, addition.text)
                scores.append(Score(Verdict.NO_NUMBERS, 0.0))
                continue
            self._accounts.added(self.used_at, peer, asker, addition)
            scores.append(Score(Verdict.SCORED, max(LOWEST, within)))
            rows += [row] if addition.wants_row else []
        self._settle(job.question, encode(ExpertSays(tuple(scores), pack(np.stack(rows)) if rows else b"")))

    def _failed(self, job: Job, error: LocalError) -> None:
        for addition, _ in job.admitted:
            self._accounts.failed(job.question.peer, job.question.asked.asker, addition.text)
        self._settle(job.question, error)

    def _settle(self, question: Question, came: bytes | Exception) -> None:
        answer = self._answers.get(question)
        if answer is None or answer.done():
            return
        if isinstance(came, bytes):
            answer.set_result(came)
        else:
            answer.set_exception(came)
