"""Network namespaces: machines with a network of their own. Nothing done here touches this machine's network.

- A namespace's name begins with the name of its lab, which contains the process id of the lab's owner. So `sweep` can
  remove the namespaces of owners that are gone, with all processes in them.
- Only the standard library is imported: the switch, which starts with every lab, uses this file too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

PREFIX = "shoal-lab"
PLACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
PATIENCE = 60.0  # seconds, for a tool on a busy machine

T = TypeVar("T")


class ToolError(Exception):
    """`ip` or `nft` refused, or is not there."""


def run(*argv: str, words: str = "") -> str:
    """Run a tool with `words` as its input; its output. ToolError if it fails."""
    try:
        done = subprocess.run(argv, input=words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except FileNotFoundError as error:
        raise ToolError(f"there is no `{argv[0]}`") from error
    if done.returncode != 0:
        raise ToolError(f"{' '.join(argv)}: {done.stderr.strip()} {words}".strip())
    return done.stdout


class Namespace:
    """One machine: `name` is its name for `ip netns`, `label` the one in the topology."""

    def __init__(self, lab: str, label: str) -> None:
        self.label = label
        self.name = f"{lab}-{label}"
        run("ip", "netns", "add", self.name)
        self.ip("link set lo up")

    def __str__(self) -> str:
        return self.label

    def ip(self, *commands: str) -> str:
        """Run commands of `ip` in the namespace; their output."""
        return run("ip", "-n", self.name, "-batch", "-", words="\n".join(commands))

    def on(self, function: Callable[[], T]) -> T:
        """Call `function` in the namespace, in a new thread, as each thread has its own; what it returns.

        A socket that is opened there stays in that namespace, whichever thread uses it later.
        """

        def there() -> T:
            with (PLACES / self.name).open("rb") as place:
                if LIBC.setns(place.fileno(), CLONE_NEWNET) != 0:
                    raise ToolError(f"{self.name}: {os.strerror(ctypes.get_errno())}")
            return function()

        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(there).result()

    def argv(self, *command: str) -> list[str]:
        """The command line that starts `command` there."""
        return ["ip", "netns", "exec", self.name, *command]

    def set(self, parameter: str, value: int | str) -> None:
        """Set a parameter of the kernel, such as net/ipv4/ip_forward, for this machine alone."""
        self.on(lambda: Path("/proc/sys", parameter).write_text(str(value)))


# -- leaving nothing behind ---------------------------------------------------------------------------------


def lab_name(number: int) -> str:
    """The name of this process's lab number `number`, with which the names of all its namespaces begin."""
    return f"{PREFIX}-{os.getpid()}.{number}"


def remains(of: str) -> list[str]:
    """The existing namespaces of a lab, of a process's labs, or of all labs, by the beginning of their names."""
    names = [path.name for path in PLACES.iterdir()] if PLACES.exists() else []
    return sorted(name for name in names if name.startswith((f"{of}-", f"{of}.")))


def remove(names: Iterable[str]) -> None:
    """Remove namespaces and end what runs in them."""
    names = list(names)
    if not names:
        return
    for pid in inhabitants(names):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ToolError):  # another sweep was first
        run("ip", "-force", "-batch", "-", words="\n".join(f"netns delete {name}" for name in names))


def inhabitants(names: Iterable[str]) -> list[int]:
    """The processes in any of these namespaces."""
    places = set()
    for name in names:
        with suppress(FileNotFoundError):
            places.add(identity(PLACES / name))
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it ended meanwhile
            if process.name.isdecimal() and identity(process / "ns/net") in places:
                found.append(int(process.name))
    return found


def identity(place: Path) -> tuple[int, int]:
    """Equal for two names of one namespace: its device and inode."""
    found = place.stat()
    return found.st_dev, found.st_ino


def sweep() -> None:
    """Remove the labs of processes that are gone."""
    for name in remains(PREFIX):
        owner = name.removeprefix(f"{PREFIX}-").partition(".")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            remove([name])
