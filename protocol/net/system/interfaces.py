"""Our network interfaces, and their addresses ranked by how likely others can reach us there.

The address on the route to the internet comes first. Then comes, for each address family, the first address of each
interface: networks before tunnels; then further addresses of the same interfaces. Interfaces that lead to no other
machine come last: bridges to local containers and virtual machines, interfaces without a carrier, empty bridges.
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

from shoal.protocol.base.multiaddrs import IpNetwork, OwnNetworks

SYSFS = Path("/sys/class/net")  # Linux: a folder for each interface
SIOCGIFFLAGS = 0x8913
POINT_TO_POINT, RUNNING, MULTICAST = 0x10, 0x40, 0x1000  # flags of an interface
IS_TUNNEL = re.compile(r"(utun|tun|tap|wg|ppp|ipsec|zt|tailscale)", re.IGNORECASE)
IS_INSIDE = re.compile(r"(docker|br-|virbr|lxc|lxd|cni|podman|vmnet|vboxnet|bridge1)", re.IGNORECASE)

InterfaceAddress = IPv4Interface | IPv6Interface


class InterfaceKind(IntEnum):
    """What an interface leads to, the best kind first."""

    NETWORK = 0
    TUNNEL = 1  # a VPN
    INSIDE = 2  # containers and virtual machines on this machine
    NOWHERE = 3  # no carrier, or an empty bridge


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """A network interface of this machine."""

    name: str
    addresses: tuple[InterfaceAddress, ...]  # without loopbacks and link-local IPv6 addresses
    kind: InterfaceKind = InterfaceKind.NETWORK
    multicast: bool = True


def interfaces() -> list[NetworkInterface]:
    """All interfaces that have an address, in the system's order; empty if the system does not list them."""
    found: list[NetworkInterface] = []
    with suppress(OSError, ValueError, AssertionError):  # or ifaddr does not understand the system's answer
        for adapter in ifaddr.get_adapters():
            addresses = tuple(each for each in map(_interface, adapter.ips) if not _is_local(each))
            if addresses:
                flags = _flags(adapter.name)
                multicast = flags is None or bool(flags & MULTICAST)
                found.append(NetworkInterface(adapter.name, addresses, _kind(adapter.name, flags), multicast))
    return found


def ranked(attached: Sequence[NetworkInterface], ways_out: Collection[str] = ()) -> list[str]:
    """All addresses, the likeliest to be reached first; `ways_out` are those on routes to the internet."""
    rows = []
    for place, each in enumerate(attached):
        turns = Counter[int]()
        for address in each.addresses:
            version, host = address.version, str(address.ip)
            is_last = each.kind >= InterfaceKind.INSIDE
            rank = (host not in ways_out, is_last, turns[version], each.kind, version, place)
            turns[version] += 1
            rows.append((rank, host))
    return list(dict.fromkeys(host for _, host in sorted(rows, key=lambda row: row[0])))


def own_networks(attached: Sequence[NetworkInterface], ways_out: Collection[str] = ()) -> OwnNetworks:
    """The networks of these interfaces; one is inside this machine if no interface to other machines is in it."""
    inside, outside = list[IpNetwork](), list[IpNetwork]()
    for each in attached:
        leads_out = each.kind < InterfaceKind.INSIDE or any(str(address.ip) in ways_out for address in each.addresses)
        (outside if leads_out else inside).extend(address.network for address in each.addresses)
    only_inside = (network for network in inside if not any(network.overlaps(other) for other in outside))
    return OwnNetworks(tuple(only_inside), tuple(outside))


def _interface(found: ifaddr.IP) -> InterfaceAddress:
    host = found.ip[0] if isinstance(found.ip, tuple) else found.ip
    return ip_interface(f"{host.partition('%')[0]}/{found.network_prefix}")


def _is_local(address: InterfaceAddress) -> bool:
    return address.is_loopback or (address.version == 6 and address.is_link_local)


def _flags(name: str) -> int | None:
    """The flags of an interface in the kernel (SIOCGIFFLAGS); None if they cannot be read."""
    if sys.platform != "linux":
        return None
    import fcntl

    with suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("40s", name.encode()[:15]))
        return int(struct.unpack_from("H", answer, 16)[0])
    return None


def _kind(name: str, flags: int | None) -> InterfaceKind:
    name = name.partition(":")[0]  # without the label of an alias, as in eth0:1
    if flags is not None and not flags & RUNNING:
        return InterfaceKind.NOWHERE
    if (ports := _ports(name)) is not None:
        if not ports:
            return InterfaceKind.NOWHERE
        return InterfaceKind.INSIDE if all(map(_leads_to_guest, ports)) else InterfaceKind.NETWORK
    if IS_INSIDE.match(name):
        return InterfaceKind.INSIDE
    is_tunnel = bool(flags and flags & POINT_TO_POINT) or (SYSFS / name / "tun_flags").exists() or IS_TUNNEL.match(name)
    return InterfaceKind.TUNNEL if is_tunnel else InterfaceKind.NETWORK


def _ports(bridge: str) -> list[str] | None:
    """The ports of a bridge; None if the interface is no bridge, or the system does not say."""
    with suppress(OSError):
        return os.listdir(SYSFS / bridge / "brif")
    return None


def _leads_to_guest(port: str) -> bool:
    """Whether a port leads to a container or virtual machine (veth, tap): a virtual device without a DEVTYPE."""
    with suppress(OSError):
        folder = (SYSFS / port).resolve()
        return "virtual" in folder.parts and "DEVTYPE=" not in (folder / "uevent").read_text()
    return False
