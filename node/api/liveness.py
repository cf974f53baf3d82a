"""Whether a node lives while a long answer is waited for: a download may take days, and a node may hang meanwhile.

A node shows life by any response to any request, because its event loop makes it. A connection that it closes or
refuses is one, too; only silence is not, as of a process that is stopped, or whose event loop is stuck.
"""

from __future__ import annotations

import http.client
import select
import socket
import time
from collections.abc import Callable
from typing import Any

ALIVE_WITHIN = 2.0  # seconds: how long a command waits for the first sign of life
PROBE = "/v1/login"  # answered to anybody, from memory
CHECK_EVERY = 10.0  # seconds of silence after which a node that works on a long answer is asked whether it lives


def shows_life(host: str, port: int, within: float) -> bool:
    """Whether the node whose API listens there shows life within so many seconds."""
    connection = http.client.HTTPConnection(host, port, timeout=within)
    try:
        connection.request("GET", PROBE)
        connection.getresponse()
    except TimeoutError:
        return False
    except (OSError, http.client.HTTPException):
        return True  # whoever reads the answer that we really want learns what that means
    finally:
        connection.close()
    return True


class WatchedSocket(socket.socket):
    """Takes the place of the connected socket `plain`, for an answer that may take `patience` seconds.

    `check` is called now and then while nothing comes; what it raises ends the wait.
    """

    def __init__(self, plain: socket.socket, patience: float, check: Callable[[], object]) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.settimeout(CHECK_EVERY)  # of a request that nobody reads
        self._patience, self._check = patience, check

    def recv_into(self, *args: Any) -> int:
        """See `socket.recv_into`; TimeoutError once the patience is over."""
        deadline = time.monotonic() + self._patience
        while not self._is_readable(min(CHECK_EVERY, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                raise TimeoutError
            self._check()
        return super().recv_into(*args)

    def _is_readable(self, limit: float) -> bool:
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        return bool(waiting.poll(max(0.0, limit) * 1000))
