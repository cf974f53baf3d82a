"""Our network interfaces, and which of their addresses others are likeliest to reach us at.

The address of the way out to the internet comes first. Then come, for each family, the first address of each interface:
of networks, then of tunnels; then the further ones. What leads to nobody else comes last: bridges to containers and
virtual machines on this very machine, interfaces without a carrier, bridges that nothing is plugged into.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path

import ifaddr

SYSFS = Path("/sys/class/net")  # a folder for each interface, of Linux
SIOCGIFFLAGS = 0x8913
POINT_TO_POINT, RUNNING, MULTICAST = 0x10, 0x40, 0x1000  # flags of an interface
IS_TUNNEL = re.compile(r"(utun|tun|tap|wg|ppp|ipsec|zt|tailscale)", re.IGNORECASE)
IS_INSIDE = re.compile(r"(docker|br-|virbr|lxc|lxd|cni|podman|vmnet|vboxnet|bridge1)", re.IGNORECASE)

Interface = IPv4Interface | IPv6Interface


class Leads(IntEnum):
    """Where an interface leads, the best first."""

    NETWORK = 0
    TUNNEL = 1  # a VPN
    INSIDE = 2  # containers and virtual machines on this very machine
    NOWHERE = 3  # no carrier, or a bridge that nothing is plugged into


@dataclass(frozen=True, slots=True)
class Attached:
    """One interface."""

    name: str
    addresses: tuple[Interface, ...]  # but for loopbacks and those good on one IPv6 link only
    leads: Leads = Leads.NETWORK
    multicast: bool = True


def interfaces() -> list[Attached]:
    """All that have an address, in the system's order; empty where it does not tell."""
    found: list[Attached] = []
    with suppress(OSError, ValueError, AssertionError):  # or ifaddr does not understand what it tells
        for adapter in ifaddr.get_adapters():
            addresses = tuple(each for each in map(_interface, adapter.ips) if not _is_local(each))
            if addresses:
                flags = _flags(adapter.name)
                multicast = flags is None or bool(flags & MULTICAST)
                found.append(Attached(adapter.name, addresses, _leads(adapter.name, flags), multicast))
    return found


def ranked(attached: Sequence[Attached], ways_out: Collection[str] = ()) -> list[str]:
    """All addresses, the likeliest to be reached first; `ways_out` are those on the way to the internet."""
    rows = []
    for place, each in enumerate(attached):
        turns = Counter[int]()
        for address in each.addresses:
            version, host = address.version, str(address.ip)
            is_last = each.leads >= Leads.INSIDE
            rank = (host not in ways_out, is_last, turns[version], each.leads, version, place)
            turns[version] += 1
            rows.append((rank, host))
    return list(dict.fromkeys(host for _, host in sorted(rows, key=lambda row: row[0])))


def _interface(found: ifaddr.IP) -> Interface:
    host = found.ip[0] if isinstance(found.ip, tuple) else found.ip
    return ip_interface(f"{host.partition('%')[0]}/{found.network_prefix}")


def _is_local(address: Interface) -> bool:
    return address.is_loopback or (address.version == 6 and address.is_link_local)


def _flags(name: str) -> int | None:
    """What the kernel says of an interface; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    import fcntl

    with suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("40s", name.encode()[:15]))
        return int(struct.unpack_from("H", answer, 16)[0])
    return None


def _leads(name: str, flags: int | None) -> Leads:
    name = name.partition(":")[0]  # of a second address's label
    if flags is not None and not flags & RUNNING:
        return Leads.NOWHERE
    if (ports := _ports(name)) is not None:
        if not ports:
            return Leads.NOWHERE
        return Leads.INSIDE if all(map(_is_guest, ports)) else Leads.NETWORK
    if IS_INSIDE.match(name):
        return Leads.INSIDE
    is_tunnel = bool(flags and flags & POINT_TO_POINT) or (SYSFS / name / "tun_flags").exists() or IS_TUNNEL.match(name)
    return Leads.TUNNEL if is_tunnel else Leads.NETWORK


def _ports(bridge: str) -> list[str] | None:
    """What is plugged into a bridge; None if it is none, or the system does not tell."""
    with suppress(OSError):
        return os.listdir(SYSFS / bridge / "brif")
    return None


def _is_guest(port: str) -> bool:
    """Whether it is the near end of a container's or a virtual machine's cable: virtual, and of no kind of its own."""
    with suppress(OSError):
        folder = (SYSFS / port).resolve()
        return "virtual" in folder.parts and "DEVTYPE=" not in (folder / "uevent").read_text()
    return False
