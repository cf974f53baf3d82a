"""Local networks: machines plugged into a bridge by cables, with or without a router.

Here multicast works, and with it mDNS; in exchange there is no delay and no loss. All that is between homes goes over
the internet (internet.py).
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from tests.netlab.gates import Gate, Policy
from tests.netlab.namespaces import Namespace

CABLES = count(1)


def _let_frames_pass() -> None:
    """In this thread's network namespace a bridge is a switch: what it passes on does not meet a router's rules.

    It would, by default, wherever a container engine has run since the machine was started.
    """
    for parameter in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):
        parameter.write_text("0")


class Host(Namespace):
    """A machine; `public` is the address under which the internet knows it, `edge` the gate that stands there."""

    edge: Gate
    address = public = ""


class Segment(Namespace):
    """A bridge, `lan`, and those who are plugged in."""

    def __init__(self, lab: str, label: str) -> None:
        super().__init__(lab, label)
        self.lab = lab
        self.members: list[Namespace] = []
        self.ip("link add lan type bridge mcast_snooping 0", "link set lan up")
        self.on(_let_frames_pass)

    def plug(self, machine: Namespace, address: str, device: str = "") -> str:
        """A cable to a machine, with the machine's address there; the name of its interface."""
        number = next(CABLES)
        device = device or f"eth{number}"
        machine.ip(
            f"link add {device} type veth peer name port{number} netns {self.name}",
            f"address add {address} dev {device}",
            f"link set {device} up",
        )
        self.ip(f"link set port{number} master lan up")
        self.members.append(machine)
        return device

    def unplug(self, machine: Namespace, device: str) -> None:
        """Take a cable away."""
        machine.ip(f"link delete {device}")
        self.members.remove(machine)


class Router(Segment):
    """A local network, `network`.0/24, whose machines reach the rest through a gate; .1 is the router's own address."""

    edge: Gate
    address = public = ""  # its own outside, and that of the last router on the way

    def __init__(self, lab: str, label: str, policy: Policy, network: str) -> None:
        super().__init__(lab, label)
        self.network = network
        self.ip(f"address add {network}.1/24 dev lan")
        self.set("net/ipv4/ip_forward", 1)
        self.gate = Gate(self, policy)

    def host(self, label: str) -> Host:
        """A machine at home."""
        host = Host(self.lab, label)
        self._move_in(host, "eth0")
        return host

    def router(self, label: str, policy: Policy, network: str = "192.168.1") -> Router:
        """A router behind this one: their translations come one after the other."""
        router = Router(self.lab, label, policy, network)
        self._move_in(router, "wan")
        return router

    def give_ipv6(self, host: Host, network: str) -> str:
        """The machine's address of IPv6, in `network`::/64; the gate's policy holds for it, too, but no translation."""
        self.set("net/ipv6/conf/all/forwarding", 1)
        self.ip(f"address replace {network}::1/64 dev lan nodad", "route replace ::/0 dev wan")
        address = f"{network}::{host.address.rpartition('.')[2]}"
        host.ip(f"address add {address}/64 dev eth0 nodad", f"route add ::/0 via {network}::1")
        return address

    def _move_in(self, machine: Host | Router, device: str) -> None:
        machine.address = f"{self.network}.{len(self.members) + 2}"
        machine.public, machine.edge = self.public, self.edge
        self.plug(machine, f"{machine.address}/24", device)
        machine.ip(f"route add default via {self.network}.1")
