"""Signals that ask a process to end: from Ctrl-C, a service manager, a container, a terminal that closes.

INT and TERM are always handled. HUP, QUIT and others are, unless they were ignored when the process started, as with
`nohup` or a shell's background jobs. A second signal changes nothing: an orderly end, with votes and state on disk, is
not cut short.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable

STANDARD = (0, 1, 2)
# USR1 and those after it: schedulers before they kill a job, limits of time (`ulimit -t`, `alarm` where there is no
# `timeout`), a failing power supply.
IF_NOT_IGNORED = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGPWR")


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those that ask this process to end."""
    heard = [getattr(signal, name) for name in IF_NOT_IGNORED if hasattr(signal, name)]  # each system lacks some
    return (
        signal.SIGINT,
        signal.SIGTERM,
        *(number for number in heard if signal.getsignal(number) is not signal.SIG_IGN),
    )


def on_ending(told: Callable[[signal.Signals], object], *, but: tuple[signal.Signals, ...] = ()) -> None:
    """Have `told` called with each signal that asks us to end, while the task that calls this one is at work.

    `but` those mean something else. They are heard beyond the task's end, until the process is gone: asked again in its
    last moments, it would else be ended by the signal, as if it had not come to an end by itself.
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
            elif not asked:  # the task has ended for another reason, and whoever ran it goes on
                signal.signal(number, before)
                signal.raise_signal(number)

        signal.signal(number, hear)

    for number in ending_signals():
        if number not in but:
            listen(number)


def ignore_all_but_sigterm() -> None:
    """What a terminal sends to all its processes at once is for the one that started us: it ends us in its order."""
    for number in ending_signals():
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)


def replace_dead_terminals() -> None:
    """Write to nowhere instead of a terminal that is gone, so that no last word fails and takes the end with it."""
    for descriptor in STANDARD:
        if _is_dead_terminal(descriptor):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def _is_dead_terminal(descriptor: int) -> bool:
    """Of a terminal that hung up even `isatty` fails, so what it is is asked of the file's type."""
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        state = poll.poll(0)
        is_device = os.major(os.fstat(descriptor).st_rdev) != 0
    except OSError:
        return False
    return is_device and any(event & (select.POLLHUP | select.POLLERR) for _, event in state)
