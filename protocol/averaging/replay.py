"""What a member that starts again can apply by itself: results of the log whose means are on its disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from shoal.protocol.averaging.context import Outcome
from shoal.protocol.averaging.policy import Base
from shoal.protocol.averaging.shelf import Decision, table_digest
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, Message, Payload, decode
from shoal.protocol.log.register import Rules, next_history, steps
from shoal.protocol.messages.averaging import Made, Mean, Table
from shoal.protocol.messages.log import BODY_TAGS, Decided, Register, Result, Void


def outcomes(first: Register, entries: Iterable[Decided], rules: Rules, part: int) -> dict[int, Outcome]:
    """By round, what the entries after `first` have decided and not undone."""
    found: dict[int, Outcome] = {}
    for before, decided, _ in steps(first, entries, rules):
        body = decode(decided.entry.body, None, MAX_CONTROL_FRAME, BODY_TAGS)
        state = before.parts[part]
        if isinstance(body, Result) and body.part == part:
            found[body.round] = Outcome(decided.entry.number, body, tuple(seat.peer for seat in state.roster))
        elif isinstance(body, Void) and body.part == part:
            found.pop(state.round, None)
    return found


def decisions_of(
    rounds: Iterable[int], decided: Mapping[int, Outcome], records: Iterable[Message]
) -> Iterator[Decision]:
    """The results of these rounds, one by one, as long as all their means are among `records`."""
    means: dict[tuple[int, int, Digest], Payload] = {}
    tables: dict[Digest, tuple[Made, ...]] = {}
    for record in records:
        match record:
            case Mean():
                means[record.round, record.chunk, record.made.hash] = record.payload
            case Table():
                tables[table_digest(record.means)] = record.means
    for round in rounds:
        outcome = decided.get(round)
        table = tables.get(outcome.result.table, ()) if outcome is not None else ()
        payloads = [means.get((round, chunk, made.hash)) for chunk, made in enumerate(table)]
        if outcome is None or not table or None in payloads:
            return
        whole = tuple(each for each in payloads if each is not None)
        yield Decision(outcome.number, outcome.result, outcome.roster, table, whole)


def decisions_after(base: Base, decided: Mapping[int, Outcome], records: Iterable[Message]) -> Iterator[Decision]:
    """The results after `base`, as far as all their means are here."""
    return decisions_of(count(base.round + 1), decided, records)


def base_after(base: Base, decision: Decision, root: Digest) -> Base:
    """What the round after `decision`, which was made on `base`, builds on."""
    result = decision.result
    history = next_history(base.history, result.table, sum(result.weights))
    return Base(decision.round, decision.number, history, root)
