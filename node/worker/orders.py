"""What a daemon wants of its worker just now, between the thread that reads the socket and the one that trains."""

from __future__ import annotations

import threading

from shoal.node.worker.messages import HandIn, Train
from shoal.protocol.wire import Message


class Orders:
    """What the daemon wants now: written by the reader thread, read by the training loop."""

    def __init__(self) -> None:
        self._newest: Train | None = None
        self._handed_in = 0  # the newest order that is to be handed in early
        self._changed = threading.Condition()

    def take(self, message: Message) -> None:
        """Note a message of the daemon."""
        with self._changed:
            if isinstance(message, Train):
                self._newest = message
            elif isinstance(message, HandIn):
                self._handed_in = message.order
            self._changed.notify_all()

    def after(self, done: int) -> Train:
        """Wait for an order newer than `done`."""
        with self._changed:
            while self._newest is None or self._newest.order <= done:
                self._changed.wait()
            return self._newest

    def is_replaced(self, order: Train) -> bool:
        """Whether nobody wants the result of `order` any more."""
        return self._newest is not order

    def is_due(self, order: Train) -> bool:
        """Whether `order` must not be worked on any longer."""
        return self.is_replaced(order) or self._handed_in >= order.order
