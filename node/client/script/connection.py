"""A script's connection to its node, and the node's orders on their way from the reader thread to the script's own.

A script waits here for its first order, and where its method waits for the network. While it waits it checks from time
to time that its run can still go on, so that it never waits silently for an order that will not come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal.node.ipc.link import WorkerLink
from shoal.node.ipc.messages import Finished, Stop, Train
from shoal.node.worker.stints import Orders
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError
from shoal.protocol.base.wire import Message

CHECK_INTERVAL = 5.0  # seconds of waiting between two checks of the run
HANG_UP_WITHIN = 5.0  # seconds in which a healthy node hangs up; one that does not is no longer waited for
RESTART_HINT = "start it (`shoal node start`) and run this script again: it goes on from the run's state"
CLOSED = "this script's part in the run was closed (`run.close()`): join the run again to go on"


class ScriptOrders(Orders):
    """The node's orders to a script, the run's end, and why no more orders come."""

    def __init__(self) -> None:
        super().__init__()
        self.finished: Finished | None = None
        self._lost = ""  # why no more orders come
        self._is_closed = False  # by the script itself

    def take(self, message: Message) -> None:
        """Note a message of the daemon."""
        if isinstance(message, Finished):
            self.finished = message
        super().take(message)

    def is_replaced(self, order: Train) -> bool:
        """Whether nobody wants the result of `order` any more."""
        return self.finished is not None or super().is_replaced(order)

    def lose(self, reason: str) -> None:
        """No more orders come, for this reason."""
        with self._changed:
            self._lost = self._lost or reason
            self._changed.notify_all()

    def close(self) -> None:
        """The script takes no more orders; a thread that waits in `next` gets the error CLOSED."""
        with self._changed:
            self._is_closed = True
        self.lose(CLOSED)

    def next(self, done: int, check_run: Callable[[], None]) -> Train | Finished:
        """Wait for an order newer than `done`, or for the run's end, and call `check_run` every few seconds meanwhile.

        TransportError if the node is gone, LocalError if the script has closed the connection.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_decided(done), CHECK_INTERVAL):
                    if self.finished is not None:
                        return self.finished
                    if self._newest is not None and self._newest.order > done:
                        return self._newest
                    raise self._error()
            check_run()  # without the lock: it asks the node, whose messages must be noted meanwhile

    def check(self) -> None:
        """TransportError if the node is gone, LocalError if the script has closed the connection."""
        if self._lost and self.finished is None:
            raise self._error()

    def _is_decided(self, done: int) -> bool:
        """Whether there is an order newer than `done`, or none will come."""
        return bool(self.finished or self._lost or (self._newest is not None and self._newest.order > done))

    def _error(self) -> ShoalError:
        return LocalError(CLOSED) if self._is_closed else TransportError(self._lost)


class NodeConnection:
    """The link to the node and the thread that reads it, until one of the two ends hangs up.

    It holds no reference to the model or the optimizer: it can still hang up after a script has dropped those.
    """

    def __init__(self, link: WorkerLink) -> None:
        self.link, self.orders = link, ScriptOrders()
        self._is_forgotten = False
        self._reader = threading.Thread(target=self._listen, name="shoal", daemon=True)

    def start(self) -> None:
        """Start the thread that reads the node's messages."""
        self._reader.start()

    def hang_up(self) -> None:
        """End the connection; a thread that waits for an order gets an error. May be called twice, from any thread.

        When this returns the node knows: the run may be joined again at once.
        """
        self.orders.close()
        try:
            if self._reader.is_alive():
                self.link.leave()
                self._reader.join(HANG_UP_WITHIN)
        finally:
            self.link.close()

    def forget(self) -> None:
        """Hang up without waiting for the node: this may be called wherever Python collects garbage."""
        self._is_forgotten = True
        self.orders.close()
        self.link.leave()

    def _listen(self) -> None:
        """In the reader thread: pass on the node's messages until it stops or fails."""
        try:
            while not isinstance(message := self.link.receive(), Stop):
                self.orders.take(message)
            self.orders.lose(f"the node has stopped, or has left this run: {RESTART_HINT}")
        except ShoalError as error:
            self.orders.lose(f"{error}; {RESTART_HINT}")
        finally:
            if self._is_forgotten:
                self.link.close()
