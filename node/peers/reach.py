"""How the other members of a run reach us: what our JOINs say, so that whoever owns chunks needs no relay.

Rules:
- Connected is connected: a member is apart from us if all that we have with it is a connection by a relay.
- Of a member with which we have none, it is whoever can be dialled that makes it a direct one: if neither of us can,
  we are apart.
- Those who can be dialled come first: of all others, they say as much themselves.

And what we hear of theirs: membership is told by one to another, so of the addresses in it those of this very machine
are worth nothing to who is connected with any other one. Those of local networks are kept, as runs span routed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.dht.scope import Scope, scope_between, scope_of
from shoal.protocol.account import Link
from shoal.protocol.apart import Standing, standing
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.status import RunStatus
from shoal.protocol.multiaddrs import place_of
from shoal.protocol.network import Network
from shoal.protocol.view import MembershipView

Statuses = Mapping[PeerId, RunStatus | None]


def own_standing(network: Network, membership: MembershipView) -> Standing:
    """What to say now."""
    others = {peer: membership.status(peer) for peer in membership.alive()}
    return standing_among(others, network.links(), network.reachability)


def standing_among(others: Statuses, links: Iterable[Link], reachability: str) -> Standing:
    """What to say in a run with these other members; `reachability` is our own."""
    paths = {link.peer: link.path for link in links}
    apart = [
        peer
        for peer, status in others.items()
        if paths.get(peer) == "relayed" or (peer not in paths and reachability == "nat" and not _is_public(status))
    ]
    apart.sort(key=lambda peer: not _is_public(others[peer]))
    return standing(apart, len(others) + 1)


def worth_remembering(addresses: Iterable[str], links: Iterable[Link]) -> tuple[str, ...]:
    """Those of a member's addresses at which it may be for us, who are connected by these."""
    is_alone = all(scope_between(link.addresses) is Scope.LOOPBACK for link in links)
    least = Scope.LOOPBACK if is_alone else Scope.LAN
    return tuple(each for each in addresses if (found := scope_of(place_of(each))) is not None and found >= least)


def _is_public(status: RunStatus | None) -> bool:
    return status is not None and status.reachability == "public"
