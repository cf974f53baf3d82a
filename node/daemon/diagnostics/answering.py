"""Our answers to peers that ask how we see them, and how fast the path between us is.

Rules:
- A peer is told only about itself, and no address that is nearer to us than the peer is: we dial whatever addresses a
  peer claims, so a peer that claims addresses behind our router must not learn what is there.
- Questions and bytes are limited, for each peer and for all together; each measurement counts for at least LEAST bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal.dht.scope import Scope, scope_between, scope_of
from shoal.node.api.answers import Answer
from shoal.node.peers.bandwidth_probe import FILLING
from shoal.protocol.base.allowance import Allowance, Allowances
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import shortlist
from shoal.protocol.base.wire import MAX_STRING, Message
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.doctor import Carried, Carry, HowAmISeen, Seen, Tried
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.measure.bandwidth_probe import LARGEST, MOST
from shoal.protocol.net.measure.journal import Step
from shoal.protocol.net.peers.network import Network

MOST_ADDRESSES = 8  # of one peer
MAX_PEERS = 1024  # peers whose allowances are remembered
QUESTIONS = (4, 1 / 15), (64, 4.0)  # (burst, per second) for one peer, and for all
BYTES = (2.5 * MOST, 2 * MOST / 60), (16 * MOST, MOST / 4)  # the same; for a peer one measurement each way a minute
LEAST = 4 << 10
AGAIN = 60_000  # milliseconds after which a refused peer may ask again


class DoctorResponder:
    """Answers HowAmISeen and Carry. `standing` says what this node is behind, see `Doctor.standing`."""

    def __init__(self, network: Network, standing: Callable[[], Answer]) -> None:
        self._network, self._standing = network, standing
        self._questions, self._all_questions = Allowances[PeerId](*QUESTIONS[0], MAX_PEERS), Allowance(*QUESTIONS[1])
        self._bytes, self._all_bytes = Allowances[PeerId](*BYTES[0], MAX_PEERS), Allowance(*BYTES[1])

    def answer(self, peer: PeerId, message: HowAmISeen | Carry) -> Message:
        """Our answer, or a refusal if the peer has asked too often."""
        if isinstance(message, Carry):
            return self._carry(peer, message)
        now = time.monotonic()
        if not (self._questions.of(peer).take(now) and self._all_questions.take(now)):
            return Refused("asked too often; try again in a minute")
        return self._seen(peer)

    def _seen(self, peer: PeerId) -> Seen:
        account, standing, now = self._network.link_report(peer), self._standing(), time.time()
        addresses = tuple(each for line in account.connections for each in line.leads_to)
        scope = scope_between(addresses)
        return Seen(
            shortlist(addresses, MOST_ADDRESSES),
            account.path or "",
            account.reason(now).code,
            int(1e6 * (account.gauge.rtt or 0)),
            standing["reachability"],
            standing["nat"],
            len(standing["relays"]),
            tuple(_tried(step, now) for step in account.steps if _is_as_far(step.where, scope)),
        )

    def _carry(self, peer: PeerId, message: Carry) -> Message:
        if message.wanted > LARGEST:
            return Refused(f"gives {LARGEST} bytes at most at a time")
        now, size = time.monotonic(), max(LEAST, len(message.content) + message.wanted)
        if self._bytes.of(peer).take(now, size) and self._all_bytes.take(now, size):
            return Carried(FILLING[: message.wanted])
        return Later(AGAIN)


def _tried(step: Step, now: float) -> Tried:
    return Tried(step.way, step.where[:MAX_STRING], step.code, int(1000 * max(0.0, now - step.at)), step.times)


def _is_as_far(where: str, scope: Scope) -> bool:
    """Whether a peer that is connected with us in `scope` may be told an address; a relay's PeerID always."""
    found = scope_of(where) if "/" in where else scope
    return found is not None and found >= scope
