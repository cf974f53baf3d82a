"""UPnP's Internet Gateway Device: its description, and the few SOAP calls that map a port. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from xml.sax.saxutils import escape

from shoal.node.gateway.markup import read
from shoal.node.gateway.ssdp import within
from shoal.node.gateway.values import Declined, GatewayError

KINDS = (  # of services that map ports, the best first
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
MAX_CONTROLS = 4  # of one device
NAME = "Shoal"  # under which the mapping stands in the router's list

NO_SUCH_ENTRY, TAKEN, PERMANENT_ONLY = 714, 718, 725
WORDS = {
    402: "does not understand us",
    501: "says that the action failed",
    606: "does not let us",
    TAKEN: "has given that port to another machine",
    724: "wants both ports to be the same",
    728: "has no room for another mapping",
}
ENVELOPE = (
    '<?xml version="1.0"?>\r\n'
    '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
    's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
    '<u:{action} xmlns:u="{kind}">{arguments}</u:{action}></s:Body></s:Envelope>\r\n'
)


@dataclass(frozen=True, slots=True)
class Control:
    """Where a service is asked, and which one it is."""

    url: str
    kind: str


class Fault(Declined):
    """A call was answered with an error of UPnP's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the router {WORDS.get(code, f'refuses, with code {code}')} (UPnP)", is_taken=code == TAKEN)
        self.code = code


def controls(description: bytes, url: str) -> list[Control]:
    """The services that map ports of the device that describes itself so at `url`; those elsewhere do not count."""
    found: list[Control] = []
    for service in read(description).every("service"):
        kind = service.first("serviceType")
        if kind in KINDS and len(found) < MAX_CONTROLS:
            found.append(Control(within(url, service.first("controlURL")), kind))
    return sorted(found, key=lambda each: KINDS.index(each.kind))


def call(control: Control, action: str, **arguments: object) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a call."""
    words = "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in arguments.items())
    headers = {"Content-Type": 'text/xml; charset="utf-8"', "SOAPAction": f'"{control.kind}#{action}"'}
    return headers, ENVELOPE.format(action=action, kind=control.kind, arguments=words).encode()


def answer(document: bytes, action: str) -> dict[str, str]:
    """The values in the answer to a call; Fault if it is a refusal."""
    root = read(document)
    if code := root.first("errorCode"):
        raise Fault(int(code) if code.isascii() and code.isdigit() and len(code) <= 5 else 0)
    found = next(root.every(f"{action}Response"), None)
    if found is None:
        raise GatewayError(f"the router answers something else than {action}")
    return {each.name: each.text.strip() for each in found.children}


def mapping(port: int, external: int, here: str, lifetime: int) -> dict[str, object]:
    """The arguments of AddPortMapping: TCP, from everywhere. Their order matters to some routers."""
    return {
        **entry(external),
        "NewInternalPort": port,
        "NewInternalClient": here,
        "NewEnabled": 1,
        "NewPortMappingDescription": NAME,
        "NewLeaseDuration": lifetime,
    }


def entry(external: int) -> dict[str, object]:
    """The arguments that name a mapping."""
    return {"NewRemoteHost": "", "NewExternalPort": external, "NewProtocol": "TCP"}


def leads_to(found: dict[str, str], port: int, here: str) -> bool:
    """Whether a mapping that the router holds is ours."""
    return (found.get("NewInternalClient"), found.get("NewInternalPort")) == (here, str(port))


def outside(found: dict[str, str]) -> str:
    """The address in an answer to GetExternalIPAddress; empty if it is none."""
    try:
        host = IPv4Address(found.get("NewExternalIPAddress", ""))
    except AddressValueError:
        return ""
    return "" if host.is_unspecified else str(host)
