"""Texts that the page has a run's model write: `shoal generate RUN` in a process of its own.

Rules:
- The process computes on the CPU, and gives way to all others (nice). There is one at a time, as each loads torch and
  the model.
- It gets the newest weights from the node, as any reader does (node/handout.py); no round waits for it.
- The process counts as one of the node's own, and is killed when the node pauses, which ends the text with the reason.
- A text is bounded in tokens and in time. When the caller hangs up, which is noticed within a second or two, the
  process is killed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from shoal.node.api.answers import WrittenText
from shoal.node.base.home import Home
from shoal.node.base.lines import printable
from shoal.node.base.logs import MAX_LINE
from shoal.node.base.room import check_memory
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import writes_text
from shoal.node.manifest.requirements import parameters
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    from shoal.node.run.run import Run  # imports torch

USUAL, MOST = 200, 2000  # tokens
SMALL = 512  # tokens: a model with no larger context writes as many as fit, unless told otherwise
MAX_PROMPT = 20_000  # characters
WITHIN = 300.0  # seconds for a text, with the start of the process
BEAT = 1.0  # seconds between two parts, at most
NICE = 10
TORCH = 400 << 20  # bytes that the process takes without a model
PER_PARAMETER = 8  # bytes: what the node hands over, and the model
AT_ONCE = 4096  # bytes of text in a part, at most
GENERATE = (sys.executable, "-P", "-m", "shoal.node", "generate")  # -P: no module comes from the current folder

Part = tuple[str, str | None]
"""What comes next, and why the text ends here if it does not end by itself."""


class Writing:
    """Has texts written by open runs, which `find` finds by their names; `writers` has the process while it runs."""

    def __init__(self, home: Home, find: Callable[[str], Run], writers: set[Process]) -> None:
        self._home, self._find, self._writers = home, find, writers
        self._is_busy = False

    async def write(self, run: str, prompt: str, max_tokens: int | None = None) -> AsyncGenerator[WrittenText, None]:
        """Write a text; the parts as they come. UnknownRun, NoRoom or LocalError if it cannot begin."""
        found = self._find(run)
        tokens = usual_length(found.manifest) if max_tokens is None else max_tokens
        check(found.manifest, prompt, tokens)
        if self._is_busy:
            raise LocalError(
                "another text is being written: there is one at a time, so that training goes on", code="busy"
            )
        self._is_busy = True
        round = found.outer.committed.current.round
        length = [] if tokens is None else ["--max-tokens", str(tokens)]
        argv = [*GENERATE, found.id.hex(), "-", *length, "--device", "cpu", "--threads", "1"]
        argv += ["--seed", str(secrets.randbelow(1 << 31))]  # another text each time
        try:
            variables = {"SHOAL_HOME": str(self._home.root)}
            async with aclosing(generate(argv, prompt, variables, self._writers)) as parts:
                async for text, error in parts:
                    ended = self._obstacle(run)
                    yield {"text": text, "round": round, "error": ended or error}
                    if ended:
                        return
        finally:
            self._is_busy = False

    def _obstacle(self, run: str) -> str | None:
        """Why the text ends here: the node pauses, or has left the run."""
        try:
            self._find(run)
        except LocalError as error:
            return str(error)
        return None


def usual_length(manifest: Manifest) -> int | None:
    """How many tokens a text has if nobody says it; None for as many as fit."""
    context = getattr(manifest.model, "context", SMALL)  # a model without one writes no text
    return None if context <= SMALL else USUAL


def check(manifest: Manifest, prompt: str, tokens: int | None) -> None:
    """LocalError or NoRoom if this text cannot be written here."""
    if not writes_text(manifest.model):
        raise LocalError(f"the model of {manifest.name} writes no text", code="model-unsupported")
    if not prompt or len(prompt) > MAX_PROMPT:
        raise LocalError(f"give a text to go on from, of at most {MAX_PROMPT:,} characters", code="prompt-wrong")
    if tokens is not None and not 1 <= tokens <= MOST:
        raise LocalError(f"a text has 1 to {MOST:,} tokens, not {tokens:,}", code="prompt-wrong")
    check_memory(TORCH + PER_PARAMETER * parameters(manifest.model), "a process that writes text")


async def generate(
    argv: Sequence[str], prompt: str, variables: dict[str, str], writers: set[Process]
) -> AsyncGenerator[Part, None]:
    """What a process prints that reads `prompt` from its stdin; an empty part each BEAT in which it prints nothing.

    The process is in `writers` while it runs. It has ended, or is killed, when the generator is closed.
    """
    decoder = getincrementaldecoder("utf-8")("replace")
    due = asyncio.get_running_loop().time() + WITHIN
    async with _process(argv, variables, writers) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.ensure_future(process.stderr.read())
        reading = asyncio.ensure_future(process.stdout.read(AT_ONCE))
        try:
            process.stdin.write(prompt.encode("utf-8", "replace"))
            process.stdin.close()
            while not reading.done() or reading.result():
                if asyncio.get_running_loop().time() > due:
                    yield "", f"it took longer than {WITHIN:.0f} s"
                    return
                data = reading.result() if reading.done() else b""
                yield decoder.decode(data), None
                if data:
                    reading = asyncio.ensure_future(process.stdout.read(AT_ONCE))
                await asyncio.wait([reading], timeout=BEAT)
            if await process.wait():
                yield "", _last_words(await errors) or f"the process ended with exit status {process.returncode}"
        finally:
            errors.cancel()
            reading.cancel()


@asynccontextmanager
async def _process(argv: Sequence[str], variables: dict[str, str], writers: set[Process]) -> AsyncIterator[Process]:
    """The process, which has ended when the context is left."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", **variables}
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ)
    writers.add(process)
    try:
        with suppress(OSError):  # it has ended, or the system does not allow it
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        writers.discard(process)


def _last_words(stderr: bytes) -> str:
    """The last line that a process has printed, which says why it has ended."""
    lines = stderr.decode("utf-8", "replace").split("\n")
    return printable(next((line for line in reversed(lines) if line.strip()), "")).removeprefix("shoal: ")[:MAX_LINE]
