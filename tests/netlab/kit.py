"""Small networks of their own: machines are network namespaces, segments are bridges that machines are plugged into.

Nothing of it touches this machine's own network: a bridge lives in a namespace, too, and each lab goes with its
namespaces, whatever the test did. What a killed test left behind goes with the next lab.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from shoal.node.client import Answer, Client
from shoal.node.home import Home
from shoal.node.launch import foreground_argv
from shoal.node.options import NodeSettings
from shoal.node.up.processes import Child, Children
from shoal.protocol.errors import ShoalError
from tests.tiers import requires

PREFIX = "shoal-lab"
PATIENCE = 60.0
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


def ip(*arguments: str) -> str:
    """What `ip` prints."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout


def on(machine: str, function: Callable[[], T]) -> T:
    """What `function` brings on a machine: in a thread, as threads are what is in a network namespace."""

    def there() -> T:
        with Path("/run/netns", machine).open("rb") as place:
            assert LIBC.setns(place.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        return function()

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(there).result()


@contextmanager
def network() -> Iterator[Lab]:
    """A lab, gone at the end; skips, or fails if the tier must run, where none can be."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    requires("netlab", shutil.which("ip") is not None, "there is no `ip` (iproute2)")
    requires("netlab", is_root, "only root may make network namespaces")
    sweep()
    lab = Lab()
    try:
        try:
            lab.segment()
        except AssertionError as error:
            requires("netlab", False, f"this kernel has no namespaces or bridges for us: {error}")
        yield lab
    finally:
        lab.close()


def sweep() -> None:
    """Remove the labs of processes that are gone, and what runs in them."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        pid = name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if name.startswith(PREFIX) and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            for left in ip("netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(left), signal.SIGKILL)
            ip("netns", "delete", name)


class Lab:
    """Namespaces whose names begin with our process's id."""

    def __init__(self) -> None:
        self._made: list[str] = []
        self._cables = 0

    def segment(self) -> str:
        """A new bridge, in a namespace of that name."""
        name = self._namespace()
        ip("-n", name, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        ip("-n", name, "link", "set", "bridge", "up")
        return name

    def machine(self) -> str:
        """A new namespace with nothing but a loopback."""
        return self._namespace()

    def plug(self, machine: str, segment: str, address: str) -> str:
        """A cable from a machine to a segment, with the machine's address there; the name of its interface."""
        self._cables += 1
        inside, outside = f"eth{self._cables}", f"port{self._cables}"
        ip("-n", machine, "link", "add", inside, "type", "veth", "peer", "name", outside, "netns", segment)
        ip("-n", segment, "link", "set", outside, "master", "bridge", "up")
        ip("-n", machine, "address", "add", address, "dev", inside)
        ip("-n", machine, "link", "set", inside, "up")
        return inside

    def router(self) -> str:
        """A new machine that passes on what is meant for others."""
        name = self._namespace()
        on(name, lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
        return name

    def route(self, machine: str, router: str) -> None:
        """All that is not on its own segments goes to the router's address."""
        ip("-n", machine, "route", "add", "default", "via", router)

    def cut(self, router: str, *networks: str) -> None:
        """The router loses what goes from one of the two networks to the other; nobody is told."""
        self._between(router, "add", *networks)

    def mend(self, router: str, *networks: str) -> None:
        """It passes it on again."""
        self._between(router, "delete", *networks)

    def _between(self, router: str, change: str, one: str, other: str) -> None:
        for source, goal in ((one, other), (other, one)):
            ip("-n", router, "rule", change, "from", source, "to", goal, "blackhole")

    def unplug(self, machine: str, interface: str) -> None:
        """Take a cable away."""
        ip("-n", machine, "link", "delete", interface)

    def close(self) -> None:
        """Remove it all; what is in a namespace goes with it."""
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=PATIENCE, check=False)

    def _namespace(self) -> str:
        name = f"{PREFIX}-{os.getpid()}-{len(self._made)}"
        ip("netns", "add", name)
        self._made.append(name)
        ip("-n", name, "link", "set", "lo", "up")
        return name


class LabNode:
    """A `shoal node start --foreground` on a machine of a lab."""

    def __init__(self, machine: str, folder: Path) -> None:
        self.machine = machine
        self.home = Home(folder / "home").create()
        self.log = folder / "node.log"
        self.child: Child | None = None

    def start(self, children: Children, **settings: Any) -> LabNode:
        """Start the process; it shows itself on the local network unless told otherwise."""
        asked = NodeSettings(home=self.home.root, port=4101, admin_port=0, threads=1, **settings)
        argv = ["ip", "netns", "exec", self.machine, *foreground_argv(asked)]
        self.child = children.start(argv, self.log, {"SHOAL_HOME": str(self.home.root)})
        return self

    def ask(self, what: Callable[[Client], Any]) -> Any:
        """What its API says, asked on its machine; None while there is no answer."""
        with suppress(ShoalError):
            return on(self.machine, lambda: what(Client(self.home)))
        return None

    def status(self) -> Answer:
        """Its status; empty while it does not answer."""
        return self.ask(lambda client: client.status()) or {}

    def state(self) -> str:
        """SOLO, CONNECTED, ...; empty while it does not answer."""
        return str(self.status().get("state", ""))

    def peers(self) -> set[str]:
        """The PeerIDs that it is connected with."""
        return {row["peer"] for row in self.ask(lambda client: client.peers()) or ()}

    def name(self) -> str:
        """Its PeerID."""
        return str(self.status()["peer"])

    def words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "no log"
