"""One chunk at its owner: contributions in, one weighted mean out.

Contributions are folded in roster order whatever the order of arrival, so that a replay gives the same bits. Who is not
waited for is passed over at its place; the weights of the others renormalise because the sum only knows those it was
given. Each contributor is counted once, by the weight that it has offered: what names another one waits for an offer
that does, and is replaced by what comes after it, as its sender may have been started again. What cannot be a
contribution, by its size, is refused when it comes, and does not wait for its turn; what else is wrong with one is seen
when it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.protocol.averaging.reducer import Reducer
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Payload

Held = tuple[int, Callable[[], Payload]]  # weight, and what makes the bytes when there is something to add them to


class OwnedChunk:
    """The reduction of one chunk."""

    def __init__(self, chunk: int, reducer: Reducer) -> None:
        self._chunk = chunk
        self._sum = reducer.open(chunk)
        self._reducer = reducer
        self._held: dict[PeerId, Held | None] = {}  # None: what came was refused, or is counted already
        self._passed: set[PeerId] = set()  # whose turn is over
        self.counted: list[PeerId] = []

    def __repr__(self) -> str:
        return f"OwnedChunk({self._chunk}, counted={len(self.counted)})"

    def add(self, peer: PeerId, weight: int, payload: Payload) -> list[PayloadError]:
        """Take a contribution of somebody who `lacks` one here; the error, if no codec makes such a thing."""
        if self._reducer.fits(self._chunk, len(payload)):
            self._held[peer] = (weight, lambda: payload)
            return []
        self._held[peer] = None
        reason = f"contributes {len(payload)} bytes to chunk {self._chunk}, which no codec makes of it"
        return [PayloadError(reason, peer)]

    def hold(self, me: PeerId, weight: int, make: Callable[[], Payload]) -> None:
        """Take our own, which is made when its turn comes: all chunks at once would take long."""
        if self.lacks(me, weight):
            self._held[me] = (weight, make)

    def lacks(self, peer: PeerId, weight: int | None) -> bool:
        """Whether a contribution of `peer` by the weight that it has offered would count.

        That is if there is none, and its turn is not over. None: it has offered nothing yet.
        """
        if peer in self._held and ((held := self._held[peer]) is None or held[0] == weight):
            return False
        return peer not in self._passed or not self.counted

    def uncounted(self, peer: PeerId) -> int | None:
        """The weight of what is here of `peer`, and not counted yet."""
        held = self._held.get(peer)
        return held[0] if held is not None else None

    def fold(
        self,
        roster: Sequence[PeerId],
        offered: Callable[[PeerId], int | None],
        is_awaited: Callable[[PeerId], bool],
    ) -> tuple[bool, list[PayloadError]]:
        """Add those whose turn has come; whether nobody is awaited any more, and the errors of the bad ones."""
        errors: list[PayloadError] = []
        if not self.counted:
            self._passed = {peer for peer in self._passed if self._held.get(peer, ()) is None}
        for peer in roster:
            if peer in self._passed:
                continue
            held = self._held.get(peer)
            if held is not None and held[0] == offered(peer):
                errors += self._count(peer, held)
            elif (held is not None or peer not in self._held) and is_awaited(peer):
                return False, errors
            self._passed.add(peer)
        return True, errors

    def finish(self) -> Payload:
        """The encoded mean of those counted."""
        return self._sum.finish()

    def _count(self, peer: PeerId, held: Held) -> list[PayloadError]:
        weight, make = held
        self._held[peer] = None
        try:
            self._sum.add(weight, make())
        except PayloadError as error:
            return [PayloadError(error.reason, peer)]
        self.counted.append(peer)
        return []
