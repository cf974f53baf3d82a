"""What an examination found, as plain JSON. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

from shoal.node.doctor.sources import Places
from shoal.node.doctor.verdict import Verdict
from shoal.node.peers.reached import UNREACHED, as_reached
from shoal.node.service import Answer
from shoal.protocol.account import Account
from shoal.protocol.journal import MOST_STEPS, Step
from shoal.protocol.messages.doctor import Seen


def places(found: Places) -> list[Answer]:
    """[{address, from}]: where the peer may be, and who says so."""
    return [{"address": address, "from": sources} for address, sources in found.items()]


def step(step: Step, is_live: bool) -> Answer:
    """{event, live, at, way, where, code, words, seconds, again, times}; see shoal.protocol.journal."""
    return {"event": "step", "live": is_live, **asdict(step), "way": str(step.way)}


def path(account: Account | None, measured: Mapping[str, float | None]) -> Answer:
    """As a row of `peers`; what was measured just now comes before what was in passing."""
    reached = as_reached(account) if account is not None else dict(UNREACHED)
    rates = {f"{key}_rate": rate for key in ("send", "receive") if (rate := measured.get(key)) is not None}
    trip = measured.get("trip")
    return reached | rates | ({"rtt_ms": 1000 * trip} if trip is not None else {}) if reached["path"] else reached


def theirs(seen: Seen | None) -> Answer | None:
    """{addresses, path, reason_code, rtt_ms, reachability, nat, relays, steps}: a peer's view of us, as it says."""
    if seen is None:
        return None
    now = time.time()
    return {
        "addresses": list(seen.addresses),
        "path": seen.path,
        "reason_code": seen.reason,
        "rtt_ms": seen.trip / 1000 if seen.trip else None,
        "reachability": seen.reachability,
        "nat": seen.nat,
        "relays": seen.relays,
        "steps": [
            {
                "at": now - each.ago / 1000,
                "way": each.way,
                "where": each.where,
                "code": each.code,
                "times": each.times,
            }
            for each in seen.tried[-MOST_STEPS:]
        ],
    }


def verdict(found: Verdict) -> Answer:
    """{code, side, sentence, advice}; see verdict.py."""
    return asdict(found)
