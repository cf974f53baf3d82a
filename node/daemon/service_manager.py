"""Notifies systemd, or another service manager that sets NOTIFY_SOCKET, of the node's state. See sd_notify(3).

Without NOTIFY_SOCKET nothing happens, and errors of the socket are ignored.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Mapping
from contextlib import suppress

DEFAULT_PAUSE = 10.0  # seconds between two notifications, if there is no watchdog
LONGEST_END = 1800.0  # seconds for which we ask for more time to stop
EXTENSION = 3 * DEFAULT_PAUSE  # seconds that each such request asks for, from now


class ServiceManager:
    """The service manager that started us, as the environment describes it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address  # "@": an abstract socket
        watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environ.get("WATCHDOG_USEC", "") if watched else ""
        self._watchdog = int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0

    @property
    def pause(self) -> float:
        """Seconds between two calls of `alive`: half of what the watchdog allows."""
        return min(DEFAULT_PAUSE, self._watchdog / 2) if self._watchdog else DEFAULT_PAUSE

    def ready(self) -> None:
        """Report that we serve."""
        self._say("READY=1")

    def alive(self, status: str) -> None:
        """Report that we are alive, with a status for people."""
        self._say(f"STATUS={' '.join(status.split())}" + ("\nWATCHDOG=1" if self._watchdog else ""))

    def stopping(self) -> None:
        """Report that we are ending."""
        self._say("STOPPING=1")

    async def extend_timeout_during(self, work: Awaitable[None]) -> None:
        """Await `work`, the last of the node, and meanwhile ask again and again for more time to stop."""
        asking = asyncio.create_task(self._ask_for_time())
        try:
            await work
        finally:
            asking.cancel()

    async def _ask_for_time(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + LONGEST_END
        while loop.time() < until:
            self.still_stopping()
            await asyncio.sleep(self.pause)

    def still_stopping(self) -> None:
        """Ask for more time to stop: the service manager may kill us `EXTENSION` seconds after the last request."""
        self._say(f"EXTEND_TIMEOUT_USEC={EXTENSION * 1e6:.0f}")

    def _say(self, words: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)  # a service manager that hangs must not block us
            channel.connect(self._address)
            channel.send(words.encode())
