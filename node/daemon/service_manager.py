"""Talking to systemd, or whoever set NOTIFY_SOCKET: ready, how it goes, still alive, ending. See sd_notify(3).

Where nobody listens nothing happens, and a service manager that does not listen any more is no reason to fail.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Mapping
from contextlib import suppress

DEFAULT_PAUSE = 10.0  # seconds between two words to one who set no watchdog
LONGEST_END = 1800.0  # seconds for which it is asked to bear with us
EXTENSION = 3 * DEFAULT_PAUSE  # seconds from now, each time that we ask for more of them


class ServiceManager:
    """The one that started us, as its environment describes it."""

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
        """We serve."""
        self._say("READY=1")

    def alive(self, status: str) -> None:
        """We are well, and this is how it goes."""
        self._say(f"STATUS={' '.join(status.split())}" + ("\nWATCHDOG=1" if self._watchdog else ""))

    def stopping(self) -> None:
        """We are ending, as we were asked to."""
        self._say("STOPPING=1")

    async def extend_timeout_during(self, work: Awaitable[None]) -> None:
        """Do `work`, our last; it may take longer than a service manager waits unasked, so we ask for more time."""
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
        """We need more time to end than we were given; `EXTENSION` after the last such word it may kill us."""
        self._say(f"EXTEND_TIMEOUT_USEC={EXTENSION * 1e6:.0f}")

    def _say(self, words: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)  # one that hangs is not waited for
            channel.connect(self._address)
            channel.send(words.encode())
