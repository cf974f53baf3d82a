"""SSDP: the question who on a network is an internet gateway, and where such a one describes itself. Pure.

A device may name any URL. Only one of plain HTTP at the very address that the answer came from is used, so that no
device sends us to another, to ourselves, or to the internet.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Network, ip_address
from urllib.parse import SplitResult, urljoin, urlsplit

from shoal.node.gateway.values import GatewayError

GROUP, PORT = "239.255.255.250", 1900
KINDS = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",  # one of version 2 answers to this, or should
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)
LONGEST = 2048  # bytes of an answer
LONGEST_URL = 512


def questions() -> list[bytes]:
    """What is said to all on the network."""
    return [_question(kind) for kind in KINDS]


def _question(kind: str) -> bytes:
    lines = (
        "M-SEARCH * HTTP/1.1",
        f"HOST: {GROUP}:{PORT}",
        'MAN: "ssdp:discover"',
        "MX: 1",
        f"ST: {kind}",
    )
    return "\r\n".join([*lines, "", ""]).encode()


def location(said: bytes, source: str, network: IPv4Network) -> str | None:
    """Where the device at `source` describes itself; None if it is not of our network, or no gateway, or elsewhere."""
    if len(said) > LONGEST or ip_address(source) not in network:
        return None
    status, *lines = said.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    url = fields.get("location", "")
    is_answer = status.startswith("HTTP/1.1 200") and fields.get("st") in KINDS
    return url if is_answer and _is_at(url, source) else None


def within(url: str, path: str) -> str:
    """Where a path in the description at `url` leads; GatewayError if that is not the same device."""
    source = _parts(url)
    host = source.hostname if source is not None else None
    with suppress(ValueError):  # of brackets
        if host and _is_at(there := urljoin(url, path), host):
            return there
    raise GatewayError(f"the router at {host or url} names another place than itself")


def _is_at(url: str, host: str) -> bool:
    parts = _parts(url)
    return parts is not None and parts.scheme == "http" and parts.hostname == host and parts.username is None


def _parts(url: str) -> SplitResult | None:
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable():
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 else None
    except ValueError:  # of brackets, or of a port
        return None
