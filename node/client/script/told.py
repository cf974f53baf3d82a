"""The node's messages to a script, passed from the thread that reads the socket to the script's own, which trains.

A script waits here for its first order, and where its method waits for the network. From time to time it checks whether
its run can still go on, so that it never waits silently for something that will not come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal.node.ipc.link import WorkerLink
from shoal.node.ipc.messages import Finished, Stop, Train
from shoal.node.worker.stints import Orders
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError
from shoal.protocol.base.wire import Message

LOOK = 5.0  # seconds of waiting between two looks
PARTING = 5.0  # seconds in which a node that is well hangs up; one that is not is left
AGAIN = "start it (`shoal node start`) and run this script again: it goes on from the run's state"
CLOSED = "this script's part in the run was closed (`run.close()`): join the run again to go on"


class Told(Orders):
    """Orders, and the end of them."""

    def __init__(self) -> None:
        super().__init__()
        self.finished: Finished | None = None
        self._lost = ""  # why nothing comes any more
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
        """Nothing comes any more."""
        with self._changed:
            self._lost = self._lost or reason
            self._changed.notify_all()

    def close(self) -> None:
        """The script wants nothing any more; whoever waits here is told so."""
        with self._changed:
            self._is_closed = True
        self.lose(CLOSED)

    def next(self, done: int, look: Callable[[], None]) -> Train | Finished:
        """Wait for an order newer than `done`, or the end; TransportError if the node is gone, LocalError if we are.

        `look` is called every few seconds meanwhile.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_there(done), LOOK):
                    if self.finished is not None:
                        return self.finished
                    if self._newest is not None and self._newest.order > done:
                        return self._newest
                    raise self._end()
            look()  # without the lock: it asks the node, and what the node tells meanwhile must be noted

    def _is_there(self, done: int) -> bool:
        """Whether there is something to do, or nothing any more."""
        return bool(self.finished or self._lost or (self._newest is not None and self._newest.order > done))

    def check(self) -> None:
        """TransportError if the node is gone, LocalError if we are."""
        if self._lost and self.finished is None:
            raise self._end()

    def _end(self) -> ShoalError:
        return LocalError(CLOSED) if self._is_closed else TransportError(self._lost)


class Line:
    """The connection to the node and the thread that reads it, until one of the two ends hangs up.

    It holds nothing of what is trained: when a script lets go of that without a word, this can still hang up for it.
    """

    def __init__(self, link: WorkerLink) -> None:
        self.link, self.told = link, Told()
        self._is_forgotten = False
        self._reader = threading.Thread(target=self._listen, name="shoal", daemon=True)

    def start(self) -> None:
        """Hear what the node says from now on."""
        self._reader.start()

    def hang_up(self) -> None:
        """Hear nothing any more; whoever waits is told so. It may come twice, and from any thread.

        When this returns the node knows: the run may be joined again at once.
        """
        self.told.close()
        try:
            if self._reader.is_alive():
                self.link.leave()
                self._reader.join(PARTING)
        finally:
            self.link.close()

    def forget(self) -> None:
        """The same, but wait for nobody: this may be called wherever Python collects garbage."""
        self._is_forgotten = True
        self.told.close()
        self.link.leave()

    def _listen(self) -> None:
        """In a thread: pass on what the node says, until it says no more."""
        try:
            while not isinstance(message := self.link.receive(), Stop):
                self.told.take(message)
            self.told.lose(f"the node has stopped, or has left this run: {AGAIN}")
        except ShoalError as error:
            self.told.lose(f"{error}; {AGAIN}")
        finally:
            if self._is_forgotten:
                self.link.close()
