"""Double NAT: whether there is another address translation between our router and the internet. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from shoal.protocol.base.multiaddrs import is_public

CGNAT = IPv4Network("100.64.0.0/10")  # RFC 6598: between a carrier's NAT and its customers


@dataclass(frozen=True, slots=True)
class DoubleNat:
    """Whether another NAT lies behind the router (None: not known yet), and how that is known, in words."""

    is_behind: bool | None = None
    reason: str | None = None


def is_cgnat(host: IPv4Address | IPv6Address) -> bool:
    """Whether an address belongs to the range that carriers use behind their own NAT."""
    return isinstance(host, IPv4Address) and host in CGNAT


def detect_double_nat(host: str | None, seen_at: Collection[str], is_online: bool, is_confirmed: bool) -> DoubleNat:
    """Compares the router's external address `host` with the addresses `seen_at` at which others see us.

    `host` is empty if the router has none, and None if there is no router. IPv6 addresses in `seen_at` tell nothing
    about the router's IPv4. `is_confirmed`: a peer has dialled us at `host`.
    """
    if host is None or (host == "" and not is_online):
        return DoubleNat()
    if host == "":
        return DoubleNat(
            True,
            "the router has no public address of its own: there is another router, or the carrier's address "
            "translation (CGNAT), between it and the internet",
        )
    address = IPv4Address(host)
    if is_cgnat(address):
        return DoubleNat(
            True,
            f"the router's outside, {host}, is an address of its carrier's own network: the carrier translates "
            "addresses (CGNAT)",
        )
    if not is_public(address):
        return DoubleNat(True, f"the router's outside, {host}, is a private address: it is behind another router")
    seen = [each for each in seen_at if ":" not in each]
    if is_confirmed or host in seen:
        return DoubleNat(False)
    if seen:
        others = ", ".join(sorted(seen))
        return DoubleNat(
            True,
            f"others see this node at {others}, not at the router's outside, {host}: something between the two "
            "translates addresses",
        )
    return DoubleNat()
