"""Many experts as one scorer: each sequence's pieces go to the experts that it believes, side by side.

Rules:
- A sequence that an expert has failed goes on with the others. A failure is of a whole call, unless the expert says of
  which sequences it is: all these go on without it; the next one to begin asks it again, as it may have come back.
- Numbers that are none are a failure, too, but only of the sequences that they are about.
- A sequence whose last expert fails cannot go on, and ends with what that one has said.
- Who is on the panel may change at any time: `take` is called from any thread. Vocabulary and context stay as they are.
- Experts that compute here take turns, as many at once as there are cores for; those that wait for peers need none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from shoal.node.inference.ensemble.belief import Belief, Tokens
from shoal.node.inference.ensemble.panel import Member, Panel
from shoal.node.inference.scorer import LogProbs, Piece, Placed, SomeFailed, Weighed
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError

T = TypeVar("T")
log = logging.getLogger("shoal.serve")


class SideBySide:
    """Threads for at most `at_once` calls."""

    def __init__(self, at_once: int) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="expert") if at_once > 1 else None

    def call(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """What each gives or raises, in their order, when all are done."""
        if self._pool is None or len(calls) == 1:
            return [_attempt(each) for each in calls]
        return list(self._pool.map(_attempt, calls))


def _attempt(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # of a model's own code, out of memory, of the network: it is judged by who called
        return error


@dataclass(slots=True, eq=False)
class Held:
    """A sequence in a slot."""

    panel: Panel
    belief: Belief
    problem: ShoalError | None = None  # what the last of its experts to fail has raised


@dataclass(frozen=True, slots=True)
class Ask:
    """Tokens for one expert of a sequence."""

    slot: int
    number: int  # on the sequence's panel
    tokens: Tokens


class Ensemble:
    """See Scorer, Telling and Changing."""

    def __init__(self, panel: Panel, *, limit: int, slots: int, mix: str, at_once: int) -> None:
        """`limit`: tokens that every expert's context holds; `at_once`: experts that are called side by side."""
        self.vocab, self.limit, self.slots = panel.members[0].expert.vocab, limit, slots
        self._panel, self._mix = panel, mix
        self._calls = SideBySide(at_once)
        self._held: dict[int, Held] = {}

    @property
    def version(self) -> str:
        """See Scorer."""
        return self._panel.version

    def version_of(self, slot: int) -> str:
        """See Changing."""
        return self._held[slot].panel.version

    @property
    def panel(self) -> Panel:
        """The experts for sequences that begin now."""
        return self._panel

    def take(self, panel: Panel) -> None:
        """From now on sequences begin with this one. Its experts hold as many tokens and slots as this scorer."""
        self._panel = panel

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        asks: list[Ask] = []
        for piece in pieces:
            held = self._held.get(piece.slot) or self._begun(piece.slot)
            held.belief.read(piece.tokens)
            asks += [Ask(piece.slot, number, piece.tokens) for number in held.belief.experts]
        while asks:
            asks = self._asked(asks)
        rows = np.zeros((len(pieces), self.vocab), np.float32)
        failed: dict[int, ShoalError] = {}
        for row, piece in zip(rows, pieces, strict=True):
            held = self._held[piece.slot]
            if not held.belief.experts:
                failed[piece.slot] = _none_left(held)
            elif not piece.more:
                held.belief.choose()
                row[:] = held.belief.scores()
        if failed:
            raise SomeFailed(rows, failed)
        return rows

    def end(self, slot: int) -> None:
        """See Scorer."""
        if held := self._held.pop(slot, None):
            for member in held.panel.members:
                member.expert.end(slot)

    def about(self) -> dict[str, Any]:
        """See Telling: each expert, its prior and whether its last call was answered, and who is missing."""
        panel = self._panel
        priors = panel.log_prior.exp().tolist()
        rows = [_row(each, prior) for each, prior in zip(panel.members, priors, strict=True)]
        return {"mix": self._mix, "experts": rows} | ({"missing": list(panel.missing)} if panel.missing else {})

    def told(self, slot: int) -> dict[str, Any]:
        """See Telling: the shares of those that wrote to the end, and who was lost on the way."""
        held = self._held[slot]
        names = [each.name for each in held.panel.members]
        shares = {names[number]: round(share, 6) for number, share in held.belief.shares().items()}
        return {"experts": shares, "lost": [names[number] for number in held.belief.lost]}

    def _begun(self, slot: int) -> Held:
        panel = self._panel
        self._held[slot] = held = Held(panel, Belief(panel.log_prior, panel.k))
        return held

    def _asked(self, asks: Sequence[Ask]) -> list[Ask]:
        """Ask them; what is to be asked then, in the place of experts that have failed."""
        by_member: dict[Member, list[Ask]] = {}
        for ask in asks:
            by_member.setdefault(self._held[ask.slot].panel.members[ask.number], []).append(ask)
        answers = self._calls.call([self._call(member, each) for member, each in by_member.items()])
        more: list[Ask] = []
        for (member, its), answer in zip(by_member.items(), answers, strict=True):
            failures = self._failures(its, answer)
            _note(member, failures)
            for ask, error in failures.items():
                more += self._lost(ask, error)
        return more

    def _call(self, member: Member, asks: Sequence[Ask]) -> Callable[[], Weighed]:
        pieces = [Piece(ask.slot, ask.tokens) for ask in asks]
        if all(len(self._held[ask.slot].panel.members) == 1 for ask in asks):  # there is nobody to weigh it against
            return lambda: Weighed(member.expert.extend(pieces), np.zeros(len(pieces)))
        return lambda: member.expert.weigh(pieces)

    def _failures(self, asks: Sequence[Ask], answer: Weighed | Exception) -> Mapping[Ask, Exception]:
        """Take in an expert's answer; what went wrong with which of the questions."""
        if isinstance(answer, SomeFailed):
            answer = Weighed(answer.rows, np.zeros(len(asks)), answer.failed)
        if isinstance(answer, Exception):
            return dict.fromkeys(asks, answer)
        failures: dict[Ask, Exception] = {}
        for ask, row, within in zip(asks, answer.rows, answer.within, strict=True):
            if (error := answer.failed.get(ask.slot)) is not None:
                failures[ask] = error
            elif np.isnan(row).any() or np.isnan(within):
                failures[ask] = LocalError("its probabilities are no numbers: its training has diverged")
            else:
                self._held[ask.slot].belief.hear(ask.number, ask.tokens, row, float(within))
        return failures

    def _lost(self, ask: Ask, error: Exception) -> list[Ask]:
        held = self._held[ask.slot]
        held.problem = _in_words(held.panel.members[ask.number], error)
        instead = held.belief.lose(ask.number)
        return [] if instead is None else [Ask(ask.slot, *instead)]


def _note(member: Member, failures: Mapping[Ask, Exception]) -> None:
    """For /v1/models and the log: one line when an expert goes, one when it is back."""
    error = next(iter(failures.values()), None)
    if error is not None and not member.trouble:
        log.warning(
            "the expert %s is lost to %s: %s",
            member.name,
            "one text" if len(failures) == 1 else f"{len(failures)} texts",
            error,
            exc_info=None if isinstance(error, ShoalError) else error,
        )
    elif error is None and member.trouble:
        log.warning("the expert %s is back", member.name)
    member.trouble = "" if error is None else str(_in_words(member, error))


def _in_words(member: Member, error: Exception) -> ShoalError:
    """Whose fault it was stays what it is; what was not raised on purpose is a bug here, and in the log."""
    for kind in (LocalError, RemoteError, TransportError):
        if isinstance(error, kind):
            return kind(f"the expert {member.name}: {error}")
    return LocalError(f"the expert {member.name} failed: {type(error).__name__}; the log of the server has the details")


def _none_left(held: Held) -> ShoalError:
    assert held.problem is not None
    return type(held.problem)(f"no expert is left; of the last one: {held.problem}")


def _row(member: Member, prior: float) -> dict[str, Any]:
    row: dict[str, Any] = {"name": member.name, "prior": round(prior, 6), "answers": not member.trouble}
    if isinstance(member.expert, Placed):
        row |= member.expert.place()
    if member.made_of:
        row["made_of"] = list(member.made_of)
    return row | ({"trouble": member.trouble} if member.trouble else {})
