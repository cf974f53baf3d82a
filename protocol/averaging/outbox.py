"""Payloads that we have handed to the network: which of them still wait here, and which may be on the wire.

On a slow link a chunk waits in our own queue for minutes. Whoever asks for it meanwhile is told that we are at work,
and gets it once. The shell reports each payload when it has left this node, or was dropped with its connection. It
counts as on the wire for as long as it had been first in the queue, because the network has buffers too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message

Key = tuple[int, Hashable]  # a payload's round, and what tells it from the round's others, without its bytes

SETTLE = 1.0  # seconds that a payload counts as on the wire, at least


class Outbox:
    """One run's payloads."""

    def __init__(self, key: Callable[[Message], Key | None]) -> None:
        """`key`: that of a payload; None for all other messages."""
        self._key = key
        self._waiting: dict[tuple[PeerId, Key], float] = {}  # since when
        self._landing: dict[tuple[PeerId, Key], float] = {}  # until when it may be on the wire
        self._last_left: dict[PeerId, float] = {}
        self.sent_count = 0  # payloads that have left
        self.taken_count = 0  # and that came, and were of use

    def __repr__(self) -> str:
        return f"Outbox(waiting={len(self._waiting)}, sent={self.sent_count})"

    @property
    def moved(self) -> int:
        """Payloads that went out or came in."""
        return self.sent_count + self.taken_count

    def open(self) -> None:
        """A new round begins: nobody will ask for what has left before."""
        self._landing.clear()
        self._last_left.clear()

    def note(self, now: float, effects: Sequence[Effect]) -> None:
        """These effects are about to be carried out."""
        for effect in effects:
            if isinstance(effect, Send) and (key := self._key(effect.message)) is not None:
                self._waiting.setdefault((effect.to, key), now)

    def sent(self, now: float, to: PeerId, message: Message) -> None:
        """A payload has left this node."""
        since, key = self.dropped(to, message), self._key(message)
        if key is None or since is None:
            return
        was_first = now - max(since, self._last_left.get(to, since))
        self._landing[to, key] = now + max(SETTLE, was_first)
        self._last_left[to] = now
        self.sent_count += 1

    def dropped(self, to: PeerId, message: Message) -> float | None:
        """A payload waits here no more; since when it did."""
        key = self._key(message)
        return self._waiting.pop((to, key), None) if key is not None else None

    def holds(self, to: PeerId, round: int) -> bool:
        """Whether payloads of a round still wait here for `to`."""
        return any(peer == to and key[0] == round for peer, key in self._waiting)

    def fresh(self, now: float, effects: Sequence[Effect]) -> list[Effect]:
        """These effects, but for payloads that are on their way already."""
        return [effect for effect in effects if not (isinstance(effect, Send) and self._is_under_way(now, effect))]

    def _is_under_way(self, now: float, send: Send) -> bool:
        key = self._key(send.message)
        if key is None:
            return False
        return (send.to, key) in self._waiting or now < self._landing.get((send.to, key), now)
