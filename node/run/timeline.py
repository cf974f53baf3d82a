"""What happens in a round at one member, and when: what `shoal logs --round` shows is gathered here.

Pure: the time comes in. A round has thousands of messages, so of them no more is kept than when the first and the last
came or left, how many they were, and their bytes, for each kind and peer; whoever is over the bound is counted with
the others. A payload that is sent counts when it has left this node. Messages of the next round come while this one
still goes on, and some of the last one's leave after its end: they are put where they belong, all others nowhere.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from shoal.node.run.replica_words import why_lapsed
from shoal.protocol.allreduce import Blamed
from shoal.protocol.certificate import counted_everywhere
from shoal.protocol.effects import Event
from shoal.protocol.ids import PeerId
from shoal.protocol.members import PeerDown, PeerLeft, PeerSuspected
from shoal.protocol.messages.rounds import ROUND_MESSAGES, Contribution, Fetched, Final, Reassign
from shoal.protocol.milestones import Aborted, Begun, Behind, Committed, HandIn, Waiting
from shoal.protocol.replicas.events import Exchanged, Lapsed, Met
from shoal.protocol.roster import Plan
from shoal.protocol.shelf import Decision
from shoal.protocol.stages import round_of
from shoal.protocol.wire import Message

MOST_FLOWS = 1024  # of a round, by way, kind and peer
MOST_EVENTS = 128  # of a round, the last ones
MOST_PHASES = 64  # of a round, the first ones
OTHERS = PeerId("others")  # who is over the bound

KINDS: dict[type, str] = {kind: kind.__name__.lower() for kind in get_args(ROUND_MESSAGES)}
SENT, RECEIVED = "sent", "received"


@dataclass(slots=True)
class Flow:
    """The messages of one kind, to or from one peer."""

    first: float
    last: float
    count: int = 0
    bytes: int = 0  # of payloads; words are small


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that is neither a message nor a phase."""

    at: float
    what: str
    peer: PeerId | None = None
    words: str = ""


@dataclass(slots=True)
class Trace:
    """One round; times are those of the clock that was passed in."""

    round: int
    phases: list[tuple[str, float]] = field(default_factory=list)  # and when each began
    flows: dict[tuple[str, str, PeerId], Flow] = field(default_factory=dict)  # by (way, kind, peer)
    events: deque[Happening] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    waited: Mapping[tuple[str, PeerId], float] = field(default_factory=dict)  # seconds, by phase and peer
    paths: dict[PeerId, str] = field(default_factory=dict)  # of the group's payloads
    plan: Plan | None = None  # of the last group
    committed: float | None = None
    uncounted: tuple[PeerId, ...] = ()  # members that are missing in some chunk
    ended: float | None = None

    @property
    def zero(self) -> float | None:
        """When this member was ready, or need not be any more: what all times of the round are relative to."""
        return next((at for phase, at in self.phases if phase not in ("training", "syncing")), None)

    def enter(self, now: float, phase: str) -> None:
        """The member is in another phase."""
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

    def happened(self, now: float, what: str, peer: PeerId | None = None, words: str = "") -> None:
        """Something else; what is said again and again is kept once."""
        if not self.events or (self.events[-1].what, self.events[-1].peer, self.events[-1].words) != (
            what,
            peer,
            words,
        ):
            self.events.append(Happening(now, what, peer, words))

    def commit(self, now: float, decision: Decision) -> None:
        """The round is decided, and all its bytes are here."""
        proposal = decision.certificate.proposal
        counted = {proposal.members[index] for index in counted_everywhere(decision.chunks, len(proposal.members))}
        self.committed, self.uncounted = now, tuple(peer for peer in proposal.members if peer not in counted)
        self.happened(now, "committed", words=f"attempt {proposal.attempt}")


class Timeline:
    """The round that goes on, the one before and the one after it."""

    def __init__(self) -> None:
        self.current: Trace | None = None
        self.previous: Trace | None = None
        self._next: Trace | None = None
        self._phase = ""
        self._reassign: Reassign | None = None  # the last one that we have seen, which goes to many

    def observe(self, now: float, phase: str, round: int) -> Trace | None:
        """The member is in `phase` of `round` (0: still in that of before); the trace that ends with this, if one does.

        Call it after every step that the member makes.
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
        """A message was handed to the network, or, if it is a payload, has left for it."""
        self._note(now, SENT, to, message)

    def received(self, now: float, sender: PeerId, message: Message) -> None:
        """A message has come, and was not a bad one."""
        self._note(now, RECEIVED, sender, message)

    def told(self, now: float, event: Event) -> None:
        """The member has told us something."""
        trace = self.current
        if trace is None:
            return
        match event:
            case Begun(plan):
                trace.plan = plan
                trace.happened(now, "begun", plan.leader, f"attempt {plan.attempt}, {len(plan.members)} members")
            case Committed(decision) if decision.round == trace.round:
                trace.commit(now, decision)
            case Aborted(_, attempt, reason):
                trace.happened(now, "failed", words=f"attempt {attempt}: {reason}")
            case HandIn():
                trace.happened(now, "called")
            case Waiting(reason):
                trace.happened(now, "waiting", words=reason)
            case PeerSuspected(peer):
                trace.happened(now, "suspected", peer)
            case PeerDown(peer):
                trace.happened(now, "lost", peer)
            case PeerLeft(peer):
                trace.happened(now, "left", peer)
            case Blamed(peer, reason):
                trace.happened(now, "blamed", peer, reason)
            case Met(_, partner):
                trace.happened(now, "met", partner)
            case Exchanged(partner=partner, is_mutual=is_mutual):
                trace.committed = now
                trace.happened(now, "exchanged", partner, "and it has ours" if is_mutual else "it was lost then")
            case Lapsed(_, reason):
                trace.happened(now, "lapsed", words=why_lapsed(reason))
            case Behind(peer, round):
                trace.happened(now, "behind", peer, f"round {round}")

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
        trace = self._trace_of(round_of(message)) if kind is not None else None
        if kind is None or trace is None:
            return
        size = len(message.payload) if isinstance(message, Contribution | Final | Fetched) else 0
        trace.note(now, way, kind, peer, size)
        if isinstance(message, Reassign) and message is not self._reassign:
            self._reassign = message
            trace.happened(now, "reassigned", message.ballot.leader, _moves(message))

    def _trace_of(self, round: int) -> Trace | None:
        current = self.current
        if current is None or round == current.round:
            return current
        if round == current.round + 1:
            self._next = self._next or Trace(round)
            return self._next
        return self.previous if self.previous is not None and round == self.previous.round else None


def _moves(message: Reassign) -> str:
    """How many chunks a Reassign moves to how many members."""
    owners = Counter(each.owner for each in message.assignments)
    return f"{owners.total()} chunks to {len(owners)} members"
