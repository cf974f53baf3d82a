"""A scorer over many experts: each sequence's pieces go, in parallel, to the experts that the sequence trusts.

Rules:
- If an expert fails, the sequences of that call (or only those that it names) go on without it. A sequence that begins
  later asks it again, as it may have recovered.
- NaN in an answer is a failure, too, but only for the sequences whose numbers are NaN.
- A sequence whose last expert fails cannot go on, and ends with that expert's error.
- The panel may change at any time: `take` is called from any thread. Vocabulary and context stay as they are.
- At most `at_once` experts are called at the same time. Of a family many may wait for peers at once, so there InTurn
  (family.py) limits those that compute on this machine.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from shoal.node.inference.ensemble.belief import Belief, Tokens
from shoal.node.inference.ensemble.panel import Member, Panel, changes
from shoal.node.inference.scorer import Piece, Predictions, Scorer
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError

T = TypeVar("T")
log = logging.getLogger("shoal.serve")


class ParallelCalls:
    """Makes at most `at_once` calls at the same time, in threads."""

    def __init__(self, at_once: int) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="expert") if at_once > 1 else None

    def call(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """What each call returned or raised, in order, when all are done."""
        if self._pool is None or len(calls) == 1:
            return [_attempt(each) for each in calls]
        return list(self._pool.map(_attempt, calls))


def _attempt(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # of a model's code, the memory or the network: the caller handles it
        return error


@dataclass(slots=True, eq=False)
class Held:
    """The sequence in one slot."""

    panel: Panel
    belief: Belief
    problem: ShoalError | None = None  # what the expert that failed last raised


@dataclass(frozen=True, slots=True)
class Ask:
    """Tokens of a sequence that one expert is to read."""

    slot: int
    number: int  # of the expert on the sequence's panel
    tokens: Tokens


class Ensemble(Scorer):
    """A mixture of the experts of a panel; see Scorer. It cannot be an expert itself."""

    def __init__(self, panel: Panel, *, limit: int, slots: int, mix: str, at_once: int) -> None:
        """`limit`: tokens that every expert's context holds; `at_once`: how many experts are called in parallel."""
        self.vocab, self.limit, self.slots = panel.members[0].expert.vocab, limit, slots
        self._mix = mix
        self._calls = ParallelCalls(at_once)
        self._held: dict[int, Held] = {}
        self._reloading = threading.Lock()  # several threads may ask for it
        self.take(panel)

    def take(self, panel: Panel) -> None:
        """New sequences use this panel from now on. Its experts must have this scorer's vocabulary, limit and slots."""
        self.panel, self.version = panel, panel.version

    def reload(self, load: Callable[[Sequence[Member]], Panel]) -> str:
        """Take the panel that `load` makes, which is given the present members; a sentence on what has changed."""
        with self._reloading:
            before, after = self.panel, load(self.panel.members)
            self.take(after)
            return changes(before.names, after.names)

    def version_of(self, slot: int) -> str:
        """See Scorer."""
        return self._held[slot].panel.version

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """See Scorer."""
        assert not within
        asks: list[Ask] = []
        for piece in pieces:
            held = self._held.get(piece.slot) or self._begin(piece.slot)
            held.belief.read(piece.tokens)
            asks += [Ask(piece.slot, number, piece.tokens) for number in held.belief.experts]
        while asks:
            asks = self._ask(asks)
        rows = np.zeros((len(pieces), self.vocab), np.float32)
        failed: dict[int, ShoalError] = {}
        for row, piece in zip(rows, pieces, strict=True):
            held = self._held[piece.slot]
            if not held.belief.experts:
                failed[piece.slot] = _none_left(held)
            elif not piece.more:
                held.belief.choose()
                row[:] = held.belief.scores()
        return Predictions(rows, np.zeros(len(pieces)), failed)

    def end(self, slot: int) -> None:
        """See Scorer."""
        if held := self._held.pop(slot, None):
            for member in held.panel.members:
                member.expert.end(slot)

    def about(self) -> dict[str, Any]:
        """See Scorer: each expert with its prior and whether it answered its last call, and which are missing."""
        panel = self.panel
        priors = panel.log_prior.exp().tolist()
        rows = [_row(each, prior) for each, prior in zip(panel.members, priors, strict=True)]
        return {"mix": self._mix, "experts": rows} | ({"missing": list(panel.missing)} if panel.missing else {})

    def notes(self, slot: int) -> dict[str, Any]:
        """See Scorer: the shares of the experts that wrote to the end, and those that were lost on the way."""
        held = self._held[slot]
        names = [each.name for each in held.panel.members]
        shares = {names[number]: round(share, 6) for number, share in held.belief.shares().items()}
        return {"experts": shares, "lost": [names[number] for number in held.belief.lost]}

    def _begin(self, slot: int) -> Held:
        panel = self.panel
        self._held[slot] = held = Held(panel, Belief(panel.log_prior, panel.k))
        return held

    def _ask(self, asks: Sequence[Ask]) -> list[Ask]:
        """Ask the experts. Returns what to ask next, of those that replace experts that failed."""
        by_member: dict[Member, list[Ask]] = {}
        for ask in asks:
            by_member.setdefault(self._held[ask.slot].panel.members[ask.number], []).append(ask)
        answers = self._calls.call([self._call(member, each) for member, each in by_member.items()])
        more: list[Ask] = []
        for (member, its), answer in zip(by_member.items(), answers, strict=True):
            failures = self._failures(its, answer)
            _note(member, failures)
            for ask, error in failures.items():
                more += self._lose(ask, error)
        return more

    def _call(self, member: Member, asks: Sequence[Ask]) -> Callable[[], Predictions]:
        pieces = [Piece(ask.slot, ask.tokens) for ask in asks]
        has_rivals = any(len(self._held[ask.slot].panel.members) > 1 for ask in asks)
        return lambda: member.expert.extend(pieces, within=has_rivals)

    def _failures(self, asks: Sequence[Ask], answer: Predictions | Exception) -> Mapping[Ask, Exception]:
        """Take in an expert's answer. Returns what went wrong, for each ask that failed."""
        if isinstance(answer, Exception):
            return dict.fromkeys(asks, answer)
        failures: dict[Ask, Exception] = {}
        for ask, row, within in zip(asks, answer.rows, answer.within, strict=True):
            if (error := answer.failed.get(ask.slot)) is not None:
                failures[ask] = error
            elif np.isnan(row).any() or np.isnan(within):
                failures[ask] = LocalError(
                    "its probabilities are no numbers: its training has diverged", code="model-diverged"
                )
            else:
                self._held[ask.slot].belief.add(ask.number, ask.tokens, row, float(within))
        return failures

    def _lose(self, ask: Ask, error: Exception) -> list[Ask]:
        held = self._held[ask.slot]
        held.problem = _named(held.panel.members[ask.number], error)
        replacement = held.belief.lose(ask.number)
        return [] if replacement is None else [Ask(ask.slot, *replacement)]


def _note(member: Member, failures: Mapping[Ask, Exception]) -> None:
    """Set the member's trouble for /v1/models, and log once when the expert fails and once when it is back."""
    error = next(iter(failures.values()), None)
    if error is not None and not member.trouble:
        log.warning(
            "the expert %s is lost to %s: %s",
            member.name,
            "one text" if len(failures) == 1 else f"{len(failures)} texts",
            error,
            exc_info=None if isinstance(error, ShoalError) else error,
            extra={"code": "expert-lost"},
        )
    elif error is None and member.trouble:
        log.warning("the expert %s is back", member.name, extra={"code": "expert-back"})
    member.trouble = "" if error is None else str(_named(member, error))


def _named(member: Member, error: Exception) -> ShoalError:
    """The error with the expert's name, of the same kind; one that is no ShoalError is a bug, and a LocalError."""
    for kind in (LocalError, RemoteError, TransportError):
        if isinstance(error, kind):
            return kind(f"the expert {member.name}: {error}")
    return LocalError(f"the expert {member.name} failed: {type(error).__name__}; the log of the server has the details")


def _none_left(held: Held) -> ShoalError:
    assert held.problem is not None
    return type(held.problem)(f"no expert is left; of the last one: {held.problem}")


def _row(member: Member, prior: float) -> dict[str, Any]:
    row: dict[str, Any] = {"name": member.name, "prior": round(prior, 6), "answers": not member.trouble}
    row |= member.expert.about()
    if member.made_of:
        row["made_of"] = list(member.made_of)
    return row | ({"trouble": member.trouble} if member.trouble else {})
