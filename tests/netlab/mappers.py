"""Routers that map ports on request: a real miniupnpd, with its rules in an nftables table of its own.

It takes no address of the documentation networks for a public one, and maps nothing behind such; so these routers have
addresses of the internet proper. No packet leaves the lab.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL

from tests.integration.nodes import until
from tests.netlab.namespaces import PATIENCE, inhabitants, run
from tests.netlab.segments import Router
from tests.tiers import requires

DAEMON, PACKAGE = "miniupnpd", "miniupnpd-nftables"
ADDRESSES: Iterator[str] = (f"7.7.{third}.{last}" for third in range(1, 255) for last in range(1, 255))

TABLE = """
table inet mapper {
    chain forwarded { }
    chain mapped { }
    chain hairpin { }
    chain prerouting { type nat hook prerouting priority dstnat; policy accept; jump mapped; }
    chain postrouting { type nat hook postrouting priority srcnat; policy accept; jump hairpin; }
}
"""
CONFIGURATION = """
ext_ifname=wan
listening_ip=lan
enable_upnp={upnp}
enable_natpmp={natpmp}
ipv6_disable=yes
secure_mode=yes
system_uptime=no
min_lifetime=10
max_lifetime={lifetime}
upnp_table_name=mapper
upnp_nat_table_name=mapper
upnp_forward_chain=forwarded
upnp_nat_chain=mapped
upnp_nat_postrouting_chain=hairpin
uuid=5a0a1b1c-0000-4000-8000-000000000001
{more}
allow 1024-65535 0.0.0.0/0 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""


class Mapper:
    """miniupnpd on a router. `claims` is what it says its outside is, if not what it is."""

    def __init__(self, router: Router, protocol: str, *, lifetime: int = 86_400, claims: str = "") -> None:
        requires("netlab", shutil.which(DAEMON), f"there is no `{DAEMON}` ({PACKAGE})")
        self._router = router
        self._words = CONFIGURATION.format(
            upnp="yes" if protocol == "upnp" else "no",
            natpmp="yes" if protocol == "nat-pmp" else "no",
            lifetime=lifetime,
            more=f"ext_ip={claims}" if claims else "",
        )
        router.on(lambda: run("nft", "-f", "-", words=TABLE))
        self.start()

    def start(self) -> None:
        """Start it; it goes to the background, and ends with the lab."""
        with tempfile.TemporaryDirectory() as folder:
            configuration, pid = Path(folder, "configuration"), Path(folder, "pid")
            configuration.write_text(self._words)
            argv = self._router.argv(DAEMON, "-f", str(configuration), "-P", str(pid))
            subprocess.run(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, timeout=PATIENCE, check=True)
            until(pid.exists, "miniupnpd to start", lambda: self._words)

    def stop(self) -> None:
        """Switch the router off: all mappings are gone, too."""
        for pid in inhabitants([self._router.name]):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not inhabitants([self._router.name]), "miniupnpd to end", lambda: "")
        self._router.on(lambda: run("nft", "flush chain inet mapper mapped; flush chain inet mapper forwarded"))

    def forget(self) -> None:
        """Lose the mappings, and go on."""
        self._router.on(lambda: run("nft", "flush chain inet mapper mapped"))

    def mappings(self) -> dict[int, str]:
        """Where each external port leads, as the kernel has it."""
        words = self._router.on(lambda: run("nft", "list", "chain", "inet", "mapper", "mapped"))
        return {int(port): goal for port, goal in re.findall(r"dport (\d+) dnat ip to (\S+)", words)}
