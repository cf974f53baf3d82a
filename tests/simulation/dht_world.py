"""A whole network of DHT cores in one thread and in virtual time, through the real codec.

Rules:
- Every call and every answer is encoded and decoded. It takes a random time, and some are lost: then the caller's
  shell gives up after SHELL_PATIENCE, which is far longer than the core waits.
- A node that does not serve is behind a NAT and cannot be called. Nodes answer at their own addresses only, and
  dead nodes not at all.
- A RemoteError of an honest node is recorded, any other exception ends the run.
- The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.dht.effects import Blamed, Call, Effect
from shoal.dht.kademlia import Kademlia
from shoal.protocol.base.effects import Event, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import NODE_TAGS, Message, decode, encode
from shoal.protocol.messages.dht import Contact
from tests.simulation.signing import FakeSigner

SHELL_PATIENCE = 10.0  # seconds until a shell gives up
EPOCH = 1_700_000_000.0  # what the clocks show at the start
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def make_peer(rng: random.Random) -> PeerId:
    """A name that looks like that of an Ed25519 key."""
    return PeerId("12D3KooW" + "".join(rng.choices(ALPHABET, k=44)))


def make_address(rng: random.Random) -> str:
    """Some address on the internet."""
    return f"/ip4/{rng.randrange(11, 100)}.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(1, 255)}/tcp/4101"


@dataclass(slots=True)
class Node:
    """One life of a peer."""

    core: Kademlia
    contact: Contact
    serves: bool
    born: float
    is_alive: bool = True
    told: list[Event] = field(default_factory=list)

    @property
    def peer(self) -> PeerId:
        """Its name."""
        return self.contact.peer


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network behaves."""

    fastest: float = 0.02  # seconds on the way, one direction
    slowest: float = 0.3
    loss: float = 0.01  # share of calls without an answer


class DhtWorld:
    """Runs all nodes: carries out the effects of their cores."""

    def __init__(self, seed: int, weather: Weather | None = None) -> None:
        self.now = EPOCH
        self.seed = seed
        self.nodes: dict[PeerId, Node] = {}  # that live
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.blamed: Counter[PeerId] = Counter()
        self.on_event: Callable[[Node, Event], None] = lambda node, event: None
        self.rng = random.Random(f"dht world {seed}")
        self._weather = weather or Weather()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    # -- lives --------------------------------------------------------------------------------------------

    def add(self, peer: PeerId, serves: bool, make: Callable[..., Kademlia] = Kademlia) -> Node:
        """Start a node that knows nobody yet."""
        contact = Contact(peer, (make_address(self.rng),))
        core = make(peer, FakeSigner(peer), random.Random(self.rng.random()))
        node = Node(core, contact, serves, self.now)
        self.nodes[peer] = node
        self.carry_out(node, core.start(self.now))
        self.carry_out(node, core.set_contact(self.now, contact.addresses if serves else (), serves))
        return node

    def kill(self, node: Node) -> None:
        """Take a node from the network without a word."""
        node.is_alive = False
        del self.nodes[node.peer]

    # -- time ---------------------------------------------------------------------------------------------

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """Run `action` later."""
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, action, arguments))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end, heap = self.now + seconds, self._heap
        while heap and heap[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
        self.now = end

    # -- effects ------------------------------------------------------------------------------------------

    def carry_out(self, node: Node, effects: list[Effect]) -> None:
        """Carry out the effects of a node's core."""
        for effect in effects:
            if isinstance(effect, Call):
                self._call(node, effect)
            elif isinstance(effect, Tell):
                self._tell(node, effect.event)
            else:
                self.at(self.now + effect.after, self._fire, node, effect.timer)

    def _tell(self, node: Node, event: Event) -> None:
        if isinstance(event, Blamed):
            self.blamed[event.peer] += 1
        self.on_event(node, event)

    def _fire(self, node: Node, timer: Timer) -> None:
        if node.is_alive:
            self.carry_out(node, node.core.fire(self.now, timer))

    def _call(self, node: Node, ask: Call) -> None:
        self.calls[type(ask.message).__name__] += 1
        if self.rng.random() < self._weather.loss:
            self.at(self.now + SHELL_PATIENCE, self._fail, node, ask.number)
            return
        self.at(self.now + self._delay(), self._arrive, node, ask, encode(ask.message))

    def _arrive(self, caller: Node, ask: Call, frame: bytes) -> None:
        node = self.nodes.get(ask.to.peer)
        if node is None or not node.serves or not set(node.contact.addresses) & set(ask.to.addresses):
            self.at(self.now + SHELL_PATIENCE, self._fail, caller, ask.number)
            return
        try:
            answer, effects = node.core.serve(self.now, caller.peer, decode(frame, caller.peer, tags=NODE_TAGS))
        except RemoteError as error:
            self.errors[error.reason] += 1
            self.at(self.now + self._delay(), self._fail, caller, ask.number)
            return
        self.at(self.now + self._delay(), self._answer, caller, ask, encode(answer))
        self.carry_out(node, effects)

    def _answer(self, caller: Node, ask: Call, frame: bytes) -> None:
        if caller.is_alive:
            answer: Message = decode(frame, ask.to.peer, tags=NODE_TAGS)
            self.carry_out(caller, caller.core.answered(self.now, ask.number, answer))

    def _fail(self, caller: Node, number: int) -> None:
        if caller.is_alive:
            self.carry_out(caller, caller.core.failed(self.now, number))

    def _delay(self) -> float:
        return self.rng.uniform(self._weather.fastest, self._weather.slowest)
