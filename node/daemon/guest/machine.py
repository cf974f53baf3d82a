"""What can be seen of this machine without other packages: who uses it, its power, and who is on its GPUs.

What is looked at, on Linux:
- Input: when each terminal, also one of ssh or of a window, was last typed into (the access times of /dev/tty1... and
  /dev/pts/*, as `w` reads them), and interrupts of a built-in keyboard or touchpad (i8042 in /proc/interrupts). A USB
  keyboard or mouse in a graphical session cannot be seen.
- Load: what processes that are not this node's take of the processors (/proc/stat, less ours by /proc/PID/stat). More
  than half of the cores, or than one core, is use.
- Power: /sys/class/power_supply. A machine without a battery is on mains.
- GPUs: `nvidia-smi pmon`. A process that computes there counts, and one that draws if it takes a quarter of the GPU.
  One of ours that has just ended may still be listed, and is ours for OURS_FOR more.
  Processes that are not in our /proc, as seen from a container, are not told from ours, and do not count.

The functions on texts are pure. What cannot be known is None, and said in words.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.node.base.pools import MACHINE
from shoal.node.daemon.guest.rules import Manners, Seen

MEASURED_OVER = 10.0  # seconds, at least, over which the load is a mean
BUSY = 1.0  # cores, at most, that others may take of an idle machine
DRAWS = 25  # percent of a GPU
GPU_EVERY = 10.0  # seconds between two questions to nvidia-smi
GPU_ANSWERS = 8.0  # seconds that it may take
GPU_WAITS = 2.0  # seconds that a look waits for it; a later look has the answer then
OURS_FOR = 15.0  # seconds for which a process of ours counts as ours after it was last seen
PARTING = 1.0  # seconds that the end of the node waits for it
NVIDIA_SMI = ("nvidia-smi", "pmon", "-c", "1")
ROOT = Path("/")
TERMINAL = re.compile(r"tty\d+|\d+")


# -- the system's texts -------------------------------------------------------------------------------------


def busy_ticks(stat: str) -> int:
    """The time, in ticks, that all processors have spent on processes and interrupts: /proc/stat."""
    user, nice, system, _, _, interrupts, soft, *_ = map(int, stat.partition("\n")[0].split()[1:])
    return user + nice + system + interrupts + soft


def process_ticks(stat: str) -> int:
    """The time, in ticks, that a process and its children that have ended have taken: /proc/PID/stat."""
    return sum(map(int, stat.rpartition(")")[2].split()[11:15]))


def keyboard_interrupts(interrupts: str) -> int | None:
    """How often a built-in keyboard or touchpad has interrupted: /proc/interrupts; None if there is none."""
    lines = [line.partition(":")[2].split() for line in interrupts.splitlines() if "i8042" in line]
    return sum(int(word) for words in lines for word in words if word.isdecimal()) if lines else None


def runs_on_battery(supplies: Sequence[Mapping[str, str]]) -> bool | None:
    """Whether the machine runs on its battery, from the files of each power supply; None if they do not say."""
    if any(each.get("type") != "Battery" and each.get("online") == "1" for each in supplies):
        return False
    batteries = [each for each in supplies if each.get("type") == "Battery" and each.get("scope") != "Device"]
    states = {each.get("status", "Unknown") for each in batteries}
    if "Discharging" in states:
        return True
    return False if not batteries or states - {"Unknown"} else None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU."""

    pid: int
    name: str


def gpu_processes(answer: str) -> list[GpuProcess] | None:
    """The processes that use a GPU, from what `nvidia-smi pmon` prints; None if it is something else."""
    names: list[str] = []
    found = []
    for line in answer.splitlines():
        words = line.lstrip("# ").split()
        if line.startswith("#"):
            names = names or words
            continue
        row = dict(zip(names, words, strict=False))
        if not row.get("pid", "").isdecimal():
            continue
        draws = row.get("sm", "").isdecimal() and int(row["sm"]) >= DRAWS
        if "C" in row.get("type", "") or draws:
            found.append(GpuProcess(int(row["pid"]), row.get("command", "")))
    return found if {"pid", "type", "command"} <= set(names) else None


# -- looking ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Load:
    """The processors' account at a time; `own` are the processes that it counts as ours."""

    at: float
    others: int  # ticks
    own: frozenset[int]


class Machine:
    """Looks at this machine, as far as the owner's rules need it. `own` gives the processes of this node."""

    def __init__(
        self,
        own: Callable[[], Collection[int]],
        root: Path = ROOT,
        nvidia_smi: Sequence[str] = NVIDIA_SMI,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.unknown: dict[str, str] = {}  # what a rule needs and cannot be known here, in words, by the rule's key
        self._own, self._root, self._nvidia_smi, self._clock = own, root, nvidia_smi, clock
        self._ours_at: dict[int, float] = {}  # our processes of late, and when each was last seen
        self._cores = os.cpu_count() or 1
        self._used: tuple[float, str] | None = None  # when somebody has last used the machine, and how
        self._load: _Load | None = None
        self._keys: int | None = None
        self._has_load = False  # whether the load was measured, or cannot be
        self._gpu_users: tuple[str, ...] | None = None
        self._gpu_asked = float("-inf")
        self._asking: asyncio.Task[None] | None = None  # who uses the GPUs
        self._has_gpu_users = False  # whether there was an answer, or too long a silence

    async def look(self, manners: Manners) -> Seen:
        """What can be seen now of what the rules need."""
        self.unknown = {}
        self._note_ours()  # whatever the rules are: one that begins to hold must know who ended just before
        on_battery = None
        if manners.idle:
            await MACHINE.run(self._look_for_use, self._clock(), frozenset(self._own()))
        if manners.mains and (on_battery := runs_on_battery(await MACHINE.run(self._supplies))) is None:
            self.unknown["only-on-mains"] = "this system does not say whether the machine runs on its battery"
        gpu_users = await self._others_on_gpu() if manners.gpu else None
        if manners.gpu and gpu_users is None and self._has_gpu_users:
            self.unknown["yield-gpu"] = (
                f"who uses the GPUs is not known, as there is no answer of {self._nvidia_smi[0]}"
            )
        at, use = self._used or (None, "")
        return Seen(at, use, on_battery, gpu_users)

    def knows(self, manners: Manners) -> bool:
        """Whether what these rules need was measured once, as far as it can be: that takes some looks."""
        return (self._has_load or not manners.idle) and (self._has_gpu_users or not manners.gpu)

    async def close(self) -> None:
        """End what may still be asked; after PARTING it is left to itself."""
        if self._asking is not None and self._asking.cancel():
            await asyncio.wait([self._asking], timeout=PARTING)

    # -- use --------------------------------------------------------------------------------------------------

    def _look_for_use(self, now: float, own: frozenset[int]) -> None:
        if self._used is not None and self._used[0] > now:  # the clock was put back
            self._used = now, self._used[1]
        typed = self._typed_at(now)
        load = self._load_of_others(now, own)
        self._has_load = self._has_load or load is None
        if typed is None and load is None:
            self.unknown["only-when-idle"] = "this system does not say whether somebody uses the machine"
        if typed is not None and (self._used is None or typed > self._used[0]):
            self._used = typed, "input at a keyboard or terminal"
        if load is not None and load > min(BUSY, self._cores / 2):
            self._used = now, f"processes of others that take {load:.1f} cores"

    def _typed_at(self, now: float) -> float | None:
        """When somebody has last typed, as far as it is known."""
        keys = keyboard_interrupts(self._text("proc/interrupts"))
        before, self._keys = self._keys, keys
        if keys is not None and before is not None and keys != before:
            return now
        past = (at if at <= now else 0.0 for at in self._terminals())  # the future is of a clock that was put back
        return max(past, default=None if keys is None else 0.0)

    def _terminals(self) -> list[float]:
        found = []
        for folder in ("dev", "dev/pts"):
            with suppress(OSError), os.scandir(self._root / folder) as entries:
                found += [each.stat().st_atime for each in entries if TERMINAL.fullmatch(each.name)]
        return found

    def _load_of_others(self, now: float, own: frozenset[int]) -> float | None:
        """How many cores other processes take, over the time since the last answer; 0.0 if it is too early to tell."""
        try:
            busy = busy_ticks(self._text("proc/stat"))
        except ValueError:
            return None
        ours = [self._text(f"proc/{pid}/stat") for pid in own]
        load = _Load(now, busy - sum(process_ticks(each) for each in ours if each), own)
        before = self._load
        if before is None or before.own != own or not before.at <= now:  # what has ended takes its time with it
            self._load = load
            return 0.0
        if (seconds := now - before.at) < MEASURED_OVER:
            return 0.0
        self._load, self._has_load = load, True
        return max(0, load.others - before.others) / os.sysconf("SC_CLK_TCK") / seconds

    # -- power and GPUs ---------------------------------------------------------------------------------------

    def _supplies(self) -> list[dict[str, str]]:
        folder = self._root / "sys/class/power_supply"
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return [{"type": "Battery"}]  # nothing is known
        files = ("type", "online", "status", "scope")
        return [{file: self._text(f"sys/class/power_supply/{name}/{file}").strip() for file in files} for name in names]

    async def _others_on_gpu(self) -> tuple[str, ...] | None:
        """Who uses the GPUs, by the last answer; None while there is none."""
        is_asking = self._asking is not None and not self._asking.done()
        if not is_asking and not 0 <= (now := self._clock()) - self._gpu_asked < GPU_EVERY:
            self._gpu_asked = now
            self._asking = asyncio.create_task(self._ask_for_gpu())
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=GPU_WAITS)
        return self._gpu_users

    async def _ask_for_gpu(self) -> None:
        """Ask nvidia-smi. This ends when that has ended, so that of one that cannot be killed there is no second."""
        self._note_ours()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._nvidia_smi, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
            )
        except OSError:
            self._take_answer("")
            return
        try:
            async with asyncio.timeout(GPU_ANSWERS):
                answer, _ = await process.communicate()
            self._take_answer(answer.decode("utf-8", "replace") if process.returncode == 0 else "")
        except TimeoutError:
            self._take_answer("")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _take_answer(self, answer: str) -> None:
        """Note who uses the GPUs."""
        found, ours = gpu_processes(answer), self._note_ours()
        others = [each for each in found or () if each.pid not in ours and (self._root / f"proc/{each.pid}").exists()]
        self._gpu_users = tuple(f"{each.name} (pid {each.pid})" for each in others) if found is not None else None
        self._has_gpu_users = True

    def _note_ours(self) -> Collection[int]:
        """Our processes, and those that were ours within OURS_FOR."""
        now = self._clock()
        recent = {pid: at for pid, at in self._ours_at.items() if 0 <= now - at < OURS_FOR}
        self._ours_at = recent | dict.fromkeys(self._own(), now)
        return self._ours_at.keys()

    def _text(self, path: str) -> str:
        """A file's text; empty if it cannot be read."""
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
