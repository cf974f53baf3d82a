"""Signals that ask a process to end, sent by Ctrl-C, a service manager, a container, or a terminal that closes.

INT and TERM are always handled; HUP, QUIT and others unless they were ignored when the process started, as with `nohup`
or in a shell's background jobs. A second signal does not cut the orderly end short, which writes votes and state.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable

STANDARD = (0, 1, 2)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
# USR1 and those after it are sent by schedulers before they kill a job, by limits of time (`ulimit -t`, `alarm`), and
# for a failing power supply.
IF_NOT_IGNORED = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGPWR")


def die_with_parent() -> None:
    """On Linux, have the kernel kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to end."""
    heard = [getattr(signal, name) for name in IF_NOT_IGNORED if hasattr(signal, name)]  # systems lack some
    return (
        signal.SIGINT,
        signal.SIGTERM,
        *(number for number in heard if signal.getsignal(number) is not signal.SIG_IGN),
    )


def on_ending(told: Callable[[signal.Signals], object], *, but: tuple[signal.Signals, ...] = ()) -> None:
    """Call `told` with each ending signal, except those in `but`, while the current task runs.

    The handlers stay after the task's end: else a second signal, in the last moments of the process, would kill it, and
    its exit status would be that of a killed process.
    """
    loop, task, asked = asyncio.get_running_loop(), asyncio.current_task(), list[signal.Signals]()

    def tell(number: signal.Signals) -> None:
        replace_dead_terminals()
        told(number)

    def listen(number: signal.Signals) -> None:
        before = signal.getsignal(number)

        def hear(*_: object) -> None:
            if task is not None and not task.done():
                asked.append(number)
                loop.call_soon_threadsafe(tell, number)
            elif not asked:  # the task has ended by itself, and the process goes on
                signal.signal(number, before)
                signal.raise_signal(number)

        signal.signal(number, hear)

    for number in ending_signals():
        if number not in but:
            listen(number)


def ignore_all_but_sigterm() -> None:
    """Leave signals that a terminal sends to all its processes to our parent, which ends us when it is time."""
    for number in ending_signals():
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)


def replace_dead_terminals() -> None:
    """Replace standard streams whose terminal is gone by /dev/null, so that no last print fails."""
    for descriptor in STANDARD:
        if _is_dead_terminal(descriptor):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def _is_dead_terminal(descriptor: int) -> bool:
    """Whether it is a terminal that hung up. `isatty` fails on those, so the file's type is checked instead."""
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        state = poll.poll(0)
        is_device = os.major(os.fstat(descriptor).st_rdev) != 0
    except OSError:
        return False
    return is_device and any(event & (select.POLLHUP | select.POLLERR) for _, event in state)
