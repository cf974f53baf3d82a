"""What the simulated world runs: a machine with an application around it. Override what you need."""

from __future__ import annotations

from shoal.protocol.base.effects import Effect, Event, Timer
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, Payload


class Node:
    """One process of a peer. The defaults do nothing."""

    def start(self, now: float) -> list[Effect]:
        """The process has just been started (or started again, with what it had written to disk)."""
        return []

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """A message arrived."""
        return []

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """A timer that a `Wake` asked for is due."""
        return []

    def on_event(self, now: float, event: Event) -> list[Effect]:
        """A core told its application something; called within the step that told it."""
        return []

    def on_link_up(self, now: float, peer: PeerId) -> list[Effect]:
        """A connection with `peer` was made."""
        return []

    def on_link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        """The connection with `peer` was closed."""
        return []

    def persist(self, disk: dict[str, Message], name: str, record: Message) -> None:
        """A core wants this on disk."""
        disk[name] = record

    def step_aside(self, now: float) -> list[Effect]:
        """The disk has been full for a while."""
        return []

    def come_back(self, now: float) -> list[Effect]:
        """There is room on it again."""
        return []

    def payload_of(self, message: Message) -> Payload | None:
        """The payload of a message that a core sends late; None: it is there no more."""
        raise NotImplementedError

    def on_left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """A payload no longer waits here: it was `sent`, or dropped with its connection."""

    def accuse(self, now: float, peer: PeerId) -> list[Effect]:
        """A fault makes this node believe, wrongly, that `peer` is dead."""
        return []

    def phase(self) -> str:
        """What the node is doing, for faults that strike in a phase and for counting them."""
        return "running"
