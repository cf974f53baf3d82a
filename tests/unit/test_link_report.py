"""The reason for a path, from the connections that exist and the attempts that were made."""

from __future__ import annotations

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.measure.journal import Step, Way
from shoal.protocol.net.measure.link import ConnectionInfo, LinkReport
from shoal.protocol.net.measure.rates import Gauge

RELAY = "12D3KooWRelayRelayRelayRelayRelayRelayRelayRelay7nBFdh"
THERE = "/ip4/203.0.113.7/tcp/4101"
CIRCUIT = f"/ip4/198.51.100.1/tcp/4101/p2p/{RELAY}/p2p-circuit"
OURS, THEIRS, BY_RELAY = (
    ConnectionInfo((THERE,), True),
    ConnectionInfo(("/ip4/203.0.113.7/tcp/50123",), False),
    ConnectionInfo((CIRCUIT,), False),
)


def step(way: Way, code: str = "ok", where: str = RELAY, at: float = 0, **more: float) -> Step:
    return Step(at, way, where, code, "neither has reached the other in 2.5 s" if code == "silent" else "", **more)  # type: ignore[arg-type]


REASONS = [
    (None, (), (step(Way.DIAL, "refused", THERE),), "none", "no connection"),
    ("direct", (OURS,), (step(Way.DIAL, where=THERE),), "dialled", f"you dialled its own address {THERE}"),
    ("direct", (THEIRS,), (step(Way.CAME),), "it-dialled", "it dialled you, from /ip4/203.0.113.7/tcp/50123"),
    ("direct", (THEIRS,), (), "it-dialled", "it dialled you, from /ip4/203.0.113.7/tcp/50123"),
    (
        "punched",
        (THEIRS,),
        (step(Way.MEET, "silent"), step(Way.MEET)),
        "met",
        "met at the same moment, with the help of the relay 7nBFdh",
    ),
    ("punched", (THEIRS,), (step(Way.CAME),), "met", "met at the same moment"),  # nobody has said so yet
    (
        "direct",
        (OURS,),
        (step(Way.RELAY, where=CIRCUIT), step(Way.REVERSAL, where=THERE)),
        "reversal",
        f"it called by a relay, and you dialled back to {THERE}",
    ),
    ("relayed", (BY_RELAY,), (), "relay", "relayed by 7nBFdh: no direct way was tried yet"),
    (
        "relayed",
        (BY_RELAY,),
        (step(Way.MEET, "no-place-there"),),
        "relay-symmetric",
        "relayed by 7nBFdh: its router gives each destination another port (symmetric)",
    ),
    (
        "relayed",
        (BY_RELAY,),
        (step(Way.MEET, "no-place-here"),),
        "relay-symmetric",
        "relayed by 7nBFdh: this node's router gives each destination another port (symmetric)",
    ),
    (
        "relayed",
        (BY_RELAY,),
        (step(Way.MEET, "no-place-yet", again=110.0),),
        "relay-early",
        "relayed by 7nBFdh: it is not known yet where the two can meet; the next in 10 s",
    ),
    (
        "relayed",
        (BY_RELAY,),
        (step(Way.MEET, "silent", again=129.0, times=3),),
        "relay-failed",
        "relayed by 7nBFdh: 3 tries to meet failed (neither has reached the other in 2.5 s); the next in 30 s",
    ),
    (
        "relayed",
        (BY_RELAY,),
        (step(Way.MEET, "silent"),),
        "relay-failed",
        "relayed by 7nBFdh: a try to meet failed (neither has reached the other in 2.5 s)",
    ),
]


@pytest.mark.parametrize(("path", "lines", "steps", "code", "words"), REASONS)
def test_reasons(
    path: str | None, lines: tuple[ConnectionInfo, ...], steps: tuple[Step, ...], code: str, words: str
) -> None:
    reason = LinkReport(PeerId("bob"), path, lines, steps, Gauge()).reason(100.0)
    assert (reason.code, reason.words) == (code, words)


def test_what_made_an_earlier_connection_is_no_reason_for_this_one() -> None:
    steps = (step(Way.MEET), step(Way.LOST, where=THERE), step(Way.DIAL, where=THERE))
    assert LinkReport(PeerId("bob"), "direct", (OURS,), steps, Gauge()).reason(0).code == "dialled"


def test_the_relay_is_named_only_while_all_goes_there() -> None:
    assert LinkReport(PeerId("bob"), "relayed", (BY_RELAY,), (), Gauge()).relay == RELAY
    assert LinkReport(PeerId("bob"), "direct", (BY_RELAY, OURS), (), Gauge()).relay is None
