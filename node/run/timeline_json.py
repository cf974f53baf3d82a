"""A trace as JSON, for the API and for the disk; docs/rounds.md has the fields. Pure.

All times are seconds since this member was ready for the round, so those before are negative; `ready_at` says when that
was on the clock of this machine, so that the timelines of several members can be laid side by side.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from shoal.node.run.timeline import Happening, Trace
from shoal.protocol.ids import PeerId

LEAST = 0.001  # seconds: a shorter phase, or wait, is not worth telling
MOST_NAMES = 64  # in each list of peers

Answer = dict[str, Any]


def as_json(trace: Trace, me: PeerId, now: float, clock: float) -> Answer:
    """The round as it is known `now`, when the machine's clock shows `clock`."""
    began = trace.phases[0][1]
    zero = trace.zero if trace.zero is not None else began
    end = trace.ended if trace.ended is not None else now
    return {
        "round": trace.round,
        "peer": me,
        "ready_at": round(clock - (now - zero), 4),
        "began": _since(zero, began),
        "committed": _since(zero, trace.committed),
        "ended": _since(zero, trace.ended),
        **_group(trace),
        "phases": _phases(trace, end, zero),
        "waited_for": _waited(trace),
        "events": [_happening(zero, each) for each in trace.events],
        "traffic": [
            {"way": way, "kind": kind, "peer": peer}
            | {"first": _since(zero, flow.first), "last": _since(zero, flow.last)}
            | {"count": flow.count, "bytes": flow.bytes}
            for (way, kind, peer), flow in trace.flows.items()
        ],
        "paths": dict(list(trace.paths.items())[:MOST_NAMES]),
    }


def _group(trace: Trace) -> Answer:
    """Who was in the last attempt, and who made the means of how many chunks."""
    plan = trace.plan
    owners = Counter(plan.owners).most_common(MOST_NAMES) if plan is not None else []
    return {
        "attempt": plan.attempt if plan is not None else None,
        "leader": plan.leader if plan is not None else None,
        "size": len(plan.members) if plan is not None else 0,
        "members": list(plan.members[:MOST_NAMES]) if plan is not None else [],
        "chunks": len(plan.owners) if plan is not None else 0,
        "owners": dict(owners),
        "uncounted": list(trace.uncounted[:MOST_NAMES]),
    }


def _phases(trace: Trace, end: float, zero: float) -> list[Answer]:
    ends = [at for _, at in trace.phases[1:]] + [end]
    spans = [(phase, at, stop) for (phase, at), stop in zip(trace.phases, ends, strict=True) if stop - at >= LEAST]
    return [{"phase": phase, "from": _since(zero, at), "to": _since(zero, stop)} for phase, at, stop in spans]


def _waited(trace: Trace) -> list[Answer]:
    longest = sorted(trace.waited.items(), key=lambda item: -item[1])[:MOST_NAMES]
    return [
        {"phase": phase, "peer": peer, "seconds": round(seconds, 3)}
        for (phase, peer), seconds in longest
        if seconds >= LEAST and phase not in ("training", "syncing")
    ]


def _happening(zero: float, each: Happening) -> Answer:
    return {**asdict(each), "at": _since(zero, each.at)}


def _since(zero: float, at: float | None) -> float | None:
    return round(at - zero, 4) if at is not None else None
