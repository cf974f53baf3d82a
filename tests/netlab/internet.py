"""The internet of a lab: hosts and routers on public addresses, each behind a link of its own; routes lead everywhere.

Its addresses are those of the documentation networks (RFC 5737, RFC 3849), which Shoal counts as the internet. Every
machine's line is a TUN device, `wan`; switch.py carries what goes through them.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.netlab.gates import PUBLIC, Gate, Policy
from tests.netlab.links import Link
from tests.netlab.segments import Host, Router

ROOT = Path(__file__).parents[2]
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
WAITING_PACKETS = 2_000  # in a TUN, while the switch is busy: what is lost should be lost at a link's queue
NETWORKS = ("192.0.2", "198.51.100", "203.0.113")  # neighbours by number are not in one network: nodes may mind
PATIENCE = 30.0  # seconds until the switch has answered

Outside = Host | Router


@dataclass(frozen=True)
class Traffic:
    """Packets in one direction of a link: carried, lost on the way, dropped at its queue."""

    carried: int
    lost: int
    dropped: int


class Internet:
    """The switch and all public addresses. `seed` decides which packets are lost."""

    def __init__(self, lab: str, seed: int) -> None:
        self._lab = lab
        self.members: list[Outside] = []
        self._free = (f"{network}.{number}" for number in range(1, 255) for network in NETWORKS)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(PATIENCE)
        with theirs:
            self._switch = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", "tests.netlab.switch", str(theirs.fileno()), lab, str(seed)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def host(
        self, label: str, policy: Policy = PUBLIC, link: Link | None = None, address: str = "", ipv6: str = ""
    ) -> Host:
        """A machine with a public address, given or the next one."""
        host = Host(self._lab, label)
        self._attach(host, Gate(host, policy), link or Link(), address, ipv6)
        return host

    def router(
        self, label: str, policy: Policy, link: Link | None = None, network: str = "192.168.1", address: str = ""
    ) -> Router:
        """A router with a public address; all homes number their networks alike, unless told otherwise."""
        router = Router(self._lab, label, policy, network)
        self._attach(router, router.gate, link or Link(), address)
        return router

    def also(self, machine: Outside, address: str) -> None:
        """Packets to this address go to that machine as well, whether it has the address or routes it."""
        self._tell({"do": "also", "address": machine.address, "other": address})

    def second_address(self, machine: Outside) -> str:
        """Another address of IPv4 for a machine, which it has beside its first."""
        address = next(self._free)
        machine.ip(f"address add {address} dev wan")
        self.also(machine, address)
        return address

    def lay(self, machine: Outside, link: Link) -> None:
        """Change a machine's link; its counts begin anew."""
        self._tell({"do": "lay", "address": machine.address, "link": asdict(link)})

    def cut(self, ones: Iterable[Outside], others: Iterable[Outside]) -> None:
        """Nothing passes between the ones and the others from now on; nobody is told."""
        self._tell({"do": "cut", "between": [[each.address for each in side] for side in (ones, others)]})

    def mend(self) -> None:
        """Undo all cuts."""
        self._tell({"do": "mend"})

    def traffic(self, machine: Outside) -> tuple[Traffic, Traffic]:
        """The traffic of a machine's link: away from it, and towards it."""
        up, down = self._tell({"do": "count", "address": machine.address})
        return Traffic(*up), Traffic(*down)

    def close(self) -> None:
        """End the switch, which removes the lab's namespaces."""
        self._control.close()
        self._switch.wait(PATIENCE)

    def _attach(self, machine: Outside, edge: Gate, link: Link, address: str = "", ipv6: str = "") -> None:
        machine.address = machine.public = address or next(self._free)
        machine.edge = edge
        self.members.append(machine)
        addresses = [machine.address, *([ipv6] if ipv6 else [])]
        tun = machine.on(open_tun)
        try:
            self._tell({"do": "attach", "addresses": addresses, "link": asdict(link)}, [tun])
        finally:
            os.close(tun)
        machine.ip(
            f"link set wan up mtu 1500 txqueuelen {WAITING_PACKETS}",
            *(f"address add {each} dev wan" for each in addresses),
            *(f"route add {'::/0' if ':' in each else 'default'} dev wan" for each in addresses),
        )

    def _tell(self, order: dict[str, Any], tuns: Iterable[int] = ()) -> Any:
        socket.send_fds(self._control, [json.dumps(order).encode()], list(tuns))
        said = json.loads(self._control.recv(1 << 16) or b'{"error": "the switch is gone"}')
        if "error" in said:
            raise RuntimeError(f"{order}: {said['error']}")
        return said["answer"]


def open_tun() -> int:
    """A new TUN device, `wan`, of the namespace that this thread is in; it is gone when the last descriptor is."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"wan", IFF_TUN | IFF_NO_PI))
    return tun
