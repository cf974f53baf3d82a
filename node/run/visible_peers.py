"""The peers that this node sees: members of its runs, and servers of the DHT."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.node.base.pools import NOTES
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Contact
from shoal.protocol.net.peers.network import Network

if TYPE_CHECKING:
    from shoal.node.run.run import Run

NOTED_SERVERS = 16  # DHT servers that are noted beside the members: a way back into any run
NOTE_EVERY = 1.0  # seconds between two checks for new peers, which are noted for after a restart


def is_in_a_run(runs: Mapping[str, Run], peer: PeerId) -> bool:
    """Whether a peer is a living member of any of these runs."""
    return any(run.member.membership.is_alive(peer) for run in runs.values())


class VisiblePeers:
    """`runs` are the open runs, `servers` returns the known DHT servers."""

    def __init__(self, network: Network, runs: Mapping[str, Run], servers: Callable[[], Sequence[Contact]]) -> None:
        self._network = network
        self._runs = runs
        self._servers = servers

    def is_alone(self) -> bool:
        """Whether no peer is connected, or an unfinished run has no other living member."""
        lonely = (not run.is_finished and not run.member.membership.alive() for run in self._runs.values())
        return not self._network.links() or any(lonely)

    def to_note(self) -> dict[PeerId, tuple[str, ...]]:
        """The peers to dial after a restart: living members, connected ones first; then some DHT servers.

        The result changes only with the set of peers, not with which of them was active last.
        """
        links = [link.peer for link in self._network.links()]
        alive = [
            entry
            for run in self._runs.values()
            for peer in run.member.membership.alive()
            if (entry := run.member.membership.entry(peer)) is not None
        ]
        members = {entry.peer: entry.addresses for entry in sorted(alive, key=lambda entry: entry.peer not in links)}
        servers = sorted(self._servers(), key=lambda contact: (contact.peer not in links, contact.peer))[:NOTED_SERVERS]
        return members | {each.peer: each.addresses for each in servers if each.peer not in members}

    async def keep_noted(self, update: Callable[[dict[PeerId, tuple[str, ...]]], None]) -> None:
        """Until cancelled: calls `update`, in a thread as it may write to disk, whenever these peers have changed."""
        noted = self.to_note()
        while True:
            await asyncio.sleep(NOTE_EVERY)
            if (seen := self.to_note()) != noted:
                noted = seen
                await NOTES.run(update, seen)
