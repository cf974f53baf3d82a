"""How a message gets from one process to another: at once or through an uplink, then over a link of the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from shoal.protocol.base.effects import Withdraw
from shoal.protocol.base.ids import PeerId
from tests.simulation.links import Network
from tests.simulation.node import Node
from tests.simulation.process import Process
from tests.simulation.uplink import Parcel

N = TypeVar("N", bound=Node)
Later = Callable[[float, Process[N] | None, Any], None]  # (seconds from now, process, input), or (..., None, function)


class Post(Generic[N]):
    """Carries messages for a world, and tells their senders which payloads have left."""

    def __init__(self, network: Network, processes: dict[PeerId, Process[N]], later: Later[N]) -> None:
        self._network = network
        self._processes = processes
        self._later = later
        self.unreachable: list[PeerId] = []  # behind a NAT: they dial out, and only others like them can dial them

    def send(self, now: float, sender: Process[N], parcel: Parcel) -> None:
        """Send a message. Control messages leave at once; payloads wait for a relay or an uplink, if there is one."""
        to, message, data = parcel.to, parcel.message, parcel.data
        assert to is not None
        if not message.bulk:
            self._travel(sender, to, parcel)
        elif (detour := self._network.detour(sender.peer, to)) is not None:
            held = detour.enter(now, len(data))
            self._later(held, None, lambda: self._leave(now + held, sender, parcel) if sender.alive else None)
        elif sender.uplink is None:
            self._leave(now, sender, parcel)
        elif (seconds := sender.uplink.put(parcel)) is not None:
            self._later(seconds, sender, ("left",))

    def shift(self, now: float, sender: Process[N]) -> None:
        """The first payload in the queue of `sender` has left."""
        assert sender.uplink is not None
        parcel, unwanted, seconds = sender.uplink.shift()
        if seconds is not None:
            self._later(seconds, sender, ("left",))
        self._leave(now, sender, parcel)
        for each in unwanted:
            if each.to is not None:
                sender.node.on_left(now + sender.origin, each.to, each.message, sent=False)

    def withdraw(self, sender: Process[N], what: Withdraw) -> None:
        """What waits of these contributions of `sender` is of no use any more."""
        if sender.uplink is not None:
            sender.uplink.withdraw(what)

    def disconnect(self, now: float, survivor: Process[N], gone: PeerId) -> None:
        """A connection is lost, and with it the payloads that wait for it."""
        for message in survivor.uplink.drop(gone) if survivor.uplink is not None else ():
            survivor.node.on_left(now + survivor.origin, gone, message, sent=False)

    def _leave(self, now: float, sender: Process[N], parcel: Parcel) -> None:
        if parcel.to is not None:
            sent = self._travel(sender, parcel.to, parcel)
            sender.node.on_left(now + sender.origin, parcel.to, parcel.message, sent)

    def _travel(self, sender: Process[N], to: PeerId, parcel: Parcel) -> bool:
        """Put a message on its way; False if no process could receive it."""
        receiver = self._processes.get(to)
        if receiver is None or not receiver.alive or not self.has_way(sender, receiver):
            return False
        for delay in self._network.arrivals(sender.peer, to):
            self._later(delay, receiver, ("message", sender, parcel.message, parcel.data))
        return True

    def has_way(self, sender: Process[N], receiver: Process[N]) -> bool:
        """Whether `sender` can send to `receiver`: it is connected, or can dial."""
        dialled = sender.links.get(receiver.peer) is receiver
        return dialled or receiver.peer not in self.unreachable or sender.peer in self.unreachable
