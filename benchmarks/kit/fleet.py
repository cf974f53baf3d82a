"""The parent's side of a benchmark: child processes that are asked over pipes, and a fleet of them, driven in step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from types import TracebackType
from typing import IO, Any, cast

from kit.loopback import carried
from kit.peer import Task

GRACE = 5.0  # seconds that a child has to end
HIVEMIND = Path(__file__).parent.parent / ".hivemind" / "bin" / "python"  # `make bench-peers` installs it


class PeerFailed(Exception):
    """A child died or did not answer in time; the message is the end of what all children wrote to stderr."""


class Child:
    """A process that answers JSON lines on its stdin by JSON lines on its stdout; `errors` gets its stderr."""

    def __init__(self, argv: Sequence[str], patience: float, errors: IO[bytes]) -> None:
        """`patience` is how many seconds an answer may take."""
        self._patience, self._errors = patience, errors
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

    def tell(self, **question: Any) -> None:
        """Sends one line; PeerFailed if the child has ended."""
        pipe = cast(IO[str], self.process.stdin)
        try:
            pipe.write(json.dumps(question) + "\n")
            pipe.flush()
        except BrokenPipeError:
            raise PeerFailed(self._last_words()) from None

    def answer(self) -> dict[str, Any]:
        """The next line; a child that does not answer in time is killed, which raises PeerFailed."""
        watch = Timer(self._patience, self.process.kill)
        watch.start()
        try:
            line = cast(IO[str], self.process.stdout).readline()
        finally:
            watch.cancel()
        if not line:
            raise PeerFailed(self._last_words())
        return cast(dict[str, Any], json.loads(line))

    def ask(self, **question: Any) -> dict[str, Any]:
        """Sends one line and reads the answer."""
        self.tell(**question)
        return self.answer()

    def end_input(self) -> None:
        """The end of input tells the child to end; one that has ended before it took its last input is told nothing."""
        with suppress(BrokenPipeError):
            cast(IO[str], self.process.stdin).close()

    def end(self, grace: float) -> None:
        """Waits for the child to end, and kills it after `grace` seconds; one that was stopped is continued."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        self.end_input()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        cast(IO[str], self.process.stdout).close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-1500:] or "a peer was silent"


@dataclass(frozen=True, slots=True)
class Lap:
    """The measurements of one round."""

    seconds: float  # from the last submit to the slowest peer's result
    bytes: int | None  # on the loopback interface, from when all were ready to that result
    error: float  # the largest of all peers
    cpu: float = 0.0  # processor seconds of all peers that report theirs
    lines: tuple[tuple[int, int], ...] = ()  # bytes a second up and down, of each peer that knows its line
    sockets: int = 0  # the most from a peer to another, of the peers that report it


class Fleet:
    """The peers of one system, as processes of `argv`."""

    def __init__(
        self,
        argv: Sequence[str],
        tasks: Sequence[Task],
        patience: float,
        place: Callable[[int, Sequence[str]], Sequence[str]] = lambda rank, argv: argv,
    ) -> None:
        """`place` turns the command line into that of the peer of this rank, where it is to run."""
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 (closed with the fleet)
        self._children = [Child(place(task.rank, argv), patience, self._errors) for task in tasks]
        for child, task in zip(self._children, tasks, strict=True):
            child.tell(**asdict(task))

    def gather(self) -> None:
        """Lets the peers find each other."""
        addresses = [answer["ready"] for answer in self._answers()]
        self._tell_all(addresses=addresses)
        self._answers()

    def lap(self, round: int) -> Lap:
        """Runs one all-reduce."""
        self._tell_all(round=round)
        self._answers()
        before = carried()
        self._tell_all(go=True)
        answers = self._answers()
        slowest = max(answers, key=lambda answer: answer["held"])
        return Lap(
            slowest["held"] - max(answer["submitted"] for answer in answers),
            None if before is None else slowest["carried"] - before,
            max(float(answer["error"]) for answer in answers),
            sum(float(answer.get("cpu", 0.0)) for answer in answers),
            tuple((up, down) for up, down in (answer["line"] for answer in answers if "line" in answer)),
            max(int(answer.get("sockets", 0)) for answer in answers),
        )

    def strike(self, round: int, rank: int, after: float, blow: signal.Signals) -> list[dict[str, Any]]:
        """Runs one all-reduce, in which the peer of this rank gets a signal so many seconds after its beginning.

        So do the processes that it has started. The answers of the others.
        """
        self._tell_all(round=round)
        self._answers()
        self._tell_all(go=True)
        time.sleep(after)
        victim = self._children[rank]
        processes = [victim.process.pid, *descendants(victim.process.pid)]
        for process in processes:
            os.kill(process, blow)
        answers = [child.answer() for child in self._children if child is not victim]
        for process in processes:  # one that was stopped would not end
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return answers

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.end_input()
        for child in self._children:
            child.end(GRACE if error is None else 0.1)
        self._errors.close()

    def _tell_all(self, **words: Any) -> None:
        for child in self._children:
            child.tell(**words)

    def _answers(self) -> list[dict[str, Any]]:
        return [child.answer() for child in self._children]


def has_hivemind() -> bool:
    """Whether hivemind is installed; if not, stderr is told that it is left out."""
    if not HIVEMIND.exists():
        print("hivemind is not installed: left out; `make bench-peers` installs it", file=sys.stderr)
    return HIVEMIND.exists()


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have (Linux)."""
    started = [int(each) for file in Path(f"/proc/{pid}/task").glob("*/children") for each in file.read_text().split()]
    return [*started, *(each for child in started for each in descendants(child))]


def script(name: str, python: Path | str = sys.executable) -> list[str]:
    """The command line of a peer that is a script beside the benchmarks."""
    return [str(python), str(Path(__file__).parent.parent / name)]
