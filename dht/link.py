"""Run links, which a person hands to another to join a run: parsed, checked and made.

    shoal:<run id>?p=<multiaddr>&p=<multiaddr>...          at most 300 characters

The id is the hash of the run's manifest, so a link cannot lead into another run, whoever answers at its addresses. The
addresses are only a starting point: any node will do that knows the run, or other nodes. Hence a link leaves out
PeerIDs, except those of relays: each has 52 characters, as many as two more addresses. Links with PeerIDs are valid.

Other parameters are for later versions and ignored, unless `v=` says that they must be understood. A link may come from
anybody: all of it is checked here, once, before anything is dialled.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import quote, unquote

from shoal.dht.scope import Scope, scope_of_host
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId
from shoal.protocol.base.multiaddrs import is_port, is_relayed, kind_of, place_of

SCHEME = "shoal:"
VERSION = 1
MAX_LINK = 300  # characters
MAX_ADDRESSES = 5  # that we put into one: more make the QR code larger, and joining no likelier
SURROUNDINGS = " \t\r\n<>()\"'`“”‘’«».,;"  # characters that chats and sentences put around a link
SHOWN = 60  # characters that an error quotes
NAME_PROTOCOLS = ("dns", "dns4", "dns6")


@dataclass(frozen=True, slots=True)
class RunLink:
    """A run, and addresses of nodes that may know it."""

    run: RunId
    addresses: tuple[str, ...] = ()


def parse_link(text: str) -> RunLink:
    """The link in a text; raises LocalError, in one sentence, if there is none."""
    link = text.strip(SURROUNDINGS)
    if not looks_like_link(text):
        raise LocalError(
            f"'{_shown(link)}' is no link to a run: one begins with {SCHEME}, as `shoal run link` prints it"
        )
    if len(link) > MAX_LINK:
        raise LocalError(f"a link to a run has at most {MAX_LINK} characters, and this one {len(link)}")
    run, _, query = link[len(SCHEME) :].partition("?")
    values = _values(query)
    if newer := [version for version in values.get("v", []) if version != str(VERSION)]:
        raise LocalError(
            f"the link was made by a newer Shoal (it is of version '{_shown(newer[0])}', this one reads {VERSION}): "
            "upgrade Shoal on this machine"
        )
    if not re.fullmatch(r"[0-9a-fA-F]{64}", run):
        raise LocalError(
            f"the link is not whole: after {SCHEME} come the 64 hex characters of a run's id, not '{_shown(run)}'"
        )
    addresses = tuple(dict.fromkeys(values.get("p", [])))
    for address in addresses:
        if not is_address(address):
            raise LocalError(f"the link has '{_shown(address)}' for an address: one looks like /ip4/192.0.2.7/tcp/4101")
    return RunLink(RunId(bytes.fromhex(run)), addresses)


def looks_like_link(text: str) -> bool:
    """Whether this is meant to be a link to a run, whole or not."""
    return text.strip(SURROUNDINGS)[: len(SCHEME)].lower() == SCHEME


def format_link(run: RunId, addresses: Sequence[str]) -> str:
    """The link to a run with the best of `addresses`, in the order of `ranked`, as many as fit."""
    link, separator, taken = SCHEME + run.hex(), "?", 0
    for address in ranked(addresses):
        part = f"{separator}p={quote(address, safe='/:')}"
        if taken < MAX_ADDRESSES and len(link) + len(part) <= MAX_LINK:
            link, separator, taken = link + part, "&", taken + 1
    return link


def ranked(addresses: Sequence[str]) -> list[str]:
    """`addresses` without PeerIDs, best first: each peer's best, then each one's second best, and so on.

    The internet comes before the LAN. An address in a network that no better one is in moves up a turn, for peers that
    can reach only that network. Loopback addresses are only for swarms that have no others.
    """
    scopes = {address: scope(address) for address in addresses if is_address(address)}
    least = Scope.LAN if any(each >= Scope.LAN for each in scopes.values()) else Scope.LOOPBACK
    peers: dict[str, list[str]] = {}
    for address in sorted(scopes, key=lambda address: -scopes[address]):
        if scopes[address] >= least:
            peers.setdefault(_peer(address), []).append(address)
    turns = [(turn, -scopes[address], address) for each in peers.values() for turn, address in enumerate(each)]
    networks, entries = set[Hashable](), list[tuple[int, bool, int, str]]()
    for turn, reach, address in sorted(turns, key=lambda each: each[:2]):
        is_known = (network := _network(address)) in networks
        networks.add(network)
        entries.append((turn + is_known, is_known, reach, address))
    return list(dict.fromkeys(_short(address) for *_, address in sorted(entries, key=lambda each: each[:3])))


def left_out(link: str, addresses: Sequence[str]) -> list[str]:
    """The addresses of one peer, without its PeerID, for which a link has no room."""
    held = parse_link(link).addresses
    return [each for each in map(_short, ranked(addresses)) if each not in held]


def is_address(text: str) -> bool:
    """Whether this is a multiaddr that a node may have: a host, a port, and perhaps a PeerID."""
    start, kind, host, *rest = [*text.split("/"), "", "", ""]
    segments = re.fullmatch(r"(/[A-Za-z0-9._:-]+){4,}", text)
    if start or segments is None or rest[0] not in ("tcp", "udp") or not is_port(rest[1]):
        return False
    found = _ip(host)
    return kind in NAME_PROTOCOLS if found is None else kind == f"ip{found.version}"


def scope(address: str) -> Scope:
    """From where an address can be dialled; for a host name a guess, as nothing is looked up."""
    host = address.split("/")[2]
    found = _ip(host)
    if found is not None:
        return scope_of_host(found) or Scope.LOOPBACK
    return Scope.LOOPBACK if host == "localhost" else Scope.LAN if host.endswith(".local") else Scope.INTERNET


def _values(query: str) -> dict[str, list[str]]:
    """The parameters of a link, each with its values."""
    found: dict[str, list[str]] = {}
    for part in query.partition("#")[0].split("&"):
        name, _, value = part.partition("=")
        found.setdefault(name, []).append(unquote(value))
    return found


def _peer(address: str) -> str:
    """Whose address it is: the PeerID at its end, or at least the host."""
    return address.rpartition("/p2p/")[2] if "/p2p/" in address else address.split("/")[2]


def _network(address: str) -> Hashable:
    """The network of an address, as far as it shows: private networks are distinguished by their prefix."""
    name = address.split("/")[2]
    if (host := _ip(name)) is None:
        return name
    if is_relayed(address) or scope_of_host(host) is not Scope.LAN:
        return kind_of(place_of(address))
    return ip_network((host, 16 if host.version == 4 else 48), strict=False)


def _short(address: str) -> str:
    return address if is_relayed(address) else place_of(address)


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _shown(text: str) -> str:
    """The beginning of a wrong text, on one line, for an error."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:SHOWN])
    return plain if len(text) <= SHOWN else f"{plain}..."
