"""The child's side of a benchmark: JSON lines from the parent (kit/fleet.py) on stdin, answers on stdout.

    fleet                         peer
    {task}                   ->
                             <-   {"ready": address}     any unique string, if the system needs no address
    {"addresses": [...]}     ->
                             <-   {"joined": true}
    {"round": n}             ->                           once per round; the vector is made before the answer
                             <-   {"armed": true}
    {"go": true}             ->
                             <-   {"submitted": t, "held": t, "carried": bytes, "error": e}
    end of input             ->   the child ends

Times are of `time.monotonic`, one clock for all processes of a machine; `carried` is what the loopback interface had
carried when the mean was held. A child may add `cpu`, its processor seconds until then, `line`, the bandwidth of its
line, up and down, and `sockets`, the most sockets to any one peer. All other output goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any, TextIO, cast


@dataclass(frozen=True, slots=True)
class Task:
    """A peer's task, told at the start."""

    rank: int
    peers: int
    elements: int
    codec: str
    seed: int
    host: str = "127.0.0.1"  # its address, and where it listens
    claims: bool = True  # whether its offers say how fast its line is


class Parent:
    """The parent process, as a child sees it."""

    def __init__(self) -> None:
        self._answers = own_stdout()

    def next(self) -> dict[str, Any] | None:
        """The next line; None at the end of input."""
        line = sys.stdin.readline()
        return cast(dict[str, Any], json.loads(line)) if line else None

    def say(self, **answer: Any) -> None:
        """Sends one answer."""
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


class Fleet(Parent):
    """The parent of an all-reduce benchmark."""

    def __init__(self) -> None:
        super().__init__()
        self.task = Task(**self._read())

    def meet(self, address: str) -> list[str]:
        """Tells our address; the addresses of all peers, by rank."""
        self.say(ready=address)
        return cast(list[str], self._read()["addresses"])

    def next_round(self) -> int | None:
        """The number of the next round; None if there is none."""
        line = self.next()
        return int(line["round"]) if line else None

    def wait_for_go(self) -> None:
        """Tells that we are ready, and blocks until all peers are."""
        self.say(armed=True)
        self._read()

    def _read(self) -> dict[str, Any]:
        line = self.next()
        if line is None:
            raise SystemExit("the fleet is gone")
        return line


def own_stdout() -> TextIO:
    """Our own copy of stdout; from now on everything else that is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers
