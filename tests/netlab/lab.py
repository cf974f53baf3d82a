"""A lab: an internet of network namespaces, and local networks that are not connected with it. It is removed at the
end, whatever the test did and however its process died. A topology is a few lines:

    with network() as lab:
        server = lab.internet.host("server")
        home = lab.internet.router("home", SYMMETRIC, Link(delay=0.025, rate=50e6))
        laptop = home.host("laptop")
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

from tests.netlab.gates import SYMMETRIC
from tests.netlab.internet import Internet
from tests.netlab.namespaces import ToolError, lab_name, remains, remove, sweep
from tests.netlab.segments import Host, Router, Segment
from tests.tiers import requires

NUMBERS = count()
SEED = 7


class Lab:
    """One network; the names of its namespaces begin with the lab's name."""

    def __init__(self, seed: int = SEED) -> None:
        self.name = lab_name(next(NUMBERS))
        self.internet = Internet(self.name, seed)
        self.segments: list[Segment] = []

    def machine(self, label: str) -> Host:
        """A machine with a loopback only, to be plugged in somewhere."""
        return Host(self.name, label)

    def segment(self, label: str) -> Segment:
        """A local network without a router."""
        self.segments.append(Segment(self.name, label))
        return self.segments[-1]

    def close(self) -> None:
        """Remove all namespaces, and end all processes in them."""
        try:
            self.internet.close()
        finally:
            remove(remains(self.name))  # there are none, unless the switch was killed


@contextmanager
def network(seed: int = SEED) -> Iterator[Lab]:
    """A lab. Where none can be made the test skips, or fails if the tier must run."""
    missing = what_is_missing()
    requires("netlab", not missing, missing)
    sweep()
    lab = Lab(seed)
    try:
        yield lab
    finally:
        lab.close()


@cache
def what_is_missing() -> str:
    """Why this machine can have no lab; empty if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root may make network namespaces"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            return f"there is no `{tool}` ({package})"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    name = lab_name(next(NUMBERS))
    try:
        Router(name, "probe", SYMMETRIC, "192.168.1")
    except ToolError as error:
        return f"this kernel lacks namespaces, bridges or nftables' NAT: {error}"
    finally:
        remove(remains(name))
    return ""
