"""Our answers to peers that ask how we see them, and how fast the path between us is.

Rules: a peer hears of nothing but itself; how often, and of how many bytes, is bounded for each and for all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from shoal.node.service import Answer
from shoal.protocol.allowance import Allowance, Allowances
from shoal.protocol.ids import PeerId
from shoal.protocol.journal import Step
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.doctor import Carried, Carry, HowAmISeen, Seen, Tried
from shoal.protocol.messages.node import Refused
from shoal.protocol.network import Network
from shoal.protocol.weighing import LARGEST, MOST
from shoal.protocol.wire import MAX_STRING, Message

MAX_PEERS = 1024  # whose allowances are remembered
QUESTIONS = (4, 1 / 15), (64, 4.0)  # of one peer, and of all: in a burst, and per second
BYTES = (2.5 * MOST, 2 * MOST / 60), (16 * MOST, MOST / 4)  # one measurement each way a minute
AGAIN = 60_000  # milliseconds
FILLING = os.urandom(LARGEST)  # nothing on the way can make it shorter


class Answering:
    """`standing` says what we are behind, see `Desk`."""

    def __init__(self, network: Network, standing: Callable[[], Answer]) -> None:
        self._network, self._standing = network, standing
        self._questions, self._all_questions = Allowances[PeerId](*QUESTIONS[0], MAX_PEERS), Allowance(*QUESTIONS[1])
        self._bytes, self._all_bytes = Allowances[PeerId](*BYTES[0], MAX_PEERS), Allowance(*BYTES[1])

    def answer(self, peer: PeerId, message: HowAmISeen | Carry) -> Message:
        """At once."""
        if isinstance(message, Carry):
            return self._carry(peer, message)
        now = time.monotonic()
        if not (self._questions.of(peer).take(now) and self._all_questions.take(now)):
            return Refused("asked too often; try again in a minute")
        return self._seen(peer)

    def _seen(self, peer: PeerId) -> Seen:
        account, standing, now = self._network.account(peer), self._standing(), time.time()
        addresses = tuple(each for line in account.lines for each in line.leads_to)[:8]
        return Seen(
            addresses,
            account.path or "",
            account.reason(now).code,
            int(1e6 * (account.gauge.rtt or 0)),
            standing["reachability"],
            standing["nat"],
            len(standing["relays"]),
            tuple(_tried(step, now) for step in account.steps),
        )

    def _carry(self, peer: PeerId, message: Carry) -> Message:
        if message.wanted > LARGEST:
            return Refused(f"gives {LARGEST} bytes at most at a time")
        now, size = time.monotonic(), len(message.content) + message.wanted
        if self._bytes.of(peer).take(now, size) and self._all_bytes.take(now, size):
            return Carried(FILLING[: message.wanted])
        return Later(AGAIN)


def handled(message: Message) -> bool:
    """Whether a call is answered here."""
    return isinstance(message, HowAmISeen | Carry)


def _tried(step: Step, now: float) -> Tried:
    ago, took = max(0.0, now - step.at), max(0.0, step.seconds)
    where, words = step.where[:MAX_STRING], step.words[: MAX_STRING // 4]  # bytes are counted, and these are letters
    return Tried(step.way, where, step.code, words, int(1000 * ago), int(1000 * took), step.times)
