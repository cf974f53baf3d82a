"""The rounds of a `shoal up`, as all its peers report them.

A round is reported by each of its members; what they must agree on (members, contributors, digest) is compared, what
each measured for itself (bytes) is added up. A peer that was killed could not report the round it died in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Report = dict[str, Any]  # one peer's, of one round: a line of kind `round` in docs/metrics-jsonl.md


@dataclass(frozen=True, slots=True)
class Round:
    """A committed round: `seconds` from when its last member was ready, `bytes` of payload from all who are left."""

    round: int
    attempt: int
    members: int
    contributors: int
    digest: str
    seconds: float
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Ledger:
    """The reports of all peers, by round."""

    reports: dict[int, dict[str, Report]] = field(default_factory=dict)

    def add(self, peer: str, records: Iterable[Report]) -> list[Report]:
        """Take a peer's list of committed rounds, the latest figures of each; returns those that are news."""
        fresh = []
        for record in records:
            by = self.reports.setdefault(int(record["round"]), {})
            fresh += [record] if by.get(peer) != record else []
            by[peer] = record
        return fresh

    def rounds(self) -> list[Round]:
        """All committed rounds in order."""
        return [_merge(number, list(self.reports[number].values())) for number in sorted(self.reports)]

    def first_round_of(self, peer: str) -> int | None:
        """The first round in which a peer took part."""
        return min(
            (number for number, by in self.reports.items() if peer in by and by[peer]["took_part"]), default=None
        )

    def disputed(self) -> list[int]:
        """Rounds that two peers report with different digests: agreement is broken. Replicas have agreed on nothing."""
        digests = {
            number: {each["digest"] for each in by.values() if not is_replica(each)}
            for number, by in self.reports.items()
        }
        return sorted(number for number, seen in digests.items() if len(seen) > 1)

    def exchanges(self) -> int:
        """How many pairs of replicas have exchanged: each is reported by both, but for a peer that died in it."""
        met = [sum(bool(each.get("partner")) for each in by.values()) for by in self.reports.values()]
        return sum((reports + 1) // 2 for reports in met)

    def bytes_per_parameter_per_round(self, parameters: int) -> float:
        """Payload bytes that one member sends in one round for one parameter, averaged over all reports."""
        sent = [int(each["bytes"]) for by in self.reports.values() for each in by.values() if each["took_part"]]
        return sum(sent) / len(sent) / parameters if sent and parameters else 0.0


def is_replica(report: Report) -> bool:
    """Whether a round's report is of a replica: with a partner, or with a reason why there was none."""
    return bool(report.get("partner") or report.get("lapse"))


def _merge(number: int, reports: list[Report]) -> Round:
    first = reports[0]
    return Round(
        number,
        int(first["attempt"]),
        int(first["members"]),
        int(first["contributors"]),
        str(first["digest"]),
        round(min((float(each["seconds"]) for each in reports if each["took_part"]), default=0.0), 3),
        sum(int(each["bytes"]) for each in reports),
    )
