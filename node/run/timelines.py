"""Timelines of a run's last rounds at one member: what happened when. `shoal logs --round` shows them.

A round has thousands of messages, so for each kind and peer only the times of the first and the last, the number and
the bytes are kept; peers over the bound are counted together. A sent payload counts when it has left this node.
Messages of the next round that come early, and messages of the last one that leave late, are counted for their round.

Timelines are kept in memory, and in one file of JSON lines, so that they survive a restart. A round is written some
time after its end, because its last payloads leave late. A failure to write is logged once and has no other
effect. The file is not forced to disk, and is rewritten before it gets long.

In JSON (docs/rounds.md has the fields) all times are seconds since this member was ready for the round, so earlier ones
are negative; `ready_at` is that moment by the clock of this machine, so that timelines of several members can be
aligned.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import call
from pathlib import Path
from typing import Any, get_args

from shoal.node.api import answers
from shoal.node.api.errors import UnknownRound
from shoal.node.base.atomic import replace_file
from shoal.node.base.logs import warn
from shoal.node.run.phases import PhaseLog
from shoal.node.run.records import why_lapsed
from shoal.protocol.averaging.events import Begun, Behind, Committed, HandIn, Waiting
from shoal.protocol.averaging.events import Lapsed as Undone
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.effects import Blamed, Event
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.masks import masked
from shoal.protocol.base.wire import Message
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerSuspected
from shoal.protocol.messages.averaging import AVERAGING_MESSAGES, Contribution, Direct, Mean
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.net.measure.link import Link
from shoal.protocol.replicas.events import Exchanged, Lapsed, Met

# -- one round -----------------------------------------------------------------------------------------------------


MOST_FLOWS = 1024  # of a round, by way, kind and peer
MOST_EVENTS = 128  # of a round: the last ones are kept
MOST_PHASES = 64  # of a round: the first ones are kept
OTHERS = PeerId("others")  # stands for the peers over the bound

KINDS: dict[type, str] = {kind: kind.__name__.lower() for kind in (*get_args(AVERAGING_MESSAGES), Chunk)}
SENT, RECEIVED = "sent", "received"


@dataclass(slots=True)
class Flow:
    """The messages of one kind, to or from one peer."""

    first: float
    last: float
    count: int = 0
    bytes: int = 0  # of payloads; control messages are small


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """An event that is neither a message nor a phase."""

    at: float
    what: str
    peer: PeerId | None = None
    words: str = ""


@dataclass(slots=True)
class Trace:
    """What is recorded of one round; times are those of the clock that was passed in."""

    round: int
    phases: list[tuple[str, float]] = field(default_factory=list)  # each with the time at which it began
    flows: dict[tuple[str, str, PeerId], Flow] = field(default_factory=dict)  # by (way, kind, peer)
    events: deque[RoundEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    waited: Mapping[tuple[str, PeerId], float] = field(default_factory=dict)  # seconds, by (phase, peer)
    paths: dict[PeerId, str] = field(default_factory=dict)  # of the group's payloads
    begun: Begun | None = None
    committed: float | None = None
    uncounted: tuple[PeerId, ...] = ()  # members that are missing in some chunk
    ended: float | None = None

    @property
    def zero(self) -> float | None:
        """When this member was ready, or could not take part any more: all times of the round are relative to it."""
        return next((at for phase, at in self.phases if phase not in ("training", "syncing")), None)

    def enter(self, now: float, phase: str) -> None:
        """The member has entered a phase."""
        if len(self.phases) < MOST_PHASES:
            self.phases.append((phase, now))

    def note(self, now: float, way: str, kind: str, peer: PeerId, size: int) -> None:
        """A message was sent or received."""
        flow = self.flows.get((way, kind, peer))
        if flow is None:
            whose = peer if len(self.flows) < MOST_FLOWS else OTHERS
            flow = self.flows.setdefault((way, kind, whose), Flow(now, now))
        flow.last = now
        flow.count += 1
        flow.bytes += size

    def note_event(self, now: float, what: str, peer: PeerId | None = None, words: str = "") -> None:
        """Any other event; one that repeats the last one is not added."""
        event = RoundEvent(now, what, peer, words)
        if not self.events or replace(self.events[-1], at=now) != event:
            self.events.append(event)

    def commit(self, now: float, decision: Decision) -> None:
        """The round is decided, and all its bytes have arrived."""
        counted = masked(decision.roster, decision.result.counted)
        self.committed, self.uncounted = now, tuple(peer for peer in decision.roster if peer not in counted)
        self.note_event(now, "committed", words=f"entry {decision.number} of the log")


class Timeline:
    """Traces of the current round, the one before and the one after it."""

    def __init__(self) -> None:
        self.current: Trace | None = None
        self.previous: Trace | None = None
        self._next: Trace | None = None
        self._phase = ""
        self._directed: Direct | None = None  # the last one, which is sent to many peers and noted once

    def observe(self, now: float, phase: str, round: int) -> Trace | None:
        """The member is in `phase` of `round` (0: the same as before). Call this after each of its steps.

        Returns the trace of the round that has ended with this, if one has.
        """
        if phase == self._phase and (not round or (self.current is not None and round == self.current.round)):
            return None
        done = None
        if round and (self.current is None or round != self.current.round):
            done = self._turn(now, round)
        self._phase = phase
        if self.current is not None:
            self.current.enter(now, phase)
        return done

    def sent(self, now: float, to: PeerId, message: Message) -> None:
        """A message was handed to the network, or, if it is a payload, has left this node."""
        self._note(now, SENT, to, message)

    def received(self, now: float, sender: PeerId, message: Message) -> None:
        """A valid message has arrived."""
        self._note(now, RECEIVED, sender, message)

    def told(self, now: float, event: Event) -> None:
        """The member has reported an event."""
        trace = self.current
        if trace is None:
            return
        match event:
            case Begun(_, roster, proposer=proposer):
                trace.begun = event
                trace.note_event(now, "begun", proposer, f"{len(roster)} members")
            case Committed(decision) if decision.round == trace.round:
                trace.commit(now, decision)
            case Undone(round) if round == trace.round:
                trace.note_event(now, "undone")
            case HandIn():
                trace.note_event(now, "called")
            case Waiting(reason):
                trace.note_event(now, "waiting", words=reason)
            case PeerSuspected(peer):
                trace.note_event(now, "suspected", peer)
            case PeerDown(peer):
                trace.note_event(now, "lost", peer)
            case PeerLeft(peer):
                trace.note_event(now, "left", peer)
            case Blamed(peer, reason):
                trace.note_event(now, "blamed", peer, reason)
            case Met(partner):
                trace.note_event(now, "met", partner)
            case Exchanged(partner=partner, is_mutual=is_mutual):
                trace.committed = now
                trace.note_event(now, "exchanged", partner, "and it has ours" if is_mutual else "it was lost then")
            case Lapsed(_, reason):
                trace.note_event(now, "lapsed", words=why_lapsed(reason))
            case Behind(round):
                trace.note_event(now, "behind", words=f"round {round}")

    # -- inside ---------------------------------------------------------------------------------------------

    def _turn(self, now: float, round: int) -> Trace | None:
        done, self.previous = self.current, self.current
        ahead, self._next = self._next, None
        self.current = ahead if ahead is not None and ahead.round == round else Trace(round)
        self._phase = ""
        if done is not None:
            done.ended = now
        return done

    def _note(self, now: float, way: str, peer: PeerId, message: Message) -> None:
        kind = KINDS.get(type(message))
        round: int = getattr(message, "round", 0)
        trace = self._trace_of(round) if kind is not None else None
        if kind is None or trace is None:
            return
        size = len(message.payload) if isinstance(message, Contribution | Mean | Chunk) else 0
        trace.note(now, way, kind, peer, size)
        if isinstance(message, Direct) and message != self._directed:
            self._directed = message
            trace.note_event(now, "directed", peer if way == RECEIVED else None, _words(message))

    def _trace_of(self, round: int) -> Trace | None:
        current = self.current
        if current is None or round == current.round:
            return current
        if round == current.round + 1:
            self._next = self._next or Trace(round)
            return self._next
        return self.previous if self.previous is not None and round == self.previous.round else None


def _words(message: Direct) -> str:
    """What the proposer has directed."""
    moved, absent = len(message.epochs), len(message.absent)
    return f"{moved} chunks to other owners" + (f", on without {absent} members" if absent else "")


# -- as JSON -----------------------------------------------------------------------------------------------


LEAST = 0.001  # seconds: shorter phases and waits are left out
MOST_NAMES = 64  # in each list of peers


def as_json(trace: Trace, me: PeerId, now: float, clock: float) -> dict[str, Any]:
    """The round as it is known `now`, when the wall clock shows `clock`."""
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
        "events": [asdict(each) | {"at": _since(zero, each.at)} for each in trace.events],
        "traffic": [
            {"way": way, "kind": kind, "peer": peer}
            | {"first": _since(zero, flow.first), "last": _since(zero, flow.last)}
            | {"count": flow.count, "bytes": flow.bytes}
            for (way, kind, peer), flow in trace.flows.items()
        ],
        "paths": dict(list(trace.paths.items())[:MOST_NAMES]),
    }


def _group(trace: Trace) -> dict[str, Any]:
    """The roster, and how many chunks each owner had."""
    begun = trace.begun
    owners = Counter(begun.owners).most_common(MOST_NAMES) if begun is not None else []
    return {
        "proposer": begun.proposer if begun is not None else None,
        "size": len(begun.roster) if begun is not None else 0,
        "members": list(begun.roster[:MOST_NAMES]) if begun is not None else [],
        "chunks": len(begun.owners) if begun is not None else 0,
        "owners": dict(owners),
        "uncounted": list(trace.uncounted[:MOST_NAMES]),
    }


def _phases(trace: Trace, end: float, zero: float) -> list[dict[str, Any]]:
    ends = [at for _, at in trace.phases[1:]] + [end]
    spans = [(phase, at, stop) for (phase, at), stop in zip(trace.phases, ends, strict=True) if stop - at >= LEAST]
    return [{"phase": phase, "from": _since(zero, at), "to": _since(zero, stop)} for phase, at, stop in spans]


def _waited(trace: Trace) -> list[dict[str, Any]]:
    longest = sorted(trace.waited.items(), key=lambda item: -item[1])[:MOST_NAMES]
    return [
        {"phase": phase, "peer": peer, "seconds": round(seconds, 3)}
        for (phase, peer), seconds in longest
        if seconds >= LEAST and phase not in ("training", "syncing")
    ]


def _since(zero: float, at: float | None) -> float | None:
    return round(at - zero, 4) if at is not None else None


KEPT = 64  # rounds
NAME = "rounds.jsonl"
LINGER = 1.0  # seconds from a round's end until it is written

log = logging.getLogger("shoal.run")


class Timelines:
    """The timelines of one run on this node; `now` is the time of the event loop."""

    def __init__(
        self,
        me: PeerId,
        folder: Path,
        write: Callable[[Callable[[], None]], object] = call,
        kept: Sequence[tuple[int, str]] | None = None,
    ) -> None:
        """`write` runs functions that write, later, in order; `kept` are the lines of the file, if already read."""
        self.links: Callable[[], Sequence[Link]] = tuple  # our connections
        self._live = Timeline()
        self.sent, self.received = self._live.sent, self._live.received
        self._me = me
        self._path, self._write = folder / NAME, write
        self._ending: list[Trace] = []  # rounds that are over, and not written yet
        known = kept_in(folder) if kept is None else kept
        self._lines = {round: line for round, line in known[-KEPT:] if is_whole(line)}
        self._written = 2 * KEPT if self._lines else 0  # lines of the file; an old one is rewritten, as after damage
        self._has_failed = False

    def observe(self, now: float, phase: str, round: int, phases: PhaseLog) -> bool:
        """The member is in `phase` of `round` (0: the same as before).

        Returns whether a round has ended, which the caller has to `keep` after LINGER.
        """
        done = self._live.observe(now, phase, round)
        if done is None:
            return False
        done.waited = phases.waited()
        self._note_paths(done)
        self._ending.append(done)
        return True

    def told(self, now: float, event: Event) -> None:
        """The member has reported an event."""
        self._live.told(now, event)
        if isinstance(event, Begun) and self._live.current is not None:
            self._note_paths(self._live.current)
        if isinstance(event, Met) and self._live.current is not None:
            paths = {link.peer: link.path for link in self.links() if link.peer == event.partner}
            self._live.current.paths |= paths

    def keep(self, now: float) -> None:
        """Write the rounds that are over."""
        for trace in self._ending:
            self._keep(trace.round, json.dumps(self._as_json(trace, now)))
        self._ending.clear()

    def forget(self, first: int) -> None:
        """Drop what is known of this round and later ones: the run goes on otherwise from there."""
        self._ending = [trace for trace in self._ending if trace.round < first]
        self._lines = {round: line for round, line in self._lines.items() if round < first}
        self._written = 2 * KEPT  # so the file is rewritten with the next one

    def find(self, now: float, round: int) -> dict[str, Any]:
        """A round's timeline, also of the current one; UnknownRound if it is not kept."""
        for trace in (self._live.current, *self._ending):
            if trace is not None and trace.round == round:
                return self._as_json(trace, now)
        if round in self._lines:
            found: dict[str, Any] = json.loads(self._lines[round])
            return found
        raise UnknownRound(f"nothing is known of round {round}: {self._words()}")

    # -- inside ---------------------------------------------------------------------------------------------

    def _as_json(self, trace: Trace, now: float) -> dict[str, Any]:
        return as_json(trace, self._me, now, time.time())

    def _note_paths(self, trace: Trace) -> None:
        members = trace.begun.roster if trace.begun is not None else ()
        trace.paths |= {link.peer: link.path for link in self.links() if link.peer in members}

    def _words(self) -> str:
        """The rounds that are known, in words."""
        live = [trace.round for trace in (*self._ending, self._live.current) if trace is not None]
        known = sorted({*self._lines, *live})
        if not known:
            return "this node has seen none of this run yet"
        return f"this node keeps the last {KEPT} that it saw, and has rounds {_ranges(known)}"

    def _keep(self, round: int, line: str) -> None:
        self._lines.pop(round, None)
        self._lines[round] = line
        while len(self._lines) > KEPT:
            del self._lines[next(iter(self._lines))]
        is_anew = self._written >= 2 * KEPT
        self._written = len(self._lines) if is_anew else self._written + 1
        text = "".join(f"{each}\n" for each in (self._lines.values() if is_anew else [line]))
        self._write(partial(self._put, text, is_anew))

    def _put(self, text: str, is_anew: bool) -> None:
        try:
            if is_anew:
                replace_file(self._path, [text.encode()])
            else:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            if not self._has_failed:
                warn(log, "timeline-not-written", f"cannot write {self._path}: {error.strerror}; rounds go on without")
            self._has_failed = True


def kept_in(folder: Path) -> list[tuple[int, str]]:
    """The rounds of a run's file and their lines, oldest first; damaged lines are skipped."""
    try:
        lines = (folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found: dict[int, str] = {}
    for line in lines:
        try:
            round = int(json.loads(line)["round"])
        except (ValueError, TypeError, LookupError, RecursionError):
            continue
        found.pop(round, None)
        found[round] = line
    return list(found.items())


def is_whole(line: str) -> bool:
    """Whether a line of the file has all that `as_json` writes; an earlier version may have written another."""
    found: dict[str, Any] = json.loads(line)
    return found.keys() | {"run", "name"} >= answers.Timeline.__required_keys__


def _ranges(rounds: Sequence[int]) -> str:
    """A sorted list of rounds in words, like "1 to 3, 5"."""
    parts: list[list[int]] = []
    for each in rounds:
        if parts and each == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], each]
        else:
            parts.append([each])
    return ", ".join(" to ".join(map(str, part)) for part in parts)
