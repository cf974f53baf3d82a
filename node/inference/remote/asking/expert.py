"""An expert on other peers: the shell around `answerers` and `texts`, which asks, hedges, and changes peers.

Rules:
- A text stays with one peer, its home, as long as that peer answers. If an answer is late another peer is asked as
  well, and the one that answers first becomes the text's home; if the home fails, the next peer is asked. A peer that
  has not read the text reads it first.
- The node connects with a peer before it is asked: connecting takes many round trips, an answer one, so they are timed
  separately. If a connection breaks during a call, it is made again once, by any path, and the peer reads the texts
  again from the beginning, as it is unknown how much of them it has.
- A text loses the expert only if no peer is left to ask, or our own node is away; then no peer is blamed. Other texts
  of the same call may go on.
- Ends of texts are sent with the next question, or after TELL seconds.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from shoal.node.experts.questions import ENDED
from shoal.node.inference.remote.asking.answerers import Answerer, Answerers, Lie
from shoal.node.inference.remote.asking.texts import (
    Ask,
    AskState,
    Copy,
    CopyNumbers,
    Text,
    calls_of,
    prompt_tokens,
    to_read,
)
from shoal.node.inference.remote.connection import NodeAway, PeerCalls
from shoal.node.inference.remote.rows import unpack
from shoal.node.inference.scorer import Piece, Predictions, Scorer
from shoal.protocol.base.errors import LOST, RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId, short
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.experts import Addition, AskExpert, ExpertSays, Verdict
from shoal.protocol.messages.node import Refused

T = TypeVar("T")
TELL = 2.0  # seconds
AT_ONCE = 4  # calls to one peer about one expert: more would wait for each other, and be timed wrongly
FORGOTTEN = 2  # how often a peer may forget a text while it reads it


class Background:
    """An asyncio loop in a thread, which runs until the process ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="asking", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def soon(self, work: Callable[..., object], *args: object) -> None:
        """Call a function in the loop, after all earlier calls."""
        self._loop.call_soon_threadsafe(work, *args)


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all concurrently; if one fails, cancel the others, wait for them, and raise its error."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RemoteExpert(Scorer):
    """See Scorer. `limit`: tokens of context; `patience`: the most seconds that a call may take."""

    def __init__(
        self,
        file: Digest,
        connection: PeerCalls,
        background: Background,
        *,
        vocab: int,
        limit: int,
        slots: int,
        patience: float,
    ) -> None:
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, file.hex()[:16]
        self._file, self._connection, self._background = file, connection, background
        self._asker = secrets.randbits(62)
        self._answerers = Answerers(patience)
        self._copies = CopyNumbers()
        self._texts: dict[int, Text] = {}
        self._telling: asyncio.Task[None] | None = None

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """See Scorer. A peer's answer always has `within`."""
        return self._background.run(self._extend(pieces))

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._background.soon(self._end, slot)

    def answered_by(self, peers: Iterable[PeerId]) -> None:
        """Set the peers that answer for the file; from any thread."""
        self._background.soon(self._answerers.update, list(peers))

    def about(self) -> dict[str, Any]:
        """See Scorer: where the expert is, and how its peers answer."""
        rows = [
            {"peer": each.peer, "milliseconds": round(1000 * each.writing.mean, 1), "trouble": each.problem or None}
            for each in self._answerers.all()
        ]
        return {"place": "peers", "peers": rows}

    # -- one call of ours -------------------------------------------------------------------------------------

    async def _extend(self, pieces: Sequence[Piece]) -> Predictions:
        asks = [self._begin(piece) for piece in pieces]
        answered, failed = await self._ask_peers(asks)
        rows, within = np.zeros((len(asks), self.vocab), np.float32), np.zeros(len(asks))
        for number, ask in enumerate(asks):
            if (state := answered.get(ask.slot)) is not None:
                assert state.row is not None
                rows[number], within[number] = state.row, state.within
        return Predictions(rows, within, failed)

    def _begin(self, piece: Piece) -> Ask:
        text = self._texts.setdefault(piece.slot, Text())
        text.tokens += piece.tokens
        return Ask(piece.slot, text, len(piece.tokens))

    async def _ask_peers(self, asks: Sequence[Ask]) -> tuple[Mapping[int, AskState], Mapping[int, ShoalError]]:
        """Ask until all are answered, or no peer is left. Returns answers and errors by slot."""
        answered: dict[int, AskState] = {}
        failed: dict[int, ShoalError] = {}
        tried: dict[int, set[Answerer]] = {ask.slot: set() for ask in asks}
        rest = list(asks)
        while rest:
            groups: dict[Answerer, list[Ask]] = {}
            for ask in rest:
                if (answerer := self._choose(ask, tried[ask.slot])) is not None:
                    groups.setdefault(answerer, []).append(ask)
                else:
                    failed.setdefault(ask.slot, self._nobody())
            rest = []
            for states in await asyncio.gather(*(self._race(*group, tried) for group in groups.items())):
                for state in states:
                    slot = state.ask.slot
                    if state.problem is None:
                        answered[slot] = state
                        failed.pop(slot, None)
                    else:
                        failed[slot] = state.problem
                        rest += [] if isinstance(state.problem, NodeAway) else [state.ask]
        return answered, failed

    def _choose(self, ask: Ask, tried: set[Answerer]) -> Answerer | None:
        home = ask.text.home
        if home is not None and home not in tried and self._answerers.is_able(_now(), home):
            return home
        return self._answerers.best(_now(), tried)

    def _nobody(self) -> ShoalError:
        problems = [each.problem for each in self._answerers.all() if each.problem]
        if not self._answerers.all():
            return TransportError("no peer answers for it")
        return TransportError(problems[0] if problems else "no peer that answers for it has room")

    # -- one peer, or two -------------------------------------------------------------------------------------

    async def _race(self, first: Answerer, asks: Sequence[Ask], tried: Mapping[int, set[Answerer]]) -> list[AskState]:
        """The answers of the first peer that answers, or the last error; peers that were asked are added to `tried`."""
        is_hedged, error = False, None
        late = first.usual(to_read(first, asks))
        running = {asyncio.create_task(self._ask(first, asks)): (first, _now())}
        self._answerers.called()
        while running:
            try:
                done, _ = await asyncio.wait(
                    running, timeout=None if is_hedged else late, return_when=asyncio.FIRST_COMPLETED
                )
            except asyncio.CancelledError:  # the caller does not wait any more
                for asking in running:
                    asking.cancel()
                raise
            if not done:
                is_hedged = True
                if (other := self._hedge({first}.union(*(tried[ask.slot] for ask in asks)))) is not None:
                    running[asyncio.create_task(self._ask(other, asks))] = other, _now()
            for task in done:
                answerer, _ = running.pop(task)
                for ask in asks:
                    tried[ask.slot].add(answerer)
                try:
                    states = task.result()
                except ShoalError as problem:
                    error = problem
                    self._failed(answerer, asks, problem)
                    continue
                for other_task, (loser, began) in running.items():
                    other_task.cancel()
                    if self._connection.is_met(loser.peer):
                        loser.outrun(to_read(loser, asks), _now() - began)
                    self._drop(loser, asks)
                return self._won(answerer, states)
        return [AskState(ask, self._copies.copy(), problem=error) for ask in asks]

    def _hedge(self, but: set[Answerer]) -> Answerer | None:
        """Another peer to ask, if there is one, and a hedge is allowed."""
        other = self._answerers.best(_now(), but)
        return other if other is not None and self._answerers.may_hedge() else None

    def _won(self, answerer: Answerer, states: list[AskState]) -> list[AskState]:
        answerer.works()
        for state in states:
            text = state.ask.text
            if state.problem is not None:
                self._copies.drop(text, answerer)
            else:
                text.home = answerer
        return states

    def _failed(self, answerer: Answerer, asks: Sequence[Ask], error: ShoalError) -> None:
        if not isinstance(error, NodeAway):
            answerer.failed(_now(), error)
        self._drop(answerer, asks)

    def _drop(self, answerer: Answerer, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._copies.drop(ask.text, answerer)

    async def _ask(self, answerer: Answerer, asks: Sequence[Ask]) -> list[AskState]:
        """One peer's answers to all asks; RemoteError or TransportError if it fails."""
        await self._connection.meet(answerer.peer, answerer.meeting_deadline)
        try:
            return await self._ask_all_texts(answerer, asks)
        except TransportError as error:
            if error.code != LOST and self._connection.is_met(answerer.peer):
                raise  # it is connected, and does not answer
        self._drop(answerer, asks)
        await self._connection.meet(answerer.peer, answerer.meeting_deadline)
        return await self._ask_all_texts(answerer, asks)

    async def _ask_all_texts(self, answerer: Answerer, asks: Sequence[Ask]) -> list[AskState]:
        states = [AskState(ask, self._copy(ask.text, answerer)) for ask in asks]
        while open_ones := [each for each in states if not each.is_done]:
            additions = [each.next() for each in open_ones]
            parts = list(calls_of(additions, self.vocab))
            for start in range(0, len(parts), AT_ONCE):
                some = [slice(part.start, part.stop) for part in parts[start : start + AT_ONCE]]
                await together(self._call_about(answerer, open_ones[part], additions[part]) for part in some)
        return states

    def _copy(self, text: Text, answerer: Answerer) -> Copy:
        if answerer not in text.copies:
            text.copies[answerer] = self._copies.copy()
        return text.copies[answerer]

    async def _call_about(self, answerer: Answerer, states: Sequence[AskState], additions: Sequence[Addition]) -> None:
        tokens = prompt_tokens(additions)
        ended = self._copies.ended(answerer, ENDED)
        message = AskExpert(self._file, self._asker, ended, tuple(additions))
        began = _now()
        answer = await self._answer(answerer, message, answerer.deadline(tokens))
        answerer.answered(tokens, _now() - began)
        try:
            self._take_in(answerer, states, additions, answer)
        except RemoteError as error:
            raise Lie(error.reason, answerer.peer) from error

    def _take_in(
        self, answerer: Answerer, states: Sequence[AskState], additions: Sequence[Addition], answer: ExpertSays
    ) -> None:
        """RemoteError if no honest peer gives this answer."""
        if len(answer.scores) != len(additions):
            raise RemoteError(f"gave {len(answer.scores)} scores to {len(additions)} additions")
        answered = list(zip(states, additions, answer.scores, strict=True))
        wanted = sum(score.verdict is Verdict.SCORED and addition.wants_row for _, addition, score in answered)
        rows = iter(unpack(answer.rows, wanted, self.vocab, answerer.peer))
        for state, addition, score in answered:
            if score.within > 0:
                raise RemoteError("claims that tokens were more than certain")
            if score.verdict is Verdict.SCORED:
                state.add_answer(addition, next(rows) if addition.wants_row else None, score.within)
            else:
                self._refused(answerer, state, addition, score.verdict)

    def _refused(self, answerer: Answerer, state: AskState, addition: Addition, verdict: Verdict) -> None:
        if verdict is Verdict.FORGOTTEN and addition.held and state.forgotten < FORGOTTEN:
            self._copies.drop(state.ask.text, answerer)
            state.restart(self._copy(state.ask.text, answerer))
        elif verdict is Verdict.NO_NUMBERS:
            state.problem = RemoteError("its probabilities are no numbers: its training has diverged", answerer.peer)
        else:
            state.problem = TransportError(f"{short(answerer.peer)} has no room for another text")

    async def _answer(self, answerer: Answerer, message: AskExpert, limit: float) -> ExpertSays:
        """The peer's answer within `limit` seconds, asked again if the peer says to come later."""
        until = _now() + limit
        while True:
            left = max(0.01, until - _now())
            answer = await self._connection.call(answerer.peer, message, left)
            if isinstance(answer, ExpertSays):
                return answer
            if isinstance(answer, Later) and _now() + answer.milliseconds / 1000 < until:
                await asyncio.sleep(answer.milliseconds / 1000)
            elif isinstance(answer, Later | Refused):
                words = answer.reason if isinstance(answer, Refused) else "has too much to do"
                raise TransportError(f"{short(answerer.peer)}: {words}")
            else:
                raise RemoteError(f"answered with a {type(answer).__name__}", answerer.peer)

    # -- ends -------------------------------------------------------------------------------------------------

    def _end(self, slot: int) -> None:
        if (text := self._texts.pop(slot, None)) is None:
            return
        for answerer in list(text.copies):
            self._copies.drop(text, answerer)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        await asyncio.sleep(TELL)
        for answerer in self._copies.to_tell():
            ended = self._copies.ended(answerer, ENDED)
            with suppress(ShoalError):  # a peer that cannot be told forgets idle texts by itself
                words = AskExpert(self._file, self._asker, ended, ())
                await self._connection.call(answerer.peer, words, answerer.limit)


def _now() -> float:
    return asyncio.get_running_loop().time()
