"""Probes whether members are alive: directly first, then through others, so that one bad path accuses nobody.

One cycle: Ping; without an Ack within the deadline learned for that peer, Ping again, and PingFor through up to three
helpers; without an answer, accuse. A helper answers in any case, with a nack if the target is silent, so that we can
tell a dead target from our own bad connection; each failure that may be our own makes us more patient with everyone
(Lifeguard).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.timers import Timers
from shoal.protocol.base.wire import Message
from shoal.protocol.membership.dissemination import Dissemination
from shoal.protocol.membership.members import NEVER, MemberTable
from shoal.protocol.messages.membership import Ack, AckFor, Ping, PingFor

HELPERS = 3
UNKNOWN = 1.0  # seconds: the deadline for a peer that is not a member
INDIRECT = 1.5  # the indirect deadline, in direct deadlines
MAX_OPEN = 256  # probes of ours that are remembered, to learn from late answers; as many made for others
MAX_FOR_ONE = 32  # probes made for one member, so that none takes the room of all
MAX_SELF_DOUBT = 4  # by which deadlines are up to five times as long


@dataclass(slots=True)
class Probe:
    """One probe of ours, answered or not."""

    target: PeerId
    sent: float
    helpers: list[PeerId] = field(default_factory=list)  # those asked that have not answered yet


@dataclass(frozen=True, slots=True)
class HelperProbe:
    """A probe that we make as a helper, for another member."""

    target: PeerId
    asker: PeerId
    number: int  # of the asker's probe


class Prober:
    """Runs the probes, one new target each period, and answers those of others."""

    def __init__(self, table: MemberTable, news: Dissemination, timers: Timers, rng: random.Random) -> None:
        self._table = table
        self._news = news
        self._timers = timers
        self._rng = rng
        self._number = rng.getrandbits(48)  # so that answers to an earlier life of ours do not match
        self._queue: list[PeerId] = []
        self._probes: dict[int, Probe] = {}
        self._for_others: dict[int, HelperProbe] = {}
        self._self_doubt = 0  # Lifeguard's local health: recent failures that may be our own

    # -- asking -------------------------------------------------------------------------------------------

    def turn(self, now: float, _: str) -> list[Effect]:
        """Probe the next member; at rest only if its last probe is at least half a pause ago."""
        probing = self._news.probing
        pause = probing.probe_pause(now)
        target = self._longest_unasked() if probing.is_resting(now) else self._next_target()
        if target is None:
            return [self._timers.arm(now, pause, "probe")]
        if probing.is_resting(now) and (since := now - self._probed_at(target)) < pause / 2:
            return [self._timers.arm(now, pause - since, "probe")]
        return [*self.probe(now, target), self._timers.arm(now, pause, "probe")]

    def _next_target(self) -> PeerId | None:
        """Round robin over a shuffled list: everyone is probed within n periods, in no predictable order."""
        for _ in range(2):
            while self._queue:
                member = self._table.get(self._queue.pop())
                if member is not None and member.is_present:
                    return member.entry.peer
            self._queue = self._rng.sample(self._table.present(), len(self._table.present()))
        return None

    def probe(self, now: float, target: PeerId) -> list[Effect]:
        """Begin a cycle: ping `target`."""
        number = self._open(Probe(target, now))
        self._note(now, target)
        return [
            self._ping(target, number),
            self._timers.arm(now, self._deadline(target), "direct", str(number)),
        ]

    def probe_through_others(self, now: float, number: int) -> list[Effect]:
        """Ping again and ask helpers, as the direct deadline has passed."""
        probe = self._probes.get(number)
        if probe is None:
            return []
        after = INDIRECT * self._deadline(probe.target)
        return [
            *self._ping_and_ask_helpers(number, probe),
            self._timers.arm(now, after, "indirect", str(number)),
        ]

    def failed(self, number: int) -> PeerId | None:
        """The member to accuse, as the indirect deadline has passed. The probe is kept, to learn from a late Ack."""
        probe = self._probes.get(number)
        if probe is None:
            return None
        if probe.helpers or len(self._table.present()) == 1:
            self.doubt_ourselves()
        return probe.target

    def probe_all_ways(self, now: float, target: PeerId) -> list[Effect]:
        """Probe in every way at once; suspicion.py decides what follows."""
        number = self._open(Probe(target, now))
        return self._ping_and_ask_helpers(number, self._probes[number])

    def call(self, target: PeerId) -> Effect:
        """Ping a member that is believed dead, once; nothing follows from silence."""
        return self._ping(target, self._next_number())

    def drop_all(self) -> None:
        """Forget every probe under way, as we were stopped ourselves."""
        for number in self._probes:
            self._timers.disarm("direct", str(number))
            self._timers.disarm("indirect", str(number))
        self._probes.clear()
        self._queue.clear()

    def doubt_ourselves(self) -> None:
        """Something failed that may be our own fault: be more patient."""
        self._self_doubt = min(MAX_SELF_DOUBT, self._self_doubt + 1)

    # -- answers ------------------------------------------------------------------------------------------

    def vet(self, sender: PeerId, message: Message) -> None:
        """Raises RemoteError if the answer is not of the peer, or not about the peer, of the probe."""
        if isinstance(message, Ack):
            asked = self._probes.get(message.number) or self._for_others.get(message.number)
            if asked is not None and asked.target != sender:
                raise RemoteError("answers a ping that was for another peer", sender)
        elif isinstance(message, AckFor) and message.answer is not None:
            probe = self._probes.get(message.number)
            if probe is not None and probe.target != message.answer.peer:
                raise RemoteError("answers for another peer than it was asked to ping", sender)

    def asked_at(self, number: int) -> float:
        """When the open probe `number` began; NEVER if there is none."""
        probe = self._probes.get(number)
        return NEVER if probe is None else probe.sent

    def on_ack(self, now: float, ack: Ack) -> list[Effect]:
        """Take the answer to a ping of ours; if it was for another member, pass it on."""
        self._settle(now, ack.number, learn=True)
        request = self._for_others.pop(ack.number, None)
        if request is None:
            return []
        self._timers.disarm("request", str(ack.number))
        news = self._news.pack(request.asker)
        return [Send(request.asker, AckFor(self._table.own, request.number, ack.entry, news))]

    def on_ack_for(self, now: float, sender: PeerId, message: AckFor) -> PeerId | None:
        """Take a helper's answer; returns the target if it is alive."""
        probe = self._probes.get(message.number)
        if probe is None:
            return None
        if sender in probe.helpers:
            probe.helpers.remove(sender)
        if message.answer is None:
            return None
        self._settle(now, message.number, learn=False)
        return probe.target

    def on_ping(self, now: float, sender: PeerId, ping: Ping) -> list[Effect]:
        """Answer a ping."""
        self._note(now, sender)
        return [Send(sender, Ack(self._table.own, ping.number, self._news.pack(sender)))]

    def on_ping_for(self, now: float, sender: PeerId, message: PingFor) -> list[Effect]:
        """Probe a target for another member, or answer at once that we cannot."""
        target = self._table.get(message.target)
        if target is None or not self._has_time_for(sender):
            return [self._nack(sender, message.number)]
        number = self._next_number()
        self._for_others[number] = HelperProbe(message.target, sender, message.number)
        after = self._deadline(message.target)
        return [self._ping(message.target, number), self._timers.arm(now, after, "request", str(number))]

    def give_up_for_other(self, number: int) -> list[Effect]:
        """Send a nack to the asker, as the target has not answered: it shows that we are alive."""
        request = self._for_others.pop(number, None)
        return [] if request is None else [self._nack(request.asker, request.number)]

    # -- helpers ------------------------------------------------------------------------------------------

    def _note(self, now: float, peer: PeerId) -> None:
        """Note a probe between us and `peer`."""
        if (member := self._table.get(peer)) is not None:
            member.probed_at = now

    def _probed_at(self, peer: PeerId) -> float:
        member = self._table.get(peer)
        return NEVER if member is None else member.probed_at

    def _longest_unasked(self) -> PeerId | None:
        return min(self._table.present(), key=self._probed_at, default=None)

    def _has_time_for(self, asker: PeerId) -> bool:
        same = sum(request.asker == asker for request in self._for_others.values())
        return len(self._for_others) < MAX_OPEN and same < MAX_FOR_ONE

    def _settle(self, now: float, number: int, *, learn: bool) -> None:
        probe = self._probes.pop(number, None)
        if probe is None:
            return
        self._timers.disarm("direct", str(number))
        self._timers.disarm("indirect", str(number))
        self._self_doubt = max(0, self._self_doubt - 1)
        member = self._table.get(probe.target)
        if learn and member is not None:
            member.observe(now - probe.sent)

    def _ping_and_ask_helpers(self, number: int, probe: Probe) -> list[Effect]:
        others = [peer for peer in self._table.present() if peer != probe.target]
        probe.helpers = self._rng.sample(others, min(HELPERS, len(others)))
        effects: list[Effect] = [self._ping(probe.target, number)]
        for helper in probe.helpers:
            ask = PingFor(self._table.own, number, probe.target, self._news.pack(helper))
            effects.append(Send(helper, ask))
        return effects

    def _open(self, probe: Probe) -> int:
        number = self._next_number()
        self._probes[number] = probe
        if len(self._probes) > MAX_OPEN:
            del self._probes[next(iter(self._probes))]
        return number

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _deadline(self, peer: PeerId) -> float:
        member = self._table.get(peer)
        return (1 + self._self_doubt) * (member.round_trip.deadline() if member is not None else UNKNOWN)

    def _ping(self, to: PeerId, number: int) -> Send:
        return Send(to, Ping(self._table.own, number, self._news.pack(to)))

    def _nack(self, asker: PeerId, number: int) -> Send:
        return Send(asker, AckFor(self._table.own, number, None, self._news.pack(asker)))
