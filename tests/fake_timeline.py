"""The timeline of a round as a node's API gives it: four members, of which one, behind a relay, was slow."""

from __future__ import annotations

from typing import Any

SELF, QUICK, SLOW, EVIL = "12D3KooWself01", "12D3KooWquick2", "12D3KooWslow03", "evil\x1b[2Jpeer"


def flow(way: str, kind: str, peer: str, first: float, last: float, count: int = 1, bytes: int = 0) -> dict[str, Any]:
    return {"way": way, "kind": kind, "peer": peer, "first": first, "last": last, "count": count, "bytes": bytes}


TIMELINE: dict[str, Any] = {
    "round": 3,
    "peer": SELF,
    "ready_at": 1.7e9,
    "began": -2.0,
    "committed": 0.9,
    "ended": 1.0,
    "proposer": QUICK,
    "size": 4,
    "members": [QUICK, SELF, SLOW, EVIL],
    "chunks": 8,
    "owners": {QUICK: 4, SELF: 4},
    "uncounted": [EVIL],
    "phases": [
        {"phase": "training", "from": -2.0, "to": 0.0},
        {"phase": "matching", "from": 0.0, "to": 0.1},
        {"phase": "reducing", "from": 0.1, "to": 0.8},
        {"phase": "deciding", "from": 0.8, "to": 0.9},
        {"phase": "applying", "from": 0.9, "to": 1.0},
    ],
    "waited_for": [
        {"phase": "reducing", "peer": QUICK, "seconds": 0.61},
        {"phase": "reducing", "peer": SLOW, "seconds": 0.6},
        {"phase": "matching", "peer": QUICK, "seconds": 0.1},
    ],
    "events": [
        {"at": 0.1, "what": "begun", "peer": QUICK, "words": "4 members"},
        {"at": 0.3, "what": "blamed", "peer": EVIL, "words": "sent a payload that is \x1b[2J none"},
        {"at": 0.9, "what": "committed", "peer": None, "words": "entry 5 of the log"},
    ],
    "traffic": [
        flow("sent", "offer", QUICK, 0.0, 0.0),
        flow("received", "call", QUICK, 0.1, 0.1),
        flow("sent", "contribution", QUICK, 0.12, 0.3, 4, 4 << 20),
        flow("received", "contribution", QUICK, 0.15, 0.35, 4, 4 << 20),
        flow("received", "contribution", SLOW, 0.5, 0.75, 4, 4 << 20),
        flow("received", "mean", QUICK, 0.6, 0.7, 4, 4 << 20),
        flow("sent", "mean", SLOW, 0.77, 1.4, 4, 4 << 20),
        flow("sent", "progress", QUICK, 0.85, 0.85),
        flow("received", "give", SLOW, 0.4, 0.5, 2),
        flow("received", "give", EVIL, 0.45, 0.45),
    ],
    "paths": {QUICK: "direct", SLOW: "relayed"},
}
