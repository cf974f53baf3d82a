"""Whether a router's outside address is one of the internet, or there is another router beyond it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from shoal.protocol.base.multiaddrs import is_public

CARRIERS = IPv4Network("100.64.0.0/10")  # RFC 6598: between a carrier's translation and its customers


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the router is behind another one, None where nobody can tell yet, and what kind it is, in words."""

    is_behind: bool | None = None
    words: str | None = None


def is_carriers(host: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of a carrier's own network."""
    return isinstance(host, IPv4Address) and host in CARRIERS


def judge(host: str | None, seen_at: Collection[str], is_online: bool, is_confirmed: bool) -> Judgement:
    """`host` is what the router says its outside is (empty: it has none; None: there is no router).

    `seen_at` are the addresses at which others see us; those of IPv6 say nothing of the router's IPv4. `is_confirmed`:
    somebody has dialled us at `host`.
    """
    if host is None:
        return Judgement()
    if host == "":
        return (
            Judgement(
                True,
                "the router has no public address of its own: there is another router, or the "
                "carrier's address translation (CGNAT), between it and the internet",
            )
            if is_online
            else Judgement()
        )
    address = IPv4Address(host)
    if is_carriers(address):
        return Judgement(
            True,
            f"the router's outside, {host}, is an address of its carrier's own network: the carrier "
            "translates addresses (CGNAT)",
        )
    if not is_public(address):
        return Judgement(True, f"the router's outside, {host}, is a private address: it is behind another router")
    seen = [each for each in seen_at if ":" not in each]
    if is_confirmed or host in seen:
        return Judgement(False)
    if seen:
        others = ", ".join(sorted(seen))
        return Judgement(
            True,
            f"others see this node at {others}, not at the router's outside, {host}: something "
            "between the two translates addresses",
        )
    return Judgement()
