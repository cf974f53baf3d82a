"""A whole swarm in one thread and in virtual time: a heap of (time, sequence, input), and seeded faults.

Rules:
- A message passes through the codec and must come out equal: of each kind the first ones in a world, and then one of
  some; the others are handed over as they are, since messages are frozen. What is written to a disk always does.
- A process is one life of a peer. Inputs belong to a process: nothing meant for a dead one reaches its
  successor, only what it had persisted.
- A connection exists from the first delivery between two processes until one of them dies, as with TCP. The
  survivors are told of its end after a moment, or not at all, with probability `unnoticed`.
- What is to be written is on the disk before the next effect. The driver holds back less for means, but no mean itself.
- A RemoteError is recorded; any other exception ends the run and carries the seed in its notes.
- Nothing depends on hash order: the same seed gives the same trace.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from shoal.protocol.base.effects import Effect, Persist, Send, Tell, Wake, Withdraw
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.member.presence import STEPS_ASIDE
from shoal.protocol.messages.membership import Ack, AckFor, Gossip, Ping, PingFor, Summary
from tests.simulation.links import Link, Network
from tests.simulation.node import Node
from tests.simulation.post import Post
from tests.simulation.process import Process, Trace, through_codec
from tests.simulation.uplink import Parcel

N = TypeVar("N", bound=Node)
Disk = dict[str, Message]
Make = Callable[[PeerId, float, Disk, random.Random], N]
Step = Callable[[N, float], list[Effect]]

OF_WHO_IS_THERE = (Ping, Ack, PingFor, AckFor, Gossip, Summary)
CODED, CODED_EVERY = 50, 16  # messages of a kind that pass through the codec: the first ones, then one of so many
NOTICE_DELAY = 0.02  # seconds, at most, until the end of a connection is noticed


class World(Generic[N]):
    """Runs the nodes that `make` builds."""

    def __init__(
        self,
        make: Make[N],
        seed: int,
        link: Link | None = None,
        *,
        unnoticed: float = 0.0,
        clock_spread: float = 1000.0,
    ) -> None:
        self.now = 0.0
        self.seed = seed
        self.events = 0
        self.errors: list[tuple[PeerId, RemoteError]] = []
        self.disks: dict[PeerId, Disk] = {}
        self.faults: Counter[tuple[str, str]] = Counter()  # (kind, phase of the victim)
        self.sent: Counter[str] = Counter()  # messages by type
        self.sent_bytes = 0
        self.watchers: list[Callable[[PeerId], None]] = []  # called after every event
        self.taps: list[Callable[[PeerId, Effect], None]] = []  # called with whatever goes out or to disk
        self._make = make
        self._rng = random.Random(f"world {seed}")
        self.network = Network(random.Random(f"network {seed}"), link or Link())
        self._unnoticed = unnoticed
        self._clock_spread = clock_spread
        self._processes: dict[PeerId, Process[N]] = {}
        self.post = Post(self.network, self._processes, self._push_later)
        self._heap: list[tuple[float, int, Process[N] | None, Any]] = []
        self._sequence = 0
        self._trace = Trace()

    # -- looking ------------------------------------------------------------------------------------------

    def node(self, peer: PeerId) -> N:
        """The node of `peer`'s current or last process."""
        return self._processes[peer].node

    def is_alive(self, peer: PeerId) -> bool:
        """Whether `peer` has a process (a paused one counts)."""
        process = self._processes.get(peer)
        return process is not None and process.alive

    def is_paused(self, peer: PeerId) -> bool:
        """Whether `peer`'s process is stopped."""
        return self.is_alive(peer) and self._processes[peer].paused

    def living(self) -> list[PeerId]:
        """Peers that have a process, in the order of their first start."""
        return [peer for peer, process in self._processes.items() if process.alive]

    def nodes(self) -> Iterable[N]:
        """The nodes of the living."""
        return (process.node for process in self._processes.values() if process.alive)

    def trace_digest(self) -> str:
        """A running hash over (time, peer, input) of everything that happened."""
        return self._trace.digest()

    # -- running ------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass."""
        self._run_to(self.now + seconds)

    def run_until(self, condition: Callable[[], bool], within: float, every: float = 0.05) -> float:
        """Run until `condition` holds, looked at `every` so often; the virtual seconds it took."""
        begin = self.now
        end = begin + within
        while not condition():
            if self.now >= end:
                raise AssertionError(f"seed {self.seed}: condition not met within {within} virtual seconds")
            self._run_to(min(self.now + every, end))
        return self.now - begin

    def _run_to(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            self._next()
        self.now = end

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Run `action` at a virtual time (now, if it has passed)."""
        self._push(max(time, self.now), None, action)

    def command(self, peer: PeerId, step: Step[N]) -> None:
        """Give the living node of `peer` a command and carry out its effects."""
        process = self._processes[peer]
        if process.alive:
            self._input(process, ("command", step))

    # -- lives --------------------------------------------------------------------------------------------

    def start(self, peer: PeerId) -> None:
        """Start a process for `peer`: its first or, after `kill`, its next one."""
        assert not self.is_alive(peer), f"{peer} is already running"
        disk = self.disks.setdefault(peer, {})
        origin = self._rng.uniform(0.0, self._clock_spread)
        rng = random.Random(self._rng.getrandbits(64))
        node = self._make(peer, self.now + origin, disk, rng)
        process = self._processes[peer] = Process(peer, node, origin, self.network.uplink(peer))
        self._input(process, ("command", lambda node, now: node.start(now)))

    def kill(self, peer: PeerId, after_effects: int = 0) -> None:
        """SIGKILL: at once, or in the middle of a step, when `after_effects` more effects are carried out."""
        process = self._processes.get(peer)
        if process is None or not process.alive:
            return
        if after_effects:
            process.fuse = after_effects
            return
        process.alive = False
        process.backlog.clear()
        for other in list(process.links):
            self._end_link(process, process.links[other])

    def restart(self, peer: PeerId) -> None:
        """A new process with the old disk; kills the old one first."""
        self.kill(peer)
        self.start(peer)

    def pause(self, peer: PeerId) -> None:
        """SIGSTOP: inputs wait."""
        if self.is_alive(peer):
            self._processes[peer].paused = True

    def spare(self, peer: PeerId) -> None:
        """A death that was to come in the middle of a step, and has not come yet, comes no more."""
        if (process := self._processes.get(peer)) is not None:
            process.fuse = None

    def resume(self, peer: PeerId) -> None:
        """SIGCONT: what waited comes at once; timers first, the harder order for a node that judges others by time."""
        process = self._processes.get(peer)
        if process is None or not process.alive or not process.paused:
            return
        process.paused = False
        waiting, process.backlog = process.backlog, []
        for item in sorted(waiting, key=lambda item: item[0] != "timer"):
            self._push(self.now, process, item)

    def fill_disk(self, peer: PeerId) -> None:
        """Nothing more can be written: what follows from a record waits, and nothing is said (node/run/driver.py)."""
        if self.is_alive(peer) and self._processes[peer].held is None:
            self._processes[peer].held = []

    def free_disk(self, peer: PeerId) -> None:
        """There is room again: what has waited is carried out."""
        process = self._processes.get(peer)
        if process is not None and process.alive and process.held is not None:
            held, process.held = process.held, None
            self._carry_out(process, held)
            self._input(process, ("command", lambda node, now: node.come_back(now)))

    # -- connections --------------------------------------------------------------------------------------

    def reset_link(self, a: PeerId, b: PeerId) -> None:
        """A blip: the connection between two living peers breaks; the next message makes a new one."""
        first, second = self._processes[a], self._processes[b]
        if first.links.get(b) is second:
            self._end_link(first, second)
            self._end_link(second, first)

    def _end_link(self, gone: Process[N], survivor: Process[N]) -> None:
        if survivor.links.get(gone.peer) is not gone or not survivor.alive:
            return
        del survivor.links[gone.peer]
        self.post.disconnect(self.now, survivor, gone.peer)
        if self._rng.random() >= self._unnoticed and self.network.connects(gone.peer, survivor.peer):
            delay = self._rng.uniform(0.0, NOTICE_DELAY)
            self._push(self.now + delay, survivor, ("lost", gone.peer))

    def _connect(self, sender: Process[N], receiver: Process[N]) -> None:
        """The first message between two processes has arrived."""
        receiver.links[sender.peer] = sender
        self._carry_out(receiver, receiver.node.on_link_up(self.now + receiver.origin, sender.peer))
        if sender.links.get(receiver.peer) is not receiver:
            sender.links[receiver.peer] = receiver
            self._push(self.now, sender, ("up", receiver.peer))

    # -- one event ----------------------------------------------------------------------------------------

    def _push(self, time: float, process: Process[N] | None, item: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, process, item))

    def _push_later(self, seconds: float, process: Process[N] | None, item: Any) -> None:
        self._push(self.now + seconds, process, item)

    def _next(self) -> None:
        self.now, _, process, item = heapq.heappop(self._heap)
        if process is None:
            item()
        elif process.paused:
            process.backlog.append(item)
        elif process.alive:
            self._input(process, item)

    def _input(self, process: Process[N], item: tuple[Any, ...]) -> None:
        self.events += 1
        self._trace.record(self.now, process.peer, item)
        try:
            self._carry_out(process, self._apply(process, item))
            for watcher in self.watchers:
                watcher(process.peer)
        except Exception as error:
            shown = f"{item!r:.500}"
            error.add_note(f"seed {self.seed}, time {self.now:.6f}, peer {process.peer}, input {shown}")
            raise

    def _apply(self, process: Process[N], item: tuple[Any, ...]) -> list[Effect]:
        now = self.now + process.origin
        kind = item[0]
        if kind == "message":
            return self._deliver(process, now, item[1], item[2])
        if kind == "timer":
            return process.node.fire(now, item[1])
        if kind == "command":
            step: Step[N] = item[1]
            return step(process.node, now)
        if kind == "left":
            self.post.shift(self.now, process)
            return []
        if kind == "up":
            return process.node.on_link_up(now, item[1])
        return process.node.on_link_lost(now, item[1])

    def _deliver(self, process: Process[N], now: float, sender: Process[N], message: Message) -> list[Effect]:
        if process.links.get(sender.peer) is not sender and sender.alive:
            self._connect(sender, process)
        try:
            return process.node.receive(now, sender.peer, message)
        except RemoteError as error:
            self.errors.append((process.peer, error))
            return []

    # -- effects ------------------------------------------------------------------------------------------

    def _carry_out(self, process: Process[N], effects: list[Effect]) -> None:
        encoded: dict[int, tuple[bytes, Message]] = {}
        for effect in effects:
            if not process.alive:
                return
            if isinstance(effect, Withdraw):  # nobody else can tell whether it died of this
                self.post.withdraw(process, effect)
                continue
            if process.fuse is not None and self._burn(process):
                return
            if process.held is not None and self._waits_for_room(process, process.held, effect):
                continue
            if isinstance(effect, Wake):
                self._push(self.now + max(0.0, effect.after), process, ("timer", effect.timer))
            elif isinstance(effect, Tell):
                self._carry_out(process, process.node.on_event(self.now + process.origin, effect.event))
            else:
                self._let_out(process, effect, encoded)

    def _let_out(self, process: Process[N], effect: Effect, encoded: dict[int, tuple[bytes, Message]]) -> None:
        for tap in self.taps:
            tap(process.peer, effect)
        if isinstance(effect, Send):
            self._send(process, effect, encoded)
        elif isinstance(effect, Persist):
            process.node.persist(self.disks[process.peer], effect.name, through_codec(effect.record)[1])

    def _send(self, process: Process[N], effect: Send, encoded: dict[int, tuple[bytes, Message]]) -> None:
        message = effect.message
        known = encoded.get(id(message))
        if known is None:
            if (filled := self.filled(process.peer, effect)) is None:
                process.node.on_left(self.now + process.origin, effect.to, message, False)
                return
            known = encoded[id(message)] = self._coded(filled)
        assert effect.to != process.peer, "a core sends to others only"
        data, copy = known
        self.sent[type(message).__name__] += 1
        self.sent_bytes += len(data)
        self.post.send(self.now, process, Parcel(effect.to, copy, data))

    def _coded(self, message: Message) -> tuple[bytes, Message]:
        """The bytes of `message`, and what is handed over."""
        count = self.sent[type(message).__name__]
        return through_codec(message) if count < CODED or count % CODED_EVERY == 0 else (encode(message), message)

    def filled(self, peer: PeerId, effect: Send) -> Message | None:
        """What `peer` sends, with its payload; None if that is there no more, so that nothing is sent."""
        if not effect.is_late:
            return effect.message
        payload = self.node(peer).payload_of(effect.message)
        return replace(effect.message, payload=payload) if payload is not None else None  # type: ignore[type-var]

    def _waits_for_room(self, process: Process[N], held: list[Effect], effect: Effect) -> bool:
        """Whether an effect is held, or dropped, since the disk is full."""
        if (not held and not isinstance(effect, Persist)) or (
            isinstance(effect, Send) and isinstance(effect.message, OF_WHO_IS_THERE)
        ):
            return False
        if not held:
            process.held_since = self.events
            aside: Step[N] = lambda node, now: node.step_aside(now) if process.held is held else []  # noqa: E731
            self._push(self.now + STEPS_ASIDE, process, ("command", aside))
        if not isinstance(effect, Send) or self.events == process.held_since:
            held.append(effect)
        elif effect.message.bulk:
            process.node.on_left(self.now + process.origin, effect.to, effect.message, sent=False)
        return True

    def _burn(self, process: Process[N]) -> bool:
        """Count down one effect; True if the process has died of it."""
        assert process.fuse is not None
        process.fuse -= 1
        if process.fuse >= 0:
            return False
        process.fuse = None
        self.kill(process.peer)
        return True
