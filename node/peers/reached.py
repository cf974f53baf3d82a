"""How a peer is reached, as the API shows it: path, reason, round trip, rates."""

from __future__ import annotations

import time
from typing import cast

from shoal.node.api.answers import PeerConnection
from shoal.protocol.net.measure.link import LinkReport

UNREACHED = cast(PeerConnection, dict.fromkeys(PeerConnection.__annotations__))


def as_reached(account: LinkReport) -> PeerConnection:
    """{path, reason, reason_code, relay, rtt_ms, send_rate, receive_rate}; bytes a second, None: not measured yet."""
    if account.path is None:
        return UNREACHED.copy()
    reason, gauge = account.reason(time.time()), account.gauge
    return {
        "path": account.path,
        "reason": reason.words,
        "reason_code": reason.code,
        "relay": account.relay,
        "rtt_ms": 1000 * gauge.rtt if gauge.rtt is not None else None,
        "send_rate": gauge.going.rate.value,
        "receive_rate": gauge.coming.value,
    }
