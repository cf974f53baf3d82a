"""An expert on other peers: the shell around `replicas` and `texts`, which asks, hedges, and goes over to another peer.

Rules:
- A text is asked of one peer, its home, as long as that answers. If the answer is late another peer is asked as well,
  and whoever has it first is the text's home from then on; if there is none, the next peer is asked. Each that has not
  read the text reads it first.
- A peer is met before it is asked: a connection takes many round trips, an answer one, so neither's time says anything
  of the other's. One that breaks meanwhile is made anew, once, by whatever way there is, and there the texts are read
  anew, as nobody knows what the peer has read of them.
- A text is lost to the expert only when no peer is left to be asked about it, or our own node is away: then no peer is
  blamed. Those of the same call may go on.
- Ends of texts are told with the next question, or after TELL seconds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from shoal.node.asking.background import Background, together
from shoal.node.asking.line import NodeAway, Ways
from shoal.node.asking.replicas import Lie, Replica, Replicas
from shoal.node.asking.rows import unpack
from shoal.node.asking.texts import Ask, Copy, Hearing, Names, Text, calls_of, prompt_tokens, to_read
from shoal.node.asking.turns import ENDED
from shoal.node.serve.expert import Weighed
from shoal.node.serve.scorer import LogProbs, Piece, SomeFailed
from shoal.protocol.errors import RemoteError, ShoalError, TransportError
from shoal.protocol.ids import Digest, PeerId, short
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.experts import Addition, AskExpert, ExpertSays, Verdict
from shoal.protocol.messages.node import Refused

TELL = 2.0  # seconds
AT_ONCE = 4  # calls to one peer about one expert: so a call's time is its own, not that of those before it
FORGOTTEN = 2  # times that a peer may forget a text while it reads it


class RemoteExpert:
    """See Expert. `limit` tokens of context; `patience`: seconds that a call may take at most."""

    def __init__(
        self, file: Digest, ways: Ways, background: Background, *, vocab: int, limit: int, slots: int, patience: float
    ) -> None:
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, file.hex()[:16]
        self._file, self._ways, self._background = file, ways, background
        self._asker = secrets.randbits(62)
        self._replicas = Replicas(patience)
        self._names = Names()
        self._texts: dict[int, Text] = {}
        self._telling: asyncio.Task[None] | None = None

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        answer = self.weigh(pieces)
        if answer.failed:
            raise SomeFailed(answer.rows, answer.failed)
        return answer.rows

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        return self._background.run(self._weigh(pieces))

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._background.soon(self._end, slot)

    def answered_by(self, peers: Iterable[PeerId]) -> None:
        """These answer for the file; from any thread."""
        self._background.soon(self._replicas.update, list(peers))

    def place(self) -> dict[str, Any]:
        """See Placed."""
        rows = [
            {"peer": each.peer, "milliseconds": round(1000 * each.writing.mean, 1), "trouble": each.problem or None}
            for each in self._replicas.all()
        ]
        return {"place": "peers", "peers": rows}

    # -- one call of ours -------------------------------------------------------------------------------------

    async def _weigh(self, pieces: Sequence[Piece]) -> Weighed:
        asks = [self._begin(piece) for piece in pieces]
        heard, failed = await self._hear(asks)
        rows, within = np.zeros((len(asks), self.vocab), np.float32), np.zeros(len(asks))
        for number, ask in enumerate(asks):
            if (hearing := heard.get(ask.slot)) is not None:
                assert hearing.row is not None
                rows[number], within[number] = hearing.row, hearing.within
        return Weighed(rows, within, failed)

    def _begin(self, piece: Piece) -> Ask:
        text = self._texts.setdefault(piece.slot, Text())
        text.tokens += piece.tokens
        return Ask(piece.slot, text, len(piece.tokens))

    async def _hear(self, asks: Sequence[Ask]) -> tuple[Mapping[int, Hearing], Mapping[int, ShoalError]]:
        """What was heard about each, and why not about the others, by slots; when there is nobody left to be asked."""
        heard: dict[int, Hearing] = {}
        failed: dict[int, ShoalError] = {}
        tried: dict[int, set[Replica]] = {ask.slot: set() for ask in asks}
        rest = list(asks)
        while rest:
            groups: dict[Replica, list[Ask]] = {}
            for ask in rest:
                if (replica := self._choose(ask, tried[ask.slot])) is not None:
                    groups.setdefault(replica, []).append(ask)
                else:
                    failed.setdefault(ask.slot, self._nobody())
            rest = []
            for hearings in await asyncio.gather(*(self._race(*group, tried) for group in groups.items())):
                for hearing in hearings:
                    slot = hearing.ask.slot
                    if hearing.problem is None:
                        heard[slot] = hearing
                        failed.pop(slot, None)
                    else:
                        failed[slot] = hearing.problem
                        rest += [] if isinstance(hearing.problem, NodeAway) else [hearing.ask]
        return heard, failed

    def _choose(self, ask: Ask, tried: set[Replica]) -> Replica | None:
        home = ask.text.home
        if home is not None and home not in tried and self._replicas.is_able(_now(), home):
            return home
        return self._replicas.best(_now(), tried)

    def _nobody(self) -> ShoalError:
        problems = [each.problem for each in self._replicas.all() if each.problem]
        if not self._replicas.all():
            return TransportError("no peer answers for it")
        return TransportError(problems[0] if problems else "no peer that answers for it has room")

    # -- one peer, or two -------------------------------------------------------------------------------------

    async def _race(self, first: Replica, asks: Sequence[Ask], tried: Mapping[int, set[Replica]]) -> list[Hearing]:
        """From whoever has answered first; if nobody has, with the problem. Whoever was asked was tried."""
        is_hedged, error = False, None
        late = first.usual(to_read(first, asks))
        running = {asyncio.create_task(self._ask(first, asks)): (first, _now())}
        self._replicas.called()
        while running:
            try:
                done, _ = await asyncio.wait(
                    running, timeout=None if is_hedged else late, return_when=asyncio.FIRST_COMPLETED
                )
            except asyncio.CancelledError:  # nobody waits for an answer any more
                for asking in running:
                    asking.cancel()
                raise
            if not done:
                is_hedged = True
                if (other := self._hedge({first}.union(*(tried[ask.slot] for ask in asks)))) is not None:
                    running[asyncio.create_task(self._ask(other, asks))] = other, _now()
            for task in done:
                replica, _ = running.pop(task)
                for ask in asks:
                    tried[ask.slot].add(replica)
                try:
                    hearings = task.result()
                except ShoalError as problem:
                    error = problem
                    self._failed(replica, asks, problem)
                    continue
                for other_task, (loser, began) in running.items():
                    other_task.cancel()
                    if self._ways.is_met(loser.peer):
                        loser.outrun(to_read(loser, asks), _now() - began)
                    self._drop(loser, asks)
                return self._won(replica, hearings)
        return [Hearing(ask, self._names.copy(), problem=error) for ask in asks]

    def _hedge(self, but: set[Replica]) -> Replica | None:
        """Who is to be asked as well, if anybody is there, and it may be."""
        other = self._replicas.best(_now(), but)
        return other if other is not None and self._replicas.may_hedge() else None

    def _won(self, replica: Replica, hearings: list[Hearing]) -> list[Hearing]:
        replica.works()
        for hearing in hearings:
            text = hearing.ask.text
            if hearing.problem is not None:
                self._names.drop(text, replica)
            else:
                text.home = replica
        return hearings

    def _failed(self, replica: Replica, asks: Sequence[Ask], error: ShoalError) -> None:
        if not isinstance(error, NodeAway):
            replica.failed(_now(), error)
        self._drop(replica, asks)

    def _drop(self, replica: Replica, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._names.drop(ask.text, replica)

    async def _ask(self, replica: Replica, asks: Sequence[Ask]) -> list[Hearing]:
        """All that one peer has to say of them; RemoteError or TransportError if it fails."""
        await self._ways.meet(replica.peer, replica.meeting_deadline)
        try:
            return await self._hear_from(replica, asks)
        except TransportError:
            if self._ways.is_met(replica.peer):
                raise  # it is there, and gives no answer
        self._drop(replica, asks)
        await self._ways.meet(replica.peer, replica.meeting_deadline)
        return await self._hear_from(replica, asks)

    async def _hear_from(self, replica: Replica, asks: Sequence[Ask]) -> list[Hearing]:
        hearings = [Hearing(ask, self._copy(ask.text, replica)) for ask in asks]
        while open_ones := [each for each in hearings if not each.is_done]:
            additions = [each.next() for each in open_ones]
            parts = list(calls_of(additions, self.vocab))
            for start in range(0, len(parts), AT_ONCE):
                some = [slice(part.start, part.stop) for part in parts[start : start + AT_ONCE]]
                await together(self._call_about(replica, open_ones[part], additions[part]) for part in some)
        return hearings

    def _copy(self, text: Text, replica: Replica) -> Copy:
        if replica not in text.copies:
            text.copies[replica] = self._names.copy()
        return text.copies[replica]

    async def _call_about(self, replica: Replica, hearings: Sequence[Hearing], additions: Sequence[Addition]) -> None:
        tokens = prompt_tokens(additions)
        ended = self._names.ended(replica, ENDED)
        message = AskExpert(self._file, self._asker, ended, tuple(additions))
        began = _now()
        answer = await self._answer(replica, message, replica.deadline(tokens))
        replica.answered(tokens, _now() - began)
        try:
            self._take_in(replica, hearings, additions, answer)
        except RemoteError as error:
            raise Lie(error.reason, replica.peer) from error

    def _take_in(
        self, replica: Replica, hearings: Sequence[Hearing], additions: Sequence[Addition], answer: ExpertSays
    ) -> None:
        """RemoteError if no honest peer says that."""
        if len(answer.scores) != len(additions):
            raise RemoteError(f"gave {len(answer.scores)} scores to {len(additions)} additions")
        heard = list(zip(hearings, additions, answer.scores, strict=True))
        wanted = sum(score.verdict is Verdict.SCORED and addition.wants_row for _, addition, score in heard)
        rows = iter(unpack(answer.rows, wanted, self.vocab, replica.peer))
        for hearing, addition, score in heard:
            if score.within > 0:
                raise RemoteError("claims that tokens were more than certain")
            if score.verdict is Verdict.SCORED:
                hearing.heard(addition, next(rows) if addition.wants_row else None, score.within)
            else:
                self._refused(replica, hearing, addition, score.verdict)

    def _refused(self, replica: Replica, hearing: Hearing, addition: Addition, verdict: Verdict) -> None:
        if verdict is Verdict.FORGOTTEN and addition.held and hearing.forgotten < FORGOTTEN:
            self._names.drop(hearing.ask.text, replica)
            hearing.begin_anew(self._copy(hearing.ask.text, replica))
        elif verdict is Verdict.NO_NUMBERS:
            hearing.problem = RemoteError("its probabilities are no numbers: its training has diverged", replica.peer)
        else:
            hearing.problem = TransportError(f"{short(replica.peer)} has no room for another text")

    async def _answer(self, replica: Replica, message: AskExpert, limit: float) -> ExpertSays:
        """Within so many seconds, also if the peer asks us to come later."""
        until = _now() + limit
        while True:
            left = max(0.01, until - _now())
            answer = await self._ways.call(replica.peer, message, left)
            if isinstance(answer, ExpertSays):
                return answer
            if isinstance(answer, Later) and _now() + answer.milliseconds / 1000 < until:
                await asyncio.sleep(answer.milliseconds / 1000)
            elif isinstance(answer, Later | Refused):
                words = answer.reason if isinstance(answer, Refused) else "has too much to do"
                raise TransportError(f"{short(replica.peer)}: {words}")
            else:
                raise RemoteError(f"answered with a {type(answer).__name__}", replica.peer)

    # -- ends -------------------------------------------------------------------------------------------------

    def _end(self, slot: int) -> None:
        if (text := self._texts.pop(slot, None)) is None:
            return
        for replica in list(text.copies):
            self._names.drop(text, replica)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        await asyncio.sleep(TELL)
        for replica in self._names.to_tell():
            ended = self._names.ended(replica, ENDED)
            with suppress(ShoalError):  # who cannot be told forgets them by itself
                await self._ways.call(replica.peer, AskExpert(self._file, self._asker, ended, ()), replica.limit)


def _now() -> float:
    return asyncio.get_running_loop().time()
