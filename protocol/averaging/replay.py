"""What a member that starts again can apply by itself: results of the log whose means are on its disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count

from shoal.protocol.averaging.context import Outcome
from shoal.protocol.averaging.policy import Base
from shoal.protocol.averaging.shelf import Decision, Written, table_digest
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message
from shoal.protocol.log.register import next_history, state_of
from shoal.protocol.messages.averaging import Mean, Table
from shoal.protocol.messages.log import Register, Result, Void


def outcome_of(before: Register, number: int, body: Message, part: int) -> tuple[int, Outcome | None] | None:
    """The round that an entry after the register `before` ends, and as what: None if it undoes its result.

    None for an entry that ends none.
    """
    match body:
        case Result(part=of) if of == part:
            roster = tuple(seat.peer for seat in state_of(before, part).roster)
            return body.round, Outcome(number, body, roster)
        case Void(part=of) if of == part:
            return state_of(before, part).round, None
    return None


def decision_of(outcome: Outcome, records: Iterable[Mean | Table]) -> Decision | None:
    """That result with its bytes; None unless all of them are among these means and tables."""
    known, result = list(records), outcome.result
    tables = {table_digest(each.means): each.means for each in known if isinstance(each, Table)}
    bytes_of = {(each.round, each.chunk, each.made.hash): each.payload for each in known if isinstance(each, Mean)}
    table = tables.get(result.table, ())
    names = [(result.round, chunk, made.hash) for chunk, made in enumerate(table)]
    if not table or any(name not in bytes_of for name in names):
        return None
    return Decision(outcome.number, result, outcome.roster, table, tuple(bytes_of[name] for name in names))


def written(outcome: Outcome, tables: Iterable[Table]) -> Written | None:
    """What is known of that result, if its table is one of these, whose means are on our disk."""
    result = outcome.result
    means = next((table.means for table in tables if table_digest(table.means) == result.table), None)
    return Written(result.round, result.table, means) if means is not None else None


def rounds_after(
    base: Base, decided: Mapping[int, Outcome | None], read: Callable[[int], Iterable[Mean | Table]]
) -> Iterator[tuple[int, Decision | None]]:
    """The rounds after `base`, each with what was decided, or None if that was undone; as far as all bytes are here.

    `read` gives what is here of a round, of which there may be too many to be in memory together.
    """
    for round in count(base.round + 1):
        if round not in decided:
            return
        outcome = decided[round]
        decision = decision_of(outcome, read(round)) if outcome is not None else None
        if outcome is not None and decision is None:
            return
        yield round, decision


def base_without(base: Base, round: int) -> Base:
    """What the round after `round` builds on, whose result was undone."""
    return Base(round, base.entry, base.history, base.root)


def base_after(base: Base, decision: Decision, root: Digest) -> Base:
    """What the round after `decision`, which was made on `base`, builds on."""
    result = decision.result
    history = next_history(base.history, result.table, sum(result.weights))
    return Base(decision.round, decision.number, history, root)
