"""How the other members of a run can reach us, as our offers say, so that members are made owners that need no relay.

Rules:
- A connected member is apart from us if all our connections with it go by a relay.
- A member without a connection is apart from us if neither of us can be dialled.
- In the list, members that say that they can be dialled come first.

Of the addresses that members pass on to each other, loopback addresses are dropped if we are connected with any other
machine. Addresses of local networks are kept, because runs may span several local networks with routes between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.dht.scope import Scope, scope_between, scope_of
from shoal.protocol.averaging.apart import Standing, standing
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import place_of
from shoal.protocol.membership.view import MembershipView
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.net.measure.link import Link
from shoal.protocol.net.peers.network import Network

Statuses = Mapping[PeerId, RunStatus | None]


def own_standing(network: Network, membership: MembershipView) -> Standing:
    """Our standing now, for an offer."""
    others = {peer: membership.status(peer) for peer in membership.alive()}
    return standing_among(others, network.links(), network.reachability)


def standing_among(others: Statuses, links: Iterable[Link], reachability: str) -> Standing:
    """Our standing in a run with these other members; `reachability` is our own."""
    paths = {link.peer: link.path for link in links}
    apart = [
        peer
        for peer, status in others.items()
        if paths.get(peer) == "relayed" or (peer not in paths and reachability == "nat" and not _is_public(status))
    ]
    apart.sort(key=lambda peer: not _is_public(others[peer]))
    return standing(apart, len(others) + 1)


def worth_remembering(addresses: Iterable[str], links: Iterable[Link]) -> tuple[str, ...]:
    """Those of a member's addresses at which we might reach it, given our own connections."""
    is_alone = all(scope_between(link.addresses) is Scope.LOOPBACK for link in links)
    least = Scope.LOOPBACK if is_alone else Scope.LAN
    return tuple(each for each in addresses if (found := scope_of(place_of(each))) is not None and found >= least)


def _is_public(status: RunStatus | None) -> bool:
    return status is not None and status.reachability == "public"
