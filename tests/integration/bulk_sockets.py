"""The bulk sockets of networks in this process, for tests that shut them down."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.bulk.handshake import BulkSocket
from shoal.protocol.net.peers.network import Network


class BulkSockets:
    """Notes each bulk socket as its network gets it; to be made before the networks are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._noted: list[tuple[PeerId, bool, socket.socket]] = []
        take = Network._opened

        def opened(network: Network, peer: PeerId, sends: bool, opened: BulkSocket) -> None:
            self._noted.append((network.peer, sends, opened.socket))
            take(network, peer, sends, opened)

        monkeypatch.setattr(Network, "_opened", opened)

    def of(self, network: Network, *, sends: bool) -> list[socket.socket]:
        """Those on which a network sends, or receives, and that are open still."""
        return [
            each for peer, does, each in self._noted if peer == network.peer and does is sends and each.fileno() >= 0
        ]

    def shut_down(self, network: Network, *, sends: bool) -> int:
        """Shut down all of these; how many there were."""
        sockets = self.of(network, sends=sends)
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        return len(sockets)
