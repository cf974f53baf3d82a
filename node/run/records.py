"""The records of committed rounds on this node, for people and for `shoal up`.

A long run has many rounds, so older records keep only their figures, without phases and waiting times.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from shoal.node.api.answers import Round
from shoal.node.run.phases import PhaseLog, Span
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.ids import Digest, PeerId, short
from shoal.protocol.replicas.events import Lapse

KEPT = 10_000  # rounds
PACED = 10  # the last rounds, from which the run's pace is computed
DETAILED = 500  # the last rounds, whose records have phases and waiting times
LAPSES: Mapping[str, str] = {
    Lapse.ALONE: "nobody else who trains is here",
    Lapse.BYE: "the others are pairs without this node",
    Lapse.NOBODY_LEFT: "whom it would have met declined, was lost, or did not come in time",
    Lapse.BEHIND: "most others are rounds ahead, and nobody is left to meet in between",
}


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One committed round, as this member saw it."""

    round: int
    entry: int  # of the log, that decided it; 0: of a replica
    members: int
    contributors: int  # members counted in every chunk
    digest: str  # history
    took_part: bool  # we are in its roster; otherwise we only followed
    seconds: float  # from our own readiness to the applied result
    resent: int  # bytes of contributions that we sent a second time, because an owner was lost
    tokens: int  # that we trained on for the round
    loss: float | None  # mean over our own inner steps; None if we have not trained
    round_samples: int  # tokens behind the round, of all members
    samples: int  # tokens behind the state, of all rounds
    applied_at: float  # seconds of this machine's clock
    phases: tuple[Span, ...]  # since the last round that we applied
    waited_for: dict[PeerId, float]  # seconds, the longest first; several may be waited for at once
    called: bool  # whether the others waited for us
    partner: PeerId | None = None  # of a replica: the partner of its exchange
    is_mutual: bool = True  # of a replica: whether the partner is known to have taken our part
    lapse: str = ""  # of a replica: why there was no exchange
    validation_loss: float | None = None  # of the state after it; None if it was not measured here
    validation_sequences: int = 0  # on how many held-out sequences; 1 for a script's own measurement


@dataclass(frozen=True, slots=True)
class Validation:
    """The validation loss of the state after a round, as this node's worker has measured it."""

    round: int
    loss: float


@dataclass(frozen=True, slots=True)
class ReplicaOutcome:
    """The result of a round of our replica: an exchange with a partner, or a lapse."""

    round: int
    partner: PeerId | None = None
    is_mutual: bool = True
    lapse: str = ""


class CommitLog:
    """The committed rounds, oldest first, and what they cost."""

    def __init__(self) -> None:
        self.records: list[CommitRecord] = []
        self.group = 0  # members of the last round
        self.validation: Validation | None = None  # the newest one
        self.tokens = 0  # that we have trained on for the current round
        self._submitted_at: float | None = None
        self._loss: float | None = None
        self._called = False
        self._sent: Counter[int] = Counter()  # bytes of payload, by round
        self._joined_at = _clock()

    @property
    def last_commit(self) -> float:
        """Wall-clock seconds at which the last round was applied here, or, before the first one, at which we joined."""
        return self.records[-1].applied_at if self.records else self._joined_at

    @property
    def pace(self) -> float:
        """Seconds from one round to the next, over the last ones; 0.0 while there are too few."""
        last = self.records[-PACED:]
        return max(0.0, last[-1].applied_at - last[0].applied_at) / (len(last) - 1) if len(last) > 1 else 0.0

    def submitted(self, now: float, tokens: int = 0, loss: float | None = None) -> None:
        """Our contribution to the current round is ready, of so many tokens and this mean loss."""
        if self._submitted_at is None:
            self._submitted_at = now
        self.tokens, self._loss = tokens, loss if loss is not None and math.isfinite(loss) else None

    def called(self) -> None:
        """The others wait for our contribution."""
        self._called = True

    def forget(self) -> None:
        """The contribution that was ready is dropped, as it belongs to no round."""
        self._submitted_at, self.tokens, self._loss = None, 0, None

    def sent(self, round: int, size: int) -> None:
        """So many bytes of payload have left for a round's all-reduce; some leave after it has committed."""
        self._sent[round] += size

    def validated(self, round: int, loss: float, sequences: int) -> None:
        """The state after a round was measured; that round need not have a record here."""
        self.validation = Validation(round, loss)
        place = bisect_left(self.records, round, key=lambda record: record.round)
        if place < len(self.records) and self.records[place].round == round:
            record = self.records[place]
            self.records[place] = replace(record, validation_loss=loss, validation_sequences=sequences)

    def cut(self, entry: int) -> list[CommitRecord]:
        """Drop the rounds that the log decided by this entry or a later one: it goes on otherwise from there.

        Returns their records.
        """
        dropped = [record for record in self.records if record.entry >= entry]
        self.records = [record for record in self.records if record.entry < entry]
        if dropped:
            first = dropped[0].round
            self._sent = Counter({round: size for round, size in self._sent.items() if round < first})
            measured = [each for each in self.records if each.validation_loss is not None]
            if self.validation is not None and self.validation.round >= first:
                self.validation = _validation(measured[-1]) if measured else None
        return dropped

    def add(
        self,
        decision: Decision,
        history: Digest,
        me: PeerId,
        now: float,
        resent: int,
        phases: PhaseLog,
        samples: int,
        tokens: int | None = None,
    ) -> CommitRecord:
        """Records a round that was applied; its history digest is `history`, with `samples` tokens behind the state.

        `tokens` are those of the round, where its weights do not tell them.
        """
        result, members = decision.result, len(decision.roster)
        self.group = members
        return self._append(
            now,
            phases,
            round=result.round,
            entry=decision.number,
            members=members,
            contributors=len(result.weights),
            digest=history.hex(),
            took_part=me in decision.roster,
            resent=resent,
            round_samples=tokens if tokens is not None else decision.tokens,
            samples=samples,
        )

    def add_replica(
        self, outcome: ReplicaOutcome, root: Digest, group: int, now: float, resent: int, phases: PhaseLog, samples: int
    ) -> CommitRecord:
        """Records a round of our replica, whose root is `root` now; `group` members are alive."""
        self.group, members = group, 1 if outcome.partner is None else 2
        return self._append(
            now,
            phases,
            round=outcome.round,
            entry=0,
            members=members,
            contributors=members,
            digest=root.hex(),
            took_part=outcome.partner is not None,
            resent=resent,
            round_samples=self.tokens,
            samples=samples,
            partner=outcome.partner,
            is_mutual=outcome.is_mutual,
            lapse=outcome.lapse,
        )

    def _append(self, now: float, phases: PhaseLog, **facts: Any) -> CommitRecord:
        """Appends the record of these facts, and of what was gathered since the last one."""
        spans, waited_for = phases.cut(now)
        record = CommitRecord(
            seconds=0.0 if self._submitted_at is None else now - self._submitted_at,
            tokens=self.tokens,
            loss=self._loss,
            applied_at=_clock(),
            phases=spans,
            waited_for=waited_for,
            called=self._called,
            **facts,
        )
        self._submitted_at, self.tokens, self._loss, self._called = None, 0, None, False
        self.records.append(record)
        if len(self.records) > DETAILED:
            place = -DETAILED - 1
            self.records[place] = replace(self.records[place], phases=(), waited_for={})
        if len(self.records) > KEPT:
            self._sent.pop(self.records.pop(0).round, None)
        return record

    def as_json(self, last: int | None = None) -> list[Round]:
        """All records or the `last` ones, for the API, each with the bytes that we have sent so far for its round."""
        first = 0 if last is None else max(0, len(self.records) - last)
        return [_row(record, self._sent[record.round]) for record in self.records[first:]]


def _validation(record: CommitRecord) -> Validation:
    assert record.validation_loss is not None
    return Validation(record.round, record.validation_loss)


def _row(record: CommitRecord, sent: int) -> Round:
    """The record as JSON; `asdict` alone would copy each of its figures."""
    row = {field.name: getattr(record, field.name) for field in fields(record)}
    made = {"phases": [asdict(phase) for phase in record.phases], "words": words_of(record), "bytes": sent}
    return cast(Round, row | made)


def words_of(record: CommitRecord) -> str:
    """The outcome of a round of our replica, in words; empty for other runs."""
    if record.lapse:
        return f"no exchange: {why_lapsed(record.lapse)}"
    if record.partner is None:
        return ""
    doubt = "" if record.is_mutual else ", which was lost then and may not have taken ours"
    return f"exchanged with {short(record.partner)}{doubt}"


def why_lapsed(reason: str) -> str:
    """Why a round of a replica had no exchange, in words; an unknown reason is given as it is."""
    return LAPSES.get(reason, reason)


def _clock() -> float:
    return round(time.time(), 3)
