"""How many contributions may be on their way by a socket, or wait at its other end: the receiver says so.

Both flows share a socket. Were contributions held back by not reading it, means behind them would wait, too, and two
owners that wait for each other's would do so for ever. So whoever receives gives credit, as QUIC's MAX_DATA does (RFC
9000, 4.1): so many bytes of contributions in all may be sent on this connection. Whoever has none left sends means.

Rules:
- A contribution costs the room that it takes in memory (`rounded`). It may be sent as long as any credit is left.
- What is held of one peer's contributions, and what is on credit, is SHARED, and the last payload of each socket.
  Credit grows as room is given back, and is shared out evenly among the peer's sockets.
- What was given to a socket cannot be taken back, and it may be dead. So while less than LEAST is held, another one
  gets LEAST in any case.
- Streams have no credit, and are not read while SHARED is held: who uses both may fill it twice.
- It is said on the socket itself, the other way, a GRAIN at a time (reports.py).
"""

from __future__ import annotations

from shoal.protocol.errors import RemoteError, TransportError
from shoal.protocol.ids import PeerId
from shoal.protocol.rooms import rounded

SHARED = 32 << 20  # bytes; both ends know it
LEAST = 8 << 20
GRAIN = 2 << 20


class Credit:
    """Of one socket, at either end. One thread spends, the loop grants."""

    def __init__(self) -> None:
        self._granted, self._spent = 0, 0

    @property
    def granted(self) -> int:
        """Bytes, in all."""
        return self._granted

    @property
    def left(self) -> int:
        """Bytes; negative if the last payload took more."""
        return self._granted - self._spent

    def spend(self, size: int) -> None:
        """On a contribution of so many bytes."""
        self._spent += rounded(size)

    def charge(self, size: int, sender: PeerId) -> None:
        """The same, at who gave the credit; RemoteError if there was none."""
        if self.left <= 0:
            raise RemoteError("sends contributions without credit", sender)
        self.spend(size)

    def grow(self, size: int) -> None:
        """So much more."""
        self._granted += size

    def grant(self, total: int) -> None:
        """What the other end says: so much in all, as before or more. TransportError for what nobody would say."""
        if total != self._granted and not self._granted + GRAIN <= total <= self._spent + SHARED:
            raise TransportError(f"was given credit of {total} bytes, after {self._granted}")
        self._granted = total


class Pool:
    """What one peer may have us hold, shared out among the sockets by which it sends."""

    def __init__(self) -> None:
        self._credits: list[Credit] = []

    def open(self, credit: Credit) -> None:
        """There is one more socket."""
        self._credits.append(credit)

    def close(self, credit: Credit) -> None:
        """That socket is gone."""
        self._credits.remove(credit)

    def share_out(self, held: int) -> list[Credit]:
        """Let those grow that should, where `held` bytes wait here: they are to be told."""
        room = SHARED - held - sum(max(0, each.left) for each in self._credits)
        share, grown = SHARED // max(1, len(self._credits)), list[Credit]()
        for each in self._credits:
            more = min(max(room, LEAST - held - each.left), share - each.left)
            if more >= GRAIN:
                room -= more
                each.grow(more)
                grown.append(each)
        return grown
