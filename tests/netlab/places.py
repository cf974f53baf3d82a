"""Named places where people's machines stand; a topology's name is several of them, joined by `+`."""

from __future__ import annotations

from dataclasses import dataclass

from tests.netlab.gates import BLOCKED, KEEPS_PORTS, KEEPS_PORTS_REJECTS, PUBLIC, SYMMETRIC, Policy
from tests.netlab.internet import Internet
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.mappers import ADDRESSES, Mapper
from tests.netlab.segments import Host

CARRIER = "100.64.0"  # the network between a carrier's translation and its customers' routers (RFC 6598)


@dataclass(frozen=True)
class Place:
    """The routers and firewalls between a machine and the internet, from the outside inwards."""

    words: str
    firewall: Policy = PUBLIC
    routers: tuple[Policy, ...] = ()
    maps: str = ""  # the protocol by which the router maps ports when it is asked


PLACES = {
    "public": Place("a public address, and nothing in the way"),
    "blocked": Place("a public address behind a firewall that lets nothing in but answers", BLOCKED),
    "home-drop": Place("a home router that keeps ports and drops what is unsolicited", routers=(KEEPS_PORTS,)),
    "home-reject": Place("a home router that keeps ports and answers with a reset", routers=(KEEPS_PORTS_REJECTS,)),
    "home-symmetric": Place("a router that takes a new port for each destination", routers=(SYMMETRIC,)),
    "home-double": Place("a home router behind its carrier's translation", routers=(KEEPS_PORTS, KEEPS_PORTS)),
}

MAPPING = {  # places that need a miniupnpd
    "home-upnp": Place("a home router that lets others in when UPnP asks", routers=(KEEPS_PORTS,), maps="upnp"),
    "home-natpmp": Place("the same, for NAT-PMP", routers=(KEEPS_PORTS,), maps="nat-pmp"),
}
ALL = PLACES | MAPPING


def settle(internet: Internet, place: str, label: str, link: Link | None = None) -> Host:
    """A new machine in such a place; the link is that of the outermost thing there."""
    match ALL[place].routers, ALL[place].maps:
        case (policy,), "":
            return internet.router(f"{label}-router", policy, link).host(label)
        case (policy,), protocol:
            router = internet.router(f"{label}-router", policy, link, address=next(ADDRESSES))
            Mapper(router, protocol)
            return router.host(label)
        case (outer, inner), _:
            carrier = internet.router(f"{label}-carrier", outer, link, CARRIER)
            return carrier.router(f"{label}-router", inner).host(label)
        case _:
            return internet.host(label, ALL[place].firewall, link)


def plan(topology: str) -> dict[str, str]:
    """The places of a public `server`, and of `a`, `b`, ... as the topology says; ValueError for an unknown place."""
    places = topology.split("+")
    if unknown := [place for place in places if place not in ALL]:
        raise ValueError(f"there is no place {unknown[0]!r}; the places are {', '.join(ALL)}")
    return {"server": "public"} | {chr(ord("a") + number): place for number, place in enumerate(places)}


def build(lab: Lab, topology: str, link: Link | None = None) -> dict[str, Host]:
    """The machines of a topology by name, each behind such a link."""
    return {label: settle(lab.internet, place, label, link) for label, place in plan(topology).items()}
